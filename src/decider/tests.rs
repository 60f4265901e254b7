//! Tests of the decider: cells by hint and by path, threads that a prefix takes along, locality.

use std::fs;

use super::decider::*;
use crate::config::CellOptions;
use crate::config::{self, CellSpecs, Task, Verdict};
use crate::host::facts::Tasks;
use crate::host::Roots;
use crate::resolve::{Cgroups, Symbols};
use crate::sample::{Comm, MemoryId, RawSample, Sample, Source};
use crate::sinks::Sink;

/// An empty hierarchy.
fn no_cgroups() -> (tempfile::TempDir, Cgroups) {
    let dir = tempfile::tempdir().unwrap();
    let (proc, cgroup) = (dir.path().join("proc"), dir.path().join("cgroup"));
    fs::create_dir_all(proc.join("self")).unwrap();
    fs::create_dir(&cgroup).unwrap();
    fs::write(proc.join("self/cgroup"), "0::/\n").unwrap();
    fs::write(proc.join("self/mountinfo"), "").unwrap();
    let cgroups = Cgroups::new(&Roots { proc, cgroup: Some(cgroup), ..Roots::default() }).unwrap();
    (dir, cgroups)
}

/// Worker 0 shares with workers 1 and 2 under hint 1 and with 3 and 4 under hint 2; its stack is private under both.
#[test]
fn a_thread_under_two_hints_is_two_classes() {
    let (_dir, mut cgroups) = no_cgroups();
    let specs = CellSpecs::new(&CellOptions::default()).unwrap();
    let mut decider = Decider::new(specs, Source::Timer, 12 << 20).use_hints();
    let mut rng = crate::cluster::truth::Rng::new(7);
    for turn in 0..12_000u64 {
        let thread = (turn % 6) as u32;
        // 5 represents worker 0 under its other hint.
        let (thread, hint) = match thread {
            5 => (0, 2),
            0..=2 => (thread, 1),
            _ => (thread, 2),
        };
        let addr = match rng.below(10) {
            0..=2 => (u64::from(thread) + 1) << 40 | rng.below(4) << 12,
            _ => hint << 32 | rng.below(64) << 12 | rng.below(64) << 6,
        };
        let memory = Some(MemoryId::Private { space: 1, addr });
        let sample = Sample {
            raw: RawSample { pid: 9, tid: 10 + thread, access: crate::sample::Access::Store, ..RawSample::default() },
            thread,
            comm: Some("worker".into()),
            hint: Some(hint),
            memory,
            ..Sample::default()
        };
        decider.sample(&sample, &mut cgroups);
    }
    let options = config::DecisionOptions::new(0.05, 16);
    let decided = decider.decide(&options).unwrap();
    let members = &decided.members.threads;
    assert_eq!(members.len(), 6);
    let of = |tid: u32, hint: u64| {
        members.iter().find(|it| (it.tid, it.hint) == (tid, Some(hint))).map(|it| it.verdict).unwrap()
    };
    assert!(matches!(of(10, 1), Verdict::Community(_)), "{members:?}");
    assert_eq!((of(10, 1), of(10, 1)), (of(11, 1), of(12, 1)));
    assert_eq!((of(10, 2), of(10, 2)), (of(13, 2), of(14, 2)));
    assert_ne!(of(10, 1), of(10, 2));

    let layers = config::layers_by_hint(decided.configuration(), &decided.members).layers;
    let consumer = config::layered::Consumer::new(&layers).unwrap();
    let layer = |hint| consumer.takers(&Task::new(b"/", b"worker").hinted(hint), &Tasks::default()).otherwise.unwrap();
    assert_ne!(layer(Some(1)), layer(Some(2)), "{layers:?}");
    assert_eq!(layer(Some(3)), layer(None));
    assert_eq!(layer(None), layers.len() - 1, "a name that says nothing is nobody's: {layers:?}");
    // A scheduler without hints still gets a configuration that it loads.
    assert!(config::mitosis::to_json(&decided.configuration().cells).is_ok());
    // Its stack is not shared.
    let clusters = &decided.clusters;
    assert!(clusters.locality > Some(0.99), "{:?}", clusters.locality);
    assert!(clusters.communities.iter().all(|it| it.pages.iter().all(|page| page.threads == 3)));
}

