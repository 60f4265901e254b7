//! The example workload: recorded, replayed, and the replay recorded.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use scxprof::testing::cluster::quality::adjusted_rand_index;
use serde_json::Value;

use super::tables::Tables;
use super::{json, number, off, recording, SCXPROF};
use crate::support::alone;

/// It runs until it is dropped.
struct Workload(Child);

impl Workload {
    fn new() -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_demo-workload"));
        let mut child = command.args(["--wake", "--seconds", "120"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("ready"), "{line}");
        Self(child)
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        // SAFETY: a signal to a child that was not waited for. It takes its cgroups away then.
        unsafe { libc::kill(self.0.id().cast_signed(), libc::SIGTERM) };
        let _ = self.0.wait();
    }
}

/// Records; the error is why this machine does not allow it.
fn record(profile: &Path, more: &[&str]) -> Result<(), String> {
    let mut command = Command::new(SCXPROF);
    command.args(["record", "--sched", "--max-loss", "100", "--disable-archive", "-o"]).arg(profile).args(more);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.code() {
        Some(3) => Err(text),
        Some(0) => Ok(()),
        _ => panic!("{text}"),
    }
}

/// The community of each thread that is in one, by its name.
fn communities(profile: &Path, dir: &Path) -> BTreeMap<String, String> {
    let report = dir.join("report.json");
    let output = Command::new(SCXPROF)
        .args(["extract", "--target-cpus", "64", "--max-loss", "100", "-f"])
        .arg(profile)
        .arg("--report")
        .arg(&report)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    let mut found = BTreeMap::new();
    for cell in report["cells"].as_array().unwrap() {
        for subcell in cell["subcells"].as_array().unwrap().iter().filter(|subcell| subcell["kind"] == "community") {
            for thread in subcell["threads"].as_array().unwrap() {
                let place = format!("{}/{}", cell["name"], subcell["name"]);
                found.insert(thread["comm"].as_str().unwrap().to_owned(), place);
            }
        }
    }
    found
}

#[test]
fn the_replay_is_as_the_recording() {
    const TEST: &str = "the_replay_is_as_the_recording";
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (original, again) = (dir.path().join("original"), dir.path().join("again"));
    {
        let _workload = Workload::new();
        if let Err(reason) = record(&original, &["-t", "5"]) {
            println!("SKIP: {TEST}: {}", reason.trim());
            return;
        }
    }
    let path = original.to_str().unwrap();
    // Other programs run here too.
    let names = "^(reader-|writer-|pool-|webserver|web$|loner|left|right)";
    let result = dir.path().join("result.json");
    let command = ["--", SCXPROF, "replay", "-f", path, "--comm", names, "--overcommit", "--json", "-o"];
    record(&again, &[&command[..], &[result.to_str().unwrap()]].concat()).unwrap();
    let found: Value = serde_json::from_slice(&std::fs::read(&result).unwrap()).unwrap();
    let threads = found["threads"].as_array().unwrap();
    assert_eq!(threads.len(), 14);
    for thread in threads {
        assert!(off(&thread["run_ns"]) < 0.05, "{thread}");
        assert!(off(&thread["sleeps"]) < 0.1, "{thread}");
    }
    assert!(off(&found["total"]["sleeps"]) < 0.05, "{}", found["total"]);
    // Which of two threads comes first is chance, so that a wakeup by one may be one by the other.
    let total = &found["total"];
    assert!(number(&total["wakeups"]["recorded"]) > 200 && off(&total["wakeups"]) < 0.05, "{total}");

    // The same threads wake the same threads, as often.
    let ours = |name: &str| threads.iter().any(|thread| thread["comm"] == name);
    let graph = |profile: &Path| -> BTreeMap<(String, String), u64> {
        Tables::of(profile, ours).wakes.into_iter().filter(|(_, times)| *times >= 20).collect()
    };
    let (recorded, replayed) = (graph(&original), graph(&again));
    assert_eq!(recorded.keys().collect::<Vec<_>>(), replayed.keys().collect::<Vec<_>>());
    // Two readers and writers in two processes, four threads of a pool, two web servers.
    assert_eq!(recorded.len(), 2 + 2 + 12 + 2, "{recorded:?}");
    for (pair, times) in &recorded {
        let (a, b) = (*times as f64, replayed[pair] as f64);
        assert!((b / a - 1.0).abs() < 0.3, "{pair:?}: {a} {b}");
    }

    let (before, after) = (communities(&original, dir.path()), communities(&again, dir.path()));
    let label = |of: &BTreeMap<String, String>, name: &str, alone: usize| -> u32 {
        // Threads that share with no other thread are each alone.
        let places: Vec<&String> = of.values().collect();
        of.get(name).map_or(1000 + alone as u32, |place| places.iter().position(|it| *it == place).unwrap() as u32)
    };
    let comms = threads.iter().map(|thread| thread["comm"].as_str().unwrap());
    let (a, b): (Vec<u32>, Vec<u32>) =
        comms.enumerate().map(|(at, name)| (label(&before, name, at), label(&after, name, at))).unzip();
    assert!(before.len() >= 12, "{before:?}");
    let index = adjusted_rand_index(&a, &b);
    assert!((index - 1.0).abs() < 1e-9, "{index}: {before:?} {after:?}");
}

#[test]
fn threads_run_first_in_the_recorded_order() {
    const TEST: &str = "threads_run_first_in_the_recorded_order";
    let dir = tempfile::tempdir().unwrap();
    let original = recording(dir.path());
    let again = dir.path().join("again");
    let result = dir.path().join("result.json");
    // They begin within 7 ms: slowly, they can be told apart.
    let slowly = ["--overcommit", "--to", "0.03", "--time-scale", "40", "--json", "-o", result.to_str().unwrap()];
    let command = ["--", SCXPROF, "replay", "-f", original.to_str().unwrap()];
    if let Err(reason) = record(&again, &[&command[..], &slowly].concat()) {
        println!("SKIP: {TEST}: {}", reason.trim());
        return;
    }
    // ld.so and true are more than one thread each, or become another.
    let names = ["boss", "cond0", "cond1", "cond2", "hop", "ping", "pong", "spin0", "spin1", "tick"];
    let tables = |profile: &Path| Tables::of(profile, |name| names.contains(&name));
    let (recorded, replayed) = (tables(&original), tables(&again));
    assert_eq!((recorded.first_runs.len(), replayed.first_runs.len()), (names.len(), names.len()));
    let mut pairs = 0;
    for (a, ran) in &recorded.first_runs {
        // Of two threads that both wait for a CPU, the scheduler chooses. What is nearer, 20 ms in the replay, may be late on a
        // busy machine.
        for (b, _) in recorded.made.iter().filter(|(_, made)| **made > ran + 500_000) {
            let [first, second] = [a, b].map(|name| replayed.first_runs[name]);
            assert!(first < second, "{a} {b}: {first} {second}");
            pairs += 1;
        }
    }
    assert!(pairs >= 10, "{pairs}: {:?} {:?}", recorded.made, recorded.first_runs);
}

#[test]
fn without_memory_it_works_alike() {
    let dir = tempfile::tempdir().unwrap();
    let path = recording(dir.path());
    let found = json(&["-f", path.to_str().unwrap(), "--no-memory", "--overcommit", "--time-scale", "0.05"]);
    assert!(found["memory"].is_null());
}
