//! The protocol itself: wrong messages, cancellation, progress, many calls, and clients that go away.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{json, Value};

use super::client::{hello, Client, PATIENCE};
use super::is_unsupported;
use super::made::Made;

#[test]
fn wrong_messages_are_answered_and_change_nothing() {
    let made = Made::new();
    let mut client = Client::start(made.root(), &[]);
    for wrong in ["{", "[]", "\"text\"", "null", "{}", "\u{0}\u{1}", "{\"jsonrpc\": \"1.0\", \"id\": 1}"] {
        client.write(&format!("{wrong}\n"));
    }
    client.write(&format!("\"{}\"\n", "x".repeat(3 << 20)));
    // Messages about them may come before.
    let id = client.ask("ping", &json!({}));
    let until = Instant::now() + PATIENCE;
    loop {
        let message = client.receive();
        if message["id"] == id {
            break assert!(message.get("result").is_some(), "{message}");
        }
        assert!(message["error"]["code"].is_i64() && Instant::now() < until, "{message}");
    }
    let code = |answer: &Value| answer["error"]["code"].as_i64();
    for (method, params, expected) in [
        ("tools/none", json!({}), -32601),
        ("tools/call", json!({ "name": "none" }), -32602),
        ("resources/read", json!({ "uri": "scxprof://none" }), -32002),
        ("resources/subscribe", json!({ "uri": "file:///etc/passwd" }), -32002),
        ("prompts/get", json!({ "name": "none" }), -32602),
        ("prompts/get", json!({ "name": "is_my_configuration_still_good" }), -32602),
    ] {
        let answer = client.request(method, params);
        assert_eq!(code(&answer), Some(expected), "{method}: {answer}");
        if expected != -32601 {
            assert!(
                answer["error"]["data"]["kind"].is_string() && answer["error"]["data"]["do"].is_string(),
                "{answer}"
            );
        }
    }
    let answer = client.request("tools/call", json!({ "name": 5 }));
    assert!(code(&answer).is_some(), "{answer}");
    assert!(client.call("topology", json!({}))["result"]["cpus"].is_array());
    assert_eq!(client.leave(), Some(0));
}

#[test]
fn older_versions_of_the_protocol_are_spoken_too() {
    let made = Made::new();
    for (asked, given) in [("2024-11-05", "2024-11-05"), ("2025-06-18", "2025-06-18"), ("2099-01-01", "2025-11-25")] {
        let mut client = Client::silent(made.root(), &[]);
        let mut hello = hello();
        hello["protocolVersion"] = asked.into();
        let answer = client.request("initialize", hello);
        assert_eq!(answer["result"]["protocolVersion"], given, "{answer}");
    }
}

#[test]
fn a_client_that_never_greets_is_no_error() {
    let made = Made::new();
    assert_eq!(Client::silent(made.root(), &[]).leave(), Some(0));
}

#[test]
fn work_tells_its_progress_and_is_cancelled() {
    let made = Made::new();
    made.endless("endless.jsonl");
    let mut client = Client::start(made.root(), &[]);
    let endless = client.open("endless.jsonl");
    // As many as work at a time: another one works only if these have ended.
    let ids = ["a", "b"].map(|token| {
        let arguments = json!({ "source": endless, "time_limit_s": 1800 });
        let params = json!({ "name": "find_sharing", "arguments": arguments, "_meta": { "progressToken": token } });
        client.ask("tools/call", &params)
    });
    let mut told = BTreeMap::new();
    while told.len() < ids.len() || told.values().any(|&times| times < 2) {
        let message = client.receive();
        assert_eq!(message["method"], "notifications/progress", "{message}");
        let params = &message["params"];
        assert!(params["progress"].is_number() && params["message"].is_string(), "{params}");
        *told.entry(params["progressToken"].as_str().unwrap().to_owned()).or_insert(0) += 1;
    }
    for id in ids {
        let params = json!({ "requestId": id, "reason": "enough" });
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }));
    }
    let sched = client.open("sched.data");
    let info = client.call("recording_info", json!({ "recording": sched }));
    assert!(info["result"]["events"].is_array(), "{info}");
    // What was cancelled is never answered.
    let progress = |message: &Value| message["method"] == "notifications/progress";
    assert!(client.notified.iter().all(progress), "{:?}", client.notified);
    assert_eq!(client.leave(), Some(0));
}

#[test]
fn work_ends_with_its_time_and_with_its_client() {
    let made = Made::new();
    made.endless("endless.jsonl");
    let mut client = Client::start(made.root(), &[]);
    let endless = client.open("endless.jsonl");
    // More than work at a time.
    for _ in 0..3 {
        let short = json!({ "source": endless, "time_limit_s": 1 });
        assert_eq!(client.refused("find_sharing", short), "timed_out");
    }
    client.ask("tools/call", &json!({ "name": "find_sharing", "arguments": { "source": endless } }));
    assert_eq!(client.leave(), Some(0));
}

