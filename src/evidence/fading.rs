//! Whether a configuration is still the right one: decided again in each interval, from evidence in which older samples weigh less.

use serde::Serialize;

use super::decide::FleetError;
use super::rows::{Evidence, EvidenceError};
use super::score::Judge;
use crate::cluster::replicates::student;
use crate::config::{DecisionOptions, OnCaches, Placement};

/// The part of the evidence that remains after an interval. A change of the workload must outweigh all that was before in its first
/// interval: the sum of what is left of all earlier ones is a third of one.
const FADE: f64 = 0.25;
/// A gain below this part of the avoidable misses is worth no change.
const LEAST_GAIN: f64 = 0.02;
/// Fewer slices do not tell how certain a gain is.
const LEAST_SLICES: usize = 4;

/// Bytes of a configuration that a watch reads, and so the most that it gives out.
pub const MAX_CONFIGURATION: usize = 16 << 20;

/// Evidence that fades, and the configuration that is loaded.
#[derive(Debug)]
pub struct FadingEvidence {
    options: DecisionOptions,
    order: OnCaches,
    evidence: Evidence,
    loaded: Option<String>,
    /// The configuration that was better than the loaded one in the last interval. It is judged again on the next interval's
    /// samples, which were not used to compute it.
    candidate: Option<String>,
}

/// The result of an interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Interval {
    /// The locality of the loaded configuration, or of none; `None` if too little is avoidable for any configuration to matter.
    pub locality: Option<f64>,
    /// The locality of the configuration that would be decided now.
    pub best_locality: Option<f64>,
    /// The score of the loaded configuration, or of none; `None` if too little is avoidable for any configuration to matter.
    pub score: Option<f64>,
    /// The score of the configuration that would be decided now.
    pub best: Option<f64>,
    /// How much more that avoids, as a part of the avoidable misses.
    pub gain: Option<f64>,
    /// Half the width of the gain's 95 % interval over the slices of the interval; `None` if there are too few.
    pub doubt: Option<f64>,
    /// The new configuration, if it was better twice in a row.
    pub new: Option<String>,
    /// True if a configuration was not considered as it is too long.
    pub is_too_large: bool,
    /// Why there is no score, or no configuration.
    pub reason: Option<String>,
    /// A sentence: which groups the host cannot load, and what to do.
    pub limit: Option<String>,
}

impl Interval {
    /// Of an interval without a result.
    #[must_use]
    pub fn without(reason: String) -> Self {
        Self { reason: Some(reason), ..Self::default() }
    }
}

impl FadingEvidence {
    /// Decides with these options, and judges on these last-level caches; their number is enough.
    #[must_use]
    pub fn new(options: DecisionOptions, caches: impl Into<OnCaches>) -> Self {
        Self { options, order: caches.into(), evidence: Evidence::default(), loaded: None, candidate: None }
    }

    /// The same with evidence of at most this number of bytes; by default 256 MiB.
    #[must_use]
    pub fn within(self, memory: usize) -> Self {
        Self { evidence: Evidence::within(memory), ..self }
    }

    /// Goes on with the evidence of an earlier watch, and what it found better than the same loaded configuration.
    #[must_use]
    pub fn resume(self, evidence: Evidence, candidate: Option<String>) -> Self {
        Self { evidence, candidate, ..self }
    }

    /// The configuration that is loaded from now on.
    pub fn load(&mut self, configuration: Option<String>) {
        if self.loaded != configuration {
            self.loaded = configuration;
            self.candidate = None;
        }
    }

    /// The new configuration of the last interval could not be given out: `before` is still loaded. The new one is judged again
    /// in the next interval.
    pub fn unload(&mut self, before: Option<String>) {
        self.candidate = std::mem::replace(&mut self.loaded, before);
    }

    /// The loaded configuration.
    #[must_use]
    pub fn loaded(&self) -> Option<&str> {
        self.loaded.as_deref()
    }

    /// The evidence so far, with what is old faded.
    #[must_use]
    pub fn evidence(&self) -> &Evidence {
        &self.evidence
    }

    /// The configuration that was better than the loaded one in the last interval.
    #[must_use]
    pub fn candidate(&self) -> Option<&str> {
        self.candidate.as_deref()
    }

