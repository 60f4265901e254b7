//! Medians with intervals, and the generator of random numbers that every resampling uses.

use serde::Serialize;

/// Draws of a bootstrap.
const DRAWS: usize = 10_000;
/// The same numbers give the same interval.
const SEED: u64 = 1;

/// splitmix64.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, 0 for 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// Puts the items in random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// The middle of some values, and the 95 % interval of that median; `None` of no values, or of one that is no number.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Middle {
    pub median: f64,
    pub low: f64,
    pub high: f64,
    /// Values.
    pub count: usize,
}

impl Middle {
    /// The median, and its percentile interval by bootstrap with a fixed seed.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mut rng = Rng::new(SEED);
        let mut medians: Vec<f64> = (0..DRAWS)
            .map(|_| {
                let mut draw: Vec<f64> =
                    values.iter().filter_map(|_| values.get(rng.below(values.len()))).copied().collect();
                median(&mut draw)
            })
            .collect();
        medians.sort_by(f64::total_cmp);
        let at = |part: f64| medians.get(((DRAWS - 1) as f64 * part).round() as usize).copied();
        let middle = median(&mut values.to_vec());
        Some(Self { median: middle, low: at(0.025)?, high: at(0.975)?, count: values.len() })
    }
}

/// The median; of an even number the mean of the middle two.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    let upper = values.get(half).copied().unwrap_or(f64::NAN);
    if values.len().is_multiple_of(2) {
        f64::midpoint(values.get(half.wrapping_sub(1)).copied().unwrap_or(f64::NAN), upper)
    } else {
        upper
    }
}

/// The order of the `sides` in each round: A B, B A, A B ...
pub fn in_turn(rounds: u32, sides: usize) -> impl Iterator<Item = (u32, usize)> {
    (1..=rounds).flat_map(move |round| {
        (0..sides).map(move |place| (round, if round % 2 == 1 { place } else { sides - 1 - place }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_median_contains_it_and_narrows_with_more_values() {
        let few = Middle::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((few.median, few.low, few.high, few.count), (2.0, 1.0, 3.0, 3));
        let mut rng = Rng::new(7);
        let many: Vec<f64> = (0..400).map(|_| 10.0 + rng.below(1000) as f64 / 1000.0).collect();
        let many = Middle::of(&many).unwrap();
        assert!(many.low <= many.median && many.median <= many.high);
        assert!(many.high - many.low < 0.2, "{many:?}");
        let two = Middle::of(&[4.0, 8.0]).unwrap();
        assert_eq!((two.median, two.count), (6.0, 2));
        assert_eq!(Middle::of(&[]), None);
        assert_eq!(Middle::of(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn the_true_median_is_in_nearly_all_intervals() {
        // 95 % are wanted; the percentile interval of 25 values has some 94 %.
        let mut rng = Rng::new(3);
        let covered = (0..200)
            .filter(|_| {
                let values: Vec<f64> = (0..25).map(|_| rng.below(1_000_001) as f64).collect();
                let middle = Middle::of(&values).unwrap();
                middle.low <= 500_000.0 && 500_000.0 <= middle.high
            })
            .count();
        assert!((175..=199).contains(&covered), "{covered} of 200");
    }

    #[test]
    fn rounds_are_in_turn() {
        let order: Vec<_> = in_turn(3, 2).collect();
        assert_eq!(order, [(1, 0), (1, 1), (2, 1), (2, 0), (3, 0), (3, 1)]);
    }
}
