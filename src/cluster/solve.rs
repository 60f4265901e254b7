//! From the sketch to verdicts: ranks, cells, communities, and how well the two halves of the samples agree.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;

use super::clusters::{ClusterOptions, Clusters, Detail, Reason, Verdict};
use super::communities::{self, Ranks};
use super::keys::mix;
use super::misses::{Misses, Part};
use super::over_time::over_time;
use super::quality::adjusted_rand_index;
use super::report::{communities as communities_of, describe};
use super::rules::{RawCommunity, Region, Rules};
use super::shared::Shared;
use super::sketch::Sharing;

/// The threads of one cell that are compared, by rank.
pub(super) struct Cell {
    number: u32,
    pub threads: Vec<u32>,
}

impl Sharing {
    /// Finds the communities of the samples so far.
    ///
    /// The communities do not depend on the numbers of the threads, nor on the order and the times of the samples. The times count
    /// for [`Community::over_time`](super::Community::over_time) and the confidence alone.
    #[must_use]
    pub fn solve(&self, options: &ClusterOptions) -> Clusters {
        let mut of_thread = vec![Verdict::Unknown(Reason::TooFewSamples); self.threads().len()];
        let cells = self.cells(options, &mut of_thread);
        // A report shows the memory of threads that are not compared, too.
        let is_needed = !cells.is_empty() || options.detail >= Detail::Report;
        let misses = if is_needed { Misses::new(self, Part::All) } else { Misses::none(self) };
        let (regions, mut found) = self.find(&cells, &misses);
        let mut stability = None;
        if options.detail >= Detail::Report {
            let halves = self.halves(&cells);
            stability = Some(adjusted_rand_index(
                &self.compared_labels(&cells, &halves[0]),
                &self.compared_labels(&cells, &halves[1]),
            ));
            let of_threads = halves.each_ref().map(|half| of_threads(half));
            for (_, found) in &mut found {
                let near = |half: usize| nearest(&found.members, &halves[half], &of_threads[half]);
                found.stability = Some(f64::midpoint(near(0), near(1)));
            }
        }
        if options.detail >= Detail::OverTime {
            let of_time = over_time(self, &misses, &regions, &found);
            found.iter_mut().zip(of_time).for_each(|(found, of_time)| found.1.over_time = of_time);
        }
        for ((_, community), label) in found.iter().zip(0..) {
            for &thread in &community.members {
                if let Some(verdict) = of_thread.get_mut(thread as usize) {
                    *verdict = Verdict::Community(label);
                }
            }
        }
        self.judge_others(&cells, &regions, &misses, &mut of_thread);
        let demand = of_thread
            .iter()
            .zip(&misses.demand)
            .map(|(verdict, &demand)| if matches!(verdict, Verdict::Unknown(_)) { 0.0 } else { demand })
            .collect();
        let mut clusters = Clusters {
            of_thread,
            communities: communities_of(self, &found),
            locality: None,
            stability,
            hubs: Vec::new(),
            lines: Vec::new(),
            stats: self.stats(),
            shared: Shared::default(),
            regions,
            demand,
            counted: misses.counted.clone(),
        };
        if options.detail >= Detail::Report {
            describe(self, &misses, &mut clusters);
        }
        clusters.locality = clusters.locality_of(&clusters.labels());
        clusters
    }

