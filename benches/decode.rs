//! How fast records leave a ring and are decoded: a replayed ring of samples in the layout of the default attr.

#![allow(clippy::expect_used, missing_docs)] // A benchmark that cannot run must say so.

use std::hint::black_box;

use criterion::{criterion_group, criterion_main, BatchSize, Criterion, Throughput};
use scxprof::testing::sampler::attr::{layout, sampling, EventSpec, Features, Scope};
use scxprof::testing::sampler::encode::encode;
use scxprof::testing::sampler::record::{decode, Record, SampleId, SampleRecord};
use scxprof::testing::sampler::ring::Ring;

const PAGES: usize = 256;

fn drain_and_decode(criterion: &mut Criterion) {
    let layout = layout(&sampling(&EventSpec::minor_faults(), Features::all(), Scope::default(), 0));
    let mut bytes = Vec::new();
    let mut records = 0u64;
    while bytes.len() + 104 <= PAGES * 4096 {
        let sample =
            SampleRecord { ip: records, pid: 7, tid: 8, time: records, addr: records << 12, ..SampleRecord::default() };
        assert!(encode(&Record::Sample(sample), &SampleId::default(), 2, &layout, &mut bytes));
        records += 1;
    }
    let mut group = criterion.benchmark_group("ring");
    group.throughput(Throughput::Elements(records));
    let mut scratch = Vec::new();
    let mut ring = Ring::in_memory(PAGES, 4096 * 3 + 8).expect("memory for a ring");
    group.bench_function("drain and decode samples", |bencher| {
        bencher.iter_batched(
            || (),
            |()| {
                assert!(ring.replay(&bytes));
                let mut sum = 0u64;
                ring.drain(&mut scratch, |record| {
                    if let Ok((_, Record::Sample(sample), _)) = decode(record, &layout) {
                        sum = sum.wrapping_add(sample.addr ^ sample.phys_addr ^ u64::from(sample.tid));
                    }
                })
                .expect("the ring is sound");
                black_box(sum)
            },
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

criterion_group!(benches, drain_and_decode);
criterion_main!(benches);
