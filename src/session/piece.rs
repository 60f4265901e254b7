//! What the stages of the pipeline pass to each other.

use crate::sample::batch::UserContext;
use crate::sample::sched::SchedEvent;
use crate::sample::{RawSample, Sample, SideBand};
use scxprof_trace::Event;

/// Samples that are passed to the sinks at once.
pub(super) const READY: usize = 64;
/// Side-band that is passed on at once; a path in it has up to 4 KiB.
const SIDE_BAND: usize = 1 << 6;

/// Samples in order of time, and the side-band between them.
#[derive(Debug, Default)]
pub(super) struct Piece {
    pub(super) samples: Ready,
    /// Each with the number of samples before it. Only cgroups are left after samples were named.
    pub(super) side_band: Vec<(usize, SideBand)>,
    /// Events of the scheduler.
    pub(super) sched: Vec<SchedEvent>,
    /// Numbers of samples, and of these events before the next sample; ascending.
    pub(super) sched_until: Vec<(usize, usize)>,
    /// Samples of the session so far, after they were named.
    pub(super) records: u64,
    /// What samples have for their stacks and their recovery, each with the sample's number, until they are named.
    pub(super) contexts: Vec<(usize, Box<UserContext>)>,
    /// Events of a trace, which has no samples.
    pub(super) events: Vec<Event>,
}

impl Piece {
    /// Adds consecutive events of the scheduler.
    pub(super) fn push_sched(&mut self, events: &[SchedEvent]) {
        self.sched.extend_from_slice(events);
        self.sched_until.push((self.samples.len(), self.sched.len()));
    }

    /// True if it is full with this number of samples.
    pub(super) fn is_full(&self, samples: usize) -> bool {
        self.samples.len() >= samples || self.side_band.len() >= SIDE_BAND || self.sched.len() >= samples
    }

    pub(super) fn is_empty(&self) -> bool {
        self.samples.len() == 0 && self.side_band.is_empty() && self.sched.is_empty() && self.events.is_empty()
    }
}

/// Samples for the sink. Their memory is reused: moving a sample costs as much as filling it.
#[derive(Debug, Default)]
pub(super) struct Ready {
    samples: Vec<Sample>,
    /// The number of samples that are ready; the rest are old.
    count: usize,
}

impl Ready {
    /// The samples that are ready.
    pub(super) fn samples(&self) -> &[Sample] {
        self.samples.get(..self.count).unwrap_or_default()
    }

    /// The same, to be completed.
    pub(super) fn samples_mut(&mut self) -> &mut [Sample] {
        self.samples.get_mut(..self.count).unwrap_or_default()
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Leaves only the first `count` samples.
    pub(super) fn truncate(&mut self, count: usize) {
        self.count = self.count.min(count);
    }

    /// The sample that becomes ready when `count` grows by one.
    fn next(&mut self) -> &mut Sample {
        if self.count >= self.samples.len() {
            self.samples.resize(self.count + 1, Sample::default());
        }
        &mut self.samples[self.count]
    }

    /// Adds a sample without names.
    pub(super) fn push_raw(&mut self, raw: &RawSample) {
        let sample = self.next();
        sample.raw = *raw;
        (sample.record, sample.thread, sample.comm) = (0, 0, None);
        (sample.memory, sample.code, sample.hint, sample.stack) = (None, None, None, None);
        self.count += 1;
    }

    pub(super) fn push(&mut self, sample: Sample) {
        *self.next() = sample;
        self.count += 1;
    }
}
