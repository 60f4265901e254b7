//! Maps virtual pages to physical ones, from `/proc/PID/pagemap`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::sample::PAGE_SIZE;
use scxprof_base::cache::Cache;
use scxprof_base::tables::Tables;

/// One entry of `/proc/PID/pagemap` (Documentation/admin-guide/mm/pagemap.rst).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Page(pub u64);

impl Page {
    /// True if the page is in memory (bit 63).
    #[must_use]
    pub fn present(self) -> bool {
        self.0 >> 63 & 1 == 1
    }

    /// True if the page is swapped out (bit 62).
    #[must_use]
    pub fn swapped(self) -> bool {
        self.0 >> 62 & 1 == 1
    }

    /// True for a page of a file or of shared anonymous memory (bit 61). A private file page keeps this bit until it is written
    /// to.
    #[must_use]
    pub fn file_or_shared(self) -> bool {
        self.0 >> 61 & 1 == 1
    }

    /// True if no other page table maps the page (bit 56).
    #[must_use]
    pub fn exclusive(self) -> bool {
        self.0 >> 56 & 1 == 1
    }

    /// The frame's number (bits 0-54); `None` if the page is absent or the kernel hides frames from us.
    #[must_use]
    pub fn frame(self) -> Option<u64> {
        let frame = self.0 & ((1 << 55) - 1);
        (self.present() && frame != 0).then_some(frame)
    }

    /// The physical address of `addr`, a byte of this page.
    #[must_use]
    pub fn phys(self, addr: u64) -> Option<u64> {
        self.frame()?.checked_mul(PAGE_SIZE).map(|phys| phys | (addr & (PAGE_SIZE - 1)))
    }
}

/// Why a page's entry could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}: {source}", path.display())]
pub struct PagemapError {
    /// `/proc/PID/pagemap`.
    pub path: PathBuf,
    /// The kernel's error; `UnexpectedEof` for an address beyond user space or a process that exited.
    pub source: io::Error,
}

/// Counts so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PagemapCounts {
    /// Entries read from the kernel.
    pub read: u64,
    /// Entries found in the cache.
    pub cached: u64,
    /// Entries that could not be read.
    pub failed: u64,
}

/// The pages of all processes, cached for a while.
#[derive(Debug)]
pub struct Pagemap {
    procfs: PathBuf,
    life: u64,
    visible: bool,
    files: Cache<u32, File>,
    /// The processes, with their address space, that are gone or forbid it, and when that was seen.
    unopened: Cache<(u32, u32), u64>,
    pages: Cache<(u32, u64), (u64, Page)>,
    /// Whether a range of pages contains private copies, and when that was looked up.
    private: Cache<(u32, u64, u64), (u64, bool)>,
    counts: PagemapCounts,
}

/// Pages that are read in one call.
const MAX_RANGE: usize = 64;
/// Ranges that are cached.
const MAX_RANGES: usize = 4096;

impl Pagemap {
    /// The pagemaps under `procfs` (`/proc`); at most `pages` entries are kept, each for `life` ns, and at most `files` files
    /// are open.
    #[must_use]
    pub fn new(procfs: &Path, pages: usize, files: usize, life: u64) -> Self {
        Self {
            procfs: procfs.to_owned(),
            life,
            visible: frames_visible(procfs),
            files: Cache::new(files),
            unopened: Cache::new(files),
            pages: Cache::new(pages),
            private: Cache::new(MAX_RANGES),
            counts: PagemapCounts::default(),
        }
    }

    /// Closes what is open of an address space that has ended.
    pub(crate) fn forget(&mut self, space: u32) {
        self.files.remove(&space);
    }

    /// Its sizes.
    pub(crate) fn measure(&self, tables: &mut Tables) {
        let (pages, ranges) = (self.pages.len(), self.private.len());
        tables.set("page frames", pages + ranges, self.pages.bytes() + self.private.bytes());
        let (files, unopened) = (self.files.len(), self.unopened.len());
        tables.set("open pagemaps", files + unopened, self.files.bytes() + self.unopened.bytes());
    }

    /// True if the kernel shows us frames, which needs `CAP_SYS_ADMIN` in the initial user namespace. Without it
    /// [`Page::frame`] is always `None`; the flags are still right.
    #[must_use]
    pub fn frames_visible(&self) -> bool {
        self.visible
    }

