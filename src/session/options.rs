//! The options of a session.

use std::path::PathBuf;

use crate::bpf;
use crate::config::{CellOptions, Scheduler};
use crate::sample::caches::Caches;
use crate::sample::Source;
use crate::sampler::attr::{EventSpec, Features};
use crate::sampler::tracepoints::SchedOptions;
use crate::sampler::{Hardware, Target};

/// The default pages of a CPU's ring.
const MMAP_PAGES: usize = 256;
/// The default share of its cell that a class needs.
const MIN_SHARE: f64 = 0.05;

/// The tasks of this host that are sampled.
#[derive(Debug, Clone, Default)]
pub enum Whose {
    /// All.
    #[default]
    Host,
    /// These processes and their descendants, with all of their threads; the session ends when none of these processes is
    /// left.
    Pids(Vec<u32>),
    /// The tasks in this cgroup and those below it, by its path in the hierarchy.
    Cgroup(PathBuf),
    /// A target that is open already, such as a task from its exec on.
    Target(Target),
}

/// What of this host is sampled, and how. By default the accesses to memory of all tasks on all CPUs, with the first source that
/// works.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// The sources to try, in this order; the first that works is used. Default: all of [`Source::ALL`].
    pub sources: Vec<Source>,
    /// The tasks.
    pub whose: Whose,
    /// The CPUs, which must be online; if empty, all online CPUs, and those that come online later.
    pub cpus: Vec<u32>,
    /// Options of the sources `pebs`, `ibs` and `spe`; of `timer` whether kernel code is sampled too; then `faults` is not tried.
    pub hardware: Hardware,
    /// Lets the source `timer` sample kernel code too if that is possible, and otherwise user code alone; by default it
    /// samples kernel code only if `hardware` says so.
    pub kernel_if_possible: bool,
    /// Lets the source `timer` sample with its own clock, this many times a second on each CPU; by default it uses the scheduler's
    /// tick, if that works.
    pub freq: Option<u32>,
    /// Also samples events of the scheduler, on all CPUs and of all threads, whatever is sampled otherwise; a
    /// [`Sink`](super::Sink) gets them from [`Sink::sched`](super::Sink::sched). It needs the right to read tracefs.
    pub sched: Option<SchedOptions>,
    /// Samples this event with the call stack of each sample: instead of memory if the source is [`Source::Stacks`]
    /// ([`HostOptions::stacks`]), for a [`Sink`](super::Sink) that wants stacks. Otherwise beside memory, and only recorded; a sink
    /// gets them when the recording is read.
    pub stacks: Option<EventSpec>,
    /// Follows the task hints of a map, so that samples and the report have them.
    pub hints: Option<bpf::HintOptions>,
    /// Records a profile in this directory, which must exist and should be empty; [`crate::profile`] describes its files.
    /// [`Session::recorder`](super::Session::recorder) must finish it when the session has ended.
    pub record: Option<PathBuf>,
    /// Keeps the memory around the registers of each sample in a recording of the source `timer`: it contains the threads' data. By
    /// default this memory is used to recover addresses, and is left out of the file.
    pub keep_memory: bool,
    /// Pages of data in each CPU's ring, a power of two; by default 256, and fewer if locked memory is short.
    pub mmap_pages: usize,
    /// Threads that read the rings; by default one for each 16 CPUs.
    pub workers: Option<usize>,
    /// Gives the readers of samples priority over the sampled threads, so that none are lost on a busy host: the threads that read
    /// the rings get the policy SCHED_FIFO with this priority, 1 to 99, and all other threads of the capture, the calling thread
    /// included while it is in [`Session`](super::Session)'s functions, a nice value of -20. A thread that takes more than half a
    /// CPU gives up SCHED_FIFO. Processes and threads that the caller starts do not inherit it. It needs CAP_SYS_NICE, and without
    /// it has no effect but a note. By default all threads have the priority of their caller, as with 0.
    pub realtime: u8,
    /// Lets the start raise this process's soft `RLIMIT_NOFILE`, up to the hard limit, if the events need more open files: some for
    /// each CPU, or for each CPU and thread. By default such a start fails with
    /// [`SamplerError::TooManyFiles`](crate::sampler::SamplerError::TooManyFiles).
    pub raise_open_files: bool,
    /// Requests only these features from the kernel, as if it were older: for tests.
    #[doc(hidden)]
    pub features: Features,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            sources: Source::ALL.to_vec(),
            whose: Whose::Host,
            cpus: Vec::new(),
            hardware: Hardware::default(),
            kernel_if_possible: false,
            freq: None,
            sched: None,
            stacks: None,
            hints: None,
            record: None,
            keep_memory: false,
            mmap_pages: MMAP_PAGES,
            workers: None,
            realtime: 0,
            raise_open_files: false,
            features: Features::all(),
        }
    }
}

