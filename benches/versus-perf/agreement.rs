//! Do two programs see the same? Distributions of accesses within sampling error, and the same groups of threads.
//!
//! Each thread's accesses are compared with the same thread's: how much CPU time a thread got may differ between two captures, and
//! is not what a sampler can get wrong. The limit of each statistic is the greatest of 1,999 random divisions of all samples, so that
//! programs that see the same are told apart by mistake once in 2,000 comparisons. Blocks of consecutive samples of a thread stay
//! together in these divisions: neighbours are often alike.
//!
//! With very many samples the work itself differs visibly from one capture to the next. So a difference also counts only above a
//! size that matters: 1 % of a distribution, 0.1 % of all samples for a single value.

use std::collections::BTreeMap;

use scxprof::testing::cluster::quality::adjusted_rand_index;

use crate::recording::Observed;
use crate::result::{number, Check};
use crate::statistics::Rng;

const DIVISIONS: usize = 1_999;
const SEED: u64 = 18;
/// Consecutive samples of a thread that stay together.
const BLOCK: usize = 8;
/// Samples of one program that are compared; the first ones.
const MOST: usize = 100_000;
/// With fewer samples of each, nothing can be said.
const ENOUGH: usize = 300;
/// A thread with this number of samples of one program must be seen by the other.
const ENOUGH_OF_THREAD: usize = 20;
const LEAST_DISTANCE: f64 = 0.01;
const LEAST_SHARE: f64 = 0.001;

/// What a comparison of two sides is called.
#[derive(Debug, Clone, Copy)]
pub struct Sides<'a> {
    pub a: &'a str,
    pub b: &'a str,
    pub case: &'a str,
}

/// What is compared of an access.
type Key = fn(&Observed) -> u64;

/// Compares addresses by page, data sources and latencies.
pub fn distributions(sides: Sides<'_>, a: &[Observed], b: &[Observed]) -> Vec<Check> {
    let (a, b) = (a.get(..a.len().min(MOST)).unwrap_or_default(), b.get(..b.len().min(MOST)).unwrap_or_default());
    let Sides { a: of_a, b: of_b, case } = sides;
    let counts = format!("{} and {} samples", number(a.len() as f64, 0), number(b.len() as f64, 0));
    if a.len() < ENOUGH || b.len() < ENOUGH {
        let what = format!("{case}: {of_a} and {of_b} have enough samples to compare");
        return vec![Check { what, holds: false, because: counts }];
    }
    let mut checks = vec![threads(sides, a, b)];
    let quantities: [(&str, Key); 3] = [
        ("pages", |observed| observed.addr >> 12),
        ("data sources", |observed| observed.data_src),
        ("latencies", |observed| observed.latency),
    ];
    for (quantity, key) in quantities {
        let Some(strata) = Strata::new(a, b, key) else { continue };
        let what = format!("{case}: {of_a} and {of_b} see the same {quantity}");
        checks.push(strata.check(what, &counts));
    }
    checks
}

/// Every thread with some samples is seen by both.
fn threads(sides: Sides<'_>, a: &[Observed], b: &[Observed]) -> Check {
    let count = |all: &[Observed]| {
        all.iter().fold(BTreeMap::<u32, usize>::new(), |mut counts, observed| {
            *counts.entry(observed.tid).or_default() += 1;
            counts
        })
    };
    let (a, b) = (count(a), count(b));
    let missing = |from: &BTreeMap<u32, usize>, of: &BTreeMap<u32, usize>| {
        of.iter().filter(|(tid, count)| **count >= ENOUGH_OF_THREAD && !from.contains_key(tid)).count()
    };
    let (only_a, only_b) = (missing(&b, &a), missing(&a, &b));
    Check {
        what: format!("{}: {} and {} see the same threads", sides.case, sides.a, sides.b),
        holds: only_a + only_b == 0,
        because: format!("{} and {} threads, {} in one only", a.len(), b.len(), only_a + only_b),
    }
}

