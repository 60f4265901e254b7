//! How busy the CPUs are, and what this process costs, since it was last asked.

use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::snapshot::OwnCost;
use crate::host::usage::{cpu_times, own_cpu_ns, CpuTimes};
use crate::host::{proc, Roots};

/// What was read last.
#[derive(Debug)]
pub(super) struct Usage {
    begin_cpu: u64,
    read: Instant,
    times: FxHashMap<u32, CpuTimes>,
    cpu: u64,
    /// What followed from it, which is given out until there is a new window.
    busy: FxHashMap<u32, f64>,
    cpus: f64,
    /// The CPU time of threads, in ticks of the kernel's clock, when it was last read, and the CPUs that each used since.
    ticks: FxHashMap<(u32, u32), u64>,
    of_threads: FxHashMap<u32, u64>,
    elapsed: Duration,
}

/// Threads whose CPU time is read.
const MAX_THREADS: usize = 1000;

impl Usage {
    pub(super) fn new(roots: &Roots) -> Self {
        let cpu = own_cpu_ns();
        let times = cpu_times(&roots.proc);
        Self {
            begin_cpu: cpu,
            read: Instant::now(),
            times,
            cpu,
            busy: FxHashMap::default(),
            cpus: 0.0,
            ticks: FxHashMap::default(),
            of_threads: FxHashMap::default(),
            elapsed: Duration::ZERO,
        }
    }

    /// The busy part of each CPU, and what this process costs: over the time since this was last asked, if that is most of `interval`.
    /// `threads` are those whose CPU time is wanted, process and thread.
    pub(super) fn now(
        &mut self,
        roots: &Roots,
        interval: Duration,
        threads: impl Iterator<Item = (u32, u32)>,
    ) -> (FxHashMap<u32, f64>, OwnCost) {
        let (elapsed, cpu) = (self.read.elapsed(), own_cpu_ns());
        if elapsed.mul_f64(1.25) >= interval {
            let times = cpu_times(&roots.proc);
            let busy = times.iter().filter_map(|(cpu, now)| {
                let before = self.times.get(cpu)?;
                let (busy, all) = (now.busy.saturating_sub(before.busy), now.all.saturating_sub(before.all));
                (all > 0).then(|| (*cpu, (busy as f64 / all as f64).min(1.0)))
            });
            self.busy = busy.collect();
            self.cpus = cpu.saturating_sub(self.cpu) as f64 / 1e9 / elapsed.as_secs_f64().max(1e-9);
            (self.times, self.cpu, self.read) = (times, cpu, Instant::now());
            let ticks = threads.take(MAX_THREADS).filter_map(|(pid, tid)| {
                let stat = proc::stat(&roots.proc.join(format!("{pid}/task/{tid}")))?;
                Some(((pid, tid), stat.utime.saturating_add(stat.stime)))
            });
            let ticks: FxHashMap<(u32, u32), u64> = ticks.collect();
            let ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
            let used = ticks.iter().filter_map(|(thread, now)| {
                let ticks = now.checked_sub(*self.ticks.get(thread)?)?;
                Some((thread.1, ticks.saturating_mul(ns)))
            });
            self.of_threads = used.collect();
            (self.ticks, self.elapsed) = (ticks, elapsed);
        }
        let rss = proc::resident_bytes(roots).unwrap_or(0);
        let cpu_s = cpu.saturating_sub(self.begin_cpu) as f64 / 1e9;
        (self.busy.clone(), OwnCost { cpu_s, cpus: self.cpus, rss_bytes: rss, ..OwnCost::default() })
    }

    /// ns on a CPU of threads by their id, and the time in which they had them; of the time that [`Usage::now`] is about.
    pub(super) fn of_threads(&self) -> (&FxHashMap<u32, u64>, Duration) {
        (&self.of_threads, self.elapsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_runs_has_used_a_cpu() {
        let roots = Roots::default();
        let own = (std::process::id(), rustix::thread::gettid().as_raw_nonzero().get() as u32);
        let mut usage = Usage::new(&roots);
        let begin = Instant::now();
        loop {
            usage.now(&roots, Duration::ZERO, [own].into_iter());
            let (used, elapsed) = usage.of_threads();
            if used.get(&own.1).is_some_and(|ns| *ns > 0) && elapsed > Duration::ZERO {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "{used:?}");
            // It needs CPU time, however much else runs.
            let spin = Instant::now();
            while spin.elapsed() < Duration::from_millis(50) {}
        }
    }
}
