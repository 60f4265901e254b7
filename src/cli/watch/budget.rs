//! The CPU time that a watch may use: `--duty` of one CPU, for all that the process does.

use std::time::{Duration, Instant};

use rustix::time::{clock_gettime, ClockId};

/// The CPU time that was used, and the time from which on the budget allows more.
#[derive(Debug)]
pub(super) struct Budget {
    /// The part of one CPU.
    part: f64,
    /// The CPU time of the process that is paid for.
    paid: Duration,
    /// When the piece of work began that is not paid for.
    begun: Instant,
    free: Instant,
}

impl Budget {
    /// Nothing is paid for yet, as the process has just begun.
    pub(super) fn new(part: f64) -> Self {
        let now = Instant::now();
        Self { part, paid: Duration::ZERO, begun: now, free: now }
    }

    /// From when on what was used until now is no more than its part of the time.
    pub(super) fn free(&mut self) -> Instant {
        self.pay(own_cpu())
    }

    fn pay(&mut self, cpu: Duration) -> Instant {
        // What was not used is not kept for later: a burst is what others would see.
        self.free = self.free.max(self.begun) + self.time_of(cpu.saturating_sub(self.paid));
        self.paid = cpu;
        self.free
    }

    /// The part of one CPU, in percent.
    pub(super) fn percent(&self) -> f64 {
        self.part * 100.0
    }

    /// The next piece of work begins.
    pub(super) fn begin(&mut self) {
        self.begun = Instant::now();
    }

    /// In how much time so much CPU time may be used.
    fn time_of(&self, cpu: Duration) -> Duration {
        // A day is longer than any piece of work.
        Duration::try_from_secs_f64(cpu.as_secs_f64() / self.part).unwrap_or(Duration::MAX).min(super::LONGEST)
    }
}

/// CPU time of this process, of all its threads and in the kernel too.
pub(super) fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or_default(), time.tv_nsec.try_into().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_piece_of_work_waits_for_what_the_one_before_has_used() {
        let mut budget = Budget::new(0.1);
        let start = budget.begun;
        let (second, ms) = (Duration::from_secs(1), Duration::from_millis);
        // The start, 50 ms, and 100 ms of a slice.
        assert_eq!(budget.pay(ms(150)), start + ms(1500));
        // It began when there was room; nothing more was used while it waited.
        budget.begun = start + 2 * second;
        assert_eq!(budget.pay(ms(150)), start + 2 * second);
        assert_eq!(budget.pay(ms(250)), start + 3 * second);
        // One that does not wait pays for both.
        assert_eq!(budget.pay(ms(450)), start + 5 * second);
    }

    #[test]
    fn what_the_process_does_is_seen() {
        let before = own_cpu();
        let begin = Instant::now();
        while own_cpu() == before && begin.elapsed() < Duration::from_secs(30) {}
        assert!(own_cpu() > before);
        let mut budget = Budget::new(0.5);
        assert!(budget.free() > budget.begun && budget.paid > before);
    }
}
