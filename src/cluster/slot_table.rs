//! The sketch's memory: a hash table that grows to a limit and can drop a part of its entries.

use crate::memory::{self, Pages, Table};

/// An entry of a [`SlotTable`].
pub(super) trait Slot: Copy + Default {
    fn hash(&self) -> u64;
    fn is_empty(&self) -> bool;
}

/// Open addressing with linear probing over memory that grows to a limit: few entries lie close together, and are read faster.
#[derive(Debug, Clone)]
pub(super) struct SlotTable<S> {
    pub(super) slots: Table<S>,
    pub(super) len: usize,
    /// The largest number of slots.
    most: usize,
    /// The largest number of entries.
    pub(super) limit: usize,
    /// How the memory is mapped.
    pub(super) pages: Pages,
}

/// Entries whose slots are prefetched before the first of them is read.
pub(super) const TOGETHER: usize = 64;
/// The number of slots of a new table.
const FIRST_SLOTS: usize = 1024;

impl<S: Slot> SlotTable<S> {
    pub(super) fn new(bytes: usize) -> Self {
        let most = (bytes / size_of::<S>()).max(64);
        let slots = memory::table(most.min(FIRST_SLOTS), Pages::Usual);
        Self { slots, len: 0, most, limit: most / 4 * 3, pages: Pages::Usual }
    }

    /// Doubles the memory if three quarters of the slots are in use and the limit allows it.
    pub(super) fn grow(&mut self) {
        if self.len > self.slots.len() / 4 * 3 && self.slots.len() < self.most {
            let count = (self.slots.len() * 2).min(self.most);
            let old = std::mem::replace(&mut self.slots, memory::table(count, self.pages));
            for &slot in old.iter().filter(|slot| !slot.is_empty()) {
                let at = self.find(slot.hash(), |_| false);
                self.slots[at] = slot;
            }
        }
    }

    /// Prefetches the slot at which `hash` begins.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        let at = ((u128::from(hash) * self.slots.len() as u128) >> 64) as usize;
        if let Some(slot) = self.slots.get(at) {
            memory::prefetch(slot);
        }
    }

    /// The slot of `hash`, or the empty slot for it. The table is never full, so the search ends.
    pub(super) fn find(&self, hash: u64, is: impl Fn(&S) -> bool) -> usize {
        let count = self.slots.len();
        let mut at = ((u128::from(hash) * count as u128) >> 64) as usize;
        loop {
            match self.slots.get(at) {
                Some(slot) if !slot.is_empty() && !is(slot) => at += 1,
                Some(_) => return at,
                None => at = 0,
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &S> {
        self.slots.iter().filter(|slot| !slot.is_empty())
    }

    /// Keeps the entries that `keep` accepts; returns how many were dropped.
    pub(super) fn retain(&mut self, keep: impl Fn(&S) -> bool) -> usize {
        let kept: Vec<S> = self.iter().filter(|slot| keep(slot)).copied().collect();
        let gone = self.len - kept.len();
        self.slots.fill(S::default());
        self.len = kept.len();
        for slot in kept {
            let at = self.find(slot.hash(), |_| false);
            self.slots[at] = slot;
        }
        gone
    }

    /// Keeps only the entries of these keys, each given once; `is` tells whether an entry has a key, which is its hash.
    pub(super) fn keep_only(&mut self, mut keys: impl Iterator<Item = u64>, is: impl Fn(&S, u64) -> bool) {
        let (mut kept, mut some) = (Vec::new(), Vec::with_capacity(TOGETHER));
        loop {
            // They are scattered over the memory.
            some.extend(keys.by_ref().take(TOGETHER).inspect(|&key| self.prefetch(key)));
            if some.is_empty() {
                break;
            }
            let found = some.drain(..).filter_map(|key| self.slots.get(self.find(key, |slot| is(slot, key))).copied());
            kept.extend(found.filter(|slot| !slot.is_empty()));
        }
        self.slots.fill(S::default());
        self.len = kept.len();
        for slot in kept {
            let at = self.find(slot.hash(), |_| false);
            self.slots[at] = slot;
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots.len() * size_of::<S>()
    }
}
