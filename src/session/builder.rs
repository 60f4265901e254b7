//! The options of a capture.

use std::fmt;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::origins::{start_first, threads_of, Capture, CaptureOptions};
use super::running::{From, Plan, Sampling};
use super::stop::StopConditions;
use super::{Analysis, Error, Feed, Select, Session, Sink, Skipped, StopHandle, TraceInput};
use crate::bpf;
use crate::config::{self, CellOptions, CellSpecs, Scheduler};
use crate::host::namespace::{self, PidNamespace};
use crate::host::priority;
use crate::host::{self, topology, Roots};
use crate::profile::Profile;
use crate::resolve::{Cgroups, SymbolOptions};
use crate::sample::Source;
use crate::sampler::attr::{EventSpec, Features};
use crate::sampler::sched::SchedOptions;
use crate::sampler::{self, Hardware, Target};

/// The default bytes for queues, caches and the sketch.
const MEMORY: usize = 64 << 20;
/// The default pages of a CPU's ring.
const MMAP_PAGES: usize = 256;
/// The default share of its cell that a class needs.
const MIN_SHARE: f64 = 0.05;

/// The tasks whose accesses are sampled.
#[derive(Debug)]
enum Scope {
    Target(Target),
    Pids(Vec<u32>),
    Cgroup(PathBuf),
}

/// Where samples come from.
enum Input<'a> {
    Host,
    Profile(&'a mut Profile),
    Feed(&'a mut dyn Feed),
    Trace(&'a mut TraceInput),
}

/// Options of a capture; [`Session::builder`] has an example. By default it samples the whole host with the first source that
/// works here, until its [`StopHandle`] stops it.
pub struct Builder<'a> {
    sources: Vec<Source>,
    input: Input<'a>,
    sinks: Vec<&'a mut dyn Sink>,
    select: Option<Select<'a>>,
    time: Option<Duration>,
    whose: Scope,
    cpus: Vec<u32>,
    freq: Option<u32>,
    hardware: Hardware,
    features: Features,
    sched: Option<SchedOptions>,
    stacks: Option<EventSpec>,
    mmap_pages: usize,
    workers: Option<usize>,
    realtime: Option<u8>,
    raise_open_files: bool,
    roots: Roots,
    memory: usize,
    cells: CellOptions,
    min_share: f64,
    target_cpus: Option<usize>,
    scheduler: Scheduler,
    hints: Option<bpf::HintOptions>,
    use_hints: bool,
    symbols: bool,
    score: bool,
    cache: Option<PathBuf>,
    lines: Option<PathBuf>,
    record: Option<PathBuf>,
    keep_memory: bool,
    stop: StopHandle,
}

impl fmt::Debug for Builder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("sources", &self.sources)
            .field("time", &self.time)
            .field("whose", &self.whose)
            .field("sinks", &self.sinks.len())
            .finish_non_exhaustive()
    }
}

impl<'a> Session<'a> {
    /// Options of a capture. A session prints nothing, writes no file unless [`Builder::record`] is called, and handles no
    /// signal.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use scxprof::Session;
    ///
    /// let capture = Session::builder().time(Duration::from_secs(30));
    /// let stop = capture.stop_handle();
    /// std::thread::spawn(move || {
    ///     // Whatever should end it early.
    ///     stop.stop();
    /// });
    /// let found = capture.run()?;
    /// println!("{}", found.mitosis()?);
    /// # Ok::<(), scxprof::Error>(())
    /// ```
    #[must_use]
    pub fn builder() -> Builder<'a> {
        Builder::new()
    }
}

