//! Classes: which threads of a cell spec count as one if only their names are known.

use std::collections::BTreeMap;

use super::prefixes::base_of;
use super::tally::CellIndex;
use crate::sample::Comm;

/// Names that differ only in the number at their end.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Family {
    /// The names without their numbers; a name of digits only is a family of its own.
    pub base: Vec<u8>,
    /// The sampled names, sorted.
    pub names: Vec<Comm>,
    /// Samples.
    pub count: f64,
    /// Samples by cell, each cell once.
    pub by_cell: Vec<(CellIndex, f64)>,
}

/// The families of a cell spec, by base. The names come sorted by name and cell, as in the tally.
pub(super) fn families(names: &[(Comm, CellIndex, f64)]) -> Vec<Family> {
    let mut members: BTreeMap<&[u8], Vec<&(Comm, CellIndex, f64)>> = BTreeMap::new();
    for name in names {
        members.entry(base_of(name.0.as_bytes())).or_default().push(name);
    }
    members.into_iter().map(|(base, members)| family(base, &members)).collect()
}

fn family(base: &[u8], members: &[&(Comm, CellIndex, f64)]) -> Family {
    let mut names: Vec<Comm> = members.iter().map(|it| it.0).collect();
    names.dedup();
    let mut by_cell: BTreeMap<CellIndex, f64> = BTreeMap::new();
    for (_, cell, count) in members {
        *by_cell.entry(*cell).or_default() += count;
    }
    let count = members.iter().map(|it| it.2).sum();
    Family { base: base.to_vec(), names, count, by_cell: by_cell.into_iter().collect() }
}
