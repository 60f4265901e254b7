//! The sink of a live capture of memory: it counts accesses, and gives those of each sharing window to the evaluation.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use rustc_hash::FxHashMap;

use super::evaluate::Window;
use super::scheduling;
use super::shared::Shared;
use crate::decider::Decider;
use crate::host::clock::monotonic_ns;
use crate::outcome::Outcome;
use crate::resolve::Cgroups;
use crate::sample::sched::SchedEvent;
use crate::sample::{Comm, Sample, Source, ThreadIndex};
use crate::sampler::loss::Loss;
use crate::session::running::Plan;
use crate::session::{Meanwhile, Sink};
use scxprof_base::tables::Tables;

/// The first sharing window ends after this time, so that there is something to see.
const FIRST: u64 = 2_000_000_000;
/// A window of the kernel's samples ends this long after its end, if none came that is later: until then older ones may come.
const GRACE: u64 = 500_000_000;
/// Paths of cgroups that are kept.
const MAX_CGROUPS: usize = 1 << 14;

/// Makes what decides on a window.
#[derive(Debug)]
pub(super) struct Deciders {
    pub(super) plan: Plan,
    pub(super) source: Source,
    /// Bytes of each, see [`Decider::new`].
    pub(super) memory: usize,
}

impl Deciders {
    fn next(&self) -> Decider {
        self.plan.decider(self.source, self.memory)
    }
}

/// A span of time.
#[derive(Debug, Clone, Copy)]
struct Span {
    begin: u64,
    end: u64,
}

/// The sink.
#[derive(Debug)]
pub(super) struct MemorySink {
    shared: Arc<Shared>,
    /// Takes the scheduling events of a feed, which has both.
    scheduling: Option<scheduling::Shared>,
    to: Sender<Window>,
    deciders: Deciders,
    decider: Decider,
    /// The length of a sharing window, ns.
    length: u64,
    /// The times of the kernel's samples are those of our clock.
    has_clock: bool,
    /// The window of the statistics, and that of sharing; `None` before the first sample.
    statistics: Option<Span>,
    sharing: Option<Span>,
    /// A sharing window that is over: its accesses, and its length in ns. What it is called is known soon.
    over: Option<(Decider, u64)>,
    number: u64,
    /// A window of statistics has ended since names were last read.
    is_stale: bool,
    accesses: u64,
    /// The time of the last sample.
    last: u64,
    /// The losses and the accesses before this sharing window.
    before: (Loss, u64),
}

impl MemorySink {
    pub(super) fn new(
        shared: Arc<Shared>,
        scheduling: Option<scheduling::Shared>,
        to: Sender<Window>,
        deciders: Deciders,
        length: Duration,
    ) -> Self {
        let has_clock = scheduling.is_none();
        let decider = deciders.next();
        let length = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX).max(1);
        let mut sink = Self {
            shared,
            scheduling,
            to,
            deciders,
            decider,
            length,
            has_clock,
            statistics: None,
            sharing: None,
            over: None,
            number: 0,
            is_stale: false,
            accesses: 0,
            last: 0,
            before: (Loss::default(), 0),
        };
        if has_clock {
            sink.begin(monotonic_ns());
        }
        sink
    }

    /// Both windows begin.
    fn begin(&mut self, time: u64) {
        let interval = self.shared.lock().interval.max(1);
        self.statistics.get_or_insert(Span { begin: time, end: time.saturating_add(interval) });
        let first = self.length.min(FIRST);
        self.sharing.get_or_insert(Span { begin: time, end: time.saturating_add(first) });
    }

    /// It is `time`: ends the windows that are over. Returns the time at which the next one ends.
    fn until(&mut self, time: u64) -> u64 {
        self.begin(time);
        let (Some(statistics), Some(sharing)) = (&mut self.statistics, &mut self.sharing) else { return u64::MAX };
        if time >= statistics.end {
            let mut now = self.shared.lock();
            now.window = statistics.end - statistics.begin;
            now.counts.end_window();
            let interval = now.interval.max(1);
            // Windows in which nothing happened are left out, but for one: then nothing happens now.
            let over = time.saturating_sub(statistics.end) / interval;
            if over > 0 {
                now.counts.end_window();
                now.window = interval;
            }
            let begin = statistics.end.saturating_add(over.saturating_mul(interval));
            *statistics = Span { begin, end: begin.saturating_add(interval) };
            self.is_stale = true;
        }
        if time >= sharing.end {
            let over = time.saturating_sub(sharing.end) / self.length;
            let next = sharing.end.saturating_add(over.saturating_mul(self.length));
            if !self.has_clock {
                // A feed can wait.
                self.shared.wait(Duration::MAX, |now| !now.is_evaluating || now.has_ended);
            }
            if self.over.is_none() && !self.shared.lock().is_evaluating {
                let decider = std::mem::replace(&mut self.decider, self.deciders.next());
                self.over = Some((decider, sharing.end - sharing.begin));
                *sharing = Span { begin: next, end: next.saturating_add(self.length) };
            } else {
                // The one before is still being evaluated: this one goes on.
                sharing.end = next.saturating_add(self.length);
                self.shared.lock().late_windows += 1;
            }
        }
        statistics.end.min(sharing.end)
    }

    /// Names what the counts name.
    fn refresh(&self, now: &dyn Meanwhile, cgroups: &mut Cgroups) {
        let loss = now.loss();
        self.know(now.process_names().into_iter().collect(), cgroups);
        let mut shared = self.shared.lock();
        (shared.loss, shared.accesses) = (loss, self.accesses);
    }

    /// These are the names of processes; `cgroups` has the paths of those of the counts.
    fn know(&self, processes: FxHashMap<u32, Comm>, cgroups: &mut Cgroups) {
        let mut shared = self.shared.lock();
        shared.processes = processes;
        let ids: BTreeSet<u64> = shared.counts.cgroups().filter(|&id| id != 0).collect();
        if shared.cgroups.len() + ids.len() > MAX_CGROUPS {
            shared.cgroups.clear();
        }
        for id in ids.into_iter().take(MAX_CGROUPS) {
            if let Some(path) = cgroups.path(id) {
                shared.cgroups.insert(id, path.clone());
            }
        }
    }

    /// Gives the window that is over to the evaluation, with what is known of its memory and code.
    fn hand_over(&mut self, now: &dyn Meanwhile, cgroups: &mut Cgroups) {
        let Some((mut decider, ns)) = self.over.take() else { return };
        decider.ended(&now.thread_names());
        decider.processes(&now.process_names(), cgroups);
        let loss = now.loss();
        let of_window = loss.since(&self.before.0);
        let outcome = Outcome {
            samples: of_window.samples,
            accesses: self.accesses - self.before.1,
            events: of_window.samples,
            duration: Duration::from_nanos(ns),
            loss: of_window,
            modules: now.modules(),
            address_spaces: now.address_spaces(),
            ..Outcome::default()
        };
        self.before = (loss, self.accesses);
        self.shared.lock().is_evaluating = true;
        self.send(decider, ns, outcome);
    }

    /// The evaluation has room for one window, and none is being evaluated.
    fn send(&mut self, decider: Decider, ns: u64, outcome: Outcome) {
        let window = Window { number: self.number, seconds: ns as f64 / 1e9, decider, outcome };
        self.number += 1;
        // If its thread died, it said why.
        let _ = self.to.send(window);
    }

    /// The capture has ended: evaluates what came last, if that is at least half a window or all that there is.
    pub(super) fn finish(mut self, outcome: Outcome) {
        let mut now = self.shared.lock();
        (now.loss, now.accesses) = (outcome.loss, self.accesses);
        now.counts.end_window();
        drop(now);
        if let Some((decider, ns)) = self.over.take() {
            let outcome = Outcome { duration: Duration::from_nanos(ns), ..outcome.clone() };
            self.send(decider, ns, outcome);
        }
        let begin = self.sharing.map_or(0, |sharing| sharing.begin);
        let last = self.last.saturating_sub(begin);
        if self.number == 0 || last >= self.length / 2 {
            let ns = if self.number == 0 { outcome.duration.as_nanos() as u64 } else { last };
            let decider = std::mem::replace(&mut self.decider, self.deciders.next());
            self.send(decider, ns, outcome);
        }
    }
}

