//! A bounded map that forgets what was not asked for lately.

use std::collections::HashMap;
use std::hash::Hash;

use rustc_hash::FxBuildHasher;

/// A map of at most `limit` entries in two generations.
///
/// New and wanted entries live in the young half. When it is full, the old half is dropped and the young one becomes
/// old: what was used since the last turn survives the next, and every operation takes constant time on average.
#[derive(Debug)]
pub struct Cache<K, V> {
    young: HashMap<K, V, FxBuildHasher>,
    old: HashMap<K, V, FxBuildHasher>,
    half: usize,
    evicted: u64,
}

impl<K: Eq + Hash + Clone, V> Cache<K, V> {
    /// A map of at most `limit` entries, which is at least 2.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { young: HashMap::default(), old: HashMap::default(), half: (limit / 2).max(1), evicted: 0 }
    }

    /// The value of `key`, which counts as a use.
    pub fn get(&mut self, key: &K) -> Option<&V> {
        if !self.young.contains_key(key) {
            let (key, value) = self.old.remove_entry(key)?;
            self.insert(key, value);
        }
        self.young.get(key)
    }

    /// Puts `value` in place of what `key` had.
    pub fn insert(&mut self, key: K, value: V) {
        self.old.remove(&key);
        if self.young.len() >= self.half && !self.young.contains_key(&key) {
            self.evicted += self.old.len() as u64;
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    /// Takes the value of `key` out; no eviction.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.young.remove(key).or_else(|| self.old.remove(key))
    }

    /// Entries held now.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Entries dropped for want of room so far.
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
