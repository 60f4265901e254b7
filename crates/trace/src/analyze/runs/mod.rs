//! The engine of runs and waits: what [`Tracker`] says of threads and CPUs, added up in several ways.

mod groups;
mod judge;
mod moves;
mod queue;
mod sums;
mod times;
mod wakeups;

use super::select::Selection;
use super::{Context, Findings, Id, Options};
use crate::{Event, TraceWhat};
pub use groups::{Counted, GroupLine, Groups};
pub use judge::*;
pub use moves::{LlcLocality, MigrationPatterns, Places, Route};
pub use queue::{Depths, RunQueue};
use scxprof_sched::report::is_much;
use scxprof_sched::{Fact, Facts, Slot, Threads, Tracker, Wakers};
pub use times::*;
pub use wakeups::{LatencyBreakdown, WakeupChains, WakeupCorrelation};

/// Gives the element at `at`, which a new one becomes if there is none; numbers are bounded by the tracker.
fn at<T: Default>(all: &mut Vec<T>, at: u32) -> &mut T {
    let at = at as usize;
    if all.len() <= at {
        all.resize_with(at + 1, T::default);
    }
    &mut all[at]
}

/// What is added up, as far as it is asked for.
#[derive(Debug, Default)]
struct Parts {
    /// The time of the event that facts come from.
    now: u64,
    cpus: Option<sums::Cpus>,
    threads: Option<sums::PerThread>,
    moves: Option<moves::Moves>,
    queue: Option<queue::Queue>,
    breakdown: Option<wakeups::Breakdown>,
    correlation: Option<wakeups::Correlation>,
    waits: Option<judge::Waits>,
    wakers: Option<Box<Wakers>>,
    groups: Option<Box<groups::Grouping>>,
}

/// The parts, which get what is selected.
struct Selected<'a>(&'a mut Parts, &'a Selection);

impl Facts for Selected<'_> {
    fn fact(&mut self, threads: &Threads, fact: Fact) {
        if let Some(fact) = self.1.fact(self.0.now, threads, fact) {
            self.0.fact(threads, fact);
        }
    }
}

impl Parts {
    fn fact(&mut self, threads: &Threads, fact: Fact) {
        if let Some(cpus) = &mut self.cpus {
            cpus.fact(fact);
        }
        if let Some(sums) = &mut self.threads {
            sums.fact(threads, fact);
        }
        if let Some(moves) = &mut self.moves {
            moves.fact(fact);
        }
        if let Some(queue) = &mut self.queue {
            queue.fact(self.now, threads, fact);
        }
        if let Some(breakdown) = &mut self.breakdown {
            breakdown.fact(fact);
        }
        if let Some(correlation) = &mut self.correlation {
            correlation.fact(threads, fact);
        }
        if let Some(waits) = &mut self.waits {
            waits.fact(threads, fact);
        }
        if let Some(wakers) = &mut self.wakers {
            wakers.fact(threads, fact);
        }
        if let Some(groups) = &mut self.groups {
            groups.fact(threads, fact);
        }
    }
}

/// The engine.
#[derive(Debug)]
pub(super) struct Runs {
    tracker: Tracker,
    parts: Parts,
}

impl Runs {
    pub(super) fn new(options: &Options) -> Self {
        let any = |ids: &[Id]| ids.iter().any(|id| options.wants(*id));
        let cpus = any(&[Id::CpuUtilization, Id::WakeupLatency, Id::Outliers, Id::Bottlenecks]);
        let threads = any(&[
            Id::CpuUtilization,
            Id::WakeupLatency,
            Id::TaskStates,
            Id::Preemptions,
            Id::Fairness,
            Id::Outliers,
            Id::Bottlenecks,
        ]);
        let moves = any(&[Id::MigrationPatterns, Id::LlcLocality]);
        let wakers = any(&[Id::Preemptions, Id::WakeupChains]);
        let parts = Parts {
            now: 0,
            cpus: cpus.then(sums::Cpus::default),
            threads: threads.then(sums::PerThread::default),
            moves: moves.then(|| moves::Moves::new(options.places.clone())),
            queue: any(&[Id::RunQueue]).then(queue::Queue::default),
            breakdown: any(&[Id::LatencyBreakdown]).then(wakeups::Breakdown::default),
            correlation: any(&[Id::WakeupCorrelation]).then(wakeups::Correlation::default),
            waits: any(&[Id::Outliers]).then(judge::Waits::default),
            wakers: wakers.then(|| Box::new(Wakers::without_edges())),
            groups: any(&[Id::Groups]).then(|| Box::new(groups::Grouping::new(options))),
        };
        Self { tracker: Tracker::default(), parts }
    }

