//! Reads the host: procfs, sysfs and cgroupfs under [`Roots`], and files of other users.

pub(crate) mod aside;
pub(crate) mod clock;
pub(crate) mod facts;
pub(crate) mod hierarchy;
pub(crate) mod kallsyms;
pub(crate) mod limits;
pub(crate) mod mountinfo;
pub(crate) mod namespace;
pub(crate) mod open;
pub(crate) mod pagemap;
pub(crate) mod phases;
pub(crate) mod priority;
pub(crate) mod proc;
pub(crate) mod psi;
pub(crate) mod resctrl;
pub(crate) mod room;
pub(crate) mod scx_stats;
pub(crate) mod tasks;
pub(crate) mod topology;
pub(crate) mod tracefs;
pub(crate) mod usage;

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The directories under which the host is read; tests and containers use others.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Roots {
    /// procfs, `/proc`. It must belong to our own pid namespace.
    pub proc: PathBuf,
    /// sysfs, `/sys`.
    pub sys: PathBuf,
    /// The mount point of the cgroup hierarchy; `None` finds it in `proc/self/mountinfo`.
    pub cgroup: Option<PathBuf>,
    /// The root directory of paths, `/`, for programs that are in no container or have ended.
    pub files: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { proc: PathBuf::from("/proc"), sys: PathBuf::from("/sys"), cgroup: None, files: PathBuf::from("/") }
    }
}

/// Errors of reading the host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or directory cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The errno and its text.
        source: io::Error,
    },
    /// A file does not contain what the kernel writes there.
    #[error("{} holds {text:?}: {reason}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The part that was not understood.
        text: String,
        /// What was expected.
        reason: &'static str,
    },
    /// The hierarchy that sampled cgroup ids belong to is not mounted anywhere that we can see.
    #[error(
        "the {hierarchy} cgroup hierarchy, whose ids samples carry, is not mounted (searched {}); mount it or name its directory",
        mountinfo.display()
    )]
    NoHierarchy {
        /// `cgroup2` or `perf_event`.
        hierarchy: &'static str,
        /// The list of mounts that was searched.
        mountinfo: PathBuf,
    },
    /// There is no such cgroup.
    #[error("no cgroup \"{path}\" in the hierarchy mounted at {}: {source}", mount.display())]
    NoCgroup {
        /// The requested path.
        path: String,
        /// The mount point of the hierarchy.
        mount: PathBuf,
        /// The errno and its text.
        source: io::Error,
    },
}

/// The bytes of a file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}

/// The first bytes of a file, at most `max`.
pub(crate) fn read_part(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A number in ASCII digits of `radix`; `None` for anything else, a sign included.
pub(crate) fn number(digits: &[u8], radix: u32) -> Option<u64> {
    if !digits.first()?.is_ascii_hexdigit() {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

/// The pid in a name in procfs; `None` for names that are no pid.
pub(crate) fn pid_of(name: &std::ffi::OsStr) -> Option<u32> {
    use std::os::unix::ffi::OsStrExt;
    u32::try_from(number(name.as_bytes(), 10)?).ok()
}
