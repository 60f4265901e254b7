//! A bounded map that drops entries that were not used lately.

use std::collections::HashMap;
use std::hash::Hash;

use rustc_hash::FxBuildHasher;

/// A map with a total weight of at most `limit`, in two generations: an entry weighs 1, or what it is inserted with (bytes).
///
/// New and used entries are in the young half. When it is full, the old half is dropped and the young one becomes old. So
/// entries used since the last turn survive the next, and every operation takes constant time on average.
#[derive(Debug)]
pub struct Cache<K, V> {
    young: Generation<K, V>,
    old: Generation<K, V>,
    half: usize,
    evicted: u64,
}

#[derive(Debug)]
struct Generation<K, V> {
    /// Values and their weights.
    entries: HashMap<K, (V, usize), FxBuildHasher>,
    weight: usize,
}

impl<K, V> Default for Generation<K, V> {
    fn default() -> Self {
        Self { entries: HashMap::default(), weight: 0 }
    }
}

impl<K: Eq + Hash, V> Generation<K, V> {
    fn remove(&mut self, key: &K) -> Option<(K, V, usize)> {
        let (key, (value, weight)) = self.entries.remove_entry(key)?;
        self.weight -= weight;
        Some((key, value, weight))
    }
}

impl<K: Eq + Hash, V> Cache<K, V> {
    /// A map with this limit, at least 2.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { young: Generation::default(), old: Generation::default(), half: (limit / 2).max(1), evicted: 0 }
    }

    /// The value of `key`, which counts as a use.
    pub fn get(&mut self, key: &K) -> Option<&V> {
        if !self.young.entries.contains_key(key) {
            let (key, value, weight) = self.old.remove(key)?;
            self.insert_weighted(key, value, weight);
        }
        self.young.entries.get(key).map(|(value, _)| value)
    }

    /// Sets the value of `key`.
    pub fn insert(&mut self, key: K, value: V) {
        self.insert_weighted(key, value, 1);
    }

    /// The same for a value of this weight. A value of more than half the limit is dropped at once.
    pub fn insert_weighted(&mut self, key: K, value: V, weight: usize) {
        self.remove(&key);
        if weight > self.half {
            self.evicted += 1;
            return;
        }
        if self.young.weight + weight > self.half {
            self.evicted += self.old.entries.len() as u64;
            self.old = std::mem::take(&mut self.young);
        }
        self.young.weight += weight;
        self.young.entries.insert(key, (value, weight));
    }

    /// Removes the value of `key`; evicts nothing.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let (_, value, _) = self.young.remove(key).or_else(|| self.old.remove(key))?;
        Some(value)
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.young.entries.len() + self.old.entries.len()
    }

    /// True without entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the entries, without what they own.
    #[must_use]
    pub fn bytes(&self) -> usize {
        (self.young.entries.capacity() + self.old.entries.capacity()) * (size_of::<(K, (V, usize))>() + 1) / 7 * 8
    }

    /// The weight of the entries.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.young.weight + self.old.weight
    }

    /// Entries dropped at the limit so far.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.evicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_within_its_limit_and_counts_what_it_drops() {
        let mut cache = Cache::new(10);
        for key in 0..1000u32 {
            cache.insert(key, key);
            assert!(cache.len() <= 10);
        }
        assert_eq!(cache.evicted() + cache.len() as u64, 1000);
        assert_eq!(cache.get(&999), Some(&999));
        assert_eq!(cache.get(&0), None);
    }

    #[test]
    fn what_weighs_more_takes_more_room() {
        let mut cache = Cache::new(100);
        for key in 0..1000u32 {
            cache.insert_weighted(key, (), 1 + key as usize % 40);
            assert!(cache.weight() <= 100, "{}", cache.weight());
        }
        cache.insert_weighted(7, (), 20);
        cache.insert_weighted(7, (), 51);
        assert_eq!(cache.get(&7), None, "it has no room, and what was there before is outdated");
        assert_eq!(cache.evicted() + cache.len() as u64, 1002 - 1);
    }

    #[test]
    fn keeps_what_is_used() {
        let mut cache = Cache::new(10);
        cache.insert(7u32, "wanted");
        for key in 100..1000 {
            cache.insert(key, "passing");
            assert_eq!(cache.get(&7), Some(&"wanted"), "lost at {key}");
        }
        cache.remove(&7);
        assert_eq!(cache.get(&7), None);
    }
}
