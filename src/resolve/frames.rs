//! The frames of memory behind kernel addresses, and what the kernel uses them for.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::bpf::KernelMemory;
use crate::sample::PAGE_SIZE;
use scxprof_base::cache::Cache;
use scxprof_base::tables::Tables;

/// The lowest address where the map of all memory begins, with page tables of 4 and of 5 levels
/// (Documentation/arch/x86/x86_64/mm.rst). Where addresses are random it begins somewhere above, at a multiple of [`STEP`]
/// (kernel_randomize_memory() in arch/x86/mm/kaslr.c).
const LOWEST: [u64; 2] = [0xffff_8880_0000_0000, 0xff11_0000_0000_0000];
/// The lowest kernel address with page tables of 4 levels.
const FOUR_LEVELS: u64 = 0xffff_8000_0000_0000;
const STEP: u64 = 1 << 30;
/// Places that are tried: as many as for 16 TiB of memory.
const MOST: u64 = 1 << 14;

/// Bits of an entry of a page table (arch/x86/include/asm/pgtable_types.h).
const PRESENT: u64 = 1;
const HUGE: u64 = 1 << 7;
const FRAME: u64 = 0x000f_ffff_ffff_f000;

/// The most bytes of per-CPU memory that one CPU has at boot (PMD_SIZE in setup_per_cpu_areas(), arch/x86/kernel/setup_percpu.c).
const MOST_PER_CPU: u64 = 2 << 20;

/// Bytes of a `struct page`, 7 words and their alignment (include/linux/mm_types.h).
const STRUCT_PAGE: u64 = 64;

/// How long what is known of a frame is valid, ns.
const FRAME_LIFE: u64 = 1_000_000_000;

/// The use of a frame: an entry of `/proc/kpageflags` (include/uapi/linux/kernel-page-flags.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FrameFlags(pub u64);

impl FrameFlags {
    fn has(self, bit: u32) -> bool {
        self.0 >> bit & 1 == 1
    }

    /// True for memory that was taken at boot and is never given back: of zones, of CPUs, of the kernel itself.
    #[must_use]
    pub fn is_reserved(self) -> bool {
        self.has(32) || self.has(20)
    }

    /// True for pages of files in memory; also for those of processes.
    #[must_use]
    pub fn is_cached_file(self) -> bool {
        // LRU; of shared memory, which can be swapped out, SWAPBACKED; unevictable ones.
        self.has(5) || self.has(14) || self.has(18)
    }

    /// True for memory in which the kernel makes small objects.
    #[must_use]
    pub fn is_slab(self) -> bool {
        self.has(7)
    }
}

/// Why frames cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum FramesError {
    /// The list of their uses cannot be opened.
    #[error("cannot open {}: {source} (it takes root, or CAP_DAC_READ_SEARCH)", path.display())]
    Flags {
        /// `/proc/kpageflags`.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The page tables are not as expected.
    #[error("where the kernel maps all memory is not found in its page tables")]
    NoMap,
}

/// Finds frames.
#[derive(Debug)]
pub struct Frames {
    /// Where the map of all memory begins.
    base: u64,
    /// Where it ends.
    end: u64,
    /// Where the array of `struct page` begins; `None` if that is not known.
    pages: Option<u64>,
    /// Per-CPU memory that was there at boot.
    per_cpu: Vec<Range<u64>>,
    file: File,
    flags: Cache<u64, (u64, Option<FrameFlags>)>,
}

impl Frames {
    /// By the kernel's page tables and `kpageflags` under `procfs`; at most `frames` are cached.
    ///
    /// # Errors
    /// [`FramesError`].
    pub(crate) fn new(
        memory: &mut KernelMemory,
        procfs: &Path,
        cpus: &[u32],
        frames: usize,
    ) -> Result<Self, FramesError> {
        let path = procfs.join("kpageflags");
        let file = File::open(&path).map_err(|source| FramesError::Flags { path, source })?;
        let table = memory.page_table().ok_or(FramesError::NoMap)?;
        let base = find_base(table, &mut |address| memory.piece(address)).ok_or(FramesError::NoMap)?;
        let pages = memory.stack().and_then(|(stack, page)| {
            let phys = walk(stack, table, base, &mut |address| memory.piece(address))?;
            page.checked_sub(phys / PAGE_SIZE * STRUCT_PAGE)
        });
        let per_cpu = units(cpus.iter().filter_map(|&cpu| memory.run_queue(cpu)).collect());
        let end = base.saturating_add(number_of_frames(&file).saturating_mul(PAGE_SIZE));
        Ok(Self { base, end, pages, per_cpu, file, flags: Cache::new(frames) })
    }

    /// The kernel's map of all memory.
    pub(crate) fn all_memory(&self) -> Range<u64> {
        self.base..self.end
    }

    /// Where per-CPU memory is, and at most as much beside it: sorted, without overlap.
    pub(crate) fn per_cpu(&self) -> &[Range<u64>] {
        &self.per_cpu
    }

