//! The events of a trace, typed. Scheduling events are those of live captures and recordings
//! ([`SchedEvent`](scxprof_base::sample::sched::SchedEvent)), so that the same code makes statistics of them.

use super::names::Name;
use super::stacks::StackId;
use scxprof_base::sample::sched::{SchedEvent, SchedWhat};
use scxprof_base::sample::Comm;

/// An event of a trace, in order of time.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A scheduling event. Its time is BOOTTIME in ns, as all times of a trace.
    Sched(SchedEvent),
    /// Any other one.
    Trace(TraceEvent),
}

impl Event {
    /// BOOTTIME, ns.
    #[must_use]
    pub fn time(&self) -> u64 {
        match self {
            Self::Sched(event) => event.time,
            Self::Trace(event) => event.time,
        }
    }

    /// The scheduling event that it is; the beginnings of wprof's times in a dispatch queue are insertions.
    #[must_use]
    pub fn scheduling(&self) -> Option<SchedEvent> {
        match *self {
            Self::Sched(event) => Some(event),
            Self::Trace(TraceEvent {
                time,
                cpu,
                tid,
                what: TraceWhat::Dsq { is_begin: true, dsq: Some(dsq), .. },
                ..
            }) => {
                let what = SchedWhat::DsqInsert { tid, dsq, slice: 0, is_moved: false };
                Some(SchedEvent { time, cpu, pid: SchedEvent::UNKNOWN, tid: SchedEvent::UNKNOWN, cgroup: 0, what })
            }
            Self::Trace(_) => None,
        }
    }
}

/// An event that does not come from the scheduler.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceEvent {
    /// BOOTTIME, ns.
    pub time: u64,
    /// The CPU that it happened on; [`TraceEvent::UNKNOWN`] if the trace does not say it.
    pub cpu: u32,
    /// Process id of the thread that ran, or of the track; [`TraceEvent::UNKNOWN`] if it is not known.
    pub pid: u32,
    /// Its thread id, 0 for the idle task; [`TraceEvent::UNKNOWN`] if it is not known.
    pub tid: u32,
    /// What happened.
    pub what: TraceWhat,
}

impl TraceEvent {
    /// Stands for a CPU or an id that is not known.
    pub const UNKNOWN: u32 = u32::MAX;
}

/// The number of a track in [`Tracks`](super::Tracks).
pub type TrackId = u32;

