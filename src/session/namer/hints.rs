//! The current hint of each thread, from the events.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::hint::{HintCounts, MAX_HINT};
use scxprof_base::tables::Tables;

/// The number of threads with a stored hint. A Linux host can have 4 million threads.
const MAX_THREADS: usize = 1 << 18;
/// Different values that are counted.
const MAX_VALUES: usize = 1 << 12;
/// A thread's last event.
#[derive(Debug, Clone, Copy)]
struct Entry {
    pid: u32,
    time: u64,
    /// `None` if its hint was deleted: an older event that comes later must not restore it.
    hint: Option<u64>,
}

/// The hints of threads as of the last event.
#[derive(Debug, Default)]
pub(super) struct Hints {
    by_tid: FxHashMap<u32, Entry>,
    values: FxHashSet<u64>,
    pub(super) counts: HintCounts,
}

impl Hints {
    /// Its size.
    pub(super) fn measure(&self, tables: &mut Tables) {
        tables.set_map::<(u32, Entry)>("hints", self.by_tid.len(), self.by_tid.capacity(), 0);
    }

    /// An event: the thread now has this hint, or none.
    pub(super) fn event(&mut self, time: u64, pid: u32, tid: u32, hint: Option<u64>) {
        let known = self.by_tid.get(&tid).copied();
        if known.is_some_and(|entry| entry.time > time) {
            self.counts.late += 1;
            return;
        }
        if known.is_none() && hint.is_none() {
            return;
        }
        if known.is_none() && self.by_tid.len() >= MAX_THREADS {
            self.by_tid.retain(|_, entry| entry.hint.is_some());
            if self.by_tid.len() >= MAX_THREADS {
                self.counts.not_kept += 1;
                return;
            }
        }
        if let Some(hint) = hint {
            self.counts.tasks += u64::from(known.is_none_or(|entry| entry.pid != pid));
            self.counts.above_limit += u64::from(hint > MAX_HINT);
            if self.values.len() < MAX_VALUES {
                self.values.insert(hint);
                self.counts.values = self.values.len() as u64;
            }
        }
        self.by_tid.insert(tid, Entry { pid, time, hint });
    }

    /// The tid belongs to a new thread without a hint: neither its parent's nor that of the tid's last owner.
    pub(super) fn fork(&mut self, tid: u32) {
        self.by_tid.remove(&tid);
    }

    /// The hint of a thread, counted for a sample.
    pub(super) fn of_sample(&mut self, pid: u32, tid: u32) -> Option<u64> {
        let hint = self.by_tid.get(&tid).filter(|entry| entry.pid == pid).and_then(|entry| entry.hint);
        *(if hint.is_some() { &mut self.counts.samples_with } else { &mut self.counts.samples_without }) += 1;
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_hint_and_hint_0_are_told_apart() {
        let mut hints = Hints::default();
        assert_eq!(hints.of_sample(10, 11), None);
        hints.event(5, 10, 11, Some(0));
        assert_eq!(hints.of_sample(10, 11), Some(0));
        hints.event(6, 10, 11, None);
        assert_eq!(hints.of_sample(10, 11), None);
        let HintCounts { tasks, values, samples_with, samples_without, .. } = hints.counts;
        assert_eq!((tasks, values, samples_with, samples_without), (1, 1, 1, 2));
    }

    #[test]
    fn a_reused_tid_does_not_inherit() {
        let mut hints = Hints::default();
        hints.event(5, 10, 11, Some(7));
        assert_eq!(hints.of_sample(90, 11), None, "another process's thread of that number");
        hints.fork(11);
        assert_eq!(hints.of_sample(10, 11), None, "the same process's next thread of that number");
    }

    #[test]
    fn what_comes_late_changes_nothing() {
        let mut hints = Hints::default();
        hints.event(10, 1, 1, Some(7));
        hints.event(9, 1, 1, Some(6));
        assert_eq!(hints.of_sample(1, 1), Some(7));
        hints.event(11, 1, 1, None);
        hints.event(10, 1, 1, Some(6));
        assert_eq!(hints.of_sample(1, 1), None, "what ended stays so");
        assert_eq!(hints.counts.late, 2);
    }

    #[test]
    fn the_table_is_bounded() {
        let mut hints = Hints::default();
        for tid in 0..MAX_THREADS as u32 + 5 {
            hints.event(1, tid, tid, Some(u64::from(tid)));
        }
        assert_eq!((hints.by_tid.len(), hints.counts.not_kept), (MAX_THREADS, 5));
        assert_eq!(hints.counts.values, MAX_VALUES as u64);
        assert_eq!(hints.counts.above_limit, MAX_THREADS as u64 - MAX_HINT - 1);
        hints.event(2, 3, 3, None);
        hints.event(3, 1, u32::MAX, Some(1));
        assert_eq!(hints.of_sample(1, u32::MAX), Some(1), "what ended makes room");
    }
}