    /// True for per-CPU memory, and for at most as much beside it.
    #[must_use]
    pub fn is_per_cpu(&self, addr: u64) -> bool {
        let next = self.per_cpu.partition_point(|unit| unit.start <= addr);
        next.checked_sub(1).and_then(|at| self.per_cpu.get(at)).is_some_and(|unit| unit.contains(&addr))
    }

    /// The physical address of `addr`, and what its frame is used for, `now` in ns; `None` if it is not in the map of all memory.
    pub fn find(&mut self, addr: u64, now: u64) -> Option<(u64, FrameFlags)> {
        let phys = addr.checked_sub(self.base)?;
        Some((phys, self.flags(phys, now)?))
    }

    /// The use of the frame at a physical address; `None` if there is no such frame.
    pub fn flags(&mut self, phys: u64, now: u64) -> Option<FrameFlags> {
        let number = phys / PAGE_SIZE;
        let known = self.flags.get(&number).filter(|(since, _)| now.saturating_sub(*since) < FRAME_LIFE);
        if let Some((_, flags)) = known {
            return *flags;
        }
        let mut entry = [0; 8];
        let read = self.file.read_exact_at(&mut entry, number.checked_mul(8)?);
        let flags = read.is_ok().then(|| FrameFlags(u64::from_ne_bytes(entry)));
        self.flags.insert(number, (now, flags));
        flags
    }

    /// Where the map of all memory has a physical address.
    pub(crate) fn address(&self, phys: u64) -> u64 {
        self.base.saturating_add(phys)
    }

    /// The address of the `struct page` of a physical address; `None` if that is not known.
    pub(crate) fn page(&self, phys: u64) -> Option<u64> {
        self.pages?.checked_add(phys / PAGE_SIZE * STRUCT_PAGE)
    }

    /// Its size.
    pub(crate) fn measure(&self, tables: &mut Tables) {
        tables.set("uses of frames", self.flags.len(), self.flags.bytes());
    }
}

/// What each CPU's memory can be, by the places of a variable in them: they are equally long, and a variable is somewhere in its own.
fn units(mut places: Vec<u64>) -> Vec<Range<u64>> {
    places.sort_unstable();
    places.dedup();
    let length = places.windows(2).filter_map(|pair| pair.last()?.checked_sub(*pair.first()?)).min();
    let length = length.unwrap_or(MOST_PER_CPU).min(MOST_PER_CPU);
    let mut units: Vec<Range<u64>> = Vec::new();
    for place in places {
        let unit = place.saturating_sub(length)..place.saturating_add(length);
        match units.last_mut() {
            Some(last) if last.end >= unit.start => last.end = unit.end,
            _ => units.push(unit),
        }
    }
    units
}

/// How many frames have an entry in `kpageflags`, which ends after the last one (fs/proc/page.c).
fn number_of_frames(file: &File) -> u64 {
    let has = |number: u64| file.read_exact_at(&mut [0; 8], number.saturating_mul(8)).is_ok();
    let (mut first, mut end) = (0, MOST * STEP / PAGE_SIZE);
    while first < end {
        let middle = first + (end - first) / 2;
        if has(middle) {
            first = middle + 1;
        } else {
            end = middle;
        }
    }
    first
}

/// Where the map of all memory begins, by the address of a top page table in it: only with the right one do the page tables map that
/// address to the frame that it stands for. `read` gives the page at an address.
fn find_base(table: u64, read: &mut impl FnMut(u64) -> Option<Vec<u8>>) -> Option<u64> {
    let lowest = LOWEST[usize::from(table < FOUR_LEVELS)];
    let first = table & !(STEP - 1);
    (0..MOST)
        .map_while(|at| first.checked_sub(at * STEP).filter(|&base| base >= lowest))
        .find(|&base| walk(table, table, base, read) == Some(table - base))
}

/// The physical address of `address` by the top page table at `table`, if the map of all memory begins at `base`.
fn walk(address: u64, table: u64, base: u64, read: &mut impl FnMut(u64) -> Option<Vec<u8>>) -> Option<u64> {
    let mut page = table;
    let mut shift = if table < FOUR_LEVELS { 48 } else { 39 };
    loop {
        let index = usize::try_from(address >> shift & 511).ok()?;
        let entry = u64::from_ne_bytes(*read(page)?.get(8 * index..)?.first_chunk()?) & !encryption();
        if entry & PRESENT == 0 {
            return None;
        }
        let frame = entry & FRAME;
        if shift == 12 || entry & HUGE != 0 {
            let within = (1 << shift) - 1;
            return Some(frame & !within | address & within);
        }
        page = base.checked_add(frame)?;
        shift -= 9;
    }
}

