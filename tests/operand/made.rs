//! Checks recovered operands against programs generated from a seed.
//!
//! `SCXPROF_MADE_SEED` tests one seed, `SCXPROF_MADE_SECONDS` tests new seeds for this time; `SCXPROF_MADE_KEEP` is a file for
//! the text of the last program.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use iced_x86::{Decoder, DecoderOptions};
use scxprof::testing::resolve::code::{At, CodeCache, Limits, Mapping, Window};
use scxprof_recover::{CodeSource, CodeWindow, Recovery, Snapshot, StackRange, MAX_STEPS};

use super::assembly::{program, Program};
use super::process::{mappings, Code};
use super::step::{self, Stop};
use super::truth::{is_true, AHEAD};

/// Instructions of one program.
const STEPS: usize = 6000;
/// The seeds of a normal run: each detected another missing part of `window.rs`.
const SEEDS: [u64; 6] = [4, 5, 20, 21, 23, 37];
/// Pieces of code that a session keeps for one sample.
const WINDOWS: usize = 4;

/// A stopped program; killed when dropped.
struct Stopped(Child);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The code of a program as in a session: from its file, with the functions that the file describes.
struct FileCode {
    cache: CodeCache,
    pid: u32,
    path: PathBuf,
    /// First address, the one after the last, and bytes of the file before.
    texts: Vec<(u64, u64, u64)>,
    dev: u64,
    ino: u64,
    windows: Vec<Window>,
    process: Code,
}

impl FileCode {
    fn of(pid: i32, path: &Path) -> Self {
        let file = std::fs::metadata(path).expect("the program");
        let texts = mappings(pid)
            .into_iter()
            .filter(|mapping| mapping.perms.contains('x') && mapping.path.starts_with('/'))
            .map(|mapping| (mapping.range.start, mapping.range.end, mapping.offset))
            .collect();
        Self {
            cache: CodeCache::new(Path::new("/proc"), Limits::default()),
            pid: pid.unsigned_abs(),
            path: path.to_owned(),
            texts,
            dev: file.dev(),
            ino: file.ino(),
            windows: Vec::new(),
            process: Code::of(pid),
        }
    }
}

impl CodeSource for FileCode {
    fn window(&mut self, ip: u64) -> Option<CodeWindow<'_>> {
        if !self.windows.iter().any(|window| window.is_around(ip)) {
            let &(start, end, offset) = self.texts.iter().find(|(start, end, _)| (start..end).contains(&&ip))?;
            let mapping = Mapping {
                start,
                end,
                offset,
                dev: self.dev,
                ino: self.ino,
                writable: false,
                shared: false,
                build_id: None,
                path: self.path.as_os_str().as_encoded_bytes(),
            };
            let at = At { pid: self.pid, space: 1, ip, time: 0 };
            let window = self.cache.window(at, &mapping, 0).ok()?;
            if self.windows.len() == WINDOWS {
                self.windows.remove(0);
            }
            self.windows.push(window);
        }
        let window = self.windows.iter().find(|window| window.is_around(ip))?;
        Some(window.as_code())
    }

    fn constant(&mut self, addr: u64, size: u32) -> Option<u64> {
        self.process.constant(addr, size)
    }
}

fn cc(dir: &Path, made: &Program) -> Option<PathBuf> {
    let (source, path) = (dir.join("made.s"), dir.join("made"));
    std::fs::write(&source, &made.text).expect("the text is written");
    let flags = ["-nostdlib", "-static", "-no-pie", "-Wl,--eh-frame-hdr"];
    let output = Command::new("cc").args(flags).arg(&source).arg("-o").arg(&path).output().ok()?;
    assert!(output.status.success(), "cc: {}", String::from_utf8_lossy(&output.stderr));
    Some(path)
}

