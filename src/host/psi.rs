//! How much of the time tasks of a cgroup, or of the host, wait for a resource: pressure stall information
//! (Documentation/accounting/psi.rst, and `cpu.pressure` in Documentation/admin-guide/cgroup-v2.rst).

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::hierarchy::Mount;
use super::{number, read_part, Roots};
use crate::sample::printable;

/// Bytes of a file that are read; the kernel writes two lines of about 60.
const MAX_BYTES: u64 = 1 << 10;

/// Why there is no pressure of a resource. Paths are escaped for a terminal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum NoPressure {
    /// The file is not there: the kernel has no PSI (`CONFIG_PSI`, or `psi=0` at boot), the cgroup has ended, switched it off
    /// (`cgroup.pressure`) or is of cgroup v1, or the resource's controller is off.
    #[error("there is no {0}")]
    Absent(String),
    /// The file is there, and the kernel was booted with PSI switched off.
    #[error("{0}: PSI is switched off; boot with psi=1")]
    Disabled(String),
    /// The file cannot be read.
    #[error("cannot read {path}: {reason}")]
    Unreadable {
        /// The file.
        path: String,
        /// The errno as text.
        reason: String,
    },
    /// The file does not hold what the kernel writes there.
    #[error("{0} is no pressure")]
    NotUnderstood(String),
    /// The path of the cgroup leads out of the hierarchy.
    #[error("{0} is no path below the cgroup hierarchy")]
    Outside(String),
}

/// How much of the time tasks were stalled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Stall {
    /// The last 10 s, in percent of the time.
    pub avg10: f64,
    /// The last 60 s, in percent.
    pub avg60: f64,
    /// The last 300 s, in percent.
    pub avg300: f64,
    /// Since the cgroup was made or the host booted, in us.
    pub total_us: u64,
}

/// The pressure of one resource.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pressure {
    /// At least one task waited.
    pub some: Stall,
    /// All tasks that were not idle waited at once. Before Linux 5.13 there is none for the CPU.
    pub full: Option<Stall>,
}

/// The pressure of each resource, or why there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pressures {
    /// Runnable tasks wait for a CPU.
    pub cpu: Result<Pressure, NoPressure>,
    /// Tasks wait for memory to be reclaimed or read back.
    pub memory: Result<Pressure, NoPressure>,
    /// Tasks wait for I/O.
    pub io: Result<Pressure, NoPressure>,
}

impl Stall {
    /// The part of the time since `earlier` that was stalled, 0 to 1. `None` if the total went back, as in a cgroup that was made
    /// anew, or no time has passed.
    #[must_use]
    pub fn since(&self, earlier: &Self, passed_ns: u64) -> Option<f64> {
        let stalled_us = self.total_us.checked_sub(earlier.total_us)?;
        (passed_ns > 0).then(|| (stalled_us as f64 * 1000.0 / passed_ns as f64).min(1.0))
    }
}

/// The pressure of the whole host.
#[must_use]
pub fn of_host(roots: &Roots) -> Pressures {
    let dir = roots.proc.join("pressure");
    all(|resource| of_file(&dir.join(resource)))
}

/// The pressure of a cgroup, whose path is from the hierarchy's root on, as in samples: `/a.slice/b.service`.
#[must_use]
pub fn of_cgroup(mount: &Mount, path: &[u8]) -> Pressures {
    let dir = directory(mount, path);
    all(|resource| of_file(&dir.clone()?.join(format!("{resource}.pressure"))))
}

fn all(of: impl Fn(&str) -> Result<Pressure, NoPressure>) -> Pressures {
    Pressures { cpu: of("cpu"), memory: of("memory"), io: of("io") }
}

/// The directory of a cgroup below the mount.
fn directory(mount: &Mount, path: &[u8]) -> Result<PathBuf, NoPressure> {
    let outside = || NoPressure::Outside(printable(path));
    let inner = path.strip_prefix(mount.prefix()).filter(|inner| inner.is_empty() || inner.starts_with(b"/"));
    let inner = Path::new(OsStr::from_bytes(inner.ok_or_else(outside)?.strip_prefix(b"/").unwrap_or_default()));
    let is_below = inner.components().all(|part| matches!(part, Component::Normal(_)));
    is_below.then(|| mount.point.join(inner)).ok_or_else(outside)
}

fn of_file(path: &Path) -> Result<Pressure, NoPressure> {
    let shown = || printable(path.as_os_str().as_bytes());
    let text = read_part(path, MAX_BYTES).map_err(|error| match (error.kind(), error.raw_os_error()) {
        (io::ErrorKind::NotFound | io::ErrorKind::NotADirectory, _) | (_, Some(libc::ENODEV)) => {
            NoPressure::Absent(shown())
        }
        // psi_show in kernel/sched/psi.c.
        (_, Some(libc::EOPNOTSUPP)) => NoPressure::Disabled(shown()),
        _ => NoPressure::Unreadable { path: shown(), reason: error.to_string() },
    })?;
    parse(&text).ok_or_else(|| NoPressure::NotUnderstood(shown()))
}

