//! `scxprof trace info` and `analyze`, and `scxprof sched -f` of a trace.

use std::process::{Command, Output};

use serde_json::Value;

use super::*;

fn scxprof(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_scxprof")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn info_is_printed() {
    for name in ALL {
        let path = path(name);
        let output = scxprof(&["trace", "info", path.to_str().unwrap()]);
        let out = text(&output.stdout);
        assert!(output.status.success(), "{name}: {}", text(&output.stderr));
        for part in ["source  ", "duration (s)  ", "EVENT  ", "PACKETS ABOUT  ", "can run: cpu_utilization, "] {
            assert!(out.contains(part), "{name}: {part}\n{out}");
        }
        let output = scxprof(&["trace", "info", path.to_str().unwrap(), "--json"]);
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(value["clock"], "BOOTTIME");
        assert!(value["events"].as_array().unwrap().iter().all(|event| event["count"].as_u64() > Some(0)));
    }
}

#[test]
fn what_is_no_trace_or_damaged_has_its_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    let said = |bytes: &[u8]| {
        fs::write(&file, bytes).unwrap();
        let output = scxprof(&["trace", "info", file.to_str().unwrap()]);
        (output.status.code(), text(&output.stderr))
    };
    let (code, error) = said(b"PERFILE2 and so on");
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("not a trace: it does not begin with a packet"), "{error}");
    assert!(error.contains("it is a profile: `scxprof sched -f` reads"), "{error}");
    assert_eq!(said(b"").0, Some(2));
    assert!(!said(b"some text").1.contains("it is a profile"));
    let bytes = fixture("ftrace-all.pftrace");
    let (code, error) = said(&bytes[..bytes.len() - 7]);
    assert_eq!(code, Some(4), "{error}");
    assert!(error.contains("the trace is damaged: the file ends within a packet"), "{error}");
    let missing = scxprof(&["trace", "info", dir.path().join("none").to_str().unwrap()]);
    assert_eq!(missing.status.code(), Some(2));
}

#[test]
fn statistics_of_a_trace_are_those_of_its_oracle() {
    let path = path("wprof.pb.gz");
    let output = scxprof(&["sched", "-f", path.to_str().unwrap(), "--by", "thread", "--limit", "0", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let lines = value["lines"].as_array().unwrap();
    let spin = lines.iter().find(|line| line["name"] == "spin0").unwrap();
    assert_eq!(spin["run"]["total_ns"], 157_012_568);
    assert_eq!(spin["pid"], 381);
    let output = scxprof(&["sched", "-f", path.to_str().unwrap(), "--wakers"]);
    let out = text(&output.stdout);
    assert!(out.lines().any(|line| line.split_whitespace().take(3).eq(["ping", "381", "pong"])), "{out}");
    let output = scxprof(&["sched", "-f", path.to_str().unwrap(), "--windows", "100ms", "--category", "spin*"]);
    assert!(output.status.success() && text(&output.stdout).contains("spin*"), "{}", text(&output.stderr));
}

#[test]
fn analyses_are_printed() {
    for name in ALL {
        let path = path(name);
        let path = path.to_str().unwrap();
        let output = scxprof(&["trace", "analyze", path]);
        let out = text(&output.stdout);
        assert!(output.status.success(), "{name}: {}", text(&output.stderr));
        assert!(out.contains("== cpu_utilization: ") && out.contains("The trace has no events for "), "{name}: {out}");
        let output = scxprof(&["trace", "analyze", path, "--json", "--limit", "1", "--llc", "0-1,2-3"]);
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(value["analyses"]["task_states"]["threads"].as_array().unwrap().len() <= 1, "{name}");
        assert!(value["analyses"]["llc_locality"]["runs"]["same_cpu"].is_u64(), "{name}");
        let output = scxprof(&["trace", "analyze", path, "--only", "outliers,block_io", "--method", "mad"]);
        let out = text(&output.stdout);
        assert!(out.starts_with("== outliers: ") && !out.contains("== cpu"), "{name}: {out}");
        let lacking = "no applicable events: block_io needs block_rq_issue and block_rq_complete";
        assert!(out.contains(lacking), "{name}: {out}");
        let output = scxprof(&["trace", "analyze", path, "--only", "block_io"]);
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert!(text(&output.stderr).contains(lacking), "{name}");
    }
    let path = path("minimal.pftrace");
    let output = scxprof(&["trace", "analyze", path.to_str().unwrap(), "--only", "no_such"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("no such analyser; there are cpu_utilization, "));
}
