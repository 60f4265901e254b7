//! Counts over time in a bounded number of steps: the longer the time, the longer a step. Pure.

use std::ops::AddAssign;

use serde::Serialize;

/// The first length of a step, ns.
const STEP: u64 = 1_000_000;
/// The most steps.
const MOST: usize = 240;

/// A value for each step of time. All steps have the same length, 1 ms times a power of two, and begin at a multiple of it, so
/// that two of these can be compared.
#[derive(Debug, Clone)]
pub(crate) struct Steps<T> {
    /// The length of a step, ns.
    step: u64,
    /// The number of the first step since time 0.
    first: u64,
    values: Vec<T>,
    /// The begin of the step that was last asked for, and its index: most times follow one another.
    last: (u64, usize),
}

impl<T: PartialEq> PartialEq for Steps<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.step, self.first, &self.values) == (other.step, other.first, &other.values)
    }
}

impl<T> Default for Steps<T> {
    fn default() -> Self {
        Self { step: STEP, first: 0, values: Vec::new(), last: (0, 0) }
    }
}

impl<T: Default + for<'a> AddAssign<&'a T>> Steps<T> {
    /// The value of the step of `time` (ns). What comes late counts in the first step.
    #[inline]
    pub(crate) fn at(&mut self, time: u64) -> &mut T {
        let (begin, at) = self.last;
        if time.wrapping_sub(begin) < self.step && at < self.values.len() {
            return &mut self.values[at];
        }
        self.other_step(time)
    }

    /// [`Steps::at`] for another step than the last one.
    fn other_step(&mut self, time: u64) -> &mut T {
        if self.values.is_empty() {
            self.first = time / self.step;
        }
        while (time / self.step).saturating_sub(self.first) >= MOST as u64 {
            self.coarsen();
        }
        let at = (time / self.step).saturating_sub(self.first) as usize;
        if at >= self.values.len() {
            self.values.resize_with(at + 1, T::default);
        }
        self.last = (self.first.saturating_add(at as u64).saturating_mul(self.step), at);
        &mut self.values[at]
    }

    /// Doubles the length of a step.
    pub(crate) fn coarsen(&mut self) {
        let first = self.first / 2;
        let mut merged: Vec<T> = Vec::with_capacity(self.values.len() / 2 + 1);
        for (at, value) in (self.first..).zip(self.values.drain(..)) {
            match merged.get_mut((at / 2 - first) as usize) {
                Some(sum) => *sum += &value,
                None => merged.push(value),
            }
        }
        (self.step, self.first, self.values) = (self.step.saturating_mul(2), first, merged);
        self.last = (0, usize::MAX);
    }

    /// The length of a step, ns.
    pub(crate) fn step(&self) -> u64 {
        self.step
    }

    pub(crate) fn values(&self) -> &[T] {
        &self.values
    }

    /// The same steps with other values.
    pub(crate) fn map<U>(&self, of: impl FnMut(&T) -> U) -> Steps<U> {
        Steps { step: self.step, first: self.first, values: self.values.iter().map(of).collect(), last: self.last }
    }

    /// Gives both steps of one length.
    pub(crate) fn align<U: Default + for<'a> AddAssign<&'a U>>(&mut self, other: &mut Steps<U>) {
        while self.step < other.step {
            self.coarsen();
        }
        while other.step < self.step {
            other.coarsen();
        }
    }

    /// The number of the step at the begin and after the end, since time 0.
    pub(crate) fn range(&self) -> (u64, u64) {
        (self.first, self.first + self.values.len() as u64)
    }

    /// The value of the step with this number.
    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        self.values.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }
}

/// What was sampled in a step of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Moment {
    /// Samples.
    pub records: u64,
    /// Those of them that gave the address of memory.
    pub located: u64,
    /// Records that were lost because a ring was full.
    pub lost: u64,
}

impl AddAssign<&Self> for Moment {
    fn add_assign(&mut self, other: &Self) {
        self.records += other.records;
        self.located += other.located;
        self.lost = self.lost.saturating_add(other.lost);
    }
}

