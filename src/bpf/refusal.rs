//! Why programs cannot be used.

use thiserror::Error;

/// The step that the kernel, or this build, rejected.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The object could not be opened.
    Open,
    /// The maps or programs could not be loaded.
    Load,
    /// A program could not be attached.
    Attach,
    /// The build does not contain BPF.
    Built,
}

/// Why a probe, or the iterator for snapshots, is not available.
#[doc(hidden)]
#[derive(Debug, Clone, Error, PartialEq, Eq)]
#[error("{what}: {reason}")]
pub struct Refusal {
    /// What was tried: [`HintProbe::name`](crate::hint::HintProbe::name), or `iter/task`.
    pub what: &'static str,
    /// The step that failed.
    pub step: Step,
    /// The errno, 0 if there is none.
    pub errno: i32,
    /// The message of libbpf or the kernel.
    pub reason: String,
}
