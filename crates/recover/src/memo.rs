//! A bounded cache of decoded code.

use std::mem::size_of;
use std::sync::Arc;

use super::insn::Insn;
use super::isa::Isa;
use super::region::Region;
use super::window::{Backward, FunctionMap};
use scxprof_base::cache::Cache;

/// Bytes of an entry besides its content: keys, allocator overhead, unused slots of the table.
const OVERHEAD: usize = 96;

/// What is cached for one address of one piece of code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum MemoKind {
    Forward,
    Backward,
    Function,
    Region,
}

/// Key: the code, the address in it, and what is cached.
pub(super) type Key = (u64, u64, MemoKind);

#[derive(Debug, Clone)]
pub(super) enum Entry<I: Isa> {
    /// The instructions from an address on, in order, up to the first that does not continue with the next.
    Forward(Arc<[Insn<I>]>),
    Backward(Arc<Backward<I>>),
    Function(Arc<FunctionMap>),
    /// `None` if the paths of the branch do not meet nearby.
    Region(Option<Arc<Region>>),
}

impl<I: Isa> Entry<I> {
    fn bytes(&self) -> usize {
        OVERHEAD
            + match self {
                Self::Forward(insns) => size_of::<Insn<I>>() * insns.len(),
                Self::Backward(window) => size_of::<Insn<I>>() * window.insns.len(),
                Self::Function(map) => map.bytes(),
                Self::Region(region) => region.as_ref().map_or(0, |region| region.bytes()),
            }
    }
}

/// Counts of the cache of decoded code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheCounts {
    /// Look-ups that found their entry.
    pub hits: u64,
    /// Look-ups that had to decode.
    pub misses: u64,
    /// Entries dropped for room.
    pub evictions: u64,
    /// Entries and bytes in the cache.
    pub entries: usize,
    /// See `entries`.
    pub bytes: usize,
}

/// The cache, within a budget of bytes.
#[derive(Debug)]
pub(super) struct Memo<I: Isa> {
    entries: Cache<Key, Entry<I>>,
    counts: CacheCounts,
}

impl<I: Isa> Memo<I> {
    pub(super) fn new(budget: usize) -> Self {
        Self { entries: Cache::new(budget), counts: CacheCounts::default() }
    }

    pub(super) fn get(&mut self, key: &Key) -> Option<Entry<I>> {
        let entry = self.entries.get(key).cloned();
        let count = if entry.is_some() { &mut self.counts.hits } else { &mut self.counts.misses };
        *count += 1;
        entry
    }

    pub(super) fn insert(&mut self, key: Key, entry: Entry<I>) {
        let bytes = entry.bytes();
        self.entries.insert_weighted(key, entry, bytes);
    }

    pub(super) fn counts(&self) -> CacheCounts {
        let entries = self.entries.len();
        CacheCounts { evictions: self.entries.evicted(), entries, bytes: self.entries.weight(), ..self.counts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_and_what_is_used_stays() {
        let mut cache = Memo::<crate::x86::X86>::new(100 * OVERHEAD);
        let entry = || Entry::Forward(Arc::from(Vec::new()));
        for addr in 0..1000 {
            cache.insert((1, addr, MemoKind::Forward), entry());
            assert!(cache.get(&(1, 0, MemoKind::Forward)).is_some());
            assert!(cache.counts().bytes <= 100 * OVERHEAD);
        }
        assert!(cache.get(&(1, 5, MemoKind::Forward)).is_none());
        assert!(cache.get(&(1, 999, MemoKind::Forward)).is_some());
        assert!(cache.get(&(2, 999, MemoKind::Forward)).is_none());
        let counts = cache.counts();
        assert!(counts.evictions >= 890, "{counts:?}");
        assert_eq!((counts.hits, counts.misses), (1001, 2));
    }
}
