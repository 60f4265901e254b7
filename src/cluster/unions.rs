//! Sets of threads after linkage: sets that avoid much together become one, and threads move to the set in which they avoid most.
//!
//! Average linkage finds threads that use the same memory alike. It cuts a pipeline, whose stages share with their neighbours
//! alone: there, one cache for two sets avoids in addition about as much as the smaller one avoids by itself. In the end no such
//! two sets are left, and no thread would certainly avoid more elsewhere.

use rustc_hash::FxHashMap;

use super::avoided::{sums, Together};
use super::rules::{Demand, Region, Rules};

/// Rounds of merging and moving; most need two.
const ROUNDS: usize = 16;
/// A thread that shares little with a set joins it only if it shares at most this part of that with any other.
const SECOND: f64 = 0.5;
/// Additions of one round; beyond it only a random part of the regions is read.
const WORK: usize = 20_000_000;

/// A region's uses by thread, and how much of it fits.
struct Used {
    fits: f64,
    uses: Vec<(u32, Together)>,
}

/// A partition of threads into sets.
pub(crate) struct Sets<'a> {
    used: Vec<Used>,
    /// Of each thread, which of these it uses.
    used_by: Vec<Vec<u32>>,
    /// The set of each thread; [`u32::MAX`] for none.
    pub of_thread: Vec<u32>,
    count: usize,
    demand: &'a [Demand],
    rules: &'a Rules,
}

/// What a thread would avoid in a set.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Gain {
    set: u32,
    misses: f64,
}

