//! Ways to put the subcells of a cell into fewer places, and how a way is written.

use std::collections::BTreeSet;

use super::cell::{Basis, Cell, Subcell};
use super::express::joint_name;
use super::members::{CommunityIndex, Members};
use super::mitosis::MAX_ORS;
use super::parted::Parted;
use super::prefixes::tidy;

/// The name of a subcell without threads.
const SPARE: &str = "spare";
/// The prefix that it matches, followed by a number: 15 bytes, the most that a name can have.
const NOBODY: &str = "no-such-thread";

/// Which groups are in which place.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Arrangement {
    /// The place of each subcell, in the scheduler's numbering; that of the catch-all is 0.
    pub(super) place_of: Vec<usize>,
    pub(super) places: usize,
    /// Places without threads behind them.
    pub(super) spare: usize,
}

/// The number of a subcell for the scheduler, of its place in the file.
pub(super) fn number(subcells: &[Subcell], at: usize) -> usize {
    let catch_all = subcells.iter().position(Subcell::is_catch_all);
    match catch_all {
        Some(it) if it == at => 0,
        Some(it) if it < at => at,
        _ => at + 1,
    }
}

/// All ways to put `subcells` into at most `most` places, the catch-all into the first: each place appears for the first
/// time after those before it.
pub(super) fn arrangements(subcells: usize, most: usize) -> Vec<Vec<usize>> {
    let mut all = vec![vec![0]];
    for _ in 1..subcells {
        let next = |it: &Vec<usize>| {
            let places = it.iter().max().map_or(0, |it| it + 1);
            let it = it.clone();
            (0..(places + 1).min(most)).map(move |place| it.iter().copied().chain([place]).collect())
        };
        all = all.iter().flat_map(next).collect();
    }
    all
}

/// The subcells of the finding but the catch-all, in the scheduler's numbering: the first is 1.
pub(super) struct Units {
    prefixes: Vec<Vec<String>>,
    /// Those before each one that have a prefix which begins with one of its own: what they take, it would take too.
    within: Vec<Vec<usize>>,
}

impl Units {
    pub(super) fn new(subcells: &[Subcell]) -> Self {
        let mut prefixes = vec![Vec::new(); subcells.len()];
        for (at, subcell) in subcells.iter().enumerate().filter(|it| !it.1.is_catch_all()) {
            if let Some(of) = prefixes.get_mut(number(subcells, at)) {
                *of = subcell.matches.iter().flatten().cloned().collect();
            }
        }
        let takes = |own: &[String], other: &[String]| {
            other.iter().any(|it| own.iter().any(|own| it.starts_with(own.as_str())))
        };
        let within = |(at, own): (usize, &Vec<String>)| {
            prefixes.iter().take(at).enumerate().filter(|it| takes(own, it.1)).map(|it| it.0).collect()
        };
        let within = prefixes.iter().enumerate().map(within).collect();
        Self { prefixes, within }
    }

    /// The prefixes of a place.
    fn of_place(&self, place_of: &[usize], place: usize) -> Vec<String> {
        let of = self.prefixes.iter().zip(place_of).filter(|it| *it.1 == place);
        let mut prefixes: Vec<String> = of.flat_map(|it| it.0.clone()).collect();
        tidy(&mut prefixes);
        prefixes
    }

    /// The places in an order in which each takes its own threads; `None` if there is none, or if a place has too many prefixes.
    pub(super) fn in_order(&self, place_of: &[usize], places: usize) -> Option<Arrangement> {
        // The places that must be before each one.
        let mut before: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); places];
        for (within, &place) in self.within.iter().zip(place_of).filter(|it| *it.1 > 0) {
            for &unit in within {
                let other = place_of.get(unit).copied().unwrap_or_default();
                if other == 0 {
                    return None;
                }
                if other != place {
                    before.get_mut(place)?.insert(other);
                }
            }
        }
        let mut order: Vec<usize> = vec![0];
        while order.len() < places {
            let is_next = |place: &usize| {
                !order.contains(place) && before.get(*place).is_some_and(|it| it.iter().all(|it| order.contains(it)))
            };
            let next = (1..places).find(is_next)?;
            order.push(next);
        }
        if (1..places).any(|place| self.of_place(place_of, place).len() > MAX_ORS) {
            return None;
        }
        let number = |place: &usize| order.iter().position(|it| it == place);
        Some(Arrangement { place_of: place_of.iter().map(number).collect::<Option<_>>()?, places, spare: 0 })
    }
}

/// The subcells of an arrangement, as they are written: with the catch-all last.
pub(super) struct Arranged {
    pub(super) subcells: Vec<Subcell>,
    pub(super) bases: Vec<Basis>,
    /// The place in `subcells` of each subcell of the finding, in its order.
    pub(super) place_of: Vec<usize>,
}