/// The bit of page table entries by which AMD's processors encrypt memory (CPUID 0x8000001f, EBX bits 5:0); 0 for none.
#[cfg(target_arch = "x86_64")]
fn encryption() -> u64 {
    use std::arch::x86_64::__cpuid;
    if __cpuid(0x8000_0000).eax < 0x8000_001f {
        return 0;
    }
    let leaf = __cpuid(0x8000_001f);
    // Bit 0 says that it can encrypt memory, bit 1 the same for guests.
    let can_encrypt = leaf.eax & 0b11 > 0;
    if can_encrypt {
        1 << (leaf.ebx & 63)
    } else {
        0
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn encryption() -> u64 {
    0
}

/// Frames with these flags, for tests; the run queues are at `per_cpu`.
#[cfg(test)]
pub(crate) fn made(base: u64, per_cpu: Vec<u64>, flags: &[u64]) -> Frames {
    use std::io::Write;
    let mut file = tempfile::tempfile().unwrap();
    for flags in flags {
        file.write_all(&flags.to_ne_bytes()).unwrap();
    }
    let end = base + number_of_frames(&file) * PAGE_SIZE;
    Frames { base, end, pages: None, per_cpu: units(per_cpu), file, flags: Cache::new(16) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// Page tables at physical addresses, of a machine that maps its memory at `base`.
    struct Machine {
        base: u64,
        pages: HashMap<u64, Vec<u8>>,
    }

    impl Machine {
        /// Whose top page table is at `top`; the lowest level that it has is `last`, as the shift of its index.
        fn new(base: u64, top: u64, last: u32) -> Self {
            let mut machine = Self { base, pages: HashMap::new() };
            let (mut table, address) = (top, base + top);
            let mut shift = if address < FOUR_LEVELS { 48 } else { 39 };
            while shift > last {
                let next = table + PAGE_SIZE;
                machine.set(table, address >> shift & 511, next | PRESENT);
                (table, shift) = (next, shift - 9);
            }
            let huge = if shift == 12 { 0 } else { HUGE };
            machine.set(table, address >> shift & 511, top >> shift << shift | huge | PRESENT);
            machine
        }

        fn set(&mut self, table: u64, index: u64, entry: u64) {
            let page = self.pages.entry(table).or_insert_with(|| vec![0; PAGE_SIZE as usize]);
            page[index as usize * 8..][..8].copy_from_slice(&entry.to_ne_bytes());
        }

        fn read(&self, address: u64) -> Option<Vec<u8>> {
            self.pages.get(&address.checked_sub(self.base)?).cloned()
        }
    }

    proptest! {
        #[test]
        fn the_map_of_all_memory_is_found(four in any::<bool>(), at in 0u64..1000, top in 0u64..(64 << 18), last in 0usize..3) {
            let base = LOWEST[usize::from(!four)] + at * STEP;
            let top = top * PAGE_SIZE;
            let machine = Machine::new(base, top, [12, 21, 30][last]);
            let found = find_base(base + top, &mut |address| machine.read(address));
            prop_assert_eq!(found, Some(base));
        }

        #[test]
        fn what_maps_nothing_has_none(top in any::<u64>(), fill in any::<u8>()) {
            prop_assert_eq!(find_base(top, &mut |_| None), None);
            let found = find_base(top, &mut |_| Some(vec![fill; PAGE_SIZE as usize]));
            // Tables in which all entries are the same map that frame only.
            prop_assert!(found.is_none_or(|base| base <= top));
        }
    }

    #[test]
    fn a_frame_has_its_uses_for_a_while() {
        let mut all = made(LOWEST[0], Vec::new(), &[1 << 7, 1 << 32, 0]);
        let slab = all.find(LOWEST[0] + 0x10, 0).unwrap();
        assert_eq!(slab, (0x10, FrameFlags(1 << 7)));
        assert!(slab.1.is_slab() && !slab.1.is_reserved() && !slab.1.is_cached_file());
        assert!(FrameFlags(1 << 5).is_cached_file() && FrameFlags(1 << 14).is_cached_file());
        assert!(all.find(LOWEST[0] + 0x1010, 0).unwrap().1.is_reserved());
        assert_eq!(all.find(LOWEST[0] + 0x2010, 0), Some((0x2010, FrameFlags(0))));
        assert_eq!(all.find(LOWEST[0] + 0x3000, 0), None, "there is no such frame");
        assert_eq!(all.all_memory(), LOWEST[0]..LOWEST[0] + 0x3000);
        assert_eq!(all.find(LOWEST[0] - 1, 0), None);
        assert_eq!(all.find(u64::MAX, 0), None);
        all.file.set_len(0).unwrap();
        assert!(all.find(LOWEST[0], FRAME_LIFE - 1).is_some());
        assert!(all.find(LOWEST[0], FRAME_LIFE).is_none());
    }

    #[test]
    fn per_cpu_memory_is_around_the_run_queues() {
        let of = |places: Vec<u64>| made(0, places, &[]);
        let two = of(vec![0x50_0000, 0x40_0000]);
        assert!([0x30_0000, 0x40_0000, 0x4f_ffff, 0x5f_ffff].iter().all(|&addr| two.is_per_cpu(addr)));
        assert!([0x2f_ffff, 0x60_0000, u64::MAX].iter().all(|&addr| !two.is_per_cpu(addr)));
        // Two nodes.
        let far = of(vec![0x4000_0000, 0x4010_0000, 0x1_4000_0000, 0x1_4010_0000]);
        assert!(!far.is_per_cpu(0x8000_0000) && far.is_per_cpu(0x1_4000_0000));
        assert!(of(vec![0x4000_0000]).is_per_cpu(0x4000_0000) && !of(Vec::new()).is_per_cpu(0x4000_0000));
    }
}
