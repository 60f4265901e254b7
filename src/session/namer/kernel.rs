//! The kernel's half: from a sample of kernel code to its accesses, of the timer source, and to those accesses, of the hardware too, that
//! say something of the thread's work.

use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustc_hash::FxHashMap;

use super::judge::{Judge, Kind, Nobodys, Object, Place, Slab, User, NOBODY};
use crate::bpf::{FilePage, KernelMemory, Refusal};
use crate::host::clock::monotonic_ns;
use crate::host::kallsyms::KallsymsError;
use crate::host::mountinfo;
use crate::resolve::code::kernel::{FunctionKind, KernelCode};
use crate::resolve::code::Windows;
use crate::resolve::frames::{Frames, FramesError};
use crate::resolve::KernelNames;
use crate::sample::{MemoryId, MemoryScope, RawSample, PAGE_SIZE};
use scxprof_base::tables::Tables;
use scxprof_recover::{CodeSource, CodeWindow, KernelSnapshot, Recovery, RecoveryResult, KERNEL_HALF};

/// How long the file of a page is valid, ns.
const FILE_LIFE: u64 = 1_000_000_000;
/// Mounts by which files get the beginning of their paths; the files of others are named from the root of their file system.
const MAX_MOUNTS: usize = 1 << 12;
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
    /// Its use of memory is not known.
    #[error(transparent)]
    Frames(#[from] FramesError),
}

/// The state for recovering the accesses of kernel code.
#[derive(Debug)]
pub(in crate::session) struct KernelRecovery {
    code: KernelCode,
    recovery: Recovery,
    /// The pieces of code of one sample; reused to save allocations.
    windows: Windows,
    /// Memory that the interrupt, or the program that took the sample, has changed since; sorted.
    changed: Vec<Range<u64>>,
    /// False if loads alone are sampled.
    has_stores: bool,
    pub(super) judge: Judge,
}

/// Where the root of each file system is mounted: of several places the first.
fn mounts(procfs: &Path) -> FxHashMap<u64, Vec<u8>> {
    let text = std::fs::read(procfs.join("self/mountinfo")).unwrap_or_default();
    let mut points = FxHashMap::default();
    for mount in mountinfo::parse(&text).filter(|mount| mount.root == b"/").take(MAX_MOUNTS) {
        // That of the root would make two.
        let point = mount.point.into_os_string().into_vec();
        points.entry(mount.dev).or_insert(if point == b"/" { Vec::new() } else { point });
    }
    points
}

impl KernelRecovery {
    /// For this host, with `cpus`, within about `memory` bytes; `has_stores` is false if loads alone are sampled.
    ///
    /// # Errors
    /// The features that the kernel does not allow or have.
    pub(in crate::session) fn new(
        procfs: &Path,
        sysfs: &Path,
        cpus: &[u32],
        memory: usize,
        has_stores: bool,
    ) -> Result<Self, NoKernel> {
        let mut reader = KernelMemory::load()?;
        // An entry has some 40 bytes with its slot in the table.
        let frames = Frames::new(&mut reader, procfs, cpus, memory / 8 / 40)?;
        let code = KernelCode::new(reader, procfs, memory / 4)?;
        let size = std::fs::read_to_string(sysfs.join("kernel/slab/task_struct/object_size"));
        let task_size = size.ok().and_then(|size| size.trim().parse().ok()).unwrap_or(TASK);
        let judge = Judge::new(frames, task_size, memory / 8, mounts(procfs));
        let recovery = Recovery::new(memory / 2);
        Ok(Self { code, recovery, windows: Windows::default(), changed: Vec::new(), has_stores, judge })
    }

    /// The kernel's map of all memory.
    pub(super) fn all_memory(&self) -> Range<u64> {
        self.judge.frames.all_memory()
    }

    /// The accesses near a sample, and what tells where they go.
    pub(super) fn recover(&mut self, snapshot: &KernelSnapshot<'_>) -> (RecoveryResult<'_>, Bookkeeping<'_>) {
        let Self { code, recovery, windows, changed, judge, .. } = self;
        windows.clear();
        let task = judge.add_task(snapshot.task);
        changed.clear();
        changed.extend_from_slice(judge.frames.per_cpu());
        if !judge.frames.is_per_cpu(task.start) {
            changed.insert(changed.partition_point(|range| range.start < task.start), task);
        }
        let mut source = Source { code, now: monotonic_ns(), windows };
        let KernelSnapshot { regs, dump, memory, .. } = snapshot;
        let result = recovery.recover_with(regs, dump, memory.without(changed), snapshot.stack(), &mut source);
        (result, Bookkeeping { code, judge })
    }

