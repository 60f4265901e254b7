//! A sink that makes statistics of the scheduler's events.

use rustc_hash::FxHashSet;

use super::{Cgroups, Sink, Tables};
use crate::sample::places::CpuPlaces;
use crate::sample::sched::SchedEvent;
use crate::sample::{Comm, Sample};
use crate::sched::report::{self, By, CellOf, Labels, Line, Order};
use crate::sched::{Gaps, Stats, Tracker};

/// Statistics of the scheduler's events. They are complete when the session has ended.
#[derive(Debug, Default)]
pub struct SchedStats {
    tracker: Tracker,
    stats: Stats,
    labels: Labels,
}

impl SchedStats {
    /// With the places of CPUs, for the distances of migrations; the threads of `own_pid` are left out of the lines.
    #[must_use]
    pub fn new(places: CpuPlaces, own_pid: Option<u32>) -> Self {
        Self { stats: Stats::new(places), labels: Labels { own_pid, ..Labels::default() }, ..Self::default() }
    }

    /// The lines of `by`, all of them, sorted. Lines by cell need `cell_of`, which gives the cell of a cgroup's path and a
    /// thread's name.
    #[must_use]
    pub fn lines(&self, by: By, order: Order, cell_of: CellOf<'_>) -> Vec<Line> {
        report::lines((&self.stats, self.tracker.threads()), by, order, self.window(), &self.labels, cell_of)
    }

    /// All threads as one line without those of the own process, and those as another.
    #[must_use]
    pub fn totals(&self) -> (Line, Line) {
        report::totals(&self.stats, self.tracker.threads(), &self.labels)
    }

    /// ns from the first event to the last.
    #[must_use]
    pub fn window(&self) -> u64 {
        self.tracker.span().map_or(0, |(first, last)| last - first)
    }

    /// Events that were used.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.tracker.events()
    }

    /// What could not be followed.
    #[must_use]
    pub fn gaps(&self) -> Gaps {
        self.tracker.gaps()
    }

    /// Threads that have ended; their statistics are added up by process, cgroup and name.
    #[must_use]
    pub fn folded(&self) -> u64 {
        self.stats.folded()
    }

    /// Threads that were runnable at the end without a CPU, and the longest of these waits in ns: they are in no statistic.
    #[must_use]
    pub fn still_waiting(&self) -> (u64, u64) {
        self.tracker.still_waiting()
    }
}

impl Sink for SchedStats {
    fn sample(&mut self, _: &Sample, _: &mut Cgroups) {}

    fn samples(&mut self, _: &[Sample], _: &mut Cgroups) {}

    fn sched(&mut self, events: &[SchedEvent], _: &mut Cgroups) {
        for event in events {
            self.tracker.take(event, &mut self.stats);
        }
    }

    fn processes(&mut self, names: &[(u32, Comm)], cgroups: &mut Cgroups) {
        self.labels.processes.extend(names.iter().copied());
        let threads = self.stats.threads(self.tracker.threads()).map(|(thread, _)| thread.cgroup);
        let ids: FxHashSet<u64> = threads.chain(self.stats.ended().map(|(class, _)| class.cgroup)).collect();
        for id in ids.into_iter().filter(|&id| id != 0) {
            if let Some(path) = cgroups.path(id) {
                self.labels.cgroups.insert(id, path.to_vec());
            }
        }
    }

    fn measure(&self, tables: &mut Tables) {
        tables.set("threads that the scheduler runs", self.tracker.threads().len(), self.tracker.threads().bytes());
        tables.set("statistics of threads and CPUs", self.stats.rows(), self.stats.bytes());
    }
}
