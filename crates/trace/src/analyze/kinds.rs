//! The table of analysers, and the events that each needs.

use serde::{Serialize, Serializer};

use crate::{Info, Source};

/// The engine that an analyser is a part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// Runs and waits of threads, with their cause.
    Runs,
    /// Something begins and ends.
    Pairs,
    /// A value holds until the next one.
    Steps,
    /// Events are counted.
    Counts,
}

/// A kind of events. Recorders have different names for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// Switches between threads.
    Switch,
    /// Wakeups, as they begin.
    Waking,
    /// Wakeups, as the thread is put on a run queue.
    Wakeup,
    /// Interrupts and softirqs.
    Irq,
    /// Interrupts between CPUs.
    Ipi,
    /// Requests that a block device gets.
    BlockIssue,
    /// Requests that a block device has done.
    BlockComplete,
    /// Packets of the network.
    Net,
    /// fsync begins.
    SyncEnter,
    /// fsync ends.
    SyncExit,
    /// Pages are allocated or freed, or an allocation has to free some first.
    Memory,
    /// A CPU's frequency changes.
    Frequency,
    /// A CPU enters or leaves an idle state.
    Idle,
    /// Steps of suspend and resume.
    Suspend,
    /// Times in dispatch queues of a sched_ext scheduler.
    Dsq,
    /// Times in dispatch queues, or their lengths.
    DsqAny,
    /// Requests of a service, as wprof records them.
    Request,
    /// Waits of chains of wakeups, as wprof adds them up.
    Compound,
    /// Not of the trace: which CPUs share a last-level cache.
    Llc,
}

impl EventKind {
    /// What it is called in messages: the kernel's name of the event.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Switch => "sched_switch",
            Self::Waking => "sched_waking (or sched_wakeup)",
            Self::Wakeup => "sched_wakeup beside sched_waking",
            Self::Irq => "irq_handler_entry or softirq_entry, with their exit",
            Self::Ipi => "ipi_entry, ipi_raise or irq_vectors",
            Self::BlockIssue => "block_rq_issue",
            Self::BlockComplete => "block_rq_complete",
            Self::Net => "net_dev_xmit or netif_receive_skb",
            Self::SyncEnter => "ext4_sync_file_enter",
            Self::SyncExit => "ext4_sync_file_exit",
            Self::Memory => "mm_page_alloc, mm_page_free or mm_vmscan_direct_reclaim_begin",
            Self::Frequency => "cpu_frequency",
            Self::Idle => "cpu_idle",
            Self::Suspend => "suspend_resume",
            Self::Dsq => "SCX_DSQ slices of wprof, or a profile of a sched_ext scheduler",
            Self::DsqAny => {
                "SCX_DSQ slices of wprof, counters of dispatch queues of scxtop, or a profile of a sched_ext scheduler"
            }
            Self::Request => "REQUEST slices of wprof (wprof -f req)",
            Self::Compound => "compound_delay_us of wprof (wprof -e sched-extras)",
            Self::Llc => "the last-level caches of CPUs (--llc 0-7,8-15)",
        }
    }

    /// Its names in [`Info::events`], of ftrace and of wprof; a name that ends with `*` stands for all that begin so.
    fn names(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Self::Switch => (&["sched_switch"], &["track:ONCPU"]),
            Self::Waking => (
                &["sched_waking", "sched_wakeup", "sched_wakeup_new"],
                &["track:WAKER", "track:WAKER_NEW", "track:WAKEE", "track:WAKEE_NEW"],
            ),
            Self::Wakeup => (&["sched_wakeup"], &[]),
            Self::Irq => (&["irq_handler_entry", "softirq_entry"], &["track:HARDIRQ", "track:SOFTIRQ"]),
            Self::Ipi => {
                (&["ipi_entry", "ipi_raise", "irq_vectors:*", "ipi:ipi_send_cpu*"], &["track:IPI", "track:IPI_SEND"])
            }
            Self::BlockIssue => (&["block_rq_issue"], &[]),
            Self::BlockComplete => (&["block_rq_complete"], &[]),
            Self::Net => (&["net_dev_xmit", "netif_receive_skb"], &[]),
            Self::SyncEnter => (&["ext4_sync_file_enter"], &[]),
            Self::SyncExit => (&["ext4_sync_file_exit"], &[]),
            Self::Memory => (&["mm_page_alloc", "mm_page_free", "mm_vmscan_direct_reclaim_begin"], &[]),
            Self::Frequency => (&["cpu_frequency"], &[]),
            Self::Idle => (&["cpu_idle"], &[]),
            Self::Suspend => (&["suspend_resume"], &[]),
            // The counters of scxtop have no event of their own.
            Self::Dsq | Self::DsqAny => (&["sched_ext:dsq_insert"], &["track:SCX_DSQ"]),
            Self::Request => (&[], &["track:REQUEST"]),
            Self::Compound => (&[], &["wprof:compound_delay"]),
            Self::Llc => (&[], &[]),
        }
    }

    /// True if the trace has such events.
    fn is_in(self, info: &Info, has_llc: bool) -> bool {
        let has = |wanted: &str| {
            info.events.iter().any(|event| match wanted.strip_suffix('*') {
                Some(start) => event.name.starts_with(start),
                None => event.name == wanted,
            })
        };
        let (ftrace, wprof) = self.names();
        match self {
            Self::Llc => return has_llc,
            // What is said by sched_wakeup alone counts as the beginning of the wakeup.
            Self::Wakeup if !has("sched_waking") => return false,
            Self::DsqAny if info.source == Source::Scxtop && has("track:counter") => return true,
            _ => {}
        }
        let is_wprof = info.source == Source::Wprof;
        ftrace.iter().any(|name| has(name)) || is_wprof && wprof.iter().any(|name| has(name))
    }
}

