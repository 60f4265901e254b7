//! The sink of a live capture of memory: it counts accesses, and passes each sharing window to the evaluation.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use rustc_hash::FxHashMap;

use super::evaluate::Window;
use super::scheduling;
use super::shared::Shared;
use crate::decider::Decider;
use crate::outcome::Outcome;
use crate::resolve::Cgroups;
use crate::sample::sched::SchedEvent;
use crate::sample::{Comm, Sample, Source, ThreadIndex};
use crate::sampler::loss::Loss;
use crate::session::running::Plan;
use crate::session::{Meanwhile, Sink};
use scxprof_base::tables::Tables;

/// The first sharing window ends after this time, so that a result is shown soon.
const FIRST: u64 = 2_000_000_000;
/// The kernel's own counts of losses are read this often; that takes a system call for each event.
const READ_LOSS: u64 = 10_000_000_000;
/// Paths of cgroups that are kept.
const MAX_CGROUPS: usize = 1 << 14;

/// Makes the [`Decider`] of a window.
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

/// A sharing window that is over.
#[derive(Debug)]
struct Over {
    decider: Decider,
    ns: u64,
    /// The accesses of all windows until then.
    accesses: u64,
}

/// The sink.
#[derive(Debug)]
pub(super) struct MemorySink {
    shared: Arc<Shared>,
    /// Takes the scheduling events of a feed, which has both.
    scheduling: Option<scheduling::Handle>,
    to: Sender<Window>,
    deciders: Deciders,
    decider: Decider,
    /// The length of a sharing window, ns.
    length: u64,
    /// The window of the statistics, and that of sharing; `None` before the first sample.
    statistics: Option<Span>,
    sharing: Option<Span>,
    /// The last sharing window, until the names of its memory are known.
    over: Option<Over>,
    number: u64,
    /// A window of statistics has ended since names were last read.
    is_stale: bool,
    accesses: u64,
    /// The time of the last sample.
    last: u64,
    /// When losses were read last.
    loss_read: u64,
    /// The losses and the accesses before this sharing window.
    before: (Loss, u64),
}