#[test]
fn a_thread_that_its_name_takes_along_is_named() {
    let (_dir, mut cgroups) = no_cgroups();
    let mut decider = Decider::new(CellSpecs::new(&CellOptions::default()).unwrap(), Source::Timer, 8 << 20);
    let mut rng = crate::cluster::truth::Rng::new(3);
    for turn in 0..4000u64 {
        let thread = (turn % 4) as u32;
        // 0 and 1 share a buffer, 2 is called like them, 3 is not.
        let addr = match thread {
            0 | 1 if rng.below(2) == 0 => 1 << 32 | rng.below(4096) << 6,
            _ => (u64::from(thread) + 1) << 40 | rng.below(4096) << 6,
        };
        let memory = Some(MemoryId::Private { space: 1, addr });
        let comm = Some(if thread == 3 { "other".into() } else { "worker".into() });
        let access = crate::sample::Access::Store;
        let sample = Sample {
            raw: RawSample { pid: 9, tid: 10 + thread, access, share: 1.0, ..RawSample::default() },
            thread,
            comm,
            memory,
            ..Sample::default()
        };
        decider.sample(&sample, &mut cgroups);
    }
    let options = config::DecisionOptions::new(0.05, 16);
    let decided = decider.decide(&options).unwrap();
    let verdicts: Vec<Verdict> = decided.members.threads.iter().map(|it| it.verdict).collect();
    assert_eq!(verdicts, [Verdict::Community(0), Verdict::Community(0), Verdict::Alone, Verdict::Alone]);
    let notes: Vec<String> = decided.configuration().notes.iter().map(ToString::to_string).collect();
    assert!(
        notes
            .iter()
            .any(|note| note
                == "rest/worker takes thread 12 by name, which shares memory with no other thread of its cell"),
        "{notes:?}"
    );
    // No configuration is worse than grouping by name.
    let report = decider.report(&decided, &Symbols::default(), &options).unwrap();
    assert!(report.locality >= report.locality_by_name, "{report:?}");
}

#[test]
fn a_path_that_comes_late_is_taken() {
    let (_dir, mut cgroups) = no_cgroups();
    let specs = CellSpecs::new(&CellOptions { cells: vec!["db=/db$".to_owned()], ..CellOptions::default() }).unwrap();
    let mut decider = Decider::new(specs, Source::Faults, 1 << 20);
    let sample = Sample {
        raw: RawSample { cgroup: 77, share: 1.0, ..RawSample::default() },
        comm: Some("x".into()),
        ..Sample::default()
    };
    decider.sample(&sample, &mut cgroups);
    cgroups.record(77, b"/db");
    decider.sample(&sample, &mut cgroups);
    assert_eq!(decider.no_cgroup_path(), 1);
    let cells: Vec<_> = decider.tally().cells().map(|(_, cell)| (cell.cgroup.clone(), cell.total)).collect();
    assert!(cells.contains(&(Some(b"/db".to_vec()), 1.0)), "{cells:?}");
}

#[test]
fn where_nothing_is_shared_there_is_no_locality() {
    let (_dir, mut cgroups) = no_cgroups();
    let mut decider = Decider::new(CellSpecs::new(&CellOptions::default()).unwrap(), Source::Timer, 8 << 20);
    let mut locality = |thread: u32, page: u64| {
        for line in 0..30 {
            let memory = Some(MemoryId::Private { space: 1, addr: page << 12 | line << 6 });
            let (comm, tid) = (Some("x".into()), 10 + thread);
            let sample = Sample {
                raw: RawSample { pid: 10, tid, share: 1.0, ..RawSample::default() },
                thread,
                comm,
                memory,
                ..Sample::default()
            };
            decider.sample(&sample, &mut cgroups);
        }
        let options = config::DecisionOptions::new(0.05, 4);
        decider.report(&decider.decide(&options).unwrap(), &Symbols::default(), &options).unwrap().locality
    };
    assert_eq!(locality(0, 1), None);
    assert_eq!(locality(1, 2), None);
    assert!(locality(1, 1).is_some());
}

/// Samples of a thread under a name, in the cgroup of that number.
fn add(decider: &mut Decider, cgroups: &mut Cgroups, thread: u32, comm: &str, cgroup: u64, count: u32) {
    for line in 0..u64::from(count) {
        let sample = Sample {
            raw: RawSample { pid: 9, tid: 10 + thread, cgroup, share: 1.0, ..RawSample::default() },
            thread,
            comm: Some(comm.into()),
            hint: Some(line % 2),
            memory: Some(MemoryId::Private { space: 1, addr: line << 6 }),
            ..Sample::default()
        };
        decider.sample(&sample, cgroups);
    }
}

