//! Programs of known pattern on a live kernel. A program is this binary again, which runs the test `program`.

use std::io::{pipe, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::thread::{sched_setaffinity, set_name, CpuSet};
use serde_json::Value;

use super::{json, layers, number, sched};
use crate::support::alone;

pub const ORDERS: &str = "SCXPROF_TEST_SCHED";
const ROUNDS: u64 = 2000;
const NAPS: u64 = 200;
const MOVES: u64 = 60;

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).unwrap();
}

pub fn name(name: &str) {
    set_name(&std::ffi::CString::new(name).unwrap()).unwrap();
}

/// With SCHED_FIFO no thread preempts another of the same priority: who is woken runs when its waker sleeps.
fn fifo() {
    let param = libc::sched_param { sched_priority: 40 };
    // SAFETY: the parameters outlive the call.
    assert_eq!(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) }, 0);
}

/// CPUs that this process may use.
fn cpus() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// The program: its orders are in the environment.
#[test]
fn program() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    match orders.as_str() {
        "pingpong" => {
            let cpu = cpus()[0];
            pin(cpu);
            fifo();
            let ((mut hear_ping, mut ping), (mut hear_pong, mut pong)) = (pipe().unwrap(), pipe().unwrap());
            let second = thread::spawn(move || {
                name("t-pong");
                for _ in 0..ROUNDS {
                    hear_ping.read_exact(&mut [0]).unwrap();
                    pong.write_all(&[0]).unwrap();
                }
            });
            let first = thread::spawn(move || {
                name("t-ping");
                for _ in 0..ROUNDS {
                    ping.write_all(&[0]).unwrap();
                    hear_pong.read_exact(&mut [0]).unwrap();
                }
            });
            first.join().unwrap();
            second.join().unwrap();
        }
        "naps" => thread::spawn(|| {
            name("t-nap");
            for _ in 0..NAPS {
                thread::sleep(Duration::from_millis(1));
            }
        })
        .join()
        .unwrap(),
        "moves" => {
            let cpus = cpus();
            pin(cpus[0]);
            thread::spawn(move || {
                name("t-hop");
                for round in 1..=MOVES {
                    pin(cpus[round as usize % 2]);
                }
            })
            .join()
            .unwrap();
        }
        // Each of four threads wakes another one; the scheduler of tests/vm tells them apart by their names.
        "queues" => {
            let spawn = |which: &'static str| {
                let ((mut hear, mut say), (mut hear_back, mut answer)) = (pipe().unwrap(), pipe().unwrap());
                let first = thread::spawn(move || {
                    name(&format!("t-dsq{which}-1"));
                    for _ in 0..ROUNDS {
                        say.write_all(&[0]).unwrap();
                        hear_back.read_exact(&mut [0]).unwrap();
                    }
                });
                let second = thread::spawn(move || {
                    name(&format!("t-dsq{which}-2"));
                    for _ in 0..ROUNDS {
                        hear.read_exact(&mut [0]).unwrap();
                        answer.write_all(&[0]).unwrap();
                    }
                });
                [first, second]
            };
            for thread in ["-a", "-b"].map(spawn).into_iter().flatten() {
                thread.join().unwrap();
            }
        }
        "rings" => super::wakeups::rings(),
        // Nothing else may wait for it.
        "spin" => {
            for cpu in cpus() {
                thread::spawn(move || {
                    pin(cpu);
                    let param = libc::sched_param { sched_priority: 0 };
                    // SAFETY: the parameters outlive the call.
                    assert_eq!(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const param) }, 0);
                    loop {
                        std::hint::spin_loop();
                    }
                });
            }
            println!("ready");
            thread::sleep(Duration::from_secs(600));
        }
        other => panic!("unknown orders {other}"),
    }
}

/// Keeps all CPUs busy with threads that run only where nothing else does: one build of Linux 6.18 gives no sample of some events of
/// an idle CPU, to perf neither.
pub struct Spinning(Child);

impl Spinning {
    pub fn new() -> Self {
        let mut child = run("spin").stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        assert!(out.lines().map_while(Result::ok).any(|line| line.contains("ready")));
        Self(child)
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// This binary with orders.
fn run(orders: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["sched::live::program", "--exact", "--nocapture", "--test-threads=1"]).env(ORDERS, orders);
    command
}

/// The lines of the threads while a program runs; `None`, with the reason printed, if this machine does not allow it.
fn watch(test: &str, orders: &str) -> Option<Value> {
    let probe = sched(&["-t", "0.05"]);
    if probe.status.code() == Some(3) {
        println!("SKIP: {test}: {}", String::from_utf8_lossy(&probe.stderr).trim());
        return None;
    }
    let _alone = alone();
    let _spinning = Spinning::new();
    let program = std::env::current_exe().unwrap();
    let orders = format!("{ORDERS}={orders}");
    // The program goes before what reads the rings.
    let command =
        ["--mmap-pages", "4096", "--", "env", &orders, program.to_str().unwrap(), "sched::live::program", "--exact"];
    let dir = tempfile::tempdir().unwrap();
    let config = layers(dir.path(), "t-p");
    let options = ["--by", "thread", "--wakers", "class", "--config", config.to_str().unwrap()];
    let document = json(&[&options, &command[..]].concat());
    assert_eq!(number(&document["loss"]["ring_full"]), 0);
    Some(document)
}

fn thread_line<'a>(document: &'a Value, name: &str) -> &'a Value {
    let lines = document["lines"].as_array().unwrap();
    lines.iter().find(|line| line["name"] == name).unwrap_or_else(|| panic!("no thread {name}"))
}

