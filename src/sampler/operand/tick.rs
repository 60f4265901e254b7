//! Which event takes the timer source's samples: the scheduler's tick, else a clock of our own.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use perf_event_open_sys as sys;
use sys::bindings as perf;

use super::tracefs::{Tracefs, TracefsError};
use super::user::is_user_interrupt;
use super::watch::Watch;
use crate::host::kallsyms::{Kallsyms, KallsymsError};

/// Samples per second and CPU that cpu-clock takes where nobody asked for a number.
///
/// About 250, but no divisor, multiple or neighbour of a tick's rate (100, 250, 300 or 1000 Hz): at the tick's own rate
/// the samples keep step with it and, at an unlucky phase, see the scheduler that it called instead of the thread. On a
/// CPU that two threads shared, 250 Hz called up to a quarter of a spin loop's samples kernel code, 263 Hz 0.5 %.
pub const DEFAULT_FREQ: u32 = 263;
/// Above this many samples per second and CPU, cpu-clock slows the host by more than about 2 %.
pub const COSTLY_FREQ: u32 = 1000;
/// Bytes of the user stack in a sample, from rsp upwards.
pub const STACK_BYTES: u32 = 512;
/// Addresses of a callchain; from the handler of a timer to the interrupt's entry it takes 5 (Linux 6.18).
pub const MAX_STACK: u16 = 16;
/// The registers in a sample, as bits of `enum perf_event_x86_regs` (asm/perf_regs.h), in whose order they come:
/// ax bx cx dx si di bp sp ip flags, then r8 to r15.
pub const REGS: u64 = 0x00ff_03ff;

/// How long an event may take to advance on a busy CPU.
const PATIENCE: Duration = Duration::from_millis(200);
/// Hits per second and CPU above which not every local timer interrupt becomes a sample.
const MAX_RATE: f64 = 1000.0;

/// The events, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TickKind {
    /// `timer:hrtimer_expire_entry`, filtered on the tick's handler: the tick and nothing else.
    HrtimerExpire,
    /// `irq_vectors:local_timer_entry`: the tick and every other timer of the CPU.
    LocalTimer,
    /// `cpu-clock`: a timer of our own, at the cost of its interrupts.
    CpuClock,
}

impl fmt::Display for TickKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::HrtimerExpire => "timer:hrtimer_expire_entry",
            Self::LocalTimer => "irq_vectors:local_timer_entry",
            Self::CpuClock => "cpu-clock",
        })
    }
}

