//! The real binary: what was found comes first, whatever the target host has CPUs for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const SCXPROF: &str = env!("CARGO_BIN_EXE_scxprof");

fn scxprof(arguments: &[&str]) -> Output {
    // Not the width of the terminal in which the tests run.
    Command::new(SCXPROF).args(arguments).env_remove("COLUMNS").output().unwrap()
}

#[track_caller]
fn expect(output: &Output, code: i32) -> (String, String) {
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|it| String::from_utf8(it.clone()).unwrap());
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    (stdout, stderr)
}

/// Three groups, each of two threads that store to one page: two in the cgroup `/a`, one in `/b`.
fn lines(directory: &Path) -> PathBuf {
    let path = directory.join("perf.jsonl");
    let line = |at: u64| {
        let (group, place, again) = (at % 3, at / 3 % 2, at / 6);
        let name = [["parse1", "parse2"], ["index1", "index2"], ["get", "put"]][group as usize][place as usize];
        let (tid, pid, cgroup) = (10 + group * 2 + place, 10 + group * 2, ["/a", "/a", "/b"][group as usize]);
        let addr = 0x7f00_0000 + again % 64 * 64;
        format!(
            "{{\"comm\":\"{name}\",\"tid\":{tid},\"pid\":{pid},\"time\":\"5.{at:09}\",\"addr\":\"{addr:x}\",\"cgroup\":\"{cgroup}\",\"op\":\"store\"}}\n"
        )
    };
    fs::write(&path, (0..12_000).map(line).collect::<String>()).unwrap();
    path
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// The groups of a report, and what takes each in the configuration.
fn groups(report: &Value) -> Vec<(String, Option<String>)> {
    let cells = report["cells"].as_array().unwrap();
    let subcells = cells.iter().flat_map(|cell| cell["subcells"].as_array().unwrap());
    let groups = subcells.filter(|subcell| subcell["kind"] == "community");
    let name = |subcell: &Value| subcell["name"].as_str().unwrap().to_owned();
    groups.map(|it| (name(it), it["in_configuration"].as_str().map(str::to_owned))).collect()
}

#[test]
fn a_small_host_gets_the_whole_finding_and_what_fits() {
    let directory = tempfile::tempdir().unwrap();
    let lines = lines(directory.path());
    let lines = lines.to_str().unwrap();
    let mut found = Vec::new();
    for (cpus, fitting) in [("64", 3), ("3", 2), ("2", 1)] {
        let at = |name: &str| directory.path().join(name);
        let [report, page] = [at("report.json"), at("page.html")];
        let outputs = ["--report", report.to_str().unwrap(), "--html", page.to_str().unwrap()];
        let output = scxprof(&[&["extract", "-f", lines, "--target-cpus", cpus][..], &outputs].concat());
        let (configuration, said) = expect(&output, 0);
        let cells: Value = serde_json::from_str(&configuration).unwrap();
        let report = json(&report);
        let groups = groups(&report);
        let taken = groups.iter().filter(|it| it.1.is_some()).count();
        assert_eq!((groups.len(), taken), (3, fitting), "{groups:?}");
        let subcells = cells[0]["subcells"].as_array().unwrap().len();
        assert_eq!(subcells, fitting + 1, "with the catch-all: {configuration}");
        found.push(groups.into_iter().map(|it| it.0).collect::<Vec<_>>());
        let headline = report["headline"].as_str().unwrap();
        assert!(headline.starts_with("3 groups: ") && headline.contains("parse x2"), "{headline}");
        assert_eq!(headline.ends_with(&format!("; this host fits {fitting}")), fitting < 3, "{headline}");
        assert!(fs::metadata(&page).unwrap().len() > 0);
        // It is said without being asked for where something is left out.
        assert_eq!(said.contains(headline), fitting < 3, "{said}");
        assert_eq!(said.contains("--target-cpus 64"), fitting < 3, "{said}");
        assert!(said.lines().count() < 14 && !said.contains("Readers"), "{said}");
        let part = |name: &str| report[name].as_f64().unwrap();
        assert!(part("locality_found") > 0.99 && (part("locality") - fitting as f64 / 3.0).abs() < 0.05, "{report:#}");
        // The same number for the same configuration.
        fs::write(at("cells.json"), &configuration).unwrap();
        let config = at("cells.json");
        let score = ["score", "-f", lines, "--target-cpus", cpus, "--json", "--config", config.to_str().unwrap()];
        let score: Value = serde_json::from_str(&expect(&scxprof(&score), 0).0).unwrap();
        let score = &score["configurations"][0];
        assert!((score["locality"].as_f64().unwrap() - part("locality")).abs() < 1e-9, "{score:#}");
        assert!(score["locality_below_best"].as_f64().unwrap().abs() < 1e-9, "{score:#}");
    }
    assert!(found.iter().all(|it| *it == found[0]), "{found:?}");
}

#[test]
fn where_nothing_fits_the_finding_is_shown_and_written_and_the_command_fails() {
    let directory = tempfile::tempdir().unwrap();
    let lines = lines(directory.path());
    let lines = lines.to_str().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let files = ["--report", "--html", "--sharing-csv", "--prometheus"].map(|option| (option, path(option)));
    let outputs: Vec<&str> = files.iter().flat_map(|(option, path)| [*option, path.as_str()]).collect();
    for (more, reason) in [
        (&[][..], "nothing of what was found can be loaded on a host of 1 CPU"),
        (&["--cell", "b=/b$"][..], "there would be 2 cells"),
    ] {
        let arguments = [&["extract", "-f", lines, "--target-cpus", "1"][..], more, &outputs].concat();
        let (configuration, said) = expect(&scxprof(&arguments), 5);
        assert_eq!(configuration, "");
        assert!(said.contains("3 groups: ") && said.contains("; this host fits none"), "{said}");
        assert!(said.contains(&format!("error: no configuration: {reason}")), "{said}");
        let report = json(Path::new(&files[0].1));
        assert!(groups(&report).iter().all(|it| it.1.is_none()), "{report:#}");
        assert_eq!((groups(&report).len(), report["configuration"]["text"].as_str()), (3, Some("")));
        for (_, file) in &files {
            assert!(fs::metadata(file).unwrap().len() > 0);
            fs::remove_file(file).unwrap();
        }
    }
    // Who wants no configuration does not fail.
    for command in [&["report"][..], &["report", "--json"]] {
        let (text, _) = expect(&scxprof(&[command, &["-f", lines, "--target-cpus", "1"]].concat()), 0);
        assert!(text.contains("3 groups: "), "{text}");
    }
    expect(&scxprof(&["diff", lines, lines, "--target-cpus", "1"]), 0);
}

#[test]
fn at_a_terminal_the_answer_is_the_result() {
    let directory = tempfile::tempdir().unwrap();
    let lines = lines(directory.path());
    let at_terminal = |arguments: &str| {
        let command = format!("{SCXPROF} extract --target-cpus 64 -f {} {arguments}", lines.display());
        let mut script = Command::new("script");
        // script(1) runs it with stdout and stderr at a terminal.
        script.args(["-qec", &command, "/dev/null"]).env("COLUMNS", "80").stdin(Stdio::null());
        script.output().ok().filter(|output| output.status.success())
    };
    let Some(output) = at_terminal("") else {
        println!("SKIP: at_a_terminal_the_answer_is_the_result: script(1) does not run it");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    let answer: Vec<&str> = text.lines().take_while(|line| !line.starts_with("note: ")).collect();
    assert!(answer.len() <= 10, "{text}");
    assert!(answer[0].starts_with("3 groups: "), "{text}");
    assert!(text.contains("To write the configuration: -o FILE") && !text.contains("CommPrefix"), "{text}");
    assert!(answer.iter().all(|line| line.chars().count() <= 80), "{text}");
    // Who asks for the configuration gets it.
    let text = at_terminal("-o -").unwrap().stdout;
    assert!(String::from_utf8_lossy(&text).contains("CommPrefix"));
    // A file gets the configuration, and the person the answer.
    let file = directory.path().join("cells.json");
    let text = at_terminal(&format!("-o {}", file.display())).unwrap().stdout;
    assert!(String::from_utf8_lossy(&text).contains("3 groups: "));
    assert!(json(&file)[0]["subcells"].as_array().unwrap().len() == 4);
}

#[test]
fn cells_that_cost_locality_are_said_and_none_is_suggested() {
    let directory = tempfile::tempdir().unwrap();
    let lines = lines(directory.path());
    let lines = lines.to_str().unwrap();
    let (_, said) = expect(&scxprof(&["extract", "-v", "-f", lines, "--target-cpus", "2", "--cell", "b=/b$"]), 0);
    // Each cell has one CPU, and so no subcell.
    assert!(said.contains("with these --cell the locality of the whole host is 0.0 %, and without them 3"), "{said}");
    let (_, said) = expect(&scxprof(&["extract", "-v", "-f", lines, "--target-cpus", "2"]), 0);
    assert!(!said.contains("--cell "), "no cell is better here: {said}");
    let (_, said) = expect(&scxprof(&["extract", "-v", "-f", lines, "--target-cpus", "64", "--cell", "b=/b$"]), 0);
    assert!(!said.contains("with these --cell"), "nothing is lost: {said}");
}
