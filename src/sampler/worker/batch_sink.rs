//! Decodes records into batches.

use std::collections::BTreeMap;

use crossbeam_channel::TrySendError;

use super::context;
use super::{Identity, Outlet, BATCH};
use crate::sample::batch::{Batch, PendingSample, UserContext};
use crate::sample::sched::{SchedEvent, SchedWhat};
use crate::sample::{Access, Comm, CpuMode, DataSource, FileId, RawSample, SideBand, TimedSideBand};
use crate::sampler::clock::Offset;
use crate::sampler::loss::Loss;
use crate::sampler::plan::AddressFrom;
use crate::sampler::pool::Pool;
use crate::sampler::user::is_user_interrupt;
use scxprof_perf::record::{
    decode, decode_sample, sample_type, Header, Layout, MappedFile, Places, Record, SampleRecord, Words,
};
use scxprof_perf::record::{MISC_FORK_EXEC, MISC_LOST_SAMPLES_BPF};
use scxprof_recover::is_of_kernel;

/// Samples per batch of those with registers and stack, which are four times as large.
const BATCH_WITH_CONTEXT: usize = 256;
/// Bytes of stacks in a batch.
const BATCH_STACKS: usize = 256 << 10;
/// The number of batches of samples that a worker keeps if the session is slow, before it drops them.
pub(super) const MAX_WAITING_BATCHES: usize = 4;
/// The most scheduling events that a worker keeps if the session is slow, before it drops them.
const MAX_WAITING_SCHED: usize = 16 * BATCH;

/// Flags for incomplete AUX data: `PERF_AUX_FLAG_TRUNCATED`, `PERF_AUX_FLAG_PARTIAL`, `PERF_AUX_FLAG_COLLISION`.
pub(super) const AUX_TRUNCATED: u64 = 1;
pub(super) const AUX_PARTIAL: u64 = 4;
pub(super) const AUX_COLLISION: u64 = 8;

/// Bytes of a path (`PATH_MAX` in linux/limits.h): neither the kernel nor perf writes longer ones.
const MAX_PATH: usize = 4096;

/// Decodes records into batches.
#[derive(Debug)]
pub(in crate::sampler) struct BatchSink {
    pub(in crate::sampler) batch: Batch,
    /// The receiver of batches; `None` if the caller reads the batch itself.
    pub(super) out: Option<Outlet>,
    identity: Identity,
    pub(super) address_from: AddressFrom,
    /// [`AddressFrom::recovers`], and the number of samples of a full batch.
    recovers: bool,
    size: usize,
    /// Samples have a context.
    has_context: bool,
    pub(in crate::sampler) loss: Loss,
    /// The events' own counts, at the end of a recording, of samples lost because a ring was full.
    pub(in crate::sampler) lost_by_events: u64,
    /// The same for scheduling events.
    pub(in crate::sampler) sched_lost_by_events: u64,
    /// The latest time of any record so far.
    pub(in crate::sampler) newest: u64,
    /// The offset of the ring that is being read.
    pub(super) offset: Option<Offset>,
    /// The event of the record that is taken, and its period if the record does not contain it.
    event: u16,
    period: Option<u64>,
    /// The `sample_type` of the last record.
    sample_type: u64,
    /// Its samples say on which CPU they were taken.
    has_cpu: bool,
    places: Option<Places>,
}

impl BatchSink {
    pub(in crate::sampler) fn new(
        worker: usize,
        out: Option<Outlet>,
        identity: Identity,
        address_from: AddressFrom,
    ) -> Self {
        let batch = Batch { worker, ..Batch::default() };
        let recovers = address_from.recovers();
        let has_context = recovers || address_from == AddressFrom::Callchain;
        Self {
            batch,
            out,
            identity,
            address_from,
            recovers,
            has_context,
            size: if recovers { BATCH_WITH_CONTEXT } else { BATCH },
            loss: Loss::default(),
            lost_by_events: 0,
            sched_lost_by_events: 0,
            newest: 0,
            offset: None,
            event: 0,
            period: None,
            sample_type: 0,
            has_cpu: false,
            places: Places::new(0),
        }
    }

    /// Sets the event of the records that are taken next, and the number of events that each of its samples represents if
    /// the sample does not contain it.
    pub(in crate::sampler) fn of_event(&mut self, event: u16, period: Option<u64>) {
        (self.event, self.period) = (event, period);
    }