impl Arrangement {
    pub(super) fn subcells(&self, found: &Cell, bases: &[Basis], members: &Members) -> Option<Arranged> {
        let units = Units::new(&found.subcells);
        let place_of = |at: usize| self.place_of.get(number(&found.subcells, at)).copied();
        let basis_of = |place: usize| {
            let of = bases.iter().enumerate().filter(|it| place_of(it.0) == Some(place)).map(|it| it.1);
            joint_basis(&of.collect::<Vec<_>>(), members)
        };
        let mut arranged = Arranged { subcells: Vec::new(), bases: Vec::new(), place_of: Vec::new() };
        let mut taken = BTreeSet::from([Subcell::catch_all().name]);
        let mut name_of = |base: &str| {
            let numbered = (2_usize..).map(|number| format!("{base}-{number}"));
            let name = std::iter::once(base.to_owned()).chain(numbered).find(|name| !taken.contains(name))?;
            taken.insert(name.clone());
            Some(name)
        };
        for place in 1..self.places {
            arranged.bases.push(basis_of(place));
            let prefixes = units.of_place(&self.place_of, place);
            let name = name_of(&joint_name(&prefixes))?;
            let matches = prefixes.into_iter().map(|prefix| vec![prefix]).collect();
            arranged.subcells.push(Subcell { name, matches, hints: Vec::new() });
        }
        for number in 1..=self.spare {
            let matches = vec![vec![format!("{NOBODY}{number}")]];
            arranged.bases.push(Basis::default());
            arranged.subcells.push(Subcell { name: name_of(SPARE)?, matches, hints: Vec::new() });
        }
        arranged.bases.push(Basis { class: None, ..basis_of(0) });
        arranged.subcells.push(Subcell::catch_all());
        let last = arranged.subcells.len().checked_sub(1)?;
        let written = |at: usize| Some(place_of(at)?.checked_sub(1).unwrap_or(last));
        arranged.place_of = (0..found.subcells.len()).map(written).collect::<Option<_>>()?;
        Some(arranged)
    }
}

impl Arranged {
    /// The groups of the finding that are in several subcells.
    pub(super) fn parted(&self, parts: &Parted, found: &Cell) -> Vec<String> {
        let is_parted = |at: &usize| {
            let places: BTreeSet<&usize> = parts.parts_of(*at).filter_map(|part| self.place_of.get(part)).collect();
            places.len() > 1
        };
        let of = found.subcells.iter().enumerate().filter(|it| is_parted(&it.0));
        of.map(|(_, subcell)| subcell.name.clone()).collect()
    }

    /// The names of the subcells that have threads, each with those of the finding that it has.
    pub(super) fn groups(&self, found: &[Subcell]) -> Vec<(String, Vec<String>)> {
        let of = |place: usize| {
            let of = found.iter().zip(&self.place_of).filter(|(it, to)| **to == place && !it.is_catch_all());
            of.map(|(it, _)| it.name.clone()).collect()
        };
        let is_used = |place: &usize| self.place_of.contains(place) || *place + 1 == self.subcells.len();
        let used = self.subcells.iter().enumerate().filter(|it| is_used(&it.0));
        used.map(|(place, it)| (it.name.clone(), of(place))).collect()
    }
}

/// The basis of a subcell that has several groups.
fn joint_basis(of: &[&Basis], members: &Members) -> Basis {
    let communities: BTreeSet<CommunityIndex> = of.iter().flat_map(|it| it.communities.iter().copied()).collect();
    let classes: Vec<&str> = of.iter().filter_map(|it| it.class.as_deref()).collect();
    let mut value: f64 = of.iter().map(|it| it.value).sum();
    let mut pairs = BTreeSet::new();
    for (index, a) in of.iter().enumerate() {
        for b in of.iter().skip(index + 1) {
            // Parts of one group.
            if !a.communities.is_empty() && a.communities == b.communities {
                value += 2.0 * (a.value * b.value).sqrt();
                continue;
            }
            // Once for all parts of a group.
            pairs.extend(a.communities.iter().flat_map(|a| b.communities.iter().map(|b| (*a.min(b), *a.max(b)))));
        }
    }
    value += pairs.iter().map(|&(a, b)| members.affinity.get(a, b)).sum::<f64>();
    Basis {
        class: (communities.is_empty() && !classes.is_empty()).then(|| classes.join(", ")),
        communities: communities.into_iter().collect(),
        value,
        samples: of.iter().map(|it| it.samples).sum(),
        why: of.iter().flat_map(|it| it.why.iter().cloned()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_parts_of_a_group_share_with_another_counts_once() {
        let part = |community, value| Basis { communities: vec![community], value, ..Basis::default() };
        let mut members = Members::default();
        members.affinity.add(0, 1, 6.0);
        let (parts, other) = ([part(0, 4.0), part(0, 9.0)], part(1, 1.0));
        let joint = joint_basis(&[&parts[0], &parts[1], &other], &members);
        // Their own, what the two parts share, and what the group shares with the other.
        assert!((joint.value - (14.0 + 12.0 + 6.0)).abs() < 1e-9, "{}", joint.value);
        assert_eq!(joint.communities, [0, 1]);
    }

    #[test]
    fn each_arrangement_comes_once() {
        // The Bell numbers: all ways to divide a set.
        let counts: Vec<usize> = (1..=8).map(|subcells| arrangements(subcells, 8).len()).collect();
        assert_eq!(counts, [1, 2, 5, 15, 52, 203, 877, 4140]);
        assert_eq!(arrangements(3, 2), [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]]);
    }
}
