//! The timer source's events on the running kernel: which samples they give of user code and of the kernel.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::{gettid, sched_getaffinity, sched_setaffinity, CpuSet};
use scxprof::sample::CpuMode;
use scxprof::testing::recover::{REGS_MASK, STACK_DUMP_SIZE};
use scxprof::testing::sampler::attr::{layout, Features};
use scxprof::testing::sampler::record::{decode, Record};
use scxprof::testing::sampler::tick::{self, Refusal, TickKind, TickPlan, MAX_STACK};
use scxprof::testing::sampler::user::is_user_interrupt;

use crate::support::alone;

const PROC: &str = "/proc";
/// Pages of a ring that no test fills.
const PAGES: usize = 1024;

/// The fields of a sample that the tests check.
#[derive(Debug)]
struct TickSample {
    /// Bytes of the record.
    size: usize,
    mode: CpuMode,
    /// Kernel's or, for cpu-clock, the interrupted ip.
    ip: u64,
    tid: u32,
    /// CLOCK_MONOTONIC, ns.
    time: u64,
    callchain: Vec<u64>,
    /// `PERF_SAMPLE_REGS_ABI_*`.
    abi: u64,
    /// The registers of `REGS_MASK`, in the order of its bits.
    regs: Vec<u64>,
    /// Bytes of user stack that were copied.
    stack: usize,
}

/// A plan whose event opens on CPU 0; otherwise prints that the test is skipped.
fn usable(test: &str, kind: TickKind) -> Option<TickPlan> {
    match tick::plan(kind, Path::new(PROC), None, false).and_then(|plan| plan.open(Features::all(), 1, 0).map(|_| plan))
    {
        Ok(plan) => Some(plan),
        Err(refusal) => {
            eprintln!("SKIP: {test}: {kind}: {refusal}");
            None
        }
    }
}

fn first_cpu() -> u32 {
    let set = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).find(|&cpu| set.is_set(cpu)).unwrap() as u32
}

/// Puts the calling thread on `cpu`.
fn pin(cpu: u32) {
    let mut set = CpuSet::new();
    set.set(cpu as usize);
    sched_setaffinity(None, &set).unwrap();
}

