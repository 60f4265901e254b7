//! `scxprof trace timeline`: what a thread or a CPU did over time.

use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::{anyhow, Context};
use clap::Args;
use serde::Serialize;

use super::args::{text, ResultArgs, INPUT, RESULT};
use super::events::Lines;
use super::failure::Failure;
use super::format::Format;
use super::observe;
use super::output::Stdout;
use super::selection::{Selected, Selection, SelectionArgs};
use super::signals::Signals;
use scxprof_trace::timeline::{Span, Target, Timeline};

const EXAMPLES: &str = "\
Examples:
  scxprof trace timeline trace.pb --tid 4711     when the thread ran, waited and slept, and who woke it
  scxprof trace timeline trace.pb --cpu 3 --from 1.5 --to 1.6    what CPU 3 did in a tenth of a second
  scxprof trace timeline trace.pb --tid 4711 --json | jq 'select(.state == \"waiting\")'
Times are seconds since the first event, as --from and --to mean them.
Exit codes:
  0  the timeline was written
  1  the thread or CPU has no events, or the result could not be written
  2  wrong usage, also a file that cannot be opened or is no trace
  4  the timeline was written, but a part of the trace could not be read";

/// Print what a thread or a CPU did over time: state, CPU, duration, who woke it or took its CPU
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_args(text("json", "Print JSON, one span a line (docs/traces.md has the fields)")))]
pub(super) struct TimelineArgs {
    /// A trace in Perfetto's format or the JSON lines of wprof, compressed or not, a profile or a perf.data
    #[arg(help_heading = INPUT)]
    file: PathBuf,
    /// The most lines to print; 0 for all
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = RESULT)]
    limit: u64,
    #[command(flatten)]
    result: ResultArgs,
    #[command(flatten)]
    selection: SelectionArgs,
}

/// A line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    since_ns: u64,
    #[serde(flatten)]
    span: &'a Span,
}

/// Runs `scxprof trace timeline`.
pub(super) fn run(args: &TimelineArgs, stdout: Stdout) -> Result<(), Failure> {
    let target = args.selection.target()?;
    let mut selection = Selection::new(&args.selection.times())?;
    let output = args.result.file.open(stdout)?;
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let format = args.result.format();
    let mut lines = Lines::new();
    if format == Format::Text {
        lines.push(&head(target), format)?;
        lines.count = 0;
    }
    let mut timeline = Timeline::new(target);
    let mut ended = false;
    let push = |span: &Span, selection: &Selection, lines: &mut Lines| -> Result<bool, Failure> {
        if !selection.overlaps(span.begin_ns, span.begin_ns.saturating_add(span.ns)) {
            return Ok(true);
        }
        let since_ns = selection.since(span.begin_ns);
        let line = match format {
            Format::Json => serde_json::to_string(&Line { since_ns, span }).context("a bug in scxprof"),
            Format::Text => Ok(row(target, since_ns, span)),
        };
        lines.push(&line.map_err(Failure::NoResult)?, format)?;
        Ok(args.limit == 0 || lines.count < args.limit)
    };
    let observed = observe::each_event(&args.file, &signals, &mut |event, names, threads, _| {
        let is_past = selection.keeps(event, names, threads) == Selected::Past;
        for span in timeline.take(event) {
            if !push(&span, &selection, &mut lines)? {
                ended = true;
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(if is_past { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    if let Some(span) = timeline.finish().filter(|_| !ended) {
        push(&span, &selection, &mut lines)?;
    }
    if lines.count == 0 {
        let what = match target {
            Target::Thread(tid) => format!("thread {tid}"),
            Target::Cpu(cpu) => format!("CPU {cpu}"),
        };
        return Err(Failure::NoResult(anyhow!(
            "{}: {what} has no scheduling events{}; `scxprof trace events` prints which there are",
            args.file.display(),
            if selection.is_empty() { "" } else { " in that time" }
        )));
    }
    lines.finish(output)?;
    for loss in &observed.losses {
        say!("note: {loss}");
    }
    observed.check()
}

fn head(target: Target) -> String {
    match target {
        Target::Thread(_) => {
            format!("{:>15} {:>13} {:<9} {:>4}  WHY", "TIME(s)", "FOR(us)", "STATE", "CPU")
        }
        Target::Cpu(_) => format!("{:>15} {:>13} {:>13} {:<22} LEFT", "TIME(s)", "FOR(us)", "WAITED(us)", "THREAD"),
    }
}

fn row(target: Target, since: u64, span: &Span) -> String {
    let us = |ns: u64| format!("{}.{:03}", ns / 1000, ns % 1000);
    let seconds = format!("{}.{:09}", since / 1_000_000_000, since % 1_000_000_000);
    let open = if span.is_open { " (not ended)" } else { "" };
    let line = match target {
        Target::Thread(_) => {
            let cpu = span.cpu.map_or("-".to_owned(), |cpu| cpu.to_string());
            let by = span.by.map_or(String::new(), |by| format!(" by {}/{}", by.comm, by.tid));
            let why = match (span.why, span.end) {
                (Some(why), _) => format!("{why}{by}"),
                (None, Some(end)) => format!("left in {end}"),
                (None, None) => String::new(),
            };
            format!("{seconds:>15} {:>13} {:<9} {cpu:>4}  {why}{open}", us(span.ns), span.state.name())
        }
        Target::Cpu(_) => {
            let thread = span
                .thread
                .map_or_else(|| span.state.name().to_owned(), |thread| format!("{}/{}", thread.comm, thread.tid));
            let waited = span.waited_ns.map_or("-".to_owned(), us);
            format!("{seconds:>15} {:>13} {waited:>13} {thread:<22} {}{open}", us(span.ns), span.end.unwrap_or("-"))
        }
    };
    line.trim_end().to_owned()
}
