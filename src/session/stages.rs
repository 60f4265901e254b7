//! The stages of a recorded profile: one reads the records and sorts them by time, one names the samples, and one passes them to
//! the sink. Each has a thread of its own if the machine has several CPUs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};

use crossbeam_channel::{bounded, Receiver, RecvTimeoutError, Sender};
use perf_event_open_sys::bindings as sys;

use super::names::take_some_hints;
use super::order::{Order, Released};
use super::ready::{Ready, READY};
use super::stop::{StopPoll, TICK};
use super::{Names, Sink};
use crate::profile::{PerfDataError, Profile, Records};
use crate::resolve::Cgroups;
use crate::sample::batch::{PendingSample, SideBand, UserContext};
use crate::sample::sched::SchedEvent;
use crate::sample::{RawSample, Sample};
use crate::sampler::intake::Intake;
use crate::sampler::plan::AddressFrom;
use crate::sampler::Identity;
use scxprof_perf::reader::Item;
use scxprof_perf::record::{sample_type, Header, Layout};

/// Records that are read before they are sorted.
const TAKE_EVERY: u32 = 1 << 10;
/// Samples that are passed to the next stage at once, and the fewest of them with little memory.
const PIECE: usize = 1 << 10;
const LEAST_PIECE: usize = 16;
/// All pieces together have about a sixth of the samples that may be held back to be sorted.
const PART: usize = 64;
/// Side-band that is passed on at once; a path in it has up to 4 KiB.
const PIECE_SIDE_BAND: usize = 1 << 8;
/// Pieces that may wait between two stages.
const WAITING: usize = 4;

/// What one stage passes to the next: samples in order of time, and the side-band between them.
#[derive(Debug, Default)]
struct Piece {
    samples: Ready,
    /// Each with the number of samples before it. Only cgroups are left after the second stage.
    side_band: Vec<(usize, SideBand)>,
    /// Events of the scheduler.
    sched: Vec<SchedEvent>,
    /// Numbers of samples, and of these events before the next sample; ascending.
    sched_until: Vec<(usize, usize)>,
    /// Samples of the recording so far, after the second stage.
    records: u64,
    /// What samples have for their stacks, each with the sample's number, until the second stage.
    contexts: Vec<(usize, Box<UserContext>)>,
}

impl Piece {
    fn push_sched(&mut self, events: &[SchedEvent]) {
        self.sched.extend_from_slice(events);
        self.sched_until.push((self.samples.len(), self.sched.len()));
    }

    fn is_full(&self, samples: usize) -> bool {
        self.samples.len() >= samples || self.side_band.len() >= PIECE_SIDE_BAND || self.sched.len() >= samples
    }

    fn is_empty(&self) -> bool {
        self.samples.len() == 0 && self.side_band.is_empty() && self.sched.is_empty()
    }
}

/// Where the first stage passes its pieces.
trait Next {
    /// Takes the content of the piece, which can be filled again.
    fn take(&mut self, piece: &mut Piece);

    /// True if the caller of the session wants it to end.
    fn is_stopped(&mut self) -> bool;
}

/// The first stage: reads records and sorts them.
pub(super) struct RecordReader<'p> {
    profile: &'p mut Profile,
    pub(super) order: Order,
    pub(super) intake: Intake,
    /// Everything older than this has been read.
    mark: u64,
    /// There were samples without a time.
    pub(super) is_untimed: bool,
    /// Samples of this event are all that is read, or all that is not.
    pub(super) only: Option<(u16, bool)>,
    /// Samples with call chains are wanted as such, also those of scheduling events.
    pub(super) reads_stacks: bool,
    /// Samples of KVM guests, which are left out.
    pub(super) guests: u64,
    /// perf wrote what existed only after it had recorded samples.
    pub(super) is_named_at_end: bool,
    out: Out,
}

/// The piece that is being filled.
struct Out {
    piece: Piece,
    /// It is full with so many samples.
    size: usize,
}

impl<'p> RecordReader<'p> {
    /// Holds back at most `limit` samples to sort them.
    pub(super) fn new(profile: &'p mut Profile, identity: Identity, address_from: AddressFrom, limit: usize) -> Self {
        Self {
            profile,
            order: Order::new(1, limit),
            intake: Intake::new(identity, address_from),
            mark: 0,
            is_untimed: false,
            is_named_at_end: false,
            only: None,
            reads_stacks: false,
            guests: 0,
            out: Out { piece: Piece::default(), size: (limit / PART).clamp(LEAST_PIECE, PIECE) },
        }
    }

    /// Reads all records, or until the session must end, and passes all that it read on.
    fn run(&mut self, next: &mut dyn Next) -> Result<(), PerfDataError> {
        let result = self.read(next);
        self.take_hints(u64::MAX, next);
        self.complete(u64::MAX, next);
        if !self.out.piece.is_empty() {
            next.take(&mut self.out.piece);
        }
        result
    }

