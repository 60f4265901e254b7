//! The common part of `run`, `extract` and `report`, in its order: to decide, to write the configuration, to make the report and
//! to show it.

use std::path::PathBuf;

use anyhow::{anyhow, Context};
use clap::Args;

use super::args::{MinShareArgs, TargetArgs, TargetCpusArgs};
use super::ends::{Ends, Step};
use super::failure::{Done, Failure};
use super::outputs::Outputs;
use super::say::say_lines;
use super::{hints, messages};
use crate::config::{CellOptions, Scheduler};
use crate::report::Report;
use crate::sample::places::CpuPlaces;
use crate::sample::Source;
use crate::session::{Analysis, AnalysisOptions, Error, Outcome, Sampled, SchedSink};

/// What to decide.
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

    /// As a part of 1.
    pub(super) fn min_share(&self) -> f64 {
        self.min_share.part()
    }

    /// The target scheduler.
    pub(super) fn scheduler(&self) -> Scheduler {
        self.target.scheduler()
    }

    /// The same for a session, with the names that will be shown.
    pub(super) fn analysis(&self, named: Named) -> AnalysisOptions {
        let symbols = named != Named::Nothing && !self.no_symbols;
        AnalysisOptions {
            cells: self.cell_options(),
            min_share: self.min_share(),
            target_cpus: self.target_cpus(),
            scheduler: self.scheduler(),
            use_hints: self.use_hints,
            score: false,
            symbols,
            symbol_cache: cache(),
            source_lines: (symbols && named == Named::All).then(|| SCXPROF.into()),
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

/// What is printed as the result, and how much is said beside it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown {
    pub(super) printed: Printed,
    /// As often as `-v` was given.
    pub(super) verbose: u8,
}

/// What is printed as the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Printed {
    Configuration,
    /// What `-v` says, for people.
    Summary,
    /// The report.
    Json,
}

/// Of what there are names of code and variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    Nothing,
    /// The memory in the table of `-v`.
    Memory,
    /// All, with source lines.
    All,
}

impl Named {
    pub(super) fn new(verbose: u8, has_report: bool) -> Self {
        match verbose {
            _ if has_report => Self::All,
            0 => Self::Nothing,
            1 => Self::Memory,
            _ => Self::All,
        }
    }
}

/// This program, which reads debug information in a separate process.
pub(super) const SCXPROF: &str = "/proc/self/exe";

/// perf's cache of files by their build id.
pub(super) fn cache() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    home.map(|home| PathBuf::from(home).join(".debug"))
}

/// What an error would mean of a configuration that was checked.
const BUG: &str = "the configuration would be refused by the scheduler, which is a bug in scxprof";

/// What was decided.
pub(super) struct Decided {
    pub(super) found: Analysis,
    shown: Shown,
    /// What `-v` says of the samples, if that is to be printed.
    summary: Option<String>,
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
    let summary = (shown.printed == Printed::Summary).then(|| messages::summary(shown.verbose, &sampled));
    let found = sampled.decide().map_err(|error| match error {
        Error::NoSamples { outcome } => Failure::NoResult(nothing(&outcome, source)),
        error => Failure::NoResult(error.into()),
    })?;
    Ok(Decided { found, shown, summary })
}

impl Decided {
    /// The configuration as the scheduler reads it, which must take it.
    pub(super) fn configuration(&self, args: &DecisionArgs) -> Result<String, Failure> {
        if let Some(refused) = &self.found.decision().refused {
            return Err(Failure::DoesNotFit(anyhow!("no configuration: {refused}")));
        }
        let (configuration, notes) = match args.scheduler() {
            Scheduler::Layered => self.found.layered().context(BUG).map_err(Failure::NoResult)?,
            Scheduler::Mitosis => (self.found.mitosis().context(BUG).map_err(Failure::NoResult)?, Vec::new()),
        };
        for note in self.found.decision().notes.iter().chain(&notes) {
            say!("note: {note}");
        }
        if args.use_hints {
            say!("note: {}", hints::used(args.scheduler()));
        }
        Ok(configuration)
    }

    /// Writes the configuration, if it is what is printed. It comes before the report: naming code reads files of other users.
    pub(super) fn write(&self, configuration: &str, outputs: &mut Outputs) -> Done {
        match self.shown.printed {
            Printed::Configuration => outputs.write_result(configuration.as_bytes()),
            Printed::Summary | Printed::Json => Ok(()),
        }
    }

    /// True if anything is made of the report.
    pub(super) fn needs_report(&self, outputs: &Outputs) -> bool {
        let Shown { printed, verbose } = self.shown;
        verbose > 0 || printed != Printed::Configuration || outputs.need_report()
    }

    /// Makes the report, to which the caller adds what only it knows.
    pub(super) fn report(&self, args: &DecisionArgs, sched: Option<&SchedSink>) -> Result<Report, Failure> {
        let mut report = self.found.report().context(BUG).map_err(Failure::NoResult)?;
        if let Some(stats) = sched.filter(|stats| args.sched || stats.events() > 0) {
            report.wakeups = Some(self.found.wakeups(stats).context(BUG).map_err(Failure::NoResult)?);
            if stats.events() > 0 {
                report.scheduling = Some(self.found.scheduling(stats).context(BUG).map_err(Failure::NoResult)?);
            } else {
                say!("note: --sched: there are no scheduling events; `scxprof record --sched` records them");
            }
        }
        Ok(report)
    }

    /// Prints the report as it is wanted, and writes all that is made of it.
    pub(super) fn show(self, report: &Report, mut outputs: Outputs, ends: &mut Ends) {
        let shown = self.shown;
        for note in self.found.symbols().notes() {
            say!("note: {note}");
        }
        let tables = messages::tables(shown.verbose, report);
        let text = match (shown.printed, self.summary) {
            (Printed::Json, _) => Some(report.to_json().context("cannot write the report").map_err(Failure::NoResult)),
            (_, Some(summary)) => Some(Ok(scxprof_base::escape::lines(&(summary + &tables)))),
            (_, None) => None,
        };
        match text {
            Some(text) => {
                ends.note(Step::Result, text.and_then(|text| outputs.write_result(text.as_bytes())));
            }
            None if shown.verbose > 0 => say_lines(&tables),
            None => {}
        }
        ends.note(Step::Report, outputs.write_report(report, &self.found.outcome));
    }
}
