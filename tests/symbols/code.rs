//! The code cache on real processes: stripped, deleted and contained programs, huge files, processes that have ended.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use scxprof::testing::resolve::code::{At, CodeCache, Limits, Mapping, Origin};

/// A child that is killed at the end of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `script`, which prints a line once it is ready.
fn start(script: &str) -> Option<Running> {
    let child = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let mut running = Running(child);
    let mut byte = [0];
    running.0.stdout.as_mut()?.read_exact(&mut byte).ok()?;
    // The exec that follows the line.
    let own = std::fs::read_link("/proc/self/exe").ok()?;
    for _ in 0..500 {
        let link = std::fs::read_link(format!("/proc/{}/exe", running.0.id())).ok()?;
        // An exec names its file before it maps it.
        if link != own && link.to_string_lossy().contains("sleeper") && line_of_text(running.0.id()).is_some() {
            return Some(running);
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    None
}

/// The line of procfs with the code of the program that `pid` runs.
fn line_of_text(pid: u32) -> Option<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    maps.lines().find(|line| line.contains("r-xp") && line.contains("sleeper")).map(str::to_owned)
}

/// The executable mapping of the program that `pid` runs: its path, and the rest.
fn text(pid: u32) -> (Vec<u8>, Mapping<'static>) {
    let line = line_of_text(pid).unwrap();
    let mut words = line.split_ascii_whitespace();
    let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let (start, end) = words.next().unwrap().split_once('-').unwrap();
    let offset = words.nth(1).unwrap();
    let (major, minor) = words.next().unwrap().split_once(':').unwrap();
    let ino = words.next().unwrap();
    let path = line.as_bytes()[line.find('/').unwrap()..].to_vec();
    let mapping = Mapping {
        start: hex(start),
        end: hex(end),
        offset: hex(offset),
        dev: libc::makedev(hex(major) as u32, hex(minor) as u32),
        ino: ino.parse().unwrap(),
        writable: false,
        shared: false,
        build_id: None,
        path: b"",
    };
    (path, mapping)
}

/// A window in the middle of the program's code, compared with what the process has in memory.
fn check(cache: &mut CodeCache, pid: u32) -> Option<Origin> {
    let (path, mapping) = text(pid);
    let mapping = Mapping { path: &path, ..mapping };
    let ip = mapping.start + (mapping.end - mapping.start) / 2;
    let window = cache.window(At { pid, space: pid, ip, time: 0 }, &mapping, 0).ok()?;
    let mut memory = vec![0; window.bytes.len()];
    File::open(format!("/proc/{pid}/mem")).unwrap().read_exact_at(&mut memory, window.start).unwrap();
    assert_eq!(window.bytes[..], memory, "{window:?}");
    Some(window.origin)
}

fn sleeper(dir: &Path) -> PathBuf {
    let to = dir.join("sleeper");
    std::fs::copy("/bin/sleep", &to).unwrap();
    to
}

fn may_use_map_files() -> bool {
    std::fs::read_dir("/proc/self/map_files")
        .is_ok_and(|mut names| names.next().is_some_and(|name| name.is_ok_and(|name| File::open(name.path()).is_ok())))
}

#[test]
fn a_program_that_was_deleted_is_still_read() {
    let dir = tempfile::tempdir().unwrap();
    let program = sleeper(dir.path());
    let path = program.display();
    let Some(running) = start(&format!("echo; exec {path} 60")) else {
        eprintln!("SKIP: a_program_that_was_deleted_is_still_read: a copy of /bin/sleep does not run here");
        return;
    };
    let mut cache = CodeCache::new(Path::new("/proc"), Limits::default());
    assert_eq!(check(&mut cache, running.0.id()), Some(Origin::File));
    assert_eq!(cache.counts().by_path, 1);
    std::fs::remove_file(&program).unwrap();
    std::fs::write(&program, "another file").unwrap();
    let mut cache = CodeCache::new(Path::new("/proc"), Limits::default());
    let origin = if may_use_map_files() { Origin::File } else { Origin::Memory };
    assert_eq!(check(&mut cache, running.0.id()), Some(origin), "{:?}", cache.counts());
}

#[test]
fn a_program_in_another_mount_namespace_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().display();
    let script = format!(
        "exec unshare -m sh -c 'mount -t tmpfs none {path} && cp /bin/sleep {path}/sleeper && echo && exec {path}/sleeper 60'"
    );
    let Some(running) = start(&script) else {
        eprintln!("SKIP: a_program_in_another_mount_namespace_is_found: no mount namespace for us");
        return;
    };
    assert!(!dir.path().join("sleeper").exists(), "it is visible in that namespace only");
    let mut cache = CodeCache::new(Path::new("/proc"), Limits::default());
    assert_eq!(check(&mut cache, running.0.id()), Some(Origin::File));
    assert_eq!(cache.counts().by_path, 1, "{:?}", cache.counts());
}