    fn read(&mut self, next: &mut dyn Next) -> Result<(), PerfDataError> {
        // What was newest at one mark is complete at the next (`perf_event__process_finished_round` in tools/perf/util).
        let mut newest = 0;
        let mut count = 0u32;
        loop {
            count = count.wrapping_add(1);
            if count.is_multiple_of(TAKE_EVERY) && next.is_stopped() {
                return Ok(());
            }
            let Records::PerfData(perf_data) = &mut self.profile.records else { return Ok(()) };
            match perf_data.next_item()? {
                Some(Item::Record { bytes, event, sched: Some(_), .. })
                    if self.only.is_some_and(|(only, wanted)| !wanted && usize::from(only) == event)
                        && is_of_others(self.only, bytes, event) => {}
                Some(Item::Record { bytes, layout, event, sched: Some(decoder), .. })
                    if !(self.reads_stacks && is_stack(self.only, layout, event)) =>
                {
                    self.intake.take_sched(bytes, layout, decoder);
                    if count.is_multiple_of(TAKE_EVERY) {
                        self.take_hints(self.intake.newest(), next);
                        self.take_read(next);
                    }
                }
                Some(Item::Record { bytes, event, .. }) if is_of_others(self.only, bytes, event) => {}
                Some(Item::Record { bytes, .. }) if is_of_a_guest(bytes) => self.guests += 1,
                Some(Item::Record { bytes, layout, period, event, .. }) => {
                    let is_timed = layout.sample_type & sample_type::TIME != 0;
                    if !is_timed {
                        // It applies to the samples after it in the file, not to those before it.
                        if Header::read(bytes).is_some_and(|header| header.kind == sys::PERF_RECORD_SAMPLE) {
                            self.is_untimed = true;
                        } else if self.is_untimed {
                            self.order.take(self.intake.batch());
                            release(&mut self.order, &mut self.out, next);
                        }
                    }
                    let malformed = self.intake.malformed();
                    let (newest, batch) = (self.intake.newest(), self.intake.batch());
                    let (before, sides) = (batch.samples.len(), batch.side_band.len());
                    self.intake.take(bytes, layout);
                    // perf's own records of existing threads and mappings have time 0.
                    if let Some(side) = self.intake.batch().side_band.get(sides) {
                        self.is_named_at_end |= side.time == 0 && newest > 0 && is_timed && layout.sample_id_all;
                    }
                    if let Some(PendingSample { raw, .. }) = self.intake.batch().samples.get_mut(before) {
                        raw.period = period.unwrap_or(raw.period);
                        raw.event = u16::try_from(event).unwrap_or(u16::MAX);
                        if layout.sample_type & sample_type::CPU == 0 {
                            raw.cpu = RawSample::NO_CPU;
                        }
                    }
                    if self.intake.malformed() > malformed {
                        let header = Header::read(bytes);
                        self.profile.note_unparseable(header);
                    }
                    if count.is_multiple_of(TAKE_EVERY) {
                        self.take_hints(self.intake.newest(), next);
                        self.take_read(next);
                    }
                }
                Some(Item::Round) => {
                    self.take_hints(self.intake.newest(), next);
                    self.complete(newest, next);
                    newest = self.intake.newest();
                }
                None => return Ok(()),
            }
        }
    }

    /// Takes the hints up to `until`, which must precede the samples of their time.
    fn take_hints(&mut self, until: u64, next: &mut dyn Next) {
        let Some(hints) = &mut self.profile.hints else { return };
        while take_some_hints(hints, until, &mut self.order) {
            if self.order.is_crowded() {
                release(&mut self.order, &mut self.out, next);
            }
        }
    }

    /// Takes what was read, and makes room if too much waits.
    fn take_read(&mut self, next: &mut dyn Next) {
        self.order.take(self.intake.batch());
        if self.order.is_full() || self.order.is_crowded() {
            release(&mut self.order, &mut self.out, next);
        }
    }

    /// Everything older than `until` has been read.
    fn complete(&mut self, until: u64, next: &mut dyn Next) {
        self.mark = self.mark.max(until);
        let batch = self.intake.batch();
        batch.complete_until = self.mark;
        self.order.take(batch);
        if self.order.is_due() {
            release(&mut self.order, &mut self.out, next);
        }
    }
}

/// True for an event whose samples are wanted as call stacks, also if it is one of the scheduler.
fn is_stack(only: Option<(u16, bool)>, layout: &Layout, event: usize) -> bool {
    layout.sample_type & sample_type::CALLCHAIN != 0 && only.is_none_or(|(only, _)| usize::from(only) == event)
}

