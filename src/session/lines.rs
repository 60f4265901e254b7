//! Reads our own lines of JSON instead of records: accesses with their names, in the order in which they were written.
//!
//! Several threads parse the lines, a block at a time, and the blocks come back in their order.

use std::fs::File;
use std::io;
use std::thread;
use std::time::Duration;

use crossbeam_channel::bounded;

use super::numbers::Numbers;
use super::stop::StopPoll;
use super::{Outcome, Sink};
use crate::profile::jsonl::{parse_block, Blocks, Parsed};
use crate::resolve::Cgroups;
use crate::sample::Sample;

/// Accesses that are passed to the sink at once.
const TOGETHER: usize = 64;
/// Threads that parse; more would wait for the reader and the sink.
const PARSERS: usize = 6;
/// Blocks of a parser that may wait, before and after it.
const WAITING: usize = 2;

/// Passes the accesses of `lines` to `sink` until their end, or until it must end; returns the reason for an early end.
pub(super) fn run(lines: &mut Blocks<File>, sink: &mut dyn Sink, ends: StopPoll<'_>) -> (Outcome, Option<io::Error>) {
    let mut end = LinesEnd {
        sink,
        ends,
        cgroups: Cgroups::recorded(),
        numbers: Numbers::default(),
        outcome: Outcome::default(),
        times: None,
        record: None,
        line: 0,
        ready: Vec::with_capacity(TOGETHER),
    };
    let mut counts = std::mem::take(&mut lines.counts);
    let mut take = |parsed: &Parsed| {
        let goes_on = end.take(parsed);
        counts.add(parsed);
        end.line = counts.lines;
        goes_on
    };
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let in_parallel = if cpus > 1 { in_parallel(lines, cpus.min(PARSERS), &mut take) } else { None };
    // Without room for threads, nothing was read yet.
    let failed = in_parallel.unwrap_or_else(|| in_turn(lines, &mut take)).err();
    lines.counts = counts;
    let LinesEnd { cgroups, numbers, mut outcome, times, .. } = end;
    outcome.events = outcome.samples;
    outcome.loss.samples = outcome.samples;
    outcome.loss.malformed = lines.counts.unreadable;
    let (first, last) = times.unwrap_or_default();
    outcome.duration = Duration::from_nanos(last.saturating_sub(first));
    outcome.notes.extend(lines.counts.missing.lines());
    outcome.notes.extend(numbers.left_out().into_iter().chain(cgroups.left_out()));
    (outcome, failed)
}

/// Parses one block after the other, until `take` returns false.
fn in_turn(lines: &mut Blocks<File>, take: &mut dyn FnMut(&Parsed) -> bool) -> io::Result<()> {
    let mut block = Vec::new();
    loop {
        block = lines.next_block(block)?;
        if block.is_empty() || !take(&parse_block(&block)) {
            return Ok(());
        }
    }
}

/// As [`in_turn`], with a thread that reads and some that parse: each gets every so manieth block, so that they come back in
/// order. `None` if a thread cannot be started.
fn in_parallel(
    lines: &mut Blocks<File>,
    parsers: usize,
    take: &mut dyn FnMut(&Parsed) -> bool,
) -> Option<io::Result<()>> {
    thread::scope(move |scope| {
        let (mut to_parsers, mut from_parsers) = (Vec::new(), Vec::new());
        let (emptied, empty) = bounded::<Vec<u8>>(parsers * WAITING);
        for _ in 0..parsers {
            let (to_parser, blocks) = bounded::<Vec<u8>>(WAITING);
            let (to_sink, parsed) = bounded::<Parsed>(WAITING);
            let emptied = emptied.clone();
            let parse = move || {
                for block in blocks {
                    let parsed = parse_block(&block);
                    let _ = emptied.try_send(block);
                    if to_sink.send(parsed).is_err() {
                        break;
                    }
                }
            };
            thread::Builder::new().name("lines".to_owned()).spawn_scoped(scope, parse).ok()?;
            to_parsers.push(to_parser);
            from_parsers.push(parsed);
        }
        let read = move || -> io::Result<()> {
            for to_parser in to_parsers.iter().cycle() {
                let block = lines.next_block(empty.try_recv().unwrap_or_default())?;
                // A parser is gone if the session must end.
                if block.is_empty() || to_parser.send(block).is_err() {
                    break;
                }
            }
            Ok(())
        };
        let reader = thread::Builder::new().name("reader".to_owned()).spawn_scoped(scope, read).ok()?;
        for from_parser in from_parsers.iter().cycle() {
            // The first parser without a block has had the last one.
            let Ok(parsed) = from_parser.recv() else { break };
            if !take(&parsed) {
                break;
            }
        }
        drop(from_parsers);
        Some(reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Numbers the lines' threads and cgroups, and passes the accesses to the sink.
struct LinesEnd<'s, 'e> {
    sink: &'s mut dyn Sink,
    ends: StopPoll<'e>,
    cgroups: Cgroups,
    numbers: Numbers,
    outcome: Outcome,
    /// The first time and the latest.
    times: Option<(u64, u64)>,
    /// The last record.
    record: Option<u64>,
    /// Lines before this block.
    line: u64,
    ready: Vec<Sample>,
}

impl LinesEnd<'_, '_> {
    /// Takes the lines of a block; false if the session must end.
    fn take(&mut self, parsed: &Parsed) -> bool {
        let mut cgroups = parsed.cgroups.iter().peekable();
        let mut cgroup = None;
        for (at, line) in parsed.lines.iter().enumerate() {
            let mut sample = line.sample;
            if let Some((_, path)) = cgroups.next_if(|(from, _)| *from == at) {
                cgroup = path.as_deref();
            }
            if sample.record == 0 {
                sample.record = self.line + line.number;
            }
            if !line.has_thread {
                sample.thread = self.numbers.thread(sample.raw.pid, sample.raw.tid);
            }
            if let Some(path) = cgroup {
                sample.raw.cgroup = self.numbers.cgroup(path, &mut self.cgroups);
            }
            let (_, last) = self.times.get_or_insert((sample.raw.time, 0));
            *last = sample.raw.time.max(*last);
            let outcome = &mut self.outcome;
            outcome.accesses += 1;
            outcome.loss.no_user_address += u64::from(sample.memory.is_none());
            outcome.samples += u64::from(self.record != Some(sample.record));
            self.record = Some(sample.record);
            self.ready.push(sample);
            if self.ready.len() >= TOGETHER && !self.give() {
                return false;
            }
        }
        self.give()
    }

    /// Passes on what is ready.
    fn give(&mut self) -> bool {
        self.sink.samples(&self.ready, &mut self.cgroups);
        self.ready.clear();
        !self.ends.met(self.outcome.samples)
    }
}
