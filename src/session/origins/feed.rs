//! A source of samples that replaces the kernel: another profiler, a simulation.

use std::time::Instant;

use crate::outcome::Outcome;
use crate::sample::batch::{self, PendingSample, UserContext};
use crate::sample::sched::SchedEvent;
use crate::sample::{RawSample, SideBand, TimedSideBand};
use crate::sampler::loss::Loss;
use crate::session::inlet::Inlet;
use crate::session::namer::{Accesses, Namer};
use crate::session::order::Order;
use crate::session::origin::{Ending, Filled, Origin};
use crate::session::pipeline::{self, Pipeline};
use crate::session::stop::{Progress, StopPoll};
use crate::sinks::Sink;

/// Provides samples instead of the kernel's events.
///
/// [`SideBand`] events of threads and mappings come with the samples. Names are taken only from these: a sample of a
/// thread without a [`SideBand::Comm`] counts as unnamed, and memory without a [`SideBand::Mmap`] is private to its
/// process. The documentation of the crate begins with an example.
pub trait Feed {
    /// The next samples and side-band; `None` at the end.
    fn next_batch(&mut self) -> Option<Batch>;
}

/// The unit in which a [`Feed`] provides samples.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Batch {
    /// In any order. Facts from [`SideBand`] are added to them.
    pub samples: Vec<RawSample>,
    /// Call chains of samples, each with the index of its sample in `samples`, in ascending order: the innermost
    /// address first, with the kernel's context markers (`PERF_CONTEXT_*` in linux/perf_event.h) between code of
    /// different modes.
    pub call_chains: Vec<(usize, Box<[u64]>)>,
    /// In any order; an event applies to samples of the same time.
    pub side_band: Vec<TimedSideBand>,
    /// Events of the scheduler, in order of time.
    pub sched: Vec<SchedEvent>,
    /// This batch and the earlier ones contain everything older than this time, in ns of the clock of the samples.
    pub complete_until: u64,
}

impl Batch {
    /// An empty batch, to be filled with everything older than `complete_until` that was not in an earlier one.
    #[must_use]
    pub fn until(complete_until: u64) -> Self {
        Self { complete_until, ..Self::default() }
    }

    /// Adds a sample with its call chain (see [`Batch::call_chains`]).
    pub fn stack(&mut self, sample: RawSample, call_chain: &[u64]) {
        self.call_chains.push((self.samples.len(), call_chain.into()));
        self.samples.push(sample);
    }

    /// Adds an event at `time`.
    pub fn side_band(&mut self, time: u64, what: SideBand) {
        self.side_band.push(TimedSideBand { time, what });
    }
}

impl From<Batch> for batch::Batch {
    fn from(batch: Batch) -> Self {
        let Batch { samples, call_chains, side_band, sched, complete_until } = batch;
        let mut chains = call_chains.into_iter().peekable();
        let pending = |(at, raw)| {
            let chain = chains.next_if(|(of, _)| *of == at);
            let context = chain.map(|(_, callchain)| {
                Box::new(UserContext { callchain: callchain.into_vec(), ..UserContext::default() })
            });
            PendingSample { raw, context }
        };
        let samples = samples.into_iter().enumerate().map(pending).collect();
        Self { worker: 0, samples, side_band, sched, complete_until }
    }
}

/// The origin for a feed.
struct FeedOrigin<'a> {
    feed: &'a mut dyn Feed,
    loss: Loss,
}

/// Passes the samples of `feed` to `sink` until its end, or until `ended` returns true.
pub(in super::super) fn run(
    feed: &mut dyn Feed,
    memory: usize,
    knows_hints: bool,
    sink: &mut dyn Sink,
    ended: &mut dyn FnMut(Progress) -> bool,
) -> Outcome {
    let order = Order::new(1, memory / 4 / size_of::<PendingSample>());
    let mut namer = Namer::recorded(memory / 8, false, Accesses::InSamples);
    if knows_hints {
        namer = namer.with_hints(None);
    }
    let mut ends = StopPoll::new(Instant::now(), ended);
    // Run in the caller's thread, because the feed may not be sent to another one.
    pipeline::run_in_turn(Pipeline::new(order, namer), FeedOrigin { feed, loss: Loss::default() }, sink, &mut ends)
}

impl Origin for FeedOrigin<'_> {
    type Sample = PendingSample;

    fn fill(&mut self, inlet: &mut Inlet<'_, PendingSample>) -> Filled {
        let Some(batch) = self.feed.next_batch() else { return Filled::End };
        self.loss.samples += batch.samples.len() as u64;
        inlet.push(batch.into());
        Filled::More
    }

    fn loss(&self) -> Loss {
        self.loss
    }

    fn end(self, outcome: &mut Outcome, ending: Ending<PendingSample>) {
        ending.namer.finish_code(&mut outcome.modules);
    }
}
