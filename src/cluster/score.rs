//! How many of the avoidable misses a partition of the threads avoids, and how certain that is.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::communities::shared_regions;
use super::layout::Layout;
use super::misses::{Misses, Part, Use};
use super::rules::{Region, Rules};
use super::sketch::Sharing;
use super::slices::Slices;
use super::truth::Rng;

/// Fewer slices say nothing about how certain a number is.
const MIN_SLICES: usize = 6;
/// How often the slices are drawn anew.
const REPLICATES: usize = 100;
/// A thread is misplaced if another group would avoid this part of its possible misses more...
const MISPLACED: f64 = 0.05;
/// ...and if the difference is so many standard deviations of what was counted.
const SURELY: f64 = 2.33;
/// The groups of a region that are compared with each other: those with most misses there.
const COMPARED: usize = 32;
/// Groups that are remembered for a thread.
const REMEMBERED: usize = 32;

/// The avoidable misses of a run: in each region those of all threads but one, which must fetch the data anyway.
///
/// Unlike the communities, which stay within a cell spec, it counts what any two threads of the host share. A miss of a thread
/// may be caused or spared by each other thread that uses the region, in proportion to the misses that those have there.
#[derive(Debug)]
pub struct Avoidable {
    pub(super) regions: Vec<Shared>,
    /// The misses in slices of all sharers.
    in_slices: Vec<(u32, f32)>,
    slices: usize,
    /// The possible misses of each thread.
    pub(super) demand: Vec<f64>,
}

/// A region with its sharers, by owner.
#[derive(Debug)]
pub(super) struct Shared {
    /// The object that it is in, and its first line there.
    pub object: u64,
    pub first: u64,
    pub fits: f64,
    pub sharers: Vec<Sharer>,
}

/// A thread that uses a region.
#[derive(Debug, Clone)]
pub(super) struct Sharer {
    /// The first of the thread's numbers.
    pub owner: u32,
    pub thread: u32,
    pub misses: f64,
    /// The misses that were counted; without what a thinned sketch dropped.
    pub counted: f64,
    /// Its part of [`Avoidable::in_slices`].
    slices: std::ops::Range<usize>,
}

/// Misses that groups of threads avoid beyond those that are avoided by chance.
#[derive(Debug, Clone, PartialEq)]
pub struct Avoided {
    /// What one cache for all threads avoids.
    pub all: f64,
    /// By group: below 0 where they avoid less than by chance.
    pub of_group: Vec<f64>,
}

impl Avoided {
    /// The part of all that some groups avoid.
    #[must_use]
    pub fn part(&self, groups: impl Iterator<Item = usize>) -> f64 {
        // A sum of nothing is -0.
        groups.filter_map(|at| self.of_group.get(at)).fold(0.0, |sum, it| sum + it) / self.all.max(f64::MIN_POSITIVE)
    }

    /// The score: the part that all groups avoid.
    #[must_use]
    pub fn score(&self) -> f64 {
        self.part(0..self.of_group.len())
    }
}

/// A cell, and a class of threads in it.
pub(crate) type CellClass = (u32, u32);

