//! Recordings with several events that have call chains, made here field by field.

use std::path::Path;
use std::process::{Command, Output};

use super::{json, said, SCXPROF};
use crate::support::made::{self, record, switch, words, Event, ID, SWITCH};

/// IP, TID, TIME, CALLCHAIN, CPU, PERIOD, IDENTIFIER.
const CHAIN: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 16;
const RAW: u64 = 1 << 10;

/// An event with call chains.
fn event(kind: u32, config: u64, name: &'static str) -> Event {
    Event { kind, config, name, sample_type: CHAIN }
}

/// The scheduler's, with what it says or without.
fn switches(raw: bool) -> Event {
    let event = event(2, SWITCH, "sched:sched_switch");
    Event { sample_type: CHAIN | if raw { RAW } else { 0 }, ..event }
}

/// A sample of an event, in the kernel, with the CPU mode `misc`.
fn sample(number: u64, event: &Event, misc: u16, time: u64) -> Vec<u8> {
    let mut body = words(&[ID + number, 0xffff_ffff_8100_0000, 7 | 8 << 32, time, 0, 1]);
    body.extend(words(&[2, 0xffff_ffff_ffff_ff80, 0xffff_ffff_8100_0000 + time]));
    if event.sample_type & RAW != 0 {
        body.extend(switch(("a", 8), 1, ("b", 9)));
    }
    record(9, misc, &body)
}

/// A file of these events; each sample is of the event with this number, in this CPU mode.
fn file(events: &[Event], samples: &[(usize, u16)]) -> Vec<u8> {
    let of = |(at, &(number, misc))| sample(number as u64, &events[number], misc, 1000 + 16 * at as u64);
    made::file(events, &samples.iter().enumerate().flat_map(of).collect::<Vec<u8>>())
}

fn run(path: &Path, args: &[&str]) -> Output {
    Command::new(SCXPROF).arg(args[0]).arg("-f").arg(path).args(&args[1..]).output().unwrap()
}

#[test]
fn scheduling_events_have_call_stacks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    for raw in [true, false] {
        std::fs::write(&path, file(&[switches(raw)], &[(0, 1); 5])).unwrap();
        let output = run(&path, &["stacks", "--json"]);
        assert!(output.status.success(), "{raw}: {}", said(&output));
        let found = json(&output);
        assert_eq!((&found["samples"], &found["stack_count"]), (&5.into(), &5.into()), "{raw}: {}", said(&output));
        assert_eq!((&found["event"], &found["lost"]), (&"sched:sched_switch".into(), &0.into()));
        // What has only stacks is no damaged scheduling event.
        let output = run(&path, &["sched"]);
        assert_ne!(output.status.code(), Some(4), "{raw}: {}", said(&output));
        assert!(!said(&output).contains("contradicts their size"), "{raw}: {}", said(&output));
        // Each is a switch from the same thread to another, and none is missing: others were not recorded.
        let table = String::from_utf8_lossy(&output.stdout);
        assert_eq!(table.contains("has only the switches from some threads"), raw, "{table}");
        assert!(!table.contains("events were lost"), "{table}");
    }
}

#[test]
fn a_scheduling_event_of_a_cpu_that_no_kernel_has_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    let mut bytes = file(&[switches(true)], &[(0, 1); 5]);
    std::fs::write(&path, &bytes).unwrap();
    let said_of = || said(&run(&path, &["sched"]));
    assert!(!said_of().contains("1 scheduling events"), "{}", said_of());
    // The CPU of the last one is after its time.
    let last = words(&[7 | 8 << 32, 1000 + 16 * 4, 0]);
    let at = bytes.windows(last.len()).position(|bytes| bytes == last).unwrap() + 16;
    bytes[at..at + 4].copy_from_slice(&70_000u32.to_le_bytes());
    std::fs::write(&path, &bytes).unwrap();
    let output = run(&path, &["sched"]);
    assert!(output.status.code() == Some(4) && said(&output).contains("20.0 %"), "{}", said(&output));
}

#[test]
fn events_of_both_kinds_of_cores_are_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    let events = [
        event(0, 10 << 32, "cpu_atom/cycles/P"),
        event(0, 4 << 32, "cpu_core/cycles/P"),
        event(0, 4 << 32 | 1, "cpu_core/instructions/"),
    ];
    std::fs::write(&path, file(&events, &[(0, 1), (1, 1), (2, 1), (1, 1), (2, 1), (1, 1)])).unwrap();
    for (args, name, samples) in [
        (&[][..], "cycles:P", 4),
        (&["-e", "cycles"], "cycles:P", 4),
        (&["-e", "cpu_atom/cycles/P"], "cpu_atom/cycles/P", 1),
        (&["-e", "cpu_core/instructions/"], "cpu_core/instructions/", 2),
    ] {
        let output = run(&path, &[&["stacks", "--json"], args].concat());
        let found = json(&output);
        let counts = (&found["event"], &found["samples"], &found["stack_count"]);
        assert_eq!(counts, (&name.into(), &samples.into(), &samples.into()), "{args:?}: {}", said(&output));
        let note = "note: 2 samples of cpu_core/instructions/ are left out: -e selects another event";
        assert_eq!(said(&output).contains(note), args.is_empty(), "{args:?}: {}", said(&output));
    }
    let output = run(&path, &["stacks", "-e", "cache-misses"]);
    let expected = "has no call chains of cache-misses, but of cycles:P, cpu_core/instructions/; -e selects one";
    assert!(output.status.code() == Some(1) && said(&output).contains(expected), "{}", said(&output));
}

#[test]
fn samples_of_guests_are_not_those_of_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    std::fs::write(&path, file(&[event(1, 0, "cpu-clock")], &[(0, 1), (0, 4), (0, 5), (0, 2), (0, 5)])).unwrap();
    let output = run(&path, &["stacks", "--json"]);
    assert_eq!(json(&output)["samples"], 2, "{}", said(&output));
    assert!(said(&output).contains("note: 3 samples of KVM guests are left out"), "{}", said(&output));
}
