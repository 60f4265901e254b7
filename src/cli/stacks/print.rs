//! The result as a table and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::super::format;
use super::{StacksArgs, What};
use crate::resolve::UnwindCounts;
use crate::session::{Loss, Outcome};
use crate::stacks::{self, GroupLine, ProfilerState, StackProfile, SymbolLine};
use scxprof_base::columns::{fitted, wrapped, Column};

/// The result as JSON.
#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    state: ProfilerState,
    event: &'a str,
    frequency_hz: Option<u64>,
    period: Option<u64>,
    duration_s: f64,
    samples: u64,
    samples_per_s: f64,
    lost: u64,
    loss: &'a Loss,
    symbols: &'a [SymbolLine],
    #[serde(skip_serializing_if = "<[GroupLine]>::is_empty")]
    groups: &'a [GroupLine],
    #[serde(skip_serializing_if = "Option::is_none")]
    unwound: Option<UnwindCounts>,
    stacks: Vec<Stack>,
    stack_count: usize,
}

/// A stack of a thread.
#[derive(Serialize)]
struct Stack {
    thread: String,
    pid: u32,
    tid: u32,
    subcell: Option<String>,
    samples: u64,
    /// The innermost first.
    frames: Vec<String>,
}

/// The result as JSON.
pub(super) fn document(args: &StacksArgs, profile: &StackProfile, outcome: &Outcome) -> anyhow::Result<String> {
    let shown = if args.limit == 0 { usize::MAX } else { args.limit };
    with_document((args.by.by(), shown), ProfilerState::Stopped, profile, outcome, |document| format::json(&document))
}

/// The same as a value, also of a profile that is not complete.
#[cfg(feature = "mcp")]
pub(in crate::cli) fn value(
    by: (stacks::By, usize),
    state: ProfilerState,
    profile: &StackProfile,
    outcome: &Outcome,
) -> serde_json::Result<serde_json::Value> {
    with_document(by, state, profile, outcome, |document| serde_json::to_value(document))
}

fn with_document<T>(
    (by, shown): (stacks::By, usize),
    state: ProfilerState,
    profile: &StackProfile,
    outcome: &Outcome,
    give: impl FnOnce(Document<'_>) -> T,
) -> T {
    let mut symbols = stacks::symbols(profile, &|_| true);
    symbols.truncate(shown);
    let mut groups = stacks::by(profile, by);
    groups.truncate(shown);
    let mut rows = profile.rows.clone();
    rows.sort_by_key(|row| std::cmp::Reverse(row.samples));
    rows.truncate(shown);
    let stack = |row: &stacks::Row| {
        let thread = profile.thread(row)?;
        Some(Stack {
            thread: thread.comm.clone(),
            pid: thread.pid,
            tid: thread.tid,
            subcell: thread.subcell.clone(),
            samples: row.samples,
            frames: profile.frames_of(row.stack).map(stacks::Frame::name).collect(),
        })
    };
    let duration = profile.duration_ns as f64 / 1e9;
    let samples = profile.count();
    let document = Document {
        version: 1,
        state,
        event: &profile.event,
        frequency_hz: profile.frequency,
        period: profile.period,
        duration_s: duration,
        samples,
        samples_per_s: if duration > 0.0 { samples as f64 / duration } else { 0.0 },
        lost: outcome.loss.lost(),
        loss: &outcome.loss,
        symbols: &symbols,
        groups: &groups,
        unwound: outcome.unwound,
        stacks: rows.iter().filter_map(stack).collect(),
        stack_count: profile.stack_count(),
    };
    give(document)
}

/// How the columns of functions give way.
const FUNCTIONS: [Column; 6] = [
    Column::name(0).at_least(24),
    Column::number(0),
    Column::number(1),
    Column::number(3),
    Column::name(2),
    Column::name(4),
];
/// The same of threads and what they belong to.
const GROUPS: [Column; 8] = [
    Column::name(0),
    Column::number(3),
    Column::number(2),
    Column::name(1),
    Column::number(4),
    Column::number(0),
    Column::number(2),
    Column::name(5),
];

/// The result as a table.
pub(super) fn table(args: &StacksArgs, profile: &StackProfile, width: Option<usize>) -> String {
    let shown = if args.limit == 0 { usize::MAX } else { args.limit };
    let or_dash = |text: Option<String>| text.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned());
    let (rows, columns, count, what) = if args.by == What::Symbol {
        let lines = stacks::symbols(profile, &|_| true);
        let head = ["FUNCTION", "SELF%", "TOTAL%", "SAMPLES", "MODULE", "SOURCE"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        rows.extend(lines.iter().take(shown).map(|line| {
            let module = line.module.rsplit('/').next().unwrap_or_default().to_owned();
            vec![
                line.symbol.clone(),
                format!("{:.2}", line.self_percent),
                format!("{:.2}", line.total_percent),
                line.self_samples.to_string(),
                or_dash(Some(module)),
                or_dash(line.source.clone()),
            ]
        }));
        (rows, FUNCTIONS.to_vec(), lines.len(), "functions")
    } else {
        let lines = stacks::by(profile, args.by.by());
        let head = ["NAME", "PID", "TID", "SUBCELL", "HINT", "%", "SAMPLES", "MOST IN"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        rows.extend(lines.iter().take(shown).map(|line| {
            let number = |number: Option<u32>| or_dash(number.map(|number| number.to_string()));
            vec![
                line.name.clone(),
                number(line.pid),
                number(line.tid),
                or_dash(line.subcell.clone()),
                or_dash(line.hint.map(|hint| hint.to_string())),
                format!("{:.2}", line.percent),
                line.samples.to_string(),
                line.top.clone(),
            ]
        }));
        // Columns that say nothing.
        let says = |at: usize| rows.iter().skip(1).any(|row| row.get(at).is_some_and(|cell| cell != "-"));
        let kept: Vec<bool> = (0..head.len()).map(says).collect();
        let keep = |row: &Vec<String>| {
            row.iter().zip(&kept).filter(|(_, kept)| **kept).map(|(cell, _)| cell.clone()).collect()
        };
        let rows: Vec<Vec<String>> = rows.iter().map(keep).collect();
        let columns = GROUPS.iter().zip(&kept).filter(|(_, kept)| **kept).map(|(column, _)| *column).collect();
        (
            rows,
            columns,
            lines.len(),
            match args.by {
                What::Thread => "threads",
                What::Process => "processes",
                What::Cgroup => "cgroups",
                _ => "subcells",
            },
        )
    };
    let mut text = fitted(&rows, &columns, width);
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let rate = match (profile.frequency, profile.period) {
        (Some(hz), _) => format!("{hz} Hz"),
        (_, Some(1)) => "each".to_owned(),
        (_, Some(period)) => format!("each {period} events"),
        _ => "recorded".to_owned(),
    };
    let _ = writeln!(
        text,
        "\n{} samples of {} ({rate}) in {:.3} s, {} stacks, {count} {what}",
        profile.count(),
        profile.event,
        profile.duration_ns as f64 / 1e9,
        profile.stack_count(),
    );
    wrapped(&text, width)
}
