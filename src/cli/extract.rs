//! `scxprof extract`: the configuration from a profile or from its lines, with the engine of `run`.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::anyhow;
use clap::Args;

use super::args::{text, MaxLossArgs, MemoryArgs, RESULT};
use super::capture;
use super::decision::{self, DecisionArgs, Made, Shown};
use super::ends::{Ends, Step};
use super::evidence::EvidenceArgs;
use super::failure::{Done, Failure};
use super::filter::{Filter, FilterArgs};
use super::input::{self, Damage, InputArgs};
use super::messages;
use super::output::Stdout;
use super::outputs::{OutputArgs, Outputs};
use super::signals::Signals;
use crate::host::facts::Tasks;
use crate::host::Roots;
use crate::profile::Profile;
use crate::report::{RunReport, StacksReport};
use crate::resolve::{symbolize, Cgroups, SymbolOptions};
use crate::sample::Sample;
use crate::session::{Analysis, Outcome, Sampled, SchedSink, StackSink};
use crate::stacks::trees;

const EXAMPLES: &str = "\
Examples:
  scxprof extract -f host.tar.gz > cells.json       what `run` would have printed on that host
  scxprof extract -f host.out/perf.jsonl            the same from the lines of `process`
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
    pub(super) verbose: u8,
    #[command(flatten)]
    filter: FilterArgs,
}

/// Reads the profile, decides and prints the configuration.
pub(super) fn run(args: &ExtractArgs, stdout: Stdout) -> Done {
    print(args, Shown::new(&args.outputs, args.verbose), stdout)
}

/// Reads the profile, decides and prints.
pub(super) fn print(args: &ExtractArgs, shown: Shown, stdout: Stdout) -> Done {
    let filter = Filter::new(&args.filter)?;
    let mut outputs = args.outputs.open(stdout)?;
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let stop = || signals.seen();
    let mut profile = input::profile(args.input.path(), &stop)?;
    if profile.has_only_sched() {
        let path = args.input.path().display();
        return Err(Failure::Usage(anyhow!(
            "{path} has scheduling events and no accesses to memory: `scxprof sched -f {path}` reads it"
        )));
    }
    let host = profile.meta.as_ref().map(|meta| meta.host.clone());
    outputs.add_evidence(args.evidence.open(|| host.unwrap_or_default())?)?;
    let mut sched = args.decision.wakeups(args.outputs.has_page(), profile.places(), profile.own_pid());
    let addresses = input::addresses(&mut profile);
    let mut recording = Recording { args, shown, profile, addresses, filter, stop: &stop };
    let sampled = recording.sample(sched.as_mut())?;
    let (loss, damage) = (sampled.outcome.loss, Damage::of_profile(&recording.profile));
    let mut ends = Ends::default();
    let decided = recording.decide(sampled, sched.as_ref(), outputs, &mut ends);
    ends.note(Step::Decision, decided);
    ends.note(Step::Damage, damage.check());
    ends.loss(&args.max_loss, &loss);
    ends.sched_loss(&args.max_loss, &loss.sched);
    ends.end()
}

/// A profile, and what is wanted of it.
struct Recording<'a> {
    args: &'a ExtractArgs,
    shown: Shown,
    profile: Profile,
    /// What to do for the profile to have addresses, see [`input::addresses`].
    addresses: Option<&'static str>,
    filter: Filter,
    stop: &'a dyn Fn() -> bool,
}

impl Recording<'_> {
    /// Reads the samples that are selected.
    fn sample(&mut self, sched: Option<&mut SchedSink>) -> Result<Sampled, Failure> {
        let Self { args, shown, profile, filter, stop, .. } = self;
        let made = Made::new(*shown, &args.outputs);
        let mut builder = input::session(profile, args.memory.bytes()).analysis(args.decision.analysis(made));
        let mut select = |sample: &Sample, cgroups: &mut Cgroups| filter.keeps(sample, cgroups);
        if !args.filter.is_empty() {
            builder = builder.select(&mut select);
        }
        if let Some(stats) = sched {
            builder = builder.sink(stats);
        }
        input::sample(builder, stop)
    }

    /// Says what was read, and what was not.
    fn say(&self, outcome: &Outcome) {
        capture::say_notes(outcome, None);
        if self.filter.left_out > 0 {
            say!("note: {} accesses left out by the selection", self.filter.left_out);
        }
        messages::say_sampled(self.shown.verbose, outcome);
        // Samples in AUX data have no cgroup.
        let by_perf =
            self.profile.perf_data().is_some_and(|perf_data| self.profile.meta.is_none() && !perf_data.has_aux());
        if by_perf && outcome.loss.no_cgroup_path > 0 {
            say!("note: perf records cgroups with --all-cgroups: `{PERF_RECORD}`");
        }
    }

    /// Prints the configuration or what was found, and writes what is made of the report.
    fn decide(&self, sampled: Sampled, sched: Option<&SchedSink>, mut outputs: Outputs, ends: &mut Ends) -> Done {
        let args = self.args;
        let nothing = |outcome: &Outcome, _| {
            self.say(outcome);
            let damage = Damage::of_profile(&self.profile);
            messages::no_recorded_samples(outcome, self.addresses, self.filter.nothing(), &damage)
        };
        let mut decided = decision::decide(&args.decision, self.shown, sampled, nothing)?;
        ends.note(Step::Evidence, outputs.write_evidence(&decided.found));
        decided.write(&args.decision, &mut outputs, ends);
        if decided.needs_report(&outputs) {
            let mut report = decided.report(&args.decision, &outputs, sched)?;
            add_recorded(&mut report.run, &self.profile, args.input.path());
            if args.outputs.has_page() && self.profile.stack_event(None).is_some() {
                report.stacks = call_stacks(args, &decided.found, self.stop)?;
            }
            decided.show(&report, outputs, ends);
        }
        self.say(&decided.found.outcome);
        decided.say_notes(&args.decision);
        Ok(())
    }
}

/// What the recording says of its run.
fn add_recorded(run: &mut RunReport, profile: &Profile, path: &Path) {
    run.profile = path.file_name().map(|name| crate::sample::printable(name.as_bytes()));
    run.damage = profile.damage();
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
    let mut profile = input::profile(args.input.path(), is_ended)?;
    let Some(event) = profile.stack_event(None) else { return Ok(None) };
    let mut sink = StackSink::of_events(&event.numbers);
    let outcome = input::read(input::session(&mut profile, args.memory.bytes()), &mut sink, is_ended)?;
    let begin = profile.recorded_here(&roots);
    let symbols = SymbolOptions { roots, begin, cache: decision::cache(), lines: None };
    let names = symbolize(&outcome.modules, outcome.stacks.codes(), &symbols);
    for note in names.notes() {
        say!("note: {note}");
    }
    let mut stacks = sink.profile(&outcome.stacks, &names);
    stacks.event = event.name;
    let placement = found.placement().map_err(|error| Failure::NoResult(error.into()))?;
    super::stacks::place(&mut stacks, Some(placement), Some(Tasks::default()));
    Ok((stacks.count() > 0).then(|| trees(&stacks)))
}
