//! A plan: the events of a source, and how to read their samples.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::attr::EventSpec;
use super::pmu::Config;
use scxprof_perf::tracepoint::SchedDecoder;

/// The events of a source and how to read their samples.
#[derive(Debug)]
pub struct Plan {
    /// The events.
    pub events: Vec<Planned>,
    /// How to read their samples.
    pub address_from: AddressFrom,
    /// How to decode scheduling events, if there are any.
    pub sched: Option<Arc<SchedDecoder>>,
    /// Samples per second on a busy CPU, if that is known.
    pub rate: Option<f64>,
    /// Notes on the choice for the user.
    pub notes: Vec<String>,
}

/// An event and its CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// The event.
    pub spec: EventSpec,
    /// The requested CPUs on which the event can sample.
    pub cpus: Vec<u32>,
    /// For an event that can open and still never count: the config to try on a CPU that is kept busy.
    pub probe: Option<Config>,
    /// How to adjust its period.
    pub steer: Option<Steer>,
    /// Samples contain call chains and no memory accesses. They go to a separate ring beside that of the source: they
    /// are recorded, and not passed on.
    pub is_aside: bool,
}

impl Planned {
    /// True for an event beside the source: a scheduling event, or an event of call stacks beside memory.
    #[must_use]
    pub fn is_beside(&self) -> bool {
        self.spec.is_sched || self.is_aside
    }
}

/// How to adjust a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steer {
    /// Samples a second on the busiest CPU.
    pub rate: u32,
    /// The shortest period.
    pub min: u64,
    /// Periods must be a multiple of this. If it is 1, odd periods are used, because they rarely run in step with the
    /// program.
    pub multiple: u64,
}

/// How to find the access of a sample.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AddressFrom {
    /// No sample has an address: all are scheduling events.
    Nothing,
    /// No sample has an address: each has a call chain.
    Callchain,
    /// The record of a fault contains the data address. The idle task never faults.
    Fault,
    /// The hardware gives the data address and the source of the data.
    Hardware {
        /// Leave out accesses of kernel code, unless the event already excludes them.
        user_only: bool,
        /// Samples may be of any op: leave out ops that access no memory.
        ops: bool,
        /// Leave out loads with a latency below this many cycles. Stores and, with IBS, L1 hits have no latency and stay.
        ldlat: Option<u32>,
    },
    /// Events of any kind, recorded by another program: records have the data address if it was recorded.
    OtherTool,
    /// The record contains the registers of user code if its header says user mode.
    UserByMode,
    /// As `UserByMode`, for a tracepoint, which is itself in kernel mode: the sample is of user code if its call chain
    /// ends at one of these interrupt entries.
    UserByCallchain(Vec<Range<u64>>),
}

impl AddressFrom {
    /// True if the address must be recovered from the registers.
    #[must_use]
    pub fn recovers(&self) -> bool {
        matches!(self, Self::UserByMode | Self::UserByCallchain(_))
    }

    /// True if the hardware also gives accesses of kernel code.
    #[must_use]
    pub fn is_of_kernel(&self) -> bool {
        matches!(self, Self::Hardware { user_only: false, .. })
    }
}
