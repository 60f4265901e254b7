//! The kernel's half of the timer source: from a sample of kernel code to its accesses, and to those of them that say something of the
//! thread's work.

use std::collections::BTreeSet;
use std::path::Path;

use rustc_hash::FxHashSet;

use crate::bpf::{FilePage, KernelMemory, Refusal};
use crate::host::clock::monotonic_ns;
use crate::host::kallsyms::KallsymsError;
use crate::resolve::code::kernel::KernelCode;
use crate::resolve::code::Windows;
use crate::resolve::frames::{FrameFlags, Frames, FramesError};
use crate::sample::{MemoryId, MemoryScope, LINE_SIZE, PAGE_SIZE};
use scxprof_base::cache::Cache;
use scxprof_base::tables::Tables;
use scxprof_recover::{
    Candidate, CodeSource, CodeWindow, KernelSnapshot, Recovery, RecoveryResult, Snapshot, KERNEL_HALF,
};

/// Tasks, and pages of bookkeeping, that are distinguished.
const MAX_TASKS: usize = 1 << 16;
/// How long the file of a page is valid, ns.
const FILE_LIFE: u64 = 1_000_000_000;
/// Bytes of a `task_struct` if the kernel does not say.
const TASK: u64 = 8 << 10;

/// Why kernel code cannot be sampled.
#[derive(Debug, thiserror::Error)]
pub enum NoKernel {
    /// The kernel's memory cannot be read.
    #[error(transparent)]
    Memory(#[from] Refusal),
    /// Its symbols cannot be read.
    #[error(transparent)]
    Symbols(#[from] KallsymsError),
    /// What it uses memory for cannot be told.
    #[error(transparent)]
    Frames(#[from] FramesError),
}

/// Where an access of kernel code goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Memory of the process.
    User,
    /// The kernel's, at this physical address; a page of a file in memory by its place in the file.
    Kernel(u64, Option<MemoryId>),
    /// What does not tell the thread's work: it comes with the CPU, the cgroup, or the kernel as a whole.
    Nobodys,
}

/// What samples of kernel code are recovered with.
#[derive(Debug)]
pub(in crate::session) struct KernelRecovery {
    code: KernelCode,
    recovery: Recovery,
    /// The pieces of code of one sample; reused to save allocations.
    windows: Windows,
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
    /// The CPU that accessed a line of objects, or a page of other memory than the page cache, first; `None` if another one did too.
    cpus: Cache<u64, Option<u32>>,
    /// The files of pages, by the address of their `struct page`, and when that was looked up.
    files: Cache<u64, (u64, Option<FilePage>)>,
}

impl KernelRecovery {
    /// For this host, with `cpus`, within about `memory` bytes.
    ///
    /// # Errors
    /// What the kernel does not allow or have.
    pub(in crate::session) fn new(procfs: &Path, sysfs: &Path, cpus: &[u32], memory: usize) -> Result<Self, NoKernel> {
        let mut reader = KernelMemory::load()?;
        // An entry, as each of what CPUs accessed, has some 40 bytes with its slot in the table.
        let frames = Frames::new(&mut reader, procfs, cpus, memory / 8 / 40)?;
        let code = KernelCode::new(reader, procfs, memory / 4)?;
        let size = std::fs::read_to_string(sysfs.join("kernel/slab/task_struct/object_size"));
        let task_size = size.ok().and_then(|size| size.trim().parse().ok()).unwrap_or(TASK);
        let (cpus, files) = (Cache::new(memory / 16 / 40), Cache::new(memory / 16 / 64));
        let judge = Judge { frames, tasks: BTreeSet::new(), task_size, bookkeeping: FxHashSet::default(), cpus, files };
        Ok(Self { code, recovery: Recovery::new(memory / 2), windows: Windows::default(), judge })
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
        tables.set("CPUs of kernel memory", self.judge.cpus.len(), self.judge.cpus.bytes());
        tables.set("files of pages", self.judge.files.len(), self.judge.files.bytes());
        tables.set_map::<u64>("pages of the kernel's bookkeeping", bookkeeping.len(), bookkeeping.capacity(), 0);
    }
}

/// Tells accesses of one sample apart.
pub(super) struct Bookkeeping<'a> {
    code: &'a mut KernelCode,
    judge: &'a mut Judge,
}

impl Bookkeeping<'_> {
    /// Where an access of a CPU goes, `now` in ns.
    pub(super) fn place(&mut self, candidate: &Candidate, cpu: u32, now: u64) -> Place {
        let is_bookkeeping = self.code.is_bookkeeping(candidate.insn_ip);
        let place = self.judge.place(candidate.addr, is_bookkeeping, cpu, now);
        match place {
            Place::Kernel(phys, _) => Place::Kernel(phys, self.file(phys, now)),
            other => other,
        }
    }

    /// The place in a file of what is at a physical address, if it is of a file.
    fn file(&mut self, phys: u64, now: u64) -> Option<MemoryId> {
        let page = self.judge.frames.page(phys).filter(|_| self.judge.is_of_file(phys, now))?;
        let known = self.judge.files.get(&page).filter(|(since, _)| now.saturating_sub(*since) < FILE_LIFE);
        let file = if let Some((_, file)) = known {
            *file
        } else {
            let file = self.code.file(page);
            self.judge.files.insert(page, (now, file));
            file
        };
        let FilePage { device, inode, index } = file?;
        // MINORBITS in include/linux/kdev_t.h is 20.
        let scope = MemoryScope::device(libc::makedev(device >> 20, device & 0xf_ffff), 0);
        let offset = index.checked_mul(PAGE_SIZE)?.checked_add(phys % PAGE_SIZE)?;
        Some(MemoryId::Shared { scope, ino: inode, offset })
    }
}

