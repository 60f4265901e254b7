use proptest::prelude::*;

use super::report::{report, within, EdgeLine, Level, Party, Within};
use super::*;
use crate::made::{event, on, switch, task, waking};
use crate::report::Labels;
use crate::{Gaps, Tracker};
use scxprof_base::sample::places::CpuPlace;
use scxprof_base::sample::sched::{SchedEvent, SchedTask, SchedWhat, TaskState, WakenBy};
use scxprof_base::sample::Comm;
use TaskState::{Dead, Preempted, Runnable, Sleeping};

fn lost(time: u64) -> SchedEvent {
    event(time, 0, SchedWhat::Lost)
}

/// Four CPUs a cache and a node, two a core.
fn places() -> CpuPlaces {
    let mut places = CpuPlaces::default();
    for cpu in 0..8 {
        places.set(cpu, CpuPlace { core: cpu & !1, llc: cpu & !3, node: cpu / 4 });
    }
    places
}

fn run(events: &[SchedEvent]) -> (Wakers, Tracker) {
    run_with(Wakers::new(places(), None), events)
}

fn run_with(mut wakers: Wakers, events: &[SchedEvent]) -> (Wakers, Tracker) {
    let mut tracker = Tracker::default();
    for event in events {
        tracker.take(event, &mut wakers);
    }
    (wakers, tracker)
}

/// Thread ids, 0 for the idle task, wakeups, ends of waits, their sum.
fn edges((wakers, tracker): &(Wakers, Tracker)) -> Vec<(u32, u32, u64, u64, u64)> {
    let edges = wakers.thread_edges(tracker.threads()).map(|(waker, wakee, edge)| {
        (waker.map_or(0, |waker| waker.tid), wakee.tid, edge.wakeups, edge.latency.count(), edge.latency.sum())
    });
    let mut edges: Vec<_> = edges.collect();
    edges.sort_unstable();
    edges
}

/// Names, "-" for the idle task, wakeups, ends of waits, their sum.
fn class_edges(wakers: &Wakers) -> Vec<(String, String, u64, u64, u64)> {
    let name = |class: Class| class.comm.to_string();
    let edges = wakers.class_edges().map(|(waker, wakee, edge)| {
        let waker = waker.map_or("-".to_owned(), name);
        (waker, name(wakee), edge.wakeups, edge.latency.count(), edge.latency.sum())
    });
    let mut edges: Vec<_> = edges.collect();
    edges.sort_unstable();
    edges
}

fn class_edge(waker: &str, wakee: &str, wakeups: u64, waits: u64, ns: u64) -> (String, String, u64, u64, u64) {
    (waker.to_owned(), wakee.to_owned(), wakeups, waits, ns)
}

/// Latency, length, thread ids.
fn chains(wakers: &Wakers) -> Vec<(u64, usize, Vec<u32>)> {
    let of = |chain: &Chain| (chain.latency(), chain.length(), chain.path().iter().map(|link| link.tid).collect());
    wakers.chains.top().iter().map(of).collect()
}

fn lengths(wakers: &Wakers) -> Vec<(usize, u64)> {
    wakers.chains.lengths().map(|(length, sums)| (length, sums.count())).collect()
}

/// 1 is woken by an interrupt; then 1 and 2 wake each other `rounds` times, each wait 3 ns.
fn ping_pong(rounds: u64) -> Vec<SchedEvent> {
    let mut events = vec![waking(1, 0, 1), switch(4, 0, Runnable, 1)];
    for round in 0..rounds {
        let time = 10 + 20 * round;
        events.push(waking(time, 1, 2));
        events.push(switch(time + 3, 1, Sleeping, 2));
        events.push(waking(time + 10, 2, 1));
        events.push(switch(time + 13, 2, Sleeping, 1));
    }
    events
}

