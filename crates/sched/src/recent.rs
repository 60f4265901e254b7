//! Statistics of the last window of time, while events come.

use std::sync::Arc;

use super::dsqs::{self, DsqLine, Dsqs};
use super::report::{self, By, CellOf, Labels, Line, Order};
use super::{Fact, Facts, Stats, Threads, Tracker};
use scxprof_base::sample::places::CpuPlaces;

/// Adds up facts in windows that follow each other, and keeps the last complete one. A thread that is on a CPU when a window ends has
/// run in it until then, and goes on in the next one: so the times on CPUs add up to the length of the window. Waits and sleeps count in
/// the window in which they end.
#[derive(Debug)]
pub struct Recent {
    length: u64,
    /// The beginning and the end of the window that facts are added to; `None` before the first event.
    open: Option<(u64, u64)>,
    /// The latest time that was told.
    now: u64,
    stats: Stats,
    dsqs: Dsqs,
    last: Option<Arc<RecentWindow>>,
}

/// A window that is complete, and does not change any more.
#[derive(Debug)]
pub struct RecentWindow {
    length: u64,
    stats: Stats,
    /// Those with an entry in `stats`, as they were at the end of the window.
    threads: Threads,
    dsqs: Vec<DsqLine>,
}

impl RecentWindow {
    /// Its length, ns.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The lines of `by`, as [`report::lines`].
    #[must_use]
    pub fn lines(&self, by: By, order: Order, labels: &Labels, cell_of: CellOf<'_>) -> Vec<Line> {
        report::lines((&self.stats, &self.threads), by, order, self.length, labels, cell_of)
    }

    /// ns on a CPU of each thread that lived at the end, by thread id.
    pub fn run(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.stats.threads(&self.threads).map(|(thread, row)| (thread.tid, row.run.sum()))
    }

    /// The dispatch queues.
    #[must_use]
    pub fn dsqs(&self) -> &[DsqLine] {
        &self.dsqs
    }
}

impl Recent {
    /// Windows of `length` ns, at least 1; `places` are those of CPUs, for the distance of migrations.
    #[must_use]
    pub fn new(places: CpuPlaces, length: u64) -> Self {
        let stats = Stats::new(places);
        Self { length: length.max(1), open: None, now: 0, stats, dsqs: Dsqs::default(), last: None }
    }

    /// Windows have this many ns from now on. If that is shorter, the window that is open ends earlier, but not before now.
    pub fn set_length(&mut self, length: u64) {
        self.length = length.max(1);
        if let Some((begin, end)) = &mut self.open {
            *end = (*end).min(self.now.max(begin.saturating_add(self.length)));
        }
    }

    /// It is `time`: ends the window if it is over. To be called before each event, and when there is none for long.
    pub fn until(&mut self, time: u64, tracker: &Tracker) {
        self.now = self.now.max(time);
        let (begin, end) = *self.open.get_or_insert((time, time.saturating_add(self.length)));
        if time < end {
            return;
        }
        self.end(begin, end, tracker);
        let over = (time - end) / self.length;
        let next = end.saturating_add(over.saturating_mul(self.length));
        if over > 0 {
            // Nothing happened in the windows between. Of the last of them, it is known what ran.
            let begin = next - self.length;
            self.dsqs = self.dsqs.carried(begin);
            self.end(begin, next, tracker);
        }
        self.open = Some((next, next.saturating_add(self.length)));
    }

    fn end(&mut self, begin: u64, end: u64, tracker: &Tracker) {
        self.open = Some((begin, end));
        for (cpu, thread, is_thread, since) in tracker.on_cpus() {
            if since < end {
                self.fact(tracker.threads(), &Fact::Ran { cpu, thread, is_thread, from: since, until: end });
            }
        }
        let next = Stats::new(self.stats.places().clone());
        let stats = std::mem::replace(&mut self.stats, next);
        let has_row = |slot| stats.thread(slot).is_some_and(|row| !row.is_empty()) || stats.left(slot).next().is_some();
        let threads = tracker.threads().copy_of(has_row);
        let dsqs = dsqs::lines(&self.dsqs, end - begin, end);
        self.dsqs = self.dsqs.carried(end);
        self.last = Some(Arc::new(RecentWindow { length: end - begin, stats, threads, dsqs }));
    }

    /// The last complete window; `None` if there is none yet.
    #[must_use]
    pub fn last(&self) -> Option<&Arc<RecentWindow>> {
        self.last.as_ref()
    }

    /// Rows, and bytes of memory, about.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        let last = self.last.as_deref();
        let threads = last.map_or(0, |last| last.threads.bytes());
        let all = last.map(|last| &last.stats).into_iter().chain([&self.stats]);
        let sizes = all.map(|stats| (stats.rows(), stats.bytes()));
        sizes.fold((0, threads + self.dsqs.bytes()), |sum, size| (sum.0 + size.0, sum.1 + size.1))
    }
}