impl MemorySink {
    /// The windows begin at `begin`, or with the first sample.
    pub(super) fn new(
        shared: Arc<Shared>,
        scheduling: Option<scheduling::Handle>,
        to: Sender<Window>,
        deciders: Deciders,
        length: Duration,
        begin: Option<u64>,
    ) -> Self {
        let decider = deciders.next();
        let length = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX).max(1);
        let mut sink = Self {
            shared,
            scheduling,
            to,
            deciders,
            decider,
            length,
            statistics: None,
            sharing: None,
            over: None,
            number: 0,
            is_stale: false,
            accesses: 0,
            last: 0,
            loss_read: 0,
            before: (Loss::default(), 0),
        };
        if let Some(begin) = begin {
            sink.begin(begin);
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
            if self.scheduling.is_some() {
                // A feed can wait.
                self.shared.wait(Duration::MAX, |now| !now.is_evaluating);
            }
            if self.over.is_none() && !self.shared.lock().is_evaluating {
                let decider = std::mem::replace(&mut self.decider, self.deciders.next());
                self.over = Some(Over { decider, ns: sharing.end - sharing.begin, accesses: self.accesses });
                *sharing = Span { begin: next, end: next.saturating_add(self.length) };
            } else {
                // The one before is still being evaluated: this one goes on.
                sharing.end = next.saturating_add(self.length);
                self.shared.lock().late_windows += 1;
            }
        }
        statistics.end.min(sharing.end)
    }

    /// The window of the statistics has another length: it ends earlier if that is shorter.
    fn cut(&mut self, time: u64) {
        let interval = self.shared.lock().interval.max(1);
        if let Some(statistics) = &mut self.statistics {
            statistics.end = statistics.end.min(time.max(statistics.begin.saturating_add(interval)));
        }
    }

    /// Looks up the names for the counts.
    fn refresh(&mut self, time: u64, now: &dyn Meanwhile, cgroups: &mut Cgroups) {
        self.know(now.process_names().into_iter().collect(), cgroups);
        let loss = (time.saturating_sub(self.loss_read) >= READ_LOSS).then(|| now.loss());
        let notes = now.notes();
        let mut shared = self.shared.lock();
        (shared.accesses, shared.notes) = (self.accesses, notes);
        if let Some(loss) = loss {
            (shared.loss, self.loss_read) = (loss, time);
        }
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

    /// Passes the ended window to the evaluation, with the names of its memory and code that are known.
    fn hand_over(&mut self, now: &dyn Meanwhile, cgroups: &mut Cgroups) {
        let Some(mut over) = self.over.take() else { return };
        over.decider.ended(&now.thread_names());
        over.decider.processes(&now.process_names(), cgroups);
        let loss = now.loss();
        self.shared.lock().loss = loss;
        let outcome =
            Outcome { modules: now.modules(), address_spaces: now.address_spaces(), ..self.counts(&over, &loss) };
        self.send(over, outcome);
    }

    /// The counts of a window.
    fn counts(&mut self, over: &Over, loss: &Loss) -> Outcome {
        let of_window = loss.since(&self.before.0);
        let accesses = over.accesses - self.before.1;
        self.before = (*loss, over.accesses);
        Outcome {
            samples: of_window.samples,
            accesses,
            events: of_window.samples,
            duration: Duration::from_nanos(over.ns),
            loss: of_window,
            ..Outcome::default()
        }
    }

    /// The evaluation has room for one window, and none is being evaluated.
    fn send(&mut self, Over { decider, ns, .. }: Over, outcome: Outcome) {
        let window = Window { number: self.number, seconds: ns as f64 / 1e9, decider, outcome };
        self.number += 1;
        self.shared.lock().is_evaluating = true;
        if self.to.send(window).is_err() {
            // Its thread died, and said so.
            self.shared.evaluated_all();
        }
    }

    /// The capture has ended: evaluates the last accesses, if they fill at least half a window or there was no window before.
    pub(super) fn finish(mut self, outcome: Outcome) {
        let mut now = self.shared.lock();
        (now.loss, now.accesses) = (outcome.loss, self.accesses);
        now.counts.end_window();
        // The last window is as long as there were samples.
        now.window = self.last.saturating_sub(self.statistics.map_or(0, |statistics| statistics.begin)).max(1);
        drop(now);
        let named = |counts: Outcome| Outcome {
            modules: outcome.modules.clone(),
            address_spaces: outcome.address_spaces.clone(),
            ..counts
        };
        if let Some(over) = self.over.take() {
            let counts = self.counts(&over, &outcome.loss);
            self.send(over, named(counts));
        }
        let begin = self.sharing.map_or(0, |sharing| sharing.begin);
        let ns = self.last.saturating_sub(begin);
        let is_first = self.number == 0;
        if is_first || ns >= self.length / 2 {
            let decider = std::mem::replace(&mut self.decider, self.deciders.next());
            let ns = if is_first { outcome.duration.as_nanos() as u64 } else { ns };
            let over = Over { decider, ns, accesses: self.accesses };
            let counts = self.counts(&over, &outcome.loss);
            self.send(over, if is_first { outcome } else { named(counts) });
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
        let time = now.complete_until();
        // At the end it is the end of time.
        if self.statistics.is_some() && time < u64::MAX {
            self.until(time);
            self.cut(time);
        }
        if std::mem::take(&mut self.is_stale) {
            self.refresh(time, now, cgroups);
        }
        self.hand_over(now, cgroups);
    }

    fn ended(&mut self, names: &[(ThreadIndex, Comm)]) {
        if let Some(over) = &mut self.over {
            over.decider.ended(names);
        }
        self.decider.ended(names);
    }

    fn processes(&mut self, names: &[(u32, Comm)], cgroups: &mut Cgroups) {
        if let Some(over) = &mut self.over {
            over.decider.processes(names, cgroups);
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
        let evidence = now.sharing.as_ref().map_or((0, 0), |it| (it.evidence.len(), it.evidence.bytes()));
        tables.set("evidence of sharing", evidence.0, evidence.1);
        drop(now);
        if let Some(scheduling) = &self.scheduling {
            scheduling.measure(tables);
        }
    }

    fn wants_code(&self) -> bool {
        self.decider.wants_code()
    }
}
