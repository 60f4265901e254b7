//! `scxprof trace events`: the events of a trace in order of time, as lines.

use std::fmt::Write as _;
use std::io::{Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::{anyhow, Context};
use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};
use tempfile::SpooledTempFile;

use super::args::{text, ResultArgs, INPUT, RESULT};
use super::failure::Failure;
use super::format::Format;
use super::observe;
use super::output::Stdout;
use super::selection::{Selected, Selection, SelectionArgs};
use super::signals::Signals;
use scxprof_base::escape;
use scxprof_trace::{Event, Names, TraceEvent, TraceThreads, Tracks};

/// Bytes of lines that are kept in memory before they go to a temporary file.
const IN_MEMORY: usize = 8 << 20;

const EXAMPLES: &str = "\
Examples:
  scxprof trace events trace.pb --limit 20       the first events
  scxprof trace events trace.pb --type 'sched_*' --comm '^web' --from 1.5 --to 1.6
  scxprof trace events trace.pb --type sched_waking --tid 4711 --json | jq .args
Times are seconds since the first event, as --from and --to mean them; JSON has those of the trace's clock too.
Exit codes:
  0  events were written
  1  no event matches, or the result could not be written
  2  wrong usage, also a file that cannot be opened or is no trace
  4  events were written, but a part of the trace could not be read";

/// Print the events of a trace or a profile, in order of time
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_args(text("json", "Print JSON, one event a line (docs/traces.md has the fields)")))]
pub(super) struct EventsArgs {
    /// A trace in Perfetto's format or the JSON lines of wprof, compressed or not, a profile or a perf.data
    #[arg(help_heading = INPUT)]
    file: PathBuf,
    /// The most events to print; 0 for all
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = RESULT)]
    limit: u64,
    #[command(flatten)]
    result: ResultArgs,
    #[command(flatten)]
    selection: SelectionArgs,
}

/// Lines on their way to the output, escaped for a terminal.
pub(super) struct Lines {
    text: SpooledTempFile,
    pub(super) count: u64,
}

impl Lines {
    pub(super) fn new() -> Self {
        Self { text: SpooledTempFile::new(IN_MEMORY), count: 0 }
    }

    pub(super) fn push(&mut self, line: &str, format: Format) -> Result<(), Failure> {
        let line = if format == Format::Json { escape::json(line.to_owned()) } else { escape::lines(line) };
        self.count += 1;
        let written = self.text.write_all(line.as_bytes()).and_then(|()| self.text.write_all(b"\n"));
        written.context("cannot keep the lines in a temporary file").map_err(Failure::NoResult)
    }

    pub(super) fn finish(self, output: super::output::Output) -> Result<(), Failure> {
        let mut text = self.text;
        text.seek(SeekFrom::Start(0)).context("cannot read the lines").map_err(Failure::NoResult)?;
        output.copy(&mut text).map_err(Failure::NoResult)
    }
}

/// Runs `scxprof trace events`.
pub(super) fn run(args: &EventsArgs, stdout: Stdout) -> Result<(), Failure> {
    let mut selection = Selection::new(&args.selection)?;
    let output = args.result.file.open(stdout)?;
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let format = args.result.format();
    let mut lines = Lines::new();
    let observed = observe::each_event(&args.file, &signals, &mut |event, names, threads, tracks| {
        match selection.keeps(event, names, threads) {
            Selected::No => return Ok(ControlFlow::Continue(())),
            Selected::Past => return Ok(ControlFlow::Break(())),
            Selected::Yes => {}
        }
        let line = Line { event, since: selection.since(event.time()), names, threads, tracks };
        lines.push(&if format == Format::Json { line.json() } else { line.text() }, format)?;
        let is_full = args.limit != 0 && lines.count >= args.limit;
        Ok(if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    if lines.count == 0 {
        let why = selection.nothing().unwrap_or_else(|| "there are no events".to_owned());
        return Err(Failure::NoResult(anyhow!("{}: {why}", args.file.display())));
    }
    lines.finish(output)?;
    for loss in &observed.losses {
        say!("note: {loss}");
    }
    observed.check()
}

/// An event with what it refers to.
struct Line<'a> {
    event: &'a Event,
    since: u64,
    names: &'a Names,
    threads: &'a TraceThreads,
    tracks: &'a Tracks,
}

impl Line<'_> {
    /// The name of the thread that ran.
    fn comm(&self) -> Option<String> {
        let (own, _) = self.event.thread();
        if own == 0 {
            return Some("swapper".to_owned());
        }
        let mut said = None;
        self.event.each_thread(|tid, comm| {
            if tid == own && said.is_none() {
                said = comm.copied();
            }
        });
        let comm = said.or_else(|| self.threads.get(own).map(|thread| thread.comm));
        comm.filter(|comm| !comm.is_empty()).map(|comm| comm.to_string())
    }

    fn text(&self) -> String {
        let seconds = format!("{}.{:09}", self.since / 1_000_000_000, self.since % 1_000_000_000);
        let cpu = id(self.event.cpu()).map_or("---".to_owned(), |cpu| format!("{cpu:03}"));
        let (tid, _) = self.event.thread();
        let thread = match (self.comm(), id(tid)) {
            (Some(comm), Some(tid)) => format!("{comm}/{tid}"),
            (None, Some(tid)) => tid.to_string(),
            _ => "-".to_owned(),
        };
        let mut line = format!("{seconds:>15} [{cpu}] {thread:<22} {}", self.event.kind(self.names));
        for (name, value) in self.event.said(self.names, self.tracks).args {
            let _ = match value {
                Value::Null => continue,
                Value::String(text) if text.is_empty() => continue,
                Value::String(text) => write!(line, " {name}={}", quoted(&text)),
                value => write!(line, " {name}={value}"),
            };
        }
        line
    }

    fn json(&self) -> String {
        let (tid, pid) = self.event.thread();
        let said = self.event.said(self.names, self.tracks).args;
        let line = JsonLine {
            time_ns: self.event.time(),
            since_ns: self.since,
            cpu: id(self.event.cpu()),
            pid: id(pid),
            tid: id(tid),
            comm: self.comm(),
            kind: &self.event.kind(self.names),
            args: said.into_iter().map(|(name, value)| (name.into_owned(), value)).collect(),
        };
        // Numbers and text: this cannot fail.
        serde_json::to_string(&line).unwrap_or_default()
    }
}

/// A line of JSON.
#[derive(Serialize)]
struct JsonLine<'a> {
    time_ns: u64,
    since_ns: u64,
    cpu: Option<u32>,
    pid: Option<u32>,
    tid: Option<u32>,
    comm: Option<String>,
    #[serde(rename = "type")]
    kind: &'a str,
    args: Map<String, Value>,
}

/// A number that is known.
fn id(id: u32) -> Option<u32> {
    (id != TraceEvent::UNKNOWN).then_some(id)
}

/// A value as one word.
fn quoted(text: &str) -> String {
    if text.contains([' ', '"', '=']) {
        format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
    } else {
        text.to_owned()
    }
}
