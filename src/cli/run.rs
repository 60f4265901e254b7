//! `scxprof run`: one capture, from the events to the configuration.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::anyhow;
use clap::Args;

use super::args::RESULT;
use super::capture::{self, CaptureArgs};
use super::command::Held;
use super::controllers;
use super::decision::{self, DecisionArgs, Made, Shown};
use super::ends::{Ends, Step};
use super::evidence::EvidenceArgs;
use super::failure::{Done, Failure};
use super::messages;
use super::output::Stdout;
use super::outputs::{OutputArgs, Outputs};
use super::score::{self, JudgeArgs};
use super::signals::Signals;
use crate::config::Placement;
use crate::host::topology;
use crate::profile::meta::Host;
use crate::session::TaskSink;
use crate::session::{Error, Outcome, Progress, Sampled, SchedOptions, SchedSink};

const EXAMPLES: &str = "\
Examples:
  sudo scxprof run -t 30 > cells.json            sample the host, write the configuration
  sudo scxprof run -v -o cells.json              the same, with a summary on stderr
  sudo scxprof run --cell db='db\\.service$'      a cell for a cgroup of another name
  scxprof run -p 1234 -t 10                      a process and its descendants
  scxprof run -- ./server --port 80              a command while it runs (Ctrl-C ends both)
  sudo scxprof run -o cells.json --html report.html   and a page with all that led to it
  sudo scxprof run -o cells.json --prometheus DIR/scxprof.prom   for cron and node_exporter
  sudo scxprof run -a -- sleep 10                the host while a command runs
  sudo scxprof run -t 30 --score cells.json      how good the loaded configuration is for what runs now
Load it (README.md says which scx_mitosis has --cell-config, and what it needs):
  sudo scx_mitosis --cell-config cells.json
  sudo scx_layered f:layers.json                 after scxprof run --target layered -o layers.json";

/// Sample memory accesses and print a cell configuration
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct RunArgs {
    #[command(flatten)]
    capture: CaptureArgs,
    #[command(flatten)]
    outputs: OutputArgs,
    #[command(flatten)]
    decision: DecisionArgs,
    #[command(flatten)]
    evidence: EvidenceArgs,
    /// Print the score of this configuration instead of a new configuration (repeatable; see `scxprof score`)
    #[arg(
        long = "score",
        value_name = "FILE",
        conflicts_with_all = ["report", "html", "evidence", "sharing_csv", "prometheus", "sched", "target"],
        help_heading = RESULT
    )]
    scored: Vec<PathBuf>,
    #[command(flatten)]
    judge: JudgeArgs,
    /// Print a summary to stderr (-vv: full detail)
    #[arg(short = 'v', long = "verbose", action = clap::ArgAction::Count, help_heading = RESULT)]
    verbose: u8,
}

