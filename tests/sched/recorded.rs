//! The recording of perf: every count and time is perf's.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{fixture, json, layers, number, recording, sched};

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

/// What perf calls the idle task, and `--wakers` none, as it does an interrupt.
const IDLE: &str = "swapper";

/// The wakeups of `perf sched timehist -w`, by the names of waker and woken thread.
fn perf_wakeups() -> BTreeMap<(String, String), u64> {
    let text = String::from_utf8(fixture("timehist.txt.gz")).unwrap();
    let mut wakeups = BTreeMap::new();
    for row in text.lines() {
        // `82.945557 [0001]   NAME[TID/PID]    awakened: NAME[TID/PID]`
        let Some((waker, wakee)) = row.split_once("awakened: ") else { continue };
        let name = |task: &str| task.trim().split('[').next().unwrap().to_owned();
        let (_, waker) = waker.split_once("] ").unwrap();
        *wakeups.entry((name(waker), name(wakee))).or_default() += 1;
    }
    wakeups
}

/// The edges by the names of waker and woken thread.
fn wakeups(document: &Value) -> BTreeMap<(String, String), u64> {
    let mut wakeups = BTreeMap::new();
    for edge in document["wakers"]["edges"].as_array().unwrap() {
        let name = |party: &Value| party["name"].as_str().unwrap_or(IDLE).to_owned();
        *wakeups.entry((name(&edge["waker"]), name(&edge["wakee"]))).or_default() += number(&edge["wakeups"]);
    }
    wakeups
}

fn changes_its_name(name: &str) -> bool {
    ["schedload", "true", "ld.so", "perf-exec"].contains(&name) || name.starts_with(':') || name.starts_with("kworker")
}

/// How often each thread was woken that always has the same name.
fn by_wakee(wakeups: &BTreeMap<(String, String), u64>) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for ((_, wakee), count) in wakeups.iter().filter(|((_, wakee), _)| !changes_its_name(wakee)) {
        *sums.entry(wakee.clone()).or_default() += count;
    }
    sums
}

/// Those of threads that always have the same name: perf says the name that a thread has at a wakeup, and none while it ends.
fn of_lasting_names(wakeups: &BTreeMap<(String, String), u64>) -> BTreeMap<(String, String), u64> {
    wakeups
        .clone()
        .into_iter()
        .filter(|((waker, wakee), _)| !changes_its_name(waker) && !changes_its_name(wakee))
        .collect()
}

#[test]
fn wakers_are_those_of_timehist() {
    let dir = tempfile::tempdir().unwrap();
    let path = recording(dir.path());
    let path = path.to_str().unwrap();
    let all = perf_wakeups();
    assert_eq!(all.values().sum::<u64>(), 877);
    let expected = of_lasting_names(&all);
    assert!(expected.values().sum::<u64>() > 750, "{expected:?}");
    for level in ["thread", "class"] {
        let document = json(&["-f", path, "--wakers", level]);
        let wakers = &document["wakers"];
        let found = wakeups(&document);
        assert_eq!(found.values().sum::<u64>(), 877);
        // perf says what thread an interrupt interrupted, where `--wakers` says none: only what wakes over pipes, condition
        // variables and as it moves is the same.
        let found = of_lasting_names(&found);
        let programs = ["ping", "pong", "cond0", "cond1", "cond2", "migration/0", "migration/1", "migration/2"];
        let mut compared = 0;
        for (pair, &wakeups) in expected.iter().filter(|((waker, _), _)| waker != IDLE) {
            let ours = found.get(pair).copied().unwrap_or(0);
            assert!(ours <= wakeups, "{level}: {pair:?}: {ours}, perf {wakeups}");
            if ["ping", "pong", "boss", "hop"].contains(&&*pair.0) && programs.contains(&&*pair.1) {
                assert_eq!(ours, wakeups, "{level}: {pair:?}");
                compared += ours;
            }
        }
        assert!(compared > 450, "{compared}");
        // How often each was woken is the same. As a new thread, it still has the name of the program for perf.
        let mut woken = by_wakee(&all);
        for name in ["boss", "cond0", "cond1", "cond2", "hop", "ping", "pong", "spin0", "spin1", "tick"] {
            *woken.get_mut(name).unwrap() += 1;
        }
        assert_eq!(by_wakee(&wakeups(&document)), woken, "{level}");
        assert_eq!(number(&wakers["wakeups"]), number(&document["total"]["wakeups"]));
        // Each wait that a wakeup began is in its edge.
        let edges = wakers["edges"].as_array().unwrap();
        assert_eq!(edges.len() as u64, number(&wakers["edge_count"]));
        let sum = |of: &dyn Fn(&Value) -> u64| edges.iter().map(of).sum::<u64>();
        let latency = &document["total"]["latency"];
        assert_eq!(sum(&|edge| number(&edge["latency"]["count"])), number(&latency["count"]), "{level}");
        assert_eq!(sum(&|edge| number(&edge["latency"]["total_ns"])), number(&latency["total_ns"]), "{level}");
        assert_eq!(number(&wakers["preemptions"]), number(&document["total"]["involuntary"]));
        // A chain counts with each wait.
        let chains = wakers["chain_lengths"].as_array().unwrap().iter();
        let chains: u64 = chains.map(|line| number(&line["latency"]["count"])).sum();
        assert!(chains <= number(&document["total"]["wait"]["count"]) && chains >= number(&latency["count"]));
    }
    let few = sched(&["-f", path, "--wakers", "class", "--limit", "2", "--json"]);
    let few: Value = serde_json::from_slice(&few.stdout).unwrap();
    assert_eq!(few["wakers"]["edges"].as_array().unwrap().len(), 2);
}

