//! Every access hits the buffer of its thread's group, enough samples give one, and memory identities show who shares.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use scxprof::sample::{MemoryId, Sample, PAGE_SIZE};
use scxprof::session::{Outcome, UnresolvedPlace};
use scxprof::testing::recover::Unrecovered;
use scxprof::testing::sampler::Target;

use super::programs::{build, start, Running};
use super::{recovery, timer};
use crate::support::alone;
use crate::support::capture::capture_until;

/// The accesses that are needed to check a program.
const WANTED: u64 = 20_000;
const FREQ: u32 = 4000;

/// What the accesses of one program hit.
#[derive(Debug, Default)]
pub struct Tally {
    pub accesses: u64,
    /// In the buffer of the thread's group.
    pub own: u64,
    /// In the buffer of another group.
    pub other: u64,
    /// In its own buffer, on a line that it never touches.
    pub wrong_line: u64,
    /// Samples with an access in the own buffer.
    pub hit: u64,
    pub threads: usize,
}

impl Tally {
    pub fn of(running: &Running, samples: &[Sample]) -> Self {
        let mut tally = Self::default();
        let groups: std::collections::HashMap<(u32, u32), &str> = running
            .threads
            .iter()
            .map(|thread| ((thread.pid as u32, thread.tid as u32), thread.group.as_str()))
            .collect();
        let (mut hit, mut threads) = (HashSet::new(), HashSet::new());
        for sample in samples {
            let Some(&own) = groups.get(&(sample.raw.pid, sample.raw.tid)) else { continue };
            tally.accesses += 1;
            threads.insert(sample.raw.tid);
            let within = |group: &str| {
                let buffer = running.buffers.get(&(sample.raw.pid as i32, group.to_owned()));
                buffer.is_some_and(|buffer| buffer.contains(&sample.raw.addr))
            };
            if within(own) {
                tally.own += 1;
                hit.insert(sample.record);
                let parity = running.parity.get(own);
                tally.wrong_line += u64::from(parity.is_some_and(|parity| sample.raw.addr / 64 % 2 != *parity));
            } else {
                tally.other += u64::from(running.buffers.keys().any(|(_, group)| group != own && within(group)));
            }
        }
        (tally.hit, tally.threads) = (hit.len() as u64, threads.len());
        tally
    }
}

/// True if the access is to the data of the vdso.
fn is_vvar(sample: &Sample) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", sample.raw.pid)).unwrap_or_default();
    maps.lines().filter(|line| line.contains("[vvar")).any(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let hex = |text| u64::from_str_radix(text, 16).unwrap_or(0);
        range.is_some_and(|(start, end)| (hex(start)..hex(end)).contains(&sample.raw.addr))
    })
}

/// The program's threads, or all of the host.
fn target(running: &Running, whole_host: bool) -> Target {
    if whole_host {
        return Target::System;
    }
    let tids = running.threads.iter().map(|thread| thread.tid as u32).collect();
    Target::Tasks { tids, enable_on_exec: false }
}

/// Samples `running` and checks each access; `None` if it was skipped.
pub fn check(test: &str, running: &Running, whole_host: bool, least: f64) -> Option<(Vec<Sample>, Outcome)> {
    let options = timer(target(running, whole_host), Some(FREQ));
    // If the whole host is sampled, some accesses belong to other programs.
    let wanted = if whole_host { WANTED * 3 / 2 } else { WANTED + 1000 };
    let stop =
        |progress: scxprof::session::Progress| progress.samples > wanted || progress.elapsed > Duration::from_secs(6);
    let (got, outcome) = capture_until(test, options, stop)?;
    let tally = Tally::of(running, &got.samples);
    let recovered = recovery(&outcome);
    println!("{test}: {tally:?}, {recovered:?}, in kernel {}", outcome.loss.in_kernel);
    assert_eq!((tally.other, tally.wrong_line), (0, 0), "{test}: wrong addresses of {}", tally.accesses);
    if tally.accesses < WANTED {
        println!("SKIP: {test}: {} of {WANTED} accesses in 6 s, all right", tally.accesses);
    }
    if !whole_host {
        // The kernel's data for the vdso has no page in a pagemap: those mappings are left out of it (VM_PFNMAP).
        let without = got.samples.iter().filter(|sample| sample.raw.phys == 0);
        let clock = without.filter(|sample| is_vvar(sample)).count() as u64;
        let absent = recovered.absent_pages + recovered.unknown_pages;
        assert!(absent <= clock, "{test}: {absent} addresses without a page, {clock} of the vdso's data");
        if recovered.user_samples >= 200 {
            let share = tally.hit as f64 / recovered.user_samples as f64;
            assert!(share >= least, "{test}: {share} of the samples gave an address in the group's buffer");
            assert!(recovered.share() >= least);
        }
    }
    Some((got.samples, outcome))
}

fn program(name: &str, level: u8, least: f64) -> Option<Outcome> {
    let _alone = alone();
    let test = format!("{name} -O{level}");
    let Some(built) = build(name, level) else {
        println!("SKIP: {test}: no cc");
        return None;
    };
    let running = start(&built.path, 600.0, 4);
    check(&test, &running, false, least).map(|(_, outcome)| outcome)
}

