//! Why no capture began, in words that say what would help.

use std::io;

use thiserror::Error;

use super::open::EventError;

/// Why no capture began.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SamplerError {
    /// The kernel does not let us.
    #[error("{event}: not permitted; {hint}", event = .source)]
    NotPermitted {
        /// What was refused.
        #[source]
        source: EventError,
        /// What would help.
        hint: String,
    },
    /// The kernel or the machine cannot do it.
    #[error("{event}: not supported by this kernel", event = .source)]
    Unsupported {
        /// What was refused.
        #[source]
        source: EventError,
    },
    /// Too many open files.
    #[error("{event}; sampling {cpus} CPUs takes {needed} open files and RLIMIT_NOFILE allows {soft} (hard limit {hard}): raise it with `ulimit -Hn`, or sample fewer CPUs with -C", event = .source)]
    TooManyFiles {
        /// What was refused.
        #[source]
        source: EventError,
        /// CPUs to sample.
        cpus: usize,
        /// Files that would be open.
        needed: u64,
        /// The limit in force.
        soft: u64,
        /// Where we may raise it to.
        hard: u64,
    },
    /// No room for even the smallest ring.
    #[error("{event}: no locked memory for a ring of one page: kernel.perf_event_mlock_kb is {mlock_kb} KiB a CPU for all of this user's rings, RLIMIT_MEMLOCK {memlock}; raise either, or run with CAP_IPC_LOCK", event = .source)]
    NoLockedMemory {
        /// What was refused.
        #[source]
        source: EventError,
        /// The sysctl, in KiB.
        mlock_kb: i64,
        /// The limit, for people.
        memlock: String,
    },
    /// The source needs another processor.
    #[error("source {source_name} is for x86-64 only")]
    Architecture {
        /// The source's name.
        source_name: &'static str,
    },
    /// No event for the timer source.
    #[error("source timer: no event serves here: {reasons}")]
    NoTimer {
        /// Each event and why it does not.
        reasons: String,
    },
    /// A CPU that is not online.
    #[error("CPU {cpu} is not online")]
    NoSuchCpu {
        /// The CPU.
        cpu: u32,
    },
    /// A thread that does not exist, or ended just now.
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

impl SamplerError {
    /// True where a smaller ring may fit.
    pub(super) fn is_no_room(&self) -> bool {
        match self {
            Self::NoLockedMemory { .. } => true,
            Self::Event(error) => error.call == "mmap" && error.errno() == libc::ENOMEM,
            _ => false,
        }
    }

    /// True where rights are missing or the machine cannot do it, rather than the request being wrong.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        !matches!(self, Self::NoSuchCpu { .. } | Self::NoSuchTask { .. })
    }
}
