//! A thread that drains the rings of its CPUs, decodes, and hands batches to the session.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use crossbeam_channel::{Sender, TrySendError};

use super::loss::Loss;
use super::open::{monotonic_ns, Event};
use super::operand::user::is_user_interrupt;
use super::plan::Reading;
use super::record::{decode, Header, Layout, MappedFile, Record, SampleRecord};
use super::ring::Ring;
use crate::sample::{Comm, CpuMode, DataSource, Sample};

/// Samples that travel together; those with registers and stack are four times as large.
const BATCH: usize = 1024;
const BATCH_WITH_CONTEXT: usize = 256;
/// Batches' worth of samples that a worker holds on to where the session is behind, before it drops them.
const PATIENCE: usize = 4;
/// Batches that may wait for the session.
pub(super) const QUEUE: usize = 48;
/// How long a worker sleeps where no ring asks for it, in ms.
const TICK_MS: i32 = 100;
/// The same where an event cannot wake us any more: its task is gone, but others still write to its ring.
const SHORT_TICK_MS: i32 = 10;
/// A record is readable so long after its time stamp at the latest, in ns: it is stamped before it is written, and the
/// CPU may be taken away in between (a virtual one for some ms).
const VISIBLE_WITHIN: u64 = 20_000_000;

/// What changes the names of samples: tasks, mappings, cgroups.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // The names are those of linux/perf_event.h.
pub enum SideBand {
    Comm {
        pid: u32,
        tid: u32,
        exec: bool,
        comm: Comm,
    },
    Fork {
        pid: u32,
        ppid: u32,
        tid: u32,
        ptid: u32,
    },
    Exit {
        pid: u32,
        tid: u32,
    },
    Mmap {
        pid: u32,
        addr: u64,
        len: u64,
        pgoff: u64,
        file: FileId,
        prot: u32,
        flags: u32,
        filename: Box<[u8]>,
    },
    Cgroup {
        id: u64,
        path: Box<[u8]>,
    },
    /// Records of this CPU were lost: names may be stale from here on.
    Lost {
        cpu: u32,
    },
}

/// What identifies a mapped file in a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileId {
    /// By device (as `makedev` packs it) and inode; both 0 for anonymous memory.
    Inode {
        /// Device number.
        dev: u64,
        /// Inode number.
        ino: u64,
    },
    /// By build id, of up to 20 bytes.
    BuildId(Box<[u8]>),
}

/// Side-band at its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimedSideBand {
    /// CLOCK_MONOTONIC, ns.
    pub time: u64,
    /// What happened.
    pub what: SideBand,
}

/// The state of interrupted user code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserContext {
    /// `PERF_SAMPLE_REGS_ABI_*`.
    pub abi: u64,
    /// The registers of [`REGS`](super::operand::tick::REGS), lowest bit first.
    pub regs: Box<[u64]>,
    /// The stack from rsp on.
    pub stack: Box<[u8]>,
}

/// A sample as it came from the ring.
#[derive(Debug, Clone, PartialEq)]
pub struct Captured {
    /// Its fields; `addr` is 0 where it is to be recovered from the context.
    pub sample: Sample,
    /// What to recover the address from.
    pub context: Option<Box<UserContext>>,
}

/// What a worker sends at a time.
#[derive(Debug, Default)]
pub struct Batch {
    /// Which worker.
    pub worker: usize,
    /// In the order of their rings.
    pub samples: Vec<Captured>,
    /// In the order of their rings.
    pub side_band: Vec<TimedSideBand>,
    /// CLOCK_MONOTONIC, ns: everything older that this worker reads has been sent.
    pub complete_until: u64,
}

/// The ring of one CPU.
#[derive(Debug)]
pub(super) struct CpuRing {
    pub(super) ring: Ring,
    pub(super) layout: Layout,
    pub(super) corrupt: bool,
}

/// How to tell ourselves and strangers from the tasks to sample.
#[derive(Debug, Clone, Copy)]
pub(super) struct Identity {
    pub(super) own_pid: u32,
    /// Pid 0 then stands for tasks outside as well as for idle.
    pub(super) child_pid_namespace: bool,
}

