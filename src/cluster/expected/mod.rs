//! What groups of threads are expected to avoid, by the probability that two of them are on one cache.

use super::avoided::{sum_by_key, Together};
use super::keys::mix;
use super::layout::Layout;
use super::rules;
use super::sharers::{Shared, Sharer, COMPARED};

/// The number of threads that are put in order at first: if threads share a cache, all fills after a few are avoided.
const FIRST: usize = 64;
/// A fill counts as avoided if the probability that it is not is below this.
const NEVER: f64 = 1e-12;

/// The weight of an avoided miss of a region: what is avoidable there beyond chance stands for all avoidable misses.
pub(super) fn worth(all: f64, base: f64) -> Option<f64> {
    (all > base).then(|| all / (all - base))
}

/// A thread with its uses under one or more labels.
#[derive(Debug, Clone, Copy)]
struct Thread {
    fills: f64,
    /// Orders threads with the same number of fills independently of their groups.
    coin: u64,
    /// Its part of [`Expected::uses`].
    from: u32,
    to: u32,
}

/// The expected values of one region.
#[derive(Debug, Default)]
pub(super) struct Expected {
    /// For each group, the misses that it avoids, and those that it would avoid by chance.
    pub(super) kept: Vec<(f64, f64)>,
    seen: Vec<rules::Sharer>,
    of_sharers: Vec<Together>,
    /// By thread and group.
    uses: Vec<(u32, Together)>,
    threads: Vec<Thread>,
    sums: Vec<Together>,
    far: Far,
}

impl Expected {
    /// The weight of an avoided miss of a region in [`super::score::Avoided`].
    pub fn worth(&mut self, region: &Shared, layout: &Layout) -> f64 {
        let places = vec![0; region.sharers.len()];
        let all = self.compute(region, &[0], &places, layout, |_| 1.0);
        worth(all, self.kept.iter().map(|it| it.1).sum()).unwrap_or(0.0)
    }

    /// Returns what one cache for all threads avoids, in a region that fits.
    pub(super) fn compute(
        &mut self,
        region: &Shared,
        groups: &[u32],
        places: &[u32],
        layout: &Layout,
        weight: impl Fn(&Sharer) -> f64,
    ) -> f64 {
        self.seen.clear();
        self.seen.extend(region.weighted(weight));
        region.uses(&self.seen, &mut self.of_sharers);
        self.kept.clear();
        self.kept.resize(groups.len(), (0.0, 0.0));
        self.far.set(groups, layout);
        self.by_group(region, places);
        self.moved(layout.chance()) + self.fills(layout.chance())
    }

