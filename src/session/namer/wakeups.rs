//! The source `wakeups`: threads that wake each other count as threads that share a line of memory.
//!
//! A wakeup is a message: the waker has written something that the woken thread will read. So each pair of threads that wake
//! each other gets a granule of its own, and each wakeup is a write to it by both. What finds communities is then the same as
//! for memory. It is weaker: threads may exchange a byte by a pipe and share nothing else, and threads that share memory
//! without ever waiting for each other are not seen. A wakeup from a softirq is not used: the thread that ran then may only have
//! been interrupted, and be any.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::sample::sched::{SchedEvent, SchedWhat, WakenBy};
use crate::sample::{MemoryId, MemoryScope, SideBand, ThreadIndex};
use scxprof_sched::{Fact, Facts, Thread, Threads, Tracker};

/// Pairs of threads that are told apart, of 40 bytes each; wakeups of later ones are not used.
const MAX_PAIRS: usize = 1 << 18;

/// Converts wakeups to samples.
#[derive(Debug, Default)]
pub(in crate::session) struct Wakeups {
    tracker: Tracker,
    pairs: FxHashMap<(ThreadIndex, ThreadIndex), u64>,
    /// The processes that are watched; `None` for all.
    only: Option<FxHashSet<u32>>,
    own_pid: u32,
}

/// A wakeup of one thread by another.
#[derive(Debug, Clone, Copy)]
pub(super) struct Woken {
    pub time: u64,
    pub cpu: u32,
    pub waker: Thread,
    pub wakee: Thread,
}

/// Collects the wakeups of an event.
#[derive(Default)]
struct Collect(Option<Woken>);

impl Facts for Collect {
    fn fact(&mut self, threads: &Threads, fact: &Fact) {
        // A new thread is no message.
        let Fact::Woken { thread, cpu, time, waker: Some(waker), is_new: false, .. } = *fact else { return };
        if let (Some(&waker), Some(&wakee)) = (threads.get(waker), threads.get(thread)) {
            self.0 = Some(Woken { time, cpu, waker, wakee });
        }
    }
}

impl Wakeups {
    /// Of these processes and what they fork, or of all; without `own_pid`.
    pub(in crate::session) fn new(only: Option<FxHashSet<u32>>, own_pid: u32) -> Self {
        Self { only, own_pid, ..Self::default() }
    }

    /// Follows the processes that are watched.
    pub(super) fn side_band(&mut self, what: &SideBand) {
        let Some(only) = &mut self.only else { return };
        match *what {
            SideBand::Fork { pid, ppid, .. } if only.contains(&ppid) => drop(only.insert(pid)),
            _ => {}
        }
    }

    /// The wakeup that this event is, if both threads are watched and a thread is the waker.
    pub(super) fn take(&mut self, event: &SchedEvent) -> Option<Woken> {
        let mut collect = Collect::default();
        self.tracker.take(event, &mut collect);
        let Woken { waker, wakee, .. } = collect.0?;
        let is_softirq = matches!(event.what, SchedWhat::Waking { by: WakenBy::Softirq, .. });
        let is_used = self.is_watched(waker.pid) && self.is_watched(wakee.pid) && waker.tid != wakee.tid;
        collect.0.filter(|_| is_used && !is_softirq)
    }

    fn is_watched(&self, pid: u32) -> bool {
        pid != 0 && pid != self.own_pid && self.only.as_ref().is_none_or(|only| only.contains(&pid))
    }

    /// The memory of a pair.
    pub(super) fn pair(&mut self, a: ThreadIndex, b: ThreadIndex) -> Option<MemoryId> {
        let next = self.pairs.len() as u64;
        let pair = (a.min(b), a.max(b));
        if self.pairs.len() >= MAX_PAIRS && !self.pairs.contains_key(&pair) {
            return None;
        }
        let ino = *self.pairs.entry(pair).or_insert(next);
        Some(MemoryId::Shared { scope: MemoryScope::Wakeups, ino, offset: 0 })
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.pairs.capacity() * size_of::<((ThreadIndex, ThreadIndex), u64)>() + self.tracker.threads().bytes()
    }

    pub(super) fn pairs(&self) -> usize {
        self.pairs.len()
    }
}
