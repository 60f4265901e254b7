//! `scxprof merge`: one configuration for many hosts, from their evidence.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{anyhow, Context};
use clap::{Args, ValueEnum};

use super::args::{name_of, text, MemoryArgs, MinShareArgs, TargetArgs, TargetCpusArgs, INPUT, MAX_LLCS, RESULT};
use super::failure::Failure;
use super::output::{Output, Readers, Stdout};
use super::outputs::check_distinct;
use super::say::say_lines;
use super::signals::Signals;
use super::{evidence, input, width};
use crate::config::{DecisionOptions, Placement};
use crate::evidence::file::{self, FileError};
use crate::evidence::{
    fleet_page, Evidence, EvidenceError, FleetDecision, FleetError, FleetReport, Folds, Key, RowKind, Scope,
};
use scxprof_base::columns::wrapped;

const EXAMPLES: &str = "\
Examples:
  sudo scxprof run -t 10 --evidence host.parquet -o cells.json   on each host, then
  scxprof merge *.parquet -o cells.json          one configuration for all of them
  scxprof merge evidence/ --split-by cpu -o configs/    one for each model of CPU: configs/VALUE.json
  scxprof merge merged.parquet --report report.json -o cells.json    of what DuckDB or Spark added (docs/fleet.md)
  scxprof merge monday/ --evidence monday.parquet -o /dev/null   one file of many, to be merged again";

/// Files of a directory.
const MAX_FILES: usize = 1 << 20;
/// Characters of a file's name that come from a value.
const MAX_NAME: usize = 200;
/// Values that a fleet is split by.
const MAX_PARTS: usize = 256;

/// Print one cell configuration for many hosts, from the evidence of each
#[derive(Debug, Args)]
#[command(
    after_help = EXAMPLES,
    mut_args(text("memory", "Memory for the different rows of all files; deciding on them takes about as much again")),
    mut_args(|arg| if arg.get_id() == "memory" { arg.default_value("256").help_heading(INPUT) } else { arg }),
    mut_args(text("target_cpus", "CPUs of the hosts that will run the scheduler [default: those of the sampled host with fewest]")),
    mut_args(text("target_llcs", "Last-level caches of the hosts that will run the scheduler, with CPUs side by side [default: unknown]")),
    mut_args(text("min_share", "Classes that share with no other get a subcell if they have this share of their cell's samples")),
)]
pub(super) struct MergeArgs {
    /// Files of evidence, or directories with such files (*.parquet)
    #[arg(value_name = "FILE", required = true, help_heading = INPUT)]
    files: Vec<PathBuf>,
    /// Replace what matches in cgroups' paths by `*`, also what was not folded when the evidence was written (repeatable)
    #[arg(long = "fold", value_name = "REGEX", help_heading = INPUT)]
    folds: Vec<String>,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    target_cpus: TargetCpusArgs,
    #[command(flatten)]
    min_share: MinShareArgs,
    /// Last-level caches of a host, for the score
    #[arg(long, value_name = "N", default_value = "2", value_parser = clap::value_parser!(u32).range(2..=MAX_LLCS), help_heading = RESULT)]
    llcs: u32,
    /// Write a configuration for each value of this fact of hosts into the directory that -o names
    #[arg(
        long,
        value_name = "FACT",
        requires = "output",
        conflicts_with_all = ["evidence", "report", "html"],
        help_heading = RESULT
    )]
    split_by: Option<Fact>,
    /// Write the configuration to FILE instead of stdout
    #[arg(short = 'o', long = "output", value_name = "FILE", help_heading = RESULT)]
    output: Option<PathBuf>,
    /// Write the sum of all evidence to FILE, which can be merged again
    #[arg(long, value_name = "FILE", help_heading = RESULT)]
    evidence: Option<PathBuf>,
    /// Write the facts behind the decision to FILE as JSON (schema: docs/evidence.md)
    #[arg(long, value_name = "FILE", help_heading = RESULT)]
    report: Option<PathBuf>,
    /// Write them to FILE as a page for a browser, without a server or network
    #[arg(long, value_name = "FILE", help_heading = RESULT)]
    html: Option<PathBuf>,
    /// Print a summary to stderr
    #[arg(short = 'v', long = "verbose", action = clap::ArgAction::Count, help_heading = RESULT)]
    verbose: u8,
}

/// A fact of hosts.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Fact {
    Label,
    Kernel,
    Cpu,
    Cpus,
    Source,
}

impl Fact {
    /// What it is in these rows.
    fn of(self, scope: &Scope) -> &str {
        match self {
            Self::Label => &scope.label,
            Self::Kernel => &scope.kernel,
            Self::Cpu => &scope.cpu,
            Self::Cpus => &scope.cpus,
            Self::Source => &scope.source,
        }
    }
}