macro_rules! programs {
    ($($test:ident: $name:literal, $level:literal, $least:literal;)*) => {
        $(#[test]
        fn $test() {
            let _ = program($name, $level, $least);
        })*
    };
}

programs! {
    random_o2: "random", 2, 0.9;
    random_o0: "random", 0, 0.9;
    list_o2: "list", 2, 0.9;
    stream_o2: "stream", 2, 0.9;
    hash_o2: "hash", 2, 0.9;
    queue_o2: "queue", 2, 0.3;
    lines_o2: "lines", 2, 0.9;
    lines_o0: "lines", 0, 0.9;
}

#[test]
fn special_o2() {
    let Some(outcome) = program("special", 2, 0.2) else { return };
    let recovered = recovery(&outcome);
    let has_avx2 = std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains(" avx2 "));
    if !has_avx2 || recovered.user_samples < 1000 {
        println!("SKIP: special -O2: no gathers, or only {} samples", recovered.user_samples);
        return;
    }
    // Its samples have other addresses, so that only the operands show what is missing.
    let is_gather = |place: &UnresolvedPlace| {
        place.reason == Unrecovered::Gather.name() && place.file.ends_with("/special-O2") && place.times >= 10
    };
    assert!(recovered.unresolved_places.iter().any(is_gather), "{:?}", recovered.unresolved_places);
    assert!(recovered.unresolved_operands[Unrecovered::Gather.name()] >= 10, "{:?}", recovered.unresolved_operands);
}

/// The places of each process's accesses within its buffers, by group and process.
fn places(running: &Running, samples: &[Sample]) -> BTreeMap<(String, u32), BTreeSet<(u64, MemoryId)>> {
    let mut places: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for thread in &running.threads {
        let pid = thread.pid as u32;
        let buffer = &running.buffers[&(thread.pid, thread.group.clone())];
        for sample in samples.iter().filter(|sample| sample.raw.pid == pid && buffer.contains(&sample.raw.addr)) {
            let page = (sample.raw.addr & !(PAGE_SIZE - 1), sample.memory.unwrap().granule(PAGE_SIZE));
            places.entry((thread.group.clone(), pid)).or_default().insert(page);
        }
    }
    places
}

#[test]
fn processes_on_shared_memory_have_equal_places() {
    let _alone = alone();
    let test = "shared memory";
    let Some(built) = build("shared", 2) else {
        println!("SKIP: {test}: no cc");
        return;
    };
    let running = start(&built.path, 600.0, 4);
    let Some((samples, _)) = check(test, &running, true, 0.9) else { return };
    let places = places(&running, &samples);
    assert_eq!(places.len(), 4, "each process was seen");
    for ((group, pid), mine) in &places {
        for ((other_group, other), its) in &places {
            // The processes are forks of one: same addresses, so the same page of a group has the same place.
            let common = mine.intersection(its).count();
            if (group, pid) == (other_group, other) {
                continue;
            }
            if group == other_group {
                assert!(common * 2 > mine.len().min(its.len()), "{common} of {} and {}", mine.len(), its.len());
            } else {
                assert_eq!(common, 0);
            }
        }
        assert!(mine.iter().all(|(_, memory)| matches!(memory, MemoryId::Shared { ino, .. } if *ino != 0)));
    }
    let inodes: BTreeSet<_> = places
        .values()
        .flatten()
        .filter_map(
            |(_, memory)| if let MemoryId::Shared { scope, ino, .. } = memory { Some((*scope, *ino)) } else { None },
        )
        .collect();
    assert_eq!(inodes.len(), 2, "one for each buffer");
}

#[test]
fn copies_on_write_have_places_of_their_own() {
    let _alone = alone();
    let test = "copy on write";
    let Some(built) = build("cow", 2) else {
        println!("SKIP: {test}: no cc");
        return;
    };
    let running = start(&built.path, 600.0, 4);
    let Some((samples, _)) = check(test, &running, false, 0.9) else { return };
    let places = places(&running, &samples);
    assert_eq!(places.len(), 4, "each process was seen");
    let all: Vec<MemoryId> = places.values().flatten().map(|(_, memory)| *memory).collect();
    let different: BTreeSet<MemoryId> = all.iter().copied().collect();
    assert_eq!(different.len(), all.len(), "no page is the same in two processes");
    assert!(all.iter().all(|memory| matches!(memory, MemoryId::Private { .. })));
}

#[test]
fn the_tick_gives_the_same() {
    let _alone = alone();
    let test = "lines on the tick";
    let Some(built) = build("lines", 2) else {
        println!("SKIP: {test}: no cc");
        return;
    };
    let running = start(&built.path, 600.0, 4);
    let options = timer(target(&running, true), None);
    let Some((got, outcome)) = capture_until(test, options, |progress| progress.elapsed > Duration::from_secs(3))
    else {
        return;
    };
    if let Some(note) = outcome.notes.iter().find(|note| note.contains("timer samples come from")) {
        println!("SKIP: {test}: {note}");
    }
    let tally = Tally::of(&running, &got.samples);
    println!("{test}: {tally:?}, {:?}, {:?}", recovery(&outcome), outcome.notes);
    assert_eq!((tally.other, tally.wrong_line), (0, 0));
    assert!(tally.accesses >= 200, "{tally:?}");
    assert!(tally.own * 2 > tally.accesses, "{tally:?}");
}
