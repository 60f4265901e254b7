//! What takes samples and scheduling events in order of time: [`Sink`], and the sinks that make statistics, call stacks, traces, tables
//! and analyses of them. The decision is a sink of its own (`decider`).

mod analysis;
mod sched;
mod sink;
mod stacks;
#[cfg(feature = "parquet")]
mod tables;
mod trace;

pub use analysis::AnalysisSink;
pub use sched::SchedSink;
pub use sink::{Select, Sink};
pub use stacks::StackSink;
#[cfg(feature = "parquet")]
pub use tables::TableSink;
pub use trace::{PlaceOf, TraceCounts, TraceOptions, TraceSink};
