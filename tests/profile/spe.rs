//! Recordings of Arm's SPE as perf makes them: AUX data between the records, by CPU, and late.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;

use scxprof::profile::Profile;
use scxprof::sample::{Access, CpuMode};
use scxprof::testing::profile::format::feature;
use scxprof::testing::profile::section::Builder;
use scxprof::testing::profile::writer::{finished_round, EventDesc, PerfDataWriter};
use scxprof::testing::profile::PerfData;
use scxprof::testing::sampler::attr::{self, EventSpec, Features, Scope};
use scxprof::testing::sampler::encode::encode;
use scxprof::testing::sampler::record::{Header, MappedFile, Record, SampleId};
use scxprof::testing::sampler::spe::{encode as spe, event, Record as SpeRecord};
use scxprof::testing::sampler::OpenEvents;

use super::{perf, replayed, said, scxprof, Collect};
use crate::support::replay::replay;

/// The type of the PMU.
const PMU: u32 = 9;
const CPUS: u32 = 4;
const THREADS: [&str; 6] = ["alpha-in", "alpha-out", "beta-in", "beta-out", "gamma-in", "gamma-out"];
const PID: u32 = 500;
/// The time of count 0 of the generic timer, which counts 25 million a second here.
const ZERO: u64 = 5_000_000_000;
const NS: u64 = 40;
/// `MIDR_EL1` of a Neoverse N1.
const MIDR: u64 = 0x413f_d0c1;

/// A recording that is to be made.
#[derive(Clone, Copy)]
pub struct Form<'a> {
    threads: Threads,
    /// As perf wrote them before 6.13.
    is_old: bool,
    rounds: u64,
    /// Samples of a round, 10 us apart.
    samples: u64,
    /// Where the file says that AUX data is.
    index: &'a [u64],
}

const FORM: Form<'static> = Form { threads: Threads::Contexts, is_old: false, rounds: 20, samples: 300, index: &[] };
/// A small one.
pub const SEED: Form<'static> = Form { rounds: 2, samples: 6, ..FORM };

/// How a recording says which thread ran.
#[derive(Clone, Copy, PartialEq)]
pub enum Threads {
    Contexts,
    Switches,
    /// Of a command: its threads' own switches, and buffers of CPUs that name its first thread.
    Command,
    Followed,
    /// Only who ran first is known.
    Nobody,
}

/// A sample of the truth: time, thread, instruction, address, physical address, access, latency.
pub type Truth = (u64, u32, u64, u64, u64, Access, u32);

fn words(kind: u32, words: &[u64]) -> Vec<u8> {
    let size = 8 + words.len() * 8;
    let header = [&kind.to_ne_bytes()[..], &[0; 2], &(size as u16).to_ne_bytes()].concat();
    [header, words.iter().flat_map(|word| word.to_ne_bytes()).collect()].concat()
}

fn auxtrace(number: u32, tid: u32, cpu: u32, position: u64, data: &[u8]) -> Vec<u8> {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    [words(71, &[data.len() as u64, position, 0, pair(number, tid), pair(cpu, 0)]), data.to_vec()].concat()
}