/// Samples of a thread that does `work` repeatedly on one CPU, until there are `wanted` or 20 seconds are over.
fn samples_of(plan: &TickPlan, wanted: u32, work: impl Fn() + Sync) -> Vec<TickSample> {
    let cpu = first_cpu();
    let (event, layout) = plan.open(Features::all(), PAGES, cpu).unwrap();
    let mut ring = event.ring(PAGES).unwrap();
    let stop = AtomicBool::new(false);
    let tid = AtomicU32::new(0);
    let mut samples = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(cpu);
            tid.store(gettid().as_raw_pid() as u32, Ordering::Release);
            while !stop.load(Ordering::Relaxed) {
                work();
            }
        });
        while tid.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        event.enable().unwrap();
        for _ in 0..200 {
            std::thread::sleep(Duration::from_millis(100));
            let read = ring.drain(&mut Vec::new(), |bytes| match decode(bytes, &layout).unwrap() {
                (header, Record::Sample(sample), _) => samples.push(TickSample {
                    size: bytes.len(),
                    mode: header.cpu_mode(),
                    ip: sample.ip,
                    tid: sample.tid,
                    time: sample.time,
                    callchain: sample.callchain.iter().collect(),
                    abi: sample.regs_user.abi,
                    regs: sample.regs_user.values.iter().collect(),
                    stack: sample.stack_user.len(),
                }),
                (_, record, _) => assert!(!matches!(record, Record::Lost { .. }), "lost samples"),
            });
            read.unwrap();
            if samples.iter().filter(|sample| sample.tid == tid.load(Ordering::Acquire)).count() as u32 >= wanted {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    samples.retain(|sample| sample.tid == tid.load(Ordering::Acquire));
    samples
}

fn spin() {
    let mut sum = 0u64;
    for step in 0..100_000u64 {
        sum = std::hint::black_box(sum.wrapping_add(step));
    }
}

/// A system call that takes the kernel a while: 64 KiB of zeros.
fn syscalls() {
    static FILE: std::sync::OnceLock<std::fs::File> = std::sync::OnceLock::new();
    let mut buffer = vec![0u8; 1 << 16];
    let mut file = FILE.get_or_init(|| std::fs::File::open("/dev/zero").unwrap());
    for _ in 0..100 {
        std::io::Read::read_exact(&mut file, &mut buffer).unwrap();
    }
}

/// Touches pages that were never touched.
fn faults() {
    let mut map = memmap2::MmapMut::map_anon(4 << 20).unwrap();
    map.advise(memmap2::Advice::NoHugePage).ok();
    for page in map.chunks_mut(4096) {
        page[0] = 1;
    }
}

fn share(samples: &[TickSample], user: impl Fn(&TickSample) -> bool) -> f64 {
    samples.iter().filter(|sample| user(sample)).count() as f64 / samples.len() as f64
}

fn report(name: &str, plan: &TickPlan, samples: &[TickSample], user: f64) {
    let bytes = samples.iter().map(|sample| sample.size).sum::<usize>() / samples.len();
    let deepest = samples.iter().map(|sample| sample.callchain.len()).max().unwrap();
    let seconds = (samples.last().unwrap().time - samples[0].time) as f64 / 1e9;
    let rate = samples.len() as f64 / seconds;
    let count = samples.len();
    println!("{}: {name}: {count} samples, {rate:.0} Hz, user {user:.3}, {bytes} bytes, chain {deepest}", plan.kind);
}

fn tracepoint_tells_user_code(test: &str, kind: TickKind) {
    let Some(plan) = usable(test, kind) else { return };
    let user = |sample: &TickSample| is_user_interrupt(sample.callchain.iter().copied(), &plan.entries);
    let mut shares = [0.0; 3];
    for ((name, work), to) in
        [("spin", spin as fn()), ("syscalls", syscalls), ("faults", faults)].into_iter().zip(&mut shares)
    {
        let samples = samples_of(&plan, 200, work);
        assert!(samples.len() >= 100, "{name}: {} samples", samples.len());
        *to = share(&samples, user);
        report(name, &plan, &samples, *to);
        assert!(samples.iter().all(|sample| sample.mode == CpuMode::Kernel), "a tracepoint is kernel code");
        assert!(samples.iter().all(|sample| sample.callchain.len() <= usize::from(MAX_STACK) + 1));
        assert!(samples.iter().all(|sample| sample.abi == 2 && sample.stack <= STACK_DUMP_SIZE.into()));
        // The user's ip, the ninth register, is below the kernel's half whatever was interrupted.
        assert!(samples.iter().all(|sample| (sample.regs[8] as i64) > 0 && (sample.ip as i64) < 0));
    }
    let [spin, syscalls, faults] = shares;
    assert!(spin > 0.9, "a spin loop is user code: {spin}");
    assert!(syscalls < 0.3, "a loop of long system calls is the kernel's: {syscalls}");
    assert!(faults < 0.6, "a loop of page faults is mostly the kernel's: {faults}");
}

#[test]
fn the_tick_tells_user_code_from_the_kernel() {
    let _alone = alone();
    tracepoint_tells_user_code("the_tick_tells_user_code_from_the_kernel", TickKind::HrtimerExpire);
}

#[test]
fn cpu_clock_says_the_mode_itself() {
    let _alone = alone();
    let Some(plan) = usable("cpu_clock_says_the_mode_itself", TickKind::CpuClock) else { return };
    let mut shares = [0.0; 3];
    for ((name, work), to) in
        [("spin", spin as fn()), ("syscalls", syscalls), ("faults", faults)].into_iter().zip(&mut shares)
    {
        let samples = samples_of(&plan, 200, work);
        *to = share(&samples, |sample| sample.mode == CpuMode::User);
        report(name, &plan, &samples, *to);
        for sample in samples.iter().filter(|sample| sample.mode == CpuMode::User) {
            assert_eq!(sample.ip, sample.regs[8]);
        }
    }
    assert!(shares[0] > 0.9 && shares[1] < 0.3 && shares[2] < 0.6, "{shares:?}");
}

#[test]
fn the_probe_takes_the_best_event_that_advances() {
    let _alone = alone();
    if usable("the_probe_takes_the_best_event_that_advances", TickKind::CpuClock).is_none() {
        return;
    }
    let plan = tick::probe(Path::new(PROC), None, false, Features::all(), first_cpu()).unwrap();
    println!("{plan:?}");
    assert!(plan.rate.unwrap() > 1.0);
    let asked = tick::probe(Path::new(PROC), Some(997), false, Features::all(), first_cpu()).unwrap();
    assert_eq!((asked.kind, asked.refused.len()), (TickKind::CpuClock, 1));
    assert_eq!(asked.period(), 1_003_009);
    // Without the kernel's symbols the tick cannot be used, and the plan contains the reason.
    let bare = tempfile::tempdir().unwrap();
    let bare = tick::probe(bare.path(), None, false, Features::all(), first_cpu()).unwrap();
    assert_eq!((bare.kind, bare.refused.len()), (TickKind::CpuClock, 1));
    assert!(bare.refused[0].1.to_string().contains("kallsyms"), "{:?}", bare.refused);
}

#[test]
fn an_entry_that_is_not_the_kernels_own_is_noticed() {
    let _alone = alone();
    let test = "an_entry_that_is_not_the_kernels_own_is_noticed";
    let Some(plan) = usable(test, TickKind::HrtimerExpire) else { return };
    // The right handler, and an entry where there is none.
    let handler = plan.spec.filter.unwrap().rsplit_once("0x").unwrap().1.to_owned();
    let fake = tempfile::tempdir().unwrap();
    let symbols = format!(
        "{handler} t tick_nohz_handler\nffff800000000000 T asm_sysvec_apic_timer_interrupt\nffff800000000010 T next\n"
    );
    std::fs::write(fake.path().join("kallsyms"), symbols).unwrap();
    std::fs::create_dir(fake.path().join("self")).unwrap();
    std::fs::copy("/proc/self/mountinfo", fake.path().join("self/mountinfo")).unwrap();
    // If other work keeps the CPU busy, too few samples are ours to decide; hence several tries.
    let noticed = (0..10).any(|_| {
        let found = tick::probe(fake.path(), None, false, Features::all(), first_cpu()).unwrap();
        let blind = found.refused.iter().filter(|(_, why)| matches!(why, Refusal::Blind { user: 0, .. })).count();
        found.kind == TickKind::CpuClock && blind == 1
    });
    assert!(noticed);
}

#[test]
fn the_rate_is_the_ticks_whatever_timers_the_workload_has() {
    let _alone = alone();
    let test = "the_rate_is_the_ticks_whatever_timers_the_workload_has";
    if usable(test, TickKind::HrtimerExpire).is_none() {
        return;
    }
    let stop = AtomicBool::new(false);
    let cpu = first_cpu();
    let tick = std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(cpu);
            // SAFETY: the call takes numbers. A sleep of 50 us is then not stretched by 50 us more.
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        let plan = tick::plan(TickKind::HrtimerExpire, Path::new(PROC), None, false).unwrap();
        let tick = tick::measure(plan, Features::all(), cpu).unwrap();
        stop.store(true, Ordering::Relaxed);
        tick
    });
    assert!(tick.rate.unwrap() < 1100.0, "CONFIG_HZ is at most 1000: {tick:?}");
}

