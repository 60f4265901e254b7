//! Reads procfs again after side-band was lost, beside the session: a host can have very many threads, and samples must not
//! wait for that.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use super::order::Order;
use super::Names;
use crate::profile::Recorder;
use crate::resolve::threads::{self, TaskSeen};
use crate::resolve::{Error, Roots};
use crate::sampler::open::monotonic_ns;
use crate::sampler::TimedSideBand;

/// At most so often.
const EVERY: Duration = Duration::from_secs(1);
/// Not more than one part in so many of the time.
const COST: u32 = 10;

/// The threads that procfs showed; none where they are recorded, for they come as records then.
type Seen = Result<Vec<TaskSeen>, Error>;

/// A process that was recorded again, and when.
type Renewed = (u64, Vec<TimedSideBand>);

/// The reading, and when it may begin again.
pub(super) struct Reread {
    roots: Roots,
    recorder: Option<Arc<Recorder>>,
    due: Instant,
    thread: Option<(Instant, JoinHandle<Seen>)>,
    stop: Arc<AtomicBool>,
    written: Sender<Renewed>,
    renewed: Receiver<Renewed>,
}

impl Reread {
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
        }
    }

    /// Takes what was recorded again. What has happened since the last of it waits for the rest, as it will for whoever reads
    /// the recording.
    pub(super) fn take(&self, order: &mut Order) {
        let runs = self.recorder.is_some() && self.thread.as_ref().is_some_and(|(_, thread)| !thread.is_finished());
        for (time, side_band) in self.renewed.try_iter() {
            order.extend(side_band);
            order.hold(time);
        }
        if !runs {
            order.hold(u64::MAX);
        }
    }

    /// Begins where `names` may be stale, and gives them what was read.
    pub(super) fn look(&mut self, names: &mut Names, order: &mut Order) {
        if let Some((begin, thread)) = self.thread.take_if(|(_, thread)| thread.is_finished()) {
            let seen = thread.join();
            match seen {
                Ok(Ok(seen)) if self.recorder.is_none() => {
                    names.threads.reseed(&seen);
                    names.maps.reseed(&seen);
                }
                // What cannot be read stays as it was, and the loss is counted already.
                Ok(_) => {}
                Err(_) => names.failures.push("the thread that reads procfs again died: names may be wrong".to_owned()),
            }
            let _ = names.cgroups.walk();
            self.due = Instant::now() + EVERY.max(begin.elapsed() * COST);
        }
        if !names.suspect || self.thread.is_some() || Instant::now() < self.due {
            return;
        }
        names.suspect = false;
        names.threads.begin_reseed();
        let (roots, recorder) = (self.roots.clone(), self.recorder.clone());
        let (stop, written) = (Arc::clone(&self.stop), self.written.clone());
        let mut alive = Vec::new();
        if recorder.is_some() {
            order.hold(monotonic_ns());
            alive = names.threads.alive();
        }
        let read = move || match recorder {
            Some(recorder) => {
                recorder.renew(&roots, &alive, &mut |time, side_band| {
                    written.send((time, side_band)).is_ok() && !stop.load(Ordering::Relaxed)
                });
                Ok(Vec::new())
            }
            None => threads::snapshot(&roots),
        };
        let thread = std::thread::Builder::new().name("reread".to_owned()).spawn(read).ok();
        self.thread = thread.map(|thread| (Instant::now(), thread));
    }

    /// Cuts the reading short, and takes what was recorded.
    pub(super) fn stop(mut self, order: &mut Order) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some((_, thread)) = self.thread.take() {
            let _ = thread.join();
        }
        self.take(order);
    }
}
