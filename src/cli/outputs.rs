//! The destinations of the results: a different one for each.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{anyhow, Context};
use clap::Args;

use super::evidence::EvidenceTo;
use super::failure::{Done, Failure};
use super::output::{is_stdout, Output, Readers, Stdout};
use crate::report::{self, html, Report, RunFacts};
use crate::session::{Analysis, Outcome};

/// The destinations of results.
#[derive(Debug, Args)]
#[command(next_help_heading = "Result")]
pub(super) struct OutputArgs {
    /// Write the configuration to FILE instead of stdout
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the evidence for the decision to FILE as JSON (schema: docs/report.md); only its owner can read a new FILE
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the report to FILE as a page for a browser, without a server or network; only its owner can read a new FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the sharing between subcells to FILE as CSV (a, b, misses)
    #[arg(long, value_name = "FILE")]
    sharing_csv: Option<PathBuf>,
    /// Write figures of the run to FILE for Prometheus (the textfile collector of node_exporter reads DIR/*.prom)
    #[arg(long, value_name = "FILE")]
    prometheus: Option<PathBuf>,
}

/// The destinations, opened.
#[derive(Debug)]
pub(super) struct Outputs {
    /// The destination of the configuration, or of the result that replaces it, until it is written.
    result: Option<Output>,
    report: Option<Output>,
    html: Option<Output>,
    sharing_csv: Option<Output>,
    prometheus: Option<Output>,
    /// The destination of the evidence for a fleet.
    evidence: Option<EvidenceTo>,
    /// True if no result goes to stdout.
    is_stdout_free: bool,
}

impl OutputArgs {
    /// Opens all destinations; a closed stdout is an error.
    pub(super) fn open(&self, stdout: Stdout) -> Result<Outputs, Failure> {
        self.check_stdout(stdout)?;
        let others = [
            ("--report", &self.report, Readers::Owner),
            ("--html", &self.html, Readers::Owner),
            ("--sharing-csv", &self.sharing_csv, Readers::All),
            ("--prometheus", &self.prometheus, Readers::All),
        ];
        let takes_stdout = |path: &Option<PathBuf>| path.as_deref().is_some_and(|path| is_stdout(Some(path)));
        let mut to_stdout: Vec<&str> = others.iter().filter(|it| takes_stdout(it.1)).map(|it| it.0).collect();
        if let Some(option) = to_stdout.pop() {
            if self.to_stdout() {
                return Err(Failure::Usage(anyhow!(
                    "{option} - and the result would both go to stdout; name a file for one of them"
                )));
            }
            if let Some(other) = to_stdout.pop() {
                return Err(Failure::Usage(anyhow!(
                    "{other} - and {option} - would both go to stdout; name a file for one of them"
                )));
            }
        }
        let result = Output::open(self.output.as_deref(), Readers::All).map_err(Failure::Usage)?;
        let mut opened: Vec<(&str, Option<Output>)> = vec![("-o", Some(result))];
        for (option, path, readers) in others {
            let output = path.as_ref().map(|path| Output::open(Some(path), readers)).transpose();
            let output = output.map_err(Failure::Usage)?;
            if let (Some(output), Some(path)) = (&output, path) {
                let is_same = |it: &&(&str, Option<Output>)| it.1.as_ref().is_some_and(|it| it.is_same_file(output));
                if let Some((other, _)) = opened.iter().find(is_same) {
                    return Err(Failure::Usage(anyhow!("{other} and {option} both name {}", path.display())));
                }
            }
            opened.push((option, output));
        }
        let mut opened = opened.into_iter().map(|(_, output)| output);
        let mut next = || opened.next().flatten();
        let is_stdout_free = !self.to_stdout() && !others.iter().any(|it| takes_stdout(it.1));
        Ok(Outputs {
            result: next(),
            report: next(),
            html: next(),
            sharing_csv: next(),
            prometheus: next(),
            evidence: None,
            is_stdout_free,
        })
    }

