//! The counts of one event.

use scxprof_perf::record::ReadValue;

/// An event that is off the PMU for more than this part of its time gets a note.
const SHARED: f64 = 0.05;

/// The counts of one event on all its CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counted {
    pub(super) value: u64,
    pub(super) enabled: u64,
    running: u64,
    pub(super) lost: u64,
}

impl Counted {
    pub(super) fn of(values: impl Iterator<Item = ReadValue>) -> Self {
        values.fold(Self::default(), |mut sum, value| {
            let ReadValue { value, time_enabled: enabled, time_running: running, lost, .. } = value;
            sum.add(&Self { value, enabled, running, lost });
            sum
        })
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.value = self.value.saturating_add(other.value);
        self.enabled = self.enabled.saturating_add(other.enabled);
        self.running = self.running.saturating_add(other.running);
        self.lost = self.lost.saturating_add(other.lost);
    }

    /// The part of its time that the event was on the PMU.
    fn share(&self) -> f64 {
        if self.enabled == 0 {
            return 1.0;
        }
        self.running as f64 / self.enabled as f64
    }

    /// The count, scaled up to the whole time. The times of a task's event cannot be used for scaling, because it does
    /// not run while its task is on another CPU.
    pub(super) fn scaled(&self, cpu_wide: bool) -> u64 {
        if !cpu_wide || self.running == 0 || self.share() > 1.0 - SHARED {
            return self.value;
        }
        (self.value as f64 / self.share()) as u64
    }

    /// One sentence if the event did not work as intended.
    pub(super) fn note(&self, name: &str, cpu_wide: bool, hardware: bool) -> Option<String> {
        if !hardware || self.enabled == 0 {
            return None;
        }
        let seconds = |ns: u64| ns as f64 / 1e9;
        if self.running == 0 {
            return Some(format!(
                "{name} was never on the PMU in {:.1} s that it was enabled: something else holds the counter that it needs",
                seconds(self.enabled)
            ));
        }
        if self.value == 0 {
            return Some(format!("{name} counted nothing in {:.1} s on the PMU", seconds(self.running)));
        }
        if !cpu_wide || self.share() > 1.0 - SHARED {
            return None;
        }
        Some(format!(
            "{name} shared the PMU: it was on it for {:.0} % of the time (time_running of time_enabled), and its count is scaled",
            self.share() * 100.0
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(value: u64, enabled: u64, running: u64) -> Counted {
        Counted::of(
            [ReadValue { value, time_enabled: enabled, time_running: running, ..ReadValue::default() }].into_iter(),
        )
    }

    #[test]
    fn a_shared_pmu_is_scaled_and_said() {
        let shared = counted(1000, 4_000_000_000, 1_000_000_000);
        assert_eq!(shared.scaled(true), 4000);
        assert!(shared.note("x", true, true).unwrap().contains("25 %"));
        assert_eq!((shared.scaled(false), shared.note("x", false, true)), (1000, None), "a task was elsewhere");
        let alone = counted(1000, 4_000_000_000, 3_999_000_000);
        assert_eq!((alone.scaled(true), alone.note("x", true, true)), (1000, None));
    }

    #[test]
    fn an_event_that_never_counts_is_said() {
        assert!(counted(0, 2_000_000_000, 0).note("x", true, true).unwrap().contains("never on the PMU in 2.0 s"));
        assert!(counted(0, 2_000_000_000, 1_000_000_000).note("x", false, true).unwrap().contains("nothing in 1.0 s"));
        assert_eq!(counted(0, 0, 0).note("x", true, true), None, "the command never began");
        assert_eq!(counted(0, 1, 1).note("minor-faults", true, false), None, "nothing happened");
    }
}