/// Runs one capture and prints its configuration.
pub(super) fn run(args: &RunArgs, stdout: Stdout) -> Result<(), Failure> {
    let RunArgs { capture: wanted, outputs: output_args, decision, scored, verbose, .. } = args;
    if let Some(option) = args.judge.given().filter(|_| scored.is_empty()) {
        let instead = match option {
            "--json" => "; the whole report as JSON is `--report FILE`, or `--report - -o FILE` for stdout",
            _ => ", which names the configuration to judge",
        };
        return Err(Failure::Usage(anyhow!("{option} is for --score FILE{instead}")));
    }
    let mut configurations = score::read_configurations("--score", scored)?;
    let (mut builder, mut host) = capture::builder(wanted)?;
    let shown = Shown::new(output_args, *verbose);
    // A score names no memory.
    let made = if scored.is_empty() { Made::new(shown, output_args) } else { Made::Configuration };
    let mut analysis = decision.analysis(made);
    if decision.use_hints && !wanted.hints.are_followed() {
        return Err(Failure::Usage(anyhow!("--use-hints needs --hints-map, which names the map of the hints")));
    }
    let roots = wanted.watch.roots();
    let places = topology::online_cpus(&roots).map(|cpus| topology::places(&roots, &cpus)).unwrap_or_default();
    let mut sched = decision.wakeups(false, places, Some(std::process::id()));
    if let Some((_, placement)) = configurations.first() {
        (analysis.scheduler, analysis.score) = (placement.scheduler(), true);
    }
    // Where they are not followed, the score says which layers depend on them.
    if configurations.iter().any(|it| it.1.uses_hints()) && wanted.hints.are_followed() {
        analysis.use_hints = true;
    }
    let needs_tasks = configurations.iter().any(|it| it.1.needs_tasks());
    let mut tasks = needs_tasks.then(|| TaskSink::new(&roots, false));
    if let Some(tasks) = &mut tasks {
        builder = builder.sink(tasks);
    }
    if let Some(stats) = &mut sched {
        host.sched = Some(SchedOptions::default());
        builder = builder.sink(stats);
    }
    output_args.check_stdout(stdout)?;
    // Before anything is opened, so that the command does not inherit our limits.
    let held = capture::hold(&wanted.watch, output_args.to_stdout())?;
    let mut outputs = output_args.open(stdout)?;
    outputs.add_evidence(args.evidence.open(|| Host::here(&roots))?)?;
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let rate_before = capture::max_sample_rate();
    let session = capture::start(&wanted.watch, *verbose, (builder.analysis(analysis), host), held.as_ref())?;
    let mut command = held.map(Held::release).transpose().map_err(Failure::Usage)?;
    let tables = (*verbose > 1).then(|| session.tables());
    let begin = SystemTime::now().duration_since(UNIX_EPOCH).ok();
    let watched = |ended: &mut dyn FnMut(Progress) -> bool| session.run_until(ended);
    let sampled = capture::watch(wanted.watch.limit(), command.as_mut(), &signals, tables.as_ref(), watched);
    let loss = sampled.outcome.loss;
    let captured = Captured { args, shown, begin, rate_before };
    let mut ends = Ends::default();
    if configurations.is_empty() {
        let needs = decision.is_for_mitosis().then(|| controllers::note(wanted, sampled.decider.tally())).flatten();
        let decided = captured.decide(sampled, sched.as_ref(), outputs, &mut ends);
        ends.note(Step::Decision, decided);
        if let Some(needs) = needs.filter(|_| ends.has_result()) {
            say!("note: {needs}");
        }
    } else {
        captured.say(&sampled.outcome);
        if let Some(tasks) = tasks.map(|tasks| Arc::new(tasks.finish(false))) {
            for (_, placement) in &mut configurations {
                *placement = placement.clone().with_tasks(tasks.clone());
            }
        }
        let judged = judge(args, &configurations, sampled, outputs, &mut ends);
        ends.note(Step::Decision, judged);
    }
    // The result first: a command may ignore SIGTERM. Another signal to us then kills it.
    ends.command(capture::end(command, &signals));
    ends.loss(&wanted.tuning.max_loss, &loss);
    if configurations.is_empty() {
        ends.sched_loss(&wanted.tuning.max_loss, &loss.sched);
    }
    ends.end()
}

/// A capture that has ended, and what is wanted of it.
struct Captured<'a> {
    args: &'a RunArgs,
    shown: Shown,
    /// When it began, since 1970.
    begin: Option<Duration>,
    /// The kernel's highest sample rate before it.
    rate_before: Option<i64>,
}

impl Captured<'_> {
    /// Says what was sampled, and what was not.
    fn say(&self, outcome: &Outcome) {
        capture::say_notes(outcome, self.rate_before);
        messages::say_sampled(self.shown.verbose, outcome);
    }

    /// Prints the configuration or what was found, and writes what is made of the report.
    fn decide(&self, sampled: Sampled, sched: Option<&SchedSink>, mut outputs: Outputs, ends: &mut Ends) -> Done {
        let decision = &self.args.decision;
        let nothing = |outcome: &Outcome, source| {
            self.say(outcome);
            messages::no_samples(outcome, source)
        };
        let mut decided = decision::decide(decision, self.shown, sampled, nothing)?;
        ends.note(Step::Evidence, outputs.write_evidence(&decided.found));
        decided.write(decision, &mut outputs, ends);
        if decided.needs_report(&outputs) {
            let mut report = decided.report(decision, &outputs, sched)?;
            report.run.begin_unix = self.begin.map(|begin| begin.as_secs_f64());
            let host = Host::here(&self.args.capture.watch.roots()).name;
            report.run.host = Some(host).filter(|name| !name.is_empty());
            decided.show(&report, outputs, ends);
        }
        self.say(&decided.found.outcome);
        decided.say_notes(decision);
        Ok(())
    }
}

/// Prints the scores instead of a configuration.
fn judge(
    args: &RunArgs,
    configurations: &[(String, Placement)],
    sampled: Sampled,
    mut outputs: Outputs,
    ends: &mut Ends,
) -> Done {
    let source = sampled.decider.source();
    let found = sampled.decide().map_err(|error| match error {
        Error::NoSamples { outcome } => Failure::NoResult(messages::no_samples(&outcome, source)),
        error => Failure::NoResult(error.into()),
    })?;
    let report = score::judge(&found, configurations, &args.judge);
    let text = score::print(&report, &args.judge, outputs.width())?;
    ends.note(Step::Result, outputs.write_result(text.as_bytes()));
    ends.note(Step::Score, score::check(&report, &args.judge));
    Ok(())
}
