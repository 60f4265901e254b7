//! A session before its start.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::origins::start_host;
use super::running::{OpenInput, Plan, Sampling};
use super::stop::StopConditions;
use super::{
    Analysis, AnalysisOptions, Error, Feed, HostOptions, Select, Session, Sink, Skipped, StopHandle, TraceInput,
};
use crate::config::CellSpecs;
use crate::host::{topology, Roots};
use crate::profile::Profile;
use crate::resolve::SymbolOptions;
use crate::sample::Source;
use crate::sampler::attr::EventSpec;

/// The default bytes for queues, caches and the sketch.
const MEMORY: usize = 64 << 20;

/// Where samples come from.
enum Input<'a> {
    Host,
    Profile(&'a mut Profile),
    Feed(&'a mut dyn Feed),
    Trace(&'a mut TraceInput),
}

/// A session before its start: the source of its samples, and their sinks. By default it samples the whole host with the first
/// source that works here, until its [`StopHandle`] stops it; [`Session::builder`] has an example.
pub struct Builder<'a> {
    input: Input<'a>,
    sinks: Vec<&'a mut dyn Sink>,
    select: Option<Select<'a>>,
    time: Option<Duration>,
    roots: Roots,
    memory: usize,
    host: HostOptions,
    analysis: AnalysisOptions,
    stop: StopHandle,
}

impl fmt::Debug for Builder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("host", &self.host)
            .field("analysis", &self.analysis)
            .field("time", &self.time)
            .field("sinks", &self.sinks.len())
            .finish_non_exhaustive()
    }
}

impl<'a> Session<'a> {
    /// A session before its start. It prints nothing, writes no file unless [`HostOptions::record`] is set, and handles no signal.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use scxprof::Session;
    ///
    /// let capture = Session::builder().time(Duration::from_secs(30));
    /// let stop = capture.stop_handle();
    /// std::thread::spawn(move || {
    ///     // On any condition that should end it early.
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
            input: Input::Host,
            sinks: Vec::new(),
            select: None,
            time: None,
            roots: Roots::default(),
            memory: MEMORY,
            host: HostOptions::default(),
            analysis: AnalysisOptions::default(),
            stop: StopHandle::default(),
        }
    }

    /// What of this host is sampled, and how.
    #[must_use]
    pub fn host(mut self, options: HostOptions) -> Self {
        self.host = options;
        self
    }

    /// What is computed from the samples.
    #[must_use]
    pub fn analysis(mut self, options: AnalysisOptions) -> Self {
        self.analysis = options;
        self
    }

    /// Reads the samples of a recording instead of the kernel's events: with the same memory, the decision is that of the
    /// capture. [`Profile::open`] opens what `scxprof record`, perf and `perf script` wrote; afterwards [`Profile::damage`]
    /// returns what could not be read. Without [`AnalysisOptions::target_cpus`], the configuration is for a host with as many CPUs as
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

    /// Samples call stacks instead of memory, see [`HostOptions::stacks`].
    pub(super) fn stacks(mut self, event: EventSpec) -> Self {
        self.host = HostOptions { sources: vec![Source::Stacks], stacks: Some(event), ..self.host };
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
    pub fn start(self) -> Result<Session<'a>, Error> {
        let Self { mut input, sinks, select, time, roots, memory, host, mut analysis, stop } = self;
        let specs = CellSpecs::new(&analysis.cells)?;
        let recorded = match &mut input {
            Input::Profile(profile) => profile.cpus(),
            // It has no samples to decide of.
            Input::Trace(_) => Some(1),
            Input::Host | Input::Feed(_) => None,
        };
        let target_cpus = match analysis.target_cpus.or(recorded) {
            Some(cpus) => cpus,
            None => topology::online_cpus(&roots)?.len(),
        };
        let caches = match (analysis.caches, analysis.target_cpus, &mut input) {
            (Some(given), ..) => Some(given),
            // Another host, or one that nothing is known of.
            (None, Some(_), _) | (None, None, Input::Feed(_) | Input::Trace(_)) => None,
            (None, None, Input::Profile(profile)) => profile.caches(),
            (None, None, Input::Host) => topology::caches(&roots, &topology::online_cpus(&roots)?),
        };
        let mut symbols = SymbolOptions {
            roots: roots.clone(),
            begin: None,
            cache: analysis.symbol_cache.take(),
            lines: analysis.source_lines.take(),
        };
        let mut stop = StopConditions { time, stop, pids: Vec::new(), roots, recorder: None };
        let (mut skipped, mut no_kernel, mut raises) = (Skipped::new(), None, false);
        let (from, source) = match input {
            Input::Feed(feed) => (OpenInput::Feed(feed), Source::Recorded),
            Input::Trace(trace) => (OpenInput::Trace(trace), Source::Recorded),
            Input::Profile(profile) => {
                symbols.begin = profile.recorded_here(&stop.roots);
                let source = profile.source();
                (OpenInput::Profile(profile, unwinding(&symbols)), source)
            }
            Input::Host => {
                // Files changed after this time do not name the code; files of a feed's host are not here.
                symbols.begin = Some(SystemTime::now());
                raises = host.priority().is_some();
                let started = start_host(host, &stop.roots, memory, unwinding(&symbols))?;
                (stop.pids, stop.recorder) = (started.pids, started.capture.recorder().cloned());
                (skipped, no_kernel) = (started.skipped, started.no_kernel);
                (OpenInput::Kernel(Box::new(started.capture)), started.source)
            }
        };
        let sampling = Sampling { from, sinks, select, stop, memory, use_hints: analysis.use_hints };
        Ok(Session {
            source,
            skipped,
            no_kernel,
            sampling,
            raises,
            plan: Plan { specs, analysis, target_cpus, caches, symbols },
        })
    }
}

/// Where to find the files of unwound code; source lines are not needed.
fn unwinding(symbols: &SymbolOptions) -> SymbolOptions {
    SymbolOptions { lines: None, ..symbols.clone() }
}
