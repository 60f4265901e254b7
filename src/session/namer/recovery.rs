//! The timer source's second half: from a sample's context and the process's code to its accesses.

use std::path::Path;

use rustc_hash::FxHashMap;

use super::judge::{Nobodys, Place, User};
use super::kernel::{KernelAccess, KernelRecovery};
use super::unresolved::Unresolved;
use crate::bpf::WantedMap;
use crate::host::clock::monotonic_ns;
use crate::host::pagemap::{Page, Pagemap};
use crate::outcome::RecoveryStats;
use crate::resolve::code::constant::Constants;
use crate::resolve::code::{At, CodeCache, CodeCounts, Limits, Mapping, Origin, Windows};
use crate::resolve::Maps;
use crate::sample::batch::UserContext;
use crate::sample::{MemoryId, Method, RawSample, Sample, ThreadIndex};
use scxprof_base::tables::Tables;
use scxprof_recover::{
    Candidate, CodeSource, CodeWindow, KernelSnapshot, Learned, Recovery, Regs, RegsError, Snapshot, StackRange,
    Unrecovered, Wanted,
};

/// How long a page's frame is valid, ns.
const FRAME_LIFE: u64 = 1_000_000_000;
/// Threads with a known stack.
const MAX_STACKS: usize = 1 << 16;
/// Code places with known needs, as many as the kernel has room for (operand.bpf.c).
const MAX_PLACES: usize = 1 << 14;
/// Kernel code is at the same addresses in all processes.
const KERNEL_PLACE: u32 = 0;
/// Writable memory, `PROT_WRITE` (asm-generic/mman-common.h).
const PROT_WRITE: u32 = 2;
/// Bytes before the vdso that may be the kernel's data for it; it has 4 to 6 pages.
const MAX_VVAR: u64 = 64 << 10;

/// Recovers accesses; caches code, frames and stacks within bounds.
#[derive(Debug)]
pub(in crate::session) struct Recoverer {
    recovery: Recovery,
    code: CodeCache,
    constants: Constants,
    pagemap: Pagemap,
    stacks: FxHashMap<ThreadIndex, StackRange>,
    /// The accesses of one sample with their pages; reused to save allocations.
    looked_up: Vec<(Candidate, Option<Page>)>,
    /// The accesses of one sample of kernel code: with the physical address, and the memory if it is the kernel's, else the page.
    found: Vec<(Candidate, u64, Option<MemoryId>, Option<Page>)>,
    /// The pieces of code of one sample; reused likewise.
    windows: Windows,
    wanted: Option<WantedMap>,
    /// For samples of kernel code.
    kernel: Option<KernelRecovery>,
    /// The memory that samples at a code address of a process need.
    places: FxHashMap<(u32, u64), Learned>,
    unresolved: Unresolved,
    counts: RecoveryStats,
}

impl Recoverer {
    /// For the processes under `procfs`, within about `memory` bytes. Stores in `wanted` which memory samples need.
    pub(in crate::session) fn new(
        procfs: &Path,
        memory: usize,
        wanted: Option<WantedMap>,
        kernel: Option<KernelRecovery>,
    ) -> Self {
        if let (Some(map), Some(kernel)) = (&wanted, &kernel) {
            map.allow(&kernel.all_memory());
        }
        Self {
            recovery: Recovery::new(memory / 2),
            code: CodeCache::new(procfs, Limits { bytes: memory / 4, ..Limits::default() }),
            constants: Constants::new(procfs, memory / 16),
            // An entry has some 48 bytes with its slot in the table.
            pagemap: Pagemap::new(procfs, memory / 16 * 3 / 96, 256, FRAME_LIFE),
            stacks: FxHashMap::default(),
            looked_up: Vec::new(),
            found: Vec::new(),
            windows: Windows::default(),
            wanted,
            kernel,
            places: FxHashMap::default(),
            unresolved: Unresolved::default(),
            counts: RecoveryStats::default(),
        }
    }

    /// An address space has ended.
    pub(super) fn forget(&mut self, space: u32) {
        self.pagemap.forget(space);
    }

