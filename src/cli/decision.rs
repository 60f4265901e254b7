//! The common part of `run`, `extract` and `report`: the decision, and the messages about it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, Context};
use clap::Args;

use super::args::{MinShareArgs, TargetArgs, TargetCpusArgs};
use super::failure::Failure;
use super::hints;
use super::outputs::Outputs;
use super::say::say_lines;
use crate::config::{CellOptions, CellSpecError, Scheduler};
use crate::host::priority::NICE;
use crate::report::{self, Report};
use crate::sample::places::CpuPlaces;
use crate::sample::Source;
use crate::sampler::loss::Loss;
use crate::session::{Analysis, Builder, Error, Outcome, RecoveryStats, Sampled, SchedLoss, SchedSink};
use scxprof_recover::Unrecovered;

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

    /// `builder` with the options of the decision, and with the names that will be shown.
    pub(super) fn configure<'a>(&self, builder: Builder<'a>, named: Named) -> Builder<'a> {
        let mut builder = builder.cells(self.cell_options()).min_share(self.min_share()).scheduler(self.scheduler());
        if let Some(cpus) = self.target_cpus() {
            builder = builder.target_cpus(cpus);
        }
        if self.use_hints {
            builder = builder.use_hints();
        }
        if named != Named::Nothing && !self.no_symbols {
            builder = builder.symbols();
            if named == Named::All {
                builder = builder.source_lines(Path::new(SCXPROF));
            }
        }
        if let Some(cache) = cache() {
            builder = builder.symbol_cache(&cache);
        }
        builder
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

/// The letters of methods as [`crate::sample::Method`] has them, in words.
const METHODS: [(&str, &str); 7] = [
    ("a", "at the ip"),
    ("c", "before it, registers unchanged"),
    ("b", "after it, registers unchanged"),
    ("e", "after it, emulated"),
    ("i", "before it, computed backwards"),
    ("r", "before it, replayed"),
    ("m", "after it, with memory that may have changed"),
];

/// Why there are unresolved gathers: see [`Unrecovered::Gather`].
const GATHERS: &str =
    "Gathers and scatters: their indices are in vector registers. The kernel gives these only with PEBS of \
                       Intel cores, not with a timer";

/// Who was sampled and how, for `-v`.
pub(super) fn summary(verbose: u8, sampled: &Sampled) -> String {
    let Sampled { decider, outcome, .. } = sampled;
    let source = decider.source();
    let Outcome { duration, events, samples, accesses, .. } = outcome;
    let seconds = duration.as_secs_f64();
    let mut text = format!("Source: {source} ({})\n", source.coverage());
    let _ = writeln!(text, "Sampled {seconds:.1} s: {events} events, {samples} samples, {accesses} accesses");
    if let Some(priority) = outcome.realtime {
        let _ = writeln!(text, "Readers: SCHED_FIFO, priority {priority}, all else of scxprof nice {NICE}");
    }
    if let Some(recovery) = &outcome.recovery {
        text.push_str(&yield_text(verbose, recovery));
        text.push('\n');
    }
    text + &report::summary(decider.specs(), decider.tally(), verbose > 1)
        + &super::cgroups::text(&decider.sampled_cgroups())
}

/// Messages about the samples: losses always, the summary with -v.
pub(super) fn report(verbose: u8, sampled: &Sampled) {
    let outcome = &sampled.outcome;
    let loss = outcome.loss;
    if verbose > 0 {
        say_lines(&summary(verbose, sampled));
    }
    if let Some(hints) = &outcome.hints {
        hints::report(hints, verbose);
    }
    say_loss(&loss, verbose > 0 || outcome.accesses == 0);
    if verbose > 1 {
        loss.harmless().iter().for_each(|line| say!("note: {line}"));
    }
    if loss.lost() > 0 || verbose > 0 {
        say!("{:.3} % of the samples were lost ({} of {})", loss.percent(), loss.lost(), loss.total());
    }
}

/// Reports each `--cell` that matches nothing.
fn say_unmatched(args: &DecisionArgs, sampled: &Sampled) {
    let groups = sampled.decider.specs().specs();
    for (group, (given, _)) in args.cells.iter().zip(groups).enumerate() {
        if sampled.decider.tally().spec_total(group) <= 0.0 {
            say!(
                "note: --cell {given}: no sampled cgroup matches it (earlier --cell options win); the cell is omitted"
            );
        }
    }
}

/// The error of the options for cell specs.
pub(super) fn wrong_groups(error: &CellSpecError) -> Failure {
    let option = match error {
        CellSpecError::Regex { option, .. } if option == "allotment" => "--workload-allotment-cgroup-regex",
        CellSpecError::Regex { option, .. } if option == "workload" => "--workload-cgroup-regex",
        _ => "--cell",
    };
    Failure::Usage(anyhow!("{option}: {error}"))
}

/// Reports what was lost, and what was `left_out` if requested.
pub(super) fn say_loss(loss: &Loss, left_out: bool) {
    let left_out = if left_out { loss.left_out() } else { Vec::new() };
    for line in left_out.into_iter().chain(loss.lines()) {
        say!("note: {line}");
    }
}

