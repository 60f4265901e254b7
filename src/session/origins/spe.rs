//! The samples of Arm's SPE in a perf.data. They are in AUX data between the records, for each CPU. perf writes the AUX
//! data of a CPU when its buffer is half full, seconds after the records of the same time. So all buffers are read at
//! the same time, in the order of the samples' times.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fs::File;

use perf_event_open_sys::bindings as sys;

use crate::profile::PerfDataError;
use crate::sample::batch::{PendingSample, SideBand, TimedSideBand};
use crate::sample::RawSample;
use crate::sampler::intake::Intake;
use crate::sampler::spe::{midr_in, sample, Threads};
use crate::session::inlet::Inlet;
use scxprof_perf::format::feature;
use scxprof_perf::reader::{AuxBuffer, AuxChunk, Auxtrace, PerfData, TimeConv};
use scxprof_perf::record::{decode, Header, Layout};
use scxprof_perf::spe::{self, Cores, Decoder};

/// Other hardware, whose AUX data is left out (`enum auxtrace_type` in tools/perf/util/auxtrace.h).
const OTHERS: [(u32, &str); 5] =
    [(1, "Intel PT"), (2, "Intel BTS"), (3, "Arm CoreSight"), (5, "s390 CPU-measurement"), (6, "HiSilicon PTT")];
/// The most bytes of all buffers that are read ahead, and the most and the fewest of one buffer.
const AHEAD: usize = 4 << 20;
const PIECE: usize = 16 << 10;
const LEAST_PIECE: usize = 512;
/// The most threads whose process is remembered.
const MAX_THREADS: usize = 1 << 20;
/// The most samples that are passed on at once.
const BATCH: usize = 1 << 12;
/// Words before those of the CPUs in `PERF_RECORD_AUXTRACE_INFO`, and of each CPU before its MIDR (tools/perf/util/arm-spe.h).
const HEADER_WORDS: usize = 4;
const CPU_WORDS: usize = 3;
const CPU_MAGIC: u64 = 0x1010_1010_1010_1010;
/// Records from which threads and the progress of the rings are taken. PERF_RECORD_ITRACE_START only names the first
/// thread.
const OF_INTEREST: [u32; 3] = [sys::PERF_RECORD_AUX, sys::PERF_RECORD_SWITCH, sys::PERF_RECORD_SWITCH_CPU_WIDE];

/// The AUX data of a recording.
pub(super) enum Aux {
    Nothing,
    Spe(Box<Spe>),
    /// Data of this other hardware.
    Other(String),
}

/// The samples that have not been passed on yet.
pub(super) struct Spe {
    queues: Vec<Queue>,
    /// The queues by the time of their next sample.
    next: BinaryHeap<Reverse<(u64, usize)>>,
    time: Option<TimeConv>,
    /// The number of the event in the recording.
    event: u16,
    threads: Threads,
    /// Samples without a timestamp, with one that cannot be converted, without a thread, and of threads without a process.
    untimed: u64,
    unconverted: u64,
    unknown_thread: u64,
    unknown_process: u64,
    left_out: u64,
    /// Bytes that are missing in the file.
    missing: u64,
    /// The position in the file of data that is not a record, where one was expected.
    broken_at: Option<u64>,
    /// Bytes that are read from a buffer at a time.
    piece: usize,
}

/// A buffer, and how far it was read.
struct Queue {
    cpu: Option<u32>,
    tid: Option<u32>,
    cores: Cores,
    chunks: std::vec::IntoIter<AuxChunk>,
    chunk: AuxChunk,
    decoder: Decoder,
    ready: VecDeque<(u64, spe::Record)>,
    /// The time of the last record.
    last: u64,
}

