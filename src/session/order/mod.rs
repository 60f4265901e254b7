//! Sorts what the workers send by time, and holds back no more than necessary.
//!
//! With each batch, a worker gives the time up to which it has read everything. What is older than the minimum of these times
//! is complete on every CPU. So a name that a thread took on one CPU is known before its next sample on another.

use std::collections::VecDeque;

use crate::memory::prefetch;
use crate::sample::batch::{Batch, PendingSample};
use crate::sample::sched::{SchedEvent, SchedWhat};
use crate::sample::Sample;
use crate::sample::{SideBand, TimedSideBand};
use scxprof_base::tables::Tables;

/// How far time must advance before the next release, in ns: releasing in smaller steps costs more per event.
const STEP: u64 = 20_000_000;

/// An object to sort.
pub(super) trait Timed: Default {
    /// ns.
    fn time(&self) -> u64;
    fn cpu(&self) -> u32;
}

impl Timed for PendingSample {
    fn time(&self) -> u64 {
        self.raw.time
    }
    fn cpu(&self) -> u32 {
        self.raw.cpu
    }
}

impl Timed for Sample {
    fn time(&self) -> u64 {
        self.raw.time
    }
    fn cpu(&self) -> u32 {
        self.raw.cpu
    }
}

/// Samples of one batch of a worker, and how many of them are still held back.
#[derive(Debug)]
struct Chunk<S> {
    samples: Vec<S>,
    left: usize,
}

/// The most samples of a chunk: their number in it has 24 bits of a key.
const CHUNK: usize = 1 << 24;
/// The number of empty chunks that are kept for reuse.
const SPARE: usize = 16;
/// Chunks without a sample that may lie between others.
const EMPTY: usize = 4096;
/// Bytes of side-band that may always be held back, however small the limit is.
const MIN_SIDE_BAND: usize = 1 << 20;

/// Samples and records that arrived and are not yet complete on every CPU.
#[derive(Debug)]
pub(super) struct Order<S = PendingSample> {
    /// In the order of arrival. Samples stay in their chunk until they are released, because they are large.
    chunks: VecDeque<Chunk<S>>,
    /// The number of chunks that were released completely.
    gone: u64,
    spare: Vec<Vec<S>>,
    /// See [`key`]. The first of them, up to this number, are sorted.
    keys: Vec<u128>,
    sorted: usize,
    side_band: Vec<TimedSideBand>,
    /// Bytes of it.
    side_bytes: usize,
    complete: Vec<u64>,
    /// Records after this time are kept, whatever the workers report.
    hold: u64,
    released: u64,
    limit: usize,
    /// Time of the oldest sample so far, [`u64::MAX`] without one.
    pub(super) first: u64,
    /// The latest time of any sample; 0 before the first.
    pub(super) last: u64,
    /// Samples that came after newer ones were released.
    pub(super) late: u64,
    /// The same for other side-band; records without a time precede all samples.
    pub(super) late_side_band: u64,
    /// The same for hint events.
    pub(super) late_hints: u64,
    /// Hint events that are held back.
    hints: usize,
    /// Events of the scheduler, unsorted.
    sched: Vec<SchedEvent>,
    /// Those that came after newer ones were released.
    pub(super) late_sched: u64,
    /// Hints are passed on among the events of the scheduler too.
    pub(super) joins_hints: bool,
}

/// What takes what [`Order::release`] gives: one call for each, so that nothing is moved once more.
pub(super) trait Released<S> {
    fn side_band(&mut self, what: SideBand);
    fn sample(&mut self, sample: &mut S);
    /// Consecutive events of the scheduler.
    fn sched(&mut self, events: &[SchedEvent]);
}

/// The number of samples that are prefetched before they are released.
const AHEAD: usize = 24;

