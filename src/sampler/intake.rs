//! Turns recorded records into batches, by the code of the workers.

use super::loss::Loss;
use super::plan::AddressFrom;
use super::worker::{BatchSink, Identity};
use crate::sample::batch::{Batch, PendingSample};
use crate::sample::RawSample;
use scxprof_perf::record::Layout;
use scxprof_perf::tracepoint::SchedDecoder;

/// Takes the place of a worker for records from a file.
#[derive(Debug)]
pub struct Intake {
    sink: BatchSink,
}

impl Intake {
    /// For records whose samples are read by `address_from`.
    #[must_use]
    pub fn new(identity: Identity, address_from: AddressFrom) -> Self {
        Self { sink: BatchSink::new(0, None, identity, address_from) }
    }

    /// An intake that sends its batches, like the worker of a ring.
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

    /// Takes one record of this event of the recording, each of whose samples represents `period` events if it does not say it.
    pub fn take_of(&mut self, record: &[u8], layout: &Layout, event: u16, period: Option<u64>) {
        self.sink.of_event(event, period);
        self.sink.take(record, layout);
    }

    /// Takes one record of a scheduling event.
    pub fn take_sched(&mut self, record: &[u8], layout: &Layout, decoder: &SchedDecoder) {
        self.sink.take_sched(record, layout, decoder);
    }

    /// Takes a sample that has no record, such as one from AUX data.
    pub fn push(&mut self, raw: RawSample) {
        self.sink.loss.samples += 1;
        self.sink.newest = self.sink.newest.max(raw.time);
        self.sink.batch.samples.push(PendingSample { raw, context: None });
    }

    /// Advances the time for a record that contains neither a sample nor side-band.
    pub fn saw(&mut self, time: u64) {
        self.sink.newest = self.sink.newest.max(time);
    }

    /// The counts, to add samples that the caller leaves out.
    pub fn loss_mut(&mut self) -> &mut Loss {
        &mut self.sink.loss
    }

    /// The contents since the batch was last taken.
    pub fn batch(&mut self) -> &mut Batch {
        &mut self.sink.batch
    }

    /// The latest time of any record so far.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.sink.newest
    }

    /// The number of records so far whose fields contradict their size.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        self.sink.loss.malformed
    }

    /// The counts so far. If the events report their lost samples, that number is used. LOST records are less exact:
    /// the kernel writes one only when there is room again, and it also counts lost records that are no samples.
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
