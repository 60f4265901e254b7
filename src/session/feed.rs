//! A source of samples that is not the kernel: another profiler, a simulation.

use std::time::{Duration, Instant};

use super::order::Order;
use super::{Names, Outcome, Progress, Sink, TICK};
use crate::resolve::Modules;
use crate::sampler::{Batch, Captured};

/// Where samples come from in place of the kernel's events.
///
/// What happened to threads and mappings comes as side-band among them, and names are taken from nothing else: a sample
/// whose thread no [`crate::sampler::SideBand::Comm`] has named counts as unnamed.
///
/// ```
/// use scxprof::sample::{Access, Sample, Source};
/// use scxprof::sampler::{Batch, Captured, SideBand, TimedSideBand};
/// use scxprof::session::Feed;
/// use scxprof::Session;
///
/// /// Two pairs of threads of one process: each pair writes to pages of its own.
/// struct Pairs(u64);
///
/// impl Feed for Pairs {
///     fn next_batch(&mut self) -> Option<Batch> {
///         self.0 += 1;
///         let mut batch = Batch { complete_until: self.0 * 1_000_000, ..Batch::default() };
///         let time = batch.complete_until;
///         for tid in 1..=4 {
///             if self.0 == 1 {
///                 let comm = format!("worker-{}", if tid < 3 { "a" } else { "b" }).as_str().into();
///                 let what = SideBand::Comm { pid: 1, tid, exec: false, comm };
///                 batch.side_band.push(TimedSideBand { time, what });
///             }
///             let page = 100 + self.0 % 16 + if tid < 3 { 0 } else { 50 };
///             let addr = page * 4096 + self.0 % 64 * 64;
///             let sample = Sample { time, pid: 1, tid, addr, access: Access::Store, ..Sample::default() };
///             batch.samples.push(Captured { sample, context: None });
///         }
///         (self.0 < 1000).then_some(batch)
///     }
/// }
///
/// let found = Session::builder().feed(&mut Pairs(0)).run()?;
/// assert_eq!(found.report.cells[0].subcells.len(), 3, "each pair, and the rest");
/// assert!(found.mitosis()?.contains("worker-a"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Feed {
    /// The next samples and what happened beside them, in any order; all that is older than its `complete_until` has been
    /// given then. `None` at the end.
    fn next_batch(&mut self) -> Option<Batch>;
}

/// Hands what `feed` gives to `sink` until its end, or until `stop` says so.
pub(super) fn run(
    feed: &mut dyn Feed,
    memory: usize,
    sink: &mut dyn Sink,
    mut stop: impl FnMut(Progress) -> bool,
) -> Outcome {
    let begin = Instant::now();
    let mut asked: Option<Instant> = None;
    let mut order = Order::new(1, memory / 4 / size_of::<Captured>());
    let mut names = Names::recorded(memory / 8, false);
    names.modules = sink.wants_code().then(Modules::new);
    let mut outcome = Outcome::default();
    let mut last = 0;
    loop {
        if asked.is_none_or(|asked| asked.elapsed() >= TICK) {
            asked = Some(Instant::now());
            if stop(Progress { elapsed: begin.elapsed(), samples: names.records }) {
                break;
            }
        }
        let Some(batch) = feed.next_batch() else { break };
        for captured in &batch.samples {
            last = last.max(captured.sample.time);
            outcome.events += 1;
            outcome.loss.samples += 1;
        }
        order.push(Batch { worker: 0, ..batch });
        if order.is_due() {
            outcome.accesses += names.release(&mut order, sink);
        }
    }
    order.push(Batch { complete_until: u64::MAX, ..Batch::default() });
    outcome.accesses += names.release(&mut order, sink);
    outcome.loss.add(&names.loss);
    outcome.loss.late = order.late;
    outcome.samples = names.records;
    outcome.duration = Duration::from_nanos(last.saturating_sub(order.first));
    if let Some(mut modules) = names.modules {
        modules.finish(&names.maps);
        outcome.modules = modules;
    }
    outcome
}
