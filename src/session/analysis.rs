//! From the samples to the configuration: the state before and after the decision.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustc_hash::FxHashMap;

use super::{Decider, Error, Outcome, Skipped, UnresolvedPlace};
use crate::config::{self, Decision, OnCaches};
use crate::decider::Decided;
use crate::evidence::{Evidence, EvidenceError, Folds, Scope, Sum, Sums};
use crate::host::phases::Begun;
use crate::host::priority::raised;
use crate::host::proc;
use crate::report::score::{GroupOrder, ScoreReport};
use crate::report::{
    self, Configuration, RecoveryReport, Report, RunReport, SchedulingReport, SubcellScheduling, UnresolvedPlaceReport,
    WakeupReport, WakeupsBetween,
};
use crate::resolve::{symbolize, SymbolOptions, Symbols};
use crate::sample::Source;
use scxprof_sched::report::{By, Order};

/// The name of the configuration of an analysis beside others.
const BEST: &str = "(best)";

/// What was sampled, before the decision.
#[derive(Debug)]
#[non_exhaustive]
pub struct Sampled {
    /// Counts of samples by cell and thread, and the sketch.
    pub decider: Decider,
    /// Counts, losses and notes.
    pub outcome: Outcome,
    /// The sources that were tried before the one that worked.
    pub skipped: Skipped,
    options: config::DecisionOptions,
    symbols: SymbolOptions,
    /// The procfs of the sampled processes, if the capture has just ended.
    pub(super) procfs: Option<PathBuf>,
    /// See [`super::Session`].
    pub(super) raises: bool,
}

impl Sampled {
    /// The samples that `decider` took from a session with this `outcome`, to be decided with `options`. `symbols` tells how to
    /// name code, if the decider keeps it.
    pub(super) fn new(
        mut decider: Decider,
        mut outcome: Outcome,
        options: config::DecisionOptions,
        symbols: SymbolOptions,
    ) -> Self {
        decider.know_busy_cpus(outcome.cpu_time.map(|it| it.as_secs_f64() / outcome.duration.as_secs_f64()));
        outcome.loss.no_cgroup_path += decider.no_cgroup_path();
        outcome.loss.evicted += decider.unlisted();
        Self { decider, outcome, skipped: Skipped::new(), options, symbols, procfs: None, raises: false }
    }

    /// The sharing between classes of threads in this run, as rows that can be added to those of other runs and hosts. `scope` says where
    /// they come from, except for the source; `host` is the host's name or a substitute; `folds` says which parts of cgroups' paths
    /// are replaced.
    ///
    /// # Errors
    /// [`EvidenceError`]: there are too many rows.
    pub fn evidence(&self, scope: &Scope, host: &str, folds: &Folds) -> Result<Evidence, EvidenceError> {
        let _raised = raised(self.raises);
        evidence(&self.decider, &self.outcome, scope, host, folds)
    }

    /// Makes the decision.
    ///
    /// # Errors
    /// [`Error::NoSamples`].
    pub fn decide(self) -> Result<Analysis, Error> {
        let Self { decider, mut outcome, skipped, options, symbols, procfs, raises } = self;
        let _raised = raised(raises);
        let Ok(mut decided) = decider.decide(&options) else {
            return Err(Error::NoSamples { outcome: Box::new(outcome) });
        };
        for whose in decided.found.configuration.notes.iter_mut().filter_map(config::Note::thread_mut) {
            whose.uid = procfs.as_deref().and_then(|procfs| uid(procfs, whose));
        }
        let Outcome { address_spaces, modules, .. } = &mut outcome;
        let began = Begun::now();
        decided.locate(address_spaces, modules);
        decided.phases.push(began.end("find where memory lies"));
        outcome.phases.extend(&decided.phases);
        let source = decider.source();
        Ok(Analysis { source, outcome, skipped, decider, options, decided, symbols, named: OnceLock::new(), raises })
    }
}

fn evidence(
    decider: &Decider,
    outcome: &Outcome,
    scope: &Scope,
    host: &str,
    folds: &Folds,
) -> Result<Evidence, EvidenceError> {
    let run =
        Sums::default().with(Sum::Duration, outcome.duration.as_millis() as u64).with(Sum::Lost, outcome.loss.lost());
    decider.evidence(scope, host, folds, &run)
}