    /// The uses of each thread, and of all threads, by group.
    fn by_group(&mut self, region: &Shared, places: &[u32]) {
        self.uses.clear();
        self.threads.clear();
        self.sums.clear();
        self.sums.resize(self.kept.len(), Together::default());
        let mut at = 0;
        for sharers in region.sharers.chunk_by(|a, b| a.owner == b.owner) {
            let range = at..at + sharers.len();
            let from = self.uses.len();
            let of_sharers = self.of_sharers.get(range.clone()).unwrap_or_default();
            self.uses.extend(places.get(range).unwrap_or_default().iter().copied().zip(of_sharers.iter().copied()));
            at += sharers.len();
            if sharers.len() > 1 {
                let mut own = self.uses.split_off(from);
                sum_by_key(&mut own, |it| it.0, |sum, it| sum.1 = sum.1.as_one(&it.1));
                self.uses.append(&mut own);
            }
            let mut fills = 0.0;
            for (place, it) in self.uses.get(from..).unwrap_or_default() {
                fills += it.fills();
                if let Some(sum) = self.sums.get_mut(*place as usize) {
                    *sum = sum.with(it);
                }
            }
            let owner = sharers.first().map_or(0, |it| u64::from(it.owner));
            let coin = mix(owner ^ region.first.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            self.threads.push(Thread { fills, coin, from: from as u32, to: self.uses.len() as u32 });
        }
    }

    /// Adds the transfers that are avoided, and returns all: each if the thread that took the line away is near.
    fn moved(&mut self, chance: f64) -> f64 {
        let total = self.sums.iter().fold(Together::default(), |sum, it| sum.with(it));
        let mut all = 0.0;
        for (place, ((kept, base), it)) in self.kept.iter_mut().zip(&self.sums).enumerate() {
            let moved = it.moved_by(&total) - it.own();
            let near = self.far.sum_near(place, &self.sums, &total, |other| it.moved_by(other));
            *kept += near - (1.0 - self.far.of(place, place)) * it.own();
            *base += chance * moved;
            all += moved;
        }
        // Uses of one thread in two groups take no lines from each other.
        for thread in &self.threads {
            let own = self.uses.get(thread.from as usize..thread.to as usize).unwrap_or_default();
            for (at, (a, of_a)) in own.iter().enumerate().filter(|_| own.len() > 1) {
                for (b, of_b) in own.iter().enumerate().filter(|it| it.0 != at).map(|it| it.1) {
                    let moved = of_a.moved_by(of_b);
                    let near = 1.0 - self.far.of(*a as usize, *b as usize);
                    if let Some((kept, base)) = self.kept.get_mut(*a as usize) {
                        *kept -= near * moved;
                        *base -= chance * moved;
                    }
                    all -= moved;
                }
            }
        }
        all
    }

    /// Adds the fills that are avoided, and returns all: each unless no thread with more is near.
    fn fills(&mut self, chance: f64) -> f64 {
        let mut all = 0.0;
        // The probability that no thread so far is near, without groups.
        let mut alone = 1.0;
        let mut is_first = true;
        let mut rest = self.threads.as_mut_slice();
        let mut count = FIRST;
        while !rest.is_empty() {
            // The order of those that certainly find the data does not matter.
            let is_over = alone < NEVER && self.far.most() < NEVER;
            let next = if is_over { rest.len() } else { count.min(rest.len()) };
            let order = |a: &Thread, b: &Thread| b.fills.total_cmp(&a.fills).then(a.coin.cmp(&b.coin));
            if next < rest.len() {
                rest.select_nth_unstable_by(next, order);
            }
            let (some, others) = std::mem::take(&mut rest).split_at_mut(next);
            if !is_over {
                some.sort_unstable_by(order);
            }
            for thread in some {
                let own = self.uses.get(thread.from as usize..thread.to as usize).unwrap_or_default();
                for (place, it) in own {
                    if let Some((kept, base)) = self.kept.get_mut(*place as usize) {
                        *kept += (1.0 - self.far.alone_so_far(*place as usize)) * it.fills();
                        *base += (1.0 - alone) * it.fills();
                    }
                }
                all += if is_first { 0.0 } else { thread.fills };
                if !is_over {
                    for (place, _) in own {
                        self.far.add(*place as usize);
                    }
                    alone *= 1.0 - chance;
                }
                is_first = false;
            }
            rest = others;
            count *= 2;
        }
        all
    }
}

/// The probabilities that threads of groups are on different caches.
#[derive(Debug, Default)]
struct Far {
    /// Of each group with each; empty if there are too many.
    pairs: Vec<f64>,
    /// Of each with itself.
    own: Vec<f64>,
    /// Of any two, on average.
    apart: f64,
    /// That a thread of each group is near none of the threads that were added.
    now: Vec<f64>,
    /// If there are too many groups, the threads that were added: of each, and all.
    added: Vec<i32>,
    count: i32,
}

impl Far {
    fn set(&mut self, groups: &[u32], layout: &Layout) {
        let far = |a: &u32, b: &u32| 1.0 - layout.near(*a, *b);
        self.apart = 1.0 - layout.apart();
        self.own.clear();
        self.own.extend(groups.iter().map(|it| far(it, it)));
        self.pairs.clear();
        self.now.clear();
        self.added.clear();
        self.count = 0;
        if groups.len() <= COMPARED {
            self.pairs.extend(groups.iter().flat_map(|a| groups.iter().map(move |b| far(a, b))));
            self.now.resize(groups.len(), 1.0);
        } else {
            self.added.resize(groups.len(), 0);
        }
    }

    fn is_compared(&self) -> bool {
        self.added.is_empty()
    }

    fn of(&self, a: usize, b: usize) -> f64 {
        let of = if self.is_compared() {
            self.pairs.get(a * self.own.len() + b)
        } else if a == b {
            self.own.get(a)
        } else {
            None
        };
        of.copied().unwrap_or(self.apart)
    }

    /// The sum over the groups of what is near one.
    fn sum_near(&self, place: usize, sums: &[Together], total: &Together, of: impl Fn(&Together) -> f64) -> f64 {
        if self.is_compared() {
            let row = self.pairs.get(place * self.own.len()..).unwrap_or_default();
            return row.iter().zip(sums).map(|(far, other)| (1.0 - far) * of(other)).sum();
        }
        let own = sums.get(place).map_or(0.0, &of);
        (1.0 - self.of(place, place)) * own + (1.0 - self.apart) * (of(total) - own)
    }

    /// That a thread of a group is near none of those that were added.
    fn alone_so_far(&self, place: usize) -> f64 {
        if self.is_compared() {
            return self.now.get(place).copied().unwrap_or(1.0);
        }
        let own = self.added.get(place).copied().unwrap_or_default();
        self.of(place, place).powi(own) * self.apart.powi(self.count - own)
    }

    /// The largest of these probabilities.
    fn most(&self) -> f64 {
        (0..self.own.len()).map(|place| self.alone_so_far(place)).fold(0.0, f64::max)
    }

    fn add(&mut self, place: usize) {
        self.count += 1;
        if let Some(added) = self.added.get_mut(place) {
            *added += 1;
        }
        let row = self.pairs.get(place * self.own.len()..).unwrap_or_default();
        self.now.iter_mut().zip(row).for_each(|(now, far)| *now *= far);
    }
}

#[cfg(test)]
mod tests;