#[test]
fn only_a_source_with_a_rate_is_to_sample_more_often() {
    for (source, has_rate) in
        [(Source::Timer, true), (Source::Pebs, true), (Source::Faults, false), (Source::Wakeups, false)]
    {
        let (_dir, mut cgroups) = no_cgroups();
        let mut decider = Decider::new(CellSpecs::new(&CellOptions::default()).unwrap(), source, 8 << 20);
        add(&mut decider, &mut cgroups, 0, "rare", 0, 3);
        let decided = decider.decide(&config::DecisionOptions::new(0.05, 16)).unwrap();
        let notes: Vec<String> = decided.found.configuration.notes.iter().map(ToString::to_string).collect();
        let note = notes.iter().find(|note| note.contains("too few to judge")).unwrap_or_else(|| panic!("{notes:?}"));
        assert!(note.contains("Sample longer (-t)"), "{source}: {note}");
        assert_eq!(note.contains("--freq"), has_rate, "{source}: {note}");
    }
}

/// Name and samples of each class, and the names of the members.
fn names(decider: &Decider) -> (Vec<(String, u64)>, Vec<String>) {
    let mut classes: Vec<_> =
        decider.tally().counts().map(|(_, comm, count)| (comm.to_string(), count as u64)).collect();
    classes.sort();
    let decided = decider.decide(&config::DecisionOptions::new(0.05, 4)).unwrap();
    let mut members: Vec<_> = decided.members.threads.iter().map(|it| it.comm.unwrap().to_string()).collect();
    members.sort();
    members.dedup();
    (classes, members)
}

/// The scheduler matches the name that a thread has, not the one that it had before its exec.
#[test]
fn a_thread_counts_by_its_last_name_alone() {
    for use_hints in [false, true] {
        let (_dir, mut cgroups) = no_cgroups();
        cgroups.record(1, b"/a");
        cgroups.record(2, b"/b");
        let cells = ["a=/a$", "b=/b$"].map(str::to_owned).to_vec();
        let specs = CellSpecs::new(&CellOptions { cells, ..CellOptions::default() }).unwrap();
        let mut decider = Decider::new(specs, Source::Timer, 8 << 20);
        if use_hints {
            decider = decider.use_hints();
        }
        // Two shells, in two cgroups, become servers, one of them after its last sample; a third stays what it is.
        add(&mut decider, &mut cgroups, 0, "sh", 1, 30);
        add(&mut decider, &mut cgroups, 0, "sh", 2, 10);
        add(&mut decider, &mut cgroups, 1, "sh", 2, 20);
        add(&mut decider, &mut cgroups, 0, "server", 1, 5);
        assert_eq!(names(&decider).0, [("server".to_owned(), 10), ("server".to_owned(), 35), ("sh".to_owned(), 20)]);
        decider.ended(&[(0, "server".into()), (1, "worker".into()), (7, "nobody".into())]);
        add(&mut decider, &mut cgroups, 2, "sh", 1, 6);
        let (classes, members) = names(&decider);
        let expected = [("server", 10), ("server", 35), ("sh", 6), ("worker", 20)];
        assert_eq!(classes, expected.map(|(name, count)| (name.to_owned(), count)), "hints: {use_hints}");
        assert_eq!(members, ["server", "sh", "worker"]);
        assert_eq!(decider.tally().total() as u64, 71);
    }
}

/// Whether something is so at a time in seconds.
type When = fn(f64) -> bool;

