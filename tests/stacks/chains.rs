//! Recordings with several events that have call chains, made here field by field.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use super::{json, said, SCXPROF};

/// IP, TID, TIME, CALLCHAIN, CPU, PERIOD, RAW, IDENTIFIER.
const CHAIN: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 16;
const RAW: u64 = 1 << 10;
const SAMPLE_ID_ALL: u64 = 1 << 18;
/// The id of the tracepoint in its format.
const SWITCH: u64 = 316;

struct Event {
    kind: u32,
    config: u64,
    name: &'static str,
    raw: bool,
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn text(text: &str, size: usize) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(size, 0);
    bytes
}

/// A sample of an event, in the kernel, with the CPU mode `misc`.
fn sample(number: u64, event: &Event, misc: u16, time: u64) -> Vec<u8> {
    let mut body = words(&[100 + number, 0xffff_ffff_8100_0000, 7 | 8 << 32, time, 0, 1]);
    body.extend(words(&[2, 0xffff_ffff_ffff_ff80, 0xffff_ffff_8100_0000 + time]));
    if event.raw {
        // common_*, prev_comm, prev_pid, prev_prio, prev_state, next_comm, next_pid, next_prio, and the rest of a word.
        let fields = [
            words(&[SWITCH | 8 << 32]),
            text("a", 16),
            words(&[8 | 120 << 32, 1]),
            text("b", 16),
            words(&[9 | 120 << 32]),
            vec![0; 4],
        ]
        .concat();
        body.extend((fields.len() as u32).to_le_bytes());
        body.extend(fields);
    }
    let size = 8 + body.len() as u16;
    [&9u32.to_le_bytes()[..], &misc.to_le_bytes(), &size.to_le_bytes(), &body].concat()
}

/// What describes the tracepoint.
fn tracing() -> Vec<u8> {
    let mut format = format!("name: sched_switch\nID: {SWITCH}\nformat:\n");
    let fields = [
        ("unsigned short common_type", 0, 2, 0),
        ("unsigned char common_flags", 2, 1, 0),
        ("unsigned char common_preempt_count", 3, 1, 0),
        ("int common_pid", 4, 4, 1),
        ("char prev_comm[16]", 8, 16, 0),
        ("pid_t prev_pid", 24, 4, 1),
        ("int prev_prio", 28, 4, 1),
        ("long prev_state", 32, 8, 1),
        ("char next_comm[16]", 40, 16, 0),
        ("pid_t next_pid", 56, 4, 1),
        ("int next_prio", 60, 4, 1),
    ];
    for (field, offset, size, signed) in fields {
        writeln!(format, "\tfield:{field};\toffset:{offset};\tsize:{size};\tsigned:{signed};").unwrap();
    }
    let mut bytes = b"\x17\x08\x44tracing0.6\0\0\x08\0\x10\0\0".to_vec();
    for name in ["header_page", "header_event"] {
        bytes.extend([name.as_bytes(), b"\0", &words(&[0])].concat());
    }
    bytes.extend([&0u32.to_le_bytes()[..], &1u32.to_le_bytes(), b"sched\0", &1u32.to_le_bytes()].concat());
    bytes.extend([&words(&[format.len() as u64])[..], format.as_bytes(), &[0; 16]].concat());
    bytes
}

/// A file of these events; each sample is of the event with this number, in this CPU mode.
fn file(events: &[Event], samples: &[(usize, u16)]) -> Vec<u8> {
    let attr = |event: &Event| {
        let sample_type = CHAIN | if event.raw { RAW } else { 0 };
        let head = words(&[u64::from(event.kind) | 104 << 32, event.config, 1, sample_type, 0, SAMPLE_ID_ALL]);
        let mut attr = head;
        attr.resize(104, 0);
        attr
    };
    let count = events.len() as u64;
    let ids: Vec<u64> = (0..count).map(|number| 100 + number).collect();
    let attrs_at = 104 + 8 * count;
    let mut attrs = Vec::new();
    for (number, event) in events.iter().enumerate() {
        attrs.extend([attr(event), words(&[104 + 8 * number as u64, 8])].concat());
    }
    let data: Vec<u8> = samples
        .iter()
        .enumerate()
        .flat_map(|(at, &(number, misc))| sample(number as u64, &events[number], misc, 1000 + 16 * at as u64))
        .collect();
    let mut desc = words(&[count | 104 << 32]);
    for (number, event) in events.iter().enumerate() {
        desc.extend(attr(event));
        desc.extend(words(&[1 | 64 << 32]));
        desc.extend([text(event.name, 64), words(&[100 + number as u64])].concat());
    }
    let sections = [tracing(), desc];
    let data_at = attrs_at + attrs.len() as u64;
    let header = [104, 120, attrs_at, attrs.len() as u64, data_at, data.len() as u64, 0, 0, 1 << 1 | 1 << 12, 0, 0, 0];
    let mut bytes = [b"PERFILE2".to_vec(), words(&header), words(&ids), attrs, data].concat();
    let mut at = bytes.len() as u64 + 32;
    for section in &sections {
        bytes.extend(words(&[at, section.len() as u64]));
        at += section.len() as u64;
    }
    [bytes, sections.concat()].concat()
}

fn run(path: &Path, args: &[&str]) -> Output {
    Command::new(SCXPROF).arg(args[0]).arg("-f").arg(path).args(&args[1..]).output().unwrap()
}

#[test]
fn scheduling_events_have_call_stacks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    for raw in [true, false] {
        let event = Event { kind: 2, config: SWITCH, name: "sched:sched_switch", raw };
        std::fs::write(&path, file(&[event], &[(0, 1); 5])).unwrap();
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
    let event = Event { kind: 2, config: SWITCH, name: "sched:sched_switch", raw: true };
    let mut bytes = file(&[event], &[(0, 1); 5]);
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
    let event = |config, name| Event { kind: 0, config, name, raw: false };
    let events = [
        event(10 << 32, "cpu_atom/cycles/P"),
        event(4 << 32, "cpu_core/cycles/P"),
        event(4 << 32 | 1, "cpu_core/instructions/"),
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
    let event = Event { kind: 1, config: 0, name: "cpu-clock", raw: false };
    std::fs::write(&path, file(&[event], &[(0, 1), (0, 4), (0, 5), (0, 2), (0, 5)])).unwrap();
    let output = run(&path, &["stacks", "--json"]);
    assert_eq!(json(&output)["samples"], 2, "{}", said(&output));
    assert!(said(&output).contains("note: 3 samples of KVM guests are left out"), "{}", said(&output));
}
