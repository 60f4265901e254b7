//! Statistics of the dispatch queues (DSQs) of a sched_ext scheduler.

use std::collections::BTreeMap;

use serde::Serialize;

use super::report::{Quantiles, Times};
use super::{Durations, Fact, Facts, QueuedBy, Sums, Threads};

/// DSQs that are told apart, of up to 10 KiB each; later ones are one row.
const MAX_DSQS: usize = 4096;

/// The id of the row of all later ones.
const OTHERS: u64 = u64::MAX;

/// Statistics of one DSQ. A thread is in the DSQ that it was put into last until it gets a CPU: if the scheduler takes it from
/// there to the CPU's own one, which holds it only until it runs, it stays in the first.
#[derive(Debug, Clone, Default)]
pub struct DsqRow {
    /// Threads that the scheduler inserted.
    pub inserted: u64,
    /// Threads that the scheduler moved to it from another DSQ.
    pub moved: u64,
    /// Threads that the kernel put there.
    pub by_kernel: u64,
    /// Threads that got a CPU from it.
    pub dispatched: u64,
    /// Threads that left it in another way: inserted into another DSQ, ended, or lost from sight.
    pub left: u64,
    /// Threads in it, of those that were seen to enter it.
    pub depth: u64,
    /// The most at a time.
    pub max_depth: u64,
    /// The time until a CPU, ns.
    pub wait: Durations,
    /// ns that the threads that got a CPU from it may run, those without limit left out.
    pub slice: Sums,
    /// Of these, threads that may run without limit.
    pub unlimited: u64,
    /// Sum of depth times ns.
    area: u128,
    /// The last change of the depth.
    last: u64,
}

impl DsqRow {
    /// Threads that entered it.
    #[must_use]
    pub fn entered(&self) -> u64 {
        self.inserted + self.moved + self.by_kernel
    }

    /// The mean depth over `window` ns that end at `until`.
    #[must_use]
    pub fn mean_depth(&self, window: u64, until: u64) -> f64 {
        if window == 0 {
            return 0.0;
        }
        let rest = u128::from(self.depth) * u128::from(until.saturating_sub(self.last));
        self.area.saturating_add(rest) as f64 / window as f64
    }

    fn change(&mut self, time: u64, depth: u64) {
        let since = u128::from(time.saturating_sub(self.last));
        self.area = self.area.saturating_add(u128::from(self.depth) * since);
        (self.last, self.depth) = (self.last.max(time), depth);
        self.max_depth = self.max_depth.max(depth);
    }
}

/// Adds up what happens to DSQs.
#[derive(Debug, Default)]
pub struct Dsqs {
    rows: BTreeMap<u64, DsqRow>,
    /// Times that a thread got a CPU without having been seen in one.
    unknown: u64,
    /// Losses: each may touch all of them.
    losses: u64,
}

impl Dsqs {
    /// The DSQs, by their id.
    pub fn rows(&self) -> impl Iterator<Item = (u64, &DsqRow)> {
        self.rows.iter().map(|(&id, row)| (id, row))
    }

    /// True if nothing happened to any.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Times that a thread got a CPU from a DSQ that is not known: from that of the CPU, where the kernel itself had put it when it
    /// chose an idle CPU, or from one that it was in before the first event.
    #[must_use]
    pub fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Losses of events; if there were any, counts are too low.
    #[must_use]
    pub fn losses(&self) -> u64 {
        self.losses
    }

    /// The number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Bytes of memory, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.rows.values().map(|row| size_of::<DsqRow>() + row.wait.bytes()).sum()
    }

    /// The same queues with the threads that are in them at `time`, and nothing that happened before.
    #[must_use]
    pub(crate) fn carried(&self, time: u64) -> Self {
        let full = self.rows.iter().filter(|(_, row)| row.depth > 0);
        let rows = full.map(|(&id, row)| {
            (id, DsqRow { depth: row.depth, max_depth: row.depth, last: time.max(row.last), ..DsqRow::default() })
        });
        Self { rows: rows.collect(), ..Self::default() }
    }

    fn row(&mut self, id: u64) -> &mut DsqRow {
        let id = if self.rows.len() >= MAX_DSQS && !self.rows.contains_key(&id) { OTHERS } else { id };
        self.rows.entry(id).or_default()
    }
}

