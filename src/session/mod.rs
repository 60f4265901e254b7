//! Connects the parts: from the rings to samples in order of time, each with its thread's name and its memory, to a sink.
//!
//! [`Session::builder`] sets up a capture, [`Builder::start`] opens the events, [`Session::run`] samples and decides. For
//! custom steps, [`Session::run_until`] returns what was [`Sampled`] before the decision, and [`Session::run_into`] samples
//! into a [`Sink`] and decides nothing. Samples come from the kernel, from a recording ([`Builder::profile`]) or from a
//! [`Feed`].

pub use crate::outcome::{Outcome, RecoveryStats, UnresolvedPlace};

mod analysis;
mod analyzed;
mod builder;
mod capture;
mod decider;
mod error;
mod feed;
mod hints;
mod lines;
mod names;
mod numbers;
mod order;
mod profiler;
mod ready;
mod recorded;
mod recovery;
mod rescan;
mod running;
mod sched;
mod sink;
mod stacked;
mod stages;
mod start;
mod stop;
#[cfg(feature = "parquet")]
mod tabled;
mod text;
mod traced;
mod unresolved;
mod wakeups;

pub use analysis::{Analysis, Sampled};
pub use analyzed::ToAnalysis;
pub use builder::Builder;
use capture::{Capture, CaptureOptions};
pub use decider::Decider;
pub(crate) use error::of_source;
pub use error::{Error, ErrorKind, NoProcess, NotStarted, SessionError, Skipped};
pub use feed::{Batch, Feed};
use names::Names;
pub use profiler::{Profiler, ProfilerError, ProfilerStatus};
pub use running::Session;
pub use sched::SchedStats;
pub use sink::{Progress, Select, Sink};
pub use stacked::StackSink;
pub use stop::StopHandle;
#[cfg(feature = "parquet")]
pub use tabled::Tabled;
pub use traced::{PlaceOf, ToTrace, TraceCounts, TraceOptions};

pub use crate::sample::{FileId, SideBand, TimedSideBand};
pub use crate::sampler::attr::{EventSpec, Rate};
pub use crate::sampler::event::{default_name as default_event, parse as parse_event, EventNameError};
pub use crate::sampler::loss::Loss;
pub use crate::sampler::loss::SchedLoss;
pub use crate::sampler::open::EventError;
pub use crate::sampler::pmu::{NoIbs, NoPebs, PmuError};
pub use crate::sampler::sched::SchedOptions;
pub use crate::sampler::{Hardware, Pace, SamplerError, Target};
pub use crate::tables::{TableSize, Tables, TablesHandle};
