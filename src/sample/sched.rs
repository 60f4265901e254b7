//! The types of scheduling events, for the kernel's tracepoints and for recordings.

use super::Comm;

/// One event of the scheduler, from a tracepoint of the systems `sched` and `irq` (include/trace/events/sched.h, irq.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedEvent {
    /// CLOCK_MONOTONIC, ns.
    pub time: u64,
    /// The CPU that it happened on.
    pub cpu: u32,
    /// Process id of the thread that ran on the CPU; [`SchedEvent::UNKNOWN`] if the kernel had taken it already (an exiting
    /// thread), 0 for the idle task.
    pub pid: u32,
    /// Thread id of the thread that ran on the CPU: for a wakeup the waker, for a switch the previous thread.
    pub tid: u32,
    /// Id of that thread's cgroup, 0 if unknown.
    pub cgroup: u64,
    /// What happened.
    pub what: SchedWhat,
}

impl SchedEvent {
    /// Stands in [`SchedEvent::pid`] and [`SchedEvent::tid`] for an id that is not known (-1 in the record).
    pub const UNKNOWN: u32 = u32::MAX;
}

/// A thread as a tracepoint describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SchedTask {
    /// Thread id; 0 is the idle task of the CPU.
    pub tid: u32,
    /// The kernel's priority: 0 to 99 real-time, 100 to 139 nice -20 to 19.
    pub prio: i32,
    /// Its name.
    pub comm: Comm,
}

/// What happened to threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SchedWhat {
    /// `sched_switch`: the CPU goes on with another thread.
    Switch {
        /// The thread that ran.
        prev: SchedTask,
        /// Its state from now on.
        state: TaskState,
        /// The thread that runs from now on.
        next: SchedTask,
    },
    /// `sched_waking` (in recordings without it, `sched_wakeup`): a thread becomes runnable.
    Waking {
        /// The thread that is woken.
        task: SchedTask,
        /// The CPU that it is meant for: with `sched_waking`, the one where it ran last.
        target_cpu: u32,
        /// What wakes it.
        by: WakenBy,
    },
    /// `sched_wakeup_new`: a thread is runnable for the first time.
    WakeupNew {
        /// The thread.
        task: SchedTask,
        /// The CPU that it is meant for.
        target_cpu: u32,
    },
    /// `sched_migrate_task`: a thread moves to another CPU.
    Migrate {
        /// The thread.
        task: SchedTask,
        /// The CPU that it leaves.
        from: u32,
        /// The CPU that it is queued on.
        to: u32,
    },
    /// `sched_process_fork`: a thread or process was made.
    Fork {
        /// Thread id of its maker.
        parent: u32,
        /// The new thread.
        child: u32,
        /// Its name.
        comm: Comm,
    },
    /// `sched_process_exec`: the thread runs another program.
    Exec {
        /// Thread id: that of the process.
        tid: u32,
        /// Thread id before; another one if it was not the main thread.
        old_tid: u32,
    },
    /// `sched_process_exit`: the thread begins to exit.
    Exit {
        /// The thread.
        task: SchedTask,
    },
    /// `sched_stat_runtime`: the thread was charged with CPU time.
    Runtime {
        /// The thread.
        task: SchedTask,
        /// ns since the previous such event.
        ns: u64,
    },
    /// `irq_handler_entry`.
    IrqEntry {
        /// Interrupt number.
        irq: u32,
    },
    /// `irq_handler_exit`.
    IrqExit {
        /// Interrupt number.
        irq: u32,
    },
    /// `softirq_entry`.
    SoftirqEntry {
        /// 0 HI, 1 TIMER, 2 NET_TX, 3 NET_RX, 4 BLOCK, 5 IRQ_POLL, 6 TASKLET, 7 SCHED, 8 HRTIMER, 9 RCU.
        vec: u32,
    },
    /// `softirq_exit`.
    SoftirqExit {
        /// As in [`SchedWhat::SoftirqEntry`].
        vec: u32,
    },
    /// A sched_ext scheduler inserts a thread into a dispatch queue (DSQ).
    DsqInsert {
        /// The thread.
        tid: u32,
        /// Id of the DSQ.
        dsq: u64,
        /// ns that it may run; 0 leaves what it has, `u64::MAX` is no limit.
        slice: u64,
        /// It was in another DSQ, from which it is moved.
        is_moved: bool,
    },
    /// A CPU goes on with a thread of a sched_ext scheduler, or from one: comes just before or after the [`SchedWhat::Switch`].
    DsqSwitch {
        /// Thread id of the thread that ran.
        prev: u32,
        /// The DSQ that this thread, which still wants to run, is in now; `None` if it is in none.
        dsq: Option<u64>,
        /// Thread id of the thread that runs from now on.
        next: u32,
        /// ns that it may run; `None` if the scheduler does not schedule it.
        slice: Option<u64>,
    },
    /// A thread's hint was written, or deleted.
    Hint {
        /// The thread.
        tid: u32,
        /// The hint.
        hint: Option<u64>,
    },
    /// Events of the CPU were lost at some time since its previous event.
    Lost,
}

/// What wakes a thread, as the flags of the tracepoint tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum WakenBy {
    /// The thread that the CPU runs, in a system call or a fault.
    #[default]
    Thread,
    /// A softirq. The thread that the CPU runs may have caused it, as when it sends to a socket of its host; or it may only have been
    /// interrupted, as by block I/O of another thread.
    Softirq,
    /// An interrupt, such as a timer's. The thread that the CPU runs has nothing to do with it.
    Interrupt,
}

impl WakenBy {
    /// From the field `common_flags` of a tracepoint (`TRACE_FLAG_*` in include/linux/trace_events.h).
    #[must_use]
    pub fn from_flags(flags: u64) -> Self {
        const SOFTIRQ: u64 = 0x10;
        const HARDIRQ_OR_NMI: u64 = 0x08 | 0x40;
        match flags {
            _ if flags & HARDIRQ_OR_NMI != 0 => Self::Interrupt,
            _ if flags & SOFTIRQ != 0 => Self::Softirq,
            _ => Self::Thread,
        }
    }
}

/// The state of a thread that leaves its CPU (`prev_state` of `sched_switch`, Linux 4.14 and later).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskState {
    /// R: it still wants to run.
    Runnable,
    /// R+: the same; it was preempted in the kernel.
    Preempted,
    /// S, I, P, T and t: it sleeps, is idle, parked or stopped.
    Sleeping,
    /// D: it sleeps and no signal wakes it, mostly for I/O.
    Blocked,
    /// X and Z: it has exited.
    Dead,
}

impl TaskState {
    /// From the field `prev_state`.
    #[must_use]
    pub fn new(prev_state: u64) -> Self {
        const UNINTERRUPTIBLE: u64 = 0x2;
        const EXIT: u64 = 0x10 | 0x20;
        /// `TASK_REPORT_MAX` (include/linux/sched.h).
        const PREEMPTED: u64 = 0x100;
        match prev_state & (PREEMPTED - 1) {
            _ if prev_state & PREEMPTED != 0 => Self::Preempted,
            0 => Self::Runnable,
            state if state & EXIT != 0 => Self::Dead,
            state if state & UNINTERRUPTIBLE != 0 => Self::Blocked,
            _ => Self::Sleeping,
        }
    }

    /// True if it still wants to run: the switch was not its own wish.
    #[must_use]
    pub fn is_runnable(self) -> bool {
        matches!(self, Self::Runnable | Self::Preempted)
    }
}