/// Why an event does not serve.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Somebody asked for a rate, which only cpu-clock can give.
    #[error("a rate of {freq} Hz was asked for")]
    RateAsked {
        /// Samples per second and CPU.
        freq: u32,
    },
    /// Tracefs or the event in it is out of reach.
    #[error(transparent)]
    Tracefs(#[from] TracefsError),
    /// The kernel's symbols are out of reach, so kernel code could not be told from user code.
    #[error(transparent)]
    Kallsyms(#[from] KallsymsError),
    /// The kernel has none of the symbols that are looked for.
    #[error("the kernel has no {0}")]
    NoSymbol(&'static str),
    /// `perf_event_open(2)` failed.
    #[error("perf_event_open on CPU {cpu}: {source}")]
    Open {
        /// The CPU.
        cpu: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refused the filter.
    #[error("filter \"{filter}\" on CPU {cpu}: {source}")]
    Filter {
        /// The CPU.
        cpu: u32,
        /// The filter.
        filter: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The event could not be switched on or read.
    #[error("perf event on CPU {cpu}: {source}")]
    Count {
        /// The CPU.
        cpu: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// The event opened but did not happen, although the CPU was busy.
    #[error("it did not advance on busy CPU {cpu} within {millis} ms")]
    Silent {
        /// The CPU.
        cpu: u32,
        /// How long it was watched.
        millis: u128,
    },
    /// The callchains do not show where user code was interrupted: the kernel enters and unwinds in a way unknown here.
    #[error("of {samples} samples of a loop in user code, the callchains show {user} as such")]
    Blind {
        /// Samples of the loop.
        samples: usize,
        /// Those whose callchain ends at a known interrupt entry.
        user: usize,
    },
}

impl Refusal {
    /// True where the kernel has the event and does not let us open it.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Open { source, .. } if matches!(source.raw_os_error(), Some(libc::EACCES | libc::EPERM)))
    }
}

/// The event to sample with, as plain data.
#[derive(Debug)]
pub struct TickPlan {
    /// Which event it is.
    pub kind: TickKind,
    /// `perf_event_attr.type`.
    pub type_: u32,
    /// `perf_event_attr.config`.
    pub config: u64,
    /// `perf_event_attr.sample_period`: hits per sample, for cpu-clock ns per sample.
    pub period: u64,
    /// The filter for `PERF_EVENT_IOC_SET_FILTER`.
    pub filter: Option<String>,
    /// The interrupt entries that [`super::user::is_user_interrupt`] needs; empty for cpu-clock, whose samples carry
    /// the mode in their header.
    pub entries: Vec<Range<u64>>,
    /// Samples per second that the busy CPU gave; `None` until [`probe`] measured it.
    pub rate: Option<f64>,
    /// The better events and why they do not serve.
    pub refused: Vec<(TickKind, Refusal)>,
}

impl TickPlan {
    fn new(kind: TickKind, type_: u32, config: u64, period: u64) -> Self {
        Self { kind, type_, config, period, filter: None, entries: Vec::new(), rate: None, refused: Vec::new() }
    }

    /// cpu-clock at `freq` samples per second and CPU.
    #[must_use]
    pub fn cpu_clock(freq: u32) -> Self {
        let period = 1_000_000_000 / u64::from(freq.max(1));
        Self::new(TickKind::CpuClock, perf::PERF_TYPE_SOFTWARE, perf::PERF_COUNT_SW_CPU_CLOCK.into(), period)
    }

    /// The attributes to open the event with: disabled, one sample per [`TickPlan::period`] of
    /// ip, tid, time (CLOCK_MONOTONIC), cpu, period, for tracepoints the kernel callchain, then [`REGS`] and
    /// [`STACK_BYTES`] of the user's.
    ///
    /// No `exclude_kernel`: to a tracepoint every hit is the kernel's, so it would count nothing. Of cpu-clock it would
    /// hide how much of the time was the kernel's.
    #[must_use]
    pub fn attr(&self) -> perf::perf_event_attr {
        let mut attr = perf::perf_event_attr {
            type_: self.type_,
            size: size_of::<perf::perf_event_attr>() as u32,
            config: self.config,
            ..perf::perf_event_attr::default()
        };
        attr.__bindgen_anon_1.sample_period = self.period;
        let mut fields = perf::PERF_SAMPLE_IP
            | perf::PERF_SAMPLE_TID
            | perf::PERF_SAMPLE_TIME
            | perf::PERF_SAMPLE_CPU
            | perf::PERF_SAMPLE_PERIOD
            | perf::PERF_SAMPLE_REGS_USER
            | perf::PERF_SAMPLE_STACK_USER;
        if self.kind != TickKind::CpuClock {
            fields |= perf::PERF_SAMPLE_CALLCHAIN;
            attr.sample_max_stack = MAX_STACK;
            attr.set_exclude_callchain_user(1);
        }
        attr.sample_type = fields.into();
        attr.read_format = perf::PERF_FORMAT_TOTAL_TIME_ENABLED.into();
        attr.sample_regs_user = REGS;
        attr.sample_stack_user = STACK_BYTES;
        attr.set_disabled(1);
        attr.set_exclude_hv(1);
        attr.set_exclude_idle(1);
        attr.set_use_clockid(1);
        attr.clockid = libc::CLOCK_MONOTONIC;
        attr
    }

    /// Opens the event for every process on `cpu`, disabled, with its filter.
    ///
    /// # Errors
    /// [`Refusal::Open`] and [`Refusal::Filter`].
    pub fn open(&self, cpu: u32) -> Result<OwnedFd, Refusal> {
        open(&mut self.attr(), self.filter.as_deref(), cpu)
    }
}

/// Opens `attr` for every process on `cpu` and sets `filter`.
///
/// # Errors
/// [`Refusal::Open`] and [`Refusal::Filter`].
pub fn open(attr: &mut perf::perf_event_attr, filter: Option<&str>, cpu: u32) -> Result<OwnedFd, Refusal> {
    // SAFETY: `attr` is a valid perf_event_attr whose size field says its size; the kernel writes no more than that.
    let fd = unsafe { sys::perf_event_open(attr, -1, cpu.cast_signed(), -1, perf::PERF_FLAG_FD_CLOEXEC.into()) };
    if fd < 0 {
        return Err(Refusal::Open { cpu, source: io::Error::last_os_error() });
    }
    // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    if let Some(filter) = filter {
        let refused = |source| Refusal::Filter { cpu, filter: filter.to_owned(), source };
        let text = std::ffi::CString::new(filter).map_err(|error| refused(error.into()))?;
        // SAFETY: the descriptor is open, and the text is NUL-terminated and outlives the call.
        if unsafe { sys::ioctls::SET_FILTER(fd.as_raw_fd(), text.as_ptr().cast_mut()) } < 0 {
            return Err(refused(io::Error::last_os_error()));
        }
    }
    Ok(fd)
}

/// Tries the events on `cpu`, best first, and returns the first that advances while the CPU is kept busy.
///
/// `procfs` is `/proc`; `freq` is the rate that somebody asked for, in samples per second and CPU. Takes up to 200 ms of
/// the CPU for each event. What was refused and why is in [`TickPlan::refused`].
///
/// # Errors
/// Where not even cpu-clock serves; the other refusals come with it.
pub fn probe(procfs: &Path, freq: Option<u32>, cpu: u32) -> Result<TickPlan, Vec<(TickKind, Refusal)>> {
    let mut refused = Vec::new();
    for kind in [TickKind::HrtimerExpire, TickKind::LocalTimer, TickKind::CpuClock] {
        match try_kind(kind, procfs, freq, cpu) {
            Ok(plan) => return Ok(TickPlan { refused, ..plan }),
            Err(refusal) => refused.push((kind, refusal)),
        }
    }
    Err(refused)
}

/// Tries one event on `cpu` as [`probe`] does.
///
/// # Errors
/// Where it cannot be opened or does not advance.
pub fn try_kind(kind: TickKind, procfs: &Path, freq: Option<u32>, cpu: u32) -> Result<TickPlan, Refusal> {
    plan(kind, procfs, freq).and_then(|plan| measure(plan, cpu))
}

/// What `kind` needs of this host, not yet tried.
///
/// # Errors
/// Where a rate was asked for, and where symbols or tracefs are out of reach; never for cpu-clock.
pub fn plan(kind: TickKind, procfs: &Path, freq: Option<u32>) -> Result<TickPlan, Refusal> {
    let event = match (kind, freq) {
        (TickKind::CpuClock, freq) => return Ok(TickPlan::cpu_clock(freq.unwrap_or(DEFAULT_FREQ))),
        (_, Some(freq)) => return Err(Refusal::RateAsked { freq }),
        (TickKind::HrtimerExpire, None) => "timer/hrtimer_expire_entry",
        (TickKind::LocalTimer, None) => "irq_vectors/local_timer_entry",
    };
    let symbols = Kallsyms::read(procfs)?;
    if symbols.entries.is_empty() {
        return Err(Refusal::NoSymbol("interrupt entry that is known here"));
    }
    let id = Tracefs::open(procfs)?.event_id(event)?;
    let mut plan = TickPlan::new(kind, perf::PERF_TYPE_TRACEPOINT, id, 1);
    plan.entries = symbols.entries;
    if kind == TickKind::HrtimerExpire {
        if symbols.handlers.is_empty() {
            return Err(Refusal::NoSymbol("tick_nohz_handler and no tick_sched_timer"));
        }
        let terms: Vec<_> = symbols.handlers.iter().map(|address| format!("function==0x{address:x}")).collect();
        plan.filter = Some(terms.join(" || "));
    }
    Ok(plan)
}

/// Opens the event as it will be sampled, keeps `cpu` busy for 200 ms, counts, and looks whether the samples of the
/// thread that kept it busy are told to be user code.
fn measure(mut plan: TickPlan, cpu: u32) -> Result<TickPlan, Refusal> {
    let fd = plan.open(cpu)?;
    let failed = |source| Refusal::Count { cpu, source };
    let watch = Watch::start(&fd).map_err(failed)?;
    let tid = busy(cpu, PATIENCE);
    let seen = watch.stop().map_err(failed)?;
    let (count, enabled) = read(&fd).map_err(failed)?;
    if count == 0 || enabled == 0 {
        return Err(Refusal::Silent { cpu, millis: PATIENCE.as_millis() });
    }
    let rate = count as f64 * 1e9 / enabled as f64;
    match plan.kind {
        // It counts ns.
        TickKind::CpuClock => plan.rate = Some(rate / plan.period as f64),
        TickKind::HrtimerExpire => plan.rate = Some(rate),
        TickKind::LocalTimer => {
            plan.period = bounded_period(rate);
            plan.rate = Some(rate / plan.period as f64);
        }
    }
    if plan.kind != TickKind::CpuClock {
        let chains = || seen.iter().filter(|(of, _)| *of == tid).map(|(_, chain)| chain);
        let samples = chains().count();
        let user = chains().filter(|chain| is_user_interrupt(chain, &plan.entries)).count();
        // The thread does nothing but spin; a few samples may hit its start or a softirq.
        if samples >= 5 && user * 2 < samples {
            return Err(Refusal::Blind { samples, user });
        }
    }
    Ok(plan)
}

/// Hits per sample so that `rate` hits per second give at most [`MAX_RATE`] samples, or nearly so.
fn bounded_period(rate: f64) -> u64 {
    (rate / MAX_RATE).round().max(1.0) as u64
}

/// Count and ns enabled, as `PERF_FORMAT_TOTAL_TIME_ENABLED` has `read(2)` give them.
fn read(fd: &OwnedFd) -> io::Result<(u64, u64)> {
    let mut bytes = [0u8; 16];
    // SAFETY: the buffer is ours and as long as is said.
    let length = unsafe { libc::read(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) };
    match usize::try_from(length) {
        Ok(16) => {
            let [count, enabled] = [0, 8].map(|at| {
                let mut word = [0; 8];
                word.copy_from_slice(&bytes[at..at + 8]);
                u64::from_ne_bytes(word)
            });
            Ok((count, enabled))
        }
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Runs a thread on `cpu` for so long and returns its id; without the right to choose the CPU it runs where the
/// scheduler puts it.
fn busy(cpu: u32, how_long: Duration) -> u32 {
    let stop = AtomicBool::new(false);
    let tid = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(cpu);
            // SAFETY: the call has no arguments and cannot fail.
            tid.store(unsafe { libc::gettid() }.cast_unsigned(), Ordering::Relaxed);
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        // The clock is looked at here, so that the other thread makes no system call at all.
        let end = Instant::now() + how_long;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            std::thread::sleep(left);
        }
        stop.store(true, Ordering::Relaxed);
    });
    tid.into_inner()
}

/// Puts the calling thread on `cpu`; false where the kernel refuses.
pub(in crate::sampler) fn pin(cpu: u32) -> bool {
    // SAFETY: a CPU set is plain bits, and zeros are the empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let index = cpu as usize;
    if index >= libc::CPU_SETSIZE as usize {
        return false;
    }
    // SAFETY: `index` is within the set.
    unsafe { libc::CPU_SET(index, &mut set) };
    // SAFETY: the set is ours and as long as is said; 0 is the calling thread.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_is_asked_for_means_cpu_clock() {
        let nowhere = Path::new("/nonexistent");
        let refusal = plan(TickKind::HrtimerExpire, nowhere, Some(997)).unwrap_err();
        assert_eq!(refusal.to_string(), "a rate of 997 Hz was asked for");
        assert_eq!(plan(TickKind::CpuClock, nowhere, Some(1000)).unwrap().period, 1_000_000);
        assert_eq!(plan(TickKind::CpuClock, nowhere, None).unwrap().period, 3_802_281);
        assert_eq!(TickPlan::cpu_clock(0).period, 1_000_000_000);
    }

    #[test]
    fn without_symbols_no_tracepoint_serves() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("kallsyms"), "0000000000000000 t tick_nohz_handler\n").unwrap();
        let refusal = plan(TickKind::LocalTimer, dir.path(), None).unwrap_err();
        assert!(matches!(refusal, Refusal::Kallsyms(KallsymsError::Hidden { .. })), "{refusal}");
        std::fs::write(dir.path().join("kallsyms"), "ffffffff81000000 T _text\n").unwrap();
        assert!(matches!(plan(TickKind::HrtimerExpire, dir.path(), None), Err(Refusal::NoSymbol(_))));
    }

    #[test]
    fn local_timer_interrupts_are_thinned_to_the_bound() {
        assert_eq!(bounded_period(250.0), 1);
        assert_eq!(bounded_period(1000.4), 1);
        assert_eq!(bounded_period(19_839.0), 20);
    }
}
