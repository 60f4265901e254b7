//! Checks the written configuration by the scheduler's rule: the workload's groups are together and separate from each other.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{ensure, Context, Result};
use scxprof::config::{mitosis, Consumer, Subcell};

/// `vm-check cells FILE CGROUP`: FILE is a configuration for scx_mitosis, CGROUP the workload's path below the root.
pub fn check(arguments: &[String]) -> Result<()> {
    let [file, cgroup] = arguments else { anyhow::bail!("vm-check cells FILE CGROUP") };
    let json = fs::read_to_string(file).with_context(|| file.clone())?;
    let cells = mitosis::parse(&json)?;
    let consumer = Consumer::new(&cells)?;
    let memory = |name: &str| {
        let assigned = consumer.assign(format!("/{cgroup}").as_bytes(), name.as_bytes());
        let cell = assigned.cell.with_context(|| format!("no cell for {name}"))?;
        let subcell = assigned.subcell.with_context(|| format!("no subcell for {name}"))?;
        let catch_all = cells.get(cell).and_then(|cell| cell.subcells.get(subcell)).is_none_or(Subcell::is_catch_all);
        ensure!(!catch_all, "{name} is left to the catch-all: {json}");
        Ok((cell, subcell))
    };
    let group = |names: [&str; 2]| -> Result<_> {
        let places = names.iter().map(|name| memory(name)).collect::<Result<BTreeSet<_>>>()?;
        ensure!(places.len() == 1, "{names:?} are apart: {json}");
        Ok(places)
    };
    let (a, b) = (group(["grpA-0", "grpA-1"])?, group(["grpB-0", "grpB-1"])?);
    ensure!(a != b, "the groups are not told apart: {json}");
    println!("cells: both groups have a subcell");
    Ok(())
}
