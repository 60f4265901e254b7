//! On which last-level caches a scheduler runs groups of threads: how probable it is that two of them share one.

use super::truth::Rng;

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

/// The probability that a thread of one group runs on the same last-level cache as a thread of another one, or of the same.
///
/// The groups have parts of the CPUs side by side, in an order that nobody knows; those of one cell are neighbours. So each of two
/// groups with half of the CPUs has one of two caches for itself, and of three equal ones, one is on both caches. The threads of a
/// group are spread evenly over its CPUs: of four threads on two caches, one of the three others is near.
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
                    let both = (end.min(to) - f64::max(begin, from)).max(0.0);
                    if let Some(at) = group.filter(|_| *cpus > 0.0) {
                        inside[at * caches + cache] = both / cpus;
                    }
                }
                begin = end;
            }
            for (a, of_a) in inside.chunks(caches).enumerate() {
                for (b, of_b) in inside.chunks(caches).enumerate() {
                    let both: f64 = of_a.iter().zip(of_b).map(|(a, b)| a * b).sum();
                    near[a * count + b] += both / orders as f64;
                }
            }
        }
        let own: Vec<f64> = (0..count).map(|at| of_two(near[at * count + at], groups[at].threads)).collect();
        let pairs: f64 = (0..count).map(|at| near[at * count + at]).sum();
        let others = (count * count - count) as f64;
        let apart = if count > 1 { (near.iter().sum::<f64>() - pairs) / others } else { chance };
        Self { groups: count, near, own, apart, chance }
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
}
