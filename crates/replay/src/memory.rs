//! The memory that the recorded threads touched: its size, the threads that share it, and the part of writes.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::script::Script;
use scxprof_base::sample::{Access, MemoryId, Sample};

/// Bytes of what counts as one place, whatever the pages of the recorded host are.
const PAGE: u64 = 4096;
/// Pages that are counted at a time; above it, half of all pages are left out.
const MAX_PAGES: usize = 1 << 16;
/// Threads of a page that are told apart.
const MAX_TOUCHING: usize = 16;
/// Threads that are counted.
const MAX_THREADS: usize = 1 << 16;

/// Accesses, and those that wrote.
#[derive(Debug, Clone, Copy, Default)]
struct Accesses {
    all: u64,
    writes: u64,
}

impl Accesses {
    fn add(&mut self, other: Self) {
        self.all += other.all;
        self.writes += other.writes;
    }

    fn write_share(self) -> f64 {
        self.writes as f64 / self.all.max(1) as f64
    }
}

/// Counts the pages that threads touch, in bounded memory.
#[derive(Debug, Default)]
pub struct Touches {
    /// The accesses of each thread to a page.
    pages: FxHashMap<(u64, u64), Vec<(u32, Accesses)>>,
    /// One of 2^this pages is counted.
    left_out: u32,
    /// Sampled accesses of each thread.
    threads: FxHashMap<u32, u64>,
}

fn page_of(memory: &MemoryId) -> (u64, u64) {
    match *memory {
        MemoryId::Shared { scope, ino, offset } => (scope.number().rotate_left(20) ^ ino ^ (1 << 63), offset / PAGE),
        MemoryId::Frame { phys } => (1 << 62, phys / PAGE),
        MemoryId::Private { space, addr } => (u64::from(space), addr / PAGE),
    }
}

/// The sampling of pages: a page is counted if its hash ends with this number of zeros.
fn hash(page: (u64, u64)) -> u64 {
    let mixed = (page.0 ^ page.1.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 20
}

impl Touches {
    /// Counts the access of a sample.
    pub fn access(&mut self, sample: &Sample) {
        let Some(memory) = &sample.memory else { return };
        if self.threads.len() >= MAX_THREADS && !self.threads.contains_key(&sample.raw.tid) {
            return;
        }
        *self.threads.entry(sample.raw.tid).or_default() += 1;
        let page = page_of(memory);
        if hash(page).trailing_zeros() < self.left_out {
            return;
        }
        let touching = self.pages.entry(page).or_default();
        let one = Accesses { all: 1, writes: u64::from(matches!(sample.raw.access, Access::Store | Access::Update)) };
        if let Some((_, accesses)) = touching.iter_mut().find(|(tid, _)| *tid == sample.raw.tid) {
            accesses.add(one);
        } else if touching.len() < MAX_TOUCHING {
            touching.push((sample.raw.tid, one));
        }
        while self.pages.len() > MAX_PAGES && self.left_out < 40 {
            self.left_out += 1;
            self.pages.retain(|&page, _| hash(page).trailing_zeros() >= self.left_out);
        }
    }
}

/// A buffer of mock threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Buffer {
    /// Its first byte in the memory of all of them.
    pub offset: u64,
    /// Bytes; 0 if there is none.
    pub bytes: u64,
    /// How many of 256 accesses write.
    pub writes: u32,
}

/// The memory that a mock thread touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MockMemory {
    /// The buffer that it shares with its community.
    pub shared: Buffer,
    /// Its private buffer.
    pub private: Buffer,
    /// How many of 256 accesses are to the shared buffer.
    pub to_shared: u32,
    /// How many of 256 units of work are accesses: 256 for the thread that has the most samples of accesses in its CPU time.
    pub rate: u32,
}

/// The memory of all mock threads.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    /// Of each thread of the script.
    pub threads: Vec<MockMemory>,
    /// Bytes of all buffers.
    pub bytes: u64,
    /// Communities with a buffer.
    pub communities: usize,
    /// By what the estimated sizes were divided to stay within the limit.
    pub divided_by: u64,
}

/// The estimated number of pages, if `seen` were sampled, `once` of them in one sample and `twice` in two (Chao 1984, bias-corrected).
fn estimate(seen: f64, once: f64, twice: f64) -> f64 {
    seen + once * (once - 1.0).max(0.0) / (2.0 * (twice + 1.0))
}

