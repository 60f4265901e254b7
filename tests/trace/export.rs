//! `scxprof export --perfetto`: what it writes is what the profile has, read by our own reader. That Perfetto's trace_processor has no
//! complaint is checked by hand (docs/verified.md).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::process::{Command, Output};

use scxprof::trace::{Arg, Edge, TraceWhat};
use serde_json::Value;

use super::*;

fn scxprof(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_scxprof")).args(args).output().unwrap()
}

fn lines(path: &str) -> BTreeMap<String, Value> {
    let output = scxprof(&["sched", "-f", path, "--by", "thread", "--limit", "0", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let lines = value["lines"].as_array_mut().unwrap();
    let key = |line: &Value| format!("{} {} {}", line["tid"], line["pid"], line["name"]);
    lines.drain(..).map(|line| (key(&line), line)).collect()
}

#[test]
fn an_exported_recording_gives_the_same_statistics() {
    let dir = tempfile::tempdir().unwrap();
    let [recorded, trace] = ["perf.data", "trace"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    let packed = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/sched/perf-sched.data.gz"));
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&*packed.unwrap()).read_to_end(&mut bytes).unwrap();
    fs::write(&recorded, bytes).unwrap();
    let output = scxprof(&["export", "-f", &recorded, "--perfetto", &trace]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("note: the profile has no memory samples, so it has no communities"), "{said}");
    // Events of sched_stat_runtime, as the recorder counted them.
    assert!(said.contains("note: 2265 scheduling events are left out"), "{said}");
    let (expected, found) = (lines(&recorded), lines(&trace));
    assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>());
    for (name, line) in &expected {
        let fields = line.as_object().unwrap().iter();
        // Charged time and the places of CPUs are not in the trace.
        for (field, value) in fields.filter(|(field, _)| !["charged_ns", "migrations"].contains(&field.as_str())) {
            assert_eq!(*value, found[name][field], "{name}: {field}");
        }
        assert_eq!(line["migrations"]["total"], found[name]["migrations"]["total"], "{name}");
    }
    assert!(expected.len() > 10);
}

/// Lines of accesses by two threads of a group, and one of none.
fn accesses() -> String {
    let mut text = String::new();
    for at in 0..40u64 {
        let (comm, tid) = [("io-1", 11), ("io-2", 12), ("main", 10)][at as usize % 3];
        let (time, addr) = (1_000_000_000 + at * 4_000_000, 0x7000_0000 + at * 64);
        let _ = writeln!(
            text,
            r#"{{"comm":"{comm}","pid":10,"tid":{tid},"cpu":{},"time":"{}.{:09}","ip":"401000","addr":"{addr:x}","phys_addr":"{:x}","data_page_size":4096,"cgroup":"/web.slice/web.service","op":"{}","weight":{}}}"#,
            at % 2,
            time / 1_000_000_000,
            time % 1_000_000_000,
            addr + 0x1000_0000,
            if at % 2 == 0 { "load" } else { "store" },
            at + 1,
        );
    }
    text
}

#[test]
fn accesses_are_on_tracks_by_cell_subcell_and_thread() {
    let dir = tempfile::tempdir().unwrap();
    let [profile, config, trace] =
        ["perf.jsonl", "cells.json", "trace"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    fs::write(&profile, accesses()).unwrap();
    let cells = r#"[{"name": "web", "matches": {"CgroupContains": "web.slice"}, "subcells": [
        {"name": "io", "matches": [[{"CommPrefix": "io-"}]]}, {"name": "rest", "matches": [[]]}]},
        {"name": "all", "matches": {}}]"#;
    fs::write(&config, cells).unwrap();
    let output = scxprof(&["export", "-f", &profile, "--config", &config, "--perfetto", &trace]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let whole = read(fs::read(&trace).unwrap());
    assert!(whole.info.damage.is_empty() && !whole.info.lost.any(), "{:?}", whole.info);
    let (names, tracks) = (whole.trace.names(), whole.trace.tracks());
    let text = |name| String::from_utf8_lossy(names.text(name)).into_owned();
    let path = |number| {
        let mut track = tracks.get(number);
        let mut path = Vec::new();
        while let Some(at) = track {
            path.insert(0, text(at.name));
            track = tracks.parent(at);
        }
        path.join("/")
    };
    let (mut count, mut sum) = (BTreeMap::new(), 0.0);
    let mut seen = BTreeSet::new();
    for event in &whole.others {
        match &event.what {
            TraceWhat::Slice { edge: Edge::Instant, track, category, name, args, .. } => {
                assert_eq!(text(*category), "memory");
                *count.entry((path(*track), text(*name))).or_insert(0) += 1;
                let args: BTreeMap<String, Arg> = args.iter().map(|(name, arg)| (text(name), arg)).collect();
                let at = (event.time - 1_000_000_000) / 4_000_000;
                assert_eq!(args["addr"], Arg::Uint(0x7000_0000 + at * 64));
                assert_eq!(args["phys"], Arg::Uint(0x8000_0000 + at * 64));
                assert_eq!(args["page_size"], Arg::Uint(4096));
                assert_eq!(args["latency_cycles"], Arg::Uint(at + 1));
            }
            TraceWhat::Counter { track, value } => {
                seen.insert(path(*track));
                sum += value;
            }
            other => panic!("{other:?}"),
        }
    }
    let counts: Vec<(String, u32)> =
        count.into_iter().map(|((path, name), count)| (format!("{path} {name}"), count)).collect();
    let expected = [
        ("cell web/subcell io/io-1 11 load", 7),
        ("cell web/subcell io/io-1 11 store", 7),
        ("cell web/subcell io/io-2 12 load", 6),
        ("cell web/subcell io/io-2 12 store", 7),
        ("cell web/subcell rest/main 10 load", 7),
        ("cell web/subcell rest/main 10 store", 6),
    ];
    assert_eq!(counts, expected.map(|(name, count)| (name.to_owned(), count)));
    // Each sample is in a window of its subcell's counter.
    assert!((sum - 40.0).abs() < 1e-9, "{sum}");
    let counters = ["cell web/subcell io/samples in 10 ms", "cell web/subcell rest/samples in 10 ms"];
    assert!(seen.iter().eq(counters), "{seen:?}");
    let thread = whole.trace.threads().get(12).unwrap();
    assert_eq!((thread.pid, thread.comm.to_string()), (10, "io-2".to_owned()));
}

#[test]
fn nothing_to_export_has_its_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let export = |profile: &Path| {
        let output = scxprof(&["export", "-f", profile.to_str().unwrap(), "--perfetto", trace.to_str().unwrap()]);
        assert!(!trace.exists(), "half-written");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(export(&dir.path().join("none")).0, Some(2));
    let empty = dir.path().join("perf.jsonl");
    fs::write(&empty, "").unwrap();
    let (code, said) = export(&empty);
    assert!(matches!(code, Some(1 | 2)), "{said}");
    let output = scxprof(&["export", "-f", empty.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
}