/// True for a sample that interrupted a KVM guest: its addresses are not those of the process that runs the guest.
fn is_of_a_guest(bytes: &[u8]) -> bool {
    const MODE: u32 = sys::PERF_RECORD_MISC_CPUMODE_MASK;
    const GUEST: [u32; 2] = [sys::PERF_RECORD_MISC_GUEST_KERNEL, sys::PERF_RECORD_MISC_GUEST_USER];
    Header::read(bytes).is_some_and(|header| {
        header.kind == sys::PERF_RECORD_SAMPLE && GUEST.contains(&(u32::from(header.misc) & MODE))
    })
}

/// True for samples of other events than those that are read, and for what was lost of them.
fn is_of_others(only: Option<(u16, bool)>, bytes: &[u8], event: usize) -> bool {
    const OF_EVENTS: [u32; 3] = [sys::PERF_RECORD_SAMPLE, sys::PERF_RECORD_LOST, sys::PERF_RECORD_LOST_SAMPLES];
    let is_of_an_event = || Header::read(bytes).is_some_and(|header| OF_EVENTS.contains(&header.kind));
    only.is_some_and(|(only, is_wanted)| (usize::from(only) == event) != is_wanted && is_of_an_event())
}

/// Passes what is complete on; a piece that is not full yet waits for more.
fn release(order: &mut Order, out: &mut Out, next: &mut dyn Next) {
    let Out { piece, size } = out;
    order.release(|released| {
        match released {
            Released::SideBand(what) => piece.side_band.push((piece.samples.len(), what)),
            Released::Sample(PendingSample { raw, context }) => {
                if let Some(context) = context.take() {
                    piece.contexts.push((piece.samples.len(), context));
                }
                piece.samples.push_raw(raw);
            }
            Released::Sched(mut events) => {
                // They may be many at once.
                while let Some((some, rest)) = events.split_at_checked(*size).filter(|(_, rest)| !rest.is_empty()) {
                    piece.push_sched(some);
                    next.take(piece);
                    events = rest;
                }
                piece.push_sched(events);
            }
        }
        if piece.is_full(*size) {
            next.take(piece);
        }
    });
}

/// The second stage: names the samples of a piece in place, or puts the accesses there that they gave.
fn name(names: &mut Names, piece: &mut Piece, spare: &mut Ready) {
    let Piece { samples, side_band, sched, sched_until, records, contexts } = piece;
    let mut cgroups = Vec::new();
    let mut of_sched = 0;
    let mut sides = side_band.drain(..).peekable();
    let mut kept = 0;
    let mut contexts = contexts.drain(..).peekable();
    spare.truncate(0);
    for at in 0..=samples.len() {
        while let Some((_, what)) = sides.next_if(|(before, _)| *before <= at) {
            match what {
                // The last stage looks them up.
                SideBand::Cgroup { .. } => cgroups.push((kept + spare.len(), what)),
                what => names.side_band(what),
            }
        }
        while let Some((before, _)) = sched_until.get_mut(of_sched).filter(|(before, _)| *before <= at) {
            *before = kept + spare.len();
            of_sched += 1;
        }
        let samples = samples.samples_mut();
        let Some(sample) = samples.get_mut(at) else { break };
        let context = contexts.next_if(|(of, _)| *of == at).map(|(_, context)| context);
        if !names.numbered(sample) {
            continue;
        }
        if names.stacks.is_some() {
            names.stacked(sample, context.as_deref());
            if kept < at {
                samples.copy_within(at..=at, kept);
            }
            kept += 1;
        } else if names.recovered.is_some() {
            names.joined(sample, spare);
        } else {
            names.placed(sample);
            if kept < at {
                samples.copy_within(at..=at, kept);
            }
            kept += 1;
        }
    }
    drop((sides, contexts));
    if names.wakeups.is_some() {
        // Of this source there are no other samples.
        names.woken(sched, samples);
        kept = samples.len();
    }
    if names.recovered.is_some() {
        std::mem::swap(samples, spare);
    } else {
        samples.truncate(kept);
    }
    (*side_band, *records) = (cgroups, names.records);
}

/// The last stage: passes the samples to the sink. It runs in the thread of the session's caller.
pub(super) struct SinkEnd<'s, 'e> {
    pub(super) sink: &'s mut dyn Sink,
    pub(super) cgroups: Cgroups,
    /// Accesses that the sink took.
    pub(super) accesses: u64,
    pub(super) ends: StopPoll<'e>,
}

