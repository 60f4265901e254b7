//! Statistics of threads and CPUs.

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::{Durations, Fact, Facts, Home, Slot, Sums, Thread, Threads, Why};
use scxprof_base::sample::places::{CpuPlaces, Distance};
use scxprof_base::sample::sched::TaskState;
use scxprof_base::sample::{Comm, TaskHint};

/// Rows of ended threads by process, cgroup, hint and name, of up to 10 KiB each; later ones lose their process, then all.
const MAX_ENDED: usize = 4096;
/// Rows of cgroups and hints that threads have left, of up to 10 KiB each; later ones are added to those of ended threads.
const MAX_LEFT: usize = 4096;

/// Migrations by the distance of the two CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Migrations {
    /// All of them.
    pub total: u64,
    /// Between CPUs of a core.
    pub core: u64,
    /// Between cores that share the last-level cache.
    pub llc: u64,
    /// Between last-level caches of a node.
    pub node: u64,
    /// Between nodes.
    pub nodes: u64,
}

impl Migrations {
    fn add(&mut self, distance: Option<Distance>) {
        self.total += 1;
        match distance {
            Some(Distance::Core) => self.core += 1,
            Some(Distance::Llc) => self.llc += 1,
            Some(Distance::Node) => self.node += 1,
            Some(Distance::Nodes) => self.nodes += 1,
            None => {}
        }
    }

    fn merge(&mut self, other: &Self) {
        self.total += other.total;
        self.core += other.core;
        self.llc += other.llc;
        self.node += other.node;
        self.nodes += other.nodes;
    }
}

/// Statistics of one thread, or of several. Times are ns.
#[derive(Debug, Clone, Default)]
pub struct Row {
    /// Threads that it adds up, those that only slept not included.
    pub threads: u64,
    /// Threads of these that have ended.
    pub ended: u64,
    /// Threads that it has in part, because they have moved to another cgroup or got another hint: `threads` counts them there.
    pub parts: u64,
    /// Switches to another thread while it slept or ended: its own wish.
    pub voluntary: u64,
    /// Switches to another thread while it wanted to run, those in `preempted` included.
    pub involuntary: u64,
    /// Switches of `involuntary` that came in the middle of kernel code (R+).
    pub preempted: u64,
    /// Wakeups of it, those of new threads included.
    pub wakeups: u64,
    /// Wakeups by it.
    pub wakes: u64,
    /// Moves to another CPU.
    pub migrations: Migrations,
    /// Time on a CPU, between switches that were seen, interrupts included.
    pub run: Sums,
    /// Time runnable without a CPU, after a wakeup or a preemption.
    pub wait: Sums,
    /// Sleep, interruptible.
    pub sleep: Sums,
    /// Sleep, uninterruptible, as for I/O.
    pub blocked: Sums,
    /// The waits of `wait` that began with a wakeup.
    pub latency: Durations,
    /// CPU time that the kernel charged (`sched_stat_runtime`).
    pub charged: u64,
    /// Switches to it that are its first event.
    pub first_seen: u64,
    /// Losses during which it may have run.
    pub touched: u64,
}

impl Row {
    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.threads += other.threads;
        self.ended += other.ended;
        self.parts += other.parts;
        self.voluntary += other.voluntary;
        self.involuntary += other.involuntary;
        self.preempted += other.preempted;
        self.wakeups += other.wakeups;
        self.wakes += other.wakes;
        self.migrations.merge(&other.migrations);
        self.run.merge(&other.run);
        self.wait.merge(&other.wait);
        self.sleep.merge(&other.sleep);
        self.blocked.merge(&other.blocked);
        self.latency.merge(&other.latency);
        self.charged = self.charged.saturating_add(other.charged);
        self.first_seen += other.first_seen;
        self.touched += other.touched;
    }

    /// True if nothing happened.
    pub(super) fn is_empty(&self) -> bool {
        let counts = [self.voluntary, self.involuntary, self.wakeups, self.wakes, self.migrations.total, self.charged];
        let times = [&self.run, &self.wait, &self.sleep, &self.blocked];
        counts.iter().all(|count| *count == 0) && times.iter().all(|sums| sums.count() == 0) && self.touched == 0
    }

    /// All switches from it.
    #[must_use]
    pub fn switches(&self) -> u64 {
        self.voluntary + self.involuntary
    }

    fn switched(&mut self, state: TaskState) {
        if state.is_runnable() {
            self.involuntary += 1;
            self.preempted += u64::from(state == TaskState::Preempted);
        } else {
            self.voluntary += 1;
        }
    }
}

