//! The state that the threads of a live capture share. Locks are held for copies and counts alone, so that no reader waits for an
//! evaluation or for a caller.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::counts::Counts;
use super::groups;
use super::snapshot::{Group, SharingWindow};
use crate::config::Placement;
use crate::evidence::Evidence;
use crate::outcome::Outcome;
use crate::sample::{Comm, Sample};
use crate::sampler::loss::Loss;
use crate::session::Analysis;

/// The state that sampling, evaluation and callers share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    now: Mutex<Now>,
    changed: Condvar,
    /// Held while the groups of a window are judged, so that they are of the window and the configuration that are shown.
    judging: Mutex<()>,
}

/// The current results.
#[derive(Debug, Default)]
pub(super) struct Now {
    pub(super) counts: Counts,
    /// The last accesses, as many as there is room for.
    pub(super) latest: Latest,
    pub(super) processes: FxHashMap<u32, Comm>,
    pub(super) cgroups: FxHashMap<u64, Arc<[u8]>>,
    /// The length of the windows of statistics, and of the last complete one; ns.
    pub(super) interval: u64,
    pub(super) window: u64,
    pub(super) loss: Loss,
    pub(super) notes: Vec<String>,
    pub(super) accesses: u64,
    pub(super) late_windows: u64,
    pub(super) loaded: Option<Arc<Loaded>>,
    pub(super) sharing: Option<Arc<Sharing>>,
    pub(super) groups: Arc<Vec<Group>>,
    /// How long the last evaluation took, and whether one is running.
    pub(super) evaluation: Duration,
    pub(super) is_evaluating: bool,
    /// No window will be evaluated any more.
    pub(super) has_evaluated_all: bool,
    /// Complete sharing windows.
    pub(super) windows: u64,
    /// The end of the capture of memory.
    pub(super) outcome: Option<Box<Outcome>>,
    pub(super) has_ended: bool,
}

/// The last accesses.
#[derive(Debug, Default)]
pub(super) struct Latest {
    samples: VecDeque<Sample>,
    limit: usize,
}

impl Latest {
    /// Of at most this number of bytes.
    pub(super) fn within(bytes: usize) -> Self {
        let limit = bytes / size_of::<Sample>();
        // No memory is touched before it is used, and it never grows.
        Self { samples: VecDeque::with_capacity(limit), limit }
    }

    pub(super) fn add(&mut self, samples: &[Sample]) {
        let new = samples.get(samples.len().saturating_sub(self.limit)..).unwrap_or_default();
        let room = self.limit - new.len();
        self.samples.drain(..self.samples.len().saturating_sub(room));
        self.samples.extend(new);
    }

    pub(super) fn copy(&self) -> Vec<Sample> {
        self.samples.iter().copied().collect()
    }

    /// Accesses, and bytes of memory.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.samples.len(), self.samples.capacity() * size_of::<Sample>())
    }
}

/// The loaded configuration.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) name: String,
    pub(super) json: String,
    pub(super) placement: Placement,
}

/// The results of a window, and of the earlier ones.
#[derive(Debug)]
pub(super) struct Sharing {
    pub(super) window: Arc<SharingWindow>,
    pub(super) analysis: Option<Arc<Analysis>>,
    pub(super) evidence: Evidence,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A window was evaluated.
    pub(super) fn evaluated(&self, sharing: Sharing, used: Duration) {
        let _one = self.judging.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = self.lock().loaded.clone();
        let groups = Arc::new(groups_of(&sharing, loaded.as_deref()));
        let mut now = self.lock();
        (now.groups, now.evaluation, now.is_evaluating) = (groups, used, false);
        let before = now.sharing.replace(Arc::new(sharing));
        now.windows += 1;
        drop(now);
        // It can be large.
        drop(before);
        self.changed.notify_all();
    }

    /// Another configuration is loaded.
    pub(super) fn load(&self, loaded: Option<Loaded>) {
        let _one = self.judging.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = loaded.map(Arc::new);
        let sharing = self.lock().sharing.clone();
        let groups = sharing.map(|sharing| Arc::new(groups_of(&sharing, loaded.as_deref())));
        let mut now = self.lock();
        (now.groups, now.loaded) = (groups.unwrap_or_default(), loaded);
    }

    /// The capture has ended, with this outcome.
    pub(super) fn ended(&self, outcome: Outcome) {
        self.lock().outcome = Some(Box::new(outcome));
    }

    /// Is dropped when the sampling thread ends, also if it panics.
    pub(super) fn until_end(self: &Arc<Self>) -> impl Drop {
        Ends(Arc::clone(self))
    }

    /// No window will be evaluated any more.
    pub(super) fn evaluated_all(&self) {
        let mut now = self.lock();
        (now.is_evaluating, now.has_evaluated_all) = (false, true);
        drop(now);
        self.changed.notify_all();
    }

    /// Waits until a condition holds, or until the time is over; true if it holds.
    pub(super) fn wait(&self, timeout: Duration, mut is_so: impl FnMut(&Now) -> bool) -> bool {
        let waited = self.changed.wait_timeout_while(self.lock(), timeout, |now| !is_so(now));
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

/// Says that the capture has ended.
struct Ends(Arc<Shared>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.lock().has_ended = true;
        self.0.changed.notify_all();
    }
}

fn groups_of(sharing: &Sharing, loaded: Option<&Loaded>) -> Vec<Group> {
    let report = sharing.window.report.as_ref();
    report.map_or_else(Vec::new, |report| groups::of_report(report, loaded.map(|loaded| &loaded.placement)))
}