/// Writes a recording; returns the truth in the order of time, and how many records are no accesses.
pub fn record(path: &Path, form: Form<'_>) -> (Vec<Truth>, u64) {
    let Form { threads, is_old, rounds, samples, index } = form;
    let dummy = EventSpec::minor_faults();
    let desc = |spec: &EventSpec, name: &str, ids: Vec<u64>| {
        let attr = attr::sampling(spec, Features::all(), Scope::default(), 4096);
        OpenEvents { name: name.into(), attr, ids, is_aside: false }.desc()
    };
    let mut sampled: EventDesc = desc(&dummy, "arm_spe_0//", (1..=4).collect());
    sampled.attr[..4].copy_from_slice(&PMU.to_ne_bytes());
    // What perf asks of it: IP, TID, TIME, CPU, PERIOD, IDENTIFIER.
    sampled.attr[24..32].copy_from_slice(&0x1_0187u64.to_ne_bytes());
    let layout = attr::layout(&attr::sampling(&dummy, Features::all(), Scope::default(), 4096));
    let out = BufWriter::new(File::create(path).unwrap());
    let mut writer = PerfDataWriter::new(out, vec![sampled, desc(&dummy, "dummy:u", (5..=8).collect())]).unwrap();
    // 40 ns, times 2 to the power of 10.
    writer.write(&words(79, &[10, NS << 10, ZERO, 0, 0, 1])).unwrap();
    // perf 6.13 began to say which cores there are.
    let mut info = if is_old { vec![4, PMU.into(), 1] } else { vec![4, 2, 4, PMU.into(), CPUS.into()] };
    if !is_old {
        info.extend((0..CPUS.into()).flat_map(|cpu| [0x1010_1010_1010_1010, cpu, 3, MIDR, PMU.into(), 1024]));
    }
    writer.write(&words(70, &info)).unwrap();
    let mut bytes = Vec::new();
    let id = |time, cpu| SampleId {
        time,
        cpu,
        id: u64::from(cpu) + 5,
        identifier: u64::from(cpu) + 5,
        ..SampleId::default()
    };
    for (comm, tid) in THREADS.into_iter().zip(PID..) {
        encode(&Record::Comm { pid: PID, tid, exec: false, comm: comm.as_bytes() }, &id(0, 0), 0, &layout, &mut bytes);
    }
    for (addr, len, inode, prot, filename) in
        [(0x40_0000, 0x10_0000, 5, 5, &b"/usr/bin/server"[..]), (0x7000_0000, 0x1000_0000, 0, 3, b"//anon")]
    {
        let file = MappedFile::Inode { major: 8, minor: 1, inode, generation: 0 };
        let mapping = Record::Mmap2 {
            pid: PID,
            tid: PID,
            addr,
            len,
            pgoff: 0,
            file,
            prot,
            flags: 2,
            data: prot & 4 == 0,
            filename,
        };
        encode(&mapping, &id(0, 0), 2, &layout, &mut bytes);
    }
    writer.write(&bytes).unwrap();
    let (mut truth, mut others, mut random) = (Vec::new(), 0, 0x9e37_79b9_7f4a_7c15u64);
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let buffers = if threads == Threads::Followed { THREADS.len() } else { CPUS as usize };
    let mut waiting = vec![(Vec::new(), 0u64); buffers];
    for round in 0..rounds {
        for step in 0..samples {
            let n = round * samples + step;
            let thread = (n % 6) as u32;
            let (tid, cpu) = (PID + thread, thread % CPUS);
            let count = 1_000_000 + n * 250;
            let time = ZERO + count * NS;
            let mut switch = Vec::new();
            let of_thread = |time, tid| SampleId { pid: PID, tid, ..id(time, cpu) };
            match threads {
                Threads::Switches => {
                    let from = Record::SwitchCpuWide { out: false, preempt: false, next_prev_pid: 0, next_prev_tid: 0 };
                    encode(&from, &of_thread(time - 10, tid), 0, &layout, &mut switch);
                }
                Threads::Command => {
                    encode(
                        &Record::Switch { out: false, preempt: false },
                        &of_thread(time - 10, tid),
                        0,
                        &layout,
                        &mut switch,
                    );
                    encode(
                        &Record::Switch { out: true, preempt: false },
                        &of_thread(time + 10, tid),
                        1 << 13,
                        &layout,
                        &mut switch,
                    );
                }
                Threads::Nobody if n < CPUS.into() => {
                    encode(&Record::ItraceStart { pid: PID, tid }, &of_thread(time - 10, tid), 0, &layout, &mut switch);
                }
                _ => {}
            }
            writer.write(&switch).unwrap();
            let shared = next(3) == 0;
            let base = if shared {
                0x7000_0000 + (u64::from(thread / 2) << 20)
            } else {
                0x7100_0000 + (u64::from(thread) << 20)
            };
            let addr = base + next(if shared { 0x4_0000 } else { 0x1_0000 });
            let (is_store, is_branch) = (next(3) == 0, next(10) == 0);
            let sampled = SpeRecord {
                ip: 0x40_1000 + next(0x1000) * 4,
                level: Some(0),
                operation: Some(if is_branch { (2, 1) } else { (1, u8::from(is_store)) }),
                addr: (!is_branch).then_some(addr),
                phys: if is_branch { 0 } else { addr + (1 << 33) },
                events: event::RETIRED | event::L1D_ACCESS | event::TLB_ACCESS,
                source: (!is_branch && !is_store).then_some(if shared { 9 } else { 0 }),
                latency: 10 + next(100) as u16,
                context: (threads == Threads::Contexts).then_some(tid),
                timestamp: Some(count),
                ..SpeRecord::default()
            };
            let at = if threads == Threads::Followed { thread } else { cpu };
            spe::record(&sampled, &mut waiting[at as usize].0);
            if is_branch {
                others += 1;
            } else {
                let access = if is_store { Access::Store } else { Access::Load };
                truth.push((time, tid, sampled.ip, addr, sampled.phys, access, u32::from(sampled.latency)));
            }
        }
        for (number, (data, position)) in (0..).zip(&mut waiting) {
            // Each buffer is written when it is half full, some much later than others.
            if !(round + u64::from(number)).is_multiple_of(7) && round + 1 < rounds || data.is_empty() {
                continue;
            }
            let (tid, cpu) = match threads {
                Threads::Followed => (PID + number, u32::MAX),
                Threads::Command => (PID, number),
                _ => (u32::MAX, number),
            };
            let mut aux = Vec::new();
            let record = Record::Aux {
                offset: *position,
                size: data.len() as u64,
                flags: u64::from(threads == Threads::Nobody),
            };
            encode(
                &record,
                &id(ZERO + (1_000_000 + (round + 1) * samples * 250) * NS, number % CPUS),
                0,
                &layout,
                &mut aux,
            );
            aux.extend(auxtrace(number, tid, cpu, *position, data));
            writer.write(&aux).unwrap();
            *position += data.len() as u64;
            data.clear();
        }
        writer.write(&finished_round()).unwrap();
    }
    let text = |text: &str| {
        let mut section = Builder::default();
        section.string(text.as_bytes());
        section.0
    };
    // The record of each piece: where it is, and its size without the piece.
    let places = index.iter().flat_map(|at| [*at, 48]);
    let index = [index.len() as u64].into_iter().chain(places).flat_map(u64::to_ne_bytes).collect();
    let sections = vec![
        (feature::AUXTRACE, index),
        (feature::ARCH, text("aarch64")),
        (feature::CPUID, text(&format!("{MIDR:#018x}"))),
    ];
    writer.finish(sections).unwrap();
    (truth, others)
}

