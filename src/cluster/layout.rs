//! On which last-level caches a scheduler runs groups of threads: how probable it is that two of them share one.

use std::ops::Range;

use super::truth::Rng;
use crate::sample::caches::Caches;

/// Random orders of the groups that are tried: fewer if there are many groups, as each order costs their square.
const ORDERS: std::ops::RangeInclusive<usize> = 200..=4000;
/// The number of pairs of groups that all orders together may cost.
const WORK: usize = 4_000_000;
/// With more groups than this, all pairs have the same probability.
const MOST_GROUPS: usize = 256;
/// The most last-level caches; more count as this number.
pub const MAX_CACHES: u32 = 1024;

/// A group of threads.
#[derive(Debug, Clone, Copy)]
pub struct Group {
    /// Its cell: groups of one cell are neighbours.
    pub cell: u32,
    /// Its part of the CPUs.
    pub cpus: f64,
    /// Its threads.
    pub threads: usize,
}

/// The CPU use of threads.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// The threads.
    pub threads: usize,
    /// How many CPUs they would use: a thread that never sleeps uses 1.
    pub busy: f64,
    /// The sum of the squares of the use of each. It distinguishes few busy threads from many that mostly sleep.
    pub squares: f64,
}

impl Load {
    /// Adds this number of threads that use `each` of a CPU, at most 1.
    pub fn add(&mut self, threads: usize, each: f64) {
        let each = each.clamp(0.0, 1.0);
        self.threads = self.threads.saturating_add(threads);
        self.busy += threads as f64 * each;
        self.squares += threads as f64 * each * each;
    }

    /// The sum with the threads of another one.
    pub(crate) fn join(&mut self, other: &Self) {
        self.threads = self.threads.saturating_add(other.threads);
        self.busy += other.busy;
        self.squares += other.squares;
    }

    /// How many of them run on `cpus` CPUs of their own, on average, if a thread that wakes up while all of these are busy runs elsewhere.
    ///
    /// This is about the traffic that this number of lines carries for a finite number of sources (Engset's formula), which lets a
    /// thread that finds no CPU sleep again. The sources are equal threads with the same mean and variance of the number that run.
    pub(crate) fn at_home(&self, cpus: f64) -> f64 {
        let each = (self.squares / self.busy).min(1.0);
        let threads = self.busy / each;
        if !threads.is_finite() || threads <= cpus.floor() {
            return self.busy;
        }
        let ratio = each / (1.0 - each);
        // The part of the time in which all of this number of CPUs are busy.
        let mut all_busy = 1.0;
        let (mut fewer, mut carried, mut count) = (0.0, 0.0, 0.0);
        while count < cpus {
            count += 1.0;
            all_busy = 1.0 / (1.0 + count / ((threads - count + 1.0).max(0.0) * ratio * all_busy));
            (fewer, carried) = (carried, each * (threads - (threads - count).max(0.0) * all_busy));
        }
        // Between two numbers of CPUs it is between theirs.
        carried - (carried - fewer) * (count - cpus)
    }
}

/// A part of the CPUs that is known exactly.
#[derive(Debug, Clone)]
pub struct Part {
    /// Its cell: parts of one cell lend each other idle CPUs.
    pub cell: u32,
    /// Its CPUs, among all of the host.
    pub cpus: Range<usize>,
    /// Its threads.
    pub load: Load,
    /// The number of the group that it has, unless it has none.
    pub group: Option<usize>,
}

/// Where the threads of the parts of a cell run, which lend each other idle CPUs: for each part, the fractions of its threads' time on
/// the CPUs of each one.
///
/// `parts` are their CPUs and their threads. If there are too few idle CPUs, threads wait for their own.
pub(crate) fn lent(parts: &[(f64, Load)]) -> Vec<Vec<f64>> {
    let home: Vec<f64> = parts.iter().map(|(cpus, load)| load.at_home(*cpus)).collect();
    let away: Vec<f64> = parts.iter().zip(&home).map(|((_, load), home)| (load.busy - home).max(0.0)).collect();
    let idle: Vec<f64> = parts.iter().zip(&home).map(|((cpus, _), home)| (cpus - home).max(0.0)).collect();
    let (all_idle, all_away): (f64, f64) = (idle.iter().sum(), away.iter().sum());
    let runs = if all_away > 0.0 { (all_idle / all_away).min(1.0) } else { 0.0 };
    let of_part = |(at, ((home, away), own)): (usize, ((&f64, &f64), &f64))| -> Vec<f64> {
        // Its threads are away only while none of its own is idle.
        let others = (all_idle - own).max(f64::MIN_POSITIVE);
        let away = if others > 1e-9 { away * runs / (home + away * runs).max(f64::MIN_POSITIVE) } else { 0.0 };
        let on = |(to, idle): (usize, &f64)| if to == at { 1.0 - away } else { away * idle / others };
        idle.iter().enumerate().map(on).collect()
    };
    home.iter().zip(&away).zip(&idle).enumerate().map(of_part).collect()
}

