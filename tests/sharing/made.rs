//! Synthetic recordings of PEBS with loads of lines that were modified in another cache (HITM): threads of one process that
//! contend for one line or two are one community, named with its lines, the offsets in them and the code.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use scxprof::testing::profile::writer::{finished_round, PerfDataWriter};
use scxprof::testing::sampler::attr::{self, EventSpec, Features, Rate, Scope};
use scxprof::testing::sampler::encode::encode;
use scxprof::testing::sampler::pmu::Config;
use scxprof::testing::sampler::record::{Layout, MappedFile, Record, SampleId, SampleRecord};
use scxprof::testing::sampler::OpenEvents;

use super::capture::{Decision, Scxprof};
use super::score::{score, Thread};

// perf_mem_data_src (linux/perf_event.h): op, level from bit 5, snoop from bit 19, number of the level from bit 33.
const LOAD_FROM_L1: u64 = 0x2 | (0x2 | 0x8) << 5 | 0x2 << 19 | 1 << 33;
const LOAD_FROM_L3: u64 = 0x2 | (0x2 | 0x40) << 5 | 0x2 << 19 | 3 << 33;
/// Another core had it modified.
const LOAD_HITM: u64 = 0x2 | (0x2 | 0x40) << 5 | 0x10 << 19 | 3 << 33;
const STORE_L1: u64 = 0x4 | (0x2 | 0x8) << 5 | 1 << 33;

/// The id of the loads' event; that of stores is one more.
const LOADS: u64 = 1;
/// A cgroup without its own cell.
const CGROUP: u64 = 7;
/// The addresses of the program's code and its data.
const CODE: u64 = 0x40_0000;
const FIELDS: u64 = 0x7f30_0000_0000;
const BUFFERS: u64 = 0x7f40_0000_0000;
const PRIVATE: u64 = 0x7f50_0000_0000;
const SERVER: &str = "/opt/server/bin/server";

/// What the threads of a process do.
#[derive(Clone, Copy)]
struct Process {
    pid: u32,
    name: &'static str,
    threads: u32,
    /// Threads to a group that has a buffer; 1 for none.
    to_a_group: u32,
    /// Of 1,000 accesses, those to the fields; each thread has its own fields, one in each line.
    fields: u64,
    lines: u64,
    /// Of 1,000 accesses, those to the group's buffer.
    buffer: u64,
}

/// Eight threads that contend for fields.
const FIGHTERS: Process =
    Process { pid: 1000, name: "put", threads: 8, to_a_group: 1, fields: 400, lines: 1, buffer: 0 };
/// A process of the same host that shares nothing.
const STRANGERS: Process =
    Process { pid: 2000, name: "solo", threads: 6, to_a_group: 1, fields: 0, lines: 1, buffer: 0 };

impl Process {
    /// Three names alternate in each group; threads that share nothing have one each.
    fn thread_name(&self, index: u32) -> String {
        if self.to_a_group > 1 {
            let letter = char::from(b'a' + (index / self.to_a_group) as u8);
            format!("{}{letter}-{}", self.name, ["in", "out", "log"][(index % self.to_a_group % 3) as usize])
        } else if self.fields > 100 {
            format!("{}-{}", self.name, ["in", "out", "log"][(index % 3) as usize])
        } else {
            format!("{}-{}", self.name, char::from(b'a' + index as u8))
        }
    }

    /// The truth: threads that contend for lines all the time, or share a buffer, are together.
    fn threads(&self) -> impl Iterator<Item = Thread> + '_ {
        (0..self.threads).map(|index| Thread {
            group: match (self.to_a_group, self.fields) {
                (1, 0..=100) => None,
                (1, _) => Some(self.pid.to_string()),
                _ => Some(format!("{} {}", self.pid, index / self.to_a_group)),
            },
            name: self.thread_name(index),
            pid: self.pid,
            tid: self.pid + index,
        })
    }
}

