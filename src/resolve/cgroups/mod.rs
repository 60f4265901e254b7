//! Cgroup paths by id: from a walk of the hierarchy, from records, and by handle for cgroups that both missed.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{DirEntry, File};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::host::hierarchy::{self, HierarchyKind, Mount};
use crate::host::{Error, Roots};
use crate::sample::printable;
use scxprof_base::tables::Tables;

/// The number of cgroup paths that are kept. The oldest are dropped first; a living cgroup is found again by its handle.
const MAX_PATHS: usize = 1 << 16;
/// The bytes of these paths.
pub(crate) const MAX_PATH_BYTES: usize = 16 << 20;
/// Ids that could not be resolved.
const MAX_MISSING: usize = 1 << 14;
/// `FILEID_KERNFS` (include/linux/exportfs.h): a handle that is the id and nothing else.
const FILEID_KERNFS: i32 = 0xfe;
/// The links of a cgroup's directory that contains no other: most are read no further. A directory of kernfs has one for each
/// directory in it, and two (`kernfs_refresh_inode` in fs/kernfs/inode.c); not every file system counts them.
const LINKS_OF_LEAF: u64 = 2;
/// Where a cgroup has at least this many in it, one read of its `cgroup.stat` tells whether any of them has others in it.
const MANY: usize = 4;
/// The id of the root of every hierarchy (`kernfs_create_root` in fs/kernfs/dir.c hands out 1 first).
const ROOT_ID: u64 = 1;
/// The mount point that schedulers expect, whatever the host's is.
const DISPLAY_MOUNT: &[u8] = b"/sys/fs/cgroup";

/// A cgroup that was looked up by its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CgroupRef {
    /// Its id, as in samples.
    pub id: u64,
    /// The directory to open for `PERF_FLAG_PID_CGROUP`.
    pub dir: PathBuf,
    /// Its path from the hierarchy's root.
    pub path: Arc<[u8]>,
}

/// The cgroups of the hierarchy that samples refer to.
#[derive(Debug)]
pub struct Cgroups {
    roots: Roots,
    mount: Mount,
    /// Opened once, to resolve handles against it. `None` if there are only records.
    mount_dir: Option<File>,
    /// True if the mount shows the hierarchy from its root.
    whole: bool,
    paths: FxHashMap<u64, Arc<[u8]>>,
    path_bytes: usize,
    order: VecDeque<u64>,
    missing: FxHashSet<u64>,
    /// Paths dropped at the bound.
    forgotten: u64,
    /// A cgroup other than the root contained processes; only checked in v1.
    populated: bool,
}

/// struct file_handle with the 8 bytes of a kernfs handle (name_to_handle_at(2)).
#[repr(C)]
struct KernfsHandle {
    bytes: u32,
    kind: i32,
    id: u64,
}

impl Cgroups {
    /// Finds the hierarchy and opens its mount.
    ///
    /// # Errors
    /// The hierarchy is not mounted, or its directory cannot be opened.
    pub fn new(roots: &Roots) -> Result<Self, Error> {
        let mount = Mount::find(roots)?;
        let failed = |source| Error::Read { path: mount.point.clone(), source };
        let mount_dir = File::open(&mount.point).map_err(failed)?;
        let whole = mount_dir.metadata().map_err(failed)?.ino() == ROOT_ID;
        let mount_dir = Some(mount_dir);
        Ok(Self { roots: roots.clone(), mount, mount_dir, whole, populated: false, ..Self::recorded() })
    }

    /// Starts without cgroups and without a file system: for a recording, whose records contain all paths.
    #[must_use]
    pub(crate) fn recorded() -> Self {
        let mount = Mount {
            kind: HierarchyKind::Unified,
            point: PathBuf::from(OsStr::from_bytes(DISPLAY_MOUNT)),
            root: b"/".to_vec(),
        };
        Self {
            roots: Roots::default(),
            mount,
            mount_dir: None,
            whole: true,
            paths: FxHashMap::default(),
            path_bytes: 0,
            order: VecDeque::new(),
            missing: FxHashSet::default(),
            forgotten: 0,
            populated: true,
        }
    }

