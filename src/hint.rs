//! Task hints: the ways to observe them, and their counts. `bpf` has the BPF programs that observe them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The largest hint that schedulers accept.
pub const MAX_HINT: u64 = 1024;

/// A way to observe hint writes, in order of preference; each is named by its attach point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HintProbe {
    /// The kernel function that updates the storage of tasks: observes every write by system call, and storage that BPF
    /// programs create.
    LocalStorageUpdate,
    /// The kernel function with which the system call reaches a map of task storage.
    PidTaskStorageUpdateElem,
    /// The system call's entry and exit. Observes neither BPF programs nor 32-bit processes.
    Syscall,
}

impl HintProbe {
    /// All of them, the best one first.
    pub const ALL: [Self; 3] = [Self::LocalStorageUpdate, Self::PidTaskStorageUpdateElem, Self::Syscall];

    /// The name of its attach point.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::LocalStorageUpdate => "fexit bpf_local_storage_update",
            Self::PidTaskStorageUpdateElem => "fexit bpf_pid_task_storage_update_elem",
            Self::Syscall => "raw tracepoints of the bpf system call",
        }
    }
}

/// No probe has this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("not local_storage_update, pid_task_storage_update_elem or syscall")]
pub struct UnknownHintProbe;

impl FromStr for HintProbe {
    type Err = UnknownHintProbe;

    fn from_str(text: &str) -> Result<Self, UnknownHintProbe> {
        match text {
            "local_storage_update" => Ok(Self::LocalStorageUpdate),
            "pid_task_storage_update_elem" => Ok(Self::PidTaskStorageUpdateElem),
            "syscall" => Ok(Self::Syscall),
            _ => Err(UnknownHintProbe),
        }
    }
}

impl fmt::Display for HintProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Counts of what a watch observed and missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Counts {
    /// Hints that existed at the start.
    pub at_start: u64,
    /// Threads whose hint could not be read at the start.
    pub not_asked: u64,
    /// Writes and deletions of hints since.
    pub events: u64,
    /// Events lost because the ring was full.
    pub dropped: u64,
    /// How often an event may have been missed: a program was interrupted on that CPU, and the kernel does not run it again
    /// meanwhile; or there was no room beside the ring.
    pub missed: u64,
    /// Events with a value that could not be read.
    pub unreadable: u64,
    /// How often the hints of all tasks were read again, after events were lost.
    pub asked_again: u64,
    /// Hints of tasks outside our pid namespace.
    pub outside_pid_namespace: u64,
}

impl Counts {
    /// An upper bound of the events that did not reach us.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.dropped.saturating_add(self.missed).saturating_add(self.unreadable)
    }
}

/// Counts of the hints of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HintCounts {
    /// How writes were observed; `None` if they were not.
    pub probe: Option<HintProbe>,
    /// Why hints were not followed, or not to the end.
    pub missing: Option<String>,
    /// Counts of observed and lost events.
    #[serde(flatten)]
    pub counts: Counts,
    /// Tasks that had a hint at some time.
    pub tasks: u64,
    /// The number of different values, at most 4096.
    pub values: u64,
    /// Writes of values above [`MAX_HINT`], which schedulers ignore.
    pub above_limit: u64,
    /// Hints of tasks beyond the number that is kept.
    pub not_kept: u64,
    /// Events that came too late to be sorted by time.
    pub late: u64,
    /// Samples of threads that had a hint.
    pub samples_with: u64,
    /// Samples of threads without a hint, or without a known one.
    pub samples_without: u64,
}

impl HintCounts {
    /// One sentence for each stage where hints were lost or are uncertain.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let Counts { dropped, missed, unreadable, outside_pid_namespace, .. } = self.counts;
        crate::sample::sentences(&[
            (dropped, "hints lost in a full ring (a larger one helps)"),
            (missed, "times that a hint may have been missed; all tasks were asked again"),
            (unreadable, "hints whose value could not be read"),
            (
                outside_pid_namespace,
                "hints of tasks outside this pid namespace (start the container with --pid=host to see them)",
            ),
            (self.late, "hints out of order in time; the later one holds"),
            (self.not_kept, "hints of threads beyond what memory holds"),
        ])
    }
}
