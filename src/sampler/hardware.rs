//! The sources that get addresses from the hardware (pebs, ibs, spe): their options, and the resulting events (pure).

use super::attr::{Aux, EventSpec, Exclude, Feature, Features, Rate};
use super::error::SamplerError;
use super::plan::{AddressFrom, Plan, Planned, Steer};
use super::pmu::{Ibs, Ldlat, Pebs, SpePmu, MAX_LDLAT_IBS, MIN_LDLAT_IBS};
use scxprof_base::cpus::format_cpu_list;

/// The default number of samples a second and CPU.
pub const DEFAULT_RATE: u32 = 1000;
/// The default latency threshold of PEBS in cycles: most hits of the L1 cache are faster.
pub const DEFAULT_LDLAT: u32 = 10;

/// How often a hardware event samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pace {
    /// A fixed period that scxprof adjusts: this many samples a second on the busiest CPU.
    Rate(u32),
    /// Once every N events.
    Period(u64),
    /// This many samples a second and CPU, approximately: the kernel adjusts each event's period.
    Frequency(u32),
}

/// Options of the hardware sources.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hardware {
    /// How often they sample.
    pub pace: Pace,
    /// The least latency in cycles, of a load, with spe also of a store; `None` for the source's default: 10 for pebs,
    /// none for ibs and spe.
    pub ldlat: Option<u32>,
    /// pebs also samples stores.
    pub stores: bool,
    /// Also samples accesses of kernel code; applies to the source timer too.
    pub kernel: bool,
    /// pebs omits the fields that would cost an interrupt for each sample.
    pub batched: bool,
}

impl Default for Hardware {
    fn default() -> Self {
        Self { pace: Pace::Rate(DEFAULT_RATE), ldlat: None, stores: false, kernel: false, batched: false }
    }
}

/// `attr.precise_ip` for PEBS. Not 3: on Golden Cove and later that requires a counter which load latency cannot use
/// (arch/x86/events/intel/core.c).
const PRECISE: u8 = 2;
/// The initial period: some 1,000 samples on a core that often waits for memory.
const FIRST_PERIOD_PEBS: u64 = 100_003;
/// The initial period in ops: some 4,000 samples a second at 4 ops a cycle, until the first adjustment.
const FIRST_PERIOD_IBS: u64 = 1 << 20;
/// The shortest adjusted period, so that a CPU that wakes up does not get too many interrupts before the next adjustment.
const MIN_PERIOD_PEBS: u64 = 1_009;
/// The shortest adjusted period in ops.
const MIN_PERIOD_IBS: u64 = 1 << 14;
/// The shortest period that every kernel accepts for IBS (arch/x86/events/amd/ibs.c).
const LEAST_PERIOD_IBS: u64 = 0x90;
/// Periods of IBS must be a multiple of this: the counter lacks the lower bits.
const MULTIPLE_IBS: u64 = 16;

/// The shortest adjusted period of SPE, operations.
const MIN_PERIOD_SPE: u64 = 1 << 14;
/// Periods of SPE are multiples of this, and have an upper limit: the bits of `PMSIRR_EL1.INTERVAL`
/// (drivers/perf/arm_spe_pmu.c).
const MULTIPLE_SPE: u64 = 256;
pub(super) const MAX_PERIOD_SPE: u64 = 0xffff_ff00;

/// The features that samples can use; kernel code only if requested.
fn wants(hardware: &Hardware) -> Features {
    let mut wants = Features::all();
    if !hardware.kernel {
        wants = wants.less(Feature::Kernel);
    }
    if hardware.batched {
        // Either of these fields makes PEBS take an interrupt for each sample (LARGE_PEBS_FLAGS in
        // arch/x86/events/perf_event.h).
        wants = wants.less(Feature::Cgroup).less(Feature::DataPageSize);
    }
    wants
}

