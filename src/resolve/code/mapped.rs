//! Opens the file behind a mapping of another process, only if it is certainly that file.

use std::fs::{File, Metadata};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::host::{aside, open};
use scxprof_base::cache::Cache;
use scxprof_elf::{Elf, ReadAt};

/// Bytes of a cached piece of a file or of memory.
pub(super) const PAGE: u64 = crate::sample::PAGE_SIZE;

/// Pages that are read at once where that takes another thread, whose hand-over costs more than they do.
const TOGETHER: u64 = 4;

/// The mapping that contains the code, from `/proc/PID/maps` or `PERF_RECORD_MMAP2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping<'a> {
    /// The first address.
    pub start: u64,
    /// The address after the last.
    pub end: u64,
    /// Bytes of the file before `start`.
    pub offset: u64,
    /// The file's device, as `makedev(3)` packs it; 0 without a file.
    pub dev: u64,
    /// The file's inode; 0 without a file.
    pub ino: u64,
    /// True if the process may write to it, so its code may change.
    pub writable: bool,
    /// True for `MAP_SHARED`: its code may change through another mapping.
    pub shared: bool,
    /// The build id, if the kernel gave it instead of device and inode.
    pub build_id: Option<&'a [u8]>,
    /// The path in the process's mount namespace, or a name such as `[vdso]`.
    pub path: &'a [u8],
}

impl Mapping<'_> {
    /// True if the code is that of the file and stays so: not JIT code, not a memfd, not anonymous.
    #[must_use]
    pub fn is_file_text(&self) -> bool {
        !self.writable && !self.shared && self.path.starts_with(b"/") && !self.path.starts_with(b"/memfd:")
    }

    /// The identities that the file may have: for all processes, else only for the address space `space`.
    pub(super) fn file_keys(&self, space: u32) -> [FileKey; 2] {
        let shared = match self.build_id {
            Some(id) if self.ino == 0 => FileKey::BuildId(id.to_vec()),
            _ => FileKey::Inode(self.dev, self.ino),
        };
        [shared, FileKey::Own { space, start: self.start }]
    }
}

/// The identity of a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum FileKey {
    /// Device and inode.
    Inode(u64, u64),
    /// The build id, if nothing else is known.
    BuildId(Vec<u8>),
    /// The mapping itself, if it is not proven that the file is the one that maps names. If it is another file (the process has
    /// just executed something else), no other process is affected.
    Own {
        /// The address space.
        space: u32,
        /// Where the mapping starts.
        start: u64,
    },
}

/// How a file was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// By its path under `/proc/PID/root`.
    Path,
    /// By `/proc/PID/map_files`.
    MapFiles,
    /// The same, but its device and inode differ from the mapping's.
    Unproven,
}

/// An open file and its headers.
#[derive(Debug)]
pub(super) struct MappedFile {
    file: Arc<File>,
    /// Its key for calls through [`aside`].
    about: u64,
    /// The number of these contents; it changes when the file is written.
    pub id: u64,
    stamp: (u64, i64, i64),
    /// The ELF headers; `None` for other and for damaged files.
    pub elf: Option<Elf>,
    /// When the file was last checked, ns.
    pub checked: u64,
}

impl MappedFile {
    /// Opens the file of `mapping` of process `pid`.
    ///
    /// Opens it by its path if that still leads to it, else by `map_files`, which needs `CAP_CHECKPOINT_RESTORE` and also works
    /// for deleted files. A file system that does not answer is an error.
    pub fn open(procfs: &Path, pid: u32, mapping: &Mapping, seed: &RandomState) -> io::Result<(Self, Way)> {
        let about = aside::about(("device", mapping.dev));
        let (procfs, seed) = (procfs.to_owned(), seed.clone());
        let (path, build_id) = (mapping.path.to_vec(), mapping.build_id.map(<[u8]>::to_vec));
        let Mapping { start, end, offset, dev, ino, writable, shared, .. } = *mapping;
        aside::within(about, aside::SHORT, move || {
            let (path, build_id) = (&path[..], build_id.as_deref());
            let mapping = Mapping { start, end, offset, dev, ino, writable, shared, build_id, path };
            Self::open_here(&procfs, pid, &mapping, &seed, about)
        })?
    }