impl<'a> Sets<'a> {
    /// These sets of the threads of `demand`, which share `regions`.
    pub(crate) fn new<'r>(
        sets: &[Vec<u32>],
        regions: impl Iterator<Item = &'r Region> + Clone,
        demand: &'a [Demand],
        rules: &'a Rules,
    ) -> Self {
        let mut of_thread = vec![u32::MAX; demand.len()];
        for (members, set) in sets.iter().zip(0..) {
            for &thread in members {
                if let Some(of) = of_thread.get_mut(thread as usize) {
                    *of = set;
                }
            }
        }
        let work: usize = regions.clone().map(|it| it.sharers.len().pow(2)).sum();
        let part = (WORK as f64 / work.max(1) as f64).min(1.0);
        let is_read = |it: &&Region| it.fits > 0.0 && it.coin() <= part;
        let used = |it: &Region| Used { fits: it.fits / part, uses: it.uses().collect() };
        let used: Vec<Used> = regions.filter(is_read).map(used).collect();
        let mut used_by: Vec<Vec<u32>> = vec![Vec::new(); demand.len()];
        for (used, at) in used.iter().zip(0..) {
            for (thread, _) in &used.uses {
                if let Some(regions) = used_by.get_mut(*thread as usize) {
                    regions.push(at);
                }
            }
        }
        Self { used, used_by, of_thread, count: sets.len(), demand, rules }
    }

    /// Merges and moves until nothing changes.
    pub(crate) fn settle(&mut self) {
        for _ in 0..ROUNDS {
            // A thread in the wrong set makes that look as if it shared with the right one.
            let (moved, merged) = (self.move_threads(), self.merge(0, self.rules.worth));
            if !merged && !moved {
                break;
            }
        }
    }

    /// Makes sets of the threads of `scope` that are in none. Two of them may have too little in common for certain where several
    /// have enough.
    pub(crate) fn add_sets(&mut self, scope: &[u32]) {
        let first = self.count as u32;
        for &thread in scope {
            if let Some(of) = self.of_thread.get_mut(thread as usize).filter(|of| **of == u32::MAX) {
                *of = self.count as u32;
                self.count += 1;
            }
        }
        for _ in 0..ROUNDS {
            if !self.merge(first, 0.0) {
                break;
            }
        }
        self.drop_members(first, |sets, thread| {
            let set = sets.of_thread.get(thread as usize).copied();
            let own = sets.gains_of(thread).into_iter().find(|it| Some(it.set) == set);
            own.is_none_or(|own| own.misses < sets.rules.worth * sets.demand_of(thread).misses)
        });
        let ((within, _), sums) = (self.avoided(), self.sums());
        self.drop_members(first, |sets, thread| {
            let at = sets.of_thread.get(thread as usize).map_or(usize::MAX, |&set| set as usize);
            let (Some(within), Some((misses, counted))) = (within.get(at), sums.get(at)) else { return true };
            let part = within / misses;
            (part - sets.rules.worth) / (part / counted).sqrt() < sets.rules.sure
        });
    }

    /// Takes threads out of the sets from `first` on.
    fn drop_members(&mut self, first: u32, is_out: impl Fn(&Self, u32) -> bool) {
        let mut out = Vec::new();
        for thread in 0..self.of_thread.len() as u32 {
            let set = self.of_thread.get(thread as usize).copied().unwrap_or(u32::MAX);
            if set != u32::MAX && set >= first && is_out(self, thread) {
                out.push(thread);
            }
        }
        for thread in out {
            if let Some(of) = self.of_thread.get_mut(thread as usize) {
                *of = u32::MAX;
            }
        }
    }

    /// Of each set its possible misses, and how many of them were counted.
    fn sums(&self) -> Vec<(f64, f64)> {
        let mut sums = vec![(0.0, 0.0); self.count];
        for (&set, demand) in self.of_thread.iter().zip(self.demand) {
            if let Some(sum) = sums.get_mut(set as usize) {
                *sum = (sum.0 + demand.misses, sum.1 + demand.counted);
            }
        }
        sums
    }

    /// The sets with two threads or more, with the number that each had, in the order of their first threads.
    pub(crate) fn members(&self) -> Vec<(u32, Vec<u32>)> {
        let mut at_of = vec![usize::MAX; self.count];
        let mut sets: Vec<(u32, Vec<u32>)> = Vec::new();
        for (&set, thread) in self.of_thread.iter().zip(0..) {
            let Some(at) = at_of.get_mut(set as usize) else { continue };
            if *at == usize::MAX {
                *at = sets.len();
                sets.push((set, Vec::new()));
            }
            if let Some((_, members)) = sets.get_mut(*at) {
                members.push(thread);
            }
        }
        sets.retain(|it| it.1.len() > 1);
        sets
    }

    fn demand_of(&self, thread: u32) -> Demand {
        self.demand.get(thread as usize).copied().unwrap_or(Demand { misses: 1.0, count: 1.0, counted: 1.0 })
    }

    /// What sets avoid, and what two of them would avoid in addition.
    fn avoided(&self) -> (Vec<f64>, FxHashMap<(u32, u32), f64>) {
        let mut within = vec![0.0; self.count];
        let mut between: FxHashMap<(u32, u32), f64> = FxHashMap::default();
        for used in &self.used {
            let sets = by_set(&used.uses, &self.of_thread);
            for (at, (a, one)) in sets.iter().enumerate() {
                if let Some(within) = within.get_mut(*a as usize) {
                    *within += used.fits * one.avoided();
                }
                for (b, other) in sets.get(at + 1..).unwrap_or_default() {
                    *between.entry((*a, *b)).or_default() += used.fits * one.between(other);
                }
            }
        }
        (within, between)
    }

    /// Merges pairs of sets, from a number on, that avoid about as much in addition as the smaller one does, for certain more than
    /// this part of its misses; false if there is none.
    fn merge(&mut self, from: u32, worth: f64) -> bool {
        let (within, between) = self.avoided();
        let sums = self.sums();
        let rules = Rules { worth, ..*self.rules };
        let of = |set: u32| {
            let at = set as usize;
            let (misses, counted) = sums.get(at).copied().unwrap_or_default();
            (misses, counted, within.get(at).copied().unwrap_or_default())
        };
        let ratio = |(&(a, b), &between): (&(u32, u32), &f64)| {
            if a.min(b) < from {
                return None;
            }
            let (one, two) = (of(a), of(b));
            let (misses, counted, _) = if one.0 < two.0 { one } else { two };
            let certain = rules.at_least(between / misses, counted)? * misses;
            let ratio = certain / one.2.min(two.2).max(f64::MIN_POSITIVE);
            (ratio >= self.rules.union).then_some((ratio, a, b))
        };
        let mut pairs: Vec<(f64, u32, u32)> = between.iter().filter_map(ratio).collect();
        pairs.sort_by(|x, y| y.0.total_cmp(&x.0).then((x.1, x.2).cmp(&(y.1, y.2))));
        let mut to: Vec<u32> = (0..self.count as u32).collect();
        let mut is_merged = vec![false; self.count];
        for &(_, a, b) in &pairs {
            // Each only once: what it would avoid with a third changes.
            if is_merged.get(a as usize) == Some(&false) && is_merged.get(b as usize) == Some(&false) {
                is_merged[a as usize] = true;
                is_merged[b as usize] = true;
                to[b as usize] = a;
            }
        }
        for set in &mut self.of_thread {
            *set = to.get(*set as usize).copied().unwrap_or(*set);
        }
        !pairs.is_empty()
    }

    /// Moves threads to where they certainly avoid more, and adds threads that are in no set to the one that they share with;
    /// false if none moved.
    fn move_threads(&mut self) -> bool {
        let mut moved = false;
        let mut sizes = vec![0usize; self.count];
        for &set in &self.of_thread {
            if let Some(size) = sizes.get_mut(set as usize) {
                *size += 1;
            }
        }
        let (within, _) = self.avoided();
        for (thread, gains) in (0..).zip(self.gains()) {
            let better = |sets: &Self, gains| sets.better(thread, gains, &sizes, &within);
            let Some(first) = better(self, gains) else { continue };
            // Others have moved since.
            let better = if moved { better(self, self.gains_of(thread)) } else { Some(first) };
            let (Some(better), Some(of)) = (better, self.of_thread.get_mut(thread as usize)) else { continue };
            let own = std::mem::replace(of, better);
            moved = true;
            if let Some(size) = sizes.get_mut(own as usize) {
                *size -= 1;
            }
            if let Some(size) = sizes.get_mut(better as usize) {
                *size += 1;
            }
        }
        moved
    }

    /// The set to which a thread should move, if there is one.
    fn better(&self, thread: u32, gains: [Gain; 3], sizes: &[usize], within: &[f64]) -> Option<u32> {
        let [best, second, third] = gains;
        let own = self.of_thread.get(thread as usize).copied().unwrap_or(u32::MAX);
        if best.misses <= 0.0 || best.set == own {
            return None;
        }
        let demand = self.demand_of(thread);
        let (part, less) = (best.misses / demand.misses, second.misses / demand.misses);
        let is_better = if own == u32::MAX {
            // Between two sets, as a stage of a pipeline is, if it adds about as much to one as that has.
            let of_set = within.get(best.set as usize).copied().unwrap_or_default();
            let is_between = best.misses >= self.rules.union * of_set && third.misses <= SECOND * best.misses;
            part >= self.rules.worth
                && part * demand.counted >= self.rules.join.powi(2)
                && (part >= self.rules.cohesion || less <= SECOND * part || is_between)
        } else {
            // The second best, if not the own one, is at least as good as that. One of a pair would leave the other alone.
            let deviation = ((part + less) / demand.counted).sqrt();
            sizes.get(own as usize).is_some_and(|&size| size > 2)
                && part - less > self.rules.sure * deviation + self.rules.worth
        };
        is_better.then_some(best.set)
    }

    /// For each thread the three sets in which it would avoid most.
    fn gains(&self) -> Vec<[Gain; 3]> {
        let mut all: Vec<FxHashMap<u32, f64>> = vec![FxHashMap::default(); self.of_thread.len()];
        for used in &self.used {
            let sets = by_set(&used.uses, &self.of_thread);
            for (thread, one) in &used.uses {
                if let Some(gains) = all.get_mut(*thread as usize) {
                    self.add_gains(used, &sets, (*thread, one), gains);
                }
            }
        }
        all.into_iter().map(largest).collect()
    }

    /// The same of one thread.
    fn gains_of(&self, thread: u32) -> [Gain; 3] {
        let mut gains = FxHashMap::default();
        let regions = self.used_by.get(thread as usize).into_iter().flatten();
        for used in regions.filter_map(|&at| self.used.get(at as usize)) {
            if let Some((_, one)) = used.uses.iter().find(|it| it.0 == thread) {
                self.add_gains(used, &by_set(&used.uses, &self.of_thread), (thread, one), &mut gains);
            }
        }
        largest(gains)
    }

    /// Adds what a thread would avoid in a region in each of the sets that use it.
    fn add_gains(
        &self,
        used: &Used,
        sets: &[(u32, Together)],
        (thread, one): (u32, &Together),
        gains: &mut FxHashMap<u32, f64>,
    ) {
        let own = self.of_thread.get(thread as usize).copied().unwrap_or(u32::MAX);
        for (set, together) in sets {
            let misses = if *set == own {
                let mut others = used.uses.iter().filter(|it| it.0 != thread && self.is_in(it.0, own));
                let Some(first) = others.next() else { continue };
                one.between(&others.fold(first.1, |sum, it| sum.with(&it.1)))
            } else {
                one.between(together)
            };
            *gains.entry(*set).or_default() += used.fits * misses;
        }
    }

    fn is_in(&self, thread: u32, set: u32) -> bool {
        self.of_thread.get(thread as usize) == Some(&set)
    }
}

