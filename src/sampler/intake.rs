//! Turns recorded records into batches, with the code of the workers.

use super::loss::Loss;
use super::plan::AddressFrom;
use super::worker::{BatchSink, Identity};
use crate::sample::batch::{Batch, PendingSample};
use crate::sample::RawSample;
use scxprof_perf::record::Layout;
use scxprof_perf::tracepoint::SchedDecoder;

/// Replaces a worker if the records come from a file.
#[derive(Debug)]
pub struct Intake {
    sink: BatchSink,
}

impl Intake {
    /// For records with samples to be read by `address_from`.
    #[must_use]
    pub fn new(identity: Identity, address_from: AddressFrom) -> Self {
        Self { sink: BatchSink::new(0, None, identity, address_from) }
    }

    /// One that sends what it read, as the worker of a ring does.
    #[cfg(test)]
    pub(crate) fn of_ring(
        identity: Identity,
        address_from: AddressFrom,
        to: crossbeam_channel::Sender<Batch>,
        pool: super::pool::Pool,
    ) -> Self {
        let room = super::worker::queue(1, 0, address_from.recovers());
        let out =
            super::worker::Outlet { to, pool, room, waker: super::waker::WakesAtEnd(super::waker::Waker::default()) };
        Self { sink: BatchSink::new(0, Some(out), identity, address_from) }
    }

    /// Sends the batch.
    #[cfg(test)]
    pub(crate) fn send(&mut self) {
        self.sink.send();
    }

    /// Takes one record in the byte order of this machine.
    pub fn take(&mut self, record: &[u8], layout: &Layout) {
        self.sink.take(record, layout);
    }

    /// Takes one record of an event of the scheduler.
    pub fn take_sched(&mut self, record: &[u8], layout: &Layout, decoder: &SchedDecoder) {
        self.sink.take_sched(record, layout, decoder);
    }

    /// Takes a sample that is in no record of its own.
    pub fn push(&mut self, raw: RawSample) {
        self.sink.loss.samples += 1;
        self.sink.newest = self.sink.newest.max(raw.time);
        self.sink.batch.samples.push(PendingSample { raw, context: None });
    }

    /// There was a record of this time that neither is a sample nor changes names.
    pub fn saw(&mut self, time: u64) {
        self.sink.newest = self.sink.newest.max(time);
    }

    /// The counts, for what is left out of such samples.
    pub fn loss_mut(&mut self) -> &mut Loss {
        &mut self.sink.loss
    }

    /// What was taken since the batch was last emptied.
    pub fn batch(&mut self) -> &mut Batch {
        &mut self.sink.batch
    }

    /// The latest time of any record so far.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.sink.newest
    }

    /// The number of records so far with fields that contradict their size.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        self.sink.loss.malformed
    }

    /// The counts so far. If the events themselves report how many samples they lost, that number is used: a record of loss is
    /// written only when there is room again, and also counts lost records other than samples.
    #[must_use]
    pub fn loss(&self) -> Loss {
        let mut loss = self.sink.loss;
        if self.sink.sched_lost_by_events > 0 {
            loss.sched.ring_full = self.sink.sched_lost_by_events;
        }
        if self.sink.lost_by_events > 0 {
            loss.ring_full = self.sink.lost_by_events;
        }
        loss
    }
}
