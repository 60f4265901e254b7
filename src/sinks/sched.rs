//! A sink that makes statistics of the scheduler's events.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::sink::Sink;
use crate::resolve::Cgroups;
use crate::sample::places::CpuPlaces;
use crate::sample::sched::SchedEvent;
use crate::sample::{Comm, Sample, Task};
use scxprof_base::tables::Tables;
use scxprof_sched::dsqs::{self, DsqLine, Dsqs};
use scxprof_sched::report::{self, By, CellOf, Labels, Line, Order};
use scxprof_sched::wakers::report::{self as wakers, Level, Within};
use scxprof_sched::wakers::{Edge, Locality};
use scxprof_sched::{Class, Fact, Facts, Gaps, Recent, RecentWindow, Stats, Threads, Tracker, Unwoken, Wakers};
use scxprof_trace::Event;

/// Statistics of the scheduler's events. They are complete when the session has ended.
#[derive(Debug, Default)]
pub struct SchedSink {
    tracker: Tracker,
    stats: Stats,
    dsqs: Dsqs,
    wakers: Option<Wakers>,
    recent: Option<Recent>,
    labels: Labels,
}

/// Gives each fact to all.
struct All<'a> {
    stats: &'a mut Stats,
    dsqs: &'a mut Dsqs,
    wakers: Option<&'a mut Wakers>,
    recent: Option<&'a mut Recent>,
}

impl Facts for All<'_> {
    #[inline]
    fn fact(&mut self, threads: &Threads, fact: &Fact) {
        self.stats.fact(threads, fact);
        self.dsqs.fact(threads, fact);
        if let Some(wakers) = &mut self.wakers {
            wakers.fact(threads, fact);
        }
        if let Some(recent) = &mut self.recent {
            recent.fact(threads, fact);
        }
    }
}

impl SchedSink {
    /// With the places of CPUs, for the distances of migrations; the threads of `own_pid` are left out of the lines.
    #[must_use]
    pub fn new(places: CpuPlaces, own_pid: Option<u32>) -> Self {
        Self { stats: Stats::new(places), labels: Labels { own_pid, ..Labels::default() }, ..Self::default() }
    }

    /// Before `time` not all CPUs were observed; see [`Tracker::unobserved_before`].
    pub fn unobserved_before(&mut self, time: u64) {
        self.tracker.unobserved_before(time);
    }

    /// The same, and follows the task hints of threads, for lines by cell: a run or a wait counts for the hint that the thread has at its
    /// end. Wakeups know no hints.
    #[must_use]
    pub fn with_hints(mut self) -> Self {
        self.tracker.follow_hints();
        self
    }

    /// True if hints were followed, and a thread had one.
    #[must_use]
    pub fn has_hints(&self) -> bool {
        self.tracker.threads().have_hints()
    }

    /// The same, and which threads wake each other; this costs time at each wakeup.
    #[must_use]
    pub fn with_wakers(mut self) -> Self {
        self.wakers = Some(Wakers::new(self.stats.places().clone(), self.labels.own_pid));
        self
    }

    /// The same, and the statistics of the last window of `length` ns: [`SchedSink::recent`] has them.
    #[must_use]
    pub fn with_windows(mut self, length: u64) -> Self {
        self.recent = Some(Recent::new(self.stats.places().clone(), length));
        self
    }

    /// The last complete window; `None` without [`SchedSink::with_windows`], and before it is over.
    #[must_use]
    pub fn recent(&self) -> Option<&Arc<RecentWindow>> {
        self.recent.as_ref().and_then(Recent::last)
    }

    /// Windows have this many ns from now on.
    pub(crate) fn set_window(&mut self, length: u64) {
        if let Some(recent) = &mut self.recent {
            recent.set_length(length);
        }
    }

    /// It is `time`, of the clock of the events: a window that is over ends, also if no event comes.
    pub(crate) fn until(&mut self, time: u64) {
        if let Some(recent) = &mut self.recent {
            recent.until(time, &self.tracker);
        }
    }

    #[inline]
    fn take(&mut self, event: &SchedEvent) {
        let Self { tracker, stats, dsqs, wakers, recent, .. } = self;
        if let Some(recent) = recent {
            recent.until(event.time, tracker);
        }
        let all = &mut All { stats, dsqs, wakers: wakers.as_mut(), recent: recent.as_mut() };
        tracker.take(event, all);
    }

    /// The names of threads in lines.
    pub(crate) fn labels(&self) -> &Labels {
        &self.labels
    }

    /// These are the names of processes now; `cgroups` has the paths of cgroups. What is in no statistic any more is forgotten.
    pub(crate) fn know(&mut self, processes: &[(u32, Comm)], cgroups: &mut Cgroups) {
        self.labels.processes = processes.iter().copied().collect();
        let ids = self.cgroup_ids();
        self.labels.cgroups.retain(|id, _| ids.contains(id));
        self.find_paths(&ids, cgroups);
    }

    /// The cgroups of all statistics.
    fn cgroup_ids(&self) -> FxHashSet<u64> {
        let of_wakers = self.wakers.iter().flat_map(Wakers::cgroups);
        self.stats.cgroups(self.tracker.threads()).chain(of_wakers).filter(|&id| id != 0).collect()
    }

    fn find_paths(&mut self, ids: &FxHashSet<u64>, cgroups: &mut Cgroups) {
        for &id in ids {
            if let Some(path) = cgroups.path(id) {
                self.labels.cgroups.insert(id, path.to_vec());
            }
        }
    }