#[test]
fn a_client_that_does_not_read_holds_up_nothing_once_it_has_gone() {
    let made = Made::new();
    for with_wrong_messages in [false, true] {
        let mut command = std::process::Command::new(super::SCXPROF);
        command.args(["mcp", "--root", super::text(made.root())]);
        let piped = std::process::Stdio::piped;
        let mut server = command.stdin(piped()).stdout(piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
        let mut requests = vec![
            json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello() }),
            json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }),
        ];
        // Each answer is as large as the pipe.
        for id in 1..10 {
            let params =
                json!({ "name": "list_events", "arguments": { "limit": 1000 }, "_meta": { "progressToken": id } });
            requests.push(json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }));
            requests.push(json!({ "jsonrpc": "2.0", "id": 100 + id, "method": "tools/list" }));
        }
        if with_wrong_messages {
            // What is wrong is answered before anything else is read.
            requests.push(json!({ "jsonrpc": "2.0", "id": [] }));
        }
        let mut stdin = server.stdin.take().unwrap();
        for request in &requests {
            std::io::Write::write_all(&mut stdin, format!("{request}\n").as_bytes()).unwrap();
        }
        drop(stdin);
        let until = Instant::now() + PATIENCE;
        let ended = loop {
            if let Some(ended) = server.try_wait().unwrap() {
                break Some(ended);
            }
            if Instant::now() > until {
                break None;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let _ = server.kill();
        assert_eq!(ended.and_then(|it| it.code()), Some(0), "the server goes on");
    }
}

#[test]
fn a_thousand_calls_need_no_more_memory_than_some() {
    let made = Made::new();
    let mut client = Client::start(made.root(), &[]);
    let sched = client.open("sched.data");
    let mut call = |number: usize| {
        let answer = match number % 4 {
            0 => client.call("topology", json!({})),
            1 => client
                .call("query_events", json!({ "recording": sched, "select": { "to": format!("{}us", 1 + number) } })),
            2 => client.call("list_events", json!({ "contains": format!("sched{number}") })),
            _ => client.call("recording_info", json!({ "recording": "none" })),
        };
        assert!(answer.get("result").is_some() || answer["error"]["kind"] != "internal", "{answer}");
        client.resident()
    };
    let warm = (0..200).map(&mut call).max().unwrap();
    let later = (200..1000).map(&mut call).max().unwrap();
    assert!(later < warm + (48 << 10), "{warm} KiB became {later} KiB");
}

#[test]
fn a_resource_tells_that_it_changed() {
    let made = Made::new();
    let mut client = Client::start(made.root(), &[]);
    let listed = client.request("resources/list", json!({}));
    let uris: Vec<String> = listed["result"]["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|resource| resource["uri"].as_str().unwrap().to_owned())
        .collect();
    for name in ["cpu", "llc", "node", "process", "thread", "dsq", "cgroup", "cell"] {
        assert!(uris.contains(&format!("scxprof://stats/{name}")), "{name}");
    }
    for uri in &uris {
        let read = client.request("resources/read", json!({ "uri": uri }));
        let contents = &read["result"]["contents"][0];
        assert_eq!((&contents["uri"], &contents["mimeType"]), (&json!(uri), &json!("application/json")), "{read}");
        let value: Value = serde_json::from_str(contents["text"].as_str().unwrap()).unwrap();
        assert!(value["result"].is_object(), "{uri}: {value}");
        for method in ["resources/subscribe", "resources/unsubscribe"] {
            assert!(client.request(method, json!({ "uri": uri })).get("result").is_some(), "{method} {uri}");
        }
    }
    let uri = "scxprof://profile/status";
    client.request("resources/subscribe", json!({ "uri": uri }));
    let pid = std::process::id();
    let started = client.call("profile_start", json!({ "event": "cpu-clock", "pid": [pid], "duration_s": 600 }));
    if is_unsupported("a_resource_tells_that_it_changed", &started) {
        return;
    }
    let is_told =
        |message: &Value| message["method"] == "notifications/resources/updated" && message["params"]["uri"] == uri;
    while !client.notified.iter().any(is_told) {
        let message = client.receive();
        client.notified.push(message);
    }
    client.call("profile_stop", json!({}));
}

#[test]
fn prompts_are_whole_questions() {
    let made = Made::new();
    let mut client = Client::start(made.root(), &[]);
    let listed = client.request("prompts/list", json!({}));
    let prompts = listed["result"]["prompts"].as_array().unwrap().clone();
    assert_eq!(prompts.len(), 9);
    for prompt in prompts {
        let arguments: Value = prompt["arguments"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|argument| (argument["name"].as_str().unwrap().to_owned(), json!("web.tar.gz")))
            .collect();
        let got = client.request("prompts/get", json!({ "name": prompt["name"], "arguments": arguments }));
        let text = got["result"]["messages"][0]["content"]["text"].as_str().unwrap();
        assert!(text.len() > 100 && !text.contains('{'), "{text}");
        assert!(arguments.as_object().is_none_or(serde_json::Map::is_empty) || text.contains("web.tar.gz"), "{text}");
    }
}

#[test]
fn the_documentation_names_each_tool_resource_and_prompt() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/mcp.md")).unwrap();
    let made = Made::new();
    let mut client = Client::start(made.root(), &[]);
    let tools = client.tools();
    assert!(text.contains("27 analysers") && tools.len() == 28);
    let of = |answer: &Value, list: &str, name: &str| {
        let list = answer["result"][list].as_array().unwrap();
        list.iter().map(|it| it[name].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let prompts = of(&client.request("prompts/list", json!({})), "prompts", "name");
    for name in tools.iter().chain(&prompts) {
        assert!(text.contains(&format!("`{name}`")), "{name}");
    }
    let uris = of(&client.request("resources/list", json!({})), "resources", "uri");
    for uri in uris {
        let (place, kind) = uri.strip_prefix("scxprof://").unwrap().split_once('/').unwrap_or((&uri, ""));
        let is_there = if place == "stats" {
            text.contains("scxprof://stats/{") && text.contains(kind)
        } else {
            text.contains(&format!("`{uri}`"))
        };
        assert!(is_there, "{uri}");
    }
}
