//! A profile read by one thread and by several gives the same.

use std::path::Path;

use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
use scxprof::profile::Profile;
use scxprof::session::Outcome;
use scxprof::Session;

use super::made::{self, Order};
use super::{replayed, scxprof, Collect};

const ORDER: Order = Order { big: false };
const SAMPLES: u64 = 30_000;

/// Runs `run` on one CPU, where a session starts no threads.
fn on_one_cpu<T>(run: impl FnOnce() -> T) -> T {
    let all = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|&cpu| all.is_set(cpu)).unwrap();
    let mut one = CpuSet::new();
    one.set(first);
    sched_setaffinity(None, &one).unwrap();
    let result = run();
    sched_setaffinity(None, &all).unwrap();
    result
}

/// Samples of many threads, with every kind of side-band between them: names, processes, mappings, and paths of cgroups that
/// replace one another. Some are of pid 0, some of threads without a name.
fn records() -> Vec<Vec<u8>> {
    let mut records = vec![made::cgroup(ORDER, 0, 5, b"/a"), made::shared(ORDER, 0, 100, 0x1_0000, 0x4_0000, 0, b"/x")];
    for step in 0..SAMPLES {
        let time = 1_000_000_000 + step * 1000;
        let pid = match step % 50 {
            0 => 0,
            1 => 999,
            other => 100 + (other % 8) as u32,
        };
        match step % 700 {
            100 => records.push(made::comm(ORDER, time, pid.max(1), pid.max(1), format!("name {step}").as_bytes())),
            200 => records.push(made::cgroup(ORDER, time, 5, format!("/path/{step}").as_bytes())),
            300 => records.push(made::shared(ORDER, time, 101, 0x1_0000, 0x4_0000, step << 12, b"/y")),
            400 => records.push(made::fork(ORDER, time, 200 + (step / 700) as u32, 100)),
            _ => {}
        }
        // The times of two CPUs that were written one after the other.
        let time = if step % 64 < 32 { time + 32_500 } else { time - 31_500 };
        records.push(made::sample(ORDER, time, pid, pid, 0x1_0000 + step % 0x4000 * 16, 5, 4096));
        if step % 640 == 639 {
            records.push(made::round(ORDER));
        }
    }
    records
}

/// The samples, and all that the session counted.
fn read(path: &Path) -> (Collect, String) {
    let (collect, outcome, damage) = replayed(path);
    let Outcome { samples, accesses, events, duration, loss, notes, hints, .. } = outcome;
    (collect, format!("{:?}", (samples, accesses, events, duration, loss, notes, hints, damage)))
}

fn check(path: &Path, least: usize) {
    let (one, counts) = on_one_cpu(|| read(path));
    let (several, others) = read(path);
    assert!(one.samples.len() > least, "{} samples", one.samples.len());
    assert_eq!(counts, others);
    assert_eq!(one.samples.len(), several.samples.len());
    for (at, (one, other)) in one.samples.iter().zip(&several.samples).enumerate() {
        assert_eq!(one, other, "sample {at}");
    }
    assert!(one.paths == several.paths, "other cgroups");
}

#[test]
fn records_are_the_same_by_one_thread_and_by_several() {
    let (_dir, path) = made::write(&made::file(ORDER, &records()));
    check(&path, SAMPLES as usize * 9 / 10);
    let mut files = Vec::new();
    for _ in 0..2 {
        let lines = scxprof(&["process", "-f", path.to_str().unwrap(), "-o", "-", "--no-symbols"]);
        assert!(lines.status.success());
        files.push(lines.stdout);
    }
    assert!(files[0] == files[1]);
}

#[test]
fn lines_are_the_same_by_one_thread_and_by_several() {
    let (dir, path) = made::write(&made::file(ORDER, &records()));
    let mut lines = scxprof(&["process", "-f", path.to_str().unwrap(), "-o", "-", "--no-symbols"]).stdout;
    // Other writers' lines lack numbers; some lines are none.
    let plain = b"{\"pid\": 3, \"tid\": 4, \"time\": \"1.5\", \"addr\": \"1000\", \"cgroup\": \"/z\"}\n\nnonsense\n";
    let middle = lines.len() / 2 + memchr::memchr(b'\n', &lines[lines.len() / 2..]).unwrap() + 1;
    lines.splice(middle..middle, plain.repeat(2000));
    let path = dir.path().join("perf.jsonl");
    std::fs::write(&path, &lines).unwrap();
    check(&path, SAMPLES as usize * 9 / 10 + 2000);
}

#[test]
fn a_session_that_is_ended_early_gives_what_it_read() {
    let (dir, path) = made::write(&made::file(ORDER, &records()));
    let lines = scxprof(&["process", "-f", path.to_str().unwrap(), "-o", "-", "--no-symbols"]).stdout;
    let of_lines = dir.path().join("perf.jsonl");
    std::fs::write(&of_lines, lines).unwrap();
    for path in [path, of_lines] {
        let stopped = || {
            let (mut profile, mut collect) = (Profile::open(&path).unwrap(), Collect::default());
            let session = Session::builder().profile(&mut profile).start().unwrap();
            let outcome = session.run_into(&mut collect, |_| true);
            assert_eq!(outcome.accesses, collect.samples.len() as u64, "{}", path.display());
        };
        on_one_cpu(stopped);
        stopped();
    }
}