    /// Passes the batch on if there is room in the queue. If there is none for long, drops and counts the samples, so
    /// that the rings are still drained; the side-band stays for the next batch.
    pub(in crate::sampler) fn send(&mut self) {
        let Some(Outlet { to: out, pool, room, waker }) = &self.out else { return };
        // The channel has more slots than are used. A sender that takes the slot that the session is about to free
        // spins until the session has freed it; a real-time worker would spin forever if the session needs its CPU.
        let is_full = out.len() >= *room;
        let Batch { worker, complete_until, .. } = self.batch;
        let next = Batch { worker, complete_until, ..Batch::default() };
        let batch = std::mem::replace(&mut self.batch, next);
        let sent = if is_full { Err(TrySendError::Full(batch)) } else { out.try_send(batch) };
        if let Err(TrySendError::Full(mut batch)) = sent {
            if batch.samples.len() >= MAX_WAITING_BATCHES * self.size {
                self.loss.channel_full += batch.samples.len() as u64;
                batch.samples.clear();
            }
            if batch.sched.len() >= MAX_WAITING_SCHED {
                self.loss.sched.dropped += drop_sched(&mut batch.sched);
            }
            self.batch = batch;
        } else {
            waker.0.wake();
            self.batch.samples = pool.list();
        }
    }

    /// The last batch waits for room in the queue, because no ring needs this worker any more.
    pub(super) fn send_last(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        // The session may have ended, which is not a loss.
        if let Some(out) = &self.out {
            let _ = out.to.send(batch);
            out.waker.0.wake();
        }
    }

    pub(in crate::sampler) fn take(&mut self, bytes: &[u8], layout: &Layout) {
        if self.sample_type != layout.sample_type {
            (self.sample_type, self.places) = (layout.sample_type, Places::new(layout.sample_type));
            self.has_cpu = layout.sample_type & sample_type::CPU != 0;
        }
        let sampled = match &self.places {
            // Without a context, a record with fields of fixed size is used where it is.
            Some(places) if !self.has_context => match places.words(bytes) {
                Ok(Some((header, words))) => {
                    let record = places.sample(words);
                    self.sample(header, &record, |_| None);
                    Ok(true)
                }
                other => other.map(|_| false),
            },
            _ => decode_sample(bytes, layout).map(|it| {
                it.map(|(header, record)| self.sample(header, &record, |sink| sink.context(&record))).is_some()
            }),
        };
        match sampled {
            Ok(true) => {}
            Ok(false) => self.side_band(bytes, layout),
            Err(_) => self.loss.malformed += 1,
        }
    }

    /// Takes a record that is only recorded, for its time: the recording's time marks must be later than it.
    pub(super) fn take_aside(&mut self, bytes: &[u8], layout: &Layout) {
        match decode_sample(bytes, layout) {
            Ok(Some((_, record))) => self.newest = self.newest.max(self.monotonic(record.time)),
            // The events count their lost records.
            Ok(None) => {}
            Err(_) => self.loss.malformed += 1,
        }
    }

