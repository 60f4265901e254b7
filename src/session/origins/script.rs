//! An origin for the text of a recording: all facts come from its lines, which are sorted by time as far as memory
//! allows.

use std::io;

use super::numbers::Numbers;
use crate::outcome::Outcome;
use crate::profile::script::Reader;
use crate::profile::{Profile, Records};
use crate::sample::batch::Batch;
use crate::sample::{RawSample, Sample, TimedSideBand};
use crate::sampler::loss::Loss;
use crate::session::inlet::Inlet;
use crate::session::namer::Namer;
use crate::session::order::Order;
use crate::session::origin::{Ending, Filled, Origin};
use crate::session::pipeline::{self, Pipeline, Stages};
use crate::session::stop::StopPoll;
use crate::sinks::Sink;

/// Lines per batch.
const BATCH: usize = 1024;

/// The lines of a profile that is a text.
struct ScriptOrigin<'p> {
    profile: &'p mut Profile,
    numbers: Numbers,
    loss: Loss,
    batch: Batch<Sample>,
}

/// Passes the samples of the text to `sink` until their end, or until it must end.
pub(super) fn run(profile: &mut Profile, memory: usize, sink: &mut dyn Sink, ends: &mut StopPoll<'_>) -> Outcome {
    let order = Order::new(1, memory / 4 / size_of::<Sample>());
    let mut namer = Namer::of_lines(false);
    if profile.hints.is_some() {
        namer = namer.with_hints(None);
    }
    let origin = ScriptOrigin { profile, numbers: Numbers::default(), loss: Loss::default(), batch: Batch::default() };
    pipeline::run(Pipeline::new(order, namer), origin, Stages::InThreads, sink, ends)
}

impl ScriptOrigin<'_> {
    /// Reads some lines.
    fn read(&mut self) -> io::Result<Filled> {
        let Self { profile, numbers, loss, batch } = self;
        let Records::Script(lines) = &mut profile.records else { return Ok(Filled::End) };
        while batch.samples.len() < BATCH {
            let Some(line) = lines.next_line()? else { return Ok(Filled::End) };
            // Side-band without a time precedes all samples.
            let mut told = |what| batch.side_band.push(TimedSideBand { time: 0, what });
            let cgroup = line.cgroup.map_or(0, |path| numbers.cgroup(&path, &mut told));
            let sample = Sample {
                raw: RawSample { cgroup, ..line.sample.raw },
                thread: numbers.thread(line.sample.raw.pid, line.sample.raw.tid),
                ..line.sample
            };
            if is_wanted(&sample, loss) {
                batch.samples.push(sample);
            }
        }
        Ok(Filled::More)
    }
}

impl Origin for ScriptOrigin<'_> {
    type Sample = Sample;

    fn fill(&mut self, inlet: &mut Inlet<'_, Sample>) -> Filled {
        let filled = self.read().unwrap_or_else(|error| {
            self.profile.note_failed(Some(error));
            Filled::End
        });
        inlet.take(&mut self.batch);
        if let Some(hints) = &mut self.profile.hints {
            inlet.take_hints(hints, if filled == Filled::End { u64::MAX } else { inlet.order.last });
        }
        filled
    }

    fn loss(&self) -> Loss {
        self.loss
    }

    fn end(self, outcome: &mut Outcome, _: Ending<Sample>) {
        let Records::Script(lines) = &self.profile.records else { return };
        let Reader { missing, unreadable, disorder, .. } = &**lines;
        outcome.loss.malformed = *unreadable;
        let notes = missing.sentence().into_iter().chain(disorder.sentence("samples", "perf's text"));
        outcome.notes.splice(..0, notes.chain(self.numbers.left_out()));
    }
}

/// False for samples that are also left out of records; counts them.
fn is_wanted(sample: &Sample, loss: &mut Loss) -> bool {
    let Loss { samples, idle, exiting, bogus, no_memory_op, .. } = loss;
    let (count, wanted) = if sample.raw.pid == 0 {
        (idle, false)
    } else if sample.raw.pid == u32::MAX || sample.raw.tid == u32::MAX {
        (exiting, false)
    } else if sample.raw.ip == 0 && sample.raw.addr == 0 {
        (bogus, false)
    } else if sample.raw.data_src.is_no_access() && sample.raw.addr == 0 {
        (no_memory_op, false)
    } else {
        (samples, true)
    };
    *count += 1;
    wanted
}