/// The notes on a run of 20 s in which two pairs share a buffer each where `shares` says, with a thread of the
/// other pair where `swap` says, and otherwise work on memory of their own; threads sleep where `sleeps` says.
fn notes_of(shares: When, swap: When, sleeps: When) -> Vec<String> {
    let (_dir, mut cgroups) = no_cgroups();
    let specs = CellSpecs::new(&CellOptions::default()).unwrap();
    let mut decider = Decider::new(specs, Source::Timer, 12 << 20);
    let mut rng = crate::cluster::truth::Rng::new(3);
    for turn in 0..20_000u64 {
        let time = turn * 1_000_000;
        let (at, thread) = (time as f64 / 1e9, rng.below(4) as u32);
        if sleeps(at) && thread < 2 {
            continue;
        }
        let partner = if swap(at) { thread % 2 } else { thread / 2 };
        let addr = if shares(at) && rng.below(2) == 0 {
            (u64::from(partner) + 1) << 32 | rng.below(16 << 6) << 6
        } else {
            (u64::from(thread) + 1) << 40 | rng.below(16 << 6) << 6
        };
        let sample = Sample {
            raw: RawSample {
                time: 77 + time,
                pid: 9,
                tid: 10 + thread,
                access: if rng.below(3) == 0 { crate::sample::Access::Store } else { crate::sample::Access::Load },
                ..RawSample::default()
            },
            thread,
            comm: Some(Comm::from(format!("t{thread}x").as_str())),
            memory: Some(MemoryId::Private { space: 1, addr }),
            ..Sample::default()
        };
        decider.sample(&sample, &mut cgroups);
    }
    let options = config::DecisionOptions::new(0.05, 16);
    let decided = decider.decide(&options).unwrap();
    let report = decider.report(&decided, &Symbols::default(), &options).unwrap();
    assert!(report.cells[0].subcells.iter().any(|it| it.over_time.is_some()), "{report:?}");
    let notes = decided.configuration().notes.iter().map(ToString::to_string);
    notes.filter(|it| it.contains("after the first sample") || it.contains("several times")).collect()
}

#[test]
fn communities_that_are_not_the_same_all_the_time_have_a_note() {
    let always: When = |_| true;
    let never: When = |_| false;
    assert_eq!(notes_of(always, never, never), [""; 0]);
    // Threads that ran only then shared all the time.
    assert_eq!(notes_of(always, never, |at| at > 6.0), [""; 0]);
    let notes = notes_of(|at| (8.0..13.0).contains(&at), never, never);
    assert_eq!(notes.len(), 2, "{notes:?}");
    for note in notes {
        assert!(
            note.starts_with("rest: t0x, t1x share memory in ") || note.starts_with("rest: t2x, t3x share"),
            "{note}"
        );
        assert!(note.contains("% of the run only, between 8.0 and 1"), "{note}");
    }
    let notes = notes_of(always, |at| at > 10.0, never);
    assert!(!notes.is_empty());
    for note in notes {
        let at: f64 = note.split("before ").nth(1).and_then(|it| it.split(' ').next()).unwrap().parse().unwrap();
        assert!((9.0..11.0).contains(&at) && note.ends_with("Sample the time that counts"), "{note}");
    }
    let notes = notes_of(always, |at| at % 10.0 > 5.0, never);
    assert!(!notes.is_empty() && notes.iter().all(|it| it.contains(" change several times ")), "{notes:?}");
}

#[test]
fn a_decision_is_the_same_without_a_report() {
    use crate::cluster::truth::Scenario;
    let base = Scenario { threads: 12, samples: 600, groups: 3, ..Scenario::default() };
    for (scenario, cpus) in [
        (base.clone(), 16),
        (Scenario { phases: 2, ..base.clone() }, 16),
        (Scenario { globals: 0.3, ..base.clone() }, 16),
        (base, 1),
    ] {
        let decide = |reports: bool| {
            let (_dir, mut cgroups) = no_cgroups();
            let decider = Decider::new(CellSpecs::new(&CellOptions::default()).unwrap(), Source::Timer, 8 << 20);
            let mut decider = if reports { decider } else { decider.without_report() };
            let stream = scenario.stream(5);
            for (at, sample) in (0..).zip(&stream.samples) {
                let comm = Some(format!("w{}", stream.truth[sample.thread as usize]).as_str().into());
                let raw = RawSample { pid: 9, tid: 10 + sample.thread, time: 1 + at * 1_000_000, ..sample.raw };
                decider.sample(&Sample { raw, comm, ..*sample }, &mut cgroups);
            }
            decider.decide(&config::DecisionOptions::new(0.05, cpus)).unwrap()
        };
        let (with, without) = (decide(true), decide(false));
        assert_eq!(with.configuration(), without.configuration(), "{scenario:?}");
        assert_eq!(with.finding(), without.finding());
        assert_eq!(with.clusters.of_thread, without.clusters.of_thread);
        let pages =
            |decided: &crate::decider::Decided| decided.clusters.communities.iter().any(|it| !it.pages.is_empty());
        assert!(pages(&with));
        // What the host has no CPUs for is shown, with all that is known of it.
        let leaves_out = with.configuration().notes.iter().any(config::Note::leaves_out);
        assert_eq!((leaves_out, pages(&without)), (cpus == 1, cpus == 1), "{:?}", with.configuration().notes);
        assert_eq!(with.clusters == without.clusters, leaves_out);
    }
}