/// The pages of a buffer that were sampled.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// In samples of at least two accesses.
    often: f64,
    once: f64,
    twice: f64,
    accesses: Accesses,
}

impl Seen {
    fn add(&mut self, accesses: Accesses) {
        self.accesses.add(accesses);
        match accesses.all {
            1 => self.once += 1.0,
            2 => (self.often, self.twice) = (self.often + 1.0, self.twice + 1.0),
            _ => self.often += 1.0,
        }
    }

    fn bytes(&self, scale: f64) -> f64 {
        estimate(self.often + self.once, self.once, self.twice) * scale * PAGE as f64
    }
}

impl Touches {
    /// The memory of the threads of the script. `communities` has the community of each thread, by its thread id in the recording.
    /// All buffers together have about `limit` bytes at most:
    /// none is smaller than a page.
    #[must_use]
    pub fn memory(&self, script: &Script, communities: &FxHashMap<u32, u32>, limit: u64) -> Memory {
        let numbers: FxHashMap<u32, usize> = script
            .threads
            .iter()
            .enumerate()
            .filter(|(_, mock)| mock.is_active)
            .map(|(number, mock)| (mock.tid, number))
            .collect();
        let scale = 2f64.powi(self.left_out as i32);
        let mut shared: BTreeMap<u32, Seen> = BTreeMap::new();
        let mut own: Vec<Seen> = vec![Seen::default(); script.threads.len()];
        let mut to_shared: Vec<u64> = vec![0; script.threads.len()];
        // To pages with no other access.
        let mut once: Vec<Accesses> = vec![Accesses::default(); script.threads.len()];
        for touching in self.pages.values() {
            let mut of_community: BTreeMap<u32, (u32, Accesses)> = BTreeMap::new();
            for (tid, accesses) in touching.iter().filter(|(tid, _)| numbers.contains_key(tid)) {
                if let Some(community) = communities.get(tid) {
                    let (threads, sum) = of_community.entry(*community).or_default();
                    *threads += 1;
                    sum.add(*accesses);
                }
            }
            for (tid, accesses) in touching {
                let Some(&number) = numbers.get(tid) else { continue };
                let community = communities.get(tid).and_then(|community| of_community.get(community));
                if community.is_some_and(|&(threads, _)| threads > 1) {
                    if let Some(sum) = to_shared.get_mut(number) {
                        *sum += accesses.all;
                    }
                } else if accesses.all == 1 && touching.len() == 1 {
                    if let Some(sum) = once.get_mut(number) {
                        sum.add(*accesses);
                    }
                } else if let Some(seen) = own.get_mut(number) {
                    seen.add(*accesses);
                }
            }
            for (community, (threads, accesses)) in of_community {
                if threads > 1 {
                    shared.entry(community).or_default().add(accesses);
                }
            }
        }
        // A page with one access may be shared as well: as often as those that tell.
        for (number, mock) in script.threads.iter().enumerate() {
            let (Some(own), Some(sum), Some(&once)) =
                (own.get_mut(number), to_shared.get_mut(number), once.get(number))
            else {
                continue;
            };
            let telling = *sum + own.accesses.all;
            let part = if telling == 0 { 0.0 } else { *sum as f64 / telling as f64 };
            let with = (once.all as f64 * part).round() as u64;
            let writes = (once.writes as f64 * part).round() as u64;
            *sum += with;
            own.once += (once.all - with) as f64;
            own.accesses.add(Accesses { all: once.all - with, writes: once.writes - writes.min(once.writes) });
            if let Some(shared) = communities.get(&mock.tid).and_then(|community| shared.get_mut(community)) {
                shared.once += with as f64;
                shared.accesses.add(Accesses { all: with, writes });
            }
        }
        let rates: Vec<f64> = script.threads.iter().map(|mock| self.rate(mock)).collect();
        let most = rates.iter().copied().fold(0.0, f64::max);
        let all = shared.values().chain(&own).map(|seen| seen.bytes(scale)).sum::<f64>();
        let divided_by = (all / limit as f64).ceil().max(1.0);
        let mut next = 0;
        let mut buffer = |seen: &Seen| {
            if seen.accesses.all == 0 {
                return Buffer::default();
            }
            let pages = (seen.bytes(scale) / divided_by / PAGE as f64).ceil().max(1.0);
            let bytes = pages as u64 * PAGE;
            let offset = next;
            next += bytes;
            Buffer { offset, bytes, writes: (seen.accesses.write_share() * 256.0).round() as u32 }
        };
        let shared: BTreeMap<u32, Buffer> = shared.iter().map(|(&community, seen)| (community, buffer(seen))).collect();
        let mut threads = Vec::with_capacity(script.threads.len());
        for (number, mock) in script.threads.iter().enumerate() {
            let seen = own.get(number).copied().unwrap_or_default();
            let private = buffer(&seen);
            let to_shared = to_shared.get(number).copied().unwrap_or_default();
            let accesses = to_shared + seen.accesses.all;
            let rate = rates.get(number).copied().unwrap_or_default();
            if !mock.is_active || accesses == 0 {
                threads.push(MockMemory::default());
                continue;
            }
            threads.push(MockMemory {
                shared: communities.get(&mock.tid).and_then(|id| shared.get(id)).copied().unwrap_or_default(),
                private,
                to_shared: (256 * to_shared / accesses) as u32,
                rate: ((256.0 * rate / most).round() as u32).clamp(1, 256),
            });
        }
        Memory { threads, bytes: next, communities: shared.len(), divided_by: divided_by as u64 }
    }

