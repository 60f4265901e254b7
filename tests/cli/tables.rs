//! Tables at the width of a terminal: no line is longer, no number is cut, and each is as in tests/fixtures/tables.
//!
//! `SCXPROF_BLESS=1 cargo test --test suite cli::tables` writes these files again.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::trace::commands::trace_of_queues;

const WIDTHS: [usize; 2] = [80, 40];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Runs it with a terminal of this number of columns, or without one.
fn shown(directory: &Path, arguments: &[&str], columns: Option<usize>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scxprof"));
    command.current_dir(directory).args(arguments).env_remove("COLUMNS");
    if let Some(columns) = columns {
        command.env("COLUMNS", columns.to_string());
    }
    let output = command.output().unwrap();
    // 1: what `diff` compares differs; 4: a trace of a fixture is cut.
    let code = output.status.code().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!([0, 1, 4].contains(&code) && !output.stdout.is_empty(), "{arguments:?} at {columns:?}: {code}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// The words of a text that are numbers, also with a sign before them and marks behind.
fn numbers(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| c.is_whitespace() || c == '(' || c == ')');
    let words =
        words.map(|word| word.trim_start_matches(['+', '-', '!', '~']).trim_end_matches(['%', ',', ';', ':', '.']));
    words.filter(|word| !word.is_empty() && word.chars().all(|c| c.is_ascii_digit() || c == '.')).collect()
}

fn unpacked(directory: &Path, from: &str, name: &str) {
    let mut file = flate2::read::GzDecoder::new(fs::File::open(root().join(from)).unwrap());
    let mut to = fs::File::create(directory.join(name)).unwrap();
    std::io::copy(&mut file, &mut to).unwrap();
}

/// Threads with long names in pairs that share memory, for 8 s, and one that shares nothing.
fn samples(directory: &Path, name: &str, pairs: u64) {
    let mut text = String::new();
    for at in 0..8000u64 {
        let random = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (pair, place) = (random >> 60 & 1, at % 2);
        let pair = pair % pairs;
        let names = [["reader-of-queue", "writer-of-queue"], ["index-builder-a", "index-merger-bb"]];
        let (tid, addr) = (4_194_000 + pair * 2 + place, 0x7f00_0000 + pair * 0x10_0000 + (random >> 40) % 256 * 64);
        let time = format!("{}.{:09}", 5 + at / 1000, at % 1000 * 1_000_000);
        let mut line = |tid: u64, comm: &str, addr: u64| {
            let cgroup = "/system.slice/a-service-with-a-long-name.service";
            let _ = writeln!(
                text,
                "{{\"comm\":\"{comm}\",\"tid\":{tid},\"pid\":4194000,\"time\":\"{time}\",\"addr\":\"{addr:x}\",\
                 \"cgroup\":\"{cgroup}\",\"op\":\"store\"}}"
            );
        };
        line(tid, names[pair as usize][place as usize], addr);
        if pair + place == 0 {
            line(4_194_300, "loner-in-a-cell", 0x6f00_0000 + at / 4 % 256 * 64);
        }
    }
    fs::write(directory.join(name), text).unwrap();
}

/// A configuration for them.
fn cells(directory: &Path) {
    let cells = r#"[{"name": "the-whole-of-the-host", "matches": {}, "subcells": [
        {"name": "queue", "matches": [[{"CommPrefix": "reader-"}], [{"CommPrefix": "index-"}]]},
        {"name": "rest", "matches": [[]]}]}]"#;
    fs::write(directory.join("cells-of-last-week.json"), cells).unwrap();
}

/// Call stacks of functions with long names.
fn stacks(directory: &Path) {
    let of = |first: u32, second: u32| {
        format!(
            "server/123456;main;handle_request_from_the_network;std::collections::hash_map::HashMap<K,V>::insert {first}\n\
             server/123456;main;handle_request_from_the_network;parse_header_fields {second}\n\
             a-long-name-of-1/7;clone3;start_thread;worker_loop(std::__1::shared_ptr<pool::Queue12345>) 77\n"
        )
    };
    fs::write(directory.join("before.txt"), of(1234, 56)).unwrap();
    fs::write(directory.join("after.txt"), of(934, 1056)).unwrap();
}

