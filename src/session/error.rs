//! Why a capture gave nothing.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::Outcome;
use crate::config::GroupsError;
use crate::host::namespace::PidNamespace;
use crate::profile::ProfileError;
use crate::sample::Source;
use crate::sampler::SamplerError;

/// Sources that do not work here, and why.
pub type Skipped = Vec<(Source, SamplerError)>;

/// Why a capture gave no configuration.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// An expression for cgroups is wrong.
    #[error(transparent)]
    Groups(#[from] GroupsError),
    /// The host cannot be read.
    #[error(transparent)]
    Host(#[from] crate::host::Error),
    /// The procfs that we read is of another pid namespace, so that threads would get the names of others.
    #[error("{}", elsewhere(proc, *ours))]
    ProcfsElsewhere {
        /// That procfs.
        proc: PathBuf,
        /// Our pid.
        ours: u32,
    },
    /// There is no such process.
    #[error(transparent)]
    NoProcess(#[from] NoProcess),
    /// There is no such cgroup, or its directory cannot be opened.
    #[error(transparent)]
    NoCgroup(crate::host::Error),
    /// What was asked for cannot be recorded.
    #[error(
        "batches cannot be recorded: their times are of the scheduler's clock and are converted while they are read; take \
         exact samples"
    )]
    BatchedRecording,
    /// The source, or the last of several, cannot begin.
    #[error(transparent)]
    Start(#[from] NotStarted),
    /// Nothing usable was sampled.
    #[error("no usable samples in {:.1} s", outcome.duration.as_secs_f64())]
    NoSamples {
        /// What happened instead.
        outcome: Box<Outcome>,
    },
}

/// What is wrong, and what would help.
fn elsewhere(proc: &Path, ours: u32) -> String {
    let (why, help) = PidNamespace::ProcfsElsewhere { ours, theirs: None }.trouble(proc).unwrap_or_default();
    format!("{why}; {help}")
}

/// No source could begin.
#[derive(Debug, Error)]
#[error("{}", of_source(*source_name, error))]
#[non_exhaustive]
pub struct NotStarted {
    /// The last that was tried.
    pub source_name: Source,
    /// Why it could not.
    pub error: SessionError,
    /// Those before it.
    pub skipped: Skipped,
}

/// The sentence with the source's name in it.
pub(crate) fn of_source(source: Source, error: &dyn std::error::Error) -> String {
    let text = error.to_string();
    if text.starts_with("source ") {
        return text;
    }
    format!("source {source}: {text}")
}

/// Why a source cannot begin.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// No events.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// No names.
    #[error(transparent)]
    Resolve(#[from] crate::host::Error),
    /// A recording that could not be begun.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A thread that could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// There is no such process.
#[derive(Debug, Error)]
#[error("{pid}: no such process ({}: {source})", path.display())]
#[non_exhaustive]
pub struct NoProcess {
    /// Its id.
    pub pid: u32,
    /// Where its threads would be listed.
    pub path: PathBuf,
    /// The errno and its text.
    pub source: io::Error,
}
