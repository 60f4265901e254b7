//! The cost of recovering addresses per sample: real samples, replayed.
//!
//! The benchmark starts itself a second time as a load, samples that at 1 kHz for a few seconds and replays the samples. So it
//! needs the rights of `scxprof run --source timer -p`; without them it says so and measures nothing.

#![allow(clippy::expect_used, missing_docs)] // A benchmark that cannot run must say so.

use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{BatchSize, Criterion, Throughput};
use scxprof::host::Roots;
use scxprof::sample::Source;
use scxprof::testing::host::pagemap::{Page, Pagemap};
use scxprof::testing::recover::{CodeSource, CodeWindow, Recovery, Regs, StackRange};
use scxprof::testing::resolve::code::constant::Constants;
use scxprof::testing::resolve::code::{At, CodeCache, Limits, Mapping, Window};
use scxprof::testing::resolve::Maps;
use scxprof::testing::sampler::attr::Features;
use scxprof::testing::sampler::{Hardware, PendingSample, Sampler, SamplerError, SamplerOptions, Target};

/// Samples to record, and the longest time to do so in seconds.
const SAMPLES: usize = 1000;
const SECONDS: u64 = 15;
/// Bytes for decoded code, as in a session with the default memory.
const BUDGET: usize = 8 << 20;
const LOAD: &str = "load";

/// CPU time of this thread, without that of other work on the machine.
struct CpuTime;

impl Measurement for CpuTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is a live timespec for the call to fill.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
    }

    fn end(&self, begin: Duration) -> Duration {
        self.start().saturating_sub(begin)
    }

    fn add(&self, a: &Duration, b: &Duration) -> Duration {
        *a + *b
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        WallTime.to_f64(value)
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

/// Code of several kinds: the allocator, hashing, trees, formatting, sorting, copying.
fn load() -> ! {
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut names: HashMap<u64, String> = HashMap::new();
    let mut tree: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut list: Vec<u64> = (0..1 << 17).map(|_| random()).collect();
    loop {
        for _ in 0..1000 {
            names.insert(random() % 50_000, format!("name {} of {}", random(), names.len()));
            tree.entry(random() % 50_000).or_default().push(random());
        }
        for _ in 0..1000 {
            black_box(names.get(&(random() % 50_000)).map(|name| name.find("99")));
            tree.remove(&(random() % 50_000));
        }
        let at = random() as usize % (list.len() - 4096);
        if let Some(part) = list.get_mut(at..at + 4096) {
            part.reverse();
            part.sort_unstable();
        }
        black_box(list.iter().fold(0u64, |sum, value| sum.rotate_left(1) ^ value));
    }
}

/// One sample and what its recovery requested.
struct Recorded {
    captured: PendingSample,
    regs: Regs,
    stack: StackRange,
    windows: Windows,
    addresses: Vec<u64>,
}

/// The pieces of code and the read-only values that one recovery needs.
#[derive(Default)]
struct Windows(Vec<Window>, HashMap<(u64, u32), Option<u64>>);

impl CodeSource for Windows {
    fn window(&mut self, ip: u64) -> Option<CodeWindow<'_>> {
        self.0.iter().find(|window| window.is_around(ip)).map(Window::as_code)
    }

    fn constant(&mut self, addr: u64, size: u32) -> Option<u64> {
        self.1.get(&(addr, size)).copied().flatten()
    }
}

/// The code of the load, as in a session.
struct Live<'a> {
    code: &'a mut CodeCache,
    constants: &'a mut Constants,
    maps: &'a mut Maps,
    at: At,
    now: u64,
    windows: Windows,
}

