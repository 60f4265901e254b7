//! Recordings of other machines: another architecture, byte order, page size and number of CPUs.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{fixture, json, number, off};

/// The names of the replayed threads, and that they ran as long as in the recording.
fn replays(found: &Value) -> String {
    let threads = found["threads"].as_array().unwrap();
    for thread in threads {
        let [recorded, replayed] = ["recorded", "replayed"].map(|which| number(&thread["run_ns"][which]));
        assert!(number(&thread["mock_tid"]) > 0 && replayed.abs_diff(recorded) < recorded / 20 + 1_000_000, "{thread}");
    }
    assert!(off(&found["total"]["run_ns"]) < 0.05, "{}", found["total"]);
    let mut names: Vec<&str> = threads.iter().map(|thread| thread["comm"].as_str().unwrap()).collect();
    names.sort_unstable();
    names.join(" ")
}

#[test]
fn recordings_of_other_architectures_replay() {
    let dir = tempfile::tempdir().unwrap();
    // arm64 has 16 KiB pages there, s390x is big-endian.
    for (name, wakeups) in [("perf-sched-arm64", 299), ("perf-sched-s390x", 192)] {
        let path = fixture(dir.path(), name);
        let found = json(&["-f", path.to_str().unwrap(), "--overcommit"]);
        let expected = "boss cond0 cond1 cond2 hop ping pong schedload spin0 spin1 tick true true true true true";
        assert_eq!(replays(&found), expected, "{name}");
        assert_eq!(number(&found["processes"]), 6, "{name}");
        // Of `perf sched latency -p`, without the kernel's threads and perf: that many of them, and of these wakeups those
        // by another thread of them.
        assert!(number(&found["left_out"]["kernel"]) >= 8, "{name}: {}", found["left_out"]);
        assert!(number(&found["left_out"]["recorder"]) >= 1, "{name}: {}", found["left_out"]);
        let total = &found["total"]["wakeups"];
        assert_eq!(number(&total["recorded"]), wakeups, "{name}");
        assert!(off(total) < 0.25, "{name}: {total}");
    }
}

/// A machine of which a recording is made. HZ is in no field of a recording: it shows in the times of events.
#[derive(Clone, Copy)]
struct Machine {
    arch: &'static str,
    is_big: bool,
    page: u32,
    cpus: u32,
    /// On which two threads run.
    on: [u32; 2],
}

const MACHINES: [Machine; 4] = [
    Machine { arch: "x86_64", is_big: false, page: 4 << 10, cpus: 2, on: [0, 1] },
    Machine { arch: "aarch64", is_big: false, page: 64 << 10, cpus: 96, on: [95, 3] },
    Machine { arch: "s390x", is_big: true, page: 4 << 10, cpus: 1, on: [0, 0] },
    Machine { arch: "ppc64", is_big: true, page: 64 << 10, cpus: 1024, on: [640, 1023] },
];

const SWITCH: &str = "name: sched_switch\nID: 301\nformat:\n\
    \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
    \tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
    \tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;\n\
    \tfield:int prev_prio;\toffset:28;\tsize:4;\tsigned:1;\n\
    \tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;\n\
    \tfield:char next_comm[16];\toffset:40;\tsize:16;\tsigned:0;\n\
    \tfield:pid_t next_pid;\toffset:56;\tsize:4;\tsigned:1;\n\
    \tfield:int next_prio;\toffset:60;\tsize:4;\tsigned:1;\n\nprint fmt: \"\"\n";
const WAKING: &str = "name: sched_waking\nID: 302\nformat:\n\
    \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
    \tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
    \tfield:pid_t pid;\toffset:24;\tsize:4;\tsigned:1;\n\
    \tfield:int prio;\toffset:28;\tsize:4;\tsigned:1;\n\
    \tfield:int target_cpu;\toffset:32;\tsize:4;\tsigned:1;\n\nprint fmt: \"\"\n";

