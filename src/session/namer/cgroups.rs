//! The cgroups of threads where samples have none (kernels before 5.7, `--batched`, SPE): from procfs, or from a recording.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::resolve::Cgroups;
use crate::sample::ThreadIndex;
use scxprof_base::tables::Tables;

/// A cgroup is read again after this many ns, because threads move.
const AGE: u64 = 1_000_000_000;
/// Threads with a cgroup. Each generation has half of them: more than a large host has threads (100,000).
const MAX_THREADS: usize = 1 << 18;
/// Cgroups whose path was told.
const MAX_TOLD: usize = 1 << 16;

/// The cgroup of each thread, and when it was read.
#[derive(Debug)]
pub(super) struct CgroupsOfThreads {
    /// `None` for a recording, in which a record gives each cgroup.
    cgroups: Option<Cgroups>,
    known: Known,
    told: FxHashSet<u64>,
    /// Of a recording: the cgroups of threads that no record has named so far, by process and thread.
    unnamed: FxHashMap<(u32, u32), u64>,
}

/// The cgroups of the threads that were used last, in two generations: what was not used while the young one filled up is
/// forgotten, and that is ended threads first. All at once would have to be read again, for threads that are there.
#[derive(Debug, Default)]
struct Known {
    young: FxHashMap<ThreadIndex, (u64, u64)>,
    old: FxHashMap<ThreadIndex, (u64, u64)>,
}

impl Known {
    fn get(&mut self, thread: ThreadIndex) -> Option<&mut (u64, u64)> {
        if !self.young.contains_key(&thread) {
            let known = self.old.remove(&thread)?;
            self.insert(thread, known);
        }
        self.young.get_mut(&thread)
    }

    fn insert(&mut self, thread: ThreadIndex, known: (u64, u64)) {
        if self.young.len() >= MAX_THREADS / 2 {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(thread, known);
    }
}

impl CgroupsOfThreads {
    pub(super) fn new(cgroups: Option<Cgroups>) -> Self {
        Self { cgroups, known: Known::default(), told: FxHashSet::default(), unnamed: FxHashMap::default() }
    }

    pub(super) fn measure(&self, tables: &mut Tables) {
        let (Known { young, old }, unnamed) = (&self.known, &self.unnamed);
        let (len, capacity) =
            (young.len() + old.len() + unnamed.len(), young.capacity() + old.capacity() + unnamed.capacity());
        tables.set_map::<(ThreadIndex, (u64, u64))>("cgroups of threads", len, capacity, 0);
    }

    /// The cgroup within the last second before `now`, or when the thread was last alive; 0 if it is unknown. `tell` gets the path
    /// whenever it is another one than before, and whether no thread before was in it.
    pub(super) fn of(
        &mut self,
        thread: ThreadIndex,
        (pid, tid): (u32, u32),
        now: u64,
        tell: &mut dyn FnMut(u64, &[u8], bool),
    ) -> u64 {
        let Self { cgroups, told, known, unnamed } = self;
        if let Some(cgroup) = unnamed.remove(&(pid, tid)) {
            known.insert(thread, (cgroup, 0));
        }
        let before = known.get(thread).copied();
        if let Some((cgroup, _)) = before.filter(|(_, at)| now.saturating_sub(*at) < AGE) {
            return cgroup;
        }
        let before = before.map_or(0, |(cgroup, _)| cgroup);
        let cgroup = cgroups.as_mut().and_then(|cgroups| {
            let id = cgroups.of_thread(pid, tid)?;
            if id != before || !told.contains(&id) {
                if let Some(path) = cgroups.path(id) {
                    tell(id, path, !told.contains(&id));
                }
                if told.len() >= MAX_TOLD {
                    told.clear();
                }
                told.insert(id);
            }
            Some(id)
        });
        let cgroup = cgroup.unwrap_or(before);
        known.insert(thread, (cgroup, now));
        cgroup
    }

    /// A thread is in this cgroup, which may be said before its number is known.
    pub(super) fn set(&mut self, thread: Option<ThreadIndex>, id: (u32, u32), cgroup: u64) {
        match thread {
            Some(thread) => self.known.insert(thread, (cgroup, 0)),
            None if self.unnamed.len() < MAX_THREADS => drop(self.unnamed.insert(id, cgroup)),
            None => {}
        }
    }

    /// A new thread is in the cgroup of the one that created it.
    pub(super) fn fork(&mut self, parent: ThreadIndex, child: ThreadIndex) {
        if let Some(&mut cgroup) = self.known.get(parent) {
            self.known.insert(child, cgroup);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::host::Roots;

    /// A host on which every thread of process 7 is in the root of the cgroups; also the number of that.
    fn host() -> (tempfile::TempDir, CgroupsOfThreads, u64) {
        let dir = tempfile::tempdir().unwrap();
        let (proc, cgroup) = (dir.path().join("proc"), dir.path().join("cg"));
        fs::create_dir_all(proc.join("self")).unwrap();
        fs::create_dir_all(proc.join("7/task/7")).unwrap();
        fs::create_dir(&cgroup).unwrap();
        for of in ["self", "7/task/7"] {
            fs::write(proc.join(of).join("cgroup"), "0::/\n").unwrap();
        }
        fs::write(proc.join("self/mountinfo"), "").unwrap();
        let id = std::os::unix::fs::MetadataExt::ino(&fs::metadata(&cgroup).unwrap());
        let roots = Roots { proc, cgroup: Some(cgroup), ..Roots::default() };
        (dir, CgroupsOfThreads::new(Some(Cgroups::new(&roots).unwrap())), id)
    }

    /// The thread `index` is that of process 7 until it has ended.
    fn of(cgroups: &mut CgroupsOfThreads, index: u32, is_alive: bool) -> u64 {
        cgroups.of(index, (7, if is_alive { 7 } else { 8 }), 0, &mut |_, _, _| {})
    }

    #[test]
    fn what_is_used_stays_when_the_table_is_full() {
        let (_dir, mut cgroups, id) = host();
        assert_eq!((of(&mut cgroups, 0, true), of(&mut cgroups, 1, true)), (id, id));
        // More threads than there is room for, which the first one makes; it goes on.
        let last = 3 * MAX_THREADS as u32;
        for child in 2..last {
            cgroups.fork(0, child);
        }
        assert_eq!(of(&mut cgroups, 0, false), id, "it was used all the time");
        assert_eq!(of(&mut cgroups, last - 100_000, false), id, "as many threads are told apart as a large host has");
        assert_eq!(of(&mut cgroups, 1, false), 0, "it was not used for long, and has ended");
        assert!(cgroups.known.young.len() + cgroups.known.old.len() <= MAX_THREADS);
    }

    #[test]
    fn a_cgroup_is_read_again_after_a_second() {
        let (dir, mut cgroups, id) = host();
        let mut told = 0;
        let mut at = |now| cgroups.of(3, (7, 7), now, &mut |_, _, _| told += 1);
        assert_eq!(at(0), id);
        fs::create_dir(dir.path().join("cg/a")).unwrap();
        fs::write(dir.path().join("proc/7/task/7/cgroup"), "0::/a\n").unwrap();
        assert_eq!(at(AGE - 1), id);
        assert_ne!(at(AGE), id);
        fs::remove_file(dir.path().join("proc/7/task/7/cgroup")).unwrap();
        assert_ne!(at(3 * AGE), id, "it is where it was last seen");
        assert_eq!(told, 2);
    }
}
