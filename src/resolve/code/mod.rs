//! The code bytes around an address of a process, from the mapped file if there is one, else from its memory.

pub mod constant;
pub mod kernel;
mod mapped;
mod pages;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mapped::{memory_path, read_memory, FileKey, MappedFile, Pages, Way, PAGE};
use pages::{Around, MemoryPage, APART};
use scxprof_base::cache::Cache;
use scxprof_base::tables::Tables;
use scxprof_elf::Elf;
use scxprof_recover::{CodeWindow, LEADER_SPAN};

pub use mapped::Mapping;

/// How long bytes from a process's memory are valid if only the file could change them, ns.
const MEMORY_LIFE: u64 = 1_000_000_000;
/// How long the kernel's own pages in a process (vdso) are valid, ns.
const VDSO_LIFE: u64 = 3600 * MEMORY_LIFE;
/// New pages that are read again without a request.
const MAX_WAITING: usize = 64;
/// How long a file counts as unchanged, and a failure to open it as permanent, ns.
const FILE_LIFE: u64 = 1_000_000_000;

/// How much is cached, and how far a window reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Files that are open at a time.
    pub files: usize,
    /// Bytes of cached file pages, a quarter of them for windows, and as many of memory pages.
    pub bytes: usize,
    /// Bytes of a window on either side of the ip, or of its function if known.
    pub around: u64,
    /// A window contains the whole function if its ends are at most this far from the ip, bytes.
    pub function: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { files: 256, bytes: 4 << 20, around: LEADER_SPAN as u64, function: 64 << 10 }
    }
}

/// The process, address and time for which code is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    /// Process id in the pid namespace of procfs.
    pub pid: u32,
    /// The address space, as the session numbers it.
    pub space: u32,
    /// The address of an instruction.
    pub ip: u64,
    /// When it was about to run: the sample's time, on the caller's clock in ns.
    pub time: u64,
}

/// Where code bytes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The mapped file.
    File,
    /// The process's memory.
    Memory,
}

/// Code bytes around an ip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Address of the first byte in the process.
    pub start: u64,
    /// The bytes, including the ip's.
    pub bytes: Arc<[u8]>,
    /// The identity of the code, whatever process and address maps it: the file, or the bytes themselves if they come from
    /// memory. Other code has another key (except with a probability of 2^-64).
    pub key: u64,
    /// Subtract this from an address of the process to get the offset in the file, or in the bytes.
    pub bias: u64,
    /// Addresses of the function around the ip, if the file gives them.
    pub function: Option<Range<u64>>,
    /// Where the bytes came from.
    pub origin: Origin,
    /// The process wrote them: they come neither from a file nor from the vdso.
    pub is_jit: bool,
}

impl Window {
    /// The window as the recovery takes it.
    #[must_use]
    pub fn as_code(&self) -> CodeWindow<'_> {
        CodeWindow {
            key: self.key,
            bias: self.bias,
            base: self.start,
            bytes: &self.bytes,
            function: self.function.clone(),
            jit: self.is_jit,
        }
    }

    /// True if it contains the byte at `ip`, and the function that it was read for contains the ip: a window of another
    /// function cannot be used for this one.
    #[must_use]
    pub fn is_around(&self, ip: u64) -> bool {
        ip.wrapping_sub(self.start) < self.bytes.len() as u64
            && self.function.as_ref().is_none_or(|function| function.contains(&ip))
    }
}

/// Pieces of code that are available for one sample: its own, and those that it calls.
const MAX_WINDOWS: usize = 4;

/// The pieces of code of one sample.
#[derive(Debug, Default)]
pub struct Windows {
    /// The newest at the end.
    last: Vec<Window>,
}

impl Windows {
    /// Forgets those of the sample before.
    pub fn clear(&mut self) {
        self.last.clear();
    }

    /// The piece around `ip`, which `read` reads if it is not here; `None` if there is none.
    pub fn around(&mut self, ip: u64, read: impl FnOnce() -> Option<Window>) -> Option<CodeWindow<'_>> {
        if !self.last.iter().any(|window| window.is_around(ip)) {
            let window = read()?;
            if self.last.len() == MAX_WINDOWS {
                self.last.remove(0);
            }
            self.last.push(window);
        }
        self.last.iter().find(|window| window.is_around(ip)).map(Window::as_code)
    }
}

