//! What a reading of the events counts.

use rustc_hash::FxHashMap;

use super::ftrace::Counts;
use super::names::Name;
use super::raw::MAX_CPUS;

/// What was counted while events were decoded.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) ftrace: Counts,
    /// Events of tracks by their category, or what they are.
    pub(super) tracks: FxHashMap<Name, u64>,
    pub(super) counters: u64,
    pub(super) without_category: u64,
    pub(super) samples: u64,
    pub(super) malformed: u64,
    pub(super) first: Option<u64>,
    pub(super) last: u64,
    /// Events that came after younger ones: a clock of the trace jumps.
    pub(super) late: u64,
    /// CPUs that scheduling events name.
    pub(super) cpus: Vec<bool>,
}

impl Tally {
    pub(super) fn see(&mut self, cpu: u32) {
        let at = cpu as usize;
        if self.cpus.len() <= at && cpu < MAX_CPUS {
            self.cpus.resize(at + 1, false);
        }
        if let Some(seen) = self.cpus.get_mut(at) {
            *seen = true;
        }
    }
}