/// Statistics of one CPU, or of several.
#[derive(Debug, Clone, Default)]
pub struct CpuRow {
    /// Of what ran on it: switches from threads, wakeups by what ran on it, migrations to it, waits that ended on it.
    pub row: Row,
    /// Switches from the idle task.
    pub from_idle: u64,
    /// ns in the idle task.
    pub idle: u64,
    /// ns in interrupts.
    pub irq: u64,
    /// ns in softirqs.
    pub softirq: u64,
    /// ns in which events were lost.
    pub lost: u64,
    /// CPUs that it adds up.
    pub cpus: u64,
}

impl CpuRow {
    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.row.merge(&other.row);
        self.from_idle += other.from_idle;
        self.idle = self.idle.saturating_add(other.idle);
        self.irq = self.irq.saturating_add(other.irq);
        self.softirq = self.softirq.saturating_add(other.softirq);
        self.lost = self.lost.saturating_add(other.lost);
        self.cpus += other.cpus;
    }

    /// ns of `window` ns in which its state was not known: before its first switch, after its last, and after losses.
    #[must_use]
    pub fn unknown(&self, window: u64) -> u64 {
        let all = window.saturating_mul(self.cpus);
        all.saturating_sub(self.row.run.sum()).saturating_sub(self.idle)
    }
}

/// The common key of ended threads, whose statistics are kept together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Class {
    /// Process id; 0 for any.
    pub pid: u32,
    /// Id of the cgroup; 0 if unknown or any.
    pub cgroup: u64,
    /// The task hint; unknown for any, and if hints are not followed.
    pub hint: TaskHint,
    /// The threads' name.
    pub comm: Comm,
}

impl Class {
    /// The same, whatever the hint.
    pub(super) fn of_any_hint(thread: &Thread) -> Self {
        Self { hint: TaskHint::Unknown, ..Self::from(thread) }
    }

    /// The same threads elsewhere.
    pub(super) fn at(self, Home { cgroup, hint }: Home) -> Self {
        Self { cgroup, hint, ..self }
    }
}

impl From<&Thread> for Class {
    fn from(&Thread { pid, cgroup, hint, comm, .. }: &Thread) -> Self {
        Self { pid, cgroup, hint, comm }
    }
}

/// Adds up facts.
#[derive(Debug, Default)]
pub struct Stats {
    places: CpuPlaces,
    rows: Vec<Row>,
    /// What threads did in the cgroups that they have left, and with the hints that they had.
    left: FxHashMap<Slot, Vec<(Home, Row)>>,
    left_rows: usize,
    ended: FxHashMap<Class, Row>,
    cpus: Vec<CpuRow>,
    /// Threads whose rows were added to others.
    folded: u64,
}

impl Stats {
    /// With the places of CPUs, for the distance of migrations.
    #[must_use]
    pub fn new(places: CpuPlaces) -> Self {
        Self { places, ..Self::default() }
    }

