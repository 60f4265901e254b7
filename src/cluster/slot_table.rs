//! The sketch's memory: a hash table that grows to a limit and can drop a part of its entries.

/// An entry of a [`SlotTable`].
pub(super) trait Slot: Copy + Default {
    fn hash(&self) -> u64;
    fn is_empty(&self) -> bool;
}

/// Open addressing with linear probing over memory that grows to a limit: few entries lie close together, and are read faster.
#[derive(Debug, Clone)]
pub(super) struct SlotTable<S> {
    pub(super) slots: Vec<S>,
    pub(super) len: usize,
    /// The largest number of slots.
    most: usize,
    /// The largest number of entries.
    pub(super) limit: usize,
}

/// Entries whose slots are prefetched before the first of them is read.
pub(super) const TOGETHER: usize = 64;
/// The number of slots of a new table.
const FIRST_SLOTS: usize = 1024;

impl<S: Slot> SlotTable<S> {
    pub(super) fn new(bytes: usize) -> Self {
        let most = (bytes / size_of::<S>()).max(64);
        Self { slots: vec![S::default(); most.min(FIRST_SLOTS)], len: 0, most, limit: most / 4 * 3 }
    }

    /// Doubles the memory if three quarters of the slots are in use and the limit allows it.
    pub(super) fn grow(&mut self) {
        if self.len > self.slots.len() / 4 * 3 && self.slots.len() < self.most {
            let count = (self.slots.len() * 2).min(self.most);
            let old = std::mem::replace(&mut self.slots, vec![S::default(); count]);
            for slot in old.into_iter().filter(|slot| !slot.is_empty()) {
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
            prefetch(slot, 0);
            // One that is not aligned may end in the next cache line.
            if align_of::<S>() < size_of::<S>() {
                prefetch(slot, size_of::<S>() - 1);
            }
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

/// Prefetches the cache line of a byte of a value.
#[inline]
fn prefetch<T>(value: &T, byte: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        let at = std::ptr::from_ref(value).cast::<i8>().wrapping_add(byte);
        // SAFETY: the instruction is part of every x86-64 (SSE); it reads nothing that a program could see, and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (value, byte);
}