#[test]
fn tables_fit_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    unpacked(directory, "tests/fixtures/sched/perf-sched.data.gz", "perf.data");
    unpacked(directory, "crates/trace/tests/fixtures/wprof.pb.gz", "wprof.pb");
    fs::copy(root().join("crates/trace/tests/fixtures/ftrace-all.pftrace"), directory.join("ftrace.pb")).unwrap();
    fs::write(directory.join("queues.pb"), trace_of_queues()).unwrap();
    samples(directory, "perf.jsonl", 2);
    samples(directory, "other.jsonl", 1);
    cells(directory);
    stacks(directory);
    let sched = ["sched", "-f", "perf.data", "--limit", "12"];
    let with = |more: &[&'static str]| [&sched[..], more].concat();
    let lines = ["-f", "perf.jsonl", "--target-cpus", "16"];
    for (name, arguments) in [
        ("sched-process", with(&["--by", "process"])),
        ("sched-thread", with(&["--by", "thread"])),
        ("sched-cpu", with(&["--by", "cpu"])),
        ("sched-cgroup", with(&["--by", "cgroup"])),
        ("sched-cell", with(&["--by", "cell", "--config", "cells-of-last-week.json"])),
        ("sched-wakers", with(&["--wakers"])),
        ("sched-wakers-class", with(&["--wakers", "class", "--config", "cells-of-last-week.json"])),
        ("sched-windows", with(&["--windows", "1ms"])),
        ("sched-dsq", vec!["sched", "-f", "queues.pb", "--by", "dsq"]),
        ("sched-trace", vec!["sched", "-f", "ftrace.pb", "--by", "thread"]),
        ("stacks", vec!["stacks", "-f", "before.txt"]),
        ("stacks-thread", vec!["stacks", "-f", "before.txt", "--by", "thread"]),
        ("stacks-diff", vec!["stacks", "--diff", "before.txt", "after.txt"]),
        ("trace-info", vec!["trace", "info", "wprof.pb"]),
        ("trace-info-perf", vec!["trace", "info", "perf.data"]),
        ("trace-analyze", vec!["trace", "analyze", "wprof.pb", "--limit", "3"]),
        ("trace-analyze-ftrace", vec!["trace", "analyze", "ftrace.pb", "--limit", "3"]),
        ("report", [&["report", "-v"], &lines[..]].concat()),
        ("score", [&["score", "--config", "cells-of-last-week.json"], &lines[..]].concat()),
        ("diff", vec!["diff", "perf.jsonl", "other.jsonl", "--target-cpus", "16"]),
    ] {
        let whole = shown(directory, &arguments, None);
        let known = numbers(&whole);
        for columns in WIDTHS {
            let text = shown(directory, &arguments, Some(columns));
            for line in text.lines() {
                assert!(line.chars().count() <= columns, "{name} at {columns}: {line:?} in\n{text}");
            }
            let cut: Vec<_> = numbers(&text).into_iter().filter(|number| !known.contains(number)).collect();
            assert!(cut.is_empty(), "{name} at {columns}: {cut:?} in\n{text}");
            let path = root().join(format!("tests/fixtures/tables/{name}.{columns}.txt"));
            if std::env::var_os("SCXPROF_BLESS").is_some() {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, &text).unwrap();
            }
            let golden = fs::read_to_string(&path).unwrap_or_default();
            assert_eq!(text, golden, "{}", path.display());
        }
        // A wide terminal, and none, change nothing.
        assert_eq!(shown(directory, &arguments, Some(5000)), whole, "{name}");
        let file = directory.join("result");
        let to_file = [&arguments[..], &["-o", "result"]].concat();
        let mut command = Command::new(env!("CARGO_BIN_EXE_scxprof"));
        command.current_dir(directory).args(&to_file).env("COLUMNS", "40").output().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), whole, "{name}: a file has all");
    }
}

#[test]
fn what_a_fleet_shares_fits_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let run = |arguments: &[&str], columns: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_scxprof"));
        let output = command.current_dir(directory).args(arguments).env("COLUMNS", columns).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{arguments:?}: {said}");
        said
    };
    for (name, pairs) in [("a", 2), ("b", 1)] {
        samples(directory, "perf.jsonl", pairs);
        let extract = ["extract", "-f", "perf.jsonl", "--target-cpus", "16", "-o", "/dev/null"];
        let evidence = format!("{name}.parquet");
        run(&[&extract[..], &["--evidence", &evidence]].concat(), "200");
    }
    for columns in ["80", "40"] {
        let said = run(&["merge", "a.parquet", "b.parquet", "-v", "--target-cpus", "16", "-o", "/dev/null"], columns);
        let table: Vec<&str> = said.lines().filter(|line| !line.starts_with("note: ")).collect();
        assert!(table.iter().any(|line| line.starts_with("CELL  ")), "{said}");
        assert!(table.iter().all(|line| line.chars().count() <= columns.parse().unwrap()), "{said}");
    }
}
