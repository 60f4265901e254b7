//! Tests the real binary: the first signal ends the current work with a result, the second one ends the tool immediately.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

fn scxprof(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scxprof"));
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

/// What `perf script` would print: more lines than a pipe takes.
fn script(directory: &Path) -> PathBuf {
    let path = directory.join("perf.script");
    let mut text = String::new();
    for at in 0..20_000 {
        writeln!(
            text,
            "             web 100/{} 10.{at:06}:             7f{:06x}           401000",
            101 + at % 2,
            at % 64 * 8
        )
        .unwrap();
    }
    std::fs::write(&path, text).unwrap();
    path
}

/// A full pipe.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    let set = |flags: i32| {
        // SAFETY: the descriptor is open, and the call takes plain numbers.
        assert_eq!(unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, flags) }, 0);
    };
    set(libc::O_NONBLOCK);
    while (&writer).write(&[b' '; 1]).is_ok() {}
    set(0);
    (reader, writer)
}

fn send(child: &Child, signal: i32) {
    // SAFETY: the call takes numbers; the process is our child, which has not been waited for.
    unsafe { libc::kill(child.id() as i32, signal) };
}

/// Sends `signal` twice; returns how the process ended, and kills it if it did not.
fn ended_by_two(child: &mut Child, signal: i32) -> Option<ExitStatus> {
    for _ in 0..2 {
        send(child, signal);
        std::thread::sleep(Duration::from_millis(400));
    }
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(60) {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// Waits for the message on stderr; returns what follows it.
fn said(child: &mut Child, what: &str) -> Option<BufReader<ChildStderr>> {
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while stderr.read_line(&mut line).unwrap() > 0 {
        if line.contains(what) {
            return Some(stderr);
        }
        line.clear();
    }
    None
}

#[test]
fn a_second_signal_ends_what_waits_for_a_reader_of_lines() {
    let directory = tempfile::tempdir().unwrap();
    let path = script(directory.path());
    let mut child =
        scxprof(&["process", "-o", "-", "-f", path.to_str().unwrap()]).stdout(Stdio::piped()).spawn().unwrap();
    // It has begun to write, and the rest does not fit.
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0]).unwrap();
    let status = ended_by_two(&mut child, libc::SIGTERM);
    assert_eq!(status.and_then(|status| status.code()), Some(128 + libc::SIGTERM));
    let mut last = String::new();
    child.stderr.take().unwrap().read_to_string(&mut last).unwrap();
    assert!(last.contains("ended by a second signal"), "{last}");
}

#[test]
fn a_second_signal_ends_what_waits_for_a_reader_of_the_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let path = script(directory.path());
    let (reader, writer) = full_pipe();
    let mut child = scxprof(&["extract", "-v", "--target-cpus", "64", "-f", path.to_str().unwrap()])
        .stdout(writer)
        .spawn()
        .unwrap();
    let rest = said(&mut child, "Source: ").unwrap();
    let status = ended_by_two(&mut child, libc::SIGINT);
    assert_eq!(status.and_then(|status| status.code()), Some(128 + libc::SIGINT));
    drop((reader, rest));
}

#[test]
fn a_second_signal_ends_a_run_after_its_capture() {
    let (reader, writer) = full_pipe();
    let arguments = ["run", "-v", "--source", "faults", "-t", "300", "--target-cpus", "64", "--", "sleep", "0.2"];
    let mut child = scxprof(&arguments).stdout(writer).spawn().unwrap();
    let Some(rest) = said(&mut child, "Source: ") else {
        println!("SKIP: a second signal ends a run: no page faults can be sampled here");
        child.wait().unwrap();
        return;
    };
    let status = ended_by_two(&mut child, libc::SIGINT);
    assert_eq!(status.and_then(|status| status.code()), Some(128 + libc::SIGINT));
    drop((reader, rest));
}

#[test]
fn signals_of_one_cause_are_one() {
    let arguments = ["run", "--source", "faults", "-t", "300", "--target-cpus", "64", "--max-loss", "100"];
    let child = scxprof(&arguments).stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    // Both are pending when it continues, as if timeout(1) or a closing terminal sends several.
    for signal in [libc::SIGSTOP, libc::SIGTERM, libc::SIGHUP, libc::SIGCONT] {
        send(&child, signal);
    }
    let output = child.wait_with_output().unwrap();
    if output.status.code() == Some(3) {
        println!("SKIP: signals of one cause: no page faults can be sampled here");
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap().is_array());
}
