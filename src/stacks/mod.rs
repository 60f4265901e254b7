//! Profiles of call stacks: which code the threads ran when an event was sampled. Pure, except for
//! the files: a [`StackProfile`] comes from a session
//! ([`crate::session::StackSink`]) or a test, and the modules write it as tables and files.

mod diff;
#[cfg(feature = "cli")]
mod firefox;
mod flame;
mod folded;
mod listing;
mod pprof;
mod profile;
mod traced;
mod tree;

use serde::Serialize;

pub use diff::{diff, Change, DiffLine};
#[cfg(feature = "cli")]
pub use firefox::firefox;
pub use flame::flame_graph;
pub use folded::{folded, parse_folded, FoldedError, FoldedStacks};
pub use listing::{by, symbols, By, GroupLine, SymbolLine};
pub use pprof::pprof;
pub use profile::{At, Builder, Frame, Row, StackProfile, Thread};
pub use traced::TracedStacks;
pub use tree::trees;

/// The state of a profiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProfilerState {
    /// Nothing was started, or all was cleared.
    Idle,
    /// It samples.
    Running,
    /// It has stopped; the results stay.
    Stopped,
}
