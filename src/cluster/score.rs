//! How many of the avoidable misses a partition of the threads avoids, and how certain that is.

use super::clusters::{ClusterOptions, Clusters, Edge};
use super::misses::{Misses, Part, Use};
use super::rules::Rules;
use super::sketch::Sharing;
use super::slices::Slices;
use super::truth::Rng;

/// Fewer slices say nothing about how certain a number is.
const MIN_SLICES: usize = 6;
/// How often the slices are drawn anew.
const REPLICATES: usize = 400;
/// A thread is misplaced if another group would avoid this part of its possible misses more...
const MISPLACED: f64 = 0.05;
/// ...and if the difference is so many standard deviations of what was counted.
const SURELY: f64 = 2.33;

/// The avoidable misses of a run: in each region those of all threads but one, which must fetch the data anyway.
///
/// Unlike the communities, which stay within a cell spec, it counts what any two threads of the host share.
#[derive(Debug)]
pub struct Avoidable {
    clusters: Clusters,
    /// The sharers of each region, as [`Clusters::regions`] has them.
    sharers: Vec<Vec<Sharer>>,
    /// Their misses in slices.
    in_slices: Vec<(u32, f32)>,
    slices: usize,
}

/// A thread that uses a region.
#[derive(Debug, Clone)]
struct Sharer {
    thread: u32,
    misses: f64,
    /// The misses that were counted; without what a thinned sketch dropped.
    counted: f64,
    /// Its part of [`Avoidable::in_slices`].
    slices: std::ops::Range<usize>,
}

/// Misses that groups of threads avoid, each by one cache for its threads.
#[derive(Debug, Clone, PartialEq)]
pub struct Avoided {
    /// What one cache for all threads avoids.
    pub all: f64,
    /// By group.
    pub of_group: Vec<f64>,
}

/// A thread that shares more with another group than with its own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Misplaced {
    /// It.
    pub thread: u32,
    /// The group in which it would avoid most.
    pub better: u32,
    /// How many of its possible misses it would avoid there, beyond those that it avoids where it is.
    pub misses: f64,
}

impl Avoidable {
    /// Of all samples in `sharing`, and of the same in slices, without which there are no replicates. `first_touches` is as [`ClusterOptions::first_touches`].
    #[must_use]
    pub fn new(sharing: &Sharing, slices: Option<&Slices>, first_touches: Option<&[u32]>) -> Self {
        let options = ClusterOptions { min_accesses: 1, stability: false, first_touches, ..ClusterOptions::default() };
        let clusters = sharing.solve(&options);
        // Each region's misses by slice and thread.
        let mut found: Vec<Vec<(u32, u32, f32)>> = vec![Vec::new(); clusters.regions.len()];
        let mut count = 0;
        for sketch in slices.into_iter().flat_map(Slices::sketches) {
            let misses = Misses::new(sketch, Part::All);
            for (found, region) in found.iter_mut().zip(&clusters.regions) {
                let place = |it: &Use| (it.object, it.line);
                let from = misses.uses.partition_point(|it| place(it) < (region.object, region.first));
                let to = misses.uses.partition_point(|it| place(it) <= (region.object, region.last));
                let uses = misses.uses.get(from..to).unwrap_or_default();
                found.extend(uses.iter().map(|it| (it.thread, count, it.misses * it.stands_for)));
            }
            count += 1;
        }
        let mut in_slices = Vec::new();
        let sharers = clusters.regions.iter().zip(&mut found).map(|(region, found)| {
            found.sort_unstable_by_key(|it| (it.0, it.1));
            let of_thread = |thread: u32| {
                let from = found.partition_point(|it| it.0 < thread);
                let to = found.partition_point(|it| it.0 <= thread);
                found.get(from..to).unwrap_or_default()
            };
            let mut sharers = Vec::with_capacity(region.sharers.len());
            for it in &region.sharers {
                let begin = in_slices.len();
                for slice in of_thread(it.thread).chunk_by(|a, b| a.1 == b.1) {
                    in_slices.push((slice[0].1, slice.iter().map(|it| it.2).sum::<f32>()));
                }
                let slices = begin..in_slices.len();
                sharers.push(Sharer { thread: it.thread, misses: it.misses, counted: it.counted, slices });
            }
            sharers
        });
        let sharers = sharers.collect();
        Self { clusters, sharers, in_slices, slices: count as usize }
    }

    /// The part of all possible misses that is avoidable.
    #[must_use]
    pub fn share(&self) -> f64 {
        let demand: f64 = self.clusters.demand.iter().sum();
        if demand > 0.0 {
            self.avoided(&[], 1).all / demand
        } else {
            0.0
        }
    }

    /// False if so little is avoidable that no partition matters.
    #[must_use]
    pub fn is_worth(&self) -> bool {
        let share = self.share();
        share > 0.0 && share >= Rules::default().worth
    }

