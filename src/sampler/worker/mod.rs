//! A thread that drains the rings of its CPUs, decodes the records, and passes batches to the session.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use crossbeam_channel::{Sender, TrySendError};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};

use super::clock::Offset;
use super::loss::Loss;
use super::open::Event;
use super::plan::AddressFrom;
use super::pool::Pool;
use super::ring::Ring;
use super::tee::Tee;
use super::user::is_user_interrupt;
use super::waker::WakesAtEnd;
use crate::host::clock::monotonic_ns;
use crate::host::priority;
use crate::sample::batch::{Batch, PendingSample};
use crate::sample::{Access, Comm, CpuMode, DataSource, FileId, RawSample, SideBand, TimedSideBand};
use scxprof_perf::record::{decode, decode_sample, Header, Layout, MappedFile, Places, Record, SampleRecord, Words};
use scxprof_perf::record::{MISC_FORK_EXEC, MISC_LOST_SAMPLES_BPF};
use scxprof_perf::tracepoint::SchedDecoder;
use scxprof_recover::is_of_kernel;

mod aux_area;
mod context;
mod inbox;
mod sched;

use aux_area::Buffered;
pub(super) use aux_area::CpuAux;
pub(super) use inbox::{Inbox, Joining};
use sched::{drop_sched, lost_until, MAX_WAITING_SCHED};

/// Samples per batch; those with registers and stack are four times as large.
const BATCH: usize = 1024;
const BATCH_WITH_CONTEXT: usize = 256;
/// Bytes of stacks in a batch.
const BATCH_STACKS: usize = 256 << 10;
/// The number of batches of samples that a worker keeps if the session is slow, before it drops them.
const MAX_WAITING_BATCHES: usize = 4;
/// The most batches in the queue: this many for each worker if there is memory for them, and this many for all workers
/// in any case.
const QUEUE: usize = 48;
/// Bytes of a batch of samples with registers, stack and the memory around them, or with call stacks.
const CONTEXTS_OF_BATCH: usize = 768 << 10;
/// How long a worker sleeps if no ring wakes it.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// The same if an event can no longer wake the worker: its task is gone, but others still write to its ring.
const SHORT_TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// The longest time in ns between a record's time stamp and the moment it is readable: it is stamped before it is written, and
/// the CPU may be preempted in between (a virtual one for some ms).
const VISIBLE_WITHIN: u64 = 20_000_000;
/// The same if the hardware buffers records: at 1,000 a second and a full buffer of PEBS.
const BATCH_VISIBLE_WITHIN: u64 = 1_000_000_000;

/// The window, in ns, in which a real-time worker may use half a CPU. If it uses more, it gives up its priority,
/// because it would take the CPU from the sampled threads.
const BUDGET_WINDOW: u64 = 250_000_000;

/// Flags for incomplete AUX data: `PERF_AUX_FLAG_TRUNCATED`, `PERF_AUX_FLAG_PARTIAL`, `PERF_AUX_FLAG_COLLISION`.
const AUX_TRUNCATED: u64 = 1;
const AUX_PARTIAL: u64 = 4;
const AUX_COLLISION: u64 = 8;

/// Bytes of a path (`PATH_MAX` in linux/limits.h): neither the kernel nor perf writes longer ones.
const MAX_PATH: usize = 4096;

/// The size of the queue of batches for the session.
///
/// A worker sends a batch at every wake-up, full or not. So a queue of fixed size would cover a shorter stall the more
/// workers there are: with batches of 1,024 samples of 16 CPUs each, at 1,000 a second and CPU, 48 batches are 3.3 s
/// for one worker and 0.35 s for 32. Therefore the queue grows with the number of workers for as long as full batches
/// fit into `bytes`. A batch takes memory only while it is queued.
pub(super) fn queue(workers: usize, bytes: usize, has_contexts: bool) -> usize {
    let batch = if has_contexts { CONTEXTS_OF_BATCH } else { BATCH * size_of::<PendingSample>() };
    (QUEUE * workers).min(bytes / batch).max(QUEUE)
}

/// Where a worker sends its batches.
#[derive(Debug, Clone)]
pub(super) struct Outlet {
    pub(super) to: Sender<Batch>,
    pub(super) pool: Pool,
    /// The most batches in the channel, see [`queue`].
    pub(super) room: usize,
    /// Declared after `to`, so that the channel is disconnected when this wakes the session.
    pub(super) waker: WakesAtEnd,
}

/// The ring of one CPU.
#[derive(Debug)]
pub(super) struct CpuRing {
    pub(super) ring: Ring,
    pub(super) layout: Layout,
    pub(super) corrupt: bool,
    /// Converts its times from the scheduler's clock to CLOCK_MONOTONIC.
    pub(super) offset: Option<Offset>,
    pub(super) kind: RingKind,
    /// The AUX area beside the ring.
    pub(super) aux: Option<Box<CpuAux>>,
}