/// The timer source's yield, for display.
fn yield_text(verbose: u8, recovery: &RecoveryStats) -> String {
    let list = |counts: &std::collections::BTreeMap<&str, u64>| {
        counts.iter().map(|(what, count)| format!("{what} {count}")).collect::<Vec<_>>().join(", ")
    };
    let mut lines = vec![format!(
        "Recovered: {} of {} user samples ({:.1}%){}",
        recovery.recovered,
        recovery.user_samples,
        recovery.share() * 100.0,
        if recovery.by_method.is_empty() {
            String::new()
        } else {
            let methods = METHODS.iter().filter_map(|(letter, words)| {
                recovery.by_method.get(letter).map(|count| format!("{letter} {count} ({words})"))
            });
            format!("; addresses by method: {}", methods.collect::<Vec<_>>().join(", "))
        }
    )];
    if !recovery.unrecovered.is_empty() {
        lines.push(format!("Not recoverable: {}", list(&recovery.unrecovered)));
    }
    if recovery.operands > 0 {
        // Samples that gave an address can lack others: what a part of the code accesses may be missing.
        let reasons = list(&recovery.unresolved_operands);
        lines.push(format!(
            "Memory operands near the samples: {}, {:.1}% of them unresolved{}{reasons}",
            recovery.operands,
            recovery.unresolved_share() * 100.0,
            if reasons.is_empty() { "" } else { ": " }
        ));
    }
    if verbose > 1 {
        lines.extend(
            recovery.unresolved_places.iter().map(|place| {
                format!("Never resolved: the operand of {place}, {} times ({})", place.times, place.reason)
            }),
        );
    }
    if recovery.unresolved_operands.contains_key(Unrecovered::Gather.name()) {
        lines.push(GATHERS.to_owned());
    }
    if recovery.code_unsettled > 0 {
        lines.push(format!("Code in memory that may have changed since it ran: {} times", recovery.code_unsettled));
    }
    if recovery.absent_pages > 0 {
        lines.push(format!("Addresses without a page: {}", recovery.absent_pages));
    }
    if recovery.unmapped_pages > 0 {
        lines.push(format!(
            "Addresses in mappings that moved, before these were read again: {}",
            recovery.unmapped_pages
        ));
    }
    if !recovery.frames_visible {
        lines.push(crate::outcome::FRAMES_HIDDEN.to_owned());
    }
    lines.join("\n")
}

/// Decides, and writes the result and the report; `add` puts what only the caller knows into the report, and `nothing` explains
/// why there were no samples.
pub(super) fn finish(
    args: &DecisionArgs,
    printed: Printed,
    verbose: u8,
    (sampled, sched): (Sampled, Option<&SchedSink>),
    mut outputs: Outputs,
    add: impl FnOnce(&Analysis, &mut Report) -> Result<(), Failure>,
    nothing: impl FnOnce(&Outcome, Source) -> anyhow::Error,
) -> Result<(), Failure> {
    let source = sampled.decider.source();
    if sampled.outcome.accesses > 0 {
        say_unmatched(args, &sampled);
    }
    let summary = (printed == Printed::Summary).then(|| summary(verbose, &sampled));
    let found = sampled.decide().map_err(|error| match error {
        Error::NoSamples { outcome } => Failure::NoResult(nothing(&outcome, source)),
        error => Failure::NoResult(error.into()),
    })?;
    // Also where this host has too few CPUs for a configuration: others have more.
    let evidence = outputs.take_evidence().map_or(Ok(()), |to| to.write(&found));
    let bug = "the configuration would be refused by the scheduler, which is a bug in scxprof";
    if let Some(refused) = &found.decision().refused {
        return Err(Failure::DoesNotFit(anyhow!("no configuration: {refused}")));
    }
    let (json, notes) = match args.scheduler() {
        Scheduler::Layered => found.layered().context(bug).map_err(Failure::NoResult)?,
        _ => (found.mitosis().context(bug).map_err(Failure::NoResult)?, Vec::new()),
    };
    for note in found.decision().notes.iter().chain(&notes) {
        say!("note: {note}");
    }
    if args.use_hints {
        say!("note: {}", hints::used(args.scheduler()));
    }
    let needs_report = outputs.need_report();
    let free = outputs.is_stdout_free;
    let (result, report_to) = outputs.split();
    let is_configuration = printed == Printed::Configuration;
    // The configuration comes before naming code, which reads files of other users.
    let (result, written) = if is_configuration {
        (None, result.write(json.as_bytes(), true).map_err(Failure::NoResult))
    } else {
        (Some(result), Ok(()))
    };
    if verbose == 0 && !needs_report && is_configuration {
        return written.and(evidence);
    }
    let mut report = found.report().context(bug).map_err(Failure::NoResult)?;
    if let Some(stats) = sched.filter(|stats| args.sched || stats.events() > 0) {
        report.wakeups = Some(found.wakeups(stats).context(bug).map_err(Failure::NoResult)?);
        if stats.events() > 0 {
            report.scheduling = Some(found.scheduling(stats).context(bug).map_err(Failure::NoResult)?);
        } else {
            say!("note: --sched: there are no scheduling events; `scxprof record --sched` records them");
        }
    }
    add(&found, &mut report)?;
    for note in found.symbols().notes() {
        say!("note: {note}");
    }
    let tables = tables(verbose, &report);
    let printed = match result {
        None => {
            if verbose > 0 {
                say_lines(&tables);
            }
            Ok(())
        }
        Some(result) => {
            let text = match summary {
                Some(summary) => scxprof_base::escape::lines(&(summary + &tables)),
                None => report.to_json().context("cannot write the report").map_err(Failure::NoResult)?,
            };
            result.write(text.as_bytes(), true).map_err(Failure::NoResult)
        }
    };
    let reported = Outputs::write_report(report_to, &report, &found.outcome, free);
    written.and(printed).and(reported).and(evidence)
}

