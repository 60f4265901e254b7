//! The part of a trace that is analysed: its threads, CPUs and time.

use std::fmt;
use std::sync::Arc;

use scxprof_base::sample::Comm;
use scxprof_sched::{Fact, Slot, Threads};

use crate::{Event, TraceEvent};

/// Says whether a thread is looked at, by its id, its process (0 or [`TraceEvent::UNKNOWN`] if an event does not say it) and its
/// name, where an event has it.
type Test = dyn Fn(u32, u32, Option<&Comm>) -> bool + Send + Sync;

/// Which threads are looked at.
#[derive(Clone)]
pub struct ThreadTest(pub Arc<Test>);

impl fmt::Debug for ThreadTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ThreadTest")
    }
}

/// The part of a trace that is analysed: all of it by default.
///
/// All events are followed, so that it is known who runs and who waits; only what is of the selection counts. The time of other
/// threads on a CPU counts as unknown.
#[derive(Debug, Clone, Default)]
pub struct Select {
    /// The threads; all if there is none.
    pub threads: Option<ThreadTest>,
    /// The first and the last CPU of each range; all if there is none.
    pub cpus: Vec<(u32, u32)>,
    /// From this number of ns after the first event on.
    pub from: u64,
    /// Until this number of ns after it.
    pub to: Option<u64>,
}

/// A selection with the time at which the trace begins.
#[derive(Debug, Clone, Default)]
pub(super) struct Selection {
    select: Select,
    /// The time of the first event, and that from which on events count.
    first: Option<u64>,
    from: u64,
    /// All threads and CPUs from the first event on.
    is_all: bool,
}

impl Selection {
    pub(super) fn new(select: Select) -> Self {
        let is_all = select.threads.is_none() && select.cpus.is_empty() && select.from == 0;
        Self { select, first: None, from: 0, is_all }
    }

    /// The time of an event; false if it is after the selected one.
    pub(super) fn begins(&mut self, time: u64) -> bool {
        let first = *self.first.get_or_insert(time);
        self.from = first.saturating_add(self.select.from);
        self.select.to.is_none_or(|to| time.saturating_sub(first) < to)
    }

    /// When the selected time begins, if that is after `first`.
    pub(super) fn begin(&self, first: u64) -> u64 {
        self.from.max(first)
    }

    fn is_of_cpu(&self, cpu: u32) -> bool {
        let cpus = &self.select.cpus;
        cpus.is_empty() || cpus.iter().any(|(first, last)| (*first..=*last).contains(&cpu))
    }

    /// True if an event that is no scheduling event counts.
    #[inline]
    pub(super) fn keeps(&self, event: &Event) -> bool {
        self.is_all && event.time() >= self.from || self.keeps_some(event)
    }

    fn keeps_some(&self, event: &Event) -> bool {
        if event.time() < self.from || !self.is_of_cpu(event.cpu()) {
            return false;
        }
        let Some(ThreadTest(test)) = &self.select.threads else { return true };
        let (own, pid) = event.thread();
        let mut is_of = false;
        event.each_thread(|tid, comm| {
            is_of |= tid != TraceEvent::UNKNOWN && test(tid, if tid == own { pid } else { 0 }, comm);
        });
        is_of
    }

    /// True if all of a fact at the time `now` counts, without a look at what is selected.
    #[inline]
    pub(super) fn takes(&self, now: u64, fact: &Fact) -> bool {
        // What began before the first event counts from there.
        let begins = match *fact {
            Fact::Ran { from, .. } | Fact::Slept { from, .. } => from.min(now),
            _ => now,
        };
        self.is_all && begins >= self.from
    }

    /// What counts of a fact at the time `now`.
    pub(super) fn part_of(&self, now: u64, threads: &Threads, fact: Fact) -> Option<Fact> {
        if now < self.from {
            return matches!(fact, Fact::Touched { .. } | Fact::Ended { .. }).then_some(fact);
        }
        let test = self.select.threads.as_ref();
        let is_of = |slot: Slot| {
            test.is_none_or(|ThreadTest(test)| {
                threads.get(slot).is_some_and(|thread| test(thread.tid, thread.pid, Some(&thread.comm)))
            })
        };
        let is_cpu = |cpu: u32| self.is_of_cpu(cpu);
        let keep = |keeps: bool| keeps.then_some(fact);
        match fact {
            Fact::Switched { cpu, prev, state, next, is_thread, is_first } => {
                let (prev, next) = (prev.filter(|slot| is_of(*slot)), next.filter(|slot| is_of(*slot)));
                let is_thread = is_thread && (test.is_none() || prev.is_some());
                let is_any = test.is_none() || prev.is_some() || next.is_some();
                (is_any && is_cpu(cpu)).then_some(Fact::Switched { cpu, prev, state, next, is_thread, is_first })
            }
            Fact::Ran { cpu, thread, is_thread, from, until } => {
                let is_any = test.is_none() || thread.is_some_and(is_of);
                let from = from.max(self.from);
                (is_any && is_cpu(cpu)).then_some(Fact::Ran { cpu, thread, is_thread, from, until: until.max(from) })
            }
            Fact::Slept { thread, from, until, is_blocked } => {
                let from = from.max(self.from);
                is_of(thread).then_some(Fact::Slept { thread, from, until: until.max(from), is_blocked })
            }
            Fact::Waited { thread, cpu, .. } | Fact::Woken { thread, cpu, .. } => keep(is_of(thread) && is_cpu(cpu)),
            Fact::Preempted { thread, .. }
            | Fact::Migrated { thread, .. }
            | Fact::Charged { thread, .. }
            | Fact::Queued { thread, .. }
            | Fact::Dispatched { thread, .. }
            | Fact::Touched { thread }
            | Fact::Ended { thread }
            | Fact::Left { thread, .. } => keep(is_of(thread)),
            Fact::Handled { cpu, .. } | Fact::Lost { cpu, .. } | Fact::Missed { cpu } => keep(is_cpu(cpu)),
            Fact::Unqueued { .. } | Fact::Slice { .. } => Some(fact),
        }
    }
}