/// The PEBS events for `cpus`.
///
/// # Errors
/// [`SamplerError::Threshold`] for a latency with which the hardware cannot compare, [`SamplerError::NoEventThere`] if
/// none of the CPUs belongs to a PMU with the events.
pub fn pebs(pebs: &Pebs, hardware: &Hardware, cpus: &[u32]) -> Result<Plan, SamplerError> {
    let ldlat = hardware.ldlat.unwrap_or(DEFAULT_LDLAT);
    let mut plan = Plan {
        sched: None,
        events: Vec::new(),
        address_from: AddressFrom::Hardware { user_only: !hardware.kernel, ops: false, ldlat: None },
        rate: None,
        notes: Vec::new(),
    };
    for pmu in &pebs.pmus {
        let among = |cpu: &u32| pmu.cpus.as_ref().is_none_or(|of| of.contains(cpu));
        let cpus: Vec<u32> = cpus.iter().copied().filter(among).collect();
        if cpus.is_empty() {
            continue;
        }
        let too_large = || SamplerError::Threshold { asked: ldlat, max: pmu.ldlat.max(), pmu: pmu.name.clone() };
        let loads = pmu.loads(ldlat).ok_or_else(too_large)?;
        let event = |name: String, config, leader, probe| Planned {
            spec: EventSpec {
                name: name.into(),
                kind: pmu.kind,
                config,
                rate: rate(hardware.pace, FIRST_PERIOD_PEBS),
                precise: pmu.max_precise.map_or(PRECISE, |max| max.min(PRECISE)),
                leader,
                exclude: Exclude::KernelAndGuest,
                filter: None,
                callchain: None,
                is_pinned: false,
                is_sched: false,
                context: None,
                aux: None,
                wants: wants(hardware),
            },
            cpus: cpus.clone(),
            probe,
            steer: steer(hardware.pace, MIN_PERIOD_PEBS, 1),
            is_aside: false,
        };
        let probe = pmu.loads(ldlat.min(DEFAULT_LDLAT));
        plan.events.push(event(format!("{}/mem-loads,ldlat={ldlat}/", pmu.name), loads, pmu.aux, probe));
        match pmu.stores.filter(|_| hardware.stores) {
            Some(stores) => plan.events.push(event(format!("{}/mem-stores/", pmu.name), stores, None, Some(stores))),
            None if hardware.stores => {
                plan.notes.push(format!("{} has no mem-stores event: only its loads are sampled", pmu.name));
            }
            None => {}
        }
    }
    check_cpus(&mut plan, cpus, "mem-loads event")?;
    Ok(plan)
}

/// The IBS event for `cpus`.
#[must_use]
pub fn ibs(ibs: &Ibs, hardware: &Hardware, cpus: &[u32]) -> Plan {
    let mut notes = Vec::new();
    let by_hardware = hardware.ldlat.and_then(|ldlat| ibs.with_ldlat(ldlat));
    let mut config = by_hardware.unwrap_or(ibs.ops);
    if let Some(ldlat) = hardware.ldlat.filter(|_| by_hardware.is_none()) {
        let why = match ibs.ldlat {
            Ldlat::None => "this IBS has no threshold of its own (no caps/ldlat)".to_owned(),
            Ldlat::L3MissOnly(_) => "the threshold of this IBS would leave out all hits of the L3 cache too".to_owned(),
            Ldlat::Alone(_) => format!("IBS can do {MIN_LDLAT_IBS} to {MAX_LDLAT_IBS}"),
        };
        notes.push(format!(
            "ldlat {ldlat}: loads below it are dropped when they have been read, for {why}; stores and hits of the L1 cache \
             have no latency and stay"
        ));
    }
    let mut pace = hardware.pace;
    if let Pace::Period(asked) = pace {
        let period = legal_ibs(asked);
        if period != asked {
            notes.push(format!(
                "period {asked}: {period} is taken, for IBS takes multiples of {MULTIPLE_IBS} from {LEAST_PERIOD_IBS} on"
            ));
        }
        pace = Pace::Period(period);
    }
    // Set even if nothing is excluded: missing rights may exclude the kernel later. The probe needs it too.
    let mut ops = ibs.ops;
    let exclude = match ibs.swfilt {
        Some(field) if field.set(&mut config, 1) && field.set(&mut ops, 1) => Exclude::Kernel,
        _ => Exclude::Nothing,
    };
    let name = match hardware.ldlat.filter(|_| by_hardware.is_some()) {
        Some(ldlat) => format!("ibs_op/cnt_ctl=1,ldlat={ldlat}/"),
        None => "ibs_op/cnt_ctl=1/".to_owned(),
    };
    let spec = EventSpec {
        name: name.into(),
        kind: ibs.kind,
        config,
        rate: rate(pace, FIRST_PERIOD_IBS),
        precise: 0,
        leader: None,
        exclude,
        filter: None,
        callchain: None,
        is_pinned: false,
        is_sched: false,
        context: None,
        aux: None,
        // IBS takes an interrupt for each sample in any case, so omitting fields gains nothing.
        wants: wants(&Hardware { batched: false, ..hardware.clone() }),
    };
    let event = Planned {
        spec,
        cpus: cpus.to_vec(),
        probe: Some(ops),
        steer: steer(pace, MIN_PERIOD_IBS, MULTIPLE_IBS),
        is_aside: false,
    };
    let ldlat = hardware.ldlat.filter(|_| by_hardware.is_none());
    Plan {
        sched: None,
        events: vec![event],
        address_from: AddressFrom::Hardware { user_only: !hardware.kernel, ops: true, ldlat },
        rate: None,
        notes,
    }
}

