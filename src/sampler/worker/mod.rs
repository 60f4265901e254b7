//! A thread that drains the rings of its CPUs, decodes the records, and passes batches to the session.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use crossbeam_channel::Sender;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};

use super::clock::Offset;
use super::loss::Loss;
use super::open::Event;
use super::plan::AddressFrom;
use super::pool::Pool;
use super::ring::Ring;
use super::tee::Tee;
use super::waker::WakesAtEnd;
use crate::host::clock::monotonic_ns;
use crate::host::priority;
use crate::sample::batch::{Batch, PendingSample};
use crate::sample::{SideBand, TimedSideBand};
use scxprof_perf::record::Layout;
use scxprof_perf::tracepoint::SchedDecoder;

mod aux_area;
mod batch_sink;
mod context;
mod inbox;
mod sched;

use aux_area::Buffered;
pub(super) use aux_area::CpuAux;
use batch_sink::lost_until;
pub(super) use batch_sink::BatchSink;
pub(super) use inbox::{Inbox, Joining};

/// Samples per batch; those with registers and stack are fewer.
const BATCH: usize = 1024;
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

#[cfg(test)]
mod tests;
