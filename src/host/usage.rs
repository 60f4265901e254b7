//! How busy CPUs are, and what this process uses.

use std::path::Path;

use rustc_hash::FxHashMap;
use rustix::time::{clock_gettime, ClockId};

use super::proc;

/// The times of a CPU since the boot, in ticks of the kernel's clock (`USER_HZ`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// All but idle and waiting for I/O.
    pub busy: u64,
    /// All.
    pub all: u64,
}

/// The times of each CPU, of `/proc/stat` (proc_stat(5)); none if it cannot be read.
#[must_use]
pub fn cpu_times(proc: &Path) -> FxHashMap<u32, CpuTimes> {
    let text = proc::read(&proc.join("stat")).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().filter_map(times).collect()
}

/// A line of a CPU. Guests' time is a part of user time.
fn times(line: &str) -> Option<(u32, CpuTimes)> {
    // The line of all CPUs has a blank there.
    let fields = line.strip_prefix("cpu").filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))?;
    let mut fields = fields.split_ascii_whitespace();
    let cpu = fields.next()?.parse().ok()?;
    let fields: Vec<u64> = fields.take(8).map_while(|field| field.parse().ok()).collect();
    let all = fields.iter().fold(0u64, |sum, field| sum.saturating_add(*field));
    // idle and iowait.
    let idle = fields.iter().skip(3).take(2).fold(0u64, |sum, field| sum.saturating_add(*field));
    (fields.len() >= 4).then_some((cpu, CpuTimes { busy: all.saturating_sub(idle), all }))
}

/// CPU time of this process, ns.
#[must_use]
pub fn own_cpu_ns() -> u64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_busy_but_for_idle_and_io() {
        let line = |text| times(text);
        assert_eq!(line("cpu3 10 1 20 60 9 2 3 4 50 0"), Some((3, CpuTimes { busy: 40, all: 109 })));
        assert_eq!(line("cpu  10 1 20 60 9 2 3 4 50 0"), None);
        assert_eq!(line("intr 5 1 2 3 4"), None);
        assert_eq!(line("cpu7 1 2"), None);
    }
}
