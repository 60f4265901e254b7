//! Chooses the events of a source on this host.

use std::sync::Arc;

use super::attr::{EventSpec, Rate};
use super::error::SamplerError;
use super::hardware::{self, Hardware, Pace};
use super::options::{SamplerOptions, Target};
use super::plan::{AddressFrom, Plan, Planned, Steer};
use super::pmu::{NoIbs, NoPebs, NoSpe, Pmus};
use super::tick::{self, TickKind, TickPlan};
use super::tracepoints::{self, SchedOptions};
use crate::host::limits::sysctl;
use crate::sample::Source;
use scxprof_base::arch::Arch;

/// Sampled faults per second and CPU, enough to sample every fault of most workloads. The kernel does not throttle an
/// event of period 1, so this is the kernel's default limit for other events (`kernel.perf_event_max_sample_rate`).
const MAX_FAULTS: u32 = 100_000;

/// Chooses the events; `batched` is [`Hardware::batched`] unless that does not work here.
pub(super) fn plan(options: &SamplerOptions, batched: bool) -> Result<Plan, SamplerError> {
    let is_x86_64 = Arch::HOST == Some(Arch::X86_64);
    let is_here = match options.source {
        Source::Pebs | Source::Ibs => is_x86_64,
        Source::Spe => Arch::HOST == Some(Arch::Arm64),
        // Recovery supports the instruction sets of these architectures only.
        Source::Timer => Arch::HOST.is_some(),
        _ => true,
    };
    if !is_here {
        return Err(SamplerError::Architecture { source_name: options.source.name() });
    }
    if options.hardware.kernel && options.source == Source::Timer && !is_x86_64 {
        return Err(SamplerError::KernelCode);
    }
    let copies_stack = options.stacks.as_ref().and_then(|spec| spec.context).is_some_and(|context| context.stack > 0);
    if copies_stack && Arch::HOST.is_none() {
        return Err(SamplerError::CopiedStacks);
    }
    let hardware = Hardware { batched, ..options.hardware.clone() };
    let mut plan = match options.source {
        Source::Faults => {
            let mut plan = software(EventSpec::minor_faults(), AddressFrom::Fault, options, Vec::new());
            for event in &mut plan.events {
                event.steer = Some(Steer { rate: MAX_FAULTS, min: 1, multiple: 1 });
            }
            plan
        }
        Source::Timer => timer(options)?,
        Source::Pebs => {
            let pebs = Pmus::read(&options.sys).map_err(NoPebs::from)?.pebs()?;
            hardware::pebs(&pebs, &hardware, &options.cpus)?
        }
        Source::Ibs => {
            let ibs = Pmus::read(&options.sys).map_err(NoIbs::from)?.ibs()?;
            hardware::ibs(&ibs, &hardware, &options.cpus)
        }
        Source::Spe => {
            let pmus = Pmus::read(&options.sys).map_err(NoSpe::from)?.spe()?;
            hardware::spe(&pmus, &hardware, &options.cpus)?
        }
        Source::Wakeups => {
            let (events, sched) = (Vec::new(), None);
            Plan { events, address_from: AddressFrom::Nothing, sched, rate: None, notes: Vec::new() }
        }
        Source::Stacks => {
            let Some(spec) = options.stacks.clone() else { return Err(SamplerError::NoEvent) };
            check_rate(&spec, options)?;
            software(spec, AddressFrom::Callchain, options, Vec::new())
        }
        Source::Recorded => return Err(SamplerError::Recorded),
    };
    if let Some(spec) = options.stacks.clone().filter(|_| options.source != Source::Stacks) {
        check_rate(&spec, options)?;
        let cpus = options.cpus.clone();
        plan.events.push(Planned { spec, cpus, probe: None, steer: None, is_aside: true });
    }
    let is_source = options.source == Source::Wakeups;
    if let Some(sched) = options.sched.or(is_source.then(SchedOptions::default)) {
        add_sched(&mut plan, sched, options)?;
    }
    if let Pace::Frequency(asked) = hardware.pace {
        let max = sysctl(&options.proc, "perf_event_max_sample_rate");
        let by_kernel = |event: &Planned| matches!(event.spec.rate, Rate::Frequency(_)) && !event.is_aside;
        if let Some(max) = max.filter(|&max| i64::from(asked) > max && plan.events.iter().any(by_kernel)) {
            return Err(SamplerError::FrequencyTooHigh { asked, max });
        }
    }
    plan.notes.extend(without_effect(options));
    Ok(plan)
}

