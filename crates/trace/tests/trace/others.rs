//! What the fixtures do not have: losses, other recorders, older ones.

use scxprof_base::sample::sched::{SchedEvent, SchedTask, SchedWhat, TaskState, WakenBy};
use scxprof_base::sample::Comm;
use scxprof_trace::{Edge, Source, TraceEvent, TraceWhat};

use super::encode::{
    at, bundle, event, file, int_arg, packet, slice, switch, text_arg, thread_track, waking, wprof_tables, Message,
};
use super::files::*;

const UNKNOWN: u32 = SchedEvent::UNKNOWN;

fn task(tid: u32) -> SchedTask {
    SchedTask { tid, prio: 0, comm: Comm::from(&*format!("t{tid}")) }
}

/// A compact bundle: times, next threads, and wakeups of thread 7 at times.
fn compact(cpu: u64, lost: bool, times: &[u64], next: &[u64], wakings: &[u64]) -> Message {
    let zeros = vec![0; next.len()];
    let arrays = Message::new().packed(1, times).packed(2, &zeros).packed(3, next).packed(4, &zeros).packed(6, &zeros);
    let arrays = arrays.text(5, "x").packed(7, wakings).packed(8, &vec![7; wakings.len()]);
    packet(1).message(1, &Message::new().int(1, cpu).int(3, u64::from(lost)).message(4, &arrays))
}

#[test]
fn compact_events_get_their_previous_thread_and_their_waker_over_bundles() {
    let bytes = file(&[
        // A later bundle of the CPU stands first in the file.
        compact(0, false, &[300, 10], &[9, 0], &[305]),
        compact(0, false, &[100, 50], &[8, 9], &[90, 30]),
        // What is lost before it is not known any more.
        compact(0, true, &[400, 10], &[8, 9], &[395]),
    ]);
    let read = read(bytes);
    let found: Vec<(u64, u32, u32)> = read
        .sched
        .iter()
        .map(|event| match event.what {
            SchedWhat::Switch { prev, next, .. } => {
                assert_eq!(event.tid, prev.tid);
                (event.time, prev.tid, next.tid)
            }
            SchedWhat::Waking { task, .. } => (event.time, event.tid, task.tid),
            SchedWhat::Lost => (event.time, UNKNOWN, UNKNOWN),
            _ => panic!("{event:?}"),
        })
        .collect();
    let expected = [
        (90, UNKNOWN, 7),
        (100, UNKNOWN, 8),
        (120, 8, 7),
        (150, 8, 9),
        (300, 9, 9),
        (305, 9, 7),
        (310, 9, 0),
        (395, UNKNOWN, UNKNOWN),
        (395, UNKNOWN, 7),
        (400, UNKNOWN, 8),
        (410, 8, 9),
    ];
    assert_eq!(found, expected);
    assert_eq!(read.info.lost.bundles, 1);
    // Arrays of different lengths are left out and counted.
    let uneven = compact(0, false, &[500, 10, 10], &[9, 0], &[]);
    let read = super::files::read(file(&[compact(0, false, &[100], &[8], &[]), uneven]));
    assert_eq!((read.sched.len(), read.info.lost.uneven), (1, 1));
}

#[test]
fn a_loss_forgets_what_ran() {
    let bytes = file(&[
        bundle(1, false, &[switch(10, 0, 0, 5), waking(12, 5, 6, 2)]),
        bundle(1, true, &[switch(100, 5, 1, 0)]),
        bundle(2, false, &[switch(20, 0, 0, 6), switch(30, 6, 256, 0)]),
    ]);
    let read = read(bytes);
    let whats: Vec<(u64, SchedWhat)> = read.sched.iter().map(|event| (event.time, event.what)).collect();
    let switch = |prev, state, next| SchedWhat::Switch { prev: task(prev), state, next: task(next) };
    let expected = [
        (10, switch(0, TaskState::Runnable, 5)),
        (12, SchedWhat::Waking { task: task(6), target_cpu: 2, by: WakenBy::Thread }),
        (20, switch(0, TaskState::Runnable, 6)),
        (30, switch(6, TaskState::Preempted, 0)),
        (100, SchedWhat::Lost),
        (100, switch(5, TaskState::Sleeping, 0)),
    ];
    assert_eq!(whats, expected);
    assert_eq!((read.sched[1].tid, read.sched[1].cpu), (5, 1));
}

