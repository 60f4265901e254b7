//! The call stacks of each subcell, as trees.

use serde::{Deserialize, Serialize};

/// The call stacks of a profile, for a flame graph of each subcell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StacksReport {
    /// The event that was sampled.
    pub event: String,
    /// Samples.
    pub samples: u64,
    /// The names of functions, to which nodes refer.
    pub names: Vec<String>,
    /// The subcells, the one with most samples first.
    pub subcells: Vec<SubcellStacks>,
    /// Samples of frames that are left out, as they are too few to be seen: they count in the frames above them.
    pub hidden: u64,
}

/// The call stacks of a subcell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SubcellStacks {
    /// `cell/subcell`, or the cell if that is not divided; `(no cell)` for threads that no cell takes.
    pub name: String,
    /// Samples.
    pub samples: u64,
    /// The frames, each after its caller: the caller's place in this list (-1 for none), the place of its name in
    /// [`StacksReport::names`], its kind (0: all, or the name of threads, 1: user code, 2: inlined, 3: kernel), and its samples with those of what it called.
    pub nodes: Vec<(i64, u32, u8, u64)>,
}
