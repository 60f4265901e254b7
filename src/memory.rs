//! Hints about memory that is read at random places, and is in no cache: to the processor, what will be read soon, and to the
//! kernel, what to map with huge pages. A hint changes no result, and may be ignored.

use aligned_vec::{AVec, RuntimeAlign, CACHELINE_ALIGN};

use crate::sample::LINE_SIZE;

/// The size of a huge page on x86-64, and on arm64 with pages of 4 KiB; the kernel ignores it where theirs are larger.
const HUGE: usize = 2 << 20;

/// Prefetches all cache lines of a value.
#[inline]
pub(crate) fn prefetch<T>(value: &T) {
    const LINE: usize = LINE_SIZE as usize;
    let first = std::ptr::from_ref(value).cast::<u8>();
    let last = size_of::<T>().saturating_sub(1);
    for byte in (0..size_of::<T>()).step_by(LINE) {
        prefetch_at(first.wrapping_add(byte));
    }
    // A value that is not aligned to its size may end in one more.
    if !last.is_multiple_of(LINE) && align_of::<T>() < size_of::<T>().min(LINE) {
        prefetch_at(first.wrapping_add(last));
    }
}

#[inline]
fn prefetch_at(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        // SAFETY: the instruction is part of every x86-64 (SSE); it reads nothing that a program could see, and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Memory of a fixed size.
pub(crate) type Table<T> = AVec<T, RuntimeAlign>;

/// How the memory of a table is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pages {
    /// As the kernel does it by itself.
    Usual,
    /// With huge pages where it is large, if the host allows them on request (`/sys/kernel/mm/transparent_hugepage/enabled`).
    /// Otherwise most reads of a large table also miss the TLB, and each 4 KiB are a fault. The kernel may compact memory for
    /// them, so that they are not for captures.
    Huge,
}

/// A table of `count` default values.
pub(crate) fn table<T: Clone + Default>(count: usize, pages: Pages) -> Table<T> {
    // The rest, less than a huge page, would take one too.
    let whole = if pages == Pages::Huge { count.saturating_mul(size_of::<T>()) / HUGE * HUGE } else { 0 };
    let mut table = AVec::with_capacity(if whole > 0 { HUGE } else { CACHELINE_ALIGN }, count);
    if whole > 0 {
        let at: *mut T = table.as_mut_ptr();
        // SAFETY: the range is memory of the table, which nothing else uses, and the advice leaves its content as it is.
        let advised = unsafe { rustix::mm::madvise(at.cast(), whole, rustix::mm::Advice::LinuxHugepage) };
        // Without them, it is only slower.
        let _ = advised;
    }
    table.resize(count, T::default());
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_any_size_has_default_values() {
        for count in [0, 1, 1000, HUGE / 8, HUGE, 3 * HUGE / 8 + 1] {
            for pages in [Pages::Usual, Pages::Huge] {
                let table: Table<u64> = table(count, pages);
                assert!(table.len() == count && table.iter().all(|it| *it == 0));
            }
        }
    }

    /// Whether the kernel was asked for huge pages in the mapping of the middle of a table.
    fn is_advised(table: &Table<u64>) -> bool {
        let middle = std::ptr::from_ref(&table[table.len() / 2]) as usize;
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let range = |line: &str| {
            let (from, to) = line.split_whitespace().next()?.split_once('-')?;
            Some(usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?)
        };
        let mapping = maps.lines().skip_while(|line| !range(line).is_some_and(|it| it.contains(&middle)));
        let flags = mapping.skip(1).find(|line| line.starts_with("VmFlags:")).unwrap();
        flags.split_whitespace().any(|flag| flag == "hg")
    }

    #[test]
    fn huge_pages_are_requested_for_large_tables() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            println!("SKIP huge pages: this kernel has none");
            return;
        }
        // Not of others: their memory may have been that of such a table before.
        assert!(is_advised(&table(HUGE, Pages::Huge)));
    }
}