impl Spe {
    /// Finds the AUX data of a recording.
    pub(super) fn open(perf_data: &mut PerfData<File>) -> Result<Aux, PerfDataError> {
        let Some(auxtrace) = perf_data.auxtrace()? else { return Ok(Aux::Nothing) };
        if auxtrace.kind != Auxtrace::ARM_SPE {
            let known = OTHERS.iter().find(|(kind, _)| *kind == auxtrace.kind);
            return Ok(Aux::Other(
                known.map_or_else(|| format!("type {}", auxtrace.kind), |(_, name)| (*name).to_owned()),
            ));
        }
        let midr = perf_data.text(feature::CPUID).and_then(|text| midr_in(&text));
        let pmu = of_pmu(&auxtrace.info);
        let event = perf_data.events().iter().position(|event| Some(u64::from(event.attr.kind)) == pmu);
        let Auxtrace { info, buffers, time, left_out, broken_at, .. } = auxtrace;
        let midr = midr.filter(|_| is_old(&info));
        let piece = (AHEAD / buffers.len().max(1)).clamp(LEAST_PIECE, PIECE);
        let queue = |AuxBuffer { cpu, tid, chunks, .. }: AuxBuffer| Queue {
            cpu,
            // The buffer of a CPU may name the first of the recorded threads.
            tid: tid.filter(|_| cpu.is_none()),
            cores: midr_of(&info, cpu).or(midr).map_or(Cores::Other, Cores::of),
            chunks: chunks.into_iter(),
            chunk: AuxChunk { at: 0, size: 0, position: 0 },
            decoder: Decoder::default(),
            ready: VecDeque::new(),
            last: 0,
        };
        let mut found = Self {
            queues: buffers.into_iter().map(queue).collect(),
            next: BinaryHeap::new(),
            time: time.filter(|time| time.mult > 0),
            event: event.and_then(|event| u16::try_from(event).ok()).unwrap_or(0),
            threads: Threads::new(MAX_THREADS),
            untimed: 0,
            unconverted: 0,
            unknown_thread: 0,
            unknown_process: 0,
            left_out,
            missing: 0,
            broken_at,
            piece,
        };
        for at in 0..found.queues.len() {
            found.fill(at, perf_data)?;
        }
        Ok(Aux::Spe(Box::new(found)))
    }

    /// Takes threads from a record, which the intake took last. Before it, the batch had `sides` side-band records.
    pub(super) fn note(&mut self, bytes: &[u8], layout: &Layout, intake: &mut Intake, sides: usize) {
        for TimedSideBand { what, .. } in intake.batch().side_band.get(sides..).unwrap_or_default() {
            if let SideBand::Comm { pid, tid, .. } | SideBand::Fork { pid, tid, .. } = *what {
                self.threads.is_of(tid, pid);
            }
        }
        if !Header::read(bytes).is_some_and(|header| OF_INTEREST.contains(&header.kind)) {
            return;
        }
        let Ok((_, record, id)) = decode(bytes, layout) else { return };
        // The rings have been read up to this time.
        intake.saw(id.time);
        self.threads.take(&record, &id);
    }

    /// Passes on all samples up to `until`; all records before that time have been read.
    pub(super) fn take_until(
        &mut self,
        until: u64,
        perf_data: &mut PerfData<File>,
        intake: &mut Intake,
        inlet: &mut Inlet<'_, PendingSample>,
    ) -> Result<(), PerfDataError> {
        let mut taken = 0;
        while let Some(&Reverse((time, at))) = self.next.peek().filter(|Reverse((time, _))| *time <= until) {
            self.next.pop();
            let Some(queue) = self.queues.get_mut(at) else { continue };
            if let Some((time, record)) = queue.ready.pop_front() {
                let (cpu, tid, cores) = (queue.cpu, queue.tid, queue.cores);
                self.take(time, &record, cpu, tid, cores, intake);
            }
            self.fill(at, perf_data)?;
            taken += 1;
            if taken % BATCH == 0 {
                // This was the earliest sample of all queues.
                intake.batch().complete_until = time;
                inlet.take(intake.batch());
                inlet.release_due();
            }
        }
        self.threads.forget_before(until);
        Ok(())
    }

    fn take(
        &mut self,
        time: u64,
        record: &spe::Record,
        cpu: Option<u32>,
        followed: Option<u32>,
        cores: Cores,
        intake: &mut Intake,
    ) {
        if !record.is_access() {
            intake.loss_mut().no_memory_op += 1;
            return;
        }
        let thread = self.threads.of(record, time, cpu, followed);
        // Process 0 stands for an unknown one.
        let (pid, tid) = match thread {
            Some((_, 0)) => {
                intake.loss_mut().idle += 1;
                return;
            }
            Some((Some(pid), tid)) => (pid, tid),
            Some((None, _)) => {
                self.unknown_process += 1;
                (0, 0)
            }
            None => {
                self.unknown_thread += 1;
                (0, 0)
            }
        };
        self.untimed += u64::from(record.timestamp.is_none());
        self.unconverted += u64::from(record.timestamp.is_some() && self.time.is_none());
        let cpu = cpu.unwrap_or(RawSample::NO_CPU);
        intake.push(RawSample { time, pid, tid, cpu, event: self.event, ..sample(record, cores) });
    }

