//! Captures and profiles of this host.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use serde_json::{json, Value};

use super::client::{Client, PATIENCE};
use super::is_unsupported;
use super::made::Made;

/// Threads of this process that share memory, while `work` runs.
fn sharing<T>(work: impl FnOnce() -> T) -> T {
    let (stop, shared) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 512]);
    std::thread::scope(|scope| {
        for number in 0..3usize {
            let (stop, shared) = (&stop, &shared);
            let run = move || {
                let mut at = number;
                while !stop.load(Ordering::Relaxed) {
                    at = (at * 5 + 1) % shared.len();
                    shared[at].fetch_add(1, Ordering::Relaxed);
                    if at == 0 {
                        std::thread::yield_now();
                    }
                }
            };
            std::thread::Builder::new().name(format!("sharer-{number}")).spawn_scoped(scope, run).unwrap();
        }
        let given = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        given.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Asks until `is_it` is true for the answer.
#[track_caller]
fn until(client: &mut Client, tool: &str, arguments: &Value, is_it: impl Fn(&Value) -> bool) -> Value {
    let end = Instant::now() + PATIENCE;
    loop {
        let answer = client.call(tool, arguments.clone());
        if is_it(&answer) {
            return answer;
        }
        assert!(Instant::now() < end, "{tool}: {answer}");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

#[test]
fn a_capture_is_a_source_while_it_runs_and_after() {
    let made = Made::new();
    let mut client = Client::start(made.root(), &[]);
    let pid = std::process::id();
    let start = json!({ "pid": [pid], "from": "timer", "duration_s": 600, "sharing_window_s": 2 });
    let started = client.call("capture_start", start.clone());
    if is_unsupported("a_capture_is_a_source_while_it_runs_and_after", &started) {
        return;
    }
    assert_eq!(started["result"]["state"], "running");
    assert_eq!(client.refused("capture_start", start), "busy");
    let live = json!({ "source": "live" });
    let with_configuration = json!({ "source": "live", "configuration": "cells.json" });
    assert_eq!(client.refused("wakers", with_configuration), "invalid_arguments");
    let mut has_scheduling = false;
    sharing(|| {
        let found =
            until(&mut client, "find_sharing", &live, |answer| answer["result"]["samples"].as_f64() > Some(0.0));
        assert!(found["result"]["cells"].is_array(), "{found}");
        for tool in ["hot_lines", "make_configuration"] {
            let answer = client.call(tool, live.clone());
            assert!(answer.get("result").is_some() || answer["error"]["kind"] == "no_result", "{tool}: {answer}");
        }
        let score = client.call("score_configuration", json!({ "source": "live", "paths": ["cells.json"] }));
        assert_eq!(score["result"]["configurations"][0]["name"], "cells.json", "{score}");
        assert_eq!(client.refused("find_sharing", json!({ "source": "live", "comm": ["x"] })), "invalid_arguments");
        let is_ours = |line: &Value| line["pid"] == pid && line["name"].as_str().unwrap().starts_with("sharer-");
        let by_thread = json!({ "source": "live", "by": "thread", "limit": 1000 });
        let stats = until(&mut client, "scheduling_stats", &by_thread, |answer| {
            let has_ours =
                |answer: &Value| answer["result"]["lines"].as_array().is_some_and(|it| it.iter().any(is_ours));
            answer["error"]["kind"] == "unsupported" || has_ours(answer)
        });
        if !is_unsupported("a_capture_is_a_source_while_it_runs_and_after", &stats) {
            has_scheduling = true;
            for tool in ["wakers", "latency_outliers"] {
                assert!(client.call(tool, live.clone()).get("result").is_some(), "{tool}");
            }
        }
    });
    for name in ["capture", "stats/thread", "stats/cpu", "stats/dsq"] {
        let read = client.request("resources/read", json!({ "uri": format!("scxprof://{name}") }));
        let text = read["result"]["contents"][0]["text"].as_str().unwrap();
        let value: Value = serde_json::from_str(text).unwrap();
        assert_eq!(value["result"]["state"], "running", "{value}");
    }
    assert_eq!(client.call("capture_stop", json!({}))["result"]["state"], "ended");
    assert!(client.call("find_sharing", live.clone()).get("result").is_some(), "what it found stays");
    for tool in ["scheduling_stats", "wakers", "latency_outliers"] {
        let answer = client.call(tool, live.clone());
        let is_there =
            if has_scheduling { answer.get("result").is_some() } else { answer["error"]["kind"] == "no_result" };
        assert!(is_there, "{tool}: {answer}");
    }
    assert_eq!(client.leave(), Some(0));
}

#[test]
fn a_capture_ends_when_its_time_is_over_and_with_its_client() {
    let made = Made::new();
    let mut client = Client::start(made.root(), &[]);
    let start = |seconds: u32| json!({ "pid": [std::process::id()], "from": "timer", "duration_s": seconds });
    let started = client.call("capture_start", start(1));
    if is_unsupported("a_capture_ends_when_its_time_is_over_and_with_its_client", &started) {
        return;
    }
    until(&mut client, "capture_status", &json!({}), |answer| answer["result"]["state"] == "ended");
    assert_eq!(client.call("capture_start", start(600))["result"]["state"], "running");
    // The process ends, and its events with it.
    assert_eq!(client.leave(), Some(0));
}

#[test]
fn a_profile_is_asked_for_while_it_runs() {
    let made = Made::new();
    let mut client = Client::start(made.root(), &[]);
    let start = json!({ "event": "cpu-clock", "frequency": 500, "pid": [std::process::id()], "duration_s": 600 });
    let started = client.call("profile_start", start);
    if is_unsupported("a_profile_is_asked_for_while_it_runs", &started) {
        return;
    }
    assert_eq!(started["result"]["state"], "running");
    let found = sharing(|| {
        until(&mut client, "profile_status", &json!({}), |answer| answer["result"]["samples"].as_u64() > Some(20));
        client.call("profile_results", json!({ "by": "thread" }))
    });
    let result = &found["result"];
    assert_eq!(result["state"], "running");
    assert!(result["symbols"][0]["self_samples"].is_u64() && result["stacks"][0]["frames"].is_array(), "{found}");
    let groups = result["groups"].as_array().unwrap();
    assert!(groups.iter().any(|group| group["name"].as_str().unwrap().starts_with("sharer-")), "{found}");
    assert_eq!(client.call("profile_stop", json!({}))["result"]["state"], "stopped");
    assert!(client.call("profile_results", json!({}))["result"]["symbols"].is_array());
}
