//! Puts what the workers send into one order of time, holding back no more than it must.
//!
//! A worker says with each batch until when it has read all. What is older than the least of these marks is complete on
//! every CPU, so that a name that a thread took on one CPU is known before the sample that it took on the next.

use crate::sampler::{Batch, Captured, SideBand, TimedSideBand};

/// How far time must have gone on before the next release, in ns: sorting less more often costs more.
const STEP: u64 = 20_000_000;

/// What came in and is not yet complete on every CPU.
#[derive(Debug)]
pub(super) struct Order {
    samples: Vec<Captured>,
    /// Time, CPU and place in `samples`: what is sorted, for samples are large. Two CPUs may sample at the same ns; a
    /// recording must give them in the same order.
    keys: Vec<(u64, u32, u32)>,
    /// Room for what stays.
    spare: Vec<Captured>,
    side_band: Vec<TimedSideBand>,
    complete: Vec<u64>,
    released: u64,
    limit: usize,
    /// Samples older than what was released before they came.
    pub(super) late: u64,
    /// Hint events of which that holds.
    pub(super) late_hints: u64,
    /// Hint events that are held back.
    hints: usize,
}

impl Order {
    /// For so many workers, holding at most `limit` samples back.
    pub(super) fn new(workers: usize, limit: usize) -> Self {
        Self {
            samples: Vec::new(),
            keys: Vec::new(),
            spare: Vec::new(),
            side_band: Vec::new(),
            complete: vec![0; workers],
            released: 0,
            limit: limit.max(1),
            late: 0,
            late_hints: 0,
            hints: 0,
        }
    }

    /// Takes a batch in.
    pub(super) fn push(&mut self, batch: Batch) {
        if let Some(mark) = self.complete.get_mut(batch.worker) {
            *mark = (*mark).max(batch.complete_until);
        }
        self.late += batch.samples.iter().filter(|captured| captured.sample.time < self.released).count() as u64;
        for side in batch.side_band.iter().filter(|side| matches!(side.what, SideBand::Hint { .. })) {
            self.hints += 1;
            self.late_hints += u64::from(side.time < self.released);
        }
        self.samples.extend(batch.samples);
        self.side_band.extend(batch.side_band);
    }

    /// True where [`Order::release`] would do enough to be worth its sorting.
    pub(super) fn is_due(&self) -> bool {
        let mark = self.mark();
        mark == u64::MAX || mark.saturating_sub(self.released) >= STEP || self.is_full()
    }

    /// True where more is held back than the limit.
    pub(super) fn is_full(&self) -> bool {
        self.samples.len() > self.limit
    }

    /// False where as many hint events are held back as there may be samples, and it is others that `worker`, which sends them,
    /// must wait for: what is left with it waits in the kernel's ring.
    pub(super) fn takes_hints(&self, worker: usize) -> bool {
        self.hints <= self.limit || self.complete.get(worker).is_none_or(|mark| *mark <= self.mark())
    }

    fn mark(&self) -> u64 {
        self.complete.iter().copied().min().unwrap_or(u64::MAX)
    }

    /// Gives out what is complete, oldest first, side-band before a sample of the same time.
    ///
    /// Where more is held back than the limit allows, the older half goes out early; what comes late is counted.
    pub(super) fn release(&mut self, mut side_band: impl FnMut(SideBand), mut sample: impl FnMut(Captured)) {
        self.keys.clear();
        let key = |(at, captured): (usize, &Captured)| (captured.sample.time, captured.sample.cpu, at as u32);
        self.keys.extend(self.samples.iter().enumerate().map(key));
        self.keys.sort_unstable();
        self.side_band.sort_by_key(|side| side.time);
        let mut until = self.mark();
        if self.is_full() {
            until = until.max(self.keys.get(self.keys.len() / 2).map_or(0, |key| key.0));
        }
        self.released = self.released.max(until);
        let ready = self.keys.partition_point(|key| key.0 <= until);
        let known = self.side_band.partition_point(|side| side.time <= until);
        let given = self.side_band.get(..known).unwrap_or_default();
        self.hints -= given.iter().filter(|side| matches!(side.what, SideBand::Hint { .. })).count();
        let mut sides = self.side_band.drain(..known).peekable();
        let (ready, rest) = self.keys.split_at(ready);
        for &(time, _, at) in ready {
            while let Some(side) = sides.next_if(|side| side.time <= time) {
                side_band(side.what);
            }
            if let Some(next) = self.samples.get_mut(at as usize) {
                sample(Captured { sample: next.sample, context: next.context.take() });
            }
        }
        self.spare.clear();
        for &(_, _, at) in rest {
            if let Some(next) = self.samples.get_mut(at as usize) {
                self.spare.push(Captured { sample: next.sample, context: next.context.take() });
            }
        }
        std::mem::swap(&mut self.samples, &mut self.spare);
        for side in sides {
            side_band(side.what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    fn batch(worker: usize, complete_until: u64, times: &[u64], names: &[u64]) -> Batch {
        let comm = |&time: &u64| TimedSideBand { time, what: SideBand::Lost { cpu: time as u32 } };
        Batch {
            worker,
            samples: times
                .iter()
                .map(|&time| Captured { sample: Sample { time, ..Sample::default() }, context: None })
                .collect(),
            side_band: names.iter().map(comm).collect(),
            complete_until,
        }
    }

    fn released(order: &mut Order) -> Vec<(char, u64)> {
        let out = std::cell::RefCell::new(Vec::new());
        let name = |what| match what {
            SideBand::Lost { cpu } => u64::from(cpu),
            _ => 0,
        };
        order.release(
            |what| out.borrow_mut().push(('n', name(what))),
            |captured| out.borrow_mut().push(('s', captured.sample.time)),
        );
        out.into_inner()
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
        assert_eq!(order.late, 1);
    }
}
