//! Computes a `perf_event_attr` from a description of the event (pure: no system calls).

mod feature;

use std::borrow::Cow;

use perf_event_open_sys::bindings as sys;
use rustix::param::page_size;

use super::pmu::{Config, Field};
use scxprof_perf::record::{read_format, sample_type, Layout};

use scxprof_recover::REGS_MASK;

pub use feature::{negotiate, Feature, Features, RefusedFeature};

/// How often an event samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// Once every N events.
    Period(u64),
    /// This many times a second, as well as the kernel can adjust the period.
    Frequency(u64),
}

/// An event that samples memory accesses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventSpec {
    /// Its name in perf.
    pub name: Cow<'static, str>,
    /// `attr.type`.
    pub kind: u32,
    /// `attr.config` to `attr.config4`.
    pub config: Config,
    /// How often it samples.
    pub rate: Rate,
    /// `attr.precise_ip`: 0 for an event that needs no precision, else the highest value to try.
    pub precise: u8,
    /// The event that leads its group and only counts; the kernel requires it for some events (`mem-loads-aux`).
    pub leader: Option<Config>,
    /// How the event can exclude accesses of the kernel and of guests.
    pub exclude: Exclude,
    /// A filter in the syntax of tracefs, for a tracepoint.
    pub filter: Option<String>,
    /// The parts of the interrupted context that samples contain; the address is then recovered from them.
    pub context: Option<Context>,
    /// Its samples are in an AUX area beside its ring.
    pub aux: Option<Aux>,
    /// Each sample contains a call chain and no memory access: this is an event of the profiler.
    pub callchain: Option<Callchain>,
    /// The event must always be on the PMU (`attr.pinned`): without a free counter it samples nothing, instead of being
    /// multiplexed.
    pub is_pinned: bool,
    /// The features that its samples can use.
    pub wants: Features,
    /// Samples contain a tracepoint's fields and no memory access: this is a scheduling event.
    pub is_sched: bool,
}

/// What a call chain contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Callchain {
    /// Samples of user code, and the user part of the chain.
    pub user: bool,
    /// Samples of kernel code, and the kernel part of the chain.
    pub kernel: bool,
    /// `attr.sample_max_stack`, frames.
    pub max_stack: u16,
}

/// Which of the `attr.exclude_*` bits an event's PMU accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exclude {
    /// `exclude_kernel`.
    Kernel,
    /// `exclude_kernel`, and `exclude_guest`: accesses of a guest cannot be attributed to one of its threads.
    KernelAndGuest,
    /// None: samples are filtered after they have been read.
    Nothing,
}

/// What an event with an AUX area can add to its samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aux {
    /// The bit that adds physical addresses.
    pub pa_enable: Field,
}

/// The registers and the stack in a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// `attr.sample_regs_user`.
    pub regs: u64,
    /// `attr.sample_stack_user`, bytes.
    pub stack: u32,
    /// `attr.sample_max_stack` of a kernel call chain, by which user code is told from kernel code at a tracepoint; 0
    /// for none.
    pub callchain: u16,
}

impl EventSpec {
    /// Each minor page fault, counted after the kernel has handled it, so that the page has a frame
    /// (`PERF_COUNT_SW_PAGE_FAULTS` counts earlier, when the page rarely has one).
    #[must_use]
    pub fn minor_faults() -> Self {
        Self {
            name: "minor-faults".into(),
            kind: sys::PERF_TYPE_SOFTWARE,
            config: Config([u64::from(sys::PERF_COUNT_SW_PAGE_FAULTS_MIN), 0, 0, 0, 0]),
            rate: Rate::Period(1),
            precise: 0,
            leader: None,
            exclude: Exclude::Kernel,
            filter: None,
            context: None,
            aux: None,
            wants: Features::all(),
            callchain: None,
            is_pinned: false,
            is_sched: false,
        }
    }

