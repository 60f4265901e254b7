//! The common part of `run`, `extract` and `report`, in its order: to decide, to write the configuration, to make the report, to
//! show what was found, and then what else there is to say.

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::{anyhow, Context};
use clap::Args;

use super::args::{MinShareArgs, TargetArgs, TargetCpusArgs};
use super::ends::{Ends, Step};
use super::failure::Failure;
use super::outputs::{OutputArgs, Outputs};
use super::say::say_lines;
use super::{call, cgroups, hints, messages, say, width};
use crate::config::{CellOptions, Note, Scheduler};
use crate::host::phases::{Begun, Phases};
use crate::report::{self, Report};
use crate::sample::caches::Caches;
use crate::sample::places::CpuPlaces;
use crate::sample::Source;
use crate::session::{Analysis, AnalysisOptions, Error, Outcome, Sampled, SchedSink};
use scxprof_base::columns::wrapped;
use scxprof_base::escape;

/// The options of the decision.
#[derive(Debug, Args)]
#[command(next_help_heading = "Result")]
pub(super) struct DecisionArgs {
    #[command(flatten)]
    min_share: MinShareArgs,
    /// Make a cell of the cgroups whose path matches; paths begin with /sys/fs/cgroup, the first match wins (repeatable)
    #[arg(long = "cell", value_name = "NAME=REGEX")]
    cells: Vec<String>,
    /// Cgroups of the cell workload.slice [default: paths that contain workload.slice]
    #[arg(long, value_name = "REGEX")]
    workload_cgroup_regex: Option<String>,
    /// Cgroups of the cell allotment [default: workload-tw-[^/]+\.allotment\.slice]
    #[arg(long, value_name = "REGEX")]
    workload_allotment_cgroup_regex: Option<String>,
    #[command(flatten)]
    target_cpus: TargetCpusArgs,
    #[command(flatten)]
    target: TargetArgs,
    /// Also tell threads apart by their task hints: a thread that changes its hint belongs to several classes
    #[arg(long)]
    pub(super) use_hints: bool,
    /// With --target layered: layers may match what only this host has. Groups that names do not tell apart get layers by their
    /// processes and cgroups
    #[arg(long, requires = "target")]
    pub(super) this_host: bool,
    /// Also watch the scheduler's events, or read those of the profile: -v and the report then say which part of the wakeups, and
    /// of those between threads that share memory, the configuration keeps within a subcell
    #[arg(long)]
    pub(super) sched: bool,
    /// Do not look up the names of the code that touches shared memory (in the report and with -vv)
    #[arg(long)]
    no_symbols: bool,
}

impl DecisionArgs {
    /// The options for cell specs.
    fn cell_options(&self) -> CellOptions {
        CellOptions {
            cells: self.cells.clone(),
            allotment: self.workload_allotment_cgroup_regex.clone(),
            workload: self.workload_cgroup_regex.clone(),
        }
    }

    /// CPUs of the target host, if they are given.
    pub(super) fn target_cpus(&self) -> Option<usize> {
        self.target_cpus.cpus()
    }

    /// The number of last-level caches of the target host, if it is given.
    pub(super) fn target_llcs(&self) -> Option<u32> {
        self.target_cpus.llcs()
    }

    /// The last-level caches of the target host, if they are given.
    pub(super) fn caches(&self) -> Option<Caches> {
        self.target_cpus.caches()
    }

    /// As a fraction.
    pub(super) fn min_share(&self) -> f64 {
        self.min_share.part()
    }

    /// The target scheduler.
    pub(super) fn scheduler(&self) -> Scheduler {
        self.target.scheduler()
    }

    /// The same for a session of whose decision that is made.
    pub(super) fn analysis(&self, made: Made) -> AnalysisOptions {
        let symbols = made != Made::Configuration && !self.no_symbols;
        AnalysisOptions {
            cells: self.cell_options(),
            min_share: self.min_share(),
            target_cpus: self.target_cpus(),
            caches: self.caches(),
            scheduler: self.scheduler(),
            use_hints: self.use_hints,
            this_host: self.this_host,
            score: false,
            report: made == Made::Report,
            symbols,
            symbol_cache: cache(),
            source_lines: symbols.then(|| SCXPROF.into()),
        }
    }

    /// Takes the scheduling events, if they were asked for or are wanted anyway.
    pub(super) fn wakeups(&self, is_wanted: bool, places: CpuPlaces, own_pid: Option<u32>) -> Option<SchedSink> {
        (self.sched || is_wanted).then(|| SchedSink::new(places, own_pid).with_wakers())
    }

