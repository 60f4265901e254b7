//! Checks recovered operands against programs with known accesses: by single-stepping, and by sampling.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on must fail.
// The ring of perf.rs is page-aligned.
#![allow(clippy::cast_ptr_alignment)]

mod live;
#[cfg(target_arch = "aarch64")]
mod made;
mod perf;
#[cfg_attr(target_arch = "aarch64", allow(dead_code))] // sync.rs uses all of it.
mod process;
mod programs;
#[cfg(target_arch = "aarch64")]
#[allow(dead_code)] // tests/operand at the root uses all of it.
mod random;
#[allow(dead_code)] // tests/operand at the root uses it too.
mod step;
#[cfg(target_arch = "x86_64")]
mod sync;
mod truth;

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::{Command, Stdio};
use std::time::Duration;

use process::Code;
use scxprof_base::sample::Method;
use scxprof_recover::{Recovery, Snapshot, StackRange, Wanted};
use step::Stop;
use truth::{is_true, AHEAD};

/// Programs that say of themselves which threads access what.
const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/programs");

/// How many instructions before a stop a candidate's instruction may have run.
const BEHIND: usize = 200;
/// One in this many addresses may be wrong because of another thread's write: while one instruction is single-stepped, the
/// other threads of the program run thousands.
const SLOW: usize = 200;

/// What is learned is checked at one stop of so many.
const EACH: usize = 4;
/// The bits of [`Wanted::registers`] for the red zone and the line that fs points into.
const OWN: u64 = 1 << 31 | 1 << 63;

/// The result of one trace.
#[derive(Debug, Default)]
struct Tally {
    stops: usize,
    recovered: usize,
    candidates: usize,
    wrong: usize,
    /// Those that depend on memory which others may write.
    raced: usize,
    /// Stops at which was checked what is learned, and those of them that need no memory of the thread's own.
    learned: usize,
    spared: usize,
    methods: BTreeMap<&'static str, usize>,
    reasons: BTreeMap<&'static str, usize>,
}

/// A stop's memory without that of the thread itself that `wanted` does not ask for (see [`Wanted::registers`]), which the BPF
/// program then does not read.
fn spared(stop: &Stop, wanted: &Wanted) -> Vec<u8> {
    let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    let (header, lines) = stop.memory.split_at(24.min(stop.memory.len()));
    let (fs_base, sp) = (word(header), stop.regs.sp());
    let has = |bit: u32| wanted.registers >> bit & 1 == 1;
    let is_asked_for = |line: &&[u8]| {
        let is_at = |addr: u64| word(line) == addr & !63;
        let is_in_red_zone = [sp - 1, sp - 64, sp - 128].into_iter().any(is_at);
        (has(31) || !is_in_red_zone) && (has(63) || !is_at(fs_base))
    };
    let lines: Vec<&[u8]> = lines.chunks_exact(72).filter(is_asked_for).collect();
    let count = (lines.len() as u64).to_le_bytes();
    [header.get(..16).unwrap_or_default(), &count, &lines.concat()].concat()
}

/// Learns from the stop, at first without memory of the thread's own, what of it the code uses, and checks that with this the
/// accesses are those with all of it. True if it uses none.
fn learns(stop: &Stop, stack: &Range<u64>, code: &mut Code) -> bool {
    let mut recover = |memory: &[u8]| {
        let mut recovery = Recovery::new(1 << 20);
        let found = recovery.recover_with(&stop.regs, &stop.stack, Snapshot::new(memory), stack.clone(), code);
        (found.candidates.to_vec(), found.wanted.unwrap_or_default())
    };
    let (expected, _) = recover(&stop.memory);
    let mut wanted = Wanted::default();
    let found = loop {
        let (found, later) = recover(&spared(stop, &wanted));
        let before = wanted.registers & OWN;
        wanted.add(&later);
        if wanted.registers & OWN == before {
            break found;
        }
    };
    assert_eq!(found, expected, "at ip {:#x} with {wanted:x?}", stop.regs.ip);
    wanted.registers & OWN == 0
}