    /// Their sizes.
    pub(super) fn measure(&self, tables: &mut Tables) {
        let decoded = self.recovery.cache_counts();
        tables.set("decoded instructions", decoded.entries, decoded.bytes);
        self.code.measure(tables);
        self.constants.measure(tables);
        self.pagemap.measure(tables);
        let Self { stacks, places, .. } = self;
        tables.set_map::<(ThreadIndex, StackRange)>("stacks", stacks.len(), stacks.capacity(), 0);
        tables.set_map::<((u32, u64), Learned)>("code places with wanted memory", places.len(), places.capacity(), 0);
        self.unresolved.measure(tables);
        if let Some(kernel) = &self.kernel {
            kernel.measure(tables);
        }
    }

    /// Counts so far.
    pub(super) fn counts(&self) -> RecoveryStats {
        let CodeCounts { failed, unsettled, .. } = self.code.counts();
        let mut stats = RecoveryStats {
            frames_visible: self.pagemap.frames_visible(),
            decoded_evictions: self.recovery.cache_counts().evictions,
            code_failed: failed,
            code_unsettled: unsettled,
            ..self.counts.clone()
        };
        self.unresolved.add_to(&mut stats);
        stats
    }

    /// Passes each access near `sample`, which already has the thread's names, to `access`, and whether its page is anonymous
    /// although the mappings show shared memory.
    pub(super) fn recover(
        &mut self,
        sample: &Sample,
        context: &UserContext,
        maps: &mut Maps,
        mut access: impl FnMut(Sample, Option<bool>, &mut Maps),
    ) {
        if let Some(snapshot) = KernelSnapshot::new(&context.memory) {
            return self.recover_kernel(sample, &snapshot, maps, access);
        }
        self.counts.user_samples += 1;
        let regs = match Regs::of_host(context.abi, &context.regs) {
            Ok(regs) => regs,
            Err(RegsError::Compat32) => return self.nothing(Unrecovered::Compat32),
            Err(RegsError::Missing) => return self.nothing(Unrecovered::NoRegisters),
        };
        if self.stacks.len() >= MAX_STACKS {
            self.stacks.clear();
        }
        let stack = self.stacks.entry(sample.thread).or_default().update(regs.sp());
        let space = maps.generation(sample.raw.pid);
        self.windows.clear();
        let mut code = ProcessCode {
            code: &mut self.code,
            constants: &mut self.constants,
            pagemap: &mut self.pagemap,
            maps,
            pid: sample.raw.pid,
            space,
            time: sample.raw.time,
            now: monotonic_ns(),
            windows: &mut self.windows,
        };
        let memory = Snapshot::new(&context.memory);
        let outcome = self.recovery.recover_with(&regs, &context.stack, memory, stack, &mut code);
        if let (Some(map), Some(later)) = (&self.wanted, &outcome.wanted) {
            learn(&mut self.places, map, (sample.raw.pid, regs.ip), later);
        }
        self.unresolved.count(outcome.operands, sample.raw.pid, space, maps);
        if let Some(reason) = outcome.reason {
            return self.nothing(reason);
        }
        self.looked_up.clear();
        for &candidate in outcome.candidates {
            // The mappings' claim of shared memory holds only if the page is shared now.
            let anew = maps.is_shared(sample.raw.pid, candidate.addr);
            let mut page = self.pagemap.page(sample.raw.pid, space, candidate.addr, sample.raw.time, anew).ok();
            // Nor is it one of a file that was there before.
            let is_of_file = page.is_some_and(|page| page.present() && page.file_or_shared());
            if !anew && is_of_file && maps.is_unmapped(sample.raw.pid, candidate.addr) {
                page = self.pagemap.page(sample.raw.pid, space, candidate.addr, sample.raw.time, true).ok();
            }
            if page.is_none_or(|page| page.present() || page.swapped()) {
                self.counts.unknown_pages += u64::from(page.is_none());
            } else if is_vdso_data(maps, sample.raw.pid, &candidate) {
                continue;
            } else {
                self.counts.absent_pages += 1;
            }
            self.looked_up.push((candidate, page));
        }
        if self.looked_up.is_empty() {
            *self.counts.unrecovered.entry("the kernel's clock").or_default() += 1;
            return;
        }
        self.counts.recovered += 1;
        let share = 1.0 / self.looked_up.len() as f32;
        for (candidate, page) in &self.looked_up {
            *self.counts.by_method.entry(candidate.method.name()).or_default() += 1;
            let phys = page.and_then(|page| page.phys(candidate.addr)).unwrap_or(0);
            let of_file = page.filter(|page| page.present()).map(Page::file_or_shared);
            let (memory, other_kind) = maps.place_of_page(sample.raw.pid, candidate.addr, phys, of_file);
            self.counts.unmapped_pages += u64::from(other_kind == Some(true));
            access(accessed(sample, candidate, phys, share, memory), other_kind, maps);
        }
    }