    /// Counts so far.
    #[must_use]
    pub fn counts(&self) -> PagemapCounts {
        self.counts
    }

    /// The page at `addr` of process `pid`, in the address space that the session calls `space` (a new one after each exec and
    /// for each reuse of the pid). `now` is the caller's clock in ns. With `anew` the page is read again even if it is cached.
    ///
    /// # Errors
    /// The process exited, we may not inspect it, or it has no such address.
    pub fn page(&mut self, pid: u32, space: u32, addr: u64, now: u64, anew: bool) -> Result<Page, PagemapError> {
        let number = addr / PAGE_SIZE;
        if let Some(&(since, page)) = self.pages.get(&(space, number)).filter(|_| !anew) {
            if now.saturating_sub(since) < self.life {
                self.counts.cached += 1;
                return Ok(page);
            }
        }
        match self.read(pid, space, number, now) {
            Ok(page) => {
                self.counts.read += 1;
                // An absent page may be touched a moment later.
                if page.present() || page.swapped() {
                    self.pages.insert((space, number), (now, page));
                }
                Ok(page)
            }
            Err(source) => {
                self.counts.failed += 1;
                self.files.remove(&space);
                Err(PagemapError { path: self.path(pid), source })
            }
        }
    }

    /// True if one of the first 64 pages of `range` is anonymous: in a private mapping of a file, the process has written
    /// there. `None` if that cannot be read.
    pub fn has_private(&mut self, pid: u32, space: u32, range: std::ops::Range<u64>, now: u64) -> Option<bool> {
        let (first, last) = (range.start / PAGE_SIZE, range.end.saturating_sub(1) / PAGE_SIZE);
        let key = (space, first, last);
        if let Some(&(_, known)) = self.private.get(&key).filter(|(since, _)| now.saturating_sub(*since) < self.life) {
            return Some(known);
        }
        let mut bytes = [0; 8 * MAX_RANGE];
        let wanted = usize::try_from(last.checked_sub(first)?).ok()?.saturating_add(1).min(MAX_RANGE) * 8;
        let bytes = bytes.get_mut(..wanted)?;
        let file = self.file(pid, space, now).ok()?;
        if file.read_exact_at(bytes, first.saturating_mul(8)).is_err() {
            self.files.remove(&space);
            return None;
        }
        let is_private = bytes.chunks_exact(8).any(|entry| {
            let page = Page(entry.try_into().map_or(0, u64::from_ne_bytes));
            page.present() && !page.file_or_shared() || page.swapped()
        });
        self.private.insert(key, (now, is_private));
        Some(is_private)
    }

    fn path(&self, pid: u32) -> PathBuf {
        self.procfs.join(pid.to_string()).join("pagemap")
    }

    fn read(&mut self, pid: u32, space: u32, number: u64, now: u64) -> io::Result<Page> {
        entry(self.file(pid, space, now)?, number)
    }

    fn file(&mut self, pid: u32, space: u32, now: u64) -> io::Result<&File> {
        if self.files.get(&space).is_none() {
            if self.unopened.get(&(space, pid)).is_some_and(|since| now.saturating_sub(*since) < self.life) {
                return Err(io::ErrorKind::NotFound.into());
            }
            match File::open(self.path(pid)) {
                Ok(file) => self.files.insert(space, file),
                Err(error) => {
                    // Others pass, as a lack of files does.
                    if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH | libc::EACCES | libc::EPERM)) {
                        self.unopened.insert((space, pid), now);
                    }
                    return Err(error);
                }
            }
        }
        self.files.get(&space).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn entry(file: &File, number: u64) -> io::Result<Page> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, number.saturating_mul(8))?;
    Ok(Page(u64::from_ne_bytes(bytes)))
}