impl Facts for Dsqs {
    fn fact(&mut self, _: &Threads, fact: &Fact) {
        match *fact {
            Fact::Queued { dsq, time, by, .. } => {
                let row = self.row(dsq);
                match by {
                    QueuedBy::Scheduler => row.inserted += 1,
                    QueuedBy::Move => row.moved += 1,
                    QueuedBy::Kernel => row.by_kernel += 1,
                }
                row.change(time, row.depth + 1);
            }
            Fact::Dispatched { dsq, from, until, .. } => {
                let row = self.row(dsq);
                row.dispatched += 1;
                row.wait.add(until.saturating_sub(from));
                row.change(until, row.depth.saturating_sub(1));
            }
            Fact::Unqueued { dsq, time } => {
                let row = self.row(dsq);
                row.left += 1;
                row.change(time, row.depth.saturating_sub(1));
            }
            Fact::Slice { dsq: None, .. } => self.unknown += 1,
            Fact::Slice { dsq: Some(dsq), ns: u64::MAX } => self.row(dsq).unlimited += 1,
            Fact::Slice { dsq: Some(dsq), ns } => self.row(dsq).slice.add(ns),
            Fact::Lost { .. } | Fact::Missed { .. } => self.losses += 1,
            _ => {}
        }
    }
}

/// A DSQ, as a line to print.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DsqLine {
    /// Its name.
    pub name: String,
    /// Its id, in hexadecimal.
    pub id: String,
    /// See [`DsqRow::inserted`].
    pub inserted: u64,
    /// See [`DsqRow::moved`].
    pub moved: u64,
    /// See [`DsqRow::by_kernel`].
    pub by_kernel: u64,
    /// See [`DsqRow::dispatched`].
    pub dispatched: u64,
    /// See [`DsqRow::left`].
    pub left: u64,
    /// Threads in it at the end.
    pub depth: u64,
    /// The most at a time.
    pub max_depth: u64,
    /// The mean over time.
    pub mean_depth: f64,
    /// The time in it until a CPU.
    pub wait: Quantiles,
    /// The time that its threads may run.
    pub slice: Times,
    /// Its threads that may run without limit.
    pub unlimited: u64,
    /// Losses of events; if there are any, counts are too low.
    pub losses: u64,
}

/// The lines, the DSQ that most threads entered first. `window` is the observed time in ns, which ends at `until`.
#[must_use]
pub fn lines(dsqs: &Dsqs, window: u64, until: u64) -> Vec<DsqLine> {
    let mut rows: Vec<_> = dsqs.rows().collect();
    rows.sort_by_key(|(id, row)| (std::cmp::Reverse(row.entered()), *id));
    let line = |(id, row): (u64, &DsqRow)| DsqLine {
        name: name(id),
        id: format!("{id:#x}"),
        inserted: row.inserted,
        moved: row.moved,
        by_kernel: row.by_kernel,
        dispatched: row.dispatched,
        left: row.left,
        depth: row.depth,
        max_depth: row.max_depth,
        mean_depth: row.mean_depth(window, until),
        wait: Quantiles::from(&row.wait),
        slice: Times::from(&row.slice),
        unlimited: row.unlimited,
        losses: dsqs.losses(),
    };
    rows.into_iter().map(line).collect()
}

