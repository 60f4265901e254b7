//! Connects the parts: from the rings to samples in order of time, each with its thread's name and its memory, to a sink.
//!
//! [`Session::builder`] sets up a capture, [`Builder::start`] opens the events, [`Session::run`] samples and decides. For
//! custom steps, [`Session::run_until`] returns what was [`Sampled`] before the decision, and [`Session::run_into`] samples
//! into a [`Sink`] and decides nothing. Samples come from the kernel, from a recording ([`Builder::profile`]) or from a
//! [`Feed`].

pub use crate::host::phases::{Phase, Phases};
pub use crate::outcome::{Outcome, RecoveryStats, UnresolvedPlace};

mod analysis;
mod builder;
mod error;
mod inlet;
mod live;
mod namer;
mod options;
mod order;
mod origin;
mod origins;
mod piece;
mod pipeline;
mod profiler;
mod running;
mod stop;

#[cfg(all(test, target_arch = "x86_64"))]
mod allocs_tests;
#[cfg(test)]
mod pipeline_tests;

pub use analysis::{Analysis, Sampled};
pub use builder::Builder;
pub(crate) use error::of_source;
pub use error::{Error, ErrorKind, NoProcess, NotStarted, SessionError, Skipped};
pub use live::{
    AccessCounts, AccessLine, AccessLines, Around, AroundNow, CacheNow, CpuNow, Group, Live, LiveError, LiveOptions,
    LiveState, Losses, OwnCost, SchedulerNow, Scheduling, SchedulingLines, SharingWindow, Snapshot,
};
pub use options::{AnalysisOptions, HostOptions, Whose};
pub use origins::{Batch, Feed, TraceInput};
pub use profiler::{Profiler, ProfilerError, ProfilerStatus};
pub use running::Session;
pub use stop::{Progress, StopHandle};

pub use crate::decider::Decider;
// What the types of this module are made of, so that a caller needs no other.
pub use crate::host::psi::{NoPressure, Pressure, Pressures, Stall};
pub use crate::host::resctrl::NoFigure;
pub use crate::host::scx_stats::SchedExt;
pub use crate::host::Roots;
pub use crate::resolve::{AddressSpaces, Cgroups, Modules, Stacks, SymbolOptions};
pub use crate::sample::{FileId, SideBand, TimedSideBand};
pub use crate::sampler::attr::{EventSpec, Rate};
pub use crate::sampler::event::{default_name as default_event, parse as parse_event, EventNameError};
pub use crate::sampler::loss::Loss;
pub use crate::sampler::loss::SchedLoss;
pub use crate::sampler::open::EventError;
pub use crate::sampler::pmu::{NoIbs, NoPebs, NoSpe, PmuError};
pub use crate::sampler::tracepoints::SchedOptions;
pub use crate::sampler::{Hardware, Pace, SamplerError, Target};
#[cfg(feature = "parquet")]
pub use crate::sinks::TableSink;
pub use crate::sinks::{
    AnalysisSink, Meanwhile, PlaceOf, SchedSink, Select, Sink, StackSink, TaskSink, TraceCounts, TraceOptions,
    TraceSink,
};
pub use scxprof_base::tables::{TableSize, Tables, TablesHandle};
pub use scxprof_sched::report::By;
