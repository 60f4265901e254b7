//! Identifies the memory of a shared mapping if device and inode alone do not.
//!
//! - **SysV shared memory**: its inode number is the segment's id (newseg() in ipc/shm.c), which counts from 0 in each IPC
//!   namespace, all on one device. The IPC namespace takes the place of the device.
//! - **Subvolumes**: btrfs numbers the inodes of each subvolume separately, and mappings show the device of the whole file
//!   system. stat(2) of the mapped file gives the device of its subvolume. A recording has only what the mappings show: there,
//!   two files of different subvolumes with the same number are one.
//! - **A reused inode number**: while any process maps a file, no other file gets its number. After that another file may get
//!   it, with another generation, and is other memory.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::host::{mountinfo, namespace, Roots};
use crate::sample::MemoryScope;
use scxprof_base::tables::Tables;

/// Inodes with a known generation.
const MAX_FILES: usize = 1 << 13;

/// What a mapping's inode number belongs to, as the mapping itself gives it: its device; `None` for SysV shared memory.
pub(crate) fn scope(dev: u64, path: &[u8]) -> Option<MemoryScope> {
    (!is_sysv(dev, path)).then(|| MemoryScope::device(dev, 0))
}

/// A scope for people, in front of a number in it.
#[must_use]
pub fn scope_text(scope: MemoryScope) -> String {
    match scope {
        MemoryScope::Device { reuses, dev } => {
            let again = if reuses == 0 { "" } else { " (used again)" };
            format!("device {}:{}{again} inode", libc::major(dev.into()), libc::minor(dev.into()))
        }
        MemoryScope::Ipc(namespace) => format!("SysV segment of IPC namespace {namespace}"),
        MemoryScope::Wakeups => "wakeups of pair".to_owned(),
        MemoryScope::Kernel => "kernel memory".to_owned(),
    }
}

/// `/SYSV` and the key in 8 hex digits, on a mount of the kernel's own, which is on no disk (newseg() in ipc/shm.c). 0 is no
/// device: a record in its build-id form has none.
pub(crate) fn is_sysv(dev: u64, path: &[u8]) -> bool {
    let key = path.strip_prefix(b"/SYSV").and_then(|rest| rest.strip_suffix(b" (deleted)").or(Some(rest)));
    dev != 0 && libc::major(dev) == 0 && key.is_some_and(|key| key.len() == 8 && key.iter().all(u8::is_ascii_hexdigit))
}

/// Identifies the memory of mappings.
#[derive(Debug, Default)]
pub(super) struct Identities {
    /// The procfs for look-ups; `None` if there are only records.
    proc: Option<PathBuf>,
    /// Devices of file systems with subvolumes.
    subvolumes: FxHashSet<u64>,
    /// For an inode number, the last generation in records, and how many there were before it.
    files: FxHashMap<(u64, u64), (u32, u32)>,
}

/// The fields of a shared mapping that identify its memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown<'a> {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) dev: u64,
    pub(super) ino: u64,
    /// The inode's, 0 if only procfs shows the mapping.
    pub(super) generation: u32,
    pub(super) path: &'a [u8],
}

impl Identities {
    /// Looks up processes under `roots`.
    pub(super) fn new(roots: &Roots) -> Self {
        let mounts = std::fs::read(roots.proc.join("self/mountinfo")).unwrap_or_default();
        let subvolumes =
            mountinfo::parse(&mounts).filter(|mount| mount.kind == b"btrfs").map(|mount| mount.dev).collect();
        Self { proc: Some(roots.proc.clone()), subvolumes, files: FxHashMap::default() }
    }

    /// Its size.
    pub(super) fn measure(&self, tables: &mut Tables) {
        tables.set_map::<((u64, u64), (u32, u32))>("inode numbers", self.files.len(), self.files.capacity(), 0);
    }

    /// What the inode number of a shared mapping of process `pid` belongs to; `None` if the number does not identify the memory.
    /// `ipc` is the process's IPC namespace if a record gave it; otherwise procfs gives it.
    pub(super) fn scope(&mut self, pid: u32, ipc: Option<u32>, shown: Shown<'_>) -> Option<MemoryScope> {
        let Shown { dev, ino, .. } = shown;
        if is_sysv(dev, shown.path) {
            return ipc.or_else(|| ipc_namespace(self.proc.as_deref()?, pid)).map(MemoryScope::Ipc);
        }
        if ino == 0 {
            return Some(MemoryScope::device(dev, 0));
        }
        if self.subvolumes.contains(&dev) {
            return self.subvolume(pid, shown).map(|dev| MemoryScope::device(dev, 0));
        }
        Some(MemoryScope::device(dev, self.reuses(shown)))
    }

    fn subvolume(&self, pid: u32, shown: Shown<'_>) -> Option<u64> {
        // Names in map_files are the addresses of the mapping.
        let name = format!("{pid}/map_files/{:x}-{:x}", shown.start, shown.end);
        let file = std::fs::metadata(self.proc.as_ref()?.join(name)).ok()?;
        (file.ino() == shown.ino).then(|| file.dev())
    }