/// One of a number of equal, adjacent shares of the CPUs; the first ones get the remainder, as scx_mitosis gives CPUs to cells and
/// subcells (`compute_targets` in `scheds/rust/scx_mitosis/src/cell_manager.rs`).
#[must_use]
pub(crate) fn share(of: Range<usize>, shares: usize, at: usize) -> Range<usize> {
    let shares = shares.max(1);
    let (each, more) = (of.len() / shares, of.len() % shares);
    let begin = of.start + at * each + at.min(more);
    begin..begin + each + usize::from(at < more)
}

/// True if the catch-all of a cell with these of the host's `cpus`, and with `subcells` subcells, has CPUs of one last-level cache only.
/// scx_mitosis gives it the first CPUs. A cell with no other subcell is not divided, so it has none.
#[must_use]
pub(crate) fn catch_all_is_near(caches: Caches, cpus_of_cell: Range<usize>, cpus: usize, subcells: usize) -> bool {
    let mut on = share(cpus_of_cell, subcells, 0).map(|cpu| caches.cache(cpu, cpus));
    subcells > 1 && on.next().is_some_and(|first| on.all(|it| it == first))
}

/// The probability that a thread of one group runs on the same last-level cache as a thread of another one, or of the same.
///
/// With [`Self::new`], the groups have adjacent parts of the CPUs, in an unknown order; those of one cell are
/// neighbours. So each of two groups with half of the CPUs has one of two caches for itself, and of three
/// equal ones, one is on both caches. The threads of a group are spread evenly over its CPUs: of four threads on two caches, one of the three others is near.
#[derive(Debug, Clone)]
pub struct Layout {
    groups: usize,
    /// For each pair; empty if there are too many groups.
    near: Vec<f64>,
    /// For each group with itself.
    own: Vec<f64>,
    /// For any two groups, on average.
    apart: f64,
    /// For any two threads without a configuration.
    chance: f64,
}

impl Layout {
    /// On this many caches of equal size, 2 to [`MAX_CACHES`].
    #[must_use]
    pub fn new(groups: &[Group], caches: u32) -> Self {
        let caches = caches.clamp(2, MAX_CACHES) as usize;
        let part = 1.0 / caches as f64;
        let chance = of_two(part, groups.iter().map(|it| it.threads).sum());
        let count = groups.len();
        if count > MOST_GROUPS {
            let own = groups.iter().map(|it| of_two(1.0 / (it.cpus / part).max(1.0), it.threads)).collect();
            return Self { groups: count, near: Vec::new(), own, apart: chance, chance };
        }
        // The CPUs of other cells, which have no sampled threads: pieces of the mean size.
        let known: f64 = groups.iter().map(|it| it.cpus).sum();
        let mean = known / count.max(1) as f64;
        let mut cells: Vec<Vec<(Option<usize>, f64)>> = Vec::new();
        let mut left = 1.0 - known;
        while left > 1e-6 && cells.len() < MOST_GROUPS {
            let part = if cells.len() + 1 == MOST_GROUPS { left } else { left.min(mean.max(1e-6)) };
            cells.push(vec![(None, part)]);
            left -= part;
        }
        let mut sorted: Vec<(u32, usize)> = groups.iter().map(|it| it.cell).zip(0..).collect();
        sorted.sort_unstable();
        let piece = |&(_, at): &(u32, usize)| (Some(at), groups[at].cpus);
        cells.extend(sorted.chunk_by(|a, b| a.0 == b.0).map(|cell| cell.iter().map(piece).collect()));
        let mut near = vec![0.0; count * count];
        let mut rng = Rng::new(count as u64);
        let orders = (WORK / (count * count).max(1)).clamp(*ORDERS.start(), *ORDERS.end());
        for _ in 0..orders {
            rng.shuffle(&mut cells);
            for cell in &mut cells {
                rng.shuffle(cell);
            }
            // The part of each group's CPUs that is in each cache.
            let mut inside = vec![0.0; count * caches];
            let mut begin = 0.0;
            for (group, cpus) in cells.iter().flatten() {
                let end = begin + cpus;
                for cache in 0..caches {
                    let (from, to) = (cache as f64 * part, (cache + 1) as f64 * part);
                    let here = (end.min(to) - f64::max(begin, from)).max(0.0);
                    if let Some(at) = group.filter(|_| *cpus > 0.0) {
                        inside[at * caches + cache] = here / cpus;
                    }
                }
                begin = end;
            }
            for (a, of_a) in inside.chunks(caches).enumerate() {
                for (b, of_b) in inside.chunks(caches).enumerate() {
                    near[a * count + b] += both(of_a, of_b) / orders as f64;
                }
            }
        }
        let own: Vec<f64> = (0..count).map(|at| of_two(near[at * count + at], groups[at].threads)).collect();
        Self { groups: count, apart: apart(&near, count).unwrap_or(chance), near, own, chance }
    }

