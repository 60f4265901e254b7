//! Evidence without its scopes: the sums of classes and pairs, and the communities that they give.

use std::collections::BTreeMap;

use super::key::{Class, RowKind};
use super::link::{link, Pair, Rules};
use super::rows::{Evidence, Sum, Sums};
use crate::cluster::rules;

/// Possible misses that were counted of a class without which nothing is said of it.
pub(super) const LEAST_COUNTED: f64 = 20.0;
/// Classes of a cell that are compared: those with most misses.
const MAX_CLASSES: usize = 512;

/// Communities that share data, beyond hubs.
const SHARING: Rules = Rules { worth: 0.02, cohesion: 0.5, join: 1.64, sure: 2.33 };
/// All classes of a program, which share what looks like a hub because there is no other thread to compare with.
const ALL: Rules = Rules { worth: 0.07, ..SHARING };
/// Classes that contend for few lines.
const CONTENDING: Rules = Rules { worth: 1.0 / 3.0, ..SHARING };

/// Evidence without its scopes: of each class, and of each pair within a cell.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub classes: BTreeMap<Class, Sums>,
    /// Pairs in one cell.
    pub pairs: BTreeMap<(Class, Class), Sums>,
    /// Pairs in different cells.
    pub across: BTreeMap<(Class, Class), Sums>,
}

impl Totals {
    pub(super) fn new(evidence: &Evidence) -> Self {
        fn add<K: Ord>(to: &mut BTreeMap<K, Sums>, key: K, sums: &Sums) {
            // Each row has at most 2^63 - 1; so has the sum over the scopes, unless a file is made to have more.
            let sum = to.entry(key).or_default();
            sum.0.iter_mut().zip(&sums.0).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
        }
        let mut totals = Self::default();
        for (key, sums) in evidence.of_kind(RowKind::Class) {
            add(&mut totals.classes, Class::clone(&key.a), sums);
        }
        for (key, sums) in evidence.of_kind(RowKind::Pair) {
            let pair = (Class::clone(&key.a), key.second());
            let to = if key.b.cell.is_empty() { &mut totals.pairs } else { &mut totals.across };
            add(to, pair, sums);
        }
        totals
    }

    /// The sums of two classes of one cell.
    fn pair(&self, a: &Class, b: &Class) -> Option<&Sums> {
        let (a, b) = if a <= b { (a, b) } else { (b, a) };
        self.pairs.get(&(a.clone(), b.clone()))
    }

    /// The part of the avoidable misses between classes of one cell that is avoided; `None` if less than 2 % of their possible
    /// misses are avoidable. `labels_of` gives the label of each thread of a class, or `None` if the class does not count.
    pub(super) fn locality<'a>(&self, labels_of: impl Fn(&Class) -> Option<&'a [u32]>) -> Option<f64> {
        let misses = self.classes.iter().filter(|it| labels_of(it.0).is_some()).map(|it| it.1.value(Sum::Misses));
        let demand: f64 = misses.sum();
        let (mut kept, mut all) = (0.0, 0.0);
        for ((a, b), sums) in &self.pairs {
            let (Some(one), Some(two)) = (labels_of(a), labels_of(b)) else { continue };
            all += sums.value(Sum::Avoidable);
            // Threads of one class have one label, or each its own.
            let is_together = if a == b { one.first() == one.get(1) } else { one.first() == two.first() };
            if is_together {
                kept += sums.value(Sum::Avoidable);
            }
        }
        (all > 0.0 && all >= rules::Rules::default().worth * demand).then(|| kept / all)
    }

    /// The communities of the classes of a cell, with what each has in common.
    pub(super) fn communities<'a>(&self, classes: &[(&'a Class, &Sums)]) -> Vec<(Vec<&'a Class>, f64)> {
        let mut open: Vec<(&'a Class, f64)> =
            classes.iter().map(|(class, sums)| (*class, sums.value(Sum::Counted))).collect();
        open.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(b.0)));
        open.retain(|it| it.1 >= LEAST_COUNTED);
        open.truncate(MAX_CLASSES);
        let mut found = Vec::new();
        for (rules, sum) in [(SHARING, Sum::Shared), (ALL, Sum::Common), (CONTENDING, Sum::Contended)] {
            let pair = |a: &Class, b: &Class| {
                self.pair(a, b).map_or_else(Pair::default, |sums| Pair {
                    possible: sums.value(Sum::Possible),
                    shared: sums.value(sum),
                })
            };
            let row = |a: &(&Class, f64)| open.iter().map(|b| pair(a.0, b.0)).collect::<Vec<Pair>>();
            let pairs: Vec<Vec<Pair>> = open.iter().map(row).collect();
            let counted: Vec<f64> = open.iter().map(|it| it.1).collect();
            let mut taken = vec![false; open.len()];
            for members in link(&counted, pairs, &rules) {
                let names: Vec<&Class> = members.iter().filter_map(|&at| open.get(at)).map(|it| it.0).collect();
                let (mut possible, mut shared) = (0.0, 0.0);
                for (at, a) in names.iter().enumerate() {
                    for b in names.iter().skip(at) {
                        let pair = pair(a, b);
                        (possible, shared) = (possible + pair.possible, shared + pair.shared);
                    }
                }
                found.push((names, if possible > 0.0 { shared / possible } else { 0.0 }));
                for &at in &members {
                    taken[at] = true;
                }
            }
            let mut at = 0;
            open.retain(|_| {
                at += 1;
                !taken.get(at - 1).copied().unwrap_or_default()
            });
        }
        found
    }
}

/// Threads of a run that has the class.
pub(super) fn threads_of_run(sums: &Sums) -> f64 {
    sums.get(Sum::Threads) as f64 / sums.get(Sum::Runs).max(1) as f64
}
