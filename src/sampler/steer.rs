//! A thread beside the workers that adjusts the periods of the hardware events, and opens the events of CPUs that come
//! online.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::attr::Rate;
use super::error::SamplerError;
use super::hardware::MAX_PERIOD_SPE;
use super::hotplug::Hotplug;
use super::live::{self, Live};
use super::open::EventError;
use super::open::Sampling;
use super::plan::Steer;
use crate::host::priority;
use scxprof_base::cpus::parse_cpu_list;

/// The interval between two rounds.
const ROUND: Duration = Duration::from_millis(200);
/// The part of a CPU that adjusting may take is one in this many: each read of another CPU's event interrupts that CPU.
const COST: u32 = 100;
/// Periods within this factor of the right one are not changed.
const NEAR: f64 = 1.25;
/// The most by which a period is shortened at a time: an idle CPU may become busy at any moment.
const SHORTEN: u64 = 2;
/// The most by which a period is lengthened at a time.
const LENGTHEN: u64 = 64;
/// Samples in AUX areas arrive in pieces (`worker::aux_area`), so a shorter time says nothing about their rate.
const AUX_SECONDS: f64 = 1.0;
/// The longest period of SPE (`arm_spe_event_sanitise_period()` in drivers/perf/arm_spe_pmu.c), and longer than any
/// useful one of other events.
const MAX_PERIOD: u64 = MAX_PERIOD_SPE;

/// In each round, the events of one in this many CPUs are checked.
const CHECKED: usize = 10;
/// After this time, the enabled time of an event of an online CPU has certainly grown.
const LONGER: Duration = Duration::from_millis(100);

/// The thread, and the flag that ends it.
#[derive(Debug)]
pub(super) struct Watcher {
    stop: Sender<()>,
    thread: JoinHandle<(Vec<String>, bool, Hotplug)>,
}

impl Watcher {
    /// Ends the thread; returns sentences on what it saw, and whether it changed a period. `ended` are CPUs whose
    /// events ended earlier, which the thread may have missed.
    pub(super) fn stop(self, ended: &[u32]) -> (Vec<String>, bool) {
        drop(self.stop);
        let Ok((mut sentences, has_steered, mut hotplug)) = self.thread.join() else {
            let died =
                "the thread that steers periods and watches for CPUs that go offline died: neither was done to the end";
            return (vec![died.to_owned()], true);
        };
        for &cpu in ended {
            hotplug.ended(cpu, Duration::ZERO);
        }
        sentences.extend(hotplug.sentences());
        (sentences, has_steered)
    }
}

/// Starts watching events that have just been enabled.
///
/// # Errors
/// The errno of a thread that could not be started.
pub(super) fn start(live: &Arc<Mutex<Live>>) -> io::Result<Watcher> {
    let mut watch = SteerThread::new(live);
    let (stop, stopped) = crossbeam_channel::bounded(0);
    let run = move || {
        watch.run(&stopped);
        let has_steered = watch.steered.iter().any(|steered| steered.range.0 < steered.range.1);
        (watch.steered.iter().filter_map(Steered::sentence).collect(), has_steered, watch.hotplug)
    };
    let thread = priority::spawn("steer", run)?;
    Ok(Watcher { stop, thread })
}

struct SteerThread {
    live: Arc<Mutex<Live>>,
    begin: Instant,
    steered: Vec<Steered>,
    hotplug: Hotplug,
    sys: PathBuf,
    /// How long the events of each CPU had been enabled, in ns, and when that was read.
    enabled: BTreeMap<u32, (u64, Duration)>,
    /// The last CPU whose events were checked.
    checked: u32,
}

impl SteerThread {
    fn new(live: &Arc<Mutex<Live>>) -> Self {
        let locked = live::lock(live);
        let steered = locked.recipe.events.iter().enumerate().filter_map(|(plan, event)| {
            let (Some(steer), Rate::Period(period)) = (event.steer, event.spec.rate) else { return None };
            let name = event.spec.name.to_string();
            Some(Steered { plan, name, steer, period, seconds: 0.0, range: (period, period), refused: None })
        });
        let options = &locked.recipe.options;
        let sampled: Vec<u32> = locked.cpus.keys().copied().collect();
        Self {
            live: Arc::clone(live),
            begin: Instant::now(),
            steered: steered.collect(),
            hotplug: Hotplug::new(&sampled, &options.cpus, options.all_cpus),
            sys: options.sys.clone(),
            enabled: BTreeMap::new(),
            checked: 0,
        }
    }

    fn run(&mut self, stopped: &Receiver<()>) {
        let mut last = Instant::now();
        let mut due = last;
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(ROUND) {
            self.check();
            self.look();
            let begin = Instant::now();
            if begin < due {
                continue;
            }
            for steered in &mut self.steered {
                steered.correct(&mut live::lock(&self.live), (begin - last).as_secs_f64());
            }
            last = begin;
            due = begin + begin.elapsed() * COST;
        }
        self.look();
    }