/// A thread: its name and id; the idle task is 0. Both are of process 100.
type Task = (&'static str, u32);
const IDLE: Task = ("swapper", 0);
const ODD: Task = ("odd", 100);
const EVEN: Task = ("even", 101);

impl Machine {
    fn u16(self, value: u16) -> Vec<u8> {
        Vec::from(if self.is_big { value.to_be_bytes() } else { value.to_le_bytes() })
    }

    fn u32s(self, values: &[u32]) -> Vec<u8> {
        values.iter().flat_map(|value| if self.is_big { value.to_be_bytes() } else { value.to_le_bytes() }).collect()
    }

    fn u64s(self, values: &[u64]) -> Vec<u8> {
        values.iter().flat_map(|value| if self.is_big { value.to_be_bytes() } else { value.to_le_bytes() }).collect()
    }

    fn record(self, kind: u32, misc: u16, body: &[Vec<u8>]) -> Vec<u8> {
        let body = body.concat();
        [self.u32s(&[kind]), self.u16(misc), self.u16(8 + body.len() as u16), body].concat()
    }

    fn task(self, (name, tid): Task) -> Vec<u8> {
        let mut bytes = name.as_bytes().to_vec();
        bytes.resize(16, 0);
        [bytes, self.u32s(&[tid, 120])].concat()
    }

    /// A sample with IDENTIFIER, TID, TIME, CPU and RAW.
    fn sample(self, id: u16, time: u64, cpu: u32, (_, tid): Task, fields: &[Vec<u8>]) -> Vec<u8> {
        let raw = [self.u16(id), vec![0, 0], self.u32s(&[tid]), fields.concat()].concat();
        let pid = if tid == 0 { 0 } else { 100 };
        let raw = [self.u32s(&[raw.len() as u32 + 4]), raw, vec![0; 4]].concat();
        assert_eq!(raw.len() % 8, 0);
        self.record(
            9,
            2,
            &[self.u64s(&[u64::from(id)]), self.u32s(&[pid, tid]), self.u64s(&[time]), self.u32s(&[cpu, 0]), raw],
        )
    }

    fn switch(self, time: u64, cpu: u32, prev: Task, state: u64, next: Task) -> Vec<u8> {
        self.sample(301, time, cpu, prev, &[self.task(prev), self.u64s(&[state]), self.task(next)])
    }

    fn waking(self, time: u64, cpu: u32, waker: Task, woken: Task) -> Vec<u8> {
        self.sample(302, time, cpu, waker, &[self.task(woken), self.u32s(&[cpu, 0])])
    }

    /// Two threads that wake each other in turn, 100 times: one runs for 1 ms, the other one for 0.5 ms.
    fn records(self) -> Vec<Vec<u8>> {
        let trailer = |time| [self.u32s(&[0, 0]), self.u64s(&[time]), self.u32s(&[0, 0]), self.u64s(&[301])].concat();
        let text = |text: &str| {
            let mut bytes = text.as_bytes().to_vec();
            bytes.resize((text.len() + 1).next_multiple_of(8), 0);
            bytes
        };
        let page = u64::from(self.page);
        let mut records = vec![
            self.record(3, 0, &[self.u32s(&[100, 100]), text("odd"), trailer(1)]),
            self.record(3, 0, &[self.u32s(&[100, 101]), text("even"), trailer(1)]),
            self.record(
                1,
                0,
                &[self.u32s(&[100, 100]), self.u64s(&[16 * page, page, 0]), text("/bin/odd"), trailer(1)],
            ),
        ];
        let [a, b] = self.on;
        let mut at = 1_000_000_000;
        for _ in 0..100 {
            records.push(self.switch(at, a, IDLE, 0, ODD));
            at += 1_000_000;
            records.push(self.waking(at, a, ODD, EVEN));
            records.push(self.switch(at, a, ODD, 1, IDLE));
            records.push(self.switch(at, b, IDLE, 0, EVEN));
            at += 500_000;
            records.push(self.waking(at, b, EVEN, ODD));
            records.push(self.switch(at, b, EVEN, 1, IDLE));
        }
        records
    }

    /// The formats of both tracepoints, as perf writes them (tools/perf/util/trace-event-info.c).
    fn tracing(self) -> Vec<u8> {
        let file = |bytes: &[u8]| [self.u64s(&[bytes.len() as u64]), bytes.to_vec()].concat();
        let mut bytes = b"\x17\x08\x44tracing0.6\0".to_vec();
        bytes.extend([u8::from(self.is_big), 8]);
        bytes.extend(self.u32s(&[self.page]));
        bytes.extend([b"header_page\0".to_vec(), file(b""), b"header_event\0".to_vec(), file(b"")].concat());
        // No formats of ftrace, one system of two events.
        bytes.extend(self.u32s(&[0, 1]));
        bytes.extend([b"sched\0".to_vec(), self.u32s(&[2]), file(SWITCH.as_bytes()), file(WAKING.as_bytes())].concat());
        bytes.resize(bytes.len() + 16, 0);
        bytes
    }

    /// As tools/perf/Documentation/perf.data-file-format.txt describes it.
    fn perf_data(self) -> Vec<u8> {
        let (mut ids, mut attrs) = (Vec::new(), Vec::new());
        for (number, id) in [301u64, 302].into_iter().enumerate() {
            // Bit fields begin at the other end of their bytes there.
            let flags = (1u64 << 18).to_le_bytes().map(|byte| if self.is_big { byte.reverse_bits() } else { byte });
            // TID, TIME, CPU, RAW, IDENTIFIER.
            let sample_type = 1 << 1 | 1 << 2 | 1 << 7 | 1 << 10 | 1 << 16;
            let mut attr = [self.u32s(&[2, 112]), self.u64s(&[id, 1, sample_type, 0]), flags.to_vec()].concat();
            attr.resize(112, 0);
            attrs.extend([attr, self.u64s(&[104 + 8 * number as u64, 8])].concat());
            ids.extend(self.u64s(&[id]));
        }
        let data = self.records().concat();
        let arch = [self.u32s(&[self.arch.len() as u32 + 1]), self.arch.as_bytes().to_vec(), vec![0]].concat();
        // HEADER_TRACING_DATA, HEADER_ARCH, HEADER_NRCPUS.
        let sections = [(1, self.tracing()), (6, arch), (7, self.u32s(&[self.cpus, self.cpus]))];
        let bits = sections.iter().fold(0, |bits, (bit, _)| bits | 1u64 << bit);
        let (attrs_at, data_at) = (104 + ids.len() as u64, (104 + ids.len() + attrs.len()) as u64);
        let magic = u64::from_le_bytes(*b"PERFILE2");
        let head = [magic, 104, 128, attrs_at, attrs.len() as u64, data_at, data.len() as u64, 0, 0, bits, 0, 0, 0];
        let mut bytes = [self.u64s(&head), ids, attrs, data].concat();
        let mut at = bytes.len() + sections.len() * 16;
        for (_, section) in &sections {
            bytes.extend(self.u64s(&[at as u64, section.len() as u64]));
            at += section.len();
        }
        bytes.extend(sections.into_iter().flat_map(|(_, section)| section));
        bytes
    }

    fn write(self, dir: &Path) -> PathBuf {
        let path = dir.join("made.data");
        std::fs::write(&path, self.perf_data()).unwrap();
        path
    }
}

#[test]
fn the_machine_of_a_recording_does_not_matter() {
    let dir = tempfile::tempdir().unwrap();
    for machine in MACHINES {
        let path = machine.write(dir.path());
        let found = json(&["-f", path.to_str().unwrap()]);
        let arch = machine.arch;
        assert_eq!(replays(&found), "even odd", "{arch}");
        assert_eq!((number(&found["processes"]), number(&found["window_ns"])), (1, 150_000_000), "{arch}");
        let recorded = |thread: &str, field: &str| {
            let threads = found["threads"].as_array().unwrap();
            number(&threads.iter().find(|it| it["comm"] == thread).unwrap()[field]["recorded"])
        };
        let of = |thread: &str| ["run_ns", "sleeps", "wakeups", "migrations"].map(|field| recorded(thread, field));
        assert_eq!(of("odd"), [100_000_000, 100, 100, 0], "{arch}");
        // Its last sleep lasts longer than the recording.
        assert_eq!(of("even"), [50_000_000, 99, 100, 0], "{arch}");
        // Each has nothing to do but to wait for the other one.
        assert!(off(&found["total"]["sleeps"]) < 0.1, "{arch}: {}", found["total"]);
        assert!(off(&found["total"]["wakeups"]) < 0.1, "{arch}: {}", found["total"]);
    }
}
