//! The commands and files of scx_characterize, as its users have them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use super::script::text;
use super::{made, said};

/// Runs our binary in `directory`.
fn run_in(directory: &Path, line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_scxprof")).args(line.split(' ')).current_dir(directory).output().unwrap()
}

fn expect(output: &Output, code: i32, sentence: &str) {
    assert_eq!(output.status.code(), Some(code), "{}", said(output));
    assert!(said(output).contains(sentence), "{sentence}: {}", said(output));
}

/// The names in a directory, sorted.
fn names_in(directory: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = fs::read_dir(directory).unwrap().map(name).collect();
    names.sort();
    names
}

/// Packs files, as its `record` does, below the directory `name`.
fn archive(path: &Path, name: &str, files: &[(&str, &[u8])]) {
    let gz = flate2::write::GzEncoder::new(fs::File::create(path).unwrap(), flate2::Compression::fast());
    let mut tar = tar::Builder::new(gz);
    for (file, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        tar.append_data(&mut header, Path::new(name).join(file), *bytes).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap();
}

#[test]
fn an_archive_is_processed_again_and_again() {
    let dir = tempfile::tempdir().unwrap();
    archive(&dir.path().join("myprofile.tar.gz"), "myprofile", &[("perf.mem.script", text().as_bytes())]);
    // What its own `process` leaves beside the archive is neither read nor in the way.
    fs::create_dir(dir.path().join("myprofile")).unwrap();
    fs::write(dir.path().join("myprofile/perf.mem.script"), "planted\n").unwrap();
    let out = dir.path().join("myprofile.out");
    for _ in 0..2 {
        expect(&run_in(dir.path(), "process -f myprofile.tar.gz"), 0, "wrote myprofile.out/perf.jsonl");
        assert_eq!(names_in(&out), ["meta.json", "perf.jsonl"]);
        assert_eq!(fs::read_to_string(out.join("perf.jsonl")).unwrap().lines().count(), 100);
        assert_eq!(names_in(dir.path()), ["myprofile", "myprofile.out", "myprofile.tar.gz"]);
    }
    let extract = |line: &str| run_in(dir.path(), line);
    let found = extract("extract -f myprofile.out/perf.jsonl --target-cpus 64");
    expect(&found, 0, "");
    let as_upstream = extract("extract mem -f myprofile.out/perf.jsonl --target-cpus 64");
    assert_eq!(as_upstream.stdout, found.stdout, "{}", said(&as_upstream));
    expect(&extract("extract sched util -f x"), 2, "`scxprof sched -f PROFILE --windows 1ms --category NAME`");
}

#[test]
fn lines_of_another_profile_are_replaced_whole() {
    let (dir, path) = made::write(text().as_bytes());
    fs::rename(path, dir.path().join("perf.script")).unwrap();
    let lines = || fs::read(dir.path().join("out/perf.jsonl")).unwrap();
    expect(&run_in(dir.path(), "process -f perf.script -o out"), 0, "");
    let first = lines();
    expect(&run_in(dir.path(), "process -f perf.script -o out --comm web"), 0, "");
    assert!(lines().len() < first.len());
    // A reader that has the old lines open reads them to their end.
    let mut old = fs::File::open(dir.path().join("out/perf.jsonl")).unwrap();
    expect(&run_in(dir.path(), "process -f perf.script -o out"), 0, "");
    let mut read = Vec::new();
    std::io::Read::read_to_end(&mut old, &mut read).unwrap();
    assert!(read.len() < first.len() && lines() == first);
    // One that fails leaves what was there.
    fs::write(dir.path().join("broken.script"), "nothing of the kind\n").unwrap();
    let output = run_in(dir.path(), "process -f broken.script -o out");
    assert!(matches!(output.status.code(), Some(1 | 2 | 4)), "{}", said(&output));
    assert_eq!(names_in(dir.path()), ["broken.script", "out", "perf.script"]);
}

#[test]
fn what_process_did_not_write_stays() {
    let (dir, path) = made::write(text().as_bytes());
    fs::rename(path, dir.path().join("perf.script")).unwrap();
    let out = dir.path().join("perf.script.out");
    let run = || run_in(dir.path(), "process -f perf.script");
    expect(&run(), 0, "");
    let meta = fs::read(out.join("meta.json")).unwrap();
    let more = |name: &str, bytes: &[u8]| fs::write(out.join(name), bytes).unwrap();
    let in_the_way = "perf.script.out exists already and is not what `process` wrote: it is never overwritten";
    // A note of the user, a recording, and metadata that is none.
    for name in ["notes.txt", "perf.data", "perf.jsonl.bak"] {
        more(name, b"mine");
        expect(&run(), 2, in_the_way);
        assert_eq!(fs::read(out.join(name)).unwrap(), b"mine");
        fs::remove_file(out.join(name)).unwrap();
    }
    more("meta.json", b"{\"mine\": true}");
    expect(&run(), 2, in_the_way);
    more("meta.json", &meta);
    fs::remove_file(out.join("perf.jsonl")).unwrap();
    fs::create_dir(out.join("perf.jsonl")).unwrap();
    expect(&run(), 2, in_the_way);
    fs::remove_dir(out.join("perf.jsonl")).unwrap();
    expect(&run(), 2, in_the_way);
    // A file, and a link to what `process` wrote elsewhere.
    expect(&run_in(dir.path(), "process -f perf.script -o other"), 0, "");
    fs::remove_dir_all(&out).unwrap();
    std::os::unix::fs::symlink("other", &out).unwrap();
    expect(&run(), 2, in_the_way);
    fs::remove_file(&out).unwrap();
    fs::write(&out, "mine").unwrap();
    expect(&run(), 2, in_the_way);
    assert_eq!(names_in(dir.path()), ["other", "perf.script", "perf.script.out"]);
}

#[test]
fn a_directory_is_not_in_the_way_of_an_archive() {
    let test = "a_directory_is_not_in_the_way_of_an_archive";
    let dir = tempfile::tempdir().unwrap();
    let record = |options: &str| run_in(dir.path(), &format!("record --source faults --timeout 0.2 {options} true"));
    let output = record("-o first");
    if output.status.code() == Some(3) {
        return println!("SKIP: {test}: {}", said(&output));
    }
    fs::create_dir(dir.path().join("x")).unwrap();
    fs::write(dir.path().join("x/perf.mem.data"), "of scx_characterize").unwrap();
    expect(&record("-o x.tar.gz"), 0, "wrote x.tar.gz");
    expect(&record("-o x"), 2, "x.tar.gz exists already");
    expect(&record("-o x --disable-archive"), 2, "x exists already");
    fs::remove_file(dir.path().join("x.tar.gz")).unwrap();
    expect(&record("-o x --disable-sched-trace"), 0, "wrote x.tar.gz");
    assert_eq!(fs::read(dir.path().join("x/perf.mem.data")).unwrap(), b"of scx_characterize");
    assert_eq!(names_in(dir.path()), ["first.tar.gz", "x", "x.tar.gz"]);
    expect(&record("-o y --disable-mem-trace"), 2, "accesses to memory are always recorded");
    // The text is what the records are, for who reads only text.
    expect(&record("-o y --enable-perf-script --disable-archive"), 0, "wrote y");
    let path = dir.path().join("y");
    assert!(names_in(&path).contains(&"perf.mem.script".to_owned()), "{:?}", names_in(&path));
    let accesses = |name: &str| {
        let output = run_in(&path, &format!("process -o - -f {name}"));
        expect(&output, 0, "");
        let lines = String::from_utf8(output.stdout).unwrap();
        let of = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            ["comm", "pid", "tid", "time", "ip", "addr", "cgroup"].map(|field| line[field].clone())
        };
        lines.lines().map(of).collect::<Vec<_>>()
    };
    let of_records = accesses("perf.data");
    assert!(!of_records.is_empty());
    assert_eq!(accesses("perf.mem.script"), of_records);
}
