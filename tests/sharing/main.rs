//! The whole way on programs whose sharing is known: the real binary samples them, or reads a recording of them, and the
//! printed configuration alone says which of their threads go together.
//!
//! Sampling takes root (or CAP_PERFMON), and cells of their own a cgroup2 mount where cgroups can be made; elsewhere each
//! such test says SKIP. `make truth` judges all programs, at length; here are some, in bounded time.

#![allow(missing_docs, clippy::unwrap_used)] // A test that cannot go on must fail.

mod capture;
mod cgroup;
mod family;
mod lines;
mod made;
mod programs;
mod score;
mod workload;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// One test at a time: each has the CPUs for itself, as far as the machine lets it.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
