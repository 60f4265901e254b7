//! `scxprof extract`: the configuration from a profile or from its lines, with the engine of `run`.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::anyhow;
use clap::Args;

use super::args::{text, MaxLossArgs, MemoryArgs, RESULT};
use super::capture;
use super::decision::{self, DecisionArgs, Named, Printed};
use super::evidence::EvidenceArgs;
use super::failure::Failure;
use super::filter::{Filter, FilterArgs};
use super::output::Stdout;
use super::outputs::OutputArgs;
use super::process::{damaged, InputArgs};
use super::signals::Signals;
use crate::host::Roots;
use crate::profile::Profile;
use crate::report::{Report, RunReport, StacksReport};
use crate::resolve::{symbolize, Cgroups, SymbolOptions};
use crate::sample::{Sample, Source};
use crate::session::{Analysis, Error, Outcome, Session, StackSink};
use crate::stacks::trees;

const EXAMPLES: &str = "\
Examples:
  scxprof extract -f host.tar.gz > cells.json       what `run` would have printed on that host
  scxprof extract -f host.tar.gz.out/perf.jsonl     the same from the lines of `process`
  scxprof extract -f host.tar.gz -o cells.json --html report.html   and a page with all that led to it
  scxprof extract -f perf.data --exclude-comm '^cc1'  what perf mem record wrote, without the compilers
  perf script -F comm,pid,tid,time,addr,ip > perf.script   makes text that it reads";

/// The perf command that records everything that scxprof reads.
const PERF_RECORD: &str = "perf mem record -a --phys-data --data-page-size --all-cgroups";

/// Print the cell configuration for a recorded profile
#[derive(Debug, Args)]
#[command(
    after_help = EXAMPLES,
    mut_args(text("memory", "Memory for the sketch, queues and mappings; with that of the capture the result is the same")),
)]
pub(super) struct ExtractArgs {
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    max_loss: MaxLossArgs,
    #[command(flatten)]
    outputs: OutputArgs,
    #[command(flatten)]
    decision: DecisionArgs,
    #[command(flatten)]
    evidence: EvidenceArgs,
    /// Print a summary to stderr (-vv: full detail)
    #[arg(short = 'v', long = "verbose", action = clap::ArgAction::Count, help_heading = RESULT)]
    verbose: u8,
    #[command(flatten)]
    filter: FilterArgs,
}

/// Reads the profile, decides and prints the configuration.
pub(super) fn run(args: &ExtractArgs, stdout: Stdout) -> Result<(), Failure> {
    print(args, Printed::Configuration, stdout)
}

/// Reads the profile, decides and prints.
pub(super) fn print(args: &ExtractArgs, printed: Printed, stdout: Stdout) -> Result<(), Failure> {
    // A summary as the result is what -v says, and with -v all that -vv says.
    let verbose = args.verbose.saturating_add(u8::from(printed == Printed::Summary));
    let mut filter = Filter::new(&args.filter)?;
    let mut outputs = args.outputs.open(stdout)?;
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let mut profile = super::process::open(args.input.path(), &|| signals.seen())?;
    let host = profile.meta.as_ref().map(|meta| meta.host.clone());
    outputs.add_evidence(args.evidence.open(|| host.unwrap_or_default())?)?;
    let shows_all = args.outputs.has_page();
    let mut sched = args.decision.wakeups(shows_all, profile.places(), profile.own_pid());
    let builder = Session::builder().profile(&mut profile).memory(args.memory.bytes());
    let named = Named::new(verbose, args.outputs.has_report() || printed == Printed::Json);
    let mut builder = args.decision.configure(builder, named);
    let mut select = |sample: &Sample, cgroups: &mut Cgroups| filter.keeps(sample, cgroups);
    if !args.filter.is_empty() {
        builder = builder.select(&mut select);
    }
    if let Some(stats) = &mut sched {
        builder = builder.sink(stats);
    }
    let session = builder.start().map_err(|error| match error {
        Error::CellSpecs(error) => decision::wrong_groups(&error),
        error => Failure::Unsupported(error.into()),
    })?;
    let sampled = session.run_until(|_| signals.seen());
    if signals.seen() {
        return Err(super::process::interrupted());
    }
    let damage = profile.damage();
    let loss = sampled.outcome.loss;
    capture::say_notes(&sampled.outcome, None);
    if filter.left_out > 0 {
        say!("note: {} accesses left out by the selection", filter.left_out);
    }
    // On stdout it is once.
    decision::report(if printed == Printed::Summary { 0 } else { verbose }, &sampled);
    let by_perf = profile.meta.is_none() && profile.perf_data().is_some();
    if by_perf && sampled.outcome.loss.no_cgroup_path > 0 {
        say!("note: perf records cgroups with --all-cgroups: `{PERF_RECORD}`");
    }
    let add = |found: &Analysis, report: &mut Report| {
        add_recorded(&mut report.run, &profile, args.input.path());
        if shows_all && profile.stack_event(None).is_some() {
            report.stacks = call_stacks(args, found, &|| signals.seen())?;
        }
        Ok(())
    };
    decision::finish(&args.decision, printed, verbose, (sampled, sched.as_ref()), outputs, add, |outcome, source| {
        no_samples(outcome, source, filter.nothing(), &damage)
    })?;
    damaged(&damage)?;
    decision::check_loss(args.max_loss.max_loss, &loss)?;
    decision::check_sched_loss(args.max_loss.max_loss, &loss.sched)
}

