//! The real binary: what `report` and `diff` print, and the files for other programs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Lines of threads in pairs that share a page each, with the names of `pair` for its number and place.
fn lines(directory: &Path, name: &str, pairs: u64, comm: impl Fn(u64, u64) -> String) -> PathBuf {
    let path = directory.join(name);
    let line = |at: u64| {
        let (pair, place, again) = (at % pairs, at / pairs % 2, at / pairs / 2);
        let (tid, comm) = (10 + pair * 2 + place, comm(pair, place));
        let addr = 0x7f00_0000 + pair * 0x10_0000 + again % 64 * 64;
        format!(
            "{{\"comm\":\"{comm}\",\"tid\":{tid},\"pid\":10,\"time\":\"5.{at:09}\",\"addr\":\"{addr:x}\",\"cgroup\":\"/a\",\"op\":\"store\"}}\n"
        )
    };
    fs::write(&path, (0..pairs * 4000).map(line).collect::<String>()).unwrap();
    path
}

fn scxprof(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_scxprof")).args(arguments).output().unwrap()
}

#[track_caller]
fn expect(output: &Output, code: i32) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn pair_name(pair: u64, place: u64) -> String {
    format!("{}-{}", ["get", "put"][place as usize], ["red", "blue"][pair as usize])
}

#[test]
fn report_prints_what_run_says_and_no_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let path = lines(directory.path(), "perf.jsonl", 2, pair_name);
    let path = path.to_str().unwrap();
    let cpus = ["--target-cpus", "16"];
    let extract = scxprof(&[&["extract", "-v", "-f", path], &cpus[..]].concat());
    expect(&extract, 0);
    let said = String::from_utf8(extract.stderr).unwrap();
    let brief = expect(&scxprof(&[&["report", "-f", path], &cpus[..]].concat()), 0);
    assert!(brief.starts_with("Source: "), "{brief}");
    for line in brief.lines() {
        assert!(said.lines().any(|it| it == line), "extract -v does not say {line:?}:\n{said}");
    }
    assert!(brief.contains("get-red+put-red") && brief.contains("Locality captured: "), "{brief}");
    assert!(!brief.contains("avoided misses") && !brief.contains("hot line"), "{brief}");
    let all = expect(&scxprof(&[&["report", "-v", "-f", path], &cpus[..]].concat()), 0);
    assert!(all.contains("avoided misses") && all.contains("hot line "), "{all}");
    // The same selections as extract.
    let some = expect(&scxprof(&["report", "-f", path, "--comm", "red$"]), 0);
    assert!(some.contains("get-red") && !some.contains("blue"), "{some}");
    // The same report as extract.
    let file = directory.path().join("report.json");
    let to_file = ["extract", "-o", "/dev/null", "--report", file.to_str().unwrap(), "-f", path];
    expect(&scxprof(&[&to_file, &cpus[..]].concat()), 0);
    let json = expect(&scxprof(&[&["report", "--json", "-f", path], &cpus[..]].concat()), 0);
    assert_eq!(json, fs::read_to_string(&file).unwrap());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let line = &json["lines"][0];
    assert_eq!((&line["sharing"], &line["threads"]), (&"true".into(), &2.into()), "{line:#}");
    assert_eq!(line["by_thread"][0]["stored"], serde_json::json!([[0, 0]]), "no size: the first byte");
    // To a file, and nothing on stdout.
    let file = directory.path().join("summary.txt");
    assert_eq!(expect(&scxprof(&[&["report", "-f", path, "-o", file.to_str().unwrap()], &cpus[..]].concat()), 0), "");
    assert_eq!(fs::read_to_string(&file).unwrap(), brief);
}

