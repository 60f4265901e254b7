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
    /// Idle and waiting for I/O.
    pub idle: u64,
    /// Code of guests, which is a part of `busy`.
    pub guest: u64,
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
    let fields: Vec<u64> = fields.take(10).map_while(|field| field.parse().ok()).collect();
    let sum = |fields: &[u64]| fields.iter().fold(0u64, |sum, field| sum.saturating_add(*field));
    let (of_host, of_guests) = fields.split_at(fields.len().min(8));
    // idle and iowait.
    let (all, idle) = (sum(of_host), sum(of_host.get(3..5.min(of_host.len())).unwrap_or_default()));
    (fields.len() >= 4).then_some((cpu, CpuTimes { busy: all.saturating_sub(idle), all, idle, guest: sum(of_guests) }))
}

/// Below this part of idle time, what threads would use is not known.
const LEAST_IDLE: f64 = 0.05;

/// CPU time that all other threads of the host use.
///
/// It is the time in which CPUs are neither idle nor run a guest's code: kernels without a tick on idle CPUs measure idle time exactly,
/// and of the ticks that they count as busy a virtual machine can lose some.
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

    /// Their use so far. `None` if it cannot be read, or if hardly any CPU time was left ([`LEAST_IDLE`]): then threads wait
    /// for each other, and would use more. A CPU that was offline meanwhile counts as busy.
    #[must_use]
    pub fn now(&self) -> Option<Duration> {
        let own = Duration::from_nanos(own_cpu_ns().saturating_sub(self.own));
        used_by_others(self.begin.elapsed(), &self.times, &cpu_times(&self.proc), own)
    }
}

/// What others have used of the CPUs that there were before and after this time, in which this process used `own`.
fn used_by_others(
    elapsed: Duration,
    before: &FxHashMap<u32, CpuTimes>,
    after: &FxHashMap<u32, CpuTimes>,
    own: Duration,
) -> Option<Duration> {
    let both: Vec<_> = after.iter().filter_map(|(cpu, after)| Some((before.get(cpu)?, after))).collect();
    let seconds = |of: fn(&CpuTimes) -> u64| -> f64 {
        let passed = both.iter().map(|(before, after)| of(after).saturating_sub(of(before)));
        let ticks = passed.fold(0u64, u64::saturating_add);
        ticks as f64 / rustix::param::clock_ticks_per_second().max(1) as f64
    };
    let (all, idle) = (elapsed.as_secs_f64() * both.len() as f64, seconds(|it| it.idle));
    let used = (all - idle - seconds(|it| it.guest) - own.as_secs_f64()).max(0.0);
    (idle > LEAST_IDLE * all).then(|| Duration::try_from_secs_f64(used).ok()).flatten()
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
        assert_eq!(
            line("cpu3 10 1 20 60 9 2 3 4 50 0"),
            Some((3, CpuTimes { busy: 40, all: 109, idle: 69, guest: 50 }))
        );
        assert_eq!(line("cpu  10 1 20 60 9 2 3 4 50 0"), None);
        assert_eq!(line("intr 5 1 2 3 4"), None);
        assert_eq!(line("cpu7 1 2"), None);
    }

    #[test]
    fn others_use_what_is_not_idle() {
        let tick = rustix::param::clock_ticks_per_second();
        let cpu = |idle, guest| CpuTimes { idle: 7 + idle * tick, guest: guest * tick, ..CpuTimes::default() };
        let before = FxHashMap::from_iter([(0, cpu(0, 0)), (1, cpu(0, 0))]);
        let used = |after: &[CpuTimes], own| {
            let after = (0..).zip(after.iter().copied()).collect();
            used_by_others(Duration::from_secs(10), &before, &after, Duration::from_secs(own))
                .map(|it| it.as_secs_f64())
        };
        // The first CPU was idle for 4 of 10 s, and the other one ran a guest for 3 s; a third was not there before.
        assert_eq!(used(&[cpu(4, 0), cpu(0, 3), cpu(5, 0)], 1), Some(12.0));
        // Nothing was idle, or all of it, by a clock that runs ahead; or there is no such file.
        assert_eq!(used(&[cpu(0, 0), cpu(0, 0)], 0), None);
        assert_eq!(used(&[cpu(11, 0), cpu(10, 0)], 0), Some(0.0));
        assert_eq!(used(&[], 0), None);
        assert_eq!(BusyTime::begin(Path::new("/nonexistent")).now(), None);
    }
}