/// The name of a DSQ: the kernel's built-in ones by their names, others by their number (enum `scx_dsq_id_flags` in
/// include/linux/sched/ext.h).
#[must_use]
pub fn name(id: u64) -> String {
    const BUILTIN: u64 = 1 << 63;
    const LOCAL_ON: u64 = BUILTIN | 1 << 62;
    match id {
        OTHERS => "(others)".to_owned(),
        _ if id == BUILTIN | 1 => "global".to_owned(),
        _ if id == BUILTIN | 2 => "local".to_owned(),
        _ if id == BUILTIN | 3 => "bypass".to_owned(),
        _ if id & LOCAL_ON == LOCAL_ON => format!("local of CPU {}", id & !LOCAL_ON),
        _ => format!("{id:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tracker;
    use scxprof_base::sample::sched::{SchedEvent, SchedTask, SchedWhat, TaskState};
    use scxprof_base::sample::Comm;

    const A: u64 = 7;
    const B: u64 = 8;

    fn at(time: u64, what: SchedWhat) -> SchedEvent {
        SchedEvent { time, cpu: 0, pid: 1, tid: 1, cgroup: 1, what }
    }

    fn insert(tid: u32, dsq: u64) -> SchedWhat {
        SchedWhat::DsqInsert { tid, dsq, slice: 20_000, is_moved: false }
    }

    fn switch(prev: u32, state: TaskState, next: u32) -> SchedWhat {
        let task = |tid| SchedTask { tid, prio: 120, comm: Comm::from("worker") };
        SchedWhat::Switch { prev: task(prev), state, next: task(next) }
    }

    fn dsqs(events: &[(u64, SchedWhat)]) -> Dsqs {
        let (mut tracker, mut dsqs) = (Tracker::default(), Dsqs::default());
        for &(time, what) in events {
            tracker.take(&at(time, what), &mut dsqs);
        }
        dsqs
    }

    #[test]
    fn a_thread_is_in_its_dsq_until_it_runs() {
        let dsqs = dsqs(&[
            (100, insert(1, A)),
            (110, insert(2, A)),
            (150, switch(0, TaskState::Runnable, 1)),
            (151, SchedWhat::DsqSwitch { prev: 0, dsq: None, next: 1, slice: Some(500) }),
            // Moved before it runs.
            (160, SchedWhat::DsqInsert { tid: 2, dsq: B, slice: 0, is_moved: true }),
            // The kernel keeps the first for later.
            (200, SchedWhat::DsqSwitch { prev: 1, dsq: Some(A), next: 2, slice: Some(u64::MAX) }),
            (201, switch(1, TaskState::Runnable, 2)),
            (260, switch(2, TaskState::Sleeping, 1)),
            (261, SchedWhat::DsqSwitch { prev: 2, dsq: None, next: 1, slice: Some(700) }),
            // The kernel alone put this one into the DSQ of the CPU.
            (270, switch(1, TaskState::Sleeping, 3)),
            (271, SchedWhat::DsqSwitch { prev: 1, dsq: None, next: 3, slice: Some(700) }),
        ]);
        let rows: Vec<_> = dsqs.rows().collect();
        let [(A, a), (B, b)] = rows[..] else { panic!("{rows:?}") };
        assert_eq!((a.inserted, a.moved, a.by_kernel, a.dispatched, a.left), (2, 0, 1, 2, 1));
        assert_eq!((b.inserted, b.moved, b.by_kernel, b.dispatched, b.left), (0, 1, 0, 1, 0));
        assert_eq!((a.depth, a.max_depth, b.depth, b.max_depth), (0, 2, 0, 1));
        assert_eq!((a.wait.sum(), b.wait.sum()), (50 + 60, 41));
        assert_eq!((a.slice.sum(), a.unlimited, b.slice.count(), b.unlimited), (500 + 700, 0, 0, 1));
        assert_eq!(dsqs.unknown(), 1);
        // One thread for 10 ns, two for 40, one for 10, none for 40, one for 60.
        let mean = a.mean_depth(160, 260);
        assert!((mean - 160.0 / 160.0).abs() < 1e-9, "{mean}");
    }

    #[test]
    fn the_scheduler_comes_before_the_kernel() {
        // It was inserted before the switch: the DSQ that the kernel sees it in is the same.
        let dsqs = dsqs(&[
            (100, switch(0, TaskState::Runnable, 1)),
            (190, insert(1, A)),
            (200, SchedWhat::DsqSwitch { prev: 1, dsq: Some(A), next: 0, slice: None }),
            (200, switch(1, TaskState::Runnable, 0)),
        ]);
        let rows: Vec<_> = dsqs.rows().map(|(id, row)| (id, row.inserted, row.by_kernel, row.depth)).collect();
        assert_eq!(rows, [(A, 1, 0, 1)]);
    }

    #[test]
    fn what_is_lost_leaves_its_dsq() {
        let dsqs = dsqs(&[
            (100, insert(1, A)),
            (150, SchedWhat::Lost),
            (160, switch(0, TaskState::Runnable, 1)),
            (170, insert(2, A)),
            (180, SchedWhat::Exit { task: SchedTask { tid: 2, prio: 120, comm: Comm::default() } }),
            (190, switch(1, TaskState::Sleeping, 2)),
            (195, switch(2, TaskState::Dead, 0)),
        ]);
        let (_, row) = dsqs.rows().next().unwrap();
        assert_eq!((row.inserted, row.dispatched, row.left, row.depth), (2, 1, 1, 0));
        assert!(dsqs.losses() > 0);
    }

    #[test]
    fn dsqs_are_bounded() {
        let mut dsqs = Dsqs::default();
        let threads = Threads::default();
        for dsq in 0..3 * MAX_DSQS as u64 {
            dsqs.fact(&threads, &Fact::Queued { thread: 0, dsq, time: dsq, by: QueuedBy::Scheduler });
        }
        assert_eq!(dsqs.len(), MAX_DSQS + 1);
        assert_eq!(dsqs.rows().map(|(_, row)| row.inserted).sum::<u64>(), 3 * MAX_DSQS as u64);
    }

    #[test]
    fn built_in_dsqs_have_names() {
        let names = [0x8000_0000_0000_0001, 0x8000_0000_0000_0002, 0xc000_0000_0000_0005, 0, 0x12].map(name);
        assert_eq!(names, ["global", "local", "local of CPU 5", "0x0", "0x12"]);
    }
}
