//! Seeded sample streams of known groups, for tests, benches and the tables in the documentation.

use crate::sample::{Access, MemoryId, MemoryScope, RawSample, Sample, LINE_SIZE, PAGE_SIZE};

use super::keys::mix;

/// A small generator of pseudo-random numbers (splitmix64).
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// A generator with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(mix(seed ^ 0x5eed))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `n`; 0 for an `n` of 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// Puts items into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for n in (1..items.len()).rev() {
            items.swap(n, self.below(n as u64 + 1) as usize);
        }
    }

    /// A number from 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The parameters of a stream. [`Scenario::default`] is the plain case that the others vary.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Groups of threads; each group shares a buffer. 0 for private memory only.
    pub groups: u32,
    /// The number of threads.
    pub threads: u32,
    /// Samples per thread; with `loud`, per quiet thread.
    pub samples: u32,
    /// Pages of each group's buffer.
    pub pages: u64,
    /// The group uses a single line of its buffer (false sharing).
    pub one_line: bool,
    /// Part of a thread's accesses that go to its group's buffer.
    pub share: f64,
    /// Part that goes to pages that all threads use.
    pub globals: f64,
    /// How many such pages there are; the n-th is used 1/n as often as the first.
    pub global_pages: u64,
    /// Part that goes to any page of a region of 65,536 pages that all threads use.
    pub noise: f64,
    /// Part of the accesses to a group's buffer that goes to the next group's buffer instead.
    pub overlap: f64,
    /// Part of the run, at its end, in which a thread works on the next group's buffer.
    pub drift: f64,
    /// The number of parts of equal length that the run has; in every second one, threads work in other groups: of two threads of a group,
    /// none are in one then.
    pub phases: u32,
    /// Part of the run, at its beginning, in which they do that.
    pub warm_up: f64,
    /// Groups share only in this part of the run, from its third tenth on; 0 for all of it.
    pub job: f64,
    /// The first group has this part of all threads; 0 for equal groups.
    pub dominant: f64,
    /// The threads of the first group have this part of all samples; 0 for equal rates.
    pub loud: f64,
    /// Groups use shared memory, and each thread is its own process.
    pub cross_process: bool,
    /// Private pages of each thread.
    pub private_pages: u64,
    /// Private buffers begin in the middle of the page in which the last one ends.
    pub boundary: bool,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            groups: 4,
            threads: 32,
            samples: 1000,
            pages: 64,
            one_line: false,
            share: 0.4,
            globals: 0.05,
            global_pages: 4,
            noise: 0.02,
            overlap: 0.0,
            drift: 0.0,
            phases: 1,
            warm_up: 0.0,
            job: 0.0,
            dominant: 0.0,
            loud: 0.0,
            cross_process: false,
            private_pages: 32,
            boundary: true,
        }
    }
}

/// A stream with its true groups.
#[derive(Debug, Clone)]
pub struct Stream {
    /// The samples in the order of time.
    pub samples: Vec<Sample>,
    /// The group of each thread; a thread that shares nothing is its own group.
    pub truth: Vec<u32>,
}

impl Scenario {
    /// The group of a thread.
    fn group(&self, thread: u32) -> u32 {
        if self.groups == 0 {
            return thread;
        }
        let first = (self.dominant * f64::from(self.threads)).round() as u32;
        if self.dominant > 0.0 && self.groups > 1 {
            if thread < first {
                return 0;
            }
            return 1 + (thread - first) % (self.groups - 1);
        }
        thread % self.groups
    }

    /// Makes the stream of this seed.
    #[must_use]
    pub fn stream(&self, seed: u64) -> Stream {
        let mut rng = Rng::new(seed);
        let truth: Vec<u32> = (0..self.threads).map(|thread| self.group(thread)).collect();
        let quiet = truth.iter().filter(|&&group| group != 0).count() as f64;
        let harmonic: f64 = (1..=self.global_pages).map(|n| 1.0 / n as f64).sum();
        let mut samples = Vec::new();
        for (thread, &group) in (0u32..).zip(&truth) {
            let mut count = f64::from(self.samples);
            if self.loud > 0.0 && group == 0 {
                count *= self.loud / (1.0 - self.loud) * quiet / (f64::from(self.threads) - quiet);
            }
            let count = count.round().max(1.0) as u64;
            for n in 0..count {
                let at = (n as f64 + rng.unit()) / count as f64;
                let memory = self.access(thread, group, at, harmonic, &mut rng);
                let access = if rng.unit() < 0.3 { Access::Store } else { Access::Load };
                let time = (at * 1e10) as u64;
                samples.push(Sample {
                    raw: RawSample { time, tid: 1000 + thread, access, ..RawSample::default() },
                    thread,
                    memory: Some(memory),
                    ..Sample::default()
                });
            }
        }
        samples.sort_by_key(|sample| sample.raw.time);
        Stream { samples, truth }
    }

    fn access(&self, thread: u32, group: u32, at: f64, harmonic: f64, rng: &mut Rng) -> MemoryId {
        let space = if self.cross_process { thread + 1 } else { 0 };
        let within =
            |pages: u64, rng: &mut Rng| rng.below(pages * PAGE_SIZE / LINE_SIZE) * LINE_SIZE + rng.below(8) * 8;
        let kind = rng.unit();
        let is_off = self.job > 0.0 && !(0.3..0.3 + self.job).contains(&at);
        let shared = if self.groups == 0 || is_off { 0.0 } else { self.share };
        if kind < shared {
            let astray = rng.unit() < self.overlap || at > 1.0 - self.drift;
            let is_other = at < self.warm_up || (at * f64::from(self.phases)) as u32 % 2 == 1;
            let group = match (astray, is_other) {
                (true, _) => (group + 1) % self.groups.max(1),
                (false, true) => thread / self.groups.max(1) % self.groups.max(1),
                (false, false) => group,
            };
            let byte = if self.one_line { rng.below(8) * 8 } else { within(self.pages, rng) };
            return if self.cross_process {
                MemoryId::Shared { scope: MemoryScope::device(1, 0), ino: u64::from(group), offset: byte }
            } else {
                MemoryId::Private { space, addr: (u64::from(group) + 1) << 32 | byte }
            };
        }
        if kind < shared + self.globals && self.global_pages > 0 {
            let mut left = rng.unit() * harmonic;
            let mut page = 0;
            while page + 1 < self.global_pages && left > 1.0 / (page + 1) as f64 {
                page += 1;
                left -= 1.0 / page as f64;
            }
            // Two words of each page are in use, as with locks and counters.
            let byte = page * PAGE_SIZE + rng.below(2) * 0x440;
            return MemoryId::Shared { scope: MemoryScope::device(2, 0), ino: 1, offset: byte };
        }
        if kind < shared + self.globals + self.noise {
            return MemoryId::Shared { scope: MemoryScope::device(2, 0), ino: 2, offset: within(65_536, rng) };
        }
        let size = self.private_pages * PAGE_SIZE + if self.boundary { PAGE_SIZE / 2 } else { 0 };
        let base = (1 << 44) + u64::from(thread) * size;
        MemoryId::Private {
            space,
            addr: base
                + within(self.private_pages, rng)
                + if self.boundary { rng.below(2) * (size - self.private_pages * PAGE_SIZE) } else { 0 },
        }
    }
}
