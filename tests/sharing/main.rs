//! The whole way on programs of known sharing: the real binary samples them, or reads a recording of them, and the printed
//! configuration alone decides which of their threads are together.
//!
//! Sampling needs root (or CAP_PERFMON), and separate cells need a cgroup2 mount in which cgroups can be created; otherwise
//! each such test prints SKIP. `make truth` judges all programs, at length; this runs some, in bounded time.

#![allow(missing_docs, clippy::unwrap_used)] // A test that cannot go on must fail.

mod across;
mod capture;
mod cgroup;
mod family;
mod lines;
mod made;
mod programs;
mod score;
mod workload;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// One test at a time: each gets the CPUs for itself, as far as possible.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