    /// Takes the evidence of an interval's slices. The new configuration of the result is loaded from then on; it has at most
    /// [`MAX_CONFIGURATION`] bytes.
    ///
    /// # Errors
    /// [`WatchError`]; what is loaded stays.
    pub fn interval(&mut self, slices: &[Evidence]) -> Result<Interval, WatchError> {
        let candidate = self.candidate.take();
        let mut fresh = Evidence::default();
        slices.iter().try_for_each(|slice| fresh.merge(slice))?;
        let faded = self.evidence.faded(FADE);
        let mut evidence = faded.clone();
        // Also where there is no room for what is new: the next interval may have fewer classes.
        self.evidence = faded;
        evidence.merge(&fresh)?;
        self.evidence = evidence;
        let mut found = Interval::default();
        if fresh.is_empty() {
            found.reason = Some("nothing was sampled".to_owned());
            return Ok(found);
        }
        if !fresh.is_worth() {
            found.reason = Some("too little is avoidable for any configuration to matter".to_owned());
            return Ok(found);
        }
        let judge = |json: Option<&str>| {
            let placement = json.and_then(|json| Placement::parse(json).ok());
            Judge::new(&self.evidence, placement.as_ref(), self.order)
        };
        let loaded = judge(self.loaded.as_deref());
        found.score = loaded.avoided(&fresh).score();
        found.locality = loaded.locality(&fresh);
        let mut decided = self.evidence.decide(&self.options);
        if matches!(decided, Err(FleetError::DifferentSpecs { .. })) {
            // The earlier watch had other options.
            self.evidence.clone_from(&fresh);
            decided = self.evidence.decide(&self.options);
        }
        let decided = decided?;
        let limit = decided.decision.notes.iter().find(|note| note.leaves_out());
        found.limit = limit.map(ToString::to_string);
        let json = match decided.to_json(self.options.scheduler) {
            Ok(json) => json,
            Err(error) => {
                found.reason = Some(format!("no configuration for this host: {error}"));
                return Ok(found);
            }
        };
        if json.len() > MAX_CONFIGURATION {
            found.is_too_large = true;
            found.reason =
                Some(format!("the configuration has {} bytes: it is too large to be read again", json.len()));
            return Ok(found);
        }
        let judge = |json: &str| Judge::new(&self.evidence, Placement::parse(json).ok().as_ref(), self.order);
        let best = judge(&json);
        found.best = best.avoided(&fresh).score();
        found.best_locality = best.locality(&fresh);
        // Of each slice, the misses that the new configuration avoids more, and those that are avoidable.
        let gain = |new: &Judge| {
            let gains = slices.iter().map(|slice| {
                let (new, old) = (new.avoided(slice), loaded.avoided(slice));
                (new.avoided - old.avoided, new.avoidable)
            });
            ratio(&gains.filter(|it| it.1 > 0.0).collect::<Vec<(f64, f64)>>())
        };
        let is_better = |it: Option<(f64, Option<f64>)>| matches!(it, Some((gain, Some(doubt))) if gain > doubt && gain > LEAST_GAIN);
        if let Some(candidate) = candidate {
            let judge = judge(&candidate);
            let judged = gain(&judge);
            if is_better(judged) {
                found.best_locality = judge.locality(&fresh);
                (found.gain, found.doubt) = (judged.map(|it| it.0), judged.and_then(|it| it.1));
                self.load(Some(candidate.clone()));
                found.new = Some(candidate);
                return Ok(found);
            }
        }
        let judged = gain(&best);
        (found.gain, found.doubt) = (judged.map(|it| it.0), judged.and_then(|it| it.1));
        self.candidate = is_better(judged).then_some(json);
        Ok(found)
    }
}

/// The sum of the first by that of the second, and half the width of its 95 % interval.
fn ratio(parts: &[(f64, f64)]) -> Option<(f64, Option<f64>)> {
    let (gain, all) = parts.iter().fold((0.0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    if all <= 0.0 {
        return None;
    }
    let (ratio, count) = (gain / all, parts.len() as f64);
    let squares: f64 = parts.iter().map(|it| (it.0 - ratio * it.1).powi(2)).sum();
    let free = count - 1.0;
    let doubt = (parts.len() >= LEAST_SLICES).then(|| student(free) * (squares * count / free).sqrt() / all);
    Some((ratio, doubt))
}

/// Why an interval has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The evidence cannot be added.
    #[error(transparent)]
    Evidence(#[from] EvidenceError),
    /// There is no decision.
    #[error(transparent)]
    Fleet(#[from] FleetError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Class, Key, RowKind, Scope, Sum, Sums};

    #[test]
    fn evidence_without_room_fades_all_the_same() {
        let of = |from: u32, to: u32| {
            let mut rows = Evidence::default();
            for at in from..to {
                let class = Class { cell: "rest".into(), comm: format!("t{at}"), ..Class::default() };
                rows.add(Key::of(RowKind::Class, &Scope::default(), &class), &Sums::default().with(Sum::Runs, 2))
                    .unwrap();
            }
            rows
        };
        let mut watch = FadingEvidence::new(DecisionOptions::new(0.05, 4), 2).within(64 << 10);
        watch.interval(&[of(0, 50)]).unwrap();
        assert_eq!(watch.evidence().len(), 50);
        assert!(watch.interval(&[of(50, 2000)]).is_err());
        watch.interval(&[]).unwrap();
        assert_eq!(watch.evidence().len(), 0);
    }

    #[test]
    fn a_ratio_is_as_certain_as_its_parts_are_alike() {
        assert_eq!(ratio(&[]), None);
        let (same, none) = ratio(&[(1.0, 2.0), (2.0, 4.0), (0.5, 1.0), (4.0, 8.0)]).unwrap();
        assert!((same - 0.5).abs() < 1e-9 && none.unwrap() < 1e-9);
        let (other, doubt) = ratio(&[(1.0, 2.0), (3.0, 4.0), (0.2, 1.0), (4.0, 8.0)]).unwrap();
        assert!((other - 8.2 / 15.0).abs() < 1e-9 && doubt.unwrap() > 0.1);
        assert_eq!(ratio(&[(1.0, 2.0), (3.0, 4.0)]).unwrap().1, None);
        for (free, quantile) in [(3.0, 3.182), (5.0, 2.571), (10.0, 2.228), (30.0, 2.042)] {
            assert!((student(free) / quantile - 1.0f64).abs() < 0.02, "{free}");
        }
    }
}