#[test]
fn events_have_their_types() {
    let n = Message::new;
    let events = [
        (45, n().int(1, 8).int(2, 100).int(3, 8).int(4, 4096).text(5, "WS")),
        (125, n().int(1, 8).int(2, 100).int(3, 8).text(5, "WS").int(7, (-5i64) as u64)),
        (361, n().int(1, 1500).text(2, "eth0")),
        (307, n().int(3, 2).int(5, 77)),
        (13, n().int(1, 0xffff_ffff).int(2, 3)),
        (11, n().int(1, 2_000_000).int(2, 3)),
        (113, n().text(1, "thaw").int(2, 1).int(3, 1)),
        (44, n().int(1, 8).int(2, 9).int(3, (-5i64) as u64)),
        (9999, n().int(1, 8)),
        (327, n().text(1, "sched_ext_event").message(2, &n().text(1, "name").text(3, "x"))),
        (65540, n().int(1, 2)),
        (65541, n().int(1, 236)),
        (65542, n().int(1, 236)),
    ];
    let described = |id: u64, name: &str, group: &str| {
        let field = n().text(1, "cpu").int(3, 1);
        n().int(1, id).message(2, &n().text(1, name).message(2, &field)).text(3, group)
    };
    let descriptors = [
        described(65540, "ipi_send_cpu", "ipi"),
        described(65541, "reschedule_entry", "irq_vectors"),
        described(65542, "sched_ext_dump", "sched_ext"),
    ];
    let inner = descriptors.iter().fold(n().int(1, 2), |bundle, it| bundle.message(11, it));
    let times = 10..;
    let inner = times
        .zip(&events)
        .fold(inner, |bundle, (time, (field, inner))| bundle.message(2, &event(time, 42, *field, inner)));
    let read = read(file(&[packet(1).message(1, &inner)]));
    assert!(read.others.iter().all(|event| (event.cpu, event.tid) == (2, 42)));
    let names = read.trace.names();
    let text = |name| String::from_utf8_lossy(names.text(name)).into_owned();
    let found: Vec<String> = read
        .others
        .iter()
        .map(|event| match &event.what {
            TraceWhat::Net { device, .. } => format!("net {}", text(*device)),
            TraceWhat::Suspend { action, value, is_begin } => format!("{} {value} {is_begin}", text(*action)),
            TraceWhat::Other { event } => text(*event),
            TraceWhat::IpiEntry { kind, .. } => format!("entry {}", text(*kind)),
            TraceWhat::IpiSend { target, .. } => format!("to {target:?}"),
            what => format!("{what:?}"),
        })
        .collect();
    let expected = [
        "Block { step: Issue, dev: 8, sector: 100, bytes: 4096, write: true, error: 0 }",
        "Block { step: Complete, dev: 8, sector: 100, bytes: 4096, write: true, error: -5 }",
        "net eth0",
        "Page { is_alloc: true, order: 2, pfn: 77 }",
        "CpuIdle { cpu: 3, state: None }",
        "CpuFrequency { cpu: 3, khz: 2000000 }",
        "thaw 1 true",
        "SyncExit { dev: 8, inode: 9, result: -5 }",
        "ftrace field 9999",
        "sched_ext_event",
        "to Some(2)",
        "entry reschedule",
        "sched_ext:sched_ext_dump",
    ];
    assert_eq!(found, expected);
    for unknown in ["ftrace field 9999", "sched_ext_event", "sched_ext:sched_ext_dump"] {
        assert!(read.info.unknown.iter().any(|count| count.name == unknown && count.count == 1), "{unknown}");
    }
}

