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

/// What is added up, if it was requested.
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
    fn fact(&mut self, threads: &Threads, fact: &Fact) {
        let Self(parts, selection) = self;
        if selection.takes(parts.now, fact) {
            parts.fact(threads, fact);
        } else if let Some(fact) = selection.part_of(parts.now, threads, *fact) {
            parts.fact(threads, &fact);
        }
    }
}

impl Parts {
    /// Gives a fact to the parts that look at its kind.
    fn fact(&mut self, threads: &Threads, fact: &Fact) {
        let Self { now, cpus, threads: sums, moves, queue, breakdown, correlation, waits, wakers, groups } = self;
        macro_rules! give {
            ($($part:ident($($argument:expr),*)),+) => {{
                $(if let Some(part) = $part {
                    part.fact($($argument,)* fact);
                })+
            }};
        }
        match *fact {
            Fact::Switched { .. } => give!(
                cpus(),
                sums(threads),
                moves(),
                queue(*now, threads),
                breakdown(),
                correlation(threads),
                wakers(threads),
                groups(threads)
            ),
            Fact::Waited { .. } => give!(
                cpus(),
                sums(threads),
                moves(),
                breakdown(),
                correlation(threads),
                waits(threads),
                wakers(threads),
                groups(threads)
            ),
            Fact::Touched { .. } | Fact::Ended { .. } => give!(
                sums(threads),
                moves(),
                queue(*now, threads),
                breakdown(),
                correlation(threads),
                wakers(threads),
                groups(threads)
            ),
            Fact::Ran { .. } => give!(cpus(), sums(threads), groups(threads)),
            Fact::Slept { .. } => give!(sums(threads)),
            Fact::Woken { .. } => give!(moves(), queue(*now, threads), correlation(threads), wakers(threads)),
            Fact::Preempted { .. } => give!(queue(*now, threads), wakers(threads)),
            Fact::Lost { .. } => give!(cpus(), queue(*now, threads)),
            Fact::Missed { .. } => give!(cpus()),
            Fact::Migrated { .. } => give!(moves()),
            Fact::Left { .. }
            | Fact::Charged { .. }
            | Fact::Handled { .. }
            | Fact::Queued { .. }
            | Fact::Dispatched { .. }
            | Fact::Unqueued { .. }
            | Fact::Slice { .. } => {}
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

    pub(super) fn take(&mut self, event: &Event, selection: &Selection, is_selected: bool) {
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

/// Marks lines with this number of events that lack much because of losses.
fn mark(losses: u64, events: u64) -> String {
    if is_much(losses, events) { "!" } else { "" }.to_owned()
}

/// The slots whose thread is gone get a new one.
fn forget<T: Default>(all: &mut [T], slot: Slot) {
    if let Some(value) = all.get_mut(slot as usize) {
        *value = T::default();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use scxprof_base::sample::sched::{SchedEvent, SchedTask, SchedWhat, TaskState, WakenBy};
    use scxprof_base::sample::Comm;

    use super::*;

    impl Parts {
        /// Gives a fact to all parts, whatever it is.
        fn everyone(&mut self, threads: &Threads, fact: &Fact) {
            self.cpus.iter_mut().for_each(|part| part.fact(fact));
            self.threads.iter_mut().for_each(|part| part.fact(threads, fact));
            self.moves.iter_mut().for_each(|part| part.fact(fact));
            self.queue.iter_mut().for_each(|part| part.fact(self.now, threads, fact));
            self.breakdown.iter_mut().for_each(|part| part.fact(fact));
            self.correlation.iter_mut().for_each(|part| part.fact(threads, fact));
            self.waits.iter_mut().for_each(|part| part.fact(threads, fact));
            self.wakers.iter_mut().for_each(|part| part.fact(threads, fact));
            self.groups.iter_mut().for_each(|part| part.fact(threads, fact));
        }
    }

    /// The same facts, given to those that look at them, and to all.
    struct Both(Parts, Parts);

    impl Facts for Both {
        fn fact(&mut self, threads: &Threads, fact: &Fact) {
            self.0.fact(threads, fact);
            self.1.everyone(threads, fact);
        }
    }

    fn event((kind, cpu, tid, other): (u8, u32, u32, u32)) -> SchedEvent {
        let task = |tid: u32| SchedTask { tid, prio: 120, comm: Comm::from(format!("t{tid}").as_str()) };
        let states = [TaskState::Sleeping, TaskState::Preempted, TaskState::Blocked, TaskState::Runnable];
        let what = match kind {
            0..6 => SchedWhat::Switch { prev: task(tid), state: states[usize::from(kind % 4)], next: task(other) },
            6..9 => SchedWhat::Waking { task: task(other), target_cpu: cpu, by: WakenBy::Thread },
            9 => SchedWhat::WakeupNew { task: task(other), target_cpu: cpu },
            10 => SchedWhat::Migrate { task: task(other), from: 0, to: 1 },
            11 => SchedWhat::Runtime { task: task(tid), ns: 5 },
            12 => SchedWhat::Switch { prev: task(tid), state: TaskState::Dead, next: task(other) },
            13 => SchedWhat::DsqInsert { tid: other, dsq: 7, slice: 0, is_moved: false },
            14 => SchedWhat::SoftirqEntry { vec: 1 },
            15 => SchedWhat::SoftirqExit { vec: 1 },
            _ => SchedWhat::Lost,
        };
        SchedEvent { time: 0, cpu, pid: tid, tid, cgroup: 0, what }
    }

    proptest! {
        #[test]
        fn each_part_gets_the_facts_that_it_looks_at(
            events in prop::collection::vec((0u8..17, 0u32..2, 0u32..4, 0u32..4), 1..200),
        ) {
            let options = Options::default();
            let mut both = Both(Runs::new(&options).parts, Runs::new(&options).parts);
            let mut tracker = Tracker::default();
            for (event, time) in events.into_iter().map(event).zip((1000..).step_by(10)) {
                (both.0.now, both.1.now) = (time, time);
                tracker.take(&SchedEvent { time, ..event }, &mut both);
            }
            prop_assert_eq!(format!("{:?}", both.0), format!("{:?}", both.1));
        }
    }
}
