use proptest::prelude::*;

use super::*;
use crate::made::{event, on, switch, task, waking};
use crate::{report, Stats};
use scxprof_base::sample::TaskHint;

/// Collects facts.
#[derive(Default)]
struct All(Vec<Fact>);

impl Facts for All {
    fn fact(&mut self, _: &Threads, fact: &Fact) {
        self.0.push(*fact);
    }
}

fn facts(events: &[SchedEvent]) -> (Vec<Fact>, Tracker) {
    let (mut tracker, mut all) = (Tracker::default(), All::default());
    for event in events {
        tracker.take(event, &mut all);
    }
    (all.0, tracker)
}

fn waits(facts: &[Fact]) -> Vec<(u64, u64, bool)> {
    let wait = |fact: &Fact| match *fact {
        Fact::Waited { from, until, why, .. } => Some((from, until, matches!(why, Why::Woken(_)))),
        _ => None,
    };
    facts.iter().filter_map(wait).collect()
}

#[test]
fn a_wait_begins_with_the_first_wakeup_or_a_preemption() {
    use TaskState::{Preempted, Runnable, Sleeping};
    let (facts, _) = facts(&[
        switch(10, 1, Sleeping, 0),
        waking(20, 0, 1),
        waking(25, 0, 1),
        switch(30, 0, Runnable, 1),
        switch(50, 1, Preempted, 2),
        // 1 is runnable already: this wakeup changes nothing.
        waking(60, 2, 1),
        switch(70, 2, Sleeping, 1),
    ]);
    assert_eq!(waits(&facts), [(20, 30, true), (50, 70, false)]);
    let slept: Vec<_> = facts.iter().filter(|fact| matches!(fact, Fact::Slept { .. })).collect();
    assert_eq!(slept, [&Fact::Slept { thread: 0, from: 10, until: 20, is_blocked: false }]);
    // Before the first switch it is not known since when 1 ran.
    let ran: Vec<_> = facts.iter().filter(|fact| matches!(fact, Fact::Ran { .. })).collect();
    assert_eq!(ran.len(), 3);
    assert_eq!(*ran[0], Fact::Ran { cpu: 0, thread: None, is_thread: false, from: 10, until: 30 });
    assert_eq!(*ran[1], Fact::Ran { cpu: 0, thread: Some(0), is_thread: true, from: 30, until: 50 });
}

#[test]
fn a_reused_tid_inherits_nothing() {
    use TaskState::{Dead, Runnable, Sleeping};
    let fork = |time| event(time, 1, SchedWhat::Fork { parent: 1, child: 9, comm: Comm::from("new") });
    // 9 is woken and its end is not seen; the next 9 is another thread.
    let (facts_of_fork, tracker) =
        facts(&[switch(10, 9, Sleeping, 1), waking(20, 1, 9), fork(30), switch(40, 1, Runnable, 9)]);
    assert_eq!(waits(&facts_of_fork), []);
    assert!(facts_of_fork.contains(&Fact::Ended { thread: 0 }));
    assert_eq!(tracker.threads().len(), 2);
    // Its end is seen.
    let (facts_of_end, tracker) = facts(&[switch(10, 9, Dead, 1), waking(15, 1, 9), switch(40, 1, Runnable, 9)]);
    assert!(facts_of_end.contains(&Fact::Ended { thread: 0 }));
    assert_eq!(waits(&facts_of_end), [(15, 40, true)], "the wakeup is of the new one");
    assert_eq!(tracker.threads().len(), 2);
}

#[test]
fn a_thread_that_execs_takes_over_the_number_of_its_process() {
    use TaskState::{Runnable, Sleeping};
    let exec = event(30, 11, SchedWhat::Exec { tid: 10, old_tid: 11 });
    let (facts, tracker) = facts(&[
        switch(5, 10, Sleeping, 11),
        waking(20, 11, 10),
        exec,
        switch(40, 10, Runnable, 0),
        switch(50, 0, Runnable, 10),
    ]);
    let ran = |fact: &&Fact| matches!(fact, Fact::Ran { thread: Some(_), .. });
    assert_eq!(facts.iter().filter(ran).count(), 1, "{facts:?}");
    assert_eq!(waits(&facts), [(40, 50, false)], "the wakeup of the old main thread has ended");
    assert_eq!(tracker.threads().len(), 1);
    assert_eq!(tracker.gaps().mismatches, 0);
}

