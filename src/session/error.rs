//! What goes wrong in the library.

use std::io;
use std::path::{Path, PathBuf};

use super::Outcome;
use crate::config::report::ReportError;
use crate::config::{layered, mitosis, CellSpecError};
use crate::host::namespace::PidNamespace;
use crate::profile::ProfileError;
use crate::sample::Source;
use crate::sampler::SamplerError;

/// Sources that do not work here, and why.
pub type Skipped = Vec<(Source, SamplerError)>;

/// What kind of error it is: what to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// What was asked for is not there or makes no sense: an expression, a process, a cgroup. Ask for something else.
    Request,
    /// The host, its kernel or our rights do not allow it; the sentence says what would help.
    Host,
    /// Nothing usable was sampled: sample longer, or something else.
    NoSamples,
    /// A profile cannot be read or written.
    Profile,
    /// There is no configuration that the scheduler would load.
    Configuration,
}

/// Why the library could not do what it was asked for. [`Error::kind`] tells the cases apart that are handled alike; the variants
/// hold the source, with path, CPU and errno.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An expression for cgroups is wrong.
    #[error(transparent)]
    CellSpecs(#[from] CellSpecError),
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
    /// A profile cannot be opened, read or written.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// There is no configuration of these cells that scx_mitosis would load on the host it is for.
    #[error(transparent)]
    Mitosis(#[from] mitosis::Refused),
    /// There are no layers of these cells that scx_layered would load, which is a bug.
    #[error(transparent)]
    Layered(#[from] layered::Refused),
    /// A report that cannot be made, which is a bug.
    #[error(transparent)]
    Report(#[from] ReportError),
}

impl Error {
    /// What kind of error it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::CellSpecs(_) | Self::NoProcess(_) | Self::NoCgroup(_) | Self::BatchedRecording => ErrorKind::Request,
            Self::Start(NotStarted { error: SessionError::Profile(_), .. }) | Self::Profile(_) => ErrorKind::Profile,
            Self::Host(_) | Self::ProcfsElsewhere { .. } | Self::Start(_) => ErrorKind::Host,
            Self::NoSamples { .. } => ErrorKind::NoSamples,
            Self::Mitosis(_) | Self::Layered(_) | Self::Report(_) => ErrorKind::Configuration,
        }
    }
}

/// What is wrong, and what would help.
fn elsewhere(proc: &Path, ours: u32) -> String {
    let (why, help) = PidNamespace::ProcfsElsewhere { ours, theirs: None }.trouble(proc).unwrap_or_default();
    format!("{why}; {help}")
}

/// No source could begin.
#[derive(Debug, thiserror::Error)]
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
#[derive(Debug, thiserror::Error)]
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
#[derive(Debug, thiserror::Error)]
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
