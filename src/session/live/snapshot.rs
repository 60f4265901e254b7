//! A snapshot of a [`super::Live`] capture: plain data, for programs that show it.

use std::sync::Arc;

use serde::Serialize;

use crate::evidence::{FleetReport, Interval};
use crate::report::Report;
use scxprof_base::tables::Tables;
use scxprof_sched::dsqs::DsqLine;
use scxprof_sched::report::{By, Line};

/// A snapshot of a capture.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// Seconds since 1970.
    pub at_unix: f64,
    /// s since the capture began, until it has ended.
    pub elapsed_s: f64,
    /// What the capture does.
    pub state: LiveState,
    /// The source of the accesses; empty for a feed.
    pub source: String,
    /// The length of the window of the statistics, s: that of the last complete one.
    pub window_s: f64,
    /// The name of the loaded configuration, if one was given ([`super::Live::load`]).
    pub configuration: Option<String>,
    /// The last complete sharing window: which threads share memory; `None` before the first.
    pub sharing: Option<Arc<SharingWindow>>,
    /// The groups of the last sharing window, those with the most samples first.
    pub groups: Vec<Group>,
    /// Accesses, for each kind of line that was asked for.
    pub accesses: Vec<AccessLines>,
    /// What the scheduler did; `None` while its events are off.
    pub scheduling: Option<Scheduling>,
    /// The CPUs.
    pub cpus: Vec<CpuNow>,
    /// What was lost, and what was left out.
    pub losses: Losses,
    /// What the capture itself costs.
    pub cost: OwnCost,
    /// Sentences: what does not work here, and why.
    pub notes: Vec<String>,
}

/// What a capture does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LiveState {
    /// It samples.
    #[default]
    Running,
    /// Its sampling has ended; what it found stays.
    Ended,
}

/// A sharing window: the accesses of some seconds, and what follows from them.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct SharingWindow {
    /// The number of windows before it.
    pub number: u64,
    /// Its length, s.
    pub seconds: f64,
    /// Its report: what `scxprof run --report` writes for the same samples. `None` if no sample had an address.
    pub report: Option<Report>,
    /// How the loaded configuration, or none, compares with the one that would be decided now: by this window, and by earlier
    /// ones whose evidence fades. Its `reason` says what is not known. One window does not tell how certain a gain is: `doubt` is
    /// always `None`; `watch` computes it.
    pub interval: Interval,
    /// The decision on the evidence that fades, as `scxprof merge --report` writes it; `None` if there is none.
    pub faded: Option<FleetReport>,
    /// The configuration of that decision, as JSON for the scheduler.
    pub configuration: Option<String>,
}

/// A group of threads that share memory: a community of [`SharingWindow::report`].
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Group {
    /// Its place in the report, as `cell/subcell`.
    pub name: String,
    /// Threads.
    pub threads: usize,
    /// The names of its threads, each once, those with most samples first; 8 at most.
    pub names: Vec<String>,
    /// Samples of its threads.
    pub samples: f64,
    /// Its part of all samples, from 0 to 1.
    pub share: f64,
    /// CPUs that its threads used: in the last window by the scheduler's events, or, while these are off, since the snapshot before by
    /// procfs, which counts in ticks of 10 ms. `None` if that is not known yet.
    pub cpus: Option<f64>,
    /// The part of the avoidable misses that keeping it together avoids, from 0 to 1.
    pub avoidable: Option<f64>,
    /// The part of its pairs of threads, weighted by their samples, that the loaded configuration keeps in one subcell or layer,
    /// from 0 to 1; `None` without a configuration.
    pub kept: Option<f64>,
    /// The hottest memory that its threads share: a variable, or an address.
    pub hottest: Option<String>,
}

/// Accesses of each thread, process, CPU or other kind of line that `by` names.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AccessLines {
    /// What a line is about.
    #[serde(serialize_with = "by_name")]
    pub by: By,
    /// Lines, those with the most samples in the last window first.
    pub lines: Vec<AccessLine>,
}

/// A line of accesses.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AccessLine {
    /// The name of the line: a name, a path, a number.
    pub name: String,
    /// Process id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Thread id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// Path of the cgroup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// Its subcell or layer in the loaded configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subcell: Option<String>,
    /// Threads that it adds up.
    pub threads: u64,
    /// In the last window.
    pub window: AccessCounts,
    /// Since the start.
    pub total: AccessCounts,
}

/// Counts of accesses. One sample may give several accesses; each counts as a part of the sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AccessCounts {
    /// Samples.
    pub samples: f64,
    /// Samples with an address in user memory.
    pub located: f64,
    /// Samples that write.
    pub writes: f64,
}

/// What the scheduler did.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct Scheduling {
    /// The length of the last complete window, s.
    pub window_s: f64,
    /// The time since its events were switched on, s.
    pub total_s: f64,
    /// Scheduling events in that time.
    pub events: u64,
    /// Events that were lost in that time.
    pub lost: u64,
    /// For each kind of line that was asked for.
    pub lines: Vec<SchedulingLines>,
    /// The dispatch queues of the sched_ext scheduler since the start.
    pub dsqs: Vec<DsqLine>,
    /// The same in the last window.
    pub dsqs_window: Vec<DsqLine>,
}

/// Statistics of each thread, process, CPU or other kind of line that `by` names, as `scxprof sched --json` has them.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SchedulingLines {
    /// What a line is about.
    #[serde(serialize_with = "by_name")]
    pub by: By,
    /// Of the last complete window, by time on a CPU.
    pub window: Vec<Line>,
    /// Since the scheduling events were switched on, likewise.
    pub total: Vec<Line>,
}

/// A CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CpuNow {
    /// Its number.
    pub cpu: u32,
    /// Its last-level cache, by the number of the lowest CPU that uses it; `None` if unknown.
    pub llc: Option<u32>,
    /// Its NUMA node; `None` if unknown.
    pub node: Option<u32>,
    /// The part of the time since the snapshot before in which it was busy, from 0 to 1, as of `/proc/stat`; snapshots that follow
    /// each other within a window have the same. `None` in the first one.
    pub busy: Option<f64>,
    /// Samples of it in the last window.
    pub samples: f64,
    /// Samples of it since the start.
    pub total_samples: f64,
}

/// What was lost, and what was left out, since the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Losses {
    /// Samples that were read, of tasks that are sampled.
    pub samples: u64,
    /// Accesses that they gave.
    pub accesses: u64,
    /// Samples that were lost.
    pub lost: u64,
    /// The same in percent of all.
    pub lost_percent: f64,
    /// What was lost, in sentences.
    pub lines: Vec<String>,
    /// What was left out on purpose, in sentences.
    pub left_out: Vec<String>,
    /// Sharing windows that took longer than configured, because the one before was still being evaluated.
    pub late_windows: u64,
}

/// What the capture itself costs: all of this process.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct OwnCost {
    /// CPU time since the start, s.
    pub cpu_s: f64,
    /// CPUs that it used since the snapshot before, as [`CpuNow::busy`]: 0.01 is a hundredth of one.
    pub cpus: f64,
    /// Resident memory, bytes.
    pub rss_bytes: u64,
    /// CPU time that the last sharing window took to evaluate, s.
    pub evaluation_s: f64,
    /// The sizes of its tables.
    pub tables: Tables,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // As serde calls it.
fn by_name<S: serde::Serializer>(by: &By, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(by.name())
}
