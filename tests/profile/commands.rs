//! Typical uses of `process` and `extract`: files of any name, outputs at any place, empty selections, Ctrl-C.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use flate2::write::GzEncoder;
use flate2::Compression;
use tempfile::TempDir;

use super::made::{self, Order};
use super::script::text;
use super::{said, scxprof};

const ORDER: Order = Order { big: false };

fn text_as(name: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, text()).unwrap();
    (dir, path)
}

fn run(command: &str, path: &Path, options: &[&str]) -> Output {
    scxprof(&[&[command, "-f", path.to_str().unwrap()], options].concat())
}

#[track_caller]
fn expect(output: &Output, code: i32, sentence: &str) {
    let said = said(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(sentence), "expected \"{sentence}\" in:\n{said}");
}

#[test]
fn a_directory_of_perfs_own_is_read_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    // HEADER_DIR_FORMAT.
    let file = |format: u64| {
        let events = [(made::attr(ORDER), vec![made::ID])];
        made::of_events(ORDER, &events, &made::records(ORDER), &[(24, ORDER.u64(format))])
    };
    let data = dir.path().join("data");
    std::fs::write(&data, file(0)).unwrap();
    expect(&run("process", dir.path(), &["-o", "-"]), 0, "Parsed 42 of");
    std::fs::write(&data, file(1)).unwrap();
    std::fs::write(dir.path().join("data.0"), "").unwrap();
    for (command, path) in [("process", dir.path()), ("extract", dir.path()), ("extract", &data)] {
        expect(&run(command, path, &[]), 2, "record without --threads");
    }
    // Truncated before the part that describes what is beside it.
    let mut cut = file(1);
    cut[48..56].fill(0);
    std::fs::write(&data, cut).unwrap();
    expect(&run("extract", dir.path(), &[]), 2, "record without --threads");
    std::fs::write(&data, "something else").unwrap();
    expect(&run("extract", dir.path(), &[]), 2, "no perf.data");
}

#[test]
fn the_content_says_what_a_file_is() {
    let (dir, path) = text_as("some.txt");
    let from_text = run("extract", &path, &[]);
    expect(&from_text, 0, "");
    expect(&run("process", &path, &["-o", dir.path().join("out").to_str().unwrap()]), 0, "out/perf.jsonl");
    let lines = dir.path().join("lines.data");
    std::fs::copy(dir.path().join("out/perf.jsonl"), &lines).unwrap();
    let from_lines = run("extract", &lines, &[]);
    expect(&from_lines, 0, "");
    assert_eq!(from_lines.stdout, from_text.stdout);
    expect(&run("process", &lines, &[]), 2, "has the lines of `process` already: extract reads them");
    let records = dir.path().join("records.jsonl");
    std::fs::write(&records, made::file(ORDER, &made::records(ORDER))).unwrap();
    expect(&run("process", &records, &["-o", "-"]), 0, "Parsed 42 of");
    let zipped = dir.path().join("perf.jsonl.gz");
    let mut gz = GzEncoder::new(std::fs::File::create(&zipped).unwrap(), Compression::fast());
    gz.write_all(&std::fs::read(&lines).unwrap()).unwrap();
    gz.finish().unwrap();
    expect(&run("extract", &zipped, &[]), 1, "compressed, but not a .tar.gz: unpack it first (gunzip)");
    let nothing = dir.path().join("nothing");
    std::fs::write(&nothing, "nothing of the kind\n").unwrap();
    expect(&run("extract", &nothing, &[]), 2, "`perf script -F comm,pid,tid,time,addr,ip`");
    for command in ["extract", "process"] {
        expect(&run(command, Path::new("-"), &[]), 2, "a profile must be a file or a directory");
        let script = format!("cat {} | {} {command} -f /dev/stdin", path.display(), env!("CARGO_BIN_EXE_scxprof"));
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        expect(&output, 2, "/dev/stdin: a profile must be a file or a directory");
    }
}

