//! The analysers: on traces made by hand, against a slow reference, and against what other programs say of the fixtures.

use proptest::prelude::*;
use scxprof_base::sample::places::{CpuPlace, CpuPlaces};
use scxprof_trace::analyze::*;

use super::encode::{
    at, bundle, event, file, int_arg, packet, slice, switch, thread_track, waking, wprof_tables, Message,
};
use super::files::*;
use super::oracle::{Oracle, Sums};

fn all(bytes: Vec<u8>, options: Options) -> Report {
    let mut trace = open(bytes).unwrap();
    let mut analysis = Analysis::new(options);
    while let Some(event) = trace.next_event().unwrap() {
        analysis.take(&event);
    }
    analysis.finish(&trace)
}

fn made(packets: &[Message]) -> Report {
    all(file(packets), Options { limit: usize::MAX, ..Options::default() })
}

/// The result of an analyser.
macro_rules! result {
    ($report:expr, $id:ident) => {
        match $report.get(Id::$id) {
            Some(Findings::$id(result)) => &**result,
            other => panic!("{other:?} {:?}", $report.unavailable),
        }
    };
}

fn message(fields: &[(u32, u64)]) -> Message {
    fields.iter().fold(Message::new(), |message, (field, value)| message.int(*field, *value))
}

/// Two CPUs: thread 1 moves from CPU 0 to CPU 1, where it gets the CPU of thread 3, which is preempted again at 9000.
fn two_cpus() -> Vec<Message> {
    let wakeup = Message::new().text(1, "t1").int(2, 1).int(5, 1);
    vec![
        bundle(0, false, &[switch(1000, 0, 0, 1), switch(3000, 1, 1, 0), switch(6000, 0, 0, 2)]),
        bundle(
            1,
            false,
            &[
                switch(2000, 0, 0, 3),
                waking(4000, 3, 1, 0),
                event(4600, 3, 17, &wakeup),
                switch(5000, 3, 0, 1),
                waking(7000, 1, 2, 0),
                switch(8000, 1, 1, 3),
                switch(9000, 3, 256, 0),
            ],
        ),
        bundle(0, false, &[waking(9500, 2, 4, 0), switch(10_000, 2, 2, 0)]),
    ]
}

#[test]
fn time_before_the_first_and_after_the_last_switch_is_not_idle() {
    let report = made(&two_cpus());
    let found = result!(report, CpuUtilization);
    assert_eq!((found.window_ns, found.run_ns, found.idle_ns, found.unknown_ns), (9000, 13_000, 3000, 2000));
    let cpus: Vec<_> =
        found.cpus.iter().map(|cpu| (cpu.cpu, cpu.run_ns, cpu.idle_ns, cpu.unknown_ns, cpu.switches)).collect();
    assert_eq!(cpus, [(0, 6000, 3000, 0, 2), (1, 7000, 0, 2000, 3)]);
    assert_eq!(found.cpus[1].busy, Some(1.0));
    assert_eq!((found.cpus[1].slices.min_ns, found.cpus[1].slices.max_ns), (Some(1000), Some(3000)));
    assert_eq!(found.process_count, 3);
}

#[test]
fn cpu_numbers_may_have_holes() {
    let report = made(&[bundle(7, false, &[switch(10, 0, 0, 1), switch(30, 1, 1, 0), switch(40, 0, 0, 1)])]);
    let found = result!(report, CpuUtilization);
    assert_eq!(found.cpus.len(), 1);
    assert_eq!((found.cpus[0].cpu, found.run_ns, found.idle_ns, found.unknown_ns), (7, 20, 10, 0));
}

#[test]
fn a_wakeup_on_one_cpu_meets_its_switch_on_another() {
    let report = made(&two_cpus());
    let found = result!(report, WakeupLatency);
    assert_eq!((found.latency.count, found.latency.total_ns), (1, 1000));
    assert_eq!(found.cpus.iter().map(|cpu| cpu.latency.count).collect::<Vec<_>>(), [0, 1]);
    assert_eq!((found.threads[0].thread.tid, found.threads[0].latency.max_ns), (1, Some(1000)));
    let found = result!(report, LatencyBreakdown);
    assert_eq!((found.waking_to_wakeup.total_ns, found.wakeup_to_run.total_ns, found.without_wakeup), (600, 400, 0));
    assert_eq!(found.waking_part, Some(0.6));
    let found = result!(report, WakeupCorrelation);
    assert_eq!((found.wakeups, found.matched, found.was_running, found.still_waiting), (3, 1, 1, 1));
    let found = result!(report, WakeupChains);
    assert_eq!((found.wakeups, found.latency.count, found.latency.total_ns), (3, 1, 1000));
    assert_eq!(found.chains[0].criticality, Some(1.0));
}

