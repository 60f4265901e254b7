//! `scxprof replay`: recordings run again, by the real binary.

mod counter;
mod ends;
mod grouped;
mod live;
mod machines;
mod tables;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const SCXPROF: &str = env!("CARGO_BIN_EXE_scxprof");

fn replay(args: &[&str]) -> Output {
    Command::new(SCXPROF).arg("replay").args(args).output().unwrap()
}

/// The result of a replay, which must succeed.
fn json(args: &[&str]) -> Value {
    let output = replay(&[&["--json"], args].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// What `perf sched record` recorded on four CPUs of an emulated machine.
fn recording(dir: &Path) -> PathBuf {
    fixture(dir, "perf-sched")
}

/// A recording of tests/fixtures/sched.
fn fixture(dir: &Path, name: &str) -> PathBuf {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/sched/{name}.data.gz"));
    let path = dir.join("perf.data");
    let mut file = std::fs::File::create(&path).unwrap();
    std::io::copy(&mut flate2::read::GzDecoder::new(std::fs::File::open(packed).unwrap()), &mut file).unwrap();
    path
}

/// How far the replayed number is from the recorded one, as a part of it.
fn off(pair: &Value) -> f64 {
    (number(&pair["replayed"]) as f64 / number(&pair["recorded"]).max(1) as f64 - 1.0).abs()
}

/// The only line of stderr that says why there is no result.
fn refusal(output: &Output, code: i32) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(output.stdout.is_empty());
    let errors: Vec<&str> = text.lines().filter(|line| !line.starts_with("note: ")).collect();
    assert_eq!(errors.len(), 1, "{text}");
    errors[0].to_owned()
}

#[test]
fn a_recording_of_another_machine_replays() {
    let dir = tempfile::tempdir().unwrap();
    let path = recording(dir.path());
    let path = path.to_str().unwrap();
    let found = json(&["-f", path, "--overcommit"]);
    assert_eq!((number(&found["processes"]), found["memory"].is_null()), (7, true));
    let threads = found["threads"].as_array().unwrap();
    // As `perf sched latency -p` has them, but for the kernel's threads. ld.so ran perf there.
    let mut names: Vec<&str> = threads.iter().map(|thread| thread["comm"].as_str().unwrap()).collect();
    names.sort_unstable();
    let expected = "boss cond0 cond1 cond2 hop ld.so ping pong schedload spin0 spin1 tick true true true true true";
    assert_eq!(names.join(" "), expected);
    assert!(number(&found["left_out"]["kernel"]) > 10);
    assert!(off(&found["total"]["run_ns"]) < 0.05, "{}", found["total"]);
    for thread in threads {
        assert!(number(&thread["mock_tid"]) > 0 && number(&thread["work"]) > 0, "{thread}");
        // A thread runs as long as in the recording, and what its first and last system call take.
        let [recorded, replayed] = ["recorded", "replayed"].map(|which| number(&thread["run_ns"][which]));
        assert!(replayed.abs_diff(recorded) < recorded / 20 + 1_000_000, "{thread}");
    }
    // Who is woken by a thread is woken by its mock thread, unless both are late.
    assert!(off(&found["total"]["wakeups"]) < 0.25, "{}", found["total"]);
    assert_eq!(found["loops"].as_array().unwrap().len(), 1);
}

#[test]
fn times_scale_and_counts_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = recording(dir.path());
    let path = path.to_str().unwrap();
    let all = ["-f", path, "--overcommit", "--comm", "^(ping|pong)$"];
    let (whole, tenth) = (json(&all), json(&[&all[..], &["--time-scale", "0.1", "--loops", "3"]].concat()));
    assert_eq!(tenth["loops"].as_array().unwrap().len(), 3);
    let total = |found: &Value, field: &str| number(&found["total"][field]["recorded"]);
    for field in ["switches", "sleeps", "wakeups", "migrations"] {
        assert_eq!(total(&whole, field), total(&tenth, field), "{field}");
    }
    let tenths = total(&whole, "run_ns") as f64 / total(&tenth, "run_ns") as f64;
    assert!((9.99..10.01).contains(&tenths), "{tenths}");
    assert_eq!((number(&whole["window_ns"]) + 5) / 10, number(&tenth["window_ns"]));
}

#[test]
fn what_is_selected_is_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let path = recording(dir.path());
    let path = path.to_str().unwrap();
    let quick = ["-f", path, "--overcommit", "--time-scale", "0.05"];
    let names = |more: &[&str]| -> Vec<String> {
        let found = json(&[&quick[..], more].concat());
        found["threads"].as_array().unwrap().iter().map(|thread| thread["comm"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&["--comm", "^tick$"]), ["tick"]);
    assert_eq!(names(&["--tid", "406"]), ["ping"]);
    assert_eq!(
        names(&["--pid", "404", "--exclude-comm", "^(cond|spin|boss|hop|tick|schedload)", "--exclude-tid", "407"]),
        ["ping"]
    );
    // Those that began later are not there.
    assert!(names(&["--to", "0.01"]).len() < names(&[]).len());
    let one = json(&[&quick[..], &["--threads-per-cpu", "100"]].concat());
    assert_eq!(one["cpus"].as_array().unwrap().len(), 1);
}

