//! The trace file system at its mount point, or a mount of our own that no other process sees.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{openat, Mode, OFlags};
use rustix::mount::{fsconfig_create, fsmount, fsopen, FsMountFlags, FsOpenFlags, MountAttrFlags};

use super::mountinfo;

/// Longer files of tracefs are not what we look for, bytes.
const MAX_FILE: u64 = 64 << 10;
/// The same of the list of all events.
#[cfg(feature = "mcp")]
const MAX_LIST: u64 = 1 << 20;

/// Why tracefs or a file in it cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TracefsError {
    /// It is not mounted anywhere that we can see, and we may not mount it.
    #[error("tracefs is not mounted, and a mount of our own failed: {call}: {source}")]
    Mount {
        /// The system call.
        call: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// It is mounted, and we may neither open it nor mount it again.
    #[error("cannot open tracefs at {}: {source}", path.display())]
    Closed {
        /// The mount point.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file; relative to tracefs if the mount is our own.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file does not contain a number.
    #[error("{} holds no number", path.display())]
    NotANumber {
        /// The file.
        path: PathBuf,
    },
}

/// An open tracefs.
#[derive(Debug)]
pub struct Tracefs {
    dir: OwnedFd,
    /// Its mount point; empty for our own mount.
    path: PathBuf,
}

impl Tracefs {
    /// Finds tracefs in `self/mountinfo` under `procfs` (`/proc`): as itself, else as `tracing` in debugfs. If none can be
    /// opened, mounts one without a path (`fsmount(2)`, Linux 5.2) that ends with this value.
    ///
    /// # Errors
    /// [`TracefsError::Mount`], [`TracefsError::Closed`].
    pub fn open(procfs: &Path) -> Result<Self, TracefsError> {
        let mounts = std::fs::read(procfs.join("self/mountinfo")).unwrap_or_default();
        let mut closed = None;
        for path in mount_points(&mounts) {
            match File::open(path.join("events")).and_then(|_| File::open(&path)) {
                Ok(dir) => return Ok(Self { dir: dir.into(), path }),
                Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
                    closed.get_or_insert(TracefsError::Closed { path, source });
                }
                Err(_) => {}
            }
        }
        let dir = mount().map_err(|(call, source)| closed.unwrap_or(TracefsError::Mount { call, source }))?;
        Ok(Self { dir, path: PathBuf::new() })
    }

    /// Its mount point; `None` for our own mount.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        (!self.path.as_os_str().is_empty()).then_some(&*self.path)
    }

    /// The first 64 KiB of a file, by its path in tracefs (`events/timer/hrtimer_expire_entry/id`).
    ///
    /// # Errors
    /// [`TracefsError::Read`].
    pub fn read(&self, name: &str) -> Result<Vec<u8>, TracefsError> {
        self.open_file(name)
            .and_then(|file| {
                // Some files return everything in the first read and nothing after it (`show_header` in
                // kernel/trace/trace_events.c), and without this capacity the first read would be small.
                let mut bytes = Vec::with_capacity(MAX_FILE as usize);
                file.take(MAX_FILE).read_to_end(&mut bytes).map(|_| bytes)
            })
            .map_err(|source| TracefsError::Read { path: self.path.join(name), source })
    }

    /// All tracepoints, as `SYSTEM:NAME` (`available_events`), the first MiB of them.
    ///
    /// # Errors
    /// [`TracefsError::Read`].
    #[cfg(feature = "mcp")]
    pub(crate) fn tracepoints(&self) -> Result<Vec<String>, TracefsError> {
        let name = "available_events";
        let mut bytes = Vec::new();
        self.open_file(name)
            .and_then(|file| file.take(MAX_LIST).read_to_end(&mut bytes))
            .map_err(|source| TracefsError::Read { path: self.path.join(name), source })?;
        Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
    }

    /// The `config` of a `PERF_TYPE_TRACEPOINT` event for `event` (`timer/hrtimer_expire_entry`).
    ///
    /// # Errors
    /// The kernel has no such event, or its id cannot be read.
    pub fn event_id(&self, event: &str) -> Result<u64, TracefsError> {
        let name = format!("events/{event}/id");
        let bytes = self.read(&name)?;
        std::str::from_utf8(bytes.trim_ascii())
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| TracefsError::NotANumber { path: self.path.join(name) })
    }

    fn open_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(openat(&self.dir, name, flags, Mode::empty())?.into())
    }
}

/// Where tracefs may be mounted, from the text of a mountinfo, best first.
fn mount_points(text: &[u8]) -> Vec<PathBuf> {
    let mut own = Vec::new();
    let mut within = Vec::new();
    for mount in mountinfo::parse(text).filter(|mount| mount.root == b"/") {
        match mount.kind {
            b"tracefs" => own.push(mount.point),
            b"debugfs" => within.push(mount.point.join("tracing")),
            _ => {}
        }
    }
    own.extend(within);
    own
}

/// A tracefs mount without a path; on failure the call that failed.
fn mount() -> Result<OwnedFd, (&'static str, io::Error)> {
    let fs = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(|error| ("fsopen", error.into()))?;
    fsconfig_create(&fs).map_err(|error| ("fsconfig", error.into()))?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(|error| ("fsmount", error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn mount_points_are_found_whatever_their_options() {
        let mountinfo = b"22 1 0:6 / /sys/kernel/debug rw,nosuid shared:9 master:3 - debugfs debugfs rw\n\
            23 1 0:12 / /mnt/a\\040b rw - tracefs nodev rw\n\
            24 1 0:13 /instances /sub rw - tracefs nodev rw\n\
            25 1 0:14 / /tracefs rw - tmpfs tracefs rw\n";
        assert_eq!(mount_points(mountinfo), [Path::new("/mnt/a b"), Path::new("/sys/kernel/debug/tracing")]);
    }

    #[test]
    fn an_id_is_read_where_tracefs_is_mounted() {
        let dir = tempfile::tempdir().unwrap();
        let event = dir.path().join("t/events/timer/x");
        std::fs::create_dir_all(&event).unwrap();
        std::fs::write(event.join("id"), "417\n").unwrap();
        std::fs::create_dir(dir.path().join("self")).unwrap();
        let line = format!("23 1 0:12 / {}/t rw - tracefs nodev rw\n", dir.path().display());
        std::fs::write(dir.path().join("self/mountinfo"), line).unwrap();
        let tracefs = Tracefs::open(dir.path()).unwrap();
        assert_eq!(tracefs.path(), Some(&*dir.path().join("t")));
        assert_eq!(tracefs.event_id("timer/x").unwrap(), 417);
        assert!(tracefs.event_id("timer/y").unwrap_err().to_string().contains("timer/y/id"));
        std::fs::write(event.join("id"), "no").unwrap();
        assert!(matches!(tracefs.event_id("timer/x"), Err(TracefsError::NotANumber { .. })));
    }

    #[test]
    fn a_mount_of_our_own_serves_as_well() {
        match mount() {
            Ok(dir) => {
                let tracefs = Tracefs { dir, path: PathBuf::new() };
                assert!(tracefs.event_id("timer/hrtimer_expire_entry").unwrap() > 0);
                assert_eq!(tracefs.path(), None);
            }
            Err((call, error)) => eprintln!("SKIP: a_mount_of_our_own_serves_as_well: {call}: {error}"),
        }
    }

    proptest! {
        #[test]
        fn any_mountinfo_is_read(text in prop::collection::vec(any::<u8>(), 0..500)) {
            let _ = mount_points(&text);
        }
    }
}
