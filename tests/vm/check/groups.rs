//! Checks a configuration by what the programs of tests/sharing say of their threads.

use std::fs;

use anyhow::{anyhow, ensure, Context, Result};

#[allow(dead_code)] // The tests of tests/sharing use all of it.
#[path = "../../sharing/score.rs"]
mod score;

/// `vm-check groups CELLS [CGROUP OUTPUT]...`: OUTPUT is what a program printed whose threads are in CGROUP.
pub fn check(arguments: &[String]) -> Result<()> {
    let (cells, programs) = arguments.split_first().context("vm-check groups CELLS [CGROUP OUTPUT]...")?;
    let text = |path: &String| fs::read_to_string(path).with_context(|| path.clone());
    let cells = text(cells)?;
    for program in programs.chunks(2) {
        let [cgroup, output] = program else { anyhow::bail!("a cgroup without an output: {program:?}") };
        let threads = score::threads(&text(output)?);
        ensure!(!threads.is_empty(), "{output} names no thread");
        let score = score::score(&threads, cgroup, &cells).map_err(|error| anyhow!(error))?;
        ensure!(score.is_right(), "{output}: {score:?}\n{cells}");
        println!("groups: all {} threads of {output} are where they share", threads.len());
    }
    Ok(())
}