    /// What `groups` groups avoid; `labels` gives the group of each thread, and threads beyond its end are in group 0.
    #[must_use]
    pub fn avoided(&self, labels: &[u32], groups: usize) -> Avoided {
        Grouped::new(self, labels, groups).sum(|sharer| sharer.misses)
    }

    /// The same from slices drawn at random, each as often as another: how the numbers vary is how uncertain they are. The first is
    /// of each slice once. Empty if there are too few slices. Two partitions are drawn alike, so that they can be compared.
    #[must_use]
    pub fn replicates(&self, labels: &[u32], groups: usize) -> Vec<Avoided> {
        if self.slices < MIN_SLICES {
            return Vec::new();
        }
        let grouped = Grouped::new(self, labels, groups);
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
                grouped.sum(|sharer| self.in_slices[sharer.slices.clone()].iter().map(drawn).sum())
            })
            .collect()
    }

    /// The pairs of groups that share most. See [`Clusters::edges`].
    #[must_use]
    pub fn pairs(&self, labels: &[u32]) -> Vec<Edge> {
        self.clusters.edges(labels).into_iter().filter(|edge| edge.a != edge.b).collect()
    }

    /// The possible misses of a thread.
    fn demand(&self, thread: u32) -> f64 {
        self.clusters.demand.get(thread as usize).copied().unwrap_or_default()
    }

    /// The threads that another group would suit better, those that lose most first.
    #[must_use]
    pub fn misplaced(&self, labels: &[u32], groups: usize) -> Vec<Misplaced> {
        // Of each thread, what each group avoids and the variance of that.
        let mut gains: Vec<Vec<(u32, f64, f64)>> = vec![Vec::new(); self.clusters.demand.len()];
        for (region, sharers) in self.clusters.regions.iter().zip(&self.sharers) {
            // The two threads of each group with the most misses: one of them may be the thread itself.
            let mut most: Vec<(u32, [(u32, f64); 2])> = Vec::new();
            let label = |thread: u32| labels.get(thread as usize).copied().unwrap_or(0);
            for it in sharers {
                let group = label(it.thread);
                let at = most.iter().position(|it| it.0 == group).unwrap_or_else(|| {
                    most.push((group, [(u32::MAX, 0.0); 2]));
                    most.len() - 1
                });
                let two = &mut most[at].1;
                if it.misses > two[0].1 {
                    *two = [(it.thread, it.misses), two[0]];
                } else if it.misses > two[1].1 {
                    two[1] = (it.thread, it.misses);
                }
            }
            for it in sharers {
                let per_count = it.misses / it.counted.max(1.0);
                for (group, two) in &most {
                    let other = if two[0].0 == it.thread { two[1].1 } else { two[0].1 };
                    let gain = region.fits * it.misses.min(other);
                    if gain > 0.0 {
                        gains[it.thread as usize].push((*group, gain, gain * per_count * region.fits));
                    }
                }
            }
        }
        let mut found: Vec<Misplaced> = Vec::new();
        for (thread, mut gains) in (0u32..).zip(gains) {
            gains.sort_unstable_by_key(|it| it.0);
            let sums: Vec<(u32, f64, f64)> = gains
                .chunk_by(|a, b| a.0 == b.0)
                .map(|of| (of[0].0, of.iter().map(|it| it.1).sum(), of.iter().map(|it| it.2).sum()))
                .collect();
            let own = labels.get(thread as usize).copied().unwrap_or(0);
            let (here, doubt) = sums.iter().find(|it| it.0 == own).map_or((0.0, 0.0), |it| (it.1, it.2));
            let Some(best) = sums.iter().filter(|it| it.0 != own).max_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
            let misses = best.1 - here;
            if misses > MISPLACED * self.demand(thread) && misses > SURELY * (best.2 + doubt).sqrt() {
                found.push(Misplaced { thread, better: best.0, misses });
            }
        }
        debug_assert!(found.iter().all(|it| (it.better as usize) < groups));
        found.sort_by(|a, b| b.misses.total_cmp(&a.misses).then(a.thread.cmp(&b.thread)));
        found
    }
}

/// The sharers of each region in the order of their groups.
struct Grouped<'a> {
    of: &'a Avoidable,
    /// For each region its sharers' groups and places.
    order: Vec<Vec<(u32, u32)>>,
    groups: usize,
}

impl<'a> Grouped<'a> {
    fn new(of: &'a Avoidable, labels: &[u32], groups: usize) -> Self {
        let order = |sharers: &Vec<Sharer>| {
            let label = |it: &Sharer| labels.get(it.thread as usize).copied().unwrap_or(0);
            let mut order: Vec<(u32, u32)> = sharers.iter().map(label).zip(0..).collect();
            order.sort_unstable();
            order
        };
        Self { of, order: of.sharers.iter().map(order).collect(), groups }
    }

