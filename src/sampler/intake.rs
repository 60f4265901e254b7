//! Recorded records to batches, by the same code that the workers use.

use super::loss::Loss;
use super::plan::AddressFrom;
use super::record::Layout;
use super::worker::{BatchSink, Identity};
use crate::sample::batch::Batch;

/// Stands in for a worker where the records come from a file.
#[derive(Debug)]
pub struct Intake {
    sink: BatchSink,
}

impl Intake {
    /// For records of samples that are read as `address_from` says.
    #[must_use]
    pub fn new(identity: Identity, address_from: AddressFrom) -> Self {
        Self { sink: BatchSink::new(0, None, identity, address_from) }
    }

    /// Takes one record in the byte order of this machine.
    pub fn take(&mut self, record: &[u8], layout: &Layout) {
        self.sink.take(record, layout);
    }

    /// What was taken and not taken out of here yet.
    pub fn batch(&mut self) -> &mut Batch {
        &mut self.sink.batch
    }

    /// The latest time of any record so far.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.sink.newest
    }

    /// Records so far whose fields contradict their size.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        self.sink.loss.malformed
    }

    /// What was counted so far. Where the events themselves say how many samples they lost, that is it: a record of loss is
    /// written only when there is room again, and counts what was lost beside samples too.
    #[must_use]
    pub fn loss(&self) -> Loss {
        let mut loss = self.sink.loss;
        if self.sink.lost_by_events > 0 {
            loss.ring_full = self.sink.lost_by_events;
        }
        loss
    }
}
