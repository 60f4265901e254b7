//! Regions with the threads of the whole host that use them, and the sums of the threads with one label.

use super::avoided::{sum_by_key, Taken, Together};
use super::rules;
use rustc_hash::FxHashMap;

/// The number of labels of a region that are compared with each other: those with the most misses there.
pub(super) const COMPARED: usize = 32;

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
    /// Its use under this number.
    pub seen: rules::Sharer,
    /// Its part of the samples in slices.
    pub slices: std::ops::Range<usize>,
}

/// The use of a region by the threads with one label.
#[derive(Debug, Clone, Copy)]
pub(super) struct LabelUse<L> {
    pub label: L,
    pub together: Together,
    pub misses: f64,
    /// The misses that were counted; without what a thinned sketch dropped.
    pub counted: f64,
    pub threads: f64,
    /// The thread with most misses there, and these.
    pub busiest: (f64, u32),
    /// The two with most fills, by owner.
    most: [(f64, u32); 2],
}

impl<L: Copy + Ord> LabelUse<L> {
    /// One thread's.
    pub fn new(label: L, sharer: &Sharer, together: Together) -> Self {
        let seen = sharer.seen;
        Self {
            label,
            together,
            misses: seen.misses,
            counted: seen.counted,
            threads: 1.0,
            busiest: (seen.misses, seen.thread),
            most: [(together.most(), sharer.owner), (0.0, u32::MAX)],
        }
    }

    /// Adds another use by the same thread.
    fn add_own(&mut self, other: &Self) {
        let together = self.together.as_one(&other.together);
        let most = [(together.most(), self.most[0].1), self.most[1]];
        let threads = self.threads;
        self.add(other);
        *self = Self { together, threads, most, ..*self };
    }

    /// Adds other threads.
    pub fn add(&mut self, other: &Self) {
        let mut most = [self.most[0], self.most[1], other.most[0], other.most[1]];
        most.sort_by(|a, b| b.0.total_cmp(&a.0));
        *self = Self {
            label: self.label,
            together: self.together.with(&other.together),
            misses: self.misses + other.misses,
            counted: self.counted + other.counted,
            threads: self.threads + other.threads,
            busiest: if other.busiest.0 > self.busiest.0 { other.busiest } else { self.busiest },
            most: [most[0], most[1]],
        };
    }

    /// The owner of the thread whose use it is.
    pub fn owner(&self) -> u32 {
        self.most[0].1
    }

    /// Without the use by one of its threads.
    pub fn without(&self, one: &Self) -> Self {
        let most = self.most.iter().find(|it| it.1 != one.owner()).map_or(0.0, |it| it.0);
        self.less(one, most)
    }

    /// Without some of them, if a thread of the others has at most this number of fills.
    pub fn less(&self, some: &Self, most: f64) -> Self {
        Self {
            together: self.together.without(&some.together, most),
            misses: self.misses - some.misses,
            counted: self.counted - some.counted,
            threads: self.threads - some.threads,
            ..*self
        }
    }

    /// What both avoid in addition if they share a cache: misses of this one, and of the other. Whichever thread comes first
    /// fetches the data, so the fill that is avoided is of the one or of the other.
    pub fn between(&self, other: &Self) -> [f64; 2] {
        let fills = self.together.most().min(other.together.most()).max(0.0);
        let threads = self.threads + other.threads;
        let part = if threads > 0.0 { self.threads / threads } else { 0.0 };
        let moved = [self.together.moved_by(&other.together), other.together.moved_by(&self.together)];
        [moved[0].max(0.0) + fills * (1.0 - part), moved[1].max(0.0) + fills * part]
    }
}

