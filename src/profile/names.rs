//! Whether the host that a profile is of is this one, whose files name its code.

use std::time::{Duration, SystemTime};

use super::Meta;
use crate::sampler::open::monotonic_ns;

/// By so much the clocks of one boot may have been set apart.
const SAME_BOOT: f64 = 2.0;

/// When the recording began, where it was made on this host since it booted; `None` elsewhere.
#[must_use]
pub fn recorded_here(meta: &Meta, host: &str) -> Option<SystemTime> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs_f64();
    // CLOCK_MONOTONIC counts from the boot on, so this is when the host booted.
    let booted = now - monotonic_ns() as f64 / 1e9;
    let booted_then = meta.begin_unix - meta.begin as f64 / 1e9;
    let here = meta.host.name == host && (booted - booted_then).abs() < SAME_BOOT;
    let begin = Duration::try_from_secs_f64(meta.begin_unix).ok()?;
    here.then_some(begin).and_then(|begin| SystemTime::UNIX_EPOCH.checked_add(begin))
}