/// Why there are no code bytes.
#[derive(Debug, thiserror::Error)]
pub enum CodeError {
    /// The given mapping does not contain the ip.
    #[error("{ip:#x} is not in the mapping {start:#x}-{end:#x}")]
    Outside {
        /// The address.
        ip: u64,
        /// The mapping's first address.
        start: u64,
        /// The address after its last.
        end: u64,
    },
    /// The process can change this memory, and it has not stayed the same for long enough.
    #[error("the code at {addr:#x} may have changed since it ran")]
    Unsettled {
        /// The address.
        addr: u64,
    },
    /// The process's memory could not be read: the process exited, or we lack the rights.
    #[error("cannot read {} at {addr:#x}: {source}", path.display())]
    Memory {
        /// `/proc/PID/mem`.
        path: PathBuf,
        /// The address.
        addr: u64,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Counts so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CodeCounts {
    /// Windows from files.
    pub from_files: u64,
    /// Windows from memory.
    pub from_memory: u64,
    /// Of those, windows of file text for which the file could not be opened.
    pub files_missed: u64,
    /// Windows that could not be read.
    pub failed: u64,
    /// Of those, windows in memory that changes, or has not yet stayed the same for long enough.
    pub unsettled: u64,
    /// Files opened by path.
    pub by_path: u64,
    /// Files opened by map_files.
    pub by_map_files: u64,
    /// Files opened by map_files with another device or inode than the mapping; used only for that process.
    pub unproven: u64,
    /// Files opened again because they were written to.
    pub changed: u64,
    /// Opened files that are damaged, or no ELF files for x86-64.
    pub no_elf: u64,
    /// File pages read.
    pub file_pages: u64,
    /// Memory pages read.
    pub memory_pages: u64,
    /// Files, file pages, windows and memory pages dropped at the bound.
    pub evicted: u64,
    /// Failures by errno (0 if there was none): to open or read files, and to read memory.
    pub errors: BTreeMap<i32, u64>,
}

/// The key of a window of a file, beside the content of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    /// The number of the contents, see [`MappedFile`].
    file: u64,
    /// Where the ip is in the file.
    offset: u64,
    /// The bytes of the mapping before the ip, and from it on.
    before: u64,
    after: u64,
}

/// A window of a file at its place.
#[derive(Debug)]
struct FileWindow {
    /// Bytes before the ip.
    reach: u64,
    bytes: Arc<[u8]>,
    /// Bytes from the beginning of the function to the ip, and from it to the end.
    function: Option<(u64, u64)>,
}

/// The code of all processes, cached within bounds.
#[derive(Debug)]
pub struct CodeCache {
    procfs: PathBuf,
    limits: Limits,
    seed: RandomState,
    files: Cache<FileKey, MappedFile>,
    /// Files that could not be opened for an address space, and when.
    missing: Cache<(u32, FileKey), u64>,
    pages: Pages,
    /// The result of decoding them.
    windows: Cache<Place, FileWindow>,
    memory: Cache<(u32, u64), MemoryPage>,
    /// Processes and pages that are to be read again until they are settled, and when that was last done.
    waiting: Vec<(u32, (u32, u64))>,
    looked: u64,
    counts: CodeCounts,
}

impl CodeCache {
    /// Reads the processes under `procfs` (`/proc`).
    #[must_use]
    pub fn new(procfs: &Path, limits: Limits) -> Self {
        let windows = limits.bytes / 4;
        let pages = (limits.bytes - windows) / PAGE as usize;
        Self {
            procfs: procfs.to_owned(),
            limits,
            seed: RandomState::new(),
            files: Cache::new(limits.files),
            missing: Cache::new(4096),
            pages: Pages { cache: Cache::new(pages), read: 0, error: None },
            windows: Cache::new(windows),
            memory: Cache::new(limits.bytes / MemoryPage::SIZE),
            waiting: Vec::new(),
            looked: 0,
            counts: CodeCounts::default(),
        }
    }

    /// Counts so far.
    #[must_use]
    pub fn counts(&self) -> CodeCounts {
        let evicted = [self.files.evicted(), self.pages.cache.evicted(), self.windows.evicted(), self.memory.evicted()];
        let evicted = evicted.iter().sum();
        CodeCounts { file_pages: self.pages.read, evicted, ..self.counts.clone() }
    }

    /// Its sizes.
    pub(crate) fn measure(&self, tables: &mut Tables) {
        let (of_files, of_memory) = (self.pages.cache.len(), self.memory.len());
        let bytes = self.pages.cache.bytes() + self.memory.bytes() + of_memory * MemoryPage::SIZE;
        tables.set("pieces of code", self.windows.len(), self.windows.weight());
        tables.set("open code files", self.files.len(), self.files.bytes() + self.missing.bytes());
        tables.set("pages of code", of_files + of_memory, bytes + of_files * PAGE as usize);
    }

