//! Whether a configuration is still the right one: decided again in each interval, from evidence that fades.

use super::decide::FleetError;
use super::score::Judge;
use super::table::{Evidence, EvidenceError};
use crate::config::{DecisionOptions, Placement};

/// What is left of evidence after an interval. A change of the workload must outweigh all that was before in its first interval:
/// the sum of what is left of all earlier ones is a third of one.
const FADE: f64 = 0.25;
/// Intervals in a row in which a new configuration must be better.
const WINS: u32 = 2;
/// A gain below this part of the avoidable misses is worth no change.
const LEAST_GAIN: f64 = 0.02;
/// Fewer slices do not tell how certain a gain is.
const LEAST_SLICES: usize = 4;

/// Evidence that fades, and the configuration that is loaded.
#[derive(Debug)]
pub struct Watch {
    options: DecisionOptions,
    llcs: u32,
    evidence: Evidence,
    loaded: Option<String>,
    wins: u32,
}

/// What an interval showed.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Interval {
    /// The score of the loaded configuration, or of none; `None` if so little is avoidable that no configuration matters.
    pub score: Option<f64>,
    /// The score of the configuration that would be decided now.
    pub best: Option<f64>,
    /// How much more that avoids, as a part of the avoidable misses.
    pub gain: Option<f64>,
    /// Half the width of the gain's 95 % interval over the slices of the interval; `None` if there are too few.
    pub doubt: Option<f64>,
    /// The new configuration, if it was better twice in a row.
    pub new: Option<String>,
    /// Why there is no configuration for this host.
    pub refused: Option<String>,
}

impl Watch {
    /// Decides with these options, for hosts with so many last-level caches.
    #[must_use]
    pub fn new(options: DecisionOptions, llcs: u32) -> Self {
        Self { options, llcs, evidence: Evidence::default(), loaded: None, wins: 0 }
    }

    /// Goes on with the evidence of an earlier watch, and the intervals in a row in which it found something better.
    #[must_use]
    pub fn resume(self, evidence: Evidence, wins: u32) -> Self {
        Self { evidence, wins, ..self }
    }

    /// The configuration that is loaded from now on.
    pub fn load(&mut self, configuration: Option<String>) {
        if self.loaded != configuration {
            self.loaded = configuration;
            self.wins = 0;
        }
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

    /// Intervals in a row in which something was better than what is loaded.
    #[must_use]
    pub fn wins(&self) -> u32 {
        self.wins
    }

    /// Takes the evidence of an interval's slices. The new configuration of the result is loaded from then on.
    ///
    /// # Errors
    /// [`WatchError`]; nothing has changed then but the evidence.
    pub fn interval(&mut self, slices: &[Evidence]) -> Result<Interval, WatchError> {
        let mut fresh = Evidence::default();
        slices.iter().try_for_each(|slice| fresh.merge(slice))?;
        let mut evidence = self.evidence.faded(FADE);
        evidence.merge(&fresh)?;
        self.evidence = evidence;
        let mut found = Interval::default();
        if !fresh.is_worth() {
            self.wins = 0;
            return Ok(found);
        }
        let loaded = self.loaded.as_deref().and_then(|json| Placement::parse(json).ok());
        let judge = Judge::new(&self.evidence, loaded.as_ref(), self.llcs);
        found.score = judge.avoided(&fresh).score();
        let decided = match self.evidence.decide(&self.options) {
            Ok(decided) => decided,
            Err(FleetError::NoSamples(_)) => return Ok(found),
            Err(error) => return Err(error.into()),
        };
        let json = match decided.to_json(self.options.scheduler) {
            Ok(json) => json,
            Err(error) => {
                self.wins = 0;
                found.refused = Some(error.to_string());
                return Ok(found);
            }
        };
        let best = Placement::parse(&json).ok();
        let best = Judge::new(&self.evidence, best.as_ref(), self.llcs);
        found.best = best.avoided(&fresh).score();
        // Of each slice, the misses that the new configuration avoids more, and those that are avoidable.
        let gains = slices.iter().map(|slice| {
            let (new, old) = (best.avoided(slice), judge.avoided(slice));
            (new.avoided - old.avoided, new.avoidable)
        });
        let gains: Vec<(f64, f64)> = gains.filter(|it| it.1 > 0.0).collect();
        let gain = ratio(&gains);
        found.gain = gain.map(|it| it.0);
        found.doubt = gain.and_then(|it| it.1);
        let is_better = matches!(gain, Some((gain, Some(doubt))) if gain > doubt && gain > LEAST_GAIN);
        self.wins = if is_better { self.wins + 1 } else { 0 };
        if self.wins >= WINS {
            self.load(Some(json.clone()));
            found.new = Some(json);
        }
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

/// The two-sided 95 % quantile of Student's distribution (Cornish and Fisher's expansion, within 2 % from 3 degrees of freedom on).
fn student(free: f64) -> f64 {
    let z = 1.96f64;
    z + (z.powi(3) + z) / (4.0 * free)
        + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * free * free)
        + (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / (384.0 * free.powi(3))
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
