//! From the sketch to verdicts: ranks, cells, communities, and how much the two halves of the samples agree.

use std::cmp::Reverse;
use std::fmt;

use rustc_hash::FxHashMap;

use super::communities::{communities, Rules};
use super::graph::{Graph, PageFacts, Seen};
use super::quality::adjusted_rand_index;
use super::report::{describe, Hot};
use super::sharing::{mix, Sharing, SketchStats, Touch, EVENT};

/// Why nothing can be said about a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reason {
    /// Fewer samples than [`Options::min_events`].
    TooFewSamples,
    /// More threads in the group than are compared with each other; the most active ones are.
    TooManyThreads,
    /// The source sees first touches of pages only, which cannot tell the threads of one process apart.
    FirstTouches,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::TooFewSamples => "too few samples",
            Self::TooManyThreads => "too many threads to compare, and others are more active",
            Self::FirstTouches => "first touches of pages cannot tell the threads of one process apart",
        })
    }
}

/// What is known about a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It shares memory with the others of this community, an index of [`Clusters::communities`].
    Community(u32),
    /// There are samples enough, and it shares memory with nobody in particular.
    Alone,
    /// Nothing can be said.
    Unknown(Reason),
}

/// What [`Sharing::solve`] is asked.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Options<'a> {
    /// Per thread its group (a cell): threads of different groups never join. Threads beyond its end are in group 0.
    pub groups: &'a [u32],
    /// Events below which a thread is unknown.
    pub min_events: u32,
    /// Threads of one group that are compared at the most; the work and the memory grow with its square, 18 MB for 2,000.
    pub max_threads: usize,
    /// Where the samples are first touches of pages (source `faults`): per thread its process.
    pub first_touches: Option<&'a [u32]>,
    /// Solves the two halves of the samples too, which costs as much again, for [`Community::stability`].
    pub stability: bool,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self { groups: &[], min_events: 50, max_threads: 3000, first_touches: None, stability: true }
    }
}

/// Threads that share memory.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Community {
    /// The group they are in.
    pub group: u32,
    /// The threads, in ascending order.
    pub threads: Vec<u32>,
    /// Their events.
    pub events: f64,
    /// The part of all events of the host that these are.
    pub share_of_accesses: f64,
    /// The part of their events that fell on pages that two or more of them touched.
    pub shared: f64,
    /// The part of those that fell on pages that one of them was seen to write.
    pub written: f64,
    /// How much more strongly they meet with each other than with other threads of the group; infinite where there are none.
    pub contrast: f64,
    /// The mean overlap (Jaccard) of this community with the one nearest to it in each half of the samples, 1 for the same;
    /// `None` where the halves were not asked for.
    pub stability: Option<f64>,
    /// From 0 to 1: the evidence's distance from chance, times the distance from the other threads, times the stability.
    pub confidence: f64,
    /// The hottest pages that they share, the hottest first.
    pub pages: Vec<Hot>,
    /// The hottest lines of those pages that more than one thread touched.
    pub lines: Vec<Hot>,
}

/// What the sketch says.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Clusters {
    /// Per thread what is known about it.
    pub of_thread: Vec<Verdict>,
    /// The communities, by group and then by size.
    pub communities: Vec<Community>,
    /// See [`Sharing::locality`], of these communities.
    pub locality: f64,
    /// The adjusted Rand index between the communities of the two halves of the samples.
    pub stability: Option<f64>,
    /// The hottest pages of those that everybody touches.
    pub hubs: Vec<Hot>,
    /// What the sketch saw and let go.
    pub stats: SketchStats,
}

impl Clusters {
    /// The partition as labels, each thread without a community by itself.
    #[must_use]
    pub fn labels(&self) -> Vec<u32> {
        let alone = self.communities.len() as u32;
        (alone..)
            .zip(&self.of_thread)
            .map(|(label, verdict)| match verdict {
                Verdict::Community(community) => *community,
                _ => label,
            })
            .collect()
    }
}

/// A community before it is described.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub group: u32,
    pub threads: Vec<u32>,
    pub within: f32,
    pub outside: f32,
    pub meetings: f32,
}

