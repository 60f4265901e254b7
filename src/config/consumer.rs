//! A model of scx_mitosis with a configuration: which cell and subcell takes a thread.

use super::cell::{Cell, CellMatch, Subcell};
use super::cell_specs::{Ancestry, CgroupMatcher};
use super::mitosis::{check, MitosisError};
use super::scheduler::Scheduler;

/// The cell and subcell of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Assigned {
    /// The cell spec, as its index in the configuration; `None` is the root's cell if no spec takes everything.
    pub cell: Option<usize>,
    /// The subcell, as its index in the cell; `None` is the catch-all if none is written.
    pub subcell: Option<usize>,
}

/// A loaded configuration.
#[derive(Debug, Clone)]
pub struct Consumer {
    cells: Vec<(CgroupMatcher, Vec<Subcell>)>,
}

impl Consumer {
    /// Loads a configuration, if the scheduler would.
    ///
    /// # Errors
    /// Those of [`check`].
    pub fn new(cells: &[Cell]) -> Result<Self, MitosisError> {
        check(cells)?;
        Self::unchecked(cells)
    }

    /// Loads the cells of a decision for this scheduler. Those for scx_layered may have more subcells than scx_mitosis takes.
    ///
    /// # Errors
    /// Those of [`check`]; for scx_layered only that of a regular expression.
    pub(crate) fn of(cells: &[Cell], scheduler: Scheduler) -> Result<Self, MitosisError> {
        match scheduler {
            Scheduler::Mitosis => Self::new(cells),
            Scheduler::Layered => Self::unchecked(cells),
        }
    }

    /// Loads a configuration whatever the limits of the scheduler.
    pub(super) fn unchecked(cells: &[Cell]) -> Result<Self, MitosisError> {
        let load = |cell: &Cell| {
            let matcher = match &cell.matches {
                CellMatch::CgroupContains(part) => CgroupMatcher::Contains(part.clone()),
                CellMatch::CgroupRegex(regex) => CgroupMatcher::Regex(
                    regex::Regex::new(regex)
                        .map_err(|_| MitosisError::Regex { cell: cell.name.clone(), regex: regex.clone() })?,
                ),
                CellMatch::All => CgroupMatcher::All,
            };
            Ok((matcher, cell.subcells.clone()))
        };
        Ok(Self { cells: cells.iter().map(load).collect::<Result<_, MitosisError>>()? })
    }

    /// The cell and the subcell of a thread, by its cgroup's path below `/sys/fs/cgroup` and its name.
    #[must_use]
    pub fn assign(&self, cgroup: &[u8], comm: &[u8]) -> Assigned {
        self.assign_hinted(cgroup, comm, None)
    }

    /// The same of a thread with this hint. As scx_characterize writes it, a thread without one has the hint 0.
    #[must_use]
    pub fn assign_hinted(&self, cgroup: &[u8], comm: &[u8], hint: Option<u64>) -> Assigned {
        self.assign_in(self.cell_for(cgroup), comm, hint)
    }

    /// The cell of a cgroup, by its path as in [`Consumer::assign`].
    pub(crate) fn cell_for(&self, cgroup: &[u8]) -> Option<usize> {
        self.cell_of(cgroup).map(|(cell, _)| cell)
    }

    /// The same as [`Consumer::assign_hinted`] of a thread whose cell is known.
    pub(crate) fn assign_in(&self, cell: Option<usize>, comm: &[u8], hint: Option<u64>) -> Assigned {
        let subcells = cell.and_then(|cell| self.cells.get(cell)).map(|(_, subcells)| subcells.as_slice());
        Assigned { cell, subcell: subcells.and_then(|subcells| subcell_of_hinted(subcells, comm, hint)) }
    }

    /// The path of the cgroup that is the cell of a cgroup; empty for the root's. Each cgroup that a spec matches is a cell.
    #[must_use]
    pub fn cell_path(&self, cgroup: &[u8]) -> Vec<u8> {
        let depth = self.cell_of(cgroup).map_or(0, |(_, depth)| depth);
        let components = cgroup.split(|&byte| byte == b'/').filter(|part| !part.is_empty());
        components.take(depth).flat_map(|part| [b"/", part].concat()).collect()
    }

