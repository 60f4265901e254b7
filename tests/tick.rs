//! The timer source's events on the running kernel: what they see of user code and what of the kernel.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use scxprof::sampler::tick::{self, Refusal, TickKind, TickPlan, MAX_STACK, STACK_BYTES};
use scxprof::sampler::user::is_user_interrupt;
use support::{Ring, TickSample};

const PROC: &str = "/proc";
/// What CPU mode the header of a sample says.
const KERNEL: u16 = 1;
const USER: u16 = 2;

/// A plan whose event opens on CPU 0, or a note that the test was skipped.
fn usable(test: &str, kind: TickKind) -> Option<TickPlan> {
    match tick::plan(kind, Path::new(PROC), None).and_then(|plan| plan.open(0).map(|_| plan)) {
        Ok(plan) => Some(plan),
        Err(refusal) => {
            eprintln!("SKIP: {test}: {kind}: {refusal}");
            None
        }
    }
}

/// One test at a time: they share a CPU.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn first_cpu() -> u32 {
    // SAFETY: a CPU set is plain bits, and zeros are the empty one; the call fills it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set), 0);
        (0..libc::CPU_SETSIZE as usize).find(|&cpu| libc::CPU_ISSET(cpu, &set)).unwrap() as u32
    }
}

/// Puts the calling thread on `cpu`.
fn pin(cpu: u32) {
    // SAFETY: zeros are the empty set, and the set is as long as is said.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu as usize, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set), 0);
    }
}

/// Samples of a thread that does `work` over and over on one CPU, until there are `wanted` or 20 seconds are over.
fn samples_of(plan: &TickPlan, wanted: u32, work: impl Fn() + Sync) -> Vec<TickSample> {
    let cpu = first_cpu();
    let ring = Ring::new(plan.open(cpu).unwrap(), plan.kind != TickKind::CpuClock);
    let stop = AtomicBool::new(false);
    let tid = AtomicU32::new(0);
    let mut samples = std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(cpu);
            // SAFETY: the call has no arguments and cannot fail.
            tid.store(unsafe { libc::gettid() }.cast_unsigned(), Ordering::Release);
            while !stop.load(Ordering::Relaxed) {
                work();
            }
        });
        while tid.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        ring.enable();
        let mut ring = ring;
        let mut samples = Vec::new();
        for _ in 0..200 {
            std::thread::sleep(Duration::from_millis(100));
            samples = ring.peek();
            if samples.iter().filter(|sample| sample.tid == tid.load(Ordering::Acquire)).count() as u32 >= wanted {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        samples
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
    let user = |sample: &TickSample| is_user_interrupt(&sample.callchain, &plan.entries);
    let mut shares = [0.0; 3];
    for ((name, work), to) in
        [("spin", spin as fn()), ("syscalls", syscalls), ("faults", faults)].into_iter().zip(&mut shares)
    {
        let samples = samples_of(&plan, 200, work);
        assert!(samples.len() >= 100, "{name}: {} samples", samples.len());
        *to = share(&samples, user);
        report(name, &plan, &samples, *to);
        assert!(samples.iter().all(|sample| sample.mode == KERNEL), "a tracepoint is kernel code");
        assert!(samples.iter().all(|sample| sample.callchain.len() <= usize::from(MAX_STACK) + 1));
        assert!(samples.iter().all(|sample| sample.abi == 2 && sample.stack <= STACK_BYTES.into()));
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
fn the_local_timer_tells_user_code_from_the_kernel() {
    let _alone = alone();
    tracepoint_tells_user_code("the_local_timer_tells_user_code_from_the_kernel", TickKind::LocalTimer);
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
        *to = share(&samples, |sample| sample.mode == USER);
        report(name, &plan, &samples, *to);
        for sample in samples.iter().filter(|sample| sample.mode == USER) {
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
    let plan = tick::probe(Path::new(PROC), None, first_cpu()).unwrap();
    println!("{plan:?}");
    assert!(plan.rate.unwrap() > 1.0);
    let asked = tick::probe(Path::new(PROC), Some(997), first_cpu()).unwrap();
    assert_eq!((asked.kind, asked.refused.len()), (TickKind::CpuClock, 2));
    assert_eq!(asked.period, 1_003_009);
    // Without the kernel's symbols the tick cannot be used, and the plan says why.
    let bare = tempfile::tempdir().unwrap();
    let bare = tick::probe(bare.path(), None, first_cpu()).unwrap();
    assert_eq!((bare.kind, bare.refused.len()), (TickKind::CpuClock, 2));
    assert!(bare.refused[0].1.to_string().contains("kallsyms"), "{:?}", bare.refused);
}

#[test]
fn an_entry_that_is_not_the_kernels_own_is_noticed() {
    let _alone = alone();
    let test = "an_entry_that_is_not_the_kernels_own_is_noticed";
    let Some(plan) = usable(test, TickKind::HrtimerExpire) else { return };
    // The right handler, and an entry where there is none.
    let handler = plan.filter.unwrap().rsplit_once("0x").unwrap().1.to_owned();
    let fake = tempfile::tempdir().unwrap();
    let symbols = format!(
        "{handler} t tick_nohz_handler\nffff800000000000 T asm_sysvec_apic_timer_interrupt\nffff800000000010 T next\n"
    );
    std::fs::write(fake.path().join("kallsyms"), symbols).unwrap();
    std::fs::create_dir(fake.path().join("self")).unwrap();
    std::fs::copy("/proc/self/mountinfo", fake.path().join("self/mountinfo")).unwrap();
    // Where others keep the CPU busy, too few samples are ours to tell; hence more than one try.
    let noticed = (0..10).any(|_| {
        let found = tick::probe(fake.path(), None, first_cpu()).unwrap();
        let blind = found.refused.iter().filter(|(_, why)| matches!(why, Refusal::Blind { user: 0, .. })).count();
        found.kind == TickKind::CpuClock && blind == 2
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
    let (tick, timer) = std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(cpu);
            // SAFETY: the call takes numbers. A sleep of 50 us is then not stretched by 50 us more.
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        let rates = [TickKind::HrtimerExpire, TickKind::LocalTimer]
            .map(|kind| tick::try_kind(kind, Path::new(PROC), None, cpu).unwrap());
        stop.store(true, Ordering::Relaxed);
        let [tick, timer] = rates;
        (tick, timer)
    });
    let rate = |plan: &TickPlan| plan.rate.unwrap();
    println!("tick {:.0} Hz, local timer {:.0} Hz at period {}", rate(&tick), rate(&timer), timer.period);
    assert!(rate(&tick) < 1100.0, "CONFIG_HZ is at most 1000");
    assert!(rate(&timer) < 1600.0, "bounded by the period");
    assert!(rate(&timer) * timer.period as f64 > 1.5 * rate(&tick), "the sleeper's timers are seen");
}