impl<'a> Builder<'a> {
    fn new() -> Self {
        Self {
            sources: Source::ALL.to_vec(),
            input: Input::Host,
            sinks: Vec::new(),
            select: None,
            time: None,
            whose: Scope::Target(Target::System),
            cpus: Vec::new(),
            freq: None,
            hardware: Hardware::default(),
            features: Features::all(),
            sched: None,
            stacks: None,
            mmap_pages: MMAP_PAGES,
            workers: None,
            realtime: None,
            raise_open_files: false,
            roots: Roots::default(),
            memory: MEMORY,
            cells: CellOptions::default(),
            min_share: MIN_SHARE,
            target_cpus: None,
            scheduler: Scheduler::Mitosis,
            hints: None,
            use_hints: false,
            symbols: false,
            score: false,
            cache: None,
            lines: None,
            record: None,
            keep_memory: false,
            stop: StopHandle::default(),
        }
    }

    /// The sources to try, in this order; the first that works is used. Default: all of [`Source::ALL`].
    #[must_use]
    pub fn sources(mut self, sources: &[Source]) -> Self {
        self.sources = sources.to_vec();
        self
    }

    /// Reads the samples of a recording instead of the kernel's events: with the same memory, the decision is that of the
    /// capture. [`Profile::open`] opens what `scxprof record`, perf and `perf script` wrote; afterwards [`Profile::damage`]
    /// returns what could not be read. Without [`Builder::target_cpus`], the configuration is for a host with as many CPUs as
    /// the recorded one, if that number is known.
    #[must_use]
    pub fn profile(mut self, profile: &'a mut Profile) -> Self {
        self.input = Input::Profile(profile);
        self
    }

    /// Takes samples from a custom source instead of the kernel's events.
    #[must_use]
    pub fn feed(mut self, feed: &'a mut dyn Feed) -> Self {
        self.input = Input::Feed(feed);
        self
    }

    /// Takes the events of a trace, which has no samples, instead of the kernel's: a [`Sink`] gets them from [`Sink::events`].
    #[must_use]
    pub fn trace(mut self, trace: &'a mut TraceInput) -> Self {
        self.input = Input::Trace(trace);
        self
    }

    /// Passes each sample to `sink` as well; may be called several times.
    #[must_use]
    pub fn sink(mut self, sink: &'a mut dyn Sink) -> Self {
        self.sinks.push(sink);
        self
    }

    /// Uses only the samples for which `select` returns true; it is called in the order of time. The counts of the
    /// [`super::Outcome`] include all samples.
    #[must_use]
    pub fn select(mut self, select: Select<'a>) -> Self {
        self.select = Some(select);
        self
    }

    /// Ends the capture after this time; by default only the [`StopHandle`] ends it.
    #[must_use]
    pub fn time(mut self, time: Duration) -> Self {
        self.time = Some(time);
        self
    }

    /// Samples only these processes and their descendants, with all of their threads, and ends when none of these processes is left. Of this,
    /// [`Builder::cgroup`] and [`Builder::target`] the last that is called holds.
    #[must_use]
    pub fn pids(mut self, pids: &[u32]) -> Self {
        self.whose = Scope::Pids(pids.to_vec());
        self
    }

    /// Samples only this cgroup and those below it, by its path in the hierarchy.
    #[must_use]
    pub fn cgroup(mut self, path: &Path) -> Self {
        self.whose = Scope::Cgroup(path.to_owned());
        self
    }

    /// Samples only this target, such as a task from its exec on.
    #[must_use]
    pub fn target(mut self, target: Target) -> Self {
        self.whose = Scope::Target(target);
        self
    }

    /// Samples only these CPUs, which must be online; by default all that are, and those that come online later.
    #[must_use]
    pub fn cpus(mut self, cpus: &[u32]) -> Self {
        self.cpus = cpus.to_vec();
        self
    }

    /// Options of the sources `pebs` and `ibs`.
    #[must_use]
    pub fn hardware(mut self, hardware: Hardware) -> Self {
        self.hardware = hardware;
        self
    }

    /// Lets the source `timer` sample with its own clock, this many times a second on each CPU; by default it uses the
    /// scheduler's tick, if that works.
    #[must_use]
    pub fn freq(mut self, hz: u32) -> Self {
        self.freq = Some(hz);
        self
    }

