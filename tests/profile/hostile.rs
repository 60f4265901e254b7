//! Profiles made to harm their readers: small files that unpack to large ones, tables that grow with the file, pipes instead of
//! files, names that a terminal obeys. The real binary reads each in a bounded address space.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use flate2::write::GzEncoder;
use flate2::Compression;
use serde_json::json;

use super::made::{self, Order};
use super::{meta, said};

const ORDER: Order = Order { big: false };
/// Bytes of address space of a reader of any file; an allocation beyond it ends the program with a signal.
const MEMORY: u64 = 400 << 20;
/// The size to which a bomb unpacks without a limit.
const BOMB: u64 = 300 << 20;

/// Runs our binary with this much memory.
fn bounded(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scxprof"));
    let limit = libc::rlimit { rlim_cur: MEMORY, rlim_max: MEMORY };
    // SAFETY: setrlimit is async-signal-safe and reads the structure alone, which the closure owns.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_AS, &raw const limit) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    command.args(args).output().unwrap()
}

/// Runs `extract` on it, which must end with this code and this short message.
#[track_caller]
fn check(path: &Path, code: i32, text: &str) {
    let output = bounded(&["extract", "-f", path.to_str().unwrap()]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(code), "{:?}: {said}", output.status);
    assert!(said.contains(text), "{said}");
    assert!(said.len() < 4000, "it says {} bytes", said.len());
}

/// An archive of entries with a header and contents of these sizes, of a kind.
fn archive(path: &Path, entries: &[(&str, tar::EntryType, &[u8], u64)]) {
    let mut builder = tar::Builder::new(GzEncoder::new(File::create(path).unwrap(), Compression::fast()));
    for &(name, kind, pattern, size) in entries {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_size(size);
        header.set_cksum();
        builder
            .append(&header, Repeat { pattern: pattern.repeat((1 << 16) / pattern.len().max(1) + 1), at: 0 }.take(size))
            .unwrap();
    }
    builder.into_inner().unwrap().finish().unwrap();
}

/// The same bytes repeated.
struct Repeat {
    pattern: Vec<u8>,
    at: usize,
}

impl Read for Repeat {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = (&self.pattern[self.at..]).read(buffer)?;
        self.at = (self.at + read) % self.pattern.len();
        Ok(read)
    }
}

#[test]
fn names_and_attributes_of_an_archive_are_bounded() {
    use tar::EntryType as Kind;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.tar.gz");
    for kind in [Kind::GNULongName, Kind::XHeader] {
        archive(&path, &[("x", kind, b"x", BOMB), ("perf.data", Kind::Regular, b"x", 3)]);
        check(&path, 1, "its names and headers alone have more than 4 MiB, which no profile's have");
    }
}

#[test]
fn entries_of_any_kind_count() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.tar.gz");
    let mut builder = tar::Builder::new(GzEncoder::new(File::create(&path).unwrap(), Compression::fast()));
    for number in 0..200_000 {
        let mut header = tar::Header::new_gnu();
        header.set_path(format!("d/{number}")).unwrap();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_size(0);
        header.set_cksum();
        builder.append(&header, io::empty()).unwrap();
    }
    builder.into_inner().unwrap().finish().unwrap();
    check(&path, 1, "it has more than 1024 entries, which no profile has");
}

#[test]
fn a_meta_json_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.tar.gz");
    let data = made::file(ORDER, &made::records(ORDER));
    // As a value in memory this takes ten times its bytes.
    let kind = tar::EntryType::Regular;
    archive(&path, &[("x/meta.json", kind, b"[],", 60 << 20), ("x/perf.data", kind, &data, data.len() as u64)]);
    check(&path, 4, "meta.json is invalid (it has more than 4 MiB)");
    // Within the limit, its parts are not accepted unchecked either.
    let notes = vec!["\u{9b}2J"; 100_000];
    let meta_dir = tempfile::tempdir().unwrap();
    std::fs::write(meta_dir.path().join("perf.data"), &data).unwrap();
    meta::write(meta_dir.path(), &json!({ "notes": notes, "address_from": "OtherTool", "source": "pebs" }));
    check(meta_dir.path(), 0, r"note: \xc2\x9b2J");
}

