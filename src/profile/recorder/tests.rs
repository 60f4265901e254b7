//! Tests of a recording with records made by hand: they open no event, so they run everywhere.

use std::sync::Arc;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::super::code_files::MAX_PATH_BYTES;
use super::*;
use crate::profile::Profile;
use crate::sample::SideBand;
use crate::sample::{Comm, MemoryId, MemoryScope, Sample};
use crate::sampler::attr::{sampling, side_band, EventSpec, Features, Scope};
use crate::session::{Outcome, Session, Sink};
use scxprof_perf::encode::encode;
use scxprof_perf::reader::{Item, PerfData};
use scxprof_perf::record::{decode, Header, MappedFile, Record, SampleId, SampleRecord, MISC_MMAP_BUILD_ID};

const OWN: u64 = 11;

/// Minor faults and the side-band on two CPUs, as they are recorded.
fn events(features: Features) -> Vec<OpenEvents> {
    let faults = sampling(&EventSpec::minor_faults(), features, Scope::default(), 0);
    let side_band = side_band(features, Scope::default(), 0, false);
    [("minor-faults", faults, [OWN, 12]), ("dummy", side_band, [21, 22])]
        .map(|(name, attr, ids)| OpenEvents { name: Arc::from(name), attr, ids: ids.to_vec(), is_aside: false })
        .into()
}

fn recorder(dir: &Path) -> Recorder {
    recorder_with(Features::all(), dir)
}

fn recorder_with(features: Features, dir: &Path) -> Recorder {
    let identity = Identity { own_pid: 1, child_pid_namespace: false, without_profilers: false };
    let opened = Opened {
        events: events(features),
        identity,
        address_from: AddressFrom::Fault,
        watched: None,
        workers: 1,
        keep_memory: false,
        has_cgroups: features.has(Feature::Cgroup),
    };
    Recorder::of(opened, Source::Faults, &Roots::default(), false, dir).unwrap()
}

/// A sample, or any other record, as in a ring.
fn bytes(recorder: &Recorder, record: &Record<'_>, time: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let id = SampleId { time, identifier: 22, ..SampleId::default() };
    assert!(encode(record, &id, 2, &recorder.layout, &mut bytes));
    bytes
}

/// The same record with another id at its end.
fn with_id(mut record: Vec<u8>, id: u64) -> Vec<u8> {
    let at = record.len() - 8;
    record[at..].copy_from_slice(&id.to_ne_bytes());
    record
}

fn fault(id: u64, time: u64) -> Record<'static> {
    Record::Sample(SampleRecord { identifier: id, pid: 7, tid: 7, time, addr: 0x1000, ..SampleRecord::default() })
}

fn replay(profile: &mut Profile, sink: &mut dyn Sink) -> Outcome {
    Session::builder().profile(profile).memory(1 << 20).start().unwrap().run_into(sink, |_| false)
}

#[test]
fn a_record_with_the_id_of_another_event_gets_one_of_ours() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = recorder(dir.path());
    let comm = bytes(&recorder, &Record::Comm { pid: 7, tid: 7, exec: false, comm: b"web" }, 25);
    let ring = [
        bytes(&recorder, &fault(OWN, 10), 10),
        bytes(&recorder, &fault(999, 20), 20),
        comm.clone(),
        with_id(comm.clone(), 0),
        bytes(&recorder, &fault(12, 30), 30),
        with_id(comm.clone(), 31),
        bytes(&recorder, &fault(u64::MAX, 40), 40),
        // Of events that were opened for a CPU that came online.
        with_id(comm.clone(), 41),
        bytes(&recorder, &fault(42, 50), 50),
        bytes(&recorder, &fault(43, 60), 60),
    ];
    recorder.opened(41, Some(21));
    recorder.opened(42, Some(12));
    recorder.opened(43, None);
    recorder.records(&ring.concat(), 40, false);
    recorder.finish_records().unwrap();
    let mut file = PerfData::open(File::open(dir.path().join("perf.data")).unwrap()).unwrap();
    let mut ids = Vec::new();
    while let Some(item) = file.next_item().unwrap() {
        let Item::Record { bytes, event, layout, .. } = item else { continue };
        let expected = &ring[ids.len()];
        let (_, record, id) = decode(bytes, layout).unwrap();
        let at = if let Record::Sample(sample) = record {
            ids.push((sample.identifier, event));
            8
        } else {
            ids.push((id.identifier, event));
            bytes.len() - 8
        };
        assert_eq!((&bytes[..at], &bytes[at + 8..]), (&expected[..at], &expected[at + 8..]), "all else is as it was");
    }
    let strange = [(OWN, 0), (OWN, 0), (22, 1), (0, 0), (12, 0), (OWN, 0), (OWN, 0)];
    assert_eq!(ids, [&strange[..], &[(21, 1), (12, 0), (OWN, 0)]].concat());
}