/// A value that a thread's samples had.
struct Cell {
    /// The thread's number.
    stratum: usize,
    value: u64,
    /// Samples of both sides.
    both: u32,
}

/// The samples of two sides by thread and value.
struct Strata {
    /// Sorted by thread and value.
    cells: Vec<Cell>,
    /// Of each thread: its blocks of samples, those of side a first, as indices of cells; and how many are a's.
    blocks: Vec<(Vec<[u32; BLOCK]>, usize)>,
    /// Samples of both sides.
    total: f64,
}

/// How far two sides are apart.
#[derive(Debug, Clone, Copy, Default)]
struct Distance {
    /// Total variation: the share of the samples that would have to be others. The mean of the threads by their samples.
    variation: f64,
    /// Kolmogorov and Smirnov's: the greatest difference of the cumulated shares, likewise.
    cumulated: f64,
    /// The value that differs most, in standard deviations, and its difference in shares of all samples.
    worst: f64,
    worst_share: f64,
    worst_value: u64,
}

impl Strata {
    /// `None` where no thread has a block of each.
    fn new(a: &[Observed], b: &[Observed], key: impl Fn(&Observed) -> u64) -> Option<Self> {
        let mut sequences: BTreeMap<u32, [Vec<u64>; 2]> = BTreeMap::new();
        for (side, all) in [a, b].into_iter().enumerate() {
            for observed in all {
                if let Some(sequence) = sequences.entry(observed.tid).or_default().get_mut(side) {
                    sequence.push(key(observed));
                }
            }
        }
        // What does not fill a block is left out, so that each division has the same numbers.
        sequences.values_mut().flatten().for_each(|sequence| sequence.truncate(sequence.len() / BLOCK * BLOCK));
        sequences.retain(|_, [a, b]| !a.is_empty() && !b.is_empty());
        let (mut cells, mut blocks) = (Vec::new(), Vec::new());
        for (stratum, [a, b]) in sequences.values().enumerate() {
            let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
            for value in a.iter().chain(b) {
                *counts.entry(*value).or_default() += 1;
            }
            let first = cells.len();
            let index: BTreeMap<u64, u32> = counts.keys().copied().zip(first as u32..).collect();
            cells.extend(counts.into_iter().map(|(value, both)| Cell { stratum, value, both }));
            let all: Vec<[u32; BLOCK]> = a
                .chunks_exact(BLOCK)
                .chain(b.chunks_exact(BLOCK))
                .map(|chunk| {
                    std::array::from_fn(|at| chunk.get(at).and_then(|value| index.get(value)).copied().unwrap_or(0))
                })
                .collect();
            blocks.push((all, a.len() / BLOCK));
        }
        let total = cells.iter().map(|cell| f64::from(cell.both)).sum();
        (!cells.is_empty()).then_some(Self { cells, blocks, total })
    }

    fn check(mut self, what: String, counts: &str) -> Check {
        let mut of_a = vec![0; self.cells.len()];
        let found = self.distance(&mut of_a);
        let mut rng = Rng::new(SEED);
        let mut limit = Distance::default();
        for _ in 0..DIVISIONS {
            for (blocks, _) in &mut self.blocks {
                rng.shuffle(blocks);
            }
            let chance = self.distance(&mut of_a);
            limit.variation = limit.variation.max(chance.variation);
            limit.cumulated = limit.cumulated.max(chance.cumulated);
            limit.worst = limit.worst.max(chance.worst);
        }
        let distance = |found: f64, limit: f64| found <= limit.max(LEAST_DISTANCE);
        let is_worst_chance = found.worst <= limit.worst || found.worst_share <= LEAST_SHARE;
        let holds =
            distance(found.variation, limit.variation) && distance(found.cumulated, limit.cumulated) && is_worst_chance;
        let Distance { variation, cumulated, worst, worst_value, .. } = found;
        let because = format!(
            "{counts}; total variation {variation:.3}, limit {:.3}; greatest cumulated difference {cumulated:.3}, limit {:.3}; most \
             different value {worst_value:#x} by {worst:.1} standard deviations, limit {:.1}",
            limit.variation.max(LEAST_DISTANCE),
            limit.cumulated.max(LEAST_DISTANCE),
            limit.worst
        );
        Check { what, holds, because }
    }

