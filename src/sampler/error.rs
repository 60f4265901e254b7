//! Why a capture could not start, with messages that say what would help.

use std::io;

use thiserror::Error;

use super::open::EventError;
use super::pmu::{NoIbs, NoPebs, NoSpe};

/// The remedy for too few open files.
pub const NOFILE_HELP: &str = "raise it with `ulimit -Hn`, or sample fewer CPUs with -C";
/// The remedy if each thread needs its own files.
pub const THREADS_HELP: &str =
    "raise it with `ulimit -Hn`, sample fewer CPUs with -C, or watch their cgroup with --cgroup, which takes as many files for any \
     number of threads";
/// The remedy for a PMU that another program uses.
const IN_USE_HELP: &str = "end what uses this PMU, such as another perf record or scxprof";
/// The remedy for too little locked memory.
pub const MLOCK_HELP: &str = "raise either, or run with CAP_IPC_LOCK";

/// Why no capture began.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SamplerError {
    /// The memory around the registers is not available; a run continues without it.
    #[error("{0}")]
    Snapshots(String),
    /// The dispatch queues of a sched_ext scheduler cannot be observed; a run continues without them.
    #[error("{0}")]
    Dsqs(String),
    /// Kernel code was requested, but its registers or its memory cannot be read.
    #[error("kernel code cannot be sampled here: {0}")]
    Kernel(String),
    /// The kernel denies it.
    #[error("{event}: not permitted; {hint}", event = .source)]
    NotPermitted {
        /// The call that failed.
        #[source]
        source: EventError,
        /// What would help.
        hint: String,
    },
    /// The kernel or the machine cannot do it.
    #[error("{event}: not supported by this kernel", event = .source)]
    Unsupported {
        /// The call that failed.
        #[source]
        source: EventError,
    },
    /// One program at a time can use the PMU (`PERF_PMU_CAP_EXCLUSIVE` in kernel/events/core.c).
    #[error("{event}; {IN_USE_HELP}", event = .source)]
    InUse {
        /// The call that failed.
        #[source]
        source: EventError,
    },
    /// Too many open files.
    #[error("{event}; sampling {cpus} CPUs takes {needed} open files and RLIMIT_NOFILE allows {soft} (hard limit {hard}); {NOFILE_HELP}", event = .source)]
    TooManyFiles {
        /// The call that failed.
        #[source]
        source: EventError,
        /// CPUs to sample.
        cpus: usize,
        /// The number of files needed.
        needed: u64,
        /// The limit in force.
        soft: u64,
        /// The limit up to which we may raise it.
        hard: u64,
    },
    /// Too many open files for threads, each of which needs at least one file on each CPU.
    #[error("watching {threads} threads on {cpus} CPUs takes up to {needed} open files and RLIMIT_NOFILE allows {soft} (hard limit {hard}); {THREADS_HELP}")]
    TooManyThreads {
        /// Threads to sample.
        threads: usize,
        /// CPUs to sample.
        cpus: usize,
        /// The number of files needed.
        needed: u64,
        /// The limit in force.
        soft: u64,
        /// The limit up to which we may raise it.
        hard: u64,
    },
    /// Even the smallest ring does not fit.
    #[error("{event}: no locked memory for a ring of one page: kernel.perf_event_mlock_kb is {mlock_kb} KiB a CPU for all of this user's rings, RLIMIT_MEMLOCK {memlock}; {MLOCK_HELP}", event = .source)]
    NoLockedMemory {
        /// The call that failed.
        #[source]
        source: EventError,
        /// The sysctl, in KiB.
        mlock_kb: i64,
        /// The limit, for display.
        memlock: String,
    },
    /// The source needs a processor of another architecture.
    #[error("source {source_name} is for {} only", match *source_name { "timer" => "x86-64 and arm64", "spe" => "arm64", _ => "x86-64" })]
    Architecture {
        /// The source's name.
        source_name: &'static str,
    },
    /// Kernel code can be sampled on one architecture only.
    #[error("source timer samples kernel code on x86-64 only")]
    KernelCode,
    /// Stacks can be unwound from copies on these architectures only.
    #[error("--call-graph dwarf is for x86-64 and arm64 only; without it, frame pointers are followed")]
    CopiedStacks,
    /// This host offers no PEBS events.
    #[error("source pebs: {0}")]
    NoPebs(#[from] NoPebs),
    /// This host offers no IBS.
    #[error("source ibs: {0}")]
    NoIbs(#[from] NoIbs),
    /// This host offers no SPE.
    #[error("source spe: {0}")]
    NoSpe(#[from] NoSpe),
    /// SPE stamps its records with timer counts, and the kernel gives no conversion to ns.
    #[error(
        "{event} on CPU {cpu}: the kernel does not say how the timer's counts convert to times (cap_user_time_zero)"
    )]
    NoCountClock {
        /// The event's name in perf.
        event: String,
        /// The CPU.
        cpu: u32,
    },
    /// PEBS without precision has no addresses.
    #[error("{event}, with precise_ip 2 and with 1; samples of less precision have no addresses", event = .source)]
    Imprecise {
        /// The call that failed.
        #[source]
        source: EventError,
    },
    /// The kernel accepts `mem-loads` only in the group of an event that sysfs lacks.
    #[error("{event}: the kernel wants it in a group that mem-loads-aux leads, and sysfs has no such event", event = .source)]
    NoLeader {
        /// The call that failed.
        #[source]
        source: EventError,
    },
    /// The PMU watches only whole CPUs.
    #[error("{event}, though it opens for all tasks: this kernel's PMU cannot watch single ones, nor a cgroup's (ibs_op can since Linux 6.2); sample the whole host", event = .source)]
    NoTaskEvents {
        /// The call that failed.
        #[source]
        source: EventError,
    },
    /// The event opens, but never counts.
    #[error("{event} opens on CPU {cpu} and never counts: nothing in {running} ms on the PMU, {enabled} ms after it was enabled, with the CPU kept busy")]
    NeverCounts {
        /// The event's name in perf.
        event: String,
        /// The CPU that it was tried on.
        cpu: u32,
        /// How long it was enabled, ms.
        enabled: u64,
        /// How long the PMU counted it, ms: 0 if another user holds the counter.
        running: u64,
    },
    /// The hardware cannot compare with this latency.
    #[error("ldlat {asked}: {pmu} can compare with {max} cycles at most")]
    Threshold {
        /// The requested value.
        asked: u32,
        /// The largest possible value.
        max: u64,
        /// The PMU.
        pmu: String,
    },
    /// A frequency that the kernel rejects.
    #[error("freq {asked}: kernel.perf_event_max_sample_rate is {max}; ask for less, or for a rate or a period")]
    FrequencyTooHigh {
        /// The requested value.
        asked: u32,
        /// The sysctl.
        max: i64,
    },
    /// None of the CPUs has the source's event.
    #[error("no PMU with an event of this source has any of the CPUs {cpus}")]
    NoEventThere {
        /// The CPUs.
        cpus: String,
    },
    /// No event for the timer source.
    #[error("source timer: no event serves here: {reasons}{}", after(hint.as_deref()))]
    NoTimer {
        /// Each event and why it does not work.
        reasons: String,
        /// What would help, if rights are missing.
        hint: Option<String>,
    },
    /// tracefs, which describes the scheduler's events, cannot be read.
    #[error("scheduling events: {0}; it takes root, or the right to read tracefs")]
    Tracefs(#[from] crate::host::tracefs::TracefsError),
    /// A scheduler tracepoint does not have any known set of fields.
    #[error("scheduling events: {0}")]
    Tracepoint(#[from] scxprof_perf::tracepoint::FormatError),
    /// Scheduling events contain the host's thread ids, so our pid namespace must be the host's.
    #[error("scheduling events name threads by the host's numbers, which a pid namespace does not have: start the container with --pid=host")]
    SchedInPidNamespace,
    /// The PMU of the CPU does not have the event of the source `stacks`.
    #[error("{event}: this CPU cannot sample the event; cpu-clock works on every host", event = .source)]
    NoSuchEvent {
        /// The call that failed.
        #[source]
        source: EventError,
    },
    /// The caller named no event for the source `stacks`.
    #[error("the source \"stacks\" needs an event")]
    NoEvent,
    /// A recording is replayed, not sampled.
    #[error("the source \"recorded\" is of profiles: nothing can be sampled with it")]
    Recorded,
    /// The online CPUs cannot be read.
    #[error(transparent)]
    Cpus(#[from] crate::host::Error),
    /// A CPU that is not online.
    #[error("CPU {cpu} is not online")]
    NoSuchCpu {
        /// The CPU.
        cpu: u32,
    },
    /// A thread that does not exist, or has just ended.
    #[error("no process with pid {pid}")]
    NoSuchTask {
        /// The thread's id.
        pid: u32,
    },
    /// Any other failure of a call on an event.
    #[error(transparent)]
    Event(#[from] EventError),
    /// A worker thread that could not be started.
    #[error("cannot start a worker thread: {0}")]
    Thread(#[source] io::Error),
}

/// A hint at the end of a sentence.
fn after(hint: Option<&str>) -> String {
    hint.map_or_else(String::new, |hint| format!("; {hint}"))
}

impl SamplerError {
    /// What would help, if known: the end of the error's message.
    #[must_use]
    pub fn help(&self) -> Option<&str> {
        match self {
            Self::NotPermitted { hint, .. } => Some(hint),
            Self::NoTimer { hint, .. } => hint.as_deref(),
            Self::TooManyFiles { .. } => Some(NOFILE_HELP),
            Self::TooManyThreads { .. } => Some(THREADS_HELP),
            Self::NoLockedMemory { .. } => Some(MLOCK_HELP),
            Self::InUse { .. } => Some(IN_USE_HELP),
            Self::NoSpe(error) => error.help(),
            _ => None,
        }
    }

    /// The error's message without [`SamplerError::help`].
    #[must_use]
    pub fn why(&self) -> String {
        let text = self.to_string();
        match self.help().and_then(|help| text.strip_suffix(help)?.strip_suffix("; ")) {
            Some(why) => why.to_owned(),
            None => text,
        }
    }

    /// True if rights are missing.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::NotPermitted { .. } | Self::NoTimer { hint: Some(_), .. } | Self::Tracefs(_))
    }

    /// True if a smaller ring may fit.
    pub(super) fn is_no_room(&self) -> bool {
        match self {
            Self::NoLockedMemory { .. } => true,
            Self::Event(error) => error.call.starts_with("mmap") && error.errno() == libc::ENOMEM,
            _ => false,
        }
    }

    /// True if rights are missing or the machine cannot do it; false if the request is invalid.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        !matches!(
            self,
            Self::NoSuchCpu { .. } | Self::NoSuchTask { .. } | Self::Threshold { .. } | Self::FrequencyTooHigh { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_ends_with_what_would_help() {
        let source = |errno| EventError {
            call: "perf_event_open",
            event: "minor-faults".into(),
            cpu: 3,
            source: io::Error::from_raw_os_error(errno),
        };
        let errors = [
            SamplerError::NotPermitted { source: source(libc::EACCES), hint: "be root".to_owned() },
            SamplerError::NoTimer { reasons: "cpu-clock: no".to_owned(), hint: Some("be root".to_owned()) },
            SamplerError::TooManyFiles { source: source(libc::EMFILE), cpus: 8, needed: 80, soft: 1, hard: 2 },
            SamplerError::TooManyThreads { threads: 900, cpus: 8, needed: 14_464, soft: 1, hard: 2 },
            SamplerError::NoLockedMemory { source: source(libc::EPERM), mlock_kb: 4, memlock: "8 KiB".to_owned() },
        ];
        for error in errors {
            assert_eq!(format!("{}; {}", error.why(), error.help().unwrap()), error.to_string());
        }
        let error = SamplerError::NoSuchCpu { cpu: 9 };
        assert_eq!((error.why(), error.help()), ("CPU 9 is not online".to_owned(), None));
    }
}
