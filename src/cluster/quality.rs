//! The quality of a partition: its agreement with another one, and the locality that it keeps.

use rustc_hash::FxHashMap;

use super::rules::RawCommunity;

/// The adjusted Rand index of two partitions of the same things (Hubert and Arabie 1985): 1 for equal partitions, about 0
/// for unrelated ones. Labels mean nothing but equality.
#[must_use]
pub fn adjusted_rand_index(a: &[u32], b: &[u32]) -> f64 {
    let pairs = |count: u64| count as f64 * (count as f64 - 1.0) / 2.0;
    let mut both: FxHashMap<(u32, u32), u64> = FxHashMap::default();
    let (mut of_a, mut of_b): (FxHashMap<u32, u64>, FxHashMap<u32, u64>) = Default::default();
    for (&a, &b) in a.iter().zip(b) {
        *both.entry((a, b)).or_default() += 1;
        *of_a.entry(a).or_default() += 1;
        *of_b.entry(b).or_default() += 1;
    }
    let count = a.len().min(b.len()) as u64;
    // Sums of whole numbers below 2^53, so the order of the map has no effect.
    let together: f64 = both.values().map(|&n| pairs(n)).sum();
    let sum_a: f64 = of_a.values().map(|&n| pairs(n)).sum();
    let sum_b: f64 = of_b.values().map(|&n| pairs(n)).sum();
    let expected = if count > 1 { sum_a * sum_b / pairs(count) } else { 0.0 };
    let most = f64::midpoint(sum_a, sum_b);
    if (most - expected).abs() < f64::EPSILON {
        // Both put all things into one set, or both put each into its own.
        return 1.0;
    }
    (together - expected) / (most - expected)
}

/// How much of the evidence for a community is certain, and which part of communities with that much were right: all threads of
/// a group and no other (`tests/decision/cluster_truth.rs` recomputes the table). Linear in between.
const RELIABILITY: [(f64, f64); 6] = [(0.0, 0.62), (0.1, 0.75), (0.3, 0.88), (0.6, 0.93), (0.8, 0.98), (1.0, 1.0)];

/// How certain a community is: among communities with as much evidence in streams of known truth, the part that was right.
///
/// The evidence is what the community has in common beyond the minimum, in standard deviations, and whether both halves of the
/// samples agree.
pub(crate) fn confidence(found: &RawCommunity) -> f64 {
    let beyond = found.deviations.max(0.0);
    let evidence = beyond / (1.0 + beyond) * found.stability.unwrap_or(1.0);
    let line = RELIABILITY.windows(2).find(|line| evidence <= line[1].0);
    let reliability = line.map_or(1.0, |line| {
        let part = (evidence - line[0].0) / (line[1].0 - line[0].0);
        line[0].1 + part * (line[1].1 - line[0].1)
    });
    reliability * found.over_time.map_or(1.0, |it| it.reliability())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(close(adjusted_rand_index(&[0, 0, 1, 1], &[5, 5, 3, 3]), 1.0));
        assert!(close(adjusted_rand_index(&[0, 0, 1, 1], &[0, 0, 1, 2]), 4.0 / 7.0));
        assert!(close(adjusted_rand_index(&[0, 0, 1, 1], &[0, 1, 0, 1]), -0.5));
        assert!(close(adjusted_rand_index(&[0, 0, 0], &[0, 0, 0]), 1.0));
        assert!(close(adjusted_rand_index(&[0, 1, 2], &[0, 1, 2]), 1.0));
        assert!(close(adjusted_rand_index(&[0, 0, 0], &[0, 0, 1]), 0.0));
        assert!(close(adjusted_rand_index(&[], &[]), 1.0));
    }
}