    pub(super) fn side_band(&mut self, bytes: &[u8], layout: &Layout) {
        let Ok((header, record, id)) = decode(bytes, layout) else {
            self.loss.malformed += 1;
            return;
        };
        if let Record::Mmap { filename: name, .. }
        | Record::Mmap2 { filename: name, .. }
        | Record::Cgroup { path: name, .. } = record
        {
            if name.len() > MAX_PATH {
                self.loss.malformed += 1;
                return;
            }
        }
        let what = match record {
            Record::Lost { lost, .. } => {
                self.loss.ring_full = self.loss.ring_full.saturating_add(lost);
                SideBand::Lost { cpu: id.cpu, lost }
            }
            // Samples that a perf user's BPF filter dropped.
            Record::LostSamples { .. } if header.misc & MISC_LOST_SAMPLES_BPF != 0 => return,
            // The kernel's record has a time. At its end, perf record adds one without a time: PERF_FORMAT_LOST of an
            // event (record__read_lost_samples() in tools/perf/builtin-record.c), part of which LOST records have
            // already reported.
            Record::LostSamples { lost } if id.time == 0 => {
                self.lost_by_events = self.lost_by_events.saturating_add(lost);
                return;
            }
            Record::LostSamples { lost } => {
                self.loss.hardware = self.loss.hardware.saturating_add(lost);
                return;
            }
            Record::Aux { flags, .. } => {
                self.loss.aux_lost += u64::from(flags & (AUX_TRUNCATED | AUX_PARTIAL) != 0);
                self.loss.aux_collided += u64::from(flags & AUX_COLLISION != 0);
                return;
            }
            Record::Throttle { .. } => {
                self.loss.throttled += 1;
                return;
            }
            Record::Comm { pid, tid, exec, comm } => SideBand::Comm { pid, tid, exec, comm: Comm::new(comm) },
            // perf writes a fork record for each thread that exists at its start. The name and the mappings follow.
            Record::Fork { .. } if header.misc & MISC_FORK_EXEC != 0 => return,
            Record::Fork { pid, ppid, tid, ptid, .. } => SideBand::Fork { pid, ppid, tid, ptid },
            Record::Exit { pid, tid, .. } => SideBand::Exit { pid, tid },
            Record::Mmap2 { pid, addr, len, pgoff, file, prot, flags, filename, .. } => {
                let file = match file {
                    MappedFile::Inode { major, minor, inode, generation } => {
                        // The kernel's value has 32 bits in a field of 64 (inode->i_generation).
                        let generation = generation as u32;
                        FileId::Inode { dev: libc::makedev(major, minor), ino: inode, generation }
                    }
                    MappedFile::BuildId(build_id) => FileId::BuildId(build_id.into()),
                };
                SideBand::Mmap { pid, addr, len, pgoff, file, prot, flags, filename: filename.into() }
            }
            // From before Linux 3.16; it contains neither the file's inode nor whether the mapping is shared.
            Record::Mmap { pid, addr, len, pgoff, data, filename, .. } => {
                let prot = libc::PROT_READ | if data { libc::PROT_WRITE } else { libc::PROT_EXEC };
                let file = FileId::Inode { dev: 0, ino: 0, generation: 0 };
                let (prot, flags) = (prot as u32, libc::MAP_PRIVATE as u32);
                SideBand::Mmap { pid, addr, len, pgoff, file, prot, flags, filename: filename.into() }
            }
            Record::Namespaces { pid, links, .. } => {
                let Some(namespace) = ipc_namespace(&links) else { return };
                SideBand::Ipc { pid, namespace }
            }
            Record::Cgroup { id, path } => SideBand::Cgroup { id, path: path.into() },
            _ => return,
        };
        let time = self.monotonic(id.time);
        self.newest = self.newest.max(time);
        self.batch.side_band.push(TimedSideBand { time, what });
    }

    pub(super) fn monotonic(&self, time: u64) -> u64 {
        self.offset.map_or(time, |offset| offset.monotonic(time))
    }