/// The count is exact. What the kernel counted and gave no sample of may be missing, and is told.
fn is(document: &Value, line: &Value, field: &str, expected: u64) {
    let value = field.split('.').fold(line, |value, name| &value[name]);
    let missing = number(&document["loss"]["unsampled"]);
    let range = expected.saturating_sub(missing)..=expected;
    assert!(range.contains(&number(value)), "{field} is not in {range:?}: {line}");
    // Of some thousand, a few.
    assert!(missing <= 50, "{document}");
}

#[test]
fn wakeups_and_switches_of_a_pair_are_exact() {
    let Some(document) = watch("wakeups_and_switches_of_a_pair_are_exact", "pingpong") else { return };
    for name in ["t-ping", "t-pong"] {
        let line = thread_line(&document, name);
        // One as a new thread.
        is(&document, line, "wakeups", ROUNDS + 1);
        is(&document, line, "latency.count", ROUNDS + 1);
        is(&document, line, "sleep.count", ROUNDS);
        // Its end is one too.
        is(&document, line, "voluntary", ROUNDS + 1);
        assert_eq!(number(&line["migrations"]["total"]), 0, "{line}");
        assert_eq!(number(&line["ended"]), 1, "{line}");
    }
}

#[test]
fn a_pair_wakes_each_other_exactly() {
    let Some(document) = watch("a_pair_wakes_each_other_exactly", "pingpong") else { return };
    let edges = document["wakers"]["edges"].as_array().unwrap();
    for (waker, wakee) in [("t-ping", "t-pong"), ("t-pong", "t-ping")] {
        let is_it = |edge: &&Value| edge["waker"]["name"] == waker && edge["wakee"]["name"] == wakee;
        let found: Vec<_> = edges.iter().filter(is_it).collect();
        let [edge] = found[..] else { panic!("{waker} {wakee}: {found:?}") };
        assert_eq!(number(&edge["wakeups"]), ROUNDS, "{edge}");
        assert_eq!(number(&edge["latency"]["count"]), ROUNDS, "{edge}");
        assert_eq!(number(&edge["places"]["same_cpu"]), ROUNDS, "{edge}");
    }
    // The pair stays within its layer.
    let within = &document["wakers"]["within"];
    assert!(number(&within["within"]) >= 2 * ROUNDS, "{within}");
    assert!(number(&within["within"]) <= number(&within["wakeups"]), "{within}");
    let lengths = document["wakers"]["chain_lengths"].as_array().unwrap();
    assert!(lengths.iter().any(|line| number(&line["length"]) == 64), "{lengths:?}");
}

#[test]
fn sleeps_are_counted_and_timed() {
    let Some(document) = watch("sleeps_are_counted_and_timed", "naps") else { return };
    let line = thread_line(&document, "t-nap");
    is(&document, line, "wakeups", NAPS + 1);
    // The timer may fire before the thread sleeps, where others take its CPU in between.
    let sleeps = number(&line["sleep"]["count"]);
    assert!((NAPS * 9 / 10..=NAPS).contains(&sleeps), "{line}");
    assert!(number(&line["sleep"]["total_ns"]) >= sleeps * 900_000, "{line}");
}

#[test]
fn moves_between_pinned_cpus_are_exact() {
    if cpus().len() < 2 {
        println!("SKIP: moves_between_pinned_cpus_are_exact: it takes two CPUs");
        return;
    }
    let Some(document) = watch("moves_between_pinned_cpus_are_exact", "moves") else { return };
    let line = thread_line(&document, "t-hop");
    is(&document, line, "migrations.total", MOVES);
}

#[test]
fn a_command_gets_its_status_and_its_output_does_not_mix() {
    let probe = sched(&["-t", "0.05"]);
    if probe.status.code() == Some(3) {
        println!(
            "SKIP: a_command_gets_its_status_and_its_output_does_not_mix: scheduling events are not permitted here"
        );
        return;
    }
    let output = sched(&["--json", "--", "sh", "-c", "echo hello; exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    let _: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("hello"));
    // Without root.
    let unprivileged = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"])
        .args([env!("CARGO_BIN_EXE_scxprof"), "sched", "-t", "0.05"])
        .output();
    // That of BusyBox cannot change the user.
    let is_setpriv = |output: &std::process::Output| !String::from_utf8_lossy(&output.stderr).contains("BusyBox");
    if let Some(output) = unprivileged.ok().filter(is_setpriv) {
        assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