    /// Opens the events of CPUs that have come online.
    fn look(&mut self) {
        let online = std::fs::read(self.sys.join("devices/system/cpu/online")).ok();
        let online = online.and_then(|online| parse_cpu_list(&online)).filter(|online| !online.is_empty());
        let Some(online) = online else { return };
        for cpu in self.hotplug.saw(&online.into_iter().collect(), self.begin.elapsed()) {
            // Lock for one CPU at a time: the end of the capture must not wait for all of them.
            let opened = live::lock(&self.live).open(cpu);
            match opened {
                Ok(true) => {
                    self.enabled.remove(&cpu);
                    self.hotplug.opened(cpu, self.begin.elapsed());
                }
                // The capture has ended, or the CPU is offline again.
                Ok(false) | Err(SamplerError::NoSuchCpu { .. }) => {}
                Err(error) => self.hotplug.failed(cpu, error.to_string()),
            }
        }
    }

    /// Finds events whose enabled time has not grown since the last check. They ended because their CPU was offline for
    /// too short a time to be noticed, or because the host was suspended.
    fn check(&mut self) {
        let live = live::lock(&self.live);
        if live.is_stopped() {
            return;
        }
        let after = live.cpus.range(self.checked.saturating_add(1)..).chain(live.cpus.range(..=self.checked));
        let count = live.cpus.len().div_ceil(CHECKED);
        for cpu in after.take(count).map(|(&cpu, _)| cpu) {
            self.checked = cpu;
            let Some(enabled) = live.enabled(cpu).filter(|_| self.hotplug.is_sampled(cpu)) else { continue };
            let now = self.begin.elapsed();
            match self.enabled.get(&cpu) {
                Some(&(before, at)) if before == enabled && now.saturating_sub(at) >= LONGER => {
                    self.hotplug.ended(cpu, at);
                }
                _ => {
                    self.enabled.insert(cpu, (enabled, now));
                }
            }
        }
    }
}

/// An event with an adjusted period; all CPUs have the same period, so every sample has the same weight.
struct Steered {
    /// Its index in the plan.
    plan: usize,
    name: String,
    steer: Steer,
    period: u64,
    /// Seconds since the period was last adjusted.
    seconds: f64,
    /// The shortest and the longest period so far.
    range: (u64, u64),
    refused: Option<EventError>,
}

impl Steered {
    fn correct(&mut self, live: &mut Live, seconds: f64) {
        self.seconds += seconds;
        let is_aux = live.recipe.events.get(self.plan).is_some_and(|event| event.spec.aux.is_some());
        if is_aux && self.seconds < AUX_SECONDS {
            return;
        }
        let seconds = std::mem::take(&mut self.seconds);
        let mut by_cpu: BTreeMap<u32, u64> = BTreeMap::new();
        for cpu in live.cpus.values_mut() {
            if let Some(Sampling { event, last, .. }) =
                cpu.sampling.iter_mut().find(|sampling| is_aux && sampling.plan == self.plan)
            {
                // An event with an AUX area counts nothing; each of its samples stands for a period.
                let now = cpu.owners.in_aux.load(Ordering::Relaxed);
                let events = now.saturating_sub(*last).saturating_mul(self.period);
                *by_cpu.entry(event.cpu).or_default() += events;
                *last = now;
                continue;
            }
            for Sampling { event, last, .. } in cpu.sampling.iter_mut().filter(|sampling| sampling.plan == self.plan) {
                let Ok(value) = event.read() else { continue };
                *by_cpu.entry(event.cpu).or_default() += value.value.saturating_sub(*last);
                *last = value.value;
            }
        }
        let busiest = by_cpu.into_values().max().unwrap_or(0) as f64 / seconds.max(1e-3);
        let period = next_period(self.steer, self.period, busiest);
        if period == self.period || self.refused.is_some() {
            return;
        }
        for sampling in live.sampling().filter(|sampling| sampling.plan == self.plan) {
            // If the CPU is offline or the task has ended, the error is harmless.
            if let Err(error) = sampling.event.set_period(period) {
                if error.errno() == libc::EINVAL {
                    self.refused = Some(error);
                    return;
                }
            }
        }
        self.period = period;
        self.range = (self.range.0.min(period), self.range.1.max(period));
        // For CPUs that come online later.
        if let Some(event) = live.recipe.events.get_mut(self.plan) {
            event.spec.rate = Rate::Period(period);
        }
    }

    /// `None` if every event was sampled, so that nothing was adjusted.
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

/// The period that gives the rate if the busiest CPU has this many events a second; `now` if there are no events.
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
}