/// A file of pressure: lines `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, and `full` likewise.
#[must_use]
pub fn parse(text: &[u8]) -> Option<Pressure> {
    let line = |kind: &str| {
        let mut lines = text.split(|&byte| byte == b'\n');
        stall(lines.find_map(|line| line.strip_prefix(kind.as_bytes())?.strip_prefix(b" "))?)
    };
    Some(Pressure { some: line("some")?, full: line("full") })
}

fn stall(fields: &[u8]) -> Option<Stall> {
    let field = |name: &str| {
        let mut fields = fields.split(u8::is_ascii_whitespace);
        fields.find_map(|field| field.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    };
    let percent = |name: &str| {
        let value: f64 = std::str::from_utf8(field(name)?).ok()?.parse().ok()?;
        (0.0..=100.0).contains(&value).then_some(value)
    };
    Some(Stall {
        avg10: percent("avg10")?,
        avg60: percent("avg60")?,
        avg300: percent("avg300")?,
        total_us: number(field("total")?, 10)?,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;
    use crate::host::hierarchy::HierarchyKind;

    const CPU: &str = "some avg10=10.25 avg60=6.12 avg300=7.46 total=27009710600\n\
        full avg10=0.00 avg60=0.50 avg300=0.00 total=12\n";

    fn mount(point: &Path, root: &str) -> Mount {
        Mount { kind: HierarchyKind::Unified, point: point.to_owned(), root: root.into() }
    }

    #[test]
    fn a_cgroup_has_the_pressures_that_its_files_show() {
        let dir = tempfile::tempdir().unwrap();
        let cgroup = dir.path().join("a.slice/b: c");
        fs::create_dir_all(&cgroup).unwrap();
        fs::write(cgroup.join("cpu.pressure"), CPU).unwrap();
        // As before Linux 5.13.
        fs::write(cgroup.join("memory.pressure"), CPU.lines().next().unwrap()).unwrap();
        let shown = |name: &str| cgroup.join(name).display().to_string();
        let found = of_cgroup(&mount(dir.path(), "/"), b"/a.slice/b: c");
        let cpu = found.cpu.unwrap();
        assert_eq!(cpu.some, Stall { avg10: 10.25, avg60: 6.12, avg300: 7.46, total_us: 27_009_710_600 });
        assert_eq!(cpu.full.map(|full| (full.avg60, full.total_us)), Some((0.5, 12)));
        assert_eq!(found.memory.unwrap().full, None);
        assert_eq!(found.io, Err(NoPressure::Absent(shown("io.pressure"))));
        // The mount shows a part of the hierarchy only.
        let part = mount(&dir.path().join("a.slice"), "/a.slice");
        assert!(of_cgroup(&part, b"/a.slice/b: c").cpu.is_ok());
        for (mount, path) in [(&part, "/a.slices"), (&part, "/b"), (&part, "/a.slice/../../x"), (&part, "/a.slice//b")]
        {
            let outside = NoPressure::Outside(path.into());
            assert_eq!(of_cgroup(mount, path.as_bytes()).cpu, Err(outside), "{path}");
        }
        fs::write(cgroup.join("io.pressure"), "some avg10=NaN avg60=0 avg300=0 total=0\n").unwrap();
        let found = of_cgroup(&mount(dir.path(), "/"), b"/a.slice/b: c");
        assert_eq!(found.io, Err(NoPressure::NotUnderstood(shown("io.pressure"))));
    }

    #[test]
    fn this_host_has_pressures_or_says_why_not() {
        let found = of_host(&Roots::default());
        for pressure in [&found.cpu, &found.memory, &found.io] {
            match pressure {
                Ok(pressure) => assert!(pressure.some.avg10 <= 100.0),
                Err(NoPressure::NotUnderstood(path)) => panic!("{path}"),
                Err(why) => println!("SKIP: this_host_has_pressures_or_says_why_not: {why}"),
            }
        }
    }

    #[test]
    fn a_share_is_of_the_time_that_passed() {
        let at = |total_us| Stall { total_us, ..Stall::default() };
        assert_eq!(at(1_500_000).since(&at(1_000_000), 2_000_000_000), Some(0.25));
        assert_eq!(at(9_000_000).since(&at(0), 1_000_000_000), Some(1.0), "the clocks differ a little");
        assert_eq!(at(0).since(&at(1), 1_000_000_000), None, "another cgroup of this name");
        assert_eq!(at(1).since(&at(0), 0), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_pressure_or_none(text in proptest::collection::vec(any::<u8>(), 0..80), at in 0..120usize, to: u8) {
            let _ = parse(&text);
            let mut changed = CPU.as_bytes().to_vec();
            let at = at.min(changed.len() - 1);
            changed[at] = to;
            if let Some(found) = parse(&changed) {
                prop_assert!((0.0..=100.0).contains(&found.some.avg10));
            }
        }
    }
}
