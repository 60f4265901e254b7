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
    order.release(&mut out);
    out
}

impl Released<PendingSample> for Vec<(char, u64)> {
    fn side_band(&mut self, what: SideBand) {
        let SideBand::Lost { cpu, .. } = what else { return self.push(('n', 0)) };
        self.push(('n', u64::from(cpu)));
    }
    fn sample(&mut self, pending: &mut PendingSample) {
        self.push(('s', pending.raw.time));
    }
    fn sched(&mut self, events: &[SchedEvent]) {
        self.extend(events.iter().map(|event| ('c', event.time)));
    }
}

/// Times, CPUs and records of the samples.
impl Released<Sample> for Vec<(u64, u32, u64)> {
    fn side_band(&mut self, _: SideBand) {}
    fn sample(&mut self, it: &mut Sample) {
        self.push((it.raw.time, it.raw.cpu, it.record));
    }
    fn sched(&mut self, _: &[SchedEvent]) {}
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
    let mut given: Vec<(char, u64)> = Vec::new();
    for time in 0..10_000 {
        order.push(Batch { side_band: vec![path(time)], ..Batch::default() });
        if order.is_due() {
            order.release(&mut given);
        }
        assert!(order.side_bytes <= MIN_SIDE_BAND + 5000, "{} bytes", order.side_bytes);
    }
    assert!(given.len() > 9_000);
    // None is lost.
    order.push(Batch { complete_until: u64::MAX, ..Batch::default() });
    order.release(&mut given);
    assert_eq!((given.len(), order.side_bytes), (10_000, 0));
}

proptest::proptest! {
    #[test]
    fn the_order_is_that_of_time_then_cpu_then_arrival(
        batches in proptest::collection::vec(proptest::collection::vec((0u64..50, 0u32..3), 0..20), 0..30)
    ) {
        let mut order = Order::<Sample>::new(1, 1000);
        let (mut expected, mut given, mut arrived) = (Vec::new(), Vec::new(), 0u64);
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
                order.release(&mut given);
            }
        }
        order.push(Batch { complete_until: u64::MAX, ..Batch::default() });
        order.release(&mut given);
        expected.sort_unstable();
        proptest::prop_assert_eq!(order.late, 0);
        proptest::prop_assert_eq!(given, expected);
    }
}
