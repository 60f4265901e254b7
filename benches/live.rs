//! What it costs to look at a live capture: a snapshot of 2,000 threads in 100 groups, with scheduling events, and the evaluation of a
//! sharing window. `cargo bench --bench live` measures, of the CPU time of all threads.

#![allow(clippy::expect_used)] // A benchmark that cannot go on must fail.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{criterion_group, criterion_main, Criterion};
use rustix::time::{clock_gettime, ClockId};
use scxprof::sample::sched::{SchedEvent, SchedTask, SchedWhat, TaskState};
use scxprof::sample::{Access, Comm, RawSample};
use scxprof::session::{Batch, By, Feed, Live, LiveOptions, SideBand};

const THREADS: u32 = 2000;
const CPUS: u32 = 64;
const SECONDS: u64 = 12;
const STEP: u64 = 10_000_000;
const ALL: [By; 7] = [By::Thread, By::Process, By::Cgroup, By::Cell, By::Cpu, By::Llc, By::Node];

/// Each CPU runs another thread every 10 ms, and each gives a sample.
struct Busy(u64);

fn comm(tid: u32) -> Comm {
    Comm::from(format!("worker-{}", tid / 20).as_str())
}

fn task(tid: u32) -> SchedTask {
    SchedTask { tid, prio: 120, comm: comm(tid) }
}

impl Feed for Busy {
    fn next_batch(&mut self) -> Option<Batch> {
        let (step, time) = (self.0, 1_000_000_000 + self.0 * STEP);
        if step * STEP >= SECONDS * 1_000_000_000 {
            return None;
        }
        self.0 += 1;
        let mut batch = Batch::until(time + STEP);
        if step == 0 {
            for tid in 1..=THREADS {
                let pid = (tid - 1) / 20 * 20 + 1;
                batch.side_band(0, SideBand::Comm { pid, tid, exec: false, comm: comm(tid) });
            }
        }
        for cpu in 0..CPUS {
            let of = |step: u64| (step as u32).wrapping_mul(CPUS).wrapping_add(cpu * 31) % THREADS + 1;
            let (prev, next) = (of(step.wrapping_sub(1)), of(step));
            let pid = (next - 1) / 20 * 20 + 1;
            let time = time + u64::from(cpu) * 1000;
            let what = SchedWhat::Switch { prev: task(prev), state: TaskState::Runnable, next: task(next) };
            batch.sched.push(SchedEvent { time, cpu, pid: (prev - 1) / 20 * 20 + 1, tid: prev, cgroup: 1, what });
            let addr = 0x10_0000 + (step * 7 + u64::from(next % 3)) % 256 * 64;
            let access = if next % 4 == 0 { Access::Store } else { Access::Load };
            batch.samples.push(RawSample {
                time,
                pid,
                tid: next,
                cpu,
                addr,
                access,
                size: 8,
                period: 1,
                ..RawSample::default()
            });
        }
        Some(batch)
    }
}

fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn snapshot(criterion: &mut Criterion) {
    let options = LiveOptions { sharing_window: Duration::from_secs(SECONDS), ..LiveOptions::default() };
    let live = Live::start_feed(options, Box::new(Busy(0))).expect("a feed needs nothing");
    while live.outcome().is_none() {
        std::thread::sleep(Duration::from_millis(10));
    }
    live.stop();
    let shown = live.snapshot(&ALL);
    println!(
        "{} threads, {} groups; the evaluation took {:.0} ms",
        shown.accesses.first().map_or(0, |lines| lines.lines.len()),
        shown.groups.len(),
        shown.cost.evaluation_s * 1000.0
    );
    let in_cpu_time = |by: &[By], rounds: u64| {
        let begin = cpu();
        for _ in 0..rounds {
            black_box(live.snapshot(by));
        }
        cpu().saturating_sub(begin)
    };
    criterion.bench_function("snapshot, lines of all kinds", |bench| {
        bench.iter_custom(|rounds| in_cpu_time(&ALL, rounds));
    });
    criterion.bench_function("snapshot, lines of threads", |bench| {
        bench.iter_custom(|rounds| in_cpu_time(&[By::Thread], rounds));
    });
    let begin = Instant::now();
    drop(live);
    println!("dropped in {:.0} ms", begin.elapsed().as_secs_f64() * 1000.0);
}

criterion_group!(benches, snapshot);
criterion_main!(benches);