    /// For parts whose CPUs (of the host's `cpus`) are known; those of one cell follow each other.
    ///
    /// A thread that wakes up while all CPUs of its part are busy runs on an idle one of its cell, as scx_mitosis lends them. That such a
    /// CPU is busy when its own threads wake up is not modelled.
    #[must_use]
    pub fn known(parts: &[Part], caches: Caches, cpus: usize) -> Self {
        let count = caches.count.max(1) as usize;
        let chance = of_two(1.0 / count as f64, parts.iter().map(|it| it.load.threads).sum());
        let groups = parts.iter().filter_map(|it| it.group).max().map_or(0, |last| last + 1);
        let is_many = groups > MOST_GROUPS;
        let mut own = vec![chance; groups];
        let mut inside = vec![Vec::new(); if is_many { 0 } else { groups }];
        for cell in parts.chunk_by(|a, b| a.cell == b.cell) {
            let loads: Vec<_> = cell.iter().map(|it| (it.cpus.len() as f64, it.load)).collect();
            let of: Vec<Vec<f64>> = cell.iter().map(|it| caches.parts(it.cpus.clone(), cpus)).collect();
            for (part, on) in cell.iter().zip(lent(&loads)) {
                let Some(group) = part.group else { continue };
                let at =
                    |cache| of.iter().zip(&on).map(|(of, on)| of.get(cache).map_or(0.0, |it| it * on)).sum::<f64>();
                let mut its: Vec<f64> = (0..count).map(at).collect();
                if its.iter().all(|it| *it <= 0.0) {
                    // Without any CPU, they may be on any cache.
                    its.fill(1.0 / count as f64);
                }
                if let Some(own) = own.get_mut(group) {
                    *own = of_two(both(&its, &its), part.load.threads);
                }
                if let Some(inside) = inside.get_mut(group) {
                    *inside = its;
                }
            }
        }
        let near: Vec<f64> = inside.iter().flat_map(|a| inside.iter().map(|b| both(a, b))).collect();
        let apart = if is_many { None } else { apart(&near, groups) };
        Self { groups, near, own, apart: apart.unwrap_or(chance), chance }
    }

    /// Of groups that each have one cache, and meet others only by chance; of this many threads in all.
    #[must_use]
    pub fn one_each(groups: usize, threads: usize, caches: u32) -> Self {
        let chance = of_two(1.0 / f64::from(caches.max(2)), threads);
        Self { groups, near: Vec::new(), own: vec![1.0; groups], apart: chance, chance }
    }

    /// The number of groups.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// For a thread of each of two groups.
    #[must_use]
    pub fn near(&self, a: u32, b: u32) -> f64 {
        let own = if a == b { self.own.get(a as usize) } else { None };
        let pair = || self.near.get(a as usize * self.groups + b as usize).copied();
        own.copied().or_else(pair).unwrap_or(self.apart)
    }

    /// For two threads of different groups, on average.
    #[must_use]
    pub fn apart(&self) -> f64 {
        self.apart
    }

    /// For two threads without a configuration.
    #[must_use]
    pub fn chance(&self) -> f64 {
        self.chance
    }
}

