//! What a reading of the events counts.

use rustc_hash::FxHashMap;

use super::names::Name;
use super::raw::MAX_CPUS;

/// Kinds of ftrace events that are told apart.
pub(super) const MAX_NUMBERS: usize = 1 << 17;
/// Stands for the kinds beyond those that are told apart.
pub(super) const OTHERS: u32 = u32::MAX;

/// Counts one of a kind; one of [`OTHERS`] if it is new and `most` kinds are known.
pub(super) fn count(counts: &mut FxHashMap<u32, u64>, kind: u32, most: usize) {
    *slot(counts, kind, most) += 1;
}

fn slot(counts: &mut FxHashMap<u32, u64>, kind: u32, most: usize) -> &mut u64 {
    let kind = if counts.len() < most || counts.contains_key(&kind) { kind } else { OTHERS };
    counts.entry(kind).or_default()
}

/// Counts of ftrace events.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// By their field number.
    pub(super) by_number: FxHashMap<u32, u64>,
    /// Those of field `generic`, by their name.
    pub(super) generic: FxHashMap<Name, u64>,
    pub(super) malformed: u64,
    /// Arrays of compact events of different lengths: none of their events is read.
    pub(super) uneven: u64,
    pub(super) lost_bundles: u64,
    /// Events whose CPU or thread is beyond what the kernel gives.
    pub(super) out_of_range: u64,
    pub(super) unknown_clock: u64,
}

/// Counts of the ftrace events of a bundle.
#[derive(Debug)]
pub(super) struct Kinds([u64; KINDS]);

/// Kinds that have their place; perfetto has some 500.
const KINDS: usize = 512;

impl Kinds {
    pub(super) fn new() -> Self {
        Self([0; KINDS])
    }

    /// Counts one of a kind.
    #[inline]
    pub(super) fn add(&mut self, number: u32, counts: &mut Counts) {
        match self.0.get_mut(number as usize) {
            Some(count) if *count > 0 => *count += 1,
            // Kinds are listed in the order in which they come.
            Some(count) => (*count, _) = (1, slot(&mut counts.by_number, number, MAX_NUMBERS)),
            None => count(&mut counts.by_number, number, MAX_NUMBERS),
        }
    }

    /// Adds them to all.
    pub(super) fn finish(self, counts: &mut Counts) {
        for (number, count) in (0..).zip(self.0).filter(|(_, count)| *count > 0) {
            *slot(&mut counts.by_number, number, MAX_NUMBERS) += count;
        }
    }
}

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
    /// The time of the last event.
    now: Option<u64>,
    /// Events that came after younger ones: a clock of the trace jumps.
    pub(super) late: u64,
    /// CPUs that scheduling events name.
    pub(super) cpus: Vec<bool>,
}

impl Tally {
    /// Events of this time were given.
    pub(super) fn passed(&mut self, time: u64) {
        if self.now == Some(time) {
            return;
        }
        self.now = Some(time);
        self.late += u64::from(self.first.is_some() && time < self.last);
        self.first.get_or_insert(time);
        self.last = self.last.max(time);
    }

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
