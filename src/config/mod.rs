//! The configuration of a scheduler: which cells and subcells there should be, and how scx_mitosis or scx_layered is told.
//!
//! The way is [`CellSpecs`] (which cgroup belongs to which group) → a tally of who was sampled there, bounded, and what is known of
//! each thread → a [`Decision`]: cells, subcells and what must be said about them → [`mitosis::to_json`] or
//! [`layered::to_json`] (checked, then written). [`report::Report`] says what the decision rests on. Nothing here does I/O.
//! [`Consumer`] and [`layered::Consumer`] model what the schedulers make of a configuration.
//!
//! Within a decision: `specs` (which cgroups of a group can have the same subcells) → `owners` (whose name is whose) →
//! `express` (how many, and which are merged or left) → `place` (in which order) → `prefixes` (by which beginnings).

mod assign;
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
mod owners;
mod prefixes;
pub mod report;
mod specs;
pub(crate) mod summary;
mod table;
pub(crate) mod tally;
mod written;

pub use cell::{Basis, Cell, CellMatch, CommPrefix, Subcell};
pub(crate) use cell_specs::{mistake, SpecIndex};
pub use cell_specs::{CellOptions, CellSpecError, CellSpecs, ALLOTMENT_REGEX, CGROUP_ROOT, WORKLOAD_SLICE};
pub use consumer::{Assigned, Consumer};
pub(crate) use decide::decide;
pub use decide::{Decision, DecisionOptions, NoSamples, Scheduler};
pub use diff::{Difference, SubcellDifference, ThreadMove};
pub use export::{prometheus, sharing_csv, RunFacts};
pub use hot_lines::hot_lines;
pub(crate) use layers::{layers, layers_by_hint};
pub(crate) use members::{Affinity, Member, Members, Unknown, Verdict};
pub use note::{Note, ThreadRef};
pub(crate) use summary::summary;
pub use table::{matrix, table};
pub(crate) use tally::{CellIndex, NameIndex, Tally};
pub(crate) use written::{labels, strays};
