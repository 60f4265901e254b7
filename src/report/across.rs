//! The memory that cells share with each other; the communities of a cell do not show it.

use serde::{Deserialize, Serialize};

use super::memory::Identity;
use crate::config::CellName;

/// Two cells that share memory: one cache for both would avoid misses, but they have different CPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CellSharing {
    /// The cell with fewer possible misses.
    pub smaller: CellName,
    /// The other one.
    pub larger: CellName,
    /// The part of the possible misses of the smaller one that one cache for both would avoid, from 0 to 1.
    pub part: f64,
    /// The possible misses of both that it would avoid.
    pub misses: f64,
    /// What is at the beginning of the region that they share most, as of a [`Granule`](super::Granule).
    pub memory: String,
    /// Its first byte; `null` if it was not kept.
    pub identity: Option<Identity>,
    /// The argument of a `--cell` before all others that makes one cell of both; `null` if there is none.
    pub option: Option<String>,
    /// How to make one cell of both, in a sentence.
    pub advice: String,
}

impl CellSharing {
    /// What they share, in a line for people.
    pub(crate) fn text(&self) -> String {
        let Self { smaller, larger, part, memory, .. } = self;
        format!("{smaller} and {larger}: {:.1}% of the possible misses of {smaller}, most in {memory}", part * 100.0)
    }
}
