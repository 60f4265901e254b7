//! Bad input: one sentence, the documented exit code, and what can be said is said.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use scxprof::profile::Profile;
use scxprof::session::{SchedSink, Session};

use super::{fixture, recording, sched};

/// The error's sentence.
fn error(output: &Output, code: i32) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{text}");
    text
}

#[test]
fn a_truncated_recording_gives_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    let whole = fixture("perf-sched.data.gz");
    // The descriptions of the tracepoints are behind the records, so without them there is nothing.
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let text = error(&sched(&["-f", path.to_str().unwrap()]), 1);
    assert!(text.contains("has no scheduling events: the profile is damaged"), "{text}");
    std::fs::write(&path, &whole[..40]).unwrap();
    error(&sched(&["-f", path.to_str().unwrap()]), 1);
    error(&sched(&["-f", dir.path().join("none").to_str().unwrap()]), 2);
}

#[test]
fn what_a_recording_lacks_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let path = recording(dir.path());
    let mut bytes = std::fs::read(&path).unwrap();
    // The formats are text: a tracepoint of another name is none of the scheduler's.
    for at in 0..bytes.len() - 18 {
        if &bytes[at..at + 18] == b"name: sched_waking" {
            bytes[at..at + 18].copy_from_slice(b"name: sched_wbking");
        }
    }
    std::fs::write(&path, bytes).unwrap();
    let output = sched(&["-f", path.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("the recording has no sched_waking: no wakeups, no wakeup latency"), "{text}");
}

#[test]
fn dispatch_queues_need_a_scheduler_that_has_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = recording(dir.path());
    let text = error(&sched(&["-f", path.to_str().unwrap(), "--by", "dsq"]), 1);
    assert!(text.contains("has no events of dispatch queues; `scxprof record --sched` records them"), "{text}");
    if std::fs::read("/sys/kernel/sched_ext/state").is_ok_and(|state| state.starts_with(b"enabled")) {
        println!("SKIP: --by dsq without a scheduler: this host has a sched_ext scheduler");
        return;
    }
    let text = error(&sched(&["--by", "dsq", "-t", "0.1"]), 3);
    assert!(text.contains("--by dsq needs a sched_ext scheduler, and none is loaded on this host"), "{text}");
}

#[test]
fn missing_rights_are_named() {
    let nobody = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_scxprof"));
        command.uid(65534).gid(65534);
        command
    };
    match nobody().arg("--version").output() {
        Ok(output) if output.status.success() => {}
        _ => return println!("SKIP: missing_rights_are_named: cannot run it as another user"),
    }
    let text = error(&nobody().args(["sched", "-t", "0.1"]).output().unwrap(), 3);
    assert!(text.contains("tracefs") || text.contains("the scheduler's events need root, or CAP_PERFMON"), "{text}");
    assert!(!text.contains("source wakeups"), "{text}");
    // It has no such options.
    assert!(!text.contains("-p PID"), "{text}");
    let text = error(&nobody().args(["run", "--source", "wakeups", "--", "true"]).output().unwrap(), 3);
    assert!(text.contains("tracefs"), "{text}");
}

/// A recording with wrong bytes in it, most of them in the descriptions of the tracepoints or in records.
#[test]
fn wrong_bytes_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    let whole = fixture("perf-sched.data.gz");
    let formats = whole.windows(10).rposition(|at| at == b"\x17\x08\x44tracing").unwrap();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize % below
    };
    let mut read = 0;
    for round in 0..300 {
        let mut bytes = whole.clone();
        for _ in 0..=next(8) {
            let at = if round % 2 == 0 { formats + next(bytes.len() - formats) } else { next(bytes.len()) };
            // Numbers of the formats are text: another digit is another place.
            bytes[at] = if bytes[at].is_ascii_digit() { b'0' + next(10) as u8 } else { next(256) as u8 };
        }
        if round % 5 == 0 {
            bytes.truncate(next(whole.len()));
        }
        std::fs::write(&path, &bytes).unwrap();
        let Ok(mut profile) = Profile::open(&path) else { continue };
        let mut stats = SchedSink::new(profile.places(), profile.own_pid()).with_wakers();
        let Ok(session) = Session::builder().profile(&mut profile).memory(8 << 20).start() else { continue };
        session.run_into(&mut stats, |_| false);
        read += usize::from(stats.events() > 0);
    }
    assert!(read > 100, "{read}");
}

#[test]
fn options_that_make_no_sense_together_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let text = error(&sched(&["--by", "cell"]), 2);
    assert!(text.contains("--by cell needs --config"), "{text}");
    let config = dir.path().join("cells.json");
    std::fs::write(&config, "[]").unwrap();
    let config = config.to_str().unwrap();
    let text = error(&sched(&["--by", "cell", "--config", config]), 2);
    assert!(text.contains("cells.json: scx_mitosis rejects it"), "{text}");
    error(&sched(&["--by", "cpu", "--config", config]), 2);
    error(&sched(&["--wakers", "--windows", "1ms"]), 2);
    error(&sched(&["--wakers", "process"]), 2);
    for more in [&["--sort", "wait"][..], &["--wakers"], &["--windows", "1ms"]] {
        let text = error(&sched(&[&["--by", "dsq"], more].concat()), 2);
        assert!(text.contains("--by dsq has an order and columns of its own"), "{text}");
    }
}
