//! The tally: the number of samples of each cell and each thread name, in bounded memory.

use rustc_hash::FxHashMap;

use super::cell_specs::{CellKey, CellSpecs, SpecIndex};
use crate::sample::Comm;
use scxprof_base::tables::Tables;

/// The index of a cell in the tally.
pub type CellIndex = u32;

/// The index of a name in a cell of the tally; none if it did not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameIndex(Option<u32>);

/// A cell with samples.
#[derive(Debug, Clone, PartialEq)]
pub struct CellTally {
    /// Its cell spec.
    pub spec: SpecIndex,
    /// The cgroup from which the scheduler makes the cell; `None` if the tally was full and this entry represents all further
    /// cells of the cell spec together.
    pub cgroup: Option<Vec<u8>>,
    /// Samples.
    pub total: f64,
    /// Samples of threads without a known name.
    pub unnamed: f64,
    /// Samples of names that did not fit.
    pub untold: f64,
}

/// Samples by cell and thread name.
///
/// Both are bounded: [`Tally::MAX_CELLS`] cells, and as many names in cells as [`Tally::new`] allows. Later ones are counted in
/// the totals, and never lost from them.
#[derive(Debug, Clone)]
pub struct Tally {
    cells: Vec<CellTally>,
    index: FxHashMap<(SpecIndex, Option<Vec<u8>>), CellIndex>,
    names: FxHashMap<(CellIndex, Comm), NameIndex>,
    counts: Vec<f64>,
    max_names: usize,
}

impl Default for Tally {
    fn default() -> Self {
        Self::new(Self::DEFAULT_NAMES)
    }
}

impl Tally {
    /// Cells that can be distinguished. The scheduler has 256; more of them only serve the message.
    pub const MAX_CELLS: usize = 1024;
    /// Names in cells that [`Tally::default`] distinguishes; each takes about 60 bytes.
    pub const DEFAULT_NAMES: usize = 16 * 1024;

    /// A tally that distinguishes this many names in cells.
    #[must_use]
    pub fn new(max_names: usize) -> Self {
        Self {
            cells: Vec::new(),
            index: FxHashMap::default(),
            names: FxHashMap::default(),
            counts: Vec::new(),
            max_names,
        }
    }

    /// The cell of a cgroup, for [`Tally::add`]. It never changes, so the caller may keep it for the cgroup.
    pub fn cell(&mut self, key: CellKey) -> CellIndex {
        let spec = key.spec;
        let mut key = (spec, Some(key.cgroup));
        if let Some(&cell) = self.index.get(&key) {
            return cell;
        }
        if self.cells.len() >= Self::MAX_CELLS {
            key = (spec, None);
            if let Some(&cell) = self.index.get(&key) {
                return cell;
            }
        }
        let cell = self.cells.len() as CellIndex;
        self.cells.push(CellTally { spec, cgroup: key.1.clone(), total: 0.0, unnamed: 0.0, untold: 0.0 });
        self.index.insert(key, cell);
        cell
    }

    /// The index of a name, for [`Tally::count`]. It never changes, so the caller may keep it.
    pub fn name(&mut self, cell: CellIndex, comm: Comm) -> NameIndex {
        if let Some(&name) = self.names.get(&(cell, comm)) {
            return name;
        }
        if self.counts.len() >= self.max_names {
            return NameIndex(None);
        }
        let name = NameIndex(Some(self.counts.len() as u32));
        self.names.insert((cell, comm), name);
        self.counts.push(0.0);
        name
    }

    /// Counts a sample of a thread; `None` is a thread without a known name, which never becomes a class.
    ///
    /// The weight of a whole sample is 1. Weights that are not above 0, and cells that did not come from [`Tally::cell`], are
    /// ignored.
    pub fn add(&mut self, cell: CellIndex, comm: Option<Comm>, weight: f64) {
        let name = comm.map(|comm| self.name(cell, comm));
        self.count(cell, name, weight);
    }

    /// As [`Tally::add`], for a name with a known index.
    pub fn count(&mut self, cell: CellIndex, name: Option<NameIndex>, weight: f64) {
        let Some(tally) = self.cells.get_mut(cell as usize) else { return };
        if !(weight.is_finite() && weight > 0.0) {
            return;
        }
        tally.total += weight;
        let count = match name {
            None => Some(&mut tally.unnamed),
            Some(NameIndex(None)) => Some(&mut tally.untold),
            Some(NameIndex(Some(name))) => self.counts.get_mut(name as usize),
        };
        if let Some(count) = count {
            *count += weight;
        }
    }

    /// Counts samples of a cell under another name than they were counted under.
    pub fn shift(&mut self, cell: CellIndex, from: NameIndex, to: NameIndex, weight: f64) {
        for (name, weight) in [(from, -weight), (to, weight)] {
            let count = match name.0 {
                None => self.cells.get_mut(cell as usize).map(|tally| &mut tally.untold),
                Some(name) => self.counts.get_mut(name as usize),
            };
            if let Some(count) = count {
                *count = clean(*count + weight);
            }
        }
    }

    /// The same samples by other cell specs: each cell's cgroup counts for the cell that `specs` make of it. With the new cell of
    /// each cell.
    #[must_use]
    pub(crate) fn under(&self, specs: &CellSpecs) -> (Self, Vec<CellIndex>) {
        let mut tally = Self::new(self.max_names);
        let rest = specs.specs().len().saturating_sub(1);
        let new_of = |cell: &CellTally| match &cell.cgroup {
            Some(cgroup) => tally.cell(specs.assign(cgroup)),
            None => tally.cell(CellKey { spec: rest, cgroup: Vec::new() }),
        };
        let new_of: Vec<CellIndex> = self.cells.iter().map(new_of).collect();
        for (cell, comm, count) in self.counts() {
            if let Some(&cell) = new_of.get(cell as usize) {
                tally.add(cell, Some(comm), count);
            }
        }
        for (cell, &new) in self.cells.iter().zip(&new_of) {
            tally.count(new, None, cell.unnamed);
            tally.count(new, Some(NameIndex(None)), cell.untold);
        }
        (tally, new_of)
    }

