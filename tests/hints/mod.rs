//! Task hints on the running kernel, with the best probe that it accepts: every sample has the hint that its thread had,
//! according to the program that writes the hints.
//!
//! Needs root, a bpffs and minor faults that can be sampled; otherwise each test prints SKIP. `SCXPROF_HINT_PROBE` names a
//! probe that is used instead of the best one, and must work (storage, element, syscall).

mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::alone;
use crate::support::capture::{capture_until, options, Collect};
use crate::support::replay::replay;
use scxprof::bpf::{self, MapRef};
use scxprof::hint::{self, HintCounts, HintProbe};
use scxprof::profile::Profile;
use scxprof::sample::{Comm, CpuMode, Sample, Source};
use scxprof::session::{HostOptions, Outcome};
use scxprof::testing::sampler::Target;
use writer::{program, BpfFs, Log, Writer, Written};

const SCXPROF: &str = env!("CARGO_BIN_EXE_scxprof");
const PAGES: usize = 512;
/// The number of samples of the host after which a capture may end, and its longest time.
const ENOUGH: u64 = 8_000;
const TIMEOUT: Duration = Duration::from_secs(60);

/// A bpffs and the program, or prints the reason.
fn memory(test: &str) -> Option<(BpfFs, PathBuf, tempfile::TempDir)> {
    let dir = tempfile::tempdir().unwrap();
    match BpfFs::mount().and_then(|bpffs| Ok((bpffs, program(dir.path())?))) {
        Ok((bpffs, program)) => Some((bpffs, program, dir)),
        Err(reason) => {
            println!("SKIP: {test}: {reason}");
            None
        }
    }
}

fn wanted_probe() -> Option<HintProbe> {
    std::env::var("SCXPROF_HINT_PROBE").ok().map(|probe| probe.parse().unwrap())
}

/// What to follow, as in a run.
fn watch_options(map: MapRef, ring_bytes: u32) -> bpf::HintOptions {
    let mut options = bpf::HintOptions::new(map);
    (options.probe, options.ring_bytes) = (wanted_probe(), ring_bytes);
    options
}

fn start(test: &str, program: &Path, pin: &Path, arguments: &[&str]) -> Option<Writer> {
    Writer::start(program, pin, arguments).inspect_err(|reason| println!("SKIP: {test}: {reason}")).ok()
}

/// Samples while the program writes, for `time`; the capture contains all of its writes but the first ones.
fn follow(test: &str, mut writer: Writer, map: MapRef, ring: u32, time: Duration) -> Option<(Collect, Outcome, Log)> {
    let hints = Some(watch_options(map, ring));
    let options = HostOptions { hints, ..options(Source::Faults, Target::System, PAGES) };
    let (mut begun, mut ended) = (false, false);
    let (collect, outcome) = capture_until(test, options, |progress| {
        if !begun {
            begun = true;
            writer.next();
        }
        // On a slow machine it takes longer to collect enough.
        let enough = progress.samples >= ENOUGH || progress.elapsed > TIMEOUT;
        if !ended && progress.elapsed >= time && enough {
            ended = true;
            writer.next();
        }
        writer.has_ended()
    })?;
    let log = writer.log();
    assert!(log.complete, "the program did not end as it should");
    let counts = outcome.hints.as_ref().unwrap();
    println!("{test}: {counts:?}; {:?}", outcome.loss);
    if let Some(reason) = counts.missing.as_ref().filter(|_| counts.probe.is_none()) {
        assert!(wanted_probe().is_none() && reason.starts_with("hint writes cannot be observed here"), "{reason}");
        println!("SKIP: {test}: {reason}");
        return None;
    }
    assert!(wanted_probe().is_none_or(|wanted| counts.probe == Some(wanted)));
    Some((collect, outcome, log))
}

/// Every write was observed, or counted as lost; and nothing else was observed but the ends of tasks.
fn all_is_counted(counts: &HintCounts, log: &Log, tasks: u64) {
    let first = log.writes.iter().filter(|write| matches!(write.hint, Some(100..=115))).count() as u64;
    let written = log.writes.len() as u64 - first + log.flood;
    let hint::Counts { events, dropped, unreadable, .. } = counts.counts;
    let seen = events + dropped + unreadable;
    // A missed event need not have been a hint.
    assert!(seen + counts.counts.missed >= written, "{seen} of {written}: {counts:?}");
    assert!(seen <= written + tasks, "{seen} of {written} and up to {tasks} ends: {counts:?}");
}

/// The hints that a thread may have had at a time: several while a write was in progress.
fn allowed(writes: &[Written], time: u64) -> Vec<Option<u64>> {
    let done = writes.iter().rfind(|write| write.after < time).and_then(|write| write.hint);
    let on_its_way = writes.iter().filter(|write| write.before <= time && time <= write.after).map(|write| write.hint);
    [done].into_iter().chain(on_its_way).collect()
}