    /// Also samples events of the scheduler, on all CPUs and of all threads, whatever is sampled otherwise; a [`Sink`] gets them
    /// from [`Sink::sched`]. It takes the right to read tracefs.
    #[must_use]
    pub fn sched(mut self, sched: SchedOptions) -> Self {
        self.sched = Some(sched);
        self
    }

    /// Samples this event, with the call stack of each sample, instead of memory: a [`Sink`] that wants stacks gets the samples.
    #[must_use]
    pub fn stacks(mut self, event: EventSpec) -> Self {
        self.sources = vec![Source::Stacks];
        self.stacks = Some(event);
        self
    }

    /// Also samples this event, with the call stack of each sample, beside memory. The samples are only recorded
    /// ([`Builder::record`]); a [`Sink`] that wants stacks gets them when the recording is read.
    #[must_use]
    pub fn record_stacks(mut self, event: EventSpec) -> Self {
        self.stacks = Some(event);
        self
    }

    /// Requests only these features from the kernel, as if it were older: for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn features(mut self, features: Features) -> Self {
        self.features = features;
        self
    }

    /// Pages of data in each CPU's ring, a power of two; by default 256, and fewer if locked memory is short.
    #[must_use]
    pub fn mmap_pages(mut self, pages: usize) -> Self {
        self.mmap_pages = pages;
        self
    }

    /// Threads that read the rings; by default one for each 16 CPUs.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Lets what reads samples go before what is sampled, so that none are lost on a busy host: the threads that read the rings get
    /// the policy SCHED_FIFO with this priority, 1 to 99, and what else takes part in the capture, the calling thread included while
    /// it is in [`Session`]'s functions, a nice value of -20. A thread that takes more than half a CPU gives up SCHED_FIFO. Processes
    /// and threads that the caller starts inherit nothing of it. It takes CAP_SYS_NICE, and without it has no effect but a note. By
    /// default all threads have the priority of their caller, as with 0.
    #[must_use]
    pub fn realtime(mut self, priority: u8) -> Self {
        self.realtime = (priority > 0).then_some(priority.min(99));
        self
    }

    /// Lets the start raise this process's soft `RLIMIT_NOFILE`, up to the hard limit, if the events need more open files: some
    /// for each CPU, or for each CPU and thread. By default such a start fails with
    /// [`SamplerError::TooManyFiles`](crate::sampler::SamplerError::TooManyFiles).
    #[must_use]
    pub fn raise_open_files(mut self) -> Self {
        self.raise_open_files = true;
        self
    }

    /// The directories under which the host is read; by default `/proc` and `/sys`.
    #[must_use]
    pub fn roots(mut self, roots: Roots) -> Self {
        self.roots = roots;
        self
    }

    /// Bytes for queues, caches and the sketch, without the rings; by default 64 MiB.
    #[must_use]
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory = bytes;
        self
    }

    /// The assignment of cgroups to cells.
    #[must_use]
    pub fn cells(mut self, cells: CellOptions) -> Self {
        self.cells = cells;
        self
    }

    /// The part of its cell's samples (0 to 1) below which a class of threads gets no subcell; by default 0.05.
    #[must_use]
    pub fn min_share(mut self, share: f64) -> Self {
        self.min_share = share;
        self
    }

    /// The number of CPUs of the host that will run the scheduler; by default those online here.
    #[must_use]
    pub fn target_cpus(mut self, cpus: usize) -> Self {
        self.target_cpus = Some(cpus);
        self
    }

    /// The scheduler that the configuration is for; by default scx_mitosis, in which each subcell needs a CPU of its own.
    #[must_use]
    pub fn scheduler(mut self, scheduler: Scheduler) -> Self {
        self.scheduler = scheduler;
        self
    }

    /// Follows the task hints of a map, so that samples and the report have them.
    #[must_use]
    pub fn hints(mut self, hints: bpf::HintOptions) -> Self {
        self.hints = Some(hints);
        self
    }

    /// Also distinguishes threads by their hints: a thread that changes its hint belongs to several classes. The hints come
    /// from [`Builder::hints`] or from a [`Feed`].
    #[must_use]
    pub fn use_hints(mut self) -> Self {
        self.use_hints = true;
        self
    }

    /// Names the code that touches the hottest shared lines in the report.
    #[must_use]
    pub fn symbols(mut self) -> Self {
        self.symbols = true;
        self
    }

    /// Keeps the samples in slices of time too, so that [`Analysis::score`] says how certain a score is. It takes another eighth of
    /// the memory.
    #[must_use]
    pub fn score(mut self) -> Self {
        self.score = true;
        self
    }

    /// Also searches perf's cache of files by their build id (`~/.debug`) for names of code.
    #[must_use]
    pub fn symbol_cache(mut self, cache: &Path) -> Self {
        self.cache = Some(cache.to_owned());
        self
    }

    /// Also finds source lines and inlined functions for the named code, if its file has debug information. `scxprof` is the
    /// path of that program, which reads the debug information in a separate process.
    #[must_use]
    pub fn source_lines(mut self, scxprof: &Path) -> Self {
        self.lines = Some(scxprof.to_owned());
        self
    }

    /// Records a profile in the directory `dir`, which must exist and should be empty; [`crate::profile`] describes its files.
    /// [`Session::recorder`] must finish it when the session has ended.
    #[must_use]
    pub fn record(mut self, dir: &Path) -> Self {
        self.record = Some(dir.to_owned());
        self
    }

    /// Keeps the memory around the registers of each sample in a recording of the source `timer`: it contains the threads'
    /// data. By default this memory is used to recover addresses, and is left out of the file.
    #[must_use]
    pub fn keep_memory(mut self) -> Self {
        self.keep_memory = true;
        self
    }

    /// A handle that stops the capture from another thread.
    #[must_use]
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Samples until the end, and decides: [`Builder::start`] and [`Session::run`] in one.
    ///
    /// # Errors
    /// [`Error`]; then all events are closed.
    pub fn run(self) -> Result<Analysis, Error> {
        self.start()?.run()
    }

    /// Opens the first source that works, and starts sampling.
    ///
    /// # Errors
    /// [`Error`]; then all events are closed.
    pub fn start(mut self) -> Result<Session<'a>, Error> {
        let groups = CellSpecs::new(&self.cells)?;
        let mut input = std::mem::replace(&mut self.input, Input::Host);
        let recorded = match &mut input {
            Input::Profile(profile) => profile.cpus(),
            // It has no samples to decide of.
            Input::Trace(_) => Some(1),
            Input::Host | Input::Feed(_) => None,
        };
        let target_cpus = match self.target_cpus.or(recorded) {
            Some(cpus) => cpus,
            None => topology::online_cpus(&self.roots)?.len(),
        };
        let mut symbols = SymbolOptions {
            roots: self.roots.clone(),
            begin: None,
            cache: self.cache.take(),
            lines: self.lines.take(),
        };
        let mut pids = Vec::new();
        let mut recorder = None;
        let (from, source, skipped) = match input {
            Input::Feed(feed) => (From::Feed(feed), Source::Recorded, Skipped::new()),
            Input::Trace(trace) => (From::Trace(trace), Source::Recorded, Skipped::new()),
            Input::Profile(profile) => {
                symbols.begin = profile.recorded_here(&self.roots);
                let source = profile.source();
                let unwinds = SymbolOptions { lines: None, ..symbols.clone() };
                (From::Profile(profile, unwinds), source, Skipped::new())
            }
            Input::Host => {
                // Files changed after this time do not name the code; files of a feed's host are not here.
                symbols.begin = Some(SystemTime::now());
                let unwinds = SymbolOptions { lines: None, ..symbols.clone() };
                let _raised = self.realtime.and_then(|_| priority::raise().ok());
                let (capture, source, skipped) = self.capture(&mut pids, unwinds)?;
                recorder = capture.recorder().cloned();
                (From::Kernel(Box::new(capture)), source, skipped)
            }
        };
        let stop = StopConditions { time: self.time, stop: self.stop, pids, roots: self.roots, recorder };
        let Self {
            sinks,
            select,
            memory,
            use_hints,
            min_share,
            scheduler,
            symbols: keep_code,
            score: keep_slices,
            realtime,
            ..
        } = self;
        let sampling = Sampling { from, sinks, select, stop, memory, use_hints };
        let options = config::DecisionOptions { scheduler, ..config::DecisionOptions::new(min_share, target_cpus) };
        let raises = realtime.is_some() && matches!(sampling.from, From::Kernel(_));
        Ok(Session {
            source,
            skipped,
            sampling,
            raises,
            plan: Plan { groups, keep_code, keep_slices, options, symbols },
        })
    }

    /// Starts the first source that works; stores the watched processes in `pids`.
    fn capture(&mut self, pids: &mut Vec<u32>, symbols: SymbolOptions) -> Result<(Capture, Source, Skipped), Error> {
        let child_pid_namespace = match namespace::pid_namespace(&self.roots) {
            PidNamespace::ProcfsElsewhere { ours, .. } => {
                return Err(Error::ProcfsElsewhere { proc: self.roots.proc.clone(), ours })
            }
            namespace => matches!(namespace, PidNamespace::Child),
        };
        if self.record.is_some() && self.hardware.batched {
            return Err(Error::BatchedRecording);
        }
        if self.sources == [Source::Wakeups]
            && matches!(self.whose, Scope::Cgroup(_) | Scope::Target(Target::Cgroup(_)))
        {
            return Err(Error::WakeupsOfCgroup);
        }
        let cpus = if self.cpus.is_empty() { topology::online_cpus(&self.roots)? } else { self.cpus.clone() };
        let target = match std::mem::replace(&mut self.whose, Scope::Target(Target::System)) {
            Scope::Target(target) => target,
            Scope::Pids(of) => {
                *pids = of;
                Target::Tasks { tids: threads_of(pids, &self.roots)?, enable_on_exec: false }
            }
            Scope::Cgroup(path) => Target::Cgroup(Arc::new(open_cgroup(&path, &self.roots)?)),
        };
        let mut options = CaptureOptions {
            sampler: sampler::SamplerOptions {
                source: Source::Faults,
                freq: self.freq,
                target,
                cpus,
                all_cpus: self.cpus.is_empty(),
                mmap_pages: self.mmap_pages,
                workers: self.workers,
                realtime: self.realtime,
                features: self.features,
                hardware: self.hardware.clone(),
                sched: self.sched,
                proc: self.roots.proc.clone(),
                sys: self.roots.sys.clone(),
                child_pid_namespace,
                raise_open_files: self.raise_open_files,
                stacks: self.stacks.take(),
                snapshots: true,
            },
            roots: self.roots.clone(),
            memory: self.memory,
            hints: self.hints.take(),
            record: self.record.take(),
            symbols,
            keep_memory: self.keep_memory,
            only: None,
        };
        let (capture, skipped) = start_first(&mut options, &self.sources, pids)?;
        Ok((capture, options.sampler.source, skipped))
    }
}

fn open_cgroup(path: &Path, roots: &Roots) -> Result<OwnedFd, Error> {
    let mut cgroups = Cgroups::new(roots)?;
    let dir = cgroups.find(path).map_err(Error::NoCgroup)?.dir;
    let file = File::open(&dir).map_err(|source| Error::NoCgroup(host::Error::Read { path: dir, source }))?;
    Ok(file.into())
}