fn recording(dir: &tempfile::TempDir, form: Form<'_>) -> (PathBuf, Vec<Truth>, u64) {
    let path = dir.path().join("perf.data");
    let (truth, others) = record(&path, form);
    (path, truth, others)
}

#[test]
fn samples_of_aux_data_come_in_the_order_of_time_with_their_threads() {
    let dir = tempfile::tempdir().unwrap();
    for threads in [Threads::Contexts, Threads::Switches, Threads::Command, Threads::Followed, Threads::Nobody] {
        let (path, truth, others) = recording(&dir, Form { threads, is_old: threads == Threads::Switches, ..FORM });
        let (read, outcome, damage) = replayed(&path);
        let is_known = threads != Threads::Nobody;
        let found: Vec<Truth> = read
            .samples
            .iter()
            .map(|it| (it.raw.time, it.raw.tid, it.raw.ip, it.raw.addr, it.raw.phys, it.raw.access, it.raw.latency))
            .collect();
        let expected: Vec<Truth> =
            truth.iter().map(|it| (it.0, if is_known { it.1 } else { 0 }, it.2, it.3, it.4, it.5, it.6)).collect();
        assert_eq!(found, expected);
        assert!(read.samples.iter().all(|it| it.raw.mode == CpuMode::User), "{:?}", read.samples[0]);
        if is_known {
            for it in &read.samples {
                let comm = THREADS[(it.raw.tid - PID) as usize];
                assert_eq!((it.raw.pid, it.comm.unwrap().as_bytes()), (PID, comm.as_bytes()));
            }
        }
        let says = |what: &str| outcome.notes.iter().any(|note| note.contains(what));
        let no_thread = says("have no thread");
        assert_eq!(outcome.loss.aux_lost == 14, !is_known, "{:?}", outcome.notes);
        assert_eq!(
            (outcome.loss.no_memory_op, no_thread, damage.len()),
            (others, !is_known, 0),
            "{:?} {damage:?}",
            outcome.notes
        );
        assert_eq!((outcome.loss.late, outcome.loss.malformed), (0, 0));
    }
}