/// What happened.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum TraceWhat {
    /// `sched_wakeup` in a trace that has `sched_waking`: the woken thread is on a run queue.
    Wakeup {
        /// The thread.
        tid: u32,
        /// The CPU on whose run queue it is.
        target_cpu: u32,
    },
    /// `sched_blocked_reason`: a thread slept uninterruptibly.
    Blocked {
        /// The thread.
        tid: u32,
        /// It waited for I/O.
        io: bool,
    },
    /// `task_rename`.
    Rename {
        /// The thread.
        tid: u32,
        /// Its new name.
        comm: Comm,
    },
    /// `task_newtask`, which comes before `sched_process_fork`.
    NewTask {
        /// The thread.
        tid: u32,
        /// `CLONE_THREAD`: a thread of the same process.
        is_thread: bool,
    },
    /// `sched_process_free`: nothing refers to the thread any more.
    Free {
        /// The thread.
        tid: u32,
    },
    /// `softirq_raise`.
    SoftirqRaise {
        /// As in [`SchedWhat::SoftirqEntry`](scxprof_base::sample::sched::SchedWhat::SoftirqEntry).
        vec: u32,
    },
    /// A request to a block device.
    Block {
        /// The step; (`dev`, `sector`) say which request.
        step: BlockStep,
        /// Number of the device: major << 20 | minor.
        dev: u64,
        /// Its first sector.
        sector: u64,
        /// Bytes; of a completion, sectors of 512 bytes times 512.
        bytes: u64,
        /// It writes.
        write: bool,
        /// errno of a completion, 0 for none.
        error: i32,
    },
    /// A packet of the network.
    Net {
        /// Sent (`net_dev_xmit`); else received (`netif_receive_skb`).
        is_sent: bool,
        /// Bytes.
        bytes: u64,
        /// The device.
        device: Name,
    },
    /// Pages of memory.
    Page {
        /// Allocated (`mm_page_alloc`); else freed.
        is_alloc: bool,
        /// 2 to the power of this many pages.
        order: u32,
        /// The first page.
        pfn: u64,
    },
    /// `mm_vmscan_direct_reclaim_begin`: an allocation must free pages first.
    ReclaimBegin {
        /// Of the allocation.
        order: u32,
    },
    /// `mm_vmscan_direct_reclaim_end`.
    ReclaimEnd {
        /// Pages.
        reclaimed: u64,
    },
    /// `ext4_sync_file_enter`.
    SyncEnter {
        /// Number of the device.
        dev: u64,
        /// Inode.
        inode: u64,
    },
    /// `ext4_sync_file_exit`.
    SyncExit {
        /// Number of the device.
        dev: u64,
        /// Inode.
        inode: u64,
        /// 0, or a negative errno.
        result: i32,
    },
    /// `cpu_frequency`.
    CpuFrequency {
        /// The CPU whose frequency it is.
        cpu: u32,
        /// kHz.
        khz: u64,
    },
    /// `cpu_idle`.
    CpuIdle {
        /// The CPU.
        cpu: u32,
        /// The idle state that it enters; `None`: it leaves it.
        state: Option<u32>,
    },
    /// `suspend_resume`.
    Suspend {
        /// What the kernel does.
        action: Name,
        /// Its argument.
        value: i64,
        /// It begins; else it ends.
        is_begin: bool,
    },
    /// An interrupt is sent to another CPU.
    IpiSend {
        /// That CPU; `None` if there are several, or it is not known.
        target: Option<u32>,
        /// Its kind, if it is known.
        kind: Name,
    },
    /// An interrupt from another CPU, or a vector of the local interrupt controller (`irq_vectors`), is handled from now on.
    IpiEntry {
        /// Its kind, such as `reschedule`.
        kind: Name,
        /// ns since it was sent, if it is known.
        delay: Option<u64>,
    },
    /// The end of it.
    IpiExit {
        /// Its kind.
        kind: Name,
        /// ns since it was sent until its entry, if it is known only now.
        delay: Option<u64>,
    },
    /// `workqueue_execute_start`.
    WorkBegin {
        /// Which item of work it is: an address, or a track.
        work: u64,
        /// Its function or name, if it is known.
        name: Name,
    },
    /// `workqueue_execute_end`.
    WorkEnd {
        /// As before.
        work: u64,
    },
    /// wprof's time of a thread in a dispatch queue of a sched_ext scheduler: one edge of it.
    Dsq {
        /// It was inserted; else it runs or leaves it.
        is_begin: bool,
        /// The queue, if it is known.
        dsq: Option<u64>,
        /// The layer of scx_layered.
        layer: Option<u64>,
        /// `DSQ:KIND_ID`.
        name: Name,
    },
    /// What wprof says of a switch to the thread of this event.
    Waited {
        /// ns since it was woken or preempted.
        delay: Option<u64>,
        /// woken, woken_new, preempted or unknown.
        reason: Name,
        /// ns of all waits of the chain of wakeups that led to it.
        compound: Option<u64>,
        /// Waits of that chain.
        chain: Option<u64>,
        /// The DSQ it came from.
        dsq: Option<u64>,
        /// Its layer.
        layer: Option<u64>,
    },
    /// wprof says which NUMA node a CPU is of: for the first time, or another one than before.
    Node {
        /// The CPU.
        cpu: u32,
        /// The number of the node.
        node: u32,
    },
    /// How far a hardware counter of wprof came while the thread was on its CPU.
    Pmu {
        /// `pmu:NAME`.
        counter: Name,
        /// Counts.
        delta: f64,
    },
    /// A slice or an instant of a track that has no type of its own.
    Slice {
        /// Beginning, end or instant.
        edge: Edge,
        /// Its track.
        track: TrackId,
        /// Its first category.
        category: Name,
        /// Its name; an end may have none.
        name: Name,
        /// Its first flow.
        flow: Option<u64>,
        /// Its annotations.
        args: Args,
    },
    /// A value of a counter track.
    Counter {
        /// Its track.
        track: TrackId,
        /// The value, in the track's unit.
        value: f64,
    },
    /// The call stack of the slice or instant of the track before it, or of the end of one; of wprof, where the thread left its
    /// CPU (`ONCPU`) or woke another one (`WAKER`).
    Stack {
        /// The category of the slice.
        category: Name,
        /// See [`Trace::stack`](super::Trace::stack).
        stack: StackId,
    },
    /// A sample of a profiler (`perf_sample`).
    Sample {
        /// Where the thread was; `None` if the profiler could not unwind it.
        stack: Option<StackId>,
        /// It ran in the kernel.
        in_kernel: bool,
    },
    /// An event of ftrace without a type of its own.
    Other {
        /// `group:event`, or its field number.
        event: Name,
    },
}

