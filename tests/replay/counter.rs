//! What the PMU counts in mock threads. Most hosts of tests have none, so that an event of the kernel stands for it.

use scxprof::sample::Comm;
use scxprof::testing::sampler::counter::Counter;
use scxprof_replay::{totals, Buffer, Count, Director, Memory, Mock, MockMemory, MockProcess, Op, Played, Script};
use serde_json::Value;

use super::{json, recording};

const PAGES: u64 = 2048;

/// Two processes whose only threads work for 20 ms each; they touch `pages` pages together.
fn play(pages: u64, counted: Option<Counter>) -> Played {
    let mock = |tid, process, op| Mock {
        tid,
        process,
        comm: Comm::new(b"counted"),
        is_main: true,
        is_initial: true,
        ops: (op, op + 1),
        is_active: true,
        ..Mock::default()
    };
    let process = |pid, main| MockProcess { pid, main, is_initial: true, ..MockProcess::default() };
    let mut name = [0; 16];
    name[..7].copy_from_slice(b"counted");
    let script = Script {
        threads: vec![mock(1, 0, 0), mock(2, 1, 1)],
        processes: vec![process(1, 0), process(2, 1)],
        ops: vec![Op::Run(20_000_000); 2],
        names: vec![name],
        window: 40_000_000,
        scale: 1.0,
        ..Script::default()
    };
    let half = pages * 4096 / 2;
    let touched = |offset| MockMemory {
        private: Buffer { offset, bytes: half, writes: 128 },
        rate: 256,
        ..MockMemory::default()
    };
    let memory = Memory { threads: vec![touched(0), touched(half)], bytes: 2 * half, ..Memory::default() };
    let count = |pid| -> Option<Count> { Some(Box::new(counted?.start(pid).ok()?)) };
    let director = Director {
        script: &script,
        cpus: &[],
        memory: (pages > 0).then_some(&memory),
        layout: None,
        rates: &[],
        ready: None,
        groups: None,
        guard: None,
        counted: counted.is_some().then_some(&count),
    };
    director.play(&|| false).unwrap()
}

#[test]
fn all_mock_processes_are_counted_from_the_beginning_to_the_end() {
    const TEST: &str = "all_mock_processes_are_counted_from_the_beginning_to_the_end";
    let Some(with) = play(PAGES, Some(Counter::PAGE_FAULTS)).count else {
        let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
        // SAFETY: asks for the user of this process.
        let is_root = unsafe { libc::geteuid() } == 0;
        assert!(!is_root && level.trim().parse::<i32>().is_ok_and(|level| level > 2), "not counted");
        return println!("SKIP: {TEST}: kernel.perf_event_paranoid is {}", level.trim());
    };
    // Each page is mapped when it is touched first. Forks, names and stacks of mock threads were before.
    let without = play(0, Some(Counter::PAGE_FAULTS)).count.unwrap();
    assert!((PAGES * 9 / 10..PAGES + 200).contains(&with) && without < 200, "{with} {without}");
}

#[test]
fn a_host_that_cannot_count_replays() {
    // No such event.
    let none = Counter { name: "none", kind: 0, config: 0xffff };
    for counted in [None, Some(none)] {
        let played = play(0, counted);
        assert_eq!((played.count, played.threads.len()), (None, 2));
        assert!(totals(&played).cache_misses.is_none() && played.threads.iter().all(|thread| thread.run > 10_000_000));
    }
    // Whether this host counts them or not, the field is there.
    let dir = tempfile::tempdir().unwrap();
    let path = recording(dir.path());
    let quick = ["-f", path.to_str().unwrap(), "--overcommit", "--time-scale", "0.05"];
    let misses = |found: &Value| found["loops"][0].as_object().unwrap()["cache_misses"].clone();
    let counts = play(PAGES, Some(Counter::CACHE_MISSES)).count.is_some();
    assert_eq!(misses(&json(&quick)).is_number(), counts);
    let compared = json(&[&quick[..], &["--compare", "none", "none", "--loops", "1"]].concat());
    let measures = compared["differences"].as_array().unwrap();
    let line = measures.iter().find(|line| line["measure"] == "cache_misses");
    assert_eq!(line.is_some_and(|line| line["a"].is_number()), counts, "{measures:?}");
}
