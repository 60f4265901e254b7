//! The graph: which threads meet on the same memory, with what everybody touches set aside.

use super::sharing::EVENT;

/// A touch as the graph reads it: the thread by its rank, counts in events.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub page: u64,
    pub lines: u64,
    pub cell: u32,
    pub rank: u32,
    pub thread: u32,
    pub weight: u32,
    pub writes: u32,
}

/// Additions that a class of pages (by the power of two of their sharers) may cost; beyond it a fair part of them is read.
const WORK: usize = 10_000_000;
/// Sharers relative to what the same number of accesses from all threads alike would give, from which a page is a hub.
const COVERAGE: f32 = 0.85;
/// The part of all threads that must be expected on a page before it can be told to be a hub.
const EXPECTED: f32 = 0.25;
/// What an access to memory that nobody writes counts beside one to memory that is written.
const READ_ONLY: f32 = 0.5;

/// Values of the unordered pairs of `0..len`.
#[derive(Debug, Clone)]
pub(crate) struct Pairs {
    values: Vec<f32>,
    len: usize,
}

impl Pairs {
    pub(crate) fn new(len: usize) -> Self {
        Self { values: vec![0.0; len * len.saturating_sub(1) / 2], len }
    }

    fn row(&self, a: usize) -> usize {
        // Row a begins behind (len-1) + (len-2) + ... values and holds b = a+1.. .
        a * (2 * self.len - a - 1) / 2
    }

    fn at(&self, a: usize, b: usize) -> usize {
        let (a, b) = if a < b { (a, b) } else { (b, a) };
        self.row(a) + b - a - 1
    }

    pub(crate) fn get(&self, a: usize, b: usize) -> f32 {
        self.values.get(self.at(a, b)).copied().unwrap_or_default()
    }

    pub(crate) fn add(&mut self, a: usize, b: usize, value: f32) {
        let at = self.at(a, b);
        if let Some(slot) = self.values.get_mut(at) {
            *slot += value;
        }
    }
}

/// The threads of one cell and how they meet.
#[derive(Debug, Clone)]
pub(crate) struct Graph {
    /// Events of each thread.
    pub events: Vec<f32>,
    /// How strongly two threads meet: the part of one's accesses that the other's explain, hubs left out.
    pub strength: Pairs,
    /// How often they met: distinct pages, and accesses to the same lines of them.
    pub meetings: Pairs,
    /// The part of a thread's accesses that goes to hubs.
    pub hub_share: Vec<f32>,
    /// Lines in use on hubs.
    pub hub_lines: u32,
    /// Keys of the hubs, sorted.
    pub hubs: Vec<u64>,
    /// How many pages a kept page stands for, on the mean.
    pub thinned: f32,
    /// The weight of each page that is no hub, in the order of its key.
    pub pages: Vec<Weighted>,
}

/// A page that says something: its touches in the cell's slice, and what they count.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weighted {
    pub begin: u32,
    pub end: u32,
    pub weight: f32,
    pub stands_for: f32,
}

/// What the graph must know of a page beside its touches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageFacts {
    /// How many pages it stands for.
    pub stands_for: f32,
    /// Events on it by all threads of the host.
    pub events: f32,
}