    fn open_here(
        procfs: &Path,
        pid: u32,
        mapping: &Mapping,
        seed: &RandomState,
        about: u64,
    ) -> io::Result<(Self, Way)> {
        let process = procfs.join(pid.to_string());
        let by_path = || {
            let file = open::of_process(&process, mapping.path)?;
            let stale = || io::Error::from_raw_os_error(libc::ESTALE);
            is_mapped(&file, mapping)?.then_some((file, Way::Path)).ok_or_else(stale)
        };
        let by_map_files = || {
            let file = open::mapped(&process, mapping.start, mapping.end)?;
            let way = if is_mapped(&file, mapping)? { Way::MapFiles } else { Way::Unproven };
            Ok((file, way))
        };
        // A process that has ended while its samples waited: most of these saw the same files as we.
        let by_our_path = || {
            let file = open::of_process(&procfs.join("self"), mapping.path)?;
            is_mapped(&file, mapping)?.then_some((file, Way::Path)).ok_or_else(|| io::ErrorKind::NotFound.into())
        };
        // The first error tells more than that the other ways failed too.
        let (file, way) = by_path().or_else(|first: io::Error| {
            by_map_files().or_else(|_: io::Error| by_our_path()).map_err(|_: io::Error| first)
        })?;
        let metadata = file.metadata()?;
        let id = seed.hash_one((metadata.dev(), metadata.ino(), stamp(&metadata)));
        Ok((Self { file: Arc::new(file), about, id, stamp: stamp(&metadata), elf: None, checked: 0 }, way))
    }

    /// True if the file was written to since it was opened.
    pub fn changed(&self) -> bool {
        let file = Arc::clone(&self.file);
        let metadata = aside::within(self.about, aside::SHORT, move || file.metadata());
        metadata.map_or(true, |metadata| metadata.map_or(true, |metadata| stamp(&metadata) != self.stamp))
    }

    /// A reader that caches what it reads in `pages`.
    pub fn reader<'a>(&'a self, pages: &'a mut Pages) -> FileReader<'a> {
        FileReader { file: &self.file, about: self.about, id: self.id, pages }
    }
}

/// True if `file` is the one that `mapping` names. Some file systems show one inode to `stat(2)` and another in maps (overlayfs
/// before Linux 6.8, btrfs subvolumes); there an equal build id proves it.
fn is_mapped(mut file: &File, mapping: &Mapping) -> io::Result<bool> {
    let metadata = file.metadata()?;
    if (metadata.dev(), metadata.ino()) == (mapping.dev, mapping.ino) {
        return Ok(true);
    }
    Ok(mapping.build_id.is_some_and(|wanted| {
        let elf = Elf::parse(&mut file).ok();
        elf.as_ref().and_then(Elf::build_id) == Some(wanted)
    }))
}

/// Size and time of the last write.
fn stamp(metadata: &Metadata) -> (u64, i64, i64) {
    (metadata.len(), metadata.mtime(), metadata.mtime_nsec())
}

/// Cached pages of files: file contents, page number, bytes up to the end of the file.
#[derive(Debug)]
pub(super) struct Pages {
    /// The pages by contents id and page number.
    pub cache: Cache<(u64, u64), Box<[u8]>>,
    /// Pages read so far.
    pub read: u64,
    /// The first error since the last call that took it.
    pub error: Option<io::Error>,
}

/// Reads a file through the cache.
pub(super) struct FileReader<'a> {
    file: &'a Arc<File>,
    about: u64,
    id: u64,
    pages: &'a mut Pages,
}

impl FileReader<'_> {
    /// Appends up to `length` bytes from `offset`, fewer if the file ends or fails.
    pub fn append(&mut self, mut offset: u64, mut length: usize, to: &mut Vec<u8>) {
        while length > 0 {
            let number = offset / PAGE;
            let Some(page) = self.page(number) else { return };
            let rest = page.get((offset % PAGE) as usize..).unwrap_or_default();
            let piece = rest.get(..length).unwrap_or(rest);
            if piece.is_empty() {
                return;
            }
            to.extend_from_slice(piece);
            offset = offset.saturating_add(piece.len() as u64);
            length -= piece.len();
        }
    }

    fn page(&mut self, number: u64) -> Option<&[u8]> {
        let key = (self.id, number);
        if self.pages.cache.get(&key).is_none() {
            if let Err(error) = self.read(number) {
                self.pages.error.get_or_insert(error);
                return None;
            }
        }
        self.pages.cache.get(&key).map(|page| &**page)
    }

    /// Reads a page, and its neighbours too where that takes another thread.
    fn read(&mut self, number: u64) -> io::Result<()> {
        let offset_of = |number: u64| number.checked_mul(PAGE).ok_or(io::ErrorKind::InvalidInput);
        if let Some(bytes) = read_cached(self.file, offset_of(number)?) {
            self.insert(number, &bytes);
            return Ok(());
        }
        let first = number - number % TOGETHER;
        let bytes = match read_aside(self.file, self.about, offset_of(first)?, (TOGETHER * PAGE) as usize) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(error),
            // The first of them may be the one that cannot be read.
            read => read.unwrap_or_default(),
        };
        for (page, bytes) in (first..).zip(bytes.chunks(PAGE as usize)) {
            self.insert(page, bytes);
        }
        // Beyond the end of the file, or after a page that cannot be read.
        if self.pages.cache.get(&(self.id, number)).is_none() {
            let bytes = read_aside(self.file, self.about, offset_of(number)?, PAGE as usize)?;
            self.insert(number, &bytes);
        }
        Ok(())
    }

    fn insert(&mut self, number: u64, bytes: &[u8]) {
        self.pages.read += 1;
        self.pages.cache.insert((self.id, number), bytes.into());
    }
}