#[test]
fn a_pair_wakes_each_other() {
    let mut result = run(&ping_pong(100));
    assert_eq!(edges(&result), [(0, 1, 1, 1, 3), (1, 2, 100, 100, 300), (2, 1, 100, 100, 300)]);
    let (wakers, tracker) = &result;
    assert_eq!(wakers.counts(), Counts { wakeups: 201, ..Counts::default() });
    let here = |same_cpu| Locality { same_cpu, ..Locality::default() };
    assert_eq!(wakers.places(), (here(200), here(1)));
    let mut pairs: Vec<_> = wakers.pairs(tracker.threads()).map(|(a, b, edge)| (a, b, edge.wakeups)).collect();
    pairs.sort_unstable();
    assert_eq!(pairs, [(1, 2, 100), (2, 1, 100)]);
    // The chain never ends: 201 waits; those from the 64th on have the last length.
    let expected: Vec<_> = (1..64).map(|length| (length, 1)).chain([(64, 138)]).collect();
    assert_eq!(lengths(wakers), expected);
    assert_eq!((wakers.chains.latency().count(), wakers.chains.latency().max()), (63, Some(63 * 3)));
    // One for each sequence of names: the 8 short ones, and the last of the two long ones.
    let top = chains(wakers);
    assert_eq!(top.len(), 10);
    assert_eq!(top[0], (63 * 3, 63, vec![2, 1, 2, 1, 2, 1, 2, 1]));
    assert_eq!(top[1], (62 * 3, 62, vec![1, 2, 1, 2, 1, 2, 1, 2]));
    assert_eq!(top[2], (8 * 3, 8, vec![1, 2, 1, 2, 1, 2, 1, 2]));

    let (wakers, tracker) = (&mut result.0, &mut result.1);
    // What ends is added up by its class.
    tracker.take(&switch(9000, 1, Dead, 0), wakers);
    assert_eq!(
        class_edges(wakers),
        [class_edge("-", "t1", 1, 1, 3), class_edge("t1", "t2", 100, 100, 300), class_edge("t2", "t1", 100, 100, 300)]
    );
    assert_eq!((wakers.edges, wakers.len()), (0, 3));
}

#[test]
fn a_waker_with_three_wakees_on_cpus_at_every_distance() {
    let mut events = vec![waking(1, 0, 1), switch(2, 0, Runnable, 1)];
    for (wakee, cpu) in [(2, 1), (3, 2), (4, 5), (5, 100)] {
        events.push(waking(10, 1, wakee));
        events.push(on(cpu, switch(10 + u64::from(wakee), 0, Runnable, wakee)));
    }
    let result = run(&events);
    let waits = [(0, 1, 1, 1, 1), (1, 2, 1, 1, 2), (1, 3, 1, 1, 3), (1, 4, 1, 1, 4), (1, 5, 1, 1, 5)];
    assert_eq!(edges(&result), waits);
    let expected = Locality { core: 1, llc: 1, nodes: 1, unknown: 1, ..Locality::default() };
    assert_eq!(result.0.places().0, expected);
    assert_eq!(lengths(&result.0), [(1, 1), (2, 4)]);
}

#[test]
fn a_chain_adds_up_the_waits_of_its_threads() {
    let mut events = vec![
        // An interrupt wakes 1, which waits 5; 1 wakes 2, which waits 10; then 2 wakes 3, which waits 20.
        waking(100, 0, 1),
        switch(105, 0, Runnable, 1),
        waking(110, 1, 2),
        switch(120, 1, Sleeping, 2),
        waking(130, 2, 3),
        switch(150, 2, Sleeping, 3),
    ];
    let (wakers, _) = run(&events);
    assert_eq!(chains(&wakers), [(35, 3, vec![1, 2, 3]), (15, 2, vec![1, 2]), (5, 1, vec![1])]);
    assert_eq!(lengths(&wakers), [(1, 1), (2, 1), (3, 1)]);
    // 3 is preempted for 7, and then wakes 4, which waits 1.
    events.extend([
        switch(160, 3, Preempted, 9),
        switch(167, 9, Sleeping, 3),
        waking(170, 3, 4),
        // A wakeup of one that is runnable already changes nothing.
        waking(170, 3, 4),
        switch(171, 3, Sleeping, 4),
    ]);
    let (wakers, tracker) = run(&events);
    assert_eq!(
        chains(&wakers),
        [(43, 5, vec![1, 2, 3, 4]), (42, 4, vec![1, 2, 3]), (15, 2, vec![1, 2]), (5, 1, vec![1])]
    );
    let lines = report((&wakers, tracker.threads()), Level::Thread, 10, &Labels::default()).chains;
    assert_eq!((lines[0].preempted, lines[0].is_cut), (1, false));
    // A thread that is woken by an interrupt begins anew, whatever is interrupted, and so does a thread woken by one of which nothing
    // is known.
    let by_interrupt = event(175, 4, SchedWhat::Waking { task: task(1), target_cpu: 0, by: WakenBy::Interrupt });
    events.extend([by_interrupt, switch(180, 4, Sleeping, 1)]);
    events.extend([on(1, waking(200, 8, 5)), on(1, switch(202, 8, Sleeping, 5))]);
    let (wakers, _) = run(&events);
    assert_eq!(lengths(&wakers), [(1, 3), (2, 1), (3, 1), (4, 1), (5, 1)]);
}

