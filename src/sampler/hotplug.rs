//! Tracks CPUs that go offline and come online during a capture (pure).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use scxprof_base::cpus::format_cpu_list;

/// The CPUs to sample. All times are since the start of the capture.
///
/// When a CPU goes offline, its events end for good (`perf_event_exit_cpu_context()` in kernel/events/core.c), so they
/// are opened again when it comes back.
#[derive(Debug)]
pub(super) struct Hotplug {
    cpus: BTreeMap<u32, Seen>,
    /// CPUs that are not in the map are sampled when they come online.
    all: bool,
}

#[derive(Debug)]
struct Seen {
    state: CpuState,
    /// The CPU was sampled before.
    is_known: bool,
    /// The CPU was sampled from the start.
    from_start: bool,
    /// Number and total duration of its past offline periods.
    times: u32,
    offline: Duration,
}

#[derive(Debug, PartialEq, Eq)]
enum CpuState {
    Sampled,
    /// Offline since this time.
    Offline(Duration),
    /// Online, but its events cannot be opened.
    Failed(String),
}

impl Hotplug {
    /// `sampled` are the CPUs with open events, `asked` those that were requested.
    pub(super) fn new(sampled: &[u32], asked: &[u32], all: bool) -> Self {
        let seen = |cpu: &u32| {
            let from_start = sampled.contains(cpu);
            let state = if from_start { CpuState::Sampled } else { CpuState::Offline(Duration::ZERO) };
            (*cpu, Seen { state, is_known: true, from_start, times: 0, offline: Duration::ZERO })
        };
        Self { cpus: asked.iter().map(seen).collect(), all }
    }

    /// Takes the set of online CPUs; returns those whose events should be opened.
    pub(super) fn saw(&mut self, online: &BTreeSet<u32>, now: Duration) -> Vec<u32> {
        if self.all {
            for &cpu in online {
                let state = || CpuState::Offline(Duration::ZERO);
                self.cpus.entry(cpu).or_insert_with(|| Seen {
                    state: state(),
                    is_known: false,
                    from_start: false,
                    times: 0,
                    offline: Duration::ZERO,
                });
            }
        }
        let mut due = Vec::new();
        for (&cpu, seen) in &mut self.cpus {
            match (online.contains(&cpu), &seen.state) {
                (true, CpuState::Offline(_)) => due.push(cpu),
                (false, CpuState::Sampled | CpuState::Failed(_)) => seen.state = CpuState::Offline(now),
                _ => {}
            }
        }
        due
    }

    /// True if the events of the CPU are open and, as far as known, have not ended.
    pub(super) fn is_sampled(&self, cpu: u32) -> bool {
        self.cpus.get(&cpu).is_some_and(|seen| seen.state == CpuState::Sampled)
    }

    /// The events of the CPU have ended at some time after `since`, when they still counted.
    pub(super) fn ended(&mut self, cpu: u32, since: Duration) {
        if let Some(seen) = self.cpus.get_mut(&cpu).filter(|seen| seen.state == CpuState::Sampled) {
            seen.state = CpuState::Offline(since);
        }
    }

    /// The events of the CPU are open.
    pub(super) fn opened(&mut self, cpu: u32, now: Duration) {
        let Some(seen) = self.cpus.get_mut(&cpu) else { return };
        if let (CpuState::Offline(since), true) = (&seen.state, seen.is_known) {
            seen.times += 1;
            seen.offline += now.saturating_sub(*since);
        }
        (seen.state, seen.is_known) = (CpuState::Sampled, true);
    }

    /// The events of the CPU cannot be opened; this is tried again when it next comes online.
    pub(super) fn failed(&mut self, cpu: u32, why: String) {
        if let Some(seen) = self.cpus.get_mut(&cpu) {
            seen.state = CpuState::Failed(why);
        }
    }

    /// What happened, one sentence for all CPUs with the same history.
    pub(super) fn sentences(&self) -> Vec<String> {
        let mut by_fate: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for (&cpu, seen) in &self.cpus {
            if let Some(fate) = seen.fate() {
                by_fate.entry(fate).or_default().push(cpu);
            }
        }
        let mut sentences: Vec<(Vec<u32>, String)> = by_fate.into_iter().map(|(fate, cpus)| (cpus, fate)).collect();
        sentences.sort();
        sentences.into_iter().map(|(cpus, fate)| format!("CPU {} {fate}", format_cpu_list(&cpus))).collect()
    }
}