    /// The threads to compare, ranked by their accesses and not by their numbers, so that renumbering has no effect.
    fn cells(&self, options: &ClusterOptions, of_thread: &mut [Verdict]) -> Vec<Cell> {
        let activity = self.threads();
        let cell = |thread: u32| options.cells.get(thread as usize).copied().unwrap_or(0);
        let mut keys: Vec<u64> = activity.iter().map(|a| mix(a.accesses ^ mix(a.writes))).collect();
        for touch in self.touches() {
            if let Some(key) = keys.get_mut(touch.thread as usize) {
                *key = key.wrapping_add(mix(touch.page ^ mix(touch.lines ^ touch.written.rotate_left(9))));
            }
        }
        let mut of_process: FxHashMap<u32, u32> = FxHashMap::default();
        for (process, activity) in options.first_touches.unwrap_or_default().iter().zip(activity) {
            *of_process.entry(*process).or_default() += u32::from(activity.accesses > 0);
        }
        let mut order: Vec<u32> = Vec::new();
        for (thread, (activity, verdict)) in (0u32..).zip(activity.iter().zip(of_thread.iter_mut())) {
            let process = options.first_touches.and_then(|processes| processes.get(thread as usize));
            let siblings = process.and_then(|process| of_process.get(process)).is_some_and(|&count| count > 1);
            if options.first_touches.is_some() && (siblings || process.is_none()) {
                *verdict = Verdict::Unknown(Reason::FirstTouches);
            } else if activity.accesses >= u64::from(options.min_accesses) && activity.accesses > 0 {
                order.push(thread);
            }
        }
        order.sort_unstable_by_key(|&thread| {
            let at = thread as usize;
            (cell(thread), Reverse(activity[at].accesses), keys[at], thread)
        });
        let mut cells = Vec::new();
        for threads in order.chunk_by(|&a, &b| cell(a) == cell(b)) {
            let (compared, beyond) = threads.split_at(threads.len().min(options.max_threads));
            for &thread in compared {
                of_thread[thread as usize] = Verdict::Alone;
            }
            for &thread in beyond {
                of_thread[thread as usize] = Verdict::Unknown(Reason::TooManyThreads);
            }
            cells.push(Cell { number: cell(threads[0]), threads: compared.to_vec() });
        }
        cells
    }

    /// The regions and communities of all cells, by the numbers of the threads; each community with its cell.
    fn find(&self, cells: &[Cell], misses: &Misses) -> (Vec<Region>, Vec<(u32, RawCommunity)>) {
        let (mut regions, mut found) = (Vec::new(), Vec::new());
        let ranks = Ranks::new(misses, cells.iter().map(|cell| &cell.threads[..]));
        for (at, cell) in cells.iter().enumerate() {
            let number = |rank: &mut u32| *rank = cell.threads[*rank as usize];
            let (uses, owner) = (ranks.uses(misses, at), |thread| self.owner(thread));
            let (of_cell, mut communities) = communities::solve(misses, uses, &cell.threads, owner, &Rules::default());
            regions.extend(of_cell.into_iter().map(|mut region| {
                region.sharers.iter_mut().for_each(|it| number(&mut it.thread));
                region
            }));
            // Communities hold ranks; sort by rank first, then by number.
            communities.sort_by(|a, b| b.members.len().cmp(&a.members.len()).then_with(|| a.members.cmp(&b.members)));
            for community in &mut communities {
                community.members.iter_mut().for_each(number);
                community.members.sort_unstable();
            }
            found.extend(communities.into_iter().map(|community| (cell.number, community)));
        }
        (regions, found)
    }

    /// The communities of each half of the samples.
    fn halves(&self, cells: &[Cell]) -> [Vec<(u32, RawCommunity)>; 2] {
        let half = |half| self.find(cells, &Misses::new(self, Part::Half(half))).1;
        // Solves the halves in parallel, or one after the other if no thread can be started.
        std::thread::scope(|scope| {
            let second = std::thread::Builder::new().spawn_scoped(scope, || half(1));
            let first = half(0);
            let second = second.ok().and_then(|second| second.join().ok()).unwrap_or_else(|| half(1));
            [first, second]
        })
    }

    /// A label for each thread that is compared, cell by cell.
    fn compared_labels(&self, cells: &[Cell], found: &[(u32, RawCommunity)]) -> Vec<u32> {
        let mut labels: Vec<u32> = (0..self.threads().len() as u32).collect();
        for ((_, community), label) in found.iter().zip(labels.len() as u32..) {
            for &thread in &community.members {
                labels[thread as usize] = label;
            }
        }
        let compared = cells.iter().flat_map(|cell| &cell.threads);
        compared.map(|&thread| labels[thread as usize]).collect()
    }
}

