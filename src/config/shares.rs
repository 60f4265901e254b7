//! Which CPUs scx_mitosis gives each cell.

use std::collections::BTreeMap;
use std::ops::Range;

use super::cell_specs::CellSpecs;
use super::decide::{DecisionOptions, Host};
use super::order::components;
use super::tally::{CellIndex, Tally};
use crate::cluster::layout::{catch_all_is_near, share};
use crate::sample::caches::Caches;

/// The CPUs of each cell: the root's cell has the first ones, and the others follow in the order of their cgroups' paths.
pub(super) struct CellCpus {
    pub(super) cpus: usize,
    pub(super) caches: Caches,
    cells: usize,
    /// The number of each cell, if it is known.
    at: BTreeMap<CellIndex, Option<usize>>,
}

impl CellCpus {
    pub(super) fn new(specs: &CellSpecs, tally: &Tally, options: &DecisionOptions, caches: Caches) -> Self {
        let host = Host::new(specs, tally, options);
        let is_root = |spec: usize| spec + 1 == specs.specs().len();
        let mut others: Vec<(Vec<&[u8]>, CellIndex)> = Vec::new();
        let mut at: BTreeMap<CellIndex, Option<usize>> = BTreeMap::new();
        for (index, cell) in tally.cells() {
            if is_root(cell.spec) {
                at.insert(index, Some(0));
            } else {
                let path = cell.cgroup.as_deref().unwrap_or_default();
                others.push((components(path), index));
            }
        }
        others.sort();
        // A cgroup without samples has a number too.
        let are_all = host.cells == host.sampled;
        at.extend((1..).zip(others).map(|(number, (_, index))| (index, are_all.then_some(number))));
        Self { cpus: options.target_cpus, caches, cells: host.cells, at }
    }

    /// The CPUs that a cell may have: one range if its number is known.
    pub(super) fn of(&self, cell: CellIndex) -> Vec<Range<usize>> {
        let numbers = match self.at.get(&cell) {
            Some(Some(number)) => *number..number + 1,
            _ => 1..self.cells,
        };
        numbers.map(|number| share(0..self.cpus, self.cells, number)).collect()
    }

    /// The CPUs that each cell has at least.
    pub(super) fn share(&self) -> usize {
        self.cpus / self.cells.max(1)
    }

    /// True if the catch-all of a cell with this number of subcells has CPUs of one cache only: then its threads are as near to each other
    /// as those of any other subcell.
    pub(super) fn has_near_catch_all(&self, cell: CellIndex, subcells: usize) -> bool {
        let ranges = self.of(cell);
        let is_near = |of: &Range<usize>| catch_all_is_near(self.caches, of.clone(), self.cpus, subcells);
        !ranges.is_empty() && ranges.iter().all(is_near)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CellOptions;

    #[test]
    fn cells_follow_the_root_in_the_order_of_their_paths() {
        let specs = CellSpecs::new(&CellOptions {
            cells: vec!["web=/web".to_owned(), "db=/db".to_owned()],
            ..CellOptions::default()
        })
        .unwrap();
        let mut tally = Tally::default();
        let cells = ["/web-b", "/web/x", "/db", "/"].map(|path| {
            let cell = tally.cell(specs.assign(path.as_bytes()));
            tally.add(cell, None, 1.0);
            cell
        });
        let of =
            |options: &DecisionOptions, cell| CellCpus::new(&specs, &tally, options, Caches::side_by_side(2)).of(cell);
        let options = DecisionOptions::new(0.05, 9);
        let found = cells.map(|cell| of(&options, cell));
        // "/web" is before "/web-b", as the kernel's paths are compared by component.
        assert_eq!(found.concat(), [7..9, 5..7, 3..5, 0..3]);
        // Which one of the others a cell is, is not known if there are more of them.
        let more = DecisionOptions { cells: Some(5), ..options };
        assert_eq!([of(&more, cells[3]), of(&more, cells[0])].concat(), [0..2, 2..4, 4..6, 6..8, 8..9]);
    }

    #[test]
    fn a_catch_all_is_near_in_one_cache() {
        let specs = CellSpecs::new(&CellOptions::default()).unwrap();
        let mut tally = Tally::default();
        let cell = tally.cell(specs.assign(b"/"));
        tally.add(cell, None, 1.0);
        let is_near = |caches: Caches, subcells: usize| {
            CellCpus::new(&specs, &tally, &DecisionOptions::new(0.05, 16), caches).has_near_catch_all(cell, subcells)
        };
        let two = Caches::side_by_side(2);
        assert_eq!([1, 2, 3, 8].map(|subcells| is_near(two, subcells)), [false, true, true, true]);
        assert!(!is_near(Caches { turns: 2, ..two }, 2) && is_near(Caches { turns: 2, ..two }, 4));
        assert!(!is_near(Caches::side_by_side(4), 3));
    }
}
