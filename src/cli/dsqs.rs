//! `scxprof sched --by dsq`: the dispatch queues of a sched_ext scheduler.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::anyhow;

use super::failure::Failure;
use super::times::{incomplete, ms, us};
use crate::host::Roots;
use crate::sampler::tracepoints::has_scheduler;
use crate::session::{Outcome, SchedSink};
use scxprof_base::columns::aligned;
use scxprof_sched::dsqs::DsqLine;

/// Before watching: an error if there can be no dispatch queues.
pub(super) fn check(roots: &Roots) -> Result<(), Failure> {
    if has_scheduler(&roots.sys) {
        return Ok(());
    }
    let state = roots.sys.join("kernel/sched_ext/state");
    Err(Failure::Unsupported(anyhow!(
        "--by dsq needs a sched_ext scheduler, and none is loaded on this host ({} {})",
        state.display(),
        if state.exists() { "does not say \"enabled\"" } else { "is not there" }
    )))
}

/// At most `limit` lines, 0 for all; an error if there is none.
pub(super) fn found(
    stats: &SchedSink,
    limit: usize,
    file: Option<&Path>,
    outcome: &Outcome,
) -> Result<Vec<DsqLine>, Failure> {
    let mut lines = stats.dsqs();
    if lines.is_empty() {
        return Err(match file {
            Some(path) => Failure::NoResult(anyhow!(
                "{} has no events of dispatch queues; `scxprof record --sched` records them if a sched_ext scheduler is loaded \
                 and BPF is allowed",
                path.display()
            )),
            // A note has said why.
            None if outcome.loss.sched.of_dsq == 0 => Failure::Unsupported(anyhow!(
                "no events of dispatch queues: the kernel refused to observe them, or no thread was scheduled by sched_ext"
            )),
            None => Failure::NoResult(anyhow!("no thread was put into a dispatch queue in that time")),
        });
    }
    if limit > 0 {
        lines.truncate(limit);
    }
    Ok(lines)
}

/// `window` is the observed time in ns.
pub(super) fn table(lines: &[DsqLine], stats: &SchedSink) -> String {
    let (unknown, window) = (stats.unknown_dsqs(), stats.window());
    let head = [
        "DSQ",
        "INSERTED",
        "MOVED",
        "BY-KERNEL",
        "DISPATCHED",
        "LEFT",
        "DEPTH",
        "MEAN",
        "MAX",
        "WAIT.MEAN(us)",
        "P50",
        "P95",
        "P99",
        "MAX",
        "SLICE(ms)",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(lines.iter().map(|line| {
        let mark = if line.losses > 0 { "!" } else { "" };
        let wait = &line.wait;
        vec![
            format!("{mark}{}", line.name),
            line.inserted.to_string(),
            line.moved.to_string(),
            line.by_kernel.to_string(),
            line.dispatched.to_string(),
            line.left.to_string(),
            line.depth.to_string(),
            format!("{:.2}", line.mean_depth),
            line.max_depth.to_string(),
            us(wait.times.mean_ns),
            us(wait.p50_ns),
            us(wait.p95_ns),
            us(wait.p99_ns),
            us(wait.times.max_ns),
            match line.slice.mean_ns {
                Some(mean) => ms(mean),
                None if line.unlimited > 0 => "no limit".to_owned(),
                None => "-".to_owned(),
            },
        ]
    }));
    let mut text = aligned(&rows);
    let _ = write!(text, "\n{} dispatch queues, {:.3} s", lines.len(), window as f64 / 1e9);
    if unknown > 0 {
        let _ = write!(
            text,
            "\n{unknown} times a thread got a CPU from a queue that is not known, as that of an idle CPU is not"
        );
    }
    if lines.iter().any(|line| line.losses > 0) {
        text += incomplete(stats);
    }
    text + "\n"
}
