//! `record --sched`: the same profile has the scheduler's events, for scxprof and for perf.

use std::process::{Command, Output};

use super::{json, number};

fn scxprof(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_scxprof")).args(args).output().unwrap()
}

/// What perf prints; `None` without perf.
fn perf(args: &[&str]) -> Option<String> {
    let output = Command::new("perf").args(args).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_profile_has_both_and_perf_opens_it() {
    const TEST: &str = "a_profile_has_both_and_perf_opens_it";
    let _alone = crate::support::alone();
    let _spinning = super::live::Spinning::new();
    let dir = tempfile::tempdir().unwrap();
    let profile = dir.path().join("both");
    let path = profile.to_str().unwrap();
    let command = "for i in 1 2 3 4 5; do sleep 0.05; head -c 3000000 /dev/zero | sort -c; done 2>/dev/null; true";
    let args =
        ["record", "--sched", "--irq", "--source", "faults", "--max-loss", "100", "-o", path, "--disable-archive"];
    let output = scxprof(&[&args[..], &["--", "sh", "-c", command]].concat());
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(3) {
        println!("SKIP: {TEST}: {}", text.trim());
        return;
    }
    assert!(output.status.success(), "{text}");
    let threads = json(&["-f", path, "--by", "thread", "--max-loss", "100"]);
    let events = number(&threads["events"]);
    assert!(events > 100, "{events}");
    assert_eq!(number(&threads["loss"]["malformed"]), 0);
    let lines = threads["lines"].as_array().unwrap();
    let sort =
        |field: &str| lines.iter().filter(|line| line["name"] == "sort").map(|line| number(&line[field])).sum::<u64>();
    assert!(sort("switches") >= 5, "{lines:?}");
    let mut sleeps = lines.iter().filter(|line| line["name"] == "sleep");
    let all: Vec<_> = sleeps.clone().collect();
    assert!(sleeps.any(|line| number(&line["sleep"]["total_ns"]) > 40_000_000), "{all:?}");
    // The recorder itself is in none of the lines.
    let meta: serde_json::Value = serde_json::from_slice(&std::fs::read(profile.join("meta.json")).unwrap()).unwrap();
    let own = &meta["identity"]["own_pid"];
    assert!(own.is_u64() && lines.iter().all(|line| line["pid"] != *own), "{lines:?}");
    assert!(number(&threads["scxprof"]["switches"]) > 0);
    // The memory samples are there as without.
    let output = scxprof(&["process", "-f", path, "-o", "-", "--no-symbols"]);
    assert!(output.status.success());
    assert!(output.stdout.split(|&byte| byte == b'\n').count() > 100, "faults");
    let Some(script) = perf(&["script", "-i", &format!("{path}/perf.data")]) else {
        println!("SKIP: {TEST}: perf is not here to read the profile");
        return;
    };
    let of_perf = script.lines().filter(|line| line.contains(" sched:") || line.contains(" irq:")).count() as u64;
    assert_eq!(of_perf, events, "perf script sees the same events");
    let latency = perf(&["sched", "-i", &format!("{path}/perf.data"), "latency"]).unwrap();
    assert!(latency.contains("sort"), "{latency}");
}

#[test]
fn windows_of_a_profile_add_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = super::recording(dir.path());
    let (csv, jsonl) = (dir.path().join("w.csv"), dir.path().join("w.jsonl"));
    let args = ["--windows", "1ms", "--category", "spin=spin*", "--category", "t?ck"];
    let files = ["--csv", csv.to_str().unwrap(), "--jsonl", jsonl.to_str().unwrap(), "-f", path.to_str().unwrap()];
    let document = json(&[&args[..], &files].concat());
    assert_eq!(number(&document["windows"]["windows"]), number(&document["window_ns"]) / 1_000_000);
    let text = std::fs::read_to_string(&csv).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("time_ns,width_ns,cpus,spin,t?ck,uncategorised,irq,softirq,idle,unknown"));
    let (mut spin, mut count) = (0.0, 0);
    for line in lines {
        let fields: Vec<f64> = line.split(',').map(|field| field.parse().unwrap()).collect();
        let sum: f64 = fields[3..].iter().sum();
        assert!((sum - fields[2]).abs() < 0.001, "{line}");
        spin += fields[3] * fields[1];
        count += 1;
    }
    assert_eq!(std::fs::read_to_string(&jsonl).unwrap().lines().count(), count);
    // The same time as by thread.
    let threads = json(&["-f", path.to_str().unwrap(), "--by", "thread"]);
    let lines = threads["lines"].as_array().unwrap();
    let spins = lines.iter().filter(|line| line["name"].as_str().unwrap().starts_with("spin"));
    let run: u64 = spins.map(|line| number(&line["run"]["total_ns"])).sum();
    // A thread has its name from its next switch on.
    assert!((0.99..=1.0001).contains(&(spin / run as f64)), "{spin} {run}");
    let error = super::sched(&["--windows", "1", "-f", path.to_str().unwrap()]);
    assert_eq!(error.status.code(), Some(2));
}