impl SinkEnd<'_, '_> {
    /// Passes on the samples of a piece, and leaves it empty.
    fn take(&mut self, piece: &mut Piece) {
        let samples = piece.samples.samples();
        self.accesses += samples.len() as u64;
        let mut given = 0;
        let (mut sched, mut sched_given) = (piece.sched_until.drain(..).peekable(), 0);
        let mut sides = piece.side_band.drain(..).peekable();
        loop {
            // What is before a cgroup's path needs none of it.
            let (next_side, next_sched) = (sides.peek().map(|(at, _)| *at), sched.peek().map(|(at, _)| *at));
            let Some(before) = next_side.into_iter().chain(next_sched).min() else { break };
            self.give(samples.get(given..before));
            given = before;
            while let Some((_, what)) = sides.next_if(|(at, _)| *at <= before) {
                if let SideBand::Cgroup { id, path } = what {
                    self.cgroups.record(id, &path);
                }
            }
            while let Some((_, until)) = sched.next_if(|(at, _)| *at <= before) {
                if let Some(events) = piece.sched.get(sched_given..until) {
                    self.sink.sched(events, &mut self.cgroups);
                }
                sched_given = until;
            }
        }
        self.give(samples.get(given..));
        drop((sides, sched));
        piece.samples.truncate(0);
        piece.sched.clear();
    }

    fn give(&mut self, samples: Option<&[Sample]>) {
        for some in samples.unwrap_or_default().chunks(READY) {
            self.sink.samples(some, &mut self.cgroups);
        }
    }
}

/// Runs the stages until there are no more records, or the caller of the session wants it to end.
pub(super) fn run(
    reader: &mut RecordReader<'_>,
    names: &mut Names,
    end: &mut SinkEnd<'_, '_>,
) -> Result<(), PerfDataError> {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let in_threads = if cpus > 1 { in_threads(reader, names, end) } else { None };
    // Without room for threads, nothing was read yet.
    in_threads.unwrap_or_else(|| in_turn(reader, names, end))
}

/// Runs the stages one after the other, piece by piece.
fn in_turn(reader: &mut RecordReader<'_>, names: &mut Names, end: &mut SinkEnd<'_, '_>) -> Result<(), PerfDataError> {
    struct InTurn<'a, 's, 'e> {
        names: &'a mut Names,
        spare: Ready,
        end: &'a mut SinkEnd<'s, 'e>,
    }
    impl Next for InTurn<'_, '_, '_> {
        fn take(&mut self, piece: &mut Piece) {
            name(self.names, piece, &mut self.spare);
            self.end.take(piece);
        }
        fn is_stopped(&mut self) -> bool {
            self.end.ends.met(self.names.records)
        }
    }
    reader.run(&mut InTurn { names, spare: Ready::default(), end })
}

/// Runs each stage in a thread; `None` if one cannot be started.
fn in_threads(
    reader: &mut RecordReader<'_>,
    names: &mut Names,
    end: &mut SinkEnd<'_, '_>,
) -> Option<Result<(), PerfDataError>> {
    let stop = &AtomicBool::new(false);
    let (to_names, from_reader) = bounded::<Piece>(WAITING);
    let (to_sink, from_names) = bounded::<Piece>(WAITING);
    // Pieces that are filled again.
    let (emptied, empty) = bounded::<Piece>(2 * WAITING);
    // What is moved into the closure ends with it, even by a panic of the sink: then no thread waits for another.
    thread::scope(move |scope| {
        let second = thread::Builder::new().name("names".to_owned());
        let second = second.spawn_scoped(scope, move || {
            let mut spare = Ready::default();
            for mut piece in from_reader {
                name(names, &mut piece, &mut spare);
                if to_sink.send(piece).is_err() {
                    break;
                }
            }
        });
        let second = second.ok()?;
        let first = thread::Builder::new().name("reader".to_owned());
        let first = first.spawn_scoped(scope, move || reader.run(&mut InThread { to_names, empty, stop }));
        let first = first.ok()?;
        let mut records = 0;
        loop {
            match from_names.recv_timeout(TICK) {
                Ok(mut piece) => {
                    end.take(&mut piece);
                    records = piece.records;
                    let _ = emptied.try_send(piece);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if !stop.load(Ordering::Relaxed) && end.ends.met(records) {
                stop.store(true, Ordering::Relaxed);
            }
        }
        result(second);
        Some(result(first))
    })
}

/// The second stage as seen by the first, if it is another thread.
struct InThread<'a> {
    to_names: Sender<Piece>,
    empty: Receiver<Piece>,
    stop: &'a AtomicBool,
}

impl Next for InThread<'_> {
    fn take(&mut self, piece: &mut Piece) {
        let empty = self.empty.try_recv().unwrap_or_default();
        if self.to_names.send(std::mem::replace(piece, empty)).is_err() {
            // The second stage died; its panic is passed on.
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    fn is_stopped(&mut self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// The result of a thread; a panic there is one here.
fn result<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
