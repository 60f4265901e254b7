//! Members: the facts about each thread for the decision, from any method of clustering.

use std::collections::BTreeMap;

use super::tally::CellIndex;
/// The verdict of the clustering on a thread, and why there may be none.
pub use crate::cluster::{Reason as Unknown, Verdict};
use crate::sample::{Comm, ThreadIndex};

/// A community of threads that share memory, in the numbering of the clustering.
pub type CommunityIndex = u32;

/// A thread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Member {
    /// The index of the thread in labels: the sketch's number.
    pub thread: ThreadIndex,
    /// Its process.
    pub pid: u32,
    /// Its thread id.
    pub tid: u32,
    /// Its name; if it had several, the last one.
    pub comm: Option<Comm>,
    /// Its hint, if hints distinguish threads; a thread with several occurs once for each, and once for none.
    pub hint: Option<u64>,
    /// The tally's cell with most of its samples.
    pub cell: CellIndex,
    /// Its samples.
    pub samples: f64,
    /// The verdict on it.
    pub verdict: Verdict,
}

/// How much communities share, in accesses: within each and between each two.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Affinity {
    shared: BTreeMap<(CommunityIndex, CommunityIndex), f64>,
}

impl Affinity {
    /// Adds shared accesses between two communities, or within one if both are the same. Values that are not above 0 are
    /// ignored.
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

    /// True if nothing was added, so nothing is known about sharing.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.shared.is_empty()
    }
}

/// The facts for the decision besides the tally; the default is none, which leaves classes of equal names.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Members {
    /// The threads, each once for each hint that it had.
    pub threads: Vec<Member>,
    /// How much their communities share. If it is empty, a community is worth its samples.
    pub affinity: Affinity,
    /// Samples that a thread that never sleeps would have, if that is known; at least those of the busiest thread.
    pub awake: f64,
}

impl Members {
    /// Samples that a thread that never sleeps would have, at least those of the busiest thread.
    pub(crate) fn awake(&self) -> f64 {
        self.threads.iter().map(|it| it.samples).fold(self.awake.max(f64::MIN_POSITIVE), f64::max)
    }
}

/// Samples that a thread that never sleeps would have, if the one with most has `busiest` of `samples` in all, and this number of CPUs was
/// busy on average.
///
/// Samples may be of user code only, so a thread's part of them is taken for its part of the CPU time. If this is not known, the busiest
/// thread is one that never sleeps.
pub(crate) fn awake(busiest: f64, samples: f64, busy_cpus: Option<f64>) -> f64 {
    let of_cpu = busy_cpus.map_or(0.0, |cpus| samples / cpus);
    busiest.max(if of_cpu.is_finite() { of_cpu } else { 0.0 }).max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_thread_may_sleep_too() {
        let is = |cpus: Option<f64>, expected: f64| {
            let found = awake(300.0, 4200.0, cpus);
            assert!((found - expected).abs() < 1e-9, "{cpus:?}: {found}");
        };
        // 14 threads on 4 busy CPUs: each runs for 2 of 7 s.
        is(Some(4.0), 1050.0);
        for cpus in [None, Some(14.0), Some(60.0), Some(0.0), Some(f64::NAN), Some(f64::INFINITY)] {
            is(cpus, 300.0);
        }
        assert!(awake(0.0, 0.0, None) > 0.0);
    }
}
