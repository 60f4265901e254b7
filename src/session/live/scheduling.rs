//! The scheduler's events of a live capture, in a session of its own, so that they can be switched on and off.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::LiveError;
use crate::host::clock::monotonic_ns;
use crate::host::{priority, topology, Roots};
use crate::resolve::Cgroups;
use crate::sample::sched::SchedEvent;
use crate::sample::{Comm, Sample, Source};
use crate::sampler::loss::Loss;
use crate::session::{HostOptions, Meanwhile, SchedOptions, SchedSink, Session, Sink, StopHandle};
use scxprof_base::tables::Tables;

/// A window ends this long after its end, if no event came that is later: until then older ones may come.
const GRACE: u64 = 500_000_000;

/// The statistics, which a session adds to.
#[derive(Debug)]
pub(super) struct Statistics {
    pub(super) sink: SchedSink,
    pub(super) loss: Loss,
    has_clock: bool,
    /// When names were read last.
    named: u64,
    interval: u64,
}

/// The statistics as threads share them.
#[derive(Debug, Clone)]
pub(super) struct Shared(Arc<Mutex<Statistics>>);

impl Shared {
    /// For windows of `interval` ns; with `has_clock` the times of events are those of our clock.
    pub(super) fn new(roots: &Roots, interval: u64, follow_hints: bool, has_clock: bool) -> Self {
        let cpus = topology::online_cpus(roots).unwrap_or_default();
        let own = has_clock.then(std::process::id);
        let sink = SchedSink::new(topology::places(roots, &cpus), own).with_windows(interval).with_wakers();
        let sink = if follow_hints { sink.with_hints() } else { sink };
        Self(Arc::new(Mutex::new(Statistics { sink, loss: Loss::default(), has_clock, named: 0, interval })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Statistics> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_interval(&self, interval: u64) {
        let mut now = self.lock();
        now.interval = interval;
        now.sink.set_window(interval);
    }
}

impl Sink for Shared {
    fn sample(&mut self, _: &Sample, _: &mut Cgroups) {}

    fn samples(&mut self, _: &[Sample], _: &mut Cgroups) {}

    fn sched(&mut self, events: &[SchedEvent], cgroups: &mut Cgroups) {
        self.lock().sink.sched(events, cgroups);
    }

    fn meanwhile(&mut self, now: &dyn Meanwhile, cgroups: &mut Cgroups) {
        let time = monotonic_ns();
        let mut own = self.lock();
        if own.has_clock {
            own.sink.until(time.saturating_sub(GRACE));
        }
        if time.saturating_sub(own.named) < own.interval {
            return;
        }
        own.named = time;
        drop(own);
        let (names, loss) = (now.process_names(), now.loss());
        let mut own = self.lock();
        own.sink.processes(&names, cgroups);
        own.loss = loss;
    }

    fn processes(&mut self, names: &[(u32, Comm)], cgroups: &mut Cgroups) {
        self.lock().sink.processes(names, cgroups);
    }

    fn measure(&self, tables: &mut Tables) {
        self.lock().sink.measure(tables);
    }
}

/// The session of the kernel's scheduling events. It ends when it is dropped.
#[derive(Debug)]
pub(super) struct Watching {
    stop: StopHandle,
    thread: Option<JoinHandle<()>>,
    pub(super) statistics: Shared,
}

impl Watching {
    /// Opens the events. What the caller has of them stays with it.
    pub(super) fn start(
        roots: Roots,
        memory: usize,
        host: &HostOptions,
        statistics: Shared,
    ) -> Result<Self, LiveError> {
        let (tell, told) = crossbeam_channel::bounded(1);
        let mut sink = statistics.clone();
        let host = HostOptions {
            sched: Some(SchedOptions { dsq: true, ..SchedOptions::default() }),
            cpus: host.cpus.clone(),
            mmap_pages: host.mmap_pages,
            workers: host.workers,
            realtime: host.realtime,
            raise_open_files: host.raise_open_files,
            hints: host.hints.clone(),
            ..HostOptions::source(Source::Wakeups)
        };
        let job = move || {
            let builder = Session::builder().host(host).roots(roots).memory(memory);
            let stop = builder.stop_handle();
            match builder.start() {
                Ok(session) => {
                    let _ = tell.send(Ok(stop));
                    let outcome = session.run_into(&mut sink, |_| false);
                    sink.lock().loss = outcome.loss;
                }
                Err(error) => drop(tell.send(Err(error))),
            }
        };
        let thread = priority::spawn("scheduling", job).map_err(LiveError::Thread)?;
        let Ok(started) = told.recv() else {
            return Err(LiveError::Thread(std::io::Error::other("the thread of the scheduling events died")));
        };
        Ok(Self { stop: started?, thread: Some(thread), statistics })
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            // What it panicked with was printed.
            let _ = thread.join();
        }
    }
}
