//! Nothing is read outside of the root, and nothing is written that was not allowed.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;

use super::client::Client;
use super::made::Made;
use super::{json, text};

#[test]
fn only_what_is_below_the_root_is_read() {
    let (made, outside) = (Made::new(), Made::new());
    symlink(outside.path("samples.jsonl"), made.path("link.jsonl")).unwrap();
    symlink(outside.root(), made.path("up")).unwrap();
    symlink("samples.jsonl", made.path("within.jsonl")).unwrap();
    let mut client = Client::start(made.root(), &[]);
    let elsewhere = outside.path("samples.jsonl");
    for path in
        ["link.jsonl", "up/samples.jsonl", "/etc/passwd", "../../etc/passwd", "/proc/self/environ", text(&elsewhere)]
    {
        assert_eq!(client.refused("open_recording", json!({ "path": path })), "outside_root", "{path}");
        let score = json!({ "source": "r1", "paths": [path] });
        assert!(
            ["outside_root", "unknown_recording"].contains(&&*client.refused("score_configuration", score)),
            "{path}"
        );
    }
    let id = client.open("within.jsonl");
    for (tool, arguments) in [
        ("score_configuration", json!({ "source": id, "paths": ["up/cells.json"] })),
        ("diff", json!({ "before": id, "after": "up/cells.json" })),
        ("scheduling_stats", json!({ "source": id, "by": "cell", "configuration": "up/cells.json" })),
        ("wakers", json!({ "source": id, "configuration": "up/cells.json" })),
    ] {
        assert_eq!(client.refused(tool, arguments.clone()), "outside_root", "{tool} {arguments}");
    }
    // What an id stands for may not become a link.
    let direct = client.open("other.jsonl");
    fs::remove_file(made.path("other.jsonl")).unwrap();
    symlink(outside.path("other.jsonl"), made.path("other.jsonl")).unwrap();
    assert_eq!(client.refused("find_sharing", json!({ "source": direct })), "recording_changed");
}

#[test]
fn what_is_no_file_is_not_opened() {
    let made = Made::new();
    let pipe = made.path("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    let mut client = Client::start(made.root(), &[]);
    let id = client.open("samples.jsonl");
    // More of them than calls work at a time.
    for (tool, arguments) in [
        ("open_recording", json!({ "path": "pipe" })),
        ("score_configuration", json!({ "source": id, "paths": ["pipe"] })),
        ("diff", json!({ "before": id, "after": "pipe" })),
        ("scheduling_stats", json!({ "source": id, "by": "cell", "configuration": "pipe" })),
        ("wakers", json!({ "source": id, "configuration": "pipe" })),
    ] {
        assert_eq!(client.refused(tool, arguments), "invalid_arguments", "{tool}");
    }
    assert!(client.call("find_sharing", json!({ "source": id }))["result"]["cells"].is_array());
}

#[test]
fn files_are_written_only_where_that_is_allowed() {
    let made = Made::new();
    let before: Vec<_> = fs::read_dir(made.root()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let mut client = Client::start(made.root(), &[]);
    let id = client.open("samples.jsonl");
    let export = |form: &str, path: &str| json!({ "recording": id, "form": form, "path": path });
    let make = |path: &str| json!({ "source": id, "write_to": path });
    assert_eq!(client.refused("export", export("html", "x.html")), "read_only");
    assert_eq!(client.refused("make_configuration", make("x.json")), "read_only");
    assert_eq!(fs::read_dir(made.root()).unwrap().count(), before.len());

    let out = made.path("out");
    fs::create_dir(&out).unwrap();
    symlink(made.root(), out.join("up")).unwrap();
    let mut client = Client::start(made.root(), &["--allow-write", text(&out)]);
    let id = client.open("samples.jsonl");
    let export = |form: &str, path: &str| json!({ "recording": id, "form": form, "path": path });
    let make = |path: &str| json!({ "source": id, "write_to": path });
    for path in ["../x.json", "up/x.json", "/tmp/x.json", text(&made.path("x.json"))] {
        assert_eq!(client.refused("make_configuration", make(path)), "outside_root", "{path}");
        assert_eq!(client.refused("export", export("report", path)), "outside_root", "{path}");
    }
    let written = client.call("make_configuration", make("cells.json"));
    let path = out.canonicalize().unwrap().join("cells.json");
    assert_eq!(written["result"]["written"], text(&path));
    let samples = made.path("samples.jsonl");
    let printed = json(&["extract", "-f", text(&samples), "-o", "-"]);
    let wrote: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!((&wrote, &written["result"]["configuration"]), (&printed, &printed));
    assert_eq!(client.refused("make_configuration", make("cells.json")), "exists");
    let sched = client.open("sched.data");
    for (form, recording, begin) in [
        ("report", &id, &b"{"[..]),
        ("html", &id, b"<!"),
        ("sharing_csv", &id, b"a,b"),
        ("perfetto", &sched, b"\n"),
        ("analysis", &sched, b"{"),
    ] {
        let answer = client.call("export", json!({ "recording": recording, "form": form, "path": form }));
        let bytes = fs::read(out.join(form)).unwrap_or_else(|error| panic!("{form}: {error}: {answer}"));
        assert_eq!(answer["result"]["bytes"], bytes.len(), "{form}");
        assert!(bytes.starts_with(begin), "{form}: {:?}", bytes.get(..20));
    }
    if cfg!(feature = "parquet") {
        let answer = client.call("export", json!({ "recording": sched, "form": "parquet", "path": "tables" }));
        assert!(answer["result"]["written"].is_string() && out.join("tables/sched.parquet").exists(), "{answer}");
    }
    // A recording without stacks leaves nothing behind.
    assert_eq!(client.refused("export", export("pprof", "pprof")), "no_result");
    let names: Vec<_> = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().contains("tmp") || name == "pprof"), "{names:?}");
}

