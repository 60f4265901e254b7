//! A profiler of call stacks that runs beside its caller.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::{default_event, parse_event, EventNameError, Roots};
use super::{
    Builder, Error, EventSpec, Feed, Meanwhile, Outcome, Progress, Rate, Session, Sink, StackSink, StopHandle, Tables,
};
use crate::host::priority;
use crate::resolve::{symbolize, Cgroups, Modules, Stacks, SymbolOptions};
use crate::sample::{Comm, Sample};
use crate::stacks::{ProfilerState, StackProfile};

/// How long the results wait for the stacks of the samples so far; the capture has time for them about every 50 ms.
const FRESH: Duration = Duration::from_secs(1);

/// Samples call stacks in a background thread: its state and the results so far can be read at any time.
///
/// ```no_run
/// use std::time::Duration;
///
/// use scxprof::session::Profiler;
/// use scxprof::stacks;
///
/// let mut profiler = Profiler::new();
/// profiler.start_default()?;
/// std::thread::sleep(Duration::from_secs(5));
/// println!("{} samples so far", profiler.status().samples);
/// for line in stacks::symbols(&profiler.results(), &|_| true).iter().take(5) {
///     println!("{} {:.1} %", line.symbol, line.self_percent);
/// }
/// profiler.stop();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// With another event and other options:
///
/// ```no_run
/// use std::time::Duration;
///
/// use scxprof::session::{parse_event, Profiler, Roots};
///
/// let event = parse_event("page-faults", None, &Roots::default())?;
/// let mut profiler = Profiler::new();
/// profiler.start(event, Some(100_000), |capture| capture.time(Duration::from_secs(60)))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Profiler {
    run: Option<Run>,
}

/// The arguments of a profiler, and where its thread puts the results.
#[derive(Debug)]
struct Run {
    shared: Arc<Shared>,
    stop: StopHandle,
    thread: Option<JoinHandle<()>>,
    event: Option<EventSpec>,
    symbols: SymbolOptions,
    begin: SystemTime,
}

#[derive(Debug, Default)]
struct Shared {
    now: Mutex<Now>,
    changed: Condvar,
}

/// The results of the thread so far.
#[derive(Debug, Default)]
struct Now {
    sink: StackSink,
    /// When earlier samples were cleared.
    cleared_at: Duration,
    elapsed: Duration,
    /// A caller waits for a copy.
    is_wanted: bool,
    copy: Option<Copy>,
    outcome: Option<Outcome>,
    has_ended: bool,
}

/// The samples so far, with their stacks.
#[derive(Debug)]
struct Copy {
    sink: StackSink,
    stacks: Stacks,
    modules: Modules,
}

/// The state of a [`Profiler`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ProfilerStatus {
    /// Whether it runs.
    pub state: ProfilerState,
    /// The event; empty before the first start, and of a feed.
    pub event: String,
    /// Samples so far, since they were last cleared.
    pub samples: u64,
    /// Samples a second, over the same time.
    pub samples_per_s: f64,
    /// Lost samples; the kernel tells them at the end.
    pub lost: Option<u64>,
    /// How long it has run, in s.
    pub elapsed_s: f64,
}