#[test]
fn r_and_r_plus_are_told_apart() {
    let report = made(&two_cpus());
    let states = result!(report, TaskStates);
    let of = |tid| &states.threads.iter().find(|line| line.thread.tid == tid).unwrap().states;
    let (first, third) = (of(1), of(3));
    assert_eq!((first.running.total_ns, first.running.count, first.sleeping.total_ns), (5000, 2, 1000));
    assert_eq!((first.runnable_ns, first.latency.total_ns, first.voluntary), (1000, 1000, 2));
    assert_eq!((third.running.total_ns, third.runnable_ns, third.resumed.total_ns), (4000, 3000, 3000));
    assert_eq!((third.voluntary, third.involuntary, third.preempted), (0, 1, 1));
    assert_eq!(states.total.running.total_ns, 13_000);
    let found = result!(report, Preemptions);
    assert_eq!((found.involuntary, found.preempted, found.waits.total_ns), (1, 1, 3000));
    let pair = |at: usize| (found.pairs[at].by.as_ref().map(|by| by.name.as_str()), found.pairs[at].preemptions);
    assert_eq!(found.pair_count, 2);
    assert!([pair(0), pair(1)].contains(&(Some("t1"), 1)) && [pair(0), pair(1)].contains(&(None, 1)));
}

#[test]
fn moves_are_seen_without_their_events() {
    let report = made(&two_cpus());
    let found = result!(report, MigrationPatterns);
    assert_eq!((found.moves, found.moved_part, found.migrate_events), (1, Some(0.5), 0));
    assert_eq!((found.waits_moved.total_ns, found.waits_stayed.total_ns), (1000, 3000));
    assert_eq!(found.routes, [Route { from: 0, to: 1, count: 1 }]);
    let lacking = report.unavailable.iter().find(|lacking| lacking.id == Id::LlcLocality).unwrap();
    assert!(lacking.sentence().contains("--llc 0-7,8-15"), "{}", lacking.sentence());
    for (llc, within) in [([0, 0], Some(1.0)), ([0, 1], Some(0.5))] {
        let mut places = CpuPlaces::default();
        for (cpu, llc) in [0, 1].into_iter().zip(llc) {
            places.set(cpu, CpuPlace { core: cpu, llc, node: 0 });
        }
        let report = all(file(&two_cpus()), Options { places, ..Options::default() });
        let found = result!(report, LlcLocality);
        assert_eq!((found.runs_within, found.wakeups_within, found.wakeups.same_cpu), (within, Some(1.0), 1));
    }
}

#[test]
fn threads_that_wait_are_counted_over_time() {
    let report = made(&two_cpus());
    let RunQueue { window_ns, waiting, running } = *result!(report, RunQueue);
    assert_eq!(window_ns, 9000);
    // None for 4000 ns, one for 4500, two for 500.
    assert!((waiting.mean.unwrap() - 5500.0 / 9000.0).abs() < 1e-9, "{waiting:?}");
    assert_eq!((waiting.p50, waiting.p95, waiting.max), (Some(1), Some(2), Some(2)));
    assert!((running.mean.unwrap() - 13_000.0 / 9000.0).abs() < 1e-9, "{running:?}");
    assert_eq!(running.max, Some(2));
}

