//! The limits of this process: resource limits, and settings of the kernel.

use std::fs;
use std::io;
use std::path::Path;

use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

/// A resource limit of this process (getrlimit(2)); `u64::MAX` means none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// The limit in force.
    pub soft: u64,
    /// The value to which we may raise it.
    pub hard: u64,
}

impl Limit {
    /// The limit in force, of a limit in bytes, for display.
    #[must_use]
    pub fn kib(self) -> String {
        match self.soft {
            u64::MAX => "unlimited".to_owned(),
            soft => format!("{} KiB", soft / 1024),
        }
    }
}

/// us of a CPU; a thread that reads rings gives its priority up long before.
const MAX_RTTIME: u64 = 2_000_000;

fn limit(resource: Resource) -> Limit {
    let Rlimit { current, maximum } = getrlimit(resource);
    Limit { soft: current.unwrap_or(u64::MAX), hard: maximum.unwrap_or(u64::MAX) }
}

/// `RLIMIT_NOFILE`.
#[must_use]
pub fn file_limit() -> Limit {
    limit(Resource::Nofile)
}

/// Raises the soft `RLIMIT_NOFILE` to `needed` if it is lower and the hard limit allows it; returns the limit in force.
///
/// # Errors
/// The errno of setrlimit(2).
pub fn raise_file_limit(needed: u64) -> io::Result<Limit> {
    let now = getrlimit(Resource::Nofile);
    let soft = now.maximum.map_or(needed, |hard| needed.min(hard));
    if now.current.is_some_and(|current| current < soft) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum: now.maximum })?;
    }
    Ok(file_limit())
}

/// Lets the kernel end this process with SIGXCPU where a real-time thread of it runs for 2 s without sleeping, unless there is a
/// limit already.
pub fn bound_realtime() {
    let now = getrlimit(Resource::Rttime);
    let soft = now.maximum.map_or(MAX_RTTIME, |hard| MAX_RTTIME.min(hard));
    if now.current.is_none() {
        // Lowering a limit always succeeds.
        let _ = setrlimit(Resource::Rttime, Rlimit { current: Some(soft), maximum: now.maximum });
    }
}

/// `RLIMIT_MEMLOCK`, in bytes.
#[must_use]
pub fn memlock_limit() -> Limit {
    limit(Resource::Memlock)
}

/// A number in a file of sysctl, such as `sys/kernel/perf_event_paranoid` below the procfs root.
#[must_use]
pub fn sysctl(proc: &Path, name: &str) -> Option<i64> {
    fs::read_to_string(proc.join("sys/kernel").join(name)).ok()?.trim().parse().ok()
}
