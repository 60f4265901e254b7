//! A program on a file system that no longer answers does not delay the capture.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::programs::{build, start};
use crate::support::alone;

/// Much longer than it takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(150);

/// The running file system. Its end aborts the calls into it.
struct Stalled<'a>(Child, &'a Path);

impl Drop for Stalled<'_> {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = Command::new("umount").arg("-l").arg(self.1).status();
    }
}

#[test]
fn a_file_system_that_does_not_answer_holds_nobody_up() {
    let test = "a file system that does not answer";
    let _alone = alone();
    let (Some(server), Some(random)) = (build("stalled", 1), build("random", 2)) else {
        println!("SKIP: {test}: no cc");
        return;
    };
    let mount = tempfile::tempdir().expect("a directory");
    let mut child = Command::new(&server.path)
        .args([&random.path, mount.path()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the server starts");
    let mut line = String::new();
    let out = child.stdout.take().expect("stdout is piped");
    let said = BufReader::new(out).read_line(&mut line);
    let stalled = Stalled(child, mount.path());
    if said.is_err() || line != "ready\n" {
        println!("SKIP: {test}: it takes root and FUSE");
        return;
    }
    let _on_it = start(&mount.path().join("program"), 600.0, 4);
    let _elsewhere = start(&random.path, 600.0, 4);
    // SAFETY: a signal to a child of ours that is alive.
    unsafe { libc::kill(stalled.0.id() as i32, libc::SIGUSR1) };
    let mut run = Command::new(env!("CARGO_BIN_EXE_scxprof"))
        // It samples the whole host, whose groups this one may have too few CPUs for.
        .args(["run", "--source", "timer", "-t", "2", "-v", "--target-cpus", "64"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("our binary starts");
    let (mut stdout, mut stderr) = (run.stdout.take().expect("piped"), run.stderr.take().expect("piped"));
    let said = std::thread::spawn(move || {
        let mut said = String::new();
        stderr.read_to_string(&mut said).map(|_| said)
    });
    let printed = std::thread::spawn(move || {
        let mut printed = String::new();
        stdout.read_to_string(&mut printed).map(|_| printed)
    });
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = run.try_wait().expect("it can be waited for") {
            break status;
        }
        if begin.elapsed() > LIMIT {
            let _ = run.kill();
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    // A thread that waits for the server may hold its pipes open.
    drop(stalled);
    let said = said.join().expect("a thread").expect("stderr is text");
    let printed = printed.join().expect("a thread").expect("stdout is text");
    if status.code() == Some(3) {
        println!("SKIP: {test}: {said}");
        return;
    }
    assert_eq!((status.code(), status.signal()), (Some(0), None), "{said}");
    println!("{test}: {:.1} s", begin.elapsed().as_secs_f64());
    assert!(said.contains("look-ups of files or memory were given up"), "{said}");
    assert!(serde_json::from_str::<serde_json::Value>(&printed).is_ok(), "{printed}");
}