/// The user of a thread that still exists under its name.
fn uid(procfs: &Path, whose: &config::ThreadRef) -> Option<u32> {
    let task = procfs.join(format!("{}/task/{}", whose.pid, whose.tid));
    proc::status_id(&task, "Uid").filter(|_| proc::has_name(&task, whose.comm))
}

/// The result of a capture.
#[derive(Debug)]
#[non_exhaustive]
pub struct Analysis {
    /// The source of the addresses: the source that worked, or [`Source::Recorded`] for a [`super::Feed`].
    pub source: Source,
    /// Counts, losses and notes.
    pub outcome: Outcome,
    /// The sources that were tried before the one that worked.
    pub skipped: Skipped,
    decider: Decider,
    options: config::DecisionOptions,
    decided: Decided,
    symbols: SymbolOptions,
    named: OnceLock<Symbols>,
    raises: bool,
}

impl Analysis {
    /// The cells that are written for the target host, and the notes about them and about what the configuration leaves out.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        self.decided.configuration()
    }

    /// All cells that were found, also those for which the target host has no CPUs; without notes on the host.
    #[must_use]
    pub fn finding(&self) -> &Decision {
        self.decided.finding()
    }

    /// The configuration for scx_mitosis, as JSON.
    ///
    /// # Errors
    /// [`Decision::refused`]: none of the groups can be loaded on the target host. Any other configuration that the
    /// scheduler would reject is a bug.
    pub fn mitosis(&self) -> Result<String, Error> {
        let _raised = raised(self.raises);
        match &self.decision().refused {
            Some(refused) => Err(refused.clone().into()),
            None => Ok(config::mitosis::to_json(&self.decision().cells)?),
        }
    }

    /// The configuration for scx_layered, as JSON, and notes on what it leaves out. It matches hints if they were used.
    ///
    /// # Errors
    /// The scheduler would reject it, which is a bug.
    pub fn layered(&self) -> Result<(String, Vec<config::Note>), Error> {
        let _raised = raised(self.raises);
        let mut layers = if self.decider.uses_hints() {
            config::layers_by_hint(self.decision(), &self.decided.members)
        } else {
            config::layers(self.decision())
        };
        if self.options.this_host {
            config::this_host::add(&mut layers, &self.decider.host_threads(&self.decided.members));
        }
        Ok((config::layered::to_json(&layers.layers)?, layers.notes))
    }

    /// True if these arguments of `--cell` together avoid more misses, by computation, without leaving out more groups.
    pub(crate) fn are_better(&self, cells: &[String]) -> bool {
        let _raised = raised(self.raises);
        self.decider.are_better(&self.decided.found, &self.options, cells)
    }

    /// The cgroups of all threads: the path, the samples, and whether no cell spec but the last takes it; most samples first.
    pub(crate) fn sampled_cgroups(&self) -> Vec<(Vec<u8>, f64, bool)> {
        self.decider.sampled_cgroups()
    }

    /// The community of each thread that has one, by thread id.
    #[must_use]
    pub fn communities(&self) -> FxHashMap<u32, u32> {
        let of = |member: &config::Member| match member.verdict {
            config::Verdict::Community(community) => Some((member.tid, community)),
            _ => None,
        };
        self.decided.members.threads.iter().filter_map(of).collect()
    }

    /// The wakeups that the configuration keeps together, and those between threads that share memory; `None` if
    /// nothing of it can be loaded. `stats` has taken the scheduling events of the same session, and counts wakers ([`SchedSink::with_wakers`](super::SchedSink)).
    ///
    /// # Errors
    /// Those of [`Analysis::mitosis`] and [`Analysis::layered`].
    pub fn wakeups(&self, stats: &super::SchedSink) -> Result<Option<WakeupReport>, Error> {
        let configuration = match self.options.scheduler {
            config::Scheduler::Layered => self.layered()?.0,
            _ if self.decision().refused.is_some() => return Ok(None),
            _ => self.mitosis()?,
        };
        let placement = config::Placement::parse(&configuration)?;
        Ok(Some(self.decider.wakeups(&self.decided, &placement, stats)))
    }

    /// The names of the code and of the variables in [`Analysis::report`]. The first call looks them up, which can take 25 s if
    /// file systems do not answer.
    pub fn symbols(&self) -> &Symbols {
        self.named.get_or_init(|| {
            let _raised = raised(self.raises);
            // Files of other users are read only if names were requested.
            let codes = self.decided.codes().filter(|_| self.decider.keeps_code());
            symbolize(&self.outcome.modules, codes, &self.symbols)
        })
    }

    /// Leaves code and variables without names in [`Analysis::report`], if they were not looked up yet.
    pub(crate) fn leave_unnamed(&self) {
        let _ = self.named.set(Symbols::default());
    }

    /// The facts behind the decision, as `scxprof run --report` writes them.
    ///
    /// # Errors
    /// The scheduler would reject the configuration, which is a bug.
    pub fn report(&self) -> Result<Report, Error> {
        let _raised = raised(self.raises);
        let mut report = self.decider.report(&self.decided, self.symbols(), &self.options)?;
        report.hints.clone_from(&self.outcome.hints);
        report.event_count = self.outcome.events;
        report.loss = self.outcome.loss.by_stage();
        report.tables.clone_from(&self.outcome.tables);
        report.timeline = self.decider.timeline(&report, &self.outcome.timeline);
        report.run = self.run(report.run);
        report.configuration = match self.options.scheduler {
            config::Scheduler::Layered => Configuration::new(true, self.layered()?.0),
            _ if self.decision().refused.is_some() => Configuration::default(),
            _ => Configuration::new(false, self.mitosis()?),
        };
        Ok(report)
    }

    /// The facts about the run that are known here; the caller adds more.
    fn run(&self, run: RunReport) -> RunReport {
        let Outcome { duration, samples, accesses, recovery, loss, notes, .. } = &self.outcome;
        let skipped = self.skipped.iter().map(|(source, error)| format!("{source}: {error}"));
        let strings =
            |counts: &BTreeMap<&str, u64>| counts.iter().map(|(&what, &count)| (what.to_owned(), count)).collect();
        let place = |place: &UnresolvedPlace| {
            let UnresolvedPlace { file, offset, times, reason } = place;
            UnresolvedPlaceReport { file: file.clone(), offset: *offset, times: *times, reason: (*reason).to_owned() }
        };
        let recovery = recovery.as_ref().map(|recovery| RecoveryReport {
            user_samples: recovery.user_samples,
            recovered: recovery.recovered,
            by_method: strings(&recovery.by_method),
            unrecovered: strings(&recovery.unrecovered),
            kernel_samples: recovery.kernel_samples,
            kernel_recovered: recovery.kernel_recovered,
            kernel_unrecovered: strings(&recovery.kernel_unrecovered),
            operands: recovery.operands,
            unresolved_operands: strings(&recovery.unresolved_operands),
            unresolved_places: recovery.unresolved_places.iter().map(place).collect(),
        });
        RunReport {
            seconds: duration.as_secs_f64(),
            records: *samples,
            accesses: *accesses,
            recovery,
            lost_percent: loss.percent(),
            lost: loss.lines(),
            left_out: loss.left_out(),
            skipped: skipped.collect(),
            notes: notes.clone(),
            ..run
        }
    }

    /// How much of the avoidable misses each of these configurations avoids on a host with this many last-level caches (at least
    /// 2), and what the best one avoids: the one of this analysis. Each has a name. With [`super::AnalysisOptions::score`] there are
    /// intervals.
    ///
    /// Without a number, subcells of scx_mitosis have the CPUs that it gives them, if the target host's last-level caches are known and
    /// are several; otherwise there are as many as [`super::AnalysisOptions::caches`] says, or 2.
    #[must_use]
    pub fn score(&self, configurations: &[(String, config::Placement)], llcs: impl Into<Option<u32>>) -> ScoreReport {
        let _raised = raised(self.raises);
        let is_for_mitosis = self.options.scheduler == config::Scheduler::Mitosis;
        let known = || OnCaches::known(self.decision().caches, self.decision().target_cpus).filter(|_| is_for_mitosis);
        let target = || self.options.caches.map(|caches| caches.count);
        let order = match llcs.into() {
            Some(llcs) => OnCaches::Random(llcs.max(2)),
            None => known().unwrap_or_else(|| OnCaches::Random(target().unwrap_or(2).max(2))),
        };
        let avoidable = self.decider.avoidable();
        let mut notes = Vec::new();
        let own = match (&self.decision().refused, self.options.scheduler) {
            (Some(refused), config::Scheduler::Mitosis) => {
                notes.push(format!("there is no best configuration for this host: {refused}"));
                None
            }
            (_, config::Scheduler::Layered) => self.layered().ok().map(|it| it.0),
            _ => self.mitosis().ok(),
        };
        let own = own.and_then(|json| config::Placement::parse(&json).ok());
        let knows_hints = self.outcome.hints.is_some();
        let best = own.map(|own| self.decider.score(&self.decided, &avoidable, (BEST, &own), knows_hints, order));
        for (name, placement) in configurations {
            if let Some(refused) = self.decider.refuses(placement, self.decision().target_cpus) {
                notes.push(format!("{name}: {refused}"));
            }
            notes.extend(placement.warnings().into_iter().map(|warning| format!("{name}: {warning}")));
        }
        let scores = configurations.iter().map(|(name, placement)| {
            let mut judged = self.decider.score(&self.decided, &avoidable, (name, placement), knows_hints, order);
            if let Some(best) = &best {
                judged.below(best, &avoidable);
            }
            judged.score
        });
        ScoreReport {
            version: report::score::VERSION,
            scxprof: env!("CARGO_PKG_VERSION").to_owned(),
            source: self.source.name().to_owned(),
            samples: self.decider.tally().total(),
            llcs: order.llcs(),
            order: if matches!(order, OnCaches::Known { .. }) { GroupOrder::Known } else { GroupOrder::Random },
            avoidable: avoidable.share(),
            configurations: scores.collect(),
            best: best.map(|best| best.score),
            locality_found: self.decided.locality_found(),
            across_cells: self.decider.across_cells(&self.decided, &Symbols::default()),
            notes,
        }
    }

    /// See [`Sampled::evidence`].
    ///
    /// # Errors
    /// [`EvidenceError`]: there are too many rows.
    pub fn evidence(&self, scope: &Scope, host: &str, folds: &Folds) -> Result<Evidence, EvidenceError> {
        let _raised = raised(self.raises);
        evidence(&self.decider, &self.outcome, scope, host, folds)
    }

    /// What the scheduler did with the threads of each subcell. `stats` has taken the scheduling events of the same session, and
    /// counts wakers ([`SchedSink::with_wakers`](super::SchedSink::with_wakers)).
    ///
    /// # Errors
    /// The scheduler would reject the configuration, which is a bug.
    pub fn scheduling(&self, stats: &super::SchedSink) -> Result<SchedulingReport, Error> {
        let placement = self.placement()?;
        let cell_of = |task: &config::Task<'_>| placement.name_of(task);
        let subcells = stats.lines(By::Cell, Order::Run, &cell_of);
        let between = stats.wakeups_between(&|task| placement.taker(task));
        let between = between.into_iter().filter_map(|((a, b), wakeups)| Some(WakeupsBetween::new(a?, b?, wakeups)));
        let mut wakeups: Vec<WakeupsBetween> = between.collect();
        wakeups.sort_by_key(|it| std::cmp::Reverse(it.wakeups));
        Ok(SchedulingReport {
            seconds: stats.window() as f64 / 1e9,
            subcells: subcells.into_iter().map(SubcellScheduling::from).collect(),
            wakeups,
        })
    }

    /// The cells and subcells of [`Analysis::finding`] as scx_mitosis would place threads.
    ///
    /// # Errors
    /// The scheduler would reject the configuration, which is a bug.
    pub fn placement(&self) -> Result<config::Placement, Error> {
        let cells = &self.finding().cells;
        let consumer = config::Consumer::of(cells, self.finding().scheduler)?;
        Ok(config::Placement::of_cells(cells.clone(), consumer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_a_thread_is_known_while_it_has_its_name() {
        let procfs = tempfile::tempdir().unwrap();
        let task = procfs.path().join("7/task/8");
        std::fs::create_dir_all(&task).unwrap();
        std::fs::write(task.join("status"), "Name:\tweb\nUid:\t1000\t0\t0\t0\nGid:\t5\t5\t5\t5\n").unwrap();
        std::fs::write(task.join("comm"), "web\n").unwrap();
        let whose = |tid, comm: &str| config::ThreadRef {
            pid: 7,
            tid,
            comm: comm.into(),
            process: None,
            cgroup: None,
            uid: None,
        };
        let known = [(8, "web"), (8, "other"), (9, "web")].map(|(tid, comm)| uid(procfs.path(), &whose(tid, comm)));
        assert_eq!(known, [Some(1000), None, None]);
        let told = config::ThreadRef { process: Some("main".into()), uid: known[0], ..whose(8, "web") };
        assert_eq!(told.to_string(), "\"web\" is thread 8 of process 7 (\"main\"), uid 1000");
    }
}
