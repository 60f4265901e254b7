//! The first stage: sorts the samples and records of an origin.

use std::fs::File;

use super::order::{Order, Released, Timed};
use super::piece::Piece;
use crate::profile::hints::{HintRecord, Hints};
use crate::profile::thread_cgroups::ThreadCgroups;
use crate::sample::batch::{Batch, PendingSample};
use crate::sample::sched::SchedEvent;
use crate::sample::{Sample, SideBand, TimedSideBand};
use scxprof_trace::Event;

/// The number of samples that are passed on at once if the next stage has a thread, and the least number with little memory.
const PIECE: usize = 1 << 10;
const LEAST_PIECE: usize = 4;
/// All pieces together have about a sixth of the samples that may be held back to be sorted.
const PART: usize = 208;
/// Side-band of a file beside the records that is read before it is sorted.
const TAKEN: usize = 1 << 10;

/// What an origin gives: the record of a sample, or a line that also has the names.
pub(super) trait Unnamed: Timed + Send {
    /// Adds it to the samples to be named.
    fn put(&mut self, piece: &mut Piece);
}

impl Unnamed for PendingSample {
    fn put(&mut self, piece: &mut Piece) {
        if let Some(context) = self.context.take() {
            piece.contexts.push((piece.samples.len(), context));
        }
        piece.samples.push_raw(&self.raw);
    }
}

impl Unnamed for Sample {
    fn put(&mut self, piece: &mut Piece) {
        piece.samples.push(*self);
    }
}

/// Where the first stage passes its pieces.
pub(super) trait Next {
    /// Takes the content of the piece, which can be filled again.
    fn take(&mut self, piece: &mut Piece);
}

/// The piece that is being filled.
#[derive(Debug)]
pub(super) struct Unfinished {
    piece: Piece,
    /// It is full with this number of samples.
    size: usize,
}

impl Unfinished {
    pub(super) fn new(size: usize) -> Self {
        Self { piece: Piece::default(), size }
    }

    /// For an order that holds back this number of samples.
    pub(super) fn for_limit(limit: usize) -> Self {
        Self::new((limit / PART).clamp(LEAST_PIECE, PIECE))
    }
}

/// Takes what an origin gives.
pub(super) struct Inlet<'a, S> {
    pub(super) order: &'a mut Order<S>,
    /// The piece that is filled, and its destination; `None` while nothing can be passed on.
    next: Option<(&'a mut Unfinished, &'a mut dyn Next)>,
}

impl<'a, S: Unnamed> Inlet<'a, S> {
    pub(super) fn new(order: &'a mut Order<S>, unfinished: &'a mut Unfinished, next: &'a mut dyn Next) -> Self {
        Self { order, next: Some((unfinished, next)) }
    }

    /// An inlet that only holds back.
    pub(super) fn closed(order: &'a mut Order<S>) -> Self {
        Self { order, next: None }
    }

    /// Takes a batch; returns an empty list for the samples of another one.
    pub(super) fn push(&mut self, batch: Batch<S>) -> Vec<S> {
        self.order.push(batch)
    }

    /// Takes the content of a batch, which can be filled again.
    pub(super) fn take(&mut self, batch: &mut Batch<S>) {
        self.order.take(batch);
    }

    /// Takes the recorded hints up to `until`, which must precede the samples of their time.
    pub(super) fn take_hints(&mut self, recorded: &mut Hints<File>, until: u64) {
        self.take_beside(std::iter::from_fn(|| recorded.next_until(until)).map(|record| {
            let HintRecord { tid, pid, hint, time, .. } = record;
            TimedSideBand { time, what: SideBand::Hint { time, pid, tid, hint } }
        }));
    }

    /// Takes the recorded cgroups of threads up to `until`, which must precede the samples of their time.
    pub(super) fn take_cgroups(&mut self, recorded: &mut ThreadCgroups<File>, until: u64) {
        self.take_beside(std::iter::from_fn(|| recorded.next_until(until)).flatten());
    }

    /// Takes side-band from a file beside the records.
    fn take_beside(&mut self, mut recorded: impl Iterator<Item = TimedSideBand>) {
        loop {
            let side_band: Vec<_> = recorded.by_ref().take(TAKEN).collect();
            if side_band.is_empty() {
                return;
            }
            self.order.extend(side_band);
            if self.order.is_crowded() {
                self.release();
            }
        }
    }

    /// Passes on side-band that is in order already.
    pub(super) fn pass_side_band(&mut self, side: SideBand) {
        if let Some((Unfinished { piece, .. }, _)) = &mut self.next {
            piece.side_band.push((piece.samples.len(), side));
        }
    }

    /// Passes on a sample that is in order already.
    pub(super) fn pass_sample(&mut self, mut sample: S) {
        self.order.pass_by(sample.time());
        if let Some((Unfinished { piece, size }, next)) = &mut self.next {
            sample.put(piece);
            if piece.is_full(*size) {
                next.take(piece);
            }
        }
    }

    /// Takes events of a trace, which are in order already; `events` can be filled again.
    pub(super) fn events(&mut self, events: &mut Vec<Event>) {
        if let Some((unfinished, next)) = &mut self.next {
            std::mem::swap(&mut unfinished.piece.events, events);
            next.take(&mut unfinished.piece);
            events.clear();
        }
    }

    /// Passes on what is complete, if it is enough to be worth sorting.
    pub(super) fn release_due(&mut self) {
        if self.order.is_due() {
            self.release();
        }
    }

    /// Passes on what is complete; a piece that is not full yet waits for more.
    pub(super) fn release(&mut self) {
        if let Some((Unfinished { piece, size }, next)) = &mut self.next {
            self.order.release(&mut Filling { piece, size: *size, next: &mut **next });
        }
    }

    /// Passes on all that is complete.
    pub(super) fn release_all(&mut self) {
        self.release();
        if let Some((Unfinished { piece, .. }, next)) = &mut self.next {
            if !piece.is_empty() {
                next.take(piece);
            }
        }
    }
}

/// Fills pieces with what is released.
struct Filling<'a> {
    piece: &'a mut Piece,
    size: usize,
    next: &'a mut dyn Next,
}

impl Filling<'_> {
    fn pass_if_full(&mut self) {
        if self.piece.is_full(self.size) {
            self.next.take(self.piece);
        }
    }
}

impl<S: Unnamed> Released<S> for Filling<'_> {
    fn side_band(&mut self, what: SideBand) {
        self.piece.side_band.push((self.piece.samples.len(), what));
        self.pass_if_full();
    }

    fn sample(&mut self, sample: &mut S) {
        sample.put(self.piece);
        self.pass_if_full();
    }

    fn sched(&mut self, mut events: &[SchedEvent]) {
        // They may be many at once.
        while let Some((some, rest)) = events.split_at_checked(self.size).filter(|(_, rest)| !rest.is_empty()) {
            self.piece.push_sched(some);
            self.next.take(self.piece);
            events = rest;
        }
        self.piece.push_sched(events);
        self.pass_if_full();
    }
}