impl Shared {
    /// What was seen, with each sharer's use weighted.
    pub fn weighted(&self, weight: impl Fn(&Sharer) -> f64) -> impl Iterator<Item = rules::Sharer> + '_ {
        let weights: Vec<f64> = self.sharers.iter().map(weight).collect();
        self.sharers.iter().zip(weights).map(|(it, weight)| rules::Sharer {
            misses: it.seen.misses * weight,
            moved: it.seen.moved * weight,
            accesses: it.seen.accesses * weight,
            writes: it.seen.writes * weight,
            ..it.seen
        })
    }

    /// The use of each sharer, in their order, of what was seen of each; a thread takes no line from itself.
    pub fn uses(&self, seen: &[rules::Sharer], to: &mut Vec<Together>) {
        let all = Taken::by(seen.iter());
        let mut at = 0;
        to.clear();
        for sharers in self.sharers.chunk_by(|a, b| a.owner == b.owner) {
            let seen = seen.get(at..at + sharers.len()).unwrap_or_default();
            let others = all.without(Taken::by(seen.iter()));
            to.extend(seen.iter().map(|it| Together::new(it, others)));
            at += sharers.len();
        }
    }

    /// The use of each sharer, in their order.
    pub fn all_uses(&self) -> Vec<Together> {
        let seen: Vec<rules::Sharer> = self.sharers.iter().map(|it| it.seen).collect();
        let mut uses = Vec::with_capacity(seen.len());
        self.uses(&seen, &mut uses);
        uses
    }

    /// The uses of each thread with each of its labels, by owner and label.
    pub fn by_thread<L: Copy + Ord>(&self, label: impl Fn(u32) -> L) -> Vec<LabelUse<L>> {
        self.labelled(|it, _| label(it.seen.thread))
    }

    /// The same with one label for all of a thread's numbers: that of the one with most misses.
    pub fn by_owner<L: Copy + Ord>(&self, label: impl Fn(u32) -> L) -> Vec<LabelUse<L>> {
        self.labelled(|it, all| label(main_number(all).unwrap_or(it.seen.thread)))
    }

    fn labelled<L: Copy + Ord>(&self, label: impl Fn(&Sharer, &[Sharer]) -> L) -> Vec<LabelUse<L>> {
        let all = self.all_uses();
        let mut uses: Vec<LabelUse<L>> = Vec::with_capacity(all.len());
        let mut all = all.into_iter();
        for sharers in self.sharers.chunk_by(|a, b| a.owner == b.owner) {
            let from = uses.len();
            uses.extend(sharers.iter().zip(&mut all).map(|(it, use_)| LabelUse::new(label(it, sharers), it, use_)));
            if sharers.len() > 1 {
                let mut own = uses.split_off(from);
                sum_by_key(&mut own, |it| it.label, LabelUse::add_own);
                uses.append(&mut own);
            }
        }
        uses
    }

    /// What one cache for all of its threads avoids.
    pub fn avoidable(&self) -> f64 {
        let all = by_label(&self.by_owner(|_| ()), usize::MAX);
        self.fits * all.iter().map(|it| it.together.avoided()).sum::<f64>()
    }
}

/// The number of a thread under which it has most misses.
pub(super) fn main_number(sharers: &[Sharer]) -> Option<u32> {
    sharers.iter().max_by(|a, b| a.seen.misses.total_cmp(&b.seen.misses)).map(|it| it.seen.thread)
}

/// What the threads with each label do, sorted by label: of this many labels, those with most misses.
pub(super) fn by_label<L: Copy + Ord>(by_thread: &[LabelUse<L>], most: usize) -> Vec<LabelUse<L>> {
    let mut uses = by_thread.to_vec();
    sum_by_key(&mut uses, |it| it.label, LabelUse::add);
    if uses.len() > most {
        uses.sort_by(|a, b| b.misses.total_cmp(&a.misses).then(a.label.cmp(&b.label)));
        uses.truncate(most);
        uses.sort_by_key(|it| it.label);
    }
    uses
}

/// The labels that are compared with each other.
pub(super) fn compared<L: Copy + Ord>(by_thread: &[LabelUse<L>]) -> Vec<LabelUse<L>> {
    by_label(by_thread, COMPARED)
}

/// What is not between threads with two labels, because it is between the uses of one.
#[derive(Debug)]
pub(super) struct Doubles<L> {
    /// The transfers, and the most fills of one thread with both labels.
    of: FxHashMap<(L, L), (f64, f64)>,
}

impl<L: Copy + Ord + std::hash::Hash> Doubles<L> {
    pub fn new(by_thread: &[LabelUse<L>]) -> Self {
        let mut of: FxHashMap<(L, L), (f64, f64)> = FxHashMap::default();
        for own in by_thread.chunk_by(|a, b| a.owner() == b.owner()) {
            for (at, a) in own.iter().enumerate() {
                for b in own.get(at + 1..).unwrap_or_default() {
                    let double = of.entry((a.label, b.label)).or_default();
                    let (a, b) = (&a.together, &b.together);
                    *double = (double.0 + a.moved_by(b) + b.moved_by(a), double.1.max(a.fills() + b.fills()));
                }
            }
        }
        Self { of }
    }

    /// What threads with two labels, the lower first, avoid in addition if they share a cache.
    pub fn between(&self, a: &LabelUse<L>, b: &LabelUse<L>) -> f64 {
        let all = a.together.between(&b.together);
        let Some((moved, fills)) = self.of.get(&(a.label, b.label)) else { return all };
        let most = a.together.most().max(b.together.most());
        (all - moved - (fills - most).max(0.0)).max(0.0)
    }
}
