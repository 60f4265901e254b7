//! What the threads of a live capture show each other. Locks are held for copies and counts alone, so that no reader waits for an
//! evaluation or for whoever looks.

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

/// What sampling, evaluation and callers share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    now: Mutex<Now>,
    changed: Condvar,
}

/// What is known at this moment.
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
    pub(super) accesses: u64,
    pub(super) late_windows: u64,
    pub(super) loaded: Option<Arc<Loaded>>,
    pub(super) sharing: Option<Arc<Sharing>>,
    pub(super) groups: Arc<Vec<Group>>,
    /// How long the last evaluation took, and whether one is going on.
    pub(super) evaluation: Duration,
    pub(super) is_evaluating: bool,
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
    /// Of at most so many bytes.
    pub(super) fn within(bytes: usize) -> Self {
        Self { samples: VecDeque::new(), limit: bytes / size_of::<Sample>() }
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

/// What followed from a window, and from the earlier ones.
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
        let loaded = loaded.map(Arc::new);
        let sharing = self.lock().sharing.clone();
        let groups = sharing.map(|sharing| groups_of(&sharing, loaded.as_deref()));
        let mut now = self.lock();
        now.loaded = loaded;
        if let Some(groups) = groups {
            now.groups = Arc::new(groups);
        }
    }

    /// The capture has ended, with this outcome.
    pub(super) fn ended(&self, outcome: Outcome) {
        self.lock().outcome = Some(Box::new(outcome));
    }

    /// The thread that samples ends, whatever happened to it.
    pub(super) fn end(&self) {
        self.lock().has_ended = true;
        self.changed.notify_all();
    }

    /// No window will be evaluated any more.
    pub(super) fn evaluated_all(&self) {
        self.lock().is_evaluating = false;
        self.changed.notify_all();
    }

    /// Waits until something is so, or until the time is over; true if it is so.
    pub(super) fn wait(&self, timeout: Duration, mut is_so: impl FnMut(&Now) -> bool) -> bool {
        let waited = self.changed.wait_timeout_while(self.lock(), timeout, |now| !is_so(now));
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

fn groups_of(sharing: &Sharing, loaded: Option<&Loaded>) -> Vec<Group> {
    let report = sharing.window.report.as_ref();
    report.map_or_else(Vec::new, |report| groups::of_report(report, loaded.map(|loaded| &loaded.placement)))
}
