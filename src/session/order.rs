//! Sorts what the workers send by time, and holds back no more than necessary.
//!
//! With each batch, a worker gives the time up to which it has read everything. What is older than the minimum of these times
//! is complete on every CPU. So a name that a thread took on one CPU is known before its next sample on another.

use std::collections::VecDeque;

use crate::sample::batch::{Batch, PendingSample};
use crate::sample::sched::{SchedEvent, SchedWhat};
use crate::sample::Sample;
use crate::sample::{SideBand, TimedSideBand};
use scxprof_base::tables::Tables;

/// How far time must advance before the next release, in ns: sorting less more often costs more.
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
/// Empty chunks that are kept for reuse.
const SPARE: usize = 16;
/// Chunks without a sample that may lie between others.
const EMPTY: usize = 4096;
/// Bytes of side-band that may always be held back, however small the limit is.
const MIN_SIDE_BAND: usize = 1 << 20;

/// What came in and is not yet complete on every CPU.
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
    /// What is later is kept, whatever the workers report.
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

/// What [`Order::release`] returns.
#[derive(Debug)]
pub(super) enum Released<'a, S = PendingSample> {
    SideBand(SideBand),
    Sample(&'a mut S),
    /// Consecutive events of the scheduler.
    Sched(&'a [SchedEvent]),
}

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

    /// Takes a batch.
    pub(super) fn push(&mut self, mut batch: Batch<S>) {
        self.take(&mut batch);
        if batch.samples.capacity() > 0 && self.spare.len() < SPARE {
            self.spare.push(batch.samples);
        }
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

    /// A sample of this time is in order already, and passes by.
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

    fn mark(&self) -> u64 {
        self.complete.iter().copied().min().unwrap_or(u64::MAX).min(self.hold)
    }

    /// Releases what is complete, the oldest first, side-band before a sample of the same time.
    ///
    /// If more is held back than the limit allows, the older half is released early; what comes late is counted.
    pub(super) fn release(&mut self, mut take: impl FnMut(Released<'_, S>)) {
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
        for key in self.keys.drain(..ready) {
            while next_side.is_some_and(|time| time <= time_of(key)) {
                if let Some(side) = sides.next() {
                    if next_sched.is_some_and(|time| time < side.time) {
                        take(Released::Sched(before(&mut sched, side.time - 1)));
                        next_sched = sched.first().map(|event| event.time);
                    }
                    take(Released::SideBand(side.what));
                }
                next_side = sides.peek().map(|side| side.time);
            }
            if next_sched.is_some_and(|time| time <= time_of(key)) {
                take(Released::Sched(before(&mut sched, time_of(key))));
                next_sched = sched.first().map(|event| event.time);
            }
            let (chunk, at) = place_of(key, self.gone);
            let Some(chunk) = self.chunks.get_mut(chunk) else { continue };
            if let Some(next) = chunk.samples.get_mut(at) {
                take(Released::Sample(next));
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
        self.sorted = self.keys.len();
        for side in sides {
            if next_sched.is_some_and(|time| time < side.time) {
                take(Released::Sched(before(&mut sched, side.time - 1)));
                next_sched = sched.first().map(|event| event.time);
            }
            take(Released::SideBand(side.what));
        }
        let rest = before(&mut sched, until);
        if !rest.is_empty() {
            take(Released::Sched(rest));
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

    /// Moves what is left into one chunk: a sample with a time far ahead would keep all chunks after its own.
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
mod tests {
    use super::*;
    use crate::sample::RawSample;
    use crate::sample::Sample;

    fn batch(worker: usize, complete_until: u64, times: &[u64], names: &[u64]) -> Batch {
        let comm = |&time: &u64| TimedSideBand { time, what: SideBand::Lost { cpu: time as u32, lost: 1 } };
        Batch {
            worker,
            sched: Vec::new(),
            samples: times
                .iter()
                .map(|&time| PendingSample { raw: RawSample { time, ..RawSample::default() }, context: None })
                .collect(),
            side_band: names.iter().map(comm).collect(),
            complete_until,
        }
    }

    fn released(order: &mut Order) -> Vec<(char, u64)> {
        let mut out = Vec::new();
        let name = |what| match what {
            SideBand::Lost { cpu, .. } => u64::from(cpu),
            _ => 0,
        };
        order.release(|released| match released {
            Released::SideBand(what) => out.push(('n', name(what))),
            Released::Sample(pending) => out.push(('s', pending.raw.time)),
            Released::Sched(events) => out.extend(events.iter().map(|event| ('c', event.time))),
        });
        out
    }

    #[test]
    fn events_of_the_scheduler_are_merged_by_time() {
        let event = |&time: &u64| SchedEvent { time, cpu: 0, pid: 1, tid: 1, cgroup: 0, what: SchedWhat::Lost };
        let sched = |times: &[u64]| times.iter().map(event).collect::<Vec<_>>();
        let mut order = Order::new(2, 3);
        order.push(Batch { sched: sched(&[5, 20, 31]), ..batch(0, 30, &[10, 20, 25], &[]) });
        order.push(Batch { sched: sched(&[7, 22]), ..batch(1, 30, &[], &[7, 20, 24]) });
        assert_eq!(
            released(&mut order),
            [('c', 5), ('n', 7), ('c', 7), ('s', 10), ('n', 20), ('c', 20), ('s', 20), ('c', 22), ('n', 24), ('s', 25)]
        );
        // More than the limit: the older half goes.
        order.push(Batch { sched: sched(&[29, 40, 41, 42, 43]), ..batch(0, 30, &[], &[]) });
        assert!(order.is_due());
        assert_eq!(released(&mut order), [('c', 29), ('c', 31), ('c', 40), ('c', 41)]);
        assert_eq!((order.late_sched, order.late), (1, 0));
        order.end();
        assert_eq!(released(&mut order), [('c', 42), ('c', 43)]);
    }

    #[test]
    fn a_sample_waits_for_the_slowest_worker() {
        let mut order = Order::new(2, 100);
        order.push(batch(0, 30, &[10, 20, 25], &[]));
        assert_eq!(released(&mut order), []);
        order.push(batch(1, 22, &[15], &[20, 24]));
        assert_eq!(released(&mut order), [('s', 10), ('s', 15), ('n', 20), ('s', 20)]);
        order.push(batch(0, u64::MAX, &[40], &[]));
        order.push(batch(1, u64::MAX, &[], &[]));
        assert_eq!(released(&mut order), [('n', 24), ('s', 25), ('s', 40)]);
        assert_eq!(order.late, 0);
    }

    #[test]
    fn hints_are_held_back_within_bounds_and_never_hold_up_themselves() {
        let hint = |time| TimedSideBand { time, what: SideBand::Hint { time, pid: 1, tid: 1, hint: None } };
        let hints = |worker, complete_until, times: std::ops::Range<u64>| Batch {
            worker,
            side_band: times.map(hint).collect(),
            complete_until,
            ..Batch::default()
        };
        let mut order = Order::new(2, 10);
        order.push(hints(1, 0, 0..100));
        assert!(order.takes_hints(1), "its mark is the last");
        order.push(hints(1, 90, 100..120));
        assert!(!order.takes_hints(1), "the other one is behind");
        order.push(batch(0, 200, &[], &[]));
        assert!(order.takes_hints(1));
        released(&mut order);
        assert_eq!(order.hints, 29);
        order.push(hints(1, u64::MAX, 80..81));
        assert_eq!(order.late_hints, 1);
    }

    #[test]
    fn what_is_held_back_is_bounded_and_what_comes_late_is_counted() {
        let mut order = Order::new(2, 10);
        order.push(batch(0, 0, &(0..40).collect::<Vec<_>>(), &[]));
        assert!(order.is_due());
        assert_eq!(released(&mut order).len(), 21);
        order.push(batch(1, 0, &[3, 30], &[]));
        assert_eq!((order.late, order.late_side_band), (1, 0));
        // The name of a thread whose samples were released; a record without a time precedes all of them.
        order.push(batch(1, 0, &[], &[3, 0, 30]));
        order.extend(batch(1, 0, &[], &[4]).side_band);
        assert_eq!((order.late, order.late_side_band), (1, 2));
    }

    #[test]
    fn what_a_dead_worker_held_up_is_given_out_at_the_end() {
        let mut order = Order::new(2, 100);
        order.push(batch(0, u64::MAX, &[10, 20], &[15]));
        assert_eq!(released(&mut order), []);
        order.end();
        assert_eq!(released(&mut order), [('s', 10), ('n', 15), ('s', 20)]);
    }

    #[test]
    fn a_sample_of_the_far_future_keeps_nothing_behind_it() {
        let mut order = Order::new(1, 10);
        order.push(batch(0, 0, &[u64::MAX - 1], &[]));
        for time in 1..20_000 {
            order.push(batch(0, time, &[time, time], &[]));
            assert_eq!(released(&mut order), [('s', time), ('s', time)]);
        }
        assert!(order.chunks.len() < 2 * EMPTY);
        order.push(batch(0, u64::MAX, &[u64::MAX - 1, 30_000], &[]));
        assert_eq!(released(&mut order).len(), 3);
        assert!(order.chunks.is_empty() && order.keys.is_empty());
    }

    #[test]
    fn what_is_held_waits_for_its_side_band() {
        let mut order = Order::new(1, 10);
        order.push(batch(0, 100, &[40, 60], &[]));
        order.hold(50);
        assert_eq!(released(&mut order), [('s', 40)]);
        order.extend(batch(0, 0, &[], &[55]).side_band);
        assert_eq!(released(&mut order), []);
        order.hold(u64::MAX);
        assert_eq!(released(&mut order), [('n', 55), ('s', 60)]);
        assert_eq!(order.late, 0);
    }

    #[test]
    fn side_band_that_nothing_completes_is_bounded() {
        let mut order = Order::<PendingSample>::new(1, 10);
        let path = |time| TimedSideBand { time, what: SideBand::Cgroup { id: time, path: [b'x'; 4000].into() } };
        let mut given = 0;
        for time in 0..10_000 {
            order.push(Batch { side_band: vec![path(time)], ..Batch::default() });
            if order.is_due() {
                order.release(|_| given += 1);
            }
            assert!(order.side_bytes <= MIN_SIDE_BAND + 5000, "{} bytes", order.side_bytes);
        }
        assert!(given > 9_000);
        // None is lost.
        order.push(Batch { complete_until: u64::MAX, ..Batch::default() });
        order.release(|_| given += 1);
        assert_eq!((given, order.side_bytes), (10_000, 0));
    }

    proptest::proptest! {
        #[test]
        fn the_order_is_that_of_time_then_cpu_then_arrival(
            batches in proptest::collection::vec(proptest::collection::vec((0u64..50, 0u32..3), 0..20), 0..30)
        ) {
            let mut order = Order::<Sample>::new(1, 1000);
            let (mut expected, mut given, mut arrived) = (Vec::new(), Vec::new(), 0u64);
            let mut take = |order: &mut Order<Sample>| order.release(|released| if let Released::Sample(it) = released {
                given.push((it.raw.time, it.raw.cpu, it.record));
            });
            for (round, samples) in (0u64..).zip(&batches) {
                // Each round is later than the previous one by more than what is held back.
                let pending = samples.iter().map(|&(time, cpu)| {
                    arrived += 1;
                    let time = (round * 25 + time) * STEP / 20;
                    let sample = Sample { raw: RawSample { time, cpu, ..RawSample::default() }, record: arrived, ..Sample::default() };
                    expected.push((sample.raw.time, cpu, arrived));
                    sample
                });
                let samples = pending.collect();
                let complete_until = (round * 25 * STEP / 20).saturating_sub(1);
                order.push(Batch { samples, complete_until, ..Batch::default() });
                if order.is_due() {
                    take(&mut order);
                }
            }
            order.push(Batch { complete_until: u64::MAX, ..Batch::default() });
            take(&mut order);
            expected.sort_unstable();
            proptest::prop_assert_eq!(order.late, 0);
            proptest::prop_assert_eq!(given, expected);
        }
    }
}
