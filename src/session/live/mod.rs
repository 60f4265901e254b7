//! A capture that runs in the background, and can be read while it runs.

mod around;
mod counts;
mod evaluate;
mod groups;
mod memory;
mod scheduling;
mod shared;
mod snapshot;
mod usage;

#[cfg(test)]
mod tests;

pub use around::{Around, AroundNow, CacheNow, SchedulerNow};
pub use snapshot::{
    AccessCounts, AccessLine, AccessLines, CpuNow, Group, LiveState, Losses, OwnCost, Scheduling, SchedulingLines,
    SharingWindow, Snapshot,
};

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use self::counts::{Counts, Names};
use self::evaluate::{Evaluator, Window};
use self::memory::{Deciders, MemorySink};
use self::scheduling::Watching;
use self::shared::{Latest, Loaded, Shared};
use self::usage::Usage;
use super::{
    AddressSpaces, Analysis, AnalysisOptions, Builder, Error, Feed, HostOptions, Modules, Outcome, Roots, Session,
    StopHandle, TablesHandle,
};
use crate::config::{OnCaches, Placement, PlacementError};
use crate::host::clock::monotonic_ns;
use crate::host::{priority, topology};
use crate::profile::jsonl;
use crate::sample::places::CpuPlaces;
use crate::sample::{Source, Task};
use scxprof_sched::report::{By, Order};
use scxprof_sched::wakers::report::{self as wakers, Level};

/// The default window of the statistics.
const INTERVAL: Duration = Duration::from_secs(1);
/// The default window in which sharing is looked for.
const SHARING_WINDOW: Duration = Duration::from_secs(10);
/// The default bytes.
const MEMORY: usize = 64 << 20;
/// The part of all memory for which the session of accesses is sized. It would give 9/16 of that to its queues and caches, and the
/// rest to a sketch, and there are three sketches here: 3/8 of all memory.
const OF_SESSION: usize = 5;
/// The part that evidence takes, twice.
const OF_EVIDENCE: usize = 32;
/// The part that the last accesses take.
const OF_LATEST: usize = 16;

/// The options of a [`Live`] capture, besides what of the host is sampled.
#[derive(Debug, Clone)]
pub struct LiveOptions {
    /// The window of the statistics; by default 1 s.
    pub interval: Duration,
    /// The window in which sharing is looked for: a decision needs more samples than a statistic. By default 10 s; the first one
    /// ends after 2 s.
    pub sharing_window: Duration,
    /// Bytes for all of it, without the rings; by default 64 MiB. Half is for accesses, divided among three sketches (one is filled,
    /// one is evaluated, one is shown), and half for scheduling events.
    pub memory: usize,
    /// What is computed from the accesses.
    pub analysis: AnalysisOptions,
    /// The directories under which the host is read.
    pub roots: Roots,
    /// Last-level caches of the host that configurations are judged for; by default as many as [`AnalysisOptions::caches`] says or as
    /// it has, at least 2.
    pub llcs: Option<u32>,
}

impl Default for LiveOptions {
    fn default() -> Self {
        Self {
            interval: INTERVAL,
            sharing_window: SHARING_WINDOW,
            memory: MEMORY,
            analysis: AnalysisOptions::default(),
            roots: Roots::default(),
            llcs: None,
        }
    }
}

/// Why a [`Live`] capture does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LiveError {
    /// The events cannot be sampled.
    #[error(transparent)]
    Session(#[from] Error),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The scheduling events of a feed cannot be switched on or off.
    #[error("the scheduling events of a feed cannot be switched off")]
    OfFeed,
    /// The capture has ended.
    #[error("the capture has ended: start another one")]
    Ended,
}

/// A capture that runs until it is stopped: [`Live::snapshot`] says at any time which threads share memory, what they access, and
/// what the scheduler does, in the last window and since the start.
///
/// ```no_run
/// use std::time::Duration;
///
/// use scxprof::session::{By, HostOptions, Live, LiveOptions};
///
/// let live = Live::start(LiveOptions::default(), HostOptions::default())?;
/// live.wait_window(1, Duration::from_secs(10));
/// for group in live.snapshot(&[By::Process]).groups {
///     println!("{}: {} threads, {:.1} % of all samples", group.name, group.threads, group.share * 100.0);
/// }
/// # Ok::<(), scxprof::session::LiveError>(())
/// ```
#[derive(Debug)]
pub struct Live {
    shared: Arc<Shared>,
    source: Option<Source>,
    notes: Vec<String>,
    stop: StopHandle,
    thread: Mutex<Option<JoinHandle<()>>>,
    scheduling: Mutex<Switch>,
    /// Held while they are switched.
    switching: Mutex<()>,
    host: HostOptions,
    roots: Roots,
    memory: usize,
    follow_hints: bool,
    places: CpuPlaces,
    order: OnCaches,
    usage: Mutex<Usage>,
    tables: TablesHandle,
    begin: Instant,
}