pub(super) struct Worker {
    pub(super) index: usize,
    pub(super) rings: Vec<CpuRing>,
    pub(super) wake: Vec<Arc<Event>>,
    pub(super) identity: Identity,
    pub(super) reading: Reading,
    pub(super) out: Sender<Batch>,
    pub(super) stop: Arc<AtomicBool>,
}

impl Worker {
    /// Drains until told to stop, then once more; gives the counts of this worker.
    pub(super) fn run(self) -> Loss {
        let Self { index, mut rings, wake, identity, reading, out, stop } = self;
        let batch = Batch { worker: index, ..Batch::default() };
        let mut sink = BatchSink { batch, out, identity, reading, chain: Vec::new(), loss: Loss::default() };
        let mut poll: Vec<libc::pollfd> = wake.iter().map(|event| pollfd(event.as_fd().as_raw_fd())).collect();
        let mut scratch = Vec::new();
        loop {
            // Read before the rings: after the last round nothing can be left in them.
            let stopping = stop.load(Ordering::Acquire);
            let begin = monotonic_ns();
            for cpu in rings.iter_mut().filter(|cpu| !cpu.corrupt) {
                let layout = cpu.layout;
                if let Err(_corrupt) = cpu.ring.drain(&mut scratch, |bytes| sink.take(bytes, &layout)) {
                    cpu.corrupt = true;
                    sink.loss.corrupt_rings += 1;
                }
            }
            if stopping {
                sink.batch.complete_until = u64::MAX;
                sink.send_last();
                return sink.loss;
            }
            sink.batch.complete_until = begin.saturating_sub(VISIBLE_WITHIN);
            sink.send();
            wait(&mut poll);
        }
    }
}

