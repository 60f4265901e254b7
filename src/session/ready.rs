//! Samples that are ready for the sink.

use crate::sample::{RawSample, Sample};

/// Samples that are passed to the sink at once.
pub(super) const READY: usize = 64;

/// Samples for the sink. Their memory is reused: moving a sample costs as much as filling it.
#[derive(Debug, Default)]
pub(super) struct Ready {
    samples: Vec<Sample>,
    /// This many of them are ready; the rest is old.
    pub(super) count: usize,
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
    pub(super) fn next(&mut self) -> &mut Sample {
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
