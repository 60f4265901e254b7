//! `scxprof trace`: traces of other tools in Perfetto's format.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::anyhow;
use clap::{Args, Subcommand};

use super::analyze::{self, AnalyzeArgs};
use super::args::{text, ResultArgs, INPUT};
use super::events::{self, EventsArgs};
use super::failure::Failure;
use super::format;
use super::observe::{observe, Observed};
use super::output::Stdout;
use super::query::{self, QueryArgs};
use super::signals::Signals;
use super::timeline::{self, TimelineArgs};
use super::trace_diff::{self, DiffArgs};
use scxprof_base::columns::{fitted, wrapped, Column};
use scxprof_trace::Count;

const EXAMPLES: &str = "\
Examples:
  scxprof trace info trace.pb                    what recorded it, its events, and what was lost
  scxprof trace info trace.pftrace.gz --json | jq '.events[0]'
  scxprof trace analyze trace.pb                 CPU use, latencies, interrupts, devices
  scxprof trace events trace.pb --type sched_waking --comm web    its events, in order of time
  scxprof trace timeline trace.pb --tid 4711     what a thread did, and who woke it
  scxprof trace diff before.pb after.pb          what got slower, and what may be chance
  scxprof sched -f trace.pb --by thread          run time, waits and wakeups of its threads";

const INFO_EXAMPLES: &str = "\
Examples:
  scxprof trace info trace.pb                    a trace of wprof, perfetto, scxtop, systing or Chrome
  scxprof trace info perf.data                   what perf recorded
  scxprof trace info trace.pftrace.gz --json | jq '.lost'
Exit codes:
  0  the result was written
  1  the trace has no events, or the result could not be written
  2  wrong usage, also a file that cannot be opened or is no trace
  4  the result was written, but a part of the trace could not be read";

/// Look into a trace of wprof, perfetto, scxtop or systing, or a profile
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, subcommand_help_heading = "COMMANDS", disable_help_subcommand = true)]
pub(super) struct TraceArgs {
    #[command(subcommand)]
    command: TraceCommand,
}

#[derive(Debug, Subcommand)]
enum TraceCommand {
    Info(InfoArgs),
    Analyze(AnalyzeArgs),
    Events(EventsArgs),
    Timeline(TimelineArgs),
    Diff(DiffArgs),
    // Not offered, as scxprof runs no query; it prints the line for DuckDB.
    #[command(hide = true)]
    Query(QueryArgs),
}

/// Print what a trace contains: who recorded it, its events, threads and clocks, and what was lost
#[derive(Debug, Args)]
#[command(after_help = INFO_EXAMPLES, mut_args(text("json", "Print JSON (docs/traces.md has the fields)")))]
struct InfoArgs {
    /// A trace in Perfetto's format or the JSON lines of wprof, compressed or not, a profile or a perf.data
    #[arg(help_heading = INPUT)]
    file: PathBuf,
    #[command(flatten)]
    result: ResultArgs,
}

/// Runs `scxprof trace`.
pub(super) fn run(args: &TraceArgs, stdout: Stdout) -> Result<(), Failure> {
    match &args.command {
        TraceCommand::Info(args) => info(args, stdout),
        TraceCommand::Analyze(args) => analyze::run(args, stdout),
        TraceCommand::Events(args) => events::run(args, stdout),
        TraceCommand::Timeline(args) => timeline::run(args, stdout),
        TraceCommand::Diff(args) => trace_diff::run(args, stdout),
        TraceCommand::Query(args) => query::run(args, stdout),
    }
}

fn info(args: &InfoArgs, stdout: Stdout) -> Result<(), Failure> {
    let output = args.result.file.open(stdout)?;
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let observed = observe(&args.file, &signals, |_| None)?;
    let text = args.result.format().render(|| format::json(&observed.info), || table(&observed, output.width()))?;
    output.write(text.as_bytes(), true).map_err(Failure::NoResult)?;
    if !observed.has_events {
        return Err(Failure::NoResult(anyhow!("{} has no events", args.file.display())));
    }
    observed.check()
}

/// How columns give way.
const COUNTS: [Column; 2] = [Column::name(0), Column::number(0)];
const LACKS: [Column; 2] = [Column::name(0), Column::name(0)];

fn table(observed: &Observed, width: Option<usize>) -> String {
    let info = &observed.info;
    let seconds = |ns: u64| format!("{:.9}", ns as f64 / 1e9);
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let clocks = if info.clocks.is_empty() { String::new() } else { format!(" (from {})", info.clocks.join(", ")) };
    let begin = info.begin_unix.map_or("-".to_owned(), |begin| format!("{begin:.6} s since 1970"));
    let mut rows = vec![
        vec!["source".to_owned(), info.source.name().to_owned()],
        vec!["tool".to_owned(), or_dash(&info.tool)],
        vec!["kernel".to_owned(), or_dash(&info.kernel)],
        vec!["CPUs".to_owned(), format!("{}, {} with scheduling events", info.cpus, info.cpus_seen.len())],
        vec!["duration (s)".to_owned(), seconds(info.duration_ns)],
        vec!["first event (s)".to_owned(), format!("{} of {}{clocks}", seconds(info.first_ns), or_dash(&info.clock))],
        vec!["began".to_owned(), begin],
        vec!["threads".to_owned(), format!("{} of {} processes", info.threads, info.processes)],
    ];
    if observed.is_trace {
        rows.push(vec!["tracks".to_owned(), info.tracks.to_string()]);
        rows.push(vec!["call stacks".to_owned(), info.stacks.to_string()]);
    }
    rows.extend(info.attributes.iter().map(|(key, value)| vec![key.clone(), value.clone()]));
    let left = rows.iter().filter_map(|row| row.first()).map(String::len).max().unwrap_or(0);
    let mut text = String::new();
    for row in &rows {
        if let [key, value] = row.as_slice() {
            let _ = writeln!(text, "{key:left$}  {value}");
        }
    }
    for (head, counts) in [
        ("EVENT", &info.events),
        ("EVENT WITHOUT A TYPE", &info.unknown),
        (if observed.is_trace { "PACKETS ABOUT" } else { "RECORD" }, &info.packets),
    ] {
        if counts.is_empty() {
            continue;
        }
        let mut rows = vec![vec![head.to_owned(), "COUNT".to_owned()]];
        rows.extend(counts.iter().map(|Count { name, count }| vec![name.clone(), count.to_string()]));
        let _ = write!(text, "\n{}", fitted(&rows, &COUNTS, width));
        if !text.ends_with('\n') {
            text.push('\n');
        }
    }
    let (can_run, others): (Vec<_>, Vec<_>) = info.analysers.iter().partition(|analyser| analyser.lacks.is_empty());
    let names: Vec<&str> = can_run.iter().map(|analyser| analyser.id.name()).collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let _ = writeln!(text, "\nAnalysers that can run: {names}");
    let mut rows = vec![vec!["ANALYSER THAT CANNOT".to_owned(), "IT NEEDS".to_owned()]];
    rows.extend(others.iter().map(|other| vec![other.id.name().to_owned(), other.lacks.join("; ")]));
    let _ = write!(text, "{}", fitted(&rows, &LACKS, width));
    if !observed.losses.is_empty() {
        text.push('\n');
    }
    for line in &observed.losses {
        let _ = writeln!(text, "! {line}");
    }
    wrapped(&text, width)
}
