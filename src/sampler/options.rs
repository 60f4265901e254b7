//! What to sample, and how.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use super::attr::{EventSpec, Features};
use super::hardware::Hardware;
use super::tracepoints::SchedOptions;
use crate::sample::Source;

/// What to sample.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Target {
    /// Every task of the host.
    System,
    /// These threads, and the threads and processes that they create.
    Tasks {
        /// Thread ids.
        tids: Vec<u32>,
        /// Sampling begins when the task calls exec.
        enable_on_exec: bool,
    },
    /// The tasks of a cgroup and of those below it.
    Cgroup(Arc<OwnedFd>),
}

/// How to sample.
#[derive(Debug, Clone)]
pub struct SamplerOptions {
    /// The source of the addresses.
    pub source: Source,
    /// The requested samples a second and CPU of the timer source; `None` for the scheduler's tick, if that works.
    pub freq: Option<u32>,
    /// The tasks to sample.
    pub target: Target,
    /// The CPUs; all of them must be online. A CPU that goes offline is sampled again when it comes back.
    pub cpus: Vec<u32>,
    /// Also samples CPUs that come online later.
    pub all_cpus: bool,
    /// Pages of data in each CPU's ring, a power of two.
    pub mmap_pages: usize,
    /// Threads that read the rings; `None` for one per 16 CPUs.
    pub workers: Option<usize>,
    /// The SCHED_FIFO priority, 1 to 99, of the threads that read the rings; `None` to inherit the priority of the
    /// thread that starts them. A thread that takes more than half a CPU gives this priority up.
    pub realtime: Option<u8>,
    /// Bytes of samples that may be queued, beyond the few batches that can be queued in any case.
    pub queue: usize,
    /// The features to request; a subset simulates an older kernel.
    pub features: Features,
    /// How pebs, ibs and spe sample.
    pub hardware: Hardware,
    /// procfs, for the limits that an error message names.
    pub proc: PathBuf,
    /// sysfs, for the PMUs and the CPUs that are online.
    pub sys: PathBuf,
    /// True if our pid namespace is not the host's.
    pub child_pid_namespace: bool,
    /// Raises this process's soft `RLIMIT_NOFILE`, up to the hard limit, if the events need more open files.
    pub raise_open_files: bool,
    /// Also samples scheduling events, of the whole host whatever the target. The source `wakeups` always does.
    pub sched: Option<SchedOptions>,
    /// The event of the source `stacks`.
    pub stacks: Option<EventSpec>,
    /// Adds the memory around the registers to samples of the timer source, if BPF is allowed to read it.
    pub snapshots: bool,
}

/// The kind of target, once its events are open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TargetKind {
    System,
    Cgroup,
    Tasks { enable_on_exec: bool },
}
