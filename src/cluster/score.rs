//! How many of the avoidable misses a partition of the threads avoids, and how certain this number is.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::communities::shared_regions;
use super::expected::{worth, Expected};
use super::layout::Layout;
use super::misses::{Misses, Part, Use};
use super::rules::{Region, Rules};
use super::sharers::{by_label, compared, Doubles, LabelUse, Shared, Sharer};
use super::sketch::Sharing;
use super::slices::Slices;

/// A thread is misplaced if this part of its possible misses or more would be avoided in addition in another group...
const MISPLACED: f64 = 0.05;
/// ...and if the difference is this number of standard deviations of what was counted.
const SURELY: f64 = 2.33;
/// Groups that are remembered for a thread.
const REMEMBERED: usize = 32;

/// The avoidable misses of a run: in each region the transfers, and the fills of all threads but one, which must fetch the data
/// anyway.
///
/// Unlike the communities, which stay within a cell spec, it counts what any two threads of the host share. A transfer is
/// avoided if the thread that took the line away shares the cache, and a fill if any thread does that fetched the data before.
#[derive(Debug)]
pub struct Avoidable {
    pub(super) regions: Vec<Shared>,
    /// The misses in slices of all sharers.
    pub(super) in_slices: Vec<(u32, f32)>,
    pub(super) slices: usize,
    /// The possible misses of each thread.
    pub(super) demand: Vec<f64>,
}