    /// Adds the registers and `bytes` of the user stack to each sample, so that stacks can be unwound without frame
    /// pointers. The kernel copies at most 65,528 bytes, in multiples of 8.
    #[must_use]
    pub fn with_user_stack(self, bytes: u16) -> Self {
        let stack = u32::from(bytes & !7);
        Self { context: Some(Context { regs: REGS_MASK, stack, callchain: 0 }), ..self }
    }

    /// True if the event counts ns.
    #[must_use]
    pub fn is_clock(&self) -> bool {
        let clocks = [sys::PERF_COUNT_SW_CPU_CLOCK, sys::PERF_COUNT_SW_TASK_CLOCK].map(u64::from);
        self.kind == sys::PERF_TYPE_SOFTWARE && clocks.contains(&self.config.0[0])
    }

    /// Each hit of a scheduler tracepoint (`system:name`) with the given tracefs id.
    #[must_use]
    pub fn sched(name: &'static str, id: u64) -> Self {
        Self {
            name: name.into(),
            kind: sys::PERF_TYPE_TRACEPOINT,
            config: Config([id, 0, 0, 0, 0]),
            exclude: Exclude::Nothing,
            wants: Features::none().with(Feature::Cgroup).with(Feature::FormatLost),
            is_sched: true,
            ..Self::minor_faults()
        }
    }
}

/// The part of the attrs that all events of a capture have in common. Inheriting events follow forks, and can begin at
/// exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scope {
    /// Children and new threads are followed (`attr.inherit`).
    pub inherit: bool,
    /// Counting begins when the task calls exec.
    pub enable_on_exec: bool,
    /// Times are those of the scheduler's clock instead of CLOCK_MONOTONIC: batched PEBS cannot convert to another
    /// clock.
    pub sched_clock: bool,
}

/// The fields that identify every record, in samples and in trailers alike.
const IDENTITY: u64 = sample_type::IDENTIFIER | sample_type::TID | sample_type::TIME | sample_type::CPU;

/// The number of bytes in a ring of `pages` pages at which its reader is woken: a quarter of the ring, at most 1 MiB.
/// This is often enough to prevent overflow, and rare enough not to disturb the workload.
#[must_use]
pub fn watermark(pages: usize) -> u32 {
    (pages * page_size() / 4).min(1 << 20) as u32
}

/// The attr that samples `event`.
#[must_use]
pub fn sampling(event: &EventSpec, features: Features, scope: Scope, watermark: u32) -> sys::perf_event_attr {
    use sample_type as t;
    let mut attr = common(features, scope);
    let mut config = event.config;
    if let Some(aux) = event.aux.filter(|_| features.has(Feature::PhysAddr) && event.wants.has(Feature::PhysAddr)) {
        // One bit takes a 1.
        let _ = aux.pa_enable.set(&mut config, 1);
    }
    set_event(&mut attr, event, &config);
    attr.set_precise_ip(event.precise.into());
    if event.leader.is_some() {
        // The event starts with its leader.
        attr.set_disabled(0);
        attr.set_enable_on_exec(0);
    }
    match event.rate {
        Rate::Period(period) => attr.__bindgen_anon_1.sample_period = period,
        Rate::Frequency(frequency) => {
            attr.set_freq(1);
            attr.__bindgen_anon_1.sample_freq = frequency;
        }
    }
    attr.sample_type = IDENTITY | t::IP | t::PERIOD;
    if event.is_sched {
        // One hit of sched_stat_runtime counts as as many events as it has ns. Without PERIOD, each of them would be a
        // sample (perf_swevent_event() in kernel/events/core.c).
        attr.sample_type = IDENTITY | t::PERIOD | t::RAW;
    } else if let Some(callchain) = event.callchain {
        attr.sample_type |= t::CALLCHAIN;
        attr.sample_max_stack = callchain.max_stack;
        attr.set_exclude_user(u64::from(!callchain.user));
        attr.set_exclude_callchain_user(u64::from(!callchain.user));
        let without_kernel = !callchain.kernel || !features.has(Feature::Kernel);
        attr.set_exclude_callchain_kernel(u64::from(without_kernel));
        if let Some(context) = event.context.filter(|_| callchain.user) {
            attr.sample_type |= t::REGS_USER | t::STACK_USER;
            attr.sample_regs_user = context.regs;
            attr.sample_stack_user = context.stack;
            attr.set_exclude_callchain_user(1);
        }
        if !callchain.kernel && event.kind != sys::PERF_TYPE_TRACEPOINT {
            attr.set_exclude_kernel(1);
        }
        attr.set_exclude_hv(1);
    } else if let Some(context) = event.context {
        attr.sample_type |= t::REGS_USER | t::STACK_USER;
        attr.sample_regs_user = context.regs;
        attr.sample_stack_user = context.stack;
        attr.set_exclude_hv(1);
        attr.set_exclude_idle(1);
        if context.callchain > 0 {
            attr.sample_type |= t::CALLCHAIN;
            attr.sample_max_stack = context.callchain;
            attr.set_exclude_callchain_user(1);
        }
        if event.kind == sys::PERF_TYPE_TRACEPOINT {
            // Every hit of a tracepoint counts as kernel code, so excluding the kernel would exclude all hits.
            attr.set_exclude_kernel(0);
        }
    } else {
        attr.sample_type |= t::ADDR | t::DATA_SRC;
        attr.sample_type |= if features.has(Feature::WeightStruct) { t::WEIGHT_STRUCT } else { t::WEIGHT };
    }
    for (feature, bit) in
        [(Feature::PhysAddr, t::PHYS_ADDR), (Feature::Cgroup, t::CGROUP), (Feature::DataPageSize, t::DATA_PAGE_SIZE)]
    {
        if features.has(feature) && event.wants.has(feature) {
            attr.sample_type |= bit;
        }
    }
    attr.set_watermark(1);
    attr.__bindgen_anon_2.wakeup_watermark = watermark;
    attr
}

