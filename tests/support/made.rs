//! Makes perf.data field by field: records, the tracepoint sched_switch and its description, and the file around them.

use std::fmt::Write as _;

/// The id of sched_switch in its description.
pub const SWITCH: u64 = 316;
/// The id of the samples of the first event; those of the others follow.
pub const ID: u64 = 100;
const SAMPLE_ID_ALL: u64 = 1 << 18;

/// An event with samples of its own.
pub struct Event {
    pub kind: u32,
    pub config: u64,
    pub name: &'static str,
    pub sample_type: u64,
}

impl Event {
    /// Its perf_event_attr.
    fn attr(&self) -> Vec<u8> {
        let mut attr = words(&[u64::from(self.kind) | 104 << 32, self.config, 1, self.sample_type, 0, SAMPLE_ID_ALL]);
        attr.resize(104, 0);
        attr
    }
}

pub fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub fn text(text: &[u8], size: usize) -> Vec<u8> {
    let mut bytes = text.to_vec();
    bytes.resize(size, 0);
    bytes
}

pub fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &misc.to_le_bytes(), &(8 + body.len() as u16).to_le_bytes(), body].concat()
}

/// The raw part of a sample of sched_switch, from one thread to another, each with its name.
pub fn switch((prev_name, prev): (&str, u64), state: u64, (next_name, next): (&str, u64)) -> Vec<u8> {
    // common_*, prev_comm, prev_pid, prev_prio, prev_state, next_comm, next_pid, next_prio, and the rest of a word.
    let fields = [
        words(&[SWITCH | prev << 32]),
        text(prev_name.as_bytes(), 16),
        words(&[prev | 120 << 32, state]),
        text(next_name.as_bytes(), 16),
        words(&[next | 120 << 32]),
        vec![0; 4],
    ]
    .concat();
    [&(fields.len() as u32).to_le_bytes()[..], &fields].concat()
}

/// The section that describes the tracepoint.
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

/// A file of these events and records.
pub fn file(events: &[Event], data: &[u8]) -> Vec<u8> {
    let count = events.len() as u64;
    let ids: Vec<u64> = (0..count).map(|number| ID + number).collect();
    let attrs_at = 104 + 8 * count;
    let mut attrs = Vec::new();
    let mut desc = words(&[count | 104 << 32]);
    for (event, number) in events.iter().zip(0..) {
        attrs.extend([event.attr(), words(&[104 + 8 * number, 8])].concat());
        desc.extend([event.attr(), words(&[1 | 64 << 32]), text(event.name.as_bytes(), 64)].concat());
        desc.extend(words(&[ID + number]));
    }
    // HEADER_TRACING_DATA and HEADER_EVENT_DESC.
    let (sections, features) = ([tracing(), desc], 1 << 1 | 1 << 12);
    let data_at = attrs_at + attrs.len() as u64;
    let header = [104, 120, attrs_at, attrs.len() as u64, data_at, data.len() as u64, 0, 0, features, 0, 0, 0];
    let mut bytes = [b"PERFILE2", &words(&header)[..], &words(&ids), &attrs, data].concat();
    let mut at = bytes.len() as u64 + 32;
    for section in &sections {
        bytes.extend(words(&[at, section.len() as u64]));
        at += section.len() as u64;
    }
    [bytes, sections.concat()].concat()
}
