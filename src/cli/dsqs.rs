//! `scxprof sched --by dsq`: the dispatch queues of a sched_ext scheduler.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::anyhow;

use super::failure::Failure;
use super::times::{incomplete, mark, ms, us};
use crate::host::Roots;
use crate::sampler::tracepoints::has_scheduler;
use crate::session::{Outcome, SchedLoss, SchedSink};
use scxprof_base::columns::{fitted, Column};
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

/// How columns give way. Those of depth and waits need the first of them, which says what they are.
const COLUMNS: [Column; 15] = [
    Column::name(0),
    Column::number(1),
    Column::number(6),
    Column::number(7),
    Column::number(2),
    Column::number(7),
    Column::number(3),
    Column::number(4),
    Column::number(5),
    Column::number(1),
    Column::number(6),
    Column::number(6),
    Column::number(2),
    Column::number(3),
    Column::number(5),
];

/// One line for each dispatch queue.
pub(super) fn table(lines: &[DsqLine], (stats, loss): (&SchedSink, &SchedLoss), width: Option<usize>) -> String {
    let mark_of = |line: &DsqLine| mark(line.losses, line.inserted + line.moved + line.dispatched, loss);
    // The observed time is in ns.
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
        let mark = mark_of(line);
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
    let mut text = fitted(&rows, &COLUMNS, width);
    let _ = write!(text, "\n{} dispatch queues, {:.3} s", lines.len(), window as f64 / 1e9);
    if unknown > 0 {
        let _ = write!(
            text,
            "\n{unknown} times a thread got a CPU from a queue that is not known, as that of an idle CPU is not"
        );
    }
    if lines.iter().any(|line| !mark_of(line).is_empty()) {
        text += incomplete(stats);
    }
    text + "\n"
}
