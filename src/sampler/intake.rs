//! Recorded records to batches, by the same code that the workers use.

use crossbeam_channel::{Receiver, TryIter};

use super::loss::Loss;
use super::plan::Reading;
use super::record::Layout;
use super::worker::{Batch, BatchSink, Identity};

/// Stands in for a worker where the records come from a file.
#[derive(Debug)]
pub struct Intake {
    sink: BatchSink,
    batches: Receiver<Batch>,
}

impl Intake {
    /// For records of samples that are read as `reading` says.
    #[must_use]
    pub fn new(identity: Identity, reading: Reading) -> Self {
        let (out, batches) = crossbeam_channel::unbounded();
        Self { sink: BatchSink::new(0, out, identity, reading), batches }
    }

    /// Takes one record in the byte order of this machine.
    pub fn take(&mut self, record: &[u8], layout: &Layout) {
        self.sink.take(record, layout);
    }

    /// Gives out what was taken, and says that all older than `until` was.
    pub fn complete(&mut self, until: u64) -> TryIter<'_, Batch> {
        self.sink.batch.complete_until = until;
        self.sink.send();
        self.batches.try_iter()
    }

    /// Batches that are full.
    #[must_use]
    pub fn full(&self) -> TryIter<'_, Batch> {
        self.batches.try_iter()
    }

    /// The latest time of any record so far.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.sink.newest
    }

    /// What was counted so far.
    #[must_use]
    pub fn loss(&self) -> &Loss {
        &self.sink.loss
    }
}
