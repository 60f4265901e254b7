//! Each tool says what the command line says.

use std::collections::BTreeSet;

use serde_json::{json, Value};

use super::client::Client;
use super::made::Made;
use super::{json, json_lines, text};

/// The named fields of an object.
fn fields(value: &Value, names: &[&str]) -> Value {
    names.iter().filter_map(|name| Some(((*name).to_owned(), value.get(*name)?.clone()))).collect()
}

#[test]
fn answers_are_those_of_the_command_line() {
    let made = Made::new();
    let mut client = Client::start(made.root(), &[]);
    let mut unseen: BTreeSet<String> = client.tools().into_iter().collect();
    let samples = client.open("samples.jsonl");
    let other = client.open(text(&made.path("other.jsonl")));
    let (sched, trace) = (client.open("sched.data"), client.open("trace.pb"));
    unseen.remove("open_recording");
    let at = |name: &str| text(&made.path(name)).to_owned();
    let (samples_at, other_at, sched_at, trace_at) =
        (at("samples.jsonl"), at("other.jsonl"), at("sched.data"), at("trace.pb"));
    let cells = at("cells.json");

    let report = json(&["report", "--json", &samples_at]);
    let mut shared = fields(
        &report,
        &[
            "version",
            "headline",
            "source",
            "coverage",
            "samples",
            "locality",
            "locality_found",
            "locality_by_name",
            "stability",
            "cells",
            "sharing",
            "across_cells",
            "limits",
            "notes",
        ],
    );
    let mut groups = Vec::new();
    for cell in shared["cells"].as_array_mut().unwrap() {
        let name = cell["name"].as_str().unwrap().to_owned();
        for subcell in cell["subcells"].as_array_mut().unwrap() {
            groups.push((format!("{name}/{}", subcell["name"].as_str().unwrap()), subcell.clone()));
            for part in ["regions", "pages", "lines"] {
                subcell.as_object_mut().unwrap().remove(part);
            }
        }
    }
    let community = groups.iter().find(|(_, subcell)| subcell["kind"] == "community").unwrap();
    let with = |shared: &&Value| [&shared["a"], &shared["b"]].contains(&&json!(community.0));
    let sharing: Vec<&Value> = report["sharing"].as_array().unwrap().iter().filter(with).collect();
    let group = json!({ "group": community.0, "subcell": community.1, "sharing": sharing });
    let analysis = |args: &[&str]| json(&[&["trace", "analyze", "--json", "--limit=0"], args].concat());
    let configuration: Value = json(&["extract", "-f", &samples_at, "-o", "-"]);
    let layered: Value = json(&["extract", "-f", &samples_at, "-o", "-", "--target", "layered"]);
    let of_sched = |args: &[&str]| json(&[&["sched", "--json", "--limit=0", "-f", &sched_at], args].concat());
    let target = ["--target-cpus=8", "--target-llcs=2"];
    let on_caches: Value = json(&[&["extract", "-f", &samples_at, "-o", "-"], &target[..]].concat());
    assert_ne!(on_caches, json(&["extract", "-f", &samples_at, "-o", "-", target[0]]));
    let wakers = {
        let mut wakers = of_sched(&["--wakers"]);
        for name in ["lines", "by", "line_count"] {
            wakers.as_object_mut().unwrap().remove(name);
        }
        wakers
    };
    let outliers = analysis(&["--only=outliers", "--method=mad", &sched_at])["analyses"]["outliers"].clone();
    let mut score = json(&["score", "--json", "-f", &samples_at, "--config", &cells]);

    let mut expect = |tool: &str, arguments: Value, expected: Value| {
        let found = client.whole(tool, &arguments);
        assert_eq!(found, expected, "{tool} {arguments}");
        unseen.remove(tool);
    };
    expect("recording_info", json!({ "recording": trace }), json(&["trace", "info", "--json", &trace_at]));
    expect("find_sharing", json!({ "source": samples }), shared);
    expect("explain_group", json!({ "source": samples, "group": community.0 }), group);
    expect(
        "hot_lines",
        json!({ "source": samples }),
        fields(&report, &["version", "headline", "samples", "lines", "hubs"]),
    );
    expect("score_configuration", json!({ "source": samples, "paths": ["cells.json"] }), score.clone());
    let text = std::fs::read_to_string(&cells).unwrap();
    let given: Value = serde_json::from_str(&text).unwrap();
    score["configurations"][0]["name"] = "the given configuration".into();
    expect("score_configuration", json!({ "source": samples, "configuration": given }), score);
    for (scheduler, configuration) in [("mitosis", configuration), ("layered", layered)] {
        expect(
            "make_configuration",
            json!({ "source": samples, "scheduler": scheduler }),
            json!({ "scheduler": scheduler, "configuration": configuration }),
        );
    }
    expect(
        "make_configuration",
        json!({ "source": samples, "target_cpus": 8, "target_llcs": 2 }),
        json!({ "scheduler": "mitosis", "configuration": on_caches }),
    );
    expect("diff", json!({ "before": samples, "after": other }), json(&["diff", "--json", &samples_at, &other_at]));
    expect("diff", json!({ "before": "cells.json", "after": samples }), json(&["diff", "--json", &cells, &samples_at]));
    expect(
        "diff",
        json!({ "before": trace, "after": trace }),
        json(&["trace", "diff", "--json", &trace_at, &trace_at]),
    );
    for by in ["cpu", "thread", "process", "cgroup", "node"] {
        expect("scheduling_stats", json!({ "source": sched, "by": by }), of_sched(&["--by", by]));
    }
    expect(
        "scheduling_stats",
        json!({ "source": sched, "by": "cell", "configuration": "cells.json", "sort": "latency" }),
        of_sched(&["--by=cell", "--config", &cells, "--sort=latency"]),
    );
    expect("wakers", json!({ "source": sched }), wakers);
    let latency = json!({
        "total": of_sched(&[])["total"]["latency"],
        "threads": json(&["sched", "--json", "--by=thread", "--sort=latency", "--limit=5", "-f", &sched_at])["lines"],
        "outliers": json(&["trace", "analyze", "--json", "--only=outliers", "--limit=5", &sched_at])["analyses"]["outliers"]["latency"],
    });
    expect("latency_outliers", json!({ "source": sched, "count": 5 }), latency);
    expect(
        "analyze",
        json!({ "recording": trace, "analysers": ["wakeup_latency", "run_queue"], "select": { "cpu": ["0-1"] } }),
        analysis(&["--only=wakeup_latency,run_queue", "--cpu=0-1", &trace_at]),
    );
    expect(
        "analyze",
        json!({ "recording": sched, "analysers": ["groups"], "by": "thread" }),
        analysis(&["--only=groups", "--by=thread", &sched_at]),
    );
    let selected = json!({ "recording": sched, "types": ["sched_wak*"], "select": { "to": "500ms" } });
    let events = json_lines(&["trace", "events", "--json", "--type=sched_wak*", "--to=500ms", &sched_at]);
    assert!(events.len() > 300, "{} events are more than a page", events.len());
    expect("query_events", selected, json!({ "events": events }));
    let spans = json_lines(&["trace", "timeline", "--json", "--cpu=0", "--to=1", &sched_at]);
    expect("timeline", json!({ "recording": sched, "cpu": 0, "to": "1" }), json!({ "spans": spans }));
    expect("detect_outliers", json!({ "recording": sched, "method": "mad" }), outliers.clone());
    expect(
        "detect_outliers",
        json!({ "recording": sched, "method": "mad", "category": "run_time" }),
        fields(&outliers, &["method", "run_time"]),
    );
    for (tool, analyser) in [("bottlenecks", "bottlenecks"), ("correlate_wakeup", "wakeup_correlation")] {
        let expected = analysis(&["--only", analyser, &sched_at])["analyses"][analyser].clone();
        expect(tool, json!({ "recording": sched }), expected);
    }
    // What differs from one moment to the next.
    let doctor = client.whole("doctor", &json!({}));
    let names = |report: &Value| {
        let checks = report["checks"].as_array().unwrap();
        checks.iter().map(|check| check["name"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&doctor), names(&json(&["doctor", "--json"])));
    let topology = client.whole("topology", &json!({}));
    let cpus = topology["cpus"].as_array().unwrap();
    assert_eq!(
        topology["nodes"].as_array().unwrap().iter().map(|node| node["cpus"].as_array().unwrap().len()).sum::<usize>(),
        cpus.iter().filter(|cpu| !cpu["node"].is_null()).count()
    );
    let events = client.whole("list_events", &json!({ "contains": "cache" }));
    assert!(events["hardware"].as_array().unwrap().contains(&json!("cache-misses")), "{events}");
    for tool in ["doctor", "topology", "list_events"] {
        unseen.remove(tool);
    }
    // Other tests look at these.
    for tool in [
        "export",
        "capture_start",
        "capture_status",
        "capture_stop",
        "profile_start",
        "profile_status",
        "profile_results",
        "profile_stop",
    ] {
        assert!(unseen.remove(tool), "{tool}");
    }
    assert!(unseen.is_empty(), "no test for {unseen:?}");
    assert_eq!(client.leave(), Some(0));
}

#[test]
fn what_limits_a_result_is_said_beside_it() {
    let made = Made::new();
    let whole = std::fs::read(made.path("trace.pb")).unwrap();
    std::fs::write(made.path("cut.pb"), &whole[..whole.len() - 7]).unwrap();
    let mut client = Client::start(made.root(), &[]);
    let cut = client.open("cut.pb");
    let answer = client.call("bottlenecks", json!({ "recording": cut }));
    assert!(answer["warnings"][0].as_str().unwrap().contains("the trace is damaged"), "{answer}");
    assert!(answer["result"]["bottlenecks"].is_array(), "{answer}");
}

#[test]
fn what_cannot_be_answered_says_why_and_what_to_do() {
    let made = Made::new();
    let mut client = Client::start(made.root(), &[]);
    let (samples, sched) = (client.open("samples.jsonl"), client.open("sched.data"));
    for (tool, arguments, kind) in [
        ("open_recording", json!({ "path": "none" }), "not_found"),
        ("open_recording", json!({ "path": "cells.json" }), "invalid_arguments"),
        ("open_recording", json!({}), "invalid_arguments"),
        ("recording_info", json!({ "recording": "r99" }), "unknown_recording"),
        ("find_sharing", json!({ "source": sched }), "no_result"),
        ("find_sharing", json!({ "source": "live" }), "not_running"),
        ("find_sharing", json!({ "source": samples, "comm": ["("] }), "invalid_arguments"),
        ("find_sharing", json!({ "source": samples, "comm": ["--help"] }), "no_result"),
        ("explain_group", json!({ "source": samples, "group": "none" }), "invalid_arguments"),
        ("score_configuration", json!({ "source": samples }), "invalid_arguments"),
        ("score_configuration", json!({ "source": samples, "configuration": [{ "name": 1 }] }), "invalid_arguments"),
        ("scheduling_stats", json!({ "source": samples }), "no_result"),
        ("scheduling_stats", json!({ "source": sched, "by": "colour" }), "invalid_arguments"),
        ("scheduling_stats", json!({ "source": sched, "by": "cell" }), "invalid_arguments"),
        ("analyze", json!({ "recording": sched, "analysers": ["none"] }), "invalid_arguments"),
        ("query_events", json!({ "recording": sched, "types": ["none"] }), "no_result"),
        ("timeline", json!({ "recording": sched }), "invalid_arguments"),
        ("topology", json!({ "limit": 0 }), "invalid_arguments"),
        ("topology", json!({ "limit": "many" }), "invalid_arguments"),
        ("topology", json!({ "time_limit_s": 1_000_000 }), "invalid_arguments"),
        ("topology", json!({ "cursor": "999999:0:/cpus" }), "cursor_expired"),
        ("topology", json!({ "cursor": "x" }), "invalid_arguments"),
        // The file may be another one meanwhile.
        (
            "diff",
            json!({ "before": "cells.json", "after": "cells.json", "cursor": "999999:0:/cells" }),
            "cursor_expired",
        ),
        ("capture_status", json!({}), "not_running"),
        ("profile_results", json!({}), "not_running"),
        ("profile_start", json!({ "event": "none" }), "invalid_arguments"),
        ("profile_start", json!({ "frequency": 1, "period": 1 }), "invalid_arguments"),
        ("capture_start", json!({ "duration_s": 0 }), "invalid_arguments"),
        ("capture_start", json!({ "target_cpus": 0 }), "invalid_arguments"),
        ("capture_start", json!({ "target_llcs": 0 }), "invalid_arguments"),
        ("make_configuration", json!({ "source": samples, "target_llcs": u32::MAX }), "invalid_arguments"),
        (
            "score_configuration",
            json!({ "source": samples, "paths": ["cells.json"], "llcs": u32::MAX }),
            "invalid_arguments",
        ),
        ("find_sharing", json!({ "source": samples, "target_cpus": u32::MAX }), "invalid_arguments"),
        ("export", json!({ "recording": samples, "form": "html", "path": "x" }), "read_only"),
    ] {
        assert_eq!(client.refused(tool, arguments.clone()), kind, "{tool} {arguments}");
    }
    // It says which there are.
    let answer = client.call("explain_group", json!({ "source": samples, "group": "none" }));
    assert!(answer["error"]["message"].as_str().unwrap().contains("the groups are "), "{answer}");
    std::fs::write(made.path("samples.jsonl"), super::made::lines(500)).unwrap();
    assert_eq!(client.refused("find_sharing", json!({ "source": samples })), "recording_changed");
}

#[test]
fn a_page_is_made_again_after_its_result_was_forgotten() {
    let made = Made::new();
    let mut client = Client::start(made.root(), &[]);
    let sched = client.open("sched.data");
    let arguments = json!({ "recording": sched, "cpu": 0, "limit": 10 });
    let first = client.call("timeline", arguments.clone());
    let cursor = first["cut"][0]["next_cursor"].clone();
    let mut next = arguments.clone();
    next["cursor"] = cursor.clone();
    let page = client.call("timeline", next.clone());
    for contains in 0..40 {
        client.call("list_events", json!({ "contains": format!("none{contains}") }));
    }
    let again = client.call("timeline", next);
    assert_eq!((&page["page"]["rows"], &page["page"]["from"]), (&again["page"]["rows"], &again["page"]["from"]));
    // A cursor belongs to its call.
    let other =
        client.call("timeline", json!({ "recording": sched, "cpu": 1, "cursor": again["page"]["next_cursor"] }));
    assert_eq!(other["error"]["kind"], "invalid_arguments", "{other}");
}