/// Samples, yield and loss over time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Timeline {
    pub(crate) moments: Steps<Moment>,
    /// The time of the last sample: a record of loss counts for it.
    now: u64,
    /// What was lost before the first sample.
    early: u64,
}

impl Timeline {
    /// Counts a sample.
    pub(crate) fn record(&mut self, time: u64, is_located: bool) {
        self.now = self.now.max(time);
        let moment = self.moments.at(time);
        moment.records += 1;
        moment.located += u64::from(is_located);
        moment.lost = moment.lost.saturating_add(std::mem::take(&mut self.early));
    }

    /// Counts lost records.
    pub(crate) fn lost(&mut self, lost: u64) {
        let count =
            if self.moments.values().is_empty() { &mut self.early } else { &mut self.moments.at(self.now).lost };
        *count = count.saturating_add(lost);
    }

    /// The length of a step, ns.
    #[must_use]
    pub fn step_ns(&self) -> u64 {
        self.moments.step()
    }

    /// What was sampled in each step, from the first sample on.
    #[must_use]
    pub fn moments(&self) -> &[Moment] {
        self.moments.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_when_steps_get_longer() {
        let mut timeline = Timeline::default();
        timeline.lost(5);
        for time in 0..100_000u64 {
            // From an odd beginning, 700 s in all.
            timeline.record(12_345_678_901 + time * 7_000_000, time % 4 > 0);
        }
        timeline.lost(9);
        let moments = timeline.moments();
        assert!(moments.len() <= MOST && moments.len() > MOST / 2 - 2, "{}", moments.len());
        assert_eq!(timeline.step_ns(), 4_096_000_000);
        let sum = |of: fn(&Moment) -> u64| moments.iter().map(of).sum::<u64>();
        assert_eq!((sum(|it| it.records), sum(|it| it.located), sum(|it| it.lost)), (100_000, 75_000, 14));
        assert_eq!((moments[0].lost, moments[moments.len() - 1].lost), (5, 9));
        // All whole steps have the same rate.
        let whole = &moments[1..moments.len() - 1];
        assert!(whole.iter().all(|it| it.records.abs_diff(585) <= 1), "{whole:?}");
    }

    #[test]
    fn late_samples_count_and_a_jump_ends() {
        let mut timeline = Timeline::default();
        timeline.record(5_000_000_000, true);
        timeline.record(1, true);
        assert_eq!(timeline.moments().iter().map(|it| it.records).collect::<Vec<_>>(), [2]);
        timeline.record(u64::MAX, false);
        assert_eq!(timeline.moments().iter().map(|it| it.records).sum::<u64>(), 3);
        assert!(timeline.moments().len() <= MOST);
    }

    proptest::proptest! {
        /// Each time is in the step that it would be in without coarser steps, whatever the order of coarsening.
        #[test]
        fn steps_begin_at_multiples(times in proptest::collection::vec(0u64..1 << 40, 1..200)) {
            let mut sorted = times.clone();
            sorted.sort_unstable();
            let (mut one, mut other) = (Steps::<Sum>::default(), Steps::<Sum>::default());
            for (number, &time) in sorted.iter().enumerate() {
                one.at(time).0 += 1;
                if number % 3 == 0 {
                    other.at(time).0 += 1;
                }
            }
            one.align(&mut other);
            proptest::prop_assert_eq!(one.step(), other.step());
            for steps in [&one, &other] {
                let (first, end) = steps.range();
                proptest::prop_assert!(end - first <= MOST as u64);
            }
            let (first, end) = one.range();
            for number in first..end {
                let in_it = sorted.iter().filter(|&&time| time / one.step() == number).count() as u64;
                proptest::prop_assert_eq!(one.get(number).map_or(0, |it| it.0), in_it);
                let of_other = sorted.iter().step_by(3).filter(|&&time| time / one.step() == number).count() as u64;
                proptest::prop_assert_eq!(other.get(number).map_or(0, |it| it.0), of_other);
            }
        }
    }

    #[derive(Debug, Clone, Copy, Default)]
    struct Sum(u64);

    impl AddAssign<&Self> for Sum {
        fn add_assign(&mut self, other: &Self) {
            self.0 += other.0;
        }
    }
}