/// The kind of a ring's samples.
#[derive(Debug, Clone)]
pub(super) enum RingKind {
    /// Samples of the source.
    Source,
    /// Scheduling events, with their decoder.
    Sched(Arc<SchedDecoder>),
    /// Call stacks beside memory, which are only recorded.
    Aside,
}

/// How to recognize ourselves and tasks outside our namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Our process.
    pub own_pid: u32,
    /// Pid 0 then means tasks outside our namespace as well as the idle task.
    pub child_pid_namespace: bool,
    /// The whole host, or a cgroup, is sampled: then no scxprof process counts as workload.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_profilers: bool,
}

/// How a worker was scheduled.
#[derive(Debug)]
pub(super) enum Scheduled {
    /// Like the thread that started it.
    AsStarted,
    /// SCHED_FIFO to the end.
    Realtime,
    /// SCHED_FIFO, until it used more than half a CPU.
    Busy,
    /// The errno of the call that sets the priority.
    Refused(std::io::Error),
}

pub(super) struct Worker {
    /// The SCHED_FIFO priority that the worker sets for itself, if any.
    pub(super) realtime: Option<u8>,
    pub(super) index: usize,
    pub(super) rings: Vec<CpuRing>,
    pub(super) wake: Vec<Arc<Event>>,
    /// The events with AUX areas.
    pub(super) buffered: Vec<Arc<Event>>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) identity: Identity,
    pub(super) address_from: AddressFrom,
    pub(super) out: Outlet,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) tee: Option<Arc<dyn Tee>>,
}

impl Worker {
    /// Drains until told to stop, then once more; returns the counts of this worker, even after a panic.
    pub(super) fn run(self) -> (Loss, Scheduled) {
        let mut scheduled = match self.realtime.map(priority::set_realtime) {
            None => Scheduled::AsStarted,
            Some(Ok(())) => Scheduled::Realtime,
            Some(Err(error)) => Scheduled::Refused(error),
        };
        let mut sink = BatchSink::new(self.index, Some(self.out.clone()), self.identity, self.address_from.clone());
        let (index, tee) = (self.index, self.tee.clone());
        // Only vectors and numbers are used afterwards. They are consistent at any time, except for the last sample.
        if catch_unwind(AssertUnwindSafe(|| self.drain(&mut sink, &mut scheduled))).is_err() {
            end_realtime(&scheduled);
            sink.loss.dead_workers += 1;
            sink.loss.abandoned += sink.batch.samples.len() as u64;
            sink.loss.sched.dropped += sink.batch.sched.len() as u64;
            sink.batch.samples.clear();
            sink.batch.sched.clear();
            // Nothing needs to wait for this worker any more.
            if let Some(tee) = &tee {
                tee.complete(index, u64::MAX);
            }
            sink.batch.complete_until = u64::MAX;
            sink.send_last();
        }
        (sink.loss, scheduled)
    }

