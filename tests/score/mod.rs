//! Compares the score of configurations with the misses of a cache model ([`model`]): do they put them in the same order?
//!
//! Both judge the same random configurations of [`workloads`], from groups of whole true groups to random ones. The score sees
//! one access in 20; the model runs on all of them. The rank correlation (Spearman) of the score with the misses that the model
//! avoids is 0.92 for 5 configurations of each of 20 workloads. That of 30 configurations of one workload has a median of
//! 0.97, and is least (0.60) where all configurations avoid nearly the same: with one or two true groups.
//!
//! `cargo test --test suite score:: -- --ignored --nocapture` prints all points and draws docs/score.svg.

mod model;
mod plot;
mod workloads;

use std::sync::atomic::{AtomicUsize, Ordering};

use model::{Access, Caches, Placement, Rng};
use scxprof::sample::{Access as Kind, MemoryId, Sample, LINE_SIZE};
use scxprof::testing::cluster::layout::{Group, Layout};
use scxprof::testing::cluster::score::Avoidable;
use scxprof::testing::cluster::truth::Scenario;
use scxprof::testing::cluster::Sharing;

/// Last-level caches of the host, and lines of each: the threads of some workloads fit, those of others do not.
const CACHES: usize = 2;
const CAPACITY: usize = 32_768;
/// One access in this number is a sample: about 400 of each thread.
const PERIOD: usize = 20;
/// Configurations of each workload among the pooled points.
const POOLED: usize = 5;

/// Threads in groups that have as many CPUs each.
#[derive(Debug, Clone)]
struct Configuration {
    labels: Vec<u32>,
    groups: usize,
}

impl Configuration {
    /// One to eight groups of equal size, as is right for groups of as many CPUs: the true groups in random order are cut into
    /// them, which merges some and splits others. Then a random part of the threads, from none to all, change places.
    fn random(truth: &[u32], rng: &mut Rng) -> Self {
        let groups = 1 + rng.below(8);
        let order = rng.order(truth.iter().max().map_or(0, |&most| most as usize + 1));
        let mut threads = rng.order(truth.len());
        threads.sort_by_key(|&thread| order[truth[thread] as usize]);
        let moved = rng.unit();
        let from: Vec<usize> = (0..threads.len()).filter(|_| rng.unit() < moved).collect();
        let before = threads.clone();
        for (at, to) in rng.order(from.len()).into_iter().enumerate() {
            threads[from[at]] = before[from[to]];
        }
        let mut labels = vec![0; threads.len()];
        for (at, &thread) in threads.iter().enumerate() {
            labels[thread] = (at * groups / threads.len()) as u32;
        }
        Self { labels, groups }
    }
}

/// What a configuration is worth.
#[derive(Debug, Clone, Copy)]
struct Point {
    workload: usize,
    groups: usize,
    score: f64,
    /// By the model. 0 is what threads that run anywhere miss, and 1 what they miss if they all have one cache as large as all, so
    /// that workloads can be compared.
    avoided: f64,
}

/// A workload's accesses, all of them and as sampled.
struct Run {
    truth: Vec<u32>,
    stream: Vec<Access>,
    lines: usize,
    sampled: Avoidable,
}

impl Run {
    fn new(scenario: &Scenario, seed: u64) -> Self {
        let made = scenario.stream(seed);
        let mut rng = Rng(seed);
        let mut sharing = Sharing::new(16 << 20);
        for sample in &made.samples {
            if rng.below(PERIOD) == 0 {
                sharing.add(sample);
            }
        }
        let places: Vec<(u64, u64, u64)> = made.samples.iter().map(place).collect();
        let mut known = places.clone();
        known.sort_unstable();
        known.dedup();
        let access = |(sample, place): (&Sample, &(u64, u64, u64))| Access {
            thread: sample.thread,
            line: known.binary_search(place).unwrap() as u32,
            is_write: sample.raw.access == Kind::Store,
        };
        let stream = made.samples.iter().zip(&places).map(access).collect();
        let sampled = Avoidable::new(&sharing, None);
        Self { truth: made.truth, stream, lines: known.len(), sampled }
    }

    fn score(&self, of: &Configuration) -> f64 {
        let mut groups = vec![Group { cell: 0, cpus: 1.0 / of.groups as f64, threads: 0 }; of.groups];
        for &label in &of.labels {
            groups[label as usize].threads += 1;
        }
        self.sampled.avoided(&of.labels, &Layout::new(&groups, CACHES as u32)).score()
    }