#[test]
fn what_a_loss_touches_is_marked_and_the_rest_stays_right() {
    use TaskState::{Runnable, Sleeping};
    let events = [
        on(1, switch(10, 0, Runnable, 5)),
        switch(10, 0, Runnable, 1),
        switch(20, 1, Sleeping, 2),
        event(90, 0, SchedWhat::Lost),
        waking(100, 3, 1),
        switch(110, 3, Runnable, 1),
        on(1, switch(120, 5, Sleeping, 0)),
    ];
    let (facts, _) = facts(&events);
    assert!(facts.contains(&Fact::Lost { cpu: 0, from: 20, until: 90 }));
    let touched: Vec<_> = facts.iter().filter(|fact| matches!(fact, Fact::Touched { .. })).collect();
    // 1 slept and 2 ran there; 5 ran on the other CPU all the time.
    assert_eq!(touched.len(), 2, "{touched:?}");
    assert!(!facts.iter().any(|fact| matches!(fact, Fact::Slept { .. })), "it may have run meanwhile");
    assert_eq!(waits(&facts), [(100, 110, true)]);
    let five = facts.iter().find(|fact| matches!(fact, Fact::Ran { cpu: 1, .. }));
    assert!(matches!(five, Some(Fact::Ran { from: 10, until: 120, is_thread: true, .. })));
    // 3 was not seen to get the CPU.
    let runs = facts.iter().filter(|fact| matches!(fact, Fact::Ran { cpu: 0, from: 20.., .. })).count();
    assert_eq!(runs, 0);
}

#[test]
fn switches_from_some_threads_only_are_no_loss() {
    use TaskState::{Runnable, Sleeping};
    let of_one = [switch(10, 1, Sleeping, 0), switch(20, 1, Sleeping, 7), switch(30, 1, Runnable, 0)];
    let (_, tracker) = facts(&of_one);
    assert_eq!(tracker.gaps().mismatches, 2);
    assert!(tracker.is_of_some_threads());
    // An idle task is no thread that one asks for.
    let (_, tracker) = facts(&[&of_one[..], &[switch(40, 0, Runnable, 1)]].concat());
    assert!(!tracker.is_of_some_threads());
    let (_, tracker) = facts(&[&of_one[..], &[event(50, 0, SchedWhat::Lost)]].concat());
    assert!(!tracker.is_of_some_threads());
    let (_, tracker) = facts(&of_one[..1]);
    assert!(!tracker.is_of_some_threads(), "there is no gap");
    // CPUs that are never idle, and one gap.
    let mut busy: Vec<SchedEvent> =
        (0..20).map(|at| switch(at, 1 + at as u32 % 2, Runnable, 2 - at as u32 % 2)).collect();
    busy.push(switch(30, 7, Runnable, 1));
    let (_, tracker) = facts(&busy);
    assert_eq!((tracker.gaps().mismatches, tracker.is_of_some_threads()), (1, false));
}

#[test]
fn a_switch_from_another_thread_is_a_gap() {
    use TaskState::{Runnable, Sleeping};
    let (facts, tracker) = facts(&[switch(10, 0, Runnable, 1), switch(20, 2, Sleeping, 3), switch(30, 3, Sleeping, 0)]);
    assert_eq!(tracker.gaps().mismatches, 1);
    assert!(facts.contains(&Fact::Missed { cpu: 0 }));
    assert_eq!(facts.iter().filter(|fact| matches!(fact, Fact::Touched { .. })).count(), 2);
    assert_eq!(facts.iter().filter(|fact| matches!(fact, Fact::Ran { .. })).count(), 1, "only that of 3");
}

