//! Counts of samples lost between the hardware and the decision, by stage.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::sample::sentences;

/// Counts of samples that were read, left out and lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Loss {
    /// Samples read from the rings, of tasks to be sampled.
    pub samples: u64,
    /// Samples lost because a ring was full: `PERF_FORMAT_LOST`, or `PERF_RECORD_LOST` before Linux 6.0.
    pub ring_full: u64,
    /// Samples that hardware or driver dropped (`PERF_RECORD_LOST_SAMPLES`).
    pub hardware: u64,
    /// Samples that we dropped because the session was too slow.
    pub channel_full: u64,
    /// Records whose fields contradict their size; of a text, lines that are not samples.
    pub malformed: u64,
    /// Rings that were given up because of an invalid header.
    pub corrupt_rings: u64,
    /// Threads that read rings and died of a bug. The later samples of their CPUs are lost; they are counted only if
    /// the rings were full.
    pub dead_workers: u64,
    /// Samples that these threads had read but not passed on.
    pub abandoned: u64,
    /// Names, forks, mappings and cgroups lost because a ring was full. After each such loss, procfs was read again.
    pub side_band: u64,
    /// How often samples were lost because an AUX area was full or data was cut; the kernel does not count these
    /// samples (`PERF_AUX_FLAG_TRUNCATED`, `PERF_AUX_FLAG_PARTIAL`).
    #[serde(skip_serializing_if = "is_zero")]
    pub aux_lost: u64,
    /// Pieces of AUX data in which samples collided, so that the hardware dropped one of them
    /// (`PERF_AUX_FLAG_COLLISION`).
    #[serde(skip_serializing_if = "is_zero")]
    pub aux_collided: u64,
    /// Bytes of AUX data that are not valid packets.
    #[serde(skip_serializing_if = "is_zero")]
    pub aux_bad_bytes: u64,
    /// Packets of AUX data of unknown kinds, left out of the samples that contain them.
    #[serde(skip_serializing_if = "is_zero")]
    pub aux_unknown: u64,
    /// How often the kernel throttled an event.
    pub throttled: u64,
    /// Events that the kernel counted without writing a sample or reporting a loss; known only if every event should
    /// give a sample. Observed on one build of Linux 6.18, also with perf's own events: all ticks of an idle CPU but
    /// the first, and a few page faults in a million. Debian's Linux 7.2 writes a sample for each tick.
    pub unsampled: u64,
    /// Samples left out because they were our own.
    pub own: u64,
    /// Samples left out because they were of another scxprof process; `samples` includes them.
    pub profilers: u64,
    /// Samples left out because the CPU was idle.
    pub idle: u64,
    /// Samples of kernel threads, or of kernel code that was not requested.
    pub in_kernel: u64,
    /// Samples of interrupts and softirqs, which run in an arbitrary thread.
    pub in_interrupt: u64,
    /// Samples of ops that do not access memory.
    pub no_memory_op: u64,
    /// Loads faster than the threshold, if the hardware could not filter them.
    pub below_ldlat: u64,
    /// Hardware samples without an instruction and an address (`ip` and `addr` both 0), which PEBS gives now and then.
    pub bogus: u64,
    /// Samples of tasks outside our pid namespace.
    pub outside_pid_namespace: u64,
    /// Samples of tasks that had already lost their pid (`-1`, exiting).
    pub exiting: u64,
    /// Samples of threads without a known name.
    pub unnamed: u64,
    /// Samples with a cgroup without a path.
    pub no_cgroup_path: u64,
    /// Samples with an address outside user memory.
    pub no_user_address: u64,
    /// Samples that came too late to be sorted by time; they are used anyway.
    pub late: u64,
    /// Names, forks, mappings and cgroups that arrived after later samples had been named; they apply from then on.
    pub late_side_band: u64,
    /// Samples of classes beyond the bound of the tally; they count only for their cell.
    pub evicted: u64,
    /// Counts of scheduling events.
    #[serde(skip_serializing_if = "SchedLoss::is_empty")]
    pub sched: SchedLoss,
}