/// Two groups, and the misses that one cache for both would avoid in addition.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pair {
    /// One.
    pub a: u32,
    /// The other.
    pub b: u32,
    /// The misses.
    pub misses: f64,
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
    /// Of all samples in `sharing`, and of the same in slices, without which there are no replicates.
    #[must_use]
    pub fn new(sharing: &Sharing, slices: Option<&Slices>) -> Self {
        let misses = Misses::new(sharing, Part::All);
        let owner = |thread: u32| sharing.owner(thread);
        let active: Vec<u32> =
            (0u32..).zip(sharing.threads()).filter(|(_, it)| it.accesses > 0).map(|(thread, _)| thread).collect();
        let mut regions = shared_regions(&misses, &active, owner);
        for sharer in regions.iter_mut().flat_map(|region| &mut region.sharers) {
            sharer.thread = active.get(sharer.thread as usize).copied().unwrap_or(u32::MAX);
        }
        // Each region's misses by thread and slice.
        let objects: FxHashSet<u64> = regions.iter().map(|region| region.object).collect();
        let mut found: Vec<Vec<(u32, u32, f32)>> = vec![Vec::new(); regions.len()];
        let mut count = 0;
        for sketch in slices.into_iter().flat_map(Slices::sketches) {
            let misses = Misses::of_slice(sketch, sharing, |object| objects.contains(&object));
            for (found, region) in found.iter_mut().zip(&regions) {
                let place = |it: &Use| (it.object, it.line);
                let from = misses.uses.partition_point(|it| place(it) < (region.object, region.first));
                let to = misses.uses.partition_point(|it| place(it) <= (region.object, region.last));
                let uses = misses.uses.get(from..to).unwrap_or_default();
                found.extend(uses.iter().map(|it| (it.thread, count, it.misses * it.stands_for)));
            }
            count += 1;
        }
        let mut all =
            Self { regions: Vec::new(), in_slices: Vec::new(), slices: count as usize, demand: misses.demand };
        for (region, found) in regions.iter().zip(&mut found) {
            found.sort_unstable_by_key(|it| (it.0, it.1));
            all.add(region, found, owner);
        }
        all
    }

    fn add(&mut self, region: &Region, found: &[(u32, u32, f32)], owner: impl Fn(u32) -> u32) {
        let mut sharers: Vec<Sharer> = region
            .sharers
            .iter()
            .map(|it| {
                let from = found.partition_point(|slice| slice.0 < it.thread);
                let to = found.partition_point(|slice| slice.0 <= it.thread);
                let begin = self.in_slices.len();
                for slice in found.get(from..to).unwrap_or_default().chunk_by(|a, b| a.1 == b.1) {
                    self.in_slices.push((slice[0].1, slice.iter().map(|it| it.2).sum::<f32>()));
                }
                let slices = begin..self.in_slices.len();
                Sharer { owner: owner(it.thread), thread: it.thread, misses: it.misses, counted: it.counted, slices }
            })
            .collect();
        sharers.sort_by_key(|it| (it.owner, it.thread));
        self.regions.push(Shared { object: region.object, first: region.first, fits: region.fits, sharers });
    }

    /// What is avoidable.
    #[must_use]
    pub fn all(&self) -> f64 {
        self.regions.iter().map(|region| region.avoidable(|sharer| sharer.misses)).sum()
    }

    /// The part of all possible misses that is avoidable.
    #[must_use]
    pub fn share(&self) -> f64 {
        let demand: f64 = self.demand.iter().sum();
        if demand > 0.0 {
            self.all() / demand
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

    /// What groups avoid; `labels` gives the group of each thread, and threads beyond its end are in group 0.
    #[must_use]
    pub fn avoided(&self, labels: &[u32], layout: &Layout) -> Avoided {
        Grouped::new(self, labels, layout).sum(|sharer| sharer.misses)
    }

    /// The same from slices drawn at random, each as often as another: how the numbers vary is how uncertain they are. The first is
    /// of each slice once. Empty if there are too few slices. Two partitions are drawn alike, so that they can be compared.
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
                grouped.sum(|sharer| self.in_slices[sharer.slices.clone()].iter().map(drawn).sum())
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

    /// The pairs of groups that share most, those first that lose most.
    #[must_use]
    pub fn pairs(&self, labels: &[u32], layout: &Layout) -> Vec<Pair> {
        let mut lost: FxHashMap<(u32, u32), f64> = FxHashMap::default();
        for region in &self.regions {
            let groups = region.groups(labels);
            for (at, a) in groups.iter().enumerate() {
                for b in &groups[at + 1..] {
                    let (a, b) = if a.group < b.group { (a, b) } else { (b, a) };
                    let shared = region.fits * (a.per_other * b.misses + b.per_other * a.misses);
                    let more = shared * (1.0 - layout.near(a.group, b.group)) / (1.0 - layout.chance());
                    *lost.entry((a.group, b.group)).or_default() += more * region.part_avoidable();
                }
            }
        }
        let mut pairs: Vec<Pair> = lost.into_iter().map(|((a, b), misses)| Pair { a, b, misses }).collect();
        pairs.retain(|pair| pair.misses > 0.0);
        pairs.sort_by(|x, y| y.misses.total_cmp(&x.misses).then_with(|| (x.a, x.b).cmp(&(y.a, y.b))));
        pairs
    }

    /// The avoidable misses between threads, and between those of one class, by cell and class: what one cache for both spares.
    pub(crate) fn pairs_of_threads(&self, cells: &[u32], classes: &[u32]) -> BTreeMap<[CellClass; 2], f64> {
        let mut found: BTreeMap<[CellClass; 2], f64> = BTreeMap::new();
        for region in &self.regions {
            let all: f64 = region.sharers.iter().map(|it| it.misses).sum();
            let part = region.fits * region.part_avoidable();
            // Of each class its misses, the sum of its misses per miss of others, and what of both is one thread's own.
            let mut uses: BTreeMap<CellClass, [f64; 3]> = BTreeMap::new();
            for sharers in region.sharers.chunk_by(|a, b| a.owner == b.owner) {
                let own: f64 = sharers.iter().map(|it| it.misses).sum();
                let Some(it) = sharers.iter().max_by(|a, b| a.misses.total_cmp(&b.misses)) else { continue };
                let sums = uses.entry((label(cells, it.thread), label(classes, it.thread))).or_default();
                let per_other = if all > own { own / (all - own) } else { 0.0 };
                sums[0] += own;
                sums[1] += per_other;
                sums[2] += per_other * own;
            }
            let uses: Vec<(CellClass, [f64; 3])> = uses.into_iter().collect();
            for (at, &(a, of_a)) in uses.iter().enumerate() {
                let within = part * (of_a[1] * of_a[0] - of_a[2]);
                if within > 0.0 {
                    *found.entry([a, a]).or_default() += within;
                }
                for &(b, of_b) in uses.get(at + 1..).unwrap_or_default() {
                    *found.entry([a, b]).or_default() += part * (of_a[1] * of_b[0] + of_b[1] * of_a[0]);
                }
            }
        }
        found
    }

    /// The threads that another group would suit better, those that lose most first; each as if it alone moved.
    #[must_use]
    pub fn misplaced(&self, labels: &[u32], layout: &Layout) -> Vec<Misplaced> {
        // Of each thread, what a group avoids and the variance of that.
        let mut gains: Vec<Gains> = vec![Gains::default(); self.demand.len()];
        let merit = |group: u32| (layout.near(group, group) - layout.apart()).max(0.0) / (1.0 - layout.chance());
        for region in &self.regions {
            let groups = region.groups(labels);
            let part = region.fits * region.part_avoidable();
            let all: f64 = region.sharers.iter().map(|it| it.misses).sum();
            for sharers in region.sharers.chunk_by(|a, b| a.owner == b.owner) {
                let own: f64 = sharers.iter().map(|it| it.misses).sum();
                for it in sharers.iter().filter(|_| all > own) {
                    let Some(gains) = gains.get_mut(it.thread as usize) else { continue };
                    let per_count = it.misses / it.counted.max(1.0);
                    for group in &groups {
                        let mine = sharers.iter().filter(|it| label(labels, it.thread) == group.group);
                        let others = group.misses - mine.map(|it| it.misses).sum::<f64>();
                        let gain = part * it.misses * (others / (all - own)).max(0.0) * merit(group.group);
                        if gain > 0.0 {
                            gains.add(group.group, label(labels, it.thread), (gain, gain * per_count * part));
                        }
                    }
                }
            }
        }
        let mut found: Vec<Misplaced> = Vec::new();
        for (thread, gains) in (0u32..).zip(gains) {
            let Some((better, best)) = gains.others.iter().max_by(|a, b| a.1 .0.total_cmp(&b.1 .0)) else { continue };
            let misses = best.0 - gains.own.0;
            let demand = self.demand.get(thread as usize).copied().unwrap_or_default();
            if misses > MISPLACED * demand && misses > SURELY * (best.1 + gains.own.1).sqrt() {
                found.push(Misplaced { thread, better: *better, misses });
            }
        }
        found.sort_by(|a, b| b.misses.total_cmp(&a.misses).then(a.thread.cmp(&b.thread)));
        found
    }
}

/// What a thread would avoid in groups, with its variance.
#[derive(Debug, Clone, Default)]
struct Gains {
    own: (f64, f64),
    others: FxHashMap<u32, (f64, f64)>,
}

impl Gains {
    fn add(&mut self, group: u32, own: u32, (gain, variance): (f64, f64)) {
        let sum = if group == own { &mut self.own } else { self.others.entry(group).or_default() };
        *sum = (sum.0 + gain, sum.1 + variance);
        if self.others.len() > 2 * REMEMBERED {
            let mut gains: Vec<f64> = self.others.values().map(|it| it.0).collect();
            gains.sort_by(|a, b| b.total_cmp(a));
            let least = gains.get(REMEMBERED).copied().unwrap_or_default();
            self.others.retain(|_, it| it.0 > least);
        }
    }
}

/// The two-sided 95 % quantile of Student's distribution (Cornish and Fisher's expansion, within 2 % from 3 degrees of freedom on).
pub(crate) fn student(free: f64) -> f64 {
    let z = 1.96f64;
    z + (z.powi(3) + z) / (4.0 * free)
        + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * free * free)
        + (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / (384.0 * free.powi(3))
}

fn label(labels: &[u32], thread: u32) -> u32 {
    labels.get(thread as usize).copied().unwrap_or(0)
}

/// A group's use of a region.
#[derive(Debug, Clone, Copy)]
struct GroupUse {
    group: u32,
    misses: f64,
    /// The sum over its threads of their misses for each miss of another thread.
    per_other: f64,
}

impl Shared {
    /// The misses of all threads but the one with the most.
    fn avoidable(&self, misses: impl Fn(&Sharer) -> f64) -> f64 {
        let (mut sum, mut most) = (0.0, 0.0f64);
        for sharers in self.sharers.chunk_by(|a, b| a.owner == b.owner) {
            let own: f64 = sharers.iter().map(&misses).sum();
            sum += own;
            most = most.max(own);
        }
        self.fits * (sum - most)
    }

    /// The part of all misses that is avoidable, where all fits.
    pub(super) fn part_avoidable(&self) -> f64 {
        let all: f64 = self.sharers.iter().map(|it| it.misses).sum();
        if all > 0.0 && self.fits > 0.0 {
            self.avoidable(|it| it.misses) / self.fits / all
        } else {
            0.0
        }
    }

    /// The groups that use it most.
    fn groups(&self, labels: &[u32]) -> Vec<GroupUse> {
        let all: f64 = self.sharers.iter().map(|it| it.misses).sum();
        let mut groups: Vec<GroupUse> = Vec::new();
        for sharers in self.sharers.chunk_by(|a, b| a.owner == b.owner) {
            let others = all - sharers.iter().map(|it| it.misses).sum::<f64>();
            groups.extend(sharers.iter().map(|it| GroupUse {
                group: label(labels, it.thread),
                misses: it.misses,
                per_other: if others > 0.0 { it.misses / others } else { 0.0 },
            }));
        }
        groups.sort_by_key(|it| it.group);
        groups.dedup_by(|next, kept| {
            let same = next.group == kept.group;
            if same {
                kept.misses += next.misses;
                kept.per_other += next.per_other;
            }
            same
        });
        groups.sort_by(|a, b| b.misses.total_cmp(&a.misses).then(a.group.cmp(&b.group)));
        groups.truncate(COMPARED);
        groups
    }
}

/// A partition of the threads.
struct Grouped<'a> {
    of: &'a Avoidable,
    layout: &'a Layout,
    /// For each region its groups, sorted, and for each sharer the place of its group there.
    places: Vec<(Vec<u32>, Vec<u32>)>,
}