#[test]
fn interrupts_are_split_off_one_another() {
    let (facts, _) = facts(&[
        event(10, 1, SchedWhat::SoftirqEntry { vec: 3 }),
        event(12, 1, SchedWhat::IrqEntry { irq: 9 }),
        event(15, 1, SchedWhat::IrqExit { irq: 9 }),
        event(20, 1, SchedWhat::SoftirqExit { vec: 3 }),
        // Its beginning was not seen.
        event(30, 1, SchedWhat::IrqExit { irq: 9 }),
    ]);
    assert_eq!(
        facts,
        [Fact::Handled { cpu: 0, ns: 3, is_soft: false }, Fact::Handled { cpu: 0, ns: 7, is_soft: true }]
    );
}

type CgroupLine = (String, u64, u64, u64);

/// The lines by cgroup, as their name, threads, ms run and switches; those of all threads.
fn by_cgroup(events: &[SchedEvent]) -> (Vec<CgroupLine>, (u64, u64, u64)) {
    let (mut tracker, mut stats) = (Tracker::default(), Stats::default());
    for event in events {
        tracker.take(event, &mut stats);
    }
    let cgroups = [(7, b"/a".to_vec()), (8, b"/b".to_vec())].into_iter().collect();
    let labels = report::Labels { cgroups, ..report::Labels::default() };
    assert!([7, 8].iter().all(|id| stats.cgroups(tracker.threads()).any(|cgroup| cgroup == *id)));
    let (of, order) = ((&stats, tracker.threads()), report::Order::Name);
    let lines = report::lines(of, report::By::Cgroup, order, 1, &labels, &|_| String::new());
    let lines = lines.into_iter().map(|line| (line.name, line.threads, line.run.total_ns, line.switches)).collect();
    let threads = report::lines(of, report::By::Process, order, 1, &labels, &|_| String::new());
    let (all, _) = report::totals(&stats, tracker.threads(), &labels);
    assert_eq!(threads.iter().map(|line| line.threads).sum::<u64>(), all.threads);
    (lines, (all.threads, all.run.total_ns, all.switches))
}

#[test]
fn a_run_counts_in_the_cgroup_that_the_thread_is_in() {
    use TaskState::{Dead, Runnable, Sleeping};
    let run = |from, until, state, cgroup| {
        [switch(from, 0, Runnable, 1), SchedEvent { cgroup, ..switch(until, 1, state, 0) }]
    };
    let a = run(10, 20, Sleeping, 7);
    let b = run(30, 130, Sleeping, 8);
    let line = |name: &str, threads, run, switches| (name.to_owned(), threads, run, switches);
    let moved = [a, b].concat();
    assert_eq!(by_cgroup(&moved), (vec![line("/a", 1, 10, 1), line("/b", 1, 100, 1)], (1, 110, 2)));
    let back = [a, b, run(140, 145, Sleeping, 7)].concat();
    assert_eq!(by_cgroup(&back), (vec![line("/a", 1, 15, 2), line("/b", 1, 100, 1)], (1, 115, 3)));
    // A thread that ends leaves what it did elsewhere.
    let ended = [a, b, run(140, 145, Dead, 7)].concat();
    assert_eq!(by_cgroup(&ended), (vec![line("/a", 1, 15, 2), line("/b", 1, 100, 1)], (1, 115, 3)));
}

/// The lines by cell, where a cell is a hint: their name, threads, ms run and switches.
fn by_hint(events: &[SchedEvent], follows: bool) -> Vec<CgroupLine> {
    by_cell(events, follows, &|task| format!("{:?}", task.hint))
}