#[test]
fn threads_that_share_are_found_in_a_recording_of_spe() {
    let dir = tempfile::tempdir().unwrap();
    let (path, ..) = recording(&dir, FORM);
    let output = scxprof(&["extract", "--target-cpus", "8", "-f", path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(!said(&output).contains("--all-cgroups"), "samples of SPE never have a cgroup: {}", said(&output));
    let printed = String::from_utf8_lossy(&output.stdout);
    for group in ["alpha", "beta", "gamma"] {
        assert!(printed.contains(&format!("\"name\": \"{group}")), "{group}: {printed}");
    }
}

#[test]
fn other_aux_data_is_left_out_and_said() {
    let dir = tempfile::tempdir().unwrap();
    let (path, ..) = recording(&dir, FORM);
    let mut bytes = std::fs::read(&path).unwrap();
    let (time, info) = (places(&bytes, 79)[0], places(&bytes, 70)[0]);
    for (kind, what) in [(1u32, "AUX data of Intel PT is left out"), (99, "AUX data of type 99 is left out")] {
        bytes[info + 8..][..4].copy_from_slice(&kind.to_ne_bytes());
        std::fs::write(&path, &bytes).unwrap();
        let (read, outcome, _) = replayed(&path);
        assert!(read.samples.is_empty() && outcome.notes.iter().any(|note| note == what), "{:?}", outcome.notes);
    }
    bytes[info + 8..][..4].copy_from_slice(&4u32.to_ne_bytes());
    // What is not found behind damage is said.
    let broken = places(&bytes, 71)[6];
    let size = std::mem::replace(&mut bytes[broken + 6], 0);
    std::fs::write(&path, &bytes).unwrap();
    let (_, outcome, _) = replayed(&path);
    let says = format!("AUX data after byte {broken} of the file is left out");
    assert!(outcome.notes.iter().any(|note| note.starts_with(&says)), "{:?}", outcome.notes);
    bytes[broken + 6] = size;
    // Without a conversion of times there is no order between the CPUs, but all samples.
    bytes[time + 16..][..8].copy_from_slice(&[0; 8]);
    std::fs::write(&path, &bytes).unwrap();
    let (read, outcome, _) = replayed(&path);
    let untimed = format!("{} samples of SPE have no known order", read.samples.len());
    assert!(outcome.notes.iter().any(|note| note.starts_with(&untimed)), "{:?}", outcome.notes);
}

/// Where the records of a kind are.
fn places(bytes: &[u8], wanted: u32) -> Vec<usize> {
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    let (mut at, end) = (word(40) as usize, (word(40) + word(48)) as usize);
    let mut found = Vec::new();
    while at < end {
        let header = Header::read(&bytes[at..]).unwrap();
        if header.kind == wanted {
            found.push(at);
        }
        at += usize::from(header.size) + if header.kind == 71 { word(at + 8) as usize } else { 0 };
    }
    found
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(40))]

    #[test]
    fn damaged_aux_data_is_read_to_its_end(
        damage in proptest::collection::vec((0usize..4, proptest::num::u64::ANY, proptest::num::u8::ANY), 1..8),
        cut in proptest::option::of(0.0f64..1.0),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (path, ..) = recording(&dir, FORM);
        let mut bytes = std::fs::read(&path).unwrap();
        let records = [places(&bytes, 70), places(&bytes, 79), places(&bytes, 71)];
        for (what, at, byte) in damage {
            // A byte of one of perf's records about AUX data, or of any.
            let at = match records.get(what) {
                Some(records) => records[at as usize % records.len()] + 8 + (at >> 32) as usize % 40,
                None => 104 + at as usize % (bytes.len() - 104),
            };
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate((bytes.len() as f64 * cut) as usize);
        }
        std::fs::write(&path, &bytes).unwrap();
        if let Ok(mut profile) = Profile::open(&path) {
            let mut collect = Collect::default();
            replay(&mut profile, 64 << 20, &mut collect);
            proptest::prop_assert!(collect.samples.len() <= (FORM.rounds * FORM.samples) as usize * 14);
        }
    }
}

#[test]
fn perf_reads_the_same_of_aux_data() {
    let test = "perf_reads_the_same_of_aux_data";
    if !perf::installed(test) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (path, ..) = recording(&dir, Form { is_old: true, ..FORM });
    let pieces = PerfData::open(File::open(&path).unwrap()).unwrap().auxtrace().unwrap().unwrap().buffers;
    let mut index: Vec<u64> = pieces.iter().flat_map(|it| &it.chunks).map(|it| it.at - 48).collect();
    index.sort_unstable();
    let (truth, _) = record(&path, Form { is_old: true, index: &index, ..FORM });
    let fields = "tid,time,ip,addr,phys_addr,weight,data_src";
    let args = ["script", "--itrace=M", "--ns", "-F", fields, "-i"];
    let output = Command::new("perf").args(args).arg(&path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || text.is_empty() {
        return println!("SKIP: {test}: perf cannot decode SPE here: {}", said(&output));
    }
    let (read, ..) = replayed(&path);
    assert_eq!((text.lines().count(), read.samples.len()), (truth.len(), truth.len()));
    for (line, it) in text.lines().zip(&read.samples) {
        let (Some((begin, _)), Some((_, end))) = (line.split_once('|'), line.rsplit_once("N/A")) else {
            panic!("{line}")
        };
        let begin: Vec<&str> = begin.split_whitespace().collect();
        let end: Vec<&str> = end.split_whitespace().collect();
        let raw = &it.raw;
        let time = format!("{}.{:09}:", raw.time / 1_000_000_000, raw.time % 1_000_000_000);
        let data_src = format!("{:x}", raw.data_src.0);
        assert_eq!(begin, [raw.tid.to_string(), time, format!("{:x}", raw.addr), data_src], "{line}");
        assert_eq!(end, [raw.latency.to_string(), format!("{:x}", raw.ip), format!("{:x}", raw.phys)], "{line}");
    }
}
