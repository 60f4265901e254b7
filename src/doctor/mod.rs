//! Finds out what a host can do for scxprof: tries each source and each of its requirements as a run would.
//!
//! [`examine`] asks the kernel and reads the host under its [`Roots`], and returns a [`Report`] of [`Check`]s. A check that
//! fails has the message of a run that fails.

use std::fs;

use crate::host::Roots;
use crate::sample::Source;

mod bpf;
mod bpf_trials;
mod check;
mod fields;
mod hardware;
mod host;
mod kernel;
pub(crate) mod load;
mod rights;
pub(crate) mod selftest;
mod text;
mod trial;

// For tests, which replace the kernel.
#[doc(hidden)]
pub use bpf_trials::{BpfTrial, BpfTrialError};
pub use check::{Check, CheckState, Report, Section};
#[doc(hidden)]
pub use kernel::{Attempt, Hierarchy, Kernel, Watched};
pub use text::{table, Style};
use trial::Trial;

/// The schema of the JSON (docs/doctor.md); raised if a field changes its meaning or is removed.
const VERSION: u32 = 2;

/// Tries everything. Raises the soft `RLIMIT_NOFILE` of this process if the events need it, as `scxprof run` does.
#[must_use]
pub fn examine(roots: &Roots) -> Report {
    examine_with(roots, &kernel::Live::new(roots))
}

/// As [`examine`], with another kernel.
#[doc(hidden)]
#[must_use]
pub fn examine_with(roots: &Roots, kernel: &dyn Kernel) -> Report {
    let trials: Vec<_> = Source::ALL.into_iter().map(|source| Trial::new(kernel, source)).collect();
    let mut checks: Vec<_> = trials.iter().map(Trial::check).collect();
    checks.extend(hardware::checks(roots, &trials));
    checks.extend(fields::checks(&trials));
    checks.extend(rights::checks(roots, kernel, &trials));
    checks.extend(host::checks(roots, kernel));
    checks.extend(bpf::checks(roots, kernel));
    let sysctl = |name: &str| fs::read_to_string(roots.proc.join("sys/kernel").join(name)).unwrap_or_default();
    Report {
        version: VERSION,
        scxprof: env!("CARGO_PKG_VERSION"),
        kernel: sysctl("osrelease").trim().to_owned(),
        arch: std::env::consts::ARCH,
        cpu: host::cpu_model(roots),
        cpus: crate::host::topology::online_cpus(roots).map_or(0, |cpus| cpus.len()),
        checks,
    }
}