impl Graph {
    /// Reads the touches of one cell, sorted by page; `events` are those of its threads by rank.
    pub(crate) fn new(seen: &[Seen], events: Vec<f32>, facts: impl Fn(u64) -> PageFacts) -> Self {
        let len = events.len();
        let total: f32 = events.iter().sum();
        let mut graph = Self {
            strength: Pairs::new(len),
            meetings: Pairs::new(len),
            hub_share: vec![0.0; len],
            hub_lines: 0,
            hubs: Vec::new(),
            events,
            thinned: 1.0,
            pages: Vec::new(),
        };
        let mut begin = 0;
        let pages: Vec<(usize, &[Seen])> = seen
            .chunk_by(|a, b| a.page == b.page)
            .map(|page| {
                begin += page.len();
                (begin - page.len(), page)
            })
            .filter(|(_, page)| page.len() > 1)
            .collect();
        let mut work = [0usize; 33];
        for (_, page) in &pages {
            work[class(page.len())] += page.len() * page.len() / 2;
        }
        let (mut scale, mut scaled) = (0.0, 0.0);
        let mut rates: Vec<f32> = Vec::new();
        for (begin, page) in pages {
            let Some(first) = page.first() else { continue };
            let fact = facts(first.page);
            if is_hub(page, &graph.events, total) {
                graph.hubs.push(first.page);
                graph.hub_lines += page.iter().fold(0, |lines, touch| lines | touch.lines).count_ones();
                for touch in page {
                    graph.hub_share[touch.rank as usize] +=
                        fact.stands_for * events_of(touch) / graph.events[touch.rank as usize];
                }
                continue;
            }
            scale += fact.stands_for;
            scaled += 1.0;
            let written = page.iter().any(|touch| touch.writes > 0);
            let access = if written { 1.0 } else { READ_ONLY };
            let weight = access * fact.stands_for * total / (len as f32 * fact.events.max(1.0));
            let end = (begin + page.len()) as u32;
            graph.pages.push(Weighted { begin: begin as u32, end, weight, stands_for: fact.stands_for });
            // The keys are hashes, so the low ones are a fair part of the pages.
            let cost = work[class(page.len())];
            let part = (WORK as f32 / cost as f32).min(1.0);
            if (first.page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1 << 24) as f32 > part {
                continue;
            }
            let weight = weight / part;
            rates.clear();
            rates.extend(page.iter().map(|touch| events_of(touch) / graph.events[touch.rank as usize]));
            for (i, (a, rate)) in page.iter().zip(&rates).enumerate() {
                let row = graph.strength.row(a.rank as usize);
                let lines = a.lines.count_ones() as f32;
                let count = events_of(a);
                for (b, other) in page.iter().zip(&rates).skip(i + 1) {
                    let at = row + (b.rank - a.rank - 1) as usize;
                    let (fit, hits) = fit(a.lines, lines, count, b);
                    graph.strength.values[at] += fit * weight * rate * other;
                    graph.meetings.values[at] += fit * (1.0 + hits) / part;
                }
            }
        }
        if scaled > 0.0 {
            graph.thinned = scale / scaled;
        }
        graph.hubs.sort_unstable();
        graph
    }
}

/// True where as many threads touch a page as if all of them went there alike; `events` are those of all the threads.
pub(crate) fn is_hub(page: &[Seen], events: &[f32], total: f32) -> bool {
    let len = events.len() as f32;
    let sharers = page.len() as f32;
    // Of two threads both touch whatever they share.
    if len < 3.0 || sharers < len * EXPECTED * COVERAGE {
        return false;
    }
    let rate: f32 = page.iter().map(events_of).sum::<f32>() / total;
    let expected: f32 = events.iter().map(|events| 1.0 - (-rate * events).exp()).sum();
    expected >= len * EXPECTED && sharers >= expected * COVERAGE
}

fn class(sharers: usize) -> usize {
    (usize::BITS - sharers.leading_zeros()).min(32) as usize
}

/// A touch's weight in events.
pub(crate) fn events_of(touch: &Seen) -> f32 {
    touch.weight as f32 / EVENT as f32
}

/// How well two threads' lines of a page fit the idea that they share it, and their accesses to lines in common.
///
/// Two buffers that meet in a page have no line in common, however often they are used; threads that use the same data
/// meet on about (lines of one) * (lines of the other) / 64 of them.
fn fit(a: u64, a_lines: f32, a_events: f32, b: &Seen) -> (f32, f32) {
    let common = (a & b.lines).count_ones() as f32;
    let b_lines = b.lines.count_ones() as f32;
    let fit = ((1.0 + common) / (1.0 + a_lines * b_lines / 128.0)).min(1.0);
    let hits = (a_events * common / a_lines).min(events_of(b) * common / b_lines);
    (fit, hits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_have_a_place_each() {
        let mut pairs = Pairs::new(5);
        let mut value = 0.0;
        for a in 0..5 {
            for b in a + 1..5 {
                value += 1.0;
                pairs.add(b, a, value);
            }
        }
        assert_eq!(pairs.values, (1..=10).map(|n| n as f32).collect::<Vec<_>>());
        assert!((pairs.get(4, 3) - 10.0).abs() < f32::EPSILON);
    }

    #[test]
    fn neighbours_in_a_page_do_not_fit() {
        let seen = |lines, events: u32| Seen {
            page: 0,
            lines,
            cell: 0,
            rank: 1,
            thread: 1,
            weight: events * EVENT,
            writes: 0,
        };
        let (apart, hits) = fit(0xffff_ffff, 32.0, 50.0, &seen(0xffff_ffff_0000_0000, 50));
        assert!(apart < 0.15 && hits < 1e-6);
        let (together, hits) = fit(u64::MAX, 64.0, 64.0, &seen(u64::MAX, 64));
        assert!(together > 0.999 && hits > 63.9);
        let (once, _) = fit(1, 1.0, 1.0, &seen(2, 1));
        assert!(once > 0.99);
    }
}