/// The threads of one group that are compared, by rank.
struct Cell {
    group: u32,
    threads: Vec<u32>,
}

impl Sharing {
    /// The communities of what was seen so far.
    ///
    /// The answer is the same whatever the numbers of the threads and the order and the times of the samples.
    #[must_use]
    pub fn solve(&self, options: &Options) -> Clusters {
        let mut of_thread = vec![Verdict::Unknown(Reason::TooFewSamples); self.threads().len()];
        let cells = self.cells(options, &mut of_thread);
        let seen = self.shared_touches(&cells);
        let (found, hubs) = self.find(&cells, &seen, 1.0);
        for (community, label) in found.iter().zip(0..) {
            for &thread in &community.threads {
                if let Some(verdict) = of_thread.get_mut(thread as usize) {
                    *verdict = Verdict::Community(label);
                }
            }
        }
        let mut clusters = describe(self, of_thread, &found, &seen, &hubs);
        if options.stability {
            self.stability(&cells, &seen, &found, &mut clusters);
        }
        for (community, found) in clusters.communities.iter_mut().zip(&found) {
            let sure = 1.0 - 1.0 / f64::from(found.meetings).max(1.0).sqrt();
            let apart = 1.0 - (1.0 / community.contrast).min(1.0);
            community.confidence = sure * apart * community.stability.unwrap_or(1.0);
        }
        clusters
    }

    /// The threads to compare, ranked by what they did and not by their numbers, so that renumbering changes nothing.
    fn cells(&self, options: &Options, of_thread: &mut [Verdict]) -> Vec<Cell> {
        let activity = self.threads();
        let group = |thread: u32| options.groups.get(thread as usize).copied().unwrap_or(0);
        let mut keys: Vec<u64> = activity.iter().map(|a| mix(a.weight ^ mix(a.writes))).collect();
        for touch in self.touches() {
            if let Some(key) = keys.get_mut(touch.thread as usize) {
                *key = key.wrapping_add(mix(touch.page ^ mix(touch.lines ^ u64::from(touch.weight))));
            }
        }
        let mut of_process: FxHashMap<u32, u32> = FxHashMap::default();
        for (process, activity) in options.first_touches.unwrap_or_default().iter().zip(activity) {
            *of_process.entry(*process).or_default() += u32::from(activity.samples > 0);
        }
        let mut order: Vec<u32> = Vec::new();
        for (thread, (activity, verdict)) in (0u32..).zip(activity.iter().zip(of_thread.iter_mut())) {
            let process = options.first_touches.and_then(|processes| processes.get(thread as usize));
            let siblings = process.and_then(|process| of_process.get(process)).is_some_and(|&count| count > 1);
            if options.first_touches.is_some() && (siblings || process.is_none()) {
                *verdict = Verdict::Unknown(Reason::FirstTouches);
            } else if activity.weight >= u64::from(options.min_events) * u64::from(EVENT) && activity.weight > 0 {
                order.push(thread);
            }
        }
        order.sort_unstable_by_key(|&thread| {
            let at = thread as usize;
            (group(thread), Reverse(activity[at].weight), keys[at], thread)
        });
        let mut cells = Vec::new();
        for threads in order.chunk_by(|&a, &b| group(a) == group(b)) {
            let (compared, beyond) = threads.split_at(threads.len().min(options.max_threads));
            for &thread in compared {
                of_thread[thread as usize] = Verdict::Alone;
            }
            for &thread in beyond {
                of_thread[thread as usize] = Verdict::Unknown(Reason::TooManyThreads);
            }
            cells.push(Cell { group: group(threads[0]), threads: compared.to_vec() });
        }
        cells
    }

