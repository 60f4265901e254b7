//! What the workers hand to the session: samples as the rings had them, and what changes their names.

use super::{Comm, RawSample};

/// What changes the names of samples: tasks, mappings, cgroups. Fields have the names of linux/perf_event.h.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum SideBand {
    /// A thread has this name now. With `exec` it got it by an exec, which ends the mappings of its process.
    Comm { pid: u32, tid: u32, exec: bool, comm: Comm },
    /// Thread `ptid` of process `ppid` made a thread, or a process where `pid` is another, which begins with copies of the
    /// mappings.
    Fork { pid: u32, ppid: u32, tid: u32, ptid: u32 },
    /// A thread has ended.
    Exit { pid: u32, tid: u32 },
    /// A process maps `len` bytes at `addr`: the file from byte `pgoff` on. `prot` and `flags` are those of mmap(2).
    Mmap { pid: u32, addr: u64, len: u64, pgoff: u64, file: FileId, prot: u32, flags: u32, filename: Box<[u8]> },
    /// The process is in the IPC namespace of that inode number.
    Ipc { pid: u32, namespace: u32 },
    /// The cgroup of that id has this path, from the root of its hierarchy.
    Cgroup { id: u64, path: Box<[u8]> },
    /// A task's hint was written, or ended.
    Hint { time: u64, pid: u32, tid: u32, hint: Option<u64> },
    /// Records of this CPU were lost: names may be stale from here on.
    Lost { cpu: u32 },
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
        /// The inode's generation, which grows or changes when the number is used again; 0 if it is not known.
        generation: u32,
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

impl TimedSideBand {
    /// Bytes of memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let name = match &self.what {
            SideBand::Mmap { filename: name, .. } | SideBand::Cgroup { path: name, .. } => name.len(),
            _ => 0,
        };
        size_of::<Self>() + name
    }
}

/// The state of interrupted user code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserContext {
    /// `PERF_SAMPLE_REGS_ABI_*`.
    pub abi: u64,
    /// The registers of `attr.sample_regs_user`, lowest bit first.
    pub regs: Box<[u64]>,
    /// The stack from rsp on.
    pub stack: Box<[u8]>,
    /// The memory around the registers, as operand.bpf.c writes it; empty without.
    pub memory: Box<[u8]>,
}

/// A sample on its way from the ring to its names: thousands wait for their turn in the order of time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PendingSample {
    /// What the record says; `addr` is 0 if it is to be recovered from the context.
    pub raw: RawSample,
    /// What to recover the address from.
    pub context: Option<Box<UserContext>>,
}

// Memory is set aside for them by their number.
const _: () = assert!(size_of::<PendingSample>() <= 104);

/// What a worker sends at a time.
#[derive(Debug, Default)]
pub struct Batch<S = PendingSample> {
    /// Which worker.
    pub worker: usize,
    /// In the order of their rings.
    pub samples: Vec<S>,
    /// In the order of their rings.
    pub side_band: Vec<TimedSideBand>,
    /// CLOCK_MONOTONIC, ns: everything older that this worker reads has been sent.
    pub complete_until: u64,
}