    /// Reads more of a buffer, until its next sample is known.
    fn fill(&mut self, at: usize, perf_data: &mut PerfData<File>) -> Result<(), PerfDataError> {
        let Some(queue) = self.queues.get_mut(at) else { return Ok(()) };
        let mut piece = [0; PIECE];
        while queue.ready.is_empty() {
            if queue.chunk.size == 0 {
                let Some(chunk) = queue.chunks.next() else {
                    // An incomplete packet cannot be completed.
                    queue.decoder.jump(queue.decoder.position());
                    return Ok(());
                };
                if queue.decoder.position() != chunk.position {
                    queue.decoder.jump(chunk.position);
                }
                queue.chunk = chunk;
                continue;
            }
            let wanted = usize::try_from(queue.chunk.size).map_or(self.piece, |size| size.min(self.piece));
            let (into, _) = piece.split_at_mut(wanted);
            let read = perf_data.read_aux(queue.chunk.at, into)?;
            let (read_bytes, _) = into.split_at(read);
            let (time, ready, last) = (self.time, &mut queue.ready, &mut queue.last);
            queue.decoder.decode(read_bytes, &mut |record| {
                let own = record.timestamp.and_then(|count| Some(time?.ns(count)));
                *last = own.unwrap_or(*last);
                ready.push_back((*last, *record));
            });
            queue.chunk.at += read as u64;
            queue.chunk.size -= read as u64;
            if read < wanted {
                self.missing = self.missing.saturating_add(std::mem::take(&mut queue.chunk.size));
            }
        }
        if let Some((time, _)) = queue.ready.front() {
            self.next.push(Reverse((*time, at)));
        }
        Ok(())
    }

    /// Notes for the user.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let Self { untimed, unconverted, unknown_thread, unknown_process, .. } = *self;
        let Self { left_out, missing, broken_at, .. } = *self;
        let (mut cut, mut bad, mut unknown) = (0, 0, 0);
        for counts in self.queues.iter().map(|queue| queue.decoder.counts()) {
            (cut, bad, unknown) = (cut + counts.cut, bad + counts.bad_bytes, unknown + counts.unknown);
        }
        if cut > 0 || bad > 0 {
            notes.push(format!("{cut} records of SPE are damaged or cut, and {bad} bytes make no sense"));
        }
        if unknown > 0 {
            notes.push(format!("{unknown} packets of SPE are of unknown kinds and left out"));
        }
        if left_out > 0 || missing > 0 {
            notes.push(format!("{left_out} pieces of AUX data are left out, {missing} bytes are not in the file"));
        }
        if let Some(at) = broken_at {
            notes.push(format!("AUX data after byte {at} of the file is left out: what is there is no record"));
        }
        if untimed > 0 {
            notes.push(format!("{untimed} samples of SPE have no time of their own: record with ts_enable=1"));
        }
        if unconverted > 0 {
            notes.push(format!(
                "{unconverted} samples of SPE have no known order: the file does not say how the timer's counts convert to times (no TIME_CONV)"
            ));
        }
        if unknown_thread > 0 {
            notes.push(format!(
                "{unknown_thread} samples of SPE have no thread: record as root on a kernel with CONFIG_PID_IN_CONTEXTIDR, or with --switch-events"
            ));
        }
        if unknown_process > 0 {
            notes.push(format!("{unknown_process} samples of SPE are of threads whose process is not in the file"));
        }
        notes
    }
}

/// The type of the PMU: the first word before version 2, the third word since then (tools/perf/util/arm-spe.h).
fn of_pmu(info: &[u64]) -> Option<u64> {
    info.get(if is_old(info) { 0 } else { 2 }).copied()
}

/// Versions before 2 have two words.
fn is_old(info: &[u64]) -> bool {
    info.len() < HEADER_WORDS
}

/// The MIDR of a CPU, or the one that all CPUs have; versions before 2 do not contain it.
fn midr_of(info: &[u64], cpu: Option<u32>) -> Option<u64> {
    let header = usize::try_from(*info.get(1)?).ok().filter(|&words| words >= HEADER_WORDS)?;
    let mut rest = info.get(header..)?;
    let mut cpus = std::iter::from_fn(|| {
        let [CPU_MAGIC, number, params, midr, ..] = *rest else { return None };
        let size = usize::try_from(params).unwrap_or(usize::MAX).saturating_add(CPU_WORDS);
        rest = rest.get(size..).unwrap_or_default();
        Some((number, midr))
    });
    if let Some(cpu) = cpu {
        return cpus.find(|(number, _)| *number == u64::from(cpu)).map(|(_, midr)| midr);
    }
    let (_, first) = cpus.next()?;
    cpus.all(|(_, midr)| midr == first).then_some(first)
}
