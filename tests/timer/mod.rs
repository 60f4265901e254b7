//! The timer source from events to places, on programs whose accesses are known.

mod identity;
mod kernel;
mod memory;
mod modes;
#[path = "../../crates/recover/tests/operand/programs.rs"]
mod programs;
mod race;
mod redzone;
mod rights;
mod robust;
mod stalled;
mod truth;

use scxprof::sample::Source;
use scxprof::session::{HostOptions, Outcome, RecoveryStats};
use scxprof::testing::sampler::Target;

/// Programs that say of themselves which threads access what.
const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs");

/// The timer source at `freq`, or on the tick.
fn timer(target: Target, freq: Option<u32>) -> HostOptions {
    HostOptions { freq, ..crate::support::capture::options(Source::Timer, target, 256) }
}

/// The counts of the recovery; each sample is accounted for.
fn recovery(outcome: &Outcome) -> &RecoveryStats {
    let recovery = outcome.recovery.as_ref().expect("the timer source recovers");
    let none: u64 = recovery.unrecovered.values().sum();
    assert_eq!(recovery.user_samples, recovery.recovered + none, "{recovery:?}");
    recovery
}
