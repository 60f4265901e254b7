//! The source `wakeups`: threads that wake each other count as threads that share a line of memory.
//!
//! A wakeup is a message: the waker has written something that the woken thread will read. So each pair of threads that wake
//! each other gets a granule of its own, and each wakeup is a write to it by both. What finds communities is then the same as
//! for memory. It is weaker: threads may exchange a byte by a pipe and share nothing else, and threads that share memory
//! without ever waiting for each other are not seen. A wakeup from a softirq is not used: the thread that ran then may only have
//! been interrupted, and be any.

use rustc_hash::{FxHashMap, FxHashSet};

use super::names::{Names, Ready};
use crate::sample::sched::{SchedEvent, SchedWhat, WakenBy};
use crate::sample::{Access, CpuMode, MemoryId, RawSample, Sample, SideBand, ThreadIndex, WAKEUPS_DEV};
use crate::sched::{Fact, Facts, Thread, Threads, Tracker};

/// Pairs of threads that are told apart, of 40 bytes each; wakeups of later ones are not used.
const MAX_PAIRS: usize = 1 << 18;

/// What makes samples of wakeups.
#[derive(Debug, Default)]
pub(super) struct Wakeups {
    tracker: Tracker,
    pairs: FxHashMap<(ThreadIndex, ThreadIndex), u64>,
    /// The processes that are watched; `None` for all.
    only: Option<FxHashSet<u32>>,
    own_pid: u32,
}

/// A wakeup of one thread by another.
#[derive(Debug, Clone, Copy)]
struct Woken {
    time: u64,
    cpu: u32,
    waker: Thread,
    wakee: Thread,
}

/// Collects the wakeups of an event.
#[derive(Default)]
struct Collect(Option<Woken>);

impl Facts for Collect {
    fn fact(&mut self, threads: &Threads, fact: Fact) {
        // A new thread is no message.
        let Fact::Woken { thread, cpu, time, waker: Some(waker), is_new: false, .. } = fact else { return };
        if let (Some(&waker), Some(&wakee)) = (threads.get(waker), threads.get(thread)) {
            self.0 = Some(Woken { time, cpu, waker, wakee });
        }
    }
}

impl Wakeups {
    /// Of these processes and what they fork, or of all; without `own_pid`.
    pub(super) fn new(only: Option<FxHashSet<u32>>, own_pid: u32) -> Self {
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

    fn is_watched(&self, pid: u32) -> bool {
        pid != 0 && pid != self.own_pid && self.only.as_ref().is_none_or(|only| only.contains(&pid))
    }

    /// The number of a pair.
    fn pair(&mut self, a: ThreadIndex, b: ThreadIndex) -> Option<u64> {
        let next = self.pairs.len() as u64;
        let pair = (a.min(b), a.max(b));
        if self.pairs.len() >= MAX_PAIRS && !self.pairs.contains_key(&pair) {
            return None;
        }
        Some(*self.pairs.entry(pair).or_insert(next))
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.pairs.capacity() * size_of::<((ThreadIndex, ThreadIndex), u64)>() + self.tracker.threads().bytes()
    }

    pub(super) fn pairs(&self) -> usize {
        self.pairs.len()
    }
}

impl Names {
    /// Adds the samples of these events to `ready`, if that is the source.
    pub(super) fn woken(&mut self, events: &[SchedEvent], ready: &mut Ready) {
        let Some(mut wakeups) = self.wakeups.take() else { return };
        for event in events {
            let mut collect = Collect::default();
            wakeups.tracker.take(event, &mut collect);
            let Some(Woken { time, cpu, waker, wakee }) = collect.0 else { continue };
            if matches!(event.what, SchedWhat::Waking { by: WakenBy::Softirq, .. }) {
                continue;
            }
            if !wakeups.is_watched(waker.pid) || !wakeups.is_watched(wakee.pid) || waker.tid == wakee.tid {
                continue;
            }
            let (Some(a), Some(b)) = (self.user_thread(&waker), self.user_thread(&wakee)) else { continue };
            let Some(pair) = wakeups.pair(a.thread, b.thread) else { continue };
            for half in [a, b] {
                self.records += 1;
                let raw = RawSample { time, cpu, mode: CpuMode::User, access: Access::Update, ..half.raw };
                let memory = Some(MemoryId::Shared { dev: WAKEUPS_DEV, ino: pair, offset: 0 });
                ready.push(Sample { raw, record: self.records, memory, ..half });
            }
        }
        self.wakeups = Some(wakeups);
    }

    /// The thread, unless it is the kernel's: one without any mapping.
    fn user_thread(&mut self, thread: &Thread) -> Option<Sample> {
        let Thread { pid, tid, cgroup, .. } = *thread;
        if !self.maps.has_process(pid) {
            return None;
        }
        let Some(known) = self.threads.resolve(pid, tid) else {
            self.loss.unnamed += 1;
            return None;
        };
        let (index, comm) = (known.index, known.comm);
        let hint = self.hints.as_mut().and_then(|hints| hints.of_sample(pid, tid));
        let raw = RawSample { pid, tid, cgroup, ..RawSample::default() };
        Some(Sample { raw, thread: index, comm: Some(comm), hint, ..Sample::default() })
    }
}