#[test]
fn what_perf_compressed_is_bounded() {
    // Records of 4,112 bytes of an unknown type, 128 KiB of them in a block of four bytes (RFC 8878, 3.1.1.2.2).
    let block = [&((128u32 << 10) << 3 | 1 << 1).to_le_bytes()[..3], &[0x10]].concat();
    let stream = |payload: &[u8]| made::record(ORDER, 81, 0, &[payload.to_vec()]);
    let mut records = vec![stream(b"\x28\xb5\x2f\xfd\0\x50")];
    records.extend(vec![stream(&block); 20_000]);
    let (_dir, path) = made::write(&made::file(ORDER, &records));
    assert!(std::fs::metadata(&path).unwrap().len() < 300_000);
    check(&path, 1, "what is compressed in perf.data is more than 100 times as large as the file");
}

/// A recording of an event without an id or a time in its side-band, so nothing of it is ever complete.
fn growing(records: impl Iterator<Item = Vec<u8>>) -> (tempfile::TempDir, std::path::PathBuf) {
    let mut attr = made::attr(ORDER);
    // IDENTIFIER, IP, TID, TIME, ADDR.
    attr[24..32].copy_from_slice(&ORDER.u64(1 << 16 | 0b1111));
    attr[40..48].fill(0);
    let (dir, path) = made::write(&made::of_events(ORDER, &[(attr, vec![made::ID])], &[], &[]));
    let mut bytes = std::fs::read(&path).unwrap();
    // The size of the data: the writer did not get that far, so the file is read to its end.
    bytes[48..56].fill(0);
    let mut file = io::BufWriter::new(File::create(&path).unwrap());
    file.write_all(&bytes).unwrap();
    let words = |words: [u64; 2]| words.map(|word| ORDER.u64(word)).concat();
    let ids = [100u32, 100].map(|id| ORDER.u32(id)).concat();
    for record in records.chain([made::record(ORDER, 9, 2, &[words([made::ID, 0x40_1000]), ids, words([5, 0x1_0000])])])
    {
        file.write_all(&record).unwrap();
    }
    file.flush().unwrap();
    (dir, path)
}

#[test]
fn threads_do_not_grow_with_the_file() {
    // 2.5 million threads, each of 200 bytes where all are kept.
    let comm = |tid: u32| made::record(ORDER, 3, 0, &[ORDER.u32(tid), ORDER.u32(tid), made::text(b"web")]);
    let (_dir, path) = growing((1..=2_500_000).map(comm));
    check(&path, 4, "names were left out, of more threads than the 262144 that are told apart");
}

#[test]
fn paths_of_cgroups_do_not_grow_with_the_file() {
    let cgroup = |id: u64| {
        let path = [format!("/{id}").as_bytes(), &[b'x'; 4000]].concat();
        made::record(ORDER, 19, 0, &[ORDER.u64(id), made::text(&path)])
    };
    let (_dir, path) = growing((1..=60_000).map(cgroup));
    check(&path, 4, "paths of cgroups were forgotten");
    // A text longer than any path is no path.
    let long = made::record(ORDER, 19, 0, &[ORDER.u64(1), made::text(&b"x".repeat(60_000))]);
    let (_dir, path) = growing(vec![long; 3].into_iter());
    check(&path, 4, "3 records dropped because their content contradicts their size");
}

