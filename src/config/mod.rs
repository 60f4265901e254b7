//! The configuration of a scheduler: the decision on cells and subcells, and its form for scx_mitosis or scx_layered.
//!
//! The steps are: [`CellSpecs`] (which cgroup belongs to which cell spec) → a bounded tally of samples by cell and name, and
//! the facts about each thread → a [`Decision`]: cells, subcells and notes about them → [`mitosis::to_json`] or
//! [`layered::to_json`] (checked, then written). This module does no I/O. [`Consumer`] and [`layered::Consumer`] model what the schedulers do with a configuration.
//!
//! Within a decision: `specs` (which cgroups of a cell spec can have the same subcells) → `owners` (which threads a name
//! belongs to) → `express` (how many subcells, and which are merged or left out) → `assign` (in which order) → `prefixes` (with
//! which prefixes). `better` chooses between sharing and names, and `fit` decides twice: what was found, and what of it a host can
//! load. There `aligned` puts groups together where that fits the host's caches, and divides (`parted`) those that are too
//! large for one.

mod aligned;
mod aligned_cell;
#[cfg(test)]
mod aligned_tests;
mod arranged;
mod assign;
mod better;
mod cell;
pub(crate) mod cell_specs;
mod classes;
mod consumer;
pub(crate) mod decide;
mod express;
mod fit;
mod hints;
mod layer_cgroups;
pub mod layered;
pub(crate) mod layers;
pub(crate) mod members;
pub mod mitosis;
mod mitosis_file;
mod note;
mod one_cell;
mod order;
mod owners;
mod parted;
mod placement;
mod prefixes;
mod scheduler;
mod shares;
mod specs;
pub(crate) mod tally;
pub(crate) mod this_host;
pub(crate) mod written;

pub use crate::host::facts::{TaskFacts, Tasks};
pub use crate::sample::{Task, TaskHint};
pub use aligned_cell::AlignedCell;
pub use cell::{Basis, Cell, CellMatch, CellName, CommPrefix, Subcell};
pub(crate) use cell_specs::{mistake, SpecIndex};
pub use cell_specs::{CellOptions, CellSpecError, CellSpecs, ALLOTMENT_REGEX, CGROUP_ROOT, WORKLOAD_SLICE};
pub use consumer::{Assigned, Consumer};
pub use decide::{Decision, DecisionOptions, NoSamples};
pub(crate) use express::spelled;
pub(crate) use fit::{find, Found};
pub(crate) use layers::{layers, layers_by_hint};
pub(crate) use members::{awake, Affinity, Member, Members, Unknown, Verdict};
pub use note::{Note, ThreadRef};
pub(crate) use one_cell::InCell;
pub use one_cell::OneCell;
pub(crate) use order::Laid;
pub use order::OnCaches;
pub use placement::{MayTake, Place, Placement, PlacementError};
pub(crate) use prefixes::base_of;
pub use scheduler::Scheduler;
pub(crate) use tally::{CellIndex, NameIndex, Tally};
pub(crate) use written::strays;
