//! Chooses the event of the timer source: the scheduler's tick if possible, else cpu-clock.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use perf_event_open_sys::bindings as perf;

use super::attr::{self, Context, EventSpec, Exclude, Feature, Features, Rate, Scope};
use super::busy;
use super::open::{self, Event, EventError};
use super::pmu::Config;
use super::user::is_user_interrupt;
use crate::host::kallsyms::{Kallsyms, KallsymsError};
use crate::host::tracefs::{Tracefs, TracefsError};
use scxprof_perf::record::{decode, Layout, ReadValue, Record};
use scxprof_recover::{REGS_MASK, STACK_DUMP_SIZE};

/// The default samples per second and CPU of cpu-clock.
///
/// About 250, but not a divisor, a multiple or a neighbour of any tick rate (100, 250, 300 or 1000 Hz). At the tick's
/// own rate, samples run in step with it and, at an unlucky phase, hit the scheduler that the tick calls instead of the
/// thread. On a CPU that two threads shared, 250 Hz attributed up to a quarter of a spin loop's samples to kernel code,
/// 263 Hz 0.5 %.
pub const DEFAULT_FREQ: u32 = 263;
/// Above this many samples per second and CPU, cpu-clock slows the host by more than about 2 %.
pub const COSTLY_FREQ: u32 = 1000;
/// The most addresses of a call chain; from the handler of a timer to the interrupt's entry there are 5 (Linux 6.18).
pub const MAX_STACK: u16 = 16;

/// How long to wait for an event to advance and to give [`ENOUGH`] samples, if other threads have most of the CPU.
const PATIENCE: Duration = Duration::from_secs(2);
/// Samples that show whether call chains tell user code from kernel code. A few of them may be of kernel code, because
/// the thread begins there and softirqs may run in it.
const ENOUGH: usize = 20;
/// The shortest measurement: bursts of softirqs, or of another guest of the host, are shorter.
const LEAST: Duration = Duration::from_millis(80);
/// How often an event is tried: a burst of softirqs can make one attempt show too little user code.
const TRIES: usize = 2;
/// How often the ring of a probe is read.
const STEP: Duration = Duration::from_millis(20);
/// Pages of the ring for the samples of a probe, some 300 of them; `perf_event_mlock_kb` allows this many.
const PAGES: usize = 64;

/// The events, best first. Each has a bounded rate: that of the tick, or of a clock of our own.
/// `irq_vectors:local_timer_entry` is not among them, because it occurs for every timer that any thread of the host
/// sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TickKind {
    /// `timer:hrtimer_expire_entry`, filtered on the tick's handler: the tick and nothing else.
    HrtimerExpire,
    /// `cpu-clock`: a timer of our own, which costs additional interrupts.
    CpuClock,
}

impl TickKind {
    /// Its name in perf.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::HrtimerExpire => "timer:hrtimer_expire_entry",
            Self::CpuClock => "cpu-clock",
        }
    }
}

