//! Thread names: the table from tid to name, kept by fork, comm and exit records, with procfs as its base.

use std::collections::{BTreeSet, VecDeque};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::host::tasks::TaskSeen;
use crate::host::{proc, Roots};
use crate::sample::{Comm, ThreadIndex};
use scxprof_base::tables::Tables;

/// The number of threads that can be distinguished, of 120 bytes each; later ones have no name.
pub(crate) const MAX_THREADS: usize = 1 << 18;
/// Exited threads that are kept to name late samples.
const MAX_EXITED: usize = 1 << 12;
/// Tids that procfs does not know.
const MAX_MISSING: usize = 1 << 16;

/// The name of scxprof's main thread.
const PROFILER: &[u8] = b"scxprof";

/// True for the pids of tasks with a name. 0 is the idle task or a task outside our pid namespace, and -1 a task that is
/// already dead (`perf_event_pid_type` in kernel/events/core.c).
pub(super) fn is_named(pid: u32) -> bool {
    pid != 0 && pid != u32::MAX
}

/// A thread, alive or exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thread {
    /// Its number; a reused tid is a new thread with a new number. An exec keeps it.
    pub index: ThreadIndex,
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Its name as of the last record.
    pub comm: Comm,
    /// Set by its exit; the name stays valid for samples that are a little late.
    pub exited: bool,
}

/// The threads of the host, by tid.
#[derive(Debug, Default)]
pub struct Threads {
    /// `None` if there are only records.
    roots: Option<Roots>,
    by_tid: FxHashMap<u32, Thread>,
    /// Process and thread of living threads: an exec ends all other threads of a process.
    alive: BTreeSet<(u32, u32)>,
    next: ThreadIndex,
    /// Exited threads that are still in `by_tid`, the oldest first.
    exited: VecDeque<(u32, ThreadIndex)>,
    missing: FxHashSet<u32>,
    /// The processes that are a scxprof, by the name of their main thread.
    profilers: FxHashSet<u32>,
    /// Names of threads that did not fit.
    left_out: u64,
    /// The number that the next thread would have had at the call of [`Threads::begin_reseed`].
    reseeding: Option<ThreadIndex>,
}

impl Threads {
    /// An empty table that looks up unknown threads in procfs under `roots`.
    #[must_use]
    pub fn new(roots: &Roots) -> Self {
        Self { roots: Some(roots.clone()), ..Self::default() }
    }

    /// An empty table for a recording, whose records name every thread.
    #[must_use]
    pub fn recorded() -> Self {
        Self::default()
    }

    /// Adds the threads that are not known yet. The snapshot is older than all records: take it after the events are enabled,
    /// and call this before the first record.
    pub fn seed(&mut self, seen: &[TaskSeen]) {
        for task in seen {
            if self.get(task.pid, task.tid).is_none() {
                self.insert(task.pid, task.tid, task.comm);
            }
        }
    }

    /// Call this before taking a snapshot while records arrive: it may be wrong about threads that begin or end meanwhile.
    pub fn begin_reseed(&mut self) {
        self.reseeding = Some(self.next);
    }

    /// Replaces the table by the snapshot after records were lost: names are overwritten, missing threads have exited.
    ///
    /// Threads that began or ended by records since [`Threads::begin_reseed`] stay as in the records: otherwise they would get
    /// another number and count as two.
    pub fn reseed(&mut self, seen: &[TaskSeen]) {
        self.missing.clear();
        let reseeding = self.reseeding.take();
        let live: FxHashSet<(u32, u32)> = seen.iter().map(|task| (task.pid, task.tid)).collect();
        let gone: Vec<(u32, u32)> = self
            .by_tid
            .values()
            .filter(|thread| !thread.exited && !live.contains(&(thread.pid, thread.tid)))
            .filter(|thread| reseeding.is_none_or(|next| thread.index < next))
            .map(|thread| (thread.pid, thread.tid))
            .collect();
        for (pid, tid) in gone {
            self.exit(pid, tid);
        }
        for task in seen {
            if reseeding.is_none() || self.get(task.pid, task.tid).is_none_or(|thread| !thread.exited) {
                self.comm(task.pid, task.tid, task.comm, false);
            }
        }
    }

    /// Its sizes.
    pub(crate) fn measure(&self, tables: &mut Tables) {
        let others = self.alive.len() * 12 + self.exited.capacity() * size_of::<(u32, ThreadIndex)>();
        tables.set_map::<(u32, Thread)>("threads", self.by_tid.len(), self.by_tid.capacity(), others);
        tables.set_map::<u32>("threads not in procfs", self.missing.len(), self.missing.capacity(), 0);
    }

    /// The number and the name of each thread that is known, exited ones included.
    #[must_use]
    pub fn names(&self) -> Vec<(ThreadIndex, Comm)> {
        self.by_tid.values().map(|thread| (thread.index, thread.comm)).collect()
    }

    /// The name of each process's main thread, by the process's id.
    #[must_use]
    pub fn processes(&self) -> Vec<(u32, Comm)> {
        let main = self.by_tid.values().filter(|thread| thread.pid == thread.tid);
        main.map(|thread| (thread.pid, thread.comm)).collect()
    }

    /// Process and thread of those that are alive according to the records, process by process.
    #[must_use]
    pub fn alive(&self) -> Vec<(u32, u32)> {
        self.alive.iter().copied().collect()
    }

