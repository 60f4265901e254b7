//! The threads that are followed, and what each of them does at this time.

use rustc_hash::FxHashMap;

use scxprof_base::sample::sched::SchedEvent;
use scxprof_base::sample::{Comm, TaskHint};

/// Threads that are followed at a time, of about 100 bytes each; events of later ones are counted.
const MAX_THREADS: usize = 1 << 18;

/// The number of a thread in [`Threads`]; the next thread has it after a [`Fact::Ended`](super::Fact::Ended).
pub type Slot = u32;

/// A thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thread {
    /// Thread id.
    pub tid: u32,
    /// Process id; 0 as long as the thread caused no event itself.
    pub pid: u32,
    /// Its name, as of the last event that has it.
    pub comm: Comm,
    /// Id of its cgroup, as of its last event; 0 if unknown.
    pub cgroup: u64,
    /// Its task hint, if hints are followed.
    pub hint: TaskHint,
    /// An event has named it, rather than only come from it.
    pub(super) is_named: bool,
    pub(super) state: ThreadState,
    pub(super) dsq: Option<Dsq>,
}

/// The dispatch queue that a thread is in, or was in before it got its CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dsq {
    pub id: u64,
    pub since: u64,
    /// It is in it now.
    pub is_queued: bool,
    /// How long it may run since is known.
    pub is_granted: bool,
}

/// What a thread may change while it lives, and a scheduler's configuration may match beside its name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Home {
    /// Id of the cgroup; 0 if unknown.
    pub cgroup: u64,
    /// The task hint, if hints are followed.
    pub hint: TaskHint,
}

impl Thread {
    /// Its cgroup and its hint.
    #[must_use]
    pub fn home(&self) -> Home {
        Home { cgroup: self.cgroup, hint: self.hint }
    }

    /// Since when it sleeps, and whether it does so uninterruptibly (D); `None` if it does not sleep.
    #[must_use]
    pub fn sleeps(&self) -> Option<(u64, bool)> {
        match self.state {
            ThreadState::Sleeping { since, is_blocked } => Some((since, is_blocked)),
            _ => None,
        }
    }

    /// Since when it waits for a CPU, and why; `None` if it does not wait.
    #[must_use]
    pub fn waits(&self) -> Option<(u64, Why)> {
        match self.state {
            ThreadState::Waiting { since, why } => Some((since, why)),
            _ => None,
        }
    }
}

/// Why a thread waits for a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It was woken, by this thread; `None` for an interrupt.
    Woken(Option<Slot>),
    /// It is new.
    New,
    /// Another thread got its CPU.
    Preempted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ThreadState {
    /// Nothing is known, as before its first event and after a loss.
    Unknown,
    Running {
        since: u64,
    },
    Waiting {
        since: u64,
        why: Why,
    },
    Sleeping {
        since: u64,
        is_blocked: bool,
    },
}

/// The threads that are followed.
#[derive(Debug, Default)]
pub struct Threads {
    pub(super) slots: Vec<Thread>,
    pub(super) free: Vec<Slot>,
    pub(super) by_tid: FxHashMap<u32, Slot>,
    /// The hints of threads, by their id: one may come before the first event of its thread. `None` while they are not followed.
    pub(super) hints: Option<FxHashMap<u32, u64>>,
    pub(super) had_hint: bool,
}

impl Threads {
    /// The thread.
    #[must_use]
    pub fn get(&self, slot: Slot) -> Option<&Thread> {
        self.slots.get(slot as usize)
    }

    /// The slot of the thread with this id, if it lives.
    #[must_use]
    pub fn find(&self, tid: u32) -> Option<Slot> {
        self.by_tid.get(&tid).copied()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, &Thread)> {
        self.by_tid.values().filter_map(|&slot| Some((slot, self.get(slot)?)))
    }

    /// True if hints are followed, and a thread had one.
    #[must_use]
    pub fn have_hints(&self) -> bool {
        self.had_hint
    }

    /// Their number.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_tid.len()
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_tid.is_empty()
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Thread>()
            + self.free.capacity() * size_of::<Slot>()
            + self.by_tid.capacity() * (size_of::<(u32, Slot)>() + 1)
            + self.hints.as_ref().map_or(0, |hints| hints.capacity() * (size_of::<(u32, u64)>() + 1))
    }

    /// A copy of those that are wanted, as they are now.
    pub(super) fn copy_of(&self, is_wanted: impl Fn(Slot) -> bool) -> Self {
        let wanted = self.by_tid.iter().filter(|(_, &slot)| is_wanted(slot)).map(|(&tid, &slot)| (tid, slot));
        Self { slots: self.slots.clone(), by_tid: wanted.collect(), had_hint: self.had_hint, ..Self::default() }
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut Thread> {
        self.slots.get_mut(slot as usize)
    }

    /// The slot of a thread, a new one if it is not known; `None` for the idle task and if there are too many.
    pub(super) fn slot(&mut self, tid: u32) -> Option<Slot> {
        if tid == 0 || tid == SchedEvent::UNKNOWN {
            return None;
        }
        if let Some(&slot) = self.by_tid.get(&tid) {
            return Some(slot);
        }
        let (comm, state) = (Comm::default(), ThreadState::Unknown);
        let hint = self.hints.as_ref().map_or(TaskHint::Unknown, |hints| hints.get(&tid).copied().into());
        let thread = Thread { tid, pid: 0, comm, cgroup: 0, hint, is_named: false, state, dsq: None };
        let slot = if let Some(slot) = self.free.pop() {
            *self.get_mut(slot)? = thread;
            slot
        } else {
            if self.slots.len() >= MAX_THREADS {
                return None;
            }
            self.slots.push(thread);
            self.slots.len() as Slot - 1
        };
        self.by_tid.insert(tid, slot);
        Some(slot)
    }
}
