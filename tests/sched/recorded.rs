//! The recording of perf: every count and time is perf's.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{fixture, json, number, recording};

/// perf itself: it moves from CPU to CPU as it starts and ends the events, so that some of its switches are missing.
const RECORDER: u64 = 403;
/// perf prints ms with three digits.
const ROUNDING: f64 = 0.000_6;

fn lines() -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let path = recording(dir.path());
    let document = json(&["-f", path.to_str().unwrap(), "--by", "thread"]);
    assert_eq!(number(&document["events"]), 4987);
    assert_eq!(number(&document["gaps"]["mismatches"]), 0);
    document["lines"].as_array().unwrap().clone()
}

fn ms(value: &Value) -> f64 {
    number(value) as f64 / 1e6
}

/// The line of a thread. One that has ended has no id any more; in this recording its name and process say which it was.
fn line<'a>(lines: &'a [Value], name: &str, tid: u64) -> Option<&'a Value> {
    let lives = lines.iter().find(|line| line["tid"] == tid);
    let named = || lines.iter().filter(|line| line["name"] == name && line["tid"].is_null());
    let of_process = || named().find(|line| line["pid"] == tid);
    lives.or_else(of_process).or_else(|| named().next())
}

#[test]
fn latency_is_that_of_perf() {
    let lines = lines();
    let text = String::from_utf8(fixture("latency.txt.gz")).unwrap();
    let mut rows = 0;
    for row in text.lines().filter(|row| row.contains("| avg:")) {
        let fields: Vec<&str> = row.split('|').map(str::trim).collect();
        let [task, runtime, count, avg, max, ..] = fields.as_slice() else { panic!("{row}") };
        let (name, tid) = task.rsplit_once(':').unwrap();
        let [avg, max] = [avg, max].map(|it| it.rsplit(':').next().unwrap());
        let value = |text: &str| text.trim_end_matches("ms").trim().parse::<f64>().unwrap();
        let line = line(&lines, name, tid.parse().unwrap()).unwrap_or_else(|| panic!("no line for {row}"));
        // perf counts a wait of 0 for a thread that it first sees as it gets its CPU.
        let waits = number(&line["wait"]["count"]) + number(&line["first_seen"]);
        assert_eq!(waits, count.parse::<u64>().unwrap(), "{row}");
        let mean = ms(&line["wait"]["total_ns"]) / waits as f64;
        assert!((mean - value(avg)).abs() < ROUNDING, "{row}: mean {mean}");
        assert!((ms(&line["wait"]["max_ns"]) - value(max)).abs() < ROUNDING, "{row}: {}", line["wait"]);
        assert!((ms(&line["charged_ns"]) - value(runtime)).abs() < ROUNDING, "{row}: {}", line["charged_ns"]);
        rows += 1;
    }
    assert_eq!(rows, 30);
}

/// One thread's rows of `perf sched timehist`, in ms.
#[derive(Debug, Default)]
struct Rows {
    count: u64,
    run: f64,
    delay: f64,
    sleep: f64,
}

#[test]
fn run_wait_and_sleep_are_those_of_timehist() {
    let lines = lines();
    let text = String::from_utf8(fixture("timehist.txt.gz")).unwrap();
    let mut threads: BTreeMap<u64, Rows> = BTreeMap::new();
    for row in text.lines().filter(|row| !row.contains("awakened:") && !row.contains("migrated:")) {
        // `82.945557 [0001]  s  NAME[TID/PID]  WAIT  DELAY  RUN  STATE  next: ...`
        let Some((_, rest)) = row.split_once("]  ") else { continue };
        let Some((name, numbers)) = rest.split_once("]  ") else { continue };
        let Some(tid) = name.rsplit('[').next().and_then(|ids| ids.split('/').next()?.parse::<u64>().ok()) else {
            continue;
        };
        let numbers: Vec<f64> = numbers.split_whitespace().take(3).map_while(|it| it.parse().ok()).collect();
        let [wait, delay, run] = numbers.as_slice() else { continue };
        let sum = threads.entry(tid).or_default();
        sum.count += 1;
        sum.run += run;
        sum.delay += delay;
        // Since it last ran; its sleep is what is not delay.
        sum.sleep += if *wait > 0.0 { wait - delay } else { 0.0 };
    }
    let mut compared = 0;
    for (tid, rows) in &threads {
        // perf's last row of a thread that has ended has no thread id.
        let Some(line) = lines.iter().find(|line| line["tid"] == *tid) else { continue };
        let rounding = ROUNDING * 2.0 * (rows.count + 1) as f64;
        let about = |ours: f64, perf: f64, what: &str| {
            assert!((ours - perf).abs() <= rounding, "{what} of {tid}: {ours}, perf {perf} ({rows:?})");
        };
        about(ms(&line["run"]["total_ns"]), rows.run, "run");
        // perf says a wait when the run after it ends, which may be after the recording.
        let is_running = *tid == RECORDER || number(&line["wait"]["count"]) + number(&line["first_seen"]) > rows.count;
        let delay = ms(&line["wait"]["total_ns"]);
        assert!(!is_running || delay > rows.delay, "{tid}: {line}");
        about(if is_running { rows.delay } else { delay }, rows.delay, "wait");
        about(ms(&line["sleep"]["total_ns"]) + ms(&line["blocked"]["total_ns"]), rows.sleep, "sleep");
        assert_eq!(number(&line["switches"]), rows.count, "{tid}");
        compared += 1;
    }
    assert!(compared >= 13, "{compared} threads");
}

#[test]
fn cpus_and_threads_add_up_to_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let path = recording(dir.path());
    let document = |by: &str| json(&["-f", path.to_str().unwrap(), "--by", by]);
    let total = document("thread")["total"].clone();
    for by in ["thread", "process", "cpu", "cgroup", "llc", "node"] {
        let document = document(by);
        let lines = document["lines"].as_array().unwrap();
        let sum = |field: &dyn Fn(&Value) -> u64| lines.iter().map(field).sum::<u64>();
        assert_eq!(sum(&|line| number(&line["run"]["total_ns"])), number(&total["run"]["total_ns"]), "{by}");
        assert_eq!(sum(&|line| number(&line["switches"])), number(&total["switches"]), "{by}");
        assert_eq!(sum(&|line| number(&line["wait"]["count"])), number(&total["wait"]["count"]), "{by}");
        assert_eq!(sum(&|line| number(&line["wakeups"])), number(&total["wakeups"]), "{by}");
        assert_eq!(sum(&|line| number(&line["migrations"]["total"])), number(&total["migrations"]["total"]), "{by}");
        if by == "cpu" {
            let window = number(&document["window_ns"]);
            for line in lines {
                let known = number(&line["run"]["total_ns"]) + number(&line["idle_ns"]);
                assert_eq!(known + number(&line["unknown_ns"]), window, "{line}");
            }
        }
    }
}