    /// The rows of threads that live, with the threads.
    pub fn threads<'a>(&'a self, threads: &'a Threads) -> impl Iterator<Item = (&'a Thread, &'a Row)> {
        threads.iter().filter_map(|(slot, thread)| Some((thread, self.rows.get(slot as usize)?)))
    }

    /// The row of a thread that lives, since it is in its cgroup and has its hint.
    #[must_use]
    pub fn thread(&self, slot: Slot) -> Option<&Row> {
        self.rows.get(slot as usize)
    }

    /// What a thread did in each cgroup that it has left, and with each hint that it had.
    pub fn left(&self, slot: Slot) -> impl Iterator<Item = (Home, &Row)> {
        self.left.get(&slot).into_iter().flatten().map(|(home, row)| (*home, row))
    }

    /// The cgroups of rows, some of them several times.
    pub fn cgroups<'a>(&'a self, threads: &'a Threads) -> impl Iterator<Item = u64> + 'a {
        let left = self.left.values().flatten().map(|(home, _)| home.cgroup);
        let ended = self.ended.keys().map(|class| class.cgroup);
        threads.iter().map(|(_, thread)| thread.cgroup).chain(left).chain(ended)
    }

    /// The rows of threads that have ended, by what they have in common.
    pub fn ended(&self) -> impl Iterator<Item = (&Class, &Row)> {
        self.ended.iter()
    }

    /// Threads that have ended; their statistics are added up by process, cgroup and name.
    #[must_use]
    pub fn folded(&self) -> u64 {
        self.folded
    }

    /// The rows of CPUs on which something happened.
    pub fn cpus(&self) -> impl Iterator<Item = (u32, &CpuRow)> {
        (0..).zip(&self.cpus).filter(|(_, row)| row.cpus > 0)
    }

    /// The places of CPUs.
    #[must_use]
    pub fn places(&self) -> &CpuPlaces {
        &self.places
    }

    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows.len() + self.left_rows + self.ended.len() + self.cpus.len()
    }

    /// Bytes of memory, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let left = self.left.values().flatten().map(|(_, row)| row);
        let rows = self.rows.iter().chain(left).chain(self.ended.values()).chain(self.cpus.iter().map(|cpu| &cpu.row));
        rows.map(|row| size_of::<Row>() + row.latency.bytes()).sum()
    }

    fn row(&mut self, slot: Slot) -> &mut Row {
        let at = slot as usize;
        if self.rows.len() <= at {
            self.rows.resize_with(at + 1, Row::default);
        }
        &mut self.rows[at]
    }

    fn cpu(&mut self, cpu: u32) -> &mut CpuRow {
        let at = cpu as usize;
        if self.cpus.len() <= at {
            self.cpus.resize_with(at + 1, CpuRow::default);
        }
        let row = &mut self.cpus[at];
        row.cpus = 1;
        row
    }

    /// Adds the row of an ended thread to those like it.
    fn fold(&mut self, threads: &Threads, slot: Slot) {
        let Some(thread) = threads.get(slot) else { return };
        let mut row = std::mem::take(self.row(slot));
        (row.threads, row.ended) = (1, 1);
        self.folded += 1;
        self.add_class(Class::from(thread), &row);
        for (home, row) in self.left.remove(&slot).unwrap_or_default() {
            self.left_rows -= 1;
            self.add_class(Class::from(thread).at(home), &row);
        }
    }

    /// The thread goes on in another cgroup or with another hint, where it may have been before.
    fn leave(&mut self, threads: &Threads, slot: Slot, to: Home) {
        let Some(thread) = threads.get(slot) else { return };
        let mut row = std::mem::take(self.row(slot));
        row.parts = 1;
        let left = self.left.entry(slot).or_default();
        if let Some(at) = left.iter().position(|(home, _)| *home == to) {
            let (_, mut back) = left.swap_remove(at);
            back.parts = 0;
            self.left_rows -= 1;
            *self.row(slot) = back;
        }
        if self.left_rows < MAX_LEFT {
            self.left_rows += 1;
            self.left.entry(slot).or_default().push((thread.home(), row));
        } else {
            row.parts = 0;
            self.add_class(Class::from(thread), &row);
        }
    }

    fn add_class(&mut self, mut class: Class, row: &Row) {
        if !self.ended.contains_key(&class) && self.ended.len() >= MAX_ENDED {
            self.drop_pids();
            class.pid = 0;
            if self.ended.len() >= MAX_ENDED && !self.ended.contains_key(&class) {
                class = Class::default();
            }
        }
        self.ended.entry(class).or_default().merge(row);
    }

    /// Adds the rows of ended threads up by cgroup and name only.
    fn drop_pids(&mut self) {
        if self.ended.keys().all(|class| class.pid == 0) {
            return;
        }
        for (class, row) in std::mem::take(&mut self.ended) {
            self.ended.entry(Class { pid: 0, ..class }).or_default().merge(&row);
        }
    }
}

