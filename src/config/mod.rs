//! The configuration of a scheduler: the decision on cells and subcells, and its form for scx_mitosis or scx_layered.
//!
//! The steps are: [`CellSpecs`] (which cgroup belongs to which cell spec) → a bounded tally of samples by cell and name, and
//! the facts about each thread → a [`Decision`]: cells, subcells and notes about them → [`mitosis::to_json`] or
//! [`layered::to_json`] (checked, then written). [`report::Report`] gives the facts behind the decision. This module does no
//! I/O. [`Consumer`] and [`layered::Consumer`] model what the schedulers do with a configuration.
//!
//! Within a decision: `specs` (which cgroups of a cell spec can have the same subcells) → `owners` (which threads a name
//! belongs to) → `express` (how many subcells, and which are merged or left out) → `assign` (in which order) → `prefixes` (with
//! which prefixes).

mod assign;
mod better;
mod cell;
pub(crate) mod cell_specs;
mod classes;
mod consumer;
pub(crate) mod decide;
mod diff;
mod export;
mod express;
mod hints;
mod hot_lines;
pub mod layered;
pub(crate) mod layers;
pub(crate) mod members;
pub mod mitosis;
mod note;
mod one_cell;
mod owners;
mod placement;
mod prefixes;
pub mod report;
mod scheduler;
pub mod score;
mod specs;
pub(crate) mod summary;
mod table;
pub(crate) mod tally;
mod written;

pub(crate) use better::better;
pub use cell::{Basis, Cell, CellMatch, CommPrefix, Subcell};
pub(crate) use cell_specs::{mistake, SpecIndex};
pub use cell_specs::{CellOptions, CellSpecError, CellSpecs, ALLOTMENT_REGEX, CGROUP_ROOT, WORKLOAD_SLICE};
pub use consumer::{Assigned, Consumer};
pub use decide::{Decision, DecisionOptions, NoSamples};
pub use diff::{Difference, SubcellDifference, ThreadMove};
pub use export::{prometheus, sharing_csv, RunFacts};
pub(crate) use express::spelled;
pub use hot_lines::hot_lines;
pub(crate) use layers::{layers, layers_by_hint};
pub(crate) use members::{Affinity, Member, Members, Unknown, Verdict};
pub use note::{Note, ThreadRef};
pub(crate) use one_cell::InCell;
pub use one_cell::OneCell;
pub use placement::{Place, Placement, PlacementError};
pub(crate) use prefixes::base_of;
pub use scheduler::Scheduler;
pub(crate) use summary::summary;
pub(crate) use table::aligned;
pub use table::{matrix, table};
pub(crate) use tally::{CellIndex, NameIndex, Tally};
pub(crate) use written::strays;
