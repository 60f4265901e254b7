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
}

impl Usage {
    pub(super) fn new(roots: &Roots) -> Self {
        let cpu = own_cpu_ns();
        let times = cpu_times(&roots.proc);
        Self { begin_cpu: cpu, read: Instant::now(), times, cpu, busy: FxHashMap::default(), cpus: 0.0 }
    }

    /// The busy part of each CPU, and what this process costs: over the time since this was last asked, if that is most of `interval`.
    pub(super) fn now(&mut self, roots: &Roots, interval: Duration) -> (FxHashMap<u32, f64>, OwnCost) {
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
        }
        let rss = proc::resident_pages(roots).unwrap_or(0).saturating_mul(rustix::param::page_size() as u64);
        let cpu_s = cpu.saturating_sub(self.begin_cpu) as f64 / 1e9;
        (self.busy.clone(), OwnCost { cpu_s, cpus: self.cpus, rss_bytes: rss, ..OwnCost::default() })
    }
}
