//! Sinks, which take samples and scheduling events in order of time: [`Sink`], and the sinks that make statistics, call stacks,
//! traces, tables and analyses of them. The decision is another sink (`decider`).

mod analysis;
#[cfg(feature = "parquet")]
mod parquet;
mod queues;
mod replay;
mod sched;
mod sink;
mod stacks;
mod tasks;
mod trace;

pub use analysis::AnalysisSink;
#[cfg(feature = "parquet")]
pub use parquet::TableSink;
pub use sched::SchedSink;
pub use sink::{Meanwhile, Select, Sink};
pub use stacks::StackSink;
pub use tasks::TaskSink;
pub use trace::{PlaceOf, TraceCounts, TraceOptions, TraceSink};