/// The attr of the event that leads `event`'s group: it only counts. `None` if no leader is needed.
#[must_use]
pub fn leader(event: &EventSpec, features: Features, scope: Scope) -> Option<sys::perf_event_attr> {
    let config = event.leader.as_ref()?;
    let mut attr = common(features, scope);
    set_event(&mut attr, event, config);
    Some(attr)
}

fn set_event(attr: &mut sys::perf_event_attr, event: &EventSpec, config: &Config) {
    attr.type_ = event.kind;
    let [config, config1, config2, config3, config4] = config.0;
    attr.config = config;
    attr.__bindgen_anon_3.config1 = config1;
    attr.__bindgen_anon_4.config2 = config2;
    attr.config3 = config3;
    attr.config4 = config4;
    attr.set_pinned(event.is_pinned.into());
    match event.exclude {
        Exclude::Kernel => {}
        Exclude::KernelAndGuest => attr.set_exclude_guest(1),
        Exclude::Nothing => attr.set_exclude_kernel(0),
    }
}

/// The attr of the dummy event that provides the side-band: mappings, names, forks, exits, cgroups.
///
/// With `switches` it also reports context switches.
#[must_use]
pub fn side_band(features: Features, scope: Scope, watermark: u32, switches: bool) -> sys::perf_event_attr {
    let mut attr = common(features, scope);
    attr.type_ = sys::PERF_TYPE_SOFTWARE;
    attr.config = u64::from(sys::PERF_COUNT_SW_DUMMY);
    attr.sample_type = IDENTITY;
    attr.set_mmap(1);
    attr.set_mmap2(1);
    attr.set_mmap_data(1);
    attr.set_comm(1);
    attr.set_comm_exec(1);
    attr.set_task(1);
    attr.set_context_switch(switches.into());
    attr.set_cgroup(u64::from(features.has(Feature::Cgroup)));
    // Not build_id: with build ids the mappings lack the inode, which identifies shared memory. In addition, if one
    // profiler requests build ids, the kernel marks the mappings of the others as if they had one (observed on 6.18),
    // and `perf record` aborts.
    attr.set_watermark(1);
    attr.__bindgen_anon_2.wakeup_watermark = watermark;
    attr
}

