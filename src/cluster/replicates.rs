//! How certain the score of a partition is: from slices of time that are drawn at random.

use super::layout::Layout;
use super::score::{Avoidable, Avoided, Grouped};
use super::truth::Rng;

/// With fewer slices, the certainty of a number cannot be estimated.
const MIN_SLICES: usize = 6;
/// How often the slices are drawn anew.
const REPLICATES: usize = 100;

impl Avoidable {
    /// What [`Self::avoided`] returns, from slices drawn at random, each as often as another: how the numbers vary is how
    /// uncertain they are. The first uses each slice once. Empty if there are too few slices. Two partitions are drawn alike, so
    /// that they can be compared.
    #[must_use]
    pub fn replicates(&self, labels: &[u32], layout: &Layout) -> Vec<Avoided> {
        if self.slices < MIN_SLICES {
            return Vec::new();
        }
        let grouped = Grouped::new(self, labels, layout);
        let mut rng = Rng::new(self.slices as u64);
        let mut times = vec![1.0; self.slices];
        (0..=REPLICATES)
            .map(|replicate| {
                if replicate > 0 {
                    times.fill(0.0);
                    for _ in 0..self.slices {
                        times[rng.below(self.slices as u64) as usize] += 1.0;
                    }
                }
                let drawn = |&(slice, misses): &(u32, f32)| times[slice as usize] * f64::from(misses);
                // The fetches and the taken lines of a thread's use are drawn alike.
                grouped.sum(|sharer| {
                    let misses: f64 = self.in_slices[sharer.slices.clone()].iter().map(drawn).sum();
                    if sharer.seen.misses > 0.0 {
                        misses / sharer.seen.misses
                    } else {
                        0.0
                    }
                })
            })
            .collect()
    }

    /// Half the width of the 95 % interval of a number that has these values in the [replicates](Self::replicates), by Student's
    /// distribution: draws from few slices vary a bit too little.
    #[must_use]
    pub fn margin(&self, values: &[f64]) -> Option<f64> {
        let (_, drawn) = values.split_first()?;
        let count = drawn.len() as f64;
        let mean = drawn.iter().sum::<f64>() / count;
        let variance = drawn.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / count;
        let slices = self.slices as f64;
        let free = slices - 1.0;
        Some(student(free) * (variance * slices / free).sqrt())
    }
}

/// The two-sided 95 % quantile of Student's distribution (Cornish and Fisher's expansion, within 2 % from 3 degrees of freedom on).
pub(crate) fn student(free: f64) -> f64 {
    let z = 1.96f64;
    z + (z.powi(3) + z) / (4.0 * free)
        + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * free * free)
        + (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / (384.0 * free.powi(3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::score::tests::{avoidable, quarters};
    use crate::cluster::truth::Scenario;

    #[test]
    fn a_replicate_of_each_slice_once_is_near_the_whole() {
        let (found, truth) = avoidable(&Scenario { threads: 16, ..Scenario::default() }, 2);
        let whole = found.avoided(&truth, &quarters()).score();
        let replicates = found.replicates(&truth, &quarters());
        assert_eq!(replicates.len(), REPLICATES + 1);
        assert!((replicates[0].score() - whole).abs() < 0.1, "{} {whole}", replicates[0].score());
        let mut parts: Vec<f64> = replicates[1..].iter().map(Avoided::score).collect();
        parts.sort_by(f64::total_cmp);
        let width = parts[REPLICATES * 39 / 40] - parts[REPLICATES / 40];
        assert!(width > 1e-4 && width < 0.1, "{width}");
        // What changes over time is less certain.
        let (drifting, truth) = avoidable(&Scenario { threads: 16, drift: 0.4, ..Scenario::default() }, 2);
        let mut parts: Vec<f64> = drifting.replicates(&truth, &quarters())[1..].iter().map(Avoided::score).collect();
        parts.sort_by(f64::total_cmp);
        let wider = parts[REPLICATES * 39 / 40] - parts[REPLICATES / 40];
        assert!(wider > 2.0 * width, "{wider} {width}");
    }

    #[test]
    fn the_interval_mostly_holds_what_other_recordings_say_on_average() {
        for (name, scenario) in [
            ("plain", Scenario { threads: 16, samples: 400, ..Scenario::default() }),
            ("contended", Scenario { threads: 12, groups: 3, samples: 300, pages: 1, ..Scenario::default() }),
            ("sparse", Scenario { threads: 16, samples: 300, pages: 1024, ..Scenario::default() }),
        ] {
            const RECORDINGS: u64 = 60;
            let mut found = Vec::new();
            for seed in 0..RECORDINGS {
                let (it, truth) = avoidable(&scenario, 100 + seed);
                // Some threads are in the wrong group.
                let labels: Vec<u32> = (0..).zip(&truth).map(|(at, &it)| if at < 3 { 0 } else { it }).collect();
                let value = it.avoided(&labels, &quarters()).score();
                let replicates: Vec<f64> = it.replicates(&labels, &quarters()).iter().map(Avoided::score).collect();
                let margin = it.margin(&replicates).unwrap();
                found.push((value, [value - margin, value + margin]));
            }
            let mean = found.iter().map(|it| it.0).sum::<f64>() / RECORDINGS as f64;
            let held = found.iter().filter(|(_, [low, high])| (*low..=*high).contains(&mean)).count();
            let width = found.iter().map(|(_, [low, high])| high - low).sum::<f64>() / RECORDINGS as f64;
            let sd = (found.iter().map(|it| (it.0 - mean).powi(2)).sum::<f64>() / RECORDINGS as f64).sqrt();
            println!("{name}: sd {sd:.4} of the scores, {:.4} by the intervals", width / 3.92);
            println!("{name}: mean {mean:.3}, {held} of {RECORDINGS} intervals hold it, mean width {width:.3}");
            assert!(held as u64 * 10 >= RECORDINGS * 3, "{name}: {held}");
        }
    }
}
