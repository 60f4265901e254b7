//! The clustering: samples a second into the sketch, and the time from the last sample to the result.
//!
//! `cargo bench --bench cluster` measures; first it prints the quality for the same streams, next to a baseline that knows only
//! names: one cluster for each comm class, as in extractors that count thread names.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{criterion_group, criterion_main, BatchSize, Criterion, Throughput};
use rustc_hash::FxHashMap;
use scxprof::cluster::{ClusterOptions, Detail, Sharing};
use scxprof::sample::Comm;
use scxprof::testing::cluster::quality::adjusted_rand_index;
use scxprof::testing::cluster::truth::{Scenario, Stream};

/// 2,000 threads in 20 groups with 5,000 samples each: 10 M.
fn large() -> Scenario {
    Scenario { groups: 20, threads: 2000, samples: 5000, pages: 1024, share: 0.3, ..Scenario::default() }
}

fn small() -> Scenario {
    Scenario { groups: 8, threads: 64, samples: 10_000, pages: 256, ..Scenario::default() }
}

fn feed(stream: &Stream) -> Sharing {
    let mut sharing = Sharing::new(Sharing::BUDGET);
    for sample in &stream.samples {
        sharing.add(sample);
    }
    sharing
}

/// A comm for each thread: `threads` numbered workers of a pool with a name that does not identify the group, as is common, or
/// with one that does.
fn comms(stream: &Stream, telling: bool) -> Vec<Comm> {
    let name = |thread: usize, group: u32| {
        if telling {
            format!("g{}-w{thread}", char::from(b'a' + group as u8 % 26))
        } else {
            format!("worker-{thread}")
        }
    };
    stream.truth.iter().enumerate().map(|(thread, &group)| Comm::from(name(thread, group).as_str())).collect()
}

/// The baseline: counts samples by comm without trailing digits, one cluster for each class.
fn by_comm(stream: &Stream, comms: &[Comm]) -> Vec<u32> {
    let class = |comm: &Comm| {
        let bytes = comm.as_bytes();
        let digits = bytes.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        Comm::new(&bytes[..bytes.len() - digits])
    };
    let mut counts: FxHashMap<Comm, u64> = FxHashMap::default();
    for sample in &stream.samples {
        *counts.entry(class(&comms[sample.thread as usize])).or_default() += 1;
    }
    let mut classes: Vec<(Comm, u64)> = counts.into_iter().collect();
    classes.sort_by_key(|&(comm, count)| (std::cmp::Reverse(count), comm));
    let label: FxHashMap<Comm, u32> = classes.into_iter().zip(0..).map(|((comm, _), label)| (comm, label)).collect();
    comms.iter().map(|comm| label[&class(comm)]).collect()
}

fn compare(name: &str, stream: &Stream) -> Sharing {
    let clock = Instant::now();
    let sharing = feed(stream);
    let fed = clock.elapsed();
    let clock = Instant::now();
    let clusters = sharing.solve(&ClusterOptions::default());
    let solved = clock.elapsed();
    println!(
        "{name}: sharing: ARI {:.3}, {:.1} M samples/s, {solved:.0?} from the last sample to the result, {:?}",
        adjusted_rand_index(&clusters.labels(), &stream.truth),
        stream.samples.len() as f64 / fed.as_secs_f64() / 1e6,
        clusters.stats,
    );
    for telling in [false, true] {
        let comms = comms(stream, telling);
        let clock = Instant::now();
        let labels = by_comm(stream, &comms);
        println!(
            "{name}: comm classes, names that {}: ARI {:.3}, {:.0?} in all",
            if telling { "tell the group" } else { "do not" },
            adjusted_rand_index(&labels, &stream.truth),
            clock.elapsed(),
        );
    }
    sharing
}

fn cluster(criterion: &mut Criterion) {
    let stream = small().stream(1);
    compare("64 threads, 640 k samples", &stream);
    let mut group = criterion.benchmark_group("cluster");
    group.sample_size(10).warm_up_time(Duration::from_secs(1));
    group.throughput(Throughput::Elements(stream.samples.len() as u64));
    group.bench_function("ingest, 640 k samples of 64 threads", |bencher| {
        bencher.iter_batched_ref(
            || Sharing::new(Sharing::BUDGET),
            |sharing| {
                for sample in &stream.samples {
                    sharing.add(sample);
                }
            },
            BatchSize::PerIteration,
        );
    });
    drop(stream);
    let stream = large().stream(1);
    let sharing = compare("2,000 threads, 10 M samples", &stream);
    drop(stream);
    group.throughput(Throughput::Elements(1));
    let mut quick = ClusterOptions::default();
    quick.detail = Detail::Communities;
    group.bench_function("solve, 10 M samples of 2,000 threads", |bencher| {
        bencher.iter(|| black_box(sharing.solve(&quick)));
    });
    group.bench_function("solve with stability, 10 M samples of 2,000 threads", |bencher| {
        bencher.iter(|| black_box(sharing.solve(&ClusterOptions::default())));
    });
    group.finish();
}

criterion_group!(benches, cluster);
criterion_main!(benches);
