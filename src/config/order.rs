//! The CPUs that scx_mitosis gives the cells and subcells of a configuration, in its order.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::cell::Subcell;
use super::placement::{Place, Placement};
use crate::cluster::layout::{catch_all_is_near, share, Layout, Load, Part};
use crate::sample::caches::Caches;
use scxprof_base::cpus::MAX_CPUS;

/// On which last-level caches groups are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnCaches {
    /// On this many caches, with the groups in an unknown order.
    Random(u32),
    /// On these caches: groups of scx_mitosis in its own order, those of scx_layered in an unknown order.
    Known {
        /// The caches.
        caches: Caches,
        /// The CPUs of the host.
        cpus: usize,
    },
}

impl From<u32> for OnCaches {
    fn from(llcs: u32) -> Self {
        Self::Random(llcs)
    }
}

impl OnCaches {
    /// On the caches of a host with this number of CPUs, if they are known and there is a choice.
    #[must_use]
    pub fn known(caches: Option<Caches>, cpus: usize) -> Option<Self> {
        let caches = caches.filter(|caches| caches.count > 1 && cpus <= MAX_CPUS as usize)?;
        Some(Self::Known { caches, cpus })
    }

    /// How many there are.
    #[must_use]
    pub fn llcs(self) -> u32 {
        match self {
            Self::Random(llcs) => llcs,
            Self::Known { caches, .. } => caches.count,
        }
    }
}

/// A cell of scx_mitosis.
struct Cell<'a> {
    subcells: &'a [Subcell],
    cpus: Range<usize>,
}

impl Cell<'_> {
    /// The names of its subcells in the order of their numbers: the catch-all is the first one, with no name if it is not written.
    fn names(&self) -> Vec<Option<&String>> {
        let rest = self.subcells.iter().position(Subcell::is_catch_all);
        let others =
            self.subcells.iter().zip(0..).filter(|(_, at)| Some(*at) != rest).map(|(subcell, _)| Some(&subcell.name));
        let rest = rest.and_then(|at| self.subcells.get(at)).map(|subcell| &subcell.name);
        std::iter::once(rest).chain(others).collect()
    }
}

/// The cells with sampled threads and that of the root, by their cgroups.
pub(crate) struct Laid<'a> {
    cells: BTreeMap<Vec<&'a [u8]>, Cell<'a>>,
    /// CPUs of the host.
    cpus: usize,
    caches: Caches,
}

/// The components of a cgroup's path, by which scx_mitosis orders cells.
pub(super) fn components(cgroup: &[u8]) -> Vec<&[u8]> {
    cgroup.split(|&byte| byte == b'/').filter(|part| !part.is_empty()).collect()
}

