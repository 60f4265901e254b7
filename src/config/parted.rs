//! The subcells of a finding, of which those are divided that have more threads awake than a last-level cache has CPUs.
//!
//! In a subcell with the CPUs of one cache some of such threads always run on lent CPUs of other caches, and whenever a CPU gets other work
//! for a moment, its thread may go to the other cache. Parts with CPUs for all of their threads share as much in each cache, and their
//! threads stay there. Each prefix of the subcell is a part; a subcell with a single one stays whole.

use super::cell::{Basis, Cell, Subcell};
use super::express::joint_name;
use super::mitosis::MAX_SUBCELLS;

/// A cell of a finding, with some of its subcells divided.
pub(super) struct Parted {
    pub(super) cell: Cell,
    pub(super) bases: Vec<Basis>,
    /// For each subcell, that of the finding which it is or is a part of.
    pub(super) of: Vec<usize>,
}

impl Parted {
    /// With no subcell divided.
    pub(super) fn whole(cell: &Cell, bases: &[Basis]) -> Self {
        Self { cell: cell.clone(), bases: bases.to_vec(), of: (0..cell.subcells.len()).collect() }
    }

    /// With those subcells divided for which `is_too_large` holds; `None` if there are none, or too many parts.
    ///
    /// Each prefix is a part, with this share of the samples of the subcell.
    pub(super) fn new(
        cell: &Cell,
        bases: &[Basis],
        is_too_large: impl Fn(usize) -> bool,
        share: impl Fn(usize, &str) -> f64,
    ) -> Option<Self> {
        let mut parted =
            Self { cell: Cell { subcells: Vec::new(), ..cell.clone() }, bases: Vec::new(), of: Vec::new() };
        for (at, (subcell, basis)) in cell.subcells.iter().zip(bases).enumerate() {
            let is_one = subcell.is_catch_all() || subcell.matches.len() < 2 || basis.communities.is_empty();
            if is_one || !is_too_large(at) {
                parted.add(at, subcell.clone(), basis.clone());
                continue;
            }
            for prefixes in &subcell.matches {
                let share = prefixes.first().map_or(0.0, |prefix| share(at, prefix));
                let part = Subcell { name: joint_name(prefixes), matches: vec![prefixes.clone()], hints: Vec::new() };
                // What each two parts share is none of either.
                let value = basis.value * share * share;
                parted.add(at, part, Basis { value, samples: basis.samples * share, ..basis.clone() });
            }
        }
        let is_divided = parted.of.len() > cell.subcells.len();
        (is_divided && parted.of.len() <= MAX_SUBCELLS).then_some(parted)
    }

    fn add(&mut self, of: usize, subcell: Subcell, basis: Basis) {
        self.cell.subcells.push(subcell);
        self.bases.push(basis);
        self.of.push(of);
    }

    /// The parts of this subcell of the finding.
    pub(super) fn parts_of(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        self.of.iter().enumerate().filter(move |it| *it.1 == at).map(|it| it.0)
    }

    /// The part with most samples of this subcell of the finding.
    pub(super) fn largest(&self, at: usize) -> Option<usize> {
        let samples = |part: &usize| self.bases.get(*part).map_or(0.0, |it| it.samples);
        self.parts_of(at).max_by(|a, b| samples(a).total_cmp(&samples(b)).then(b.cmp(a)))
    }
}