/// What the recording says of its run.
fn add_recorded(run: &mut RunReport, profile: &Profile, path: &Path) {
    run.profile = path.file_name().map(|name| crate::sample::printable(name.as_bytes()));
    let Some(meta) = &profile.meta else { return };
    run.begin_unix = Some(meta.begin_unix);
    run.host = (!meta.host.name.is_empty()).then(|| meta.host.name.clone());
    run.recovery = meta.recovery.clone().and_then(|recovery| serde_json::from_value(recovery).ok());
}

/// The recorded call stacks by subcell; `None` if there are none. The profile is read again: call stacks are read in a session of
/// their own.
fn call_stacks(
    args: &ExtractArgs,
    found: &Analysis,
    is_ended: &dyn Fn() -> bool,
) -> Result<Option<StacksReport>, Failure> {
    let roots = Roots::default();
    let mut profile = super::process::open(args.input.path(), is_ended)?;
    let Some(event) = profile.stack_event(None) else { return Ok(None) };
    let mut sink = StackSink::of_events(&event.numbers);
    let memory = args.memory.bytes();
    let session = Session::builder().profile(&mut profile).memory(memory).start();
    let session = session.map_err(|error| Failure::Unsupported(error.into()))?;
    let outcome = session.run_into(&mut sink, |_| is_ended());
    if is_ended() {
        return Err(super::process::interrupted());
    }
    let begin = profile.recorded_here(&roots);
    let symbols = SymbolOptions { roots, begin, cache: decision::cache(), lines: None };
    let names = symbolize(&outcome.modules, outcome.stacks.codes(), &symbols);
    for note in names.notes() {
        say!("note: {note}");
    }
    let mut stacks = sink.profile(&outcome.stacks, &names);
    stacks.event = event.name;
    let placement = found.placement().map_err(|error| Failure::NoResult(error.into()))?;
    super::stacks::place(&mut stacks, Some(&placement));
    Ok((stacks.count() > 0).then(|| trees(&stacks)))
}

/// Why a recording has no samples.
pub(super) fn no_samples(
    outcome: &Outcome,
    source: Source,
    unselected: Option<String>,
    damage: &[String],
) -> anyhow::Error {
    if let Some(unselected) = unselected {
        return anyhow!(unselected);
    }
    let damaged = (!damage.is_empty()).then(|| format!("the profile is damaged: {}", damage.join("; ")));
    let reasons: Vec<String> = damaged.into_iter().chain(decision::without_address(outcome, source)).collect();
    if !reasons.is_empty() {
        anyhow!("no usable samples: {}", reasons.join("; "))
    } else if outcome.events == 0 {
        anyhow!("no usable samples: the recording has none")
    } else {
        anyhow!("no usable samples, although {} events were recorded: see the counts above", outcome.events)
    }
}