/// The three largest.
fn largest(gains: FxHashMap<u32, f64>) -> [Gain; 3] {
    let mut sorted: Vec<Gain> = gains.into_iter().map(|(set, misses)| Gain { set, misses }).collect();
    sorted.sort_by(|a, b| b.misses.total_cmp(&a.misses).then(a.set.cmp(&b.set)));
    let of = |at: usize| sorted.get(at).copied().unwrap_or(Gain { set: u32::MAX, misses: 0.0 });
    [of(0), of(1), of(2)]
}

/// The sums of the sets that use a region.
fn by_set(uses: &[(u32, Together)], of_thread: &[u32]) -> Vec<(u32, Together)> {
    let set = |thread: u32| of_thread.get(thread as usize).copied().filter(|&set| set != u32::MAX);
    sums(uses.iter().copied(), set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::rules::Sharer;

    /// A region from which each of these threads fetches this much.
    fn region(sharers: &[(u32, f64)]) -> Region {
        let sharer = |&(thread, misses): &(u32, f64)| Sharer { thread, misses, accesses: misses, ..Sharer::default() };
        Region { sharers: sharers.iter().map(sharer).collect(), fits: 1.0, ..Region::default() }
    }

    fn demand(regions: &[Region], threads: u32, private: f64) -> Vec<Demand> {
        let of = |thread: u32| {
            let sharers = regions.iter().flat_map(|it| &it.sharers).filter(|it| it.thread == thread);
            let misses = sharers.map(|it| it.misses).sum::<f64>() + private;
            Demand { misses, count: misses, counted: misses }
        };
        (0..threads).map(of).collect()
    }

    fn settled(regions: &[Region], sets: &[&[u32]], threads: u32) -> Vec<Vec<u32>> {
        let demand = demand(regions, threads, 100.0);
        let rules = Rules::default();
        let sets: Vec<Vec<u32>> = sets.iter().map(|it| it.to_vec()).collect();
        let mut sets = Sets::new(&sets, regions.iter(), &demand, &rules);
        sets.settle();
        sets.members().into_iter().map(|it| it.1).collect()
    }

    #[test]
    fn a_chain_is_one_set_however_it_was_cut() {
        // Stages that pass as much to the next one as they get.
        let chain: Vec<Region> = (1..5).map(|at| region(&[(at - 1, 100.0), (at, 100.0)])).collect();
        let cuts = [&[&[0, 1][..], &[2, 3]][..], &[&[0, 1], &[3, 4]], &[&[1, 2], &[3, 4]], &[&[0, 1]]];
        for sets in cuts {
            assert_eq!(settled(&chain, sets, 5), [[0, 1, 2, 3, 4]], "{sets:?}");
        }
    }

    #[test]
    fn groups_that_overlap_a_little_stay_apart_and_threads_go_where_they_share_most() {
        let group = |first: u32, misses: f64| (first..first + 4).map(move |thread| (thread, misses));
        let both: Vec<(u32, f64)> = group(0, 10.0).chain(group(4, 10.0)).collect();
        let one = |first: u32| region(&group(first, 100.0).collect::<Vec<_>>());
        let regions = [one(0), one(4), region(&both)];
        let right = [[0, 1, 2, 3], [4, 5, 6, 7]];
        let sorted = |sets: &[&[u32]]| {
            let mut sets = settled(&regions, sets, 8);
            sets.sort();
            sets
        };
        assert_eq!(sorted(&[&[0, 1, 2, 3], &[4, 5, 6, 7]]), right);
        assert_eq!(sorted(&[&[0, 1, 2, 7], &[4, 5, 6, 3]]), right, "two changed places");
        assert_eq!(sorted(&[&[0, 1, 2], &[4, 5, 6, 7]]), right, "one was left out");
    }

    #[test]
    fn a_thread_that_shares_little_joins_only_where_it_shares_with_nobody_else() {
        // Thread 3 has 10 of its 110 misses there.
        let lock = [(0, 100.0), (1, 100.0), (2, 100.0), (3, 10.0)];
        assert_eq!(settled(&[region(&lock)], &[&[0, 1, 2]], 4), [[0, 1, 2, 3]]);
        let other = [(3, 9.0), (4, 100.0), (5, 100.0)];
        let both = settled(&[region(&lock), region(&other)], &[&[0, 1, 2], &[4, 5]], 6);
        assert_eq!(both, [vec![0, 1, 2], vec![4, 5]]);
    }

    #[test]
    fn many_that_have_little_in_common_in_pairs_are_a_set() {
        let contended = |moved: f64| {
            let one =
                |thread| Sharer { thread, misses: moved, moved, accesses: moved, writes: moved, ..Sharer::default() };
            [Region { sharers: (0..8).map(one).collect(), fits: 1.0, ..Region::default() }]
        };
        // Each pair has 1.6 % in common, and 0.1 %.
        for (moved, right) in [(24.0, vec![(0..8).collect::<Vec<u32>>()]), (2.0, Vec::new())] {
            let regions = contended(moved);
            let (demand, rules) = (demand(&regions, 9, 400.0), Rules::default());
            let mut sets = Sets::new(&[], regions.iter(), &demand, &rules);
            sets.settle();
            assert_eq!(sets.members(), []);
            sets.add_sets(&(0..9).collect::<Vec<u32>>());
            assert_eq!(sets.members().into_iter().map(|it| it.1).collect::<Vec<_>>(), right);
        }
    }

    proptest::proptest! {
        /// In the end no two sets should be one, and no thread would be better off elsewhere; and it is no worse than at first.
        #[test]
        fn what_is_settled_is_no_worse_than_its_neighbours(
            uses in proptest::collection::vec(proptest::collection::btree_map(0u32..12, 1.0..200.0f64, 2..6), 1..12),
            labels in proptest::collection::vec(0u32..5, 12),
        ) {
            let regions: Vec<Region> =
                uses.into_iter().map(|uses| region(&uses.into_iter().collect::<Vec<_>>())).collect();
            let demand = demand(&regions, 12, 50.0);
            let rules = Rules::default();
            let begin: Vec<Vec<u32>> =
                (0..4).map(|set| (0..12).filter(|&thread| labels[thread as usize] == set).collect()).collect();
            let avoided = |sets: &Sets<'_>| -> f64 { sets.avoided().0.iter().sum() };
            let mut sets = Sets::new(&begin, regions.iter(), &demand, &rules);
            let at_first = avoided(&sets);
            sets.settle();
            let settled = avoided(&sets);
            proptest::prop_assert!(settled >= at_first - 1e-6, "{} {}", at_first, settled);
            let was = sets.of_thread.clone();
            proptest::prop_assert!(!sets.merge(0, rules.worth), "two sets are better as one: {:?}", was);
            proptest::prop_assert!(!sets.move_threads(), "{:?} {:?}", was, sets.of_thread);
        }
    }
}