#[test]
fn fairness_and_bottlenecks_are_judged_by_what_they_state() {
    let report = made(&two_cpus());
    let found = result!(report, Fairness);
    // Of 4000, 4000 and 5000 ns.
    assert!((found.gini_run.unwrap() - 2.0 / 39.0).abs() < 1e-9, "{found:?}");
    assert_eq!((found.threads, found.starved_count, found.hogging_count), (3, 0, 0));
    // Thread 1 runs nearly always while thread 2 waits.
    let ms = 1_000_000;
    let mut events = vec![switch(0, 2, 0, 1), switch(50 * ms, 1, 0, 2), switch(51 * ms, 2, 1, 1)];
    events.push(switch(90 * ms, 1, 1, 0));
    let report = made(&[bundle(0, false, &events)]);
    let found = result!(report, Fairness);
    assert_eq!(found.starved.iter().map(|line| line.thread.tid).collect::<Vec<_>>(), [2]);
    assert_eq!((found.starved[0].run_ns, found.starved[0].wait_ns), (ms, 50 * ms));
    assert_eq!(found.hogging_count, 0, "two threads: no more than all");
    // Ten wakeups of 2 ms each, and switches every millisecond.
    let wakeups = (0..10).flat_map(|at| {
        let time = at * 4 * ms;
        [waking(time + 1, 0, 1, 0), switch(time + 1 + 2 * ms, 0, 0, 1), switch(time + 3 * ms, 1, 1, 0)]
    });
    let report = made(&[bundle(0, false, &wakeups.collect::<Vec<_>>())]);
    let found = result!(report, Bottlenecks);
    assert_eq!(found.count, 1);
    let Bottleneck { kind, tid, value, threshold, count, .. } = found.bottlenecks[0];
    assert_eq!((kind, tid, count), (BottleneckKind::LongLatency, Some(1), 10));
    assert_eq!((value, threshold), (2e6, 1e6));
}

#[test]
fn each_method_finds_the_one_long_wait() {
    let wait = |at: u64| {
        let (time, ns) = (at * 10_000, if at == 60 { 5000 } else { 100 + at % 7 });
        [
            waking(time + 1, 0, 1 + at % 3, 0),
            switch(time + 1 + ns, 0, 0, 1 + at % 3),
            switch(time + 9000, 1 + at % 3, 1, 0),
        ]
    };
    let bytes = file(&[bundle(0, false, &(0..120).flat_map(wait).collect::<Vec<_>>())]);
    for method in [Method::Iqr, Method::Mad, Method::Stddev, Method::Percentile] {
        let report = all(bytes.clone(), Options { method, ..Options::default() });
        let found = &result!(report, Outliers).latency;
        assert_eq!((found.values, found.is_cut), (120, false));
        assert_eq!((found.outliers[0].value, found.outliers[0].at_ns), (5000.0, Some(600_001)), "{method:?}");
        // Of 120 values, two are at or above the 99th percentile; one of them is equal to it.
        assert_eq!(found.count, 1, "{method:?} {found:?}");
        assert_eq!(result!(report, Outliers).run_time.values, 3);
    }
}

#[test]
fn pairs_nest_and_what_has_no_other_half_is_counted() {
    let of = |time, field, number| event(time, 0, field, &message(&[(1, number)]));
    let events = [of(1100, 24, 1), of(1200, 36, 5), of(1300, 37, 5), of(1500, 25, 1), of(1600, 25, 3), of(1700, 36, 7)];
    let report = made(&[bundle(3, false, &events)]);
    let found = result!(report, IrqAnalysis);
    let lines: Vec<_> =
        found.lines.iter().map(|line| (line.is_soft, line.number, line.handled.total_ns, line.own_ns)).collect();
    assert_eq!(lines, [(true, Some(1), 400, 300), (false, Some(5), 100, 100)]);
    assert_eq!(found.lines[0].name.as_deref(), Some("timer"));
    let CpuInterrupts { cpu, irqs, irq_ns, softirqs, softirq_ns } = found.cpus[0];
    assert_eq!((cpu, irqs, irq_ns, softirqs, softirq_ns), (3, 1, 100, 1, 300));
    assert_eq!(found.unpaired, Unpaired { begins: 1, ends: 1, lost: 0, no_room: 0 });
    // What began before a loss may have ended in it.
    let report =
        made(&[bundle(3, false, &[of(1, 36, 5)]), bundle(3, true, &[of(9, 37, 5), of(11, 36, 5), of(14, 37, 5)])]);
    let found = result!(report, IrqAnalysis);
    assert_eq!(found.lines[0].handled.total_ns, 3);
    assert_eq!(found.unpaired, Unpaired { begins: 0, ends: 1, lost: 1, no_room: 0 });
    assert_eq!(report.lost.bundles, 1);
    let reason = |time, field| event(time, 0, field, &Message::new().text(1, "reschedule"));
    let report = made(&[bundle(2, false, &[reason(100, 21), reason(170, 22)])]);
    let found = result!(report, IpiAnalysis);
    assert_eq!((found.kinds[0].kind.as_str(), found.kinds[0].handled.total_ns), ("reschedule", 70));
    assert_eq!((found.cpus[0].cpu, found.cpus[0].handled_ns), (2, 70));
}

