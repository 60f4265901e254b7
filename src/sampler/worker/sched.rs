//! Decodes scheduling events into batches.

use super::batch_sink::{lost_until, BatchSink};
use super::BATCH;
use crate::sample::sched::SchedWhat;
use scxprof_base::cpus::MAX_CPUS;
use scxprof_perf::record::{decode, decode_sample, Layout, Record};
use scxprof_perf::tracepoint::{self, SchedDecoder};

impl BatchSink {
    /// Takes a record from a ring of scheduling events.
    pub(in crate::sampler) fn take_sched(&mut self, bytes: &[u8], layout: &Layout, decoder: &SchedDecoder) {
        let what = match decode_sample(bytes, layout) {
            Ok(Some((_, record))) => decoder.decode(record.raw).map(|what| {
                let time = self.monotonic(record.time);
                tracepoint::event(time, record.cpu, (record.pid, record.tid), record.cgroup, what)
            }),
            Ok(None) => match decode(bytes, layout) {
                Ok((_, Record::Lost { lost, .. }, id)) => {
                    self.loss.sched.ring_full = self.loss.sched.ring_full.saturating_add(lost);
                    Some(lost_until(self.monotonic(id.time), id.cpu))
                }
                // Written at the end of a recording, as in `side_band`.
                Ok((_, Record::LostSamples { lost }, id)) if id.time == 0 => {
                    self.sched_lost_by_events = self.sched_lost_by_events.saturating_add(lost);
                    return;
                }
                _ => return self.side_band(bytes, layout),
            },
            Err(_) => None,
        };
        // Events of CPUs beyond the kernel's limit cannot be tracked.
        let Some(event) = what.filter(|event| event.cpu < MAX_CPUS || event.what == SchedWhat::Lost) else {
            self.loss.sched.malformed += 1;
            return;
        };
        self.loss.sched.events += u64::from(event.what != SchedWhat::Lost);
        self.loss.sched.of_runtime += u64::from(matches!(event.what, SchedWhat::Runtime { .. }));
        let is_dsq = matches!(event.what, SchedWhat::DsqInsert { .. } | SchedWhat::DsqSwitch { .. });
        self.loss.sched.of_dsq += u64::from(is_dsq);
        self.newest = self.newest.max(event.time);
        self.batch.sched.push(event);
        if self.out.is_some() && self.batch.sched.len().is_multiple_of(BATCH) {
            self.send();
        }
    }
}