/// A sample's time, CPU and location as one number: 64 bits, 16 (if two CPUs sample in the same ns, a recording must give the
/// same one first), 24 for its chunk and 24 for its number in it.
fn key(sample: &impl Timed, chunk: u64, at: usize) -> u128 {
    let memory = (chunk & 0xff_ffff) << 24 | at as u64;
    u128::from(sample.time()) << 64 | u128::from(sample.cpu() as u16) << 48 | u128::from(memory)
}

fn time_of(key: u128) -> u64 {
    (key >> 64) as u64
}

/// The index of the chunk among those present, and that of the sample in it.
fn place_of(key: u128, gone: u64) -> (usize, usize) {
    let chunk = (key as u64 >> 24).wrapping_sub(gone) & 0xff_ffff;
    (chunk as usize, key as usize & 0xff_ffff)
}

impl<S: Timed> Order<S> {
    /// For this many workers; holds back at most `limit` samples, and as many bytes of side-band.
    pub(super) fn new(workers: usize, limit: usize) -> Self {
        Self {
            chunks: VecDeque::new(),
            gone: 0,
            spare: Vec::new(),
            keys: Vec::new(),
            sorted: 0,
            side_band: Vec::new(),
            side_bytes: 0,
            complete: vec![0; workers],
            hold: u64::MAX,
            released: 0,
            limit: limit.clamp(1, CHUNK / 2),
            first: u64::MAX,
            last: 0,
            late: 0,
            late_side_band: 0,
            late_hints: 0,
            hints: 0,
            sched: Vec::new(),
            late_sched: 0,
            joins_hints: false,
        }
    }

    /// Takes a batch; returns an empty list for the samples of another one.
    pub(super) fn push(&mut self, mut batch: Batch<S>) -> Vec<S> {
        self.take(&mut batch);
        batch.samples
    }

    /// Takes the content of a batch, which can be filled again.
    pub(super) fn take(&mut self, batch: &mut Batch<S>) {
        if let Some(mark) = self.complete.get_mut(batch.worker) {
            *mark = (*mark).max(batch.complete_until);
        }
        self.take_side_band(&mut batch.side_band);
        self.late_sched += batch.sched.iter().filter(|event| event.time < self.released).count() as u64;
        self.sched.append(&mut batch.sched);
        while !batch.samples.is_empty() {
            let rest = batch.samples.split_off(batch.samples.len().min(CHUNK));
            self.take_chunk(&mut batch.samples);
            if !rest.is_empty() {
                batch.samples = rest;
            }
        }
    }

    fn take_chunk(&mut self, samples: &mut Vec<S>) {
        let samples = std::mem::replace(samples, self.spare.pop().unwrap_or_default());
        let chunk = self.gone + self.chunks.len() as u64;
        for (at, sample) in samples.iter().enumerate() {
            self.late += u64::from(sample.time() < self.released);
            self.first = self.first.min(sample.time());
            self.last = self.last.max(sample.time());
            self.keys.push(key(sample, chunk, at));
        }
        self.chunks.push_back(Chunk { left: samples.len(), samples });
    }

    fn take_side_band(&mut self, side_band: &mut Vec<TimedSideBand>) {
        for side in side_band.iter() {
            let is_late = side.time < self.released && side.time > 0;
            if let SideBand::Hint { tid, hint, .. } = side.what {
                if self.joins_hints {
                    let what = SchedWhat::Hint { tid, hint };
                    self.sched.push(SchedEvent { time: side.time, cpu: 0, pid: 0, tid: 0, cgroup: 0, what });
                }
                self.hints += 1;
                self.late_hints += u64::from(is_late);
            } else {
                self.late_side_band += u64::from(is_late);
            }
        }
        self.side_bytes += side_band.iter().map(TimedSideBand::bytes).sum::<usize>();
        self.side_band.append(side_band);
    }

