//! The distribution of durations in bounded memory.

use std::fmt;
use std::ops::Deref;

use super::bins::{Bins, MAX_BINS};

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
        self.min = if self.count == 0 { ns } else { self.min.min(ns) };
        self.max = self.max.max(ns);
        self.count += 1;
        self.sum = self.sum.saturating_add(ns);
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
    bins: Bins,
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
        self.bins.add(ns);
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.sums.merge(&other.sums);
        self.bins.merge(&other.bins);
    }

    /// The quantile `q` from 0 to 1, within 1 %; `None` if there is none.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<u64> {
        if self.sums.count == 0 {
            return None;
        }
        // The nearest rank; its middle, so that it is found again where a number of this size has no fraction.
        let count = self.sums.count as f64;
        let rank = (q * count).ceil().max(1.0) - 1.0;
        let q = (rank + 0.5) / (count - 1.0);
        let value =
            if q < 1.0 { self.bins.at((q * (count - 1.0)) as u64, self.sums.count) } else { self.sums.max as f64 };
        // A bin's value may lie outside of what was added.
        Some((value.round() as u64).clamp(self.sums.min, self.sums.max))
    }

    /// Bytes of memory beside the value itself, at most.
    #[must_use]
    pub fn bytes(&self) -> usize {
        if self.bins.is_empty() {
            0
        } else {
            MAX_BINS * size_of::<u64>()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bins::ERROR;
    use sketches_ddsketch::{Config, DDSketch};

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

    /// The same distribution as another program would make it.
    struct Sketch(DDSketch, Sums);

    impl Sketch {
        fn of(values: &[u64]) -> Self {
            let (mut sketch, mut sums) = (DDSketch::new(Config::new(ERROR, MAX_BINS as u32, 0.5)), Sums::default());
            for &ns in values {
                sketch.add(ns as f64);
                sums.add(ns);
            }
            Self(sketch, sums)
        }

        fn quantile(&self, q: f64) -> Option<u64> {
            let count = self.1.count as f64;
            let rank = (q * count).ceil().max(1.0) - 1.0;
            let q = ((rank + 0.5) / (count - 1.0)).min(1.0);
            let value = self.0.quantile(if q.is_nan() { 1.0 } else { q }).ok().flatten()?;
            Some((value.round() as u64).clamp(self.1.min, self.1.max))
        }
    }

    proptest::proptest! {
        #[test]
        fn quantiles_are_those_of_a_sketch(
            values in proptest::collection::vec((0u32..64, proptest::num::u64::ANY), 0..300),
            least in 0u32..64,
            q in 0.0f64..=1.0,
        ) {
            // Of all sizes, so that bins are added up, or of some.
            for (by, least) in [(1, 0), (2, least), (8, least)] {
                let values: Vec<u64> = values.iter().map(|(some, ns)| ns >> (some / by + least).min(63)).collect();
                let (durations, sketch) = (of(&values), Sketch::of(&values));
                for q in [q, 0.0, 0.5, 0.9, 0.99, 1.0] {
                    proptest::prop_assert_eq!(durations.quantile(q), sketch.quantile(q));
                }
                // In any order.
                let (left, right) = values.split_at(values.len() / 3);
                let mut merged = of(right);
                merged.merge(&of(left));
                proptest::prop_assert_eq!(merged.quantile(q), durations.quantile(q));
            }
        }

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
