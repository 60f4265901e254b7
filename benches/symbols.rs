//! The cost of naming code: finding the file of a sample's instruction, with and without changes of mappings, and the names at
//! the end.

#![allow(clippy::expect_used, missing_docs)] // A benchmark that cannot run must say so.

use std::hint::black_box;
use std::time::SystemTime;

use criterion::{criterion_group, criterion_main, Criterion, Throughput};
use scxprof::host::Roots;
use scxprof::sample::{CpuMode, MemoryScope};
use scxprof::testing::resolve::{symbolize, Mapping, Maps, Modules, SymbolOptions};

const PROCESSES: u32 = 64;
/// Files of code of each process.
const FILES: u64 = 8;
const SIZE: u64 = 1 << 20;

fn mapping(file: u64) -> Mapping {
    Mapping {
        start: 0x40_0000 + file * 2 * SIZE,
        len: SIZE,
        pgoff: 0,
        prot: 5,
        flags: 2,
        dev: 1,
        ino: file,
        generation: 0,
        scope: Some(MemoryScope::device(1, 0)),
        build_id: None,
        path: format!("/usr/lib/x86_64-linux-gnu/lib{file}.so").into_bytes().into(),
    }
}

fn locate(criterion: &mut Criterion) {
    let mut maps = Maps::recorded(16 << 20);
    for pid in 1..=PROCESSES {
        maps.exec(pid);
        for file in 0..FILES {
            maps.mmap(pid, &mapping(file));
        }
    }
    let mut modules = Modules::new();
    let samples: Vec<(u32, u64)> = (0..1 << 12)
        .map(|step: u64| {
            let random = step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let ip = mapping(random >> 32 & (FILES - 1)).start + (random >> 40 & (SIZE - 1));
            ((random >> 16) as u32 % PROCESSES + 1, ip)
        })
        .collect();
    let mut group = criterion.benchmark_group("locate");
    group.throughput(Throughput::Elements(samples.len() as u64));
    for (name, every) in [("mappings that stay", usize::MAX), ("a process begins every 8 samples", 8)] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let mut sum = 0u64;
                for (number, &(pid, ip)) in samples.iter().enumerate() {
                    if number % every == 1 {
                        maps.exec(PROCESSES + 1);
                    }
                    let code = modules.locate(&mut maps, pid, CpuMode::User, ip).expect("it is mapped");
                    sum = sum.wrapping_add(code.offset);
                }
                black_box(sum)
            });
        });
    }
    group.finish();
}

/// Names for instructions all over this program.
fn name(criterion: &mut Criterion) {
    let mut maps = Maps::new(&Roots::default(), 16 << 20);
    let mut modules = Modules::new();
    let here = name as *const () as usize as u64;
    let ips = (0..1000u64).map(|step| here - 64 * 1024 + step * 128);
    let located = ips.filter_map(|ip| modules.locate(&mut maps, std::process::id(), CpuMode::User, ip));
    let codes: Vec<_> = located.collect();
    let options = SymbolOptions { begin: Some(SystemTime::now()), ..SymbolOptions::default() };
    let mut group = criterion.benchmark_group("symbolize");
    group.throughput(Throughput::Elements(codes.len() as u64));
    group.bench_function("instructions of one file", |bencher| {
        bencher.iter(|| black_box(symbolize(&modules, codes.iter().copied(), &options)).len());
    });
    group.finish();
}

criterion_group!(benches, locate, name);
criterion_main!(benches);