#[test]
fn annotations_of_older_wprofs_name_the_woken_thread() {
    let cpu = |cpu| int_arg("cpu", cpu);
    let bytes = file(&[
        wprof_tables(),
        thread_track(1, 100, 100, "a"),
        thread_track(2, 100, 101, "b"),
        thread_track(3, 2_000_000_000, 4, "swapper/3"),
        at(10, &slice(1, 1, "ONCPU", "a"), &[cpu(3)]),
        at(20, &slice(3, 1, "WAKER", "WAKER"), &[cpu(3), int_arg("wakee_pid", 100), int_arg("wakee_tid", 101)]),
        // Its thread is known by its name alone.
        at(25, &slice(3, 1, "WAKER", "WAKER"), &[cpu(3), text_arg("wakee", "b")]),
        at(26, &slice(3, 1, "WAKER", "WAKER"), &[cpu(3), text_arg("wakee", "c")]),
        at(30, &slice(2, 1, "ONCPU", ""), &[cpu(3), text_arg("offcpu_reason", "preempted")]),
        at(30, &slice(1, 3, "ONCPU", "swapper/3"), &[cpu(3)]),
        // No thread gets the CPU: what follows is lost.
        at(40, &slice(2, 3, "ONCPU", ""), &[cpu(3)]),
        // The beginning of an interrupt is written with its end.
        at(15, &slice(1, 1, "SOFTIRQ", "SOFTIRQ:net_rx"), &[cpu(3)]),
        at(16, &slice(2, 1, "SOFTIRQ", ""), &[]),
    ]);
    let read = read(bytes);
    assert_eq!(read.info.source, Source::Wprof);
    let a = SchedTask { tid: 100, prio: 0, comm: Comm::from("a") };
    let idle = SchedTask { tid: 0, prio: 0, comm: Comm::from("swapper/3") };
    let b = SchedTask { tid: 101, prio: 0, comm: Comm::default() };
    let nobody = SchedTask { tid: UNKNOWN, ..SchedTask::default() };
    let woken = |task| SchedWhat::Waking { task, target_cpu: 3, by: WakenBy::Thread };
    let expected = [
        (10, UNKNOWN, SchedWhat::Switch { prev: nobody, state: TaskState::Runnable, next: a }),
        (15, 100, SchedWhat::SoftirqEntry { vec: 3 }),
        (16, 100, SchedWhat::SoftirqExit { vec: 3 }),
        (20, 100, woken(b)),
        (25, 100, woken(SchedTask { comm: Comm::from("b"), ..b })),
        (30, 100, SchedWhat::Switch { prev: a, state: TaskState::Preempted, next: idle }),
        (40, 0, SchedWhat::Switch { prev: idle, state: TaskState::Sleeping, next: nobody }),
        (40, UNKNOWN, SchedWhat::Lost),
    ];
    let found: Vec<_> = read.sched.iter().map(|event| (event.time, event.tid, event.what)).collect();
    assert_eq!(found, expected);
    assert!(read.sched.iter().all(|event| event.cpu == 3));
    assert_eq!((read.info.lost.unnamed_wakeups, read.info.lost.half_switches), (1, 1));
}

#[test]
fn pmu_deltas_delays_and_queues_of_wprof_are_typed() {
    let cpu = |cpu| int_arg("cpu", cpu);
    let double = |name: &str, value| Message::new().text(10, name).double(5, value);
    let bytes = file(&[
        wprof_tables(),
        thread_track(1, 100, 100, "a"),
        at(
            10,
            &slice(1, 1, "ONCPU", "a"),
            &[
                cpu(0),
                double("waking_delay_us", 1.5),
                text_arg("waking_reason", "woken"),
                double("compound_delay_us", 2.25),
                int_arg("compound_chain_len", 3),
                int_arg("scx_dsq_id", 2),
                int_arg("scx_layer_id", 1),
            ],
        ),
        at(20, &slice(2, 1, "ONCPU", ""), &[cpu(0), double("pmu:instructions", 1234.0)]),
        at(5, &slice(1, 1, "SCX_DSQ", "DSQ:insert_0x2a"), &[cpu(0)]),
        at(10, &slice(2, 1, "SCX_DSQ", ""), &[int_arg("scx_layer_id", 4)]),
    ]);
    let read = read(bytes);
    let names = read.trace.names();
    let mut found = Vec::new();
    for event in &read.others {
        assert_eq!((event.cpu, event.tid, event.pid), (0, 100, 100));
        found.push(match event.what {
            TraceWhat::Waited { delay, reason, compound, chain, dsq, layer } => {
                assert_eq!(names.text(reason), b"woken");
                assert_eq!((delay, compound, chain), (Some(1500), Some(2250), Some(3)));
                assert_eq!((dsq, layer), (Some(2), Some(1)));
                "waited".to_owned()
            }
            TraceWhat::Pmu { counter, delta } => format!("{} {delta}", String::from_utf8_lossy(names.text(counter))),
            TraceWhat::Dsq { is_begin, dsq, layer, .. } => format!("{is_begin} {dsq:?} {layer:?}"),
            _ => panic!("{event:?}"),
        });
    }
    found.sort();
    assert_eq!(found, ["false Some(42) Some(4)", "pmu:instructions 1234", "true Some(42) None", "waited"]);
}