#[test]
fn what_cannot_be_replayed_is_refused_in_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let path = recording(dir.path());
    let path = path.to_str().unwrap();
    let nobody = refusal(&replay(&["-f", path, "--comm", "nobody"]), 1);
    assert!(nobody.contains("no thread is left to replay") && nobody.contains("are not selected"), "{nobody}");
    let much = refusal(&replay(&["-f", path, "--threads-per-cpu", "100"]), 2);
    assert!(much.contains("--overcommit"), "{much}");
    let memory = refusal(&replay(&["-f", path, "--memory"]), 1);
    assert!(memory.contains("no samples of memory"), "{memory}");
    let late = refusal(&replay(&["-f", path, "--from", "1000"]), 1);
    assert!(late.contains("no scheduling events in that time"), "{late}");
    assert_eq!(replay(&["-f", path, "--time-scale", "0"]).status.code(), Some(2));
    assert_eq!(replay(&["-f", path, "--cpus", "9999"]).status.code(), Some(2));
    let missing = refusal(&replay(&["-f", "/nonexistent"]), 2);
    assert!(missing.contains("/nonexistent"), "{missing}");
}

#[test]
fn two_configurations_are_compared_on_the_same_work() {
    let dir = tempfile::tempdir().unwrap();
    let path = recording(dir.path());
    let path = path.to_str().unwrap();
    let config = dir.path().join("cells.json");
    let cells = r#"[{"name": "all", "matches": {}, "subcells": [
        {"name": "wake", "matches": [[{"CommPrefix": "p"}]]}, {"name": "rest", "matches": [[]]}]}]"#;
    std::fs::write(&config, cells).unwrap();
    let config = config.to_str().unwrap();
    let quick = ["-f", path, "--overcommit", "--time-scale", "0.2", "--comm", "^(ping|pong|cond|tick)"];
    let found = json(&[&quick[..], &["--compare", "none", config, "--loops", "3"]].concat());
    assert_eq!((found["a"].as_str(), found["b"].as_str(), number(&found["rounds"])), (Some("none"), Some(config), 3));
    let differences = found["differences"].as_array().unwrap();
    let of = |measure: &str| differences.iter().find(|line| line["measure"] == measure).unwrap();
    for measure in ["duration_ns", "work_per_s", "cpu_ns"] {
        let line = of(measure);
        let [a, b, change] = ["a", "b", "change"].map(|field| line[field].as_f64().unwrap());
        assert!(a > 0.0 && b > 0.0 && (b / a - 1.0 - change).abs() < 1e-9, "{line}");
        let [low, high] = [0, 1].map(|side| line["interval"][side].as_f64().unwrap());
        assert!(low <= high, "{line}");
    }
    assert!(of("migrations")["a"].is_number());
    if found["by"] == "affinity" {
        let groups = found["cpus"].as_array().unwrap();
        assert_eq!(groups.len(), 2, "{groups:?}");
        let cpus = |group: &Value| group["cpus"].as_array().unwrap().clone();
        if number(&json(&[&quick[..], &["--no-memory"]].concat())["cpus"].as_array().unwrap().len().into()) > 1 {
            assert!(cpus(&groups[0]).iter().all(|cpu| !cpus(&groups[1]).contains(cpu)), "{groups:?}");
        }
    }
    let bad = refusal(&replay(&[&quick[..], &["--compare", "none", path]].concat()), 2);
    assert!(bad.contains("--compare"), "{bad}");
}

#[test]
fn every_prefix_replays_or_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = recording(dir.path());
    let whole = std::fs::read(&path).unwrap();
    let quick = ["--overcommit", "--time-scale", "0.01", "--json"];
    let part = dir.path().join("part.data");
    for parts in 0..16 {
        std::fs::write(&part, &whole[..whole.len() * parts / 16]).unwrap();
        let output = replay(&[&["-f", part.to_str().unwrap()], &quick[..]].concat());
        // What events mean is at the end of the file.
        refusal(&output, 1);
    }
    // Of events.
    for parts in 1..=20 {
        for side in ["--to", "--from"] {
            let time = (f64::from(parts) * 0.021).to_string();
            let output = replay(&[&["-f", path.to_str().unwrap(), side, &time], &quick[..]].concat());
            match output.status.code() {
                Some(0) => assert!(serde_json::from_slice::<Value>(&output.stdout).is_ok()),
                _ => drop(refusal(&output, 1)),
            }
        }
    }
}