    /// The touches of pages that more than one thread touches, by cell and page.
    fn shared_touches(&self, cells: &[Cell]) -> Vec<Seen> {
        let mut place = vec![(u32::MAX, u32::MAX); self.threads().len()];
        for (cell, number) in cells.iter().zip(0..) {
            for (&thread, rank) in cell.threads.iter().zip(0..) {
                place[thread as usize] = (number, rank);
            }
        }
        let mut seen: Vec<Seen> = self
            .touches()
            .filter(|touch| self.page(touch.page).is_some_and(|page| page.threads > 1))
            .filter_map(|&Touch { page, lines, thread, weight, writes, .. }| {
                let &(cell, rank) = place.get(thread as usize)?;
                Some(Seen { page, lines, cell, rank, thread, weight, writes })
            })
            .collect();
        seen.sort_unstable_by_key(|seen| (seen.cell, seen.page, seen.rank));
        self.retain_shared(&mut seen);
        seen
    }

    /// The communities of each cell, and the keys of its hubs; `part` is the part of all samples that `seen` holds.
    fn find(&self, cells: &[Cell], seen: &[Seen], part: f32) -> (Vec<Found>, Vec<u64>) {
        let activity = self.threads();
        let (mut found, mut hubs) = (Vec::new(), Vec::new());
        for touches in seen.chunk_by(|a, b| a.cell == b.cell) {
            let Some(cell) = touches.first().and_then(|first| cells.get(first.cell as usize)) else { continue };
            let events =
                cell.threads.iter().map(|&t| part * activity[t as usize].weight as f32 / EVENT as f32).collect();
            let mut graph = Graph::new(touches, events, |page| {
                self.page(page).map_or(PageFacts { stands_for: 1.0, events: 1.0 }, |page| PageFacts {
                    stands_for: self.stands_for(page),
                    events: part * page.weight as f32 / EVENT as f32,
                })
            });
            for (ranks, print) in communities(&mut graph, touches, &Rules::default()) {
                let mut threads: Vec<u32> = ranks.iter().map(|&rank| cell.threads[rank as usize]).collect();
                threads.sort_unstable();
                let super::settle::Footprint { within, outside, meetings, .. } = print;
                found.push(Found { group: cell.group, threads, within, outside, meetings });
            }
            hubs.append(&mut graph.hubs);
        }
        hubs.sort_unstable();
        hubs.dedup();
        (found, hubs)
    }

    /// Solves both halves of the samples and compares.
    ///
    /// A thread's accesses to a page are dealt out evenly, a single one by a hash of what was touched: so the halves do not
    /// depend on the order of the samples, nor on how long the run is.
    fn stability(&self, cells: &[Cell], seen: &[Seen], found: &[Found], clusters: &mut Clusters) {
        let half = |half| {
            let touches: Vec<Seen> = seen.iter().filter_map(|touch| halve(touch, half)).collect();
            self.find(cells, &touches, 0.5).0
        };
        // One half beside the other; where no thread can be had, one after the other.
        let halves = std::thread::scope(|scope| {
            let second = std::thread::Builder::new().spawn_scoped(scope, || half(1));
            let first = half(0);
            let second = second.ok().and_then(|second| second.join().ok()).unwrap_or_else(|| half(1));
            [first, second]
        });
        let labels = |found: &[Found]| {
            let mut labels: Vec<u32> = (0..self.threads().len() as u32).collect();
            for (community, label) in found.iter().zip(labels.len() as u32..) {
                for &thread in &community.threads {
                    labels[thread as usize] = label;
                }
            }
            let compared = cells.iter().flat_map(|cell| &cell.threads);
            compared.map(|&thread| labels[thread as usize]).collect::<Vec<u32>>()
        };
        clusters.stability = Some(adjusted_rand_index(&labels(&halves[0]), &labels(&halves[1])));
        for (community, found) in clusters.communities.iter_mut().zip(found) {
            let near =
                |half: &[Found]| half.iter().map(|other| overlap(&found.threads, &other.threads)).fold(0.0, f64::max);
            community.stability = Some(f64::midpoint(near(&halves[0]), near(&halves[1])));
        }
    }
}

