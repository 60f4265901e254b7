//! `scxprof score`: how good configurations are for what was sampled.

use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args;

use super::args::{percent, text, MaxLossArgs, MemoryArgs, ResultFileArgs, INPUT, MAX_LLCS, RESULT, TUNING};
use super::capture;
use super::decision::{DecisionArgs, Made};
use super::ends::{Ends, Step};
use super::failure::{Done, Failure};
use super::filter::{Filter, FilterArgs};
use super::format::Format;
use super::input::{self, Damage, InputArgs};
use super::messages;
use super::output::Stdout;
use super::signals::Signals;
use crate::config::{Placement, Scheduler};
use crate::report::score::ScoreReport;
use crate::resolve::Cgroups;
use crate::sample::Sample;
use crate::session::{Analysis, AnalysisOptions, Error};

const EXAMPLES: &str = "\
Examples:
  scxprof score -f host.tar.gz --config cells.json     is it still good for what this host does?
  scxprof score -f host.tar.gz --config old.json --config new.json    and which is better
  scxprof score -f host.tar.gz --config cells.json --at-least 80      exit code 5 below 80 %, for CI
  scxprof score -f host.tar.gz --config layers.json --llcs 8 --json | jq '.configurations[0].score'
  sudo scxprof run -t 30 --score cells.json            of what the host does now";

/// Which configurations are judged, and how.
#[derive(Debug, Args)]
pub(super) struct JudgeArgs {
    /// Last-level caches of the host that will run the scheduler; the order of the groups on them is unknown, and a subcell on
    /// several of them avoids less [default: those of --target-llcs, in the order of scx_mitosis, if there are several; else 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=MAX_LLCS), help_heading = TUNING)]
    llcs: Option<u32>,
    /// Exit with 5 if a configuration has a locality below this
    #[arg(long, value_name = "PERCENT", value_parser = percent, help_heading = RESULT)]
    at_least: Option<f64>,
    /// Print the score as JSON (docs/score.md has the schema)
    #[arg(long, help_heading = RESULT)]
    json: bool,
}

impl JudgeArgs {
    /// One of them that was given.
    pub(super) fn given(&self) -> Option<&'static str> {
        let given = [("--json", self.json), ("--at-least", self.at_least.is_some()), ("--llcs", self.llcs.is_some())];
        given.iter().find(|(_, is_given)| *is_given).map(|(option, _)| *option)
    }
}

/// Print the locality of configurations: which part of the avoidable misses they avoid
#[derive(Debug, Args)]
#[command(
    after_help = EXAMPLES,
    mut_args(text("output", "Write the score to FILE instead of stdout")),
    mut_arg("target", |arg| arg.hide(true)),
    mut_arg("sched", |arg| arg.hide(true)),
    mut_arg("this_host", |arg| arg.hide(true)),
    mut_arg("no_symbols", |arg| arg.hide(true)),
)]
pub(super) struct ScoreArgs {
    #[command(flatten)]
    input: InputArgs,
    /// A configuration of scx_mitosis or scx_layered (repeatable)
    #[arg(long = "config", value_name = "FILE", required = true, help_heading = INPUT)]
    configs: Vec<PathBuf>,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    max_loss: MaxLossArgs,
    #[command(flatten)]
    judge: JudgeArgs,
    #[command(flatten)]
    output: ResultFileArgs,
    #[command(flatten)]
    decision: DecisionArgs,
    #[command(flatten)]
    filter: FilterArgs,
}

/// Reads configurations; all are for one scheduler.
pub(super) fn read_configurations(option: &str, paths: &[PathBuf]) -> Result<Vec<(String, Placement)>, Failure> {
    let mut read: Vec<(String, Placement)> = Vec::new();
    for path in paths {
        let placement = input::configuration(option, path)?;
        if read.first().is_some_and(|(_, first)| first.scheduler() != placement.scheduler()) {
            return Err(Failure::Usage(anyhow!(
                "{option} {}: it is for another scheduler than {}: score them one after the other",
                path.display(),
                read.first().map_or("", |it| it.0.as_str())
            )));
        }
        read.push((path.display().to_string(), placement));
    }
    Ok(read)
}

