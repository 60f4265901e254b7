//! Plans of synthetic events; and no script deadlocks, whatever the events.

use proptest::prelude::*;
use rustc_hash::FxHashSet;

use super::script::Candidate;
use super::*;
use scxprof_base::sample::sched::{SchedEvent, SchedTask, SchedWhat, TaskState, WakenBy};
use scxprof_base::sample::Comm;

const MS: u64 = 1_000_000;

fn task(tid: u32) -> SchedTask {
    let comm = if tid == 0 { Comm::new(b"swapper") } else { Comm::new(format!("t{tid}").as_bytes()) };
    SchedTask { tid, prio: 120, comm }
}

/// On a CPU, an event of the thread that runs there; each thread is a process of its own.
fn event(time: u64, cpu: u32, tid: u32, what: SchedWhat) -> SchedEvent {
    SchedEvent { time, cpu, pid: tid, tid, cgroup: 0, what }
}

fn switch(time: u64, cpu: u32, prev: u32, state: TaskState, next: u32) -> SchedEvent {
    event(time, cpu, prev, SchedWhat::Switch { prev: task(prev), state, next: task(next) })
}

fn waking(time: u64, cpu: u32, waker: u32, woken: u32) -> SchedEvent {
    let by = if waker == 0 { WakenBy::Interrupt } else { WakenBy::Thread };
    event(time, cpu, waker, SchedWhat::Waking { task: task(woken), target_cpu: cpu, by })
}

fn charged(time: u64, cpu: u32, tid: u32, ns: u64) -> SchedEvent {
    event(time, cpu, tid, SchedWhat::Runtime { task: task(tid), ns })
}

fn forked(time: u64, cpu: u32, parent: u32, child: u32) -> SchedEvent {
    let comm = task(child).comm;
    event(time, cpu, parent, SchedWhat::Fork { parent, child, comm })
}

fn plan(events: &[SchedEvent]) -> Plan {
    let mut planner = Planner::new(0, None);
    for event in events {
        planner.event(event);
    }
    planner.finish()
}