impl fmt::Display for TickKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Why an event does not work.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A rate was requested, which only cpu-clock can give.
    #[error("a rate of {freq} Hz was asked for")]
    RateAsked {
        /// Samples per second and CPU.
        freq: u32,
    },
    /// Tracefs or the event in it cannot be read.
    #[error(transparent)]
    Tracefs(#[from] TracefsError),
    /// The kernel's symbols cannot be read, so kernel code cannot be distinguished from user code.
    #[error(transparent)]
    Kallsyms(#[from] KallsymsError),
    /// The kernel lacks the required symbols.
    #[error("the kernel has no {0}")]
    NoSymbol(&'static str),
    /// The event could not be opened, filtered, enabled or read.
    #[error("{} on CPU {}: {}", .0.call, .0.cpu, .0.source)]
    Event(#[from] EventError),
    /// The event opened but did not occur, although the CPU was busy.
    #[error("it did not advance on busy CPU {cpu} within {millis} ms")]
    Silent {
        /// The CPU.
        cpu: u32,
        /// How long it was watched.
        millis: u128,
    },
    /// The call chains do not show that user code was interrupted: the kernel's interrupt entry or its unwinding is
    /// unknown.
    #[error("of {samples} samples of a loop in user code, the callchains show {user} as such")]
    Blind {
        /// Samples of the loop.
        samples: usize,
        /// Those with a callchain that ends at a known interrupt entry.
        user: usize,
    },
}

impl Refusal {
    /// True if the kernel has the event but denies access.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Event(error) if matches!(error.errno(), libc::EACCES | libc::EPERM))
    }
}

/// The event to sample with, and how to distinguish its samples of user code.
#[derive(Debug)]
pub struct TickPlan {
    /// The kind of event.
    pub kind: TickKind,
    /// The event's description.
    pub spec: EventSpec,
    /// The interrupt entries for [`super::user::is_user_interrupt`]; empty for cpu-clock, whose samples have the mode
    /// in their header.
    pub entries: Vec<Range<u64>>,
    /// Samples per second on the busy CPU; `None` until [`probe`] has measured it.
    pub rate: Option<f64>,
    /// The better events, and why each does not work.
    pub refused: Vec<(TickKind, Refusal)>,
}

impl TickPlan {
    /// An event of `attr.type` `type_` that samples its context every `period` hits, or every `period` ns for
    /// cpu-clock.
    fn new(kind: TickKind, type_: u32, config: u64, period: u64) -> Self {
        let callchain = if kind == TickKind::CpuClock { 0 } else { MAX_STACK };
        let spec = EventSpec {
            name: kind.name().into(),
            kind: type_,
            config: Config([config, 0, 0, 0, 0]),
            rate: Rate::Period(period),
            precise: 0,
            leader: None,
            exclude: Exclude::Kernel,
            filter: None,
            aux: None,
            callchain: None,
            is_pinned: false,
            is_sched: false,
            context: Some(Context { regs: REGS_MASK, stack: STACK_DUMP_SIZE.into(), callchain }),
            // There is no data address that the kernel could translate or weigh.
            wants: [Feature::PhysAddr, Feature::DataPageSize, Feature::WeightStruct]
                .into_iter()
                .fold(Features::all(), Features::less),
        };
        Self { kind, spec, entries: Vec::new(), rate: None, refused: Vec::new() }
    }

    /// cpu-clock at `freq` samples per second and CPU.
    #[must_use]
    pub fn cpu_clock(freq: u32) -> Self {
        let period = 1_000_000_000 / u64::from(freq.max(1));
        Self::new(TickKind::CpuClock, perf::PERF_TYPE_SOFTWARE, perf::PERF_COUNT_SW_CPU_CLOCK.into(), period)
    }

    /// Hits per sample; for cpu-clock, ns per sample.
    #[must_use]
    pub fn period(&self) -> u64 {
        match self.spec.rate {
            Rate::Period(period) | Rate::Frequency(period) => period,
        }
    }

    /// Opens the event for every process on `cpu`, disabled, with its filter, those `features` that the kernel accepts,
    /// and a ring of `pages` pages.
    ///
    /// # Errors
    /// [`Refusal::Event`].
    pub fn open(&self, features: Features, pages: usize, cpu: u32) -> Result<(Event, Layout), Refusal> {
        let open =
            |features| Event::sampling(&self.spec, features, Scope::default(), pages, open::EventScope::All, cpu);
        let (opened, ..) = attr::negotiate(features.and(self.spec.wants), open, EventError::errno)?;
        Ok(opened)
    }
}

/// The plan that worked before, and its arguments.
static SERVED: Mutex<Option<(Asked, Served)>> = Mutex::new(None);

/// The arguments of [`probe`] that matter.
type Asked = (PathBuf, Option<u32>, bool, Features);

/// A plan that was measured; only a plan for which no event was rejected is stored.
#[derive(Debug, Clone)]
struct Served {
    kind: TickKind,
    spec: EventSpec,
    entries: Vec<Range<u64>>,
    rate: Option<f64>,
}

/// As [`probe`], but a process that has found the best event to work does not try it again: a caller that samples in
/// many short slices would spend more time on that than on sampling. The kernel's symbols and tracepoints do not change
/// before the next boot.
///
/// # Errors
/// Those of [`probe`].
pub fn probe_once(
    procfs: &Path,
    freq: Option<u32>,
    kernel: bool,
    features: Features,
    cpu: u32,
) -> Result<TickPlan, Vec<(TickKind, Refusal)>> {
    let served = || SERVED.lock().unwrap_or_else(PoisonError::into_inner);
    let asked = (procfs.to_owned(), freq, kernel, features);
    if let Some((_, known)) = served().as_ref().filter(|it| it.0 == asked) {
        let Served { kind, spec, entries, rate } = known.clone();
        return Ok(TickPlan { kind, spec, entries, rate, refused: Vec::new() });
    }
    let plan = probe(procfs, freq, kernel, features, cpu)?;
    if plan.refused.is_empty() {
        let TickPlan { kind, spec, entries, rate, .. } = &plan;
        let known = Served { kind: *kind, spec: spec.clone(), entries: entries.clone(), rate: *rate };
        *served() = Some((asked, known));
    }
    Ok(plan)
}

/// Tries the events on `cpu`, best first, and returns the first that advances while the CPU is kept busy.
///
/// `procfs` is `/proc`; `freq` is the requested rate in samples per second and CPU; `kernel` says that kernel code is
/// sampled too; `features` are what the samples should contain. This keeps the CPU busy for [`ENOUGH`] ticks and at
/// least [`LEAST`] (80 ms at 250 Hz), and longer if other threads use the CPU or an event does not work.
/// [`TickPlan::refused`] has the rejected events with the reasons.
///
/// # Errors
/// Not even cpu-clock works; the error contains the other reasons.
pub fn probe(
    procfs: &Path,
    freq: Option<u32>,
    kernel: bool,
    features: Features,
    cpu: u32,
) -> Result<TickPlan, Vec<(TickKind, Refusal)>> {
    let mut refused = Vec::new();
    for kind in [TickKind::HrtimerExpire, TickKind::CpuClock] {
        match again(|| plan(kind, procfs, freq, kernel).and_then(|plan| measure(plan, features, cpu))) {
            Ok(plan) => return Ok(TickPlan { refused, ..plan }),
            Err(refusal) => refused.push((kind, refusal)),
        }
    }
    Err(refused)
}

/// Makes up to [`TRIES`] attempts, because other threads on the CPU may have spoilt one.
fn again<T>(mut attempt: impl FnMut() -> Result<T, Refusal>) -> Result<T, Refusal> {
    let mut tried = attempt();
    for _ in 1..TRIES {
        if !matches!(tried, Err(Refusal::Blind { .. } | Refusal::Silent { .. })) {
            break;
        }
        tried = attempt();
    }
    tried
}

/// The plan for `kind` on this host, which was not tried yet.
///
/// # Errors
/// A rate was requested, or symbols or tracefs cannot be read; never for cpu-clock.
pub fn plan(kind: TickKind, procfs: &Path, freq: Option<u32>, kernel: bool) -> Result<TickPlan, Refusal> {
    match (kind, freq) {
        (TickKind::CpuClock, freq) => return Ok(TickPlan::cpu_clock(freq.unwrap_or(DEFAULT_FREQ))),
        (TickKind::HrtimerExpire, Some(freq)) => return Err(Refusal::RateAsked { freq }),
        (TickKind::HrtimerExpire, None) => {}
    }
    let symbols = Kallsyms::read_once(procfs)?;
    if symbols.entries.is_empty() {
        return Err(Refusal::NoSymbol("symbol of an interrupt entry that scxprof knows"));
    }
    if kernel && !symbols.has_irq_regs {
        return Err(Refusal::NoSymbol("symbol __irq_regs, where the registers of interrupted kernel code are found"));
    }
    let id = Tracefs::open(procfs)?.event_id("timer/hrtimer_expire_entry")?;
    let mut plan = TickPlan::new(kind, perf::PERF_TYPE_TRACEPOINT, id, 1);
    plan.entries = symbols.entries;
    if symbols.handlers.is_empty() {
        return Err(Refusal::NoSymbol("symbol tick_nohz_handler or tick_sched_timer"));
    }
    let terms: Vec<_> = symbols.handlers.iter().map(|address| format!("function==0x{address:x}")).collect();
    plan.spec.filter = Some(terms.join(" || "));
    Ok(plan)
}

/// Opens the event as it will be sampled, keeps `cpu` busy until there are enough samples, and checks that the samples
/// of the busy thread are recognized as user code.
///
/// # Errors
/// The event cannot be opened, does not advance, or does not show user code.
pub fn measure(mut plan: TickPlan, features: Features, cpu: u32) -> Result<TickPlan, Refusal> {
    let (event, layout) = plan.open(features, PAGES, cpu)?;
    let mut ring = event.ring(PAGES)?;
    event.enable()?;
    let judges = plan.kind != TickKind::CpuClock;
    let (mut samples, mut user) = (0, 0);
    let mut ticks = Ticks::default();
    let begin = Instant::now();
    let value = busy::beside(cpu, spin, |tid, _| loop {
        std::thread::sleep(STEP);
        // Corrupt data ends the reading; the samples before it count.
        let _ = ring.drain(&mut Vec::new(), |bytes| {
            if let Ok((_, Record::Sample(sample), _)) = decode(bytes, &layout) {
                ticks.add(sample.time);
                if sample.tid == tid {
                    samples += 1;
                    user += usize::from(is_user_interrupt(sample.callchain.iter(), &plan.entries));
                }
            }
        });
        let value = event.read()?;
        let is_enough = value.value > 0 && (!judges || (samples >= ENOUGH && begin.elapsed() >= LEAST));
        if is_enough || begin.elapsed() >= PATIENCE {
            break Ok::<_, EventError>(value);
        }
    })?;
    event.disable()?;
    let ReadValue { value: count, time_enabled: enabled, .. } = value;
    if count == 0 || enabled == 0 {
        return Err(Refusal::Silent { cpu, millis: begin.elapsed().as_millis() });
    }
    // cpu-clock counts ns, and has its final rate from the start.
    let counted = count as f64 * 1e9 / enabled as f64 / plan.period() as f64;
    plan.rate = Some(if judges { ticks.rate().unwrap_or(counted) } else { counted });
    // With fewer samples there is no verdict; the rate is bounded in any case.
    if judges && samples >= ENOUGH && user * 2 < samples {
        return Err(Refusal::Blind { samples, user });
    }
    Ok(plan)
}

/// The times of ticks; a few of them show the rate.
#[derive(Debug, Default)]
struct Ticks {
    count: u64,
    first: u64,
    last: u64,
}

impl Ticks {
    /// Adds a tick at `time`, ns.
    fn add(&mut self, time: u64) {
        self.first = if self.count == 0 { time } else { self.first };
        (self.count, self.last) = (self.count + 1, time);
    }

    /// Ticks a second, from the times between them; `None` for fewer than two.
    fn rate(&self) -> Option<f64> {
        let (steps, time) = (self.count.checked_sub(1)?, self.last.checked_sub(self.first)?);
        (steps > 0 && time > 0).then(|| steps as f64 * 1e9 / time as f64)
    }
}

/// Spins without system calls, so that the interrupts hit user code.
fn spin(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_is_asked_for_means_cpu_clock() {
        let nowhere = Path::new("/nonexistent");
        let refusal = plan(TickKind::HrtimerExpire, nowhere, Some(997), false).unwrap_err();
        assert_eq!(refusal.to_string(), "a rate of 997 Hz was asked for");
        assert_eq!(plan(TickKind::CpuClock, nowhere, Some(1000), false).unwrap().period(), 1_000_000);
        assert_eq!(plan(TickKind::CpuClock, nowhere, None, false).unwrap().period(), 3_802_281);
        assert_eq!(TickPlan::cpu_clock(0).period(), 1_000_000_000);
    }

    #[test]
    fn few_ticks_tell_their_rate() {
        let mut ticks = Ticks::default();
        assert_eq!(ticks.rate(), None);
        ticks.add(5_000_000);
        assert_eq!(ticks.rate(), None);
        ticks.add(9_000_000);
        ticks.add(13_000_000);
        assert_eq!(ticks.rate(), Some(250.0));
    }

    #[test]
    fn without_symbols_no_tracepoint_serves() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("kallsyms"), "0000000000000000 t tick_nohz_handler\n").unwrap();
        let refusal = plan(TickKind::HrtimerExpire, dir.path(), None, false).unwrap_err();
        assert!(matches!(refusal, Refusal::Kallsyms(KallsymsError::Hidden { .. })), "{refusal}");
        std::fs::write(dir.path().join("kallsyms"), "ffffffff81000000 T _text\n").unwrap();
        assert!(matches!(plan(TickKind::HrtimerExpire, dir.path(), None, false), Err(Refusal::NoSymbol(_))));
    }

    #[test]
    fn what_others_on_the_cpu_may_have_spoilt_is_tried_again() {
        let tries = |outcomes: &[fn() -> Result<u8, Refusal>]| {
            let mut left = outcomes.iter();
            let tried = again(|| left.next().unwrap()());
            (tried, outcomes.len() - left.len())
        };
        let blind = || Err(Refusal::Blind { samples: 20, user: 3 });
        let silent = || Err(Refusal::Silent { cpu: 0, millis: 2000 });
        assert!(matches!(tries(&[blind, || Ok(7)]), (Ok(7), 2)));
        assert!(matches!(tries(&[silent, || Ok(7)]), (Ok(7), 2)));
        assert!(matches!(tries(&[blind, blind, || Ok(7)]), (Err(Refusal::Blind { .. }), 2)));
        assert!(matches!(tries(&[|| Err(Refusal::NoSymbol("x")), || Ok(7)]), (Err(Refusal::NoSymbol("x")), 1)));
        assert!(matches!(tries(&[|| Ok(7), blind]), (Ok(7), 1)));
    }
}
