//! Means with intervals, and the correlation of ranks.

use scxprof::testing::cluster::truth::Rng;

/// Standard errors from the mean to either end of the 95 % interval, by degrees of freedom from 1 (Student's t, two-sided).
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];
/// The same of the normal distribution.
const NORMAL: f64 = 1.959_964;

/// A mean of independent values and half of its 95 % interval, which one value does not have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    pub mid: f64,
    pub half: Option<f64>,
}

impl Mean {
    /// `None` of no values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = values.len() as f64;
        let mid = values.iter().sum::<f64>() / count;
        let squares = values.iter().map(|value| (value - mid).powi(2)).sum::<f64>();
        let half =
            (values.len() > 1).then(|| student(values.len() - 1) * (squares / (count - 1.0)).sqrt() / count.sqrt());
        (!values.is_empty()).then_some(Self { mid, half })
    }

    /// The mean of `a` less that of `b`, whose values are independent, with the interval of Welch for as few degrees of freedom as the shorter
    /// of both has.
    pub fn difference(a: &[f64], b: &[f64]) -> Option<Self> {
        let fewest = a.len().min(b.len());
        let (left, right) = (Self::of(a)?, Self::of(b)?);
        let error = |of: Self, count: usize| Some(of.half? / student(count - 1));
        let half = || Some(student(fewest - 1) * error(left, a.len())?.hypot(error(right, b.len())?));
        Some(Self { mid: left.mid - right.mid, half: half() })
    }

    /// As a part of something that is above 0.
    pub fn over(self, whole: f64) -> Self {
        Self { mid: self.mid / whole, half: self.half.map(|half| half / whole) }
    }

    /// The ends of the interval; both are the mean if there is none.
    pub fn low(&self) -> f64 {
        self.mid - self.half.unwrap_or(0.0)
    }

    pub fn high(&self) -> f64 {
        self.mid + self.half.unwrap_or(0.0)
    }
}

/// The same for any degrees of freedom.
fn student(freedom: usize) -> f64 {
    let of = freedom as f64;
    // Beyond the table, Fisher's expansion about the normal distribution is right to three digits.
    STUDENT.get(freedom.wrapping_sub(1)).copied().unwrap_or_else(|| {
        let cubic = (NORMAL.powi(3) + NORMAL) / 4.0;
        let quintic = (5.0 * NORMAL.powi(5) + 16.0 * NORMAL.powi(3) + 3.0 * NORMAL) / 96.0;
        NORMAL + cubic / of + quintic / of.powi(2)
    })
}

/// Ranks from 0; equal values have the mean of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |&value: &f64| {
        let below = values.iter().filter(|&&it| it < value).count() as f64;
        let upto = values.iter().filter(|&&it| it <= value).count() as f64;
        (below + upto - 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

/// The rank correlation (Spearman) of pairs; `None` of fewer than three, of which it says nothing, and where one side is all equal.
pub fn spearman(pairs: &[(f64, f64)]) -> Option<f64> {
    let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let (a, b) = (ranks(&a), ranks(&b));
    let middle = (pairs.len() as f64 - 1.0) / 2.0;
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - middle) * (b - middle)).sum::<f64>();
    let spread = (product(&a, &a) * product(&b, &b)).sqrt();
    (pairs.len() >= 3 && spread > 0.0).then(|| product(&a, &b) / spread)
}

/// The middle 95 % of some numbers; `None` of none.
pub fn middle(mut of: Vec<f64>) -> Option<[f64; 2]> {
    of.sort_by(f64::total_cmp);
    let cut = of.len() / 40;
    Some([*of.get(cut)?, *of.get(of.len() - 1 - cut)?])
}

/// As many values as there are, each of them as likely as another.
pub fn drawn(of: &[f64], random: &mut Rng) -> Vec<f64> {
    of.iter().filter_map(|_| of.get(random.below(of.len() as u64) as usize).copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_has_the_interval_of_students_t() {
        // 2.776 * sqrt(2.5) / sqrt(5)
        let five = Mean::of(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert!((five.half.unwrap() - 1.962_928).abs() < 1e-5, "{five:?}");
        assert!((five.low() - 1.037_072).abs() < 1e-5 && (five.high() - 4.962_928).abs() < 1e-5);
        assert_eq!(Mean::of(&[7.0]), Some(Mean { mid: 7.0, half: None }));
        assert_eq!(Mean::of(&[]), None);
        // From tables: the last row of ours, and rows beyond it.
        for (freedom, wanted) in [(1, 12.706), (4, 2.776), (30, 2.042), (31, 2.040), (60, 2.000), (120, 1.980)] {
            assert!((student(freedom) - wanted).abs() < 6e-4, "{freedom}: {}", student(freedom));
        }
    }

    #[test]
    fn draws_are_of_the_values_and_differ() {
        let values = [1.0, 2.0, 3.0, 4.0];
        let mut random = Rng::new(1);
        let means: Vec<f64> = (0..400).map(|_| drawn(&values, &mut random).iter().sum::<f64>() / 4.0).collect();
        assert!(means.iter().all(|it| (1.0..=4.0).contains(it)));
        // The standard error is 0.56.
        let [low, high] = middle(means).unwrap();
        assert!((1.2..1.8).contains(&low) && (3.2..3.8).contains(&high), "{low} {high}");
        assert_eq!(
            (middle(Vec::new()), middle(vec![7.0]), drawn(&[], &mut random)),
            (None, Some([7.0, 7.0]), Vec::new())
        );
    }

    #[test]
    fn equal_values_have_the_mean_of_their_ranks() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [2.5, 0.0, 2.5, 1.0]);
        let of = |a: &[f64], b: &[f64]| spearman(&a.iter().copied().zip(b.iter().copied()).collect::<Vec<_>>());
        assert_eq!(of(&[1.0, 2.0, 9.0], &[1.0, 4.0, 5.0]), Some(1.0));
        assert_eq!(of(&[1.0, 2.0, 9.0], &[5.0, 4.0, 1.0]), Some(-1.0));
        // Ranks 0 1.5 1.5 3 and 0 1 2.5 2.5: products 2.25 + 0 + 0 + 1.5, squares 4.5 and 5 less 0.5.
        let tied = of(&[1.0, 2.0, 2.0, 3.0], &[1.0, 2.0, 3.0, 3.0]).unwrap();
        assert!((tied - 3.75 / 4.5).abs() < 1e-12, "{tied}");
        assert_eq!(of(&[1.0, 2.0], &[1.0, 2.0]), None);
        assert_eq!(of(&[1.0, 2.0, 3.0], &[4.0, 4.0, 4.0]), None);
    }
}
