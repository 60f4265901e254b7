//! What classes of threads share, in sums that can be added to those of other runs.

use std::collections::BTreeMap;

use super::communities::{self, Ranks, BACK_AND_FORTH};
use super::linkage::Affinity;
use super::misses::{Misses, Part, Use};
use super::rules::{Demand, Region, Rules, Sharer};
use super::score::Avoidable;
use super::sketch::Sharing;

/// Threads of a cell that are compared with each other: those with most accesses.
const MAX_THREADS: usize = 3000;

/// The sums of a class of threads.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ClassUse {
    /// Its threads with samples.
    pub threads: u32,
    /// Their possible misses, weighted by cost.
    pub misses: f64,
    /// The number of misses that was counted, from which the certainty follows.
    pub counted: f64,
    /// The lines that they touched, as far as they were sampled: each thread's own count.
    pub lines: f64,
}

/// What two classes share, or the threads of one class with each other. All but `avoidable` covers threads in the same cell only.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PairUse {
    /// The sum over pairs of threads of the possible misses of the one that has fewer.
    pub possible: f64,
    /// The part of `possible` on regions that both use, without hubs.
    pub shared: f64,
    /// The same with hubs; no line of a hub counts for more than its part.
    pub common: f64,
    /// The part of `possible` that are transfers of lines that both write.
    pub contended: f64,
    /// Avoidable misses between them, weighted by cost: over all pairs of a run, what one cache for all threads avoids.
    pub avoidable: f64,
}

/// What the classes of a run share.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClassSharing {
    /// By the number of the class.
    pub classes: Vec<ClassUse>,
    /// By the numbers of two classes, the lower first: threads of one cell.
    pub pairs: BTreeMap<(u32, u32), PairUse>,
    /// Avoidable misses between threads of different cells, likewise.
    pub across: BTreeMap<(u32, u32), f64>,
}

impl Sharing {
    /// What classes share: `cells` has the cell of each thread, and `classes` its class, which are numbered from 0 without gaps.
    #[must_use]
    pub fn classes(&self, cells: &[u32], classes: &[u32]) -> ClassSharing {
        let count = classes.iter().map(|&class| class as usize + 1).max().unwrap_or_default();
        let mut found = ClassSharing { classes: vec![ClassUse::default(); count], ..ClassSharing::default() };
        let misses = Misses::new(self, Part::All);
        let mut threads: Vec<(u32, u64, u32)> = Vec::new();
        for ((thread, activity), (&cell, &class)) in (0u32..).zip(self.threads()).zip(cells.iter().zip(classes)) {
            let Some(of_class) = found.classes.get_mut(class as usize).filter(|_| activity.accesses > 0) else {
                continue;
            };
            of_class.threads += 1;
            of_class.misses += misses.demand.get(thread as usize).copied().unwrap_or_default();
            of_class.counted += misses.counted.get(thread as usize).copied().unwrap_or_default();
            threads.push((cell, activity.accesses, thread));
        }
        for (touch, page) in self.touches_and_pages(true) {
            let class = classes.get(touch.thread as usize).and_then(|&class| found.classes.get_mut(class as usize));
            if let Some(class) = class {
                class.lines += f64::from(touch.lines.count_ones()) * f64::from(self.stands_for(page));
            }
        }
        threads.sort_unstable_by_key(|&(cell, accesses, thread)| (cell, std::cmp::Reverse(accesses), thread));
        let cells_by_rank: Vec<Vec<u32>> = threads
            .chunk_by(|a, b| a.0 == b.0)
            .map(|cell| cell.iter().take(MAX_THREADS).map(|it| it.2).collect())
            .collect();
        let ranks = Ranks::new(&misses, cells_by_rank.iter().map(Vec::as_slice));
        for (at, ranked) in cells_by_rank.iter().enumerate() {
            self.add_cell(ranked, (&misses, ranks.uses(&misses, at)), classes, &mut found.pairs);
        }
        for ([a, b], avoidable) in Avoidable::new(self, None).pairs_of_threads(cells, classes) {
            let (a, b, is_together) = (a.1.min(b.1), a.1.max(b.1), a.0 == b.0);
            if is_together {
                found.pairs.entry((a, b)).or_default().avoidable += avoidable;
            } else {
                *found.across.entry((a, b)).or_default() += avoidable;
            }
        }
        found
    }

