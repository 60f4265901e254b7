//! `scxprof sched --windows`: the CPUs in use in windows of time.

use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;

use anyhow::{anyhow, Context};
use clap::Args;
use tempfile::SpooledTempFile;

use super::args::RESULT;
use super::failure::Failure;
use super::output::{Output, Readers};
use crate::resolve::Cgroups;
use crate::sample::sched::SchedEvent;
use crate::sample::Sample;
use crate::session::Sink;
use scxprof_base::columns::{fitted, Column};
use scxprof_sched::{csv_header, csv_row, Category, NamedWindow, Summary, Window, WindowOptions, Windows};

/// Bytes of lines that are kept in memory before they go to a temporary file.
const IN_MEMORY: usize = 8 << 20;

/// What is counted in windows.
#[derive(Debug, Args)]
pub(super) struct WindowArgs {
    /// Print the CPUs in use in windows of this width, such as 1ms, instead of --by
    #[arg(long, value_name = "WIDTH", value_parser = width, help_heading = RESULT)]
    pub(super) windows: Option<u64>,
    /// Count threads of this name apart: NAME=COMM or COMM, with * and ?, and @hint=N for those with a hint. A thread belongs to the
    /// first that matches
    #[arg(long, value_name = "CATEGORY", value_parser = category, requires = "windows", help_heading = RESULT)]
    category: Vec<Category>,
    /// Write each window to FILE as a line of CSV
    #[arg(long, value_name = "FILE", requires = "windows", help_heading = RESULT)]
    csv: Option<PathBuf>,
    /// Write each window to FILE as a line of JSON
    #[arg(long, value_name = "FILE", requires = "windows", help_heading = RESULT)]
    jsonl: Option<PathBuf>,
}

fn category(text: &str) -> Result<Category, String> {
    Category::parse(text).map_err(|error| error.to_string())
}

/// A time on the command line, in ns.
fn width(text: &str) -> Result<u64, String> {
    const MAX: f64 = 3600e9;
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err("must be a time with its unit, such as 100us, 1ms or 0.5s".to_owned()),
    };
    let ns = number.parse::<f64>().map_err(|_| "not a number".to_owned())? * unit;
    // Shorter ones are no windows: an event takes a microsecond.
    if (1e3..=MAX).contains(&ns) {
        Ok(ns.round() as u64)
    } else {
        Err("must be from 1us to 3600s".to_owned())
    }
}

/// Lines of windows on their way to a file.
struct Lines {
    output: Output,
    text: SpooledTempFile,
    failed: Option<std::io::Error>,
}

impl Lines {
    fn open(path: Option<&PathBuf>) -> Result<Option<Self>, Failure> {
        let Some(path) = path else { return Ok(None) };
        if path == std::path::Path::new("-") {
            return Err(Failure::Usage(anyhow!("stdout has the summary: name a file for the windows")));
        }
        let output = Output::open(Some(path), Readers::All).map_err(Failure::Usage)?;
        Ok(Some(Self { output, text: SpooledTempFile::new(IN_MEMORY), failed: None }))
    }

    fn line(&mut self, line: &str) {
        if self.failed.is_none() {
            self.failed = self.text.write_all(line.as_bytes()).and_then(|()| self.text.write_all(b"\n")).err();
        }
    }

    fn finish(self) -> anyhow::Result<()> {
        let Self { output, mut text, failed } = self;
        if let Some(error) = failed {
            return Err(error).context("cannot keep the windows");
        }
        text.seek(SeekFrom::Start(0))?;
        output.copy(&mut text)
    }
}

/// Counts windows.
pub(super) struct WindowSink {
    windows: Windows,
    columns: Vec<String>,
    csv: Option<Lines>,
    jsonl: Option<Lines>,
}

impl WindowSink {
    /// `None` if no windows were asked for. `cpus` are those that are watched.
    pub(super) fn new(args: &WindowArgs, cpus: Vec<u32>) -> Result<Option<Self>, Failure> {
        let Some(width) = args.windows else { return Ok(None) };
        let windows = Windows::new(WindowOptions { width, categories: args.category.clone(), cpus });
        let columns = windows.columns().to_vec();
        let (mut csv, jsonl) = (Lines::open(args.csv.as_ref())?, Lines::open(args.jsonl.as_ref())?);
        if let (Some(csv), Some(jsonl)) = (&csv, &jsonl) {
            if csv.output.is_same_file(&jsonl.output) {
                return Err(Failure::Usage(anyhow!("--csv and --jsonl name the same file")));
            }
        }
        if let Some(csv) = &mut csv {
            csv.line(&csv_header(&columns));
        }
        Ok(Some(Self { windows, columns, csv, jsonl }))
    }

    /// Writes the files, and returns the summary.
    pub(super) fn finish(mut self) -> Result<Summary, Failure> {
        let Self { windows, columns, csv, jsonl } = &mut self;
        windows.finish(&mut |window| write(window, columns, csv, jsonl));
        let left_out = windows.left_out();
        if left_out > 0 {
            say!("note: {left_out} windows without any event are left out");
        }
        let summary = self.windows.summary();
        for lines in [self.csv, self.jsonl].into_iter().flatten() {
            lines.finish().map_err(Failure::NoResult)?;
        }
        Ok(summary)
    }
}

fn write(window: &Window, columns: &[String], csv: &mut Option<Lines>, jsonl: &mut Option<Lines>) {
    if let Some(csv) = csv {
        csv.line(&csv_row(window));
    }
    if let Some(jsonl) = jsonl {
        // Numbers and text: this cannot fail.
        jsonl.line(&serde_json::to_string(&NamedWindow { columns, window }).unwrap_or_default());
    }
}

impl Sink for WindowSink {
    fn sample(&mut self, _: &Sample, _: &mut Cgroups) {}

    fn samples(&mut self, _: &[Sample], _: &mut Cgroups) {}

    fn sched(&mut self, events: &[SchedEvent], _: &mut Cgroups) {
        let Self { windows, columns, csv, jsonl } = self;
        for event in events {
            windows.take(event, &mut |window| write(window, columns, csv, jsonl));
        }
    }

    fn measure(&self, tables: &mut scxprof_base::tables::Tables) {
        self.windows.measure(tables);
    }
}

/// How columns give way.
const COLUMNS: [Column; 6] =
    [Column::name(0), Column::number(0), Column::number(4), Column::number(3), Column::number(1), Column::number(2)];

/// The summary as a table.
pub(super) fn table(summary: &Summary, width: Option<usize>) -> String {
    let head = ["CPUS IN USE BY", "MEAN", "P50", "P95", "P99", "MAX"];
    let mut rows = vec![head.map(str::to_owned)];
    for column in &summary.columns {
        let number = |value: f64| format!("{value:.3}");
        rows.push([
            column.name.clone(),
            number(column.mean),
            number(column.p50),
            number(column.p95),
            number(column.p99),
            number(column.max),
        ]);
    }
    let of_each = summary.width as f64 / 1e6;
    format!("{}\n{} windows of {of_each} ms\n", fitted(&rows, &COLUMNS, width), summary.windows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_width_has_a_unit() {
        assert_eq!(width("1ms"), Ok(1_000_000));
        assert_eq!(width("0.5s"), Ok(500_000_000));
        assert_eq!(width("100us"), Ok(100_000));
        for wrong in ["1", "ms", "-1ms", "0ms", "10ns", "2h", "nan s", "1e9s", ""] {
            assert!(width(wrong).is_err(), "{wrong}");
        }
    }
}
