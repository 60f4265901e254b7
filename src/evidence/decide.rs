//! From evidence to a configuration: communities of classes, and the decision on cells and subcells.

use std::collections::BTreeMap;

use thiserror::Error;

use super::key::{Class, RowKind};
use super::report::{called, CommunityReport, FleetReport};
use super::rows::{Evidence, Sum, Sums};
use super::totals::{threads_of_run, Totals, LEAST_COUNTED};
use crate::config::cell_specs::CellKey;
use crate::config::{self, Affinity, CellMatch, CellSpecs, Decision, DecisionOptions, Member, Members, Scheduler};
use crate::config::{NoSamples, Tally, Unknown, Verdict};
use crate::sample::Comm;

/// Threads that are told to the decision: of a class, and of all, but at least one of each.
const MAX_THREADS: usize = 64;
const MAX_ALL_THREADS: usize = 1 << 18;
/// Cell specs of a run.
const MAX_SPECS: usize = 1024;

/// Why there is no configuration.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FleetError {
    /// The runs were made with different cell specs.
    #[error(
        "the runs have different cell specs: number {} is {first} in some of them and {second} in others; make them with the \
         same --cell options, or merge them apart",
        place.saturating_add(1)
    )]
    DifferentSpecs {
        /// The place in the list.
        place: i64,
        /// One of them.
        first: String,
        /// Another one.
        second: String,
    },
    /// The rows have no valid cell specs.
    #[error("the evidence has no cell specs, or some that are no cell specs")]
    NoSpecs,
    /// There is nothing to decide from.
    #[error(transparent)]
    NoSamples(#[from] NoSamples),
    /// The scheduler would refuse the configuration.
    #[error(transparent)]
    Refused(#[from] config::mitosis::MitosisError),
    /// The same for scx_layered.
    #[error(transparent)]
    LayeredRefused(#[from] config::layered::LayeredError),
}

/// A decision on evidence.
#[derive(Debug)]
#[non_exhaustive]
pub struct FleetDecision {
    /// The cells, and the notes about them.
    pub decision: Decision,
    /// The facts behind it.
    pub report: FleetReport,
    members: Members,
    uses_hints: bool,
}

impl Evidence {
    /// The cell specs of the runs.
    pub(super) fn specs(&self) -> Result<CellSpecs, FleetError> {
        let mut specs: BTreeMap<i64, (&str, &str)> = BTreeMap::new();
        for (key, _) in self.of_kind(RowKind::Spec) {
            let spec = (key.a.cell.as_str(), key.a.cgroup.as_str());
            if specs.len() >= MAX_SPECS {
                return Err(FleetError::NoSpecs);
            }
            let first = *specs.entry(key.part).or_insert(spec);
            if first != spec {
                let text = |(name, matches): (&str, &str)| format!("{name} ({matches})");
                return Err(FleetError::DifferentSpecs { place: key.part, first: text(first), second: text(spec) });
            }
        }
        CellSpecs::from_texts(specs.into_values()).ok_or(FleetError::NoSpecs)
    }

    /// CPUs of the host with fewest; `None` if no row says it.
    #[must_use]
    pub fn least_cpus(&self) -> Option<usize> {
        self.of_kind(RowKind::Run).filter_map(|(key, _)| key.scope.cpus.parse().ok()).filter(|cpus| *cpus > 0).min()
    }

    /// Finds the communities of classes, and decides on cells and subcells for hosts with `target_cpus` CPUs.
    ///
    /// Classes of one cell are joined by average linkage of the part of their possible misses that they share, by the rules of
    /// [`crate::cluster`]: what is joined there are threads, here pairs of classes count for as many pairs of threads as they
    /// have.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn decide(&self, options: &DecisionOptions) -> Result<FleetDecision, FleetError> {
        let specs = self.specs()?;
        let totals = Totals::new(self);
        let spec_of = |class: &Class| specs.specs().iter().position(|spec| spec.name == class.cell);
        let (mut tally, mut members) = (Tally::default(), Members::default());
        let mut communities: Vec<CommunityReport> = Vec::new();
        let mut community_of: BTreeMap<&Class, usize> = BTreeMap::new();
        let all: Vec<(&Class, &Sums)> = totals.classes.iter().collect();
        for of_cell in all.chunk_by(|a, b| (&a.0.cell, &a.0.cgroup) == (&b.0.cell, &b.0.cgroup)) {
            for (classes, common) in totals.communities(of_cell) {
                let Some(first) = classes.first() else { continue };
                let (cell, cgroup) = (first.cell.clone(), first.cgroup.clone());
                let mut names: Vec<String> = classes.iter().map(|class| called(class)).collect();
                names.sort();
                community_of.extend(classes.iter().map(|&class| (class, communities.len())));
                communities.push(CommunityReport { cell, cgroup, classes: names, common });
            }
        }
        let mut threads_of: BTreeMap<&Class, std::ops::Range<usize>> = BTreeMap::new();
        let mut tid = 0;
        let most_threads = (MAX_ALL_THREADS / totals.classes.len().max(1)).clamp(1, MAX_THREADS);
        for (class, sums) in &totals.classes {
            let Some(spec) = spec_of(class) else { return Err(FleetError::NoSpecs) };
            let cell = tally.cell(CellKey { spec, cgroup: class.cgroup.clone().into_bytes() });
            let comm = Comm::from(class.comm.as_str());
            let samples = sums.value(Sum::Samples);
            tally.add(cell, Some(comm), samples);
            let verdict = match community_of.get(class) {
                Some(&community) => Verdict::Community(community as u32),
                None if sums.value(Sum::Counted) < LEAST_COUNTED => Verdict::Unknown(Unknown::TooFewSamples),
                None => Verdict::Alone,
            };
            let threads = (threads_of_run(sums).round() as usize).clamp(1, most_threads);
            threads_of.insert(class, tid as usize..tid as usize + threads);
            for _ in 0..threads {
                let hint = class.hint.parse().ok();
                let samples = samples / threads as f64;
                members.threads.push(Member {
                    thread: tid,
                    pid: 1,
                    tid,
                    comm: Some(comm),
                    hint,
                    cell,
                    samples,
                    verdict,
                });
                tid += 1;
            }
        }
        members.affinity = affinity(&totals, &community_of);
        let runs = self.total(RowKind::Run, Sum::Runs).max(1.0);
        let cells_of_host = 1 + (self.total(RowKind::Cell, Sum::Cgroups) / runs).ceil().min(1e6) as usize;
        let options = DecisionOptions { cells: Some(cells_of_host), ..*options };
        let locality = |of: &[bool], labels: &[u32]| {
            totals.locality(|class| {
                let threads = threads_of.get(class)?;
                of.get(threads.start).filter(|is_of| **is_of)?;
                labels.get(threads.clone())
            })
        };
        let found = config::find(&specs, &tally, &members, &options, locality)?;
        let of_all = |labels: &Option<Vec<u32>>| {
            let labels = labels.as_ref()?;
            totals.locality(|class| labels.get(threads_of.get(class)?.clone()))
        };
        let localities = [of_all(&found.labels), of_all(&found.labels_of_finding)];
        let mut decision = found.configuration;
        unfold(&mut decision, &specs);
        let mut report = self.report(&totals, communities, &community_of, (&decision, cells_of_host));
        [report.locality, report.locality_found] = localities;
        let uses_hints = totals.classes.keys().any(|class| !class.hint.is_empty());
        Ok(FleetDecision { decision, report, members, uses_hints })
    }
}

/// The misses that communities avoid within and between each other.
fn affinity(totals: &Totals, community_of: &BTreeMap<&Class, usize>) -> Affinity {
    let mut affinity = Affinity::default();
    for ((a, b), sums) in totals.pairs.iter().chain(&totals.across) {
        if let (Some(&a), Some(&b)) = (community_of.get(a), community_of.get(b)) {
            affinity.add(a as u32, b as u32, sums.value(Sum::Avoidable));
        }
    }
    affinity
}

/// The expressions for single cgroups have folded paths, in which `*` stands for what was folded.
fn unfold(decision: &mut Decision, specs: &CellSpecs) {
    let given: Vec<String> = specs.specs().iter().map(|spec| spec.matcher.text()).collect();
    for cell in &mut decision.cells {
        if let CellMatch::CgroupRegex(regex) = &mut cell.matches {
            if !given.contains(&format!("regex {regex}")) {
                *regex = regex.replace(r"\*", ".*");
            }
        }
    }
}

impl FleetDecision {
    /// The configuration as JSON.
    ///
    /// # Errors
    /// The scheduler would refuse it.
    pub fn to_json(&self, scheduler: Scheduler) -> Result<String, FleetError> {
        match scheduler {
            Scheduler::Layered if self.uses_hints => {
                Ok(config::layered::to_json(&config::layers_by_hint(&self.decision, &self.members).layers)?)
            }
            Scheduler::Layered => Ok(config::layered::to_json(&config::layers(&self.decision).layers)?),
            Scheduler::Mitosis => match &self.decision.refused {
                Some(refused) => Err(refused.clone().into()),
                None => Ok(config::mitosis::to_json(&self.decision.cells)?),
            },
        }
    }
}
