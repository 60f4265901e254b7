//! Identifies the memory of a shared mapping if device and inode alone do not.
//!
//! - **SysV shared memory**: its inode number is the segment's id (newseg() in ipc/shm.c), which counts from 0 in each IPC
//!   namespace, all on one device. The IPC namespace replaces the device.
//! - **Subvolumes**: btrfs numbers the inodes of each subvolume separately, and mappings show the device of the whole file
//!   system. stat(2) of the mapped file gives the device of its subvolume. A recording has only what the mappings show: there,
//!   two files of different subvolumes with the same number are one.
//! - **A reused inode number**: while any process maps a file, no other file gets its number. After that another file may get
//!   it, with another generation, and is other memory.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::host::{mountinfo, namespace, Roots};
use crate::tables::Tables;

/// Marks numbers that are IPC namespaces. Devices have 32 bits (include/linux/kdev_t.h), and every JSON reader keeps numbers
/// below 1 << 53 exact.
const SYSV: u64 = 1 << 52;
/// The inode's number does not identify the memory.
const UNKNOWN: u64 = 1 << 51;
/// The first bit of the number of files that had the same inode number before.
const REUSES: u32 = 32;
/// Inodes with a known generation.
const MAX_FILES: usize = 1 << 13;

/// The scope of a mapping's inode number as the mapping itself gives it: its device.
pub(crate) fn numbering(dev: u64, path: &[u8]) -> u64 {
    if is_sysv(dev, path) {
        UNKNOWN
    } else {
        dev
    }
}

/// True if the memory cannot be identified.
pub(super) fn is_unknown(numbering: u64) -> bool {
    numbering & UNKNOWN != 0
}

/// The device, IPC namespace or count of a numbering, for display.
#[must_use]
pub fn numbering_text(numbering: u64) -> String {
    if numbering & SYSV != 0 {
        return format!("SysV segment of IPC namespace {}", numbering & u64::from(u32::MAX));
    }
    let again = if numbering >> REUSES == 0 { "" } else { " (used again)" };
    let dev = numbering & u64::from(u32::MAX);
    format!("device {}:{}{again} inode", libc::major(dev), libc::minor(dev))
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

    /// The scope of the inode number of a shared mapping of process `pid`. `ipc` is the process's IPC namespace if a record
    /// gave it; otherwise procfs gives it.
    pub(super) fn numbering(&mut self, pid: u32, ipc: Option<u32>, shown: Shown<'_>) -> u64 {
        let Shown { dev, ino, .. } = shown;
        if is_sysv(dev, shown.path) {
            let ipc = ipc.or_else(|| ipc_namespace(self.proc.as_deref()?, pid));
            return ipc.map_or(UNKNOWN, |ipc| SYSV | u64::from(ipc));
        }
        if ino == 0 {
            return dev;
        }
        if self.subvolumes.contains(&dev) {
            return self.subvolume(pid, shown).unwrap_or(UNKNOWN);
        }
        dev | u64::from(self.reuses(shown)) << REUSES
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
        let mut of = |pid| identities.numbering(pid, None, shown(SHM, 0, 0, b"/SYSV00000000 (deleted)"));
        assert_eq!(of(10), of(12));
        assert_ne!(of(10), of(11));
        assert!(is_unknown(of(13)) && !is_unknown(of(10)));
        assert_eq!(numbering_text(of(11)), "SysV segment of IPC namespace 4026532200");
        // A record takes precedence over procfs.
        let segment = shown(SHM, 3, 0, b"/SYSV0000cafe (deleted)");
        assert_eq!(identities.numbering(10, Some(5), segment), SYSV | 5);
        // A file of that name on a disk is a file.
        assert_eq!(identities.numbering(10, None, shown(0x801, 3, 0, b"/SYSV0000cafe")), 0x801);
        for name in [&b"/SYSV"[..], b"/SYSV0000cafe.txt", b"/SYSVgggggggg", b"/memfd:SYSV00000000"] {
            assert_eq!(identities.numbering(10, None, shown(SHM, 3, 0, name)), SHM);
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
        assert_eq!(identities.numbering(10, None, shown(btrfs, stat.ino(), 7, b"/mnt/x")), stat.dev());
        assert!(is_unknown(identities.numbering(10, None, shown(btrfs, stat.ino() + 1, 7, b"/mnt/x"))));
        assert!(is_unknown(identities.numbering(11, None, shown(btrfs, stat.ino(), 7, b"/mnt/x"))));
        let ext4 = libc::makedev(8, 1);
        assert_eq!(identities.numbering(10, None, shown(ext4, 5, 7, b"/x")), ext4);
    }

    #[test]
    fn an_inode_of_another_generation_is_another_file() {
        let mut identities = Identities::default();
        let mut of = |generation| identities.numbering(10, None, shown(0x801, 5, generation, b"/x"));
        let first = of(7);
        assert_eq!(first, 0x801);
        assert_eq!((of(0), of(7)), (first, first), "procfs shows none");
        let second = of(8);
        assert_ne!(second, first);
        assert_eq!((of(0), of(8)), (second, second));
        assert_ne!(of(9), second);
        assert_eq!(numbering_text(second), "device 8:1 (used again) inode");
        for ino in 0..2 * MAX_FILES as u64 {
            identities.numbering(10, None, shown(0x801, ino + 100, 1, b"/x"));
        }
        assert!(identities.files.len() <= MAX_FILES);
        assert_eq!(identities.numbering(10, None, shown(0x801, 5, 0, b"/x")) >> REUSES, 2, "what was used again stays");
    }
}