#[test]
fn systing_scxtop_and_chrome_are_told() {
    // systing: bundles without a sequence; wakeups stand on CPU 0 whoever woke.
    let arrays =
        Message::new().packed(1, &[10, 10]).packed(2, &[0, 1]).packed(3, &[5, 0]).packed(7, &[15]).packed(8, &[6]);
    let bare = Message::new().message(1, &Message::new().int(1, 0).message(4, &arrays));
    let found = read(file(&[bare]));
    assert_eq!(found.info.source, Source::Systing);
    let woken = found.sched.iter().find(|event| matches!(event.what, SchedWhat::Waking { .. })).unwrap();
    assert_eq!(woken.tid, UNKNOWN);
    // scxtop: counters with their own times.
    let counter = Message::new().int(1, 9).text(10, "DSQ 2 nr_queued").message(8, &Message::new());
    let value = Message::new().int(9, 4).int(11, 9).int(16, 3).int(30, 17);
    let found = read(file(&[packet(1).message(60, &counter), packet(1).message(11, &value)]));
    assert_eq!((found.info.source, found.others.len()), (Source::Scxtop, 1));
    let TraceEvent { time, what, .. } = &found.others[0];
    assert_eq!((*time, what), (3000, &TraceWhat::Counter { track: 0, value: 17.0 }));
    let thread = Message::new().int(1, 10).int(2, 11).text(5, "main");
    let found = read(file(&[packet(1).message(44, &thread)]));
    assert_eq!((found.info.source, found.info.threads), (Source::Chrome, 1));
}

#[test]
fn names_that_were_lost_are_not_guessed() {
    let interned = |name: &str| Message::new().message(2, &Message::new().int(1, 1).text(2, name));
    let event =
        |time: u64| packet(7).int(8, time).int(13, 2).message(11, &Message::new().int(9, 3).int(11, 1).int(10, 1));
    let bytes = file(&[
        packet(7).int(13, 1).message(12, &interned("one")),
        event(10),
        event(20).int(42, 1),
        event(30),
        packet(7).int(13, 1).message(12, &interned("two")),
        event(25),
    ]);
    let read = read(bytes);
    let names: Vec<&[u8]> = read
        .others
        .iter()
        .map(|event| match event.what {
            TraceWhat::Slice { name, .. } => read.trace.names().text(name),
            _ => panic!("{event:?}"),
        })
        .collect();
    assert_eq!(names, [b"one", b"two"]);
    assert_eq!((read.info.lost.sequences, read.info.lost.packets), (1, 2));
}

#[test]
fn late_packets_come_in_order_whatever_the_order_of_the_file() {
    // Slices whose beginnings are written at their end, long after: more than fit into a chunk.
    let mut packets = vec![thread_track(1, 5, 5, "a")];
    for number in 0..20_000u64 {
        let time = 1_000_000 + number * 10;
        packets.push(at(time - number % 1000 * 900, &slice(1, 1, "x", &format!("s{}", number % 7)), &[]));
        packets.push(at(time, &slice(2, 1, "x", ""), &[]));
    }
    let read = read(file(&packets));
    assert_eq!((read.others.len(), read.info.lost.late), (40_000, 0));
    let mut times: Vec<u64> = read.others.iter().map(|event| event.time).collect();
    times.dedup();
    assert!(times.is_sorted());
}

#[test]
fn the_textproto_fixtures_are_read() {
    // Slices that begin, instants and counters, as trace_processor has them.
    for (name, begins, instants, counters) in [
        ("flow_events_track_event.pftrace", 8, 3, 0),
        ("track_event_callstacks.pftrace", 3, 0, 0),
        // Thread times of old fields (it makes four more values of them) are not read.
        ("track_event_counters.pftrace", 4, 3, 14),
        ("track_event_merged_debug_annotations.pftrace", 1, 0, 0),
        ("track_event_name_resolution.pftrace", 0, 3, 0),
        ("track_event_tracks.pftrace", 1, 14, 0),
    ] {
        let read = read(fixture(&format!("textproto/{name}")));
        let found = |is: fn(&TraceWhat) -> bool| read.others.iter().filter(|event| is(&event.what)).count();
        let counts = (
            found(|what| matches!(what, TraceWhat::Slice { edge: Edge::Begin, .. })),
            found(|what| matches!(what, TraceWhat::Slice { edge: Edge::Instant, .. })),
            found(|what| matches!(what, TraceWhat::Counter { .. })),
        );
        assert_eq!(counts, (begins, instants, counters), "{name}");
        assert!(!read.info.lost.any(), "{name}: {:?}", read.info.lost);
    }
}