impl CodeSource for Live<'_> {
    fn window(&mut self, ip: u64) -> Option<CodeWindow<'_>> {
        let known = self.windows.0.iter().position(|window| window.is_around(ip));
        let index = if let Some(index) = known {
            index
        } else {
            let mapping = self.maps.find(self.at.pid, ip)?;
            let mapping = Mapping {
                start: mapping.start,
                end: mapping.end(),
                offset: mapping.pgoff,
                dev: mapping.dev,
                ino: mapping.ino,
                writable: false,
                shared: mapping.is_shared(),
                build_id: None,
                path: &mapping.path,
            };
            self.windows.0.push(self.code.window(At { ip, ..self.at }, &mapping, self.now).ok()?);
            self.windows.0.len() - 1
        };
        self.windows.0.get(index).map(Window::as_code)
    }

    fn constant(&mut self, addr: u64, size: u32) -> Option<u64> {
        let value = self.constants.value(self.at.pid, self.at.space, addr, size, self.now);
        self.windows.1.insert((addr, size), value);
        value
    }
}

fn captured(child: &Child) -> Result<Vec<PendingSample>, SamplerError> {
    let options = SamplerOptions {
        sched: None,
        source: Source::Timer,
        freq: Some(1000),
        target: Target::Tasks { tids: vec![child.id()], enable_on_exec: false },
        cpus: (0..std::thread::available_parallelism().map_or(1, usize::from) as u32).collect(),
        all_cpus: false,
        mmap_pages: 64,
        workers: None,
        realtime: None,
        queue: 0,
        features: Features::all(),
        hardware: Hardware::default(),
        proc: "/proc".into(),
        sys: "/sys".into(),
        child_pid_namespace: false,
        raise_open_files: false,
        stacks: None,
        snapshots: false,
    };
    let running = Sampler::open(&options)?.start(None)?;
    let begin = Instant::now();
    let mut samples = Vec::new();
    while samples.len() < SAMPLES && begin.elapsed() < Duration::from_secs(SECONDS) {
        if let Ok(batch) = running.batches().recv_timeout(Duration::from_millis(100)) {
            samples.extend(batch.samples);
        }
    }
    running.stop();
    let _ = running.join();
    samples.truncate(SAMPLES);
    Ok(samples)
}

fn record(
    child: &Child,
    code: &mut CodeCache,
    constants: &mut Constants,
    maps: &mut Maps,
) -> Result<Vec<Recorded>, SamplerError> {
    let mut stack = StackRange::default();
    let mut recorded = Vec::new();
    let pid = child.id();
    for captured in captured(child)? {
        let Some(context) = &captured.context else { continue };
        let Ok(regs) = Regs::of_host(context.abi, &context.regs) else { continue };
        let range = stack.update(regs.sp());
        let time = captured.raw.time;
        let at = At { pid, space: maps.generation(pid), ip: regs.ip, time };
        let mut live = Live {
            code: &mut *code,
            constants: &mut *constants,
            maps: &mut *maps,
            at,
            now: captured.raw.time,
            windows: Windows::default(),
        };
        // A recovery with an empty cache requests everything, so the windows serve cold and warm ones. One that knows the place
        // does not run as far.
        let outcome = Recovery::new(BUDGET).recover(&regs, &context.stack, range.clone(), &mut live).candidates.len();
        let windows = live.windows;
        let mut replay = Windows(windows.0.clone(), windows.1.clone());
        let mut recovery = Recovery::new(BUDGET);
        let again = recovery.recover(&regs, &context.stack, range, &mut replay);
        assert_eq!(again.candidates.len(), outcome, "a replay gives what the first look gave");
        let addresses = again.candidates.iter().map(|candidate| candidate.addr).collect();
        recorded.push(Recorded { captured: captured.clone(), regs, stack, windows, addresses });
    }
    Ok(recorded)
}

fn recover(recovery: &mut Recovery, recorded: &mut Recorded) -> usize {
    let Recorded { captured, regs, stack, windows, .. } = recorded;
    let dump = captured.context.as_ref().map_or(&[][..], |context| &context.stack);
    recovery.recover(regs, dump, { *stack }.update(regs.sp()), windows).candidates.len()
}

