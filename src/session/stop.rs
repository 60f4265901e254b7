//! The conditions that end a session: its time, its caller, its processes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::host::{proc, Roots};
use crate::profile::Recorder;

/// How often a capture checks its rings when nothing arrives.
pub(super) const TICK: Duration = Duration::from_millis(50);

/// Stops a capture, from any thread: it then ends as if its time were over.
#[derive(Debug, Clone, Default)]
pub struct StopHandle(Arc<AtomicBool>);

impl StopHandle {
    /// Ends the capture within 50 ms; a capture that has not started yet ends immediately.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The conditions that end a session, besides its caller.
pub(super) struct StopConditions {
    pub(super) time: Option<Duration>,
    pub(super) stop: StopHandle,
    /// Processes that are watched.
    pub(super) pids: Vec<u32>,
    pub(super) roots: Roots,
    pub(super) recorder: Option<Arc<Recorder>>,
}

impl StopConditions {
    pub(super) fn met(&self, now: Progress) -> bool {
        self.stop.is_stopped()
            || self.time.is_some_and(|time| now.elapsed >= time)
            || all_gone(&self.pids, &self.roots)
            || self.recorder.as_ref().is_some_and(|recorder| recorder.has_failed())
    }
}

/// True if processes were requested and none is left.
fn all_gone(pids: &[u32], roots: &Roots) -> bool {
    // A zombie runs no more.
    let runs = |pid: &u32| {
        let stat = proc::stat(&roots.proc.join(pid.to_string()));
        stat.is_some_and(|stat| !matches!(stat.state, 'Z' | 'X'))
    };
    !pids.is_empty() && !pids.iter().any(runs)
}

/// Checks from time to time whether to end.
pub(super) struct StopPoll<'a> {
    begin: Instant,
    asked: Option<Instant>,
    ended: &'a mut dyn FnMut(Progress) -> bool,
}

impl<'a> StopPoll<'a> {
    pub(super) fn new(begin: Instant, ended: &'a mut dyn FnMut(Progress) -> bool) -> Self {
        Self { begin, asked: None, ended }
    }

    /// True if it must end after this many samples. The caller's closure runs about every 50 ms, however often this is called.
    pub(super) fn met(&mut self, samples: u64) -> bool {
        if self.asked.is_some_and(|asked| asked.elapsed() < TICK) {
            return false;
        }
        self.asked = Some(Instant::now());
        (self.ended)(Progress { elapsed: self.begin.elapsed(), samples })
    }
}

/// The progress of a capture.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Progress {
    /// Time since its beginning.
    pub elapsed: Duration,
    /// Samples so far.
    pub samples: u64,
}