#[test]
fn a_mapping_that_says_it_has_a_build_id_has_its_inode() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = recorder(dir.path());
    let file = MappedFile::Inode { major: 254, minor: 1, inode: 9, generation: 7 };
    let mapping = Record::Mmap2 {
        pid: 7,
        tid: 7,
        addr: 0x1000,
        len: 0x1000,
        pgoff: 0,
        file,
        prot: 3,
        flags: 1,
        data: true,
        filename: b"/dev/shm/x",
    };
    let mut mapping = bytes(&recorder, &mapping, 10);
    // As another profiler's event leaves it.
    let misc = Header::read(&mapping).unwrap().misc | MISC_MMAP_BUILD_ID;
    mapping[4..6].copy_from_slice(&misc.to_ne_bytes());
    let live = decode(&mapping, &recorder.layout).unwrap().1;
    assert!(matches!(live, Record::Mmap2 { file: read, .. } if read == file), "{live:?}");
    recorder.records(&[mapping, bytes(&recorder, &fault(OWN, 20), 20)].concat(), 20, false);
    recorder.finish_records().unwrap();
    let mut perf_data = PerfData::open(File::open(dir.path().join("perf.data")).unwrap()).unwrap();
    let Some(Item::Record { bytes, layout, .. }) = perf_data.next_item().unwrap() else { panic!("no record") };
    let (header, read, _) = decode(bytes, layout).unwrap();
    assert_eq!((header.misc, header.kind), (misc & !MISC_MMAP_BUILD_ID, sys::PERF_RECORD_MMAP2));
    assert!(matches!(read, Record::Mmap2 { file: read, .. } if read == file), "{read:?}");
}

/// A procfs with these processes: name and mappings of each.
fn procfs(dir: &Path, processes: &BTreeMap<u32, (&str, String)>) -> Roots {
    let proc = dir.join("proc");
    let _ = fs::remove_dir_all(&proc);
    for (pid, (name, maps)) in processes {
        let process = proc.join(pid.to_string());
        fs::create_dir_all(process.join(format!("task/{pid}"))).unwrap();
        fs::write(process.join(format!("task/{pid}/comm")), format!("{name}\n")).unwrap();
        fs::write(process.join("maps"), maps).unwrap();
    }
    Roots { proc, ..Roots::default() }
}

#[derive(Default)]
struct Collected(Vec<(u64, Option<Comm>, Option<MemoryId>)>);

impl Sink for Collected {
    fn sample(&mut self, sample: &Sample, _: &mut Cgroups) {
        self.0.push((sample.raw.time, sample.comm, sample.memory));
    }
}

