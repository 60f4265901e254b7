//! What the running scheduler says of itself is read: its name in sysfs, and its figures over its socket.

use std::time::Duration;

use anyhow::{bail, Context, Result};
use scxprof::testing::host::scx_stats::{numbers, socket, SchedExt, StatsClient};
use scxprof::testing::host::Roots;

/// `OPS FIELD...`: a scheduler whose name begins with OPS runs, and gives a number for each field, also at a second request.
pub fn check(arguments: &[String]) -> Result<()> {
    let (ops, fields) = arguments.split_first().context("stats OPS FIELD...")?;
    let roots = Roots::default();
    let kernel = SchedExt::read(&roots).context("no sched_ext")?;
    if !kernel.name.as_ref().is_some_and(|name| name.starts_with(ops.as_str())) || kernel.state != "enabled" {
        bail!("{kernel:?} is not {ops}");
    }
    let mut client = StatsClient::connect(&socket(&roots), Duration::from_secs(20))?;
    let meta = client.meta()?;
    let mut count = 0;
    for _ in 0..2 {
        let found = numbers(&client.stats("top")?);
        if let Some(field) = fields.iter().find(|field| !found.values.iter().any(|(name, _)| name == *field)) {
            bail!("no number {field} in {found:?}");
        }
        count = found.values.len();
    }
    println!("{ops} gives {count} numbers of {} structs", meta.as_object().map_or(0, serde_json::Map::len));
    Ok(())
}