/// Misses that groups of threads avoid beyond those that are avoided by chance.
#[derive(Debug, Clone, PartialEq)]
pub struct Avoided {
    /// What one cache for all threads avoids.
    pub all: f64,
    /// By group: below 0 if its threads avoid less than by chance. In each region, what one cache avoids beyond chance counts
    /// for all that it avoids.
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
    /// How many possible misses it and the threads there would avoid, beyond those that it and the threads where it is avoid.
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
        for region in &mut regions {
            region.add_unseen_transfers(owner);
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
                Sharer { owner: owner(it.thread), seen: *it, slices: begin..self.in_slices.len() }
            })
            .collect();
        sharers.sort_by_key(|it| (it.owner, it.seen.thread));
        self.regions.push(Shared { object: region.object, first: region.first, fits: region.fits, sharers });
    }

    /// What is avoidable.
    #[must_use]
    pub fn all(&self) -> f64 {
        self.regions.iter().map(Shared::avoidable).sum()
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

    /// False if too little is avoidable for any partition to matter.
    #[must_use]
    pub fn is_worth(&self) -> bool {
        let share = self.share();
        share > 0.0 && share >= Rules::default().worth
    }

    /// The misses that groups avoid; `labels` gives the group of each thread, and threads beyond its end are in group 0.
    #[must_use]
    pub fn avoided(&self, labels: &[u32], layout: &Layout) -> Avoided {
        Grouped::new(self, labels, layout).sum(|_| 1.0)
    }

    /// The pairs of groups that share most, those that lose most first.
    #[must_use]
    pub fn pairs(&self, labels: &[u32], layout: &Layout) -> Vec<Pair> {
        let mut lost: FxHashMap<(u32, u32), f64> = FxHashMap::default();
        let mut expected = Expected::default();
        for region in &self.regions {
            let by_thread = region.by_thread(|thread| label(labels, thread));
            let (groups, doubles) = (compared(&by_thread), Doubles::new(&by_thread));
            let worth = region.fits * expected.worth(region, layout);
            for (at, a) in groups.iter().enumerate() {
                for b in groups.get(at + 1..).unwrap_or_default() {
                    let more = worth * doubles.between(a, b) * (1.0 - layout.near(a.label, b.label));
                    *lost.entry((a.label, b.label)).or_default() += more;
                }
            }
        }
        let mut pairs: Vec<Pair> = lost.into_iter().map(|((a, b), misses)| Pair { a, b, misses }).collect();
        pairs.retain(|pair| pair.misses > 0.0);
        pairs.sort_by(|x, y| y.misses.total_cmp(&x.misses).then_with(|| (x.a, x.b).cmp(&(y.a, y.b))));
        pairs
    }

    /// The avoidable misses between threads, and between those of one class, by cell and class: in all what one cache for all
    /// threads avoids.
    ///
    /// So they can be added. Where more than two classes fetch the same data, each but one spares one thread's fill, whichever of
    /// the classes it shares a cache with: a part of that is between it and each class with more.
    pub(crate) fn pairs_of_threads(&self, cells: &[u32], classes: &[u32]) -> BTreeMap<[CellClass; 2], f64> {
        let mut found: BTreeMap<[CellClass; 2], f64> = BTreeMap::new();
        for region in &self.regions {
            let by_owner = region.by_owner(|thread| (label(cells, thread), label(classes, thread)));
            let mut uses = by_label(&by_owner, usize::MAX);
            uses.sort_by(|a, b| b.together.most().total_cmp(&a.together.most()).then(a.label.cmp(&b.label)));
            for (at, b) in uses.iter().enumerate() {
                let within = region.fits * b.together.avoided();
                if within > 0.0 {
                    *found.entry([b.label, b.label]).or_default() += within;
                }
                for a in uses.get(..at).unwrap_or_default() {
                    let fills = b.together.most() / at as f64;
                    let moved = a.together.moved_by(&b.together) + b.together.moved_by(&a.together);
                    let pair = [a.label.min(b.label), a.label.max(b.label)];
                    *found.entry(pair).or_default() += region.fits * (fills + moved);
                }
            }
        }
        found
    }

    /// The threads that another group would suit better, those that lose most first; each as if it moved alone.
    #[must_use]
    pub fn misplaced(&self, labels: &[u32], layout: &Layout) -> Vec<Misplaced> {
        // Of each thread, what it and a group avoid and the variance of that.
        let mut gains: Vec<Gains> = vec![Gains::default(); self.demand.len()];
        let merit = |group: u32| (layout.near(group, group) - layout.apart()).max(0.0) / (1.0 - layout.chance());
        for region in &self.regions {
            let by_thread = region.by_thread(|thread| label(labels, thread));
            let (groups, uses) = (compared(&by_thread), region.all_uses());
            let by_owner = by_thread.chunk_by(|a, b| a.owner() == b.owner());
            let mut uses = uses.iter();
            for (sharers, own) in region.sharers.chunk_by(|a, b| a.owner == b.owner).zip(by_owner) {
                for (it, together) in sharers.iter().zip(&mut uses) {
                    let thread = it.seen.thread;
                    let Some(gains) = gains.get_mut(thread as usize) else { continue };
                    let it = LabelUse::new(label(labels, thread), it, *together);
                    for group in &groups {
                        let others = own.iter().find(|it| it.label == group.label);
                        let others = others.map_or(*group, |own| group.without(own));
                        let between = it.between(&others);
                        let part = region.fits * merit(group.label);
                        let gain = part * (between[0] + between[1]);
                        if gain > 0.0 {
                            let per_count = |of: &LabelUse<u32>| of.misses / of.counted.max(1.0);
                            let variance = between[0] * per_count(&it) + between[1] * per_count(&others);
                            gains.add(group.label, it.label, (gain, part * region.fits * variance));
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

/// A partition of the threads.
pub(super) struct Grouped<'a> {
    of: &'a Avoidable,
    layout: &'a Layout,
    /// For each region its groups, sorted, and for each sharer the place of its group there.
    pub(super) places: Vec<(Vec<u32>, Vec<u32>)>,
}

impl<'a> Grouped<'a> {
    pub fn new(of: &'a Avoidable, labels: &[u32], layout: &'a Layout) -> Self {
        let places = |region: &Shared| {
            let of_sharers: Vec<u32> = region.sharers.iter().map(|it| label(labels, it.seen.thread)).collect();
            let mut groups = of_sharers.clone();
            groups.sort_unstable();
            groups.dedup();
            let place = |group: &u32| groups.binary_search(group).unwrap_or_default() as u32;
            let places = of_sharers.iter().map(place).collect();
            (groups, places)
        };
        Self { of, layout, places: of.regions.iter().map(places).collect() }
    }

    /// What the groups avoid if each sharer's use is weighted.
    pub fn sum(&self, weight: impl Fn(&Sharer) -> f64) -> Avoided {
        let mut avoided = Avoided { all: 0.0, of_group: vec![0.0; self.layout.groups()] };
        let mut expected = Expected::default();
        for (region, (groups, places)) in self.of.regions.iter().zip(&self.places) {
            let all = expected.compute(region, groups, places, self.layout, &weight);
            let base: f64 = expected.kept.iter().map(|it| it.1).sum();
            let Some(worth) = worth(all, base) else { continue };
            avoided.all += region.fits * all;
            for (&group, (kept, base)) in groups.iter().zip(&expected.kept) {
                if let Some(sum) = avoided.of_group.get_mut(group as usize) {
                    *sum += region.fits * (kept - base) * worth;
                }
            }
        }
        avoided
    }
}

fn label(labels: &[u32], thread: u32) -> u32 {
    labels.get(thread as usize).copied().unwrap_or(0)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cluster::layout::Group;
    use crate::cluster::truth::Scenario;

    pub fn avoidable(scenario: &Scenario, seed: u64) -> (Avoidable, Vec<u32>) {
        let stream = scenario.stream(seed);
        let (mut sharing, mut slices) = (Sharing::new(4 << 20), Slices::new(4 << 20));
        for sample in &stream.samples {
            sharing.add(sample);
            slices.add(&[(sample.thread, sample)]);
        }
        (Avoidable::new(&sharing, Some(&slices)), stream.truth)
    }

    /// Of groups that each have half of a cache, on two.
    pub fn quarters() -> Layout {
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
        // Of the transfers, 1 of 3 others of its group is near, and without groups 7 of all 15 others: -0.25. Of the fills, two of
        // four threads fetch the data, and without groups about as many.
        assert!((-0.24..-0.1).contains(&split), "{split}");
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