#[test]
fn what_was_lost_is_recorded_again() {
    let dir = tempfile::tempdir().unwrap();
    let maps = |inode: u64| format!("00001000-00003000 rw-s 00000000 08:01 {inode} /dev/shm/x\n");
    let before = BTreeMap::from([(7, ("web", maps(9))), (8, ("db", maps(9)))]);
    let roots = procfs(dir.path(), &before);
    let recorder = recorder(dir.path());
    recorder.snapshot(&roots, None, &Cgroups::recorded(), &mut |_| {}).unwrap();
    let first = monotonic_ns();
    recorder.records(&bytes(&recorder, &fault(OWN, first), first), first, false);
    // The process maps another file there and changes its name, and all records of it are lost.
    let after = BTreeMap::from([(7, ("renamed", maps(10))), (8, ("db", maps(9))), (11, ("new", maps(10)))]);
    let roots = procfs(dir.path(), &after);
    let lost = Record::Lost { id: OWN, lost: 3 };
    recorder.records(&bytes(&recorder, &lost, first + 1), first + 1, false);
    let begin = monotonic_ns();
    let mut live = Vec::new();
    let mut asked = 0;
    // The records of the end of a thread and of a whole process are lost too.
    let alive = [(7, 7), (7, 70), (8, 8), (20, 20), (20, 21)];
    recorder.renew(&roots, &alive, &mut |_, mut side_band| {
        live.append(&mut side_band);
        asked += 1;
        true
    });
    let end = monotonic_ns();
    assert_eq!(asked, 3 + 2, "process by process");
    let mut until_told = 0;
    recorder.renew(&roots, &[], &mut |_, _| {
        until_told += 1;
        false
    });
    assert_eq!(until_told, 1);
    assert!(live.iter().all(|side| (begin..=end).contains(&side.time)), "at the time at which it was read");
    let ends: Vec<_> = live
        .iter()
        .filter_map(|side| if let SideBand::Exit { pid, tid } = side.what { Some((pid, tid)) } else { None })
        .collect();
    assert_eq!(ends, [(7, 70), (20, 20), (20, 21)]);
    let named = |pid: u32, name: &str| {
        live.iter().any(
            |side| matches!(&side.what, SideBand::Comm { pid: of, comm, .. } if (*of, *comm) == (pid, name.into())),
        )
    };
    assert!(named(7, "renamed") && named(8, "db") && named(11, "new"));
    let last = monotonic_ns();
    recorder.records(&bytes(&recorder, &fault(OWN, last), last), last, false);
    recorder.finish_records().unwrap();

    let mut profile = Profile::open(dir.path()).unwrap();
    let mut seen = Collected::default();
    replay(&mut profile, &mut seen);
    let shared = |ino| Some(MemoryId::Shared { scope: MemoryScope::device(libc::makedev(8, 1), 0), ino, offset: 0 });
    assert_eq!(seen.0, [(first, Some("web".into()), shared(9)), (last, Some("renamed".into()), shared(10))]);

    // A reader gets what the session got.
    let Some(perf_data) = Profile::open(dir.path()).ok().map(|profile| profile.records) else { unreachable!() };
    let crate::profile::Records::PerfData(mut perf_data) = perf_data else { unreachable!() };
    let mut intake = Intake::new(recorder.identity(), recorder.address_from().clone());
    while let Some(item) = perf_data.next_item().unwrap() {
        if let Item::Record { bytes, layout, .. } = item {
            intake.take(bytes, layout);
        }
    }
    let read: Vec<_> = std::mem::take(&mut intake.batch().side_band);
    let renewed: Vec<_> = read.into_iter().filter(|side| (begin..=end).contains(&side.time)).collect();
    assert_eq!(renewed, live);
}

#[test]
fn no_mark_passes_what_is_being_recorded_again() {
    let dir = tempfile::tempdir().unwrap();
    let roots = procfs(dir.path(), &BTreeMap::from([(7, ("web", String::new()))]));
    let recorder = recorder(dir.path());
    recorder.snapshot(&roots, None, &Cgroups::recorded(), &mut |_| {}).unwrap();
    // Newer than all that is recorded again, so that a second mark would declare it complete.
    let newest = monotonic_ns() + 1_000_000_000_000;
    let mark = |step| {
        recorder.records(&bytes(&recorder, &fault(OWN, newest + step), newest + step), newest + step, false);
        recorder.complete(0, u64::MAX);
    };
    recorder.renew(&roots, &[], &mut |_, _| {
        mark(0);
        mark(1);
        true
    });
    mark(2);
    recorder.finish_records().unwrap();
    let mut file = PerfData::open(File::open(dir.path().join("perf.data")).unwrap()).unwrap();
    let mut order = Vec::new();
    while let Some(item) = file.next_item().unwrap() {
        match item {
            Item::Round => order.push(None),
            Item::Record { bytes, .. } if Header::read(bytes).unwrap().kind == sys::PERF_RECORD_SAMPLE => {
                order.push(Some(order.len()));
            }
            Item::Record { .. } => {}
        }
    }
    assert_eq!(order, [Some(0), None, Some(2), Some(3), None]);
}