    /// The same for a sample of kernel code.
    fn recover_kernel(
        &mut self,
        sample: &Sample,
        snapshot: &KernelSnapshot<'_>,
        maps: &mut Maps,
        mut access: impl FnMut(Sample, Option<bool>, &mut Maps),
    ) {
        let Some(kernel) = &mut self.kernel else { return };
        self.counts.kernel_samples += 1;
        let (pid, time) = (sample.raw.pid, sample.raw.time);
        let space = maps.generation(pid);
        let (outcome, mut bookkeeping) = kernel.recover(snapshot);
        if let (Some(map), Some(later)) = (&self.wanted, &outcome.wanted) {
            learn(&mut self.places, map, (KERNEL_PLACE, snapshot.regs.ip), later);
        }
        if let Some(reason) = outcome.reason {
            *self.counts.kernel_unrecovered.entry(reason.name()).or_default() += 1;
            return;
        }
        self.found.clear();
        let mut nobodys = None;
        for &candidate in outcome.candidates {
            let Candidate { addr, insn_ip: ip, .. } = candidate;
            let user = User { thread: sample.raw.tid, cpu: sample.raw.cpu };
            let found = KernelAccess { addr, ip, user, is_certain: candidate.method != Method::Racy };
            self.found.push(match bookkeeping.place(&found, time, &mut maps.kernel_names) {
                Place::Nobodys(why) => {
                    nobodys = Some(why);
                    continue;
                }
                Place::Kernel(phys, file) => (candidate, phys, Some(file.unwrap_or(MemoryId::kernel(phys))), None),
                Place::User => {
                    let page = self.pagemap.page(pid, space, candidate.addr, time, false).ok();
                    (candidate, page.and_then(|page| page.phys(candidate.addr)).unwrap_or(0), None, page)
                }
            });
        }
        if self.found.is_empty() {
            let reason = nobodys.map_or(Unrecovered::NoOperand.name(), Nobodys::name);
            *self.counts.kernel_unrecovered.entry(reason).or_default() += 1;
            return;
        }
        self.counts.kernel_recovered += 1;
        let share = 1.0 / self.found.len() as f32;
        for &(candidate, phys, kernels, page) in &self.found {
            let of_file = page.filter(|page| page.present()).map(Page::file_or_shared);
            let (memory, other_kind) = match kernels {
                Some(memory) => (Some(memory), None),
                None => maps.place_of_page(pid, candidate.addr, phys, of_file),
            };
            access(accessed(sample, &candidate, phys, share, memory), other_kind, maps);
        }
    }

    fn nothing(&mut self, reason: Unrecovered) {
        *self.counts.unrecovered.entry(reason.name()).or_default() += 1;
    }
}

/// Notes what memory a sample at a place needed, for the next ones there.
fn learn(places: &mut FxHashMap<(u32, u64), Learned>, map: &WantedMap, place: (u32, u64), later: &Wanted) {
    if places.len() >= MAX_PLACES {
        places.clear();
    }
    let is_new = !places.contains_key(&place);
    let learned = places.entry(place).or_default();
    if learned.add(later) || is_new {
        map.set(place.0, place.1, learned.wanted());
    }
}