    /// Reports a closed stdout before sampling.
    pub(super) fn check_stdout(&self, stdout: Stdout) -> Result<(), Failure> {
        stdout.check(self.output.as_deref())
    }

    /// True without `-o`.
    pub(super) fn are_unnamed(&self) -> bool {
        self.output.is_none()
    }

    pub(super) fn to_stdout(&self) -> bool {
        is_stdout(self.output.as_deref())
    }

    /// True if one of the files is made of the report.
    pub(super) fn have_report(&self) -> bool {
        self.report.is_some() || self.has_page() || self.sharing_csv.is_some() || self.prometheus.is_some()
    }

    /// True if the page is written, which shows all that there is.
    pub(super) fn has_page(&self) -> bool {
        self.html.is_some()
    }
}

/// Refuses an output that another option names too.
pub(super) fn check_distinct<'a>(
    (option, output): (&str, &Output),
    mut others: impl Iterator<Item = (&'a str, &'a Output)>,
) -> Result<(), Failure> {
    match others.find(|(_, other)| other.is_same_file(output)) {
        Some((other, _)) => Err(Failure::Usage(anyhow!("{option} names the same file as {other}"))),
        None => Ok(()),
    }
}

impl Outputs {
    /// True if one of them is made of the report.
    pub(super) fn need_report(&self) -> bool {
        self.need_whole_report() || self.sharing_csv.is_some() || self.prometheus.is_some()
    }

    /// True if one of them has all of the report.
    pub(super) fn need_whole_report(&self) -> bool {
        self.report.is_some() || self.html.is_some()
    }

    /// Writes what is made of the report. If one cannot be written, the others still are.
    pub(super) fn write_report(self, report: &Report, outcome: &Outcome) -> Done {
        let Self { report: json, html, sharing_csv: csv, prometheus, is_stdout_free: free, .. } = self;
        let mut done = Ok(());
        if let Some(output) = json {
            let json = report.to_json().context("cannot write the report").map_err(Failure::NoResult)?;
            done = done.and(output.write(json.as_bytes(), free));
        }
        if let Some(output) = html {
            let page = html::page(report).context("cannot write the page").map_err(Failure::NoResult)?;
            done = done.and(output.write(page.as_bytes(), false));
        }
        if let Some(output) = csv {
            done = done.and(output.write(report::sharing_csv(report).as_bytes(), false));
        }
        if let Some(output) = prometheus {
            let loss = outcome.loss;
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let facts = RunFacts {
                time: time.as_secs_f64(),
                seconds: outcome.duration.as_secs_f64(),
                all_samples: loss.total(),
                lost: vec![
                    ("ring_full", loss.ring_full),
                    ("hardware", loss.hardware),
                    ("channel_full", loss.channel_full),
                    ("malformed", loss.malformed),
                    ("abandoned", loss.abandoned),
                ],
            };
            done = done.and(output.write(report::prometheus(report, &facts).as_bytes(), false));
        }
        done.map_err(Failure::NoResult)
    }

    /// Adds that of the evidence, which must be another file than the others.
    pub(super) fn add_evidence(&mut self, to: Option<EvidenceTo>) -> Result<(), Failure> {
        if let Some(to) = &to {
            let others = [&self.report, &self.html, &self.sharing_csv, &self.prometheus];
            let others = others.into_iter().flatten().chain(&self.result);
            check_distinct(("--evidence", &to.output), others.map(|output| ("another option", output)))?;
        }
        self.evidence = to;
        Ok(())
    }

    /// Writes the evidence, if it is wanted.
    pub(super) fn write_evidence(&mut self, found: &Analysis) -> Done {
        self.evidence.take().map_or(Ok(()), |to| to.write(found))
    }

    /// The columns of text for people where the result goes.
    pub(super) fn width(&self) -> Option<usize> {
        self.result.as_ref().and_then(Output::width)
    }

    /// Writes the result. There is one.
    pub(super) fn write_result(&mut self, bytes: &[u8]) -> Done {
        self.result.take().map_or(Ok(()), |output| output.write(bytes, true).map_err(Failure::NoResult))
    }
}
