//! The result of a capture besides the samples: counts, losses and notes.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rustc_hash::FxHashSet;
use serde::Serialize;

use crate::hint::HintCounts;
use crate::host::phases::Phases;
use crate::resolve::{AddressSpaces, Modules, Stacks, UnwindCounts};
use crate::sampler::loss::Loss;
use crate::timeline::Timeline;
use scxprof_base::tables::Tables;

/// The result of a capture besides the samples.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Outcome {
    /// Samples of named threads.
    pub samples: u64,
    /// Accesses that the sink took: one per sample, or as many as were recovered from it.
    pub accesses: u64,
    /// Events that were counted, sampled or not.
    pub events: u64,
    /// The time from the first event enabled to the last disabled.
    pub duration: Duration,
    /// CPU time of all other threads of the host in this time; `None` if not all were sampled, or if it is not known how much they would
    /// use.
    pub cpu_time: Option<Duration>,
    /// Counts of the recovery, for a source that recovers addresses.
    pub recovery: Option<RecoveryStats>,
    /// Counts of task hints, if they were requested.
    pub hints: Option<HintCounts>,
    /// What was lost and left out.
    pub loss: Loss,
    /// The priority of SCHED_FIFO that the threads which read the samples had, see
    /// `HostOptions::realtime`.
    pub realtime: Option<u8>,
    /// The sizes of the tables at the end.
    pub tables: Tables,
    /// Features that the kernel rejected, and other facts for the user.
    pub notes: Vec<String>,
    /// The objects that contain the code of the samples, if the sink requested them.
    pub modules: Modules,
    /// The call stacks of the samples, if the sink requested them.
    pub stacks: Stacks,
    /// How the stacks ended that were unwound from registers, if any were to be.
    pub unwound: Option<UnwindCounts>,
    /// The mappings of the processes, which say what their memory is.
    pub address_spaces: AddressSpaces,
    /// The processes that records say map memory, as all do but those of the kernel; also those that have ended.
    pub user_processes: FxHashSet<u32>,
    /// Samples, yield and loss over time.
    pub timeline: Timeline,
    /// What each phase took so far.
    pub phases: Phases,
}

/// What a capture lacks if the kernel hides physical frames.
pub(crate) const FRAMES_HIDDEN: &str =
    "Physical addresses are hidden without CAP_SYS_ADMIN: shared memory is identified by its file and offset";

/// Counts of recovered and unrecovered samples.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct RecoveryStats {
    /// Samples of user code.
    pub user_samples: u64,
    /// Of these, samples that gave at least one address.
    pub recovered: u64,
    /// Addresses, by the method that gave them.
    pub by_method: BTreeMap<&'static str, u64>,
    /// Samples without a recovered address, by reason.
    pub unrecovered: BTreeMap<&'static str, u64>,
    /// Samples of kernel code, if they were requested.
    pub kernel_samples: u64,
    /// Of these, samples that gave at least one address that tells the thread's work.
    pub kernel_recovered: u64,
    /// Samples of kernel code without one, by reason.
    pub kernel_unrecovered: BTreeMap<&'static str, u64>,
    /// Memory operands of the instructions near the samples of user code (at most 16 of them before ip, and 16 from ip on), each time that one
    /// was looked at, but those on the thread's own stack.
    pub operands: u64,
    /// Those of them whose address stayed unknown, by reason. A sample can have an address and such operands: if these are always
    /// the same ones, what they access is missing.
    pub unresolved_operands: BTreeMap<&'static str, u64>,
    /// The instructions near most samples that have an operand whose address was never known, the hottest first.
    pub unresolved_places: Vec<UnresolvedPlace>,
    /// Addresses with a page that was neither in memory nor swapped out when it was looked up, some 100 ms after the sample:
    /// freed in between, not yet touched, or wrong.
    pub absent_pages: u64,
    /// Addresses with a page that could not be looked up: the process had exited, or we may not inspect it.
    pub unknown_pages: u64,
    /// Addresses with a page of a file, or of shared memory, in no mapping that is known: mremap(2) leaves no record. Their memory is
    /// unknown until the mappings have been read again.
    pub unmapped_pages: u64,
    /// True if the kernel shows us physical frames (CAP_SYS_ADMIN); otherwise memory is identified by its mapping.
    pub frames_visible: bool,
    /// How often decoded instructions were dropped at the bound.
    pub decoded_evictions: u64,
    /// Pieces of code that could not be read.
    pub code_failed: u64,
    /// Of those, pieces in memory that changes (a JIT compiler's), or has not stayed the same for long enough.
    pub code_unsettled: u64,
}

/// An instruction with an operand whose address was never known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UnresolvedPlace {
    /// The path of the file that contains it, or `[anon]`, `[vdso]`.
    pub file: String,
    /// Its offset from the file's beginning; without a file its address.
    pub offset: u64,
    /// How often it was looked at.
    pub times: u64,
    /// Why the address was not known.
    pub reason: &'static str,
}

impl fmt::Display for UnresolvedPlace {
    /// `libx.so+0x1234`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#x}", self.file.rsplit('/').next().unwrap_or_default(), self.offset)
    }
}

impl RecoveryStats {
    /// Recovered samples as a part of the user samples, 0 if there were none.
    #[must_use]
    pub fn share(&self) -> f64 {
        if self.user_samples == 0 {
            return 0.0;
        }
        self.recovered as f64 / self.user_samples as f64
    }

    /// Operands whose address stayed unknown, as a part of all near the samples; 0 if there were none.
    #[must_use]
    pub fn unresolved_share(&self) -> f64 {
        if self.operands == 0 {
            return 0.0;
        }
        self.unresolved_operands.values().sum::<u64>() as f64 / self.operands as f64
    }
}
