//! The data that workers pass to the session: samples as in the rings, and events that change their names.

use super::sched::SchedEvent;
use super::{Comm, RawSample};
use crate::arch::Arch;

/// Events that change the names of samples: tasks, mappings, cgroups. Fields have the names of linux/perf_event.h.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SideBand {
    /// A thread now has this name. With `exec` it comes from an exec, which ends the mappings of its process.
    Comm { pid: u32, tid: u32, exec: bool, comm: Comm },
    /// Thread `ptid` of process `ppid` created a thread, or a process if `pid` differs, which begins with a copy of the
    /// mappings.
    Fork { pid: u32, ppid: u32, tid: u32, ptid: u32 },
    /// A thread has ended.
    Exit { pid: u32, tid: u32 },
    /// A process maps `len` bytes at `addr`: the file from offset `pgoff` on. `prot` and `flags` are those of mmap(2).
    Mmap { pid: u32, addr: u64, len: u64, pgoff: u64, file: FileId, prot: u32, flags: u32, filename: Box<[u8]> },
    /// The process is in the IPC namespace of that inode number.
    Ipc { pid: u32, namespace: u32 },
    /// The cgroup of that id has this path, from the root of its hierarchy.
    Cgroup { id: u64, path: Box<[u8]> },
    /// A thread is in the cgroup of that id.
    ThreadCgroup { pid: u32, tid: u32, id: u64 },
    /// A task's hint was written or deleted.
    Hint { time: u64, pid: u32, tid: u32, hint: Option<u64> },
    /// This number of records of this CPU was lost: names may be stale from here on.
    Lost { cpu: u32, lost: u64 },
}

/// The identity of a mapped file in a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileId {
    /// By device (as `makedev` packs it) and inode; both 0 for anonymous memory.
    Inode {
        /// Device number.
        dev: u64,
        /// Inode number.
        ino: u64,
        /// The inode's generation, which changes when the number is reused; 0 if unknown.
        generation: u32,
    },
    /// By build id, of up to 20 bytes.
    BuildId(Box<[u8]>),
}

/// Side-band with its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimedSideBand {
    /// CLOCK_MONOTONIC, ns.
    pub time: u64,
    /// The event.
    pub what: SideBand,
}

impl TimedSideBand {
    /// Bytes of memory that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let name = match &self.what {
            SideBand::Mmap { filename: name, .. } | SideBand::Cgroup { path: name, .. } => name.len(),
            _ => 0,
        };
        size_of::<Self>() + name
    }
}

/// The state of interrupted user code, or of kernel code in [`UserContext::memory`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserContext {
    /// Whose registers they are.
    pub arch: Arch,
    /// `PERF_SAMPLE_REGS_ABI_*`.
    pub abi: u64,
    /// The registers of `attr.sample_regs_user`, lowest bit first.
    pub regs: Vec<u64>,
    /// The stack from the stack pointer on.
    pub stack: Vec<u8>,
    /// The memory around the registers, or registers and stack of kernel code, in the formats of operand.bpf.c; empty without.
    pub memory: Vec<u8>,
    /// The call chain, the innermost address first, with the kernel's marks (`PERF_CONTEXT_*`); empty without.
    pub callchain: Vec<u64>,
}

impl UserContext {
    /// Bytes of memory that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let words = self.regs.capacity() + self.callchain.capacity();
        size_of::<Self>() + words * size_of::<u64>() + self.stack.capacity() + self.memory.capacity()
    }
}

/// A sample between the ring and its naming: thousands wait to be sorted by time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PendingSample {
    /// The fields of the record; `addr` is 0 if it must be recovered from the context.
    pub raw: RawSample,
    /// The context from which to recover the address.
    pub context: Option<Box<UserContext>>,
}

// Memory is reserved for a number of them.
const _: () = assert!(size_of::<PendingSample>() <= 104);

/// The unit in which a worker sends.
#[derive(Debug, Default)]
pub struct Batch<S = PendingSample> {
    /// The worker's number.
    pub worker: usize,
    /// In the order of their rings.
    pub samples: Vec<S>,
    /// In the order of their rings.
    pub side_band: Vec<TimedSideBand>,
    /// Events of the scheduler, in the order of their rings.
    pub sched: Vec<SchedEvent>,
    /// CLOCK_MONOTONIC, ns: everything older that this worker reads has been sent.
    pub complete_until: u64,
}
