//! Reads procfs again after side-band was lost, in the background: a host can have very many threads, and samples must
//! not wait for that.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use rustc_hash::FxHashMap;

use crate::host::clock::monotonic_ns;
use crate::host::priority;
use crate::host::tasks::{self, TaskSeen};
use crate::host::{Error, Roots};
use crate::profile::{FilesOf, Recorder};
use crate::resolve::Cgroups;
use crate::sample::TimedSideBand;
use crate::session::namer::Namer;
use crate::session::order::Order;
use scxprof_base::tables::Tables;

/// The shortest interval between two scans.
const EVERY: Duration = Duration::from_secs(1);
/// The scans may take one part in this many of the time.
const COST: u32 = 10;
/// The shortest interval between two searches for mappings that changed without a record, and the part of the time that
/// these may take.
const MAPS_EVERY: Duration = Duration::from_millis(50);
const MAPS_COST: u32 = 100;
/// The most processes whose mappings are recorded again at a time.
const MAPS_AT_ONCE: usize = 64;

/// The threads in procfs; empty in a recording capture, in which they come as records.
type Tasks = Result<Vec<TaskSeen>, Error>;

/// The result of a scan.
#[derive(Debug)]
struct Read {
    tasks: Tasks,
    files: Vec<FilesOf>,
    /// How long the scan took, without the delay until its end is noticed.
    took: Duration,
}

/// A process whose mappings were recorded again, and when.
type Renewed = (u64, Vec<TimedSideBand>);

/// A running scan.
#[derive(Debug)]
struct Rescan {
    /// The scan covers the whole host, not only the mappings of a few processes.
    is_whole: bool,
    thread: JoinHandle<Read>,
}

/// Runs `read` and measures its duration.
fn timed(read: impl FnOnce() -> (Tasks, Vec<FilesOf>)) -> Read {
    let begin = Instant::now();
    let (tasks, files) = read();
    Read { tasks, files, took: begin.elapsed() }
}

/// The scan in progress, and when the next one may start.
#[derive(Debug)]
pub(super) struct ProcfsRescan {
    roots: Roots,
    recorder: Option<Arc<Recorder>>,
    due: Instant,
    thread: Option<Rescan>,
    stop: Arc<AtomicBool>,
    written: Sender<Renewed>,
    renewed: Receiver<Renewed>,
    maps_due: Instant,
    /// A hash of each process's mappings when they were last recorded.
    mapped: Arc<Mutex<FxHashMap<u32, u64>>>,
}

impl ProcfsRescan {
    pub(super) fn new(roots: &Roots, recorder: Option<&Arc<Recorder>>) -> Self {
        let (written, renewed) = crossbeam_channel::unbounded();
        Self {
            roots: roots.clone(),
            recorder: recorder.cloned(),
            due: Instant::now() + EVERY,
            thread: None,
            stop: Arc::default(),
            written,
            renewed,
            maps_due: Instant::now() + MAPS_EVERY,
            mapped: Arc::default(),
        }
    }

    /// Takes mappings that were recorded again. Events after the last of these wait for the rest, as they will for a
    /// reader of the recording.
    pub(super) fn take(&self, order: &mut Order) {
        let runs = self.recorder.is_some() && self.thread.as_ref().is_some_and(|reading| !reading.thread.is_finished());
        for (time, side_band) in self.renewed.try_iter() {
            order.extend(side_band);
            order.hold(time);
        }
        if !runs {
            order.hold(u64::MAX);
        }
    }

    /// Starts a scan if names may be stale, and passes on the results of the last one.
    pub(super) fn poll(&mut self, namer: &mut Namer, cgroups: &mut Cgroups, order: &mut Order) {
        if let Some(Rescan { is_whole, thread }) = self.thread.take_if(|reading| reading.thread.is_finished()) {
            let mut took = Duration::ZERO;
            match thread.join() {
                Ok(read) => {
                    took = read.took;
                    match read.tasks {
                        Ok(seen) if is_whole && self.recorder.is_none() => {
                            namer.reread(&seen);
                        }
                        // If the scan failed, the names stay as they were; the loss is already counted.
                        _ => {}
                    }
                    for files in read.files {
                        namer.set_private_files(files);
                    }
                }
                Err(_) => namer.failed("the thread that reads procfs again died: names may be wrong".to_owned()),
            }
            self.maps_due = Instant::now() + MAPS_EVERY.max(took * MAPS_COST);
            if is_whole {
                let begin = Instant::now();
                let _ = cgroups.walk();
                self.due = Instant::now() + EVERY.max((took + begin.elapsed()) * COST);
            }
        }
        if self.thread.is_some() {
            return;
        }
        if !namer.is_suspect() || Instant::now() < self.due {
            return self.look_at_maps(namer, order);
        }
        let alive = namer.begin_reread();
        let (roots, recorder) = (self.roots.clone(), self.recorder.clone());
        let (stop, written) = (Arc::clone(&self.stop), self.written.clone());
        if recorder.is_some() {
            order.hold(monotonic_ns());
        }
        let read = move || match recorder {
            Some(recorder) => {
                recorder.renew(&roots, &alive, &mut |time, side_band| {
                    written.send((time, side_band)).is_ok() && !stop.load(Ordering::Relaxed)
                });
                Ok(Vec::new())
            }
            None => tasks::snapshot(&roots),
        };
        let thread = priority::spawn("reread", move || timed(|| (read(), Vec::new()))).ok();
        self.thread = thread.map(|thread| Rescan { is_whole: true, thread });
    }

    /// Reads mappings that may have changed without a record; in the background if they are recorded.
    fn look_at_maps(&mut self, namer: &mut Namer, order: &mut Order) {
        let begin = Instant::now();
        if begin < self.maps_due {
            return;
        }
        let Some(recorder) = self.recorder.clone() else {
            namer.read_maps_again();
            self.maps_due = Instant::now() + MAPS_EVERY.max(begin.elapsed() * MAPS_COST);
            return;
        };
        self.maps_due = begin + MAPS_EVERY;
        let now = monotonic_ns();
        let pids = namer.take_due_maps(now, MAPS_AT_ONCE);
        if pids.is_empty() {
            return;
        }
        order.hold(now);
        let (roots, mapped) = (self.roots.clone(), Arc::clone(&self.mapped));
        let (stop, written) = (Arc::clone(&self.stop), self.written.clone());
        let read = move || {
            let mut mapped = mapped.lock().unwrap_or_else(PoisonError::into_inner);
            let files = recorder.refresh(&roots, &pids, &mut mapped, &mut |time, side_band| {
                written.send((time, side_band)).is_ok() && !stop.load(Ordering::Relaxed)
            });
            (Ok(Vec::new()), files)
        };
        let thread = priority::spawn("reread", move || timed(read)).ok();
        self.thread = thread.map(|thread| Rescan { is_whole: false, thread });
    }

    /// Adds its size, unless it is in use.
    pub(super) fn measure(&self, tables: &mut Tables) {
        if let Ok(mapped) = self.mapped.try_lock() {
            tables.set_map::<(u32, u64)>("processes with compared mappings", mapped.len(), mapped.capacity(), 0);
        }
    }

    /// Aborts the scan, and takes the mappings that were recorded.
    pub(super) fn stop(mut self, order: &mut Order) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(reading) = self.thread.take() {
            let _ = reading.thread.join();
        }
        self.take(order);
    }
}