impl Facts for Stats {
    fn fact(&mut self, threads: &Threads, fact: &Fact) {
        match *fact {
            Fact::Switched { cpu, prev, state, next, is_thread, is_first } => {
                if is_thread {
                    self.cpu(cpu).row.switched(state);
                } else {
                    self.cpu(cpu).from_idle += 1;
                }
                if let Some(prev) = prev {
                    self.row(prev).switched(state);
                }
                if let Some(next) = next.filter(|_| is_first) {
                    self.row(next).first_seen += 1;
                }
            }
            Fact::Ran { cpu, thread, is_thread, from, until } => {
                let ns = until - from;
                if is_thread {
                    self.cpu(cpu).row.run.add(ns);
                } else {
                    let cpu = self.cpu(cpu);
                    cpu.idle = cpu.idle.saturating_add(ns);
                }
                if let Some(thread) = thread {
                    self.row(thread).run.add(ns);
                }
            }
            Fact::Waited { thread, cpu, from, until, why } => {
                let ns = until - from;
                let is_woken = matches!(why, Why::Woken(_) | Why::New);
                let cpu = &mut self.cpu(cpu).row;
                cpu.wait.add(ns);
                if is_woken {
                    cpu.latency.add(ns);
                }
                let row = self.row(thread);
                row.wait.add(ns);
                if is_woken {
                    row.latency.add(ns);
                }
            }
            Fact::Slept { thread, from, until, is_blocked } => {
                let row = self.row(thread);
                if is_blocked { &mut row.blocked } else { &mut row.sleep }.add(until - from);
            }
            Fact::Woken { thread, cpu, waker, .. } => {
                self.cpu(cpu).row.wakeups += 1;
                self.row(thread).wakeups += 1;
                if let Some(waker) = waker {
                    self.row(waker).wakes += 1;
                }
            }
            Fact::Migrated { thread, from, to } => {
                let distance = self.places.distance(from, to);
                self.row(thread).migrations.add(distance);
                if (to as usize) < super::tracker::MAX_CPUS as usize {
                    self.cpu(to).row.migrations.add(distance);
                }
            }
            Fact::Left { thread, to } => self.leave(threads, thread, to),
            Fact::Charged { thread, ns } => {
                let row = self.row(thread);
                row.charged = row.charged.saturating_add(ns);
            }
            Fact::Handled { cpu, ns, is_soft } => {
                let cpu = self.cpu(cpu);
                let sum = if is_soft { &mut cpu.softirq } else { &mut cpu.irq };
                *sum = sum.saturating_add(ns);
            }
            Fact::Lost { cpu, from, until } => {
                let cpu = self.cpu(cpu);
                cpu.lost = cpu.lost.saturating_add(until.saturating_sub(from));
                cpu.row.touched += 1;
            }
            Fact::Missed { cpu } => self.cpu(cpu).row.touched += 1,
            Fact::Touched { thread } => self.row(thread).touched += 1,
            Fact::Ended { thread } => self.fold(threads, thread),
            Fact::Preempted { .. }
            | Fact::Queued { .. }
            | Fact::Dispatched { .. }
            | Fact::Unqueued { .. }
            | Fact::Slice { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tracker;
    use scxprof_base::sample::places::CpuPlace;
    use scxprof_base::sample::sched::{SchedEvent, SchedTask, SchedWhat};

    #[test]
    fn threads_that_have_ended_are_added_up_within_a_bound() {
        let (mut tracker, mut stats) = (Tracker::default(), Stats::default());
        let task = |tid| SchedTask { tid, prio: 120, comm: Comm::from("worker") };
        let count = 3 * MAX_ENDED as u32;
        for tid in 1..=count {
            let time = u64::from(tid) * 10;
            let switch = |time, prev, state, next| SchedEvent {
                time,
                cpu: 0,
                pid: if prev == 0 { 0 } else { tid },
                tid: prev,
                cgroup: 1,
                what: SchedWhat::Switch { prev: task(prev), state, next: task(next) },
            };
            tracker.take(&switch(time, 0, TaskState::Runnable, tid), &mut stats);
            tracker.take(&switch(time + 4, tid, TaskState::Dead, 0), &mut stats);
        }
        assert_eq!(stats.folded(), u64::from(count));
        assert!(stats.ended.len() <= MAX_ENDED, "{}", stats.ended.len());
        assert!(tracker.threads().is_empty());
        let (threads, run) = stats.ended().fold((0, 0), |sum, (_, row)| (sum.0 + row.ended, sum.1 + row.run.sum()));
        assert_eq!((threads, run), (u64::from(count), u64::from(count) * 4));
        // A bound for what is left of them.
        assert!(stats.rows() <= MAX_ENDED + 2);
    }

    #[test]
    fn migrations_are_told_apart_by_their_distance() {
        let mut places = CpuPlaces::default();
        for cpu in 0..8 {
            places.set(cpu, CpuPlace { core: cpu & !1, llc: cpu & !3, node: cpu / 4 });
        }
        let mut stats = Stats::new(places);
        let threads = Threads::default();
        for to in [1, 2, 5, 100] {
            stats.fact(&threads, &Fact::Migrated { thread: 0, from: 0, to });
        }
        let expected = Migrations { total: 4, core: 1, llc: 1, node: 0, nodes: 1 };
        assert_eq!(stats.rows[0].migrations, expected);
    }
}