    /// True if the configuration is for scx_mitosis.
    pub(super) fn is_for_mitosis(&self) -> bool {
        self.scheduler() == Scheduler::Mitosis
    }
}

/// The printed result, and the verbosity.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown {
    pub(super) printed: Printed,
    /// As often as `-v` was given.
    pub(super) verbose: u8,
}

/// The printed result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Printed {
    Configuration,
    /// The answer, for a person at a terminal instead of the configuration.
    Answer,
    /// The same and what `-v` says.
    Summary,
    /// The report.
    Json,
}

/// What a session keeps of its samples for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Made {
    /// The configuration alone, whatever it leaves out.
    Configuration,
    /// The configuration, and an answer if it leaves out some of what was found, which is known only after the decision.
    AnswerIfNeeded,
    /// A report in any case.
    Report,
}

impl Made {
    /// Of a command that writes a configuration or a report.
    pub(super) fn new(shown: Shown, outputs: &OutputArgs) -> Self {
        if outputs.have_report() || shown.is_for_people() || shown.printed == Printed::Json {
            Self::Report
        } else {
            Self::AnswerIfNeeded
        }
    }
}

impl Shown {
    /// Of a command whose result is a configuration. At a terminal it is the answer, unless `-o -` asks for the configuration.
    pub(super) fn new(outputs: &OutputArgs, verbose: u8) -> Self {
        let is_read = outputs.are_unnamed() && !call::is_running() && std::io::stdout().is_terminal();
        Self { printed: if is_read { Printed::Answer } else { Printed::Configuration }, verbose }
    }

    /// True if a person reads what was found.
    fn is_for_people(self) -> bool {
        self.verbose > 0 || matches!(self.printed, Printed::Answer | Printed::Summary) || say::is_read()
    }
}

/// This program, which reads debug information in a separate process.
pub(super) const SCXPROF: &str = "/proc/self/exe";

/// perf's cache of files by their build id.
pub(super) fn cache() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    home.map(|home| PathBuf::from(home).join(".debug"))
}

/// The context of an error of a configuration that was checked.
const BUG: &str = "the configuration would be refused by the scheduler, which is a bug in scxprof";

/// The decision and its texts.
pub(super) struct Decided {
    pub(super) found: Analysis,
    shown: Shown,
    /// The sentences on what was sampled, if they are not printed yet.
    head: String,
    /// The summary of the samples for `-v`, if it is shown.
    summary: String,
    /// Notes on what the layers leave out.
    layer_notes: Vec<Note>,
    phases: Phases,
}

/// Decides; `nothing` explains why there were no samples.
pub(super) fn decide(
    args: &DecisionArgs,
    shown: Shown,
    sampled: Sampled,
    nothing: impl FnOnce(&Outcome, Source) -> anyhow::Error,
) -> Result<Decided, Failure> {
    let source = sampled.decider.source();
    if sampled.outcome.accesses > 0 {
        messages::say_unmatched(&args.cells, &sampled);
    }
    let is_verbose = shown.verbose > 0;
    let summary = if is_verbose { messages::summary(shown.verbose, &sampled) } else { String::new() };
    let mut head = if is_verbose { messages::source(&sampled) } else { String::new() };
    if is_verbose && shown.printed != Printed::Summary {
        // Before the configuration, for which there may be no reader.
        say_lines(&std::mem::take(&mut head));
    }
    let found = sampled.decide().map_err(|error| match error {
        Error::NoSamples { outcome } => Failure::NoResult(nothing(&outcome, source)),
        error => Failure::NoResult(error.into()),
    })?;
    let phases = found.outcome.phases.clone();
    Ok(Decided { found, shown, head, summary, layer_notes: Vec::new(), phases })
}

impl Decided {
    /// Writes the configuration, if it is what is printed. It comes before the report: naming code reads files of other users.
    /// If the host cannot load anything, there is no configuration, and the command fails in the end.
    pub(super) fn write(&mut self, args: &DecisionArgs, outputs: &mut Outputs, ends: &mut Ends) {
        let Some(Some(configuration)) = ends.note(Step::Decision, self.configuration(args)) else { return };
        if self.shown.printed == Printed::Configuration {
            ends.note(Step::Result, outputs.write_result(configuration.as_bytes()));
        }
    }

