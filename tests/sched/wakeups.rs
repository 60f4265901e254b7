//! The source `wakeups`: threads that wake each other are one community, others are in none.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{pipe, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::live::{name, Spinning, ORDERS};
use super::{json, number};
use crate::support::alone;

const GROUPS: [&str; 3] = ["alpha", "beta", "gamma"];
const SIZE: usize = 3;
/// How long the program runs at least, and how often each group then has passed its byte on: a slow machine takes longer for that.
const TIME: Duration = Duration::from_millis(2500);
const PASSES: u64 = 2000;

/// The program: each group passes a byte around, the lone threads sleep and wake no thread.
pub fn rings() {
    static PASSED: [AtomicU64; GROUPS.len()] = [const { AtomicU64::new(0) }; GROUPS.len()];
    let end = Instant::now() + TIME;
    let is_over = move || Instant::now() > end && PASSED.iter().all(|passed| passed.load(Ordering::Relaxed) >= PASSES);
    let mut threads = Vec::new();
    for (group, passed) in GROUPS.iter().zip(&PASSED) {
        let pipes: Vec<_> = (0..SIZE).map(|_| pipe().unwrap()).collect();
        let (mut readers, mut writers): (Vec<_>, Vec<_>) = pipes.into_iter().unzip();
        // Each reads from its own and writes to the next.
        writers.rotate_left(1);
        writers[SIZE - 1].write_all(&[0]).unwrap();
        for (number, (mut reader, mut writer)) in readers.drain(..).zip(writers).enumerate() {
            threads.push(thread::spawn(move || {
                name(&format!("{group}-{number}"));
                let mut byte = [0];
                while reader.read_exact(&mut byte).is_ok() {
                    if is_over() || writer.write_all(&byte).is_err() {
                        break;
                    }
                    passed.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_micros(100));
                }
            }));
        }
    }
    for number in 0..SIZE {
        threads.push(thread::spawn(move || {
            name(&format!("lone-{number}"));
            while !is_over() {
                thread::sleep(Duration::from_millis(1));
            }
        }));
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

/// The kind of each thread's subcell and its name, by the thread's name.
fn subcells(report: &Value) -> BTreeMap<String, (String, String)> {
    let mut found = BTreeMap::new();
    for subcell in report["cells"].as_array().unwrap().iter().flat_map(|cell| cell["subcells"].as_array().unwrap()) {
        for thread in subcell["threads"].as_array().unwrap() {
            let place = (subcell["kind"].as_str().unwrap().to_owned(), subcell["name"].as_str().unwrap().to_owned());
            found.insert(thread["comm"].as_str().unwrap().to_owned(), place);
        }
    }
    found
}

/// The example workload while it runs in the cgroup of this process.
struct Example(Child);

impl Example {
    fn new(options: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_demo-workload"));
        let mut child =
            command.args(["--here", "--seconds", "120"]).args(options).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready without cgroups\n");
        Self(child)
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The report of a command of scxprof; the error is what it said where this machine does not allow it.
fn report_of(args: &[&str]) -> Result<Value, String> {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.json");
    let output = Command::new(env!("CARGO_BIN_EXE_scxprof"))
        .args(args)
        .args(["--target-cpus", "64", "--max-loss", "100", "-v", "--report"])
        .arg(&report)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.code() {
        Some(3) => return Err(text),
        Some(1) if text.contains("no thread that was watched woke another one") => {
            return Ok(serde_json::json!({ "cells": [] }));
        }
        _ => assert!(output.status.success(), "{text}"),
    }
    Ok(serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap())
}

/// The community of each thread of the example workload that is in one, by the source `wakeups`.
fn communities() -> Result<BTreeMap<String, String>, String> {
    let report = report_of(&["run", "--source", "wakeups", "-t", "4"])?;
    let mut found = BTreeMap::new();
    for subcell in report["cells"].as_array().unwrap().iter().flat_map(|cell| cell["subcells"].as_array().unwrap()) {
        for thread in subcell["threads"].as_array().unwrap() {
            let name = thread["comm"].as_str().unwrap_or_default();
            let verdict = thread["verdict"].as_str().unwrap();
            if EXAMPLE.iter().flat_map(|group| group.iter()).chain(&ALONE).any(|&it| it == name)
                && verdict.starts_with("community")
            {
                found.insert(name.to_owned(), verdict.to_owned());
            }
        }
    }
    Ok(found)
}

/// The threads of the example workload that wake each other with `--wake`.
const EXAMPLE: [&[&str]; 4] = [
    &["reader-a", "writer-a"],
    &["reader-b", "writer-b"],
    &["pool-1", "pool-2", "pool-3", "pool-4"],
    &["webserver1", "webserver2"],
];
/// Its threads that wake no thread; the last two share memory.
const ALONE: [&str; 4] = ["web", "loner", "left", "right"];

#[test]
fn the_example_workload_has_groups_only_if_they_wake_each_other() {
    const TEST: &str = "the_example_workload_has_groups_only_if_they_wake_each_other";
    let _alone = alone();
    let _spinning = Spinning::new();
    let example = Example::new(&["--wake"]);
    let found = match communities() {
        Ok(found) => found,
        Err(why) => return println!("SKIP: {TEST}: {}", why.trim()),
    };
    let mut seen = BTreeSet::new();
    for group in EXAMPLE {
        let first = found.get(group[0]).unwrap_or_else(|| panic!("{found:?}"));
        assert!(group.iter().all(|&name| found.get(name) == Some(first)), "{found:?}");
        assert!(seen.insert(first), "{found:?}");
    }
    assert!(ALONE.iter().all(|&name| !found.contains_key(name)), "{found:?}");
    drop(example);
    let _example = Example::new(&[]);
    let found = communities().unwrap();
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn the_part_of_wakeups_within_a_subcell_is_in_the_report() {
    const TEST: &str = "the_part_of_wakeups_within_a_subcell_is_in_the_report";
    let _alone = alone();
    let _example = Example::new(&["--wake"]);
    let mut last = Value::Null;
    // On a busy machine the first seconds may have too few samples.
    for seconds in ["4", "8", "16", "32"] {
        let report = match report_of(&["run", "--source", "timer", "--sched", "-t", seconds]) {
            Ok(report) => report,
            Err(why) => return println!("SKIP: {TEST}: {}", why.trim()),
        };
        last = report["wakeups"].clone();
        let [all, carrying] = ["all", "carrying"].map(|which| number(&last[which]["wakeups"]));
        assert!(all >= carrying + number(&last["unsampled"]), "{last}");
        let part = |name: &str| last["carrying"][name].as_f64().unwrap_or(0.0);
        // Those of the example that wake each other share memory, and are a subcell each.
        if carrying > 100 && part("subcell") > 0.9 && (0.0..=1.0).contains(&part("llc")) {
            return;
        }
    }
    panic!("{last}");
}

#[test]
fn a_recording_has_the_wakeups_too() {
    const TEST: &str = "a_recording_has_the_wakeups_too";
    let dir = tempfile::tempdir().unwrap();
    let [profile, cells] = ["profile", "cells.json"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    let _alone = alone();
    let _example = Example::new(&["--wake"]);
    let output = Command::new(env!("CARGO_BIN_EXE_scxprof"))
        .args(["record", "--source", "faults", "--sched", "-t", "2", "--max-loss", "100", "--disable-archive", "-o"])
        .arg(&profile)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(3) {
        return println!("SKIP: {TEST}: {}", text.trim());
    }
    assert!(output.status.success(), "{text}");
    let report = report_of(&["extract", "--sched", "-f", &profile, "-o", &cells]).unwrap();
    let wakers =
        json(&["-f", &profile, "--max-loss", "100", "--wakers", "--config", &cells])["wakers"]["within"].clone();
    let all = &report["wakeups"]["all"];
    assert!(number(&all["wakeups"]) > 5, "{report}");
    assert_eq!(all["wakeups"], wakers["wakeups"]);
    let part = number(&wakers["within"]) as f64 / number(&wakers["wakeups"]) as f64;
    assert!((all["subcell"].as_f64().unwrap() - part).abs() < 1e-9, "{all} {wakers}");
}

#[test]
fn a_recording_of_some_processes_is_replayed_for_them() {
    const TEST: &str = "a_recording_of_some_processes_is_replayed_for_them";
    let dir = tempfile::tempdir().unwrap();
    let profile = dir.path().join("profile").to_str().unwrap().to_owned();
    let _alone = alone();
    let _spinning = Spinning::new();
    let _example = Example::new(&["--wake"]);
    let output = Command::new(env!("CARGO_BIN_EXE_scxprof"))
        .args(["record", "--source", "wakeups", "--max-loss", "100", "--disable-archive", "-o", &profile])
        .args(["--", "env", &format!("{ORDERS}=rings")])
        .arg(std::env::current_exe().unwrap())
        .args(["sched::live::program", "--exact"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(3) {
        return println!("SKIP: {TEST}: {}", text.trim());
    }
    assert!(output.status.success(), "{text}");
    let report = report_of(&["extract", "-f", &profile]).unwrap();
    let names: BTreeSet<String> = subcells(&report).into_keys().collect();
    assert!(GROUPS.iter().all(|group| names.contains(&format!("{group}-0"))), "{names:?}");
    assert!(EXAMPLE.iter().flat_map(|group| group.iter()).all(|&name| !names.contains(name)), "{names:?}");
}

#[test]
fn groups_that_wake_each_other_are_found_and_nothing_else() {
    const TEST: &str = "groups_that_wake_each_other_are_found_and_nothing_else";
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.json");
    let _alone = alone();
    let _spinning = Spinning::new();
    let program = std::env::current_exe().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_scxprof"))
        .args(["run", "--source", "wakeups", "--target-cpus", "64", "--max-loss", "100", "--report"])
        .arg(&report)
        .args(["--", "env", &format!("{ORDERS}=rings")])
        .arg(program)
        .args(["sched::live::program", "--exact"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(3) {
        println!("SKIP: {TEST}: {}", text.trim());
        return;
    }
    assert!(output.status.success(), "{text}");
    let report: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert_eq!(report["source"], "wakeups");
    assert!(report["coverage"].as_str().unwrap().starts_with("no accesses"), "{report}");
    let subcells = subcells(&report);
    for group in GROUPS {
        let of = |number: usize| subcells.get(&format!("{group}-{number}"));
        let first = of(0).unwrap_or_else(|| panic!("{subcells:?}"));
        assert_eq!(first.0, "community", "{subcells:?}");
        assert!((1..SIZE).all(|number| of(number) == Some(first)), "{subcells:?}");
        let others = subcells.iter().filter(|(name, place)| !name.starts_with(group) && *place == first);
        assert_eq!(others.count(), 0, "{subcells:?}");
    }
    assert!(subcells.iter().all(|(name, place)| !name.starts_with("lone") || place.0 != "community"), "{subcells:?}");
}