/// Checks that the kernel allows the requested rate.
fn check_rate(spec: &EventSpec, options: &SamplerOptions) -> Result<(), SamplerError> {
    let max = sysctl(&options.proc, "perf_event_max_sample_rate");
    match (spec.rate, max) {
        (Rate::Frequency(asked), Some(max)) if i64::try_from(asked).is_ok_and(|asked| asked > max) => {
            Err(SamplerError::FrequencyTooHigh { asked: u32::try_from(asked).unwrap_or(u32::MAX), max })
        }
        _ => Ok(()),
    }
}

/// Options that have no effect with the source.
fn without_effect(options: &SamplerOptions) -> Option<String> {
    let SamplerOptions { source, hardware, freq, .. } = options;
    let source = *source;
    let steers = matches!(source, Source::Pebs | Source::Ibs | Source::Spe);
    let default = Hardware::default();
    let ignored: Vec<_> = [
        ("ldlat", hardware.ldlat.is_some() && !steers),
        ("stores", hardware.stores && source != Source::Pebs),
        ("batched", hardware.batched && source != Source::Pebs),
        ("kernel", hardware.kernel && !steers && source != Source::Timer),
        ("rate", matches!(hardware.pace, Pace::Rate(_)) && hardware.pace != default.pace && !steers),
        ("period", matches!(hardware.pace, Pace::Period(_)) && !steers),
        // One command-line option sets both.
        ("freq", source == Source::Faults && (freq.is_some() || matches!(hardware.pace, Pace::Frequency(_)))),
    ]
    .into_iter()
    .filter_map(|(option, ignored)| ignored.then_some(option))
    .collect();
    (!ignored.is_empty()).then(|| format!("{} has no effect with source {source}", ignored.join(" or ")))
}

/// Adds the events of the scheduler.
fn add_sched(plan: &mut Plan, sched: SchedOptions, options: &SamplerOptions) -> Result<(), SamplerError> {
    if options.child_pid_namespace {
        return Err(SamplerError::SchedInPidNamespace);
    }
    let (specs, decoder, notes) = tracepoints::tracepoints(sched, &options.proc)?;
    let event = |spec| Planned { spec, cpus: options.cpus.clone(), probe: None, steer: None, is_aside: false };
    plan.events.extend(specs.into_iter().map(event));
    plan.notes.extend(notes);
    plan.sched = Some(Arc::new(decoder));
    Ok(())
}

fn software(spec: EventSpec, address_from: AddressFrom, options: &SamplerOptions, notes: Vec<String>) -> Plan {
    let event = Planned { spec, cpus: options.cpus.clone(), probe: None, steer: None, is_aside: false };
    Plan { events: vec![event], address_from, sched: None, rate: None, notes }
}

fn timer(options: &SamplerOptions) -> Result<Plan, SamplerError> {
    let cpu = options.cpus.first().copied().unwrap_or(0);
    let mut notes = Vec::new();
    if options.freq.is_some_and(|freq| freq > tick::COSTLY_FREQ) {
        notes.push(format!(
            "freq above {} Hz takes more than 2 % of every CPU: each sample is an interrupt of its own",
            tick::COSTLY_FREQ
        ));
    }
    let tick = match tick::probe_once(&options.proc, options.freq, options.hardware.kernel, options.features, cpu) {
        Ok(tick) => tick,
        // The probe watches the whole CPU; our own tasks can be sampled with fewer rights.
        Err(_) if matches!(options.target, Target::Tasks { .. }) => {
            TickPlan::cpu_clock(options.freq.unwrap_or(tick::DEFAULT_FREQ))
        }
        Err(refused) => {
            let hint = refused.iter().any(|(_, refusal)| refusal.is_forbidden());
            let hint = hint.then(|| super::open::rights(&options.proc, super::open::Privilege::All));
            return Err(SamplerError::NoTimer { reasons: reasons(&refused), hint });
        }
    };
    if !tick.refused.is_empty() && options.freq.is_none() {
        notes.push(format!("timer samples come from {}: {}", tick.kind, reasons(&tick.refused)));
    }
    let rate = tick.rate.unwrap_or_else(|| 1e9 / tick.period().max(1) as f64);
    let address_from = match tick.kind {
        TickKind::HrtimerExpire => AddressFrom::UserByCallchain(tick.entries),
        TickKind::CpuClock => AddressFrom::UserByMode,
    };
    Ok(Plan { rate: Some(rate), ..software(tick.spec, address_from, options, notes) })
}

fn reasons(refused: &[(TickKind, tick::Refusal)]) -> String {
    refused.iter().map(|(kind, refusal)| format!("{kind}: {refusal}")).collect::<Vec<_>>().join("; ")
}
