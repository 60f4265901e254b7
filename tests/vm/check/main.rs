//! Checks that run in a guest: what somebody made of the samples of the simulated memory PMU against what it sent, and where a
//! scheduler runs threads.
//!
//! `vm-check CHECK [ARGUMENTS]` prints one line and exits with 0 where the check holds, else says what differs and exits with 1.

use anyhow::{bail, Context, Result};

mod attrs;
mod cells;
mod perf;
mod placement;
mod samples;
mod truth;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (check, rest) = arguments.split_first().context("vm-check CHECK [ARGUMENTS]")?;
    match check.as_str() {
        "samples" => samples::check(rest),
        "attrs" => attrs::check(rest),
        "cells" => cells::check(rest),
        "perf" => perf::check(rest),
        "placement" => placement::check(rest),
        _ => bail!("no check \"{check}\""),
    }
}
