//! Recordings of processes in cgroups, made here field by field.

use std::fmt::Write as _;

/// TID, TIME, CPU, RAW, IDENTIFIER, CGROUP.
const SAMPLE_TYPE: u64 = 1 << 1 | 1 << 2 | 1 << 7 | 1 << 10 | 1 << 16 | 1 << 21;
const SAMPLE_ID_ALL: u64 = 1 << 18;
/// The id of the tracepoint in its format.
const SWITCH: u64 = 316;
const ID: u64 = 100;

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn text(text: &[u8], size: usize) -> Vec<u8> {
    let mut bytes = text.to_vec();
    bytes.resize(size, 0);
    bytes
}

fn record(kind: u32, body: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &2u16.to_le_bytes(), &(8 + body.len() as u16).to_le_bytes(), body].concat()
}

/// A cgroup, with the trailer of a record that is no sample: TID, TIME, CPU, IDENTIFIER.
fn cgroup(id: u64, path: &[u8]) -> Vec<u8> {
    let size = (path.len() + 1).next_multiple_of(8);
    record(19, &[words(&[id]), text(path, size), words(&[0, 1, 0, ID])].concat())
}

/// A switch from one thread to another, each the only one of its process; 0 is the idle task.
fn switch(time: u64, cgroup: u64, (prev, next): (u64, u64), state: u64) -> Vec<u8> {
    // common_*, prev_comm, prev_pid, prev_prio, prev_state, next_comm, next_pid, next_prio, and the rest of a word.
    let fields = [
        words(&[SWITCH | prev << 32]),
        text(b"mock", 16),
        words(&[prev | 120 << 32, state]),
        text(b"mock", 16),
        words(&[next | 120 << 32]),
        vec![0; 4],
    ]
    .concat();
    let size = (fields.len() as u32).to_le_bytes();
    record(9, &[words(&[ID, prev | prev << 32, time, 0]), size.to_vec(), fields, words(&[cgroup])].concat())
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

/// perf.data of a process in each of these cgroups. It runs for 1 ms at the beginning and at the end, `sleep` ns apart.
pub fn in_cgroups(paths: &[Vec<u8>], sleep: u64) -> Vec<u8> {
    let mut data: Vec<u8> = (1..).zip(paths).flat_map(|(id, path)| cgroup(id, path)).collect();
    let all = paths.len() as u64;
    for round in 0..2 {
        for number in 0..all {
            let begin = 1_000_000 + round * (sleep + all * 1_000_000) + number * 1_000_000;
            data.extend(switch(begin, 0, (0, 1000 + number), 0));
            data.extend(switch(begin + 999_000, 1 + number, (1000 + number, 0), 1));
        }
    }
    let mut attr = words(&[2 | 104 << 32, SWITCH, 1, SAMPLE_TYPE, 0, SAMPLE_ID_ALL]);
    attr.resize(104, 0);
    let attrs = [attr.clone(), words(&[104, 8])].concat();
    let desc =
        [words(&[1 | 104 << 32]), attr, words(&[1 | 64 << 32]), text(b"sched:sched_switch", 64), words(&[ID])].concat();
    let sections = [tracing(), desc];
    let (attrs_at, data_at) = (112, 112 + attrs.len() as u64);
    let header = [104, 120, attrs_at, attrs.len() as u64, data_at, data.len() as u64, 0, 0, 1 << 1 | 1 << 12, 0, 0, 0];
    let mut bytes = [b"PERFILE2".to_vec(), words(&header), words(&[ID]), attrs, data].concat();
    let mut at = bytes.len() as u64 + 32;
    for section in &sections {
        bytes.extend(words(&[at, section.len() as u64]));
        at += section.len() as u64;
    }
    [bytes, sections.concat()].concat()
}
