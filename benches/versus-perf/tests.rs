//! The program as a whole: what it refuses, and a short run without rights.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::host::Refused;
use crate::{code, one_line, run, svg};

/// A script in place of a program.
fn script(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Runs the program with a pretended scxprof and these words; returns its output.
fn with(dir: &Path, words: &[&str]) -> (anyhow::Result<bool>, String) {
    let scxprof = script(dir, "scxprof", "echo scxprof 0");
    let out = dir.join("out");
    let more = [OsString::from("--scxprof"), scxprof.into(), "--out".into(), out.into(), "--work".into(), dir.into()];
    let words: Vec<OsString> = words.iter().map(OsString::from).chain(more).collect();
    let mut said = Vec::new();
    let done = run(&words, &mut said);
    (done, String::from_utf8(said).unwrap())
}

/// The sentence with which these words are refused; nothing is left behind.
fn refusal(words: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    refusal_in(dir.path(), words)
}

fn refusal_in(dir: &Path, words: &[&str]) -> String {
    let (done, said) = with(dir, words);
    let error = done.unwrap_err();
    let sentence = one_line(&format!("{error:#}"));
    assert!(error.is::<Refused>(), "{sentence}");
    assert_eq!(said, "");
    assert!(!dir.join("out").exists(), "{sentence}: something was written");
    assert_eq!(code(Err(error)), 2);
    sentence
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn wrong_words_are_refused_in_one_sentence() {
    for (words, part) in [
        (&[][..], "COMPARISON"),
        (&["nothing"][..], "invalid value 'nothing'"),
        (&["rings", "--rounds", "0"][..], "--rounds"),
        (&["rings", "--rings", "0"][..], "--rings"),
        (&["rings", "--mmap-pages", "3"][..], "power of two"),
        (&["software", "--seconds", "-1"][..], "--seconds"),
        (&["files", "--samples", "many"][..], "--samples"),
    ] {
        let sentence = refusal(words);
        assert!(sentence.contains(part) && sentence.contains("--help"), "{sentence}");
    }
}

#[test]
fn a_perf_that_is_not_there_is_refused() {
    for which in ["files", "software", "rates", "overhead"] {
        let sentence = refusal(&[which, "--perf", "/nonexistent/perf"]);
        let part = if is_root() || which == "files" { "install perf" } else { "takes root" };
        assert!(sentence.contains(part), "{sentence}");
    }
}

#[test]
fn a_perf_that_is_too_old_or_may_not_is_refused() {
    if !is_root() {
        println!("SKIP: a_perf_that_is_too_old_or_may_not_is_refused: only root gets so far");
        return;
    }
    for (said, part) in [
        (
            "echo \"  Error: unknown option \\`all-cgroups'\" >&2; echo Usage: perf >&2; exit 129",
            "does not know --all-cgroups",
        ),
        ("echo 'No permission to enable minor-faults event.' >&2; exit 255", "does not let"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let text = format!("[ \"$1\" = --version ] && {{ echo perf version 4.19; exit; }}\n{said}");
        let perf = script(dir.path(), "perf", &text);
        let perf = perf.to_str().unwrap();
        for which in ["software", "rates"] {
            let sentence = refusal_in(dir.path(), &[which, "--perf", perf, "--seconds", "0.1", "--rounds", "1"]);
            assert!(sentence.contains("perf version 4.19") && sentence.contains(part), "{sentence}");
        }
    }
}

#[test]
fn a_failure_of_a_program_under_test_is_no_refusal() {
    let dir = tempfile::tempdir().unwrap();
    let perf = script(dir.path(), "perf", "[ \"$1\" = --version ] && { echo perf version 9; exit; }\nexit 3");
    // The recording is not even made: the test's own directory has no make_profile.
    let (done, _) = with(dir.path(), &["files", "--perf", perf.to_str().unwrap(), "--samples", "10", "--rounds", "1"]);
    let error = done.unwrap_err();
    assert!(!error.is::<Refused>(), "{error:#}");
    assert_eq!(code(Err(error)), 1);
}

#[test]
fn no_room_and_no_directory_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let perf = script(dir.path(), "perf", "echo perf version 9");
    let perf = perf.to_str().unwrap();
    let sentence = refusal_in(dir.path(), &["files", "--perf", perf, "--samples", "1000000000000"]);
    assert!(sentence.contains("takes 500000000 MB") && sentence.contains("--samples"), "{sentence}");
    let sentence = refusal(&["rings", "--rings", "65536", "--mmap-pages", "65536"]);
    assert!(sentence.contains("choose fewer --rings"), "{sentence}");
    fs::create_dir(dir.path().join("out")).unwrap();
    fs::write(dir.path().join("out/rings.json"), "x").unwrap();
    let (done, _) = with(dir.path(), &["rings", "--rings", "2"]);
    assert!(format!("{:#}", done.unwrap_err()).contains("exists already"));
    assert_eq!(fs::read_to_string(dir.path().join("out/rings.json")).unwrap(), "x");
}

/// What a comparison wrote is whole: tables, JSON, plots.
fn is_whole(out: &Path, name: &str, said: &str) {
    assert_eq!(fs::read_to_string(out.join(format!("{name}.md"))).unwrap(), said);
    let json: serde_json::Value = serde_json::from_slice(&fs::read(out.join(format!("{name}.json"))).unwrap()).unwrap();
    for key in ["date", "cpu", "cpus", "kernel", "perf", "scxprof", "load_average", "command"] {
        let value = json.pointer(&format!("/machine/{key}"));
        assert!(value.is_some_and(|value| !value.is_null()), "{key}: {json}");
    }
    let rows = json.get("rows").and_then(serde_json::Value::as_array).unwrap();
    assert!(!rows.is_empty());
    let plots = fs::read_dir(out).unwrap().map(|entry| entry.unwrap().path());
    let plots: Vec<PathBuf> = plots.filter(|path| path.extension().is_some_and(|it| it == "svg")).collect();
    assert!(!plots.is_empty());
    for plot in plots {
        let text = fs::read_to_string(&plot).unwrap();
        assert_eq!(svg::tests::is_well_formed(&text), Ok(()), "{}", plot.display());
    }
}

#[test]
fn rings_give_tables_json_and_plots() {
    let dir = tempfile::tempdir().unwrap();
    let (done, said) = with(dir.path(), &["rings", "--rings", "2", "4", "--mmap-pages", "16", "--rounds", "2"]);
    assert!(done.unwrap());
    assert!(said.contains("| 2 rings | scxprof's reader |") && said.contains("| 4 rings |"), "{said}");
    is_whole(&dir.path().join("out"), "rings", &said);
}

#[test]
fn files_are_read_by_both() {
    let target = std::env::current_exe().unwrap();
    let target = target.parent().unwrap();
    let scxprof = target.parent().unwrap().join("scxprof");
    let made = target.join("make_profile");
    if !scxprof.exists() || !made.exists() || std::process::Command::new("perf").arg("--version").output().is_err() {
        println!("SKIP: files_are_read_by_both: needs perf, and what `cargo build --bins --examples` builds");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let paths = [OsString::from("--out"), out.clone().into(), "--work".into(), dir.path().into()];
    let words = ["files", "--samples", "10000", "--rounds", "2"].map(OsString::from).into_iter().chain(paths);
    let mut said = Vec::new();
    assert!(run(&words.collect::<Vec<_>>(), &mut said).unwrap());
    let said = String::from_utf8(said).unwrap();
    assert!(
        said.contains("| 10,000 samples | perf script |") && said.contains("scxprof extract, from the lines"),
        "{said}"
    );
    is_whole(&out, "files", &said);
    let left = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["out"], "recordings are left");
}