    /// The code around `at.ip`, which `mapping` contains. `now` is the caller's clock in ns.
    ///
    /// Memory that the process can change is returned only if it was the same before `at.time` and after it, and has been the
    /// same for a dozen readings at different times. What changes further from the ip only makes the window shorter.
    ///
    /// # Errors
    /// Neither file nor memory can be read; counted by errno.
    pub fn window(&mut self, at: At, mapping: &Mapping, now: u64) -> Result<Window, CodeError> {
        if !(mapping.start..mapping.end).contains(&at.ip) {
            self.counts.failed += 1;
            return Err(CodeError::Outside { ip: at.ip, start: mapping.start, end: mapping.end });
        }
        if mapping.is_file_text() {
            if let Some(window) = self.file_window(at, mapping, now) {
                self.counts.from_files += 1;
                return Ok(window);
            }
            self.counts.files_missed += 1;
        }
        let window = self.memory_window(at, mapping, now);
        match window {
            Ok(_) => self.counts.from_memory += 1,
            Err(_) => self.counts.failed += 1,
        }
        self.counts.unsettled += u64::from(matches!(window, Err(CodeError::Unsettled { .. })));
        window
    }

    fn file_window(&mut self, at: At, mapping: &Mapping, now: u64) -> Option<Window> {
        let key = self.open(at, mapping, now)?;
        let file = self.files.get(&key)?;
        let offset = file_offset(at.ip, mapping)?;
        let place = Place { file: file.id, offset, before: at.ip - mapping.start, after: mapping.end - at.ip };
        let key = self.seed.hash_one(file.id);
        let window = |found: &FileWindow| Window {
            start: at.ip - found.reach,
            bytes: Arc::clone(&found.bytes),
            key,
            bias: at.ip.wrapping_sub(offset),
            function: found.function.map(|(before, after)| at.ip - before..at.ip + after),
            origin: Origin::File,
            is_jit: false,
        };
        if let Some(found) = self.windows.get(&place) {
            return Some(window(found));
        }
        let mut reader = file.reader(&mut self.pages);
        let function = file.elf.as_ref().and_then(|elf| {
            let vaddr = elf.vaddr(offset)?;
            let function = elf.function(&mut reader, vaddr)?;
            // Its address in the process; a start outside the mapping is no start of mapped code.
            let start = at.ip.checked_sub(vaddr - function.start).filter(|&start| start >= mapping.start)?;
            Some(start..at.ip.checked_add(function.end - vaddr)?.min(mapping.end))
        });
        let near = |end: u64| end.abs_diff(at.ip) <= self.limits.function;
        let core =
            function.clone().filter(|function| near(function.start) && near(function.end)).unwrap_or(at.ip..at.ip);
        let start = core.start.saturating_sub(self.limits.around).max(mapping.start);
        let end = core.end.saturating_add(self.limits.around).min(mapping.end);
        let reach = (at.ip - start).min(offset);
        let length = reach + (end - at.ip);
        let mut bytes = Vec::with_capacity(length as usize);
        reader.append(offset - reach, length as usize, &mut bytes);
        let error = self.pages.error.take();
        if let Some(error) = &error {
            self.count(error);
        }
        // The file may have shrunk below the ip since it was mapped.
        if bytes.len() as u64 <= reach {
            return None;
        }
        let function = function.map(|function| (at.ip.saturating_sub(function.start), function.end - at.ip));
        let found = FileWindow { reach, bytes: bytes.into(), function };
        let made = window(&found);
        // What could not be read may be read the next time.
        if error.is_none() {
            // With its entry in the table (a quarter of the table is empty) and the counts beside the bytes.
            let weight = found.bytes.len() + 2 * size_of::<(Place, FileWindow, usize)>();
            self.windows.insert_weighted(place, found, weight);
        }
        Some(made)
    }

    /// Ensures that the file is open and unchanged; returns its identity.
    fn open(&mut self, at: At, mapping: &Mapping, now: u64) -> Option<FileKey> {
        let [shared, own] = mapping.file_keys(at.space);
        for key in [&shared, &own] {
            let Some(file) = self.files.get(key) else { continue };
            if now.saturating_sub(file.checked) < FILE_LIFE {
                return Some(key.clone());
            }
            let mut file = self.files.remove(key)?;
            if !file.changed() {
                file.checked = now;
                self.files.insert(key.clone(), file);
                return Some(key.clone());
            }
            self.counts.changed += 1;
        }
        let failure = (at.space, shared.clone());
        if self.missing.get(&failure).is_some_and(|&since| now.saturating_sub(since) < FILE_LIFE) {
            return None;
        }
        match MappedFile::open(&self.procfs, at.pid, mapping, &self.seed) {
            Ok((mut file, way)) => {
                let (count, key) = match way {
                    Way::Path => (&mut self.counts.by_path, shared),
                    Way::MapFiles => (&mut self.counts.by_map_files, shared),
                    Way::Unproven => (&mut self.counts.unproven, own),
                };
                *count += 1;
                file.checked = now;
                file.elf = Elf::parse(&mut file.reader(&mut self.pages)).ok();
                self.counts.no_elf += u64::from(file.elf.is_none());
                self.files.insert(key.clone(), file);
                Some(key)
            }
            Err(error) => {
                self.count(&error);
                self.missing.insert(failure, now);
                None
            }
        }
    }

