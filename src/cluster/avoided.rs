//! How many possible misses threads avoid if they share a cache.
//!
//! Of the fills of a region all are avoided but those of one thread, which must fetch the data anyway. A transfer is avoided if
//! the thread that took the line away shares the cache: any thread's write takes it from a reader, and any access takes it from a
//! writer.

use rustc_hash::FxHashMap;

use super::rules::{Region, Sharer};

/// How often threads use a region.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Taken {
    accesses: f64,
    writes: f64,
}

impl Taken {
    pub(crate) fn by<'a>(sharers: impl Iterator<Item = &'a Sharer>) -> Self {
        sharers.fold(Self::default(), |sum, it| Self {
            accesses: sum.accesses + it.accesses,
            writes: sum.writes + it.writes,
        })
    }

    /// The rest of a sum without a part of it.
    pub(crate) fn without(self, part: Self) -> Self {
        // Sums in another order differ a little.
        let rest = |all: f64, part: f64| if all - part > 1e-9 * all { all - part } else { 0.0 };
        Self { accesses: rest(self.accesses, part.accesses), writes: rest(self.writes, part.writes) }
    }

    /// How often these others take a line away from a thread: by writing what it reads, and by any access to what it writes.
    fn taken_from(self, it: &Sharer) -> f64 {
        let part = it.part_written();
        (1.0 - part) * self.writes + part * self.accesses
    }
}

/// The use of a region by threads that share a cache: sums, so that those of two sets can be added.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Together {
    fills: f64,
    /// The fills of the thread with the most.
    most: f64,
    accesses: f64,
    writes: f64,
    /// Transfers for each access, and for each write, of another thread.
    per_access: f64,
    per_write: f64,
    /// The transfers of a thread that its own accesses would account for in the products of these sums.
    own: f64,
}

impl Sharer {
    fn part_written(&self) -> f64 {
        if self.accesses > 0.0 {
            (self.writes / self.accesses).min(1.0)
        } else {
            0.0
        }
    }
}

impl Together {
    /// One thread's use of a region that others use so often.
    pub(crate) fn new(it: &Sharer, others: Taken) -> Self {
        let part = it.part_written();
        let taken = others.taken_from(it);
        let (per_access, per_write) = if taken > 0.0 {
            (it.moved * part / taken, it.moved * (1.0 - part) / taken)
        } else if others.accesses > 0.0 {
            // No sample wrote it: any other thread that uses it may have.
            (it.moved / others.accesses, 0.0)
        } else {
            (0.0, 0.0)
        };
        let fills = (it.misses - it.moved).max(0.0);
        let own = per_access * it.accesses + per_write * it.writes;
        Self { fills, most: fills, accesses: it.accesses, writes: it.writes, per_access, per_write, own }
    }

    /// Both sets of threads.
    pub(crate) fn with(&self, other: &Self) -> Self {
        Self {
            fills: self.fills + other.fills,
            most: self.most.max(other.most),
            accesses: self.accesses + other.accesses,
            writes: self.writes + other.writes,
            per_access: self.per_access + other.per_access,
            per_write: self.per_write + other.per_write,
            own: self.own + other.own,
        }
    }

    /// One thread that was counted as two; it shares nothing with itself.
    pub(crate) fn as_one(&self, other: &Self) -> Self {
        let both = self.with(other);
        let own = both.per_access * both.accesses + both.per_write * both.writes;
        Self { most: both.fills, own, ..both }
    }

    /// These threads without some of them; `most` is then the value of [`Self::most`].
    pub(crate) fn without(&self, some: &Self, most: f64) -> Self {
        Self {
            fills: self.fills - some.fills,
            most,
            accesses: self.accesses - some.accesses,
            writes: self.writes - some.writes,
            per_access: self.per_access - some.per_access,
            per_write: self.per_write - some.per_write,
            own: self.own - some.own,
        }
    }

    /// All of their fills.
    pub(crate) fn fills(&self) -> f64 {
        self.fills
    }

    /// The fills of the thread with the most.
    pub(crate) fn most(&self) -> f64 {
        self.most
    }

    /// The transfers that [`Self::moved_by`] counts of threads with themselves.
    pub(crate) fn own(&self) -> f64 {
        self.own
    }

    /// Their transfers of lines that they took from each other.
    pub(crate) fn moved(&self) -> f64 {
        (self.moved_by(self) - self.own).max(0.0)
    }

    /// Their transfers of lines that these others took away.
    pub(crate) fn moved_by(&self, other: &Self) -> f64 {
        self.per_access * other.accesses + self.per_write * other.writes
    }

    /// The misses that they avoid.
    pub(crate) fn avoided(&self) -> f64 {
        self.fills - self.most + self.moved()
    }

    /// What two sets avoid in addition if they share a cache.
    pub(crate) fn between(&self, other: &Self) -> f64 {
        self.most.min(other.most) + self.moved_by(other) + other.moved_by(self)
    }
}

/// The uses of sets of threads, sorted by label; threads without a label are left out.
pub(crate) fn sums(
    uses: impl Iterator<Item = (u32, Together)>,
    label: impl Fn(u32) -> Option<u32>,
) -> Vec<(u32, Together)> {
    let mut sets: Vec<(u32, Together)> = uses.filter_map(|(thread, it)| Some((label(thread)?, it))).collect();
    sum_by_key(&mut sets, |it| it.0, |sum, it| sum.1 = sum.1.with(&it.1));
    sets
}

/// Sorts by a key, and adds all with the same key to the first of them.
pub(super) fn sum_by_key<T, K: Ord>(items: &mut Vec<T>, key: impl Fn(&T) -> K, add: impl Fn(&mut T, &T)) {
    items.sort_by_key(&key);
    items.dedup_by(|next, sum| {
        let is_same = key(next) == key(sum);
        if is_same {
            add(sum, next);
        }
        is_same
    });
}

