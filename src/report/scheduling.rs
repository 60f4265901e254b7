//! What the scheduler did with the threads of each subcell, and which subcells wake each other.

use serde::{Deserialize, Serialize};

use scxprof_sched::report::Line;

/// The scheduling statistics, by subcell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SchedulingReport {
    /// From the first event to the last.
    pub seconds: f64,
    /// The subcells, the one with most CPU time first. Threads that no cell takes are in `(no cell)`.
    pub subcells: Vec<SubcellScheduling>,
    /// The wakeups of threads by threads, most first. Those of threads in no cell are not in it.
    pub wakeups: Vec<WakeupsBetween>,
}

/// A subcell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SubcellScheduling {
    /// `cell/subcell`, or the cell if that is not divided.
    pub name: String,
    /// Threads.
    pub threads: u64,
    /// Time on CPUs, ns.
    pub run_ns: u64,
    /// Time runnable without a CPU, ns; how often, and the longest.
    pub wait_ns: u64,
    /// See `wait_ns`.
    pub waits: u64,
    /// See `wait_ns`.
    pub wait_max_ns: Option<u64>,
    /// Times from a wakeup to the CPU: how many are known; `null` in reports of before.
    #[serde(default)]
    pub latency_count: Option<u64>,
    /// These, ns: the median, 99 %, the longest.
    pub latency_p50_ns: Option<u64>,
    /// See `latency_p50_ns`.
    pub latency_p99_ns: Option<u64>,
    /// See `latency_p50_ns`.
    pub latency_max_ns: Option<u64>,
    /// Switches to another thread, and those while it wanted to run.
    pub switches: u64,
    /// See `switches`.
    pub involuntary: u64,
    /// Moves to another CPU.
    pub migrations: u64,
    /// Those to another last-level cache.
    pub migrations_llc: u64,
    /// Those to another NUMA node.
    pub migrations_node: u64,
    /// Wakeups of its threads.
    pub wakeups: u64,
    /// Losses of events; if there are any, counts are too low.
    pub losses: u64,
}

/// Wakeups by threads of one subcell of threads of another one, or of the same.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WakeupsBetween {
    /// The waker's subcell.
    pub a: String,
    /// That of the woken thread.
    pub b: String,
    /// Wakeups.
    pub wakeups: u64,
}

impl From<Line> for SubcellScheduling {
    fn from(line: Line) -> Self {
        let Line { name, threads, run, wait, latency, switches, involuntary, migrations, wakeups, losses, .. } = line;
        Self {
            name,
            threads,
            run_ns: run.total_ns,
            wait_ns: wait.total_ns,
            waits: wait.count,
            wait_max_ns: wait.max_ns,
            latency_count: Some(latency.times.count),
            latency_p50_ns: latency.p50_ns,
            latency_p99_ns: latency.p99_ns,
            latency_max_ns: latency.times.max_ns,
            switches,
            involuntary,
            migrations: migrations.total,
            migrations_llc: migrations.node + migrations.nodes,
            migrations_node: migrations.nodes,
            wakeups,
            losses,
        }
    }
}

impl WakeupsBetween {
    /// `wakeups` of threads of `b` by threads of `a`.
    #[must_use]
    pub fn new(a: String, b: String, wakeups: u64) -> Self {
        Self { a, b, wakeups }
    }
}
