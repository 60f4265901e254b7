//! scxprof's own JSON Lines: accesses with their names, in the order in which they were written.
//!
//! Several threads parse the lines in blocks, and the blocks are returned in their order.

use std::fs::File;
use std::io;
use std::thread;

use crossbeam_channel::{bounded, Receiver};

use super::numbers::Numbers;
use crate::outcome::Outcome;
use crate::profile::jsonl::{parse_block, Blocks, Counts, Parsed};
use crate::sample::Sample;
use crate::sampler::loss::Loss;
use crate::session::inlet::Inlet;
use crate::session::namer::Namer;
use crate::session::order::Order;
use crate::session::origin::{Ending, Filled, Origin};
use crate::session::pipeline::{self, Pipeline};
use crate::session::stop::StopPoll;
use crate::sinks::Sink;

/// The most threads that parse; more would wait for the reader and the sink.
const PARSERS: usize = 6;
/// The most queued blocks of a parser, both before and after it.
const WAITING: usize = 2;

/// Passes the accesses of `lines` to `sink` until their end, or until it must end; returns the error for an early end.
pub(super) fn run(
    lines: &mut Blocks<File>,
    sink: &mut dyn Sink,
    ends: &mut StopPoll<'_>,
) -> (Outcome, Option<io::Error>) {
    let mut counts = std::mem::take(&mut lines.counts);
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let in_parallel = if cpus > 1 { in_parallel(lines, cpus.min(PARSERS), &mut counts, sink, ends) } else { None };
    // The threads could not be started, and nothing has been read yet.
    let (outcome, failed) = in_parallel.unwrap_or_else(|| {
        let mut failed = None;
        let mut block = Vec::new();
        let next = || {
            block = match lines.next_block(std::mem::take(&mut block)) {
                Ok(block) => block,
                Err(error) => {
                    failed = Some(error);
                    return None;
                }
            };
            (!block.is_empty()).then(|| parse_block(&block))
        };
        (of_blocks(next, &mut counts, sink, ends), failed)
    });
    lines.counts = counts;
    (outcome, failed)
}

/// As [`run`], with one thread that reads and several that parse. Blocks are distributed round-robin, so that they can
/// be collected in order. `None` if a thread cannot be started.
fn in_parallel(
    lines: &mut Blocks<File>,
    parsers: usize,
    counts: &mut Counts,
    sink: &mut dyn Sink,
    ends: &mut StopPoll<'_>,
) -> Option<(Outcome, Option<io::Error>)> {
    thread::scope(move |scope| {
        let (mut to_parsers, mut from_parsers) = (Vec::new(), Vec::new());
        let (emptied, empty) = bounded::<Vec<u8>>(parsers * WAITING);
        for _ in 0..parsers {
            let (to_parser, blocks) = bounded::<Vec<u8>>(WAITING);
            let (to_origin, parsed) = bounded::<Parsed>(WAITING);
            let emptied = emptied.clone();
            let parse = move || {
                for block in blocks {
                    let parsed = parse_block(&block);
                    let _ = emptied.try_send(block);
                    if to_origin.send(parsed).is_err() {
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
                // A parser ends early if the session must end.
                if block.is_empty() || to_parser.send(block).is_err() {
                    break;
                }
            }
            Ok(())
        };
        let reader = thread::Builder::new().name("reader".to_owned()).spawn_scoped(scope, read).ok()?;
        let mut turn = (0..from_parsers.len()).cycle();
        // The first parser without a block follows the one with the last block.
        let next = move || turn.next().and_then(|at| from_parsers.get(at).map(Receiver::recv)?.ok());
        let outcome = of_blocks(next, counts, sink, ends);
        Some((outcome, reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).err()))
    })
}

fn of_blocks(
    next: impl FnMut() -> Option<Parsed>,
    counts: &mut Counts,
    sink: &mut dyn Sink,
    ends: &mut StopPoll<'_>,
) -> Outcome {
    let origin = LinesOrigin { next, counts, numbers: Numbers::default() };
    // The parsers are the only additional threads.
    pipeline::run_in_turn(Pipeline::new(Order::new(1, 0), Namer::of_lines(true)), origin, sink, ends)
}

/// Parsed blocks of lines; assigns numbers to their threads and cgroups.
struct LinesOrigin<'c, N> {
    /// Returns the next block.
    next: N,
    /// Counts of the lines so far.
    counts: &'c mut Counts,
    numbers: Numbers,
}

impl<N: FnMut() -> Option<Parsed>> Origin for LinesOrigin<'_, N> {
    type Sample = Sample;

    fn fill(&mut self, inlet: &mut Inlet<'_, Sample>) -> Filled {
        let Some(parsed) = (self.next)() else { return Filled::End };
        let Self { counts, numbers, .. } = self;
        let mut cgroups = parsed.cgroups.iter().peekable();
        let mut cgroup = None;
        for (at, line) in parsed.lines.iter().enumerate() {
            let mut sample = line.sample;
            if let Some((_, path)) = cgroups.next_if(|(from, _)| *from == at) {
                let path = path.as_deref();
                cgroup = path.map(|path| numbers.cgroup(path, &mut |told| inlet.pass_side_band(told)));
            }
            if sample.record == 0 {
                sample.record = counts.lines + line.number;
            }
            if !line.has_thread {
                sample.thread = numbers.thread(sample.raw.pid, sample.raw.tid);
            }
            if let Some(cgroup) = cgroup {
                sample.raw.cgroup = cgroup;
            }
            inlet.pass_sample(sample);
        }
        counts.add(&parsed);
        Filled::More
    }

    fn loss(&self) -> Loss {
        Loss { malformed: self.counts.unreadable, ..Loss::default() }
    }

    fn end(self, outcome: &mut Outcome, _: Ending<Sample>) {
        outcome.events = outcome.samples;
        outcome.loss.samples = outcome.samples;
        outcome.notes.splice(..0, self.counts.missing.sentence().into_iter().chain(self.numbers.left_out()));
    }
}