/// Why a profiler does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfilerError {
    /// The event has no such name, or cannot be sampled at this rate.
    #[error(transparent)]
    Event(#[from] EventNameError),
    /// It runs already.
    #[error("the profiler runs already: stop it first")]
    Running,
    /// The event cannot be sampled.
    #[error(transparent)]
    Session(#[from] Error),
    /// Its thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

impl Profiler {
    /// A profiler that is idle.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Samples the CPU time of the whole host until it is stopped: cycles, or the CPU's clock where there is no PMU
    /// ([`default_event`]).
    ///
    /// # Errors
    /// [`ProfilerError`]; then nothing has changed.
    pub fn start_default(&mut self) -> Result<(), ProfilerError> {
        let roots = Roots::default();
        let event = parse_event(default_event(&roots), None, &roots)?;
        self.start(event, None, |capture| capture)
    }

    /// Samples `event` until it is stopped, until `max_samples` were taken (or a few more), or until the end that `options` sets:
    /// `options` are those of a session, by default of the whole host. The results of an earlier run are cleared.
    ///
    /// # Errors
    /// [`ProfilerError`]; then nothing has changed.
    pub fn start(
        &mut self,
        event: EventSpec,
        max_samples: Option<u64>,
        options: impl for<'a> FnOnce(Builder<'a>) -> Builder<'a> + Send + 'static,
    ) -> Result<(), ProfilerError> {
        let sampled = event.clone();
        self.begin(Some(event), max_samples, move |run| run(options(Session::builder()).stacks(sampled)))
    }

    /// The same for samples from a [`Feed`], for example those of a test.
    ///
    /// # Errors
    /// [`ProfilerError`]; then nothing has changed.
    pub fn start_feed(
        &mut self,
        mut feed: Box<dyn Feed + Send>,
        max_samples: Option<u64>,
    ) -> Result<(), ProfilerError> {
        self.begin(None, max_samples, move |run| run(Session::builder().feed(&mut *feed)))
    }

    fn begin(
        &mut self,
        event: Option<EventSpec>,
        max_samples: Option<u64>,
        with: impl FnOnce(&mut dyn FnMut(Builder<'_>)) + Send + 'static,
    ) -> Result<(), ProfilerError> {
        if self.status().state == ProfilerState::Running {
            return Err(ProfilerError::Running);
        }
        let shared = Arc::new(Shared::default());
        let begin = SystemTime::now();
        let (tell, told) = crossbeam_channel::bounded(1);
        let of_thread = Arc::clone(&shared);
        let job = move || {
            with(&mut |builder: Builder<'_>| {
                let stop = builder.stop_handle();
                let session = match builder.start() {
                    Ok(session) => session,
                    Err(error) => {
                        let _ = tell.send(Err(error));
                        return;
                    }
                };
                let _ = tell.send(Ok((stop, session.symbol_options().clone())));
                let mut sink = Lent { shared: &of_thread, began: Instant::now() };
                let is_enough = |progress: Progress| max_samples.is_some_and(|most| progress.samples >= most);
                let outcome = session.run_into(&mut sink, is_enough);
                of_thread.lock().outcome = Some(outcome);
            });
            // Also if it could not start.
            of_thread.lock().has_ended = true;
            of_thread.changed.notify_all();
        };
        let thread = priority::spawn("profiler", job).map_err(ProfilerError::Thread)?;
        let Ok(started) = told.recv() else {
            return Err(ProfilerError::Thread(std::io::Error::other("the profiler's thread died")));
        };
        let (stop, symbols) = started?;
        self.run = Some(Run { shared, stop, thread: Some(thread), event, symbols, begin });
        Ok(())
    }

    /// Its state and progress.
    #[must_use]
    pub fn status(&self) -> ProfilerStatus {
        let Some(run) = &self.run else {
            return ProfilerStatus {
                state: ProfilerState::Idle,
                event: String::new(),
                samples: 0,
                samples_per_s: 0.0,
                lost: None,
                elapsed_s: 0.0,
            };
        };
        let has_ended = run.thread.as_ref().is_none_or(JoinHandle::is_finished);
        let now = run.shared.lock();
        let elapsed = now.outcome.as_ref().map_or(now.elapsed, |outcome| outcome.duration);
        let samples = now.sink.count();
        let since_cleared = elapsed.saturating_sub(now.cleared_at).as_secs_f64();
        ProfilerStatus {
            state: if has_ended || now.has_ended { ProfilerState::Stopped } else { ProfilerState::Running },
            event: run.event.as_ref().map_or_else(String::new, |event| event.name.to_string()),
            samples,
            samples_per_s: if since_cleared > 0.0 { samples as f64 / since_cleared } else { 0.0 },
            lost: now.outcome.as_ref().map(|outcome| outcome.loss.lost()),
            elapsed_s: elapsed.as_secs_f64(),
        }
    }

    /// The samples so far, with the names of their code. Naming takes its time, at most 25 s, while sampling goes on.
    #[must_use]
    pub fn results(&self) -> StackProfile {
        let Some(run) = &self.run else { return StackProfile::default() };
        let (mut profile, elapsed) = run.profile();
        profile.duration_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        profile.begin_unix = run.begin.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs_f64());
        if let Some(event) = &run.event {
            profile.event = event.name.to_string();
            profile.is_clock = event.is_clock();
            match event.rate {
                Rate::Frequency(hz) => profile.frequency = Some(hz),
                Rate::Period(period) => profile.period = Some(period),
            }
        }
        profile
    }

    /// The losses, the omissions and the notes of a run that has ended.
    #[must_use]
    pub fn outcome(&self) -> Option<Outcome> {
        self.run.as_ref().and_then(|run| run.shared.lock().outcome.clone())
    }

    /// Ends sampling, and waits for it. The results stay.
    pub fn stop(&mut self) {
        let Some(run) = &mut self.run else { return };
        run.stop.stop();
        if let Some(thread) = run.thread.take() {
            // What it panicked with was printed.
            let _ = thread.join();
        }
    }

    /// Clears the samples so far. Sampling continues if it runs; otherwise the profiler is idle.
    pub fn clear(&mut self) {
        if self.status().state != ProfilerState::Running {
            self.run = None;
            return;
        }
        let Some(run) = &self.run else { return };
        let mut now = run.shared.lock();
        now.sink.clear();
        (now.copy, now.cleared_at) = (None, now.elapsed);
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Run {
    fn profile(&self) -> (StackProfile, Duration) {
        let mut now = self.shared.lock();
        (now.copy, now.is_wanted) = (None, true);
        let waits = |now: &mut Now| now.copy.is_none() && !now.has_ended;
        let waited = self.shared.changed.wait_timeout_while(now, FRESH, waits);
        now = waited.unwrap_or_else(PoisonError::into_inner).0;
        let elapsed = now.elapsed;
        let ended =
            now.outcome.as_ref().map(|outcome| (outcome.stacks.clone(), outcome.modules.clone(), outcome.duration));
        let (sink, stacks, modules, elapsed) = match (ended, now.copy.take()) {
            (Some((stacks, modules, duration)), _) => (now.sink.clone(), stacks, modules, duration),
            (None, Some(Copy { sink, stacks, modules })) => (sink, stacks, modules, elapsed),
            (None, None) => return (StackProfile::default(), elapsed),
        };
        drop(now);
        let symbols = symbolize(&modules, stacks.codes(), &self.symbols);
        (sink.profile(&stacks, &symbols), elapsed)
    }
}

/// The sink of the thread.
struct Lent<'a> {
    shared: &'a Shared,
    began: Instant,
}

impl Sink for Lent<'_> {
    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups) {
        self.samples(std::slice::from_ref(sample), cgroups);
    }

    fn samples(&mut self, samples: &[Sample], cgroups: &mut Cgroups) {
        self.shared.lock().sink.samples(samples, cgroups);
    }

    fn processes(&mut self, names: &[(u32, Comm)], cgroups: &mut Cgroups) {
        self.shared.lock().sink.processes(names, cgroups);
    }

    fn meanwhile(&mut self, capture: &dyn Meanwhile, _: &mut Cgroups) {
        let Some((stacks, modules)) = capture.stacks() else { return };
        let mut now = self.shared.lock();
        now.elapsed = self.began.elapsed();
        if std::mem::take(&mut now.is_wanted) {
            now.copy = Some(Copy { sink: now.sink.clone(), stacks: stacks.clone(), modules: modules.clone() });
            self.shared.changed.notify_all();
        }
    }

    fn measure(&self, tables: &mut Tables) {
        self.shared.lock().sink.measure(tables);
    }

    fn wants_stacks(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use crossbeam_channel::{bounded, Receiver};

    use super::*;
    use crate::sample::batch::SideBand;
    use crate::sample::{CpuMode, RawSample};
    use crate::session::{Batch, FileId, HostOptions, Whose};
    use crate::stacks;

    /// Passes on what a channel receives, until the channel is closed.
    struct Piped(Receiver<Batch>);

    impl Feed for Piped {
        fn next_batch(&mut self) -> Option<Batch> {
            self.0.recv().ok()
        }
    }

    /// `count` samples of one thread from `time` on, one a second, with two callers.
    fn batch(time: u64, count: u64) -> Batch {
        let mut batch = Batch::until((time + count) * 1_000_000_000);
        if time == 0 {
            let comm = Comm::from("worker");
            batch.side_band(0, SideBand::Comm { pid: 5, tid: 5, exec: true, comm });
            let file = FileId::Inode { dev: 1, ino: 1, generation: 0 };
            let (prot, flags) = ((libc::PROT_READ | libc::PROT_EXEC) as u32, libc::MAP_PRIVATE as u32);
            let filename = b"/bin/app".as_slice().into();
            let what = SideBand::Mmap { pid: 5, addr: 0x1000, len: 0x9000, pgoff: 0, file, prot, flags, filename };
            batch.side_band(0, what);
        }
        for at in time..time + count {
            let sample = RawSample {
                time: at * 1_000_000_000,
                pid: 5,
                tid: 5,
                mode: CpuMode::User,
                ip: 0x1500,
                period: 1,
                ..RawSample::default()
            };
            batch.stack(sample, &[perf_event_open_sys::bindings::PERF_CONTEXT_USER, 0x1500, 0x1600]);
        }
        batch
    }

    /// Waits until the condition holds; a broken profiler makes the test wait until its time is over.
    fn until(profiler: &Profiler, mut is_so: impl FnMut(&ProfilerStatus) -> bool) -> ProfilerStatus {
        for _ in 0..6000 {
            let status = profiler.status();
            if is_so(&status) {
                return status;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("{:?}", profiler.status());
    }

    #[test]
    fn it_starts_runs_stops_and_clears() {
        let mut profiler = Profiler::new();
        assert_eq!(profiler.status().state, ProfilerState::Idle);
        assert_eq!(profiler.results().count(), 0);
        let (give, taken) = bounded(0);
        profiler.start_feed(Box::new(Piped(taken)), None).unwrap();
        let again = profiler.start_feed(Box::new(Piped(bounded(0).1)), None);
        assert!(matches!(again, Err(ProfilerError::Running)), "{again:?}");
        give.send(batch(0, 10)).unwrap();
        // What this batch says is complete is the first one.
        give.send(batch(10, 10)).unwrap();
        let status = until(&profiler, |status| status.samples >= 10);
        assert_eq!((status.state, status.lost), (ProfilerState::Running, None));
        // Results while it runs: it has time to copy them when the next batch comes.
        let results = thread::scope(|scope| {
            let results = scope.spawn(|| profiler.results());
            for at in 2.. {
                if results.is_finished() {
                    break;
                }
                let _ = give.send_timeout(batch(at * 10, 10), Duration::from_millis(10));
            }
            results.join().unwrap()
        });
        assert!(results.count() >= 10, "{results:?}");
        let folded = stacks::folded(&results);
        assert!(folded.starts_with("worker;[app];[app] "), "{folded}");
        give.send(batch(100_000, 100)).unwrap();
        give.send(batch(100_100, 10)).unwrap();
        let before = until(&profiler, |status| status.samples >= 110).samples;
        profiler.clear();
        assert_eq!(profiler.status().state, ProfilerState::Running);
        give.send(batch(200_000, 10)).unwrap();
        give.send(batch(200_010, 10)).unwrap();
        drop(give);
        let status = until(&profiler, |status| status.state == ProfilerState::Stopped);
        // The last batch before may not have been complete.
        assert!((20..before).contains(&status.samples) && status.lost == Some(0), "{before}, then {status:?}");
        assert_eq!(profiler.results().count(), status.samples);
        assert!(profiler.outcome().is_some());
        profiler.clear();
        assert_eq!((profiler.status().state, profiler.results().count()), (ProfilerState::Idle, 0));
    }

    #[test]
    fn it_stops_by_itself_after_so_many_samples() {
        let mut profiler = Profiler::new();
        let (give, taken) = bounded(0);
        profiler.start_feed(Box::new(Piped(taken)), Some(25)).unwrap();
        // It stops to take them some time.
        for at in 0.. {
            if give.send_timeout(batch(at * 10, 10), Duration::from_millis(10)).is_err() && at > 3 {
                let state = profiler.status().state;
                if state == ProfilerState::Stopped {
                    break;
                }
            }
        }
        assert!(profiler.status().samples >= 25);
        // Stopped twice, started again, and dropped while it runs.
        profiler.stop();
        profiler.stop();
        let (give, taken) = bounded(0);
        profiler.start_feed(Box::new(Piped(taken)), None).unwrap();
        assert_eq!(profiler.status().samples, 0);
        drop(give);
        drop(profiler);
    }

    #[test]
    fn what_cannot_be_sampled_is_an_error() {
        let mut profiler = Profiler::new();
        let roots = crate::host::Roots::default();
        let event = super::super::parse_event("cpu-clock", None, &roots).unwrap();
        let nobody = HostOptions { whose: Whose::Pids(vec![u32::MAX - 5]), ..HostOptions::default() };
        let error = profiler.start(event, None, |capture| capture.host(nobody)).unwrap_err();
        assert!(matches!(error, ProfilerError::Session(_)), "{error}");
        assert_eq!(profiler.status().state, ProfilerState::Idle);
    }
}
