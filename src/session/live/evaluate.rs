//! The evaluation of a sharing window, in a separate thread: sampling continues however long it takes.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;

use super::shared::{Shared, Sharing};
use super::snapshot::SharingWindow;
use crate::config::{DecisionOptions, OnCaches};
use crate::decider::Decider;
use crate::evidence::{Evidence, FadingEvidence, Folds, Interval, Scope};
use crate::host::priority::thread_cpu_ns;
use crate::outcome::Outcome;
use crate::resolve::SymbolOptions;
use crate::session::Sampled;

/// The accesses of a window, and the facts known at its end.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) number: u64,
    pub(super) seconds: f64,
    pub(super) decider: Decider,
    /// With the counts of the window, and all objects and mappings so far.
    pub(super) outcome: Outcome,
}

/// Marks that no evaluation runs any more.
struct Done(Arc<Shared>);

impl Drop for Done {
    fn drop(&mut self) {
        self.0.evaluated_all();
    }
}

/// Evaluates one window after the other.
#[derive(Debug)]
pub(super) struct Evaluator {
    shared: Arc<Shared>,
    options: DecisionOptions,
    symbols: SymbolOptions,
    fading: FadingEvidence,
}

impl Evaluator {
    /// Evidence takes at most `memory` bytes, twice: one is judged by while another one is made.
    pub(super) fn new(
        shared: Arc<Shared>,
        options: DecisionOptions,
        order: OnCaches,
        symbols: SymbolOptions,
        memory: usize,
    ) -> Self {
        Self { shared, options, symbols, fading: FadingEvidence::new(options, order).within(memory) }
    }

    /// Evaluates windows until no more can come.
    pub(super) fn run(mut self, windows: Receiver<Window>) {
        // Also if it panics, so that no thread waits for it.
        let _done = Done(Arc::clone(&self.shared));
        windows.into_iter().for_each(|window| self.take(window));
    }

    /// Evaluates a window, and shows the result.
    fn take(&mut self, window: Window) {
        let begin = thread_cpu_ns();
        let Window { number, seconds, decider, outcome } = window;
        let is_empty = decider.tally().total() <= 0.0;
        let sampled = Sampled::new(decider, outcome, self.options, self.symbols.clone());
        let evidence =
            if is_empty { Ok(Evidence::default()) } else { sampled.evidence(&Scope::default(), "", &Folds::none()) };
        let mut found = SharingWindow { number, seconds, ..SharingWindow::default() };
        found.interval = match evidence {
            Ok(evidence) => self.interval(evidence),
            Err(error) => Interval::without(error.to_string()),
        };
        match self.fading.evidence().decide(&self.options) {
            Ok(faded) => {
                found.configuration = faded.to_json(self.options.scheduler).ok();
                found.faded = Some(faded.report);
            }
            Err(error) => found.interval.reason = found.interval.reason.take().or(Some(error.to_string())),
        }
        let analysis = sampled.decide().ok().map(Arc::new);
        found.report = analysis.as_ref().and_then(|analysis| analysis.report().ok());
        let used = Duration::from_nanos(thread_cpu_ns().saturating_sub(begin));
        self.shared
            .evaluated(Sharing { window: Arc::new(found), analysis, evidence: self.fading.evidence().clone() }, used);
    }

    /// Adds the evidence of a window to that of earlier ones. It does not change which configuration counts as loaded.
    fn interval(&mut self, evidence: Evidence) -> Interval {
        let loaded = self.shared.lock().loaded.as_ref().map(|loaded| loaded.json.clone());
        self.fading.load(loaded);
        // One slice does not tell how certain a gain is, so that nothing new is loaded.
        self.fading.interval(&[evidence]).unwrap_or_else(|error| Interval::without(error.to_string()))
    }
}
