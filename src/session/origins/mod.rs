//! The origins of samples, one file for each: the kernel, the forms of a profile, a trace, a caller's feed.

mod feed;
mod kernel;
mod lines;
mod numbers;
mod perf_data;
mod profile;
mod rescan;
mod sched_text;
mod script;
mod spe;
mod start;
mod trace;

pub use feed::{Batch, Feed};
pub(super) use kernel::Capture;
pub(super) use start::start_host;
pub use trace::TraceInput;

pub(super) use feed::run as run_feed;
pub(super) use profile::run as run_profile;
pub(super) use trace::run as run_trace;