#[test]
fn every_sample_has_its_threads_hint() {
    const TEST: &str = "every_sample_has_its_threads_hint";
    let _alone = alone();
    let Some((bpffs, program, _dir)) = memory(TEST) else { return };
    let Some(writer) = start(TEST, &program, &bpffs.path("hints"), &["-x"]) else { return };
    let map = MapRef::Path(bpffs.path("hints"));
    let Some((collect, outcome, log)) = follow(TEST, writer, map, 8 << 20, Duration::from_secs(3)) else { return };
    let counts = outcome.hints.unwrap();

    let mut of_tid: BTreeMap<u32, Vec<Written>> = BTreeMap::new();
    for write in &log.writes {
        of_tid.entry(write.tid).or_default().push(*write);
    }
    // A lost event can make the samples of a phase wrong, and a late event one sample.
    let (mut checked, mut wrong) = (0, BTreeSet::new());
    let mut seen: BTreeSet<Option<u64>> = BTreeSet::new();
    for sample in &collect.samples {
        let Some(writes) = of_tid.get(&sample.raw.tid) else { continue };
        checked += 1;
        seen.insert(sample.hint);
        if !allowed(writes, sample.raw.time).contains(&sample.hint) {
            let phase = writes.iter().filter(|write| write.after < sample.raw.time).count();
            wrong.insert((sample.raw.tid, phase, sample.hint));
        }
    }
    println!("{TEST}: {checked} samples checked against {} writes, {} phases wrong", log.writes.len(), wrong.len());
    let excuse = counts.counts.lost() + counts.late + outcome.loss.late;
    assert!(wrong.len() as u64 <= excuse, "{} wrong, {excuse} lost or late: {wrong:?}", wrong.len());
    assert!(checked > 1000, "{checked} samples");
    assert!(seen.contains(&None) && seen.contains(&Some(5000)), "{seen:?}");
    assert!(seen.iter().flatten().any(|hint| (200..300).contains(hint)), "nobody's neighbour wrote: {seen:?}");
    // A write that failed has no effect; but if the end of one is missed, a later end is taken for it.
    let has_failed = seen.contains(&Some(998)) || seen.contains(&Some(999));
    assert!((!has_failed || counts.counts.lost() > 0) && log.failed > 0, "{seen:?}: {counts:?}");
    assert!(counts.above_limit > 0 && counts.counts.at_start + counts.counts.not_asked >= 3, "{counts:?}");

    // Actors, the thread that calls exec (its new id, its end), the one with the reused id: a write and an end each.
    all_is_counted(&counts, &log, 3 + 4 + 2);
    let all_seen = counts.counts.lost() == 0;
    after_exec(&collect.samples, &log, all_seen);
    after_reuse(&collect.samples, &log, all_seen);
}

/// A thread keeps its hint when its exec gives it its process's id.
fn after_exec(samples: &[Sample], log: &Log, all_seen: bool) {
    let Some((pid, hint)) = log.exec else {
        println!("SKIP: after_exec: no pidfds for threads");
        return;
    };
    let of_exec: Vec<&Sample> = samples
        .iter()
        .filter(|sample| (sample.raw.pid, sample.raw.tid) == (pid, pid) && sample.comm == Some(Comm::from("exe")))
        // The kernel faults for the new program before the exec has finished.
        .filter(|sample| sample.raw.mode == CpuMode::User)
        .collect();
    let with = of_exec.iter().filter(|sample| sample.hint == Some(hint)).count();
    assert!(!of_exec.is_empty());
    assert!(!all_seen || with == of_exec.len(), "{with} of {} samples after exec have the hint", of_exec.len());
}

/// The next owner of an id has no hint.
fn after_reuse(samples: &[Sample], log: &Log, all_seen: bool) {
    let Some(tid) = log.reused else {
        println!("SKIP: after_reuse: an id cannot be chosen here");
        return;
    };
    let of_tid: Vec<&Sample> = samples.iter().filter(|sample| sample.raw.tid == tid).collect();
    let last = of_tid.last().expect("samples of the reused id").thread;
    let (second, first): (Vec<&Sample>, Vec<&Sample>) = of_tid.into_iter().partition(|sample| sample.thread == last);
    assert!(!all_seen || first.iter().any(|sample| sample.hint == Some(88)), "the first owner had a hint");
    assert!(second.iter().all(|sample| sample.hint.is_none()), "the second owner has none");
}

