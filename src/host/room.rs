//! How much memory this process may still take: of the host, and of the cgroups that it is in.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{mountinfo, proc, read, Roots};

/// The memory that is left, and the limit that determines it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Room {
    /// Bytes.
    pub bytes: u64,
    /// `MemAvailable`, or the file of the limit.
    pub of: String,
}

/// A version of cgroups: its mount has this type and option, and files for limit and usage.
struct Version {
    kind: &'static [u8],
    controller: &'static str,
    limit: &'static str,
    usage: &'static str,
}

/// Documentation/admin-guide/cgroup-v2.rst, and cgroup-v1/memory.rst.
const VERSIONS: [Version; 2] = [
    Version { kind: b"cgroup2", controller: "", limit: "memory.max", usage: "memory.current" },
    Version { kind: b"cgroup", controller: "memory", limit: "memory.limit_in_bytes", usage: "memory.usage_in_bytes" },
];

/// The least of what is left; `None` if nothing says it.
pub(crate) fn here(roots: &Roots) -> Option<Room> {
    let host = proc::memory(roots, "MemAvailable")
        .map(|kib| Room { bytes: kib.saturating_mul(1024), of: "MemAvailable".to_owned() });
    let of_cgroups = directories(roots).into_iter().filter_map(|(directory, version)| left(&directory, version));
    host.into_iter().chain(of_cgroups).min_by_key(|room| room.bytes)
}

/// The memory that a cgroup has left; `None` without a limit. Memory that the kernel would take back counts as free.
fn left(directory: &Path, version: &Version) -> Option<Room> {
    let number = |name: &str| fs::read_to_string(directory.join(name)).ok()?.trim().parse::<u64>().ok();
    let path = directory.join(version.limit);
    let (limit, usage) = (number(version.limit)?, number(version.usage)?);
    let stat = read(&directory.join("memory.stat")).unwrap_or_default();
    let cached = stat.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"inactive_file "));
    let cached = cached.and_then(proc::first_number).unwrap_or(0);
    Some(Room { bytes: limit.saturating_sub(usage.saturating_sub(cached)), of: path.display().to_string() })
}

/// The directories of the cgroups that this process is in, and of those above them.
fn directories(roots: &Roots) -> Vec<(PathBuf, &'static Version)> {
    let own = read(&roots.proc.join("self/cgroup")).unwrap_or_default();
    let mounts = read(&roots.proc.join("self/mountinfo")).unwrap_or_default();
    let mut found = Vec::new();
    for version in &VERSIONS {
        let path = own.split(|&byte| byte == b'\n').find_map(|line| {
            let mut fields = line.splitn(3, |&byte| byte == b':').skip(1);
            let mut controllers = fields.next()?.split(|&byte| byte == b',');
            controllers.any(|controller| controller == version.controller.as_bytes()).then_some(fields.next()?)
        });
        let mount = mountinfo::parse(&mounts).find(|mount| {
            mount.kind == version.kind && (version.controller.is_empty() || mount.has_option(version.controller))
        });
        let (Some(path), Some(mount)) = (path, mount) else { continue };
        // A container may see a part of the hierarchy as all of it.
        let below = path.strip_prefix(mount.root.as_slice()).unwrap_or(path);
        let names = below.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b"." | b".."));
        let mut directory = mount.point;
        found.push((directory.clone(), version));
        for name in names {
            directory.push(OsStr::from_bytes(name));
            found.push((directory.clone(), version));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_limit_counts() {
        let dir = tempfile::tempdir().unwrap();
        let (proc, mount) = (dir.path().join("proc"), dir.path().join("cgroup"));
        let write = |path: PathBuf, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let roots = Roots { proc: proc.clone(), ..Roots::default() };
        assert_eq!(here(&roots), None);
        write(proc.join("meminfo"), "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n");
        let room = |bytes, of: &str| Some(Room { bytes, of: of.to_owned() });
        assert_eq!(here(&roots), room(8_192_000, "MemAvailable"));
        write(proc.join("self/cgroup"), "4:cpu,memory:/old\n0::/a/b\n");
        let mounts = format!(
            "1 0 0:2 / {0}/v2 rw - cgroup2 cgroup2 rw\n2 0 0:3 / {0}/v1 rw - cgroup cgroup rw,memory,cpu\n",
            mount.display()
        );
        write(proc.join("self/mountinfo"), &mounts);
        write(mount.join("v2/a/b/memory.max"), "max\n");
        write(mount.join("v2/a/b/memory.current"), "5\n");
        assert_eq!(here(&roots), room(8_192_000, "MemAvailable"), "no limit");
        // Of an ancestor; what is only cached can be taken back.
        write(mount.join("v2/a/memory.max"), "1000\n");
        write(mount.join("v2/a/memory.current"), "900\n");
        write(mount.join("v2/a/memory.stat"), "anon 500\ninactive_file 300\n");
        let of = mount.join("v2/a/memory.max").display().to_string();
        assert_eq!(here(&roots), room(400, &of));
        write(mount.join("v1/old/memory.limit_in_bytes"), "600\n");
        write(mount.join("v1/old/memory.usage_in_bytes"), "700\n");
        assert_eq!(here(&roots).map(|room| room.bytes), Some(0));
    }
}