#[test]
fn a_stripped_program_has_its_functions() {
    let dir = tempfile::tempdir().unwrap();
    let path = sleeper(dir.path());
    // Distributions ship it stripped already.
    let _ = Command::new("strip").arg(&path).output();
    let Some(running) = start(&format!("echo; exec {} 60", path.display())) else {
        eprintln!("SKIP: a_stripped_program_has_its_functions: a copy of /bin/sleep does not run here");
        return;
    };
    let pid = running.0.id();
    let (path, mapping) = text(pid);
    let mapping = Mapping { path: &path, ..mapping };
    let mut cache = CodeCache::new(Path::new("/proc"), Limits::default());
    let mut found = 0;
    for ip in (mapping.start..mapping.end).step_by(16) {
        let window = cache.window(At { pid, space: pid, ip, time: 0 }, &mapping, 0).unwrap();
        if let Some(function) = window.function {
            assert!(function.contains(&ip));
            let near = ip - function.start <= 65536 && function.end - ip <= 65536;
            let start = if near { function.start } else { ip } - 4096;
            assert_eq!(window.start, start.max(mapping.start));
            found += 1;
        }
    }
    let all = (mapping.end - mapping.start) / 16;
    assert!(found * 4 > all, "{found} of {all} places lie in known functions");
}

#[test]
fn a_huge_file_costs_what_is_read_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let program = sleeper(dir.path());
    let file = File::options().write(true).open(&program).unwrap();
    // A gigabyte of debug information, say; sparse here.
    file.set_len(1 << 30).unwrap();
    drop(file);
    let Some(running) = start(&format!("echo; exec {} 60", program.display())) else {
        eprintln!("SKIP: a_huge_file_costs_what_is_read_of_it: a copy of /bin/sleep does not run here");
        return;
    };
    let mut cache = CodeCache::new(Path::new("/proc"), Limits::default());
    assert_eq!(check(&mut cache, running.0.id()), Some(Origin::File));
    assert!(cache.counts().file_pages < 12, "{:?}", cache.counts());
}

#[test]
fn facts_that_outlived_their_process_are_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let program = sleeper(dir.path());
    let Some(running) = start(&format!("echo; exec {} 60", program.display())) else {
        eprintln!("SKIP: facts_that_outlived_their_process_are_an_error: a copy of /bin/sleep does not run here");
        return;
    };
    let pid = running.0.id();
    let (path, mapping) = text(pid);
    let ip = mapping.start + 0x100;
    drop(running);
    // The mapping is still known, but the process has ended.
    std::fs::remove_file(&program).unwrap();
    let mut cache = CodeCache::new(Path::new("/proc"), Limits::default());
    let mapping = Mapping { path: &path, ..mapping };
    assert!(cache.window(At { pid, space: 1, ip, time: 0 }, &mapping, 0).is_err());
    assert_eq!((cache.counts().failed, cache.counts().errors.values().sum::<u64>()), (1, 2));
}
