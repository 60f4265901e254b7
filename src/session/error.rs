//! The errors of the library.

use std::io;
use std::path::{Path, PathBuf};

use super::Outcome;
use crate::config::{layered, mitosis, CellSpecError};
use crate::host::namespace::PidNamespace;
use crate::profile::ProfileError;
use crate::report::ReportError;
use crate::sample::Source;
use crate::sampler::SamplerError;

/// Sources that do not work here, and why.
pub type Skipped = Vec<(Source, SamplerError)>;

/// The kind of an error: what to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request is invalid, or its object does not exist: an expression, a process, a cgroup. Change the request.
    Request,
    /// The host, its kernel or our rights do not allow it; the message says what would help.
    Host,
    /// Nothing usable was sampled: sample longer, or something else.
    NoSamples,
    /// A profile cannot be read or written.
    Profile,
    /// The scheduler would load no configuration.
    Configuration,
}

/// Why the library failed. [`Error::kind`] groups the variants by how to handle them; the variants contain the cause, with path,
/// CPU and errno.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An expression for cgroups is wrong.
    #[error(transparent)]
    CellSpecs(#[from] CellSpecError),
    /// The host cannot be read.
    #[error(transparent)]
    Host(#[from] crate::host::Error),
    /// procfs belongs to another pid namespace, so that threads would get wrong names.
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
    /// The requested source cannot be recorded.
    #[error(
        "batches cannot be recorded: their times are of the scheduler's clock and are converted while they are read; take \
         exact samples"
    )]
    BatchedRecording,
    /// The events of a cgroup do not contain the threads that wake its threads.
    #[error("the source wakeups watches the whole host or processes, not a cgroup: --cell makes a cell of one")]
    WakeupsOfCgroup,
    /// The source, or the last of several, cannot start.
    #[error(transparent)]
    Start(#[from] NotStarted),
    /// Nothing usable was sampled.
    #[error("no usable samples in {:.1} s", outcome.duration.as_secs_f64())]
    NoSamples {
        /// The counts of the capture.
        outcome: Box<Outcome>,
    },
    /// A profile cannot be opened, read or written.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// No configuration of these cells would be accepted by scx_mitosis on the target host.
    #[error(transparent)]
    Mitosis(#[from] mitosis::MitosisError),
    /// No layers of these cells would be accepted by scx_layered, which is a bug.
    #[error(transparent)]
    Layered(#[from] layered::LayeredError),
    /// The report cannot be made, which is a bug.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// The written text is not a valid configuration, which is a bug.
    #[error(transparent)]
    Placement(#[from] crate::config::PlacementError),
}

impl Error {
    /// The kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::CellSpecs(_)
            | Self::NoProcess(_)
            | Self::NoCgroup(_)
            | Self::BatchedRecording
            | Self::WakeupsOfCgroup => ErrorKind::Request,
            Self::Start(NotStarted { error: SessionError::Profile(_), .. }) | Self::Profile(_) => ErrorKind::Profile,
            Self::Host(_) | Self::ProcfsElsewhere { .. } | Self::Start(_) => ErrorKind::Host,
            Self::NoSamples { .. } => ErrorKind::NoSamples,
            Self::Mitosis(_) | Self::Layered(_) | Self::Report(_) | Self::Placement(_) => ErrorKind::Configuration,
        }
    }
}

/// The message: what is wrong, and what would help.
fn elsewhere(proc: &Path, ours: u32) -> String {
    let (why, help) = PidNamespace::ProcfsElsewhere { ours, theirs: None }.trouble(proc).unwrap_or_default();
    format!("{why}; {help}")
}

/// No source could start.
#[derive(Debug, thiserror::Error)]
#[error("{}", of_source(*source_name, error))]
#[non_exhaustive]
pub struct NotStarted {
    /// The last source that was tried.
    pub source_name: Source,
    /// Why it failed.
    pub error: SessionError,
    /// The sources before it.
    pub skipped: Skipped,
}

/// The message with the source's name in it.
pub(crate) fn of_source(source: Source, error: &dyn std::error::Error) -> String {
    let text = error.to_string();
    // The user asked for an event, and for no source.
    if text.starts_with("source ") || source == Source::Stacks {
        return text;
    }
    format!("source {source}: {text}")
}

/// Why a source cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The events could not be opened.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// The names could not be read.
    #[error(transparent)]
    Resolve(#[from] crate::host::Error),
    /// The recording could not be started.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

fn no_process(pid: u32, path: &Path, source: &io::Error) -> String {
    if source.kind() == io::ErrorKind::NotFound {
        return format!("{pid}: no such process");
    }
    format!("{pid}: cannot read {}: {source}", path.display())
}

/// There is no such process.
#[derive(Debug, thiserror::Error)]
#[error("{}", no_process(*pid, path, source))]
#[non_exhaustive]
pub struct NoProcess {
    /// Its id.
    pub pid: u32,
    /// The directory of its threads.
    pub path: PathBuf,
    /// The errno and its text.
    pub source: io::Error,
}
