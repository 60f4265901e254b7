//! A model of last-level caches that stay coherent: what a placement of threads costs in misses.
//!
//! It is another way to the same answer than the score: it sees every access in order, evicts what does not fit, and knows
//! which cache wrote a line last; the score sees a sample and counts what might miss.

/// The caches that hold a line, and whether the only one that does wrote it.
#[derive(Debug, Clone, Copy, Default)]
struct Line {
    holders: u8,
    is_dirty: bool,
}

/// One access of a stream; lines are numbered from 0 so that tables need no hashing.
#[derive(Debug, Clone, Copy)]
pub struct Access {
    pub thread: u32,
    pub line: u32,
    pub is_write: bool,
}

/// What an access costs if another cache has the line modified, relative to a fill from memory: what the score assumes too.
const TRANSFER: u64 = 3;
/// A small generator of pseudo-random numbers (splitmix64).
#[derive(Debug, Clone)]
pub struct Rng(pub u64);

impl Rng {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// 0 to `n` - 1 in random order.
    pub fn order(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for at in (1..n).rev() {
            order.swap(at, self.below(at + 1));
        }
        order
    }
}

/// The lines in a fully associative cache, a ring in the order of their last use. The last place is the ring's anchor.
#[derive(Debug, Clone)]
struct Lru {
    next: Vec<u32>,
    prev: Vec<u32>,
    len: usize,
}

impl Lru {
    fn new(lines: usize) -> Self {
        let mut new = Self { next: vec![0; lines + 1], prev: vec![0; lines + 1], len: 0 };
        (new.next[lines], new.prev[lines]) = (lines as u32, lines as u32);
        new
    }

    fn remove(&mut self, line: u32) {
        let (prev, next) = (self.prev[line as usize], self.next[line as usize]);
        self.next[prev as usize] = next;
        self.prev[next as usize] = prev;
        self.len -= 1;
    }

    fn insert(&mut self, line: u32) {
        let anchor = self.next.len() - 1;
        let first = self.next[anchor];
        (self.next[line as usize], self.prev[line as usize]) = (first, anchor as u32);
        self.next[anchor] = line;
        self.prev[first as usize] = line;
        self.len += 1;
    }

    fn oldest(&self) -> u32 {
        self.prev[self.prev.len() - 1]
    }
}

/// The last-level caches of a host.
#[derive(Debug)]
pub struct Caches {
    lines: Vec<Line>,
    each: Vec<Lru>,
    /// Lines of each.
    capacity: usize,
}

impl Caches {
    /// Up to 8 empty caches, for a memory of this number of lines.
    pub fn new(caches: usize, capacity: usize, lines: usize) -> Self {
        Self { lines: vec![Line::default(); lines], each: vec![Lru::new(lines); caches], capacity }
    }

    /// An access by a thread that runs on `cache`; returns what it costs: nothing if the cache has the line.
    pub fn access(&mut self, cache: usize, line: u32, is_write: bool) -> u64 {
        let own = 1 << cache;
        let at = &mut self.lines[line as usize];
        let mut cost = 0;
        if at.holders & own == 0 {
            cost = if at.is_dirty { TRANSFER } else { 1 };
            // The cache that had it modified keeps a clean copy.
            at.is_dirty = false;
            at.holders |= own;
        } else {
            self.each[cache].remove(line);
        }
        if is_write {
            for (number, other) in self.each.iter_mut().enumerate() {
                if number != cache && at.holders >> number & 1 == 1 {
                    other.remove(line);
                }
            }
            *at = Line { holders: own, is_dirty: true };
        }
        let lru = &mut self.each[cache];
        lru.insert(line);
        if lru.len > self.capacity {
            let oldest = lru.oldest();
            lru.remove(oldest);
            // If it is dirty no other cache has it, and it is written back.
            let evicted = &mut self.lines[oldest as usize];
            evicted.holders &= !own;
            evicted.is_dirty = false;
        }
        cost
    }
}

/// The cache on which each thread runs.
///
/// Threads stay where they are: a stream is the work of a millisecond, and load balancers move threads less often. If they
/// moved 50 times in a stream, nearly all misses would be those of cold caches, which any configuration avoids that keeps its
/// threads in place, right or wrong.
#[derive(Debug, Clone)]
pub struct Placement(pub Vec<u32>);

impl Placement {
    /// `groups` groups with as many CPUs each, one beside the other in random order: a configuration does not say where on the
    /// host a group is. So each cache has as many CPUs' worth of groups, and a group at a border is on both of its sides.
    pub fn of_groups(labels: &[u32], groups: usize, caches: usize, rng: &mut Rng) -> Self {
        let order = rng.order(groups);
        let (mut sizes, mut placed) = (vec![0; groups], vec![0; groups]);
        for &group in labels {
            sizes[group as usize] += 1;
        }
        let mut on = vec![0; labels.len()];
        for thread in rng.order(labels.len()) {
            let group = labels[thread] as usize;
            let within = (f64::from(placed[group]) + 0.5) / f64::from(sizes[group]);
            placed[group] += 1;
            on[thread] = ((order[group] as f64 + within) / groups as f64 * caches as f64) as u32;
        }
        Self(on)
    }

    /// As many threads on each cache, whichever.
    pub fn anywhere(threads: usize, caches: usize, rng: &mut Rng) -> Self {
        Self::of_groups(&vec![0; threads], 1, caches, rng)
    }

    /// The cost of all misses of a stream.
    pub fn misses(&self, stream: &[Access], mut caches: Caches) -> u64 {
        stream.iter().map(|it| caches.access(self.0[it.thread as usize] as usize, it.line, it.is_write)).sum()
    }
}

#[test]
fn a_line_that_another_cache_wrote_is_a_transfer_and_what_does_not_fit_a_fill() {
    let mut caches = Caches::new(2, 2, 4);
    assert_eq!(caches.access(0, 0, false), 1);
    assert_eq!(caches.access(0, 0, true), 0);
    assert_eq!(caches.access(1, 0, false), TRANSFER);
    // Both have it, until one writes it.
    assert_eq!((caches.access(0, 0, false), caches.access(1, 0, false)), (0, 0));
    assert_eq!((caches.access(1, 0, true), caches.access(0, 0, false)), (0, TRANSFER));
    // A third line evicts the one that was used least recently.
    assert_eq!((caches.access(0, 1, true), caches.access(0, 0, false), caches.access(0, 2, false)), (1, 0, 1));
    assert_eq!((caches.access(0, 0, false), caches.access(0, 1, false)), (0, 1));
    assert!(caches.each.iter().all(|it| it.len <= 2));
}