fn check(stops: &[Stop], code: &mut Code, with_memory: bool) -> Tally {
    let mut recovery = Recovery::new(1 << 22);
    let mut stack = StackRange::default();
    let mut tally = Tally::default();
    let mut shown = 0;
    for (at, stop) in stops.iter().enumerate().take(stops.len().saturating_sub(AHEAD)).skip(BEHIND) {
        let range = stack.update(stop.regs.sp());
        tally.stops += 1;
        let memory = Snapshot::new(if with_memory { &stop.memory } else { &[] });
        let outcome = recovery.recover_with(&stop.regs, &stop.stack, memory, range.clone(), code);
        if outcome.wanted.is_some() && at % EACH == 0 {
            tally.learned += 1;
            tally.spared += usize::from(learns(stop, &range, code));
        }
        tally.recovered += usize::from(outcome.candidates.iter().any(|candidate| !candidate.global));
        if let Some(reason) = outcome.reason {
            *tally.reasons.entry(reason.name()).or_default() += 1;
        }
        for candidate in outcome.candidates {
            tally.candidates += 1;
            *tally.methods.entry(candidate.method.name()).or_default() += 1;
            if !is_true(stops, at, candidate, BEHIND) {
                if candidate.method == Method::Racy {
                    tally.raced += 1;
                    continue;
                }
                tally.wrong += 1;
                shown += 1;
                if shown <= 5 {
                    println!("wrong at ip {:#x}: {candidate:x?}", stop.regs.ip);
                }
            }
        }
    }
    tally
}