impl Facts for Recent {
    fn fact(&mut self, threads: &Threads, fact: &Fact) {
        let fact = match *fact {
            // What came before this window was counted there.
            Fact::Ran { cpu, thread, is_thread, from, until } => {
                let from = from.max(self.open.map_or(0, |open| open.0)).min(until);
                Fact::Ran { cpu, thread, is_thread, from, until }
            }
            fact => fact,
        };
        self.stats.fact(threads, &fact);
        self.dsqs.fact(threads, &fact);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scxprof_base::sample::sched::{SchedEvent, SchedTask, SchedWhat, TaskState};
    use scxprof_base::sample::Comm;

    fn switch(time: u64, cpu: u32, prev: u32, next: u32) -> SchedEvent {
        let task = |tid: u32| SchedTask { tid, prio: 120, comm: Comm::from(format!("t{tid}").as_str()) };
        let state = TaskState::Runnable;
        let what = SchedWhat::Switch { prev: task(prev), state, next: task(next) };
        SchedEvent { time, cpu, pid: prev, tid: prev, cgroup: 0, what }
    }

    fn run_of(recent: &Recent, tid: u32) -> u64 {
        recent.last().unwrap().run().filter(|it| it.0 == tid).map(|it| it.1).sum()
    }

    #[test]
    fn what_is_on_a_cpu_ran_in_each_window() {
        let (mut tracker, mut recent) = (Tracker::default(), Recent::new(CpuPlaces::default(), 100));
        let take = |tracker: &mut Tracker, recent: &mut Recent, event: SchedEvent| {
            recent.until(event.time, tracker);
            tracker.take(&event, recent);
        };
        take(&mut tracker, &mut recent, switch(1000, 0, 0, 5));
        take(&mut tracker, &mut recent, switch(1040, 0, 5, 6));
        assert!(recent.last().is_none());
        // In the next window, thread 6 still runs.
        take(&mut tracker, &mut recent, switch(1170, 0, 6, 5));
        assert_eq!((recent.last().unwrap().length(), run_of(&recent, 5), run_of(&recent, 6)), (100, 40, 60));
        // Nothing for long: of the last complete window, thread 5 has all.
        recent.until(1512, &tracker);
        assert_eq!((run_of(&recent, 5), run_of(&recent, 6)), (100, 0));
        take(&mut tracker, &mut recent, switch(1530, 0, 5, 0));
        take(&mut tracker, &mut recent, switch(1580, 0, 0, 6));
        recent.until(1600, &tracker);
        assert_eq!((run_of(&recent, 5), run_of(&recent, 6)), (30, 20));
        let cpus = recent.last().unwrap().lines(By::Cpu, Order::Run, &Labels::default(), &|_| String::new());
        let idle = cpus.first().and_then(|line| line.cpu).map(|cpu| (cpu.idle_ns, cpu.unknown_ns));
        assert_eq!(idle, Some((50, 0)), "{cpus:?}");
    }

    #[test]
    fn a_complete_window_does_not_change() {
        let (mut tracker, mut recent) = (Tracker::default(), Recent::new(CpuPlaces::default(), 100));
        let take = |tracker: &mut Tracker, recent: &mut Recent, event: SchedEvent| {
            recent.until(event.time, tracker);
            tracker.take(&event, recent);
        };
        for event in [switch(1000, 0, 0, 5), switch(1050, 0, 5, 6)] {
            take(&mut tracker, &mut recent, event);
        }
        recent.until(1100, &tracker);
        let lines = |recent: &Recent| {
            let window = recent.last().unwrap();
            window.lines(By::Thread, Order::Name, &Labels::default(), &|_| String::new())
        };
        let before = lines(&recent);
        // A thread of it ends, another one has its place, and a third comes and goes.
        let dead = |mut event: SchedEvent| {
            if let SchedWhat::Switch { state, .. } = &mut event.what {
                *state = TaskState::Dead;
            }
            event
        };
        for event in [switch(1110, 0, 6, 5), dead(switch(1120, 0, 5, 7)), dead(switch(1130, 0, 7, 8))] {
            take(&mut tracker, &mut recent, event);
        }
        assert_eq!(lines(&recent), before);
        assert_eq!(before.len(), 2);
        // Thread 6 slept all the time: it is not in the next window but one.
        recent.until(1300, &tracker);
        let names: Vec<String> = lines(&recent).into_iter().map(|line| line.name).collect();
        assert_eq!(names, ["t8"]);
    }

    #[test]
    fn another_length_cuts_the_open_window() {
        let (mut tracker, mut recent) = (Tracker::default(), Recent::new(CpuPlaces::default(), 1000));
        let event = switch(5000, 0, 0, 5);
        recent.until(event.time, &tracker);
        tracker.take(&event, &mut recent);
        recent.until(5700, &tracker);
        recent.set_length(100);
        recent.until(5701, &tracker);
        assert_eq!((recent.last().unwrap().length(), run_of(&recent, 5)), (700, 700));
        recent.set_length(400);
        recent.until(5900, &tracker);
        assert_eq!(recent.last().unwrap().length(), 100);
        recent.until(6300, &tracker);
        assert_eq!((recent.last().unwrap().length(), run_of(&recent, 5)), (400, 400));
    }
}