    /// The distance of the two sides, where the first blocks of each thread are a's.
    fn distance(&self, of_a: &mut [u32]) -> Distance {
        of_a.fill(0);
        for (blocks, count) in &self.blocks {
            for cell in blocks.iter().take(*count).flatten() {
                if let Some(count) = of_a.get_mut(*cell as usize) {
                    *count += 1;
                }
            }
        }
        let mut distance = Distance::default();
        let (mut stratum, mut cumulated, mut greatest) = (usize::MAX, 0.0f64, 0.0f64);
        let (mut in_a, mut in_b) = (0.0, 0.0);
        for (cell, a) in self.cells.iter().zip(of_a) {
            if cell.stratum != stratum {
                distance.cumulated += greatest * (in_a + in_b) / self.total;
                (stratum, cumulated, greatest) = (cell.stratum, 0.0, 0.0);
                let sides = self.blocks.get(stratum).map_or((0, 0), |(all, of_a)| (*of_a, all.len() - of_a));
                (in_a, in_b) = ((sides.0 * BLOCK) as f64, (sides.1 * BLOCK) as f64);
            }
            let (a, both) = (f64::from(*a), f64::from(cell.both));
            let difference = a / in_a - (both - a) / in_b;
            let weight = (in_a + in_b) / self.total;
            distance.variation += difference.abs() / 2.0 * weight;
            cumulated += difference;
            greatest = greatest.max(cumulated.abs());
            let part = in_a / (in_a + in_b);
            let deviations = (a - both * part).abs() / (both * part * (1.0 - part)).sqrt();
            if deviations > distance.worst {
                distance.worst = deviations;
                distance.worst_share = difference.abs() * weight;
                distance.worst_value = cell.value;
            }
        }
        distance.cumulated += greatest * (in_a + in_b) / self.total;
        distance
    }
}

/// The group of each thread, by process and thread id. Labels mean nothing but equality.
pub type Groups = BTreeMap<(u32, u32), String>;

