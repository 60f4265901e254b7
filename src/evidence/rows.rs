//! The table: keys, and numbers that are added.

use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;
#[cfg(feature = "parquet")]
use std::ops::Bound;
use std::sync::Arc;

use thiserror::Error;

use super::key::{Class, Key, RowKind, Scope};

/// The version of the table. It grows if a column changes its meaning or goes.
pub const VERSION: i64 = 1;
/// Bytes that rows take, unless told otherwise: some 800,000 rows of 3,000 classes.
pub const MEMORY: usize = 256 << 20;
/// The memory of a place in the tree beside its row: nodes are about two thirds full.
const SLOT: usize = 48;
/// The least that a text takes, with what the allocator keeps of it.
const LEAST_TEXT: usize = 32;
/// The unit of samples and misses: thousandths.
const THOUSAND: f64 = 1000.0;

macro_rules! sums {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        /// A number of a row. All are 0 or more, and are added.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Sum {
            $($(#[$doc])* $variant,)+
        }

        impl Sum {
            /// All of them, in the order of [`Sums`].
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name of its column.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

sums! {
    /// Runs in which the row occurs.
    Runs = "runs",
    /// Threads with samples.
    Threads = "threads",
    /// Cgroups that are cells.
    Cgroups = "cgroups",
    /// Samples in thousandths.
    Samples = "samples",
    /// Sampled time in ms.
    Duration = "duration_ms",
    /// Samples that were lost.
    Lost = "lost",
    /// Possible misses weighted by cost, in thousandths.
    Misses = "misses",
    /// Their number as it was counted, in thousandths.
    Counted = "counted",
    /// Cache lines that were touched, each thread's own count.
    Lines = "lines",
    /// Possible misses of pairs of threads, in thousandths.
    Possible = "possible",
    /// Those on memory of both, without hubs.
    Shared = "shared",
    /// `shared` times `shared` / `possible`, for how runs differ.
    Spread = "spread",
    /// Those on memory of both with hubs, without hot lines.
    Common = "common",
    /// Those that are transfers of lines that both write.
    Contended = "contended",
    /// Avoidable misses between the two, weighted by cost, in thousandths.
    Avoidable = "avoidable",
    /// Runs in which the two certainly share.
    Sharing = "runs_sharing",
    /// Runs in which they certainly do not.
    Apart = "runs_apart",
}

/// The numbers of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums(pub [i64; 17]);

impl Sums {
    /// One of them.
    #[must_use]
    pub fn get(&self, sum: Sum) -> i64 {
        self.0.get(sum as usize).copied().unwrap_or_default()
    }

    /// One that is in thousandths, as what it counts.
    #[must_use]
    pub fn value(&self, sum: Sum) -> f64 {
        self.get(sum) as f64 / THOUSAND
    }

    /// With this count.
    #[must_use]
    pub fn with(mut self, sum: Sum, count: u64) -> Self {
        if let Some(slot) = self.0.get_mut(sum as usize) {
            *slot = i64::try_from(count).unwrap_or(i64::MAX);
        }
        self
    }

    /// With this value in thousandths.
    #[must_use]
    pub fn with_value(self, sum: Sum, value: f64) -> Self {
        self.with(sum, (value * THOUSAND).round().max(0.0) as u64)
    }

    /// All multiplied by a part of 1, rounded.
    #[must_use]
    pub fn faded(&self, part: f64) -> Self {
        Self(self.0.map(|it| (it as f64 * part).round() as i64))
    }

    /// An error if one of them is negative.
    fn check(&self) -> Result<(), EvidenceError> {
        if self.0.iter().fold(0, |all, sum| all | sum) >= 0 {
            return Ok(());
        }
        let negative = Sum::ALL.iter().zip(&self.0).find(|it| *it.1 < 0);
        negative.map_or(Ok(()), |(sum, _)| Err(EvidenceError::Negative { column: sum.name() }))
    }

    fn add(&mut self, other: &Self) -> Result<(), EvidenceError> {
        for (sum, more) in self.0.iter_mut().zip(&other.0) {
            *sum = sum.checked_add(*more).ok_or(EvidenceError::TooLarge)?;
        }
        Ok(())
    }
}

/// Why evidence cannot be added.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EvidenceError {
    /// A number is negative.
    #[error("a number in column {column} is negative: this is no evidence of scxprof")]
    Negative {
        /// The column.
        column: &'static str,
    },
    /// A sum is more than 2^63.
    #[error("a sum is larger than 2^63: no host has so many misses")]
    TooLarge,
    /// There are too many different rows, or their names are too long.
    #[error("its different rows take more than {mebibytes} MiB: fold more of the cgroups' paths (--fold)")]
    TooManyRows {
        /// What they may take.
        mebibytes: usize,
    },
}

/// Rows by their keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    // Boxed, as a third of the places in a tree's nodes are empty.
    rows: BTreeMap<Box<Key>, Box<Sums>>,
    /// What their keys share: most rows have the scope and the classes of others.
    scopes: HashSet<Arc<Scope>>,
    classes: HashSet<Arc<Class>>,
    /// Bytes that the rows take.
    taken: usize,
    /// Bytes that they may take.
    memory: usize,
}

impl Default for Evidence {
    fn default() -> Self {
        Self::within(MEMORY)
    }
}

/// Bytes of something in a tree, and of its texts.
fn bytes_of<T>(texts: &[&str]) -> usize {
    let texts = texts.iter().filter(|text| !text.is_empty());
    size_of::<T>() + SLOT + texts.map(|text| text.len().saturating_add(LEAST_TEXT / 2).max(LEAST_TEXT)).sum::<usize>()
}

/// The one that is equal in `known`, which gets it if there is none; and the bytes that this takes.
fn shared<T: Hash + Eq>(known: &HashSet<Arc<T>>, found: &Arc<T>, bytes: impl FnOnce(&T) -> usize) -> (Arc<T>, usize) {
    known.get(found).map_or_else(|| (Arc::clone(found), bytes(found)), |known| (Arc::clone(known), 0))
}

impl Evidence {
    /// No rows yet, and no more than take this number of bytes.
    #[must_use]
    pub fn within(memory: usize) -> Self {
        Self { rows: BTreeMap::new(), scopes: HashSet::new(), classes: HashSet::new(), taken: 0, memory }
    }

    /// Bytes of memory that the rows take, about.
    pub(crate) fn bytes(&self) -> usize {
        self.taken
    }

    /// The scope that is equal, as the rows have it.
    #[cfg(feature = "parquet")]
    pub(super) fn scope(&self, scope: &Scope) -> Option<&Arc<Scope>> {
        self.scopes.get(scope)
    }

    /// The class that is equal, as the rows have it.
    #[cfg(feature = "parquet")]
    pub(super) fn class(&self, class: &Class) -> Option<&Arc<Class>> {
        self.classes.get(class)
    }

    /// Adds a row.
    ///
    /// # Errors
    /// [`EvidenceError`].
    pub fn add(&mut self, key: Key, sums: &Sums) -> Result<(), EvidenceError> {
        sums.check()?;
        if let Some(row) = self.rows.get_mut(&key) {
            return row.add(sums);
        }
        self.insert(key, sums)
    }

    /// Adds rows, and leaves none of them; it is quickest for rows in the order of their keys that follow each other here too.
    ///
    /// # Errors
    /// [`EvidenceError`]. Those before have been added then.
    #[cfg(feature = "parquet")]
    pub(super) fn add_all(&mut self, rows: &mut Vec<(Key, Sums)>) -> Result<(), EvidenceError> {
        let mut rows = rows.drain(..).peekable();
        while let Some((key, sums)) = rows.next() {
            sums.check()?;
            let mut known = self.rows.range_mut::<Key, _>((Bound::Included(&key), Bound::Unbounded));
            match known.next() {
                Some((its, row)) if key.is(its) => row.add(&sums)?,
                _ => {
                    self.insert(key, &sums)?;
                    continue;
                }
            }
            // Most files have the same rows, so the next one needs no search.
            for (its, row) in known {
                let Some((_, sums)) = rows.next_if(|(key, _)| key.is(its)) else { break };
                sums.check()?;
                row.add(&sums)?;
            }
        }
        Ok(())
    }

    /// Adds a row that is new.
    fn insert(&mut self, key: Key, sums: &Sums) -> Result<(), EvidenceError> {
        let of_class = |it: &Class| bytes_of::<Class>(&it.texts());
        let of_scope = |it: &Scope| bytes_of::<Scope>(&it.texts());
        let (scope, scope_takes) = shared(&self.scopes, &key.scope, of_scope);
        let (a, a_takes) = shared(&self.classes, &key.a, of_class);
        let (b, b_takes) = shared(&self.classes, &key.b, of_class);
        let takes = bytes_of::<(Key, Sums)>(&[&key.host]) + scope_takes + a_takes + b_takes;
        let taken = self.taken.saturating_add(takes);
        if taken > self.memory {
            return Err(EvidenceError::TooManyRows { mebibytes: self.memory >> 20 });
        }
        self.taken = taken;
        self.scopes.insert(Arc::clone(&scope));
        self.classes.extend([Arc::clone(&a), Arc::clone(&b)]);
        self.rows.insert(Box::new(Key { scope, a, b, ..key }), Box::new(*sums));
        Ok(())
    }

    /// Adds all rows of another one.
    ///
    /// # Errors
    /// [`EvidenceError`].
    pub fn merge(&mut self, other: &Self) -> Result<(), EvidenceError> {
        other.rows().try_for_each(|(key, sums)| self.add(key.clone(), sums))
    }

    /// All numbers multiplied by a part of 1; rows in which nothing is left are dropped.
    #[must_use]
    pub fn faded(&self, part: f64) -> Self {
        let mut left = Self::within(self.memory);
        for (key, sums) in self.rows() {
            // What says which rows there are does not fade.
            let sums = if key.kind == RowKind::Spec { *sums } else { sums.faded(part) };
            if sums.0.iter().any(|it| *it != 0) {
                // It was there, so it fits.
                let _ = left.add(key.clone(), &sums);
            }
        }
        left
    }

    /// The same with other keys; `None` leaves a row out.
    ///
    /// # Errors
    /// [`EvidenceError`].
    pub fn map(&self, key: impl Fn(&Key) -> Option<Key>) -> Result<Self, EvidenceError> {
        let mut mapped = Self::within(self.memory);
        for (old, sums) in self.rows() {
            if let Some(new) = key(old) {
                mapped.add(new, sums)?;
            }
        }
        Ok(mapped)
    }

    /// All rows, by key.
    pub fn rows(&self) -> impl Iterator<Item = (&Key, &Sums)> {
        self.rows.iter().map(|(key, sums)| (&**key, &**sums))
    }

    /// The rows of a kind.
    pub fn of_kind(&self, kind: RowKind) -> impl Iterator<Item = (&Key, &Sums)> {
        self.rows().filter(move |(key, _)| key.kind == kind)
    }

    /// Rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// True if there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The sum over all rows of a kind.
    #[must_use]
    pub fn total(&self, kind: RowKind, sum: Sum) -> f64 {
        self.of_kind(kind).map(|(_, sums)| sums.get(sum) as f64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(comm: &str) -> Class {
        Class { cell: "rest".into(), comm: comm.into(), ..Class::default() }
    }

    #[test]
    fn rows_are_added_in_any_order() {
        let scope = Scope::default();
        let rows = [("a", "b", 3), ("b", "a", 4), ("b", "b", 5)].map(|(a, b, value)| {
            (Key::pair(&scope, &class(a), &class(b)), Sums::default().with(Sum::Possible, value).with(Sum::Runs, 1))
        });
        let sum = |order: &[usize]| {
            let mut all = Evidence::default();
            for &at in order {
                all.add(rows[at].0.clone(), &rows[at].1).unwrap();
            }
            all
        };
        let all = sum(&[0, 1, 2]);
        assert_eq!((&all, all.len()), (&sum(&[2, 1, 0]), 2));
        let mut twice = sum(&[0]);
        twice.merge(&sum(&[1, 2])).unwrap();
        assert_eq!(all, twice);
        assert_eq!(all.rows().map(|(_, sums)| sums.get(Sum::Possible)).collect::<Vec<_>>(), [7, 5]);
        assert_eq!(all.rows().next().unwrap().0.second(), class("b"));
        let key = Key::across(
            &scope,
            &Class { cgroup: "/a1".into(), ..class("z") },
            &Class { cgroup: "/a2".into(), ..class("b") },
        );
        let folded = |class: &Class| Class { cgroup: "/a*".into(), ..class.clone() };
        let key = Key { a: folded(&key.a).into(), b: folded(&key.b).into(), ..key };
        assert_eq!(key.ordered(), Key::across(&scope, &folded(&class("b")), &folded(&class("z"))));
    }

    #[test]
    fn rows_take_no_more_than_they_may() {
        let key = |at: usize| Key::of(RowKind::Class, &Scope::default(), &class(&format!("name {at}")));
        let mut few = Evidence::within(1 << 20);
        let refused = (0..10_000).find_map(|at| few.add(key(at), &Sums::default()).err());
        assert_eq!(refused, Some(EvidenceError::TooManyRows { mebibytes: 1 }));
        // What is there already takes nothing more, and the bytes of a row are about what it takes.
        few.add(key(0), &Sums::default()).unwrap();
        assert!((1500..4000).contains(&few.len()), "{}", few.len());
        let halves = few.faded(0.5);
        assert!(halves.is_empty() && halves.taken == 0 && halves.memory == few.memory);
    }

    #[test]
    fn keys_are_as_long_as_their_columns() {
        let key = Key::across(&Scope::default(), &class("a"), &Class { cell: "x".into(), ..class("b") });
        let texts = key.texts().map(str::to_owned);
        assert_eq!(Key::from_texts(texts, 0), Some(key));
        assert_eq!(Sum::ALL.len(), Sums::default().0.len());
    }

    #[test]
    fn what_cannot_be_counted_is_refused() {
        let mut all = Evidence::default();
        let key = Key::new(RowKind::Run, &Scope::default());
        let mut wrong = Sums::default();
        wrong.0[3] = -1;
        assert_eq!(all.add(key.clone(), &wrong), Err(EvidenceError::Negative { column: "samples" }));
        all.add(key.clone(), &Sums::default().with(Sum::Samples, i64::MAX as u64)).unwrap();
        assert_eq!(all.add(key, &Sums::default().with(Sum::Samples, 1)), Err(EvidenceError::TooLarge));
    }

    #[test]
    fn what_fades_is_gone_at_last() {
        let mut all = Evidence::default();
        all.add(Key::new(RowKind::Run, &Scope::default()), &Sums::default().with(Sum::Samples, 9)).unwrap();
        let half = all.faded(0.5);
        assert_eq!(half.rows().map(|it| it.1.get(Sum::Samples)).collect::<Vec<_>>(), [5]);
        assert!(half.faded(0.01).is_empty());
    }
}
