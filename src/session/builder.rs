//! A capture with all that belongs to it, from the source to the configuration and the report, as values: for programs that
//! embed it.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use thiserror::Error;

use super::feed::{self, Feed};
use super::start::{start_first, threads_of, NoProcess, NotStarted, Skipped};
use super::{Decided, Decider, Options, Outcome, Progress, Session, Sink};
use crate::bpf;
use crate::config::report::{Report, ReportError};
use crate::config::{self, Decision, GroupOptions, Groups, GroupsError};
use crate::resolve::topology::{self, PidNamespace};
use crate::resolve::{symbolize, Cgroups, Roots, SymbolOptions};
use crate::sample::{Sample, Source};
use crate::sampler::attr::Features;
use crate::sampler::{self, Hardware, Target};

/// Bytes for queues, caches and the sketch where nobody says otherwise.
const MEMORY: usize = 64 << 20;
/// Pages of a CPU's ring where nobody says otherwise.
const MMAP_PAGES: usize = 256;

/// Stops a capture, from any thread: it then ends as if its time were over.
#[derive(Debug, Clone, Default)]
pub struct StopHandle(Arc<AtomicBool>);

impl StopHandle {
    /// Ends the capture within 50 ms; before its start it ends at once.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why a capture gave no configuration.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// An expression for cgroups is wrong.
    #[error(transparent)]
    Groups(#[from] GroupsError),
    /// The host cannot be read.
    #[error(transparent)]
    Host(#[from] crate::resolve::Error),
    /// The procfs that we read is of another pid namespace, so that threads would get the names of others.
    #[error("{} is of another pid namespace than ours (it does not know us as {ours})", proc.display())]
    ProcfsElsewhere {
        /// That procfs.
        proc: PathBuf,
        /// Our pid.
        ours: u32,
    },
    /// There is no such process.
    #[error(transparent)]
    NoProcess(#[from] NoProcess),
    /// The source, or the last of several, cannot begin.
    #[error(transparent)]
    Start(#[from] NotStarted),
    /// Nothing usable was sampled.
    #[error("no usable samples in {:.1} s", outcome.duration.as_secs_f64())]
    NoSamples {
        /// What happened instead.
        outcome: Box<Outcome>,
    },
    /// The scheduler would refuse the configuration, which is a bug.
    #[error(transparent)]
    Report(#[from] ReportError),
}

/// A session with its source, and those that were tried before it.
type Started = (Session, Source, Skipped);

/// What a capture gave.
#[derive(Debug)]
#[non_exhaustive]
pub struct Found {
    /// The cells, and what must be said about them.
    pub decision: Decision,
    /// What the decision rests on, as `scxprof run --report` writes it.
    pub report: Report,
    /// Counts, losses and notes.
    pub outcome: Outcome,
    /// The source that worked; `None` for a [`Feed`].
    pub source: Option<Source>,
    /// The sources that were tried before it.
    pub skipped: Skipped,
}

impl Found {
    /// The configuration for scx_mitosis.
    ///
    /// # Errors
    /// What the scheduler would not load, which is a bug.
    pub fn mitosis(&self) -> Result<String, config::mitosis::Refused> {
        config::mitosis::to_json(&self.decision.cells)
    }

    /// The configuration for scx_layered, and what had to be left out of it.
    ///
    /// # Errors
    /// What the scheduler would not load, which is a bug.
    pub fn layered(&self) -> Result<(String, Vec<config::Note>), config::layered::Refused> {
        let layers = config::layers(&self.decision);
        Ok((config::layered::to_json(&layers.layers)?, layers.notes))
    }
}

/// A capture to be set up; [`Session::builder`] has an example. Without anything said it samples the whole host with the
/// first source that works here, until its [`StopHandle`] is used.
pub struct Builder<'a> {
    sources: Vec<Source>,
    feed: Option<&'a mut dyn Feed>,
    sinks: Vec<&'a mut dyn Sink>,
    time: Option<Duration>,
    target: Target,
    pids: Vec<u32>,
    cpus: Vec<u32>,
    hardware: Hardware,
    roots: Roots,
    memory: usize,
    groups: GroupOptions,
    decision: Option<config::Options>,
    hints: Option<bpf::Options>,
    symbols: bool,
    stop: StopHandle,
}

impl fmt::Debug for Builder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("sources", &self.sources)
            .field("time", &self.time)
            .field("target", &self.target)
            .field("sinks", &self.sinks.len())
            .finish_non_exhaustive()
    }
}

impl Session {
    /// A capture to be set up, for programs that want the configuration as a value: nothing is printed, no file is written,
    /// no signal is handled.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use scxprof::Session;
    ///
    /// let capture = Session::builder().time(Duration::from_secs(30));
    /// let stop = capture.stop_handle();
    /// std::thread::spawn(move || {
    ///     // Whatever shall end it early.
    ///     stop.stop();
    /// });
    /// let found = capture.run()?;
    /// println!("{}", found.mitosis()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn builder<'a>() -> Builder<'a> {
        Builder {
            sources: Source::ALL.to_vec(),
            feed: None,
            sinks: Vec::new(),
            time: None,
            target: Target::System,
            pids: Vec::new(),
            cpus: Vec::new(),
            hardware: Hardware::default(),
            roots: Roots::default(),
            memory: MEMORY,
            groups: GroupOptions::default(),
            decision: None,
            hints: None,
            symbols: false,
            stop: StopHandle::default(),
        }
    }
}

impl<'a> Builder<'a> {
    /// The sources to try, in this order; the first that works is used. By default all of [`Source::ALL`].
    #[must_use]
    pub fn sources(mut self, sources: &[Source]) -> Self {
        self.sources = sources.to_vec();
        self
    }

