//! Statistics of what the machine does with threads, from the scheduler's own events. Pure.
//!
//! [`Tracker`] follows the state of every thread and CPU through a stream of
//! [`SchedEvent`](scxprof_base::sample::sched::SchedEvent)s in order of time, from a live capture or a recording, and says what
//! happened as [`Fact`]s: a thread ran, waited, slept, was woken. [`Stats`] adds them up, [`Wakers`] says which threads wake each other.
//! [`Windows`] counts the CPU time of categories of threads in windows of time.

#![forbid(unsafe_code)]

mod bins;
pub mod dsqs;
mod durations;
mod facts;
#[cfg(test)]
mod made;
mod recent;
pub mod report;
mod stats;
mod threads;
mod tracker;
pub mod wakers;
mod windows;

pub use dsqs::Dsqs;
pub use durations::{Durations, Sums};
pub use facts::{Fact, Facts, QueuedBy};
pub use recent::{Recent, RecentWindow};
pub use stats::{Class, CpuRow, Migrations, Row, Stats};
pub use threads::{Home, Slot, Thread, Threads, Why};
pub use tracker::MAX_CPUS;
pub use tracker::{Gaps, Tracker, Unwoken};
pub use wakers::Wakers;
pub use windows::*;