impl<'a> Grouped<'a> {
    fn new(of: &'a Avoidable, labels: &[u32], layout: &'a Layout) -> Self {
        let places = |region: &Shared| {
            let of_sharers: Vec<u32> = region.sharers.iter().map(|it| label(labels, it.thread)).collect();
            let mut groups = of_sharers.clone();
            groups.sort_unstable();
            groups.dedup();
            let place = |group: &u32| groups.binary_search(group).unwrap_or_default() as u32;
            let places = of_sharers.iter().map(place).collect();
            (groups, places)
        };
        Self { of, layout, places: of.regions.iter().map(places).collect() }
    }

    fn sum(&self, misses: impl Fn(&Sharer) -> f64) -> Avoided {
        let mut avoided = Avoided { all: 0.0, of_group: vec![0.0; self.layout.groups()] };
        let (mut values, mut sums, mut near) = (Vec::new(), Vec::new(), Vec::new());
        let chance = self.layout.chance();
        for (region, (groups, places)) in self.of.regions.iter().zip(&self.places) {
            values.clear();
            values.extend(region.sharers.iter().map(&misses));
            sums.clear();
            sums.resize(groups.len(), 0.0);
            for (value, &place) in values.iter().zip(places) {
                sums[place as usize] += value;
            }
            let all: f64 = values.iter().sum();
            // How many misses are in the caches of each group.
            near.clear();
            near.extend(groups.iter().zip(&sums).map(|(&group, own)| {
                if groups.len() > COMPARED {
                    return own * self.layout.near(group, group) + (all - own) * self.layout.apart();
                }
                groups.iter().zip(&sums).map(|(&other, sum)| sum * self.layout.near(group, other)).sum::<f64>()
            }));
            let mut at = 0;
            let (mut most, mut kept) = (0.0f64, Vec::new());
            for sharers in region.sharers.chunk_by(|a, b| a.owner == b.owner) {
                let range = at..at + sharers.len();
                at = range.end;
                let own: f64 = values[range.clone()].iter().sum();
                most = most.max(own);
                let others = all - own;
                if others <= 0.0 {
                    continue;
                }
                for one in range.clone() {
                    let place = places[one] as usize;
                    let is_near =
                        |other: usize| values[other] * self.layout.near(groups[place], groups[places[other] as usize]);
                    let beside = near[place] - range.clone().map(is_near).sum::<f64>();
                    kept.push((groups[place], values[one] * (beside / others - chance) / (1.0 - chance)));
                }
            }
            if all <= 0.0 {
                continue;
            }
            let avoidable = region.fits * (all - most);
            avoided.all += avoidable;
            for (group, kept) in kept {
                if let Some(sum) = avoided.of_group.get_mut(group as usize) {
                    *sum += kept * avoidable / all;
                }
            }
        }
        avoided
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::layout::Group;
    use crate::cluster::truth::Scenario;

    fn avoidable(scenario: &Scenario, seed: u64) -> (Avoidable, Vec<u32>) {
        let stream = scenario.stream(seed);
        let (mut sharing, mut slices) = (Sharing::new(4 << 20), Slices::new(4 << 20));
        for sample in &stream.samples {
            sharing.add(sample);
            slices.add(&[(sample.thread, sample)]);
        }
        (Avoidable::new(&sharing, Some(&slices)), stream.truth)
    }

    /// Of groups that each have half of a cache, on two.
    fn quarters() -> Layout {
        Layout::new(&[Group { cell: 0, cpus: 0.25, threads: 4 }; 4], 2)
    }

    #[test]
    fn the_true_groups_avoid_nearly_all_and_others_less() {
        let (found, truth) = avoidable(&Scenario { threads: 16, globals: 0.0, ..Scenario::default() }, 1);
        assert!(found.is_worth());
        let four = quarters();
        let of = |labels: &[u32], layout: &Layout| found.avoided(labels, layout).score();
        assert!(of(&truth, &four) > 0.9, "{}", of(&truth, &four));
        assert!(
            of(&[], &Layout::new(&[Group { cell: 0, cpus: 1.0, threads: 16 }], 2)).abs() < 1e-9,
            "on all caches: by chance"
        );
        assert!((of(&[], &Layout::one_each(1, 16, 2)) - 1.0).abs() < 1e-9);
        // A group is in halves, and each has a cache.
        let halves: Vec<u32> = (0..16).map(|at| u32::from(at >= 8)).collect();
        let split = of(&halves, &Layout::new(&[Group { cell: 0, cpus: 0.5, threads: 8 }; 2], 2));
        // 1 of 3 others of its group is near, and without groups 7 of all 15 others.
        assert!((split + 0.25).abs() < 0.05, "{split}");
        let swapped: Vec<u32> = truth.iter().enumerate().map(|(at, &it)| if at < 2 { 1 - it } else { it }).collect();
        assert!(of(&swapped, &four) < of(&truth, &four) - 0.1, "{}", of(&swapped, &four));
        // Threads 0 and 1 changed places, and only they would be better off elsewhere.
        let mut misplaced: Vec<(u32, u32)> =
            found.misplaced(&swapped, &four).iter().map(|it| (it.thread, it.better)).collect();
        misplaced.sort_unstable();
        assert_eq!(misplaced, [(0, 0), (1, 1)]);
        assert_eq!(found.misplaced(&truth, &four), []);
        let pair = found.pairs(&swapped, &four)[0];
        assert_eq!((pair.a.min(pair.b), pair.a.max(pair.b)), (0, 1));
    }

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

    #[test]
    fn of_private_memory_nothing_is_avoidable() {
        let (found, _) = avoidable(&Scenario { groups: 0, globals: 0.0, noise: 0.0, ..Scenario::default() }, 3);
        assert!(!found.is_worth() && found.all() < 1.0, "{}", found.share());
        let none = Avoidable::new(&Sharing::new(1 << 20), None);
        assert!(
            !none.is_worth()
                && none.replicates(&[], &quarters()).is_empty()
                && none.misplaced(&[], &quarters()).is_empty()
        );
    }
}