    pub(super) fn unobserved_before(&mut self, time: u64) {
        self.tracker.unobserved_before(time);
    }

    pub(super) fn take(&mut self, event: &Event, selection: &Selection) {
        let is_selected = selection.keeps(event);
        match event {
            Event::Sched(event) => {
                self.parts.now = event.time;
                self.tracker.take(event, &mut Selected(&mut self.parts, selection));
            }
            Event::Trace(event) => {
                if let (TraceWhat::Wakeup { tid, .. }, Some(breakdown)) = (&event.what, &mut self.parts.breakdown) {
                    if let Some(slot) = self.tracker.threads().find(*tid) {
                        breakdown.woken(slot, event.time);
                    }
                }
                if let (TraceWhat::Node { cpu, node }, Some(moves)) = (&event.what, &mut self.parts.moves) {
                    moves.node(*cpu, *node);
                }
                if let Some(groups) = &mut self.parts.groups {
                    groups.take(self.tracker.threads(), event, is_selected);
                }
            }
        }
    }

    pub(super) fn finish(self, context: &Context<'_>, selection: &Selection, out: &mut Vec<Findings>) {
        let Self { tracker, parts } = self;
        let threads = tracker.threads();
        let (first, last) = tracker.span().unwrap_or_default();
        let window = last.saturating_sub(selection.begin(first));
        let wants = |id| context.options.wants(id);
        let limit = context.options.limit;
        let rows = parts.threads.map(|sums| sums.finish(threads, context));
        let wakers = parts.wakers.as_deref();
        if let (Some(cpus), Some(rows)) = (&parts.cpus, &rows) {
            if wants(Id::CpuUtilization) {
                out.push(times::cpu_utilization(cpus, rows, window, context).into());
            }
            if wants(Id::WakeupLatency) {
                out.push(times::wakeup_latency(cpus, rows, limit).into());
            }
            if wants(Id::Bottlenecks) {
                out.push(judge::bottlenecks(cpus, rows, window, limit).into());
            }
            if let Some(waits) = parts.waits {
                out.push(judge::outliers(waits, cpus, rows, context.options).into());
            }
        }
        if let Some(rows) = &rows {
            if wants(Id::TaskStates) {
                out.push(times::task_states(rows, limit).into());
            }
            if wants(Id::Fairness) {
                out.push(judge::fairness(rows, limit).into());
            }
            if let Some(wakers) = wakers.filter(|_| wants(Id::Preemptions)) {
                out.push(times::preemptions(rows, (wakers, threads), limit).into());
            }
        }
        if let Some(wakers) = wakers.filter(|_| wants(Id::WakeupChains)) {
            out.push(wakeups::chains((wakers, threads), limit).into());
        }
        if let Some(moves) = &parts.moves {
            if wants(Id::MigrationPatterns) {
                out.push(moves.patterns(limit).into());
            }
            if wants(Id::LlcLocality) {
                out.push(moves.locality().into());
            }
        }
        if let Some(groups) = parts.groups {
            out.push(groups.finish(threads, context).into());
        }
        if let Some(queue) = parts.queue {
            out.push(queue.finish(last).into());
        }
        if let Some(breakdown) = &parts.breakdown {
            out.push(breakdown.finish().into());
        }
        if let Some(correlation) = parts.correlation {
            out.push(correlation.finish(tracker.gaps().no_room).into());
        }
    }
}

/// Marks lines of so many events that lack much by losses.
fn mark(losses: u64, events: u64) -> String {
    if is_much(losses, events) { "!" } else { "" }.to_owned()
}

/// The slots whose thread is gone get a new one.
fn forget<T: Default>(all: &mut [T], slot: Slot) {
    if let Some(value) = all.get_mut(slot as usize) {
        *value = T::default();
    }
}