#[test]
fn diff_says_what_changed_and_ends_as_diff_does() {
    let directory = tempfile::tempdir().unwrap();
    let before = lines(directory.path(), "before.jsonl", 2, pair_name);
    // The other way round: those who put work with the other's who get.
    let swapped = |pair, place| pair_name(if place == 0 { pair } else { 1 - pair }, place);
    let after = lines(directory.path(), "after.jsonl", 2, swapped);
    let report = directory.path().join("report.json");
    let [before, after, report] = [&before, &after, &report].map(|path| path.to_str().unwrap());
    let cpus = ["--target-cpus", "16"];
    expect(&scxprof(&[&["extract", "-f", before, "-o", "/dev/null", "--report", report], &cpus[..]].concat()), 0);
    let diff = |a, b, more: &[&str]| scxprof(&[&["diff", a, b], &cpus[..], more].concat());
    for (a, b) in [(before, before), (before, report), (report, before), (report, report)] {
        let text = expect(&diff(a, b, &[]), 0);
        assert!(text.ends_with("The decisions are the same.\n"), "{text}");
    }
    for a in [before, report] {
        let text = expect(&diff(a, after, &[]), 1);
        assert!(text.lines().any(|line| line.starts_with("+ rest/get-blue+put-red: ")), "{text}");
        assert!(text.lines().any(|line| line.starts_with("- rest/get-blue+put-blue: ")), "{text}");
        let moved = "> threads \"put-red\" of rest: get-red+put-red -> get-blue+put-red\n";
        assert!(text.contains(moved), "{text}");
    }
    let json: serde_json::Value = serde_json::from_str(&expect(&diff(report, after, &["--json"]), 1)).unwrap();
    assert_eq!(json["same"], false);
    assert_eq!(json["threads"].as_array().unwrap().len(), 4, "each has another partner: {json:#}");
    // Trouble of any kind is 2, and says which file.
    let broken = directory.path().join("broken.json");
    let whole = fs::read_to_string(report).unwrap();
    fs::write(&broken, &whole[..whole.len() / 2]).unwrap();
    let other = directory.path().join("other.json");
    fs::write(&other, whole.replacen("\"version\": 3", "\"version\": 99", 1)).unwrap();
    let empty = directory.path().join("empty.jsonl");
    fs::write(&empty, "").unwrap();
    for (path, sentence) in [
        (broken.to_str().unwrap(), "not a whole report"),
        (other.to_str().unwrap(), "a report of version 99"),
        (empty.to_str().unwrap(), ""),
        ("/no/such/profile", "/no/such/profile"),
    ] {
        let output = diff(report, path, &[]);
        assert_eq!(expect(&output, 2), "");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(sentence) && said.contains(path), "{said}");
    }
    expect(&scxprof(&["diff", report]), 2);
}

#[test]
fn files_for_other_programs_are_whole_and_apart() {
    let directory = tempfile::tempdir().unwrap();
    let path = lines(directory.path(), "perf.jsonl", 2, pair_name);
    let path = path.to_str().unwrap();
    let results = directory.path().join("textfile");
    fs::create_dir(&results).unwrap();
    let [csv, metrics] = ["sharing.csv", "scxprof.prom"].map(|name| results.join(name).to_str().unwrap().to_owned());
    let arguments = ["--target-cpus", "16", "--sharing-csv", &csv, "--prometheus", &metrics];
    let cells = expect(&scxprof(&[&["extract", "-f", path], &arguments[..]].concat()), 0);
    assert!(cells.starts_with('['), "the configuration is on stdout still: {cells}");
    let mut names: Vec<_> = fs::read_dir(&results).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["scxprof.prom", "sharing.csv"], "nothing else is left");
    let text = fs::read_to_string(&csv).unwrap();
    let rows: Vec<Vec<&str>> = text.split_terminator("\r\n").map(|line| line.split(',').collect()).collect();
    assert_eq!(rows[0], ["a", "b", "misses"]);
    assert!(rows
        .iter()
        .any(|row| row[0] == "rest/get-red+put-red" && row[1] == row[0] && row[2].parse::<f64>().unwrap() > 0.0));
    let text = fs::read_to_string(&metrics).unwrap();
    assert!(text.contains("# TYPE scxprof_samples gauge\nscxprof_samples 8000\n"), "{text}");
    assert!(text.contains("scxprof_subcell_samples_ratio{cell=\"rest\",subcell=\"get-red+put-red\"} 0.5\n"), "{text}");
    assert!(text.contains("scxprof_lost_samples_ratio 0\n"), "{text}");
    // node_exporter is another user.
    assert_eq!(fs::metadata(&metrics).unwrap().permissions().mode() & 0o044, 0o044);
    // One place for each: two would overwrite or mix.
    for wrong in [
        &["--sharing-csv", "-"][..],
        &["-o", &csv, "--prometheus", &csv],
        &["-o", "/dev/null", "--sharing-csv", "-", "--prometheus", "-"],
        &["--report", &metrics, "--prometheus", &metrics],
    ] {
        assert_eq!(expect(&scxprof(&[&["extract", "-f", path], wrong].concat()), 2), "");
    }
    let csv = expect(&scxprof(&["extract", "-f", path, "-o", "/dev/null", "--sharing-csv", "-"]), 0);
    assert!(csv.starts_with("a,b,misses\r\n"), "{csv}");
}
