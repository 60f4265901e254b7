//! Checks that run in a guest with the simulated memory PMU: what somebody made of its samples against what it sent.
//!
//! `vm-check CHECK [ARGUMENTS]` prints one line and exits with 0 where the check holds, else says what differs and exits with 1.

use anyhow::{bail, Context, Result};

mod attrs;
mod cells;
mod perf;
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
        _ => bail!("no check \"{check}\""),
    }
}