/// The access of a sample that `candidate` is, one of `1 / share`.
fn accessed(sample: &Sample, candidate: &Candidate, phys: u64, share: f32, memory: Option<MemoryId>) -> Sample {
    let &Candidate { insn_ip: ip, addr, access, size, method, .. } = candidate;
    let raw = RawSample { ip, addr, phys, access, size, method: Some(method), share, ..sample.raw };
    Sample { raw, memory, ..*sample }
}

/// True for the kernel's clock data that the vdso reads: `[vvar]`, the pages just before it (arch/x86/entry/vdso/vma.c). Every
/// process has the same ones, and pagemap shows them as absent because they map bare frames.
fn is_vdso_data(maps: &mut Maps, pid: u32, candidate: &Candidate) -> bool {
    maps.find(pid, candidate.insn_ip).is_some_and(|code| {
        &*code.path == b"[vdso]" && candidate.addr < code.start && code.start.saturating_sub(candidate.addr) <= MAX_VVAR
    })
}

/// The code of one process, by its current mappings.
struct ProcessCode<'a> {
    code: &'a mut CodeCache,
    constants: &'a mut Constants,
    pagemap: &'a mut Pagemap,
    maps: &'a mut Maps,
    pid: u32,
    space: u32,
    /// The sample's.
    time: u64,
    now: u64,
    windows: &'a mut Windows,
}

impl CodeSource for ProcessCode<'_> {
    fn window(&mut self, ip: u64) -> Option<CodeWindow<'_>> {
        let Self { code, pagemap, maps, windows, pid, space, time, now, .. } = self;
        let (pid, space, time, now) = (*pid, *space, *time, *now);
        windows.around(ip, || {
            let mapping = maps.find(pid, ip)?;
            let mapping = Mapping {
                start: mapping.start,
                end: mapping.end(),
                offset: mapping.pgoff,
                dev: mapping.dev,
                ino: mapping.ino,
                writable: mapping.prot & PROT_WRITE != 0,
                shared: mapping.is_shared(),
                build_id: mapping.build_id.as_ref().map(scxprof_perf::buildid::BuildId::as_bytes),
                path: &mapping.path,
            };
            let at = At { pid, space, ip, time };
            let window = code.window(at, &mapping, now).ok()?;
            let end = window.start.saturating_add(window.bytes.len() as u64);
            if window.origin == Origin::File && pagemap.has_private(pid, space, window.start..end, time) == Some(true) {
                // The process has changed its code since it was mapped: it does not run the code in the file.
                return code.window(at, &Mapping { writable: true, ..mapping }, now).ok();
            }
            Some(window)
        })
    }

    fn constant(&mut self, addr: u64, size: u32) -> Option<u64> {
        self.constants.value(self.pid, self.space, addr, size, self.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Roots;
    use crate::sample::{Access, Method};

    #[test]
    fn what_the_vdso_reads_beside_itself_is_the_kernels() {
        let dir = tempfile::tempdir().unwrap();
        let process = dir.path().join("42");
        std::fs::create_dir(&process).unwrap();
        let lines = "00400000-00402000 r-xp 00000000 08:01 5 /bin/x\n\
                     7f0000001000-7f0000005000 r--p 00000000 00:00 0 [vvar]\n\
                     7f0000007000-7f0000009000 r-xp 00000000 00:00 0 [vdso]\n";
        std::fs::write(process.join("maps"), lines).unwrap();
        let mut maps = Maps::new(&Roots { proc: dir.path().to_owned(), ..Roots::default() }, 1 << 20);
        let mut is_data = |insn_ip, addr| {
            let (access, method) = (Access::Load, Method::Before);
            is_vdso_data(&mut maps, 42, &Candidate { addr, size: 4, access, method, insn_ip, global: false })
        };
        assert!(is_data(0x7f00_0000_7b36, 0x7f00_0000_1004));
        assert!(!is_data(0x7f00_0000_7b36, 0x7eff_ff00_0000), "what the caller gave it to fill");
        assert!(!is_data(0x7f00_0000_7b36, 0x7f00_0000_a000));
        assert!(!is_data(0x0040_1000, 0x7f00_0000_1004), "other code");
    }
}