    /// How many other files had the inode number before.
    fn reuses(&mut self, shown: Shown<'_>) -> u32 {
        let key = (shown.dev, shown.ino);
        if shown.generation == 0 {
            return self.files.get(&key).map_or(0, |&(_, reuses)| reuses);
        }
        if self.files.len() >= MAX_FILES && !self.files.contains_key(&key) {
            self.files.retain(|_, &mut (_, reuses)| reuses > 0);
            if self.files.len() >= MAX_FILES {
                self.files.clear();
            }
        }
        let (generation, reuses) = self.files.entry(key).or_insert((shown.generation, 0));
        if *generation != shown.generation {
            *generation = shown.generation;
            *reuses = (*reuses + 1) & 0xffff;
        }
        *reuses
    }
}

/// The number of a process's IPC namespace.
pub(crate) fn ipc_namespace(proc: &Path, pid: u32) -> Option<u32> {
    namespace::number_of(&proc.join(format!("{pid}/ns/ipc"))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHM: u64 = 1;

    fn device(dev: u64) -> MemoryScope {
        MemoryScope::device(dev, 0)
    }

    fn shown(dev: u64, ino: u64, generation: u32, path: &[u8]) -> Shown<'_> {
        Shown { start: 0x1000, end: 0x3000, dev, ino, generation, path }
    }

    #[test]
    fn a_segment_is_one_of_its_ipc_namespace() {
        let dir = tempfile::tempdir().unwrap();
        for (pid, namespace) in [(10, "ipc:[4026531839]"), (11, "ipc:[4026532200]"), (12, "ipc:[4026531839]")] {
            let ns = dir.path().join(format!("{pid}/ns"));
            std::fs::create_dir_all(&ns).unwrap();
            std::os::unix::fs::symlink(namespace, ns.join("ipc")).unwrap();
        }
        let mut identities = Identities::new(&Roots { proc: dir.path().to_owned(), ..Roots::default() });
        let mut of = |pid| identities.scope(pid, None, shown(SHM, 0, 0, b"/SYSV00000000 (deleted)"));
        assert_eq!(of(10), of(12));
        assert_ne!(of(10), of(11));
        assert!(of(13).is_none() && of(10).is_some());
        assert_eq!(scope_text(of(11).unwrap()), "SysV segment of IPC namespace 4026532200");
        // A record takes precedence over procfs.
        let segment = shown(SHM, 3, 0, b"/SYSV0000cafe (deleted)");
        assert_eq!(identities.scope(10, Some(5), segment), Some(MemoryScope::Ipc(5)));
        // A file of that name on a disk is a file.
        assert_eq!(identities.scope(10, None, shown(0x801, 3, 0, b"/SYSV0000cafe")), Some(device(0x801)));
        for name in [&b"/SYSV"[..], b"/SYSV0000cafe.txt", b"/SYSVgggggggg", b"/memfd:SYSV00000000"] {
            assert_eq!(identities.scope(10, None, shown(SHM, 3, 0, name)), Some(device(SHM)));
        }
    }

    #[test]
    fn a_subvolume_is_what_stat_says() {
        let dir = tempfile::tempdir().unwrap();
        let files = dir.path().join("10/map_files");
        std::fs::create_dir_all(&files).unwrap();
        std::fs::create_dir(dir.path().join("self")).unwrap();
        std::fs::write(files.join("1000-3000"), "x").unwrap();
        let mounts =
            "36 35 0:44 /a /mnt rw shared:1 - btrfs /dev/vda rw\n30 1 8:1 / / rw - ext4 /dev/sda rw\nx\n1 2 3\n";
        std::fs::write(dir.path().join("self/mountinfo"), mounts).unwrap();
        let stat = std::fs::metadata(files.join("1000-3000")).unwrap();
        let mut identities = Identities::new(&Roots { proc: dir.path().to_owned(), ..Roots::default() });
        let btrfs = libc::makedev(0, 44);
        assert_eq!(identities.scope(10, None, shown(btrfs, stat.ino(), 7, b"/mnt/x")), Some(device(stat.dev())));
        assert_eq!(identities.scope(10, None, shown(btrfs, stat.ino() + 1, 7, b"/mnt/x")), None);
        assert_eq!(identities.scope(11, None, shown(btrfs, stat.ino(), 7, b"/mnt/x")), None);
        let ext4 = libc::makedev(8, 1);
        assert_eq!(identities.scope(10, None, shown(ext4, 5, 7, b"/x")), Some(device(ext4)));
    }

    #[test]
    fn an_inode_of_another_generation_is_another_file() {
        let mut identities = Identities::default();
        let mut of = |generation| identities.scope(10, None, shown(0x801, 5, generation, b"/x"));
        let first = of(7);
        assert_eq!(first, Some(device(0x801)));
        assert_eq!((of(0), of(7)), (first, first), "procfs shows none");
        let second = of(8);
        assert_ne!(second, first);
        assert_eq!((of(0), of(8)), (second, second));
        assert_ne!(of(9), second);
        assert_eq!(scope_text(second.unwrap()), "device 8:1 (used again) inode");
        for ino in 0..2 * MAX_FILES as u64 {
            identities.scope(10, None, shown(0x801, ino + 100, 1, b"/x"));
        }
        assert!(identities.files.len() <= MAX_FILES);
        let kept = identities.scope(10, None, shown(0x801, 5, 0, b"/x"));
        assert_eq!(kept, Some(MemoryScope::Device { reuses: 2, dev: 0x801 }), "what was used again stays");
    }
}
