//! What stands for the watch where BPF is not built in.

use crossbeam_channel::Receiver;

use super::{Counts, HintsError, Options, Refusal, Rung, Step};
use crate::sampler::Batch;

/// A watch that never begins.
#[derive(Debug)]
pub enum Watch {}

impl Watch {
    /// Says that it is not built in.
    ///
    /// # Errors
    /// Always.
    pub fn start(_options: &Options, _proc: &std::path::Path) -> Result<Self, HintsError> {
        Err(HintsError::NotBuilt)
    }

    /// There is no watch.
    #[must_use]
    pub fn rung(&self) -> Rung {
        match *self {}
    }

    /// There is no watch.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        match *self {}
    }

    /// There is no watch.
    #[must_use]
    pub fn batches(&self) -> &Receiver<Batch> {
        match *self {}
    }

    /// There is no watch.
    pub fn stop(&self) {
        match *self {}
    }

    /// There is no watch.
    #[must_use]
    pub fn join(self) -> (Counts, Vec<String>) {
        match self {}
    }
}

/// Each way to see hints, none of which is built in.
#[must_use]
pub fn trials(_proc: &std::path::Path) -> Vec<(&'static str, Result<(), Refusal>)> {
    let refused = |what| {
        let reason = HintsError::NotBuilt.to_string();
        (what, Err(Refusal { what, step: Step::Built, errno: 0, reason }))
    };
    Rung::ALL.into_iter().map(Rung::name).chain(["iter/task"]).map(refused).collect()
}
