//! Task hints as numbers: how they are seen, and what is counted of them. The BPF programs that see them are in `bpf`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The largest hint that schedulers take.
pub const MAX_HINT: u64 = 1024;

/// A way to observe hint writes, in order of preference; each is named by its attach point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HintProbe {
    /// Where the kernel keeps the storage of tasks: sees every write by system call, and storage that BPF programs make.
    LocalStorageUpdate,
    /// Where the system call reaches a map of task storage.
    PidTaskStorageUpdateElem,
    /// The system call's entry and exit. Sees neither BPF programs nor 32-bit processes; x86-64 only.
    Syscall,
}

impl HintProbe {
    /// All of them, the best first.
    pub const ALL: [Self; 3] = [Self::LocalStorageUpdate, Self::PidTaskStorageUpdateElem, Self::Syscall];

    /// What it attaches to.
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

/// What a watch saw and missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Counts {
    /// Hints that were there at the start.
    pub at_start: u64,
    /// Threads that could not be asked for their hint at the start.
    pub not_asked: u64,
    /// Writes and ends of hints since.
    pub events: u64,
    /// Events that found the ring full.
    pub dropped: u64,
    /// Times that an event may have been missed: a program had been interrupted on that CPU, and the kernel runs it no
    /// second time meanwhile, whatever for; or there was no room beside the ring.
    pub missed: u64,
    /// Events whose value could not be read.
    pub unreadable: u64,
    /// Times that all tasks were asked for their hints again, after events were lost.
    pub asked_again: u64,
    /// Hints of tasks that our pid namespace does not contain.
    pub outside_pid_namespace: u64,
}

impl Counts {
    /// Events that did not reach us, at most.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.dropped.saturating_add(self.missed).saturating_add(self.unreadable)
    }
}

/// What is known of the hints of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HintCounts {
    /// How writes were seen; `None` if they were not.
    pub probe: Option<HintProbe>,
    /// Why they were not, or not to the end.
    pub missing: Option<String>,
    /// What was seen and lost on the way from the kernel.
    #[serde(flatten)]
    pub counts: Counts,
    /// Tasks that had a hint at some time.
    pub tasks: u64,
    /// Different values, of up to 4096.
    pub values: u64,
    /// Writes of values above [`MAX_HINT`], which schedulers ignore.
    pub above_limit: u64,
    /// Hints of tasks beyond those that are remembered.
    pub not_kept: u64,
    /// Events that came too late to be put in order of time.
    pub late: u64,
    /// Samples of threads that had a hint.
    pub samples_with: u64,
    /// Samples of threads that had none, or of which it is not known.
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
            (outside_pid_namespace, "hints of tasks outside this pid namespace (run with --pid=host to see them)"),
            (self.late, "hints out of order in time; the later one holds"),
            (self.not_kept, "hints of threads beyond what memory holds"),
        ])
    }
}