/// Both have the same threads, and the same of them together.
pub fn groups(sides: Sides<'_>, a: &Groups, b: &Groups) -> Check {
    let what = format!("{}: {} and {} give the same groups of threads", sides.case, sides.a, sides.b);
    let number = |groups: &Groups| {
        let mut labels: BTreeMap<&str, u32> = BTreeMap::new();
        let next = |labels: &BTreeMap<&str, u32>| labels.len() as u32;
        groups
            .values()
            .map(|label| {
                let new = next(&labels);
                *labels.entry(label.as_str()).or_insert(new)
            })
            .collect::<Vec<u32>>()
    };
    let only = a.keys().filter(|thread| !b.contains_key(thread)).count()
        + b.keys().filter(|thread| !a.contains_key(thread)).count();
    let count = |groups: &Groups| groups.values().collect::<std::collections::BTreeSet<_>>().len();
    if only > 0 || a.len() < 2 {
        let because = format!("{} and {} threads, {only} in one only", a.len(), b.len());
        return Check { what, holds: false, because };
    }
    let index = adjusted_rand_index(&number(a), &number(b));
    let because =
        format!("adjusted Rand index {index:.3} of {} threads, {} and {} groups", a.len(), count(a), count(b));
    Check { what, holds: index > 1.0 - 1e-9, because }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIDES: Sides<'static> = Sides { a: "a", b: "b", case: "test" };

    /// Samples of four threads, each with 64 pages, three data sources, and latencies that depend on the source.
    fn observed(seed: u64, count: usize) -> Vec<Observed> {
        let mut rng = Rng::new(seed);
        (0..count)
            .map(|_| {
                let thread = rng.below(4) as u32;
                let source = [1, 1, 1, 2, 3][rng.below(5)];
                let latency = source * 30 + (rng.below(20) + rng.below(20)) as u64;
                let addr = (u64::from(thread) << 32) + ((rng.below(64) as u64) << 12) + rng.below(4096) as u64;
                Observed { pid: 1, tid: thread, addr, data_src: source, latency }
            })
            .collect()
    }

    /// The quantities that are said to differ.
    fn differ(a: &[Observed], b: &[Observed]) -> Vec<String> {
        let checks = distributions(SIDES, a, b);
        let failed = checks.iter().filter(|check| !check.holds);
        failed.map(|check| check.what.rsplit(" the same ").next().unwrap().to_owned()).collect()
    }

    #[test]
    fn samples_of_the_same_work_agree() {
        let wrong = (0..20u64).filter(|seed| !differ(&observed(*seed, 3_000), &observed(seed + 100, 4_500)).is_empty());
        assert_eq!(wrong.count(), 0);
    }

    #[test]
    fn threads_that_got_other_shares_of_the_cpu_agree() {
        let mut fewer = observed(1, 8_000);
        let mut kept = 0;
        fewer.retain(|observed| {
            observed.tid != 2 || {
                kept += 1;
                kept % 3 == 0
            }
        });
        assert_eq!(differ(&fewer, &observed(2, 6_000)), [""; 0]);
    }

    #[test]
    fn shifted_latencies_are_refused() {
        let mut shifted = observed(1, 4_000);
        for observed in &mut shifted {
            observed.latency += 3;
        }
        assert_eq!(differ(&shifted, &observed(2, 4_000)), ["latencies"]);
    }

    #[test]
    fn a_page_that_one_never_sees_is_refused() {
        let mut without = observed(1, 12_000);
        without.retain(|observed| observed.addr >> 12 != (1 << 20) + 7);
        assert_eq!(differ(&without, &observed(2, 12_000)), ["pages"]);
        assert_eq!(differ(&observed(2, 12_000), &without), ["pages"]);
    }

    #[test]
    fn other_data_sources_are_refused() {
        let mut other = observed(1, 4_000);
        for observed in other.iter_mut().step_by(10) {
            observed.data_src = 4;
        }
        assert_eq!(differ(&other, &observed(2, 4_000)), ["data sources"]);
    }

    #[test]
    fn a_thread_that_one_never_sees_and_too_few_samples_are_refused() {
        let mut without = observed(1, 4_000);
        without.retain(|observed| observed.tid != 3);
        assert_eq!(differ(&without, &observed(2, 4_000)), ["threads"]);
        assert_eq!(
            distributions(SIDES, &observed(1, 299), &observed(2, 4_000)).iter().filter(|it| it.holds).count(),
            0
        );
    }

    fn four(labels: [&str; 4]) -> Groups {
        (1..).map(|tid| (1, tid)).zip(labels.map(str::to_owned)).collect()
    }

    #[test]
    fn the_same_groups_agree_whatever_their_names() {
        assert!(groups(SIDES, &four(["x", "x", "y", "y"]), &four(["1", "1", "0", "0"])).holds);
    }

    #[test]
    fn swapped_missing_and_merged_threads_are_refused() {
        let right = four(["x", "x", "y", "y"]);
        assert!(!groups(SIDES, &right, &four(["x", "y", "x", "y"])).holds, "two are swapped");
        assert!(!groups(SIDES, &right, &four(["x", "x", "x", "x"])).holds, "merged");
        assert!(!groups(SIDES, &right, &four(["x", "x", "y", "z"])).holds, "divided");
        let mut missing = right.clone();
        missing.remove(&(1, 4));
        assert!(!groups(SIDES, &right, &missing).holds);
        assert!(!groups(SIDES, &Groups::new(), &Groups::new()).holds);
    }
}