#[test]
fn mappings_of_one_process_do_not_grow_with_the_file() {
    let mapping = |at: u64| {
        let ids = [100u32, 100].map(|id| ORDER.u32(id)).concat();
        let memory = [at * 0x2000, 0x1000, 0].map(|word| ORDER.u64(word)).concat();
        let file = [ORDER.u32(8), ORDER.u32(1), ORDER.u64(9), ORDER.u64(0)].concat();
        let path = format!("/{at}{}", "x".repeat(200));
        made::record(ORDER, 10, 2, &[ids, memory, file, ORDER.u32(5), ORDER.u32(2), made::text(path.as_bytes())])
    };
    let (_dir, path) = growing((1..=800_000).map(mapping));
    check(&path, 4, "mappings of processes with very many had no room (--memory)");
}

#[test]
fn ids_and_names_of_events_are_bounded() {
    // Each of 100 events has the same ids of a megabyte, which lie in the file once.
    let attr = made::attr(ORDER);
    let events: Vec<_> = (0..100).map(|_| (attr.clone(), vec![])).collect();
    let mut bytes = made::of_events(ORDER, &events, &[], &[]);
    let (attrs_at, ids_at) = (u64::from_le_bytes(bytes[24..32].try_into().unwrap()) as usize, bytes.len() as u64);
    let entry = attr.len() + 16;
    for event in 0..events.len() {
        let at = attrs_at + event * entry + attr.len();
        bytes[at..at + 16].copy_from_slice(&[ORDER.u64(ids_at), ORDER.u64(1 << 20)].concat());
    }
    bytes.extend(vec![7; 1 << 20]);
    let (_dir, path) = made::write(&bytes);
    check(&path, 1, "it has more ids than events can have");
}

fn fifo(path: &Path) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path ends with a NUL and outlives the call.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
}

#[test]
fn a_pipe_or_a_link_in_a_profile_is_not_opened() {
    let data = made::file(ORDER, &made::records(ORDER));
    for name in ["meta.json", "recovered.jsonl", "hints.jsonl", "cgroups.jsonl"] {
        for is_link in [false, true] {
            let (dir, _) = made::write(&data);
            let path = dir.path().join(name);
            if is_link {
                symlink("/etc/hostname", &path).unwrap();
            } else {
                fifo(&path);
            }
            for command in ["extract", "process"] {
                let child = Command::new(env!("CARGO_BIN_EXE_scxprof"))
                    .args([command, "-f", dir.path().to_str().unwrap()])
                    .stdout(Stdio::null())
                    .stderr(Stdio::piped())
                    .spawn()
                    .unwrap();
                let said = ended(child);
                let reason = if is_link { "it is a symbolic link" } else { "it is not a regular file but a pipe" };
                assert!(said.contains(name) && said.contains(reason), "{command}: {said}");
            }
        }
    }
    // The records themselves.
    let (dir, path) = made::write(&data);
    let linked = tempfile::tempdir().unwrap();
    symlink(&path, linked.path().join("perf.data")).unwrap();
    check(linked.path(), 2, "it is a symbolic link, and those within a profile are not followed");
    // A named link is followed, and standard input is read if it is a file.
    let stdin = File::open(&path).unwrap();
    for path in [linked.path().join("perf.data"), "/dev/stdin".into()] {
        let output = Command::new(env!("CARGO_BIN_EXE_scxprof"))
            .args(["extract", "-f", path.to_str().unwrap()])
            .stdin(stdin.try_clone().unwrap())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}: {}", path.display(), said(&output));
    }
    drop(dir);
}

/// The output of a program that must end by itself.
fn ended(mut child: std::process::Child) -> String {
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    said(&child.wait_with_output().unwrap())
}

/// True for characters that a terminal obeys.
fn is_hidden(character: char) -> bool {
    character != '\n' && character.is_control() || ['\u{202e}', '\u{2066}', '\u{200f}', '\u{61c}'].contains(&character)
}