/// Reads the profile, and prints the scores.
pub(super) fn run(args: &ScoreArgs, stdout: Stdout) -> Result<(), Failure> {
    let mut configurations = read_configurations("--config", &args.configs)?;
    let mut filter = Filter::new(&args.filter)?;
    let output = args.output.open(stdout)?;
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let mut profile = input::profile(args.input.path(), &|| signals.seen())?;
    for (_, placement) in &mut configurations {
        *placement = input::with_recorded_tasks(placement.clone(), &profile);
    }
    let addresses = input::addresses(&mut profile);
    let builder = input::session(&mut profile, args.memory.bytes());
    let scheduler = configurations.first().map_or(Scheduler::Mitosis, |it| it.1.scheduler());
    let mut analysis = AnalysisOptions { scheduler, score: true, ..args.decision.analysis(Made::Configuration) };
    let mut select = |sample: &Sample, cgroups: &mut Cgroups| filter.keeps(sample, cgroups);
    if configurations.iter().any(|it| it.1.uses_hints()) {
        analysis.use_hints = true;
    }
    let mut builder = builder.analysis(analysis);
    if !args.filter.is_empty() {
        builder = builder.select(&mut select);
    }
    let sampled = input::sample(builder, &|| signals.seen())?;
    let damage = Damage::of_profile(&profile);
    let loss = sampled.outcome.loss;
    capture::say_notes(&sampled.outcome, None);
    if filter.left_out > 0 {
        say!("note: {} accesses left out by the selection", filter.left_out);
    }
    messages::say_loss(&loss, sampled.outcome.accesses == 0);
    let found = sampled.decide().map_err(|error| match error {
        Error::NoSamples { outcome } => {
            Failure::NoResult(messages::no_recorded_samples(&outcome, addresses, filter.nothing(), &damage))
        }
        error => Failure::NoResult(error.into()),
    })?;
    let report = judge(&found, &configurations, &args.judge);
    let text = print(&report, &args.judge, output.width())?;
    let mut ends = Ends::default();
    ends.note(Step::Result, output.write(text.as_bytes(), true).map_err(Failure::NoResult));
    ends.note(Step::Score, check(&report, &args.judge));
    ends.note(Step::Damage, damage.check());
    ends.loss(&args.max_loss, &loss);
    ends.end()
}

/// The scores.
pub(super) fn judge(found: &Analysis, configurations: &[(String, Placement)], args: &JudgeArgs) -> ScoreReport {
    let report = found.score(configurations, args.llcs);
    for note in &report.notes {
        say!("note: {note}");
    }
    if report.configurations.iter().any(|score| score.score.is_none()) {
        say!(
            "note: {:.1} % of the possible misses are avoidable, so no configuration matters and none has a score",
            report.avoidable * 100.0
        );
    } else if report.configurations.iter().any(|score| score.interval.is_none()) {
        say!("note: the samples are in too few slices of time to say how certain the scores are");
    }
    report
}

/// The scores as they are printed.
pub(super) fn print(report: &ScoreReport, args: &JudgeArgs, width: Option<usize>) -> Result<String, Failure> {
    Format::new(args.json).render(|| Ok(report.to_json()?), || report.text(width))
}

/// Compares the scores with what is wanted.
pub(super) fn check(report: &ScoreReport, args: &JudgeArgs) -> Done {
    let Some(least) = args.at_least else { return Ok(()) };
    let low = |score: &&crate::report::score::Score| score.locality.is_some_and(|it| it < least / 100.0 - 1e-9);
    match report.configurations.iter().find(low) {
        Some(score) => Err(Failure::DoesNotFit(anyhow!(
            "{} avoids {:.2} % of the avoidable misses, less than --at-least {least}",
            score.name,
            score.locality.unwrap_or_default() * 100.0
        ))),
        None => Ok(()),
    }
}