fn measure(criterion: &mut Criterion<CpuTime>, child: &Child) -> Result<(), SamplerError> {
    let procfs = Path::new("/proc");
    let pid = child.id();
    let mut code = CodeCache::new(procfs, Limits::default());
    let mut constants = Constants::new(procfs, 1 << 20);
    let mut maps = Maps::new(&Roots::default(), 1 << 22);
    let mut recorded = record(child, &mut code, &mut constants, &mut maps)?;
    let space = maps.generation(pid);
    let recovered = recorded.iter().filter(|recorded| !recorded.addresses.is_empty()).count();
    let addresses: Vec<u64> = recorded.iter().flat_map(|recorded| recorded.addresses.iter().copied()).collect();
    let windows: usize = recorded.iter().map(|recorded| recorded.windows.0.len()).sum();
    let bytes: usize = recorded.iter().flat_map(|recorded| &recorded.windows.0).map(|window| window.bytes.len()).sum();
    let mut ips: Vec<u64> = recorded.iter().map(|recorded| recorded.regs.ip).collect();
    let samples = ips.len();
    ips.sort_unstable();
    ips.dedup();
    println!(
        "{samples} samples at {} addresses of code, {recovered} recovered, {} addresses, {windows} windows of {} bytes \
         each",
        ips.len(),
        addresses.len(),
        bytes / windows.max(1)
    );
    if samples == 0 {
        println!("SKIP: recovery: no samples");
        return Ok(());
    }
    let mut group = criterion.benchmark_group("recovery");
    group.throughput(Throughput::Elements(samples as u64)).sample_size(20);
    let mut warm = Recovery::new(BUDGET);
    group.bench_function("warm: the code was decoded before", |bencher| {
        bencher.iter(|| recorded.iter_mut().map(|recorded| recover(&mut warm, recorded)).sum::<usize>());
    });
    group.bench_function("cold: nothing is known", |bencher| {
        bencher
            .iter(|| recorded.iter_mut().map(|recorded| recover(&mut Recovery::new(BUDGET), recorded)).sum::<usize>());
    });
    group.bench_function("first pass: each address of code is new once", |bencher| {
        bencher.iter_batched(
            || Recovery::new(BUDGET),
            |mut recovery| recorded.iter_mut().map(|recorded| recover(&mut recovery, recorded)).sum::<usize>(),
            BatchSize::PerIteration,
        );
    });
    let mut now = 0;
    group.bench_function("code, pages and recovery as in a session, warm", |bencher| {
        let mut pagemap = Pagemap::new(procfs, 1 << 15, 16, u64::MAX);
        bencher.iter(|| {
            now += 1;
            let mut frames = 0u64;
            for recorded in &recorded {
                let at = At { pid, space, ip: recorded.regs.ip, time: now };
                let windows = Windows(Vec::with_capacity(1), HashMap::new());
                let constants = &mut constants;
                let mut live = Live { code: &mut code, constants, maps: &mut maps, at, now, windows };
                let dump = recorded.captured.context.as_ref().map_or(&[][..], |context| &context.stack);
                let stack = { recorded.stack }.update(recorded.regs.sp());
                let outcome = warm.recover(&recorded.regs, dump, stack, &mut live);
                for candidate in outcome.candidates {
                    frames ^= pagemap.page(pid, space, candidate.addr, now, false).map_or(0, |page| page.0);
                }
            }
            frames
        });
    });
    group.throughput(Throughput::Elements(addresses.len() as u64));
    group.bench_function("one page looked up in the kernel", |bencher| {
        let mut pagemap = Pagemap::new(procfs, 1 << 15, 16, 0);
        bencher.iter(|| {
            addresses.iter().filter(|&&addr| pagemap.page(pid, space, addr, 0, false).is_ok_and(Page::present)).count()
        });
    });
    group.finish();
    Ok(())
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some(LOAD) {
        load();
    }
    let mut criterion = Criterion::default()
        .with_measurement(CpuTime)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    let itself = std::env::current_exe().expect("the path of the benchmark");
    let mut child = Command::new(itself).arg(LOAD).stdin(Stdio::null()).spawn().expect("the load");
    std::thread::sleep(Duration::from_millis(500));
    if let Err(error) = measure(&mut criterion, &child) {
        println!("SKIP: recovery: {error}");
    }
    child.kill().and_then(|()| child.wait()).expect("the load ends");
    criterion.final_summary();
}