    /// Its sizes.
    pub(super) fn measure(&self, tables: &mut Tables) {
        let waiting: usize = self.chunks.iter().map(|chunk| chunk.samples.capacity()).sum();
        let spare: usize = self.spare.iter().map(Vec::capacity).sum();
        let bytes = (waiting + spare) * size_of::<S>() + self.keys.capacity() * size_of::<u128>();
        tables.set("samples to be sorted", self.keys.len(), bytes);
        let room = self.side_band.capacity().saturating_sub(self.side_band.len()) * size_of::<TimedSideBand>();
        let bytes = self.sched.capacity() * size_of::<SchedEvent>();
        tables.set("scheduling events to be sorted", self.sched.len(), bytes);
        tables.set("records to be sorted", self.side_band.len(), self.side_bytes + room);
    }

    /// A sample of this time is in order already, and bypasses the sorting.
    pub(super) fn pass_by(&mut self, time: u64) {
        self.first = self.first.min(time);
        self.last = self.last.max(time);
    }

    /// Takes side-band that no worker read.
    pub(super) fn extend(&mut self, mut side_band: Vec<TimedSideBand>) {
        self.take_side_band(&mut side_band);
    }

    /// No more batches will come: all that is held back is complete, whatever a dead worker last reported.
    pub(super) fn end(&mut self) {
        self.complete.fill(u64::MAX);
        self.hold = u64::MAX;
    }

    /// Holds back what is later than `until` until the next call: older side-band may still come.
    pub(super) fn hold(&mut self, until: u64) {
        self.hold = until;
    }

    /// True if [`Order::release`] would release enough to be worth its sorting.
    pub(super) fn is_due(&self) -> bool {
        let mark = self.mark();
        mark == u64::MAX || mark.saturating_sub(self.released) >= STEP || self.is_full() || self.is_crowded()
    }

    /// The most samples that are held back.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// True if more samples are held back than the limit.
    pub(super) fn is_full(&self) -> bool {
        self.keys.len() > self.limit || self.sched.len() > self.limit
    }

    /// True if more side-band is held back than the limit.
    pub(super) fn is_crowded(&self) -> bool {
        self.side_bytes > (self.limit * size_of::<S>()).max(MIN_SIDE_BAND)
    }

    /// False if as many hint events are held back as there may be samples, and other workers than `worker`, which sends them,
    /// delay their release: the rest then waits in the kernel's ring.
    pub(super) fn takes_hints(&self, worker: usize) -> bool {
        self.hints <= self.limit || self.complete.get(worker).is_none_or(|mark| *mark <= self.mark())
    }

    /// Everything up to this time was released; ns.
    pub(super) fn released(&self) -> u64 {
        self.released
    }

    fn mark(&self) -> u64 {
        self.complete.iter().copied().min().unwrap_or(u64::MAX).min(self.hold)
    }

