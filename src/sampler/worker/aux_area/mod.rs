//! The AUX area of a CPU, which SPE fills. Its records are converted to samples like those that the kernel writes into
//! rings, both for the session and for a recording.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use perf_event_open_sys::bindings as sys;

use super::batch_sink::{AUX_PARTIAL, AUX_TRUNCATED};
use crate::host::clock::monotonic_ns;
use crate::sample::CpuMode;
use crate::sampler::clock::CountClock;
use crate::sampler::loss::Loss;
use crate::sampler::open::Event;
use crate::sampler::ring::{Corrupt, Ring};
use crate::sampler::spe::{sample, Threads};
use scxprof_perf::encode::encode;
use scxprof_perf::record::{decode, Header, Layout, Record, SampleId, SampleRecord};
use scxprof_perf::spe::{Cores, Decoder};

/// The most threads of a CPU whose process is remembered. Beyond that, all are forgotten; a context switch names each
/// thread again.
const MAX_THREADS: usize = 1 << 15;
/// The interval at which the hardware must pass on its samples. By itself it does so only when a part of the area is
/// full, which may never happen on a quiet CPU.
const FLUSH: Duration = Duration::from_millis(250);
/// Flushing may take one part in this many of the worker's time, because it interrupts every CPU.
const COST: u64 = 50;
/// The ids that the kernel writes for a thread without a number (`perf_event_pid_type()` in kernel/events/core.c).
const UNKNOWN: (u32, u32) = (u32::MAX, u32::MAX);
/// The types of records that are read here in addition to the sink.
const OF_INTEREST: [u32; 7] = [
    sys::PERF_RECORD_AUX,
    sys::PERF_RECORD_ITRACE_START,
    sys::PERF_RECORD_SWITCH,
    sys::PERF_RECORD_SWITCH_CPU_WIDE,
    sys::PERF_RECORD_LOST,
    sys::PERF_RECORD_COMM,
    sys::PERF_RECORD_FORK,
];

/// The state of a CPU's AUX area between two rounds.
#[derive(Debug)]
pub(in crate::sampler) struct CpuAux {
    cpu: u32,
    /// The event's id.
    id: u64,
    cores: Cores,
    threads: Threads,
    /// The thread ids in SPE records are the host's, and our pid namespace has others.
    child_pid_namespace: bool,
    decoder: Decoder,
    /// Positions at which truncated data ends: the data after each is not its continuation.
    cuts: VecDeque<u64>,
    clock: Option<CountClock>,
    /// The time of the ring's last record, the time of the last sample, and when the area was last read.
    seen: u64,
    last: u64,
    now: u64,
    /// Number of samples so far, for the thread that adjusts the period.
    count: Arc<AtomicU64>,
    scratch: Vec<u8>,
}

impl CpuAux {
    pub(in crate::sampler) fn new(
        cpu: u32,
        id: u64,
        cores: Cores,
        clock: CountClock,
        child_pid_namespace: bool,
        count: Arc<AtomicU64>,
    ) -> Self {
        Self {
            cpu,
            id,
            cores,
            threads: Threads::new(MAX_THREADS),
            child_pid_namespace,
            decoder: Decoder::default(),
            cuts: VecDeque::new(),
            clock: Some(clock),
            seen: 0,
            last: 0,
            now: 0,
            count,
            scratch: Vec::new(),
        }
    }

    /// Takes what a record of the ring says about the area and about threads.
    pub(super) fn note(&mut self, bytes: &[u8], layout: &Layout) {
        if !Header::read(bytes).is_some_and(|header| OF_INTEREST.contains(&header.kind)) {
            return;
        }
        // The sink counts malformed records.
        let Ok((_, record, id)) = decode(bytes, layout) else { return };
        if self.threads.is_full() {
            self.threads.forget_processes();
        }
        match record {
            Record::Aux { offset, size, flags } if flags & (AUX_TRUNCATED | AUX_PARTIAL) != 0 => {
                // While the area is full, the kernel repeats this record with the same position.
                let cut = offset.wrapping_add(size);
                if self.cuts.back() != Some(&cut) {
                    self.cuts.push_back(cut);
                }
            }
            // The thread that runs when sampling begins.
            Record::ItraceStart { pid, tid } => self.threads.runs(self.cpu, id.time, Some((pid, tid))),
            // Context switches may be among the records lost since the last record.
            Record::Lost { .. } => self.threads.runs(self.cpu, self.seen.saturating_add(1), None),
            Record::Comm { pid, tid, .. } | Record::Fork { pid, tid, .. } => self.threads.is_of(tid, pid),
            ref other => self.threads.take(other, &id),
        }
        self.seen = self.seen.max(id.time);
    }

