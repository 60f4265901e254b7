//! The samples of a run in slices of time, each with a small sketch, to say how certain a number is.

use super::sketch::Sharing;
use crate::sample::Sample;

/// The most slices, and their least bytes: with little memory there are fewer. When one more is needed, each two neighbours become
/// one, so there are always at least half as many.
const MAX_SLICES: usize = 48;
const LEAST_BYTES: usize = 1 << 16;
/// The first length of a slice in ns: a run of 2.4 s has 24 slices.
const FIRST_LENGTH: u64 = 100_000_000;
/// Threads that are distinguished in a slice.
const MAX_THREADS: usize = 1 << 13;

/// Sketches of slices of equal length that follow each other.
#[derive(Debug, Clone)]
pub struct Slices {
    /// When the first one begins, and how long each is, in ns.
    begin: Option<u64>,
    length: u64,
    /// Bytes of each.
    budget: usize,
    most: usize,
    sketches: Vec<Sharing>,
}

impl Slices {
    /// In about `budget` bytes.
    #[must_use]
    pub fn new(budget: usize) -> Self {
        let most = (budget / LEAST_BYTES).clamp(8, MAX_SLICES);
        Self { begin: None, length: FIRST_LENGTH, budget: budget / most, most, sketches: Vec::new() }
    }

    /// Counts samples, each for the thread beside it.
    pub fn add(&mut self, samples: &[(u32, &Sample)]) {
        for run in samples.chunk_by(|a, b| a.1.raw.time == b.1.raw.time) {
            let Some((_, first)) = run.first() else { continue };
            let at = self.slice(first.raw.time);
            if let Some(sketch) = self.sketches.get_mut(at) {
                for (thread, sample) in run {
                    sketch.add_for(*thread, sample);
                }
            }
        }
    }

    /// The slice of a time; samples from before the first belong to the first.
    fn slice(&mut self, time: u64) -> usize {
        let begin = *self.begin.get_or_insert(time);
        let since = time.saturating_sub(begin);
        while since / self.length >= self.most as u64 {
            self.merge_pairs();
        }
        let at = (since / self.length) as usize;
        while self.sketches.len() <= at {
            self.sketches.push(Sharing::with_threads(self.budget, MAX_THREADS));
        }
        at
    }

    /// Joins each two neighbours.
    fn merge_pairs(&mut self) {
        self.length = self.length.saturating_mul(2);
        let mut old = std::mem::take(&mut self.sketches).into_iter();
        while let Some(mut first) = old.next() {
            if let Some(second) = old.next() {
                first.merge(&second);
            }
            self.sketches.push(first);
        }
    }

    /// The sketches of slices with samples.
    pub fn sketches(&self) -> impl Iterator<Item = &Sharing> {
        self.sketches.iter().filter(|sketch| sketch.stats().samples > 0)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.sketches.len()
    }

    /// Their bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.sketches.iter().map(Sharing::bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{MemoryId, RawSample};

    fn sample(time: u64) -> Sample {
        let memory = Some(MemoryId::Private { space: 1, addr: (time % 64) << 12 });
        Sample { raw: RawSample { time, ..RawSample::default() }, memory, ..Sample::default() }
    }

    #[test]
    fn however_long_a_run_is_the_slices_are_few_and_hold_all() {
        for samples in [1u64, 12, 24, 25, 1000, 5000] {
            let mut slices = Slices::new(4 << 20);
            for at in 0..samples {
                let sample = sample((1 << 40) + at * FIRST_LENGTH);
                slices.add(&[(3, &sample)]);
            }
            // From before the first one.
            slices.add(&[(3, &sample(5))]);
            let counts: Vec<u64> = slices.sketches().map(|it| it.stats().samples).collect();
            assert_eq!(counts.iter().sum::<u64>(), samples + 1);
            assert!(
                counts.len() <= MAX_SLICES && counts.len() as u64 >= samples.min(MAX_SLICES as u64 / 2),
                "{counts:?}"
            );
            let like = counts[1..counts.len().max(2) - 1].iter().all(|&it| it == slices.length / FIRST_LENGTH);
            assert!(like, "{counts:?}");
        }
    }
}