/// The instructions around `ip`.
fn show(process: &mut Code, ip: u64) {
    let Some(window) = process.window(ip) else { return };
    let from = (ip - window.base).saturating_sub(48);
    let bytes = window.bytes.get(from as usize..).unwrap_or_default();
    let mut decoder = Decoder::with_ip(64, bytes, window.base + from, DecoderOptions::NONE);
    for code in decoder.iter().take_while(|code| code.ip() < ip + 32) {
        println!("  {:#x} {code:?}", code.ip());
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

/// Recovers at each stop, with the ranges of `functions` or without, and checks each returned access.
fn judge(seed: u64, what: &str, stops: &[Stop], with_memory: bool, code: &mut FileCode, functions: bool) -> Judged {
    let mut recovery = Recovery::new(1 << 22);
    let mut stack = StackRange::default();
    let mut judged = Judged::default();
    code.process.with_functions = functions;
    for (at, stop) in stops.iter().enumerate().take(stops.len().saturating_sub(AHEAD)).skip(MAX_STEPS) {
        let range = stack.update(stop.regs.sp());
        let memory = Snapshot::new(if with_memory { &stop.memory } else { &[] });
        code.windows.clear();
        let source: &mut dyn CodeSource = if functions { code } else { &mut code.process };
        let outcome = recovery.recover_with(&stop.regs, &stop.stack, memory, range, source);
        for candidate in outcome.candidates {
            judged.candidates += 1;
            judged.backward += usize::from(candidate.method.is_backward());
            if is_true(stops, at, candidate, MAX_STEPS) {
                continue;
            }
            judged.wrong += 1;
            if judged.wrong <= 3 {
                println!("seed {seed}, {what}: wrong at ip {:#x}: {candidate:x?}", stop.regs.ip);
                println!(" the last to run:");
                for before in &stops[at - MAX_STEPS..at] {
                    println!("  {:#x} {:x?}", before.regs.ip, before.accesses);
                }
                println!(" around ip:");
                show(&mut code.process, stop.regs.ip);
                if candidate.insn_ip.abs_diff(stop.regs.ip) > 48 {
                    println!(" around the access:");
                    show(&mut code.process, candidate.insn_ip);
                }
            }
        }
    }
    judged
}

/// Generates, runs and judges the program of `seed`; returns an error if that is not possible.
fn look(seed: u64) -> Result<Judged, String> {
    let made = program(seed);
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let path = cc(dir.path(), &made).ok_or("no cc")?;
    if let Ok(to) = std::env::var("SCXPROF_MADE_KEEP") {
        let _ = std::fs::copy(dir.path().join("made.s"), &to);
    }
    let child = step::start(Command::new(&path).stdin(Stdio::null())).map_err(|error| format!("ptrace: {error}"))?;
    let running = Stopped(child);
    let pid = running.0.id() as i32;
    let mut code = FileCode::of(pid, &path);
    let stops = step::step(pid, STEPS, &mut code.process).map_err(|error| format!("ptrace: {error}"))?;
    let last = stops.last().map_or(0, |stop| stop.regs.ip);
    assert_eq!(stops.len(), STEPS, "seed {seed}: the program faults at {last:#x}: it is not what it should be");
    let mut all = Judged::default();
    let ways: &[_] = if made.near { &[true, false] } else { &[true] };
    for &functions in ways {
        for with_memory in [false, true] {
            let what = format!("functions={functions} memory={with_memory}");
            let judged = judge(seed, &what, &stops, with_memory, &mut code, functions);
            all.candidates += judged.candidates;
            all.backward += judged.backward;
            all.wrong += judged.wrong;
        }
    }
    Ok(all)
}

#[test]
fn made_programs() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let begin = Instant::now();
    let seconds = number("SCXPROF_MADE_SECONDS");
    let (first, count) = match (number("SCXPROF_MADE_SEED"), seconds) {
        (Some(seed), None) => (seed, 1),
        (Some(seed), Some(_)) => (seed, u64::MAX),
        (None, Some(_)) => {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            (now.as_secs() << 20, u64::MAX)
        }
        (None, None) => (0, SEEDS.len() as u64),
    };
    let (mut seeds, mut all) = (0, Judged::default());
    let mut failed = Vec::new();
    for index in 0..count {
        let seed = match SEEDS.get(index as usize) {
            Some(&seed) if first == 0 => seed,
            _ => first.wrapping_add(index),
        };
        if seconds.is_some_and(|seconds| begin.elapsed() >= Duration::from_secs(seconds)) {
            break;
        }
        let judged = match look(seed) {
            Ok(judged) => judged,
            Err(reason) => {
                println!("SKIP: made_programs: {reason}");
                return;
            }
        };
        seeds += 1;
        all.candidates += judged.candidates;
        all.backward += judged.backward;
        if judged.wrong != 0 {
            println!("SCXPROF_MADE_SEED={seed}: {judged:?}");
            failed.push(seed);
        }
    }
    println!(
        "{seeds} programs (first seed {first}; 0: the fixed ones): {} addresses, {} from before ip",
        all.candidates, all.backward
    );
    assert!(failed.is_empty(), "wrong addresses with SCXPROF_MADE_SEED = {failed:?}");
    assert!(all.backward > seeds * 100, "hardly anything was recovered: {all:?}");
}