    /// Adds the pairs of the threads of a cell.
    fn add_cell(
        &self,
        threads: &[u32],
        (misses, uses): (&Misses, Vec<Use>),
        classes: &[u32],
        pairs: &mut BTreeMap<(u32, u32), PairUse>,
    ) {
        let (regions, _) = communities::solve(misses, uses, threads, |thread| self.owner(thread), &Rules::default());
        let of =
            |sums: &[f64], thread: u32| sums.get(thread as usize).copied().unwrap_or_default().max(f64::MIN_POSITIVE);
        let demand = |thread: &u32| Demand {
            misses: of(&misses.demand, *thread),
            count: of(&misses.count, *thread),
            counted: of(&misses.counted, *thread),
        };
        let demand: Vec<Demand> = threads.iter().map(demand).collect();
        let local: Vec<u32> = (0..threads.len() as u32).collect();
        let of = |regions: &[Region]| Affinity::new(threads.len(), regions.iter(), &local, &demand);
        // The least of two small counts is too small on average, and a hub has nothing to spare above its limit.
        let mean =
            |regions: &[Region]| Affinity::by(|a, b| (a * b).sqrt(), threads.len(), regions.iter(), &local, &demand);
        let shared: Vec<Region> = regions.iter().filter(|region| !region.is_hub).cloned().collect();
        let common: Vec<Region> = regions.iter().map(|region| without_hot_lines(region, &demand)).collect();
        let contended: Vec<Region> = regions.iter().filter_map(|region| transfers(region, &demand)).collect();
        let (shared, common, contended) = (of(&shared), mean(&common), of(&contended));
        for (at, &a) in threads.iter().enumerate() {
            for (beside, &b) in threads.iter().enumerate().skip(at + 1) {
                if self.owner(a) == self.owner(b) {
                    continue;
                }
                let class = |thread: u32| classes.get(thread as usize).copied().unwrap_or_default();
                let key = (class(a).min(class(b)), class(a).max(class(b)));
                let possible = demand[at].counted.min(demand[beside].counted);
                let pair = pairs.entry(key).or_default();
                pair.possible += possible;
                pair.shared += possible * shared.get(at, beside);
                pair.common += possible * common.get(at, beside);
                pair.contended += possible * contended.get(at, beside);
            }
        }
    }
}

/// The region with those of its misses that may make a community of all threads: no line of it counts for more than its part.
fn without_hot_lines(region: &Region, demand: &[Demand]) -> Region {
    let rules = Rules::default();
    let sum: f64 = region.sharers.iter().map(|it| region.part(it, demand)).sum();
    let mean = sum / region.sharers.len().max(1) as f64;
    let limit = region.lines * rules.worth_of_all / rules.lines_of_all;
    Region { fits: region.fits * (limit / mean.max(f64::MIN_POSITIVE)).min(1.0), ..region.clone() }
}

/// The region with the transfers in place of the misses; `None` without any.
fn transfers(region: &Region, demand: &[Demand]) -> Option<Region> {
    let all: f64 = region.sharers.iter().map(|it| it.transfers).sum();
    let sharer = |it: &Sharer| {
        let demand = demand.get(it.thread as usize)?;
        // A line goes back and forth: each of a few accesses by the others can have caused a transfer or two.
        let fought = it.transfers.min(BACK_AND_FORTH * (all - it.transfers));
        Some(Sharer { misses: fought / demand.count * demand.misses, ..*it })
    };
    (all > 0.0).then(|| Region {
        fits: 1.0,
        sharers: region.sharers.iter().filter_map(sharer).collect(),
        ..region.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::truth::Scenario;

    #[test]
    fn threads_of_a_group_share_and_sums_are_those_of_the_threads() {
        let stream = Scenario { threads: 16, samples: 400, ..Scenario::default() }.stream(3);
        let mut sharing = Sharing::new(4 << 20);
        stream.samples.iter().for_each(|sample| sharing.add(sample));
        let each: Vec<u32> = (0..16).collect();
        let found = sharing.classes(&[0; 16], &each);
        assert_eq!((found.classes.len(), found.pairs.len(), found.across.len()), (16, 120, 0));
        for (&(a, b), pair) in &found.pairs {
            let part = pair.shared / pair.possible;
            let is_group = stream.truth[a as usize] == stream.truth[b as usize];
            assert!(if is_group { part > 0.2 } else { part < 0.02 }, "{a} {b}: {part}");
        }
        let all: f64 = found.pairs.values().map(|pair| pair.avoidable).sum();
        assert!((all / Avoidable::new(&sharing, None).all() - 1.0).abs() < 1e-9);
        // The same threads in four classes.
        let four = sharing.classes(&[0; 16], &stream.truth);
        assert_eq!((four.classes.len(), four.pairs.len(), four.classes[0].threads), (4, 10, 4));
        let sum = |of: &dyn Fn(&PairUse) -> f64, found: &ClassSharing| found.pairs.values().map(of).sum::<f64>();
        let columns: [fn(&PairUse) -> f64; 5] =
            [|it| it.possible, |it| it.shared, |it| it.common, |it| it.contended, |it| it.avoidable];
        for of in columns {
            assert!((sum(&of, &four) - sum(&of, &found)).abs() < 1e-6 * sum(&of, &found));
        }
        assert!(four.classes.iter().map(|it| it.lines).sum::<f64>() > 1000.0);
        // In different cells, only the misses that a shared cache would avoid are known.
        let cells: Vec<u32> = (0..16).map(|at| at / 8).collect();
        let apart = sharing.classes(&cells, &stream.truth);
        let across: f64 = apart.across.values().sum();
        assert!(
            ((across + sum(&|it| it.avoidable, &apart)) / all - 1.0).abs() < 1e-9 && across > all / 4.0,
            "{across} {all}"
        );
    }
}