    /// Reads the area up to `head`, after the records of its ring. Passes on each sample as a record of `layout`; adds
    /// truncated and invalid data to `lost`.
    pub(super) fn drain(
        &mut self,
        ring: &mut Ring,
        head: u64,
        layout: &Layout,
        lost: &mut Loss,
        take: &mut impl FnMut(&[u8]),
    ) -> Result<(), Corrupt> {
        self.clock = CountClock::now(ring).or(self.clock);
        self.now = monotonic_ns();
        let before = self.decoder.counts();
        let (mut scratch, mut made) = (std::mem::take(&mut self.scratch), Vec::new());
        let drained = ring.drain_aux(head, &mut scratch, |position, bytes| {
            if self.decoder.position() != position {
                self.decoder.jump(position);
            }
            let (mut at, mut rest) = (position, bytes);
            while let Some(cut) = self.cuts.front().map(|cut| cut.wrapping_sub(at)) {
                let part = usize::try_from(cut).ok().and_then(|cut| rest.split_at_checked(cut));
                // A cut outside this piece lies in a later one, or was passed because its record came late.
                let Some((head, after)) = part else {
                    if cut <= u64::MAX / 2 {
                        break;
                    }
                    self.cuts.pop_front();
                    continue;
                };
                self.decode(head, layout, &mut made, take);
                (at, rest) = (at.wrapping_add(cut), after);
                self.decoder.jump(at);
                self.cuts.pop_front();
            }
            self.decode(rest, layout, &mut made, take);
        });
        let after = self.decoder.counts();
        self.count.fetch_add(after.records - before.records, Ordering::Relaxed);
        lost.malformed += after.cut - before.cut;
        lost.aux_bad_bytes += after.bad_bytes - before.bad_bytes;
        lost.aux_unknown += after.unknown - before.unknown;
        self.scratch = scratch;
        drained
    }

    fn decode(&mut self, bytes: &[u8], layout: &Layout, made: &mut Vec<u8>, take: &mut impl FnMut(&[u8])) {
        let Self { cpu, id, cores, threads, child_pid_namespace, decoder, clock, last, now, .. } = self;
        decoder.decode(bytes, &mut |record| {
            let mut record = *record;
            if *child_pid_namespace {
                record.context = None;
            }
            let time = record.timestamp.and_then(|count| Some((*clock)?.monotonic(count)));
            // Each CPU writes its records in order, but a refreshed conversion may differ by some ns. Damaged records
            // must not make later ones late.
            *last = time.map_or(*last, |time| time.min(*now)).max(*last);
            let (pid, tid) = match threads.of(&record, *last, Some(*cpu), None) {
                Some((Some(pid), tid)) => (pid, tid),
                Some((None, _)) | None => UNKNOWN,
            };
            let raw = sample(&record, *cores);
            let sampled = SampleRecord {
                identifier: *id,
                id: *id,
                ip: raw.ip,
                pid,
                tid,
                time: *last,
                addr: raw.addr,
                cpu: *cpu,
                period: 1,
                weight: raw.latency.into(),
                data_src: raw.data_src.0,
                phys_addr: raw.phys,
                ..SampleRecord::default()
            };
            let mode = match raw.mode {
                CpuMode::Kernel => sys::PERF_RECORD_MISC_KERNEL,
                CpuMode::User => sys::PERF_RECORD_MISC_USER,
                _ => sys::PERF_RECORD_MISC_CPUMODE_UNKNOWN,
            };
            made.clear();
            // The record has no part of variable size, so it always fits.
            if encode(&Record::Sample(sampled), &SampleId::default(), mode as u16, layout, made) {
                take(made);
            }
        });
    }
}

/// The events whose samples the hardware buffers.
#[derive(Debug)]
pub(super) struct Buffered {
    /// With a flag that says whether the event was ever enabled.
    events: Vec<(Arc<Event>, bool)>,
    /// When the events must next pass on their samples, and when they last did: CLOCK_MONOTONIC, ns.
    due: u64,
    last: u64,
}

impl Buffered {
    pub(super) fn new(events: Vec<Arc<Event>>) -> Self {
        Self { events: events.into_iter().map(|event| (event, false)).collect(), due: 0, last: 0 }
    }

    /// Adds the events of a CPU. They replace those that ended when it went offline.
    pub(super) fn add(&mut self, cpu: u32, more: Vec<Arc<Event>>) {
        if !more.is_empty() {
            self.events.retain(|(event, _)| event.cpu != cpu);
        }
        self.events.extend(more.into_iter().map(|event| (event, false)));
    }

    /// Makes the hardware pass on its samples if that is due; returns the time up to which all samples are in the
    /// areas.
    ///
    /// Stopping an event ends its piece of AUX data (`perf_aux_output_end()` by the driver's `stop`); the remainder of
    /// its period continues when it is started again. This also restarts an event that the kernel stopped because its
    /// area was full.
    pub(super) fn flush(&mut self, now: u64) -> u64 {
        if self.events.is_empty() {
            return u64::MAX;
        }
        if now >= self.due {
            for (event, has_begun) in &mut self.events {
                // The event must not begin before exec.
                *has_begun = *has_begun || event.read().is_ok_and(|value| value.time_enabled > 0);
                if *has_begun && event.disable().is_ok() {
                    // Enabling fails only if the event is gone with its CPU or its task.
                    let _ = event.enable();
                }
            }
            let took = monotonic_ns().saturating_sub(now);
            self.due = now.saturating_add((took * COST).max(FLUSH.as_nanos() as u64));
            self.last = now;
        }
        self.last
    }

    /// Stops the events, because a flush may have restarted them after the end of the capture; returns the time as
    /// [`Buffered::flush`] does.
    pub(super) fn end(&mut self, now: u64) -> u64 {
        for (event, _) in &self.events {
            // Disabling fails only if the event is gone, that is, has stopped.
            let _ = event.disable();
        }
        if self.events.is_empty() {
            u64::MAX
        } else {
            now
        }
    }
}

#[cfg(test)]
mod tests;
