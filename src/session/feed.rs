//! A source of samples that is not the kernel: another profiler, a simulation.

use std::time::Instant;

use super::hints::Hints;
use super::order::Order;
use super::stop::StopPoll;
use super::{Loss, Names, Outcome, Progress, Sink};
use crate::resolve::Modules;
use crate::sample::batch::{self, PendingSample};
use crate::sample::{RawSample, SideBand, TimedSideBand};

/// Where samples come from in place of the kernel's events.
///
/// What happened to threads and mappings comes as [`SideBand`] among them, and names are taken from nothing else: a sample
/// whose thread no [`SideBand::Comm`] has named counts as unnamed, and memory that no [`SideBand::Mmap`] has shown is the
/// process's own. The documentation of the crate begins with an example.
pub trait Feed {
    /// The next samples and what happened beside them; `None` at the end.
    fn next_batch(&mut self) -> Option<Batch>;
}

/// What a [`Feed`] gives at a time.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Batch {
    /// In any order. What [`SideBand`] says is put to them.
    pub samples: Vec<RawSample>,
    /// In any order; of the same time as a sample it comes before that.
    pub side_band: Vec<TimedSideBand>,
    /// All that is older has been given, this batch included. ns, of the same clock as the times of the samples.
    pub complete_until: u64,
}

impl Batch {
    /// One that is to be filled with all that is older than `complete_until` and was not given yet.
    #[must_use]
    pub fn until(complete_until: u64) -> Self {
        Self { complete_until, ..Self::default() }
    }

    /// Adds what happened at `time`.
    pub fn side_band(&mut self, time: u64, what: SideBand) {
        self.side_band.push(TimedSideBand { time, what });
    }
}

impl From<Batch> for batch::Batch {
    fn from(batch: Batch) -> Self {
        let Batch { samples, side_band, complete_until } = batch;
        let samples = samples.into_iter().map(|raw| PendingSample { raw, context: None }).collect();
        Self { worker: 0, samples, side_band, complete_until }
    }
}

/// Hands what `feed` gives to `sink` until its end, or until `ended` says so.
pub(super) fn run(
    feed: &mut dyn Feed,
    memory: usize,
    knows_hints: bool,
    sink: &mut dyn Sink,
    ended: &mut dyn FnMut(Progress) -> bool,
) -> Outcome {
    let mut ends = StopPoll::new(Instant::now(), ended);
    let mut order = Order::new(1, memory / 4 / size_of::<PendingSample>());
    let mut names = Names::recorded(memory / 8, false);
    names.hints = knows_hints.then(Hints::default);
    names.modules = sink.wants_code().then(Modules::new);
    let mut loss = Loss::default();
    while !ends.met(names.records) {
        let Some(batch) = feed.next_batch() else { break };
        loss.samples += batch.samples.len() as u64;
        order.push(batch.into());
        if order.is_due() {
            names.release(&mut order, sink);
        }
    }
    order.end();
    names.release(&mut order, sink);
    let mut outcome = names.outcome(&order, loss, sink);
    outcome.modules = names.modules.take().unwrap_or_default();
    outcome.modules.finish(&names.maps);
    outcome
}