#[test]
fn a_chain_ends_with_the_sleep_of_its_thread() {
    let (wakers, _) = run(&[
        waking(1, 0, 1),
        switch(2, 0, Runnable, 1),
        // The end of its sleep is not seen: it ran again without a wakeup.
        switch(3, 1, Sleeping, 0),
        switch(9, 0, Runnable, 1),
        waking(10, 1, 2),
        switch(11, 1, Sleeping, 2),
    ]);
    assert_eq!(lengths(&wakers), [(1, 2)]);
}

#[test]
fn preemptions_are_counted_by_whom() {
    let events = [
        // So that the process of 2 is known.
        switch(5, 2, Sleeping, 1),
        switch(10, 1, Preempted, 2),
        switch(20, 2, Runnable, 1),
        switch(30, 1, Preempted, 2),
        switch(40, 2, Sleeping, 1),
        switch(50, 1, Runnable, 0),
    ];
    let preemptions = |wakers: &Wakers| {
        let name = |class: Class| class.comm.to_string();
        let all = wakers.preemptions().map(|(by, of, count)| (by.map_or("-".into(), name), name(of), count));
        let mut all: Vec<(String, String, u64)> = all.collect();
        all.sort_unstable();
        all
    };
    let expected = |by: &str, of: &str, count| (by.to_owned(), of.to_owned(), count);
    let (wakers, tracker) = run(&events);
    assert_eq!(preemptions(&wakers), [expected("-", "t1", 1), expected("t1", "t2", 1), expected("t2", "t1", 2)]);
    assert_eq!(wakers.counts().preemptions, 4);
    let lines = report((&wakers, tracker.threads()), Level::Class, 2, &Labels::default());
    let party = |name: &str| Party { name: name.to_owned(), tid: None, pid: None, cgroup: None };
    let line = &lines.preempted[0];
    assert_eq!((line.preemptions, &line.thread, line.by.as_ref()), (2, &party("t1"), Some(&party("t2"))));
    assert_eq!((lines.preempted.len(), lines.preempted_count), (2, 3));

    let few = Bounds { preemptions: 1, ..BOUNDS };
    let (wakers, _) = run_with(Wakers::bounded(CpuPlaces::default(), None, few), &events);
    assert_eq!(preemptions(&wakers), [expected("t2", "t1", 2)]);
    assert_eq!((wakers.counts().preemptions, wakers.counts().preemptions_uncounted), (4, 2));
}

#[test]
fn who_has_the_slot_of_an_ended_thread_inherits_nothing() {
    let result = run(&[
        waking(1, 0, 1),
        switch(2, 0, Runnable, 1),
        waking(3, 1, 2),
        // 1 ends while 2 still waits; 3 gets its slot, and wakes 2 too.
        switch(4, 1, Dead, 0),
        on(1, waking(5, 0, 3)),
        on(1, switch(6, 0, Runnable, 3)),
        on(1, waking(7, 3, 2)),
        switch(9, 0, Runnable, 2),
        // 3 runs.
        waking(10, 2, 3),
        on(1, waking(12, 3, 4)),
        on(1, switch(15, 3, Sleeping, 4)),
    ]);
    let (wakers, tracker) = &result;
    assert_eq!(tracker.threads().len(), 3);
    assert_eq!(class_edges(wakers), [class_edge("-", "t1", 1, 1, 1), class_edge("t1", "t2", 1, 1, 6)]);
    assert_eq!(edges(&result), [(0, 3, 1, 1, 1), (2, 3, 1, 0, 0), (3, 2, 1, 0, 0), (3, 4, 1, 1, 3)]);
    assert_eq!(chains(wakers), [(7, 2, vec![1, 2]), (4, 2, vec![3, 4]), (1, 1, vec![1]), (1, 1, vec![3])]);
    // Who ends with a chain leaves none: 5 gets the slot of 1, and is not seen to be woken.
    let (wakers, _) = run(&[
        waking(1, 0, 1),
        switch(2, 0, Runnable, 1),
        switch(4, 1, Dead, 5),
        waking(5, 5, 6),
        switch(6, 5, Sleeping, 6),
    ]);
    assert_eq!(lengths(&wakers), [(1, 2)]);
    // Nor does a thread whose end was not seen: the fork says that 1 is another thread now.
    let fork = SchedWhat::Fork { parent: 8, child: 1, comm: Comm::from("new") };
    let (wakers, _) = run(&[
        waking(1, 0, 1),
        switch(2, 0, Runnable, 1),
        on(1, event(3, 8, fork)),
        waking(4, 1, 2),
        switch(5, 1, Sleeping, 2),
    ]);
    assert_eq!(lengths(&wakers), [(1, 2)]);
}

