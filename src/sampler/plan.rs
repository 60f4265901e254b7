//! A plan: the events of a source, and how their samples are to be read.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::attr::EventSpec;
use super::pmu::Config;

/// The events of a source and what their samples say.
#[derive(Debug)]
pub struct Plan {
    /// The events.
    pub events: Vec<Planned>,
    /// How their samples are read.
    pub address_from: AddressFrom,
    /// What a person should know of the choice.
    pub notes: Vec<String>,
}

/// An event and where it samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// The event.
    pub spec: EventSpec,
    /// The CPUs that it can sample, of those that were asked for.
    pub cpus: Vec<u32>,
    /// For an event that may open and yet never count: what to try it with on a CPU that we keep busy.
    pub probe: Option<Config>,
    /// Samples a second and CPU that its period is steered to.
    pub steer: Option<Steer>,
}

/// How a period is steered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steer {
    /// Samples a second on the busiest CPU.
    pub rate: u32,
    /// The shortest period.
    pub min: u64,
    /// What a period must be a multiple of; else odd ones are taken, which keep step with less.
    pub multiple: u64,
}

/// How the access of a sample is found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AddressFrom {
    /// The record is of a fault and has the data address. The idle task never faults.
    Fault,
    /// The hardware gives the data address and where the data came from.
    Hardware {
        /// Accesses of kernel code are left out, which the event may have done already.
        user_only: bool,
        /// The samples are of any op: those that access no memory are left out.
        ops: bool,
        /// Loads with a latency below this many cycles are left out. Stores and, with IBS, L1 hits have no latency and stay.
        ldlat: Option<u32>,
    },
    /// The record is of whatever event another program recorded, and has the data address if there is one.
    OtherTool,
    /// The record has the registers of user code, where its header says user mode.
    UserByMode,
    /// The same for a tracepoint, whose own mode is the kernel's: its callchain ends at one of these interrupt entries.
    UserByCallchain(Vec<Range<u64>>),
}

impl AddressFrom {
    /// True if the address is to be recovered from the registers.
    #[must_use]
    pub fn recovers(&self) -> bool {
        matches!(self, Self::UserByMode | Self::UserByCallchain(_))
    }
}