    fn drain(self, sink: &mut BatchSink, scheduled: &mut Scheduled) {
        let Self { index, mut rings, mut wake, buffered, inbox, stop, tee, .. } = self;
        let (mut scratch, mut copy) = (Vec::new(), Vec::new());
        let mut buffered = Buffered::new(buffered);
        let mut budget = Budget::default();
        let mut complete_until = 0;
        loop {
            // Read this before the rings: after the last round they must be empty.
            let stopping = stop.load(Ordering::Acquire);
            let begin = monotonic_ns();
            if matches!(scheduled, Scheduled::Realtime) && budget.is_exceeded(begin, priority::thread_cpu_ns()) {
                end_realtime(scheduled);
                *scheduled = Scheduled::Busy;
            }
            // A CPU that joins later has no records older than `begin`.
            let joining = inbox.take();
            let is_known = joining.is_some();
            for Joining { cpu, rings: new, wake: events, buffered: more } in joining.into_iter().flatten() {
                wake.retain(|event| event.cpu != cpu);
                wake.extend(events);
                buffered.add(cpu, more);
                rings.extend(new);
                // What the CPU's tasks did before was not recorded.
                sink.batch.side_band.push(TimedSideBand { time: begin, what: SideBand::Lost { cpu, lost: 0 } });
                if rings.iter().any(|ring| matches!(ring.kind, RingKind::Sched(_))) {
                    sink.batch.sched.push(lost_until(begin, cpu));
                }
            }
            // Before the rings are read, so that they contain all samples up to this moment.
            let flushed = if stopping { buffered.end(begin) } else { buffered.flush(begin) };
            let batched = rings.iter().any(|cpu| cpu.offset.is_some());
            let visible_within = if batched { BATCH_VISIBLE_WITHIN } else { VISIBLE_WITHIN };
            for cpu in rings.iter_mut().filter(|cpu| !cpu.corrupt) {
                let (layout, kind) = (cpu.layout, cpu.kind.clone());
                if cpu.offset.is_some() {
                    cpu.offset = Offset::now(&cpu.ring).or(cpu.offset);
                }
                sink.offset = cpu.offset;
                let (head, aux) = (cpu.ring.aux_head(), &mut cpu.aux);
                let mut keep = |bytes: &[u8]| {
                    if tee.is_some() {
                        copy.extend_from_slice(bytes);
                    }
                };
                let mut drained = cpu.ring.drain(&mut scratch, |bytes| {
                    keep(bytes);
                    if let Some(aux) = aux {
                        aux.note(bytes, &layout);
                    }
                    match &kind {
                        RingKind::Source => sink.take(bytes, &layout),
                        RingKind::Sched(decoder) => sink.take_sched(bytes, &layout, decoder),
                        RingKind::Aside => sink.take_aside(bytes, &layout),
                    }
                });
                if let (Some(aux), Some(head), Ok(_)) = (aux, head, drained) {
                    let mut lost = Loss::default();
                    let read = aux.drain(&mut cpu.ring, head, &layout, &mut lost, &mut |bytes| {
                        keep(bytes);
                        sink.take(bytes, &layout);
                    });
                    sink.loss.add(&lost);
                    drained = drained.and_then(|bytes| read.map(|()| bytes));
                }
                if drained.is_err() {
                    cpu.corrupt = true;
                    sink.loss.corrupt_rings += 1;
                }
                if let Some(tee) = tee.as_ref().filter(|_| !copy.is_empty()) {
                    tee.records(&copy, sink.newest, !matches!(kind, RingKind::Source));
                    copy.clear();
                }
            }
            if stopping {
                complete_until = u64::MAX;
            } else if is_known {
                complete_until = begin.min(flushed).saturating_sub(visible_within);
            }
            if let Some(tee) = &tee {
                tee.complete(index, complete_until);
            }
            if stopping {
                sink.batch.complete_until = u64::MAX;
                end_realtime(scheduled);
                return sink.send_last();
            }
            sink.batch.complete_until = complete_until;
            sink.send();
            inbox.tell_loss(&sink.loss);
            let tick = if wake.len() < rings.len() { &SHORT_TICK } else { &TICK };
            wait(&mut wake, tick);
        }
    }
}

/// Returns to normal priority: a real-time thread must not wait for a normal one, which may need this very CPU.
fn end_realtime(scheduled: &Scheduled) {
    if matches!(scheduled, Scheduled::Realtime) {
        // Lowering one's own priority always succeeds.
        let _ = priority::end_realtime();
    }
}

/// The CPU time that a real-time worker uses.
#[derive(Debug, Default)]
struct Budget {
    /// When the window began, and the thread's CPU time then.
    begin: Option<(u64, u64)>,
}

impl Budget {
    /// True if the thread used more than half of the time until `now`; both arguments are in ns.
    fn is_exceeded(&mut self, now: u64, used: u64) -> bool {
        let (begin, used_before) = *self.begin.get_or_insert((now, used));
        let (elapsed, used_since) = (now.saturating_sub(begin), used.saturating_sub(used_before));
        if elapsed >= BUDGET_WINDOW {
            self.begin = Some((now, used));
        }
        used_since > elapsed.max(BUDGET_WINDOW) / 2
    }
}

/// Sleeps until a ring has passed its watermark, at most a tick; drops events that can no longer wake the worker.
fn wait(wake: &mut Vec<Arc<Event>>, tick: &Timespec) {
    let mut polled: Vec<_> = wake.iter().map(|event| PollFd::new(&**event, PollFlags::IN)).collect();
    if !poll(&mut polled, Some(tick)).is_ok_and(|ready| ready > 0) {
        return;
    }
    // An event whose task is gone reports this forever.
    let is_gone =
        |events: PollFlags| events.intersects(PollFlags::HUP | PollFlags::ERR) && !events.contains(PollFlags::IN);
    let gone: Vec<bool> = polled.iter().map(|event| is_gone(event.revents())).collect();
    let mut gone = gone.into_iter();
    wake.retain(|_| !gone.next().unwrap_or(false));
}

/// Decodes records into batches.
#[derive(Debug)]
pub(super) struct BatchSink {
    pub(super) batch: Batch,
    /// The receiver of batches; `None` if the caller reads the batch itself.
    out: Option<Outlet>,
    identity: Identity,
    address_from: AddressFrom,
    /// [`AddressFrom::recovers`], and the number of samples of a full batch.
    recovers: bool,
    size: usize,
    pub(super) loss: Loss,
    /// The events' own counts, at the end of a recording, of samples lost because a ring was full.
    pub(super) lost_by_events: u64,
    /// The same for scheduling events.
    pub(super) sched_lost_by_events: u64,
    /// The latest time of any record so far.
    pub(super) newest: u64,
    /// The offset of the ring that is being read.
    offset: Option<Offset>,
    /// The `sample_type` of the last record.
    sample_type: u64,
    places: Option<Places>,
}

