//! Whether the host that a profile is of is this one, whose files name its code.

use std::time::{Duration, SystemTime};

use super::meta::Host;
use super::Meta;

/// When the recording began, where it was made on this host since it booted; `None` elsewhere.
#[must_use]
pub fn recorded_here(meta: &Meta, host: &Host) -> Option<SystemTime> {
    let Host { name, boot_id, .. } = &meta.host;
    if boot_id.is_empty() || (boot_id, name) != (&host.boot_id, &host.name) {
        return None;
    }
    SystemTime::UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(meta.begin_unix).ok()?)
}
