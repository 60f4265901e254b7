//! The scheduler's events of a live capture, in a session of its own, so that they can be switched on and off.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::shared::Shared;
use super::LiveError;
use crate::host::{priority, topology, Roots};
use crate::resolve::Cgroups;
use crate::sample::sched::SchedEvent;
use crate::sample::{Comm, Sample, Source};
use crate::sampler::loss::Loss;
use crate::session::{HostOptions, Meanwhile, SchedOptions, SchedSink, Session, Sink, StopHandle};
use scxprof_base::tables::{Tables, TablesHandle};

/// The kernel's own counts of losses are read this often; that takes a system call for each event.
const READ_LOSS: u64 = 10_000_000_000;

/// The statistics, which a session adds to.
#[derive(Debug)]
pub(super) struct Statistics {
    pub(super) sink: SchedSink,
    pub(super) loss: Loss,
    pub(super) notes: Vec<String>,
    interval: u64,
    /// When names and losses were read last, in the time of the events.
    named: u64,
    loss_read: u64,
}

/// The statistics as threads share them.
#[derive(Debug, Clone)]
pub(super) struct Handle(Arc<Mutex<Statistics>>);

impl Handle {
    /// For windows of `interval` ns; the process `own` is left out.
    pub(super) fn new(roots: &Roots, interval: u64, follow_hints: bool, own: Option<u32>) -> Self {
        let cpus = topology::online_cpus(roots).unwrap_or_default();
        let sink = SchedSink::new(topology::places(roots, &cpus), own).with_windows(interval).with_wakers();
        let sink = if follow_hints { sink.with_hints() } else { sink };
        let statistics =
            Statistics { sink, loss: Loss::default(), notes: Vec::new(), interval, named: 0, loss_read: 0 };
        Self(Arc::new(Mutex::new(statistics)))
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

impl Sink for Handle {
    fn sample(&mut self, _: &Sample, _: &mut Cgroups) {}

    fn samples(&mut self, _: &[Sample], _: &mut Cgroups) {}

    fn sched(&mut self, events: &[SchedEvent], cgroups: &mut Cgroups) {
        self.lock().sink.sched(events, cgroups);
    }

    fn meanwhile(&mut self, now: &dyn Meanwhile, cgroups: &mut Cgroups) {
        let time = now.complete_until();
        let mut own = self.lock();
        own.sink.until(time);
        if time.saturating_sub(own.named) < own.interval {
            return;
        }
        own.named = time;
        let reads_loss = time.saturating_sub(own.loss_read) >= READ_LOSS;
        drop(own);
        let loss = reads_loss.then(|| now.loss());
        let (names, notes) = (now.process_names(), now.notes());
        let mut own = self.lock();
        own.sink.know(&names, cgroups);
        own.notes = notes;
        if let Some(loss) = loss {
            (own.loss, own.loss_read) = (loss, time);
        }
    }

    fn processes(&mut self, names: &[(u32, Comm)], cgroups: &mut Cgroups) {
        self.lock().sink.know(names, cgroups);
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
    pub(super) statistics: Handle,
    pub(super) tables: TablesHandle,
}

impl Watching {
    /// Opens the events, which are of the whole host. They end with the capture of accesses, if not before.
    pub(super) fn start(
        roots: Roots,
        memory: usize,
        host: &HostOptions,
        statistics: Handle,
        accesses: Arc<Shared>,
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
                    let _ = tell.send(Ok((stop, session.tables())));
                    let mut died = Died(Some(sink.clone()));
                    let outcome = session.run_into(&mut sink, |_| accesses.lock().has_ended);
                    died.0 = None;
                    let mut own = sink.lock();
                    (own.loss, own.notes) = (outcome.loss, outcome.notes);
                }
                Err(error) => drop(tell.send(Err(error))),
            }
        };
        let thread = priority::spawn("scheduling", job).map_err(LiveError::Thread)?;
        let Ok(started) = told.recv() else {
            return Err(LiveError::Thread(std::io::Error::other("the thread of the scheduling events died")));
        };
        let (stop, tables) = started?;
        Ok(Self { stop, thread: Some(thread), statistics, tables })
    }
}

/// Says that the thread died, if it is dropped with its handle.
struct Died(Option<Handle>);

impl Drop for Died {
    fn drop(&mut self) {
        let Some(statistics) = &self.0 else { return };
        let died = "the thread of the scheduling events died (a bug in scxprof): what is shown of them is old";
        statistics.lock().notes.push(died.to_owned());
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
