//! The AUX area of a CPU, which SPE fills: its records become samples like those that the kernel writes into rings, for the session
//! and for a recording alike.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use perf_event_open_sys::bindings as sys;

use super::{AUX_PARTIAL, AUX_TRUNCATED};
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

/// Threads of a CPU whose process is remembered. When there are more, all are forgotten: each is named again when it is switched in.
const MAX_THREADS: usize = 1 << 15;
/// The hardware keeps samples until a part of the area is full, which may take forever on a quiet CPU: so often it must pass them on.
const FLUSH: Duration = Duration::from_millis(250);
/// That may take one part in this many of the worker's time: it interrupts every CPU.
const COST: u64 = 50;
/// What the kernel writes for a thread that it cannot name (`perf_event_pid_type()` in kernel/events/core.c).
const UNKNOWN: (u32, u32) = (u32::MAX, u32::MAX);
/// The records that are read here beside the sink.
const OF_INTEREST: [u32; 7] = [
    sys::PERF_RECORD_AUX,
    sys::PERF_RECORD_ITRACE_START,
    sys::PERF_RECORD_SWITCH,
    sys::PERF_RECORD_SWITCH_CPU_WIDE,
    sys::PERF_RECORD_LOST,
    sys::PERF_RECORD_COMM,
    sys::PERF_RECORD_FORK,
];

/// What is known of a CPU's AUX area between two looks at it.
#[derive(Debug)]
pub(in crate::sampler) struct CpuAux {
    cpu: u32,
    /// The event's id.
    id: u64,
    cores: Cores,
    threads: Threads,
    /// The kernel numbers threads for SPE as the host does, and we see other numbers.
    child_pid_namespace: bool,
    decoder: Decoder,
    /// Positions at which data ends that was cut: what follows does not continue it.
    cuts: VecDeque<u64>,
    clock: Option<CountClock>,
    /// The time of the last record of the ring, of the last sample, and when the area was read.
    seen: u64,
    last: u64,
    now: u64,
    /// Samples so far, for who steers the period.
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

    /// Takes what a record of the ring says of the area and of threads.
    pub(super) fn note(&mut self, bytes: &[u8], layout: &Layout) {
        if !Header::read(bytes).is_some_and(|header| OF_INTEREST.contains(&header.kind)) {
            return;
        }
        // The sink counts what is malformed.
        let Ok((_, record, id)) = decode(bytes, layout) else { return };
        if self.threads.is_full() {
            self.threads.forget_processes();
        }
        match record {
            Record::Aux { offset, size, flags } if flags & (AUX_TRUNCATED | AUX_PARTIAL) != 0 => {
                // A full area says so again and again, at one position.
                let cut = offset.wrapping_add(size);
                if self.cuts.back() != Some(&cut) {
                    self.cuts.push_back(cut);
                }
            }
            // Who runs when sampling begins.
            Record::ItraceStart { pid, tid } => self.threads.runs(self.cpu, id.time, Some((pid, tid))),
            // Switches may be among what was lost since the last record.
            Record::Lost { .. } => self.threads.runs(self.cpu, self.seen.saturating_add(1), None),
            Record::Comm { pid, tid, .. } | Record::Fork { pid, tid, .. } => self.threads.is_of(tid, pid),
            ref other => self.threads.take(other, &id),
        }
        self.seen = self.seen.max(id.time);
    }

    /// Reads the area up to `head`, after the records of its ring. Passes each sample on as a record of `layout`; adds to `lost` what
    /// is no sample.
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
                // A cut that is not in this piece is in a later one, or was passed because its record came late.
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
            // Each CPU writes its records in order; a conversion that is read anew may differ by some ns. No damage makes later ones late.
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
            // It has no part of variable size, so it always fits.
            if encode(&Record::Sample(sampled), &SampleId::default(), mode as u16, layout, made) {
                take(made);
            }
        });
    }
}

/// The events whose samples the hardware keeps until it has many.
#[derive(Debug)]
pub(super) struct Buffered {
    /// With whether they were ever enabled.
    events: Vec<(Arc<Event>, bool)>,
    /// When they must pass on what they have, and when they last did: CLOCK_MONOTONIC, ns.
    due: u64,
    last: u64,
}

impl Buffered {
    pub(super) fn new(events: Vec<Arc<Event>>) -> Self {
        Self { events: events.into_iter().map(|event| (event, false)).collect(), due: 0, last: 0 }
    }

    /// Adds the events of a CPU, which replace those that ended when it went offline.
    pub(super) fn add(&mut self, cpu: u32, more: Vec<Arc<Event>>) {
        if !more.is_empty() {
            self.events.retain(|(event, _)| event.cpu != cpu);
        }
        self.events.extend(more.into_iter().map(|event| (event, false)));
    }

    /// Makes the hardware pass on what it has, if that is due; returns the time up to which all samples are in the areas.
    ///
    /// Stopping an event ends its piece of AUX data (`perf_aux_output_end()` by the driver's `stop`), and what is left of its period
    /// goes on when it is started again. It also starts one that the kernel stopped because its area was full.
    pub(super) fn flush(&mut self, now: u64) -> u64 {
        if self.events.is_empty() {
            return u64::MAX;
        }
        if now >= self.due {
            for (event, has_begun) in &mut self.events {
                // Before exec it must not begin.
                *has_begun = *has_begun || event.read().is_ok_and(|value| value.time_enabled > 0);
                if *has_begun && event.disable().is_ok() {
                    // One that cannot be enabled is gone with its CPU or its task.
                    let _ = event.enable();
                }
            }
            let took = monotonic_ns().saturating_sub(now);
            self.due = now.saturating_add((took * COST).max(FLUSH.as_nanos() as u64));
            self.last = now;
        }
        self.last
    }

    /// Stops them, for they may have been started since the capture stopped them; returns the time as [`Buffered::flush`] does.
    pub(super) fn end(&mut self, now: u64) -> u64 {
        for (event, _) in &self.events {
            // One that is gone has stopped.
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
