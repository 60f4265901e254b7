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
        /// The target CPU: with `sched_waking`, the one on which it ran last.
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

/// What the bits of `prev_state` mean, which Linux 4.14 changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateBits {
    /// X, Z and x: the thread has ended.
    dead: u64,
    /// N: an uninterruptible sleep that is idleness (I).
    idle: u64,
    /// R+: all bits below it are states.
    preempted: u64,
}

impl Default for StateBits {
    /// Those of Linux 4.14 and later.
    fn default() -> Self {
        Self { dead: 0x10 | 0x20, idle: 0, preempted: 0x100 }
    }
}

impl StateBits {
    /// Those of a kernel by its release (`uname -r`); of one that is not known as of today.
    #[must_use]
    pub fn of_release(release: &str) -> Self {
        let mut parts = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse::<u32>);
        let (Some(Ok(major)), Some(Ok(minor))) = (parts.next(), parts.next()) else { return Self::default() };
        // `TASK_STATE_MAX` of include/linux/sched.h grew with each new state.
        let preempted = match (major, minor) {
            (5.., _) | (4, 14..) => return Self::default(),
            (4, 8..) => 0x1000,
            (4, 2..) => 0x800,
            (4, _) | (3, 9..) => 0x400,
            _ => 0x200,
        };
        // `TASK_NOLOAD` came with 4.2.
        let idle = if preempted >= 0x800 { 0x400 } else { 0 };
        Self { dead: 0x10 | 0x20 | 0x40, idle, preempted }
    }

    /// Those that the format of `sched_switch` prints (`{ 0x01, "S" }, ...`); `None` if it does not name them.
    #[must_use]
    pub fn of_format(text: &str) -> Option<Self> {
        let print = text.split_once("print fmt:")?.1;
        let mut bits = Self { dead: 0, idle: 0, preempted: 0 };
        let mut highest = 0;
        for part in print.split('{').skip(1) {
            let Some((number, letter)) = part.split_once('}').and_then(|(pair, _)| pair.split_once(',')) else {
                continue;
            };
            let number = number_of(number)?;
            match letter.trim().trim_matches('"') {
                "X" | "Z" | "x" => bits.dead |= number,
                "N" => bits.idle |= number,
                _ => {}
            }
            highest = highest.max(number);
        }
        if bits.dead == 0 {
            return None;
        }
        // `REC->prev_state & 4096 ? "+"` of older kernels, an expression of all states in newer ones.
        let condition = print.split_once("? \"+\"")?.0.rsplit_once("prev_state &")?.1;
        bits.preempted = number_of(condition).filter(|bit| bit.is_power_of_two()).or(highest.checked_mul(2))?;
        Some(bits)
    }

    /// The state that a value of `prev_state` stands for.
    #[must_use]
    pub fn state(self, prev_state: u64) -> TaskState {
        const UNINTERRUPTIBLE: u64 = 0x2;
        if prev_state & self.preempted != 0 {
            return TaskState::Preempted;
        }
        match prev_state & self.preempted.wrapping_sub(1) {
            0 => TaskState::Runnable,
            state if state & self.dead != 0 => TaskState::Dead,
            state if state & UNINTERRUPTIBLE != 0 && state & self.idle == 0 => TaskState::Blocked,
            _ => TaskState::Sleeping,
        }
    }
}

/// A decimal or hexadecimal number.
fn number_of(text: &str) -> Option<u64> {
    let text = text.trim();
    text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |hex| u64::from_str_radix(hex, 16).ok())
}

/// What wakes a thread, according to the flags of the tracepoint.
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

    /// Flags that [`WakenBy::from_flags`] reads as this.
    #[must_use]
    pub fn to_flags(self) -> u64 {
        match self {
            Self::Thread => 0,
            Self::Softirq => 0x10,
            Self::Interrupt => 0x08,
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

impl SchedWhat {
    /// Its name: the kernel's event, and scxprof's names for events without a tracepoint.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Switch { .. } => "sched_switch",
            Self::Waking { .. } => "sched_waking",
            Self::WakeupNew { .. } => "sched_wakeup_new",
            Self::Migrate { .. } => "sched_migrate_task",
            Self::Fork { .. } => "sched_process_fork",
            Self::Exec { .. } => "sched_process_exec",
            Self::Exit { .. } => "sched_process_exit",
            Self::Runtime { .. } => "sched_stat_runtime",
            Self::IrqEntry { .. } => "irq_handler_entry",
            Self::IrqExit { .. } => "irq_handler_exit",
            Self::SoftirqEntry { .. } => "softirq_entry",
            Self::SoftirqExit { .. } => "softirq_exit",
            Self::DsqInsert { .. } => "sched_ext:dsq_insert",
            Self::DsqSwitch { .. } => "sched_ext:dsq_switch",
            Self::Hint { .. } => "hint",
            Self::Lost => "lost",
        }
    }
}

impl TaskState {
    /// Its letters, as the kernel prints them.
    #[must_use]
    pub fn letters(self) -> &'static str {
        match self {
            Self::Runnable => "R",
            Self::Preempted => "R+",
            Self::Sleeping => "S",
            Self::Blocked => "D",
            Self::Dead => "X",
        }
    }

    /// From the field `prev_state` of Linux 4.14 and later; see [`StateBits`] for all kernels.
    #[must_use]
    pub fn new(prev_state: u64) -> Self {
        StateBits::default().state(prev_state)
    }

    /// True if it still wants to run: the switch was not its own wish.
    #[must_use]
    pub fn is_runnable(self) -> bool {
        matches!(self, Self::Runnable | Self::Preempted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_of_a_state_are_those_of_its_kernel() {
        use TaskState::{Blocked, Dead, Preempted, Sleeping};
        let states = |release: &str, bits: [u64; 4]| bits.map(|bits| StateBits::of_release(release).state(bits));
        assert_eq!(states("4.4.302", [0x800, 0x402, 0x40, 0x82]), [Preempted, Sleeping, Dead, Blocked]);
        assert_eq!(states("4.9.0-12-amd64", [0x1000, 0x402, 0x40, 0x200]), [Preempted, Sleeping, Dead, Sleeping]);
        for release in ["4.14.336", "5.4.0-90-generic", "5.10.1", "6.1.0", "6.18.0-rc1", "", "unknown"] {
            assert_eq!(states(release, [0x100, 0x80, 0x40, 0x20]), [Preempted, Sleeping, Sleeping, Dead], "{release}");
        }
    }

    #[test]
    fn the_bits_of_a_state_are_taken_from_the_format() {
        let old = r#"print fmt: "%s%s", REC->prev_state & (4096-1) ? __print_flags(REC->prev_state & (4096-1), "|",
            { 1, "S"} , { 2, "D" }, { 16, "Z" }, { 32, "X" }, { 64, "x" }, { 1024, "N" }) : "R",
            REC->prev_state & 4096 ? "+" : """#;
        assert_eq!(StateBits::of_format(old), Some(StateBits::of_release("4.9")));
        let new = r#"print fmt: "%s%s", (REC->prev_state & ((((0x00 | 0x01 | 0x40) + 1) << 1) - 1)) ? __print_flags(
            REC->prev_state & 255, "|", { 0x01, "S" }, { 0x02, "D" }, { 0x10, "X" }, { 0x20, "Z" }, { 0x40, "P" },
            { 0x80, "I" }) : "R", REC->prev_state & (((0x00 | 0x01 | 0x40) + 1) << 1) ? "+" : """#;
        assert_eq!(StateBits::of_format(new), Some(StateBits::default()));
        assert_eq!(StateBits::of_format("print fmt: \"...\""), None);
    }
}
