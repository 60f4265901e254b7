//! The configuration of a scheduler: which cells and subcells there should be, and how scx_mitosis or scx_layered is told.
//!
//! The way is [`Groups`] (which cgroup belongs to which group) → a tally of who was sampled there, bounded, and what is known of
//! each thread → a [`Decision`]: cells, subcells and what must be said about them → [`mitosis::to_json`] or
//! [`layered::to_json`] (checked, then written). [`report::Report`] says what the decision rests on. Nothing here does I/O.
//! [`Consumer`] and [`layered::Consumer`] model what the schedulers make of a configuration.
//!
//! Within a decision: `specs` (which cgroups of a group can have the same subcells) → `owners` (whose name is whose) →
//! `express` (how many, and which are merged or left) → `place` (in which order) → `prefixes` (by which beginnings).

mod cell;
mod classes;
mod consumer;
mod decide;
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
mod written;

pub use cell::{Basis, Cell, CellMatch, CommPrefix, Subcell};
pub use consumer::{Assigned, Consumer};
pub use decide::{Decision, NoSamples, Options, Scheduler};
pub(crate) use groups::mistake;
pub use groups::{GroupOptions, Groups, GroupsError, ALLOTMENT_REGEX, CGROUP_ROOT, WORKLOAD_SLICE};
pub use note::{Note, Whose};
pub use table::{hot_code, matrix, table};
pub(crate) use written::{labels, strays};

// The steps between, public for the tests of each.
#[cfg(not(feature = "testing"))]
pub(crate) use {
    decide::decide,
    groups::{CgroupMatcher, GroupIndex, GroupSpec, Home},
    layers::{layers, layers_by_hint, Layers},
    members::{Affinity, CommunityIndex, Member, Members, Unknown, Verdict},
    summary::summary,
    tally::{CellIndex, CellTally, NameIndex, Tally},
};
#[cfg(feature = "testing")]
pub use {
    decide::decide,
    groups::{CgroupMatcher, GroupIndex, GroupSpec, Home},
    layers::{layers, layers_by_hint, Layers},
    members::{Affinity, CommunityIndex, Member, Members, Unknown, Verdict},
    summary::summary,
    tally::{CellIndex, CellTally, NameIndex, Tally},
};