/// The part of a touch that goes to this half.
fn halve(touch: &Seen, half: u64) -> Option<Seen> {
    let coin = mix(touch.page ^ touch.lines);
    let whole = touch.weight / EVENT;
    let first = if whole == 0 { touch.weight * (coin & 1) as u32 } else { whole.midpoint((coin & 1) as u32) * EVENT };
    let weight = if half == 0 { first } else { touch.weight - first };
    let kept = if half == 0 { mix(coin) } else { !mix(coin) };
    // Where most accesses have a line of their own, the lines are dealt out too.
    let dealt = touch.lines & kept;
    let lines = if touch.lines.count_ones() * 2 > whole && whole > 1 && dealt != 0 { dealt } else { touch.lines };
    (weight > 0).then_some(Seen { lines, weight, writes: touch.writes.min(weight), ..*touch })
}

/// The Jaccard index of two sorted lists.
fn overlap(a: &[u32], b: &[u32]) -> f64 {
    let common = a.iter().filter(|thread| b.binary_search(thread).is_ok()).count();
    common as f64 / (a.len() + b.len() - common).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::truth::{Rng, Scenario};
    use crate::sample::{Place, Sample};

    fn solve(samples: &[Sample], budget: usize, options: &Options) -> Clusters {
        let mut sharing = Sharing::new(budget);
        for sample in samples {
            sharing.add(sample);
        }
        sharing.solve(options)
    }

    /// Swaps everything with something at random.
    fn shuffle<T>(items: &mut [T], seed: u64) {
        let mut rng = Rng::new(seed);
        for n in (1..items.len()).rev() {
            items.swap(n, rng.below(n as u64 + 1) as usize);
        }
    }

    fn scenario() -> Scenario {
        Scenario { threads: 24, samples: 300, overlap: 0.1, ..Scenario::default() }
    }

    #[test]
    fn numbers_order_and_time_change_nothing() {
        for (seed, budget) in [(1, 4 << 20), (2, 4 << 20), (3, 1 << 17), (4, 1 << 17)] {
            let stream = scenario().stream(seed);
            let plain = solve(&stream.samples, budget, &Options::default());
            assert_eq!(plain.stats.pages_evicted > 0, budget < 1 << 20, "the small budget must evict");
            let mut new: Vec<u32> = (0..24).collect();
            shuffle(&mut new, seed);
            let mut samples = stream.samples.clone();
            for sample in &mut samples {
                sample.thread = new[sample.thread as usize];
                sample.tid = 77_777 - sample.thread;
                sample.time *= 3;
            }
            if plain.stats.pages_evicted == 0 {
                shuffle(&mut samples, seed);
            }
            let mut other = solve(&samples, budget, &Options::default());
            // Back to the old numbers.
            other.of_thread = new.iter().map(|&thread| other.of_thread[thread as usize]).collect();
            for community in &mut other.communities {
                let old = |thread: u32| new.iter().position(|&to| to == thread).unwrap() as u32;
                community.threads = community.threads.iter().map(|&thread| old(thread)).collect();
                community.threads.sort_unstable();
            }
            assert_eq!(plain.of_thread, other.of_thread);
            assert_eq!(plain.stability, other.stability);
            for (a, b) in plain.communities.iter().zip(&other.communities) {
                assert_eq!((&a.threads, &a.pages, &a.stability), (&b.threads, &b.pages, &b.stability));
            }
        }
    }

    #[test]
    fn groups_never_join_and_few_samples_say_nothing() {
        let mut stream = Scenario { groups: 2, threads: 16, ..Scenario::default() }.stream(1);
        for _ in 0..10 {
            let place = Some(Place::Private { space: 0, addr: 1 << 32 });
            stream.samples.push(Sample { thread: 17, place, ..Sample::default() });
        }
        let groups: Vec<u32> = (0..16).map(|thread| thread / 8).collect();
        let clusters = solve(&stream.samples, 4 << 20, &Options { groups: &groups, ..Options::default() });
        assert_eq!(clusters.of_thread[16], Verdict::Unknown(Reason::TooFewSamples));
        assert_eq!(clusters.of_thread[17], Verdict::Unknown(Reason::TooFewSamples));
        let members: Vec<&[u32]> = clusters.communities.iter().map(|community| &community.threads[..]).collect();
        assert_eq!(members.len(), 4);
        for community in members {
            assert!(community.iter().all(|&t| (t / 8, t % 2) == (community[0] / 8, community[0] % 2)), "{community:?}");
        }
        // Threads beyond the number that is compared.
        let clusters = solve(&stream.samples, 4 << 20, &Options { max_threads: 10, ..Options::default() });
        let beyond = clusters.of_thread.iter().filter(|&&v| v == Verdict::Unknown(Reason::TooManyThreads)).count();
        assert_eq!(beyond, 6);
    }

    #[test]
    fn locality_is_of_all_groups_together() {
        let stream = Scenario { groups: 2, threads: 16, ..Scenario::default() }.stream(1);
        let groups: Vec<u32> = (0..16).map(|thread| thread / 8).collect();
        let mut sharing = Sharing::new(4 << 20);
        // Of no thread here; that there is one at all must change nothing.
        sharing.same_thread(99, 98);
        for sample in &stream.samples {
            sharing.add(sample);
        }
        let two = |thread: u32, page: u64| {
            let place = Some(Place::Private { space: 0, addr: (1 << 40) + (page << 12) });
            Sample { thread, place, ..Sample::default() }
        };
        for page in 0..500 {
            sharing.add(&two(0, page));
            sharing.add(&two(15, page));
        }
        let clusters = sharing.solve(&Options { groups: &groups, ..Options::default() });
        let locality = sharing.locality(&clusters.labels());
        assert!((clusters.locality - locality).abs() < 1e-9, "{} {locality}", clusters.locality);
    }

    #[test]
    fn first_touches_do_not_tell_the_threads_of_a_process_apart() {
        let stream =
            Scenario { groups: 2, threads: 12, cross_process: true, globals: 0.0, ..Scenario::default() }.stream(1);
        // Threads 0 and 2, of one group, are one process; the others have one each.
        let processes: Vec<u32> = (0..12).map(|thread| if thread == 2 { 0 } else { thread }).collect();
        let options = Options { first_touches: Some(&processes), ..Options::default() };
        let clusters = solve(&stream.samples, 4 << 20, &options);
        assert_eq!(clusters.of_thread[0], Verdict::Unknown(Reason::FirstTouches));
        assert_eq!(clusters.of_thread[2], Verdict::Unknown(Reason::FirstTouches));
        let members: Vec<&[u32]> = clusters.communities.iter().map(|community| &community.threads[..]).collect();
        assert_eq!(members, [&[1, 3, 5, 7, 9, 11][..], &[4, 6, 8, 10]]);
    }

    #[test]
    fn who_is_compared_is_a_matter_of_samples() {
        let counts = [49, 50, 70, 0, 60];
        let samples = (0..).zip(counts).flat_map(|(thread, count)| {
            let place = Some(Place::Private { space: 0, addr: u64::from(thread) << 12 });
            std::iter::repeat_n(Sample { thread, place, ..Sample::default() }, count)
        });
        let samples: Vec<Sample> = samples.collect();
        let told = |options: &Options| solve(&samples, 4 << 20, options).of_thread;
        let (few, many) = (Verdict::Unknown(Reason::TooFewSamples), Verdict::Unknown(Reason::TooManyThreads));
        let (alone, first) = (Verdict::Alone, Verdict::Unknown(Reason::FirstTouches));
        assert_eq!(told(&Options::default()), [few, alone, alone, few, alone]);
        assert_eq!(told(&Options { max_threads: 2, ..Options::default() }), [few, many, alone, few, alone]);
        assert_eq!(told(&Options { min_events: 0, ..Options::default() }), [alone, alone, alone, few, alone]);
        // A sibling that did nothing is none; a thread of an unknown process may have some.
        let processes = Some(&[0, 1, 2, 2][..]);
        assert_eq!(told(&Options { first_touches: processes, ..Options::default() }), [few, alone, alone, few, first]);
    }

    #[test]
    fn confidence_counts_the_others_and_both_halves() {
        let stream = Scenario { samples: 200, share: 0.2, pages: 256, overlap: 0.3, ..Scenario::default() }.stream(1);
        let with = solve(&stream.samples, 4 << 20, &Options::default());
        let without = solve(&stream.samples, 4 << 20, &Options { stability: false, ..Options::default() });
        assert!(with.communities.iter().any(|it| it.stability < Some(0.9)), "too stable to test anything");
        for (with, without) in with.communities.iter().zip(&without.communities) {
            let expected = without.confidence * with.stability.unwrap();
            assert!((with.confidence - expected).abs() < 1e-9, "{with:?}");
            assert!(without.confidence < 1.0 - 1.0 / without.contrast, "{without:?}");
        }
    }

    #[test]
    fn both_halves_are_the_whole() {
        for n in 0..200u64 {
            let (weight, lines) = ((n as u32 + 1) * EVENT / 4, mix(n) >> (n % 64));
            let touch = Seen { page: mix(n), lines, cell: 0, rank: 0, thread: 0, weight, writes: weight / 2 };
            let halves = [0, 1].map(|half| halve(&touch, half));
            let sum = |of: fn(&Seen) -> u32| halves.iter().flatten().map(of).sum::<u32>();
            assert_eq!(sum(|it| it.weight), weight);
            for half in halves.iter().flatten() {
                // A single access is in one of them.
                assert!(half.weight.abs_diff(weight - half.weight) <= EVENT * 2 || weight < 2 * EVENT, "{half:?}");
                assert!(half.writes <= half.weight && half.lines & !lines == 0, "{half:?}");
            }
        }
    }

    #[test]
    fn nothing_at_all_is_no_trouble() {
        let clusters = solve(&[], 0, &Options::default());
        assert!(clusters.communities.is_empty() && clusters.of_thread.is_empty());
        let one = Sample { place: Some(Place::Frame { phys: u64::MAX }), thread: 3, ..Sample::default() };
        let clusters = solve(&[one], 0, &Options { min_events: 0, ..Options::default() });
        assert_eq!(clusters.of_thread.len(), 4);
        assert!((clusters.locality - 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn the_report_says_what_is_shared() {
        let mut stream = Scenario { groups: 2, threads: 16, one_line: true, ..Scenario::default() }.stream(1);
        for sample in &mut stream.samples {
            sample.data_src = crate::sample::DataSource(0x2 | 0x10 << 19);
        }
        let clusters = solve(&stream.samples, 4 << 20, &Options::default());
        let [first, second] = &clusters.communities[..] else { panic!("{:?}", clusters.communities) };
        for (community, base) in [(first, 1u64), (second, 2)] {
            let base = if community.threads[0] == 0 { 1 } else { base.max(2) } << 32;
            let place = Some(Place::Private { space: 0, addr: base });
            assert_eq!((community.pages[0].place, community.pages[0].threads), (place, 8));
            assert_eq!(community.lines[0].place, place);
            assert!((community.shared - 0.4).abs() < 0.06, "{}", community.shared);
            assert!((community.share_of_accesses - 0.5).abs() < 0.01);
            assert_eq!(community.lines[0].hitm, community.lines[0].events as u64);
            assert!(community.stability.unwrap() > 0.99 && community.confidence > 0.8, "{community:?}");
        }
        assert!(clusters.locality > 0.85 && clusters.stability > Some(0.99), "{}", clusters.locality);
        assert!(clusters.hubs.len() >= 4 && clusters.hubs[0].threads == 16);
        let mut sharing = Sharing::new(4 << 20);
        for sample in &stream.samples {
            sharing.add(sample);
        }
        let all_in_one = sharing.locality(&[0; 16]);
        assert!((all_in_one - 1.0).abs() < 1e-9);
        let edges = sharing.edges(&stream.truth);
        assert!(edges.len() == 2 && edges.iter().all(|edge| edge.a == edge.b && edge.significance > 10.0), "{edges:?}");
        assert!(sharing.edges(&(0..16).map(|thread| thread / 2 % 2).collect::<Vec<_>>()).is_empty());
    }
}