impl Sink for MemorySink {
    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups) {
        self.samples(std::slice::from_ref(sample), cgroups);
    }

    fn samples(&mut self, samples: &[Sample], cgroups: &mut Cgroups) {
        let mut rest = samples;
        while let Some(first) = rest.first() {
            let end = self.until(first.raw.time);
            let count = rest.iter().position(|sample| sample.raw.time >= end).unwrap_or(rest.len());
            let (these, later) = rest.split_at_checked(count.max(1)).unwrap_or((rest, &[]));
            self.decider.samples(these, cgroups);
            let mut now = self.shared.lock();
            now.counts.add(these);
            now.latest.add(these);
            drop(now);
            self.accesses += these.len() as u64;
            self.last = these.last().map_or(self.last, |sample| self.last.max(sample.raw.time));
            rest = later;
        }
    }

    fn sched(&mut self, events: &[SchedEvent], cgroups: &mut Cgroups) {
        if let Some(scheduling) = &mut self.scheduling {
            scheduling.sched(events, cgroups);
        }
    }

    fn meanwhile(&mut self, now: &dyn Meanwhile, cgroups: &mut Cgroups) {
        if let Some(scheduling) = &mut self.scheduling {
            scheduling.meanwhile(now, cgroups);
        }
        if self.has_clock {
            self.until(monotonic_ns().saturating_sub(GRACE));
        }
        if std::mem::take(&mut self.is_stale) {
            self.refresh(now, cgroups);
        }
        self.hand_over(now, cgroups);
    }

    fn ended(&mut self, names: &[(ThreadIndex, Comm)]) {
        if let Some((decider, _)) = &mut self.over {
            decider.ended(names);
        }
        self.decider.ended(names);
    }

    fn processes(&mut self, names: &[(u32, Comm)], cgroups: &mut Cgroups) {
        if let Some((decider, _)) = &mut self.over {
            decider.processes(names, cgroups);
        }
        if let Some(scheduling) = &mut self.scheduling {
            scheduling.processes(names, cgroups);
        }
        self.decider.processes(names, cgroups);
        self.know(names.iter().copied().collect(), cgroups);
    }

    fn measure(&self, tables: &mut Tables) {
        self.decider.measure(tables);
        let now = self.shared.lock();
        now.counts.measure(tables);
        let (accesses, bytes) = now.latest.size();
        tables.set("last accesses", accesses, bytes);
        let (names, paths) = (&now.processes, &now.cgroups);
        tables.set_map::<(u32, Comm)>("names of processes to show", names.len(), names.capacity(), 0);
        let bytes = paths.values().map(|path| path.len()).sum();
        tables.set_map::<(u64, Arc<[u8]>)>("cgroups to show", paths.len(), paths.capacity(), bytes);
        if let Some(sharing) = &now.sharing {
            tables.set("evidence of sharing", sharing.evidence.len(), sharing.evidence.bytes());
        }
        drop(now);
        if let Some(scheduling) = &self.scheduling {
            scheduling.measure(tables);
        }
    }

    fn wants_code(&self) -> bool {
        self.decider.wants_code()
    }
}