#[test]
fn devices_files_memory_and_power_are_paired_by_what_they_are() {
    let dev = 8 << 20 | 1;
    let block = |time, cpu, field, sector, last: &[(u32, u64)]| {
        let inner =
            last.iter().fold(message(&[(1, dev), (2, sector)]), |inner, (field, value)| inner.int(*field, *value));
        bundle(cpu, false, &[event(time, 9, field, &inner.text(5, "WS"))])
    };
    let net = |time, field, bytes| event(time, 9, field, &Message::new().int(1, bytes).text(2, "eth0"));
    let suspend = |time, begin| event(time, 9, 113, &Message::new().text(1, "dpm_suspend").int(2, 2).int(3, begin));
    let report = made(&[
        block(2100, 0, 126, 100, &[(4, 4096)]),
        block(2300, 1, 45, 100, &[(4, 4096)]),
        block(2900, 2, 125, 100, &[(3, 8)]),
        block(3000, 2, 125, 500, &[(3, 8), (4, 5)]),
        bundle(0, false, &[net(3100, 361, 60), net(3200, 361, 40), net(3300, 360, 1500)]),
        bundle(0, false, &[event(4000, 9, 43, &message(&[(1, dev), (2, 77)]))]),
        bundle(1, false, &[event(4700, 9, 44, &message(&[(1, dev), (2, 77)]))]),
        bundle(1, false, &[event(5000, 9, 307, &message(&[(3, 2), (5, 1)])), event(5100, 9, 310, &message(&[(1, 0)]))]),
        bundle(1, false, &[event(5200, 9, 46, &message(&[(1, 0)])), event(5500, 9, 47, &message(&[(1, 32)]))]),
        bundle(1, false, &[suspend(6000, 1), suspend(6800, 0)]),
    ]);
    let found = result!(report, BlockIo);
    assert_eq!((found.all.completed, found.all.bytes, found.all.errors), (2, 8192, 1));
    assert_eq!((found.all.queue.total_ns, found.all.in_device.total_ns, found.unpaired.ends), (200, 600, 1));
    assert_eq!((found.devices[0].device.as_str(), found.devices[0].is_write), ("8:1", Some(true)));
    let found = result!(report, NetworkIo);
    assert_eq!((found.sent, found.received), (Packets { packets: 2, bytes: 100 }, Packets { packets: 1, bytes: 1500 }));
    assert_eq!(found.devices[0].device, "eth0");
    let found = result!(report, FileIo);
    assert_eq!((found.syncs.total_ns, found.files[0].inode), (700, 77));
    let found = result!(report, MemoryPressure);
    assert_eq!((found.allocated.pages, found.freed.pages, found.net_pages), (4, 1, 3));
    assert_eq!((found.reclaims.total_ns, found.reclaimed_pages), (300, 32));
    let found = result!(report, PowerState);
    assert_eq!((found.actions[0].action.as_str(), found.actions[0].times.total_ns), ("dpm_suspend", 800));
}

#[test]
fn values_hold_until_the_next_one() {
    let khz = |time, khz| event(time, 0, 11, &message(&[(1, khz), (2, 1)]));
    let idle = |time, state| event(time, 0, 13, &message(&[(1, state), (2, 0)]));
    let none = u64::from(u32::MAX);
    let report = made(&[
        bundle(1, false, &[khz(1000, 1_000_000), khz(3000, 2_000_000), khz(4000, 2_000_000), khz(7000, 1_500_000)]),
        bundle(0, false, &[idle(3000, 1), idle(5000, none), idle(6000, 2), idle(6500, 1)]),
    ]);
    let found = &result!(report, CpuFrequency).cpus[0];
    assert_eq!((found.cpu, found.changes, found.min_khz, found.max_khz), (1, 2, Some(1_000_000), 2_000_000));
    let times: Vec<_> = found.times.iter().map(|time| (time.khz, time.ns)).collect();
    assert_eq!((times, found.unknown_ns), (vec![(1_000_000, 2000), (2_000_000, 4000)], 0));
    assert!((found.mean_khz.unwrap() - 1e7 / 6.0).abs() < 1e-6);
    let found = &result!(report, CpuIdle).cpus[0];
    assert_eq!((found.active_ns, found.unknown_ns), (1000, 6000 - 3500));
    let states: Vec<_> = found.states.iter().map(|state| (state.state, state.times.total_ns)).collect();
    assert_eq!(states, [(1, 2000), (2, 500)]);
}