    /// Which threads wake each other, with at most `limit` edges and lines of preemptions; `None` without [`SchedSink::with_wakers`].
    #[must_use]
    pub fn wakers(&self, level: Level, limit: usize) -> Option<wakers::Report> {
        Some(wakers::report((self.wakers.as_ref()?, self.tracker.threads()), level, limit, &self.labels))
    }

    /// How many wakeups by threads stay within a group, which `group_of` gives for a thread. `None`
    /// without [`SchedSink::with_wakers`].
    #[must_use]
    pub fn within(&self, group_of: &dyn Fn(&Task<'_>) -> Option<String>) -> Option<Within> {
        Some(wakers::within(self.wakers.as_ref()?, self.tracker.threads(), &|class| group_of(&self.task(class))))
    }

    /// The wakeups by threads of one group of threads of another one, by the names of both: the waker's first. Groups are as for
    /// [`SchedSink::within`]. There are none without [`SchedSink::with_wakers`].
    #[must_use]
    pub fn wakeups_between(
        &self,
        group_of: &dyn Fn(&Task<'_>) -> Option<String>,
    ) -> BTreeMap<(Option<String>, Option<String>), u64> {
        let Some(wakers) = &self.wakers else { return BTreeMap::new() };
        wakers::between(wakers, self.tracker.threads(), &|class| group_of(&self.task(class)))
    }

    /// The paths of the cgroups of threads, as far as they are known; when the last event was given.
    pub(crate) fn cgroup_paths(&self) -> impl Iterator<Item = &[u8]> {
        self.labels.cgroups.values().map(|path| &path[..])
    }

    /// A thread of a class of wakeups, whose hint is not known.
    fn task<'a>(&'a self, class: &'a Class) -> Task<'a> {
        self.labels.task(class)
    }

    /// The wakeups between threads: thread id of the waker, and of the woken thread. Who knows which threads share memory can tell
    /// those that carry data. There are none without [`SchedSink::with_wakers`].
    pub fn wakeup_pairs(&self) -> impl Iterator<Item = (u32, u32, &Edge)> {
        self.wakers.iter().flat_map(|wakers| wakers.pairs(self.tracker.threads()))
    }

    /// Wakeups by threads whose wait is known, by distance; none without [`SchedSink::with_wakers`].
    #[must_use]
    pub fn wakeup_places(&self) -> Locality {
        self.wakers.as_ref().map_or(Locality::default(), |wakers| wakers.places().0)
    }

    /// The lines of `by`, all of them, sorted. Lines by cell need `cell_of`, which gives the cell of a
    /// thread.
    #[must_use]
    pub fn lines(&self, by: By, order: Order, cell_of: CellOf<'_>) -> Vec<Line> {
        report::lines((&self.stats, self.tracker.threads()), by, order, self.window(), &self.labels, cell_of)
    }

    /// The dispatch queues of the sched_ext scheduler, the one that most threads entered first; none without
    /// `SchedOptions::dsq`, without such a scheduler, and where BPF is refused.
    #[must_use]
    pub fn dsqs(&self) -> Vec<DsqLine> {
        dsqs::lines(&self.dsqs, self.window(), self.tracker.span().map_or(0, |(_, last)| last))
    }

    /// Times that a thread of a sched_ext scheduler got a CPU from a dispatch queue that is not known; see [`Dsqs::unknown`].
    #[must_use]
    pub fn unknown_dsqs(&self) -> u64 {
        self.dsqs.unknown()
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

    /// See [`Tracker::is_of_some_threads`].
    #[must_use]
    pub fn is_of_some_threads(&self) -> bool {
        self.tracker.is_of_some_threads()
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

    /// Sleeps that no wakeup ended: they are in no statistic.
    #[must_use]
    pub fn unwoken(&self) -> Unwoken {
        self.tracker.unwoken()
    }
}

impl Sink for SchedSink {
    fn sample(&mut self, _: &Sample, _: &mut Cgroups) {}

    fn samples(&mut self, _: &[Sample], _: &mut Cgroups) {}

    fn sched(&mut self, events: &[SchedEvent], _: &mut Cgroups) {
        for event in events {
            self.take(event);
        }
    }

    fn events(&mut self, events: &[Event], _: &mut Cgroups) {
        for event in events {
            match event {
                Event::Sched(event) => self.take(event),
                // Only those of wprof's queues are any.
                Event::Trace(_) => event.scheduling().iter().for_each(|event| self.take(event)),
            }
        }
    }

    fn processes(&mut self, names: &[(u32, Comm)], cgroups: &mut Cgroups) {
        self.labels.processes.extend(names.iter().copied());
        let ids = self.cgroup_ids();
        self.find_paths(&ids, cgroups);
    }

    fn measure(&self, tables: &mut Tables) {
        tables.set("threads that the scheduler runs", self.tracker.threads().len(), self.tracker.threads().bytes());
        tables.set("statistics of threads and CPUs", self.stats.rows(), self.stats.bytes());
        tables.set("dispatch queues", self.dsqs.len(), self.dsqs.bytes());
        let Labels { processes, cgroups, .. } = &self.labels;
        let bytes = cgroups.values().map(Vec::capacity).sum::<usize>();
        let names = "names of the scheduler's threads";
        tables.set_map::<(u64, Vec<u8>)>(
            names,
            processes.len() + cgroups.len(),
            processes.capacity() + cgroups.capacity(),
            bytes,
        );
        if let Some(recent) = &self.recent {
            let (rows, bytes) = recent.size();
            tables.set("statistics of the last window", rows, bytes);
        }
        if let Some(wakers) = &self.wakers {
            tables.set("wakeups between threads", wakers.len(), wakers.bytes());
        }
    }
}
