//! The configuration of a scheduler: which cells and subcells there should be, and how scx_mitosis is told.
//!
//! The way is [`Groups`] (which cgroup belongs to which group) → [`Tally`] (who was sampled there, bounded) and [`Members`]
//! (what is known of each thread) → [`decide`] (cells, subcells and what must be said about them) → [`mitosis::to_json`], or
//! [`layers`] and [`layered::to_json`] (checked, then written). [`report::report`] says what the decision rests on.
//! Nothing here does I/O. [`Consumer`] and [`layered::Consumer`] model what the schedulers make of a configuration.
//!
//! Within a decision: `specs` (which cgroups of a group can have the same subcells) → `owners` (whose name is whose) →
//! `express` (how many, and which are merged or left) → `place` (in which order) → `prefixes` (by which beginnings).

mod cells;
mod classes;
mod consumer;
mod express;
mod groups;
mod hints;
pub mod layered;
mod layers;
mod members;
pub mod mitosis;
mod note;
mod owners;
mod place;
mod prefixes;
pub mod report;
mod specs;
mod summary;
mod table;
mod tally;

pub use cells::{decide, Basis, Cell, CellMatch, CommPrefix, Decision, NoSamples, Options, Subcell, CATCH_ALL};
pub use consumer::{Assigned, Consumer};
pub use groups::{CgroupMatcher, GroupIndex, GroupOptions, GroupSpec, Groups, GroupsError, Home};
pub use groups::{ALLOTMENT_REGEX, CGROUP_ROOT, WORKLOAD_SLICE};
pub use layers::{layers, layers_by_hint, Layers};
pub use members::{Affinity, CommunityIndex, Member, Members, Unknown, Verdict};
pub use note::Note;
pub use summary::summary;
pub use table::{hot_code, matrix, table};
pub use tally::{CellIndex, CellTally, NameIndex, Tally};
