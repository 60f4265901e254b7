//! `scxprof trace events` and `timeline`, and what selects events.

use serde_json::Value;

use super::commands::scxprof;
use super::*;

fn lines(args: &[&str]) -> Vec<Value> {
    let output = scxprof(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

fn json(args: &[&str]) -> Value {
    let output = scxprof(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn events_come_in_order_and_are_those_that_info_counts() {
    let path = path("ftrace-all.pftrace");
    let path = path.to_str().unwrap();
    let all = lines(&["trace", "events", path, "--json"]);
    assert!(all.windows(2).all(|pair| number(&pair[0]["time_ns"]) <= number(&pair[1]["time_ns"])));
    let first = number(&all[0]["time_ns"]);
    assert!(all.iter().all(|event| number(&event["since_ns"]) == number(&event["time_ns"]) - first));
    let info = json(&["trace", "info", path, "--json"]);
    // Interrupts between CPUs have one type, whatever the recorder calls them.
    let is_of_group = |event: &&Value| event["name"].as_str().unwrap().contains(':');
    for event in info["events"].as_array().unwrap().iter().filter(|event| !is_of_group(event)) {
        let found = all.iter().filter(|line| line["type"] == event["name"]).count() as u64;
        assert_eq!(found, number(&event["count"]), "{event}");
    }
    // As text the same number, and as many as are asked for.
    let text = |args: &[&str]| String::from_utf8(scxprof(args).stdout).unwrap().lines().count();
    assert_eq!(text(&["trace", "events", path]), all.len());
    assert_eq!(text(&["trace", "events", path, "--limit", "7"]), 7);
}

#[test]
fn events_are_selected_by_type_thread_cpu_and_time() {
    let path = path("wprof.pb.gz");
    let path = path.to_str().unwrap();
    let events = |options: &[&str]| lines(&[&["trace", "events", path, "--json"], options].concat());
    let all = events(&[]);
    let of = |is: &dyn Fn(&Value) -> bool| all.iter().filter(|event| is(event)).cloned().collect::<Vec<_>>();
    let names_spin = |event: &Value| {
        let args = &event["args"];
        [&event["comm"], &args["comm"], &args["prev_comm"], &args["next_comm"]].iter().any(|comm| **comm == "spin0")
    };
    assert_eq!(
        events(&["--type", "sched_switch,*_entry"]),
        of(&|event| {
            let kind = event["type"].as_str().unwrap();
            kind == "sched_switch" || kind.ends_with("_entry")
        })
    );
    assert_eq!(
        events(&["--type", "sched_switch", "--comm", "^spin0$"]),
        of(&|event| event["type"] == "sched_switch" && names_spin(event))
    );
    assert_eq!(events(&["--cpu", "1-2"]), of(&|event| event["cpu"] == 1 || event["cpu"] == 2));
    let within = |event: &Value| (500_000_000..600_000_000).contains(&number(&event["since_ns"]));
    assert_eq!(events(&["--from", "500ms", "--to", "0.6"]), of(&within));
    let of_384 = events(&["--tid", "384", "--type", "sched_waking"]);
    assert!(!of_384.is_empty() && of_384.iter().all(|event| event["tid"] == 384 || event["args"]["tid"] == 384));
    // A process has all of its threads.
    let of_process = events(&["--pid", "381", "--type", "sched_switch"]);
    assert!(of_process.len() > events(&["--tid", "384", "--type", "sched_switch"]).len());
    let output = scxprof(&["trace", "events", path, "--type", "no_such"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("no event matches the selection; its types are ") && said.contains("sched_switch"), "{said}");
    for wrong in [&["--from", "2", "--to", "1"][..], &["--cpu", "x"], &["--comm", "("]] {
        assert_eq!(scxprof(&[&["trace", "events", path], wrong].concat()).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn a_timeline_has_the_times_of_the_oracle() {
    let path = path("wprof.pb.gz");
    let path = path.to_str().unwrap();
    let spans = lines(&["trace", "timeline", path, "--tid", "384", "--json"]);
    let sum = |spans: &[Value], state: &str| {
        spans.iter().filter(|span| span["state"] == state).map(|span| number(&span["ns"])).sum::<u64>()
    };
    // spin0, as wprof's JSON has it.
    assert_eq!(sum(&spans, "running"), 157_012_568);
    for pair in spans.windows(2) {
        assert_eq!(number(&pair[0]["begin_ns"]) + number(&pair[0]["ns"]), number(&pair[1]["begin_ns"]), "{pair:?}");
    }
    assert!(spans.iter().any(|span| span["why"] == "preempted" && span["by"]["comm"] == "spin1"), "{spans:?}");
    // A CPU has a span for each time of its own.
    let whole = json(&["trace", "analyze", path, "--only", "cpu_utilization", "--json"]);
    for cpu in whole["analyses"]["cpu_utilization"]["cpus"].as_array().unwrap() {
        let spans = lines(&["trace", "timeline", path, "--cpu", &cpu["cpu"].to_string(), "--json"]);
        let closed: Vec<Value> = spans.into_iter().filter(|span| span["is_open"] == false).collect();
        assert_eq!(sum(&closed, "running"), number(&cpu["run_ns"]), "{cpu}");
        assert_eq!(sum(&closed, "idle"), number(&cpu["idle_ns"]), "{cpu}");
    }
    let text = String::from_utf8(scxprof(&["trace", "timeline", path, "--tid", "384", "--limit", "3"]).stdout).unwrap();
    assert_eq!(text.lines().count(), 4, "{text}");
    assert!(text.lines().nth(1).unwrap().ends_with("waiting      1  new"), "{text}");
    let output = scxprof(&["trace", "timeline", path, "--tid", "999999"]);
    assert_eq!(output.status.code(), Some(1));
    for wrong in [&[][..], &["--tid", "1", "--cpu", "1"], &["--cpu", "0-1"], &["--tid", "1", "--comm", "x"]] {
        assert_eq!(scxprof(&[&["trace", "timeline", path], wrong].concat()).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn what_is_selected_is_analysed() {
    let path = path("wprof.pb.gz");
    let path = path.to_str().unwrap();
    let analyses = |options: &[&str]| {
        let all = ["trace", "analyze", path, "--json", "--limit", "0"];
        json(&[&all, options].concat())["analyses"].take()
    };
    let whole = analyses(&[]);
    let line = |found: &Value, tid: u64| {
        let threads = found["task_states"]["threads"].as_array().unwrap();
        threads.iter().find(|line| line["tid"] == tid).cloned().unwrap_or_default()
    };
    let one = analyses(&["--tid", "384"]);
    assert_eq!(one["task_states"]["threads"].as_array().unwrap().len(), 1);
    assert_eq!(line(&one, 384), line(&whole, 384));
    // Who took its CPU is known, though nothing else counts.
    let by = one["preemptions"]["pairs"].as_array().unwrap();
    assert!(by.iter().any(|pair| pair["by"]["name"] == "spin1"), "{by:?}");
    let spins = analyses(&["--comm", "^spin"]);
    assert_eq!(spins["task_states"]["thread_count"], 2);
    // It had another name in its first run.
    let of_385 = |found: &Value| number(&line(found, 385)["running"]["count"]);
    assert_eq!(of_385(&spins) + 1, of_385(&whole));
    let of_process = analyses(&["--pid", "381"]);
    assert_eq!(of_process["cpu_utilization"]["process_count"], 1);
    let cpu = analyses(&["--cpu", "2"]);
    assert_eq!(cpu["cpu_utilization"]["cpus"].as_array().unwrap().len(), 1);
    assert_eq!(cpu["cpu_utilization"]["cpus"][0], whole["cpu_utilization"]["cpus"][2]);
    // The parts of the time have the time of the whole, and each wait once.
    let (first, second) = (analyses(&["--to", "400ms"]), analyses(&["--from", "400ms"]));
    let run = |found: &Value| number(&found["task_states"]["total"]["running"]["total_ns"]);
    // What runs at the cut is in the second part alone.
    assert!(run(&first) + run(&second) <= run(&whole));
    assert!(run(&first) + run(&second) + 4 * 400_000_000 > run(&whole));
    // A run that goes over the cut is cut there.
    let after = |cpu: u64| {
        let spans = lines(&["trace", "timeline", path, "--cpu", &cpu.to_string(), "--json"]);
        let ran = spans.iter().filter(|span| span["state"] == "running" && span["is_open"] == false);
        ran.map(|span| (number(&span["since_ns"]), number(&span["ns"])))
            .map(|(since, ns)| (since + ns).saturating_sub(since.max(400_000_000)))
            .sum::<u64>()
    };
    assert_eq!((0..4).map(after).sum::<u64>(), run(&second));
    let waits = |found: &Value| number(&found["wakeup_latency"]["latency"]["count"]);
    assert_eq!(waits(&first) + waits(&second), waits(&whole));
    assert!(
        number(&second["cpu_utilization"]["window_ns"]) < number(&whole["cpu_utilization"]["window_ns"]) - 399_000_000
    );
    let only = analyses(&["--type", "softirq_*"]);
    assert_eq!(only["irq_analysis"], whole["irq_analysis"]);
    assert_eq!(waits(&only), 0);
    let output = scxprof(&["trace", "analyze", path, "--comm", "nobody"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no event matches the selection"));
}

#[test]
fn a_profile_has_events_and_timelines_too() {
    let dir = tempfile::tempdir().unwrap();
    let recorded = dir.path().join("perf.data");
    let packed = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/sched/perf-sched.data.gz"));
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&*packed.unwrap()).read_to_end(&mut bytes).unwrap();
    fs::write(&recorded, bytes).unwrap();
    let recorded = recorded.to_str().unwrap();
    let switches = lines(&["trace", "events", recorded, "--type", "sched_switch", "--json"]);
    assert_eq!(switches.len(), 1626);
    let busiest = &switches[800]["args"]["prev_tid"];
    let tid = if *busiest == 0 { switches[800]["args"]["next_tid"].to_string() } else { busiest.to_string() };
    let spans = lines(&["trace", "timeline", recorded, "--tid", &tid, "--json"]);
    let states = json(&["trace", "analyze", recorded, "--tid", &tid, "--only", "task_states", "--json"]);
    let run: u64 = spans
        .iter()
        .filter(|span| span["state"] == "running" && span["is_open"] == false)
        .map(|span| number(&span["ns"]))
        .sum();
    assert_eq!(states["analyses"]["task_states"]["total"]["running"]["total_ns"], run);
}

#[test]
fn two_traces_are_compared() {
    let [a, b] = ["wprof.pb.gz", "ftrace-compact.pftrace.gz"].map(|name| path(name).to_str().unwrap().to_owned());
    let same = json(&["trace", "diff", &a, &a, "--json"]);
    let same = same["lines"].as_array().unwrap();
    assert!(same.iter().any(|line| line["group"] == "spin0" && line["metric"] == "running"), "{same:?}");
    assert!(same.iter().all(|line| line["verdict"] == "no_change" || line["verdict"] == "too_few"), "{same:?}");
    let found = json(&["trace", "diff", &a, &b, "--json"]);
    let only = |verdict: &str| found["lines"].as_array().unwrap().iter().any(|line| line["verdict"] == verdict);
    assert!(only("only_in_a") && only("only_in_b"), "{found}");
    assert_eq!(found["method"]["confidence"], 0.99);
    let text = |args: &[&str]| String::from_utf8(scxprof(args).stdout).unwrap();
    let said = text(&["trace", "diff", &a, &a]);
    assert!(said.starts_with("0 of ") && said.contains("bootstrap over "), "{said}");
    let said = text(&["trace", "diff", &a, &a, "--all"]);
    assert!(said.starts_with("NAME ") && said.contains("no change"), "{said}");
    for wrong in [&["--by", "subcell"][..], &["--config", "/none"]] {
        assert_eq!(scxprof(&[&["trace", "diff", &a, &a], wrong].concat()).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn threads_are_grouped_by_layer_and_subcell() {
    use super::encode::{at, file, int_arg, slice, thread_track, wprof_tables};
    let dir = tempfile::tempdir().unwrap();
    let [trace, config] = ["trace", "layers.json"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    let run = |from, until, track, name: &str, layer| {
        let args = [int_arg("cpu", 0), int_arg("scx_layer_id", layer)];
        [
            at(from, &slice(1, track, "ONCPU", name), &args),
            at(until, &slice(2, track, "ONCPU", ""), &[int_arg("cpu", 0)]),
        ]
    };
    let mut packets = vec![wprof_tables(), thread_track(1, 100, 100, "web-1"), thread_track(2, 100, 101, "batch")];
    packets.extend(run(100, 400, 1, "web-1", 3));
    packets.extend(run(400, 500, 2, "batch", 5));
    fs::write(&trace, file(&packets)).unwrap();
    let kind = r#""kind": {"Grouped": {"util_range": [0.1, 0.2]}}"#;
    let layers = format!(
        r#"[{{"name": "front", "matches": [[{{"CommPrefix": "web-"}}]], {kind}}}, {{"name": "rest", "matches": [[]], {kind}}}]"#
    );
    fs::write(&config, layers).unwrap();
    let groups = |options: &[&str]| {
        let found = json(&[&["trace", "analyze", &trace, "--only", "groups", "--json"], options].concat());
        let lines = found["analyses"]["groups"]["groups"].as_array().unwrap().clone();
        lines.iter().map(|line| (line["group"].to_string(), number(&line["run"]["total_ns"]))).collect::<Vec<_>>()
    };
    let of = |name: &str, ns: u64| (format!("\"{name}\""), ns);
    assert_eq!(groups(&["--by", "layer"]), [of("layer 3", 300), of("layer 5", 100)]);
    assert_eq!(groups(&["--by", "subcell", "--config", &config]), [of("front", 300), of("rest", 100)]);
    let wprof = path("wprof.pb.gz");
    let output = scxprof(&["trace", "analyze", wprof.to_str().unwrap(), "--only", "groups", "--by", "layer"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("does not say the layers of threads"), "{said}");
    assert_eq!(scxprof(&["trace", "analyze", &trace, "--by", "subcell"]).status.code(), Some(2));
}