#[test]
fn the_chains_of_the_greatest_latency_are_kept() {
    let mut events = Vec::new();
    // Threads of different names wait 1 to 30 ns, in no order; each is woken twice.
    for round in 0..2 {
        for n in 1..=30u32 {
            let (time, wait) = (u64::from(1000 * round + n * 31), u64::from(n * 7 % 31));
            events.push(waking(time, 0, n));
            events.push(switch(time + wait, 0, Runnable, n));
            events.push(switch(time + wait, n, Sleeping, 0));
        }
    }
    let (wakers, _) = run(&events);
    let latencies: Vec<u64> = chains(&wakers).iter().map(|chain| chain.0).collect();
    let expected: Vec<u64> = (11..=30).rev().collect();
    assert_eq!(latencies, expected);
    assert_eq!(lengths(&wakers), [(1, 60)]);
}

#[test]
fn a_loss_ends_chains_and_keeps_counts() {
    let events = |is_lost: bool| {
        let mut events = vec![waking(1, 0, 1), switch(2, 0, Runnable, 1), waking(3, 1, 2)];
        if is_lost {
            events.push(lost(4));
        }
        // 2 ran before, for all that is known.
        events.extend([switch(5, 1, Sleeping, 2), waking(6, 2, 3), switch(7, 2, Sleeping, 3)]);
        events
    };
    let (wakers, _) = run(&events(false));
    assert_eq!(lengths(&wakers), [(1, 1), (2, 1), (3, 1)]);
    let result = run(&events(true));
    assert_eq!(edges(&result), [(0, 1, 1, 1, 1), (1, 2, 1, 0, 0), (2, 3, 1, 1, 1)]);
    assert_eq!(lengths(&result.0), [(1, 2)]);
    // A switch from a thread that does not run there says that events are missing, and ends the chains of both.
    let (wakers, _) = run(&[
        waking(1, 0, 1),
        switch(2, 0, Runnable, 1),
        on(1, waking(2, 0, 2)),
        on(1, switch(3, 0, Runnable, 2)),
        on(1, switch(5, 1, Preempted, 4)),
        on(1, switch(6, 4, Sleeping, 1)),
    ]);
    assert_eq!(lengths(&wakers), [(1, 2)]);
}

#[test]
fn wakeups_of_scxprof_itself_are_no_edges() {
    let own = |time, wakee| SchedEvent { pid: 200, ..waking(time, 50, wakee) };
    let (wakers, tracker) = run_with(
        Wakers::new(places(), Some(200)),
        &[
            waking(1, 0, 50),
            switch(2, 0, Runnable, 50),
            own(3, 1),
            SchedEvent { pid: 200, ..switch(4, 50, Preempted, 1) },
            waking(5, 1, 2),
            switch(6, 1, Sleeping, 2),
            waking(7, 2, 50),
        ],
    );
    // At the first wakeup it is not known yet that it is one of scxprof.
    assert_eq!((wakers.places().0.total(), wakers.counts().preemptions), (1, 0));
    assert_eq!(edges(&(wakers, tracker)), [(0, 50, 1, 1, 1), (1, 2, 1, 1, 1)]);
    let (wakers, _) = run_with(Wakers::new(places(), Some(200)), &[own(3, 1), own(3, 50), own(4, 1)]);
    let counts = wakers.counts();
    assert_eq!((counts.wakeups, counts.wakeups_own, counts.preemptions), (3, 3, 0));
}

