//! What a capture gave beside the samples: counts, losses and notes.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::hint::HintCounts;
use crate::resolve::{AddressSpaces, Modules};
use crate::sampler::loss::Loss;

/// What a capture gave beside the samples.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Outcome {
    /// Samples that were named.
    pub samples: u64,
    /// Accesses that the sink took: one a sample, or as many as were recovered from it.
    pub accesses: u64,
    /// Events that happened, sampled or not.
    pub events: u64,
    /// From the first event enabled to the last disabled.
    pub duration: Duration,
    /// What was recovered, for a source that recovers addresses.
    pub recovery: Option<RecoveryStats>,
    /// What is known of task hints, where they were asked for.
    pub hints: Option<HintCounts>,
    /// What was lost and left out.
    pub loss: Loss,
    /// What the kernel refused, and other facts a person should know.
    pub notes: Vec<String>,
    /// What the code of the samples is in, where the sink wanted to know.
    pub modules: Modules,
    /// The mappings of the processes, which say what their memory is.
    pub address_spaces: AddressSpaces,
}

/// What a capture does without where the kernel shows no physical frames.
pub(crate) const FRAMES_HIDDEN: &str =
    "Physical addresses are not shown to us (CAP_SYS_ADMIN): shared memory is known by its file and offset";

/// What was recovered and what was not.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct RecoveryStats {
    /// Samples of user code.
    pub user_samples: u64,
    /// Of these, samples that gave at least one address.
    pub recovered: u64,
    /// Addresses, by the method that gave them.
    pub by_method: BTreeMap<&'static str, u64>,
    /// Samples that gave none, by the reason.
    pub unrecovered: BTreeMap<&'static str, u64>,
    /// Addresses whose page was neither in memory nor swapped out when it was looked up, some 100 ms after the sample:
    /// given back in between, not yet touched, or wrong.
    pub absent_pages: u64,
    /// Addresses whose page could not be looked up: the process was gone, or is not ours to look into.
    pub unknown_pages: u64,
    /// True where the kernel shows physical frames to us (CAP_SYS_ADMIN); without them addresses are known by their mapping.
    pub frames_visible: bool,
    /// Decoded instructions were dropped for room so many times.
    pub decoded_evictions: u64,
    /// Pieces of code that could not be read.
    pub code_failed: u64,
    /// Of those, pieces in memory that changes (a JIT compiler's), or was not seen to stay the same for long enough.
    pub code_unsettled: u64,
}

impl RecoveryStats {
    /// Recovered samples as a part of the user samples, 0 where there were none.
    #[must_use]
    pub fn share(&self) -> f64 {
        if self.user_samples == 0 {
            return 0.0;
        }
        self.recovered as f64 / self.user_samples as f64
    }
}