fn script_of(plan: &Plan, is_selected: &mut dyn FnMut(&Candidate<'_>) -> bool, scale: f64) -> Script {
    select(plan, &mut Selection { is_selected, user: &FxHashSet::default(), recorder: Some(999), scale })
}

fn script(events: &[SchedEvent]) -> Script {
    script_of(&plan(events), &mut |_| true, 1.0)
}

fn ops(script: &Script, tid: u32) -> Vec<Op> {
    let mock = script.threads.iter().find(|mock| mock.tid == tid && mock.is_active);
    mock.map(|mock| script.ops(mock).to_vec()).unwrap_or_default()
}

fn number(script: &Script, tid: u32) -> u32 {
    script.threads.iter().position(|mock| mock.tid == tid).unwrap() as u32
}

/// Thread 1 runs 1 ms, wakes 2 and runs 1 ms more; 2 runs, wakes 1 at once and sleeps.
fn ping_pong() -> Vec<SchedEvent> {
    use TaskState::Sleeping;
    vec![
        switch(0, 0, 0, TaskState::Runnable, 1),
        waking(MS, 0, 1, 2),
        switch(MS + 100, 1, 0, TaskState::Runnable, 2),
        switch(2 * MS, 0, 1, Sleeping, 0),
        waking(3 * MS, 1, 2, 1),
        switch(3 * MS + 100, 0, 0, TaskState::Runnable, 1),
        switch(4 * MS, 1, 2, Sleeping, 0),
        switch(5 * MS, 0, 1, TaskState::Dead, 0),
    ]
}

#[test]
fn threads_that_wake_each_other_do_so_in_the_script() {
    let script = script(&ping_pong());
    let (one, two) = (number(&script, 1), number(&script, 2));
    let wake = |thread, nth| Op::Wake { thread, nth, is_mutual: true };
    assert_eq!(
        ops(&script, 1),
        [
            Op::Sleep { until: 0, asleep: 0 },
            Op::Run(MS),
            wake(two, 1),
            Op::Run(MS),
            Op::Wait,
            Op::Run(2 * MS - 100),
            Op::Exit
        ]
    );
    assert_eq!(ops(&script, 2), [Op::Wait, Op::Run(2 * MS - 100), wake(one, 1), Op::Run(MS)]);
    let recorded = &script.threads[one as usize].recorded;
    assert_eq!((recorded.sleeps, recorded.woken, recorded.preemptions), (1, 1, 0));
    assert_eq!(script.window, 5 * MS);
}

#[test]
fn a_waker_that_is_not_selected_is_a_time() {
    let plan = plan(&ping_pong());
    let script = script_of(&plan, &mut |thread| thread.tid == 1, 0.5);
    assert_eq!((script.threads.len(), script.left_out.not_selected), (1, 1));
    let until = 3 * MS / 2;
    assert_eq!(
        ops(&script, 1),
        [Op::Sleep { until: 0, asleep: 0 }, Op::Run(MS), Op::Sleep { until, asleep: 500 }, Op::Run(MS - 50), Op::Exit]
    );
    assert_eq!(script.window, 5 * MS / 2);
    assert_eq!((script.threads[0].recorded.sleeps, script.threads[0].recorded.woken), (1, 0));
}

#[test]
fn who_is_interrupted_by_the_end_of_io_does_not_wake() {
    use TaskState::{Blocked, Sleeping};
    let ends = |state, by, at: u64, waits: usize| {
        let what = SchedWhat::Waking { task: task(1), target_cpu: 0, by };
        let script = script(&[
            switch(0, 0, 0, TaskState::Runnable, 1),
            switch(0, 1, 0, TaskState::Runnable, 2),
            event(at.min(MS), 1, 2, if at < MS { what } else { SchedWhat::IrqExit { irq: 1 } }),
            switch(MS, 0, 1, state, 0),
            event(at.max(MS), 1, 2, if at > MS { what } else { SchedWhat::IrqExit { irq: 1 } }),
            switch(3 * MS, 0, 0, TaskState::Runnable, 1),
            switch(4 * MS, 0, 1, Sleeping, 0),
            switch(4 * MS, 1, 2, Sleeping, 0),
        ]);
        let waited = ops(&script, 1).iter().filter(|op| **op == Op::Wait).count();
        let woke = ops(&script, 2).iter().filter(|op| matches!(op, Op::Wake { .. })).count();
        assert_eq!((waited, woke), (waits, waits), "{state:?} {by:?} {at}");
        assert_eq!(script.threads[number(&script, 1) as usize].recorded.sleeps, 1);
    };
    // While it sleeps, and as it falls asleep.
    for at in [2 * MS, MS - 1000] {
        ends(Blocked, WakenBy::Softirq, at, 0);
        ends(Blocked, WakenBy::Thread, at, 1);
        ends(Sleeping, WakenBy::Softirq, at, 1);
        ends(Sleeping, WakenBy::Thread, at, 1);
    }
}

#[test]
fn a_thread_that_is_woken_as_it_falls_asleep_has_slept() {
    use TaskState::Sleeping;
    let script = script(&[
        switch(0, 0, 0, TaskState::Runnable, 1),
        switch(0, 1, 0, TaskState::Runnable, 2),
        waking(MS, 1, 2, 1),
        switch(MS + 3000, 0, 1, Sleeping, 0),
        switch(MS + 9000, 0, 0, TaskState::Runnable, 1),
        switch(2 * MS, 0, 1, Sleeping, 0),
        switch(2 * MS, 1, 2, Sleeping, 0),
    ]);
    let wakes = |op: &Op| matches!(op, Op::Wake { nth: 1, .. });
    assert_eq!(ops(&script, 2).iter().filter(|op| wakes(op)).count(), 1);
    assert_eq!(ops(&script, 1).iter().filter(|op| **op == Op::Wait).count(), 1);
}

#[test]
fn a_wakeup_of_a_thread_that_does_not_sleep_is_none() {
    let script = script(&[
        switch(0, 0, 0, TaskState::Runnable, 1),
        switch(0, 1, 0, TaskState::Runnable, 2),
        waking(MS, 1, 2, 1),
        switch(3 * MS, 0, 1, TaskState::Runnable, 0),
        switch(3 * MS, 1, 2, TaskState::Sleeping, 0),
    ]);
    assert_eq!(ops(&script, 1), [Op::Sleep { until: 0, asleep: 0 }, Op::Run(3 * MS)]);
    assert_eq!(ops(&script, 2), [Op::Sleep { until: 0, asleep: 0 }, Op::Run(3 * MS)]);
}

#[test]
fn the_charge_tells_how_long_a_thread_ran_whose_switch_was_lost() {
    let plan = plan(&[
        switch(0, 0, 0, TaskState::Runnable, 1),
        charged(MS, 0, 1, MS),
        switch(MS, 0, 1, TaskState::Sleeping, 0),
        waking(4 * MS, 0, 0, 1),
        charged(6 * MS, 0, 1, MS),
        switch(6 * MS, 0, 1, TaskState::Sleeping, 0),
    ]);
    assert_eq!(plan.threads[0].recorded.run, 2 * MS);
    assert_eq!(plan.unknown_ends, 0);
    let sleep = Step::Sleep { until: 4 * MS, asleep: 3000, waker: None };
    assert_eq!(plan.threads[0].steps[1..], [Step::Run(MS), sleep, Step::Run(MS)]);
}

#[test]
fn processes_are_made_by_those_who_made_them() {
    let script = script(&[
        switch(0, 0, 0, TaskState::Runnable, 1),
        forked(MS, 0, 1, 5),
        switch(2 * MS, 0, 1, TaskState::Sleeping, 5),
        switch(3 * MS, 0, 5, TaskState::Dead, 0),
    ]);
    let child = number(&script, 5);
    assert_eq!(ops(&script, 1)[1..], [Op::Run(MS), Op::Fork(child), Op::Run(MS)]);
    assert_eq!(ops(&script, 5), [Op::Run(MS), Op::Exit]);
    assert!(!script.threads[child as usize].is_initial && script.processes.len() == 2);
    // Without its maker it is there from the beginning, and sleeps until it was made.
    let plan = plan(&[
        switch(0, 0, 0, TaskState::Runnable, 1),
        forked(MS, 0, 1, 5),
        switch(2 * MS, 0, 1, TaskState::Sleeping, 5),
        switch(3 * MS, 0, 5, TaskState::Dead, 0),
    ]);
    let alone = script_of(&plan, &mut |thread| thread.tid == 5, 1.0);
    assert_eq!(ops(&alone, 5), [Op::Sleep { until: MS, asleep: 0 }, Op::Run(MS), Op::Exit]);
    assert!(alone.threads[0].is_initial);
}

#[test]
fn the_kernel_and_the_recorder_are_left_out() {
    let mut events = ping_pong();
    events.extend([switch(6 * MS, 0, 0, TaskState::Runnable, 999), switch(7 * MS, 0, 999, TaskState::Sleeping, 0)]);
    let plan = plan(&events);
    let user: FxHashSet<u32> = [1, 999].into_iter().collect();
    let script =
        select(&plan, &mut Selection { is_selected: &mut |_| true, user: &user, recorder: Some(999), scale: 1.0 });
    assert_eq!((script.left_out.kernel, script.left_out.recorder, script.threads.len()), (1, 1, 1));
}

#[test]
fn other_processes_than_the_recorded_command_are_no_threads_of_the_kernel() {
    let named = |tid, comm: &str| SchedTask { tid, prio: 120, comm: Comm::from(comm) };
    // A run of 1 ms of each thread: of the command (1), of others, and of the kernel.
    let threads: [(u32, u32, &str); 5] = [
        (5, 5, "make"),
        (8, 8, "postgres"),
        (11, 10, "tokio-rt-worker"),
        (12, 12, "kworker/1:0"),
        (13, 13, "driver_thread"),
    ];
    let mut events = Vec::new();
    for (at, (tid, pid, comm)) in (0u64..).zip(threads) {
        let (begin, end) = (2 * at * MS, (2 * at + 1) * MS);
        let what = SchedWhat::Switch { prev: named(0, "swapper"), state: TaskState::Runnable, next: named(tid, comm) };
        events.push(SchedEvent { time: begin, cpu: 0, pid: 0, tid: 0, cgroup: 0, what });
        let what = SchedWhat::Switch { prev: named(tid, comm), state: TaskState::Sleeping, next: named(0, "swapper") };
        events.push(SchedEvent { time: end, cpu: 0, pid, tid, cgroup: 1, what });
    }
    let plan = plan(&events);
    let kept = |user: &[u32]| {
        let user: FxHashSet<u32> = user.iter().copied().collect();
        let script =
            select(&plan, &mut Selection { is_selected: &mut |_| true, user: &user, recorder: None, scale: 1.0 });
        // The main thread of process 10, which did nothing, is made for the other one.
        let tids = script.threads.iter().map(|thread| thread.tid).filter(|tid| *tid != 10);
        (tids.collect::<Vec<u32>>(), script.left_out.kernel)
    };
    // Of a command: what is not known to be the kernel's is replayed.
    assert_eq!(kept(&[5]), (vec![5, 8, 11, 13], 1));
    // Of the whole host: the kernel's threads are those without memory, whatever they are called.
    assert_eq!(kept(&[1, 5, 8, 10]), (vec![5, 8, 11], 2));
}

/// A mock thread of the simulation.
#[derive(Default, Clone, PartialEq)]
struct State {
    is_started: bool,
    at: usize,
    arrived: u32,
    woken: u32,
    /// Threads that it is to wake before it waits for anything.
    pending: Vec<(u32, u32, bool)>,
}

/// Runs the script as mock threads do, but always as if a thread that is to be woken has not come to its wait: the worst order.
/// Returns the threads that wait forever.
fn stuck(script: &Script) -> Vec<u32> {
    let mut states: Vec<State> = script
        .threads
        .iter()
        .map(|mock| State {
            is_started: mock.is_initial && script.processes[mock.process as usize].is_initial,
            ..State::default()
        })
        .collect();
    loop {
        let before = states.clone();
        for number in 0..states.len() {
            while step(script, &mut states, number) {}
        }
        if states == before {
            break;
        }
    }
    let ends = |number: &u32| {
        let (state, mock) = (&states[*number as usize], &script.threads[*number as usize]);
        state.is_started && state.pending.is_empty() && state.at >= script.ops(mock).len()
    };
    (0..states.len() as u32).filter(|number| !ends(number)).collect()
}

/// Wakes those that are to be woken; false if one of them must first come to its wait.
fn settle(states: &mut [State], number: usize) -> bool {
    while let Some(&(thread, nth, is_mutual)) = states[number].pending.first() {
        let woken = &mut states[thread as usize];
        if is_mutual && woken.arrived < nth {
            return false;
        }
        woken.woken += 1;
        states[number].pending.remove(0);
    }
    true
}

/// True if the thread went on.
fn step(script: &Script, states: &mut [State], number: usize) -> bool {
    let mock = &script.threads[number];
    if !states[number].is_started {
        return false;
    }
    let Some(&op) = script.ops(mock).get(states[number].at) else {
        return !states[number].pending.is_empty() && settle(states, number);
    };
    match op {
        Op::Wake { thread, nth, is_mutual } => {
            if states[number].pending.iter().any(|pending| pending.0 == thread) && !settle(states, number) {
                return false;
            }
            states[number].pending.push((thread, nth, is_mutual));
        }
        Op::Wait => {
            if !settle(states, number) {
                return false;
            }
            let waits = script.ops(mock)[..=states[number].at].iter().filter(|op| **op == Op::Wait).count() as u32;
            states[number].arrived = waits;
            if states[number].woken < waits {
                return false;
            }
        }
        Op::Sleep { .. } | Op::Exit => {
            if !settle(states, number) {
                return false;
            }
        }
        Op::Fork(child) => {
            let mock = &script.threads[child as usize];
            states[child as usize].is_started = true;
            if mock.is_main {
                for &other in &script.processes[mock.process as usize].initial {
                    states[other as usize].is_started = true;
                }
            }
        }
        Op::Run(_) | Op::Name(_) => {}
    }
    states[number].at += 1;
    true
}

/// Any events, of few threads on few CPUs, in order of time.
fn events() -> impl Strategy<Value = Vec<SchedEvent>> {
    let states = [TaskState::Runnable, TaskState::Sleeping, TaskState::Blocked, TaskState::Dead];
    let one = (0u64..200_000, 0u32..3, 0u32..6, 0u32..6, 0usize..4, 0u32..12);
    proptest::collection::vec(one, 1..120).prop_map(move |list| {
        let (mut time, mut running) = (0, [0u32; 3]);
        let mut events = Vec::new();
        for (gap, cpu, a, b, state, kind) in list {
            // Many events at one time.
            time += gap.saturating_sub(100_000);
            let current = running[cpu as usize];
            events.push(match kind {
                // Most switches continue what was before; some were lost.
                0..=4 => {
                    running[cpu as usize] = b;
                    switch(time, cpu, if kind == 4 { a } else { current }, states[state], b)
                }
                5..=8 => waking(time, cpu, current, a.max(1)),
                9 => charged(time, cpu, current.max(1), 50_000),
                10 => forked(time, cpu, current.max(1), a.max(1)),
                _ => event(time, cpu, current, SchedWhat::Lost),
            });
        }
        events
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn no_script_waits_for_ever(events in events(), chosen in 0u32..64) {
        let plan = plan(&events);
        let script = script_of(&plan, &mut |thread| chosen == 0 || (chosen >> (thread.tid % 6)) & 1 == 1, 1.0);
        prop_assert_eq!(stuck(&script), Vec::<u32>::new(), "{:?}", script);
    }

    #[test]
    fn a_selection_keeps_what_its_threads_did(events in events(), chosen in 1u32..64) {
        let plan = plan(&events);
        let all = script_of(&plan, &mut |_| true, 1.0);
        let some = script_of(&plan, &mut |thread| (chosen >> (thread.tid % 6)) & 1 == 1, 1.0);
        let run = |script: &Script, mock: &Mock| -> u64 {
            script.ops(mock).iter().map(|op| if let Op::Run(ns) = op { *ns } else { 0 }).sum()
        };
        let of = |script: &Script| -> Vec<(u32, u64, u64)> {
            let active = script.threads.iter().filter(|mock| mock.is_active && (chosen >> (mock.tid % 6)) & 1 == 1);
            active.map(|mock| (mock.tid, run(script, mock), mock.recorded.sleeps)).collect()
        };
        prop_assert_eq!(of(&all), of(&some));
    }
}
