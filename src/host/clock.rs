//! The clock of all times.

use rustix::time::{clock_gettime, ClockId};

/// CLOCK_BOOTTIME in ns, the clock of the times at which procfs says that tasks began.
#[must_use]
pub fn boottime_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// CLOCK_MONOTONIC in ns, the clock of all records.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