/// The step of a request to a block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockStep {
    /// `block_rq_insert`: it is queued.
    Insert,
    /// `block_rq_issue`: the device gets it.
    Issue,
    /// `block_rq_complete`.
    Complete,
}

/// Which part of a slice an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// It begins.
    Begin,
    /// The last one that began on the track ends.
    End,
    /// It has no duration.
    Instant,
}

/// A value of an annotation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arg {
    /// A signed integer.
    Int(i64),
    /// An unsigned integer, a bool or a pointer.
    Uint(u64),
    /// A floating-point number.
    Double(f64),
    /// A text.
    Text(Name),
}

impl Arg {
    /// As an integer that is not negative; of older traces also from text.
    fn uint(self, names: &super::Names) -> Option<u64> {
        match self {
            Self::Uint(value) => Some(value),
            Self::Int(value) => u64::try_from(value).ok(),
            Self::Double(value) => (value >= 0.0 && value.fract() == 0.0).then_some(value as u64),
            Self::Text(name) => std::str::from_utf8(names.text(name)).ok()?.parse().ok(),
        }
    }

    fn float(self) -> Option<f64> {
        match self {
            Self::Uint(value) => Some(value as f64),
            Self::Int(value) => Some(value as f64),
            Self::Double(value) => Some(value).filter(|value| value.is_finite()),
            Self::Text(_) => None,
        }
    }
}

/// The annotations of a slice.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Args(pub(super) Box<[(Name, Arg)]>);

impl Args {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (Name, Arg)> + '_ {
        self.0.iter().copied()
    }

    /// The value of the first annotation of this name.
    #[must_use]
    pub fn get(&self, name: Name) -> Option<Arg> {
        self.iter().find(|(its, _)| *its == name).map(|(_, arg)| arg)
    }

    pub(super) fn uint(&self, name: Name, names: &super::Names) -> Option<u64> {
        self.get(name)?.uint(names)
    }

    pub(super) fn id(&self, name: Name, names: &super::Names) -> Option<u32> {
        u32::try_from(self.uint(name, names)?).ok()
    }

    /// A duration of microseconds, in ns.
    pub(super) fn us(&self, name: Name) -> Option<u64> {
        let us = self.get(name)?.float().filter(|us| *us >= 0.0)?;
        Some((us * 1e3).round() as u64)
    }

    pub(super) fn text(&self, name: Name) -> Option<Name> {
        match self.get(name)? {
            Arg::Text(name) => Some(name),
            _ => None,
        }
    }
}
