//! Memory is identified correctly even if numbers or old mappings suggest otherwise: live, and in a recording.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use scxprof::profile::Profile;
use scxprof::sample::{MemoryId, Sample};
use scxprof::session::{HostOptions, Progress};
use scxprof::testing::sampler::Target;

use super::programs::{build, start, Running};
use super::timer;
use crate::support::alone;
use crate::support::capture::{capture_until, Collect};
use crate::support::replay::replay;

/// Long enough to observe the changes, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

fn target(running: &Running) -> Target {
    let tids = running.threads.iter().map(|thread| thread.tid as u32).collect();
    Target::Tasks { tids, enable_on_exec: false }
}

/// The samples of a recording, as reading it gives them.
fn read_again(dir: &Path) -> Vec<Sample> {
    let (mut profile, mut collect) = (Profile::open(dir).expect("a profile"), Collect::default());
    replay(&mut profile, 64 << 20, &mut collect);
    collect.samples
}

fn is_private(sample: &Sample) -> bool {
    matches!(sample.memory, Some(MemoryId::Private { .. }))
}

fn mappings_that_change_without_a_record(test: &str, record: Option<&Path>) {
    let _alone = alone();
    let Some(built) = build("moved", 2) else {
        println!("SKIP: {test}: no cc");
        return;
    };
    let running = start(&built.path, 600.0, 2);
    let pid = running.threads[0].pid;
    let options = HostOptions { record: record.map(Into::into), ..timer(target(&running), Some(1000)) };
    let mut moved_at = None;
    let enough = |progress: Progress| {
        if moved_at.is_none() && progress.samples > 300 {
            // SAFETY: a signal to a child of ours that is alive.
            unsafe { libc::kill(pid, libc::SIGUSR1) };
            moved_at = Some((progress.samples, progress.elapsed));
        }
        let enough = |(samples, elapsed)| {
            progress.samples > samples + 1500 && progress.elapsed > elapsed + Duration::from_millis(1500)
        };
        moved_at.is_some_and(enough) || progress.elapsed > LIMIT
    };
    let Some((mut got, outcome)) = capture_until(test, options, enough) else { return };
    if let Some(dir) = record {
        got.samples = read_again(dir);
    }
    let of = |group: &str| -> Vec<&Sample> {
        let range = &running.buffers[&(pid, group.to_owned())];
        let name = format!("{group}-2");
        let is_of = |sample: &&Sample| {
            range.contains(&sample.raw.addr) && sample.comm.is_some_and(|comm| comm.as_bytes() == name.as_bytes())
        };
        got.samples.iter().filter(is_of).collect()
    };
    let (gone, grown) = (of("gone"), of("grown"));
    if gone.len() < 100 || grown.len() < 100 {
        println!("SKIP: {test}: only {} and {} samples in {:?}", gone.len(), grown.len(), outcome.duration);
        return;
    }
    let (still, private) =
        (gone.iter().filter(|it| !is_private(it)).count(), grown.iter().filter(|it| is_private(it)).count());
    println!("{test}: shared {still} of {}, private {private} of {}", gone.len(), grown.len());
    assert_eq!(still, 0, "private memory is never the file that was mapped there");
    assert_eq!(private, 0, "the file is never private memory where it was moved");
    // The change is known when the mappings have been read again.
    let last = &grown[grown.len() - 50..];
    assert!(last.iter().all(|sample| sample.memory.is_some()), "the last of {} are unknown", grown.len());
    let start = running.buffers[&(pid, "grown".to_owned())].start;
    for sample in grown {
        match sample.memory {
            Some(MemoryId::Shared { offset, .. }) => assert_eq!(offset, sample.raw.addr - start),
            memory => assert_eq!(memory, None),
        }
    }
}

#[test]
fn mappings_that_change_without_a_record_are_noticed() {
    mappings_that_change_without_a_record("moved", None);
}

#[test]
fn mappings_that_change_without_a_record_are_noticed_in_a_recording() {
    let dir = tempfile::tempdir().expect("a directory");
    mappings_that_change_without_a_record("moved, recorded", Some(dir.path()));
}

fn segments(test: &str, record: Option<&Path>) {
    let _alone = alone();
    let Some(built) = build("segments", 2) else {
        println!("SKIP: {test}: no cc");
        return;
    };
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIP: {test}: it takes root to make an IPC namespace");
        return;
    }
    let running = start(&built.path, 600.0, 4);
    let options = HostOptions { record: record.map(Into::into), ..timer(target(&running), Some(1000)) };
    let enough = |progress: Progress| {
        progress.samples > 2000 && progress.elapsed > Duration::from_secs(1) || progress.elapsed > LIMIT
    };
    let Some((mut got, _)) = capture_until(test, options, enough) else { return };
    if let Some(dir) = record {
        got.samples = read_again(dir);
    }
    // The files that the processes of each pair touched, without offsets.
    let files = |group: &str| -> BTreeSet<String> {
        let of = |thread: &&super::programs::Thread| thread.group == group;
        let mut files = BTreeSet::new();
        for thread in running.threads.iter().filter(of) {
            let range = &running.buffers[&(thread.pid, group.to_owned())];
            let places =
                got.samples.iter().filter(|it| it.raw.pid == thread.pid as u32 && range.contains(&it.raw.addr));
            let mut seen = 0;
            for sample in places {
                seen += 1;
                match sample.memory {
                    Some(MemoryId::Shared { scope, ino, offset }) => {
                        assert_eq!(offset, sample.raw.addr - range.start);
                        files.insert(format!("{scope:?} {ino}"));
                    }
                    other => drop(files.insert(format!("{other:?}"))),
                }
            }
            println!("{test}: {group} {}: {seen} accesses", thread.pid);
        }
        files
    };
    let (one, other) = (files("segment-a"), files("segment-b"));
    println!("{test}: {one:?} {other:?}");
    assert_eq!((one.len(), other.len()), (1, 1), "a segment is one file");
    assert_ne!(one, other, "segments of two namespaces are two");
}

#[test]
fn segments_of_two_ipc_namespaces_are_two() {
    segments("segments", None);
}

#[test]
fn segments_of_two_ipc_namespaces_are_two_in_a_recording() {
    let dir = tempfile::tempdir().expect("a directory");
    segments("segments, recorded", Some(dir.path()));
}