/// Instructions to step over. The programs are short loops; `make test-long` takes more of them.
fn steps() -> usize {
    std::env::var("SCXPROF_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(8_000)
}

/// With the ranges of functions and without, and with memory where samples have any.
fn ways() -> impl Iterator<Item = (bool, bool)> {
    let has_memory = cfg!(target_arch = "x86_64");
    [(true, false), (false, false), (true, true)].into_iter().filter(move |(_, with_memory)| has_memory || !with_memory)
}

fn step_through(name: &str, level: u8, threads: usize, group: &str) {
    let Some(built) = programs::build(name, level) else {
        println!("SKIP: {name} -O{level}: no compiler");
        return;
    };
    let steps = steps();
    let running = programs::start(&built.path, 600.0, threads);
    let thread = running.threads.iter().rfind(|thread| thread.group.starts_with(group)).expect("a thread");
    wait_for_work(thread.pid, thread.tid);
    let mut code = Code::of(thread.pid);
    let stops = match step::trace(thread.tid, steps, &mut code) {
        Ok(stops) => stops,
        Err(error) => {
            println!("SKIP: {name} -O{level}: ptrace: {error}");
            return;
        }
    };
    for (with_functions, with_memory) in ways() {
        code.with_functions = with_functions;
        let tally = check(&stops, &mut code, with_memory);
        println!(
            "{name} -O{level} functions={with_functions} memory={with_memory}: yield {:.3} of {}, wrong {} and {} of {}, {:?} {:?}",
            tally.recovered as f64 / tally.stops.max(1) as f64,
            tally.stops,
            tally.wrong,
            tally.raced,
            tally.candidates,
            tally.methods,
            tally.reasons
        );
        assert_eq!(tally.wrong, 0, "{name} -O{level}");
        assert!(tally.raced * SLOW <= tally.candidates, "{name} -O{level}: {} of {}", tally.raced, tally.candidates);
        assert!(tally.candidates > steps / 100, "{name} -O{level}: hardly anything was recovered");
        if with_memory && group == BELOW {
            assert!(tally.learned > 0 && tally.spared < tally.learned, "{name} keeps its pointers in the red zone");
        }
    }
}

/// The group of the threads of `redzone` that keep pointers below the stack pointer.
const BELOW: &str = "below";

/// Functions of arm64 use nothing below the stack pointer, and the program is made for x86-64.
#[cfg(target_arch = "x86_64")]
#[test]
fn redzone_o2() {
    step_through("redzone", 2, 9, BELOW);
}

/// CPU time of a process or a thread, by its directory in procfs: ticks of 10 ms.
fn used_ticks(dir: &str) -> u64 {
    let stat = std::fs::read_to_string(format!("{dir}/stat")).unwrap_or_default();
    let times = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    times.filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

/// Waits until a thread that has described itself is at its work: to write that line takes many instructions, all on the stack.
fn wait_for_work(pid: i32, tid: i32) {
    let used = || used_ticks(&format!("/proc/{pid}/task/{tid}"));
    let before = used();
    // For at most a minute, if it does not compute.
    for _ in 0..3000 {
        if used() >= before + 5 {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until the program runs code that it has mapped for good: on a busy machine its start takes long. It computes all the time,
/// so that its CPU time (in ticks of 10 ms) tells how far it is.
fn wait_for_code(pid: i32) {
    let look = || {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let code: Vec<String> = read("maps").lines().filter(|it| it.contains(" r-xp ")).map(str::to_owned).collect();
        (code, used_ticks(&format!("/proc/{pid}")))
    };
    let mut before = look();
    // For at most a minute, if it does not compute.
    for _ in 0..600 {
        std::thread::sleep(Duration::from_millis(100));
        let now = look();
        if now.0 != before.0 {
            before = now;
        } else if now.1 >= before.1 + 20 || now.0.is_empty() {
            return;
        }
    }
}

/// Programs from distributions, stripped, with tables, tails and their own libraries; those that are installed.
#[test]
fn programs_of_the_system() {
    let steps = steps();
    for command in [
        "gzip -9 < /dev/urandom > /dev/null",
        "awk 'BEGIN { for (;;) { i++; a[i % 999] = a[i % 77] \"x\" i; gsub(/1+/, \"y\", a[i % 999]) } }'",
        "perl -e 'for (;;) { $i++; $h{$i % 999} .= $i; $h{$i % 77} =~ s/1+/y/; $h{$i % 5} = \"\" }'",
        "python3 -c 'd = {}\nfor i in iter(int, 1): d[len(d) % 999, i] = str(d)[:9]'",
        "while :; do i=$((i + 1)); x=${x#*1}$i; case $x in *99*) x=;; esac; done",
        "openssl speed -seconds 600 sha256 2> /dev/null",
    ] {
        let shell = if command.starts_with("while") { command.to_owned() } else { format!("exec {command}") };
        let Ok(mut child) = Command::new("bash").args(["-c", &shell]).stderr(Stdio::null()).spawn() else {
            println!("SKIP: {command}: no bash");
            continue;
        };
        let pid = i32::try_from(child.id()).expect("a pid");
        wait_for_code(pid);
        if child.try_wait().is_ok_and(|status| status.is_some()) {
            println!("SKIP: {command}: it does not run here");
            continue;
        }
        let mut code = Code::of(pid);
        let stops = step::trace(pid, steps, &mut code);
        let _ = child.kill();
        let _ = child.wait();
        let stops = match stops {
            Ok(stops) => stops,
            Err(error) => {
                println!("SKIP: {command}: ptrace: {error}");
                continue;
            }
        };
        for (with_functions, with_memory) in ways() {
            code.with_functions = with_functions;
            let tally = check(&stops, &mut code, with_memory);
            println!(
                "{command} functions={with_functions} memory={with_memory}: wrong {} of {}, {tally:?}",
                tally.wrong, tally.candidates
            );
            // These programs have one thread.
            assert_eq!(tally.wrong + tally.raced, 0, "{command} functions={with_functions} memory={with_memory}");
            assert_eq!(tally.spared > 0, with_memory, "{command}: some code uses neither the red zone nor fs");
        }
    }
}

macro_rules! stepped {
    ($($test:ident: $name:literal, $level:literal;)*) => {
        $(#[test]
        fn $test() {
            step_through($name, $level, 4, "");
        })*
    };
}

stepped! {
    random_o2: "random", 2;
    random_o0: "random", 0;
    list_o2: "list", 2;
    list_o0: "list", 0;
    stream_o2: "stream", 2;
    stream_o0: "stream", 0;
    hash_o2: "hash", 2;
    hash_o0: "hash", 0;
    queue_o2: "queue", 2;
    queue_o0: "queue", 0;
    shared_o2: "shared", 2;
    shared_o0: "shared", 0;
    cow_o2: "cow", 2;
    cow_o0: "cow", 0;
    lines_o2: "lines", 2;
    lines_o0: "lines", 0;
    special_o2: "special", 2;
    special_o0: "special", 0;
    collections_o2: "collections", 2;
    collections_o0: "collections", 0;
}

macro_rules! sampled {
    ($($test:ident: $name:literal, $level:literal, $least:literal;)*) => {
        $(#[test]
        fn $test() {
            live::sample($name, $level, $least);
        })*
    };
}

sampled! {
    live_random_o2: "random", 2, 0.9;
    live_random_o0: "random", 0, 0.9;
    live_list_o2: "list", 2, 0.9;
    live_list_o0: "list", 0, 0.9;
    live_stream_o2: "stream", 2, 0.9;
    live_stream_o0: "stream", 0, 0.9;
    live_hash_o2: "hash", 2, 0.9;
    live_hash_o0: "hash", 0, 0.9;
    live_queue_o2: "queue", 2, 0.5;
    live_queue_o0: "queue", 0, 0.5;
    live_shared_o2: "shared", 2, 0.9;
    live_shared_o0: "shared", 0, 0.9;
    live_cow_o2: "cow", 2, 0.9;
    live_cow_o0: "cow", 0, 0.9;
    live_lines_o2: "lines", 2, 0.9;
    live_lines_o0: "lines", 0, 0.9;
    live_special_o2: "special", 2, 0.3;
    live_special_o0: "special", 0, 0.1;
}