    /// Its size.
    pub(crate) fn measure(&self, tables: &mut Tables) {
        let cells = self.cells.capacity() * size_of::<CellTally>() + self.counts.capacity() * size_of::<f64>();
        let (count, room) = (self.names.len(), self.names.capacity());
        tables.set_map::<((CellIndex, Comm), NameIndex)>("names of the decision", count, room, cells);
    }

    /// The cells with samples.
    pub fn cells(&self) -> impl Iterator<Item = (CellIndex, &CellTally)> {
        self.cells.iter().enumerate().map(|(cell, tally)| (cell as CellIndex, tally)).filter(|(_, it)| it.total > 0.0)
    }

    /// One cell.
    #[must_use]
    pub fn get(&self, cell: CellIndex) -> Option<&CellTally> {
        self.cells.get(cell as usize)
    }

    /// All samples.
    #[must_use]
    pub fn total(&self) -> f64 {
        sum(self.cells.iter().map(|cell| cell.total))
    }

    /// All samples of a cell spec.
    #[must_use]
    pub fn spec_total(&self, spec: SpecIndex) -> f64 {
        sum(self.cells.iter().filter(|cell| cell.spec == spec).map(|cell| cell.total))
    }

    /// Samples by cell and name, in no order.
    pub fn counts(&self) -> impl Iterator<Item = (CellIndex, Comm, f64)> + '_ {
        let count = |name: &NameIndex| self.counts.get(name.0? as usize).copied();
        self.names
            .iter()
            .filter_map(move |(&(cell, comm), name)| Some((cell, comm, count(name).filter(|count| *count > 0.0)?)))
    }

    /// Samples by cell and name in one cell spec, by name and then by cell.
    pub(crate) fn names_of(&self, spec: SpecIndex) -> Vec<(Comm, CellIndex, f64)> {
        let is_of_spec = |cell: CellIndex| self.get(cell).is_some_and(|tally| tally.spec == spec);
        let mut names: Vec<_> =
            self.counts().filter(|it| is_of_spec(it.0)).map(|(cell, comm, count)| (comm, cell, count)).collect();
        names.sort_unstable_by_key(|&(comm, cell, _)| (comm, cell));
        names
    }
}

/// After samples that were counted in parts are subtracted at once, the rest may differ a little from 0.
fn clean(count: f64) -> f64 {
    const NOTHING: f64 = 1e-6;
    if count < NOTHING {
        0.0
    } else {
        count
    }
}

/// The sum; of nothing it is 0, while `Iterator::sum` gives -0, which would be printed like that.
fn sum(counts: impl Iterator<Item = f64>) -> f64 {
    counts.fold(0.0, |sum, count| sum + count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assign(spec: SpecIndex, cgroup: &str) -> CellKey {
        CellKey { spec, cgroup: cgroup.as_bytes().to_vec() }
    }

    #[test]
    fn totals_hold_whatever_the_bounds() {
        let mut tally = Tally::new(2);
        let cell = tally.cell(assign(0, "/a"));
        for name in ["a", "b", "c", "a", "d"] {
            tally.add(cell, Some(name.into()), 1.0);
        }
        tally.add(cell, None, 1.0);
        for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            tally.add(cell, Some("a".into()), weight);
        }
        tally.add(99, Some("a".into()), 1.0);
        let (_, told) = tally.cells().next().unwrap();
        assert_eq!((told.total, told.unnamed, told.untold), (6.0, 1.0, 2.0));
        assert_eq!(tally.counts().map(|it| it.2 as u64).sum::<u64>(), 3);
    }

    #[test]
    fn further_cells_are_one() {
        let mut tally = Tally::default();
        let first = tally.cell(assign(0, "/0"));
        for number in 1..Tally::MAX_CELLS + 100 {
            let cell = tally.cell(assign(0, &format!("/{number}")));
            tally.add(cell, Some("x".into()), 1.0);
        }
        let other = tally.cell(assign(1, "/new"));
        assert_eq!(tally.get(other).unwrap().spec, 1);
        assert_eq!(tally.cell(assign(0, "/0")), first);
        assert_eq!(tally.cells.len(), Tally::MAX_CELLS + 2);
        assert_eq!(tally.total() as usize, Tally::MAX_CELLS + 99);
    }

    #[test]
    fn names_come_in_order_and_without_those_that_had_no_samples() {
        let mut tally = Tally::default();
        assert_eq!(tally.total().to_string(), "0", "and not -0");
        let cells = ["/b", "/a", "/idle"].map(|path| tally.cell(assign(0, path)));
        tally.name(cells[0], "idle".into());
        for (name, cell) in
            ["z", "x", "y"].into_iter().flat_map(|name| cells[..2].iter().rev().map(move |it| (name, *it)))
        {
            tally.add(cell, Some(name.into()), 1.0);
        }
        let names: Vec<String> = tally.names_of(0).iter().map(|it| format!("{} {}", it.0, it.1)).collect();
        assert_eq!(names, ["x 0", "x 1", "y 0", "y 1", "z 0", "z 1"]);
        assert_eq!(tally.cells().count(), 2);
    }
}