/// Counts of scheduling events that were read and lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SchedLoss {
    /// Events read.
    pub events: u64,
    /// Of these, events of `sched_stat_runtime`.
    pub of_runtime: u64,
    /// Of these, events of dispatch queues.
    pub of_dsq: u64,
    /// Events lost because a ring was full.
    pub ring_full: u64,
    /// Events that we dropped because the session was too slow.
    pub dropped: u64,
    /// Records that are not events, or are shorter than their fields.
    pub malformed: u64,
    /// Events that came too late to be sorted by time; they are used anyway.
    pub late: u64,
    /// Events that the kernel counted without writing a sample or reporting a loss. Observed on one build of Linux
    /// 6.18, where an idle CPU gives only one sample a tick, to perf too; Debian's Linux 7.2 writes all of them.
    pub unsampled: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde gives a reference.
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl SchedLoss {
    /// Events that were read or lost in a ring.
    pub(crate) fn seen(&self) -> u64 {
        self.events.saturating_add(self.ring_full).saturating_add(self.malformed)
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Events that occurred and were not used.
    #[must_use]
    pub fn lost(&self) -> u64 {
        [self.ring_full, self.dropped, self.malformed, self.unsampled].into_iter().fold(0, u64::saturating_add)
    }

    /// [`SchedLoss::lost`] in percent of all events; 0 if there were none.
    #[must_use]
    pub fn percent(&self) -> f64 {
        // Dropped events had been read.
        let all = self.seen().saturating_add(self.unsampled);
        if all == 0 {
            return 0.0;
        }
        100.0 * self.lost() as f64 / all as f64
    }
}

impl Loss {
    /// Adds the counts of another worker.
    pub(crate) fn add(&mut self, other: &Self) {
        let mut other = *other;
        for (sum, part) in self.counts().into_iter().zip(other.counts()) {
            *sum = sum.saturating_add(*part);
        }
    }

    /// What was counted after `before`, an earlier state of the same counts.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let (mut since, mut before) = (*self, *before);
        for (count, earlier) in since.counts().into_iter().zip(before.counts()) {
            *count = count.saturating_sub(*earlier);
        }
        since
    }

    /// All counts, as an array of the size of the struct.
    fn counts(&mut self) -> [&mut u64; size_of::<Loss>() / size_of::<u64>()] {
        [
            &mut self.samples,
            &mut self.ring_full,
            &mut self.hardware,
            &mut self.channel_full,
            &mut self.malformed,
            &mut self.corrupt_rings,
            &mut self.dead_workers,
            &mut self.abandoned,
            &mut self.side_band,
            &mut self.aux_lost,
            &mut self.aux_collided,
            &mut self.aux_bad_bytes,
            &mut self.aux_unknown,
            &mut self.throttled,
            &mut self.unsampled,
            &mut self.own,
            &mut self.profilers,
            &mut self.idle,
            &mut self.in_kernel,
            &mut self.in_interrupt,
            &mut self.no_memory_op,
            &mut self.below_ldlat,
            &mut self.bogus,
            &mut self.outside_pid_namespace,
            &mut self.exiting,
            &mut self.unnamed,
            &mut self.no_cgroup_path,
            &mut self.no_user_address,
            &mut self.late,
            &mut self.late_side_band,
            &mut self.evicted,
            &mut self.sched.events,
            &mut self.sched.of_runtime,
            &mut self.sched.of_dsq,
            &mut self.sched.ring_full,
            &mut self.sched.dropped,
            &mut self.sched.malformed,
            &mut self.sched.late,
            &mut self.sched.unsampled,
        ]
    }

    /// Each count, by its name.
    pub(crate) fn by_stage(&self) -> BTreeMap<String, u64> {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        let sched = value.as_object_mut().and_then(|counts| counts.remove("sched"));
        let sched = sched.as_ref().and_then(|sched| sched.as_object()).into_iter().flatten();
        let sched: Vec<(String, Value)> = sched.map(|(name, count)| (format!("sched_{name}"), count.clone())).collect();
        if let Some(counts) = value.as_object_mut() {
            counts.extend(sched);
        }
        serde_json::from_value(value).unwrap_or_default()
    }

    /// Samples that were read, or lost before they could be read.
    pub(crate) fn seen(&self) -> u64 {
        let Self { own, idle, in_kernel, in_interrupt, outside_pid_namespace, exiting, .. } = *self;
        [own, idle, in_kernel, in_interrupt, outside_pid_namespace, exiting]
            .into_iter()
            .fold(self.total(), u64::saturating_add)
    }

    /// Samples that were taken and did not reach the decision.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let Self { ring_full, hardware, channel_full, malformed, abandoned, .. } = *self;
        [ring_full, hardware, channel_full, malformed, abandoned].into_iter().fold(0, u64::saturating_add)
    }

    /// [`Loss::lost`] in percent of all samples that were taken; 0 if there were none.
    #[must_use]
    pub fn percent(&self) -> f64 {
        let total = self.total();
        if total == 0 {
            return 0.0;
        }
        100.0 * self.lost() as f64 / total as f64
    }

    /// All samples that were taken: those read, and those lost before they could be read.
    #[must_use]
    pub fn total(&self) -> u64 {
        // Samples without an address are lost and read in the same proportion as the others.
        let read =
            [self.samples, self.no_memory_op, self.below_ldlat, self.bogus].into_iter().fold(0, u64::saturating_add);
        let unread = self.ring_full.saturating_add(self.hardware).saturating_add(self.malformed);
        read.saturating_add(unread)
    }

    /// One sentence for each stage with losses or uncertain samples.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        sentences(&[
            (self.ring_full, "samples lost in full rings (--mmap-pages of run and record makes the rings larger)"),
            (self.hardware, "samples lost by the hardware or its driver"),
            (self.channel_full, "samples dropped because the session did not keep up"),
            (self.malformed, "records dropped because their content contradicts their size, or lines that are no samples"),
            (self.corrupt_rings, "rings given up as corrupt; their CPUs were not sampled further"),
            (
                self.dead_workers,
                "times a reader thread died (a bug in scxprof); the later samples of its CPUs are lost",
            ),
            (self.abandoned, "samples lost with a reader thread that died"),
            (self.side_band, "records of names, forks, mappings or cgroups lost in full rings; procfs was read again"),
            (
                self.aux_lost,
                "times samples were lost because an AUX area was full, which the kernel does not count: make it larger (--mmap-pages, perf record -m ,64M) \
                 or sample less often (--rate, --period, perf record -c)",
            ),
            (
                self.aux_collided,
                "pieces of AUX data with samples that collided, of which one was dropped each: sample less often (--rate, --period, \
                 perf record -c)",
            ),
            (self.aux_bad_bytes, "bytes of AUX data that make no sense"),
            (self.aux_unknown, "packets of AUX data of unknown kinds, left out of their samples"),
            (self.throttled, "times the kernel throttled sampling (kernel.perf_event_max_sample_rate)"),
            (self.outside_pid_namespace, "samples left out: outside this pid namespace (in a container, start the container with --pid=host to see them)"),
            (self.unnamed, "samples of threads that had ended before they could be named: counted to their cgroup only"),
            (self.no_cgroup_path, "samples of cgroups without a path: counted to the last cell"),
            (self.late, "samples that arrived out of time order; they are used"),
            (
                self.late_side_band,
                "records of names, forks, mappings or cgroups that arrived after the samples that they explain",
            ),
            (self.sched.ring_full, "scheduling events lost in full rings (--mmap-pages makes the rings larger)"),
            (self.sched.dropped, "scheduling events dropped because the session did not keep up"),
            (self.sched.malformed, "scheduling events dropped because their content contradicts their size"),
            (
                self.sched.unsampled,
                "scheduling events that the kernel counted but did not sample (seen on one build of Linux 6.18, on idle CPUs)",
            ),
            (self.sched.late, "scheduling events that arrived out of time order; they are used"),
            (self.evicted, "samples of thread classes beyond the memory bound: counted to their cell only"),
        ])
    }

    /// One sentence for each kind of sample that was left out.
    #[must_use]
    pub fn left_out(&self) -> Vec<String> {
        sentences(&[
            (self.own, "samples left out: scxprof itself"),
            (self.profilers, "samples left out: other scxprof on this host"),
            (self.idle, "samples left out: the idle task"),
            (self.in_kernel, "samples left out: kernel code"),
            (self.in_interrupt, "samples left out: interrupts and softirqs, which run in whichever thread they meet"),
            (self.no_memory_op, "samples left out: ops that access no memory"),
            (self.below_ldlat, "samples left out: loads below ldlat"),
            (self.bogus, "samples left out: neither an instruction nor an address"),
            (self.exiting, "samples left out: tasks that had ended before they could be identified"),
            (self.no_user_address, "accesses outside user memory"),
        ])
    }

    /// Sentences on events without a sample that the kernel does not count as lost.
    pub(crate) fn harmless(&self) -> Vec<String> {
        sentences(&[(
            self.unsampled,
            "events without a sample, of which the kernel reports no loss (mostly ticks of idle CPUs)",
        )])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_is_of_what_happened() {
        let loss = Loss { samples: 90, ring_full: 10, ..Loss::default() };
        assert!((loss.percent() - 10.0).abs() < 1e-9);
        let loss = Loss { samples: 100, channel_full: 25, ..Loss::default() };
        assert!((loss.percent() - 25.0).abs() < 1e-9);
        assert!(Loss::default().percent().abs() < 1e-9);
    }

    #[test]
    fn every_sample_that_a_worker_reads_or_misses_is_seen() {
        let read =
            Loss { samples: 1, own: 2, idle: 4, in_kernel: 8, no_memory_op: 16, below_ldlat: 32, ..Loss::default() };
        let loss = Loss { bogus: 64, outside_pid_namespace: 128, exiting: 256, ring_full: 512, hardware: 1024, ..read };
        assert_eq!(loss.seen(), 2047);
        let after = Loss { channel_full: 1, unnamed: 1, no_user_address: 1, late: 1, evicted: 1, ..Loss::default() };
        assert_eq!(after.seen(), 0, "what is counted later is of samples that were read");
    }

    #[test]
    fn nothing_lost_says_nothing() {
        assert!(Loss { samples: 5, ..Loss::default() }.lines().is_empty());
        assert_eq!(Loss { ring_full: 3, ..Loss::default() }.lines().len(), 1);
    }
}
