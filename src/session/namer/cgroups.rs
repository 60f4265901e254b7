//! The cgroups of threads where the kernel puts none into samples (before 5.7): from procfs.

use std::collections::hash_map::Entry;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::resolve::Cgroups;
use crate::sample::{SideBand, ThreadIndex};
use scxprof_base::tables::Tables;

/// A cgroup is read again after this many ns, because threads move.
const AGE: u64 = 1_000_000_000;
/// Threads with a cgroup, and cgroups whose path was told.
const MAX_THREADS: usize = 1 << 16;

/// The cgroup of each thread, and when it was read.
#[derive(Debug)]
pub(super) struct CgroupsOfThreads {
    cgroups: Cgroups,
    known: FxHashMap<ThreadIndex, (u64, u64)>,
    told: FxHashSet<u64>,
}

impl CgroupsOfThreads {
    pub(super) fn new(cgroups: Cgroups) -> Self {
        Self { cgroups, known: FxHashMap::default(), told: FxHashSet::default() }
    }

    pub(super) fn measure(&self, tables: &mut Tables) {
        tables.set_map::<(ThreadIndex, (u64, u64))>("cgroups of threads", self.known.len(), self.known.capacity(), 0);
    }

    /// The cgroup within the last second before `now`, or when the thread was last alive; 0 if it is unknown. `tell` gets the path
    /// of one that no thread before was in.
    pub(super) fn of(
        &mut self,
        thread: ThreadIndex,
        (pid, tid): (u32, u32),
        now: u64,
        tell: &mut dyn FnMut(SideBand),
    ) -> u64 {
        if self.known.len() >= MAX_THREADS {
            self.known.clear();
        }
        let Self { cgroups, told, .. } = self;
        let mut read = || {
            let id = cgroups.of_thread(pid, tid)?;
            if !told.contains(&id) {
                if told.len() >= MAX_THREADS {
                    told.clear();
                }
                told.insert(id);
                if let Some(path) = cgroups.path(id) {
                    tell(SideBand::Cgroup { id, path: path.as_ref().into() });
                }
            }
            Some(id)
        };
        let (cgroup, at) = match self.known.entry(thread) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert((read().unwrap_or(0), now)),
        };
        if now.saturating_sub(*at) >= AGE {
            *cgroup = read().unwrap_or(*cgroup);
            *at = now;
        }
        *cgroup
    }

    /// A new thread is in the cgroup of the one that created it.
    pub(super) fn fork(&mut self, parent: ThreadIndex, child: ThreadIndex) {
        if self.known.len() < MAX_THREADS {
            if let Some(&cgroup) = self.known.get(&parent) {
                self.known.insert(child, cgroup);
            }
        }
    }
}