    /// Random configurations, each laid over the caches this number of times for the model.
    fn points(&self, workload: usize, count: usize, places: usize) -> Vec<Point> {
        let mut rng = Rng(1000 + workload as u64);
        let threads = self.truth.len();
        let misses =
            |it: &Placement| it.misses(&self.stream, Caches::new(CACHES, CAPACITY, self.lines)) as f64 / places as f64;
        let anywhere =
            (0..2 * places).map(|_| misses(&Placement::anywhere(threads, CACHES, &mut rng))).sum::<f64>() / 2.0;
        let one = Caches::new(1, CAPACITY * CACHES, self.lines);
        let together = Placement::anywhere(threads, 1, &mut rng).misses(&self.stream, one) as f64;
        let point = |_| {
            let of = Configuration::random(&self.truth, &mut rng);
            let mut place = || Placement::of_groups(&of.labels, of.groups, CACHES, &mut rng);
            let placed = (0..places).map(|_| misses(&place())).sum::<f64>();
            Point {
                workload,
                groups: of.groups,
                score: self.score(&of),
                avoided: (anywhere - placed) / (anywhere - together),
            }
        };
        (0..count).map(point).collect()
    }
}

/// A line's place in memory.
fn place(sample: &Sample) -> (u64, u64, u64) {
    match sample.memory.unwrap() {
        MemoryId::Shared { scope, ino, offset } => (1 + scope.number(), ino, offset / LINE_SIZE),
        MemoryId::Private { space, addr } => (0, u64::from(space), addr / LINE_SIZE),
        MemoryId::Frame { phys } => (u64::MAX, 0, phys / LINE_SIZE),
    }
}

/// Ranks from 0; equal values have the mean of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let below = |value: f64| values.iter().filter(|&&it| it < value).count() as f64;
    let equal = |value: f64| values.iter().filter(|&&it| it <= value).count() as f64 - below(value);
    values.iter().map(|&value| below(value) + (equal(value) - 1.0) / 2.0).collect()
}

/// The rank correlation (Spearman) of a score with the misses that the model avoids.
fn spearman(points: &[Point], score: fn(&Point) -> f64) -> f64 {
    let a = ranks(&points.iter().map(score).collect::<Vec<_>>());
    let b = ranks(&points.iter().map(|it| it.avoided).collect::<Vec<_>>());
    let middle = (points.len() as f64 - 1.0) / 2.0;
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - middle) * (b - middle)).sum::<f64>();
    product(&a, &b) / (product(&a, &a) * product(&b, &b)).sqrt()
}

/// The number of points of each workload; each CPU computes those of the next one.
fn points(count: usize, places: usize) -> Vec<Vec<Point>> {
    let workloads = workloads::all();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((_, scenario)) = workloads.get(at) else { return done };
            done.push((at, Run::new(scenario, at as u64).points(at, count, places)));
        }
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut done: Vec<(usize, Vec<Point>)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..cpus).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|it| it.join().unwrap()).collect()
    });
    done.sort_by_key(|it| it.0);
    done.into_iter().map(|it| it.1).collect()
}

/// The first points of each workload.
fn pooled(points: &[Vec<Point>]) -> Vec<Point> {
    points.iter().flat_map(|of| &of[..POOLED]).copied().collect()
}

#[test]
fn the_score_orders_configurations_as_the_misses_of_the_model_do() {
    let points = pooled(&points(POOLED, 48));
    assert_eq!(points.len(), 100);
    let found = spearman(&points, |it| it.score);
    assert!(found >= 0.9, "{found:.3}");
}

#[test]
#[ignore = "takes a minute, prints, and draws docs/score.svg"]
fn all_points_are_printed_and_the_pooled_ones_drawn() {
    let points = points(30, 48);
    let of = |points: &[Point]| spearman(points, |it| it.score);
    let mut each: Vec<(f64, &str)> =
        points.iter().zip(workloads::all()).map(|(points, (workload, _))| (of(points), workload)).collect();
    each.sort_by(|a, b| a.0.total_cmp(&b.0));
    eprintln!("pooled {:.3}, median {:.3}", of(&pooled(&points)), each[each.len() / 2].0);
    for (correlation, workload) in each {
        eprintln!("{correlation:8.3} {workload}");
    }
    println!("workload,groups,score,avoided");
    for it in points.iter().flatten() {
        println!("{},{},{:.4},{:.4}", it.workload, it.groups, it.score, it.avoided);
    }
    let points = pooled(&points);
    let title = format!("100 configurations, 20 workloads: rank correlation {:.2}", of(&points));
    let dots: Vec<(f64, f64)> = points.iter().map(|it| (it.score, it.avoided)).collect();
    let svg = plot::draw(&title, ("score", "misses avoided in the cache model, beyond chance"), &dots);
    std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/score.svg"), svg).unwrap();
}