impl ReadAt for FileReader<'_> {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Option<()> {
        let mut at = 0;
        while at < buffer.len() {
            let here = offset.checked_add(at as u64)?;
            let page = self.page(here / PAGE)?.get((here % PAGE) as usize..).filter(|rest| !rest.is_empty())?;
            let length = page.len().min(buffer.len() - at);
            buffer.get_mut(at..at + length)?.copy_from_slice(page.get(..length)?);
            at += length;
        }
        Some(())
    }
}

/// Up to `length` bytes from `offset`, if they come in time.
fn read_aside(file: &Arc<File>, about: u64, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let file = Arc::clone(file);
    aside::within(about, aside::SHORT, move || {
        let mut bytes = vec![0; length];
        let length = read_some(&file, offset, &mut bytes)?;
        bytes.truncate(length);
        Ok(bytes)
    })?
}

/// A page from `offset` that is in the page cache, as code that runs is: that takes no other thread, which would cost more than the
/// reading. A file system that might wait refuses the flag, such as FUSE and NFS (`RWF_NOWAIT`, preadv2(2)).
fn read_cached(file: &File, offset: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; PAGE as usize];
    let into = &mut [io::IoSliceMut::new(&mut bytes)];
    let length = rustix::io::preadv2(file, into, offset, rustix::io::ReadWriteFlags::NOWAIT).ok()?;
    (length == PAGE as usize).then_some(bytes)
}

/// A page of a process's memory, if it comes in time: it may be a mapping of a file.
pub(super) fn read_memory(procfs: &Path, pid: u32, number: u64) -> io::Result<Vec<u8>> {
    let path = memory_path(procfs, pid);
    let offset = number.checked_mul(PAGE).ok_or(io::ErrorKind::InvalidInput)?;
    aside::within(aside::about(("memory", pid)), aside::SHORT, move || {
        let mut bytes = vec![0; PAGE as usize];
        let length = read_some(&File::open(path)?, offset, &mut bytes)?;
        bytes.truncate(length);
        Ok(bytes)
    })?
}

/// Reads until `buffer` is full or the file ends; returns the number of bytes.
pub(super) fn read_some(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while let Some(rest) = buffer.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset.saturating_add(length as u64)) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The bytes before an unreadable page are valid.
            Err(_) if length > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

/// `/proc/PID/mem`.
pub(super) fn memory_path(procfs: &Path, pid: u32) -> PathBuf {
    procfs.join(pid.to_string()).join("mem")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever pages are read first, and with or without the page cache.
    #[test]
    fn a_page_is_the_same_however_it_is_read() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..10_000u32).flat_map(u32::to_le_bytes).collect();
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        let (file, about) = (Arc::new(file), aside::about("a page"));
        let expected = |number: u64| {
            let rest = bytes.get((number * PAGE) as usize..).unwrap_or_default();
            rest.get(..PAGE as usize).unwrap_or(rest)
        };
        let mut cached = 0;
        for numbers in [[0, 1, 9, 10], [9, 3, 2, 8], [10, 11, 4, 0]] {
            let mut pages = Pages { cache: Cache::new(1 << 20), read: 0, error: None };
            let mut reader = FileReader { file: &file, about, id: 1, pages: &mut pages };
            for number in numbers {
                assert_eq!(reader.page(number).unwrap(), expected(number), "{number}");
                let now = read_cached(&file, number * PAGE);
                cached += u32::from(now.is_some());
                assert!(now.is_none_or(|now| now == expected(number) && now.len() == PAGE as usize));
            }
            assert!(pages.error.is_none());
        }
        // Whole pages are, where the file system knows the flag.
        assert!(cached == 7 || cached == 0, "{cached}");
        let read = |offset, length| read_aside(&file, about, offset, length).unwrap();
        assert_eq!(read(0, 4 * PAGE as usize), bytes[..4 * PAGE as usize]);
        assert_eq!((read(8 * PAGE, 4 * PAGE as usize).len() as u64, read(12 * PAGE, 9).len()), (40_000 - 8 * PAGE, 0));
    }
}