    /// Sampled accesses in a ns of CPU time.
    fn rate(&self, mock: &super::script::Mock) -> f64 {
        let accesses = self.threads.get(&mock.tid).copied().unwrap_or_default();
        if !mock.is_active || mock.recorded.run < 1_000_000 {
            return 0.0;
        }
        accesses as f64 / mock.recorded.run as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mock;

    fn sample(tid: u32, page: u64, access: Access) -> Sample {
        let mut sample = Sample::default();
        (sample.raw.tid, sample.raw.access) = (tid, access);
        sample.memory = Some(MemoryId::Private { space: 1, addr: page * PAGE });
        sample
    }

    fn script() -> Script {
        let mut script = Script::default();
        for tid in 1..=3 {
            let mut mock = Mock { tid, is_active: true, ..Mock::default() };
            mock.recorded.run = 1_000_000_000;
            script.threads.push(mock);
        }
        script
    }

    /// Threads 1 and 2 share 8 pages, which 1 writes; each has 4 of its own. Thread 3 is alone, with half as many accesses.
    fn touches() -> Touches {
        let mut touches = Touches::default();
        for round in 0..10 {
            for page in 0..8 {
                touches.access(&sample(1, page, Access::Store));
                touches.access(&sample(2, page, Access::Load));
            }
            for page in 0..4 {
                touches.access(&sample(1, 100 + page, Access::Load));
                touches.access(&sample(2, 200 + page, Access::Load));
            }
            if round % 2 == 0 {
                (0..12).for_each(|page| touches.access(&sample(3, 300 + page, Access::Store)));
            }
        }
        touches
    }

    #[test]
    fn buffers_are_as_the_samples_say() {
        let communities: FxHashMap<u32, u32> = [(1, 7), (2, 7)].into_iter().collect();
        let memory = touches().memory(&script(), &communities, 1 << 30);
        let [one, two, three] = memory.threads[..] else { panic!("{memory:?}") };
        assert_eq!((one.shared, one.shared.bytes, one.shared.writes), (two.shared, 8 * PAGE, 128));
        assert_eq!((one.private.bytes, one.private.writes, two.private.bytes), (4 * PAGE, 0, 4 * PAGE));
        assert_eq!((one.to_shared, two.to_shared, three.to_shared), (256 * 8 / 12, 256 * 8 / 12, 0));
        assert_eq!((three.shared.bytes, three.private.bytes, three.private.writes), (0, 12 * PAGE, 256));
        assert_eq!((one.rate, two.rate, three.rate), (256, 256, 128));
        assert_eq!((memory.bytes, memory.communities, memory.divided_by), (28 * PAGE, 1, 1));
        // No two buffers overlap.
        let mut buffers = [one.shared, one.private, two.private, three.private];
        buffers.sort_by_key(|buffer| buffer.offset);
        assert!(buffers.windows(2).all(|pair| pair[0].offset + pair[0].bytes == pair[1].offset), "{buffers:?}");
    }

    #[test]
    fn too_much_memory_is_divided() {
        let memory = touches().memory(&script(), &FxHashMap::default(), 14 * PAGE);
        assert_eq!(memory.divided_by, 3);
        assert!(memory.bytes <= 14 * PAGE, "{memory:?}");
    }
}