    /// The configuration as the scheduler reads it, which must take it; `None` if nothing can be loaded and none is wanted.
    fn configuration(&mut self, args: &DecisionArgs) -> Result<Option<String>, Failure> {
        if let Some(refused) = &self.found.decision().refused {
            return match self.shown.printed {
                Printed::Configuration | Printed::Answer => {
                    Err(Failure::DoesNotFit(anyhow!("no configuration: {refused}")))
                }
                Printed::Summary | Printed::Json => Ok(None),
            };
        }
        let configuration = match args.scheduler() {
            Scheduler::Layered => self.found.layered().map(|(layers, notes)| {
                self.layer_notes = notes;
                layers
            }),
            Scheduler::Mitosis => self.found.mitosis(),
        };
        configuration.context(BUG).map_err(Failure::NoResult).map(Some)
    }

    /// True if the configuration leaves out some of what was found, which is always shown then.
    fn leaves_out(&self) -> bool {
        self.found.decision().notes.iter().any(Note::leaves_out)
    }

    /// True if a person is shown what was found.
    fn has_answer(&self) -> bool {
        self.shown.is_for_people() || self.leaves_out()
    }

    /// True if a person reads the names of code and variables, or a program that reads the report. Figures have none, and to look
    /// them up reads files of other users.
    fn needs_names(&self, outputs: &Outputs) -> bool {
        self.has_answer() || self.shown.printed == Printed::Json || outputs.need_whole_report()
    }

    /// True if anything is made of the report.
    pub(super) fn needs_report(&self, outputs: &Outputs) -> bool {
        self.needs_names(outputs) || outputs.need_report()
    }

    /// Makes the report, to which the caller adds what only it knows.
    pub(super) fn report(
        &mut self,
        args: &DecisionArgs,
        outputs: &Outputs,
        sched: Option<&SchedSink>,
    ) -> Result<Report, Failure> {
        if !self.needs_names(outputs) {
            self.found.leave_unnamed();
        }
        let Self { found, phases, .. } = self;
        phases.measure("name code", || found.symbols());
        let report = phases.measure("make the report", || found.report());
        let mut report = report.context(BUG).map_err(Failure::NoResult)?;
        if let Some(stats) = sched.filter(|stats| args.sched || stats.events() > 0) {
            report.wakeups = self.found.wakeups(stats).context(BUG).map_err(Failure::NoResult)?;
            if stats.events() > 0 {
                report.scheduling = Some(self.found.scheduling(stats).context(BUG).map_err(Failure::NoResult)?);
            } else {
                say!("note: --sched: there are no scheduling events; `scxprof record --sched` records them");
            }
        }
        Ok(report)
    }

    /// Prints what was found as it is wanted, and writes all that is made of the report.
    pub(super) fn show(&mut self, report: &Report, outputs: Outputs, ends: &mut Ends) {
        let began = Begun::now();
        self.print(report, outputs, ends);
        self.phases.push(began.end("print and write"));
    }

    fn print(&self, report: &Report, mut outputs: Outputs, ends: &mut Ends) {
        let Shown { printed, verbose } = self.shown;
        let to_stdout = matches!(printed, Printed::Answer | Printed::Summary);
        let width = if to_stdout { outputs.width() } else { width::of(&std::io::stderr()) };
        let mut text = self.head.clone() + &report::answer(report, width);
        if verbose > 0 {
            let cgroups = cgroups::text(&self.found);
            text = format!("{text}\n{}{}{cgroups}", messages::tables(verbose, report, width), self.summary);
        }
        if printed == Printed::Answer && self.found.decision().refused.is_none() {
            text.push_str(&messages::to_write(verbose));
        }
        let text = wrapped(&text, width);
        match printed {
            Printed::Json => {
                let json = report.to_json().context("cannot write the report").map_err(Failure::NoResult);
                ends.note(Step::Result, json.and_then(|json| outputs.write_result(json.as_bytes())));
            }
            Printed::Answer | Printed::Summary => {
                let text = escape::lines(&text);
                ends.note(Step::Result, outputs.write_result(text.as_bytes()));
            }
            Printed::Configuration if self.has_answer() => say_lines(&text),
            Printed::Configuration => {}
        }
        ends.note(Step::Report, outputs.write_report(report, &self.found.outcome));
        for note in self.found.symbols().notes() {
            say!("note: {note}");
        }
    }

    /// Says what the decision does not show.
    pub(super) fn say_notes(&self, args: &DecisionArgs) {
        let decision = self.found.decision();
        let verbose = self.shown.verbose;
        for note in decision.notes.iter().filter(|note| messages::is_news(note, verbose)).chain(&self.layer_notes) {
            say!("note: {note}");
        }
        if args.this_host && args.is_for_mitosis() {
            say!("note: --this-host changes nothing: cells of scx_mitosis match cgroups and names alone");
        }
        if args.use_hints {
            say!("note: {}", hints::used(args.scheduler()));
        }
        if verbose > 1 {
            say_lines(&messages::phases(&self.phases));
        }
    }
}