    // Always inlined, so that its arguments need not be assembled first.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    fn sample(
        &mut self,
        header: Header,
        record: &SampleRecord<'_>,
        context: impl FnOnce(&mut Self) -> Option<Box<UserContext>>,
    ) {
        let time = self.monotonic(record.time);
        self.newest = self.newest.max(time);
        if record.pid == self.identity.own_pid {
            self.loss.own += 1;
            return;
        }
        let mode = self.mode(header, record);
        // perf_event_pid_type() (kernel/events/core.c) gives 0 for the idle task and for tasks of another pid
        // namespace, and -1 for tasks that are gone. In a recording of another program, 0 may be either, so the sample
        // counts as unnamed.
        if record.pid == 0 && (self.address_from != AddressFrom::OtherTool || mode != CpuMode::User) {
            let foreign =
                self.identity.child_pid_namespace || mode == CpuMode::User || self.address_from == AddressFrom::Fault;
            *(if foreign { &mut self.loss.outside_pid_namespace } else { &mut self.loss.idle }) += 1;
            return;
        }
        if record.pid == u32::MAX || record.tid == u32::MAX {
            self.loss.exiting += 1;
            return;
        }
        let recovers = self.recovers;
        if recovers && mode != CpuMode::User && !is_of_kernel(record.raw) {
            self.loss.in_kernel += 1;
            return;
        }
        let data_src = DataSource(record.data_src);
        // var1_dw of union perf_sample_weight; drivers fill only this part of PERF_SAMPLE_WEIGHT.
        let latency = record.weight as u32;
        let chosen = match self.address_from {
            AddressFrom::Hardware { user_only, ops, ldlat } => Some((user_only, ops, ldlat)),
            // Another program may have sampled all ops; those without an address are useless.
            AddressFrom::OtherTool => Some((false, data_src.is_no_access() && record.addr == 0, None)),
            _ => None,
        };
        if let Some((user_only, ops, ldlat)) = chosen {
            let access = data_src.access();
            let too_fast = |ldlat| latency > 0 && latency < ldlat && access != Access::Store;
            let left_out = if record.ip == 0 && record.addr == 0 {
                Some(&mut self.loss.bogus)
            } else if user_only && mode != CpuMode::User {
                Some(&mut self.loss.in_kernel)
            } else if ops && access == Access::Unknown {
                Some(&mut self.loss.no_memory_op)
            } else if ldlat.is_some_and(too_fast) {
                Some(&mut self.loss.below_ldlat)
            } else {
                None
            };
            if let Some(count) = left_out {
                *count += 1;
                return;
            }
        }
        self.loss.samples += 1;
        let context = context(self);
        // The sample is created in place: creating it elsewhere and moving it costs as much as decoding it.
        let samples = &mut self.batch.samples;
        let count = samples.len();
        if count == samples.capacity() {
            samples.reserve(1);
        }
        let Some(place) = samples.spare_capacity_mut().first_mut() else { return };
        place.write(PendingSample {
            raw: RawSample {
                time,
                pid: record.pid,
                tid: record.tid,
                cpu: if self.has_cpu { record.cpu } else { RawSample::NO_CPU },
                mode,
                access: data_src.access(),
                ip: record.ip,
                addr: record.addr,
                phys: record.phys_addr,
                page_size: record.data_page_size,
                cgroup: record.cgroup,
                period: self.period.unwrap_or(record.period),
                latency,
                data_src,
                event: self.event,
                ..RawSample::default()
            },
            context,
        });
        // SAFETY: the value after the first `count` ones was written just now, and is within the capacity.
        unsafe { samples.set_len(count + 1) };
        if self.out.is_some() && self.batch.samples.len() >= self.size {
            self.send();
        }
    }

    /// The context of a sample, if it has one.
    fn context(&mut self, record: &SampleRecord<'_>) -> Option<Box<UserContext>> {
        // In a recording, the accesses are in a separate file.
        let pool = self.out.as_ref().map(|out| &out.pool);
        if let (true, Some(pool)) = (self.recovers, pool) {
            let mut context = pool.context();
            context::of_access(record, &mut context);
            return Some(context);
        }
        if !matches!(self.address_from, AddressFrom::Callchain) {
            return None;
        }
        if !record.stack_user.is_empty() {
            self.size = (BATCH_STACKS / record.stack_user.len()).clamp(1, self.size);
        }
        let mut context = pool.map(Pool::context).unwrap_or_default();
        context::of_stack(record, &mut context);
        Some(context)
    }

    /// The mode of the interrupted code, which differs from the tracepoint's own.
    // Always inlined, as what calls it.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    fn mode(&self, header: Header, record: &SampleRecord<'_>) -> CpuMode {
        let AddressFrom::UserByCallchain(entries) = &self.address_from else { return header.cpu_mode() };
        // A BPF program's sample has no chain: the program checks the stack itself.
        let is_user = if record.callchain.is_empty() && !record.raw.is_empty() {
            !is_of_kernel(record.raw)
        } else {
            is_user_interrupt(record.callchain.iter(), entries)
        };
        if is_user {
            CpuMode::User
        } else {
            CpuMode::Kernel
        }
    }
}

/// The inode of a process's IPC namespace (`IPC_NS_INDEX` in linux/perf_event.h is 2).
fn ipc_namespace(links: &Words<'_>) -> Option<u32> {
    u32::try_from(links.get(2 * 2 + 1)?).ok()
}

/// The event that reports a loss of the CPU's events until `time`.
pub(super) fn lost_until(time: u64, cpu: u32) -> SchedEvent {
    SchedEvent { time, cpu, pid: 0, tid: 0, cgroup: 0, what: SchedWhat::Lost }
}

/// Drops the events, but keeps the time of the last loss on each CPU. Returns the number of dropped events.
fn drop_sched(events: &mut Vec<SchedEvent>) -> u64 {
    let mut dropped = 0;
    let mut cpus = BTreeMap::new();
    for event in events.drain(..) {
        dropped += u64::from(event.what != SchedWhat::Lost);
        cpus.insert(event.cpu, event.time);
    }
    events.extend(cpus.into_iter().map(|(cpu, time)| lost_until(time, cpu)));
    dropped
}
