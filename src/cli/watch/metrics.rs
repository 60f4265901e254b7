//! The figures of a watch, for Prometheus.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use super::budget::own_cpu;
use super::store::Totals;
use crate::evidence::Interval;
use crate::host::{proc, Roots};

/// Resident bytes of this process, if procfs tells them.
fn resident() -> u64 {
    proc::resident_bytes(&Roots::default()).unwrap_or_default()
}

/// The figures for Prometheus.
pub(super) fn metrics(found: &Interval, totals: &Totals) -> String {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let mut text = String::new();
    let mut add = |name: &str, kind: &str, help: &str, value: Option<f64>| {
        if let Some(value) = value {
            let name = format!("scxprof_watch_{name}");
            // A part that is rounded to nothing is not -0.
            let value = value + 0.0;
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
        }
    };
    add("locality", "gauge", "Part of the avoidable misses that the loaded configuration avoids.", found.locality);
    add("best_locality", "gauge", "The same of the configuration that would be decided now.", found.best_locality);
    add("score", "gauge", "What the loaded configuration avoids beyond chance: see docs/score.md.", found.score);
    add("best_score", "gauge", "The same of the configuration that would be decided now.", found.best);
    add("gain", "gauge", "The difference of the two scores.", found.gain);
    add("gain_doubt", "gauge", "Half the width of the 95 % interval of the gain.", found.doubt);
    add("intervals_total", "counter", "Intervals.", Some(totals.intervals as f64));
    add("changes_total", "counter", "New configurations.", Some(totals.changes as f64));
    add("samples_total", "counter", "Accesses that were sampled.", Some(totals.samples.round()));
    add("lost_samples_total", "counter", "Samples that were lost.", Some(totals.lost as f64));
    add(
        "failed_slices_total",
        "counter",
        "Slices of time that could not be sampled.",
        Some(totals.failed_slices as f64),
    );
    add("failed_execs_total", "counter", "Runs of --exec that failed.", Some(totals.failed_execs as f64));
    add("failed_writes_total", "counter", "Files that could not be written.", Some(totals.failed_writes as f64));
    add(
        "late_slices_total",
        "counter",
        "Slices that cost too much CPU time to be in time.",
        Some(totals.late_slices as f64),
    );
    add("too_large_total", "counter", "Configurations that were too large to give out.", Some(totals.too_large as f64));
    add("cpu_seconds_total", "counter", "CPU time of this process.", Some(own_cpu().as_secs_f64()));
    add("resident_bytes", "gauge", "Memory of this process.", Some(resident() as f64));
    add("last_interval_timestamp_seconds", "gauge", "When the last interval ended.", Some(time));
    text
}
