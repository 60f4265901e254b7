//! What the workers hand to the session: samples as the rings had them, and what changes their names.

use super::{Access, Comm, CpuMode, DataSource, Method, Sample};

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
        /// The inode's generation, which grows or changes when the number is used again; 0 where it is not known.
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

/// A sample as it came from the ring, in half the memory of a [`Sample`], whose fields these are: thousands wait for their turn.
#[derive(Debug, Clone, PartialEq, Default)]
#[allow(missing_docs)]
pub struct Captured {
    pub time: u64,
    pub pid: u32,
    pub tid: u32,
    pub cpu: u32,
    pub mode: CpuMode,
    pub access: Access,
    pub size: u16,
    pub ip: u64,
    /// 0 where it is to be recovered from the context.
    pub addr: u64,
    pub phys: u64,
    pub page_size: u64,
    pub cgroup: u64,
    pub period: u64,
    pub latency: u32,
    pub share: f32,
    pub data_src: DataSource,
    pub method: Option<Method>,
    /// What to recover the address from.
    pub context: Option<Box<UserContext>>,
}

impl Captured {
    /// Makes `sample` this one: what nobody knows yet is `None` or 0.
    #[inline]
    pub fn fill(&self, sample: &mut Sample) {
        sample.time = self.time;
        sample.pid = self.pid;
        sample.tid = self.tid;
        sample.cpu = self.cpu;
        sample.mode = self.mode;
        sample.access = self.access;
        sample.ip = self.ip;
        sample.addr = self.addr;
        sample.phys = self.phys;
        sample.page_size = self.page_size;
        sample.cgroup = self.cgroup;
        sample.period = self.period;
        sample.latency = self.latency;
        sample.data_src = self.data_src;
        sample.share = self.share;
        sample.record = 0;
        sample.size = self.size;
        sample.method = self.method;
        sample.thread = 0;
        sample.comm = None;
        sample.place = None;
        sample.code = None;
        sample.hint = None;
    }
}

impl From<&Captured> for Sample {
    fn from(captured: &Captured) -> Self {
        let mut sample = Self::default();
        captured.fill(&mut sample);
        sample
    }
}

impl From<Sample> for Captured {
    fn from(sample: Sample) -> Self {
        Self {
            time: sample.time,
            pid: sample.pid,
            tid: sample.tid,
            cpu: sample.cpu,
            mode: sample.mode,
            access: sample.access,
            size: sample.size,
            ip: sample.ip,
            addr: sample.addr,
            phys: sample.phys,
            page_size: sample.page_size,
            cgroup: sample.cgroup,
            period: sample.period,
            latency: sample.latency,
            share: sample.share,
            data_src: sample.data_src,
            method: sample.method,
            context: None,
        }
    }
}

/// What a worker sends at a time.
#[derive(Debug, Default)]
pub struct Batch<S = Captured> {
    /// Which worker.
    pub worker: usize,
    /// In the order of their rings.
    pub samples: Vec<S>,
    /// In the order of their rings.
    pub side_band: Vec<TimedSideBand>,
    /// CLOCK_MONOTONIC, ns: everything older that this worker reads has been sent.
    pub complete_until: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_ring_says_of_a_sample_survives() {
        let sample = Sample {
            time: 1,
            pid: 2,
            tid: 3,
            cpu: 4,
            mode: CpuMode::User,
            access: Access::Update,
            ip: 5,
            addr: 6,
            phys: 7,
            page_size: 8,
            cgroup: 9,
            period: 10,
            latency: 11,
            data_src: DataSource(12),
            share: 0.5,
            size: 13,
            method: Some(Method::R),
            ..Sample::default()
        };
        let captured = Captured::from(sample);
        assert_eq!(Sample::from(&captured), sample);
        // An old one leaves nothing behind.
        let place = Some(crate::sample::Place::Frame { phys: 1 });
        let mut old = Sample { record: 1, thread: 2, comm: Some("old".into()), place, hint: Some(3), ..sample };
        captured.fill(&mut old);
        assert_eq!(old, sample);
        assert!(size_of::<Captured>() <= 104);
    }
}