/// Reads the evidence, decides and prints.
pub(super) fn run(args: &MergeArgs, stdout: Stdout) -> Result<(), Failure> {
    stdout.check(args.output.as_deref())?;
    let folds = if args.folds.is_empty() { Folds::none() } else { evidence::folds(&args.folds)? };
    let open = |path: &Option<PathBuf>, readers| {
        path.as_ref().map(|path| Output::open(Some(path), readers)).transpose().map_err(Failure::Usage)
    };
    let to = [&args.evidence, &args.report, &args.html].map(|path| open(path, Readers::Owner));
    let [evidence_to, report_to, html_to] = to;
    let (evidence_to, report_to, html_to) = (evidence_to?, report_to?, html_to?);
    // A directory is made when there is something to write into it.
    let output = args.split_by.is_none().then(|| Output::open(args.output.as_deref(), Readers::All)).transpose();
    let output = output.map_err(Failure::Usage)?;
    let mut opened: Vec<(&str, &Output)> = output.iter().map(|output| ("-o", output)).collect();
    for (option, to) in [("--evidence", &evidence_to), ("--report", &report_to), ("--html", &html_to)] {
        let Some(to) = to else { continue };
        if matches!(to, Output::Stdout) {
            return Err(Failure::Usage(anyhow!("{option} -: name a file; the configuration goes to stdout")));
        }
        check_distinct((option, to), opened.iter().copied())?;
        opened.push((option, to));
    }
    if output.is_none() && args.output.as_deref().is_some_and(|path| path.exists() && !path.is_dir()) {
        let path = args.output.as_deref().unwrap_or(Path::new("-")).display();
        return Err(Failure::Usage(anyhow!("-o {path}: with --split-by it is a directory, and this is none")));
    }
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let merged = read(args, &folds, &signals)?;
    let Some(output) = output else { return split(args, &merged) };
    let decided = decide(args, &merged)?;
    // Also where these hosts have too few CPUs for a configuration.
    if let Some(to) = evidence_to {
        evidence::write(&merged, to)?;
    }
    let configuration = configuration(args, &decided);
    let json = configuration.as_deref().unwrap_or_default();
    say(args, &merged, &decided, json);
    if configuration.is_ok() {
        output.write(json.as_bytes(), true).map_err(Failure::NoResult)?;
    }
    if let Some(to) = report_to {
        let text = decided.report.to_json().context("cannot write the report").map_err(Failure::NoResult)?;
        to.write(text.as_bytes(), false).map_err(Failure::NoResult)?;
    }
    if let Some(to) = html_to {
        to.write(fleet_page(&decided.report, json).as_bytes(), false).map_err(Failure::NoResult)?;
    }
    configuration.map(|_| ())
}

/// The files that the arguments name, in order.
fn files(args: &MergeArgs) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in &args.files {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let list = || -> std::io::Result<Vec<PathBuf>> {
            let mut found = Vec::new();
            for entry in fs::read_dir(path)? {
                let path = entry?.path();
                if found.len() >= MAX_FILES {
                    return Err(std::io::Error::other("it has more than 1,048,576 files; add them in steps"));
                }
                if path.extension().is_some_and(|extension| extension == "parquet") && path.is_file() {
                    found.push(path);
                }
            }
            Ok(found)
        };
        let mut found = list().with_context(|| path.display().to_string()).map_err(Failure::Usage)?;
        if found.is_empty() {
            return Err(Failure::Usage(anyhow!("{}: there is no *.parquet in this directory", path.display())));
        }
        found.sort();
        files.append(&mut found);
    }
    Ok(files)
}

/// The sum of all files.
fn read(args: &MergeArgs, folds: &Folds, signals: &Signals) -> Result<Evidence, Failure> {
    // A damaged file may make the reader of Parquet panic, which is caught and said in one sentence.
    std::panic::set_hook(Box::new(|_| {}));
    let mut merged = Evidence::within(args.memory.bytes());
    let mut fold = |mut key: Key| {
        if key.kind != RowKind::Spec && !args.folds.is_empty() {
            let (a, b) = (folds.fold(&key.a.cgroup), folds.fold(&key.b.cgroup));
            Arc::make_mut(&mut key.a).cgroup = a;
            Arc::make_mut(&mut key.b).cgroup = b;
        }
        key.ordered()
    };
    let read = files(args)?.iter().try_for_each(|path| {
        file::read_until(path, &mut merged, &mut fold, &|| signals.seen()).map_err(|error| match error {
            FileError::Stopped { .. } => input::interrupted(),
            FileError::Rows { source: EvidenceError::TooManyRows { .. }, .. } => {
                Failure::Usage(anyhow!("{error}, or let them take more (--memory)"))
            }
            error => Failure::Usage(error.into()),
        })
    });
    drop(std::panic::take_hook());
    read?;
    if signals.seen() {
        return Err(input::interrupted());
    }
    if merged.of_kind(RowKind::Run).next().is_none() {
        return Err(Failure::Usage(anyhow!("the files have no run: there is nothing to decide from")));
    }
    Ok(merged)
}