/// Each thread of the communities with the index of its community, sorted.
fn of_threads(found: &[(u32, RawCommunity)]) -> Vec<(u32, u32)> {
    let mut of_threads: Vec<(u32, u32)> = Vec::new();
    for ((_, community), at) in found.iter().zip(0..) {
        of_threads.extend(community.members.iter().map(|&thread| (thread, at)));
    }
    of_threads.sort_unstable();
    of_threads
}

/// The overlap with the nearest of these communities. Only those with one of its members are looked at: a large host has
/// thousands, and as many of each half.
fn nearest(members: &[u32], found: &[(u32, RawCommunity)], of_threads: &[(u32, u32)]) -> f64 {
    let mut others: Vec<u32> = Vec::new();
    for &thread in members {
        let from = of_threads.partition_point(|it| it.0 < thread);
        others.extend(of_threads[from..].iter().take_while(|it| it.0 == thread).map(|it| it.1));
    }
    others.sort_unstable();
    others.dedup();
    others.into_iter().map(|at| overlap(members, &found[at as usize].1.members)).fold(0.0, f64::max)
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
    use crate::cluster::Hot;
    use crate::sample::{Access, MemoryId, RawSample, Sample};

    fn solve(samples: &[Sample], budget: usize, options: &ClusterOptions) -> Clusters {
        let mut sharing = Sharing::new(budget);
        for sample in samples {
            sharing.add(sample);
        }
        sharing.solve(options)
    }

    /// Swaps every item with a random one.
    fn shuffle<T>(items: &mut [T], seed: u64) {
        let mut rng = Rng::new(seed);
        for n in (1..items.len()).rev() {
            items.swap(n, rng.below(n as u64 + 1) as usize);
        }
    }

    fn scenario() -> Scenario {
        Scenario { threads: 24, samples: 300, overlap: 0.1, ..Scenario::default() }
    }

    /// The pages without what a bounded vote keeps, which depends on the order of the samples.
    fn without_bytes(pages: &[Hot]) -> Vec<Hot> {
        pages.iter().map(|page| Hot { hottest: None, ..page.clone() }).collect()
    }

    #[test]
    fn the_nearest_community_is_that_of_a_search_among_all() {
        let raw = |members: Vec<u32>| RawCommunity {
            members,
            common: 0.0,
            deviations: 0.0,
            is_all: false,
            is_contended: false,
            stability: None,
            over_time: None,
        };
        let mut rng = Rng::new(3);
        let mut random = |most: u64| -> Vec<u32> {
            let mut members: Vec<u32> = (0..=rng.below(most)).map(|_| rng.below(60) as u32).collect();
            members.sort_unstable();
            members.dedup();
            members
        };
        let found: Vec<(u32, RawCommunity)> = (0..40).map(|_| (0, raw(random(8)))).collect();
        let of_threads = of_threads(&found);
        for _ in 0..200 {
            let members = random(12);
            let all = found.iter().map(|(_, other)| overlap(&members, &other.members)).fold(0.0, f64::max);
            assert_eq!(nearest(&members, &found, &of_threads).to_bits(), all.to_bits(), "{members:?}");
        }
        assert_eq!(nearest(&[70], &found, &of_threads).to_bits(), 0.0f64.to_bits());
    }

    #[test]
    fn numbers_order_and_time_change_nothing() {
        for (seed, budget) in [(1, 4 << 20), (2, 4 << 20), (3, 1 << 17), (4, 1 << 17)] {
            let stream = scenario().stream(seed);
            let plain = solve(&stream.samples, budget, &ClusterOptions::default());
            assert_eq!(plain.stats.pages_evicted > 0, budget < 1 << 20, "the small budget must evict");
            let mut new: Vec<u32> = (0..24).collect();
            shuffle(&mut new, seed);
            let mut samples = stream.samples.clone();
            for sample in &mut samples {
                sample.thread = new[sample.thread as usize];
                sample.raw.tid = 77_777 - sample.thread;
                sample.raw.time *= 3;
            }
            if plain.stats.pages_evicted == 0 {
                shuffle(&mut samples, seed);
            }
            let mut other = solve(&samples, budget, &ClusterOptions::default());
            // Back to the original numbers.
            other.of_thread = new.iter().map(|&thread| other.of_thread[thread as usize]).collect();
            for community in &mut other.communities {
                let old = |thread: u32| new.iter().position(|&to| to == thread).unwrap() as u32;
                community.threads = community.threads.iter().map(|&thread| old(thread)).collect();
                community.threads.sort_unstable();
            }
            assert_eq!(plain.of_thread, other.of_thread);
            assert_eq!(plain.stability, other.stability);
            for (a, b) in plain.communities.iter().zip(&other.communities) {
                assert_eq!(
                    (&a.threads, without_bytes(&a.pages), &a.stability),
                    (&b.threads, without_bytes(&b.pages), &b.stability)
                );
            }
        }
    }

    #[test]
    fn groups_never_join_and_few_samples_say_nothing() {
        let mut stream = Scenario { groups: 2, threads: 16, ..Scenario::default() }.stream(1);
        for _ in 0..10 {
            let memory = Some(MemoryId::Private { space: 0, addr: 1 << 32 });
            stream.samples.push(Sample { thread: 17, memory, ..Sample::default() });
        }
        let groups: Vec<u32> = (0..16).map(|thread| thread / 8).collect();
        let clusters = solve(&stream.samples, 4 << 20, &ClusterOptions { cells: &groups, ..ClusterOptions::default() });
        assert_eq!(clusters.of_thread[16], Verdict::Unknown(Reason::TooFewSamples));
        assert_eq!(clusters.of_thread[17], Verdict::Unknown(Reason::TooFewSamples));
        let members: Vec<&[u32]> = clusters.communities.iter().map(|community| &community.threads[..]).collect();
        assert_eq!(members.len(), 4);
        for community in members {
            assert!(community.iter().all(|&t| (t / 8, t % 2) == (community[0] / 8, community[0] % 2)), "{community:?}");
        }
        // Threads beyond the number that is compared.
        let clusters =
            solve(&stream.samples, 4 << 20, &ClusterOptions { max_threads: 10, ..ClusterOptions::default() });
        let beyond = clusters.of_thread.iter().filter(|&&v| v == Verdict::Unknown(Reason::TooManyThreads)).count();
        assert_eq!(beyond, 6);
    }

    #[test]
    fn locality_is_of_all_groups_together() {
        let stream = Scenario { groups: 2, threads: 16, ..Scenario::default() }.stream(1);
        let groups: Vec<u32> = (0..16).map(|thread| thread / 8).collect();
        let clusters = solve(&stream.samples, 4 << 20, &ClusterOptions { cells: &groups, ..ClusterOptions::default() });
        assert_eq!(clusters.communities.len(), 4);
        let of = |labels: &[u32]| clusters.locality_of(labels).unwrap();
        // Keeping the threads of each group together avoids all avoidable misses; nothing is shared across groups.
        assert!((of(&groups) - 1.0).abs() < 1e-9 && (of(&[0; 16]) - 1.0).abs() < 1e-9);
        assert!(of(&(0..16).collect::<Vec<_>>()).abs() < 1e-9);
        let found = clusters.locality.unwrap();
        assert!(found > 0.7 && found < 1.0, "the globals of all are a part: {found}");
        let half: Vec<u32> = clusters.labels().iter().map(|&label| label.min(2)).collect();
        assert!(of(&half) > found, "coarser partitions avoid more");
    }

    #[test]
    fn first_touches_do_not_tell_the_threads_of_a_process_apart() {
        let stream =
            Scenario { groups: 2, threads: 12, cross_process: true, globals: 0.0, ..Scenario::default() }.stream(1);
        // Threads 0 and 2, of one group, are one process; each of the others has its own.
        let processes: Vec<u32> = (0..12).map(|thread| if thread == 2 { 0 } else { thread }).collect();
        let options = ClusterOptions { first_touches: Some(&processes), ..ClusterOptions::default() };
        let clusters = solve(&stream.samples, 4 << 20, &options);
        assert_eq!(clusters.of_thread[0], Verdict::Unknown(Reason::FirstTouches));
        assert_eq!(clusters.of_thread[2], Verdict::Unknown(Reason::FirstTouches));
        let members: Vec<&[u32]> = clusters.communities.iter().map(|community| &community.threads[..]).collect();
        assert_eq!(members, [&[1, 3, 5, 7, 9, 11][..], &[4, 6, 8, 10]]);
        // No thread is compared; a report shows their memory all the same.
        let told = |detail| {
            let options = ClusterOptions { first_touches: Some(&[0; 12]), detail, ..ClusterOptions::default() };
            solve(&stream.samples, 4 << 20, &options)
        };
        let (less, report) = (told(Detail::OverTime), told(Detail::Report));
        assert_eq!(less.of_thread, [Verdict::Unknown(Reason::FirstTouches); 12]);
        assert_eq!((less.of_thread, less.locality, less.demand), (report.of_thread, report.locality, report.demand));
        assert!(less.communities.is_empty() && report.communities.is_empty() && !report.lines.is_empty());
    }

    #[test]
    fn who_is_compared_is_a_matter_of_accesses() {
        let counts = [19, 20, 40, 0, 30];
        let samples = (0..).zip(counts).flat_map(|(thread, count)| {
            let memory = Some(MemoryId::Private { space: 0, addr: u64::from(thread) << 12 });
            std::iter::repeat_n(Sample { thread, memory, ..Sample::default() }, count)
        });
        let samples: Vec<Sample> = samples.collect();
        let told = |options: &ClusterOptions| solve(&samples, 4 << 20, options).of_thread;
        let (few, many) = (Verdict::Unknown(Reason::TooFewSamples), Verdict::Unknown(Reason::TooManyThreads));
        let (alone, first) = (Verdict::Alone, Verdict::Unknown(Reason::FirstTouches));
        assert_eq!(told(&ClusterOptions::default()), [few, alone, alone, few, alone]);
        assert_eq!(
            told(&ClusterOptions { max_threads: 2, ..ClusterOptions::default() }),
            [few, many, alone, few, alone]
        );
        assert_eq!(
            told(&ClusterOptions { min_accesses: 0, ..ClusterOptions::default() }),
            [alone, alone, alone, few, alone]
        );
        // A sibling without accesses does not count; a thread of an unknown process may have siblings.
        let processes = Some(&[0, 1, 2, 2][..]);
        assert_eq!(
            told(&ClusterOptions { first_touches: processes, ..ClusterOptions::default() }),
            [few, alone, alone, few, first]
        );
    }

    #[test]
    fn nothing_at_all_is_no_trouble() {
        let clusters = solve(&[], 0, &ClusterOptions::default());
        assert!(clusters.communities.is_empty() && clusters.of_thread.is_empty());
        let one = Sample { memory: Some(MemoryId::Frame { phys: u64::MAX }), thread: 3, ..Sample::default() };
        let clusters = solve(&[one], 0, &ClusterOptions { min_accesses: 0, ..ClusterOptions::default() });
        assert_eq!((clusters.of_thread.len(), clusters.locality), (4, None));
    }

    /// Threads of one process: those of one group share a buffer; those of group 0 share nothing.
    fn process(rng: &mut Rng, space: u32, first: u32, groups: &[u32], samples: u32) -> Vec<Sample> {
        let mut all = Vec::new();
        for (&group, thread) in groups.iter().zip(first..) {
            for _ in 0..samples {
                let own = (1 << 44) + (u64::from(thread) << 24) + (rng.below(1 << 16) << 6);
                let shared = (u64::from(group) << 32) + (rng.below(1 << 10) << 6);
                let addr = if group > 0 && rng.unit() < 0.3 { shared } else { own };
                let access = if rng.unit() < 0.3 { Access::Store } else { Access::Load };
                let memory = Some(MemoryId::Private { space, addr });
                all.push(Sample {
                    raw: RawSample { access, ..RawSample::default() },
                    thread,
                    memory,
                    ..Sample::default()
                });
            }
        }
        all
    }

    /// Thread 0 passes work to 1, 2 and 3, to each through its own line; 4 and 5 share a buffer.
    #[test]
    fn workers_belong_to_the_one_that_they_wait_for() {
        let at = |thread: u32, addr: u64| {
            let memory = Some(MemoryId::Private { space: 1, addr });
            Sample {
                raw: RawSample { access: Access::Store, ..RawSample::default() },
                thread,
                memory,
                ..Sample::default()
            }
        };
        for seed in 0..10 {
            let mut rng = Rng::new(seed);
            let mut samples = Vec::new();
            for _ in 0..600 {
                // Some get more work than others.
                let worker = match rng.below(100) {
                    0..=39 => 1,
                    40..=73 => 2,
                    _ => 3,
                };
                for (thread, line) in [(0, worker), (1, 1), (2, 2), (3, 3)] {
                    samples.push(at(thread, line << 6));
                }
                for thread in [4, 5] {
                    samples.push(at(thread, 1 << 30 | rng.below(4096) << 6));
                }
            }
            let labels = solve(&samples, 4 << 20, &ClusterOptions::default()).labels();
            let index = adjusted_rand_index(&labels, &[0, 0, 0, 0, 1, 1]);
            assert!((index - 1.0).abs() < 1e-9, "{seed}: {labels:?}");
        }
    }

    /// Three pairs share a line each, and all use one table of the kernel. So do processes that live too short for many samples.
    #[test]
    fn many_short_processes_do_not_make_the_memory_of_a_pair_that_of_all() {
        for (short, seed) in [0, 8, 24, 100].into_iter().flat_map(|short| (0..5).map(move |seed| (short, seed))) {
            let mut rng = Rng::new(seed);
            let mut samples = Vec::new();
            for thread in 0..6 + short {
                for _ in 0..if thread < 6 { 400 } else { 25 } {
                    let memory = match rng.below(50) {
                        0 => MemoryId::kernel_object(1, rng.below(64) << 6),
                        1..=4 if thread < 6 => MemoryId::kernel_object(2, u64::from(thread / 2) << 12),
                        _ => MemoryId::Private { space: thread, addr: rng.below(1 << 10) << 6 },
                    };
                    let access = if rng.unit() < 0.5 { Access::Store } else { Access::Load };
                    let raw = RawSample { access, ..RawSample::default() };
                    samples.push(Sample { raw, thread, memory: Some(memory), ..Sample::default() });
                }
            }
            rng.shuffle(&mut samples);
            let clusters = solve(&samples, 4 << 20, &ClusterOptions::default());
            let mut members: Vec<&[u32]> = clusters.communities.iter().map(|it| &it.threads[..]).collect();
            members.sort_unstable();
            assert_eq!(members, [&[0, 1], &[2, 3], &[4, 5]], "{short} short ones, seed {seed}: {clusters:?}");
        }
    }

    #[test]
    fn a_process_does_not_depend_on_strangers() {
        for groups in [&[1, 1][..], &[1, 1, 0], &[1, 1, 1, 0], &[1, 1, 2, 2], &[1, 1, 1, 1]] {
            for seed in 0..10 {
                let mut samples = process(&mut Rng::new(seed), 1, 0, groups, 300);
                let quiet = solve(&samples, 4 << 20, &ClusterOptions::default());
                let count = groups.len() as u32;
                samples.extend(process(&mut Rng::new(seed + 100), 2, count, &[0, 0, 3, 3, 3, 0], 300));
                let beside = solve(&samples, 4 << 20, &ClusterOptions::default());
                let labels = |clusters: &Clusters| clusters.labels()[..groups.len()].to_vec();
                let index = adjusted_rand_index(&labels(&quiet), &labels(&beside));
                assert!((index - 1.0).abs() < 1e-9, "{groups:?} {seed}: {quiet:?} {beside:?}");
                let truth: Vec<u32> =
                    groups.iter().zip(100..).map(|(&group, alone)| if group > 0 { group } else { alone }).collect();
                let index = adjusted_rand_index(&labels(&quiet), &truth);
                assert!((index - 1.0).abs() < 1e-9, "{groups:?} {seed}: {quiet:?}");
            }
        }
    }

    /// Gives each access its cost in caches that keep every line until another thread writes it.
    fn priced(samples: &[Sample]) -> Vec<Sample> {
        use crate::sample::DataSource;
        /// A load or store that hit L1, was modified in another core's L1, or came from memory.
        const HIT: u64 = 0xa << 5;
        const HITM: u64 = 0x42 << 5 | 0x10 << 19;
        const MEMORY: u64 = 0x82 << 5;
        let mut holders: FxHashMap<MemoryId, (Option<u32>, Vec<u32>)> = FxHashMap::default();
        let price = |sample: &Sample| {
            let line = sample.memory.unwrap().granule(crate::sample::LINE_SIZE);
            let (writer, held) = holders.entry(line).or_default();
            let source = match writer {
                _ if held.contains(&sample.thread) => HIT,
                Some(writer) if *writer != sample.thread => HITM,
                _ => MEMORY,
            };
            if sample.raw.access == Access::Store {
                held.clear();
                *writer = Some(sample.thread);
            }
            held.push(sample.thread);
            let op = if sample.raw.access == Access::Store { 0x4 } else { 0x2 };
            Sample { raw: RawSample { data_src: DataSource(op | source), ..sample.raw }, ..*sample }
        };
        samples.iter().map(price).collect()
    }

    #[test]
    fn what_accesses_cost_says_the_same_as_how_many_may_have_missed() {
        let base = Scenario { samples: 600, ..Scenario::default() };
        for scenario in [
            base.clone(),
            Scenario { pages: 1024, ..base.clone() },
            Scenario { one_line: true, ..base.clone() },
            Scenario { globals: 0.2, ..base.clone() },
            Scenario { groups: 1, threads: 12, ..base.clone() },
            Scenario { groups: 0, ..base },
        ] {
            for seed in 0..3 {
                let stream = scenario.stream(seed);
                let counted = solve(&stream.samples, 4 << 20, &ClusterOptions::default());
                let paid = solve(&priced(&stream.samples), 4 << 20, &ClusterOptions::default());
                let index = |clusters: &Clusters| adjusted_rand_index(&clusters.labels(), &stream.truth);
                assert!(index(&counted) > 0.99 && index(&paid) > 0.99, "{scenario:?} {seed}");
            }
        }
    }

    #[test]
    fn the_report_says_what_is_shared() {
        let mut stream = Scenario { groups: 2, threads: 16, one_line: true, ..Scenario::default() }.stream(1);
        for sample in &mut stream.samples {
            sample.raw.data_src = crate::sample::DataSource(0x2 | 0x10 << 19);
        }
        let clusters = solve(&stream.samples, 4 << 20, &ClusterOptions::default());
        let [first, second] = &clusters.communities[..] else { panic!("{:?}", clusters.communities) };
        for (community, base) in [(first, 1u64), (second, 2)] {
            let base = if community.threads[0] == 0 { 1 } else { base.max(2) } << 32;
            let memory = Some(MemoryId::Private { space: 0, addr: base });
            assert_eq!((community.pages[0].memory, community.pages[0].threads), (memory, 8));
            assert_eq!((community.lines[0].memory, community.lines[0].threads), (memory, 8));
            assert_eq!((community.regions[0].memory, community.regions[0].bytes), (memory, 64));
            assert_eq!(community.regions[0].threads, 8);
            assert!((community.share_of_accesses - 0.5).abs() < 0.01);
            assert_eq!(community.lines[0].hitm, community.lines[0].accesses as u64);
            assert!(community.stability.unwrap() > 0.99 && community.confidence > 0.8, "{community:?}");
            assert!((community.common - 0.4).abs() < 0.06, "{}", community.common);
        }
        assert!(clusters.locality > Some(0.8) && clusters.stability > Some(0.99), "{:?}", clusters.locality);
        assert!(clusters.hubs.len() >= 4 && clusters.hubs[0].threads == 16);
        // Each has 8 threads.
        assert!(clusters.hubs.iter().all(|hub| hub.threads > 8), "none is of one community alone");
        let edges = clusters.edges(&stream.truth);
        assert!(edges[0].a == edges[0].b && edges[1].a == edges[1].b, "{edges:?}");
        assert!(edges.iter().skip(2).all(|edge| edge.misses < edges[1].misses / 3.0), "{edges:?}");
    }
}
