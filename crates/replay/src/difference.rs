//! How much two series of replays differ: pure.

use serde::Serialize;

/// Samples with replacement of the rounds.
const RESAMPLES: usize = 4000;

/// A number under two configurations.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Difference {
    /// The mean under the first one, over all rounds.
    pub a: f64,
    /// The mean under the second one.
    pub b: f64,
    /// How much more the second has, as a part of the first: 0.05 is 5 %. `None` if the first is 0.
    pub change: Option<f64>,
    /// The 95 % interval of that: a bootstrap over rounds. `None` with fewer than three.
    pub interval: Option<(f64, f64)>,
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count.max(1))
}

/// Of a round each.
#[must_use]
pub fn difference(rounds: &[(f64, f64)]) -> Difference {
    let change = |rounds: &mut dyn Iterator<Item = (f64, f64)>| {
        let (a, b): (Vec<f64>, Vec<f64>) = rounds.unzip();
        let (a, b) = (mean(a.into_iter()), mean(b.into_iter()));
        (a > 0.0).then(|| b / a - 1.0)
    };
    let mut interval = None;
    if rounds.len() >= 3 {
        // Marsaglia's xorshift64; the same rounds give the same interval.
        let mut state = 0x2545_f491_4f6c_dd1du64;
        let mut changes: Vec<f64> = (0..RESAMPLES)
            .filter_map(|_| {
                change(&mut (0..rounds.len()).filter_map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    rounds.get((state >> 11) as usize % rounds.len()).copied()
                }))
            })
            .collect();
        changes.sort_unstable_by(f64::total_cmp);
        let at = |part: f64| changes.get((part * changes.len().saturating_sub(1) as f64) as usize).copied();
        interval = at(0.025).zip(at(0.975));
    }
    Difference {
        a: mean(rounds.iter().map(|round| round.0)),
        b: mean(rounds.iter().map(|round| round.1)),
        change: change(&mut rounds.iter().copied()),
        interval,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_has_the_change_in_it() {
        let rounds = [(10.0, 12.0), (11.0, 13.0), (9.0, 11.5), (10.5, 12.5), (10.0, 11.0)];
        let found = difference(&rounds);
        let (low, high) = found.interval.unwrap();
        let change = found.change.unwrap();
        assert!((change - 0.188).abs() < 0.001 && low < change && change < high && low > 0.1, "{found:?}");
        assert_eq!(difference(&rounds), found);
        assert_eq!(difference(&rounds[..2]).interval, None);
        assert_eq!(difference(&[(0.0, 1.0)]).change, None);
        // Without a difference 0 is in it.
        let same = difference(&[(10.0, 11.0), (11.0, 10.0), (9.0, 9.5), (9.5, 9.0)]).interval.unwrap();
        assert!(same.0 < 0.0 && same.1 > 0.0, "{same:?}");
    }
}