    /// Its sizes.
    pub(crate) fn measure(&self, tables: &mut Tables) {
        let more = self.path_bytes + self.order.capacity() * size_of::<u64>();
        tables.set_map::<(u64, Arc<[u8]>)>("cgroups", self.paths.len(), self.paths.capacity(), more);
        tables.set_map::<u64>("cgroups without a path", self.missing.len(), self.missing.capacity(), 0);
    }

    /// The cgroups whose paths are known, by id, the oldest first.
    pub(crate) fn known(&self) -> impl Iterator<Item = (u64, &Arc<[u8]>)> {
        self.order.iter().filter_map(|&id| Some((id, self.paths.get(&id)?)))
    }

    /// The hierarchy and its mount point.
    #[doc(hidden)]
    #[must_use]
    pub fn mount(&self) -> &Mount {
        &self.mount
    }

    /// Reads all existing cgroups. Directories that vanish meanwhile are left out.
    ///
    /// Call it after the events are enabled, so that no cgroup is missed between the walk and the first record.
    ///
    /// # Errors
    /// The mount itself cannot be read.
    #[doc(hidden)]
    pub fn walk(&mut self) -> Result<(), Error> {
        let counts_children = hierarchy::is_mounted_at(&self.mount.point);
        self.walk_all(counts_children).map(drop)
    }

    /// The same, where the kernel may tell whether there are others in a directory. Returns how many were read.
    fn walk_all(&mut self, counts_children: bool) -> Result<usize, Error> {
        self.missing.clear();
        let top = self.mount.point.clone();
        let failed = |source| Error::Read { path: top.clone(), source };
        let id = fs::metadata(&top).map_err(failed)?.ino();
        self.insert(id, self.full_path(b""));
        fs::read_dir(&top).map_err(failed)?;
        let mut read = 0;
        let mut open = vec![top.clone()];
        while let Some(dir) = open.pop() {
            let Ok(entries) = fs::read_dir(&dir) else { continue };
            read += 1;
            // A cgroup has tens of files; only their kind is needed, which the directory has.
            let is_dir = |entry: &DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
            let inner: Vec<DirEntry> = entries.flatten().filter(is_dir).collect();
            let are_leaves = counts_children && inner.len() >= MANY && descendants(&dir) == Some(inner.len());
            for entry in inner {
                // The id is the inode on 64-bit kernels (`kernfs_id_ino` in include/linux/kernfs.h), which the directory has too.
                let (id, is_leaf) = if are_leaves {
                    (entry.ino(), true)
                } else {
                    let Ok(metadata) = entry.metadata() else { continue };
                    (metadata.ino(), counts_children && metadata.nlink() == LINKS_OF_LEAF)
                };
                let path = entry.path();
                self.note_population(&path);
                if let Ok(below) = path.strip_prefix(&top) {
                    self.insert(id, self.full_path(below.as_os_str().as_bytes()));
                }
                if !is_leaf {
                    open.push(path);
                }
            }
        }
        Ok(read)
    }

    fn note_population(&mut self, dir: &Path) {
        if self.mount.kind == HierarchyKind::PerfEvent && !self.populated {
            self.populated = fs::read(dir.join("cgroup.procs")).is_ok_and(|pids| !pids.is_empty());
        }
    }

    /// Why the paths may not be what the user expects; call it after the walk.
    #[must_use]
    pub(crate) fn warning(&self) -> Option<String> {
        let point = self.mount.point.display();
        if self.mount.kind == HierarchyKind::PerfEvent && !self.populated {
            return Some(format!(
                "samples carry cgroups of the v1 perf_event hierarchy ({point}), where all tasks are in the root: \
                 they cannot be told apart by cgroup; unmount it to have those of cgroup2"
            ));
        }
        if !self.whole && self.mount.prefix().is_empty() {
            return Some(format!(
                "{point} shows a part of the cgroup hierarchy only, as in a container: paths begin at that part, and \
                 cgroups outside it have no names; run with --cgroupns=host or name the directory where the host's is mounted"
            ));
        }
        None
    }