/// An analyser.
#[derive(Debug, Clone, Copy)]
pub struct Analyser {
    /// Which.
    pub id: Id,
    /// What it says, a sentence.
    pub says: &'static str,
    /// The events without which it says nothing.
    pub needs: &'static [EventKind],
    /// What it is a part of.
    pub engine: Engine,
}

impl Analyser {
    /// What it needs and the trace does not have.
    #[must_use]
    pub fn lacks(&self, info: &Info, has_llc: bool) -> Vec<&'static str> {
        self.needs.iter().filter(|kind| !kind.is_in(info, has_llc)).map(|kind| kind.label()).collect()
    }
}

/// Whether an analyser can run on a trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Capability {
    /// Which.
    pub id: Id,
    /// What it needs and the trace does not have; it can run if there is nothing.
    pub lacks: Vec<&'static str>,
}

/// Which analysers can run on a trace, and what the others lack. `has_llc`: the last-level caches of CPUs are known.
#[must_use]
pub fn capabilities(info: &Info, has_llc: bool) -> Vec<Capability> {
    ANALYSERS.iter().map(|analyser| Capability { id: analyser.id, lacks: analyser.lacks(info, has_llc) }).collect()
}

/// Declares the analysers.
macro_rules! analysers {
    ($($id:ident $name:literal $engine:ident [$($kind:ident),*] $says:literal;)+) => {
        /// The name of an analyser.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Id {
            $(#[doc = $says] $id,)+
        }

        impl Id {
            /// As on the command line and in JSON.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$id => $name,)+
                }
            }
        }

        /// All analysers.
        pub const ANALYSERS: &[Analyser] = &[
            $(Analyser { id: Id::$id, says: $says, needs: &[$(EventKind::$kind),*], engine: Engine::$engine },)+
        ];
    };
}