    /// Releases what is complete, the oldest first, side-band before a sample of the same time.
    ///
    /// If more is held back than the limit allows, the older half is released early; what comes late is counted.
    pub(super) fn release(&mut self, to: &mut impl Released<S>) {
        self.sort();
        self.side_band.sort_by_key(|side| side.time);
        // Stable, and made for what is in order already, as what each CPU sent.
        self.sched.sort_by_key(|event| event.time);
        let mut until = self.mark();
        if self.keys.len() > self.limit {
            until = until.max(self.keys.get(self.keys.len() / 2).map_or(0, |&key| time_of(key)));
        }
        if self.sched.len() > self.limit {
            until = until.max(self.sched.get(self.sched.len() / 2).map_or(0, |event| event.time));
        }
        if self.is_crowded() {
            until = until.max(self.side_band.get(self.side_band.len() / 2).map_or(0, |side| side.time));
        }
        self.released = self.released.max(until);
        let ready = self.keys.partition_point(|&key| time_of(key) <= until);
        let known = self.side_band.partition_point(|side| side.time <= until);
        let given = self.side_band.get(..known).unwrap_or_default();
        self.side_bytes -= given.iter().map(TimedSideBand::bytes).sum::<usize>();
        self.hints -= given.iter().filter(|side| matches!(side.what, SideBand::Hint { .. })).count();
        let mut sides = self.side_band.drain(..known).peekable();
        let mut next_side = sides.peek().map(|side| side.time);
        let mut sched = &self.sched[..];
        let mut next_sched = sched.first().map(|event| event.time);
        for number in 0..ready {
            let Some(&key) = self.keys.get(number) else { break };
            // Those that wait do not all fit into a cache that is near.
            let (chunk, at) = place_of(self.keys.get(number + AHEAD).copied().unwrap_or(key), self.gone);
            if let Some(later) = self.chunks.get(chunk).and_then(|chunk| chunk.samples.get(at)) {
                prefetch(later);
            }
            while next_side.is_some_and(|time| time <= time_of(key)) {
                if let Some(side) = sides.next() {
                    if next_sched.is_some_and(|time| time < side.time) {
                        to.sched(before(&mut sched, side.time - 1));
                        next_sched = sched.first().map(|event| event.time);
                    }
                    to.side_band(side.what);
                }
                next_side = sides.peek().map(|side| side.time);
            }
            if next_sched.is_some_and(|time| time <= time_of(key)) {
                to.sched(before(&mut sched, time_of(key)));
                next_sched = sched.first().map(|event| event.time);
            }
            let (chunk, at) = place_of(key, self.gone);
            let Some(chunk) = self.chunks.get_mut(chunk) else { continue };
            if let Some(next) = chunk.samples.get_mut(at) {
                to.sample(next);
                chunk.left -= 1;
            }
            if chunk.left == 0 {
                let mut samples = std::mem::take(&mut chunk.samples);
                if self.spare.len() < SPARE {
                    samples.clear();
                    self.spare.push(samples);
                }
            }
        }
        self.keys.drain(..ready);
        self.sorted = self.keys.len();
        for side in sides {
            if next_sched.is_some_and(|time| time < side.time) {
                to.sched(before(&mut sched, side.time - 1));
                next_sched = sched.first().map(|event| event.time);
            }
            to.side_band(side.what);
        }
        let rest = before(&mut sched, until);
        if !rest.is_empty() {
            to.sched(rest);
        }
        let given = self.sched.len() - sched.len();
        self.sched.drain(..given);
        while self.chunks.front().is_some_and(|chunk| chunk.left == 0) {
            self.chunks.pop_front();
            self.gone += 1;
        }
        if self.chunks.len() > EMPTY + self.keys.len() {
            self.compact();
        }
    }

    #[allow(clippy::stable_sort_primitive)] // What one CPU sent is in order already, which a merge sort makes use of.
    fn sort(&mut self) {
        let count = self.keys.len();
        let (held, new) = self.keys.split_at_mut(self.sorted.min(count));
        new.sort();
        // Mostly, all that was held back is older than what came since.
        if held.last() > new.first() && !new.is_empty() {
            self.keys.sort();
        }
        self.sorted = count;
    }

    /// Moves the remaining samples into one chunk: a sample with a time far ahead would keep all chunks after its own.
    fn compact(&mut self) {
        let gone = self.gone + self.chunks.len() as u64;
        let mut samples = Vec::with_capacity(self.keys.len());
        for key in &mut self.keys {
            let (chunk, at) = place_of(*key, self.gone);
            let sample = self.chunks.get_mut(chunk).and_then(|chunk| chunk.samples.get_mut(at));
            if let Some(sample) = sample {
                *key = self::key(sample, gone, samples.len());
                samples.push(std::mem::take(sample));
            }
        }
        self.chunks.clear();
        self.chunks.push_back(Chunk { left: samples.len(), samples });
        self.gone = gone;
    }
}

/// Takes the events up to this time off the front.
fn before<'e>(sched: &mut &'e [SchedEvent], time: u64) -> &'e [SchedEvent] {
    let (before, after) = sched.split_at(sched.partition_point(|event| event.time <= time));
    *sched = after;
    before
}

#[cfg(test)]
mod tests;