fn pollfd(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Sleeps until a ring has passed its watermark, at most a tick.
fn wait(poll: &mut [libc::pollfd]) {
    let tick = if poll.iter().any(|entry| entry.fd < 0) { SHORT_TICK_MS } else { TICK_MS };
    // SAFETY: the slice is live and its length is what we say.
    let ready = unsafe { libc::poll(poll.as_mut_ptr(), poll.len() as libc::nfds_t, tick) };
    if ready <= 0 {
        return;
    }
    for entry in poll.iter_mut() {
        // An event whose task is gone says so for ever.
        if entry.revents & (libc::POLLHUP | libc::POLLERR) != 0 && entry.revents & libc::POLLIN == 0 {
            entry.fd = -1;
        }
    }
}

struct BatchSink {
    batch: Batch,
    out: Sender<Batch>,
    identity: Identity,
    reading: Reading,
    chain: Vec<u64>,
    loss: Loss,
}

impl BatchSink {
    /// Samples of a full batch.
    fn size(&self) -> usize {
        if matches!(self.reading, Reading::Fault) {
            BATCH
        } else {
            BATCH_WITH_CONTEXT
        }
    }

    /// Hands the batch on where there is room. Where there is none for long the samples are dropped and counted, so that the
    /// rings are drained on; the side-band stays for the next batch.
    fn send(&mut self) {
        let next = Batch { worker: self.batch.worker, complete_until: self.batch.complete_until, ..Batch::default() };
        let batch = std::mem::replace(&mut self.batch, next);
        if let Err(TrySendError::Full(mut batch)) = self.out.try_send(batch) {
            if batch.samples.len() >= PATIENCE * self.size() {
                self.loss.channel_full += batch.samples.len() as u64;
                batch.samples.clear();
            }
            self.batch = batch;
        }
    }

    /// The last batch waits for room: no ring needs us any more.
    fn send_last(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        // The session may have gone away, which is no loss of ours.
        let _ = self.out.send(batch);
    }

    fn take(&mut self, bytes: &[u8], layout: &Layout) {
        let Ok((header, record, id)) = decode(bytes, layout) else {
            self.loss.malformed += 1;
            return;
        };
        let what = match record {
            Record::Sample(sample) => return self.sample(header, &sample),
            Record::Lost { lost, .. } => {
                self.loss.ring_full = self.loss.ring_full.saturating_add(lost);
                SideBand::Lost { cpu: id.cpu }
            }
            Record::LostSamples { lost } => {
                self.loss.hardware = self.loss.hardware.saturating_add(lost);
                return;
            }
            Record::Throttle { .. } => {
                self.loss.throttled += 1;
                return;
            }
            Record::Comm { pid, tid, exec, comm } => SideBand::Comm { pid, tid, exec, comm: Comm::new(comm) },
            Record::Fork { pid, ppid, tid, ptid, .. } => SideBand::Fork { pid, ppid, tid, ptid },
            Record::Exit { pid, tid, .. } => SideBand::Exit { pid, tid },
            Record::Mmap2 { pid, addr, len, pgoff, file, prot, flags, filename, .. } => {
                let file = match file {
                    MappedFile::Inode { major, minor, inode, .. } => {
                        FileId::Inode { dev: libc::makedev(major, minor), ino: inode }
                    }
                    MappedFile::BuildId(build_id) => FileId::BuildId(build_id.into()),
                };
                SideBand::Mmap { pid, addr, len, pgoff, file, prot, flags, filename: filename.into() }
            }
            Record::Cgroup { id, path } => SideBand::Cgroup { id, path: path.into() },
            _ => return,
        };
        self.batch.side_band.push(TimedSideBand { time: id.time, what });
    }

    fn sample(&mut self, header: Header, record: &SampleRecord<'_>) {
        if record.pid == self.identity.own_pid {
            self.loss.own += 1;
            return;
        }
        let mode = self.mode(header, record);
        // perf_event_pid_type() (kernel/events/core.c) gives 0 for idle and for tasks of another pid namespace, -1 for
        // tasks that are gone.
        if record.pid == 0 {
            let foreign = self.identity.child_pid_namespace || mode == CpuMode::User || self.reading == Reading::Fault;
            *(if foreign { &mut self.loss.outside_pid_namespace } else { &mut self.loss.idle }) += 1;
            return;
        }
        if record.pid == u32::MAX || record.tid == u32::MAX {
            self.loss.exiting += 1;
            return;
        }
        let recovers = !matches!(self.reading, Reading::Fault);
        if recovers && mode != CpuMode::User {
            self.loss.in_kernel += 1;
            return;
        }
        self.loss.samples += 1;
        let data_src = DataSource(record.data_src);
        let sample = Sample {
            time: record.time,
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
            // var1_dw of union perf_sample_weight; all of PERF_SAMPLE_WEIGHT that any driver fills.
            latency: record.weight as u32,
            data_src,
            ..Sample::default()
        };
        let context = recovers.then(|| {
            let regs = record.regs_user.values.iter().collect();
            Box::new(UserContext { abi: record.regs_user.abi, regs, stack: record.stack_user.into() })
        });
        self.batch.samples.push(Captured { sample, context });
        if self.batch.samples.len().is_multiple_of(self.size()) {
            self.send();
        }
    }

    /// The mode of the code that was interrupted, which a tracepoint's own is not.
    fn mode(&mut self, header: Header, record: &SampleRecord<'_>) -> CpuMode {
        let Reading::UserByCallchain(entries) = &self.reading else { return header.cpu_mode() };
        self.chain.clear();
        self.chain.extend(record.callchain.iter());
        if is_user_interrupt(&self.chain, entries) {
            CpuMode::User
        } else {
            CpuMode::Kernel
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::encode::encode;
    use super::super::record::{sample_type, SampleId};
    use super::*;

    const LAYOUT: Layout = Layout {
        sample_type: sample_type::TID | sample_type::TIME | sample_type::ADDR,
        read_format: 0,
        branch_sample_type: 0,
        regs_user: 0,
        regs_intr: 0,
        sample_id_all: true,
    };

    fn sink(out: Sender<Batch>, child_pid_namespace: bool) -> BatchSink {
        let identity = Identity { own_pid: 1000, child_pid_namespace };
        BatchSink {
            batch: Batch::default(),
            out,
            identity,
            reading: Reading::Fault,
            chain: Vec::new(),
            loss: Loss::default(),
        }
    }

    fn sample(pid: u32, misc: u16) -> Vec<u8> {
        let mut bytes = Vec::new();
        let record = SampleRecord { pid, tid: pid, time: 5, addr: 0x1000, ..SampleRecord::default() };
        assert!(encode(&Record::Sample(record), &SampleId::default(), misc, &LAYOUT, &mut bytes));
        bytes
    }

    #[test]
    fn a_full_channel_drops_samples_in_the_end_and_never_side_band() {
        let (out, session) = crossbeam_channel::bounded(1);
        let mut sink = sink(out, false);
        let mut comm = Vec::new();
        let record = Record::Comm { pid: 7, tid: 7, exec: false, comm: b"web" };
        assert!(encode(&record, &SampleId { time: 3, ..SampleId::default() }, 0, &LAYOUT, &mut comm));
        for _ in 0..3 {
            sink.take(&comm, &LAYOUT);
            sink.take(&sample(7, 2), &LAYOUT);
            sink.send();
        }
        assert_eq!((sink.batch.samples.len(), sink.loss.channel_full), (2, 0), "a short wait costs nothing");
        while sink.loss.channel_full == 0 {
            sink.take(&sample(7, 2), &LAYOUT);
        }
        sink.take(&sample(7, 2), &LAYOUT);
        let first = session.recv().unwrap();
        sink.send_last();
        let last = session.recv().unwrap();
        assert_eq!((first.samples.len(), first.side_band.len()), (1, 1));
        assert_eq!((last.samples.len(), last.side_band.len()), (1, 2), "both names waited for room");
        assert_eq!(sink.loss.channel_full, (PATIENCE * BATCH) as u64);
        assert_eq!(sink.loss.samples, sink.loss.channel_full + 2);
    }

    #[test]
    fn ourselves_idle_strangers_and_the_dead_are_told_apart() {
        let (out, _session) = crossbeam_channel::bounded(1);
        let mut host = sink(out.clone(), false);
        for (pid, misc) in [(1000, 2), (0, 1), (u32::MAX, 2), (9, 2)] {
            host.take(&sample(pid, misc), &LAYOUT);
        }
        let Loss { own, idle, outside_pid_namespace, exiting, samples, .. } = host.loss;
        assert_eq!((own, idle, outside_pid_namespace, exiting, samples), (1, 0, 1, 1, 1), "idle makes no fault");
        let mut timer = sink(out.clone(), false);
        timer.reading = Reading::UserByMode;
        timer.take(&sample(0, 1), &LAYOUT);
        timer.take(&sample(0, 2), &LAYOUT);
        assert_eq!((timer.loss.idle, timer.loss.outside_pid_namespace), (1, 1), "idle runs no user code");
        let mut child = sink(out, true);
        child.take(&sample(0, 1), &LAYOUT);
        assert_eq!((child.loss.idle, child.loss.outside_pid_namespace), (0, 1));
    }

    #[test]
    fn broken_records_are_counted() {
        let (out, _session) = crossbeam_channel::bounded(1);
        let mut sink = sink(out, false);
        let mut cut = sample(7, 2)[..16].to_vec();
        cut[6..8].copy_from_slice(&16u16.to_ne_bytes());
        sink.take(&cut, &LAYOUT);
        assert_eq!((sink.loss.malformed, sink.loss.samples), (1, 0));
        for record in [Record::Lost { id: 1, lost: u64::MAX }, Record::LostSamples { lost: u64::MAX }].repeat(2) {
            let mut bytes = Vec::new();
            assert!(encode(&record, &SampleId::default(), 0, &LAYOUT, &mut bytes));
            sink.take(&bytes, &LAYOUT);
        }
        assert_eq!((sink.loss.ring_full, sink.loss.hardware), (u64::MAX, u64::MAX));
    }
}
