//! A thread beside the workers: it adjusts the periods of the hardware events, and watches CPUs go offline and online.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::attr::Rate;
use super::open::EventError;
use super::open::Sampling;
use super::plan::{Planned, Steer};
use crate::host::priority;
use crate::host::topology::{format_cpu_list, parse_cpu_list};

/// How often it runs.
const ROUND: Duration = Duration::from_millis(200);
/// Adjusting may take one part in this many of a CPU: each read of another CPU's event interrupts it.
const COST: u32 = 100;
/// Periods within this factor of the right one are not changed.
const NEAR: f64 = 1.25;
/// A period is shortened at most by this factor at a time: an idle CPU may be busy the next moment.
const SHORTEN: u64 = 2;
/// A period is lengthened at most by this factor at a time.
const LENGTHEN: u64 = 64;
/// Longer than any useful period.
const MAX_PERIOD: u64 = 1 << 40;

/// The thread, and how it ends.
#[derive(Debug)]
pub(super) struct Watcher {
    stop: Sender<()>,
    thread: JoinHandle<(Vec<String>, bool, Hotplug)>,
}

impl Watcher {
    /// Ends the thread; gives what it saw, as sentences, and whether it changed a period. `ended` are CPUs whose events ended before,
    /// which it may have missed.
    pub(super) fn stop(self, ended: &[u32]) -> (Vec<String>, bool) {
        drop(self.stop);
        let Ok((mut sentences, has_steered, mut hotplug)) = self.thread.join() else {
            let died =
                "the thread that steers periods and watches for CPUs that go offline died: neither was done to the end";
            return (vec![died.to_owned()], true);
        };
        hotplug.gone.extend(ended);
        sentences.extend(hotplug.sentences());
        (sentences, has_steered)
    }
}

/// Starts watching events that have just been enabled, on `cpus`.
///
/// # Errors
/// The errno of a thread that could not be started.
pub(super) fn start(sampling: &[Sampling], events: &[Planned], cpus: Vec<u32>, sys: PathBuf) -> io::Result<Watcher> {
    let steered = events.iter().enumerate().filter_map(|(plan, event)| {
        let (Some(steer), Rate::Period(period)) = (event.steer, event.spec.rate) else { return None };
        let watched = sampling.iter().filter(|sampling| sampling.plan == plan).map(|sampling| (sampling.clone(), 0));
        let range = (period, period);
        Some(Steered {
            name: event.spec.name.to_string(),
            steer,
            period,
            range,
            events: watched.collect(),
            refused: None,
        })
    });
    let mut watch = Watch { steered: steered.collect(), hotplug: Hotplug::new(cpus), sys };
    let (stop, stopped) = crossbeam_channel::bounded(0);
    let run = move || {
        watch.run(&stopped);
        let has_steered = watch.steered.iter().any(|steered| steered.range.0 < steered.range.1);
        (watch.steered.iter().filter_map(Steered::sentence).collect(), has_steered, watch.hotplug)
    };
    let thread = priority::spawn("steer", run)?;
    Ok(Watcher { stop, thread })
}

struct Watch {
    steered: Vec<Steered>,
    hotplug: Hotplug,
    sys: PathBuf,
}

impl Watch {
    fn run(&mut self, stopped: &Receiver<()>) {
        let mut last = Instant::now();
        let mut due = last;
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(ROUND) {
            self.hotplug.look(&self.sys);
            let begin = Instant::now();
            if begin < due {
                continue;
            }
            for steered in &mut self.steered {
                steered.correct((begin - last).as_secs_f64());
            }
            last = begin;
            due = begin + begin.elapsed() * COST;
        }
        self.hotplug.look(&self.sys);
    }
}

/// An event with an adjusted period; all CPUs have the same period, so every sample has the same weight.
struct Steered {
    name: String,
    steer: Steer,
    period: u64,
    /// The smallest and the largest so far.
    range: (u64, u64),
    /// With their counts at the last reading.
    events: Vec<(Sampling, u64)>,
    refused: Option<EventError>,
}

impl Steered {
    fn correct(&mut self, seconds: f64) {
        let mut by_cpu: BTreeMap<u32, u64> = BTreeMap::new();
        for (sampling, before) in &mut self.events {
            let Ok(value) = sampling.event.read() else { continue };
            let grown = value.value.saturating_sub(*before);
            *before = value.value;
            *by_cpu.entry(sampling.event.cpu).or_default() += grown;
        }
        let busiest = by_cpu.into_values().max().unwrap_or(0) as f64 / seconds.max(1e-3);
        let period = next_period(self.steer, self.period, busiest);
        if period == self.period || self.refused.is_some() {
            return;
        }
        for (sampling, _) in &self.events {
            // For an offline CPU or a task that has ended, the error is harmless.
            if let Err(error) = sampling.event.set_period(period) {
                if error.errno() == libc::EINVAL {
                    self.refused = Some(error);
                    return;
                }
            }
        }
        self.period = period;
        self.range = (self.range.0.min(period), self.range.1.max(period));
    }

    /// `None` where every event was sampled: nothing had to be done.
    fn sentence(&self) -> Option<String> {
        let Self { name, steer: Steer { rate, .. }, period, range: (least, greatest), .. } = self;
        if let Some(error) = &self.refused {
            return Some(format!(
                "{name}: a sample every {period} events, which could not be steered further: {error}"
            ));
        }
        if least == greatest {
            return (*period > 1)
                .then(|| format!("{name}: a sample every {period} events, for at most {rate} a second and CPU"));
        }
        Some(format!(
            "{name}: a sample every {period} events in the end, {least} to {greatest} while it was steered to {rate} a second on \
             the busiest CPU"
        ))
    }
}

