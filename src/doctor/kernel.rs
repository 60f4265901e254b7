//! The calls into the kernel; everything else is read from files. Tests replace the kernel.

use std::path::PathBuf;

use super::bpf_trials::{self, BpfTrial};
use crate::host;
use crate::host::hierarchy::HierarchyKind;
use crate::host::limits::{self, Limit};
use crate::host::namespace::{self, PidNamespace};
use crate::host::pagemap;
use crate::host::topology;
use crate::host::tracefs::{Tracefs, TracefsError};
use crate::host::Roots;
use crate::resolve::Cgroups;
use crate::sample::Source;
use crate::sampler::attr::{Features, RefusedFeature};
use crate::sampler::{self, Hardware, Sampler, SamplerError, Target};

/// Pages in each ring, as a run requests them.
pub(super) const MMAP_PAGES: usize = 256;

/// The tasks that an attempt watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    /// Every task, as a run does.
    Host,
    /// One of our own tasks, as with `-p`.
    Own,
}

/// The result of opening a source's events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The sampling event or events, by their names in perf.
    pub event: String,
    /// The least `precise_ip` that the kernel accepted, for events that need it.
    pub precise: Option<u8>,
    /// The features of its samples.
    pub features: Features,
    /// The features that the kernel rejected.
    pub refused: Vec<RefusedFeature>,
    /// A run's notes on the choice of the event.
    pub notes: Vec<String>,
    /// Pages in each ring; fewer than a run requests if the locked-memory limit is too small.
    pub mmap_pages: usize,
}

/// The cgroup hierarchy that sampled cgroup ids belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its kind.
    pub kind: HierarchyKind,
    /// Its mount point.
    pub point: PathBuf,
    /// Why its paths may not be what the user expects.
    pub warning: Option<String>,
}

/// The calls into the kernel.
pub trait Kernel {
    /// Opens the events of a run with `source` and closes them again.
    ///
    /// # Errors
    /// The error of a run.
    fn attempt(&self, source: Source, watched: Watched) -> Result<Attempt, SamplerError>;
    /// Opens tracefs and looks up the event of the tick; returns the mount point, `None` if scxprof mounted it itself.
    ///
    /// # Errors
    /// The errors of the timer source.
    fn tracefs(&self) -> Result<Option<PathBuf>, TracefsError>;
    /// True if the kernel shows us the physical frames of pages.
    fn frames_visible(&self) -> bool;
    /// `RLIMIT_NOFILE`.
    fn open_files(&self) -> Limit;
    /// `RLIMIT_MEMLOCK`, bytes.
    fn locked_memory(&self) -> Limit;
    /// Our pid namespace.
    fn pid_namespace(&self) -> PidNamespace;
    /// True if our user namespace is the initial one, because only its capabilities count; `None` if unknown.
    fn initial_user_namespace(&self) -> Option<bool>;
    /// The cgroup hierarchy.
    ///
    /// # Errors
    /// The error of a run.
    fn hierarchy(&self) -> Result<Hierarchy, host::Error>;
    /// Tries what BPF can do.
    fn bpf_trials(&self) -> Vec<BpfTrial>;
}

/// The running kernel.
#[derive(Debug)]
pub(crate) struct Live {
    roots: Roots,
}

impl Live {
    /// Reads the host's files under `roots`.
    #[must_use]
    pub(crate) fn new(roots: &Roots) -> Self {
        Self { roots: roots.clone() }
    }
}

/// The sampler's options for `source` in a run without options.
///
/// # Errors
/// The CPUs that are online cannot be read.
pub(super) fn options(roots: &Roots, source: Source, target: Target) -> Result<sampler::SamplerOptions, host::Error> {
    Ok(sampler::SamplerOptions {
        sched: None,
        source,
        freq: None,
        target,
        cpus: topology::online_cpus(roots)?,
        all_cpus: false,
        mmap_pages: MMAP_PAGES,
        workers: None,
        realtime: None,
        queue: 0,
        features: Features::all(),
        hardware: Hardware::default(),
        proc: roots.proc.clone(),
        sys: roots.sys.clone(),
        child_pid_namespace: matches!(namespace::pid_namespace(roots), PidNamespace::Child),
        raise_open_files: true,
        stacks: None,
        snapshots: false,
    })
}

impl Kernel for Live {
    fn attempt(&self, source: Source, watched: Watched) -> Result<Attempt, SamplerError> {
        let target = match watched {
            Watched::Host => Target::System,
            Watched::Own => Target::Tasks { tids: vec![std::process::id()], enable_on_exec: false },
        };
        let options = options(&self.roots, source, target).map_err(SamplerError::Cpus)?;
        let sampler = Sampler::open(&options)?;
        Ok(Attempt {
            event: sampler.event_names().collect::<Vec<_>>().join(", "),
            precise: sampler.precise(),
            features: sampler.features(),
            refused: sampler.refused().to_vec(),
            notes: sampler.choice().to_vec(),
            mmap_pages: sampler.mmap_pages(),
        })
    }

    fn tracefs(&self) -> Result<Option<PathBuf>, TracefsError> {
        let tracefs = Tracefs::open(&self.roots.proc)?;
        tracefs.event_id("timer/hrtimer_expire_entry")?;
        Ok(tracefs.path().map(std::path::Path::to_owned))
    }

    fn frames_visible(&self) -> bool {
        pagemap::frames_visible(&self.roots.proc)
    }

    fn open_files(&self) -> Limit {
        limits::file_limit()
    }

    fn locked_memory(&self) -> Limit {
        limits::memlock_limit()
    }

    fn pid_namespace(&self) -> PidNamespace {
        namespace::pid_namespace(&self.roots)
    }

    fn initial_user_namespace(&self) -> Option<bool> {
        namespace::initial_user_namespace(&self.roots)
    }

    fn hierarchy(&self) -> Result<Hierarchy, host::Error> {
        let mut cgroups = Cgroups::new(&self.roots)?;
        cgroups.walk()?;
        let mount = cgroups.mount();
        Ok(Hierarchy { kind: mount.kind, point: mount.point.clone(), warning: cgroups.warning() })
    }

    fn bpf_trials(&self) -> Vec<BpfTrial> {
        bpf_trials::bpf_trials(&self.roots.proc)
    }
}
