//! Checks recovered operands against programs of A64 that are generated from a seed: functions that work on one buffer, with all kinds of
//! control flow of compiled and hand-written code. Instructions have one length, so that no assembler is needed.
//!
//! `SCXPROF_MADE_SEED` tests one seed, `SCXPROF_MADE_SECONDS` tests new seeds for this time. tests/operand in the root of the project has the
//! same for x86-64.

use std::ops::Range;
use std::time::{Duration, Instant, SystemTime};

use scxprof_recover::{CodeSource, CodeWindow, Recovery, StackRange, MAX_STEPS};

use super::step::{self, Stop};
use super::truth::{is_true, AHEAD};

mod maker;

/// Instructions of one program.
const STEPS: usize = 6000;
/// The seeds of a normal run.
const SEEDS: Range<u64> = 1..7;

/// The code of a made program.
struct MadeCode<'a> {
    base: u64,
    bytes: &'a [u8],
    functions: &'a [Range<u64>],
    with_functions: bool,
}

impl CodeSource for MadeCode<'_> {
    fn window(&mut self, ip: u64) -> Option<CodeWindow<'_>> {
        let own = ip.checked_sub(self.base).filter(|&at| at < self.bytes.len() as u64)?;
        let function = self.functions.iter().find(|range| range.contains(&own)).filter(|_| self.with_functions);
        Some(CodeWindow {
            key: u64::from(self.with_functions),
            bias: 0,
            base: self.base,
            bytes: self.bytes,
            function: function.map(|range| range.start + self.base..range.end + self.base),
            jit: false,
        })
    }
}

/// Memory that a forked child has at the same address.
fn map(size: usize) -> *mut u8 {
    let rights = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    // SAFETY: a mapping of its own, at an address that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), size, rights, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

/// Starts the code in a child that stops before it.
fn start(code: *mut u8) -> i32 {
    // SAFETY: the child makes system calls and runs the code, which uses nothing but its own memory and its stack.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::ptrace(libc::PTRACE_TRACEME);
            libc::raise(libc::SIGSTOP);
            let run: extern "C" fn() = std::mem::transmute(code);
            run();
            libc::_exit(0);
        }
        pid
    }
}

/// The result of one program.
#[derive(Debug, Default)]
struct Judged {
    candidates: usize,
    /// Of those, found before ip.
    backward: usize,
    wrong: usize,
}

/// Recovers at each stop, and checks each returned access.
fn judge(seed: u64, stops: &[Stop], code: &mut MadeCode<'_>) -> Judged {
    let mut recovery = Recovery::new(1 << 22);
    let mut stack = StackRange::default();
    let mut judged = Judged::default();
    for (at, stop) in stops.iter().enumerate().take(stops.len().saturating_sub(AHEAD)).skip(MAX_STEPS) {
        let range = stack.update(stop.regs.sp());
        for candidate in recovery.recover(&stop.regs, &stop.stack, range, code).candidates {
            judged.candidates += 1;
            judged.backward += usize::from(candidate.method.is_backward());
            if is_true(stops, at, candidate, MAX_STEPS) {
                continue;
            }
            judged.wrong += 1;
            if judged.wrong <= 3 {
                println!("seed {seed}: wrong at ip {:#x}: {candidate:x?}", stop.regs.ip);
                println!(" the last to run, and the next:");
                for near in &stops[at - MAX_STEPS..(at + 24).min(stops.len())] {
                    let word = near.regs.ip.checked_sub(code.base).and_then(|at| code.bytes.get(at as usize..));
                    let word = word.and_then(|bytes| Some(u32::from_le_bytes(*bytes.first_chunk()?)));
                    println!("  {:#x} {:08x} {:x?}", near.regs.ip, word.unwrap_or(0), near.accesses);
                }
            }
        }
    }
    judged
}

/// Generates, runs and judges the program of `seed`.
fn look(seed: u64) -> Judged {
    let data = map(maker::DATA);
    let made = maker::program(seed, data as u64);
    let size = made.words.len() * 4;
    let code = map(size);
    // SAFETY: both mappings are of these sizes, and nobody else uses them; the instruction cache is told below.
    unsafe {
        std::ptr::copy_nonoverlapping(made.data.as_ptr(), data.cast(), made.data.len());
        std::ptr::copy_nonoverlapping(made.words.as_ptr(), code.cast(), made.words.len());
        __clear_cache(code.cast(), code.add(size).cast());
    }
    let pid = start(code);
    let bytes: Vec<u8> = made.words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut source = MadeCode { base: code as u64, bytes: &bytes, functions: &made.functions, with_functions: true };
    step::wait(pid).expect("the child stops");
    let stops = step::step(pid, STEPS, &mut source);
    // SAFETY: a signal to the own child, which is awaited; then nobody uses the mappings.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
        libc::munmap(code.cast(), size);
        libc::munmap(data.cast(), maker::DATA);
    }
    let stops = stops.expect("ptrace");
    let last = stops.last().map_or(0, |stop| stop.regs.ip);
    assert_eq!(
        stops.len(),
        STEPS,
        "seed {seed}: the program faults at {last:#x}, word {:#x}: it is not what it should be",
        last.wrapping_sub(source.base) / 4
    );
    let mut all = Judged::default();
    let ways: &[_] = if made.near { &[true, false] } else { &[true] };
    for &with_functions in ways {
        source.with_functions = with_functions;
        let judged = judge(seed, &stops, &mut source);
        all.candidates += judged.candidates;
        all.backward += judged.backward;
        all.wrong += judged.wrong;
    }
    all
}

// SAFETY: as libgcc and compiler-rt define it.
unsafe extern "C" {
    fn __clear_cache(start: *mut libc::c_void, end: *mut libc::c_void);
}

#[test]
fn made_programs() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let begin = Instant::now();
    let seconds = number("SCXPROF_MADE_SECONDS").map(Duration::from_secs);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() << 20;
    let seeds = match (number("SCXPROF_MADE_SEED"), seconds) {
        (Some(seed), None) => seed..seed + 1,
        (Some(seed), Some(_)) => seed..u64::MAX,
        (None, Some(_)) => now..u64::MAX,
        (None, None) => SEEDS,
    };
    let (mut programs, mut all, mut failed) = (0, Judged::default(), Vec::new());
    for seed in seeds {
        if seconds.is_some_and(|seconds| begin.elapsed() >= seconds) {
            break;
        }
        let judged = look(seed);
        programs += 1;
        all.candidates += judged.candidates;
        all.backward += judged.backward;
        if judged.wrong != 0 {
            println!("SCXPROF_MADE_SEED={seed}: {judged:?}");
            failed.push(seed);
        }
    }
    println!("{programs} programs: {} addresses, {} from before ip", all.candidates, all.backward);
    assert!(failed.is_empty(), "wrong addresses with SCXPROF_MADE_SEED = {failed:?}");
    assert!(all.backward > programs * 100, "hardly anything was recovered: {all:?}");
}
