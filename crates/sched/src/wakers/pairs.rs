//! A bounded table of pairs of classes.

use rustc_hash::FxHashMap;

use crate::Class;

/// Who did it, `None` if it was no thread, and to whom.
pub type Pair = (Option<Class>, Class);

/// What is added up for a pair.
pub trait Merge: Default {
    /// Adds all of `other`.
    fn merge(&mut self, other: &Self);
}

impl Merge for u64 {
    fn merge(&mut self, other: &Self) {
        *self += other;
    }
}

/// Values by pairs of classes. When it is full, all pairs lose their process ids for good, and those that became one are
/// added up.
#[derive(Debug)]
pub struct Pairs<V> {
    values: FxHashMap<Pair, V>,
    max: usize,
    has_pids: bool,
}

impl<V: Merge> Pairs<V> {
    /// For at most `max` pairs.
    pub fn new(max: usize) -> Self {
        Self { values: FxHashMap::default(), max, has_pids: true }
    }

    /// The value of a pair, a new one if there is none; `None` if there is no room.
    pub fn value(&mut self, pair: Pair) -> Option<&mut V> {
        let mut pair = self.key(pair);
        if self.values.len() >= self.max && !self.values.contains_key(&pair) {
            if self.has_pids {
                self.drop_pids();
                pair = self.key(pair);
            }
            if self.values.len() >= self.max && !self.values.contains_key(&pair) {
                return None;
            }
        }
        Some(self.values.entry(pair).or_default())
    }

    /// The value of a pair, if there is one.
    pub fn known(&mut self, pair: Pair) -> Option<&mut V> {
        let pair = self.key(pair);
        self.values.get_mut(&pair)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&Pair, &V)> {
        self.values.iter()
    }

    /// Their number.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Bytes of memory, about.
    pub fn bytes(&self) -> usize {
        self.values.capacity() * (size_of::<(Pair, V)>() + 1)
    }

    fn key(&self, pair: Pair) -> Pair {
        if self.has_pids {
            pair
        } else {
            without_pids(pair)
        }
    }

    fn drop_pids(&mut self) {
        self.has_pids = false;
        for (pair, value) in std::mem::take(&mut self.values) {
            self.values.entry(without_pids(pair)).or_default().merge(&value);
        }
    }
}

fn without_pids((by, of): Pair) -> Pair {
    (by.map(|class| Class { pid: 0, ..class }), Class { pid: 0, ..of })
}

#[cfg(test)]
mod tests {
    use super::*;
    use scxprof_base::sample::Comm;

    #[test]
    fn a_full_table_does_without_processes_and_then_refuses() {
        let class = |pid, name: &str| Class { pid, cgroup: 1, comm: Comm::from(name), ..Class::default() };
        let mut pairs: Pairs<u64> = Pairs::new(3);
        for pid in 1..=3 {
            *pairs.value((Some(class(pid, "a")), class(pid, "b"))).unwrap() += u64::from(pid);
        }
        assert_eq!(pairs.len(), 3);
        *pairs.value((None, class(4, "b"))).unwrap() += 10;
        let mut all: Vec<_> = pairs.iter().map(|(pair, count)| (*pair, *count)).collect();
        all.sort_unstable();
        assert_eq!(all, [((None, class(0, "b")), 10), ((Some(class(0, "a")), class(0, "b")), 6)]);
        assert!(pairs.value((None, class(5, "c"))).is_some());
        assert!(pairs.value((None, class(6, "d"))).is_none());
        assert!(pairs.known((None, class(6, "d"))).is_none());
        assert_eq!(pairs.known((None, class(7, "b"))), Some(&mut 10));
    }
}
