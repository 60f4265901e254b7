//! Which event a source samples with on this host, and how its samples are to be read.

use std::ops::Range;
use std::sync::Arc;

use perf_event_open_sys::bindings as sys;

use super::attr::{Context, EventSpec, Rate};
use super::operand::tick::{self, TickKind, TickPlan};
use super::{Options, SamplerError, Target};
use crate::sample::Source;

/// An event and what its samples say.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) spec: EventSpec,
    pub(super) reading: Reading,
    /// What a person should know of the choice.
    pub(super) notes: Vec<String>,
}

/// How the access of a sample is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reading {
    /// The record is of a fault and has the data address. The idle task never faults.
    Fault,
    /// The record has the registers of user code, where its header says user mode.
    UserByMode,
    /// The same for a tracepoint, whose own mode is the kernel's: its callchain ends at one of these interrupt entries.
    UserByCallchain(Arc<[Range<u64>]>),
}

/// Chooses the event.
pub(super) fn plan(options: &Options) -> Result<Plan, SamplerError> {
    match options.source {
        Source::Faults => Ok(Plan { spec: EventSpec::minor_faults(), reading: Reading::Fault, notes: Vec::new() }),
        Source::Timer => timer(options),
    }
}

fn timer(options: &Options) -> Result<Plan, SamplerError> {
    if !cfg!(target_arch = "x86_64") {
        return Err(SamplerError::Architecture { source_name: Source::Timer.name() });
    }
    let cpu = options.cpus.first().copied().unwrap_or(0);
    let mut notes = Vec::new();
    if options.freq.is_some_and(|freq| freq > tick::COSTLY_FREQ) {
        notes.push(format!(
            "--freq above {} Hz takes more than 2 % of every CPU: each sample is an interrupt of its own",
            tick::COSTLY_FREQ
        ));
    }
    let tick = match tick::probe(&options.proc, options.freq, cpu) {
        Ok(tick) => tick,
        // The probe watches the whole CPU; one's own tasks can be sampled with fewer rights.
        Err(_) if matches!(options.target, Target::Tasks { .. }) => {
            TickPlan::cpu_clock(options.freq.unwrap_or(tick::DEFAULT_FREQ))
        }
        Err(refused) => return Err(SamplerError::NoTimer { reasons: reasons(&refused) }),
    };
    if !tick.refused.is_empty() && options.freq.is_none() {
        notes.push(format!("timer samples come from {}: {}", tick.kind, reasons(&tick.refused)));
    }
    notes.push(match tick.rate {
        Some(rate) => format!("timer: {} gives {rate:.0} a second on a busy CPU", tick.kind),
        None => format!("timer: {} every {:.1} ms of a task's time", tick.kind, tick.period as f64 / 1e6),
    });
    let (name, reading) = match tick.kind {
        TickKind::HrtimerExpire => ("timer:hrtimer_expire_entry", Reading::UserByCallchain(tick.entries.into())),
        TickKind::LocalTimer => ("irq_vectors:local_timer_entry", Reading::UserByCallchain(tick.entries.into())),
        TickKind::CpuClock => ("cpu-clock", Reading::UserByMode),
    };
    let callchain = if tick.type_ == sys::PERF_TYPE_TRACEPOINT { tick::MAX_STACK } else { 0 };
    let spec = EventSpec {
        name,
        kind: tick.type_,
        config: tick.config,
        rate: Rate::Period(tick.period),
        filter: tick.filter,
        context: Some(Context { regs: tick::REGS, stack: tick::STACK_BYTES, callchain }),
    };
    Ok(Plan { spec, reading, notes })
}

fn reasons(refused: &[(TickKind, tick::Refusal)]) -> String {
    refused.iter().map(|(kind, refusal)| format!("{kind}: {refusal}")).collect::<Vec<_>>().join("; ")
}