#[test]
fn no_queue_is_none() {
    let dsq = |time, kind, args: &[Message]| at(time, &slice(kind, 1, "SCX_DSQ", "DSQ:FIFO"), args);
    let report = made(&[
        wprof_tables(),
        thread_track(1, 10, 11, "a"),
        dsq(100, 1, &[]),
        dsq(400, 2, &[int_arg("scx_dsq_id", 0x42), int_arg("scx_layer_id", 3)]),
        dsq(500, 1, &[]),
        dsq(600, 2, &[Message::new().text(10, "scx_dsq_id").int(3, 1 << 63)]),
    ]);
    let found = result!(report, DsqLatency);
    let lines: Vec<_> = found.dsqs.iter().map(|line| (line.dsq, line.layer, line.latency.total_ns)).collect();
    assert_eq!(lines, [(Some(0x42), Some(3), 300), (None, None, 100)]);
    let found = result!(report, DsqSummary);
    assert_eq!((found.dsq_count, found.dsqs[0].dsq, found.dsqs[0].inserted, found.without), (1, 0x42, 1, 1));
}

#[test]
fn what_a_trace_lacks_is_said() {
    let report = made(&two_cpus());
    let lacking = report.unavailable.iter().find(|lacking| lacking.id == Id::BlockIo).unwrap();
    assert_eq!(lacking.sentence(), "no applicable events: block_io needs block_rq_issue and block_rq_complete");
    assert_eq!(report.analyses.len() + report.unavailable.len(), ANALYSERS.len());
    for (at, analyser) in ANALYSERS.iter().enumerate() {
        assert_eq!(analyser.id as usize, at);
        assert_eq!(analyser.id.name().parse(), Ok(analyser.id));
    }
    let only = all(file(&two_cpus()), Options { only: vec![Id::RunQueue], ..Options::default() });
    assert_eq!((only.analyses.len(), only.unavailable.len()), (1, 0));
    let info = read(file(&two_cpus())).info;
    let can: Vec<_> = info.analysers.iter().filter(|of| of.lacks.is_empty()).map(|of| of.id).collect();
    assert_eq!(can, report.analyses.iter().map(Findings::id).collect::<Vec<_>>());
    assert!(made(&[packet(1)]).analyses.is_empty());
}

/// A machine of two CPUs and four threads, moved on by random steps; what it does is known at each ns.
#[derive(Debug, Default)]
struct Machine {
    time: u64,
    runs: [u64; 2],
    waits: [bool; 5],
    events: [Vec<Message>; 2],
    /// Threads that waited, and ran, in each ns.
    waiting: Vec<u64>,
    running: Vec<u64>,
    matched: u64,
    woken: [bool; 5],
}

impl Machine {
    fn step(&mut self, (ns, cpu, kind, thread): (u64, usize, u8, u64)) {
        for _ in 0..ns {
            self.waiting.push(self.waits.iter().filter(|waits| **waits).count() as u64);
            self.running.push(self.runs.iter().filter(|tid| **tid != 0).count() as u64);
        }
        self.time += ns;
        let at = thread as usize;
        let runs = self.runs.contains(&thread);
        if kind == 0 {
            self.events[cpu].push(waking(self.time, self.runs[cpu], thread, cpu as u64));
            if !runs && !self.waits[at] {
                (self.waits[at], self.woken[at]) = (true, true);
            }
            return;
        }
        // To a thread that waits, or to the idle task.
        let next = if self.waits[at] && !runs { thread } else { 0 };
        let prev = self.runs[cpu];
        if prev == next {
            return;
        }
        let state = if prev == 0 { 0 } else { [1, 2, 0, 256][usize::from(kind) % 4] };
        self.events[cpu].push(switch(self.time, prev, state, next));
        self.runs[cpu] = next;
        self.waits[next as usize] = false;
        self.matched += u64::from(std::mem::take(&mut self.woken[next as usize]));
        if prev != 0 {
            self.waits[prev as usize] = state == 0 || state == 256;
        }
    }
}

