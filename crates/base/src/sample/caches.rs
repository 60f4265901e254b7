//! The last-level caches of a host, and how the numbers of its CPUs go through them.

use std::collections::BTreeMap;
use std::ops::Range;

/// The last-level caches of a host on which each has equally many CPUs.
///
/// The numbers of the CPUs go through all caches one or several times: with SMT, Linux on x86 numbers the first thread of every
/// core first, so two caches of four cores have the CPUs 0-3,8-11 and 4-7,12-15, and the numbers go twice through them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caches {
    /// How many there are.
    pub count: u32,
    /// How often the numbers of the CPUs go through all of them.
    pub turns: u32,
}

impl Caches {
    /// This number of caches, each with adjacent CPUs.
    #[must_use]
    pub const fn side_by_side(count: u32) -> Self {
        Self { count, turns: 1 }
    }

    /// The caches of CPUs in the order of their numbers, each by anything that is the same for CPUs of one cache.
    ///
    /// `None` if they are not regular: if one has more CPUs than another, or they take turns otherwise.
    #[must_use]
    pub fn of(caches: &[u32]) -> Option<Self> {
        let mut seen: BTreeMap<u32, usize> = BTreeMap::new();
        for cache in caches {
            let next = seen.len();
            seen.entry(*cache).or_insert(next);
        }
        let runs = caches.chunk_by(|a, b| a == b).count();
        let count = u32::try_from(seen.len()).ok().filter(|count| *count > 0)?;
        let turns = u32::try_from(runs.div_ceil(seen.len())).ok()?;
        // One cache is passed once.
        let found = Self { count, turns: if count == 1 { 1 } else { turns } };
        let is_there = |(cpu, cache): (usize, &u32)| seen.get(cache) == Some(&found.cache(cpu, caches.len()));
        let is_regular = caches.len().is_multiple_of(found.count as usize * found.turns as usize);
        (is_regular && caches.iter().enumerate().all(is_there)).then_some(found)
    }

    /// The number of the cache, below [`Self::count`], of the CPU at this place among all `cpus`.
    #[must_use]
    pub fn cache(self, cpu: usize, cpus: usize) -> usize {
        let (count, turns) = (self.count.max(1) as usize, self.turns.max(1) as usize);
        cpu.saturating_mul(count * turns) / cpus.max(1) % count
    }

    /// The part of these CPUs, of all `cpus`, that each cache has; nothing for no CPUs.
    #[must_use]
    pub fn parts(self, of: Range<usize>, cpus: usize) -> Vec<f64> {
        let mut parts = vec![0.0; self.count.max(1) as usize];
        let each = 1.0 / of.len().max(1) as f64;
        for cpu in of {
            if let Some(part) = parts.get_mut(self.cache(cpu, cpus)) {
                *part += each;
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_side_by_side_or_in_turns_are_regular() {
        let of = |caches: &[u32]| Caches::of(caches).map(|it| (it.count, it.turns));
        assert_eq!(of(&[0, 0, 0, 0]), Some((1, 1)));
        assert_eq!(of(&[0, 0, 4, 4]), Some((2, 1)));
        assert_eq!(of(&[0, 0, 2, 2, 0, 0, 2, 2]), Some((2, 2)));
        // Sockets in turn.
        assert_eq!(of(&[0, 1, 0, 1, 0, 1]), Some((2, 3)));
        assert_eq!(of(&[7, 7, 3, 3, 5, 5]), Some((3, 1)));
        for irregular in [&[0, 0, 0, 1][..], &[0, 1, 1, 0], &[0, 0, 1, 1, 1], &[0, 1, 0], &[]] {
            assert_eq!(of(irregular), None, "{irregular:?}");
        }
    }

    #[test]
    fn a_range_of_cpus_is_in_some_caches() {
        let two = Caches::side_by_side(2);
        assert_eq!(two.parts(0..4, 8), [1.0, 0.0]);
        assert_eq!(two.parts(3..6, 8).iter().map(|it| (it * 3.0).round()).collect::<Vec<_>>(), [1.0, 2.0]);
        let smt = Caches { count: 2, turns: 2 };
        assert_eq!(smt.parts(0..8, 16), [0.5, 0.5]);
        assert_eq!(smt.parts(4..8, 16), [0.0, 1.0]);
        assert_eq!(smt.parts(8..12, 16), [1.0, 0.0]);
        assert_eq!(two.parts(3..3, 8), [0.0, 0.0]);
        assert_eq!(Caches { count: 0, turns: 0 }.parts(0..2, 0), [1.0]);
    }
}