fn by_cell(events: &[SchedEvent], follows: bool, cell_of: report::CellOf<'_>) -> Vec<CgroupLine> {
    let (mut tracker, mut stats) = (Tracker::default(), Stats::default());
    if follows {
        tracker.follow_hints();
    }
    for event in events {
        tracker.take(event, &mut stats);
    }
    let of = (&stats, tracker.threads());
    let (labels, order) = (report::Labels::default(), report::Order::Name);
    let lines = report::lines(of, report::By::Cell, order, 1, &labels, cell_of);
    lines.into_iter().map(|line| (line.name, line.threads, line.run.total_ns, line.switches)).collect()
}

#[test]
fn what_a_thread_does_counts_for_the_hint_that_it_has_then() {
    use TaskState::{Dead, Runnable, Sleeping};
    let hint = |time, tid, hint| event(time, u32::MAX, SchedWhat::Hint { tid, hint });
    let run = |from, until, state, tid| [switch(from, 0, Runnable, tid), switch(until, tid, state, 0)];
    // Thread 1 has a hint before its first event, another in the middle of a slice, which counts for it, and none in the end; 2 never
    // has one.
    let events = [
        vec![hint(5, 1, Some(3))],
        run(10, 20, Sleeping, 1).to_vec(),
        vec![switch(30, 0, Runnable, 1), hint(34, 1, Some(4)), switch(40, 1, Sleeping, 0)],
        run(50, 51, Sleeping, 2).to_vec(),
        vec![hint(55, 1, Some(3))],
        run(60, 62, Sleeping, 1).to_vec(),
        vec![hint(65, 1, None)],
        run(70, 75, Sleeping, 1).to_vec(),
    ]
    .concat();
    let line = |name: &str, threads, run, switches| (name.to_owned(), threads, run, switches);
    let expected = [line("Is(3)", 1, 12, 2), line("Is(4)", 1, 10, 1), line("None", 2, 6, 2)];
    assert_eq!(by_hint(&events, true), expected);
    // A thread is one of its cell, with however many hints.
    let one = by_cell(&events, true, &|task| (if task.hint == TaskHint::Is(3) { "three" } else { "all" }).to_owned());
    assert_eq!(one, [line("all", 2, 16, 3), line("three", 1, 12, 2)]);
    // One that ends leaves what it did, and its hint is not that of the next thread with its number.
    let more = [vec![hint(76, 1, Some(3))], run(80, 81, Dead, 1).to_vec(), run(90, 92, Sleeping, 1).to_vec()].concat();
    let expected = [line("Is(3)", 1, 13, 3), line("Is(4)", 1, 10, 1), line("None", 3, 8, 3)];
    assert_eq!(by_hint(&[events.clone(), more].concat(), true), expected);
    // Where hints are not followed, or there are none, nothing is known of them.
    assert_eq!(by_hint(&events, false), [line("Unknown", 2, 28, 5)]);
    assert_eq!(by_hint(&run(10, 20, Sleeping, 1), true), [line("Unknown", 1, 10, 1)]);
}

fn any_event() -> impl Strategy<Value = (u32, u32, u8, u32, u8)> {
    (0u32..3, 0u32..6, 0u8..13, 0u32..6, 0u8..5)
}

