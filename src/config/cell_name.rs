//! What a cell is called where there is one for each cgroup.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A cell.
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
        let cgroup = (!cgroup.is_empty()).then(|| crate::sample::printable(cgroup));
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