/// The period that gives the rate if the busiest CPU has this many events a second; `now` if there are none.
fn next_period(steer: Steer, now: u64, events_per_second: f64) -> u64 {
    let right = events_per_second / f64::from(steer.rate.max(1));
    let ratio = right / now as f64;
    if events_per_second <= 0.0 || (1.0 / NEAR..=NEAR).contains(&ratio) {
        return now;
    }
    let within = (right as u64).clamp(now / SHORTEN, now.saturating_mul(LENGTHEN)).clamp(steer.min, MAX_PERIOD);
    if steer.multiple > 1 {
        within.next_multiple_of(steer.multiple)
    } else {
        within | 1
    }
}

/// CPUs that were not online all the time. The events of a CPU that goes offline are gone for good
/// (`perf_event_exit_cpu_context()` in kernel/events/core.c).
struct Hotplug {
    sampled: BTreeSet<u32>,
    /// The CPUs online at the beginning, once they have been read.
    begin: Option<BTreeSet<u32>>,
    gone: BTreeSet<u32>,
    new: BTreeSet<u32>,
}

impl Hotplug {
    fn new(sampled: Vec<u32>) -> Self {
        Self { sampled: sampled.into_iter().collect(), begin: None, gone: BTreeSet::new(), new: BTreeSet::new() }
    }

    fn look(&mut self, sys: &Path) {
        let online = std::fs::read(sys.join("devices/system/cpu/online")).ok();
        if let Some(online) = online.and_then(|online| parse_cpu_list(&online)).filter(|online| !online.is_empty()) {
            self.saw(&online.into_iter().collect());
        }
    }

    fn saw(&mut self, online: &BTreeSet<u32>) {
        self.gone.extend(self.sampled.difference(online));
        match &self.begin {
            Some(begin) => self.new.extend(online.difference(begin).filter(|cpu| !self.sampled.contains(cpu))),
            None => self.begin = Some(online.clone()),
        }
    }

    fn sentences(&self) -> Vec<String> {
        let list = |cpus: &BTreeSet<u32>| format_cpu_list(&cpus.iter().copied().collect::<Vec<_>>());
        [
            (&self.gone, "went offline during the capture: not sampled since"),
            (&self.new, "came online during the capture: not sampled"),
        ]
        .into_iter()
        .filter(|(cpus, _)| !cpus.is_empty())
        .map(|(cpus, what)| format!("CPU {} {what}", list(cpus)))
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPS: Steer = Steer { rate: 1000, min: 1 << 14, multiple: 16 };
    const LOADS: Steer = Steer { rate: 1000, min: 1009, multiple: 1 };

    #[test]
    fn a_period_settles_at_the_rate() {
        for (steer, events, first) in [(OPS, 4e9, 1 << 20), (LOADS, 3e7, 100_003), (LOADS, 5e8, 100_003)] {
            let mut period = first;
            for _ in 0..8 {
                period = next_period(steer, period, events);
                assert!(period.is_multiple_of(steer.multiple) && (steer.multiple > 1 || period % 2 == 1));
            }
            let rate = events / period as f64;
            assert!((800.0..=1250.0).contains(&rate), "{rate}");
            assert_eq!(next_period(steer, period, events * 1.1), period, "small changes are left alone");
        }
    }

    #[test]
    fn an_idle_host_does_not_bring_the_period_down_at_once() {
        assert_eq!(next_period(LOADS, 100_003, 0.0), 100_003);
        assert_eq!(next_period(LOADS, 100_003, 5_000.0), 50_001);
        assert_eq!(next_period(LOADS, 1_100, 10.0), 1_009);
        assert_eq!(next_period(OPS, 1 << 14, 10.0), 1 << 14);
        assert_eq!(next_period(LOADS, 1_009, f64::MAX), (1_009 * LENGTHEN) | 1);
    }

    #[test]
    fn all_faults_are_sampled_until_there_are_too_many() {
        let steer = Steer { rate: 100_000, min: 1, multiple: 1 };
        assert_eq!([0.0, 50_000.0, 120_000.0].map(|faults| next_period(steer, 1, faults)), [1; 3]);
        assert_eq!([400_000.0, 1e6].map(|faults| next_period(steer, 1, faults)), [5, 11]);
        assert_eq!(next_period(steer, next_period(steer, 5, 20_000.0), 20_000.0), 1);
    }

    #[test]
    fn cpus_that_go_and_come_are_named() {
        let set = |cpus: &[u32]| cpus.iter().copied().collect::<BTreeSet<u32>>();
        let mut hotplug = Hotplug::new(vec![0, 1, 2, 3]);
        for online in [&[0, 1, 2, 3, 4][..], &[0, 3, 4], &[0, 1, 3, 4, 5]] {
            hotplug.saw(&set(online));
        }
        assert_eq!(
            hotplug.sentences(),
            [
                "CPU 1-2 went offline during the capture: not sampled since",
                "CPU 5 came online during the capture: not sampled"
            ]
        );
        let mut quiet = Hotplug::new(vec![0]);
        quiet.saw(&set(&[0, 1]));
        quiet.saw(&set(&[0, 1]));
        assert_eq!(quiet.sentences(), [""; 0], "-C leaves CPUs out on purpose");
    }
}