    /// Takes samples from a source of your own in place of the kernel's events.
    #[must_use]
    pub fn feed(mut self, feed: &'a mut dyn Feed) -> Self {
        self.feed = Some(feed);
        self
    }

    /// Gives each sample to `sink` as well; may be called several times.
    #[must_use]
    pub fn sink(mut self, sink: &'a mut dyn Sink) -> Self {
        self.sinks.push(sink);
        self
    }

    /// Ends after so long; by default only the [`StopHandle`] ends it.
    #[must_use]
    pub fn time(mut self, time: Duration) -> Self {
        self.time = Some(time);
        self
    }

    /// Samples only these processes, all of their threads and what they start.
    #[must_use]
    pub fn pids(mut self, pids: &[u32]) -> Self {
        self.pids = pids.to_vec();
        self
    }

    /// Samples only this target, such as the tasks of a cgroup.
    #[must_use]
    pub fn target(mut self, target: Target) -> Self {
        self.target = target;
        self
    }

    /// Samples only these CPUs, which must be online; by default all that are.
    #[must_use]
    pub fn cpus(mut self, cpus: &[u32]) -> Self {
        self.cpus = cpus.to_vec();
        self
    }

    /// How the sources `pebs` and `ibs` sample.
    #[must_use]
    pub fn hardware(mut self, hardware: Hardware) -> Self {
        self.hardware = hardware;
        self
    }

    /// Where the host is read; by default `/proc` and `/sys`.
    #[must_use]
    pub fn roots(mut self, roots: Roots) -> Self {
        self.roots = roots;
        self
    }

    /// Bytes for queues, caches and the sketch, beside the rings; by default 64 MiB.
    #[must_use]
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory = bytes;
        self
    }

    /// Which cgroups belong to which cell.
    #[must_use]
    pub fn groups(mut self, groups: GroupOptions) -> Self {
        self.groups = groups;
        self
    }

    /// By what limits is decided; by default a share of 5 % for a class, and as many CPUs as this host has.
    #[must_use]
    pub fn decision(mut self, decision: config::Options) -> Self {
        self.decision = Some(decision);
        self
    }

    /// Follows the task hints of a map.
    #[must_use]
    pub fn hints(mut self, hints: bpf::Options) -> Self {
        self.hints = Some(hints);
        self
    }

    /// Names the code that touches the hottest shared lines in the report.
    #[must_use]
    pub fn symbols(mut self) -> Self {
        self.symbols = true;
        self
    }

    /// What ends the capture from another thread.
    #[must_use]
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Captures, decides and reports.
    ///
    /// # Errors
    /// [`CaptureError`]; nothing is left open then.
    pub fn run(self) -> Result<Found, CaptureError> {
        self.run_with(|_| {})
    }