    /// From the top down: a cgroup's first matching spec makes a cell of it unless a cell above has that spec or an earlier
    /// one. The cgroup belongs to the last cell made. Returns the spec, and at what depth below the root the cell begins.
    fn cell_of(&self, cgroup: &[u8]) -> Option<(usize, usize)> {
        let is_all = |matcher: &CgroupMatcher| matches!(matcher, CgroupMatcher::All);
        let mut cell: Option<(usize, usize)> = None;
        for (text, depth) in Ancestry::new(cgroup).texts().zip(1..) {
            let first = self.cells.iter().position(|(matcher, _)| !is_all(matcher) && matcher.is_match(text));
            match (first, cell) {
                (Some(spec), Some((above, _))) if above <= spec => {}
                (Some(spec), _) => cell = Some((spec, depth)),
                (None, _) => {}
            }
        }
        cell.or_else(|| Some((self.cells.iter().position(|(matcher, _)| is_all(matcher))?, 0)))
    }
}

/// The first subcell that takes the name; if there is none, the catch-all, wherever it stands.
pub(super) fn subcell_of(subcells: &[Subcell], comm: &[u8]) -> Option<usize> {
    subcell_of_hinted(subcells, comm, None)
}

fn subcell_of_hinted(subcells: &[Subcell], comm: &[u8], hint: Option<u64>) -> Option<usize> {
    let hint = hint.unwrap_or(0);
    let takes = |subcell: &Subcell| {
        subcell.lists().any(|(prefixes, asked)| {
            prefixes.iter().all(|prefix| comm.starts_with(prefix.as_bytes())) && asked.is_none_or(|asked| asked == hint)
        })
    };
    let first = subcells.iter().position(|subcell| !subcell.is_catch_all() && takes(subcell));
    first.or_else(|| subcells.iter().position(Subcell::is_catch_all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::mitosis::parse;

    #[test]
    fn a_thread_goes_where_the_scheduler_sends_it() {
        let json = r#"[
            {"name": "child", "matches": {"CgroupContains": "child"}},
            {"name": "web", "matches": {"CgroupRegex": "/web[0-9]*$"}, "subcells": [
                {"name": "rest", "matches": [[]]},
                {"name": "worker", "matches": [[{"CommPrefix": "worker-"}, {"CommPrefix": "work"}], [{"CommPrefix": "w"}]]}
            ]},
            {"name": "all", "matches": {}}
        ]"#;
        let consumer = Consumer::new(&parse(json).unwrap()).unwrap();
        let go = |cgroup: &str, comm: &str| {
            let assigned = consumer.assign(cgroup.as_bytes(), comm.as_bytes());
            (assigned.cell, assigned.subcell)
        };
        assert_eq!(go("/web1", "worker-1"), (Some(1), Some(1)));
        assert_eq!(go("/web1/x", "w"), (Some(1), Some(1)));
        assert_eq!(go("/web1/x", "db"), (Some(1), Some(0)));
        assert_eq!(go("/web1/child", "w"), (Some(0), None));
        assert_eq!(go("/child/web1", "w"), (Some(0), None));
        assert_eq!(go("/", "w"), (Some(2), None));
        assert_eq!(go("/webx", "w"), (Some(2), None));
        let paths = ["/web1/x", "/web2", "/a/web1/child/y", "/webx/y"].map(|path| consumer.cell_path(path.as_bytes()));
        assert_eq!(paths, [&b"/web1"[..], b"/web2", b"/a/web1/child", b""]);
    }

    #[test]
    fn without_a_cell_for_all_the_root_takes_the_others() {
        let cells = parse(r#"[{"name": "a", "matches": {"CgroupContains": "a"}}]"#).unwrap();
        let consumer = Consumer::new(&cells).unwrap();
        assert_eq!(consumer.assign(b"/b", b"x"), Assigned { cell: None, subcell: None });
        assert_eq!(consumer.assign(b"/a", b"x"), Assigned { cell: Some(0), subcell: None });
        assert_eq!(Consumer::new(&[]).unwrap_err(), MitosisError::NoCells);
    }
}
