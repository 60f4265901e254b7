//! The options of task hints, and the messages about them.

use clap::Args;

use crate::bpf::{self, MapRef};
use crate::config::Scheduler;
use crate::hint::{HintCounts, HintProbe, MAX_HINT};

/// Task hints.
#[derive(Debug, Args)]
#[command(next_help_heading = "Task hints")]
pub(super) struct HintArgs {
    /// Follow the task hints in this map: the path of a pinned one, id:N or name:NAME
    #[arg(id = "hints_map", long = "hints-map", value_name = "MAP")]
    map: Option<MapRef>,
    /// The ring that hints come through, a power of two
    #[arg(long = "hints-map-ring-sz", value_name = "MB", default_value = "8", value_parser = ring_size)]
    ring_mb: u32,
    /// The only way to see hints that is tried (local_storage_update, pid_task_storage_update_elem or syscall); to measure and to test them
    #[arg(long = "hints-probe", value_name = "PROBE", requires = "hints_map", hide = true)]
    probe: Option<HintProbe>,
}

fn ring_size(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(megabytes) if megabytes.is_power_of_two() && megabytes <= 1024 => Ok(megabytes),
        _ => Err("must be a power of two from 1 to 1024".to_owned()),
    }
}

impl HintArgs {
    /// True if hints are to be followed.
    pub(super) fn are_followed(&self) -> bool {
        self.map.is_some()
    }

    /// What to follow, if anything.
    pub(super) fn options(&self) -> Option<bpf::HintOptions> {
        let map = self.map.clone()?;
        Some(bpf::HintOptions { map, probe: self.probe, ring_bytes: self.ring_mb << 20 })
    }
}

/// How a scheduler uses hints, in a sentence.
pub(super) fn used(target: Scheduler) -> &'static str {
    match target {
        Scheduler::Layered => "layers match hints only if scx_layered runs with --task-hint-map",
        Scheduler::Mitosis => {
            "scx_mitosis cannot match hints, so the configuration tells threads apart by name alone; --target layered uses them"
        }
    }
}

/// Prints the counts of hints with -v, and losses always.
pub(super) fn report(hints: &HintCounts, verbose: u8) {
    let counts = &hints.counts;
    if verbose > 0 && hints.probe.is_some() {
        say!(
            "Hints: {} events of {} tasks, {} values, {} there at the start; {} samples with a hint, {} without",
            counts.events,
            hints.tasks,
            hints.values,
            counts.at_start,
            hints.samples_with,
            hints.samples_without
        );
    }
    if verbose > 0 {
        if let Some(probe) = hints.probe {
            say!("Hints are seen by {probe}");
        }
    }
    for line in hints.lines() {
        say!("note: {line}");
    }
    if counts.dropped > 0 {
        say!("note: --hints-map-ring-sz makes the hints' ring larger");
    }
    if hints.above_limit > 0 {
        say!("note: {} hints above {MAX_HINT}, which schedulers ignore", hints.above_limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_a_power_of_two() {
        assert_eq!(ring_size("8"), Ok(8));
        for wrong in ["0", "3", "2048", "-1", "x", ""] {
            assert!(ring_size(wrong).is_err(), "{wrong:?}");
        }
    }
}