    /// A cgroup record: a new cgroup and its path from the hierarchy's root.
    ///
    /// If a cgroup's path was too long, its record contains "//enomem" (`perf_event_cgroup` in kernel/events/core.c);
    /// [`Cgroups::path`] looks it up.
    pub(crate) fn record(&mut self, id: u64, path: &[u8]) {
        self.missing.remove(&id);
        if path == b"//enomem" {
            return;
        }
        // The record has the host's path; if we see a part of it under other names, prefer these.
        let seen = if self.whole || !self.mount.prefix().is_empty() { None } else { self.by_handle(id) };
        self.insert(id, seen.unwrap_or_else(|| path.into()));
    }

    /// The cgroup's path from the hierarchy's root: "/" for the root, "/a/b" below it. Deleted cgroups keep theirs.
    ///
    /// An unknown id is looked up by its handle, once; that needs CAP_DAC_READ_SEARCH.
    pub fn path(&mut self, id: u64) -> Option<&Arc<[u8]>> {
        if !self.paths.contains_key(&id) {
            if id == 0 || self.missing.contains(&id) {
                return None;
            }
            if let Some(path) = self.by_handle(id) {
                self.insert(id, path);
            } else {
                if self.missing.len() >= MAX_MISSING {
                    self.missing.clear();
                }
                self.missing.insert(id);
            }
        }
        self.paths.get(&id)
    }

    /// The cgroup of a thread, for kernels that do not put it into samples. `None` if it is gone or outside the mount.
    pub(crate) fn of_thread(&mut self, pid: u32, tid: u32) -> Option<u64> {
        self.of_file(&self.roots.proc.join(format!("{pid}/task/{tid}/cgroup")))
    }

    fn of_file(&mut self, file: &Path) -> Option<u64> {
        let text = fs::read(file).ok()?;
        let path = self.mount.kind.path_in(&text)?;
        // Both are relative to our cgroup namespace; what lies above the mount's root has no directory here.
        let below = strip(path, &self.mount.root)?;
        if below.split(|&byte| byte == b'/').any(|name| name == b"..") {
            return None;
        }
        let id = fs::metadata(self.mount.point.join(OsStr::from_bytes(below))).ok()?.ino();
        if !self.paths.contains_key(&id) {
            self.insert(id, self.full_path(below));
        }
        Some(id)
    }

    /// The cgroup of the path: "/a/b" or "a/b" from the hierarchy's root, or a directory under the mount or under
    /// /sys/fs/cgroup.
    ///
    /// # Errors
    /// There is no such directory in the hierarchy.
    pub(crate) fn find(&mut self, path: &Path) -> Result<CgroupRef, Error> {
        let bytes = path.as_os_str().as_bytes();
        let point = self.mount.point.as_os_str().as_bytes();
        // A cgroup may be called "sys": try first what the user most likely means, the directory.
        let readings =
            [strip(bytes, point), strip(bytes, DISPLAY_MOUNT), strip(bytes, self.mount.prefix()), Some(bytes)];
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for below in readings.into_iter().flatten() {
            let below = Path::new(OsStr::from_bytes(below));
            let below = below.strip_prefix("/").unwrap_or(below);
            if below.components().any(|part| !matches!(part, Component::Normal(_))) {
                failure = io::Error::from(io::ErrorKind::InvalidInput);
                continue;
            }
            let below: PathBuf = below.components().collect();
            let dir =
                if below.as_os_str().is_empty() { self.mount.point.clone() } else { self.mount.point.join(&below) };
            match fs::metadata(&dir) {
                Ok(metadata) if metadata.is_dir() => {
                    let full = self.full_path(below.as_os_str().as_bytes());
                    self.insert(metadata.ino(), Arc::clone(&full));
                    return Ok(CgroupRef { id: metadata.ino(), dir, path: full });
                }
                Ok(_) => failure = io::Error::from(io::ErrorKind::NotADirectory),
                Err(error) => failure = error,
            }
        }
        Err(Error::NoCgroup { path: printable(bytes), mount: self.mount.point.clone(), source: failure })
    }