proptest! {
    /// Whatever comes, in whatever order: no panic, and the sums of CPUs and threads are the same.
    #[test]
    fn any_events_add_up(events in proptest::collection::vec(any_event(), 0..200)) {
        let states =
            [TaskState::Runnable, TaskState::Preempted, TaskState::Sleeping, TaskState::Blocked, TaskState::Dead];
        let (mut tracker, mut stats) = (Tracker::default(), Stats::default());
        tracker.follow_hints();
        for (time, (cpu, tid, kind, other, state)) in (1u64..).zip(events) {
            let what = match kind {
                0..=4 => SchedWhat::Switch { prev: task(tid), state: states[usize::from(state)], next: task(other) },
                5 => SchedWhat::Waking { task: task(other), target_cpu: cpu, by: if state == 1 { WakenBy::Interrupt } else { WakenBy::Thread } },
                6 => SchedWhat::WakeupNew { task: task(other), target_cpu: cpu },
                7 => SchedWhat::Migrate { task: task(other), from: cpu, to: tid },
                8 => SchedWhat::Fork { parent: tid, child: other, comm: Comm::from("f") },
                9 => SchedWhat::Exec { tid: other, old_tid: tid },
                10 => SchedWhat::Lost,
                11 => SchedWhat::Hint { tid: other, hint: Some(u64::from(state)).filter(|&hint| hint > 0) },
                _ => SchedWhat::SoftirqEntry { vec: 1 },
            };
            tracker.take(&on(cpu, event(time, tid, what)), &mut stats);
        }
        let mut threads = (0, 0, 0);
        let left = tracker.threads().iter().flat_map(|(slot, _)| stats.left(slot)).map(|(_, row)| row);
        let rows = stats.threads(tracker.threads()).map(|(_, row)| row).chain(stats.ended().map(|(_, row)| row)).chain(left);
        for row in rows {
            threads = (threads.0 + row.run.sum(), threads.1 + row.switches(), threads.2 + row.wait.sum());
        }
        let mut cpus = (0, 0, 0);
        let window = tracker.span().map_or(0, |(first, last)| last - first);
        for (_, cpu) in stats.cpus() {
            cpus = (cpus.0 + cpu.row.run.sum(), cpus.1 + cpu.row.switches(), cpus.2 + cpu.row.wait.sum());
            prop_assert!(cpu.row.run.sum() + cpu.idle <= window);
        }
        prop_assert_eq!(threads, cpus);
        prop_assert!(tracker.threads().len() <= 5);
    }
}

#[test]
fn times_that_go_back_and_forth_do_not_overflow_sums() {
    let (mut tracker, mut stats) = (Tracker::default(), Stats::default());
    let mut second = Tracker::default();
    let mut wakers = crate::Wakers::new(scxprof_base::sample::places::CpuPlaces::default(), None);
    for round in 0..64 {
        let (early, late) = (1, u64::MAX - 1);
        let whats = [
            (early, SchedWhat::IrqEntry { irq: 1 }),
            (late, SchedWhat::IrqExit { irq: 1 }),
            (early, SchedWhat::SoftirqEntry { vec: 1 }),
            (late, SchedWhat::SoftirqExit { vec: 1 }),
            (early, SchedWhat::Switch { prev: task(0), state: TaskState::Runnable, next: task(1) }),
            (late, SchedWhat::Switch { prev: task(1), state: TaskState::Sleeping, next: task(0) }),
            (early, SchedWhat::DsqInsert { tid: 1, dsq: 7, slice: late, is_moved: false }),
            (late, SchedWhat::Waking { task: task(1), target_cpu: 0, by: WakenBy::Thread }),
            (early, SchedWhat::Runtime { task: task(1), ns: late }),
            (late, SchedWhat::DsqSwitch { prev: 2, dsq: Some(7), next: 1, slice: Some(late) }),
        ];
        for (time, what) in whats {
            let event = event(time, 2 + round % 2, what);
            tracker.take(&event, &mut stats);
            second.take(&event, &mut wakers);
        }
    }
    let (_, row) = stats.cpus().next().unwrap();
    assert_eq!((row.irq, row.softirq), (u64::MAX, u64::MAX));
}

#[test]
fn a_sleep_without_a_wakeup_is_neither_sleep_nor_wait_and_counts() {
    use TaskState::{Runnable, Sleeping};
    // The wakeup comes before the thread leaves its CPU.
    let (facts, tracker) = facts(&[
        switch(10, 0, Runnable, 1),
        waking(20, 1, 1),
        switch(30, 1, Sleeping, 0),
        switch(80, 0, Runnable, 1),
        switch(90, 1, Sleeping, 0),
        waking(95, 0, 1),
        switch(99, 0, Runnable, 1),
    ]);
    assert_eq!(waits(&facts), [(95, 99, true)]);
    assert_eq!(tracker.unwoken(), Unwoken { count: 1, total_ns: 50 });
}
