//! The kernel's half of the timer source: from a sample of kernel code to its accesses, and to those of them that say something of the
//! thread's work.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use rustc_hash::FxHashSet;

use super::recovery::MAX_WINDOWS;
use crate::bpf::{KernelMemory, Refusal};
use crate::host::clock::monotonic_ns;
use crate::host::frames::Frames;
use crate::resolve::code::kernel::KernelCode;
use crate::resolve::code::Window;
use crate::sample::PAGE_SIZE;
use scxprof_base::tables::Tables;
use scxprof_recover::{
    Candidate, CodeSource, CodeWindow, KernelSnapshot, Recovery, RecoveryResult, Snapshot, KERNEL_HALF,
};

/// Tasks, and pages of bookkeeping, that are distinguished.
const MAX_TASKS: usize = 1 << 16;
/// Bytes of a `task_struct` if the kernel does not say.
const TASK: u64 = 8 << 10;

/// Why kernel code cannot be sampled.
#[derive(Debug, thiserror::Error)]
pub enum NoKernel {
    /// The kernel's memory cannot be read.
    #[error(transparent)]
    Memory(#[from] Refusal),
    /// Its symbols, or the list of what frames are used for.
    #[error("{what}: {source}")]
    Read {
        /// What is missing.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Where an access of kernel code goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Memory of the process.
    User,
    /// The kernel's, at this physical address.
    Kernel(u64),
    /// What does not tell the thread's work: it comes with the CPU, the cgroup, or the kernel as a whole.
    Nobodys,
}

/// What samples of kernel code are recovered with.
#[derive(Debug)]
pub(in crate::session) struct KernelRecovery {
    code: KernelCode,
    recovery: Recovery,
    /// The pieces of code of one sample; reused to save allocations.
    windows: Vec<Window>,
    pub(super) judge: Judge,
}

/// Tells what accesses mean.
#[derive(Debug)]
pub(super) struct Judge {
    frames: Frames,
    /// The addresses of the tasks that were sampled. Whoever runs before or after a thread accesses its `task_struct`.
    tasks: BTreeSet<u64>,
    /// Bytes of one.
    task_size: u64,
    /// Pages with data of the allocators.
    bookkeeping: FxHashSet<u64>,
}

impl KernelRecovery {
    /// For this host, with `cpus`, within about `memory` bytes.
    ///
    /// # Errors
    /// What the kernel does not allow or have.
    pub(in crate::session) fn new(procfs: &Path, sysfs: &Path, cpus: &[u32], memory: usize) -> Result<Self, NoKernel> {
        let failed = |what| move |source| NoKernel::Read { what, source };
        let mut reader = KernelMemory::load()?;
        // An entry has some 40 bytes with its slot in the table.
        let frames = Frames::new(&mut reader, procfs, cpus, memory / 8 / 40).map_err(failed("/proc/kpageflags"))?;
        let code = KernelCode::new(reader, procfs, memory / 4).map_err(failed("/proc/kallsyms"))?;
        let size = std::fs::read_to_string(sysfs.join("kernel/slab/task_struct/object_size"));
        let task_size = size.ok().and_then(|size| size.trim().parse().ok()).unwrap_or(TASK);
        let judge = Judge { frames, tasks: BTreeSet::new(), task_size, bookkeeping: FxHashSet::default() };
        Ok(Self { code, recovery: Recovery::new(memory / 2), windows: Vec::new(), judge })
    }

    /// The accesses near a sample, and what tells where they go.
    pub(super) fn recover(&mut self, snapshot: &KernelSnapshot<'_>) -> (RecoveryResult<'_>, Bookkeeping<'_>) {
        let Self { code, recovery, windows, judge } = self;
        windows.clear();
        judge.add_task(snapshot.task);
        let mut source = Source { code, now: monotonic_ns(), windows };
        let KernelSnapshot { regs, dump, .. } = snapshot;
        let result = recovery.recover_with(regs, dump, Snapshot::default(), snapshot.stack(), &mut source);
        (result, Bookkeeping { code, judge })
    }

    /// Its sizes.
    pub(super) fn measure(&self, tables: &mut Tables) {
        self.code.measure(tables);
        self.judge.frames.measure(tables);
        let decoded = self.recovery.cache_counts();
        tables.set("decoded instructions of the kernel", decoded.entries, decoded.bytes);
        let Judge { tasks, bookkeeping, .. } = &self.judge;
        tables.set("tasks of the kernel", tasks.len(), tasks.len() * 2 * size_of::<u64>());
        tables.set_map::<u64>("pages of the kernel's bookkeeping", bookkeeping.len(), bookkeeping.capacity(), 0);
    }
}

/// Tells accesses of one sample apart.
pub(super) struct Bookkeeping<'a> {
    code: &'a KernelCode,
    judge: &'a mut Judge,
}

impl Bookkeeping<'_> {
    /// Where an access goes, `now` in ns.
    pub(super) fn place(&mut self, candidate: &Candidate, now: u64) -> Place {
        let is_bookkeeping = self.code.is_bookkeeping(candidate.insn_ip);
        self.judge.place(candidate.addr, is_bookkeeping, now)
    }
}

impl Judge {
    fn add_task(&mut self, task: u64) {
        if self.tasks.len() >= MAX_TASKS {
            self.tasks.clear();
        }
        self.tasks.insert(task);
    }

    fn place(&mut self, addr: u64, is_bookkeeping: bool, now: u64) -> Place {
        if addr < KERNEL_HALF {
            return if is_bookkeeping { Place::Nobodys } else { Place::User };
        }
        let task = self.tasks.range(..=addr).next_back();
        if self.frames.is_per_cpu(addr) || task.is_some_and(|task| addr - task < self.task_size) {
            return Place::Nobodys;
        }
        // The stacks, the kernel's image and its modules are elsewhere.
        let Some((phys, flags)) = self.frames.find(addr, now) else { return Place::Nobodys };
        let page = phys / PAGE_SIZE;
        if is_bookkeeping && !flags.is_slab() && self.bookkeeping.len() < MAX_TASKS {
            // No object: the zone, or per-CPU memory. Other code takes its locks.
            self.bookkeeping.insert(page);
        }
        if is_bookkeeping || flags.is_reserved() || self.bookkeeping.contains(&page) {
            return Place::Nobodys;
        }
        Place::Kernel(phys)
    }
}

/// The kernel's code, for one sample.
struct Source<'a> {
    code: &'a mut KernelCode,
    now: u64,
    /// The last pieces, the newest at the end.
    windows: &'a mut Vec<Window>,
}

impl CodeSource for Source<'_> {
    fn window(&mut self, ip: u64) -> Option<CodeWindow<'_>> {
        if !self.windows.iter().any(|window| window.is_around(ip)) {
            let window = self.code.window(ip, self.now)?;
            if self.windows.len() == MAX_WINDOWS {
                self.windows.remove(0);
            }
            self.windows.push(window);
        }
        let window = self.windows.iter().find(|window| window.is_around(ip))?;
        Some(window.as_code())
    }
}
