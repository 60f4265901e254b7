//! The trial of a source.

use super::check::{Check, CheckState, Section};
use super::kernel::{Attempt, Kernel, Watched};
use crate::sample::Source;
use crate::sampler::SamplerError;

/// The result of trying a source.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) source: Source,
    /// Watching every task.
    pub(super) host: Result<Attempt, SamplerError>,
    /// Watching one of our tasks, if watching every task is forbidden.
    pub(super) own: Option<Result<Attempt, SamplerError>>,
}

impl Trial {
    pub(super) fn new(kernel: &dyn Kernel, source: Source) -> Self {
        let host = kernel.attempt(source, Watched::Host);
        let forbidden = matches!(host, Err(SamplerError::NotPermitted { .. } | SamplerError::NoTimer { .. }));
        Self { source, host, own: forbidden.then(|| kernel.attempt(source, Watched::Own)) }
    }

    /// The attempt that succeeded.
    pub(super) fn attempt(&self) -> Option<&Attempt> {
        self.host.as_ref().ok().or_else(|| self.own.as_ref()?.as_ref().ok())
    }

    pub(super) fn check(&self) -> Check {
        let name = self.source.name();
        match (&self.host, &self.own) {
            (Ok(attempt), _) => {
                let why = std::iter::once(&attempt.event).chain(&attempt.notes).map(String::as_str).collect::<Vec<_>>();
                Check::works(Section::Sources, name, why.join("; "))
            }
            (Err(error), Some(Ok(_))) => {
                let failed = Check::failed(Section::Sources, name, error);
                Check { state: CheckState::Partly, why: format!("your own processes only: {}", failed.why), ..failed }
            }
            (Err(error), _) => Check::failed(Section::Sources, name, error),
        }
    }
}