    /// The memory that an access of the hardware's is to, if that tells something of the thread's work. What it is called is noted in
    /// `names`.
    pub(super) fn memory(&mut self, access: &RawSample, names: &mut KernelNames) -> Option<MemoryId> {
        let Self { code, judge, has_stores, .. } = self;
        let user = User { thread: access.tid, cpu: access.cpu };
        let found = KernelAccess { addr: access.addr, ip: access.ip, user, is_certain: true };
        (Bookkeeping { code, judge }).place(&found, access.time, names).memory(*has_stores)
    }

    /// Its sizes.
    pub(super) fn measure(&self, tables: &mut Tables) {
        self.code.measure(tables);
        self.judge.measure(tables);
        let decoded = self.recovery.cache_counts();
        tables.set("decoded instructions of the kernel", decoded.entries, decoded.bytes);
    }
}

/// An access of kernel code.
pub(super) struct KernelAccess {
    pub(super) addr: u64,
    /// The instruction.
    pub(super) ip: u64,
    pub(super) user: User,
    /// False if it was found by memory that others may have written since.
    pub(super) is_certain: bool,
}

/// Tells accesses of one sample apart.
pub(super) struct Bookkeeping<'a> {
    code: &'a mut KernelCode,
    judge: &'a mut Judge,
}

impl Bookkeeping<'_> {
    /// The place of an access, `now` in ns. The name of the memory is noted in `names`.
    pub(super) fn place(&mut self, access: &KernelAccess, now: u64, names: &mut KernelNames) -> Place {
        let &KernelAccess { addr, ip, user, is_certain } = access;
        let kind = self.code.kind(ip);
        if addr >= KERNEL_HALF && !is_certain {
            // What is noted of an object stays. Pointers lead such functions far, to objects that are somebody's.
            match kind {
                FunctionKind::Work => {}
                FunctionKind::Making => return Place::Nobodys(Nobodys::New),
                FunctionKind::Common => return Place::Nobodys(Nobodys::Common),
                FunctionKind::Bookkeeping => return Place::Nobodys(Nobodys::Allocators),
            }
        }
        let (phys, flags) = match self.judge.frame(addr, kind == FunctionKind::Bookkeeping, now) {
            Ok(found) => found,
            Err(place) => return place,
        };
        if flags.is_cached_file() {
            return match self.file(phys, now) {
                // Which file is not known here.
                None if self.judge.frames.page(phys).is_none() => Place::Kernel(phys, Some(MemoryId::kernel(phys))),
                // Private memory of a process that the kernel accesses by its own address, or blocks of a file system.
                None => Place::Nobodys(Nobodys::Common),
                Some(memory) => {
                    if !names.knows_file(memory) {
                        self.name_file(phys, memory, names);
                    }
                    Place::Kernel(phys, Some(memory))
                }
            };
        }
        let object = if flags.is_slab() { self.object(phys, now, names) } else { None };
        let object = object.unwrap_or(Object::unknown(phys, flags));
        self.judge.object(phys, object, user, kind)
    }

    /// Notes the path of the file in memory that a physical address is of.
    fn name_file(&mut self, phys: u64, memory: MemoryId, names: &mut KernelNames) {
        let MemoryId::Shared { scope: MemoryScope::Device { dev, .. }, .. } = memory else { return };
        // One that cannot be had is not asked for again.
        let path = self.judge.frames.page(phys).and_then(|page| self.code.memory().path(page)).unwrap_or_default();
        let point = if path.starts_with(b"/") {
            self.judge.mounts.get(&u64::from(dev)).map_or(&[][..], |point| &point[..])
        } else {
            &[]
        };
        names.add_file(memory, &[point, &path].concat());
    }

    /// The object that is at a physical address.
    fn object(&mut self, phys: u64, now: u64, names: &mut KernelNames) -> Option<Object> {
        let page = self.judge.frames.page(phys)?;
        let known = self.judge.slabs.get(&page).filter(|(since, _)| now.saturating_sub(*since) < FILE_LIFE);
        let slab = if let Some((_, slab)) = known {
            *slab
        } else {
            let slab = self.code.memory().slab(page).map(|found| Slab {
                cache: names.number(&found.cache),
                kind: Kind::of(&found.cache),
                index: found.index,
                size: found.size,
            });
            self.judge.slabs.insert(page, (now, slab));
            slab
        };
        let object = slab?.object(phys)?;
        let owner = match object.kind {
            // "No owner" counts as another owner too.
            Kind::Owned(kind) => {
                let at = self.judge.frames.address(object.start);
                self.code.memory().owner(at, kind).or(Some(NOBODY))
            }
            _ => None,
        };
        Some(Object { owner, ..object })
    }

    /// The place in a file of what is at a physical address, if it is of a file.
    fn file(&mut self, phys: u64, now: u64) -> Option<MemoryId> {
        let page = self.judge.frames.page(phys)?;
        let known = self.judge.files.get(&page).filter(|(since, _)| now.saturating_sub(*since) < FILE_LIFE);
        let file = if let Some((_, file)) = known {
            *file
        } else {
            let file = self.code.memory().file(page);
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