#[test]
fn counters_of_differences_are_summed() {
    let read = read(fixture("textproto/track_event_counters.pftrace"));
    let mut values: std::collections::BTreeMap<u32, Vec<f64>> = std::collections::BTreeMap::new();
    for event in &read.others {
        if let TraceWhat::Counter { track, value } = event.what {
            values.entry(track).or_default().push(value);
        }
    }
    // As trace_processor has them: in units of 1000, and from 0 again when the state of the sequence is cleared.
    let thread_time = [1000.0, 1010.0, 2000.0, 2010.0, 2020.0, 2030.0, 2040.0].map(|value| value * 1000.0);
    let doubles: Vec<f64> = ["3.1415926", "0.5", "2.71828"].iter().map(|text| text.parse().unwrap()).collect();
    let expected = [&thread_time[..], &[1024.0, 2048.0, 1024.0, 4096.0], &doubles];
    assert_eq!(values.into_values().collect::<Vec<_>>(), expected);
}

#[test]
fn compressed_and_concatenated_files_have_the_same_events() {
    use flate2::write::{GzEncoder, ZlibEncoder};
    use flate2::Compression;
    use std::io::Write;

    let plain = fixture("ftrace-compact.pftrace.gz");
    let whole = read(plain.clone());
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&plain).unwrap();
    // As perfetto writes it: some packets, then packets of compressed ones.
    let mut packets = Vec::new();
    let mut rest = plain.as_slice();
    while !rest.is_empty() {
        let (len, after) = scxprof_trace::wire::varint(&rest[1..]).unwrap();
        let end = rest.len() - after.len() + len as usize;
        packets.push(&rest[..end]);
        rest = &rest[end..];
    }
    let mut compressed: Vec<u8> = packets[..3].concat();
    for part in packets[3..].chunks(7) {
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
        zlib.write_all(&part.concat()).unwrap();
        compressed.extend(file(&[Message::new().bytes(50, &zlib.finish().unwrap())]));
    }
    for bytes in [gzip.finish().unwrap(), compressed] {
        let read = read(bytes);
        assert_eq!((&read.sched, &read.others), (&whole.sched, &whole.others));
        assert_eq!((&read.info.events, &read.info.damage), (&whole.info.events, &Vec::new()));
    }
    let twice = read([&plain[..], &plain].concat());
    for (once, twice) in whole.info.events.iter().zip(&twice.info.events) {
        assert_eq!((&once.name, 2 * once.count), (&twice.name, twice.count));
    }
}

/// What a kernel's release makes of the state of thread 1.
fn state_of(release: &str, state: u64) -> TaskState {
    let system = packet(1).message(45, &Message::new().message(1, &Message::new().text(3, release)));
    // The release may come after the events. Compact events say the same.
    let plain = bundle(0, false, &[switch(10, 1, state, 2)]);
    let zeros = [0, 0];
    let arrays = Message::new().packed(1, &[5, 5]).packed(2, &[0, state]).packed(3, &[1, 2]).text(5, "x");
    let arrays = arrays.packed(4, &zeros).packed(6, &zeros);
    let compact = packet(1).message(1, &Message::new().int(1, 0).message(4, &arrays));
    let states = [plain, compact].map(|events| {
        let read = read(file(&[events, system.clone()]));
        let Some(SchedWhat::Switch { state, .. }) = read.sched.last().map(|event| event.what) else { panic!() };
        state
    });
    assert_eq!(states[0], states[1], "{release} {state:#x}");
    states[0]
}

/// Compact events: thread 1 is woken on this CPU.
fn woken_on(cpu: u64) -> Message {
    let arrays = Message::new().text(5, "x").packed(7, &[20]).packed(8, &[1]).packed(9, &[cpu]);
    packet(1).message(1, &Message::new().int(1, 0).message(4, &arrays))
}

