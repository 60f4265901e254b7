//! How much of their CPU time threads spend on the CPUs that the scheduler assigned to their places.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::trace::{Assignment, Dump, Place, Run};

/// The CPU time of places, us.
#[derive(Debug, Default)]
pub struct Tally {
    places: BTreeMap<Place, Times>,
}

#[derive(Debug, Default)]
struct Times {
    own: u64,
    elsewhere: u64,
    /// While the place's CPUs changed.
    left_out: u64,
}

impl Tally {
    /// With what a scheduler said meanwhile: times between two dumps count where a place has the same CPUs in both and in the one
    /// before them. After a change a thread may end its slice on a CPU that it lost.
    pub fn watched(runs: &[Run], dumps: &[Dump], places: &BTreeMap<i32, Place>) -> Self {
        let mut tally = Self::default();
        for three in dumps.windows(3) {
            let [before, begin, end] = three else { continue };
            for run in runs {
                let Some(&place) = places.get(&run.tid) else { continue };
                let time = run.to.min(end.time).saturating_sub(run.from.max(begin.time));
                let assigned = |dump: &Dump| dump.assignment.get(&place).cloned().unwrap_or_default();
                let cpus = assigned(begin);
                let is_steady = assigned(before) == cpus && assigned(end) == cpus;
                tally.add(place, time, is_steady.then(|| cpus.contains(&run.cpu)));
            }
        }
        tally
    }

    /// With one assignment for all of the time.
    pub fn fixed(runs: &[Run], assignment: &Assignment, places: &BTreeMap<i32, Place>) -> Self {
        let mut tally = Self::default();
        for run in runs {
            let Some(&place) = places.get(&run.tid) else { continue };
            let is_own = assignment.get(&place).is_some_and(|cpus| cpus.contains(&run.cpu));
            tally.add(place, run.to.saturating_sub(run.from), Some(is_own));
        }
        tally
    }

    fn add(&mut self, place: Place, time: u64, is_own: Option<bool>) {
        if time == 0 {
            return;
        }
        let times = self.places.entry(place).or_default();
        *match is_own {
            Some(true) => &mut times.own,
            Some(false) => &mut times.elsewhere,
            None => &mut times.left_out,
        } += time;
    }

    /// How many places had CPU time that counts.
    pub fn places(&self) -> usize {
        self.places.values().filter(|it| it.own + it.elsewhere > 0).count()
    }

    /// The CPU time that counts, and that which does not, s.
    pub fn seconds(&self) -> (f64, f64) {
        let sum = |time: fn(&Times) -> u64| self.places.values().map(time).sum::<u64>() as f64 / 1e6;
        (sum(|it| it.own + it.elsewhere), sum(|it| it.left_out))
    }

    /// The part that is on CPUs of the own place.
    pub fn percent(&self) -> f64 {
        let own: u64 = self.places.values().map(|it| it.own).sum();
        let elsewhere: u64 = self.places.values().map(|it| it.elsewhere).sum();
        own as f64 * 100.0 / (own + elsewhere).max(1) as f64
    }

    /// A line for each place.
    pub fn lines(&self, assignment: &Assignment) -> String {
        let line = |(place, times): (&Place, &Times)| {
            let none = BTreeSet::new();
            let cpus = assignment.get(place).unwrap_or(&none);
            format!("  {}.{} on CPUs {cpus:?}: {times}\n", place.0, place.1)
        };
        self.places.iter().map(line).collect()
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [own, elsewhere, left_out] = [self.own, self.elsewhere, self.left_out].map(|it| it as f64 / 1e6);
        write!(f, "{own:.2} CPU s there, {elsewhere:.2} elsewhere, {left_out:.2} left out")
    }
}