impl<'a> Laid<'a> {
    /// For threads in these places; `None` for scx_layered, and for caches whose CPUs are not known.
    ///
    /// The number of the root's cell is 0, and the others follow in the order of the components of their paths, as scx_mitosis finds
    /// cgroups when it is loaded. Each has the same share of the CPUs.
    pub(crate) fn new(
        placement: &'a Placement,
        places: impl Iterator<Item = &'a Place>,
        order: OnCaches,
    ) -> Option<Self> {
        let OnCaches::Known { caches, cpus } = order else { return None };
        let specs = placement.cells()?;
        let mut names: BTreeMap<Vec<&[u8]>, Option<&String>> = BTreeMap::from([(Vec::new(), None)]);
        let distinct: BTreeSet<(&[u8], Option<&String>)> =
            places.map(|it| (it.cgroup.as_slice(), it.cell.as_ref())).collect();
        names.extend(distinct.into_iter().map(|(cgroup, cell)| (components(cgroup), cell)));
        let count = names.len();
        let cell = |(at, (path, name)): (usize, (Vec<&'a [u8]>, Option<&String>))| {
            let spec = specs.iter().find(|spec| Some(&spec.name) == name);
            let subcells = spec.map_or(&[][..], |spec| spec.subcells.as_slice());
            (path, Cell { subcells, cpus: share(0..cpus, count, at) })
        };
        Some(Self { cells: names.into_iter().enumerate().map(cell).collect(), cpus, caches })
    }

    /// Where the groups run. Subcells without threads keep their CPUs, which the others of their cell borrow.
    pub(crate) fn layout(&self, groups: &[Place], loads: &[Load]) -> Layout {
        let mut group_of: BTreeMap<(Vec<&[u8]>, Option<&String>), usize> =
            groups.iter().map(|it| (components(&it.cgroup), it.subcell.as_ref())).zip(0..).collect();
        let mut parts = Vec::new();
        for (number, (path, cell)) in (0u32..).zip(&self.cells) {
            let names = cell.names();
            for (at, name) in names.iter().enumerate() {
                let group = group_of.remove(&(path.clone(), *name));
                let load = group.and_then(|group| loads.get(group)).copied().unwrap_or_default();
                parts.push(Part { cell: number, cpus: share(cell.cpus.clone(), names.len(), at), load, group });
            }
        }
        Layout::known(&parts, self.caches, self.cpus)
    }

    /// True if threads in this place, which is the catch-all of a divided cell, are on one last-level cache.
    pub(crate) fn is_near(&self, place: &Place) -> bool {
        let cell = self.cells.get(&components(&place.cgroup)).filter(|_| place.is_rest);
        cell.is_some_and(|it| catch_all_is_near(self.caches, it.cpus.clone(), self.cpus, it.names().len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Task;

    fn two(cpus: usize) -> OnCaches {
        OnCaches::Known { caches: Caches::side_by_side(2), cpus }
    }

    fn one(busy: f64) -> Load {
        Load { threads: 1, busy, squares: busy * busy }
    }

    #[test]
    fn cells_follow_each_other_by_the_components_of_their_paths() {
        let json = r#"[{"name": "w", "matches": {"CgroupContains": "/w"}, "subcells": [
            {"name": "io", "matches": [[{"CommPrefix": "io-"}]]}]}]"#;
        let placement = Placement::parse(json).unwrap();
        let place = |cgroup: &str, comm: &str| placement.place_of(&Task::new(cgroup.as_bytes(), comm.as_bytes()));
        let places = [("/a-b/w2", "x"), ("/a/w1", "io-1"), ("/", "x"), ("/a/w1", "x"), ("/a/w1/c", "io-2")];
        let places = places.map(|(cgroup, comm)| place(cgroup, comm));
        let laid = Laid::new(&placement, places.iter(), two(8)).unwrap();
        let cpus: Vec<_> = laid.cells.iter().map(|(path, cell)| (path.concat(), cell.cpus.clone())).collect();
        assert_eq!(cpus, [(b"".to_vec(), 0..3), (b"aw1".to_vec(), 3..6), (b"a-bw2".to_vec(), 6..8)]);
        // The catch-all, which is not written, of w1 has CPUs 3 and 4, and that of w2 CPU 6; the root's cell is not divided.
        assert_eq!(places.each_ref().map(|it| laid.is_near(it)), [true, false, false, false, false]);
        let layout = laid.layout(&places[..4], &[one(0.5); 4]);
        let near = [(0, 0), (0, 1), (0, 2), (0, 3), (2, 3)].map(|(a, b)| (layout.near(a, b) * 100.0).round() as u32);
        assert_eq!(near, [100, 100, 0, 50, 50]);
    }

    #[test]
    fn the_catch_all_is_the_first_subcell_wherever_it_stands() {
        let json = r#"[{"name": "all", "matches": {}, "subcells": [{"name": "io", "matches": [[{"CommPrefix": "io-"}]]},
            {"name": "idle", "matches": [[{"CommPrefix": "idle-"}]]}, {"name": "rest", "matches": [[]]}]}]"#;
        let placement = Placement::parse(json).unwrap();
        let places = [&b"x"[..], b"io-1"].map(|comm| placement.place_of(&Task::new(b"/a", comm)));
        let laid = Laid::new(&placement, places.iter(), two(8)).unwrap();
        // CPUs 0 to 2 and 3 to 5; "idle" has no threads, and keeps the last two.
        let layout = laid.layout(&places, &[one(1.0); 2]);
        assert!((layout.near(0, 0) - 1.0).abs() < 1e-9 && (layout.near(1, 1) - 5.0 / 9.0).abs() < 1e-9, "{layout:?}");
        assert!(laid.is_near(&places[0]) && !laid.is_near(&places[1]));
        // With fewer CPUs than subcells, the last ones have none.
        let none = Laid::new(&placement, places.iter(), two(1)).unwrap();
        let somewhere = none.layout(&places, &[one(1.0); 2]).near(1, 1);
        assert!((somewhere - 0.5).abs() < 1e-9, "{somewhere}");
    }
}