impl HostOptions {
    /// With this source alone.
    #[must_use]
    pub fn source(source: Source) -> Self {
        Self { sources: vec![source], ..Self::default() }
    }

    /// For the call stacks of this event instead of memory.
    #[must_use]
    pub fn stacks(event: EventSpec) -> Self {
        Self { stacks: Some(event), ..Self::source(Source::Stacks) }
    }

    /// The priority of SCHED_FIFO, if there is one.
    pub(super) fn priority(&self) -> Option<u8> {
        (self.realtime > 0).then_some(self.realtime.min(99))
    }
}

/// What is computed from the samples.
#[derive(Debug, Clone)]
pub struct AnalysisOptions {
    /// The assignment of cgroups to cells.
    pub cells: CellOptions,
    /// The part of its cell's samples (0 to 1) below which a class of threads gets no subcell; by default 0.05.
    pub min_share: f64,
    /// The number of CPUs of the host that will run the scheduler; by default those of the recorded host, or those online here.
    pub target_cpus: Option<usize>,
    /// The last-level caches of the host that will run the scheduler. By default, unless [`AnalysisOptions::target_cpus`] is given,
    /// those of the recorded host, or those here if this host is sampled; they stay unknown if they are irregular.
    pub caches: Option<Caches>,
    /// The scheduler that the configuration is for; by default scx_mitosis, in which each subcell needs a CPU of its own.
    pub scheduler: Scheduler,
    /// Also distinguishes threads by their hints: a thread that changes its hint belongs to several classes. The hints come from
    /// [`HostOptions::hints`], a recording or a [`Feed`](super::Feed).
    pub use_hints: bool,
    /// Layers of scx_layered may use properties of the sampled host alone: groups that names do not tell apart are matched by their
    /// processes and cgroups.
    pub this_host: bool,
    /// Keeps the samples in slices of time too, so that [`Analysis::score`](super::Analysis::score) says how certain a score is. It
    /// takes another eighth of the memory.
    pub score: bool,
    /// A report will be made. Without it, the decision is faster, and [`Analysis::report`](super::Analysis::report) lacks most of the
    /// shared memory, the stability and the confidence, unless the configuration leaves out some of the groups.
    pub report: bool,
    /// Names the code that touches the hottest shared lines in the report.
    pub symbols: bool,
    /// Also searches perf's cache of files by their build id (`~/.debug`) for names of code.
    pub symbol_cache: Option<PathBuf>,
    /// Also finds source lines and inlined functions for the named code, if its file has debug information. This is the path of the
    /// program `scxprof`, which reads the debug information in a separate process.
    pub source_lines: Option<PathBuf>,
}

impl Default for AnalysisOptions {
    fn default() -> Self {
        Self {
            cells: CellOptions::default(),
            min_share: MIN_SHARE,
            target_cpus: None,
            caches: None,
            scheduler: Scheduler::Mitosis,
            use_hints: false,
            this_host: false,
            score: false,
            report: true,
            symbols: false,
            symbol_cache: None,
            source_lines: None,
        }
    }
}

impl AnalysisOptions {
    /// For a host with this many CPUs.
    #[must_use]
    pub fn for_cpus(cpus: usize) -> Self {
        Self { target_cpus: Some(cpus), ..Self::default() }
    }
}