proptest! {
    #[test]
    fn depths_and_wakeups_are_those_of_a_slow_count(
        steps in proptest::collection::vec((1u64..20, 0usize..2, 0u8..6, 1u64..5), 1..120),
    ) {
        let mut machine = Machine { time: 100, ..Machine::default() };
        // Every thread's first event, so that its state is known: it is woken.
        for thread in 1..5 {
            machine.step((0, 0, 0, thread));
        }
        for cpu in 0..2 {
            machine.events[cpu].insert(0, switch(99, 0, 0, 0));
        }
        for step in steps {
            machine.step(step);
        }
        // The last event ends the time that is looked at.
        machine.events[0].push(event(machine.time, 0, 24, &message(&[(1, 0)])));
        let report = made(&[bundle(0, false, &machine.events[0]), bundle(1, false, &machine.events[1])]);
        let found = result!(report, RunQueue);
        for (depths, slow) in [(found.waiting, &machine.waiting), (found.running, &machine.running)] {
            let mut sorted = slow.clone();
            // From 99 to 100 nothing was known to wait or run.
            sorted.push(0);
            sorted.sort_unstable();
            let mean = sorted.iter().sum::<u64>() as f64 / sorted.len() as f64;
            prop_assert!((depths.mean.unwrap() - mean).abs() < 1e-9, "{:?} {}", depths, mean);
            prop_assert_eq!(depths.max, sorted.last().copied());
            for (q, found) in [(0.5, depths.p50), (0.95, depths.p95), (0.99, depths.p99)] {
                prop_assert_eq!(found, Some(sorted[(q * sorted.len() as f64).ceil() as usize - 1]));
            }
        }
        let found = result!(report, WakeupCorrelation);
        prop_assert_eq!(found.matched, machine.matched);
        let reasons = [found.was_running, found.was_runnable, found.run_not_seen, found.lost, found.ended, found.still_waiting];
        prop_assert_eq!(found.wakeups, found.matched + reasons.iter().sum::<u64>());
        let found = result!(report, WakeupLatency);
        prop_assert_eq!(found.latency.count, machine.matched);
    }
}

#[test]
fn the_fixtures_give_what_other_programs_say() {
    for (name, oracle) in [("ftrace-all.pftrace", "ftrace-all.txt"), ("wprof.pb.gz", "wprof.txt")] {
        let report = all(fixture(name), Options { limit: usize::MAX, ..Options::default() });
        let oracle = Oracle::read(oracle);
        let (mut run, mut wait, mut latency) = (Sums::new(), Sums::new(), Sums::new());
        for line in &result!(report, TaskStates).threads {
            let (tid, states) = (line.thread.tid, &line.states);
            let add = |sums: &mut Sums, ns, count| {
                let sum = sums.entry(tid).or_default();
                *sum = (sum.0 + ns, sum.1 + count);
            };
            add(&mut run, states.running.total_ns, states.running.count);
            add(&mut latency, states.latency.total_ns, states.latency.count);
            add(&mut wait, states.runnable_ns, states.latency.count + states.resumed.count);
        }
        for sums in [&mut run, &mut wait, &mut latency] {
            sums.retain(|_, (_, count)| *count > 0);
        }
        assert_eq!(run, oracle.run, "{name}");
        let cpus = result!(report, CpuUtilization).cpus.iter().map(|line| (line.cpu, line.idle_ns));
        assert!(cpus.eq(oracle.idle.iter().map(|(cpu, (ns, _))| (*cpu, *ns))), "{name}");
        let (expected, found) =
            if name.starts_with("wprof") { (&oracle.latency, latency) } else { (&oracle.wait, wait) };
        assert_eq!(&found, expected, "{name}");
        let latencies = result!(report, WakeupLatency);
        let of_threads: u64 = latencies.threads.iter().map(|line| line.latency.total_ns).sum();
        assert_eq!(latencies.latency.total_ns, of_threads);
        let softirqs: u64 = result!(report, IrqAnalysis).lines.iter().map(|line| line.handled.count).sum();
        let event = if name.starts_with("wprof") { "softirq" } else { "softirq_exit" };
        assert_eq!(softirqs, oracle.events[event], "{name}");
    }
}