    fn sum(&self, misses: impl Fn(&Sharer) -> f64) -> Avoided {
        let mut avoided = Avoided { all: 0.0, of_group: vec![0.0; self.groups] };
        for ((region, sharers), order) in self.of.clusters.regions.iter().zip(&self.of.sharers).zip(&self.order) {
            let (mut sum, mut most) = (0.0, 0.0f64);
            for group in order.chunk_by(|a, b| a.0 == b.0) {
                let (mut of_group, mut largest) = (0.0, 0.0f64);
                for sharer in group.iter().filter_map(|it| sharers.get(it.1 as usize)) {
                    let misses = misses(sharer);
                    of_group += misses;
                    largest = largest.max(misses);
                }
                sum += of_group;
                most = most.max(largest);
                if let Some(avoided) = avoided.of_group.get_mut(group[0].0 as usize) {
                    *avoided += region.fits * (of_group - largest);
                }
            }
            avoided.all += region.fits * (sum - most);
        }
        avoided
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::truth::Scenario;

    fn avoidable(scenario: &Scenario, seed: u64) -> (Avoidable, Vec<u32>) {
        let stream = scenario.stream(seed);
        let (mut sharing, mut slices) = (Sharing::new(4 << 20), Slices::new(4 << 20));
        for sample in &stream.samples {
            sharing.add(sample);
            slices.add(&[(sample.thread, sample)]);
        }
        (Avoidable::new(&sharing, Some(&slices), None), stream.truth)
    }

    fn part(avoided: &Avoided) -> f64 {
        avoided.of_group.iter().sum::<f64>() / avoided.all
    }

    #[test]
    fn the_true_groups_avoid_nearly_all_and_others_less() {
        let (found, truth) = avoidable(&Scenario { threads: 16, globals: 0.0, ..Scenario::default() }, 1);
        assert!(found.is_worth());
        let of = |labels: &[u32], groups| part(&found.avoided(labels, groups));
        assert!(of(&truth, 4) > 0.9, "{}", of(&truth, 4));
        assert!((of(&[], 1) - 1.0).abs() < 1e-9);
        let alone: Vec<u32> = (0..16).collect();
        assert!(of(&alone, 16).abs() < 1e-9);
        let swapped: Vec<u32> = truth.iter().enumerate().map(|(at, &it)| if at < 2 { 1 - it } else { it }).collect();
        assert!(of(&swapped, 4) < of(&truth, 4) - 0.1, "{}", of(&swapped, 4));
        // Threads 0 and 1 changed places, and only they would be better off elsewhere.
        let mut misplaced: Vec<(u32, u32)> =
            found.misplaced(&swapped, 4).iter().map(|it| (it.thread, it.better)).collect();
        misplaced.sort_unstable();
        assert_eq!(misplaced, [(0, 0), (1, 1)]);
        assert_eq!(found.misplaced(&truth, 4), []);
        let pair = found.pairs(&swapped)[0];
        assert_eq!((pair.a.min(pair.b), pair.a.max(pair.b)), (0, 1));
    }

    #[test]
    fn a_replicate_of_each_slice_once_is_near_the_whole() {
        let (found, truth) = avoidable(&Scenario { threads: 16, ..Scenario::default() }, 2);
        let whole = part(&found.avoided(&truth, 4));
        let replicates = found.replicates(&truth, 4);
        assert_eq!(replicates.len(), REPLICATES + 1);
        assert!((part(&replicates[0]) - whole).abs() < 0.05, "{} {whole}", part(&replicates[0]));
        let mut parts: Vec<f64> = replicates[1..].iter().map(part).collect();
        parts.sort_by(f64::total_cmp);
        let width = parts[REPLICATES * 39 / 40] - parts[REPLICATES / 40];
        assert!(width > 1e-4 && width < 0.1, "{width}");
        // What changes over time is less certain.
        let (drifting, truth) = avoidable(&Scenario { threads: 16, drift: 0.4, ..Scenario::default() }, 2);
        let mut parts: Vec<f64> = drifting.replicates(&truth, 4)[1..].iter().map(part).collect();
        parts.sort_by(f64::total_cmp);
        let wider = parts[REPLICATES * 39 / 40] - parts[REPLICATES / 40];
        assert!(wider > 2.0 * width, "{wider} {width}");
    }

    #[test]
    fn of_private_memory_nothing_is_avoidable() {
        let (found, _) = avoidable(&Scenario { groups: 0, globals: 0.0, noise: 0.0, ..Scenario::default() }, 3);
        assert!(!found.is_worth() && found.avoided(&[], 1).all < 1.0, "{}", found.share());
        let none = Avoidable::new(&Sharing::new(1 << 20), None, None);
        assert!(!none.is_worth() && none.replicates(&[], 1).is_empty() && none.misplaced(&[], 1).is_empty());
    }
}
