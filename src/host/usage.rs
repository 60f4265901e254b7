//! How busy CPUs are, and what this process uses.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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

impl CpuTimes {
    /// Idle and waiting for I/O.
    fn idle(self) -> u64 {
        self.all.saturating_sub(self.busy)
    }
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

/// CPU time that all other threads of the host use.
///
/// It is the time in which CPUs are not idle, as kernels without a tick on idle CPUs measure that exactly; what they count as busy are
/// ticks, of which a virtual machine can lose some.
#[derive(Debug)]
pub struct BusyTime {
    proc: PathBuf,
    begin: Instant,
    times: FxHashMap<u32, CpuTimes>,
    own: u64,
}

impl BusyTime {
    /// From now on.
    #[must_use]
    pub fn begin(proc: &Path) -> Self {
        Self { proc: proc.to_owned(), begin: Instant::now(), times: cpu_times(proc), own: own_cpu_ns() }
    }

    /// What they have used; `None` if it cannot be read.
    #[must_use]
    pub fn now(&self) -> Option<Duration> {
        let tick = Duration::from_secs(1) / u32::try_from(rustix::param::clock_ticks_per_second()).ok()?.max(1);
        let (elapsed, now) = (self.begin.elapsed(), cpu_times(&self.proc));
        let busy = now.iter().filter_map(|(cpu, now)| {
            let idle = now.idle().saturating_sub(self.times.get(cpu)?.idle());
            Some(elapsed.saturating_sub(tick.saturating_mul(u32::try_from(idle).unwrap_or(u32::MAX))))
        });
        let all = busy.reduce(Duration::saturating_add)?;
        Some(all.saturating_sub(Duration::from_nanos(own_cpu_ns().saturating_sub(self.own))))
    }
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

    #[test]
    fn others_use_what_is_not_idle() {
        let dir = tempfile::tempdir().unwrap();
        let stat = |text: &str| std::fs::write(dir.path().join("stat"), text).unwrap();
        stat("cpu  0 0 0 0\ncpu0 10 0 0 100 0\ncpu1 10 0 0 100 0\n");
        let busy = BusyTime::begin(dir.path());
        std::thread::sleep(Duration::from_millis(30));
        // The first was always idle, for longer than there was, and the second never; the third came later.
        stat("cpu0 10 0 0 100000 0\ncpu1 10 0 0 100 0\ncpu2 5 0 0 5 0\n");
        let begin = busy.begin.elapsed();
        let used = busy.now().unwrap();
        let own = Duration::from_nanos(own_cpu_ns() - busy.own);
        assert!(used + own >= begin && used <= busy.begin.elapsed(), "{begin:?} {used:?} {own:?}");
        std::fs::remove_file(dir.path().join("stat")).unwrap();
        assert_eq!((busy.now(), BusyTime::begin(dir.path()).now()), (None, None));
    }
}