/// The scheduling events.
#[derive(Debug)]
enum Switch {
    Off,
    On(Watching),
    /// A feed has them beside the accesses.
    OfFeed(scheduling::Handle),
    /// Whether they were on when the capture was stopped.
    Ended(Option<scheduling::Handle>),
}

/// A length of time in ns, at least 1.
fn ns(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX).max(1)
}

impl Live {
    /// Samples the accesses of this host until it is stopped.
    ///
    /// # Errors
    /// [`LiveError`]; then all events are closed.
    pub fn start(options: LiveOptions, host: HostOptions) -> Result<Self, LiveError> {
        let sampled = host.clone();
        let roots = options.roots.clone();
        Self::begin(options, host, None, move |run| run(Session::builder().host(sampled).roots(roots)))
    }

    /// The same for samples and scheduling events from a feed, for example those of a test. Its windows follow the times of the
    /// samples.
    ///
    /// # Errors
    /// [`LiveError::Thread`], or the errors of [`AnalysisOptions::cells`].
    pub fn start_feed(options: LiveOptions, mut feed: Box<dyn Feed + Send>) -> Result<Self, LiveError> {
        let follow_hints = options.analysis.use_hints;
        let scheduling = scheduling::Handle::new(&options.roots, ns(options.interval), follow_hints, None);
        let roots = options.roots.clone();
        let with = move |run: &mut dyn FnMut(Builder<'_>)| run(Session::builder().feed(&mut *feed).roots(roots));
        Self::begin(options, HostOptions::default(), Some(scheduling), with)
    }

    fn begin(
        options: LiveOptions,
        host: HostOptions,
        scheduling: Option<scheduling::Handle>,
        with: impl FnOnce(&mut dyn FnMut(Builder<'_>)) + Send + 'static,
    ) -> Result<Self, LiveError> {
        let LiveOptions { interval, sharing_window, memory, analysis, roots, llcs } = options;
        let cpus = topology::online_cpus(&roots).unwrap_or_default();
        let places = topology::places(&roots, &cpus);
        let caches: BTreeSet<u32> = places.iter().map(|(_, place)| place.llc).collect();
        let given = llcs.map(OnCaches::Random);
        let llcs = llcs.or(analysis.caches.map(|caches| caches.count));
        let llcs = llcs.unwrap_or(u32::try_from(caches.len()).unwrap_or(u32::MAX)).max(2);
        let of_memory = memory / OF_SESSION;
        let follow_hints = analysis.use_hints;
        let shared = Arc::new(Shared::default());
        let mut now = shared.lock();
        (now.interval, now.counts) = (ns(interval), Counts::within(memory));
        now.latest = Latest::within(memory / OF_LATEST);
        drop(now);
        let (tell, told) = crossbeam_channel::bounded(1);
        let (of_sampler, of_feed) = (Arc::clone(&shared), scheduling.clone());
        let sample = move || {
            let _end = of_sampler.until_end();
            with(&mut |builder: Builder<'_>| {
                let builder = builder.analysis(analysis.clone()).memory(of_memory);
                let stop = builder.stop_handle();
                let session = match builder.start() {
                    Ok(session) => session,
                    Err(error) => return drop(tell.send(Err(LiveError::from(error)))),
                };
                let plan = session.plan().clone();
                let (options, symbols) = (plan.decision(), plan.symbols.clone());
                let known = || OnCaches::known(options.caches, options.target_cpus);
                let order = given.or_else(known).unwrap_or(OnCaches::Random(llcs));
                let evaluator = Evaluator::new(Arc::clone(&of_sampler), options, order, symbols, memory / OF_EVIDENCE);
                let (to, from) = crossbeam_channel::bounded::<Window>(1);
                let evaluate = move || evaluator.run(from);
                let evaluating = match priority::spawn("evaluation", evaluate) {
                    Ok(thread) => thread,
                    Err(error) => return drop(tell.send(Err(LiveError::Thread(error)))),
                };
                let notes = session.skipped().iter().map(|(source, error)| format!("{source}: {error}")).collect();
                let started = Started { order, stop, source: session.source(), notes, tables: session.tables() };
                let _ = tell.send(Ok(started));
                let deciders = Deciders { source: session.source(), memory: of_memory, plan };
                let begin = of_feed.is_none().then(monotonic_ns);
                let (shared, feed) = (Arc::clone(&of_sampler), of_feed.clone());
                let mut sink = MemorySink::new(shared, feed, to, deciders, sharing_window, begin);
                let outcome = session.run_into(&mut sink, |_| false);
                let kept = Outcome {
                    modules: Modules::default(),
                    address_spaces: AddressSpaces::default(),
                    ..outcome.clone()
                };
                sink.finish(outcome);
                // What it panicked with was printed.
                let _ = evaluating.join();
                of_sampler.ended(kept);
            });
        };
        let thread = priority::spawn("live", sample).map_err(LiveError::Thread)?;
        let Ok(started) = told.recv() else {
            return Err(LiveError::Thread(io::Error::other("the thread that samples died")));
        };
        let Started { order, stop, source, notes, tables } = started?;
        Ok(Self {
            shared,
            source: scheduling.is_none().then_some(source),
            notes,
            stop,
            thread: Mutex::new(Some(thread)),
            scheduling: Mutex::new(scheduling.map_or(Switch::Off, Switch::OfFeed)),
            switching: Mutex::new(()),
            host,
            usage: Mutex::new(Usage::new(&roots)),
            roots,
            memory,
            follow_hints,
            places,
            order,
            tables,
            begin: Instant::now(),
        })
    }

    /// Whether it samples.
    #[must_use]
    pub fn state(&self) -> LiveState {
        if self.shared.lock().has_ended {
            LiveState::Ended
        } else {
            LiveState::Running
        }
    }

    /// The source of the accesses; `None` for a feed.
    #[must_use]
    pub fn source(&self) -> Option<Source> {
        self.source
    }

    /// What the last complete sharing window showed: as [`Session::run`] over the same samples.
    #[must_use]
    pub fn analysis(&self) -> Option<Arc<Analysis>> {
        self.shared.lock().sharing.as_ref().and_then(|sharing| sharing.analysis.clone())
    }

    /// From now on, snapshots say how well this configuration of scx_mitosis or scx_layered keeps together threads that share;
    /// `None`: no configuration. It has a name and its JSON.
    ///
    /// # Errors
    /// [`PlacementError`]: the scheduler would not load it. Then nothing has changed.
    pub fn load(&self, configuration: Option<(String, String)>) -> Result<(), PlacementError> {
        let load = |(name, json): (String, String)| {
            let placement = Placement::parse(&json)?;
            Ok::<Loaded, PlacementError>(Loaded { name, json, placement })
        };
        self.shared.load(configuration.map(load).transpose()?);
        Ok(())
    }

    /// The part of the avoidable misses that the loaded configuration avoids, by the evidence that fades: as `scxprof score`. `None` if
    /// none is loaded, or nothing is avoidable.
    #[must_use]
    pub fn score(&self) -> Option<f64> {
        let now = self.shared.lock();
        let (loaded, sharing) = (now.loaded.clone()?, now.sharing.clone()?);
        drop(now);
        sharing.evidence.score(&loaded.placement, self.order)
    }

    /// Switches the events of the scheduler on or off. They cost CPU time at each context switch, and cover the whole host, whatever
    /// is sampled otherwise. Switching them off clears their results.
    ///
    /// # Errors
    /// [`LiveError`]; then nothing has changed.
    pub fn schedule(&self, on: bool) -> Result<(), LiveError> {
        // Opening and closing events takes long. Who looks meanwhile sees what was before.
        let _one = lock(&self.switching);
        match (&*lock(&self.scheduling), on) {
            (Switch::OfFeed(_) | Switch::On(_), true) | (Switch::Off, false) => return Ok(()),
            (Switch::OfFeed(_), false) => return Err(LiveError::OfFeed),
            (Switch::Ended(_), _) => return Err(LiveError::Ended),
            (Switch::On(_), false) | (Switch::Off, true) => {}
        }
        let switched = if on {
            let interval = self.shared.lock().interval;
            let statistics =
                scheduling::Handle::new(&self.roots, interval, self.follow_hints, Some(std::process::id()));
            let (memory, accesses) = (self.memory / 2, Arc::clone(&self.shared));
            Switch::On(Watching::start(self.roots.clone(), memory, &self.host, statistics, accesses)?)
        } else {
            Switch::Off
        };
        let mut now = lock(&self.scheduling);
        let has_ended = matches!(&*now, Switch::Ended(_));
        // What was opened while the capture was being stopped is closed again.
        let unused = if has_ended { switched } else { std::mem::replace(&mut *now, switched) };
        drop(now);
        // Waits for its thread.
        drop(unused);
        if has_ended {
            return Err(LiveError::Ended);
        }
        Ok(())
    }

    /// True while the scheduler's events are on.
    #[must_use]
    pub fn is_scheduling(&self) -> bool {
        matches!(&*lock(&self.scheduling), Switch::On(_) | Switch::OfFeed(_))
    }

    /// The window of the statistics from now on.
    pub fn set_interval(&self, interval: Duration) {
        let interval = ns(interval);
        self.shared.lock().interval = interval;
        if let Some(statistics) = self.statistics() {
            statistics.set_interval(interval);
        }
    }

    /// Which threads wake each other, since the scheduler's events were switched on, with at most `limit` edges and lines of
    /// preemptions; `None` while they are off.
    #[must_use]
    pub fn wakers(&self, level: Level, limit: usize) -> Option<wakers::Report> {
        self.statistics().and_then(|statistics| statistics.lock().sink.wakers(level, limit))
    }

    /// Waits until `windows` sharing windows are complete, the capture has ended, or the time is over; true in the first case.
    #[must_use]
    pub fn wait_window(&self, windows: u64, timeout: Duration) -> bool {
        self.shared.wait(timeout, |now| now.windows >= windows || now.has_ended);
        self.shared.lock().windows >= windows
    }

    /// Writes the last accesses, as many as fit into a sixteenth of the memory, as lines of JSON that [`crate::profile::Profile::open`] and
    /// `scxprof report` read; without names of code. Returns how many there were.
    ///
    /// # Errors
    /// The errors of the writer.
    pub fn write_accesses(&self, out: impl Write) -> io::Result<u64> {
        let now = self.shared.lock();
        let (samples, cgroups) = (now.latest.copy(), now.cgroups.clone());
        drop(now);
        let mut writer = jsonl::Writer::new(out, self.source.unwrap_or(Source::Recorded));
        for sample in &samples {
            writer.write(sample, cgroups.get(&sample.raw.cgroup).map(|path| &**path), None)?;
        }
        writer.finish()?.flush()?;
        Ok(samples.len() as u64)
    }

    /// Ends sampling, and waits for it and for the evaluation of the last window. The results stay.
    pub fn stop(&self) {
        self.stop.stop();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // What it panicked with was printed.
            let _ = thread.join();
        }
        let statistics = self.statistics();
        let before = std::mem::replace(&mut *lock(&self.scheduling), Switch::Ended(statistics));
        drop(before);
    }

    /// The counts, losses and notes of a capture that has ended.
    #[must_use]
    pub fn outcome(&self) -> Option<Outcome> {
        self.shared.lock().outcome.as_deref().cloned()
    }

    fn statistics(&self) -> Option<scheduling::Handle> {
        match &*lock(&self.scheduling) {
            Switch::Off => None,
            Switch::On(watching) => Some(watching.statistics.clone()),
            Switch::OfFeed(statistics) => Some(statistics.clone()),
            Switch::Ended(statistics) => statistics.clone(),
        }
    }

    /// The state and the results now; accesses and scheduling have lines for each `by`.
    #[must_use]
    pub fn snapshot(&self, by: &[By]) -> Snapshot {
        let now = self.shared.lock();
        // Copies, so that sampling goes on.
        let (counts, processes, cgroups) = (now.counts.clone(), now.processes.clone(), now.cgroups.clone());
        let (loaded, sharing, groups) = (now.loaded.clone(), now.sharing.clone(), Arc::clone(&now.groups));
        let (loss, accesses, late_windows) = (now.loss, now.accesses, now.late_windows);
        let (window, interval, evaluation) = (now.window, now.interval, now.evaluation);
        let elapsed = now.outcome.as_ref().map_or_else(|| self.begin.elapsed(), |outcome| outcome.duration);
        let mut notes = self.notes.clone();
        notes.extend(now.outcome.as_ref().map_or(&now.notes, |outcome| &outcome.notes).iter().cloned());
        if now.has_evaluated_all && !now.has_ended {
            notes.push("the evaluation of sharing died (a bug in scxprof): what is shown of sharing is old".to_owned());
        }
        drop(now);
        let placement = loaded.as_ref().map(|loaded| &loaded.placement);
        let names = Names { processes: &processes, cgroups: &cgroups, places: &self.places, placement };
        let lines = |&by: &By| AccessLines { by, lines: counts.lines(by, &names) };
        let mut groups = Arc::unwrap_or_clone(groups);
        let report = sharing.as_ref().and_then(|sharing| sharing.window.report.as_ref());
        let is_off = matches!(&*lock(&self.scheduling), Switch::Off);
        let (busy, cost) = {
            let mut usage = lock(&self.usage);
            // Where the scheduler's events are off, procfs says how long the threads of groups ran.
            let members = report.filter(|_| is_off).into_iter().flat_map(groups::threads);
            let found = usage.now(&self.roots, Duration::from_nanos(interval), members);
            let (used, elapsed) = usage.of_threads();
            if let Some(report) = report.filter(|_| !used.is_empty() && !elapsed.is_zero()) {
                groups::count_cpus(&mut groups, report, used, ns(elapsed));
            }
            found
        };
        let mut tables = self.tables.now();
        if let Switch::On(watching) = &*lock(&self.scheduling) {
            for table in watching.tables.now().iter() {
                let (entries, bytes) = (table.entries as usize, table.bytes as usize);
                tables.set(&format!("scheduling: {}", table.name), entries, bytes);
            }
        }
        let scheduling = self.statistics().map(|statistics| {
            notes.extend(
                statistics.lock().notes.iter().filter(|note| !notes.contains(note)).cloned().collect::<Vec<_>>(),
            );
            scheduling_of(&statistics, by, placement, sharing.as_deref(), &mut groups)
        });
        Snapshot {
            at_unix: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            elapsed_s: elapsed.as_secs_f64(),
            state: self.state(),
            source: self.source.map_or_else(String::new, |source| source.name().to_owned()),
            window_s: window as f64 / 1e9,
            configuration: loaded.as_ref().map(|loaded| loaded.name.clone()),
            sharing: sharing.map(|sharing| Arc::clone(&sharing.window)),
            groups,
            accesses: by.iter().map(lines).collect(),
            scheduling,
            cpus: counts::cpus(&counts, &self.places, &busy),
            losses: Losses {
                samples: loss.samples,
                accesses,
                lost: loss.lost(),
                lost_percent: loss.percent(),
                lines: loss.lines(),
                left_out: loss.left_out(),
                late_windows,
            },
            cost: OwnCost { evaluation_s: evaluation.as_secs_f64(), tables, ..cost },
            notes,
        }
    }
}

/// What the scheduler did; gives the groups their CPUs.
fn scheduling_of(
    statistics: &scheduling::Handle,
    by: &[By],
    placement: Option<&Placement>,
    sharing: Option<&shared::Sharing>,
    groups: &mut [Group],
) -> Scheduling {
    let cell_of = |task: &Task<'_>| placement.map_or_else(String::new, |placement| placement.name_of(task));
    let now = statistics.lock();
    let (last, labels) = (now.sink.recent().cloned(), now.sink.labels().clone());
    let mut found = Scheduling {
        window_s: last.as_ref().map_or(0, |last| last.length()) as f64 / 1e9,
        total_s: now.sink.window() as f64 / 1e9,
        events: now.sink.events(),
        lost: now.loss.sched.lost(),
        dsqs: now.sink.dsqs(),
        dsqs_window: last.as_ref().map_or_else(Vec::new, |last| last.dsqs().to_vec()),
        lines: Vec::new(),
    };
    drop(now);
    for &by in by.iter().filter(|by| placement.is_some() || **by != By::Cell) {
        let window = last.as_ref().map_or_else(Vec::new, |last| last.lines(by, Order::Run, &labels, &cell_of));
        // What takes events waits for one kind of lines, not for all.
        let total = statistics.lock().sink.lines(by, Order::Run, &cell_of);
        found.lines.push(SchedulingLines { by, window, total });
    }
    if let (Some(last), Some(report)) = (last, sharing.and_then(|sharing| sharing.window.report.as_ref())) {
        groups::count_cpus(groups, report, &last.run().collect(), last.length());
    }
    found
}

/// What a capture says when it has started.
struct Started {
    order: OnCaches,
    stop: StopHandle,
    source: Source,
    notes: Vec<String>,
    tables: TablesHandle,
}

impl Drop for Live {
    fn drop(&mut self) {
        self.stop();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