#[test]
fn files_of_other_programs_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let p = path.to_str().unwrap();
    let chrome = br#"{"traceEvents":[{"name":"a","ph":"X","ts":1,"dur":2,"pid":1,"tid":1}]}"#;
    let mut gz = GzEncoder::new(Vec::new(), Compression::fast());
    gz.write_all(chrome).unwrap();
    let zipped = gz.finish().unwrap();
    let commands: [&[&str]; 5] = [
        &["trace", "info", p],
        &["trace", "analyze", p],
        &["sched", "-f", p],
        &["stacks", "-f", p],
        &["extract", "-f", p],
    ];
    for (bytes, expected) in [
        (&chrome[..], "file: a Chrome JSON trace"),
        (&zipped, "file: compressed with gzip, and in it is a Chrome JSON trace"),
        (b"\xfd7zXZ\0\0\x04", "compressed with xz"),
        (b"PK\x03\x04\x14\0", "compressed with zip"),
        (b"\x0a\x04\x08\x01\x10\x02", "a profile of pprof"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        for command in commands {
            expect(&scxprof(command), 2, expected);
        }
    }
    // Lines of wprof without the header, as grep leaves them.
    let task = |tid: u32| format!("{{\"tid\":{tid},\"pid\":{tid},\"comm\":\"t{tid}\",\"pcomm\":\"t{tid}\"}}");
    let switch = |ts: f64, prev: u32, next: u32| {
        let (prev, next) = (task(prev), task(next));
        format!("{{\"ts\":{ts:.9},\"t\":\"switch\",\"cpu\":0,\"prev\":{prev},\"next\":{next},\"prev_state\":\"S\"}}\n")
    };
    std::fs::write(&path, [switch(0.001, 5, 6), switch(0.002, 6, 5), switch(0.003, 5, 6)].concat()).unwrap();
    let output = scxprof(&["sched", "-f", p, "--json"]);
    expect(&output, 0, "");
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"t6\""), "{output:?}");
    expect(&scxprof(&["trace", "info", p]), 0, "");
    expect(&scxprof(&["extract", "-f", p]), 2, "lines of `wprof -J` (JSON), which have no memory samples");
    std::fs::write(&path, "{closure};main 5\n").unwrap();
    expect(&run("stacks", &path, &[]), 0, "");
    // Found in a directory.
    std::fs::write(dir.path().join("perf.jsonl"), chrome).unwrap();
    expect(&run("extract", dir.path(), &[]), 2, "perf.jsonl: a Chrome JSON trace");
}

#[test]
fn a_broken_archive_is_named_and_not_the_place_to_which_it_was_unpacked() {
    let dir = tempfile::tempdir().unwrap();
    let archived = |name: &str, content: &[u8]| {
        let path = dir.path().join(format!("{name}.tar.gz"));
        let mut tar = tar::Builder::new(GzEncoder::new(std::fs::File::create(&path).unwrap(), Compression::fast()));
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        tar.append_data(&mut header, format!("host/{name}"), content).unwrap();
        tar.into_inner().unwrap().finish().unwrap();
        path
    };
    for (name, content, code) in [
        ("perf.data", &b"PERFILE2"[..], 1),
        ("perf.jsonl", b"{\"pid\": 1}\n", 1),
        ("perf.script", b"nothing\n", 1),
        ("data", b"PERFILE2", 1),
    ] {
        let path = archived(name, content);
        for command in ["extract", "stacks"] {
            let output = run(command, &path, &[]);
            // perf's text has no name of its own, and lines have no call chains.
            let is_named = command == "extract" && name != "perf.script";
            expect(&output, code, if is_named { "tar.gz/host/" } else { "" });
            assert!(!said(&output).contains("/scxprof-"), "{}", said(&output));
        }
    }
}

#[test]
fn lines_go_where_they_are_wanted() {
    let (dir, path) = text_as("perf.script");
    let at = |name: &str| dir.path().join(name);
    expect(&run("process", &path, &[]), 0, "perf.script.out/perf.jsonl");
    expect(&run("process", &path, &[]), 0, "perf.script.out/perf.jsonl");
    expect(&run("process", &path, &["-o", at("other").to_str().unwrap()]), 0, "other/perf.jsonl");
    let lines = std::fs::read(at("other/perf.jsonl")).unwrap();
    assert_eq!(lines, std::fs::read(at("perf.script.out/perf.jsonl")).unwrap());
    let output = run("process", &path, &["-o", "-"]);
    expect(&output, 0, "Parsed 100 of 100 records");
    assert_eq!(output.stdout, lines);
    assert!(!said(&output).contains("wrote "), "{}", said(&output));
    assert_eq!(at("other").metadata().unwrap().permissions().mode() & 0o777, 0o700);
    // A directory cannot be created there by any user.
    expect(&run("process", &path, &["-o", "/proc/scxprof-lines"]), 2, "cannot write");
    expect(&scxprof(&["record", "-o", "/proc/scxprof-profile"]), 2, "cannot write /proc/scxprof-profile: ");
    expect(&scxprof(&["record", "-o", "-"]), 2, "-o -: a profile is a directory or an archive");
    let file = at("cells.json");
    let output = run("extract", &path, &["-o", file.to_str().unwrap(), "--report", file.to_str().unwrap()]);
    expect(&output, 2, "-o and --report both name");
    assert!(!file.exists());
    for to_stdout in [&["--report", "-"][..], &["-o", "-", "--report", "-"]] {
        expect(&run("extract", &path, to_stdout), 2, "would both go to stdout");
    }
}

#[test]
fn the_name_of_an_archive_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("w.tar.gz");
    let output = scxprof(&["record", "--source", "faults", "-t", "0.2", "-o", archive.to_str().unwrap()]);
    if output.status.code() == Some(3) {
        println!("SKIP: the name of an archive: {}", said(&output).trim());
        return;
    }
    assert!(said(&output).contains(&format!("wrote {}\n", archive.display())), "{}", said(&output));
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["w.tar.gz"]);
}