#[test]
fn a_recording_keeps_the_hints() {
    const TEST: &str = "a_recording_keeps_the_hints";
    let _alone = alone();
    let Some((bpffs, program, dir)) = memory(TEST) else { return };
    let Some(mut writer) = start(TEST, &program, &bpffs.path("hints"), &[]) else { return };
    let profile = dir.path().join("profile");
    let map = format!("id:{}", writer.map_id);
    let mut record = Command::new(SCXPROF);
    record.args(["record", "--disable-archive", "--source", "faults", "-t", "120", "--hints-map", &map]);
    record.args(wanted_probe().map(|probe| format!("--hints-probe={}", probe_name(probe)))).arg("-o").arg(&profile);
    let mut record = record.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // First until its file exists, then until there are some thousands of faults.
    let written = || -> u64 {
        let temporary = std::fs::read_dir(dir.path()).unwrap().flatten();
        let file = temporary.map(|entry| entry.path().join("perf.data")).find(|path| path.is_file());
        file.and_then(|path| path.metadata().ok()).map_or(0, |metadata| metadata.len() + 1)
    };
    let mut wait_for = |bytes: u64| {
        let begin = Instant::now();
        while written() < bytes && begin.elapsed() < TIMEOUT && record.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    wait_for(1);
    writer.next();
    wait_for(written() + (2 << 20));
    writer.next();
    // SAFETY: the process is our own child and has not been waited for.
    unsafe { libc::kill(record.id() as i32, libc::SIGINT) };
    let output = record.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let log = writer.log();
    if matches!(output.status.code(), Some(3)) || said.contains("hints are missing") {
        println!("SKIP: {TEST}: {}", said.lines().last().unwrap_or_default());
        return;
    }
    assert!(matches!(output.status.code(), Some(0 | 4)), "{said}");
    let mut profile = Profile::open(&profile).unwrap();
    let mut collect = Collect::default();
    let outcome = replay(&mut profile, 64 << 20, &mut collect);
    let counts = outcome.hints.unwrap();
    let (mut checked, mut wrong, mut with) = (0, BTreeSet::new(), 0);
    for sample in &collect.samples {
        let writes: Vec<Written> = log.writes.iter().filter(|write| write.tid == sample.raw.tid).copied().collect();
        if writes.is_empty() {
            continue;
        }
        checked += 1;
        with += u64::from(sample.hint.is_some());
        if !allowed(&writes, sample.raw.time).contains(&sample.hint) {
            let phase = writes.iter().filter(|write| write.after < sample.raw.time).count();
            wrong.insert((sample.raw.tid, phase, sample.hint));
        }
    }
    println!("{TEST}: {checked} samples, {with} with a hint, {} phases wrong; {counts:?}", wrong.len());
    let excuse = counts.counts.lost() + counts.late + outcome.loss.late;
    assert!(wrong.len() as u64 <= excuse, "{} wrong, {excuse} lost or late: {wrong:?}", wrong.len());
    assert!(with > 100, "{with} of {checked} samples with a hint: {said}");
}

fn probe_name(probe: HintProbe) -> &'static str {
    match probe {
        HintProbe::LocalStorageUpdate => "local_storage_update",
        HintProbe::PidTaskStorageUpdateElem => "pid_task_storage_update_elem",
        HintProbe::Syscall => "syscall",
        other => panic!("{other} is new"),
    }
}

#[test]
fn a_hundred_thousand_writes_a_second_are_seen_or_counted() {
    const TEST: &str = "a_hundred_thousand_writes_a_second_are_seen_or_counted";
    let _alone = alone();
    let Some((bpffs, program, _dir)) = memory(TEST) else { return };
    let Some(writer) = start(TEST, &program, &bpffs.path("hints"), &["-f", "100000"]) else { return };
    let map = MapRef::Id(writer.map_id);
    let Some((_, outcome, log)) = follow(TEST, writer, map, 1 << 20, Duration::from_secs(2)) else { return };
    assert!(log.flood > 0);
    all_is_counted(&outcome.hints.unwrap(), &log, 4);
}

#[test]
fn what_finds_the_ring_full_is_counted() {
    const TEST: &str = "what_finds_the_ring_full_is_counted";
    let _alone = alone();
    let Some((bpffs, program, _dir)) = memory(TEST) else { return };
    // As long as a slow machine needs.
    for seconds in [1, 5, 25] {
        let pin = bpffs.path(&format!("hints{seconds}"));
        let Some(writer) = start(TEST, &program, &pin, &["-f", "10000000"]) else { return };
        let map = MapRef::Name(writer.map_name());
        let Some((_, outcome, log)) = follow(TEST, writer, map, 4096, Duration::from_secs(seconds)) else { return };
        let counts = outcome.hints.unwrap();
        all_is_counted(&counts, &log, 4);
        if counts.counts.dropped > 0 {
            assert!(counts.lines().iter().any(|line| line.contains("in a full ring")), "{:?}", counts.lines());
            return;
        }
    }
    panic!("a ring of one page held all of it");
}

