//! The machine of a measurement, and what it lacks.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Serialize;

/// The command line or this host does not allow a comparison: one sentence, exit code 2.
#[derive(Debug)]
pub struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// [`Refused`] as an error.
pub fn refused(sentence: impl Into<String>) -> anyhow::Error {
    Refused(sentence.into()).into()
}

/// Where and when it was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// UTC.
    pub date: String,
    pub cpu: String,
    pub cpus: usize,
    pub memory_mib: u64,
    pub kernel: String,
    pub perf: String,
    pub scxprof: String,
    /// 1, 5 and 15 minutes, before.
    pub load_average: String,
    /// What was typed.
    pub command: String,
}

impl Machine {
    /// With the program `scxprof` and this version of perf, for a command line of these words.
    pub fn read(scxprof: &Path, perf: Option<&str>, words: &[OsString]) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let words = words.iter().map(|word| word.to_string_lossy().into_owned());
        Self {
            date: today(),
            cpu: cpu.map_or("unknown CPU", |(_, name)| name).to_owned(),
            cpus: cpus(),
            memory_mib: meminfo("MemTotal").unwrap_or(0) >> 20,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            perf: perf.unwrap_or("none").to_owned(),
            scxprof: version(scxprof).unwrap_or_else(|| "none".to_owned()),
            load_average: fs::read_to_string("/proc/loadavg")
                .unwrap_or_default()
                .split_whitespace()
                .take(3)
                .collect::<Vec<_>>()
                .join(" "),
            command: std::iter::once("versus-perf".to_owned()).chain(words).collect::<Vec<_>>().join(" "),
        }
    }

    /// In one line.
    pub fn sentence(&self) -> String {
        let Self { date, cpu, cpus, kernel, perf, scxprof, load_average, .. } = self;
        format!("{date}, {cpus} CPUs ({cpu}), Linux {kernel}, {perf}, {scxprof}, load average {load_average} before")
    }
}

/// The CPUs that are online.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A field of /proc/meminfo in bytes.
pub fn meminfo(field: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(rest.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

/// What `PROGRAM --version` says first.
pub fn version(program: &Path) -> Option<String> {
    let said = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    Some(text.lines().next()?.trim().to_owned()).filter(|line| said.status.success() && !line.is_empty())
}

/// # Errors
/// We are not root.
pub fn need_root(what: &str) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(refused(format!("{what} samples the whole host, which takes root: run it with sudo")))
}

/// # Errors
/// The directory has no room for this number of bytes.
pub fn need_room(dir: &Path, bytes: u64, what: &str) -> Result<()> {
    let stat = rustix::fs::statvfs(dir).with_context(|| dir.display().to_string())?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free >= bytes {
        return Ok(());
    }
    let mb = |bytes: u64| bytes.div_ceil(1_000_000);
    Err(refused(format!(
        "{what} takes {} MB in {}, which has {} MB left: choose fewer --samples, or another directory with --work",
        mb(bytes),
        dir.display(),
        mb(free)
    )))
}

/// Today in UTC as YYYY-MM-DD.
pub fn today() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let (year, month, day) = scxprof_base::date::of_days(since.as_secs() / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}
