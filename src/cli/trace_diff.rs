//! `scxprof trace diff`: what got slower from one trace to another.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::anyhow;
use clap::{Args, ValueEnum};

use super::args::{text, ResultArgs, INPUT, RESULT};
use super::ends::{Ends, Step};
use super::failure::Failure;
use super::format;
use super::input;
use super::observe;
use super::output::Stdout;
use super::signals::Signals;
use crate::sample::Task;
use scxprof_base::columns::{fitted, wrapped, Column};
use scxprof_trace::analyze::{By, Subcells};
use scxprof_trace::difference::{compare, Line, Metric, TraceDifference, Verdict, Windowed};

const EXAMPLES: &str = "\
Examples:
  scxprof trace diff monday.pb friday.pb         threads by their names: latency, waits, time, moves
  scxprof trace diff before.tar.gz after.tar.gz --by subcell --config cells.json
  scxprof trace diff a.pb b.pb --json | jq '.lines[] | select(.verdict == \"slower\")'
A number is called changed if 0 is outside of the 99 % interval of its change (a bootstrap over windows of both traces).
Exit codes:
  0  the result was written
  1  a trace has no scheduling events, or the result could not be written
  2  wrong usage, also a file that cannot be opened or is no trace
  4  the result was written, but a part of a trace could not be read";

/// Print what got slower from one trace to another, with intervals
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_args(text("json", "Print JSON (docs/traces.md has the fields)")))]
pub(super) struct DiffArgs {
    /// A trace, a profile or a perf.data: before
    #[arg(help_heading = INPUT)]
    a: PathBuf,
    /// The same: after
    #[arg(help_heading = INPUT)]
    b: PathBuf,
    /// What is compared
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Group::Name, help_heading = RESULT)]
    by: Group,
    /// The configuration whose subcells --by subcell means; of threads their names alone count, as traces have no cgroups
    #[arg(long, value_name = "FILE", help_heading = RESULT)]
    config: Option<PathBuf>,
    /// Print what did not change too
    #[arg(long, help_heading = RESULT)]
    all: bool,
    /// The most lines to print; 0 for all
    #[arg(long, value_name = "N", default_value_t = 40, help_heading = RESULT)]
    limit: usize,
    #[command(flatten)]
    result: ResultArgs,
}

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Group {
    /// All threads of a name
    Name,
    /// Each layer of scx_layered, as wprof says it
    Layer,
    /// Each cell and subcell of --config
    Subcell,
}

/// Runs `scxprof trace diff`.
pub(super) fn run(args: &DiffArgs, stdout: Stdout) -> Result<(), Failure> {
    let placement = input::given_configuration("--config", args.config.as_deref())?;
    if placement.is_some() != (args.by == Group::Subcell) {
        return Err(Failure::Usage(anyhow!(
            "--by subcell and --config belong together: the configuration has the subcells"
        )));
    }
    input::say_unhinted("--config", placement.as_ref());
    let subcells =
        placement.map(|placement| Subcells(Arc::new(move |comm: &[u8]| placement.name_of(&Task::new(b"", comm)))));
    let by = match args.by {
        Group::Name => By::Name,
        Group::Layer => By::Layer,
        Group::Subcell => By::Subcell,
    };
    let output = args.result.file.open(stdout)?;
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let mut ends = Ends::default();
    let mut read = |path: &Path| -> Result<Windowed, Failure> {
        let windowed = RefCell::new(Windowed::new(by, subcells.clone()));
        let observed = observe::each_event(path, &signals, &mut |event, _, _, _| {
            windowed.borrow_mut().take(event);
            Ok(ControlFlow::Continue(()))
        })?;
        for loss in &observed.losses {
            say!("note: {}: {loss}", path.display());
        }
        if observed.info.cpus_seen.is_empty() {
            return Err(Failure::NoResult(anyhow!("{} has no scheduling events", path.display())));
        }
        ends.note(Step::Damage, observed.check());
        Ok(windowed.into_inner())
    };
    let (a, b) = (read(&args.a)?, read(&args.b)?);
    let found = compare(a, b);
    let text = args.result.format().render(|| format::json(&found), || table(args, &found, output.width()))?;
    output.write(text.as_bytes(), true).map_err(Failure::NoResult)?;
    ends.end()
}

/// How columns give way.
const COLUMNS: [Column; 7] = [
    Column::name(0),
    Column::name(1),
    Column::number(2),
    Column::number(2),
    Column::number(1),
    Column::name(3),
    Column::name(0),
];

fn is_changed(line: &Line) -> bool {
    !matches!(line.verdict, Verdict::NoChange | Verdict::TooFew)
}

fn table(args: &DiffArgs, found: &TraceDifference, width: Option<usize>) -> String {
    let head = [found.by.name().to_uppercase(), "WHAT".into(), "A".into(), "B".into(), "CHANGE".into()];
    let mut rows = vec![head.into_iter().chain(["99% INTERVAL".to_owned(), "IS".to_owned()]).collect::<Vec<_>>()];
    let shown: Vec<&Line> = found.lines.iter().filter(|line| args.all || is_changed(line)).collect();
    let limit = if args.limit == 0 { usize::MAX } else { args.limit };
    for line in shown.iter().take(limit) {
        let percent = |part: f64| format!("{:+.1}%", part * 100.0);
        let interval =
            line.interval.map_or("-".to_owned(), |(low, high)| format!("{} to {}", percent(low), percent(high)));
        rows.push(vec![
            line.group.clone(),
            what(line.metric).to_owned(),
            number(line.metric, line.a),
            number(line.metric, line.b),
            line.change.map_or("-".to_owned(), percent),
            interval,
            line.verdict.text().to_owned(),
        ]);
    }
    let mut text = String::new();
    if rows.len() > 1 {
        text.push_str(&fitted(&rows, &COLUMNS, width));
        text.push('\n');
    }
    let count = |verdict| found.lines.iter().filter(|line| line.verdict == verdict).count();
    let changed = found.lines.iter().filter(|line| is_changed(line)).count();
    let (same, few) = (count(Verdict::NoChange), count(Verdict::TooFew));
    let _ = writeln!(
        text,
        "{changed} of {} numbers changed, {same} did not, and {few} have too little data{}",
        found.lines.len(),
        if args.all { "" } else { " (--all prints them)" }
    );
    if shown.len() > limit {
        let _ = writeln!(text, "{} lines are left out (--limit 0 prints all)", shown.len() - limit);
    }
    let [a, b] = found.method.windows;
    let _ = writeln!(
        text,
        "Intervals: bootstrap over {a} windows of A and {b} of B, {} draws. About 1 of 100 unchanged numbers is called changed.",
        found.method.draws
    );
    wrapped(&text, width)
}

/// A number with its unit.
fn what(metric: Metric) -> &'static str {
    match metric {
        Metric::WakeupLatency => "latency (us)",
        Metric::WakeupLatencyP99 => "latency p99 (us)",
        Metric::Waiting => "waiting (ms/s)",
        Metric::Running => "running (ms/s)",
        Metric::Migrations => "migrations/s",
    }
}

fn number(metric: Metric, value: Option<f64>) -> String {
    let scale = match metric {
        Metric::WakeupLatency | Metric::WakeupLatencyP99 => 1e3,
        Metric::Waiting | Metric::Running => 1e6,
        Metric::Migrations => 1.0,
    };
    value.map_or("-".to_owned(), |value| format!("{:.3}", value / scale))
}