#[test]
fn what_is_stopped_writes_nothing() {
    let made = Made::new();
    made.endless("endless.jsonl");
    let out = made.path("out");
    fs::create_dir(&out).unwrap();
    let mut client = Client::start(made.root(), &["--allow-write", text(&out)]);
    let endless = client.open("endless.jsonl");
    for form in ["parquet", "perfetto", "report", "html", "sharing_csv"] {
        if form == "parquet" && !cfg!(feature = "parquet") {
            continue;
        }
        let arguments = json!({ "recording": endless, "form": form, "path": form, "time_limit_s": 1 });
        assert_eq!(client.refused("export", arguments), "timed_out", "{form}");
    }
    // What works at the end has had the turns of those.
    let samples = client.open("samples.jsonl");
    for _ in 0..2 {
        client.call("export", json!({ "recording": samples, "form": "report", "path": "report.json" }));
    }
    assert_eq!(client.leave(), Some(0));
    let names: Vec<_> = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["report.json"]);
}

#[test]
fn a_call_that_needs_too_much_memory_ends_and_the_server_goes_on() {
    let made = Made::new();
    fs::write(made.path("many.jsonl"), super::made::lines(20_000)).unwrap();
    let mut client = Client::start(made.root(), &["--max-memory", "32"]);
    let many = client.open("many.jsonl");
    // A few MiB as text, but each field is a value in memory.
    assert_eq!(client.refused("query_events", json!({ "recording": many })), "out_of_memory");
    let some = client.call("query_events", json!({ "recording": many, "select": { "to": "2" } }));
    assert!(some["result"]["events"].is_array(), "{some}");
    assert_eq!(client.leave(), Some(0));
}

#[test]
fn names_of_a_recording_are_printed_without_what_a_terminal_obeys() {
    let made = Made::new();
    let evil = super::made::lines(3000).replace("web-", "\\u001b]0;x\\u0007\\u202e");
    fs::write(made.path("evil.jsonl"), evil).unwrap();
    let mut client = Client::start(made.root(), &[]);
    let id = client.open("evil.jsonl");
    for (tool, arguments) in [
        ("find_sharing", json!({ "source": id })),
        ("query_events", json!({ "recording": id })),
        ("hot_lines", json!({ "source": id })),
    ] {
        let answer = client.call(tool, arguments).to_string();
        assert!(!answer.contains("\\u001b") && !answer.contains('\u{202e}'), "{answer}");
    }
}
