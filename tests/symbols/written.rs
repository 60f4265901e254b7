//! The names in the output of the command line: the report, and the lines of a profile.

use std::fs;
use std::process::{Command, Stdio};

use super::Programs;

/// The instructions of all lines in a report.
fn code_of(report: &serde_json::Value) -> Vec<(String, String)> {
    let list = |value: &serde_json::Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let subcells = list(report, "cells").into_iter().flat_map(|cell| list(&cell, "subcells"));
    let lines = subcells.flat_map(|subcell| list(&subcell, "lines"));
    lines.flat_map(|line| list(&line, "code")).map(|code| (text(&code["sym"]), text(&code["dso"]))).collect()
}

#[test]
fn a_report_names_the_code_of_shared_lines() {
    let test = "a_report_names_the_code_of_shared_lines";
    let programs = Programs::new();
    let flags = ["-O1", "-g0", "-pthread", "-fno-inline"];
    let Some(program) = programs.build("cc", "queue.c", &flags) else {
        println!("SKIP: {test}: no C compiler");
        return;
    };
    let mut child = Command::new(program).arg("100").stdout(Stdio::null()).spawn().unwrap();
    let report = programs.path("report.json");
    let mut found = Vec::new();
    let run = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_scxprof"));
        command.args(["run", "-t", "2", "--source", "timer", "--freq", "997", "--max-loss", "100", "-p"]);
        command.arg(child.id().to_string()).args(more).arg("--report").arg(&report).output().unwrap()
    };
    let (mut said, mut skipped) = (String::new(), false);
    // On a busy machine a capture may have too few samples.
    for _ in 0..6 {
        let output = run(&["-vv"]);
        said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.code() == Some(3) {
            println!("SKIP: {test}: {said}");
            skipped = true;
            break;
        }
        if output.status.success() {
            found = code_of(&serde_json::from_slice(&fs::read(&report).unwrap()).unwrap());
        }
        if !found.is_empty() {
            assert!(said.contains("\nhot line ") && said.contains("\n  code "), "{said}");
            let none = run(&["--no-symbols"]);
            if none.status.success() {
                assert_eq!(code_of(&serde_json::from_slice(&fs::read(&report).unwrap()).unwrap()), []);
            }
            break;
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    if skipped {
        return;
    }
    let ours =
        |(sym, dso): &&(String, String)| ["produce", "consume"].contains(&sym.as_str()) && dso.ends_with("/program");
    assert!(found.iter().any(|it| ours(&it)), "{found:?}\n{said}");
}

#[test]
fn lines_of_a_profile_name_their_code() {
    let test = "lines_of_a_profile_name_their_code";
    let programs = Programs::new();
    let Some(program) = programs.build("cc", "queue.c", &["-O1", "-g0", "-pthread", "-fno-inline"]) else {
        println!("SKIP: {test}: no C compiler");
        return;
    };
    let mut child = Command::new(program).arg("100").stdout(Stdio::null()).spawn().unwrap();
    let pid = child.id().to_string();
    let scxprof = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_scxprof")).args(arguments).current_dir(&programs.dir).output().unwrap()
    };
    let (mut named, mut said) = (Vec::new(), String::new());
    // On a busy machine a recording may have too few samples.
    for number in 0..6 {
        let dir = format!("profile-{number}");
        let record = ["record", "-t", "1", "--source", "timer", "--freq", "997", "--max-loss", "100"];
        let output = scxprof(&[&record[..], &["--disable-archive", "-o", &dir, "-p", &pid]].concat());
        said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.code() == Some(3) {
            break;
        }
        let output = scxprof(&["process", "-f", &dir]);
        said.push_str(&String::from_utf8_lossy(&output.stderr));
        let lines = fs::read_to_string(programs.path(&format!("{dir}.out/perf.jsonl"))).unwrap_or_default();
        let lines = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        named = lines
            .filter_map(|line| line["sym"].as_str().filter(|sym| *sym != "[unknown]").map(ToOwned::to_owned))
            .collect();
        if !named.is_empty() {
            let plain = scxprof(&["extract", "-f", &format!("{dir}.out/perf.jsonl")]);
            assert!(matches!(plain.status.code(), Some(0 | 1)), "{plain:?}");
            break;
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    if named.is_empty() && !said.contains("wrote") {
        println!("SKIP: {test}: {said}");
        return;
    }
    assert!(named.iter().any(|sym| ["produce", "consume"].contains(&sym.as_str())), "{named:?}\n{said}");
}