analysers! {
    CpuUtilization "cpu_utilization" Runs [Switch]
        "How long each CPU ran threads and was idle, how long a thread kept it, and which processes used it.";
    WakeupLatency "wakeup_latency" Runs [Waking, Switch]
        "How long woken threads waited for a CPU, in all, by CPU and by thread.";
    LatencyBreakdown "latency_breakdown" Runs [Waking, Wakeup, Switch]
        "Which part of the latency of wakeups comes before the thread is on a run queue, and which after.";
    WakeupCorrelation "wakeup_correlation" Runs [Waking, Switch]
        "How many wakeups led to a run of the thread, and why the others did not.";
    TaskStates "task_states" Runs [Switch]
        "How long each thread ran, waited for a CPU, slept and was blocked.";
    Preemptions "preemptions" Runs [Switch]
        "How often threads lost their CPU while they wanted to run, and to whom.";
    MigrationPatterns "migration_patterns" Runs [Switch]
        "How often threads ran on another CPU than before, from where to where, and what they waited then.";
    LlcLocality "llc_locality" Runs [Switch, Llc]
        "How many runs and wakeups stay within a last-level cache.";
    RunQueue "run_queue" Runs [Switch]
        "How many threads ran and waited for a CPU over time.";
    WakeupChains "wakeup_chains" Runs [Waking, Switch]
        "Chains of threads that wake each other, with the sum of their waits.";
    Fairness "fairness" Runs [Switch]
        "How evenly CPU time went to the threads that wanted it, and which got least and most.";
    Outliers "outliers" Runs [Switch]
        "Waits, run times of threads and use of CPUs that are far from the rest.";
    Bottlenecks "bottlenecks" Runs [Switch]
        "CPUs and threads with many switches, long waits or many moves, by thresholds that it states.";
    Groups "groups" Runs [Switch]
        "What threads did by their name (--by: thread, process, layer, subcell): time, waits, moves, hardware counters.";
    CompoundDelay "compound_delay" Counts [Compound]
        "How long all waits of the chain of wakeups took that led to a run, and how many they were, as wprof adds them up.";
    Requests "requests" Pairs [Request]
        "How long requests of a service took, by their name.";
    IrqAnalysis "irq_analysis" Pairs [Irq]
        "How often and how long interrupts and softirqs were handled, by number and by CPU.";
    IpiAnalysis "ipi_analysis" Pairs [Ipi]
        "Interrupts between CPUs: how many were sent and how long they were handled, by kind and by CPU.";
    BlockIo "block_io" Pairs [BlockIssue, BlockComplete]
        "Requests to block devices: bytes, time in the queue and time in the device.";
    NetworkIo "network_io" Counts [Net]
        "Packets and bytes sent and received by each network device.";
    FileIo "file_io" Pairs [SyncEnter, SyncExit]
        "How often and how long threads waited for files to be written (fsync of ext4).";
    MemoryPressure "memory_pressure" Pairs [Memory]
        "Pages that were allocated and freed, and how long allocations had to free pages first.";
    PowerState "power_state" Pairs [Suspend]
        "Steps of suspend and resume, and their time.";
    DsqLatency "dsq_latency" Pairs [Dsq]
        "How long threads were in each dispatch queue of a sched_ext scheduler.";
    CpuFrequency "cpu_frequency" Steps [Frequency]
        "The time at each frequency of each CPU, and how often it changed.";
    CpuIdle "cpu_idle" Steps [Idle]
        "The time in each idle state of each CPU, and how often it was entered.";
    DsqSummary "dsq_summary" Steps [DsqAny]
        "The dispatch queues of a sched_ext scheduler, what went through them, and their lengths.";
}

impl Id {
    /// The analyser.
    #[must_use]
    pub fn analyser(self) -> &'static Analyser {
        // Each id has its row, in the same order.
        &ANALYSERS[self as usize]
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl std::str::FromStr for Id {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = ANALYSERS.iter().find(|analyser| analyser.id.name() == name);
        found.map(|analyser| analyser.id).ok_or_else(|| {
            let names: Vec<&str> = ANALYSERS.iter().map(|analyser| analyser.id.name()).collect();
            format!("no such analyser; there are {}", names.join(", "))
        })
    }
}
