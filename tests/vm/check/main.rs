//! Checks that run in a guest: they compare a program's result with the samples that the simulated memory PMU sent, and look
//! at where a scheduler runs threads.
//!
//! `vm-check CHECK [ARGUMENTS]` prints one line and exits with 0 if the check holds, else it prints the difference and exits
//! with 1.

use anyhow::{bail, Context, Result};

mod attrs;
mod cells;
mod family;
mod groups;
mod perf;
mod placement;
mod samples;
#[cfg(feature = "bpf")]
mod scheduler;
mod stats;
mod truth;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (check, rest) = arguments.split_first().context("vm-check CHECK [ARGUMENTS]")?;
    match check.as_str() {
        "samples" => samples::check(rest),
        "attrs" => attrs::check(rest),
        "cells" => cells::check(rest),
        "family" => family::check(rest),
        "groups" => groups::check(rest),
        "perf" => perf::check(rest),
        "placement" => placement::check(rest),
        "stats" => stats::check(rest),
        #[cfg(feature = "bpf")]
        "scheduler" => scheduler::run(rest),
        #[cfg(feature = "bpf")]
        "dsq" => scheduler::check(rest),
        _ => bail!("no check \"{check}\""),
    }
}