    /// A fork record: the thread `tid` of `pid` begins with the name of its parent thread.
    ///
    /// A child of an unknown thread is left to [`Threads::resolve`].
    pub fn fork(&mut self, pid: u32, tid: u32, ppid: u32, ptid: u32) {
        match self.get(ppid, ptid).map(|parent| parent.comm) {
            Some(comm) => self.insert(pid, tid, comm),
            None => self.remove(tid),
        }
    }

    /// A comm record: the thread has a new name, by `prctl` or, with `exec`, by an exec.
    pub fn comm(&mut self, pid: u32, tid: u32, comm: Comm, exec: bool) {
        match self.by_tid.get_mut(&tid) {
            Some(thread) if thread.pid == pid && !thread.exited => {
                thread.comm = comm;
                self.note_profiler(pid, tid, comm);
            }
            _ => {
                if exec {
                    self.take_over(pid);
                }
                self.insert(pid, tid, comm);
            }
        }
    }

    /// A thread other than the leader that calls exec gets the leader's tid, after the leader and all others have exited
    /// (`de_thread` in fs/exec.c). No record says that its own tid ends.
    fn take_over(&mut self, pid: u32) {
        let others: Vec<u32> = self.alive.range((pid, 0)..=(pid, u32::MAX)).map(|&(_, tid)| tid).collect();
        for tid in others {
            self.exit(pid, tid);
        }
    }

    fn lives(&self, pid: u32) -> bool {
        self.alive.range((pid, 0)..=(pid, u32::MAX)).next().is_some()
    }

    /// An exit record. True if no other thread of the process is known to be alive.
    pub fn exit(&mut self, pid: u32, tid: u32) -> bool {
        let Some(thread) = self.by_tid.get_mut(&tid).filter(|thread| thread.pid == pid && !thread.exited) else {
            return !self.lives(pid);
        };
        thread.exited = true;
        self.exited.push_back((tid, thread.index));
        self.alive.remove(&(pid, tid));
        if self.exited.len() > MAX_EXITED {
            if let Some((tid, index)) = self.exited.pop_front() {
                if self.by_tid.get(&tid).is_some_and(|thread| thread.index == index) {
                    self.by_tid.remove(&tid);
                }
            }
        }
        !self.lives(pid)
    }

    /// The thread, if a record or a snapshot has named it.
    #[must_use]
    pub fn get(&self, pid: u32, tid: u32) -> Option<&Thread> {
        self.by_tid.get(&tid).filter(|thread| thread.pid == pid)
    }

    /// The thread; an unknown one is looked up in procfs, once.
    ///
    /// `None` for pid 0 (the idle task, or a task outside our pid namespace) and for threads that procfs does not know.
    pub fn resolve(&mut self, pid: u32, tid: u32) -> Option<&Thread> {
        if self.get(pid, tid).is_none() {
            self.look_up(pid, tid);
        }
        self.get(pid, tid)
    }

    fn look_up(&mut self, pid: u32, tid: u32) {
        if !is_named(pid) || !is_named(tid) || self.missing.contains(&tid) {
            return;
        }
        let Some(roots) = &self.roots else { return };
        if let Some(comm) = proc::comm(&roots.proc.join(format!("{pid}/task/{tid}"))) {
            self.insert(pid, tid, comm);
            if self.get(pid, tid).is_some() {
                return;
            }
        }
        if self.missing.len() >= MAX_MISSING {
            self.missing.clear();
        }
        self.missing.insert(tid);
    }

    /// What did not fit, in a sentence.
    pub(crate) fn left_out(&self) -> Option<String> {
        let left_out = self.left_out;
        (left_out > 0).then(|| {
            format!("{left_out} names were left out, of more threads than the {MAX_THREADS} that are told apart")
        })
    }

    fn insert(&mut self, pid: u32, tid: u32, comm: Comm) {
        if !is_named(pid) || !is_named(tid) {
            return;
        }
        self.remove(tid);
        if self.by_tid.len() >= MAX_THREADS {
            self.left_out += 1;
            return;
        }
        let thread = Thread { index: self.next, pid, tid, comm, exited: false };
        self.next = self.next.wrapping_add(1);
        self.by_tid.insert(tid, thread);
        self.alive.insert((pid, tid));
        self.note_profiler(pid, tid, comm);
    }

    /// Notes whether a process is a scxprof, by the name that its main thread has now.
    fn note_profiler(&mut self, pid: u32, tid: u32, comm: Comm) {
        if pid == tid && comm.as_bytes() == PROFILER {
            self.profilers.insert(pid);
        } else if pid == tid && !self.profilers.is_empty() {
            self.profilers.remove(&pid);
        }
    }

    /// True for a process that is a scxprof.
    pub(crate) fn is_profiler(&self, pid: u32) -> bool {
        !self.profilers.is_empty() && self.profilers.contains(&pid)
    }

    /// Removes the tid, which has been reused or will be soon.
    fn remove(&mut self, tid: u32) {
        self.missing.remove(&tid);
        if let Some(old) = self.by_tid.remove(&tid).filter(|old| !old.exited) {
            self.alive.remove(&(old.pid, tid));
        }
    }
}

#[cfg(test)]
mod tests;
