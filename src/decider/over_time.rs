//! The samples of each thread over time, in bounded memory.

use std::ops::AddAssign;

use crate::timeline::Steps;
use scxprof_base::tables::Tables;

/// The samples of threads in a step of time, by the sketch's number of the thread.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Counts(Vec<f32>);

impl AddAssign<&Self> for Counts {
    fn add_assign(&mut self, other: &Self) {
        self.0.resize(self.0.len().max(other.0.len()), 0.0);
        for (sum, more) in self.0.iter_mut().zip(&other.0) {
            *sum += more;
        }
    }
}

/// The samples of threads in all steps.
#[derive(Debug, Clone)]
pub(super) struct OfThreads {
    pub(super) steps: Steps<Counts>,
    /// Counts of threads in all steps, and the most of them.
    count: usize,
    most: usize,
}

impl OfThreads {
    /// Takes at most about `bytes`: if there is more, steps get longer.
    pub(super) fn new(bytes: usize) -> Self {
        Self { steps: Steps::default(), count: 0, most: bytes / size_of::<f32>() }
    }

    /// Counts a part of a sample at `time` (ns).
    pub(super) fn add(&mut self, time: u64, thread: u32, samples: f32) {
        let thread = thread as usize;
        let counts = &mut self.steps.at(time).0;
        if thread >= counts.len() {
            let more = thread + 1 - counts.len();
            counts.resize(thread + 1, 0.0);
            self.count += more;
        }
        if let Some(count) = counts.get_mut(thread) {
            *count += samples;
        }
        if self.count > self.most {
            self.recount();
            while self.count > self.most && self.steps.values().len() > 1 {
                self.steps.coarsen();
                self.recount();
            }
        }
    }

    /// Steps may have become fewer since.
    fn recount(&mut self) {
        self.count = self.steps.values().iter().map(|counts| counts.0.len()).sum();
    }

    /// The samples of the threads of each label, of which there are `count`; threads without a label are not in it.
    pub(super) fn by_label(&self, labels: &[Option<usize>], count: usize) -> Steps<Labelled> {
        self.steps.map(|counts| {
            let mut sums = vec![0.0; count];
            for (samples, label) in counts.0.iter().zip(labels) {
                if let Some(sum) = label.and_then(|label| sums.get_mut(label)) {
                    *sum += f64::from(*samples);
                }
            }
            Labelled(sums)
        })
    }

    /// The samples of these threads together.
    pub(super) fn sum_of(&self, threads: &[u32]) -> Steps<f64> {
        let of = |counts: &Counts, thread: u32| counts.0.get(thread as usize).copied().unwrap_or_default();
        self.steps.map(|counts| threads.iter().fold(0.0, |sum, &thread| sum + f64::from(of(counts, thread))))
    }

    pub(super) fn measure(&self, tables: &mut Tables) {
        tables.set("samples of threads over time", self.count, self.count * size_of::<f32>());
    }
}

/// The samples of each label.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Labelled(pub(super) Vec<f64>);

impl AddAssign<&Self> for Labelled {
    fn add_assign(&mut self, other: &Self) {
        self.0.resize(self.0.len().max(other.0.len()), 0.0);
        for (sum, more) in self.0.iter_mut().zip(&other.0) {
            *sum += more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_threads_make_steps_longer_and_lose_nothing() {
        let mut of_threads = OfThreads::new(40_000);
        for at in 0..300_000u64 {
            of_threads.add(1_000_000_000 + at * 20_000, (at % 3_000) as u32, 0.5);
        }
        let mut tables = Tables::default();
        of_threads.measure(&mut tables);
        assert!(tables.bytes() <= 40_000, "{tables:?}");
        assert!(of_threads.steps.values().len() >= 2);
        let labels: Vec<Option<usize>> = (0..3_000).map(|thread| (thread > 0).then_some(thread % 2)).collect();
        let steps = of_threads.by_label(&labels, 2);
        let sum = |label: usize| steps.values().iter().map(|it| it.0[label]).sum::<f64>();
        assert_eq!((sum(0), sum(1)), (1_499.0 * 50.0, 1_500.0 * 50.0));
        let odd: Vec<u32> = (0..3_000).filter(|thread| thread % 2 == 1).collect();
        let of_odd: Vec<f64> = steps.values().iter().map(|it| it.0[1]).collect();
        assert_eq!(of_threads.sum_of(&odd).values(), of_odd);
    }

    #[test]
    fn one_step_is_the_least() {
        let mut of_threads = OfThreads::new(0);
        for thread in 0..100 {
            of_threads.add(u64::from(thread) * 1_000_000_000, thread, 1.0);
        }
        assert_eq!(of_threads.steps.values().len(), 1);
    }
}