#[test]
fn lines_are_by_thread_or_by_class() {
    let mut events = Vec::new();
    let named = |tid, name: &str| SchedTask { tid, prio: 120, comm: Comm::from(name) };
    for (wakee, times) in [(11, 3), (12, 5)] {
        for _ in 0..times {
            events.push(event(
                1,
                10,
                SchedWhat::Waking { task: named(wakee, "worker"), target_cpu: 0, by: WakenBy::Thread },
            ));
        }
    }
    events.push(event(2, 0, SchedWhat::Waking { task: named(11, "worker"), target_cpu: 0, by: WakenBy::Thread }));
    let what = SchedWhat::Switch { prev: named(10, "boss"), state: Dead, next: named(12, "worker") };
    events.push(event(3, 10, what));
    // 12 wakes 11 and 13.
    events.push(event(4, 12, SchedWhat::Waking { task: named(11, "worker"), target_cpu: 0, by: WakenBy::Thread }));
    events.push(event(5, 12, SchedWhat::Waking { task: named(13, "other"), target_cpu: 0, by: WakenBy::Thread }));
    let (wakers, tracker) = run(&events);
    let labels = Labels { cgroups: [(7, b"/web".to_vec())].into_iter().collect(), ..Labels::default() };
    let lines = |level, limit| {
        let report = report((&wakers, tracker.threads()), level, limit, &labels);
        let name = |party: &Party| format!("{}/{}", party.name, party.tid.unwrap_or(0));
        let line = |edge: &EdgeLine| {
            format!("{} {} {}", edge.waker.as_ref().map_or("-".into(), name), name(&edge.wakee), edge.wakeups)
        };
        (report.edges.iter().map(line).collect::<Vec<_>>(), report.edge_count)
    };
    let (threads, count) = lines(Level::Thread, 10);
    // 10 has ended.
    assert_eq!(threads, ["boss/0 worker/0 8", "- worker/11 1", "worker/12 other/13 1", "worker/12 worker/11 1"]);
    assert_eq!(count, 4);
    let (classes, count) = lines(Level::Class, 2);
    assert_eq!(classes, ["boss/0 worker/0 8", "- worker/0 1"]);
    // The cgroup of 11 is not known, that of 12 is.
    assert_eq!(count, 4);

    // Those of the idle task are in no group.
    let group = |of: &str| {
        let of = of.to_owned();
        move |class: &Class| of.split(' ').find(|name| *name == class.comm.to_string()).map(|_| of.clone())
    };
    let result = |of: &str| {
        let Within { wakeups, within, unknown } = within(&wakers, tracker.threads(), &group(of));
        (wakeups, within, unknown)
    };
    assert_eq!(result("boss worker"), (10, 9, 1));
    assert_eq!(result("worker"), (10, 1, 9));
    let each = within(&wakers, tracker.threads(), &|class| Some(class.comm.to_string()));
    assert_eq!((each.wakeups, each.within, each.unknown), (10, 1, 0));
}

#[test]
fn more_threads_than_there_is_room_for_are_added_up() {
    let bounds = Bounds { edges: 4, class_edges: 2, preemptions: 1 };
    let mut events = Vec::new();
    // 1 wakes 2 often, and 10 to 19 once each.
    for tid in 10..20 {
        events.push(waking(1, 1, 2));
        events.push(waking(1, 1, tid));
    }
    let result = run_with(Wakers::bounded(places(), None, bounds), &events);
    assert!(edges(&result).contains(&(1, 2, 10, 0, 0)), "{:?}", edges(&result));
    let counts = result.0.counts();
    assert!(counts.wakeups_uncounted > 0 && result.0.edges <= 4 && result.0.classes.len() <= 2);
    assert_eq!(counts.wakeups, 20);
}

/// A stream in order of time, every other one without gaps.
fn stream() -> impl Strategy<Value = Vec<SchedEvent>> {
    let states = prop::sample::select(vec![Runnable, Preempted, Sleeping, Sleeping, TaskState::Blocked, Dead]);
    let one = (0u64..5, 0u32..3, 0u32..7, 0u32..7, states, 0u8..12);
    (any::<bool>(), prop::collection::vec(one, 0..250)).prop_map(|(has_gaps, steps)| {
        let mut running = [0; 3];
        let mut time = 1;
        let event = |(step, cpu, a, b, state, kind): (u64, u32, u32, u32, TaskState, u8)| {
            time += step;
            let current = &mut running[cpu as usize];
            let tid = *current;
            let what = match kind {
                0..=3 => {
                    *current = b;
                    // Rarely another one than it should be.
                    let prev = if has_gaps && kind == 0 && step == 0 { a } else { tid };
                    SchedWhat::Switch { prev: task(prev), state, next: task(b) }
                }
                4..=8 => SchedWhat::Waking { task: task(a), target_cpu: 1, by: WakenBy::Thread },
                9 => SchedWhat::WakeupNew { task: task(a), target_cpu: 1 },
                10 => SchedWhat::Fork { parent: tid, child: a, comm: Comm::from("new") },
                _ if has_gaps && step == 0 => SchedWhat::Lost,
                _ if has_gaps => SchedWhat::Exec { tid: a, old_tid: b },
                _ => SchedWhat::Runtime { task: task(a), ns: 1 },
            };
            let pid = if tid == 0 { 0 } else { 100 + tid % 2 };
            SchedEvent { time, cpu, pid, tid, cgroup: 7, what }
        };
        steps.into_iter().map(event).collect()
    })
}