#[test]
fn a_selection_that_leaves_nothing_is_why() {
    let (_dir, path) = text_as("perf.script");
    for prefix in ["^/workload", "^/sys/fs/cgroup/workload"] {
        expect(&run("extract", &path, &["--cgroup", prefix]), 0, "");
    }
    let there = "there are: cgroups /workload.slice/my app.slice";
    expect(&run("extract", &path, &["--cgroup", "^/web"]), 1, &format!("selection (--cgroup ^/web); {there}"));
    expect(&run("process", &path, &["--cgroup", "^/web", "-o", "-"]), 0, there);
    expect(
        &run("process", &path, &["--comm", "x(y"]),
        2,
        "--comm x(y: the regular expression is wrong at byte 1: unclosed",
    );
    expect(&run("extract", &path, &["--from", "-1"]), 2, "must be a number of seconds from 0 on");
    let output = run("extract", &path, &["--cell", "db=/db$", "--cell", "web=my app"]);
    expect(&output, 0, "--cell db=/db$: no sampled cgroup matches it");
    assert!(!said(&output).contains("--cell web"), "{}", said(&output));
}

#[test]
fn only_mitosis_counts_cpus() {
    let (_dir, path) = text_as("perf.script");
    let output = run("extract", &path, &["--target-cpus", "1"]);
    expect(&output, 5, "no configuration: there would be");
    assert!(said(&output).contains("needs a CPU for each"), "{}", said(&output));
    assert!(output.stdout.is_empty(), "nothing that looks like one");
    let file = path.with_extension("json");
    let output = run("extract", &path, &["--target-cpus", "1", "-o", file.to_str().unwrap()]);
    expect(&output, 5, "no configuration: there would be");
    assert!(!file.exists());
    let output = run("extract", &path, &["--target-cpus", "1", "--target", "layered"]);
    expect(&output, 0, "");
    assert!(!said(&output).contains("scx_mitosis"), "{}", said(&output));
}

#[test]
fn the_caches_of_the_target_host_are_given_or_not_known() {
    let (_dir, path) = text_as("perf.script");
    let llcs = |more: &[&str]| {
        let output = run("report", &path, &[&["--json"], more].concat());
        expect(&output, 0, "");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (report["run"]["target_llcs"].clone(), report["run"]["target_cpus"].as_u64())
    };
    assert_eq!(llcs(&["--target-cpus", "8", "--target-llcs", "2"]), (2.into(), Some(8)));
    assert_eq!(llcs(&["--target-llcs", "1"]).0, 1);
    // Text does not say what the host has; more caches than CPUs are taken as they are given.
    assert!(llcs(&[]).0.is_null() && llcs(&["--target-cpus", "8"]).0.is_null());
    assert_eq!(llcs(&["--target-cpus", "8", "--target-llcs", "1024"]), (1024.into(), Some(8)));
    let report = path.with_extension("report.json");
    let args = ["--target-cpus", "8", "--target-llcs", "2", "--report", report.to_str().unwrap()];
    expect(&run("extract", &path, &args), 0, "");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    assert_eq!(report["run"]["target_llcs"], 2);
    let wrong = run("extract", &path, &["--target-llcs", "0"]);
    expect(&wrong, 2, "0 is not in 1..=1024");
    assert!(wrong.stdout.is_empty());
}

/// An archive with a ratio of 50: a gzip member for its head, and many of zeros.
fn large_archive(path: &Path) {
    const CHUNK: usize = 16 << 20;
    const CHUNKS: usize = 48;
    let member = |bytes: &[u8]| {
        let mut gz = GzEncoder::new(Vec::new(), Compression::fast());
        gz.write_all(bytes).unwrap();
        gz.finish().unwrap()
    };
    let mut header = tar::Header::new_gnu();
    header.set_path("x/perf.data").unwrap();
    header.set_mode(0o644);
    header.set_size((CHUNK * CHUNKS) as u64);
    header.set_cksum();
    let zeros = member(&vec![0; CHUNK]);
    let mut bytes = member(header.as_bytes());
    bytes.extend(zeros.repeat(CHUNKS));
    // What follows the end of an archive is not read, but the limit depends on the file's size.
    bytes.resize(CHUNK * CHUNKS / 50, 0);
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn an_interrupt_leaves_nothing_that_was_unpacked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.tar.gz");
    large_archive(&path);
    for (command, signal) in [("extract", libc::SIGTERM), ("process", libc::SIGINT)] {
        let tmp = tempfile::tempdir().unwrap();
        let unpacked = || std::fs::read_dir(tmp.path()).unwrap().count();
        let mut child = Command::new(env!("CARGO_BIN_EXE_scxprof"))
            .args([command, "-f", path.to_str().unwrap()])
            .env("TMPDIR", tmp.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        while unpacked() == 0 && child.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        // SAFETY: the child has not been reaped, so the pid still belongs to it.
        unsafe { libc::kill(child.id() as i32, signal) };
        expect(&child.wait_with_output().unwrap(), 1, "interrupted: nothing was written");
        assert_eq!(unpacked(), 0, "{command} left what it had unpacked");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "the archive");
}
