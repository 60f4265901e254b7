//! From perf events to samples and side-band records.
//!
//! [`Sampler::open`] opens the events of every CPU, with one ring per CPU. [`Sampler::start`] enables them and passes the rings
//! to worker threads. [`Running`] is the receiving end.

pub mod attr;
mod busy;
mod choose;
mod clock;
mod counted;
pub mod counter;
mod cpus;
mod error;
pub mod event;
#[cfg(feature = "mcp")]
pub(crate) mod event_list;
pub mod hardware;
mod hotplug;
pub mod intake;
mod live;
pub mod loss;
pub mod open;
mod opened;
mod opener;
mod options;
pub mod plan;
pub mod pmu;
pub mod pool;
mod probe;
pub mod ring;
mod running;
pub(crate) mod spe;
mod steer;
pub mod tee;
pub mod tick;
pub mod tracepoints;
pub mod user;
mod waker;
mod worker;

pub use error::{SamplerError, MLOCK_HELP, NOFILE_HELP};
pub use hardware::{Hardware, Pace};
pub use opened::{OpenEvents, Sampler};
pub use options::{SamplerOptions, Target};
pub use plan::AddressFrom;
pub use running::{Running, Totals};
pub use worker::Identity;

pub use crate::sample::batch::{Batch, PendingSample, UserContext};