/// Writes a recording of the processes: `samples` for each thread, with its stores or only its loads.
fn record(path: &Path, processes: &[Process], samples: u64, stores: bool) {
    let event = |name: &'static str, config| EventSpec {
        name: name.into(),
        // cpu
        kind: 4,
        config: Config(config),
        rate: Rate::Period(1000),
        precise: 3,
        ..EventSpec::minor_faults()
    };
    let mut specs = vec![event("cpu/mem-loads,ldlat=10/P", [0x1cd, 10, 0, 0, 0])];
    if stores {
        specs.push(event("cpu/mem-stores/P", [0x82d0, 0, 0, 0, 0]));
    }
    let open = |(spec, id): (&EventSpec, u64)| OpenEvents {
        name: spec.name.as_ref().into(),
        attr: attr::sampling(spec, Features::all(), Scope::default(), 4096),
        ids: vec![id],
        is_aside: false,
    };
    let events: Vec<_> = specs.iter().zip(LOADS..).map(open).collect();
    let layout = attr::layout(&events[0].attr);
    let mut writer = PerfDataWriter::new(
        BufWriter::new(File::create_new(path).unwrap()),
        events.iter().map(OpenEvents::desc).collect(),
    )
    .unwrap();
    let mut bytes = Vec::new();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 16) % below
    };
    encode(&Record::Cgroup { id: CGROUP, path: b"/services/server" }, &SampleId::default(), 0, &layout, &mut bytes);
    for process in processes {
        begin(process, &layout, &mut bytes);
    }
    let mut time = 1_000_000_000;
    for round in 0..samples {
        for process in processes {
            for index in 0..process.threads {
                time += 5_000;
                let mut sample = access(process, index, stores, &mut draw);
                sample.time = time;
                encode(&Record::Sample(sample), &SampleId::default(), 2, &layout, &mut bytes);
            }
        }
        if round % 64 == 63 {
            bytes.extend(finished_round());
        }
    }
    writer.write(&bytes).unwrap();
    writer.finish(Vec::new()).unwrap();
}

/// The names of the threads and what is mapped.
fn begin(process: &Process, layout: &Layout, bytes: &mut Vec<u8>) {
    let pid = process.pid;
    let id = SampleId::default();
    for index in 0..process.threads {
        let name = process.thread_name(index);
        let comm = Record::Comm { pid, tid: pid + index, exec: false, comm: name.as_bytes() };
        encode(&comm, &id, 0, layout, bytes);
    }
    for (addr, len, inode, prot, filename) in [
        (CODE, 0x10_0000, u64::from(pid), 5, SERVER.as_bytes()),
        (FIELDS, 0x1000, 0, 3, b"//anon"),
        (BUFFERS, 0x1000_0000, 0, 3, b"//anon"),
        (PRIVATE, 0x1000_0000, 0, 3, b"//anon"),
    ] {
        let file = MappedFile::Inode { major: 8, minor: 1, inode, generation: 0 };
        let (flags, pgoff, data) = (2, 0, prot & 4 == 0);
        let mapping = Record::Mmap2 { pid, tid: pid, addr, len, pgoff, file, prot, flags, data, filename };
        encode(&mapping, &id, 2, layout, bytes);
    }
}

/// One access of a thread. Each kind has its own code.
fn access(process: &Process, index: u32, stores: bool, draw: &mut impl FnMut(u64) -> u64) -> SampleRecord<'static> {
    let is_store = stores && draw(2) == 0;
    let kind = draw(1000);
    let found = draw(10);
    let (ip, addr, from) = if kind < process.fields {
        // Most loads find that another thread has written its field since.
        let line = draw(process.lines) * 64;
        (0x1200 + line, FIELDS + line + u64::from(index % 8) * 8, if found < 8 { LOAD_HITM } else { LOAD_FROM_L1 })
    } else if kind < process.fields + process.buffer {
        let buffer = BUFFERS + u64::from(index / process.to_a_group) * 0x4_0000;
        (0x1400, buffer + draw(0x8000) * 8, if found < 5 { LOAD_HITM } else { LOAD_FROM_L3 })
    } else {
        let own = PRIVATE + u64::from(index) * 0x8_0000;
        (0x1600, own + draw(0x1_0000) * 8, if found < 9 { LOAD_FROM_L1 } else { LOAD_FROM_L3 })
    };
    SampleRecord {
        identifier: LOADS + u64::from(is_store),
        ip: CODE + ip,
        pid: process.pid,
        tid: process.pid + index,
        addr,
        cpu: index % 8,
        period: 1000,
        // Latencies of a first-level hit, of the last level and of a modified line (cycles).
        weight: match from {
            _ if is_store => 0,
            LOAD_HITM => 120,
            LOAD_FROM_L3 => 60,
            _ => 11,
        },
        data_src: if is_store { STORE_L1 } else { from },
        phys_addr: 0x1_0000_0000 + (addr & 0xffff_ffff) + (u64::from(process.pid) << 32),
        cgroup: CGROUP,
        data_page_size: 4096,
        ..SampleRecord::default()
    }
}

