//! The results of a replay, beside the recorded values.

use serde::Serialize;

use super::board::Results;
use super::director::Played;
use super::script::Script;
use scxprof_sched::Durations;

/// A number of the recording, its times scaled, and that of the replay; `None` where a thread was stopped before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Pair {
    /// Of the recording.
    pub recorded: u64,
    /// Of the replay.
    pub replayed: Option<u64>,
}

impl Pair {
    /// How much of the recorded number the replay has more, or less if it is negative: 0.05 is 5 %. `None` where one of them is
    /// missing.
    #[must_use]
    pub fn difference(&self) -> Option<f64> {
        let replayed = self.replayed? as f64;
        (self.recorded > 0).then(|| replayed / self.recorded as f64 - 1.0)
    }

    fn add(&mut self, other: Self) {
        self.recorded = self.recorded.saturating_add(other.recorded);
        self.replayed = self.replayed.zip(other.replayed).map(|(sum, replayed)| sum.saturating_add(replayed));
    }
}

/// How a mock thread compares with the recorded one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fidelity {
    /// ns on CPUs.
    pub run_ns: Pair,
    /// Times that it left its CPU: to sleep, or for another thread.
    pub switches: Pair,
    /// Of these, to sleep.
    pub sleeps: Pair,
    /// Sleeps that a replayed thread ended.
    pub wakeups: Pair,
    /// ns runnable without a CPU.
    pub wait_ns: Pair,
    /// Moves to another CPU; in the replay those that the thread saw at the end of sleeps and of pieces of work.
    pub migrations: Pair,
}

/// A thread.
#[derive(Debug, Clone, Serialize)]
pub struct ThreadLine {
    /// Its last name.
    pub comm: String,
    /// Thread id in the recording.
    pub tid: u32,
    /// Process id in the recording.
    pub pid: u32,
    /// Thread id of the mock thread; 0 if it was never made.
    pub mock_tid: u32,
    /// Units of work.
    pub work: u64,
    /// How it compares.
    #[serde(flatten)]
    pub fidelity: Fidelity,
}

/// Times from a wakeup until the thread ran, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// Their number.
    pub count: u64,
    /// Half of them are shorter.
    pub p50_ns: Option<u64>,
    /// 99 % of them are shorter.
    pub p99_ns: Option<u64>,
}

impl From<&Durations> for Latency {
    fn from(durations: &Durations) -> Self {
        Self { count: durations.count(), p50_ns: durations.quantile(0.5), p99_ns: durations.quantile(0.99) }
    }
}

/// The numbers of a replay as a whole.
#[derive(Debug, Clone, Serialize)]
pub struct ReplayTotals {
    /// When it began, CLOCK_MONOTONIC of this host, ns.
    pub begin_ns: u64,
    /// From there until all threads had done what they should, ns.
    pub duration_ns: u64,
    /// ns of CPU time of all threads.
    pub cpu_ns: u64,
    /// Units of work, each of about 20 ns of a CPU.
    pub work: u64,
    /// The same in a second.
    pub work_per_s: f64,
    /// From a wakeup by another thread until the thread ran.
    pub wakeup_latency: Latency,
    /// From the time until which a thread slept until it ran.
    pub timer_latency: Latency,
    /// Moves to another CPU.
    pub migrations: u64,
    /// Cache misses in user code; `None` where this host has no PMU that counts them.
    pub cache_misses: Option<u64>,
    /// It was stopped before its end.
    pub is_stopped: bool,
}

/// Of all threads.
#[derive(Debug, Clone, Serialize)]
pub struct Compared {
    /// Their sum.
    pub total: Fidelity,
    /// The recorded time from a wakeup until the thread ran, scaled.
    pub recorded_latency: Latency,
    /// The threads, the one that ran longest first.
    pub threads: Vec<ThreadLine>,
}

fn durations<'a>(of: impl Iterator<Item = &'a [(u64, u64)]>) -> Durations {
    let mut durations = Durations::default();
    for &(ns, count) in of.flatten() {
        for _ in 0..count {
            durations.add(ns);
        }
    }
    durations
}

/// The numbers of a replay as a whole.
#[must_use]
pub fn totals(played: &Played) -> ReplayTotals {
    let duration_ns = played.end.saturating_sub(played.begin);
    let work: u64 = played.threads.iter().map(|thread| thread.work).sum();
    ReplayTotals {
        begin_ns: played.begin,
        duration_ns,
        cpu_ns: played.threads.iter().map(|thread| thread.run).sum(),
        work,
        work_per_s: work as f64 * 1e9 / duration_ns.max(1) as f64,
        wakeup_latency: Latency::from(&durations(played.threads.iter().map(|thread| &thread.latency[..]))),
        timer_latency: Latency::from(&durations(played.threads.iter().map(|thread| &thread.late[..]))),
        migrations: played.threads.iter().map(|thread| thread.migrations).sum(),
        cache_misses: played.count,
        is_stopped: played.is_stopped,
    }
}

/// The threads of a replay beside those of the recording.
#[must_use]
pub fn compare(script: &Script, played: &Played) -> Compared {
    let scaled = |ns: u64| (ns as f64 * script.scale).round() as u64;
    let mut threads = Vec::new();
    let mut latency = Durations::default();
    for (mock, results) in script.threads.iter().zip(&played.threads).filter(|(mock, _)| mock.is_active) {
        let Results { tid, run, work, woken, sleeps, preemptions, wait, migrations, .. } = results;
        let recorded = &mock.recorded;
        latency.merge(&recorded.latency);
        let pair = |recorded, replayed| Pair { recorded, replayed };
        let switches = sleeps.zip(*preemptions).map(|(sleeps, preemptions)| sleeps + preemptions);
        threads.push(ThreadLine {
            comm: mock.comm.to_string(),
            tid: mock.tid,
            pid: script.processes.get(mock.process as usize).map_or(0, |process| process.pid),
            mock_tid: *tid,
            work: *work,
            fidelity: Fidelity {
                run_ns: pair(scaled(recorded.run), Some(*run)),
                switches: pair(recorded.sleeps + recorded.preemptions, switches),
                sleeps: pair(recorded.sleeps, *sleeps),
                wakeups: pair(recorded.woken, Some(*woken)),
                wait_ns: pair(scaled(recorded.wait), *wait),
                migrations: pair(recorded.migrations, Some(*migrations)),
            },
        });
    }
    threads.sort_by_key(|thread| (std::cmp::Reverse(thread.fidelity.run_ns.recorded), thread.tid));
    let zero = Pair { recorded: 0, replayed: Some(0) };
    let mut total =
        Fidelity { run_ns: zero, switches: zero, sleeps: zero, wakeups: zero, wait_ns: zero, migrations: zero };
    for ThreadLine { fidelity, .. } in &threads {
        total.run_ns.add(fidelity.run_ns);
        total.switches.add(fidelity.switches);
        total.sleeps.add(fidelity.sleeps);
        total.wakeups.add(fidelity.wakeups);
        total.wait_ns.add(fidelity.wait_ns);
        total.migrations.add(fidelity.migrations);
    }
    let Latency { count, p50_ns, p99_ns } = Latency::from(&latency);
    let recorded_latency = Latency { count, p50_ns: p50_ns.map(scaled), p99_ns: p99_ns.map(scaled) };
    Compared { total, recorded_latency, threads }
}