/// The probability that two threads, on the caches with these probabilities, are on the same cache.
fn both(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The mean of all pairs of different groups; `None` if there are none.
fn apart(near: &[f64], groups: usize) -> Option<f64> {
    let same: f64 = near.iter().step_by(groups + 1).sum();
    let others = (groups * groups - groups) as f64;
    (groups > 1).then(|| (near.iter().sum::<f64>() - same) / others)
}

/// The probability that two of this number of threads are on one cache, if any two positions are on one with this probability.
fn of_two(near: f64, threads: usize) -> f64 {
    let threads = threads as f64;
    if threads > 1.0 {
        ((near * threads - 1.0) / (threads - 1.0)).max(0.0)
    } else {
        near
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(cell: u32, cpus: f64) -> Group {
        Group { cell, cpus, threads: 1000 }
    }

    fn equal(groups: usize, caches: u32) -> Layout {
        Layout::new(&vec![group(0, 1.0 / groups as f64); groups], caches)
    }

    #[test]
    fn groups_share_caches_as_their_cpus_do() {
        let near = |layout: &Layout, a, b, expected: f64| {
            let found = layout.near(a, b);
            assert!((found - expected).abs() < 0.03, "{a} {b}: {found} {expected}");
        };
        near(&equal(1, 2), 0, 0, 0.5);
        near(&equal(1, 8), 0, 0, 0.125);
        near(&equal(2, 2), 0, 0, 1.0);
        near(&equal(2, 2), 0, 1, 0.0);
        near(&equal(4, 2), 0, 0, 1.0);
        near(&equal(4, 2), 0, 3, 1.0 / 3.0);
        // The one in the middle is on both.
        near(&equal(3, 2), 0, 0, 5.0 / 6.0);
        near(&equal(3, 2), 0, 1, 1.0 / 3.0);
        // With other cells that have no threads; and one cell's groups are neighbours.
        near(&Layout::new(&[group(0, 0.25)], 2), 0, 0, 1.0);
        let cells = Layout::new(&[group(0, 0.25), group(0, 0.25), group(1, 0.25), group(1, 0.25)], 2);
        near(&cells, 0, 1, 1.0);
        near(&cells, 0, 2, 0.0);
        let many = Layout::new(&vec![group(0, 1.0 / 1000.0); 1000], 4);
        near(&many, 5, 5, 1.0);
        near(&many, 5, 6, 0.25);
        assert_eq!((many.groups(), Layout::one_each(3, 9, 4).groups()), (1000, 3));
        near(&Layout::one_each(3, 9, 4), 0, 0, 1.0);
        // Few threads are spread evenly.
        let four = Layout::new(&[Group { threads: 4, ..group(0, 1.0) }], 2);
        near(&four, 0, 0, 1.0 / 3.0);
        assert!((four.chance() - 1.0 / 3.0).abs() < 1e-9);
    }

    /// This number of threads that never sleep.
    fn awake(threads: usize) -> Load {
        Load { threads, busy: threads as f64, squares: threads as f64 }
    }

    /// Groups with these numbers of busy threads in the parts of a cell with 8 CPUs: a catch-all without any, unless it has some,
    /// comes first.
    fn on_8(rest: usize, groups: &[usize]) -> Layout {
        let of = |(at, &threads): (usize, &usize)| Part {
            cell: 0,
            cpus: share(0..8, groups.len() + 1, at),
            load: awake(threads),
            group: if threads > 0 { Some(if rest > 0 { at } else { at - 1 }) } else { None },
        };
        let parts: Vec<Part> = [rest].iter().chain(groups).enumerate().map(of).collect();
        Layout::known(&parts, Caches::side_by_side(2), 8)
    }

    #[track_caller]
    fn is(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9, "{found} {expected}");
    }

    #[test]
    fn groups_overflow_into_the_idle_cpus_of_their_cell() {
        // A has CPUs 3 to 5, B 6 and 7; each runs half of its time on each cache.
        let two = on_8(0, &[4, 4]);
        is(two.near(0, 0), (0.5 * 4.0 - 1.0) / 3.0);
        is(two.near(1, 1), (0.5 * 4.0 - 1.0) / 3.0);
        is(two.near(0, 1), 0.5);
        is(two.apart(), 0.5);
        is(two.chance(), (0.5 * 8.0 - 1.0) / 7.0);
        // A in the catch-all: each has a cache.
        let aligned = on_8(4, &[4]);
        assert_eq!((aligned.near(0, 0), aligned.near(1, 1), aligned.near(0, 1), aligned.groups()), (1.0, 1.0, 0.0, 2));
        // Only the catch-all's CPU is idle, for a seventh of each excess.
        let seven = on_8(0, &[2; 7]);
        is(seven.near(0, 0), 1.0);
        is(seven.near(6, 6), 50.0 / 64.0 * 2.0 - 1.0);
        is(seven.near(0, 2), 1.0);
        is(seven.near(0, 6), 1.0 / 8.0);
    }

    #[test]
    fn threads_that_sleep_seldom_find_all_their_cpus_busy() {
        let load = |threads: usize, each: f64| {
            let mut load = Load::default();
            load.add(threads, each);
            load
        };
        // Two threads that run half of the time: one CPU is busy for two thirds of it.
        is(load(2, 0.5).at_home(1.0), 2.0 / 3.0);
        is(load(4, 1.0).at_home(3.0), 3.0);
        is(load(4, 1.0).at_home(2.5), 2.5);
        is(load(4, 0.3).at_home(4.0), 1.2);
        is(load(4, 0.3).at_home(0.0), 0.0);
        is(load(0, 0.3).at_home(2.0), 0.0);
        assert!((load(4, 0.3).at_home(9.0) - 1.2).abs() < 1e-9 && load(4, 0.3).at_home(1.0) < 0.7);
        // One that never sleeps beside a hundred that mostly do is not as a hundred that run as much as all of them.
        let mut mixed = load(100, 0.001);
        mixed.add(1, 1.0);
        assert!(mixed.at_home(1.0) > load(101, 1.1 / 101.0).at_home(1.0) + 0.3, "{mixed:?}");
        // More CPUs carry more, and never more than there is.
        for each in [1e-6, 0.1, 0.5, 0.999, 1.0] {
            let load = load(40, each);
            let home: Vec<f64> = (0..=400).map(|tenths| load.at_home(f64::from(tenths) / 10.0)).collect();
            assert!(home.windows(2).all(|it| it[0] <= it[1] + 1e-9), "{each} {home:?}");
            assert!(home.iter().zip(0..).all(|(it, at)| *it <= load.busy.min(f64::from(at) / 10.0) + 1e-9), "{each}");
        }
    }

    #[test]
    fn parts_without_cpus_and_many_parts_are_somewhere() {
        let part = |at: usize, cpus: Range<usize>| Part {
            cell: at as u32,
            cpus,
            load: Load { threads: 9, ..awake(1) },
            group: Some(at),
        };
        let none = Layout::known(&[part(0, 0..0), part(1, 0..1)], Caches::side_by_side(4), 1);
        is(none.near(0, 1), 0.25);
        is(none.near(1, 1), 1.0);
        let parts: Vec<Part> = (0..1000).map(|at| part(at, at..at + 1)).collect();
        let many = Layout::known(&parts, Caches::side_by_side(4), 1000);
        is(many.near(5, 5), 1.0);
        is(many.near(5, 6), many.chance());
        let nobody = Layout::known(&[], Caches::side_by_side(0), 0);
        assert_eq!((nobody.groups(), nobody.near(0, 0)), (0, 1.0));
    }

    #[test]
    fn the_first_shares_get_the_remainder() {
        let shares = |of: Range<usize>, count| (0..count).map(|at| share(of.clone(), count, at)).collect::<Vec<_>>();
        assert_eq!(shares(0..8, 3), [0..3, 3..6, 6..8]);
        assert_eq!(shares(4..6, 3), [4..5, 5..6, 6..6]);
    }

    #[test]
    fn a_catch_all_is_near_if_it_has_one_cache() {
        let near = |of: Range<usize>, subcells| catch_all_is_near(Caches::side_by_side(2), of, 8, subcells);
        assert!(near(0..8, 2) && near(0..8, 3) && near(4..8, 2) && near(2..5, 2));
        assert!(!near(2..8, 2), "CPUs 2 to 4");
        assert!(!near(0..4, 1), "not divided");
        assert!(!near(3..3, 2), "no CPU");
        let smt = |subcells| catch_all_is_near(Caches { count: 2, turns: 2 }, 0..16, 16, subcells);
        assert!(smt(4) && !smt(2));
    }
}