#[test]
fn nothing_of_a_file_reaches_the_terminal_as_it_is() {
    const NASTY: &str = "x\u{1b}]0;t\u{7}\u{9b}2J\u{7f}\u{202e}\u{2066}\u{200f}\u{61c}y";
    let assert_clean = |output: &Output, escaped: &str| {
        for (what, bytes) in [("stderr", &output.stderr), ("stdout", &output.stdout)] {
            let text = std::str::from_utf8(bytes).unwrap();
            assert!(!text.contains(is_hidden), "{what}: {text:?}");
        }
        assert!(said(output).contains(escaped), "{}", said(output));
    };
    let dir = tempfile::tempdir().unwrap();
    // An entry of an archive.
    let path = dir.path().join("x.tar.gz");
    archive(&path, &[(NASTY, tar::EntryType::Fifo, b"", 0)]);
    assert_clean(&bounded(&["extract", "-f", path.to_str().unwrap()]), r"x\x1b]0;t\x07\xc2\x9b2J\x7f\xe2\x80\xae");
    // The memory in a line, and damage of the meta.json beside it.
    let lines = json!({ "pid": 1, "tid": 1, "time": "1.0", "memory": format!("{NASTY}\n") });
    let path = dir.path().join("perf.jsonl");
    std::fs::write(&path, format!("{lines}\n")).unwrap();
    meta::write(dir.path(), &json!({ "damage": [NASTY] }));
    let output = bounded(&["extract", "-f", path.to_str().unwrap()]);
    assert_clean(&output, r"its memory \x22x\x1b]".replace(r"\x22", "\"").as_str());
    assert!(said(&output).matches(r"x\x1b]0;t").count() >= 2, "{}", said(&output));
    // Notes and the host of a profile, the names of its threads and cgroups, in messages and in output.
    let records = [
        made::comm(ORDER, 0, 100, 100, &NASTY.as_bytes()[..15]),
        made::cgroup(ORDER, 0, 5, format!("/{NASTY}").as_bytes()),
        made::sample(ORDER, 1_000_000_000, 100, 100, 0x1_0000, 5, 4096),
    ];
    let (profile, _) = made::write(&made::file(ORDER, &records));
    let mut host = serde_json::from_slice::<serde_json::Value>(meta::META).unwrap()["host"].take();
    (host["name"], host["kernel"], host["cpus"]) = (NASTY.into(), NASTY.into(), 64.into());
    meta::write(profile.path(), &json!({ "host": host, "notes": [NASTY], "source": "pebs", "scxprof": NASTY }));
    let path = profile.path().to_str().unwrap();
    assert_clean(&bounded(&["process", "-v", "-o", "-", "-f", path]), r"on x\x1b]0;t\x07");
    let cell = format!("{NASTY}=x");
    for target in ["mitosis", "layered"] {
        let output = bounded(&[
            "extract",
            "-vv",
            "--target",
            target,
            "--cell",
            &cell,
            "--report",
            "-",
            "-o",
            "/dev/null",
            "-f",
            path,
        ]);
        assert_clean(&output, r"note: x\x1b]0;t\x07");
        let output = bounded(&["extract", "-vv", "--target", target, "--cell", &cell, "-f", path]);
        assert!(output.status.success() || output.status.code() == Some(4), "{}", said(&output));
        assert_clean(&output, r"note: x\x1b]0;t\x07");
        assert!(String::from_utf8_lossy(&output.stdout).contains(r"\u009b2J\u007f\u202e"), "the name of the cell");
    }
    // A selection that lists the existing values, and arguments.
    assert_clean(&bounded(&["extract", "-f", path, "--comm", "none", "--cgroup", NASTY]), r"x\x1b]0;t\x07");
    assert_clean(&bounded(&["extract", path, NASTY]), r"unexpected argument 'x");
    assert_clean(&bounded(&["extract", "-f", NASTY]), r"x\x1b]0;t\x07");
    // The lines of a profile are unchanged.
    let output = bounded(&["process", "-o", "-", "-f", path]);
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(line["cgroup"], format!("/{NASTY}"));
}