impl Seen {
    /// `None` if the CPU was sampled all the time.
    fn fate(&self) -> Option<String> {
        let seconds = self.offline.as_secs_f64();
        match (&self.state, self.times) {
            (CpuState::Failed(why), _) => {
                Some(format!("came online during the capture and was not sampled from then on: {why}"))
            }
            // The CPU came online and went offline again at once.
            (CpuState::Offline(_), _) if !self.is_known => None,
            (CpuState::Offline(_), _) => Some("went offline during the capture: not sampled since".to_owned()),
            (CpuState::Sampled, 0) => {
                (!self.from_start).then(|| "came online during the capture: sampled since".to_owned())
            }
            (CpuState::Sampled, 1) => {
                Some(format!("was offline for {seconds:.1} s of the capture: sampled again since"))
            }
            (CpuState::Sampled, times) => {
                Some(format!("was offline {times} times, for {seconds:.1} s of the capture: sampled again after each"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(cpus: &[u32]) -> BTreeSet<u32> {
        cpus.iter().copied().collect()
    }

    fn at(tenths: u64) -> Duration {
        Duration::from_millis(tenths * 100)
    }

    #[test]
    fn a_cpu_that_comes_back_is_opened_again_and_one_that_is_new_is_opened() {
        let mut hotplug = Hotplug::new(&[0, 1, 2], &[0, 1, 2], true);
        assert_eq!(hotplug.saw(&set(&[0, 1, 2]), at(0)), [0; 0]);
        assert_eq!(hotplug.saw(&set(&[0]), at(10)), [0; 0]);
        assert!(hotplug.is_sampled(0) && !hotplug.is_sampled(1));
        assert_eq!(hotplug.saw(&set(&[0, 1, 5]), at(22)), [1, 5]);
        hotplug.opened(1, at(22));
        // The CPU goes offline again before the event is open.
        assert_eq!(hotplug.saw(&set(&[0, 1, 5]), at(24)), [5], "until it is open");
        hotplug.opened(5, at(24));
        assert_eq!(hotplug.saw(&set(&[0, 1, 5]), at(26)), [0; 0]);
        assert_eq!(
            hotplug.sentences(),
            [
                "CPU 1 was offline for 1.2 s of the capture: sampled again since",
                "CPU 2 went offline during the capture: not sampled since",
                "CPU 5 came online during the capture: sampled since",
            ]
        );
    }

    #[test]
    fn only_the_cpus_that_were_asked_for_are_opened() {
        let mut hotplug = Hotplug::new(&[0], &[0, 3], false);
        assert_eq!(hotplug.saw(&set(&[0, 1]), at(1)), [0; 0]);
        assert_eq!(
            hotplug.sentences(),
            ["CPU 3 went offline during the capture: not sampled since"],
            "before it was open"
        );
        assert_eq!(hotplug.saw(&set(&[0, 1, 3]), at(3)), [3]);
        hotplug.opened(3, at(3));
        assert_eq!(hotplug.sentences(), ["CPU 3 was offline for 0.3 s of the capture: sampled again since"]);
    }

    #[test]
    fn what_cannot_be_opened_is_tried_once_each_time_it_comes() {
        let mut hotplug = Hotplug::new(&[0], &[0], true);
        for round in 0..2 {
            assert_eq!(hotplug.saw(&set(&[0, 1]), at(round)), [1]);
            hotplug.failed(1, "no more files".to_owned());
            assert_eq!(hotplug.saw(&set(&[0, 1]), at(round)), [0; 0]);
            let expected = "CPU 1 came online during the capture and was not sampled from then on: no more files";
            assert_eq!(hotplug.sentences(), [expected]);
            assert_eq!(hotplug.saw(&set(&[0]), at(round)), [0; 0]);
        }
        assert_eq!(hotplug.sentences(), [""; 0], "it is offline, as at the start");
    }

    #[test]
    fn a_moment_offline_that_only_the_events_show_is_counted() {
        let mut hotplug = Hotplug::new(&[0, 1], &[0, 1], true);
        for round in 0..3 {
            hotplug.ended(1, at(round * 10));
            hotplug.ended(1, at(round * 10 + 3));
            assert_eq!(hotplug.saw(&set(&[0, 1]), at(round * 10 + 4)), [1]);
            hotplug.opened(1, at(round * 10 + 4));
        }
        assert_eq!(
            hotplug.sentences(),
            ["CPU 1 was offline 3 times, for 1.2 s of the capture: sampled again after each"]
        );
        hotplug.ended(0, at(50));
        hotplug.ended(1, at(50));
        assert_eq!(hotplug.sentences(), ["CPU 0-1 went offline during the capture: not sampled since"]);
    }
}