    /// Cgroups whose last component is `name`, `most` at the most, by their paths.
    pub(crate) fn named(&mut self, name: &[u8], most: usize) -> Vec<Arc<[u8]>> {
        if self.walk().is_err() {
            return Vec::new();
        }
        let is_it = |path: &&Arc<[u8]>| path.rsplit(|&byte| byte == b'/').next() == Some(name);
        let mut found: Vec<_> = self.known().map(|(_, path)| path).filter(is_it).cloned().collect();
        found.sort_unstable();
        found.truncate(most);
        found
    }

    /// The path from the hierarchy's root for a path below the mount, which may be empty.
    fn full_path(&self, below: &[u8]) -> Arc<[u8]> {
        let mut path = self.mount.prefix().to_vec();
        let below = below.strip_prefix(b"/").unwrap_or(below);
        if path.is_empty() || !below.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(below);
        path.into()
    }

    fn insert(&mut self, id: u64, path: Arc<[u8]>) {
        self.missing.remove(&id);
        self.path_bytes += path.len();
        match self.paths.insert(id, path) {
            Some(before) => self.path_bytes -= before.len(),
            None => self.order.push_back(id),
        }
        while self.order.len() > MAX_PATHS || self.path_bytes > MAX_PATH_BYTES {
            let Some(oldest) = self.order.pop_front() else { break };
            self.path_bytes -= self.paths.remove(&oldest).map_or(0, |path| path.len());
            self.forgotten += 1;
        }
    }

    /// A sentence about what was dropped at the bound and cannot be found again.
    pub(crate) fn left_out(&self) -> Option<String> {
        let forgotten = self.forgotten;
        (self.mount_dir.is_none() && forgotten > 0).then(|| {
            format!(
                "{forgotten} paths of cgroups were forgotten: there were more than {MAX_PATHS} of them, or more than {} MiB",
                MAX_PATH_BYTES >> 20
            )
        })
    }

    /// The path of a living cgroup by its id (`kernfs_fh_to_dentry` in fs/kernfs/mount.c).
    fn by_handle(&self, id: u64) -> Option<Arc<[u8]>> {
        let mount_dir = self.mount_dir.as_ref()?;
        let mut handle = KernfsHandle { bytes: 8, kind: FILEID_KERNFS, id };
        // SAFETY: the handle has the layout of struct file_handle with 8 bytes, as its first field says, and outlives the call;
        // the directory is open.
        let fd = unsafe {
            libc::open_by_handle_at(
                mount_dir.as_raw_fd(),
                (&raw mut handle).cast::<libc::file_handle>(),
                libc::O_PATH | libc::O_CLOEXEC,
            )
        };
        if fd < 0 {
            return None;
        }
        // SAFETY: the descriptor is new and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let target = fs::read_link(self.roots.proc.join(format!("self/fd/{}", fd.as_raw_fd()))).ok()?;
        let target = target.as_os_str().as_bytes();
        // A cgroup outside the mounted part has a path without the mount, from its file system's root.
        Some(
            strip(target, self.mount.point.as_os_str().as_bytes())
                .map_or_else(|| target.into(), |below| self.full_path(below)),
        )
    }
}

/// The path as schedulers see it and match their cgroup regexes against it: /sys/fs/cgroup and the path below it, without a
/// slash at the end.
#[must_use]
pub(crate) fn display_path(path: &[u8]) -> Vec<u8> {
    let mut display = DISPLAY_MOUNT.to_vec();
    if path != b"/" {
        display.extend_from_slice(path);
    }
    display
}

/// The cgroups in this one, and in those, as the kernel counts them; `None` for v1.
fn descendants(dir: &Path) -> Option<usize> {
    let text = fs::read_to_string(dir.join("cgroup.stat")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("nr_descendants "))?.parse().ok()
}

/// What follows `base` in the path, without the slash; `None` if the path is not under it.
fn strip<'a>(path: &'a [u8], base: &[u8]) -> Option<&'a [u8]> {
    let base = base.strip_suffix(b"/").unwrap_or(base);
    match path.strip_prefix(base)? {
        [] => Some(b""),
        [b'/', below @ ..] => Some(below),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
