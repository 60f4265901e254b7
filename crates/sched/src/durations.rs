//! The distribution of durations in bounded memory.

use std::fmt;
use std::ops::Deref;

use sketches_ddsketch::{Config, DDSketch};

/// Quantiles are right within this part of their value.
const ERROR: f64 = 0.01;
/// Bins of a sketch: with this error, durations from 1 ns to 18 s take 1,180.
const BINS: u32 = 1280;
/// Durations below, in ns, count as 0.
const LEAST: f64 = 0.5;

/// Durations in ns: their number, sum, minimum and maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sums {
    count: u64,
    sum: u64,
    min: u64,
    max: u64,
}

impl Sums {
    /// Adds one.
    pub fn add(&mut self, ns: u64) {
        self.merge(&Self { count: 1, sum: ns, min: ns, max: ns });
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
        self.max = self.max.max(other.max);
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// The number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The shortest; `None` if there is none.
    #[must_use]
    pub fn min(&self) -> Option<u64> {
        (self.count > 0).then_some(self.min)
    }

    /// The longest; `None` if there is none.
    #[must_use]
    pub fn max(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max)
    }

    /// The mean; `None` if there is none.
    #[must_use]
    pub fn mean(&self) -> Option<u64> {
        self.sum.checked_div(self.count)
    }
}

/// Durations in ns with quantiles, which are within 1 %: a sketch of at most 10 KiB. Its sums are exact.
#[derive(Clone, Default)]
pub struct Durations {
    sums: Sums,
    sketch: Option<Box<DDSketch>>,
}

impl fmt::Debug for Durations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sums.fmt(f)
    }
}

impl Deref for Durations {
    type Target = Sums;

    fn deref(&self) -> &Sums {
        &self.sums
    }
}

impl Durations {
    /// Adds one.
    pub fn add(&mut self, ns: u64) {
        self.sums.add(ns);
        self.sketch.get_or_insert_with(empty).add(ns as f64);
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.sums.merge(&other.sums);
        if let Some(sketch) = &other.sketch {
            // All have the same configuration, so this cannot fail.
            let _ = self.sketch.get_or_insert_with(empty).merge(sketch);
        }
    }

    /// The quantile `q` from 0 to 1, within 1 %; `None` if there is none.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<u64> {
        // The nearest rank: the sketch would take the one below.
        let count = self.sums.count as f64;
        let rank = (q * count).ceil().max(1.0) - 1.0;
        let q = ((rank + 0.5) / (count - 1.0)).min(1.0);
        let value = self.sketch.as_ref()?.quantile(if q.is_nan() { 1.0 } else { q }).ok().flatten()?;
        // A bin's value may lie outside of what was added.
        Some((value.round() as u64).clamp(self.sums.min, self.sums.max))
    }

    /// Bytes of memory beside the value itself, at most.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.sketch.as_ref().map_or(0, |_| size_of::<DDSketch>() + BINS as usize * size_of::<u64>())
    }
}

fn empty() -> Box<DDSketch> {
    Box::new(DDSketch::new(Config::new(ERROR, BINS, LEAST)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[u64]) -> Durations {
        let mut durations = Durations::default();
        for &ns in values {
            durations.add(ns);
        }
        durations
    }

    #[test]
    fn a_real_zero_is_a_value() {
        let none = Durations::default();
        assert_eq!((none.min(), none.max(), none.mean(), none.quantile(0.5)), (None, None, None, None));
        let zero = of(&[0, 10]);
        assert_eq!((zero.min(), zero.max(), zero.mean(), zero.quantile(0.0)), (Some(0), Some(10), Some(5), Some(0)));
        let mut merged = of(&[5]);
        merged.merge(&zero);
        assert_eq!((merged.min(), merged.count(), merged.sum()), (Some(0), 3, 15));
        let mut into_none = Durations::default();
        into_none.merge(&of(&[7]));
        assert_eq!(into_none.min(), Some(7));
    }

    #[test]
    fn quantiles_are_those_of_the_nearest_rank() {
        let few = of(&[10, 20, 30]);
        assert_eq!((few.quantile(0.99), few.quantile(1.0), few.quantile(0.0)), (Some(30), Some(30), Some(10)));
        assert!(few.quantile(0.5).unwrap().abs_diff(20) <= 1);
        assert_eq!(of(&[7]).quantile(0.5), Some(7));
    }

    proptest::proptest! {
        #[test]
        fn quantiles_are_within_the_error(values in proptest::collection::vec(0u64..10_000_000_000, 1..300), q in 0.0f64..=1.0) {
            let (mut sorted, (left, right)) = (values.clone(), values.split_at(values.len() / 3));
            let mut durations = of(left);
            durations.merge(&of(right));
            sorted.sort_unstable();
            let rank = (q * sorted.len() as f64).ceil().max(1.0) as usize - 1;
            let exact = sorted[rank] as f64;
            let found = durations.quantile(q).unwrap() as f64;
            proptest::prop_assert!((found - exact).abs() <= exact * ERROR * 1.01 + 1.0, "{found} {exact}");
            proptest::prop_assert_eq!(durations.sum(), values.iter().sum::<u64>());
        }
    }
}
