//! Whose turn it is.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// One test at a time until this is dropped, each with the CPUs for itself: a measured program shares them with nothing that
/// another test runs, whose real-time threads could even keep the readers of its rings from running.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}
