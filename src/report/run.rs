//! The report's part on the run: time and duration, losses, the resulting configuration, and the samples over time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The run that a report describes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunReport {
    /// Seconds since 1970 when it began; `null` if unknown.
    pub begin_unix: Option<f64>,
    /// The sampled time.
    pub seconds: f64,
    /// Samples of named threads.
    pub records: u64,
    /// The accesses that they gave.
    pub accesses: u64,
    /// CPUs of the host that the configuration is for.
    pub target_cpus: usize,
    /// Its last-level caches; `null` if they are not known.
    pub target_llcs: Option<u32>,
    /// The name of the profile's file; `null` for a capture.
    pub profile: Option<String>,
    /// The name of the sampled host; `null` if unknown.
    pub host: Option<String>,
    /// Counts of recovered addresses, for a source that recovers them.
    pub recovery: Option<RecoveryReport>,
    /// The part of the samples that was lost, in percent.
    pub lost_percent: f64,
    /// What was lost, in sentences.
    pub lost: Vec<String>,
    /// The damage of the profile, in sentences.
    #[serde(default)]
    pub damage: Vec<String>,
    /// What was left out on purpose, in sentences.
    pub left_out: Vec<String>,
    /// The sources that were tried before, and why they do not work here.
    pub skipped: Vec<String>,
    /// Features that the kernel rejected, and other facts.
    pub notes: Vec<String>,
}

/// Counts of recovered addresses, as [`RecoveryStats`](crate::session::RecoveryStats) has them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// Samples of user code.
    pub user_samples: u64,
    /// Those that gave at least one address.
    pub recovered: u64,
    /// Addresses, by the method that gave them.
    #[serde(default)]
    pub by_method: BTreeMap<String, u64>,
    /// Samples without an address, by reason.
    #[serde(default)]
    pub unrecovered: BTreeMap<String, u64>,
    /// Samples of kernel code, if they were requested.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub kernel_samples: u64,
    /// Those that gave at least one address that tells the thread's work.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub kernel_recovered: u64,
    /// Samples of kernel code without one, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kernel_unrecovered: BTreeMap<String, u64>,
    /// Memory operands of the instructions near the samples of user code, each time that one was decoded, without those on the
    /// thread's own stack.
    #[serde(default)]
    pub operands: u64,
    /// Those of them whose address stayed unknown, by reason.
    #[serde(default)]
    pub unresolved_operands: BTreeMap<String, u64>,
    /// The hottest instructions with an operand whose address was never known.
    #[serde(default)]
    pub unresolved_places: Vec<UnresolvedPlaceReport>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// An instruction with an operand whose address was never known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UnresolvedPlaceReport {
    /// The path of the file that contains it, or `[anon]`, `[vdso]`.
    pub file: String,
    /// Its offset from the file's beginning; without a file its address.
    pub offset: u64,
    /// How often it was decoded.
    pub times: u64,
    /// Why the address was not known.
    pub reason: String,
}

/// The configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Configuration {
    /// The scheduler that it is for.
    pub scheduler: String,
    /// The command that loads it from the file `cells.json` or `layers.json`.
    pub load: String,
    /// The configuration as it is printed: JSON.
    pub text: String,
}

impl Configuration {
    /// The configuration `text` for scx_layered, or for scx_mitosis.
    #[must_use]
    pub fn new(is_layered: bool, text: String) -> Self {
        let (scheduler, load) = if is_layered {
            ("scx_layered", "sudo scx_layered f:layers.json")
        } else {
            ("scx_mitosis", "sudo scx_mitosis --cell-config cells.json")
        };
        Self { scheduler: scheduler.to_owned(), load: load.to_owned(), text }
    }
}

/// The run over time, in steps of the same length; all lists are equally long, or empty where that is not known.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TimelineReport {
    /// The length of a step, ns.
    pub step_ns: u64,
    /// CLOCK_MONOTONIC at the beginning of the first step, ns.
    pub begin_ns: u64,
    /// Samples in each step.
    pub records: Vec<u64>,
    /// The samples that gave a memory address.
    pub located: Vec<u64>,
    /// Records that were lost, as far as the time is known: when a full ring had room again.
    pub lost: Vec<u64>,
    /// The samples of each subcell.
    pub subcells: Vec<SubcellTimeline>,
}

/// A subcell over time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SubcellTimeline {
    /// `cell/subcell`, or the cell if that is not divided.
    pub name: String,
    /// Its samples in each step, rounded to thousandths.
    pub samples: Vec<f64>,
}
