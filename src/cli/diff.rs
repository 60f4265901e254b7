//! `scxprof diff`: what two decisions differ in.

use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::Args;
use serde::Deserialize;

use super::args::{text, MemoryArgs, ResultArgs, INPUT};
use super::decision::{DecisionArgs, Made};
use super::failure::Failure;
use super::input::{self, Damage};
use super::output::Stdout;
use super::signals::Signals;
use crate::host::open;
use crate::report::Difference;
use crate::report::{Report, VERSION};
use crate::session::Error;
use scxprof_base::columns::wrapped;

const EXAMPLES: &str = "\
Examples:
  scxprof diff monday.tar.gz friday.tar.gz       two profiles of `record`
  scxprof diff before.json after.json --json     two files of --report
Exit codes:
  0  the decisions are the same: cells, subcells, what they match, where threads of the same name go
  1  they differ
  2  trouble: a file cannot be read or says nothing, or the result cannot be written";

/// Bytes of a report that are read.
const MAX_REPORT: u64 = 256 << 20;

/// Print what changed between two decisions
#[derive(Debug, Args)]
#[command(
    after_help = EXAMPLES,
    mut_args(text("memory", "Memory for the sketch, queues and mappings of each profile")),
    mut_args(text("json", "Print JSON (docs/report.md has the schema)")),
    mut_args(text("output", "Write the difference to FILE instead of stdout")),
)]
pub(super) struct DiffArgs {
    /// A profile as `extract` reads it, a report (JSON of --report), or a configuration: before
    #[arg(help_heading = INPUT)]
    a: PathBuf,
    /// The same: after
    #[arg(help_heading = INPUT)]
    b: PathBuf,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    result: ResultArgs,
    #[command(flatten)]
    decision: DecisionArgs,
}

/// Compares; as with diff(1), 1 means that they differ and 2 that they could not be compared.
pub(super) fn run(args: &DiffArgs, stdout: Stdout) -> Result<(), Failure> {
    match compare(args, stdout) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::Command(1)),
        Err(
            Failure::NoResult(error)
            | Failure::Usage(error)
            | Failure::Unsupported(error)
            | Failure::Loss(error)
            | Failure::DoesNotFit(error),
        ) => Err(Failure::Usage(error)),
        Err(Failure::Command(_)) => Err(Failure::Command(2)),
    }
}

/// Prints the difference; true if there is none.
fn compare(args: &DiffArgs, stdout: Stdout) -> Result<bool, Failure> {
    let output = args.result.file.open(stdout)?;
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let before = load(&args.a, args, &signals)?;
    let after = load(&args.b, args, &signals)?;
    let difference = Difference::new(&before, &after);
    let text = args
        .result
        .format()
        .render(|| Ok(difference.to_json()?), || wrapped(&difference.to_string(), output.width()))?;
    output.write(text.as_bytes(), true).map_err(Failure::NoResult)?;
    Ok(difference.same)
}

/// The report that a file is, or that is made of a profile.
fn load(path: &Path, args: &DiffArgs, signals: &Signals) -> Result<Report, Failure> {
    if let Some(report) = read_report(path)? {
        return Ok(report);
    }
    if let Some(report) = read_configuration(path)? {
        return Ok(report);
    }
    let of_file = |error: anyhow::Error| Failure::NoResult(error.context(path.display().to_string()));
    let mut profile = input::profile(path, &|| signals.seen())?;
    let builder = input::session(&mut profile, args.memory.bytes());
    let session = builder.analysis(args.decision.analysis(Made::Report)).start().map_err(|error| match error {
        Error::CellSpecs(error) => input::wrong_cells(&error),
        error => of_file(error.into()),
    })?;
    let sampled = session.run_until(|_| signals.seen());
    if signals.seen() {
        return Err(input::interrupted());
    }
    if let Some(damage) = Damage::of_profile(&profile).list() {
        say!("note: {}: the profile is damaged: {damage}; what could be read was used", path.display());
    }
    if let Some(lines) = profile.unreadable_lines() {
        say!("note: {}: {}", path.display(), lines.sentence);
    }
    let found = sampled.decide().map_err(|error| match error {
        Error::NoSamples { .. } => of_file(anyhow!("no usable samples (scxprof extract -f says why)")),
        error => of_file(error.into()),
    })?;
    found.report().map_err(|error| of_file(error.into()))
}

/// A file that holds a configuration; `None` for other files.
fn read_configuration(path: &Path) -> Result<Option<Report>, Failure> {
    let Some(json) = input::list_of_named(path) else { return Ok(None) };
    let placement = input::configuration("configuration", path)?;
    Ok(Some(Report::of_configuration(&placement, &json)))
}

/// A file that holds a report; `None` for other files, JSON Lines included.
fn read_report(path: &Path) -> Result<Option<Report>, Failure> {
    let Ok(file) = open::regular(path) else { return Ok(None) };
    let mut file = BufReader::new(file.take(MAX_REPORT));
    let mut first = [0; 2];
    if file.read_exact(&mut first).is_err() || first[0] != b'{' {
        return Ok(None);
    }
    let text = first.chain(file);
    match Report::deserialize(&mut serde_json::Deserializer::from_reader(text)) {
        Ok(report) if report.version == VERSION => Ok(Some(report)),
        Ok(report) => Err(Failure::Usage(anyhow!(
            "{}: a report of version {}, and this scxprof knows version {VERSION}: make it again of its profile",
            path.display(),
            report.version
        ))),
        // A line of an access is an object on one line.
        Err(_) if first[1] != b'\n' => Ok(None),
        Err(error) => Err(Failure::Usage(anyhow!("{}: not a whole report: {error}", path.display()))),
    }
}
