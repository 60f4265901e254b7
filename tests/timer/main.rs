//! The timer source from events to places, on programs whose accesses are known.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on must fail.

#[path = "../support/capture.rs"]
mod capture;
mod identity;
mod memory;
mod modes;
#[path = "../operand/programs.rs"]
mod programs;
mod race;
mod redzone;
#[path = "../support/replay.rs"]
mod replay;
mod rights;
mod robust;
mod stalled;
mod truth;

use std::sync::{Mutex, MutexGuard, PoisonError};

use scxprof::sample::Source;
use scxprof::session::{Builder, Outcome, RecoveryStats};
use scxprof::testing::sampler::Target;

/// One test at a time: they share the CPUs.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The timer source at `freq`, or on the tick.
fn timer(target: Target, freq: Option<u32>) -> Builder<'static> {
    let options = capture::options(Source::Timer, target, 256);
    match freq {
        Some(freq) => options.freq(freq),
        None => options,
    }
}

/// The counts of the recovery; each sample is accounted for.
fn recovery(outcome: &Outcome) -> &RecoveryStats {
    let recovery = outcome.recovery.as_ref().expect("the timer source recovers");
    let none: u64 = recovery.unrecovered.values().sum();
    assert_eq!(recovery.user_samples, recovery.recovered + none, "{recovery:?}");
    recovery
}