/// True if the kernel shows us frames: reads that of a page of our own that is certainly present.
#[must_use]
pub fn frames_visible(procfs: &Path) -> bool {
    let here = std::hint::black_box(1u64);
    let number = std::ptr::from_ref(&here).addr() as u64 / PAGE_SIZE;
    File::open(procfs.join("self/pagemap"))
        .and_then(|file| entry(&file, number))
        .is_ok_and(|page| page.frame().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_frame_and_flags() {
        let page = Page((1 << 63) | (1 << 61) | 0x1234);
        assert!(page.present() && page.file_or_shared() && !page.swapped() && !page.exclusive());
        assert_eq!(page.phys(0x7fff_0000_0abc), Some(0x0123_4abc));
        assert_eq!(Page(1 << 63).phys(0x1000), None, "frames are hidden");
        assert_eq!(Page((1 << 62) | 0x77).phys(0x1000), None, "a swap entry is no frame");
    }

    #[test]
    fn entries_are_remembered_for_their_life() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("42")).unwrap();
        let file = dir.path().join("42/pagemap");
        let present = |frame: u64| ((1u64 << 63) | frame).to_ne_bytes();
        std::fs::write(&file, [present(5), present(6)].concat()).unwrap();
        let mut pagemap = Pagemap::new(dir.path(), 100, 4, 1000);
        assert!(!pagemap.frames_visible());
        assert_eq!(pagemap.page(42, 1, 0x1010, 0, false).unwrap().phys(0x1010), Some(0x6010));
        std::fs::write(&file, [present(5), present(9)].concat()).unwrap();
        assert_eq!(pagemap.page(42, 1, 0x1010, 999, false).unwrap().frame(), Some(6));
        assert_eq!(pagemap.page(42, 1, 0x1010, 999, true).unwrap().frame(), Some(9), "it is asked for anew");
        std::fs::write(&file, [present(5), present(8)].concat()).unwrap();
        assert_eq!(pagemap.page(42, 1, 0x1010, 1998, false).unwrap().frame(), Some(9));
        assert_eq!(pagemap.page(42, 1, 0x1010, 1999, false).unwrap().frame(), Some(8));
        assert_eq!(pagemap.page(42, 2, 0x1010, 1001, false).unwrap().frame(), Some(8), "another space is read anew");
        assert!(pagemap.page(42, 1, 0x5000, 1001, false).is_err());
        assert!(pagemap.page(43, 3, u64::MAX, 1001, false).unwrap_err().to_string().contains("43/pagemap"));
        assert_eq!(pagemap.counts(), PagemapCounts { read: 4, cached: 2, failed: 2 });
        std::fs::write(&file, [present(5), 0u64.to_ne_bytes()].concat()).unwrap();
        assert!(!pagemap.page(42, 4, 0x1010, 2000, false).unwrap().present());
        std::fs::write(&file, [present(5), present(7)].concat()).unwrap();
        assert_eq!(pagemap.page(42, 4, 0x1010, 2001, false).unwrap().frame(), Some(7), "absence is not remembered");
    }

    #[test]
    fn a_process_that_is_gone_is_asked_for_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut pagemap = Pagemap::new(dir.path(), 100, 4, 1000);
        assert!(pagemap.page(42, 1, 0x10, 0, false).is_err());
        std::fs::create_dir(dir.path().join("42")).unwrap();
        std::fs::write(dir.path().join("42/pagemap"), ((1u64 << 63) | 5).to_ne_bytes()).unwrap();
        assert!(pagemap.page(42, 1, 0x10, 999, false).is_err(), "not again so soon");
        assert!(pagemap.page(42, 2, 0x10, 999, false).is_ok(), "another space");
        assert!(pagemap.page(42, 1, 0x10, 1000, false).is_ok());
        assert!(pagemap.page(43, 3, 0x10, 5000, false).is_err());
        assert!(pagemap.page(42, 3, 0x10, 5001, false).is_ok(), "it shares its memory with one that is gone");
    }

    #[test]
    fn our_own_pages_are_found() {
        let mut pagemap = Pagemap::new(Path::new("/proc"), 100, 4, 1000);
        let bytes = vec![1u8; 3 * PAGE_SIZE as usize];
        let addr = bytes.as_ptr().addr() as u64 + PAGE_SIZE;
        let page = pagemap.page(std::process::id(), 1, addr, 0, false).unwrap();
        assert!(page.present() && !page.file_or_shared(), "{page:?}");
        assert_eq!(page.frame().is_some(), pagemap.frames_visible());
        drop(bytes);
    }
}