/// An event that happens whenever a thread of the host wants it to would flood the rings of a busy host.
#[test]
fn every_event_that_the_probe_may_take_has_a_bounded_rate() {
    let _alone = alone();
    for kind in [TickKind::HrtimerExpire, TickKind::CpuClock] {
        let Some(plan) = usable("every_event_that_the_probe_may_take_has_a_bounded_rate", kind) else { continue };
        let (event, _) = plan.open(Features::all(), 1, first_cpu()).unwrap();
        // SAFETY: the union's fields are plain numbers of the same size.
        let period = unsafe { event.attr.__bindgen_anon_1.sample_period };
        if kind == TickKind::CpuClock {
            assert_eq!(period, 1_000_000_000 / u64::from(tick::DEFAULT_FREQ));
        } else {
            assert!(plan.spec.filter.as_ref().is_some_and(|filter| filter.contains("function==0x")), "{plan:?}");
        }
    }
}

/// The threads of others leave the probe's own thread so little of the CPU that a short look shows nothing.
#[test]
fn the_probe_finds_the_tick_on_a_busy_cpu() {
    let _alone = alone();
    let test = "the_probe_finds_the_tick_on_a_busy_cpu";
    if usable(test, TickKind::HrtimerExpire).is_none() {
        return;
    }
    let (stop, cpu) = (AtomicBool::new(false), first_cpu());
    let found = std::thread::scope(|scope| {
        for _ in 0..15 {
            scope.spawn(|| {
                pin(cpu);
                while !stop.load(Ordering::Relaxed) {
                    syscalls();
                }
            });
        }
        let found = tick::probe(Path::new(PROC), None, false, Features::all(), cpu).unwrap();
        stop.store(true, Ordering::Relaxed);
        found
    });
    assert_eq!(found.kind, TickKind::HrtimerExpire, "{:?}", found.refused);
}

#[test]
fn the_event_that_is_probed_is_the_one_that_is_sampled() {
    use scxprof::testing::sampler::{Hardware, Sampler, SamplerError, SamplerOptions, Target};

    let test = "the_event_that_is_probed_is_the_one_that_is_sampled";
    let _alone = alone();
    let cpu = first_cpu();
    let options = SamplerOptions {
        source: scxprof::sample::Source::Timer,
        freq: None,
        target: Target::System,
        cpus: vec![cpu],
        all_cpus: false,
        mmap_pages: 64,
        workers: None,
        realtime: None,
        queue: 0,
        features: Features::all(),
        hardware: Hardware::default(),
        proc: PROC.into(),
        sys: "/sys".into(),
        child_pid_namespace: false,
        sched: None,
        raise_open_files: false,
        stacks: None,
        snapshots: false,
    };
    let sampler = match Sampler::open(&options) {
        Err(SamplerError::NoTimer { reasons, .. }) => {
            println!("SKIP: {test}: {reasons}");
            return;
        }
        opened => opened.unwrap(),
    };
    let sampled = &sampler.events().unwrap()[0];
    let kinds = [TickKind::HrtimerExpire, TickKind::CpuClock];
    let kind = kinds.into_iter().find(|kind| kind.name() == &*sampled.name).unwrap();
    let plan = tick::plan(kind, Path::new(PROC), None, false).unwrap();
    let (probed, probed_layout) = plan.open(Features::all(), 64, cpu).unwrap();
    // All but the unions.
    assert_eq!(format!("{:?}", probed.attr), format!("{:?}", sampled.attr));
    assert_eq!(probed_layout, layout(&sampled.attr));
    assert_eq!(probed.attr.sample_regs_user, REGS_MASK);
}