/// The SPE events for `cpus`.
///
/// # Errors
/// As [`pebs`].
pub fn spe(pmus: &[SpePmu], hardware: &Hardware, cpus: &[u32]) -> Result<Plan, SamplerError> {
    let mut plan = Plan {
        sched: None,
        events: Vec::new(),
        address_from: AddressFrom::Hardware { user_only: !hardware.kernel, ops: true, ldlat: None },
        rate: None,
        notes: Vec::new(),
    };
    let mut pace = hardware.pace;
    if let Pace::Frequency(frequency) = pace {
        // The driver refuses attr.freq.
        plan.notes
            .push(format!("freq {frequency}: the kernel adjusts no period of SPE, so scxprof does it, as with rate"));
        pace = Pace::Rate(frequency);
    }
    for pmu in pmus {
        let among = |cpu: &u32| pmu.cpus.as_ref().is_none_or(|of| of.contains(cpu));
        let cpus: Vec<u32> = cpus.iter().copied().filter(among).collect();
        if cpus.is_empty() {
            continue;
        }
        let ldlat = hardware.ldlat.unwrap_or(0);
        let too_large = || SamplerError::Threshold { asked: ldlat, max: pmu.min_latency.max(), pmu: pmu.name.clone() };
        let config = pmu.at_least(ldlat).ok_or_else(too_large)?;
        let mut pace = pace;
        if let Pace::Period(asked) = pace {
            let least = pmu.min_interval.next_multiple_of(MULTIPLE_SPE);
            let period = (asked / MULTIPLE_SPE * MULTIPLE_SPE).clamp(least, MAX_PERIOD_SPE.max(least));
            if period != asked {
                plan.notes.push(format!(
                    "period {asked}: {period} is taken, for {} takes multiples of {MULTIPLE_SPE} from {least} to {MAX_PERIOD_SPE}",
                    pmu.name
                ));
            }
            pace = Pace::Period(period);
        }
        let threshold = hardware.ldlat.map_or_else(String::new, |ldlat| format!(",min_latency={ldlat}"));
        let spec = EventSpec {
            name: format!("{}/ts_enable=1,load_filter=1,store_filter=1,jitter=1{threshold}/", pmu.name).into(),
            kind: pmu.kind,
            config,
            rate: rate(pace, FIRST_PERIOD_IBS),
            precise: 0,
            leader: None,
            exclude: Exclude::Kernel,
            filter: None,
            callchain: None,
            is_pinned: false,
            is_sched: false,
            context: None,
            aux: Some(Aux { pa_enable: pmu.pa_enable }),
            // Records of SPE contain neither field.
            wants: wants(&Hardware { batched: true, ..hardware.clone() }),
        };
        let steer = steer(pace, MIN_PERIOD_SPE.max(pmu.min_interval), MULTIPLE_SPE);
        plan.events.push(Planned { spec, cpus, probe: None, steer, is_aside: false });
    }
    check_cpus(&mut plan, cpus, "SPE")?;
    Ok(plan)
}

/// Adds a note on CPUs that no event of the plan samples.
fn check_cpus(plan: &mut Plan, cpus: &[u32], what: &str) -> Result<(), SamplerError> {
    let left: Vec<u32> =
        cpus.iter().copied().filter(|cpu| plan.events.iter().all(|event| !event.cpus.contains(cpu))).collect();
    if plan.events.is_empty() {
        return Err(SamplerError::NoEventThere { cpus: format_cpu_list(&left) });
    }
    if !left.is_empty() {
        plan.notes.push(format!("no {what} on CPUs {}: nothing is sampled there", format_cpu_list(&left)));
    }
    Ok(())
}

fn rate(pace: Pace, first: u64) -> Rate {
    match pace {
        Pace::Rate(_) => Rate::Period(first),
        Pace::Period(period) => Rate::Period(period),
        Pace::Frequency(frequency) => Rate::Frequency(frequency.into()),
    }
}

fn steer(pace: Pace, min: u64, multiple: u64) -> Option<Steer> {
    let Pace::Rate(rate) = pace else { return None };
    Some(Steer { rate, min, multiple })
}

/// The period nearest to `asked` that every kernel accepts.
fn legal_ibs(asked: u64) -> u64 {
    let half = MULTIPLE_IBS / 2;
    (asked.saturating_add(half) / MULTIPLE_IBS * MULTIPLE_IBS).max(LEAST_PERIOD_IBS)
}
