//! A bounded table of pairs of classes.

use rustc_hash::FxHashMap;

use crate::Class;

/// The acting thread (`None` if it was no thread), and the affected one.
pub type Pair = (Option<Class>, Class);

/// The sums of a pair.
pub trait Merge: Default {
    /// Adds all of `other`.
    fn merge(&mut self, other: &Self);
}

impl Merge for u64 {
    fn merge(&mut self, other: &Self) {
        *self += other;
    }
}

/// The number of a class in [`Pairs`]; 0 stands for none.
type Number = u32;

/// Values by pairs of classes. When it is full, all pairs lose their process ids for good, and those that became one are
/// added up.
#[derive(Debug)]
pub struct Pairs<V> {
    /// By the numbers of the classes, as the pairs themselves are large: a few classes make many pairs.
    values: FxHashMap<(Number, Number), V>,
    numbers: FxHashMap<Class, Number>,
    classes: Vec<Class>,
    max: usize,
    has_pids: bool,
}

impl<V: Merge> Pairs<V> {
    /// For at most `max` pairs.
    pub fn new(max: usize) -> Self {
        let (values, numbers) = (FxHashMap::default(), FxHashMap::default());
        Self { values, numbers, classes: Vec::new(), max, has_pids: true }
    }

    /// The value of a pair, a new one if there is none; `None` if there is no room.
    pub fn value(&mut self, pair: Pair) -> Option<&mut V> {
        let mut pair = self.key(pair);
        let mut known = self.find(pair).filter(|key| self.values.contains_key(key));
        if known.is_none() && self.values.len() >= self.max {
            if self.has_pids {
                self.drop_pids();
                pair = self.key(pair);
                known = self.find(pair).filter(|key| self.values.contains_key(key));
            }
            if known.is_none() && self.values.len() >= self.max {
                return None;
            }
        }
        let key = known.unwrap_or_else(|| self.number(pair));
        Some(self.values.entry(key).or_default())
    }

    /// The value of a pair, if there is one.
    pub fn known(&mut self, pair: Pair) -> Option<&mut V> {
        let key = self.find(self.key(pair))?;
        self.values.get_mut(&key)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (Pair, &V)> {
        self.values.iter().filter_map(|((by, of), value)| Some(((self.class(*by), self.class(*of)?), value)))
    }

    /// Their number.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Bytes of memory, about.
    pub fn bytes(&self) -> usize {
        self.values.capacity() * (size_of::<((Number, Number), V)>() + 1)
            + self.numbers.capacity() * (size_of::<(Class, Number)>() + 1)
            + self.classes.capacity() * size_of::<Class>()
    }

    fn key(&self, pair: Pair) -> Pair {
        if self.has_pids {
            pair
        } else {
            without_pids(pair)
        }
    }

    fn class(&self, number: Number) -> Option<Class> {
        self.classes.get((number as usize).checked_sub(1)?).copied()
    }

    /// The numbers of a pair's classes, if all have one.
    fn find(&self, (by, of): Pair) -> Option<(Number, Number)> {
        if self.numbers.is_empty() {
            return None;
        }
        let by = match by {
            Some(by) => *self.numbers.get(&by)?,
            None => 0,
        };
        Some((by, *self.numbers.get(&of)?))
    }

    /// The same, new ones if they have none.
    fn number(&mut self, (by, of): Pair) -> (Number, Number) {
        let mut number = |class| {
            *self.numbers.entry(class).or_insert_with(|| {
                self.classes.push(class);
                self.classes.len() as Number
            })
        };
        (by.map_or(0, &mut number), number(of))
    }

    fn drop_pids(&mut self) {
        let before = std::mem::replace(self, Self { has_pids: false, ..Self::new(self.max) });
        for (pair, value) in before.iter() {
            let key = self.number(without_pids(pair));
            self.values.entry(key).or_default().merge(value);
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
        let mut all: Vec<_> = pairs.iter().map(|(pair, count)| (pair, *count)).collect();
        all.sort_unstable();
        assert_eq!(all, [((None, class(0, "b")), 10), ((Some(class(0, "a")), class(0, "b")), 6)]);
        assert!(pairs.value((None, class(5, "c"))).is_some());
        assert!(pairs.value((None, class(6, "d"))).is_none());
        assert!(pairs.known((None, class(6, "d"))).is_none());
        assert_eq!(pairs.known((None, class(7, "b"))), Some(&mut 10));
    }
}
