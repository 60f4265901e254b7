//! Facts about threads and CPUs, from which statistics are made.

use super::threads::{Home, Slot, Threads, Why};
use scxprof_base::sample::sched::TaskState;

/// A fact that follows from the events. Times are CLOCK_MONOTONIC, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    /// A CPU switched. `None` is the idle task, or a thread beyond the bound.
    Switched {
        /// The CPU.
        cpu: u32,
        /// The thread that ran.
        prev: Option<Slot>,
        /// Its state.
        state: TaskState,
        /// The thread that runs now.
        next: Option<Slot>,
        /// False if it is the idle task that ran.
        is_thread: bool,
        /// No event has named the next thread before.
        is_first: bool,
    },
    /// A CPU was used from one switch to the next.
    Ran {
        /// The CPU.
        cpu: u32,
        /// The thread; `None` for the idle task.
        thread: Option<Slot>,
        /// False if it is the idle task.
        is_thread: bool,
        /// The beginning.
        from: u64,
        /// The end.
        until: u64,
    },
    /// A thread was runnable until it ran.
    Waited {
        /// The thread.
        thread: Slot,
        /// The CPU that it ran on then.
        cpu: u32,
        /// The beginning.
        from: u64,
        /// The end.
        until: u64,
        /// Why.
        why: Why,
    },
    /// A thread slept until it was woken.
    Slept {
        /// The thread.
        thread: Slot,
        /// The beginning.
        from: u64,
        /// The end.
        until: u64,
        /// The sleep was uninterruptible (D).
        is_blocked: bool,
    },
    /// A thread was woken, or begins.
    Woken {
        /// The thread.
        thread: Slot,
        /// The CPU where the waker ran.
        cpu: u32,
        /// The CPU that it is meant for.
        target_cpu: u32,
        /// The time.
        time: u64,
        /// The thread that ran there; `None` for an interrupt.
        waker: Option<Slot>,
        /// It is new.
        is_new: bool,
    },
    /// A thread got the CPU of one that still wanted to run.
    Preempted {
        /// The one that ran.
        thread: Slot,
        /// The one that runs now; `None` for the idle task.
        by: Option<Slot>,
    },
    /// A thread moved.
    Migrated {
        /// The thread.
        thread: Slot,
        /// The CPU that it left.
        from: u32,
        /// The CPU that it moved to.
        to: u32,
    },
    /// A thread was seen in another cgroup, or with another hint; the thread still has the one before.
    Left {
        /// The thread.
        thread: Slot,
        /// The cgroup and the hint that it has now.
        to: Home,
    },
    /// A thread was charged with this number of ns of CPU time.
    Charged {
        /// The thread.
        thread: Slot,
        /// ns.
        ns: u64,
    },
    /// An interrupt, or a softirq, was handled.
    Handled {
        /// The CPU.
        cpu: u32,
        /// ns, without those that interrupted it.
        ns: u64,
        /// It is a softirq.
        is_soft: bool,
    },
    /// A thread of a sched_ext scheduler was put into a dispatch queue (DSQ).
    Queued {
        /// The thread.
        thread: Slot,
        /// The DSQ.
        dsq: u64,
        /// The time.
        time: u64,
        /// Which party put it there.
        by: QueuedBy,
    },
    /// A thread got a CPU from a DSQ.
    Dispatched {
        /// The thread.
        thread: Slot,
        /// The DSQ.
        dsq: u64,
        /// When it was put there.
        from: u64,
        /// When it got the CPU.
        until: u64,
    },
    /// A thread left a DSQ, or what became of it is not known, before it got a CPU.
    Unqueued {
        /// The DSQ.
        dsq: u64,
        /// The time.
        time: u64,
    },
    /// A thread of a sched_ext scheduler got a CPU, and may run for so long.
    Slice {
        /// The DSQ that it was in; `None` if it was in none that is known.
        dsq: Option<u64>,
        /// ns; `u64::MAX` is no limit.
        ns: u64,
    },
    /// Events of the CPU were lost in this time.
    Lost {
        /// The CPU.
        cpu: u32,
        /// The last event before.
        from: u64,
        /// When it was said.
        until: u64,
    },
    /// Events of the CPU are missing, and no loss was reported for them.
    Missed {
        /// The CPU.
        cpu: u32,
    },
    /// What a thread did during a loss is not known.
    Touched {
        /// The thread.
        thread: Slot,
    },
    /// The thread has ended; its slot is given to another one.
    Ended {
        /// The thread.
        thread: Slot,
    },
}

/// The party that put a thread into a dispatch queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueuedBy {
    /// The scheduler inserted it.
    Scheduler,
    /// The scheduler moved it from another DSQ.
    Move,
    /// The kernel itself, as for a thread that has time left when another one takes its CPU.
    Kernel,
}

/// Takes facts.
pub trait Facts {
    /// One fact; `threads` has those that it names.
    fn fact(&mut self, threads: &Threads, fact: &Fact);
}