fn common(features: Features, scope: Scope) -> sys::perf_event_attr {
    let mut attr = sys::perf_event_attr { size: size_of::<sys::perf_event_attr>() as u32, ..Default::default() };
    attr.read_format = read_format::TOTAL_TIME_ENABLED | read_format::TOTAL_TIME_RUNNING | read_format::ID;
    if features.has(Feature::FormatLost) {
        attr.read_format |= read_format::LOST;
    }
    attr.set_disabled(1);
    attr.set_sample_id_all(1);
    attr.set_inherit(u64::from(scope.inherit));
    attr.set_enable_on_exec(u64::from(scope.enable_on_exec));
    attr.set_exclude_kernel(u64::from(!features.has(Feature::Kernel)));
    if !scope.sched_clock {
        attr.set_use_clockid(1);
        attr.clockid = libc::CLOCK_MONOTONIC;
    }
    attr
}

/// The layout of the records of `attr`.
#[must_use]
pub fn layout(attr: &sys::perf_event_attr) -> Layout {
    Layout {
        sample_type: attr.sample_type,
        read_format: attr.read_format,
        branch_sample_type: attr.branch_sample_type,
        regs_user: attr.sample_regs_user,
        regs_intr: attr.sample_regs_intr,
        sample_id_all: attr.sample_id_all() != 0,
    }
}

/// The bytes of an attr in its largest size.
#[must_use]
pub fn attr_bytes(attr: &sys::perf_event_attr) -> Vec<u8> {
    // SAFETY: an attr is plain numbers in the order of the C struct, all its bytes are initialised and it has no padding.
    let bytes =
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(attr).cast::<u8>(), size_of::<sys::perf_event_attr>()) };
    bytes.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attr_survives_both_byte_orders() {
        for attr in [
            sampling(&EventSpec::minor_faults(), Features::all(), Scope::default(), 4096),
            side_band(Features::all(), Scope::default(), 4096, false),
        ] {
            let bytes = attr_bytes(&attr);
            let read = scxprof_perf::format::Attr::read(&bytes, false);
            assert_eq!(read.layout, layout(&attr));
            assert_eq!((read.kind, read.config, read.clockid), (attr.type_, attr.config, Some(1)));
            assert!(scxprof_perf::format::attr_size(&bytes) < 128, "older readers take it");
            let mut other = bytes.clone();
            for (offset, size) in
                [(0, 4), (8, 8), (16, 8), (24, 8), (32, 8), (52, 4), (56, 8), (72, 8), (80, 8), (92, 4), (96, 8)]
            {
                other[offset..offset + size].reverse();
            }
            for byte in &mut other[40..48] {
                *byte = byte.reverse_bits();
            }
            assert_eq!(scxprof_perf::format::Attr::read(&other, true), read);
            assert_eq!(scxprof_perf::format::Attr::read(&bytes[..64], false).layout.sample_type, attr.sample_type);
        }
    }

    #[test]
    fn the_recommended_record_is_104_bytes() {
        let attr = sampling(&EventSpec::minor_faults(), Features::all(), Scope::default(), 4096);
        let words = (attr.sample_type & !sample_type::CPU).count_ones() + 1;
        assert_eq!(8 + 8 * words, 104);
        assert_eq!(attr.use_clockid(), 1);
        assert_eq!(attr.clockid, libc::CLOCK_MONOTONIC);
        let side = side_band(Features::all(), Scope::default(), 4096, false);
        assert_eq!(layout(&side).trailer_size(), 32, "samples and side-band are told apart by the same fields");
        assert_eq!(
            (side.mmap2(), side.mmap_data(), side.comm_exec(), side.task(), side.cgroup(), side.build_id()),
            (1, 1, 1, 1, 1, 0)
        );
    }

    #[test]
    fn a_kernel_without_weight_struct_gets_weight() {
        let attr =
            sampling(&EventSpec::minor_faults(), Features::all().less(Feature::WeightStruct), Scope::default(), 0);
        assert_ne!(attr.sample_type & sample_type::WEIGHT, 0);
        assert_eq!(attr.sample_type & sample_type::WEIGHT_STRUCT, 0);
    }
}
