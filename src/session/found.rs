//! From the samples to the configuration: what was sampled, and what is decided of it.

use std::sync::OnceLock;

use super::decider::Decided;
use super::{CaptureError, Decider, Outcome, Skipped};
use crate::config::report::{Report, ReportError};
use crate::config::{self, Decision};
use crate::resolve::{symbolize, SymbolOptions, Symbols};
use crate::sample::Source;

/// What was sampled, before anything is decided.
#[derive(Debug)]
#[non_exhaustive]
pub struct Sampled {
    /// Who was sampled where, and who touched what.
    pub decider: Decider,
    /// Counts, losses and notes.
    pub outcome: Outcome,
    /// The sources that were tried before the one that worked.
    pub skipped: Skipped,
    options: config::Options,
    symbols: SymbolOptions,
}

impl Sampled {
    /// What `decider` took of a capture or a [`super::replay()`] with this `outcome`, to be decided by `options`. `symbols` says
    /// how code is named, where the decider keeps it.
    #[must_use]
    pub fn new(decider: Decider, mut outcome: Outcome, options: config::Options, symbols: SymbolOptions) -> Self {
        outcome.loss.no_cgroup_path += decider.no_cgroup_path();
        outcome.loss.evicted += decider.unlisted();
        Self { decider, outcome, skipped: Skipped::new(), options, symbols }
    }

    /// Decides.
    ///
    /// # Errors
    /// [`CaptureError::NoSamples`].
    pub fn decide(self) -> Result<Found, CaptureError> {
        let Self { decider, outcome, skipped, options, symbols } = self;
        let Ok(decided) = decider.decide(&options) else {
            return Err(CaptureError::NoSamples { outcome: Box::new(outcome) });
        };
        let source = decider.source();
        Ok(Found { source, outcome, skipped, decider, options, decided, symbols, named: OnceLock::new() })
    }
}

/// What a capture gave.
#[derive(Debug)]
#[non_exhaustive]
pub struct Found {
    /// Where the addresses come from: the source that worked, or [`Source::Recorded`] for a [`super::Feed`].
    pub source: Source,
    /// Counts, losses and notes.
    pub outcome: Outcome,
    /// The sources that were tried before the one that worked.
    pub skipped: Skipped,
    decider: Decider,
    options: config::Options,
    decided: Decided,
    symbols: SymbolOptions,
    named: OnceLock<Symbols>,
}

impl Found {
    /// The cells, and what must be said about them.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.decided.decision
    }

    /// The configuration for scx_mitosis, as JSON.
    ///
    /// # Errors
    /// [`Decision::refused`]: there is no configuration of these cells that would load on the host it is for. Anything else that
    /// the scheduler would not load is a bug.
    pub fn mitosis(&self) -> Result<String, config::mitosis::Refused> {
        match &self.decision().refused {
            Some(refused) => Err(refused.clone()),
            None => config::mitosis::to_json(&self.decision().cells),
        }
    }

    /// The configuration for scx_layered, as JSON, and what had to be left out of it. It matches hints where they were used.
    ///
    /// # Errors
    /// What the scheduler would not load, which is a bug.
    pub fn layered(&self) -> Result<(String, Vec<config::Note>), config::layered::Refused> {
        let layers = if self.decider.uses_hints() {
            config::layers_by_hint(self.decision(), &self.decided.members)
        } else {
            config::layers(self.decision())
        };
        Ok((config::layered::to_json(&layers.layers)?, layers.notes))
    }

    /// The names of the code in [`Found::report`]. They are looked up when they are first asked for, which can take 25 s where
    /// file systems do not answer.
    pub fn symbols(&self) -> &Symbols {
        self.named.get_or_init(|| symbolize(&self.outcome.modules, self.decided.codes(), &self.symbols))
    }

    /// What the decision rests on, as `scxprof run --report` writes it.
    ///
    /// # Errors
    /// What the scheduler would not load, which is a bug.
    pub fn report(&self) -> Result<Report, ReportError> {
        let mut report = self.decider.report(&self.decided, self.symbols(), &self.options)?;
        report.hints.clone_from(&self.outcome.hints);
        Ok(report)
    }
}