#[test]
fn states_are_those_of_the_recorded_kernel() {
    assert_eq!(state_of("4.9.0-12-amd64", 0x1000), TaskState::Preempted);
    assert_eq!(state_of("4.4.302", 0x800), TaskState::Preempted);
    assert_eq!([state_of("4.9.0", 0x40), state_of("4.9.0", 0x402)], [TaskState::Dead, TaskState::Sleeping]);
    assert_eq!([state_of("6.1.0", 0x40), state_of("6.1.0", 0x100)], [TaskState::Sleeping, TaskState::Preempted]);
}

#[test]
fn events_of_a_cpu_or_thread_that_no_kernel_has_are_counted() {
    let good = bundle(0, false, &[switch(10, 1, 1, 2)]);
    for (what, bad) in [
        ("CPU", bundle(65_536, false, &[switch(20, 3, 1, 4)])),
        ("CPU of 33 bits", bundle((1 << 32) + 3, false, &[switch(20, 3, 1, 4)])),
        ("thread", bundle(0, false, &[switch(20, 2, 1, (1 << 32) + 1)])),
        ("woken thread", bundle(0, false, &[waking(20, 2, (1 << 32) + 1, 0)])),
        ("target", bundle(0, false, &[waking(20, 2, 1, (1 << 32) + 1)])),
        ("compact", compact(70_000, false, &[20], &[4], &[])),
        ("compact thread", compact(0, false, &[20], &[(1 << 32) + 1], &[])),
        ("compact target", woken_on(70_000)),
    ] {
        let read = read(file(&[good.clone(), bad]));
        assert_eq!(read.sched.len(), 1, "{what}: {:?}", read.sched);
        assert!(
            read.info.damage.iter().any(|text| text.starts_with("1 events name a CPU")),
            "{what}: {:?}",
            read.info.damage
        );
    }
}

#[test]
fn a_process_has_the_last_name_of_its_main_thread() {
    let process = |pid, command: &str| Message::new().int(1, pid).text(3, command);
    let tree = [
        process(1, "parent"),
        process(2, "/opt/chrome --type=x --dir=/a/y"),
        process(30, "kworker/0:1-events"),
        // Its main thread's name, as it says.
        process(31, "./a b").int(9, 1),
        process((1 << 32) + 32, "of no process"),
    ];
    let tree = tree.iter().fold(Message::new(), |tree, process| tree.message(1, process));
    let rename = event(20, 1, 236, &Message::new().int(1, 1).text(3, "child"));
    let read = read(file(&[packet(1).message(2, &tree), bundle(0, false, &[switch(10, 0, 0, 1), rename])]));
    let name = |tid| read.trace.threads().get(tid).unwrap().comm.to_string();
    assert_eq!([name(1), name(2), name(30), name(31)], ["child", "chrome", "kworker/0:1-eve", "./a b"]);
    assert!(read.trace.threads().get(32).is_none());
}

#[test]
fn ids_of_tracks_sequences_and_clocks_are_not_cut() {
    const BEYOND: u64 = (1 << 32) + 5;
    let good = bundle(0, false, &[switch(10, 5, 1, 6)]);
    let slice = |packet: Message| packet.int(8, 20).message(11, &slice(3, 1, "x", "y"));
    for (what, bad, events) in [
        ("thread", thread_track(1, 5, BEYOND, "wrong"), 0),
        ("process", thread_track(1, BEYOND, 5, "wrong"), 0),
        ("sequence", slice(Message::new().int(10, BEYOND)), 0),
        ("clock", slice(packet(7).int(58, BEYOND)), 0),
        ("none", slice(packet(7)), 1),
    ] {
        let read = read(file(&[thread_track(2, 4, 5, "right"), bad, good.clone()]));
        assert_eq!(read.others.len(), events, "{what}");
        let thread = read.trace.threads().get(5).unwrap();
        assert_eq!((thread.pid, thread.comm.to_string().as_str()), (4, "t5"), "{what}");
        let is_said = read.info.damage.iter().any(|text| text.starts_with("1 packets or descriptions name"));
        assert_eq!(is_said, what != "none", "{what}: {:?}", read.info.damage);
    }
}