/// The tables of `-v` and `-vv`.
fn tables(verbose: u8, report: &Report) -> String {
    let mut text = report::table(report);
    if let Some(wakeups) = &report.wakeups {
        text.push_str(&wakeups.text());
    }
    if verbose > 1 {
        text.push_str(&report::matrix(report));
        text.push_str(&report::hot_lines(report));
    }
    text
}

/// What to do if no sample has an address of user memory; `None` if one has, or there are no samples.
pub(super) fn without_address(outcome: &Outcome, source: Source) -> Option<String> {
    let Loss { no_user_address, no_memory_op, .. } = outcome.loss;
    let all = outcome.accesses + no_memory_op;
    if all == 0 || outcome.accesses > no_user_address {
        return None;
    }
    let help = match source {
        Source::Recorded => ": record with `perf mem record`, or with `perf record -d` of an event that has one",
        _ => "",
    };
    Some(format!("none of the {all} samples has a data address{help}"))
}

/// Why a capture has no samples.
pub(super) fn no_samples(outcome: &Outcome, source: Source) -> anyhow::Error {
    let seconds = outcome.duration.as_secs_f64();
    if let Some(sentence) = without_address(outcome, source) {
        anyhow!("no usable samples: {sentence}")
    } else if source == Source::Wakeups && outcome.events > 0 {
        anyhow!("no usable samples in {seconds:.1} s: no thread that was watched woke another one")
    } else if outcome.events == 0 {
        anyhow!(
            "no usable samples in {seconds:.1} s: what was watched used almost no CPU time; sample longer (-t), or watch other \
             processes"
        )
    } else if outcome.loss.total() == 0 && outcome.loss.left_out().is_empty() {
        anyhow!(
            "no usable samples in {seconds:.1} s: {} events were counted, and none of them gave a sample",
            outcome.events
        )
    } else {
        anyhow!(
            "no usable samples in {seconds:.1} s, although {} events were counted: see the counts above",
            outcome.events
        )
    }
}

pub(super) fn check_loss(max_loss: f64, loss: &Loss) -> Result<(), Failure> {
    let percent = loss.percent();
    if percent > max_loss {
        return Err(Failure::Loss(anyhow!(
            "{percent:.1} % of the samples were lost, more than --max-loss {max_loss}: the result may be wrong"
        )));
    }
    Ok(())
}

/// The same for the scheduler's events.
pub(super) fn check_sched_loss(max_loss: f64, loss: &SchedLoss) -> Result<(), Failure> {
    let percent = loss.percent();
    if percent > max_loss {
        return Err(Failure::Loss(anyhow!(
            "{percent:.1} % of the scheduling events were lost, more than --max-loss {max_loss}: lines with losses are too low"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::UnresolvedPlace;

    #[test]
    fn operands_without_an_address_stand_beside_the_samples_with_one() {
        let file = "/usr/lib/libx.so".to_owned();
        let reason = Unrecovered::Gather.name();
        let recovery = RecoveryStats {
            user_samples: 100,
            recovered: 99,
            operands: 400,
            unresolved_operands: [(reason, 90), (Unrecovered::Overwritten.name(), 10)].into(),
            unresolved_places: vec![UnresolvedPlace { file, offset: 0x1234, times: 90, reason }],
            frames_visible: true,
            ..RecoveryStats::default()
        };
        let operands =
            "Recovered: 99 of 100 user samples (99.0%)\nMemory operands near the samples: 400, 25.0% of them \
                        unresolved: gather or scatter 90, registers overwritten 10";
        assert_eq!(yield_text(1, &recovery), format!("{operands}\n{GATHERS}"));
        let place = "Never resolved: the operand of libx.so+0x1234, 90 times (gather or scatter)";
        assert_eq!(yield_text(2, &recovery), format!("{operands}\n{place}\n{GATHERS}"));
        let recovery = RecoveryStats { unresolved_operands: std::collections::BTreeMap::new(), ..recovery };
        assert!(yield_text(1, &recovery).ends_with("\nMemory operands near the samples: 400, 0.0% of them unresolved"));
    }
}