#[test]
fn what_the_events_lost_is_in_the_records() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = recorder(dir.path());
    let lost = Record::Lost { id: OWN, lost: 7 };
    recorder.records(&bytes(&recorder, &lost, 5), 5, false);
    recorder.lost(&[(OWN, 6), (OWN + 1, 3)]);
    recorder.finish_records().unwrap();
    // As for a user who has only perf.data.
    std::fs::remove_file(dir.path().join("meta.json")).unwrap();
    let mut profile = Profile::open(&dir.path().join("perf.data")).unwrap();
    let outcome = replay(&mut profile, &mut Collected::default());
    assert_eq!((outcome.loss.ring_full, outcome.loss.hardware), (9, 0));
}

#[test]
fn a_recording_that_is_never_finished_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = recorder(dir.path());
    recorder.records(&bytes(&recorder, &fault(OWN, 10), 10), 10, false);
    recorder.lock().unspool();
    drop(recorder);
    let profile = Profile::open(dir.path()).unwrap();
    assert!(profile.damage().iter().any(|line| line.contains("was not finished")), "{:?}", profile.damage());
    let meta = profile.meta.unwrap();
    assert!(meta.unfinished && meta.events.len() == 2 && meta.begin > 0 && !meta.host.kernel.is_empty());
    assert_eq!((meta.source.as_str(), meta.address_from, meta.identity.own_pid), ("faults", AddressFrom::Fault, 1));
}

#[test]
fn files_are_for_their_owner_and_meta_json_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = recorder(dir.path());
    let (path, kept) = (dir.path().join("meta.json"), dir.path().join("kept"));
    let begun = fs::read(&path).unwrap();
    fs::hard_link(&path, &kept).unwrap();
    recorder.finish(&Outcome::default()).unwrap();
    assert_eq!(fs::read(&kept).unwrap(), begun, "another file took its place");
    fs::remove_file(kept).unwrap();
    let ended = fs::read_to_string(&path).unwrap();
    assert!(ended.ends_with("}\n") && !ended.contains("unfinished"), "{ended}");
    for entry in fs::read_dir(dir.path()).unwrap().flatten() {
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", entry.path().display());
    }
}

#[test]
fn cgroups_without_a_record_are_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = recorder(dir.path());
    let record = bytes(&recorder, &Record::Cgroup { id: 5, path: b"/recorded" }, 10);
    recorder.records(&record, 10, false);
    let mut cgroups = Cgroups::recorded();
    cgroups.record(5, b"/recorded");
    cgroups.record(6, b"/found later");
    recorder.note_cgroups(&cgroups);
    assert_eq!(recorder.late_cgroups(), [(6, b"/found later".to_vec())]);
}