impl Judge {
    fn add_task(&mut self, task: u64) {
        if self.tasks.len() >= MAX_TASKS {
            self.tasks.clear();
        }
        self.tasks.insert(task);
    }

    fn place(&mut self, addr: u64, is_bookkeeping: bool, cpu: u32, now: u64) -> Place {
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
        // The allocators give what a CPU has freed to whom it runs next, and what one CPU alone accesses is in its cache anyway.
        if !flags.is_cached_file()
            && !self.is_of_several_cpus(if flags.is_slab() { phys / LINE_SIZE } else { !page }, cpu)
        {
            return Place::Nobodys;
        }
        Place::Kernel(phys, None)
    }

    fn is_of_file(&mut self, phys: u64, now: u64) -> bool {
        self.frames.flags(phys, now).is_some_and(FrameFlags::is_cached_file)
    }

    /// True from when a second CPU accesses the granule.
    fn is_of_several_cpus(&mut self, granule: u64, cpu: u32) -> bool {
        let first = self.cpus.get(&granule).copied();
        match first {
            Some(None) => return true,
            Some(Some(first)) if first == cpu => return false,
            Some(Some(_)) => self.cpus.insert(granule, None),
            None => self.cpus.insert(granule, Some(cpu)),
        }
        first.is_some()
    }
}

/// The kernel's code, for one sample.
struct Source<'a> {
    code: &'a mut KernelCode,
    now: u64,
    windows: &'a mut Windows,
}

impl CodeSource for Source<'_> {
    fn window(&mut self, ip: u64) -> Option<CodeWindow<'_>> {
        self.windows.around(ip, || self.code.window(ip, self.now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::frames;

    const BASE: u64 = 0xffff_8880_0000_0000;
    const SLAB: u64 = 1 << 7;
    const LRU: u64 = 1 << 5;
    const RESERVED: u64 = 1 << 32;

    /// On a machine with frames of these uses, run queues in the fifth, and a task in the first.
    fn judge(flags: &[u64]) -> Judge {
        let frames = frames::made(BASE, vec![BASE + 4 * PAGE_SIZE], flags);
        let tasks = BTreeSet::from([BASE]);
        Judge {
            frames,
            tasks,
            task_size: 0x100,
            bookkeeping: FxHashSet::default(),
            cpus: Cache::new(64),
            files: Cache::new(64),
        }
    }

    #[test]
    fn what_the_work_accesses_is_kept() {
        let mut judge = judge(&[SLAB, LRU, RESERVED, 0]);
        judge.frames = frames::made(BASE, Vec::new(), &[SLAB, LRU, RESERVED, 0]);
        let page = |number: u64| BASE + number * PAGE_SIZE;
        let mut place = |addr, cpu| judge.place(addr, false, cpu, 0);
        assert_eq!(place(0x7fff_0000_1000, 0), Place::User);
        assert_eq!(place(page(1), 0), Place::Kernel(PAGE_SIZE, None), "the page cache");
        assert_eq!((place(page(0) + 0x80, 0), place(page(0) + 0x80, 1)), (Place::Nobodys, Place::Nobodys), "a task");
        assert_eq!((place(page(2), 0), place(page(2), 1)), (Place::Nobodys, Place::Nobodys), "reserved");
        assert_eq!((place(0xffff_c900_0000_0000, 0), place(u64::MAX, 0)), (Place::Nobodys, Place::Nobodys));
        // An object of two CPUs.
        assert_eq!(place(page(0) + 0x208, 0), Place::Nobodys);
        assert_eq!(place(page(0) + 0x210, 0), Place::Nobodys);
        assert_eq!(place(page(0) + 0x248, 1), Place::Nobodys, "another line");
        assert_eq!(place(page(0) + 0x208, 1), Place::Kernel(0x208, None));
        assert_eq!(place(page(0) + 0x208, 0), Place::Kernel(0x208, None));
        // A page that is none of a file.
        assert_eq!(place(page(3), 0), Place::Nobodys);
        assert_eq!(place(page(3) + 0x800, 1), Place::Kernel(3 * PAGE_SIZE + 0x800, None));
    }

    #[test]
    fn what_the_allocators_access_is_not() {
        let mut judge = judge(&[SLAB, LRU, 0, 0, 0]);
        let page = |number: u64| BASE + number * PAGE_SIZE;
        assert_eq!(judge.place(0x7fff_0000_1000, true, 0, 0), Place::Nobodys);
        for cpu in 0..3 {
            assert_eq!(judge.place(page(0) + 0x400, true, cpu, 0), Place::Nobodys);
        }
        // An object's line is not the allocators' for that; a zone's page is.
        judge.frames = frames::made(BASE, Vec::new(), &[SLAB, LRU, 0]);
        assert_eq!(judge.place(page(0) + 0x400, false, 0, 0), Place::Nobodys);
        assert_eq!(judge.place(page(0) + 0x400, false, 1, 0), Place::Kernel(0x400, None));
        assert_eq!(judge.place(page(2), true, 0, 0), Place::Nobodys);
        for cpu in 0..3 {
            assert_eq!(judge.place(page(2) + 0x40, false, cpu, 0), Place::Nobodys, "its lock, taken by other code");
        }
    }

    #[test]
    fn per_cpu_memory_is_nobodys() {
        let mut judge = judge(&[SLAB; 8]);
        for cpu in 0..3 {
            assert_eq!(judge.place(BASE + 4 * PAGE_SIZE + 0x40, false, cpu, 0), Place::Nobodys);
        }
    }
}
