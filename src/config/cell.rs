//! Cells and subcells, as data.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::members::CommunityIndex;
use crate::sample::printable;

/// The name of the subcell that takes every thread that no other takes.
pub const CATCH_ALL: &str = "rest";

/// A cell spec: cgroups that get their own CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cell {
    /// Its name, for display only.
    pub name: String,
    /// Its cgroups.
    pub matches: CellMatch,
    /// Its subcells; empty if it is not divided.
    pub subcells: Vec<Subcell>,
}

/// Which cgroups a cell spec takes, by their full path.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CellMatch {
    /// Those that contain this text.
    CgroupContains(String),
    /// Those that match this regular expression.
    CgroupRegex(String),
    /// All that no other takes: `{}`.
    All,
}

/// A part of a cell with its own CPUs among the cell's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Subcell {
    /// Its name, for display only.
    pub name: String,
    /// Its threads: one of these lists must match, with all of its prefixes. One empty list takes every thread.
    pub matches: Vec<Vec<CommPrefix>>,
    /// The task hint that each of these lists asks for too, in their order; one beyond the last asks for none. Empty but for
    /// configurations that scx_characterize wrote with `--use-hints`, which scx_mitosis itself rejects.
    pub hints: Vec<Option<u64>>,
}

/// The beginning of a thread's name, at most 15 bytes.
pub type CommPrefix = String;

impl Subcell {
    /// The subcell that takes every thread that no other takes.
    #[must_use]
    pub(crate) fn catch_all() -> Self {
        Self { name: CATCH_ALL.to_owned(), matches: vec![Vec::new()], hints: Vec::new() }
    }

    /// True if it takes every thread.
    #[must_use]
    pub fn is_catch_all(&self) -> bool {
        self.lists().any(|(prefixes, hint)| prefixes.is_empty() && hint.is_none())
    }

    /// One of these lists must match: the prefixes of each, and its hint.
    pub(crate) fn lists(&self) -> impl Iterator<Item = (&[CommPrefix], Option<u64>)> {
        let hints = self.hints.iter().copied().chain(std::iter::repeat(None));
        self.matches.iter().map(Vec::as_slice).zip(hints)
    }
}

/// The basis of a subcell. A catch-all has no class, and communities only if that fits the caches of the host.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Basis {
    /// The communities that it is for; several if they were merged, or if each of its cells has one.
    pub communities: Vec<CommunityIndex>,
    /// The class of threads that it is for, escaped for a terminal.
    pub class: Option<String>,
    /// Accesses that its communities share, or their samples if that is unknown; 0 for a class.
    pub value: f64,
    /// Samples of its threads.
    pub samples: f64,
    /// What was merged or left out for it, and why, in sentences.
    pub why: Vec<String>,
}

/// A cell of a host, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CellName {
    /// Its cell spec.
    pub name: String,
    /// The path of the cgroup that is the cell, escaped for a terminal; `null` for the root's cell.
    pub cgroup: Option<String>,
}

impl CellName {
    pub(crate) fn new(name: &str, cgroup: &[u8]) -> Self {
        let cgroup = (!cgroup.is_empty()).then(|| printable(cgroup));
        Self { name: name.to_owned(), cgroup }
    }
}

impl fmt::Display for CellName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cgroup {
            Some(cgroup) => write!(f, "{} of {cgroup}", self.name),
            None => f.write_str(&self.name),
        }
    }
}