impl Region {
    /// Counts a part of the fills as transfers that sparse samples don't show: if each line of a buffer is sampled once,
    /// no sample shows that another thread had the line before. It was taken away as often as the accesses of the others to the whole
    /// region suggest. `owner` gives the first number of a thread that has several.
    pub(crate) fn add_unseen_transfers(&mut self, owner: impl Fn(u32) -> u32) {
        let all = Taken::by(self.sharers.iter());
        let mut of_owner: FxHashMap<u32, Taken> = FxHashMap::default();
        for it in &self.sharers {
            let own = of_owner.entry(owner(it.thread)).or_default();
            *own = Taken { accesses: own.accesses + it.accesses, writes: own.writes + it.writes };
        }
        for it in &mut self.sharers {
            let others = all.without(of_owner.get(&owner(it.thread)).copied().unwrap_or_default());
            let taken = others.taken_from(it);
            if taken > 0.0 {
                it.moved += (it.misses - it.moved).max(0.0) * taken / (it.accesses + taken);
            }
        }
    }

    /// The use of each sharer, in their order.
    pub(crate) fn uses(&self) -> impl Iterator<Item = (u32, Together)> + '_ {
        let all = Taken::by(self.sharers.iter());
        self.sharers.iter().map(move |it| (it.thread, Together::new(it, all.without(Taken::by(std::iter::once(it))))))
    }

    /// The uses of sets of threads, sorted by label; threads without a label are left out.
    pub(crate) fn by_label(&self, label: impl Fn(u32) -> Option<u32>) -> Vec<(u32, Together)> {
        sums(self.uses(), label)
    }

    /// For each sharer, how many of its own possible misses it avoids together with all others.
    pub(crate) fn with_all(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        let fills = |it: &Sharer| (it.misses - it.moved).max(0.0);
        let (mut most, mut second) = (0.0f64, 0.0f64);
        for fills in self.sharers.iter().map(fills) {
            second = second.max(fills.min(most));
            most = most.max(fills);
        }
        self.sharers.iter().map(move |it| {
            let own = fills(it);
            let others = if own < most { most } else { second };
            (it.thread, self.fits * (it.moved + own.min(others)))
        })
    }

    /// The misses that threads avoid here if they share a cache.
    pub(crate) fn avoided(&self, is_in: impl Fn(u32) -> bool) -> f64 {
        self.by_label(|thread| is_in(thread).then_some(0)).iter().map(|it| it.1.avoided()).sum::<f64>() * self.fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(sharers: &[(f64, f64, f64, f64)]) -> Region {
        let sharer = |(&(misses, moved, accesses, writes), thread): (&(f64, f64, f64, f64), u32)| Sharer {
            thread,
            misses,
            moved,
            accesses,
            writes,
            ..Sharer::default()
        };
        Region { sharers: sharers.iter().zip(0..).map(sharer).collect(), fits: 1.0, ..Region::default() }
    }

    fn avoided(region: &Region, threads: &[u32]) -> f64 {
        region.avoided(|thread| threads.contains(&thread))
    }

    #[test]
    fn of_fills_one_is_left_and_of_transfers_those_from_elsewhere() {
        // Eight threads contend for one line: of those in two halves, each keeps 3 of 7.
        let line = region(&[(100.0, 100.0, 100.0, 100.0); 8]);
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        near(avoided(&line, &[0, 1, 2, 3, 4, 5, 6, 7]), 800.0);
        near(avoided(&line, &[0, 2, 4, 6]), 400.0 * 3.0 / 7.0);
        near(avoided(&line, &[5]), 0.0);
        // Eight threads read a table: half of them fetch it once.
        let table = region(&[(100.0, 0.0, 100.0, 0.0); 8]);
        near(avoided(&table, &[0, 2, 4, 6]), 300.0);
        // One writer: readers alone avoid nothing of their transfers, and with it all.
        let sequence = region(&[(60.0, 60.0, 60.0, 60.0), (90.0, 90.0, 90.0, 0.0), (90.0, 90.0, 90.0, 0.0)]);
        near(avoided(&sequence, &[1, 2]), 0.0);
        near(avoided(&sequence, &[0, 1]), 30.0 + 90.0);
        near(avoided(&sequence, &[0, 1, 2]), 240.0);
        // A flag that no sample sets.
        near(avoided(&region(&[(30.0, 30.0, 30.0, 0.0), (10.0, 10.0, 10.0, 0.0)]), &[0, 1]), 40.0);
    }

    proptest::proptest! {
        /// A larger set avoids what its parts avoid, and what is between them.
        #[test]
        fn sets_add_up(
            uses in proptest::collection::vec((0.0..100.0f64, 0.0..1.0f64, 1.0..100.0f64, 0.0..1.0f64), 3..8),
            cut in 1usize..3,
        ) {
            let uses: Vec<_> = uses.iter().map(|it| (it.0, it.0 * it.1, it.2, it.2 * it.3)).collect();
            let region = region(&uses);
            let sets = region.by_label(|thread| Some(u32::from(thread as usize >= cut)));
            let (a, b) = (&sets[0].1, &sets[1].1);
            let sum = a.avoided() + b.avoided() + a.between(b);
            proptest::prop_assert!((sum - a.with(b).avoided()).abs() < 1e-6 * sum.max(1.0));
            proptest::prop_assert!(region.avoided(|_| true) <= region.sharers.iter().map(|it| it.misses).sum::<f64>() + 1e-6);
        }
    }
}