#[test]
fn what_is_remembered_is_bounded_and_said() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = recorder(dir.path());
    let files = MAX_PATH_BYTES / 4000 + 50;
    for number in 0..files {
        let filename = format!("/{number:05}{}", "x".repeat(3994));
        let file = MappedFile::Inode { major: 254, minor: 1, inode: 9, generation: 0 };
        let filename = filename.as_bytes();
        let (pid, tid, addr, len, pgoff, prot, flags, data) = (7, 7, 0x1000, 0x1000, 0, 5, 2, false);
        let mapping = Record::Mmap2 { pid, tid, addr, len, pgoff, file, prot, flags, data, filename };
        recorder.records(&bytes(&recorder, &mapping, 10), 10, false);
    }
    for id in 0..MAX_CGROUPS as u64 + 50 {
        recorder.records(&bytes(&recorder, &Record::Cgroup { id, path: b"/x" }, 10), 10, false);
    }
    // Too many cgroups without a record, each with its own path.
    let mut cgroups = Cgroups::recorded();
    for id in 1..=3000u64 {
        cgroups.record(1 << 32 | id, format!("/{id:05}{}", "x".repeat(1994)).as_bytes());
    }
    recorder.note_cgroups(&cgroups);
    let late = recorder.late_cgroups();
    let state = recorder.lock();
    assert_eq!(state.files.path_bytes, MAX_PATH_BYTES / 4000 * 4000);
    assert_eq!(state.cgroups.len(), MAX_CGROUPS);
    assert!(late.iter().map(|(_, path)| path.len() * 2).sum::<usize>() < meta::MAX_CGROUPS);
    let expected = ((files - MAX_PATH_BYTES / 4000) as u64, 3000 - late.len() as u64);
    let left_out = (state.files.left_out(), state.left_out);
    assert!(left_out == expected && expected.0 > 0 && expected.1 > 0, "{left_out:?}");
    drop(state);
    assert_eq!(recorder.left_out().len(), 2);
    // Written cgroups are read again.
    recorder.finish(&Outcome::default()).unwrap();
    assert_eq!(Meta::read(dir.path()).unwrap().unwrap().cgroups.len(), late.len());
}

/// Keeps the thread and the cgroup's path of each sample.
#[derive(Default)]
struct Paths(Vec<(u32, Option<Vec<u8>>)>);

impl Sink for Paths {
    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups) {
        self.0.push((sample.raw.tid, cgroups.path(sample.raw.cgroup).map(|path| path.to_vec())));
    }
}

#[test]
fn threads_have_their_cgroups_where_samples_have_none() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = recorder_with(Features::all().less(Feature::Cgroup), dir.path());
    let comm = |tid| Record::Comm { pid: 7, tid, exec: false, comm: b"web" };
    let of = |tid, time| {
        Record::Sample(SampleRecord { identifier: OWN, pid: 7, tid, time, addr: 0x1000, ..SampleRecord::default() })
    };
    let fork = Record::Fork { pid: 7, ppid: 7, tid: 9, ptid: 8, time: 26 };
    let ring = [
        bytes(&recorder, &comm(7), 5),
        bytes(&recorder, &comm(8), 6),
        bytes(&recorder, &of(7, 10), 10),
        bytes(&recorder, &of(8, 20), 20),
        bytes(&recorder, &fork, 26),
        bytes(&recorder, &of(9, 30), 30),
        bytes(&recorder, &of(7, 40), 40),
        bytes(&recorder, &of(8, 50), 50),
        bytes(&recorder, &comm(10), 60),
        bytes(&recorder, &of(10, 70), 70),
    ];
    // Before the record that names the thread.
    recorder.cgroup(15, (7, 10), (70, b"/web"));
    recorder.cgroup(20, (7, 8), (70, b"/web"));
    recorder.cgroup(40, (7, 7), (71, b"/a\xff"));
    recorder.cgroup(50, (7, 8), (71, b"/a\xff"));
    recorder.records(&ring.concat(), 50, false);
    recorder.finish(&Outcome::default()).unwrap();
    let mut profile = Profile::open(dir.path()).unwrap();
    let mut found = Paths::default();
    replay(&mut profile, &mut found);
    let [web, other] = [b"/web".to_vec(), b"/a\xff".to_vec()].map(Some);
    let expected = [(7, None), (8, web.clone()), (9, web.clone()), (7, other.clone()), (8, other), (10, web)];
    assert_eq!((found.0, profile.damage()), (expected.to_vec(), Vec::new()));
}

#[test]
fn samples_with_cgroups_need_no_file_of_them() {
    let dir = tempfile::tempdir().unwrap();
    recorder(dir.path()).cgroup(20, (7, 8), (70, b"/web"));
    assert!(!dir.path().join(thread_cgroups::NAME).exists());
}