impl BatchSink {
    pub(super) fn new(worker: usize, out: Option<Outlet>, identity: Identity, address_from: AddressFrom) -> Self {
        let batch = Batch { worker, ..Batch::default() };
        let recovers = address_from.recovers();
        Self {
            batch,
            out,
            identity,
            address_from,
            recovers,
            size: if recovers { BATCH_WITH_CONTEXT } else { BATCH },
            loss: Loss::default(),
            lost_by_events: 0,
            sched_lost_by_events: 0,
            newest: 0,
            offset: None,
            sample_type: 0,
            places: Places::new(0),
        }
    }

    /// Passes the batch on if there is room in the queue. If there is none for long, drops and counts the samples, so
    /// that the rings are still drained; the side-band stays for the next batch.
    pub(super) fn send(&mut self) {
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
    fn send_last(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        // The session may have ended, which is not a loss.
        if let Some(out) = &self.out {
            let _ = out.to.send(batch);
            out.waker.0.wake();
        }
    }

    pub(super) fn take(&mut self, bytes: &[u8], layout: &Layout) {
        if self.sample_type != layout.sample_type {
            (self.sample_type, self.places) = (layout.sample_type, Places::new(layout.sample_type));
        }
        let sampled = match &self.places {
            Some(places) => match places.words(bytes) {
                Ok(Some((header, words))) => {
                    let record = places.sample(words);
                    self.sample(header, &record);
                    Ok(true)
                }
                other => other.map(|_| false),
            },
            None => {
                decode_sample(bytes, layout).map(|it| it.map(|(header, record)| self.sample(header, &record)).is_some())
            }
        };
        match sampled {
            Ok(true) => {}
            Ok(false) => self.side_band(bytes, layout),
            Err(_) => self.loss.malformed += 1,
        }
    }

    /// Takes a record that is only recorded, for its time: the recording's time marks must be later than it.
    fn take_aside(&mut self, bytes: &[u8], layout: &Layout) {
        match decode_sample(bytes, layout) {
            Ok(Some((_, record))) => self.newest = self.newest.max(self.monotonic(record.time)),
            // The events count their lost records.
            Ok(None) => {}
            Err(_) => self.loss.malformed += 1,
        }
    }

    fn side_band(&mut self, bytes: &[u8], layout: &Layout) {
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

    fn monotonic(&self, time: u64) -> u64 {
        self.offset.map_or(time, |offset| offset.monotonic(time))
    }

    // Always inlined, so that its arguments need not be assembled first.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    fn sample(&mut self, header: Header, record: &SampleRecord<'_>) {
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
        // Create the sample in place: creating it elsewhere and moving it costs as much as decoding it.
        self.batch.samples.resize_with(self.batch.samples.len() + 1, PendingSample::default);
        let Some(pending) = self.batch.samples.last_mut() else { return };
        pending.raw = RawSample {
            time,
            pid: record.pid,
            tid: record.tid,
            cpu: record.cpu,
            mode,
            access: data_src.access(),
            ip: record.ip,
            addr: record.addr,
            phys: record.phys_addr,
            page_size: record.data_page_size,
            cgroup: record.cgroup,
            period: record.period,
            latency,
            data_src,
            ..RawSample::default()
        };
        // In a recording, the accesses are in a separate file.
        let pool = self.out.as_ref().map(|out| &out.pool);
        if let (true, Some(pool)) = (recovers, pool) {
            let mut context = pool.context();
            context::of_access(record, &mut context);
            pending.context = Some(context);
        } else if matches!(self.address_from, AddressFrom::Callchain) {
            if !record.stack_user.is_empty() {
                self.size = (BATCH_STACKS / record.stack_user.len()).clamp(1, self.size);
            }
            let mut context = pool.map(Pool::context).unwrap_or_default();
            context::of_stack(record, &mut context);
            pending.context = Some(context);
        }
        if self.out.is_some() && self.batch.samples.len() >= self.size {
            self.send();
        }
    }

    /// The mode of the interrupted code, which differs from the tracepoint's own.
    #[inline]
    fn mode(&self, header: Header, record: &SampleRecord<'_>) -> CpuMode {
        let AddressFrom::UserByCallchain(entries) = &self.address_from else { return header.cpu_mode() };
        // A BPF program's sample has no chain: the program checks the stack itself.
        if record.callchain.is_empty() && !record.raw.is_empty() {
            return if is_of_kernel(record.raw) { CpuMode::Kernel } else { CpuMode::User };
        }
        if is_user_interrupt(record.callchain.iter(), entries) {
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

#[cfg(test)]
mod tests;