fn decide(args: &MergeArgs, merged: &Evidence) -> Result<FleetDecision, Failure> {
    let target_cpus = args.target_cpus.cpus().or_else(|| merged.least_cpus());
    let Some(target_cpus) = target_cpus else {
        return Err(Failure::Usage(anyhow!(
            "the evidence does not say how many CPUs the hosts have: give --target-cpus"
        )));
    };
    let mut options = DecisionOptions::new(args.min_share.part(), target_cpus);
    options.scheduler = args.target.scheduler();
    options.caches = args.target_cpus.caches();
    merged.decide(&options).map_err(|error| match error {
        FleetError::DifferentSpecs { .. } | FleetError::NoSpecs => Failure::Usage(error.into()),
        error => Failure::NoResult(error.into()),
    })
}

fn configuration(args: &MergeArgs, decided: &FleetDecision) -> Result<String, Failure> {
    decided.to_json(args.target.scheduler()).map_err(|error| match (&decided.decision.refused, error) {
        (Some(refused), FleetError::Refused(_)) => Failure::DoesNotFit(anyhow!("no configuration: {refused}")),
        (_, error) => Failure::NoResult(error.into()),
    })
}

/// What the configuration does not show.
fn say(args: &MergeArgs, merged: &Evidence, decided: &FleetDecision, json: &str) {
    let report: &FleetReport = &decided.report;
    for note in &report.notes {
        say!("note: {note}");
    }
    if !report.disagreements.is_empty() {
        let of = report.disagreements.len();
        say!("note: hosts disagree on {of} pairs of classes (-v and --report list them; --split-by makes several configurations)");
    }
    if !report.outliers.is_empty() {
        let names: Vec<&str> = report.outliers.iter().take(8).map(|it| it.host.as_str()).collect();
        let more = report.outliers.len().saturating_sub(names.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        say!("note: hosts on which threads share differently than on most: {}{more}", names.join(", "));
    }
    if args.verbose > 0 {
        let width = width::of(&std::io::stderr());
        let mut text = report.text(width);
        let score = Placement::parse(json).ok().and_then(|placement| merged.score(&placement, args.llcs));
        if let Some(score) = score {
            let _ = writeln!(
                text,
                "Beyond what unplaced threads avoid by chance: {:.1} % on {} last-level caches (docs/score.md); {:.1} % of all possible \
                 misses are avoidable",
                score * 100.0,
                args.llcs,
                merged.avoidable() * 100.0
            );
        }
        say_lines(&wrapped(&text, width));
    }
}

/// One configuration for each value of a fact of hosts.
fn split(args: &MergeArgs, merged: &Evidence) -> Result<(), Failure> {
    let (Some(directory), Some(by)) = (&args.output, args.split_by) else {
        return Err(Failure::Usage(anyhow!("--split-by needs -o DIRECTORY")));
    };
    let mut values: Vec<String> = merged.of_kind(RowKind::Run).map(|(key, _)| by.of(&key.scope).to_owned()).collect();
    let name = name_of(&by);
    values.sort();
    values.dedup();
    if values.len() > MAX_PARTS {
        let count = values.len();
        return Err(Failure::Usage(anyhow!(
            "--split-by {name}: there are {count} values, and {MAX_PARTS} at most are written"
        )));
    }
    // All are decided before the first one is written.
    let mut written: BTreeMap<PathBuf, (String, String)> = BTreeMap::new();
    for of in values {
        let part = merged
            .map(|key| (by.of(&key.scope) == of).then(|| key.clone()))
            .map_err(|error| Failure::NoResult(error.into()))?;
        let decided = decide(args, &part)?;
        let json = configuration(args, &decided)?;
        say!(
            "{name} {}: {} runs of {} hosts",
            if of.is_empty() { "(none)" } else { &of },
            decided.report.runs,
            decided.report.hosts
        );
        say(args, &part, &decided, &json);
        let path = directory.join(format!("{}.json", file_name(&of)));
        if let Some((other, _)) = written.insert(path, (of.clone(), json)) {
            return Err(Failure::Usage(anyhow!("--split-by {name}: {other} and {of} would have the same file name")));
        }
    }
    fs::create_dir_all(directory).with_context(|| directory.display().to_string()).map_err(Failure::NoResult)?;
    let open = |path: &PathBuf| Output::open(Some(path), Readers::All).map_err(Failure::NoResult);
    let outputs: Vec<Output> = written.keys().map(open).collect::<Result<_, _>>()?;
    for (output, (_, json)) in outputs.into_iter().zip(written.values()) {
        output.write(json.as_bytes(), false).map_err(Failure::NoResult)?;
    }
    Ok(())
}

/// A value as the name of a file.
fn file_name(value: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let name: String = value.chars().take(MAX_NAME).map(safe).collect();
    let name = name.trim_matches(['-', '.', '_']).to_owned();
    if name.is_empty() {
        // No value has this name.
        "_none".to_owned()
    } else {
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_the_name_of_a_file_in_the_directory() {
        for (value, name) in [
            ("web", "web"),
            ("", "_none"),
            ("_none", "none"),
            ("../../etc/passwd", "etc-passwd"),
            ("Intel(R) Xeon(R) @ 2.5GHz", "Intel-R--Xeon-R----2.5GHz"),
        ] {
            assert_eq!(file_name(value), name);
        }
    }
}