/// Counts facts beside.
struct Counting {
    wakers: Wakers,
    woken: u64,
    waited: u64,
    preempted: u64,
}

impl Facts for Counting {
    fn fact(&mut self, threads: &Threads, fact: &Fact) {
        match *fact {
            Fact::Woken { .. } => self.woken += 1,
            Fact::Waited { why: Why::Woken(_) | Why::New, .. } => self.waited += 1,
            Fact::Preempted { .. } => self.preempted += 1,
            _ => {}
        }
        self.wakers.fact(threads, fact);
    }
}

#[test]
fn a_thread_of_another_process_does_not_go_on_with_a_wait() {
    let other = |event: SchedEvent| SchedEvent { cpu: 2, pid: 101, ..event };
    // 4 of process 100 waits when it becomes 3 of that process; 3 of process 101 runs meanwhile.
    let events = [
        on(1, switch(1, 0, Runnable, 4)),
        on(2, switch(1, 4, Sleeping, 3)),
        on(1, waking(1, 4, 4)),
        event(2, 0, SchedWhat::Exec { tid: 3, old_tid: 4 }),
        other(waking(2, 3, 9)),
        switch(2, 0, Runnable, 3),
    ];
    let mut all = Counting { wakers: Wakers::new(places(), None), woken: 0, waited: 0, preempted: 0 };
    let mut tracker = Tracker::default();
    for event in &events {
        tracker.take(event, &mut all);
    }
    assert_eq!((all.woken, all.waited, all.wakers.places().0.total()), (2, 0, 0));
}

proptest! {
    #[test]
    fn every_wakeup_is_an_edge_or_counted(events in stream(), edges in 1usize..9, classes in 1usize..9, own in any::<bool>()) {
        let bounds = Bounds { edges, class_edges: classes, preemptions: classes };
        let wakers = Wakers::bounded(places(), own.then_some(101), bounds);
        let (mut tracker, mut all) = (Tracker::default(), Counting { wakers, woken: 0, waited: 0, preempted: 0 });
        for event in &events {
            tracker.take(event, &mut all);
        }
        let Counting { wakers, woken, waited, preempted } = all;
        let counts = wakers.counts();
        prop_assert_eq!(counts.wakeups, woken);
        let living = wakers.thread_edges(tracker.threads()).map(|(_, _, edge)| *edge);
        let all: Vec<Edge> = living.chain(wakers.class_edges().map(|(_, _, edge)| *edge)).collect();
        let sum: u64 = all.iter().map(|edge| edge.wakeups).sum();
        prop_assert_eq!(sum + counts.wakeups_uncounted + counts.wakeups_own, woken);
        let report = report((&wakers, tracker.threads()), Level::Class, usize::MAX, &Labels::default());
        prop_assert_eq!(report.edges.iter().map(|edge| edge.wakeups).sum::<u64>(), sum);
        // Every wait that a wakeup began is known, but for those at a gap.
        let (threads, idle) = wakers.places();
        let places = threads.total() + idle.total();
        prop_assert!(places <= waited);
        if !own {
            prop_assert!(places == waited || tracker.gaps() != Gaps::default(), "{places} of {waited}");
            prop_assert_eq!(counts.preemptions, preempted);
            let listed: u64 = wakers.preemptions().map(|(_, _, count)| count).sum();
            prop_assert_eq!(listed + counts.preemptions_uncounted, preempted);
        }
        for edge in &all {
            prop_assert!(edge.latency.count() == edge.places.total());
        }
        // The tables agree with each other.
        prop_assert_eq!(wakers.slot_edges().count(), wakers.edges);
        for (waker, wakee, _) in wakers.slot_edges() {
            prop_assert!(waker.is_none_or(|waker| wakers.nodes[wakee as usize].wakers.contains(&waker)));
            prop_assert!(tracker.threads().iter().any(|(slot, _)| slot == wakee));
        }
        for (wakee, node) in (0..).zip(&wakers.nodes) {
            prop_assert!(node.wakers.iter().all(|&waker| wakers.nodes[waker as usize].wakees.contains_key(&wakee)));
        }
        prop_assert!(wakers.edges <= edges && wakers.classes.len() <= classes);
    }
}
