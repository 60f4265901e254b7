//! `scxprof trace info` and `analyze`, and `scxprof sched -f` of a trace.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use super::encode::*;
use super::*;

pub fn scxprof(args: &[&str]) -> Output {
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
fn a_reader_of_lines_may_stop_early() {
    let path = path("ftrace-all.pftrace");
    let mut child = Command::new(env!("CARGO_BIN_EXE_scxprof"))
        .args(["trace", "events", path.to_str().unwrap()])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Gone before the first line, so that a pipe's size does not matter.
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
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
    let (code, error) = said(b"some text");
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("not a trace: it does not begin with a packet"), "{error}");
    assert!(error.contains("nor is it a profile or a perf.data"), "{error}");
    let (code, error) = said(b"PERFILE2 and so on");
    assert_eq!(code, Some(1), "{error}");
    assert!(!error.contains("not a trace"), "{error}");
    assert_eq!(said(b"").0, Some(2));
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

#[test]
fn a_recording_of_perf_is_analysed_as_a_trace_is() {
    let dir = tempfile::tempdir().unwrap();
    let [recorded, exported] = ["perf.data", "trace"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    let packed = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/sched/perf-sched.data.gz"));
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&*packed.unwrap()).read_to_end(&mut bytes).unwrap();
    fs::write(&recorded, bytes).unwrap();
    let json = |args: &[&str]| -> Value {
        let output = scxprof(args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let info = json(&["trace", "info", &recorded, "--json"]);
    assert_eq!((&info["source"], &info["cpus"]), (&"perf".into(), &4.into()));
    // As `perf script` shows them.
    let count = |name: &str| {
        let mut events = info["events"].as_array().unwrap().iter();
        events.find(|event| event["name"] == name).unwrap()["count"].as_u64().unwrap()
    };
    let counts = ["sched_switch", "sched_waking", "sched_wakeup_new", "sched_stat_runtime"].map(count);
    assert_eq!(counts, [1626, 862, 15, 2265]);
    let of_recording = json(&["trace", "analyze", &recorded, "--json", "--limit", "0"]);
    assert!(of_recording["analyses"]["llc_locality"].is_object(), "the recording has the places of CPUs");
    assert!(scxprof(&["export", "-f", &recorded, "--perfetto", &exported]).status.success());
    let mut of_trace = json(&["trace", "analyze", &exported, "--json", "--limit", "0"]);
    for id in ["task_states", "wakeup_latency", "run_queue", "preemptions", "wakeup_chains", "fairness"] {
        let found = of_recording["analyses"][id].clone();
        assert!(found.is_object(), "{id}");
        assert_eq!(found, of_trace["analyses"][id].take(), "{id}");
    }
}

/// A trace of wprof with a thread in a dispatch queue.
pub fn trace_of_queues() -> Vec<u8> {
    let begin = |time, name: &str| at(time, &slice(1, 1, "SCX_DSQ", name), &[int_arg("cpu", 0)]);
    let run = |time, kind, track| at(time, &slice(kind, track, "ONCPU", "a"), &[int_arg("cpu", 0)]);
    let end = |time| at(time, &slice(2, 1, "SCX_DSQ", ""), &[]);
    file(&[
        wprof_tables(),
        thread_track(1, 100, 100, "a"),
        thread_track(2, 100, 101, "b"),
        run(100, 1, 2),
        begin(1_000, "DSQ:insert_0x2a"),
        run(4_000, 2, 2),
        end(4_000),
        run(4_000, 1, 1),
        run(9_000, 2, 1),
    ])
}

#[test]
fn queues_of_wprof_are_those_of_the_statistics() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    fs::write(&path, trace_of_queues()).unwrap();
    let output = scxprof(&["sched", "-f", path.to_str().unwrap(), "--by", "dsq", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let line = &value["dsqs"][0];
    assert_eq!(
        (&line["id"], &line["inserted"], &line["dispatched"]),
        (&"0x2a".into(), &1.into(), &1.into()),
        "{value}"
    );
    assert_eq!(line["wait"]["max_ns"], 3_000, "{value}");
}