/// Records, extracts, and compares the configuration with the truth; returns the decision.
fn check(what: &str, processes: &[Process], samples: u64, stores: bool) -> Decision {
    let directory = tempfile::tempdir().unwrap();
    let recording = directory.path().join("perf.data");
    record(&recording, processes, samples, stores);
    let decision = Scxprof { binary: env!("CARGO_BIN_EXE_scxprof").into() }.extract(&recording, &[]).unwrap();
    let threads: Vec<Thread> = processes.iter().flat_map(Process::threads).collect();
    let score = score(&threads, "/services/server", &decision.json).unwrap();
    let what = format!("{what}, {samples} samples a thread, {}", if stores { "with stores" } else { "loads alone" });
    println!("{what}: {score:?}");
    assert!(score.is_right(), "{what}: {score:?}\n{}\n{}", decision.json, decision.said);
    decision
}

/// One community, with all of these lines, the offsets of the contention in them, and the code.
fn names_its_lines(decision: &Decision, lines: u64) {
    let found = decision.communities();
    assert_eq!(found.len(), 1, "{:#}", decision.report);
    let named = found[0]["lines"].as_array().unwrap();
    for line in 0..lines {
        let place = FIELDS + line * 64;
        let of_line = named.iter().find(|it| it["identity"]["addr"] == place);
        let of_line = of_line.unwrap_or_else(|| panic!("{place:#x} is not named: {named:#?}"));
        assert!(of_line["hitm"].as_u64().unwrap() > 0 && of_line["accesses"].as_f64().unwrap() > 0.0, "{of_line:#}");
        let code = of_line["code"].as_array().unwrap();
        let offset = 0x1200 + line * 64;
        assert!(code.iter().any(|it| it["dso"] == SERVER && it["offset"] == offset), "{of_line:#}");
    }
    assert_eq!(named.len() as u64, lines, "what else is there is nobody's but its own: {named:#?}");
}

#[test]
fn all_threads_of_a_process_fight_for_one_line() {
    for (samples, stores) in [(200, true), (200, false), (1000, true), (1000, false)] {
        names_its_lines(&check("one line", &[FIGHTERS], samples, stores), 1);
    }
}

#[test]
fn all_threads_of_a_process_fight_for_two_lines() {
    let process = Process { lines: 2, ..FIGHTERS };
    for (samples, stores) in [(200, true), (200, false), (1000, true), (1000, false)] {
        names_its_lines(&check("two lines", &[process], samples, stores), 2);
    }
}

#[test]
fn the_verdict_does_not_depend_on_strangers() {
    for lines in [1, 2] {
        let process = Process { lines, ..FIGHTERS };
        for stores in [true, false] {
            names_its_lines(&check("beside strangers", &[process, STRANGERS], 500, stores), lines);
        }
    }
}

#[test]
fn two_processes_that_fight_are_two_communities() {
    let second = Process { pid: 3000, name: "get", ..FIGHTERS };
    let decision = check("two processes", &[FIGHTERS, second], 500, true);
    assert_eq!(decision.communities().len(), 2, "{:#}", decision.report);
}

#[test]
fn groups_win_over_a_lock_that_all_take() {
    let process = Process { to_a_group: 2, fields: 60, buffer: 300, ..FIGHTERS };
    for stores in [true, false] {
        let decision = check("pairs and a lock", &[process], 500, stores);
        assert_eq!(decision.communities().len(), 4, "{:#}", decision.report);
    }
}

#[test]
fn a_lock_that_is_taken_rarely_joins_nobody() {
    let process = Process { fields: 3, ..FIGHTERS };
    for stores in [true, false] {
        let decision = check("a rare lock", &[process], 1000, stores);
        assert_eq!(decision.communities().len(), 0, "{:#}", decision.report);
    }
}