/// The message about a map that cannot be followed; `None`, with the reason printed, if sampling is not possible.
fn refused(test: &str, map: &str) -> Option<String> {
    let hints = Some(watch_options(map.parse().unwrap(), 1 << 16));
    let options = HostOptions { hints, ..options(Source::Faults, Target::System, PAGES) };
    let (_, outcome) = capture_until(test, options, |_| true)?;
    let counts = outcome.hints.expect("hints were asked for");
    assert_eq!(counts.probe, None, "{map} was taken for a hint map");
    counts.missing
}

#[test]
fn a_map_that_cannot_be_is_one_sentence() {
    const TEST: &str = "a_map_that_cannot_be_is_one_sentence";
    let _alone = alone();
    let Some((bpffs, program, dir)) = memory(TEST) else { return };
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    for (map, said) in [
        (dir.path().join("nothing").display().to_string(), "No such file"),
        (file.display().to_string(), "not a pinned map"),
        (dir.path().display().to_string(), "not a pinned map"),
        ("id:4294967295".to_owned(), "No such file"),
        ("name:no_such_map".to_owned(), "no map"),
    ] {
        let Some(sentence) = refused(TEST, &map) else { return };
        assert!(sentence.contains(said) && !sentence.contains('\n'), "{map}: {sentence}");
    }
    for (option, said) in [("hash", "a map of type Hash"), ("small", "values have 4 bytes")] {
        let pin = bpffs.path(option);
        let made = Command::new(&program).arg("-m").arg(option).arg(&pin).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let Some(sentence) = refused(TEST, &pin.display().to_string()) else { return };
        assert!(sentence.contains(said), "{sentence}");
    }
}

#[test]
fn without_hints_the_profile_goes_on() {
    const TEST: &str = "without_hints_the_profile_goes_on";
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.json");
    let output = Command::new(SCXPROF)
        .args(["run", "--source", "faults", "--hints-map", "/proc/self/no-map", "--report"])
        .arg(&report)
        .args(["--", "sh", "-c", "i=0; while [ $i -lt 300 ]; do (true); i=$((i + 1)); done"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(3) {
        println!("SKIP: {TEST}: {said}");
        return;
    }
    // Too many losses on a busy machine are tested elsewhere.
    assert!(matches!(output.status.code(), Some(0 | 4)), "{said}");
    assert!(
        said.contains("cannot open the hint map /proc/self/no-map") && said.contains("hints are missing"),
        "{said}"
    );
    assert!(scxprof::config::mitosis::parse(&String::from_utf8_lossy(&output.stdout)).is_ok());
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert!(report["hints"]["missing"].as_str().unwrap().contains("no-map"), "{}", report["hints"]);
    assert!(report["hints"]["probe"].is_null());
}

#[test]
fn a_map_that_is_removed_is_told() {
    const TEST: &str = "a_map_that_is_removed_is_told";
    let _alone = alone();
    let Some((bpffs, program, _dir)) = memory(TEST) else { return };
    let pin = bpffs.path("hints");
    let Some(mut writer) = start(TEST, &program, &pin, &[]) else { return };
    let hints = Some(watch_options(MapRef::Path(pin.clone()), 1 << 20));
    let options = HostOptions { hints, ..options(Source::Faults, Target::System, PAGES) };
    let mut begun = false;
    let captured = capture_until(TEST, options, |progress| {
        if !begun {
            begun = true;
            writer.next();
            std::fs::remove_file(&pin).unwrap();
        }
        progress.elapsed > Duration::from_secs(3)
    });
    let Some((_, outcome)) = captured else { return };
    let counts = outcome.hints.unwrap();
    if counts.probe.is_none() {
        println!("SKIP: {TEST}: {}", counts.missing.unwrap_or_default());
        return;
    }
    assert!(counts.missing.is_some_and(|missing| missing.contains("was removed")));
    assert!(outcome.notes.iter().any(|note| note.contains("was removed")), "{:?}", outcome.notes);
    assert!(outcome.samples > 0);
}

#[test]
fn each_probe_says_whether_it_works() {
    let _alone = alone();
    let trials = bpf::trials(Path::new("/proc"));
    let names: Vec<&str> = trials.iter().map(|(name, _)| *name).collect();
    // And the iterator, the memory in samples, and that of the kernel.
    assert_eq!(names.len(), HintProbe::ALL.len() + 3);
    for (name, result) in trials {
        match result {
            Ok(()) => println!("{name}: works"),
            Err(refusal) if wanted_probe().is_some_and(|probe| probe.name() == name) => panic!("{refusal}"),
            Err(refusal) => {
                println!("{refusal}");
                assert_eq!(refusal.what, name);
                assert!(!refusal.reason.is_empty() && !refusal.reason.contains('\n'));
            }
        }
    }
}