    fn memory_window(&mut self, at: At, mapping: &Mapping, now: u64) -> Result<Window, CodeError> {
        // Whole pages, so that the bytes and their key are the same for all addresses in one.
        let page = at.ip - at.ip % PAGE;
        let start = page.saturating_sub(self.limits.around).max(mapping.start);
        let end = page.saturating_add(PAGE + self.limits.around).min(mapping.end);
        let life = match mapping.path {
            b"[vdso]" => Some(VDSO_LIFE),
            _ => mapping.is_file_text().then_some(MEMORY_LIFE),
        };
        self.look_again(now);
        let mut around = Around::new(at.ip, start, (end - start) as usize);
        let mut addr = start;
        while addr < end {
            let next = (addr / PAGE + 1).saturating_mul(PAGE).min(end);
            match self.memory_page(at, addr / PAGE, life, now) {
                Ok(page) => around.add(page, addr, next, life.is_none().then_some(at.time)),
                // Pages around the ip may be missing, but not its own.
                Err(_) if next <= at.ip || addr > at.ip => around.skip(addr, next),
                Err(source) => {
                    self.count(&source);
                    return Err(CodeError::Memory { path: memory_path(&self.procfs, at.pid), addr, source });
                }
            }
            addr = next;
        }
        if around.is_unsettled() {
            return Err(CodeError::Unsettled { addr: at.ip });
        }
        let Around { begin, bytes, .. } = around;
        let key = self.seed.hash_one(&bytes);
        let is_of_file = mapping.path.starts_with(b"/") && !mapping.path.starts_with(b"/memfd:") && !mapping.shared;
        let is_jit = !is_of_file && mapping.path != b"[vdso]";
        let bytes = bytes.into();
        Ok(Window { start: begin, bytes, key, bias: begin, function: None, origin: Origin::Memory, is_jit })
    }

    /// A page that is valid for `life`; or, if that is `None`, that was read after the sample.
    fn memory_page(&mut self, at: At, number: u64, life: Option<u64>, now: u64) -> io::Result<&MemoryPage> {
        let key = (at.space, number);
        let fresh = self.memory.get(&key).is_some_and(|page| match life {
            Some(life) => now.saturating_sub(page.read) < life,
            None => page.read >= at.time && !page.is_due(now),
        });
        if !fresh {
            self.read_memory(at.pid, key, now)?;
        }
        let page = self.memory.get(&key).ok_or(io::ErrorKind::NotFound)?;
        let entry = (at.pid, key);
        if life.is_none() && page.is_new() && self.waiting.len() < MAX_WAITING && !self.waiting.contains(&entry) {
            self.waiting.push(entry);
        }
        Ok(page)
    }

    /// Reads a page and compares it with the cached one.
    fn read_memory(&mut self, pid: u32, key: (u32, u64), now: u64) -> io::Result<()> {
        let page = MemoryPage::new(read_memory(&self.procfs, pid, key.1)?, now)?;
        self.counts.memory_pages += 1;
        let earlier = self.memory.remove(&key);
        self.memory.insert(key, page.agreeing_with(earlier));
        Ok(())
    }

    /// Reads new pages again until they settle, whether or not a sample needs them.
    fn look_again(&mut self, now: u64) {
        if self.waiting.is_empty() || now.saturating_sub(self.looked) < APART {
            return;
        }
        self.looked = now;
        for (pid, key) in std::mem::take(&mut self.waiting) {
            let read = self.read_memory(pid, key, now).is_ok();
            if read && self.memory.get(&key).is_some_and(MemoryPage::is_new) {
                self.waiting.push((pid, key));
            }
        }
    }

    fn count(&mut self, error: &io::Error) {
        *self.counts.errors.entry(error.raw_os_error().unwrap_or(0)).or_default() += 1;
    }
}

/// The offset of an address in the mapped file.
fn file_offset(ip: u64, mapping: &Mapping) -> Option<u64> {
    ip.checked_sub(mapping.start)?.checked_add(mapping.offset)
}

#[cfg(test)]
mod tests;
