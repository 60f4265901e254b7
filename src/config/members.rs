//! Members: what is known of each thread, as the decision takes it, whatever found it out.

use std::collections::BTreeMap;

use super::tally::CellIndex;
/// What the clustering knows of a thread, and why nothing can be said about it.
pub use crate::cluster::{Reason as Unknown, Verdict};
use crate::sample::{Comm, ThreadIndex};

/// A community of threads that share memory, numbered by whoever found it.
pub type CommunityIndex = u32;

/// A thread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Member {
    /// The number that labels of threads are given by: the sketch's.
    pub thread: ThreadIndex,
    /// Its process.
    pub pid: u32,
    /// Its thread id.
    pub tid: u32,
    /// Its name; where it had several, the last.
    pub comm: Option<Comm>,
    /// Its hint, where hints tell threads apart; a thread that had several is there once for each, and once for none.
    pub hint: Option<u64>,
    /// The tally's cell that it was in; if it was in several, the one with most of its samples.
    pub cell: CellIndex,
    /// Its samples.
    pub samples: f64,
    /// What is known of it.
    pub verdict: Verdict,
}

/// How much communities share, in accesses: within each and between each two.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Affinity {
    shared: BTreeMap<(CommunityIndex, CommunityIndex), f64>,
}

impl Affinity {
    /// Adds shared accesses between two communities, or within one where both are the same. What is not above 0 counts
    /// nothing.
    pub fn add(&mut self, a: CommunityIndex, b: CommunityIndex, accesses: f64) {
        if accesses.is_finite() && accesses > 0.0 {
            *self.shared.entry((a.min(b), a.max(b))).or_default() += accesses;
        }
    }

    /// Shared accesses between two communities, or within one.
    #[must_use]
    pub(crate) fn get(&self, a: CommunityIndex, b: CommunityIndex) -> f64 {
        self.shared.get(&(a.min(b), a.max(b))).copied().unwrap_or(0.0)
    }

    /// True if nothing was added, so that nothing is known of it.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.shared.is_empty()
    }
}

/// All that the decision knows beside the tally; the default is nothing, which leaves classes of equal names.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Members {
    /// The threads, each once for each hint that it had.
    pub threads: Vec<Member>,
    /// How much their communities share. Where it is empty, a community is worth its samples.
    pub affinity: Affinity,
}