    /// As [`Builder::run`], telling `progress` every 50 ms how far it is.
    ///
    /// # Errors
    /// [`CaptureError`]; nothing is left open then.
    pub fn run_with(mut self, mut progress: impl FnMut(Progress)) -> Result<Found, CaptureError> {
        let groups = Groups::new(&self.groups)?;
        let begin = SystemTime::now();
        let (time, stop) = (self.time, self.stop.clone());
        let ended = move |now: Progress| {
            progress(now);
            stop.is_stopped() || time.is_some_and(|time| now.elapsed >= time)
        };
        // Three eighths for the sketch; the session has its share from the same total.
        let sketch = self.memory / 8 * 3;
        let (decider, outcome, source, skipped) = if let Some(feed) = self.feed.take() {
            let mut all = self.all(Decider::new(groups, Source::Recorded, sketch));
            let outcome = feed::run(feed, self.memory, &mut all, ended);
            (all.decider, outcome, None, Skipped::new())
        } else {
            let (session, source, skipped) = self.start()?;
            let mut all = self.all(Decider::new(groups, source, sketch));
            let outcome = session.run(&mut all, ended);
            (all.decider, outcome, Some(source), skipped)
        };
        let options = match self.decision {
            Some(options) => options,
            None => config::Options { min_share: 0.05, target_cpus: topology::online_cpus(&self.roots)?.len() },
        };
        let Ok(mut decided) = decider.decide(&options) else {
            return Err(CaptureError::NoSamples { outcome: Box::new(outcome) });
        };
        // A feed's processes are not this host's.
        let begin = source.map(|_| begin);
        let named = SymbolOptions { roots: self.roots, begin, cache: None };
        decided.symbols = symbolize(&outcome.modules, decided.codes(), &named);
        let mut report = decider.report(&decided, &options)?;
        report.hints.clone_from(&outcome.hints);
        let Decided { decision, .. } = decided;
        Ok(Found { decision, report, outcome, source, skipped })
    }

    /// The decider and the sinks that were given.
    fn all(&mut self, mut decider: Decider) -> All<'a> {
        if self.symbols {
            decider.keep_code();
        }
        All { decider, others: std::mem::take(&mut self.sinks) }
    }

    /// Starts the first source that works.
    fn start(&mut self) -> Result<Started, CaptureError> {
        let child_pid_namespace = match topology::pid_namespace(&self.roots) {
            PidNamespace::ProcfsElsewhere { ours, .. } => {
                return Err(CaptureError::ProcfsElsewhere { proc: self.roots.proc.clone(), ours })
            }
            namespace => matches!(namespace, PidNamespace::Child),
        };
        let cpus = if self.cpus.is_empty() { topology::online_cpus(&self.roots)? } else { self.cpus.clone() };
        let mut target = std::mem::replace(&mut self.target, Target::System);
        if !self.pids.is_empty() {
            target = Target::Tasks { tids: threads_of(&self.pids, &self.roots)?, enable_on_exec: false };
        }
        let mut options = Options {
            sampler: sampler::Options {
                source: Source::Faults,
                freq: None,
                target,
                cpus,
                mmap_pages: MMAP_PAGES,
                workers: None,
                features: Features::all(),
                hardware: self.hardware.clone(),
                proc: self.roots.proc.clone(),
                sys: self.roots.sys.clone(),
                child_pid_namespace,
            },
            roots: self.roots.clone(),
            memory: self.memory,
            hints: self.hints.clone(),
        };
        let (session, skipped) = start_first(&mut options, &self.sources, &self.pids, &mut |it| Session::start(it))?;
        Ok((session, options.sampler.source, skipped))
    }
}

/// The decider, and whoever else wants the samples.
struct All<'a> {
    decider: Decider,
    others: Vec<&'a mut dyn Sink>,
}

impl Sink for All<'_> {
    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups) {
        self.decider.sample(sample, cgroups);
        for sink in &mut self.others {
            sink.sample(sample, cgroups);
        }
    }

    fn samples(&mut self, samples: &[Sample], cgroups: &mut Cgroups) {
        self.decider.samples(samples, cgroups);
        for sink in &mut self.others {
            sink.samples(samples, cgroups);
        }
    }

    fn wants_code(&self) -> bool {
        self.decider.wants_code() || self.others.iter().any(|sink| sink.wants_code())
    }
}
