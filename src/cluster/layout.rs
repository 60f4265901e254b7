//! On which last-level caches a scheduler runs groups of threads: how probable it is that two of them share one.

use std::ops::Range;

use super::truth::Rng;
use crate::sample::caches::Caches;

/// Random orders of the groups that are tried: fewer if there are many groups, as each order costs their square.
const ORDERS: std::ops::RangeInclusive<usize> = 200..=4000;
/// The pairs of groups that all orders together may cost.
const WORK: usize = 4_000_000;
/// With more groups than this, what two of them share is all the same.
const MOST_GROUPS: usize = 256;
/// The most last-level caches; of more, there are as many.
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

/// A part of the CPUs of which it is known which ones it has.
#[derive(Debug, Clone)]
pub struct Part {
    /// Its cell: parts of one cell lend each other idle CPUs.
    pub cell: u32,
    /// Its CPUs, among all of the host.
    pub cpus: Range<usize>,
    /// How many CPUs its threads would use.
    pub busy: f64,
    /// Its threads.
    pub threads: usize,
    /// The number of the group that it has, unless it has none.
    pub group: Option<usize>,
}

/// What the parts of a cell lend each other.
struct Lent {
    /// The part of what a part has too few CPUs for that runs on CPUs of others.
    runs: f64,
    /// The part of the idle CPUs that each cache has.
    idle: Vec<f64>,
}

impl Lent {
    /// In a cell of these parts.
    fn by(cell: &[Part], caches: Caches, cpus: usize) -> Self {
        let idle = |part: &Part| (part.cpus.len() as f64 - part.busy).max(0.0);
        let all_idle: f64 = cell.iter().map(idle).sum();
        let excess: f64 = cell.iter().map(Part::excess).sum();
        let mut of_caches = vec![0.0; caches.count.max(1) as usize];
        if excess <= 0.0 || all_idle <= 0.0 {
            return Self { runs: 0.0, idle: of_caches };
        }
        for part in cell {
            let weight = idle(part) / all_idle;
            for (sum, its) in of_caches.iter_mut().zip(caches.parts(part.cpus.clone(), cpus)) {
                *sum += weight * its;
            }
        }
        Self { runs: (all_idle / excess).min(1.0), idle: of_caches }
    }

    /// The part of each cache in the CPUs on which a part's threads run. Without any CPU they may be anywhere.
    fn inside(&self, part: &Part, caches: Caches, cpus: usize) -> Vec<f64> {
        let (own, lent) = (part.cpus.len() as f64, part.excess() * self.runs);
        let all = own + lent;
        if all <= 0.0 {
            return vec![1.0 / f64::from(caches.count.max(1)); self.idle.len()];
        }
        let of_own = caches.parts(part.cpus.clone(), cpus);
        of_own.iter().zip(&self.idle).map(|(of_own, idle)| (own * of_own + lent * idle) / all).collect()
    }
}

impl Part {
    /// What its threads would use beyond its CPUs.
    fn excess(&self) -> f64 {
        (self.busy - self.cpus.len() as f64).max(0.0)
    }
}

/// One of so many equal shares of CPUs side by side; the first ones get the remainder, as scx_mitosis gives CPUs to cells and
/// subcells (`compute_targets` in `scheds/rust/scx_mitosis/src/cell_manager.rs`).
#[must_use]
pub(crate) fn share(of: Range<usize>, shares: usize, at: usize) -> Range<usize> {
    let shares = shares.max(1);
    let (each, more) = (of.len() / shares, of.len() % shares);
    let begin = of.start + at * each + at.min(more);
    begin..begin + each + usize::from(at < more)
}

/// True if the catch-all of a cell with these of the host's `cpus`, and with so many subcells, has CPUs of one last-level cache only.
/// scx_mitosis gives it the first CPUs. A cell with no other subcell is not divided, so it has none.
#[must_use]
pub(crate) fn catch_all_is_near(caches: Caches, cpus_of_cell: Range<usize>, cpus: usize, subcells: usize) -> bool {
    let mut on = share(cpus_of_cell, subcells, 0).map(|cpu| caches.cache(cpu, cpus));
    subcells > 1 && on.next().is_some_and(|first| on.all(|it| it == first))
}

/// The probability that a thread of one group runs on the same last-level cache as a thread of another one, or of the same.
///
/// With [`Self::new`], the groups have parts of the CPUs side by side, in an order that nobody knows; those of one cell are
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
        // What other cells have, which have no sampled threads: pieces of the mean size.
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

    /// Of parts of which it is known which of the host's `cpus` they have; those of one cell follow each other.
    ///
    /// What a part has too few CPUs for runs on idle ones of its cell, as scx_mitosis lends them.
    #[must_use]
    pub fn known(parts: &[Part], caches: Caches, cpus: usize) -> Self {
        let chance = of_two(1.0 / f64::from(caches.count.max(1)), parts.iter().map(|it| it.threads).sum());
        let groups = parts.iter().filter_map(|it| it.group).max().map_or(0, |last| last + 1);
        let is_many = groups > MOST_GROUPS;
        let mut own = vec![chance; groups];
        let mut inside = vec![Vec::new(); if is_many { 0 } else { groups }];
        for cell in parts.chunk_by(|a, b| a.cell == b.cell) {
            let lent = Lent::by(cell, caches, cpus);
            for (part, group) in cell.iter().filter_map(|part| Some((part, part.group?))) {
                let its = lent.inside(part, caches, cpus);
                if let Some(own) = own.get_mut(group) {
                    *own = of_two(both(&its, &its), part.threads);
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

/// The probability that what is in the caches by these parts is in the same one.
fn both(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The mean of all pairs of different groups; `None` if there are none.
fn apart(near: &[f64], groups: usize) -> Option<f64> {
    let same: f64 = near.iter().step_by(groups + 1).sum();
    let others = (groups * groups - groups) as f64;
    (groups > 1).then(|| (near.iter().sum::<f64>() - same) / others)
}

/// The probability that two of so many threads are on one cache, if any two positions are with this one.
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
        // With other cells that have nobody; and one cell's groups are neighbours.
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

    /// Groups of so many busy threads in the parts of a cell with 8 CPUs: a catch-all without any, unless it has some, comes first.
    fn on_8(rest: usize, groups: &[usize]) -> Layout {
        let of = |(at, &threads): (usize, &usize)| Part {
            cell: 0,
            cpus: share(0..8, groups.len() + 1, at),
            busy: threads as f64,
            threads,
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
    fn parts_without_cpus_and_many_parts_are_somewhere() {
        let part =
            |at: usize, cpus: Range<usize>| Part { cell: at as u32, cpus, busy: 1.0, threads: 9, group: Some(at) };
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