#[test]
fn wakers_are_printed_and_compared_with_a_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let path = recording(dir.path());
    let path = path.to_str().unwrap();
    let config = layers(dir.path(), "p");
    let config = config.to_str().unwrap();
    let output = sched(&["-f", path, "--wakers", "--config", config]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let pong = text.lines().find(|line| line.starts_with("pong ")).unwrap();
    assert_eq!(pong.split_whitespace().nth(2), Some("ping"), "{text}");
    for part in ["PREEMPTED ", "CHAIN(us) ", "Wakeups: 877; ", "on the same CPU ", "within a layer: "] {
        assert!(text.lines().any(|line| line.contains(part)), "{part}: {text}");
    }
    let document = json(&["-f", path, "--wakers", "class", "--config", config]);
    let within = &document["wakers"]["within"];
    let sum = |is: &dyn Fn(&str, &str) -> bool| {
        wakeups(&document)
            .iter()
            .filter(|((waker, wakee), _)| waker != IDLE && is(waker, wakee))
            .map(|(_, n)| *n)
            .sum::<u64>()
    };
    assert_eq!(number(&within["wakeups"]), sum(&|_, _| true));
    assert_eq!(number(&within["within"]), sum(&|waker, wakee| waker.starts_with('p') == wakee.starts_with('p')));
    assert!(number(&within["within"]) < number(&within["wakeups"]) && number(&within["unknown"]) == 0, "{within}");
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

/// Writes another text of the same length over each place of one; it must be there.
fn replace(bytes: &mut [u8], from: &str, to: &str) {
    let (from, to) = (from.as_bytes(), to.as_bytes());
    let found: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(from)).collect();
    assert!(!found.is_empty() && from.len() == to.len());
    for at in found {
        bytes[at..][..to.len()].copy_from_slice(to);
    }
}

/// Where the format of `sched_switch` does not say what states mean, the kernel's release does: 0x100 is a preempted thread since
/// 4.14, and was a state that it sleeps in before.
#[test]
fn states_without_a_format_are_those_of_the_release() {
    const FORMAT: (&str, &str) = ("print fmt:", "other fmt:");
    const RELEASE: (&str, &str) = ("7.2.13+", "4.9.13+");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    let preempted = |changes: &[(&str, &str)]| {
        let mut bytes = fixture("perf-sched.data.gz");
        for (from, to) in changes {
            replace(&mut bytes, from, to);
        }
        std::fs::write(&path, bytes).unwrap();
        number(&json(&["-f", path.to_str().unwrap()])["total"]["preempted"])
    };
    assert_eq!(preempted(&[]), 109);
    assert_eq!(preempted(&[RELEASE]), 109, "the format says it");
    assert_eq!(preempted(&[FORMAT]), 109);
    assert_eq!(preempted(&[FORMAT, RELEASE]), 0);
}
