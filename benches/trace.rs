//! Reading and analysing a trace of a million ftrace events: 8 CPUs, 400 threads that wake each other, softirqs, idle states
//! and requests to a block device. `cargo bench --bench trace`.

use std::hint::black_box;
use std::io::Cursor;

use criterion::{criterion_group, criterion_main, Criterion};
use scxprof::trace::analyze::{Analysis, Id, Options};
use scxprof::trace::Trace;

const EVENTS: usize = 1_000_000;
/// Names a file into which such a trace is written, and nothing is measured; the other one the events that it has. For
/// benches/trace.sh.
const WRITE: &str = "SCXPROF_WRITE_TRACE";
const WRITE_EVENTS: &str = "SCXPROF_WRITE_EVENTS";
const CPUS: usize = 8;
const THREADS: u64 = 400;
/// Events of a bundle.
const BUNDLE: usize = 1000;

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn int(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, field << 3);
    varint(out, value);
}

fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend(value);
}

/// What a thread is called and its number, in the fields of a switch or wakeup from `field` on.
fn task(out: &mut Vec<u8>, field: u64, tid: u64) {
    bytes(out, field, format!("worker-{}", tid % 50).as_bytes());
    int(out, field + 1, tid);
    int(out, field + 2, 120);
}

/// Xorshift: the same trace each time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[derive(Default)]
struct Made {
    file: Vec<u8>,
    bundles: [(Vec<u8>, usize); CPUS],
    count: usize,
}

impl Made {
    fn event(&mut self, time: u64, (cpu, tid): (usize, u64), field: u64, inner: &[u8]) {
        let mut event = Vec::new();
        int(&mut event, 1, time);
        int(&mut event, 2, tid);
        bytes(&mut event, field, inner);
        let (bundle, count) = &mut self.bundles[cpu];
        bytes(bundle, 2, &event);
        *count += 1;
        self.count += 1;
        if *count >= BUNDLE {
            self.flush(cpu);
        }
    }

    fn flush(&mut self, cpu: usize) {
        let (events, _) = std::mem::take(&mut self.bundles[cpu]);
        let (mut bundle, mut packet) = (Vec::new(), Vec::new());
        int(&mut bundle, 1, cpu as u64);
        bundle.extend(events);
        bytes(&mut packet, 1, &bundle);
        bytes(&mut self.file, 1, &packet);
    }
}

fn made(events: usize) -> Vec<u8> {
    let (mut random, mut made) = (Random(1), Made::default());
    let (mut time, mut runs) = (1_000_000_000, [0; CPUS]);
    let (mut sleeps, mut queue) = (vec![true; THREADS as usize + 1], Vec::new());
    while made.count < events {
        time += 200 + random.below(1300);
        let cpu = random.below(CPUS as u64) as usize;
        let on = (cpu, runs[cpu]);
        let mut inner = Vec::new();
        match random.below(20) {
            0..8 => {
                let tid = 1 + random.below(THREADS);
                if std::mem::take(&mut sleeps[tid as usize]) {
                    queue.push(tid);
                    task(&mut inner, 1, tid);
                    int(&mut inner, 5, cpu as u64);
                    made.event(time, on, 20, &inner);
                    made.event(time + 50, on, 17, &inner);
                }
            }
            8..17 => {
                let prev = runs[cpu];
                let at = random.below(queue.len().clamp(1, 4) as u64) as usize;
                let next = if queue.is_empty() { 0 } else { queue.swap_remove(at) };
                if prev != next {
                    let state = if prev == 0 { 0 } else { [0, 1, 1, 1, 2, 256][random.below(6) as usize] };
                    match state {
                        0 | 256 if prev != 0 => queue.push(prev),
                        _ => sleeps[prev as usize] = true,
                    }
                    runs[cpu] = next;
                    task(&mut inner, 1, prev);
                    int(&mut inner, 4, state);
                    task(&mut inner, 5, next);
                    made.event(time, on, 4, &inner);
                }
            }
            17 => {
                int(&mut inner, 1, random.below(10));
                made.event(time, on, 24, &inner);
                made.event(time + 100, on, 25, &inner);
            }
            18 => {
                int(&mut inner, 1, [0, 1, 2, u64::from(u32::MAX)][random.below(4) as usize]);
                int(&mut inner, 2, cpu as u64);
                made.event(time, on, 13, &inner);
            }
            _ => {
                int(&mut inner, 1, 8 << 20);
                int(&mut inner, 2, random.below(1_000_000));
                made.event(time, on, 45, &inner);
                int(&mut inner, 3, 8);
                made.event(time + 150, on, 125, &inner);
            }
        }
    }
    for cpu in 0..CPUS {
        made.flush(cpu);
    }
    made.file
}

fn analyse(file: &[u8], only: Option<Vec<Id>>) {
    let Ok(mut trace) = Trace::open(Cursor::new(file)) else { return };
    let mut analysis = only.map(|only| Analysis::new(Options { only, ..Options::default() }));
    while let Ok(Some(event)) = trace.next_event() {
        match &mut analysis {
            Some(analysis) => analysis.take(&event),
            None => drop(black_box(event)),
        }
    }
    black_box(analysis.map(|analysis| analysis.finish(&trace)));
}

fn bench(criterion: &mut Criterion) {
    if let Some(path) = std::env::var_os(WRITE) {
        let events = std::env::var(WRITE_EVENTS).ok().and_then(|events| events.parse().ok()).unwrap_or(EVENTS);
        if let Err(error) = std::fs::write(&path, made(events)) {
            eprintln!("cannot write the trace: {error}");
            std::process::exit(1);
        }
        return;
    }
    let file = made(EVENTS);
    let mut group = criterion.benchmark_group("trace of a million events");
    group.sample_size(10);
    group.bench_function("read", |bencher| bencher.iter(|| analyse(&file, None)));
    group.bench_function("read and analyse", |bencher| bencher.iter(|| analyse(&file, Some(Vec::new()))));
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
