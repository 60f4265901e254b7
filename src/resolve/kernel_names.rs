//! The names of the kernel's memory: caches of objects by their numbers in [`MemoryId`](crate::sample::MemoryId), and files that
//! no process has to map.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::sample::{MemoryId, MemoryScope};
use scxprof_base::tables::Tables;

/// A host has some 200; a stranger's recording may claim more.
const MAX_CACHES: usize = 4096;
/// Files with a known path, and the bytes of all paths.
const MAX_FILES: usize = 1 << 14;
const MAX_BYTES: usize = 4 << 20;

/// The names of caches and of files.
#[derive(Debug, Clone, Default)]
pub(crate) struct KernelNames {
    caches: FxHashMap<u64, Arc<[u8]>>,
    files: FxHashMap<(MemoryScope, u64), Arc<[u8]>>,
    /// Of the paths.
    bytes: usize,
}

impl KernelNames {
    /// The number of the cache with that name: a hash of it, so that it is the same one in every session; below 1 << 53, as every JSON
    /// reader keeps it.
    pub(crate) fn number(&mut self, cache: &str) -> u64 {
        // FNV-1a (draft-eastlake-fnv).
        let hash = cache
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let number = (hash >> 12).max(1);
        if self.caches.len() < MAX_CACHES {
            self.caches.entry(number).or_insert_with(|| cache.as_bytes().into());
        }
        number
    }

    /// Notes the path of the file that memory is of, empty for none; the first one stays.
    pub(crate) fn add_file(&mut self, memory: MemoryId, path: &[u8]) {
        let MemoryId::Shared { scope, ino, .. } = memory else { return };
        if self.files.len() < MAX_FILES && self.bytes + path.len() <= MAX_BYTES && !self.knows_file(memory) {
            self.bytes += path.len();
            self.files.insert((scope, ino), path.into());
        }
    }

    /// True if the path of the file that memory is of was noted, or there is no room for it.
    pub(crate) fn knows_file(&self, memory: MemoryId) -> bool {
        self.files.len() >= MAX_FILES || self.noted(memory).is_some()
    }

    /// The cache that memory is of.
    pub(crate) fn cache(&self, memory: MemoryId) -> Option<&Arc<[u8]>> {
        match memory {
            MemoryId::Shared { scope: MemoryScope::Kernel, ino, .. } => self.caches.get(&ino),
            _ => None,
        }
    }

    /// The path of the file that memory is of.
    pub(crate) fn file(&self, memory: MemoryId) -> Option<&Arc<[u8]>> {
        self.noted(memory).filter(|path| !path.is_empty())
    }

    fn noted(&self, memory: MemoryId) -> Option<&Arc<[u8]>> {
        match memory {
            MemoryId::Shared { scope, ino, .. } => self.files.get(&(scope, ino)),
            _ => None,
        }
    }

    /// Its size.
    pub(crate) fn measure(&self, tables: &mut Tables) {
        let entries = self.caches.len() + self.files.len();
        tables.set("names of the kernel's memory", entries, self.bytes + entries * 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_known_by_their_numbers() {
        let mut names = KernelNames::default();
        let [tcp, filp] = ["TCP", "filp"].map(|name| names.number(name));
        assert!(tcp != filp && names.number("TCP") == tcp && tcp < 1 << 52 && tcp > 0);
        assert_eq!(KernelNames::default().number("TCP"), tcp, "in every session");
        let name = |memory| names.cache(memory).map(|name| String::from_utf8_lossy(name).into_owned());
        assert_eq!(name(MemoryId::kernel_object(filp, 0x40)).as_deref(), Some("filp"));
        assert_eq!([name(MemoryId::kernel(0x40)), name(MemoryId::kernel_object(3, 0x40))], [None, None]);
        let file = MemoryId::Shared { scope: MemoryScope::device(1, 0), ino: tcp, offset: 0 };
        assert_eq!(name(file), None);
        for number in 0..2 * MAX_CACHES {
            names.number(&number.to_string());
        }
        assert_eq!(names.caches.len(), MAX_CACHES);
    }

    #[test]
    fn files_are_named_within_bounds() {
        let mut names = KernelNames::default();
        let file = |ino| MemoryId::Shared { scope: MemoryScope::device(1, 0), ino, offset: 0x1040 };
        names.add_file(file(7), b"/srv/a");
        names.add_file(file(7), b"/srv/b");
        names.add_file(MemoryId::Frame { phys: 0 }, b"/srv/c");
        assert_eq!(names.file(file(7)).map(|path| &**path), Some(&b"/srv/a"[..]));
        assert_eq!((names.knows_file(file(7)), names.knows_file(file(8)), names.file(file(8))), (true, false, None));
        names.add_file(file(9), b"");
        assert_eq!((names.knows_file(file(9)), names.file(file(9))), (true, None), "it has none");
        for ino in 0..2 * MAX_FILES as u64 {
            names.add_file(file(ino), &[b'x'; 300]);
        }
        assert!(names.files.len() <= MAX_FILES && names.bytes <= MAX_BYTES);
    }
}
