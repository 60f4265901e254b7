//! Statistics of the last window of time, while events come.

use super::dsqs::{self, DsqLine, Dsqs};
use super::report::{self, By, CellOf, Labels, Line, Order};
use super::{Fact, Facts, Stats, Threads, Tracker};
use scxprof_base::sample::places::CpuPlaces;

/// Adds up facts in windows of the same length, and keeps the last complete window. A thread that is on a CPU when a window ends has run
/// in it until then, and goes on in the next one: so the times on CPUs add up to the length of the window. Waits and sleeps count in
/// the window in which they end.
#[derive(Debug)]
pub struct Recent {
    length: u64,
    /// The beginning of the window that facts are added to; `None` before the first event.
    begin: Option<u64>,
    stats: Stats,
    dsqs: Dsqs,
    last: Option<Window>,
}

/// A window that is complete.
#[derive(Debug)]
struct Window {
    length: u64,
    stats: Stats,
    dsqs: Vec<DsqLine>,
}

impl Recent {
    /// Windows of `length` ns, at least 1; `places` are those of CPUs, for the distance of migrations.
    #[must_use]
    pub fn new(places: CpuPlaces, length: u64) -> Self {
        Self { length: length.max(1), begin: None, stats: Stats::new(places), dsqs: Dsqs::default(), last: None }
    }

    /// Windows have this many ns from now on.
    pub fn set_length(&mut self, length: u64) {
        self.length = length.max(1);
    }

    /// It is `time`: ends the window if it is over. To be called before each event, and when there is none for long.
    pub fn until(&mut self, time: u64, tracker: &Tracker) {
        let begin = *self.begin.get_or_insert(time);
        let over = time.saturating_sub(begin) / self.length;
        if over == 0 {
            return;
        }
        self.end(begin, tracker);
        if over > 1 {
            // The windows between had no events. Of the last of them is known what ran.
            self.end(begin + (over - 1) * self.length, tracker);
        }
    }

    /// Ends the window that began at `begin`.
    fn end(&mut self, begin: u64, tracker: &Tracker) {
        let end = begin + self.length;
        self.begin = Some(begin);
        for (cpu, thread, is_thread, since) in tracker.on_cpus() {
            if since < end {
                self.fact(tracker.threads(), Fact::Ran { cpu, thread, is_thread, from: since, until: end });
            }
        }
        let next = Stats::new(self.stats.places().clone());
        let stats = std::mem::replace(&mut self.stats, next);
        let dsqs = dsqs::lines(&self.dsqs, self.length, end);
        self.dsqs = self.dsqs.carried(end);
        self.last = Some(Window { length: self.length, stats, dsqs });
        self.begin = Some(end);
    }

    /// The length of the last complete window, ns; 0 if there is none yet.
    #[must_use]
    pub fn window(&self) -> u64 {
        self.last.as_ref().map_or(0, |last| last.length)
    }

    /// The lines of the last complete window, as [`report::lines`].
    #[must_use]
    pub fn lines(&self, threads: &Threads, by: By, order: Order, labels: &Labels, cell_of: CellOf<'_>) -> Vec<Line> {
        let Some(last) = &self.last else { return Vec::new() };
        report::lines((&last.stats, threads), by, order, last.length, labels, cell_of)
    }

    /// ns on a CPU of each thread in the last complete window, by thread id.
    pub fn run<'a>(&'a self, threads: &'a Threads) -> impl Iterator<Item = (u32, u64)> + 'a {
        let last = self.last.iter();
        last.flat_map(|last| last.stats.threads(threads)).map(|(thread, row)| (thread.tid, row.run.sum()))
    }

    /// The dispatch queues of the last complete window.
    #[must_use]
    pub fn dsqs(&self) -> &[DsqLine] {
        self.last.as_ref().map_or(&[], |last| &last.dsqs)
    }

    /// Rows, and bytes of memory, about.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        let all = self.last.iter().map(|last| &last.stats).chain([&self.stats]);
        all.fold((0, self.dsqs.bytes()), |(rows, bytes), stats| (rows + stats.rows(), bytes + stats.bytes()))
    }
}

impl Facts for Recent {
    fn fact(&mut self, threads: &Threads, fact: Fact) {
        // What is known of a thread by its slot must leave the slot with it.
        if let (Fact::Ended { .. } | Fact::Left { .. }, Some(last)) = (fact, &mut self.last) {
            last.stats.fact(threads, fact);
        }
        let fact = match fact {
            // What came before this window was counted there.
            Fact::Ran { cpu, thread, is_thread, from, until } => {
                let from = from.max(self.begin.unwrap_or(0)).min(until);
                Fact::Ran { cpu, thread, is_thread, from, until }
            }
            fact => fact,
        };
        self.stats.fact(threads, fact);
        self.dsqs.fact(threads, fact);
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

    fn run_of(recent: &Recent, tracker: &Tracker, tid: u32) -> u64 {
        recent.run(tracker.threads()).filter(|it| it.0 == tid).map(|it| it.1).sum()
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
        assert_eq!(recent.window(), 0);
        // In the next window, thread 6 still runs.
        take(&mut tracker, &mut recent, switch(1170, 0, 6, 5));
        assert_eq!((recent.window(), run_of(&recent, &tracker, 5), run_of(&recent, &tracker, 6)), (100, 40, 60));
        // Nothing for long: of the last complete window, thread 5 has all.
        recent.until(1512, &tracker);
        assert_eq!((run_of(&recent, &tracker, 5), run_of(&recent, &tracker, 6)), (100, 0));
        take(&mut tracker, &mut recent, switch(1530, 0, 5, 0));
        take(&mut tracker, &mut recent, switch(1580, 0, 0, 6));
        recent.until(1600, &tracker);
        assert_eq!((run_of(&recent, &tracker, 5), run_of(&recent, &tracker, 6)), (30, 20));
        let cpus = recent.lines(tracker.threads(), By::Cpu, Order::Run, &Labels::default(), &|_| String::new());
        let idle = cpus.first().and_then(|line| line.cpu).map(|cpu| (cpu.idle_ns, cpu.unknown_ns));
        assert_eq!(idle, Some((50, 0)), "{cpus:?}");
    }
}
