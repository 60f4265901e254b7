//! Finds the cgroup hierarchy that samples refer to, and its mount: `/proc/self/cgroup` and `/proc/self/mountinfo`.

use std::path::{Path, PathBuf};

use super::mountinfo::{self, MountInfo};
use super::{read, Error, Roots};

/// The kind of hierarchy that `PERF_SAMPLE_CGROUP` ids come from: that of the perf_event controller, which is the unified
/// one unless v1 has it (`implicit_on_dfl` in kernel/events/core.c).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HierarchyKind {
    /// cgroup v2.
    Unified,
    /// The v1 hierarchy with the perf_event controller.
    PerfEvent,
}

impl HierarchyKind {
    /// The name in errors: the file system or the controller.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unified => "cgroup2",
            Self::PerfEvent => "perf_event",
        }
    }

    /// The cgroup's path in the text of a `/proc/PID/cgroup`, with lines `N:CONTROLLERS:PATH`. Paths are bytes and may contain
    /// colons.
    #[must_use]
    pub fn path_in(self, text: &[u8]) -> Option<&[u8]> {
        text.split(|&byte| byte == b'\n').find_map(|line| {
            let mut fields = line.splitn(3, |&byte| byte == b':');
            let id = fields.next()?;
            let controllers = fields.next()?;
            let path = fields.next()?;
            let found = match self {
                Self::Unified => id == b"0" && controllers.is_empty(),
                Self::PerfEvent => {
                    controllers.split(|&byte| byte == b',').any(|controller| controller == b"perf_event")
                }
            };
            found.then_some(path)
        })
    }
}

/// True for a directory of cgroups, of either version.
#[must_use]
pub fn is_mounted_at(directory: &Path) -> bool {
    let kinds = [libc::CGROUP2_SUPER_MAGIC, libc::CGROUP_SUPER_MAGIC];
    rustix::fs::statfs(directory).is_ok_and(|fs| kinds.contains(&fs.f_type))
}

/// A mount of the hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Which hierarchy.
    pub kind: HierarchyKind,
    /// The mount point.
    pub point: PathBuf,
    /// The cgroup that is mounted there, relative to our cgroup namespace: "/", or a part such as "/docker/x", or "/../.." if
    /// the mount shows more than our namespace.
    pub root: Vec<u8>,
}

impl Mount {
    /// Finds the hierarchy and its mount; of several mounts the one that shows most.
    ///
    /// # Errors
    /// A file cannot be read, or the hierarchy is not mounted.
    pub fn find(roots: &Roots) -> Result<Self, Error> {
        let own = read(&roots.proc.join("self/cgroup"))?;
        let kind = if HierarchyKind::PerfEvent.path_in(&own).is_some() {
            HierarchyKind::PerfEvent
        } else {
            HierarchyKind::Unified
        };
        let path = roots.proc.join("self/mountinfo");
        let text = read(&path)?;
        let mut mounts = mountinfo::parse(&text).filter_map(hierarchy).filter(|mount| mount.kind == kind);
        if let Some(point) = &roots.cgroup {
            let root = mounts.find(|mount| mount.point == *point).map_or_else(|| b"/".to_vec(), |mount| mount.root);
            return Ok(Self { kind, point: point.clone(), root });
        }
        // "/../.." shows more than "/", and "/" more than "/docker/x".
        let extent = |mount: &Self| {
            let names = mount.root.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
            names.fold(0i64, |depth, name| if name == b".." { depth - 1 } else { depth + 1 })
        };
        mounts.min_by_key(extent).ok_or(Error::NoHierarchy { hierarchy: kind.name(), mountinfo: path })
    }

    /// The prefix that makes paths below the mount into paths from the hierarchy's root.
    #[must_use]
    pub fn prefix(&self) -> &[u8] {
        if self.root == b"/" || self.root.starts_with(b"/..") {
            b""
        } else {
            &self.root
        }
    }
}

/// The hierarchy of a mount, if samples can refer to it.
fn hierarchy(info: MountInfo<'_>) -> Option<Mount> {
    let kind = match info.kind {
        b"cgroup2" => HierarchyKind::Unified,
        b"cgroup" if info.has_option("perf_event") => HierarchyKind::PerfEvent,
        _ => return None,
    };
    Some(Mount { kind, point: info.point, root: info.root })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    const V2: &str = "25 1 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const HYBRID: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    const V1: &str =
        "32 31 0:29 / /sys/fs/cgroup/perf_event rw master:1 propagate_from:2 - cgroup cgroup rw,perf_event\n";

    fn find(own: &str, mountinfo: &str) -> Result<Mount, Error> {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("self")).unwrap();
        fs::write(dir.path().join("self/cgroup"), own).unwrap();
        fs::write(dir.path().join("self/mountinfo"), mountinfo).unwrap();
        Mount::find(&Roots { proc: dir.path().into(), ..Roots::default() })
    }

    #[test]
    fn the_hierarchy_is_found() {
        let v2 = find("0::/user.slice\n", V2).unwrap();
        assert_eq!((v2.kind, v2.point.to_str()), (HierarchyKind::Unified, Some("/sys/fs/cgroup")));
        let hybrid = find("2:cpu:/\n1:name=systemd:/\n0::/\n", HYBRID).unwrap();
        assert_eq!((hybrid.kind, hybrid.point.to_str()), (HierarchyKind::Unified, Some("/sys/fs/cgroup/unified")));
        let v1 = find("3:net_cls,perf_event:/a\n0::/\n", &format!("{HYBRID}{V1}")).unwrap();
        assert_eq!((v1.kind, v1.point.to_str()), (HierarchyKind::PerfEvent, Some("/sys/fs/cgroup/perf_event")));
        let error = find("3:perf_event:/\n0::/\n", HYBRID).unwrap_err();
        assert!(matches!(error, Error::NoHierarchy { hierarchy: "perf_event", .. }), "{error}");
        assert!(matches!(find("", ""), Err(Error::NoHierarchy { hierarchy: "cgroup2", .. })));
    }

    #[test]
    fn the_mount_that_shows_the_most_is_taken() {
        let part = "50 1 0:22 /docker/a\\040b /here rw - cgroup2 cgroup rw\n";
        let host = "51 1 0:22 /../.. /host/cg\\134x rw - cgroup2 cgroup rw\n";
        assert_eq!(find("0::/\n", part).unwrap().prefix(), b"/docker/a b");
        assert_eq!(find("0::/\n", &format!("{part}{V2}")).unwrap().point.to_str(), Some("/sys/fs/cgroup"));
        let most = find("0::/\n", &format!("{part}{V2}{host}")).unwrap();
        assert_eq!((most.point.to_str(), most.prefix()), (Some("/host/cg\\x"), &b""[..]));
    }

    #[test]
    fn paths_of_a_process_may_hold_anything() {
        let text = b"4:cpu,perf_event:/v1:a b\n1:name=0::/no:/no\n0::/a: b\xff\n";
        assert_eq!(HierarchyKind::Unified.path_in(text), Some(&b"/a: b\xff"[..]));
        assert_eq!(HierarchyKind::PerfEvent.path_in(text), Some(&b"/v1:a b"[..]));
        assert_eq!(HierarchyKind::Unified.path_in(b"4:cpu:/\n"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_path_or_none(line in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = (HierarchyKind::PerfEvent.path_in(&line), HierarchyKind::Unified.path_in(&line));
        }
    }
}
