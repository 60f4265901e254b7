//! Makes the report of a decision, by the subcells to which the configuration as written assigns threads.

use std::collections::BTreeMap;

use super::across::CellSharing;
use super::answer::headline;
use super::matrix::Matrix;
use super::memory::{Granule, RegionReport};
use super::model::{CellReport, Report, Shared, SubcellKind, SubcellReport, ThreadReport, TimeReport, VERSION};
use super::run::{Configuration, RunReport, TimelineReport};
use crate::cluster::Edge;
use crate::config::decide::{Decision, DecisionOptions, NoSamples};
use crate::config::members::{CommunityIndex, Member, Members, Unknown, Verdict};
use crate::config::mitosis::MitosisError;
use crate::config::tally::Tally;
use crate::config::written::Places;
use crate::config::{Assigned, CellSpecs, Found, Note};
use crate::sample::Comm;
use scxprof_base::tables::Tables;

/// The part of the avoidable misses that is avoided if threads with one label share a cache, from 0 to 1, by a label for each thread.
pub(crate) type LocalityOf<'a> = dyn Fn(&[u32]) -> f64 + 'a;
/// How much labels share with each other and within, by a label for each thread.
pub(crate) type SharingOf<'a> = dyn Fn(&[u32]) -> Vec<Edge> + 'a;

/// Facts for the report that are not in the decision; the default is none.
#[derive(Default)]
pub(crate) struct Evidence<'a> {
    /// The source of the samples.
    pub source: &'a str,
    /// Its coverage, in a sentence.
    pub coverage: &'a str,
    /// By number of the community.
    pub communities: Vec<CommunityEvidence>,
    /// How much the two halves of the run agree, the adjusted Rand index of their communities.
    pub stability: Option<f64>,
    /// Hubs, which join no threads.
    pub hubs: Vec<Granule>,
    /// The hottest written lines that threads share.
    pub lines: Vec<Granule>,
    /// The part of the avoidable misses that is avoided if threads with one label share a cache, by a label for each thread;
    /// see [`Report::locality`]. `None` if unknown.
    pub locality: Option<&'a LocalityOf<'a>>,
    /// How much labels share with each other and within, by a label for each thread.
    pub sharing: Option<&'a SharingOf<'a>>,
    /// What cells share with each other.
    pub across_cells: Vec<CellSharing>,
    /// The threads that share memory with threads of other cells, by thread.
    pub shares_across: Vec<bool>,
    /// The number of possible misses that was counted of each thread.
    pub misses: Vec<f64>,
}

impl std::fmt::Debug for Evidence<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evidence")
            .field("source", &self.source)
            .field("communities", &self.communities)
            .finish_non_exhaustive()
    }
}

impl Evidence<'_> {
    /// A sum of nothing is -0, which would be printed like that.
    fn captured(&self, labels: &[u32]) -> Option<f64> {
        self.locality.map(|locality| locality(labels) + 0.0)
    }
}

/// The evidence for one community.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct CommunityEvidence {
    /// How well both halves of the run reproduce it, from 0 to 1.
    pub stability: Option<f64>,
    /// Its confidence, from 0 to 1.
    pub confidence: f64,
    /// Whether its threads share with the same threads all the time.
    pub over_time: Option<TimeReport>,
    /// The largest regions that its threads share.
    pub regions: Vec<RegionReport>,
    /// The hottest pages that its threads share.
    pub pages: Vec<Granule>,
    /// The hottest lines of these.
    pub lines: Vec<Granule>,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The scheduler would reject the configuration, which is a bug.
    #[error("the configuration would be refused: {0}")]
    Refused(#[from] MitosisError),
    /// There is nothing to report.
    #[error(transparent)]
    NoSamples(#[from] NoSamples),
}

/// Reports all groups, by the subcells to which they assign threads as written, and which of them the configuration has.
///
/// # Errors
/// [`ReportError`].
pub(crate) fn report(
    (specs, tally): (&CellSpecs, &Tally),
    members: &Members,
    options: &DecisionOptions,
    what: &Found,
    evidence: &Evidence<'_>,
) -> Result<Report, ReportError> {
    let decision = &what.finding;
    let found = Places::new(decision, tally, members)?;
    let by_name = what.labels_by_name(specs, tally, members, options)?;
    let total = tally.total();
    let taker = |cell: usize, subcell: usize| what.taken_by.get(cell).and_then(|it| it.get(subcell)).cloned().flatten();

    let mut cells = Vec::with_capacity(decision.cells.len());
    for (index, cell) in decision.cells.iter().enumerate() {
        let bases = decision.bases.get(index).map(Vec::as_slice).unwrap_or_default();
        let mut subcells = Vec::new();
        for (at, subcell) in cell.subcells.iter().enumerate() {
            let place = Assigned { cell: Some(index), subcell: Some(at) };
            let mut made = found.subcell(&subcell.name, &place, members, evidence, total);
            if let Some(basis) = bases.get(at) {
                made.why.clone_from(&basis.why);
                if basis.class.is_some() {
                    made.kind = SubcellKind::Class;
                }
                if !basis.communities.is_empty() {
                    made.kind = SubcellKind::Community;
                    made.add(&basis.communities, evidence);
                }
            }
            if !subcell.is_catch_all() {
                made.prefixes.clone_from(&subcell.matches);
                made.locality = evidence.captured(&found.labels(Some(&place)));
            }
            made.in_configuration = taker(index, at);
            subcells.push(made);
        }
        if cell.subcells.is_empty() {
            let place = Assigned { cell: Some(index), subcell: None };
            let mut made = found.subcell(&cell.name, &place, members, evidence, total);
            made.in_configuration = taker(index, 0);
            subcells.push(made);
        }
        cells.push(CellReport { name: cell.name.clone(), subcells });
    }
    let is_limit = |note: &&Note| note.leaves_out();
    let limits: Vec<&Note> = what.configuration.notes.iter().filter(is_limit).collect();
    let report = Report {
        version: VERSION,
        scxprof: env!("CARGO_PKG_VERSION").to_owned(),
        source: evidence.source.to_owned(),
        coverage: evidence.coverage.to_owned(),
        samples: thousandths(total),
        headline: String::new(),
        locality: what.labels.as_ref().and_then(|labels| evidence.captured(labels)),
        locality_found: evidence.captured(&found.labels(None)),
        locality_by_name: by_name.as_ref().and_then(|labels| evidence.captured(labels)),
        stability: evidence.stability,
        sharing: found.sharing(decision, evidence),
        across_cells: evidence.across_cells.clone(),
        cells,
        hints: None,
        hubs: evidence.hubs.clone(),
        lines: evidence.lines.clone(),
        unlisted_threads: found.unlisted,
        event_count: 0,
        loss: BTreeMap::new(),
        tables: Tables::default(),
        wakeups: None,
        limits: limits.iter().map(ToString::to_string).collect(),
        notes: what.configuration.notes.iter().map(ToString::to_string).collect(),
        run: RunReport {
            target_cpus: decision.target_cpus,
            target_llcs: decision.caches.map(|caches| caches.count),
            ..RunReport::default()
        },
        configuration: Configuration::default(),
        timeline: TimelineReport::default(),
        matrix: Matrix::default(),
        scheduling: None,
        stacks: None,
    };
    Ok(Report { headline: headline(&report), ..report })
}

impl Places {
    fn subcell(
        &self,
        name: &str,
        place: &Assigned,
        members: &Members,
        evidence: &Evidence<'_>,
        total: f64,
    ) -> SubcellReport {
        let here = self.of.iter().zip(&members.threads).filter(|(it, _)| it.is_some_and(|it| it.2 == *place));
        let mut threads: Vec<ThreadReport> = here.map(|(_, member)| ThreadReport::new(member, evidence)).collect();
        threads.sort_by(|a, b| b.samples.total_cmp(&a.samples).then_with(|| a.tid.cmp(&b.tid)));
        let samples = threads.iter().fold(0.0, |sum, thread| sum + thread.samples);
        SubcellReport {
            name: name.to_owned(),
            kind: SubcellKind::Rest,
            in_configuration: None,
            prefixes: Vec::new(),
            samples: thousandths(samples),
            share: if total > 0.0 { samples / total } else { 0.0 },
            locality: None,
            stability: None,
            confidence: None,
            over_time: None,
            threads,
            regions: Vec::new(),
            pages: Vec::new(),
            lines: Vec::new(),
            why: Vec::new(),
        }
    }

    /// How much the subcells share, by their names.
    fn sharing(&self, decision: &Decision, evidence: &Evidence<'_>) -> Vec<Shared> {
        let Some(sharing) = evidence.sharing else { return Vec::new() };
        let mut number: BTreeMap<Assigned, u32> = BTreeMap::new();
        let mut labels = vec![u32::MAX; self.threads];
        for (thread, _, place) in self.of.iter().flatten() {
            let next = number.len() as u32;
            if let Some(label) = labels.get_mut(*thread as usize) {
                *label = *number.entry(*place).or_insert(next);
            }
        }
        let name = |label: u32| {
            let place = number.iter().find(|it| *it.1 == label)?.0;
            let cell = decision.cells.get(place.cell?)?;
            let subcell = place.subcell.and_then(|at| cell.subcells.get(at));
            Some(subcell.map_or(cell.name.clone(), |subcell| format!("{}/{}", cell.name, subcell.name)))
        };
        let shared = |edge: Edge| Some(Shared { a: name(edge.a)?, b: name(edge.b)?, misses: edge.misses });
        sharing(&labels).into_iter().filter_map(shared).collect()
    }
}

impl SubcellReport {
    fn add(&mut self, communities: &[CommunityIndex], evidence: &Evidence<'_>) {
        let worst = |a: Option<f64>, b: f64| Some(a.map_or(b, |a: f64| a.min(b)));
        for community in communities.iter().filter_map(|&it| evidence.communities.get(it as usize)) {
            if let Some(stability) = community.stability {
                self.stability = worst(self.stability, stability);
            }
            self.confidence = worst(self.confidence, community.confidence);
            let is_less = |it: &TimeReport| self.over_time.is_none_or(|other| it.constancy < other.constancy);
            self.over_time = community.over_time.filter(is_less).or(self.over_time);
            self.regions.extend(community.regions.iter().cloned());
            self.pages.extend(community.pages.iter().cloned());
            self.lines.extend(community.lines.iter().cloned());
        }
        self.regions.sort_by(|a, b| b.misses.total_cmp(&a.misses).then_with(|| a.memory.cmp(&b.memory)));
        for granules in [&mut self.pages, &mut self.lines] {
            granules.sort_by(|a, b| b.accesses.total_cmp(&a.accesses).then_with(|| a.memory.cmp(&b.memory)));
        }
    }
}

/// Rounds sums of parts of samples for display.
fn thousandths(samples: f64) -> f64 {
    (samples * 1000.0).round() / 1000.0
}

impl ThreadReport {
    fn new(member: &Member, evidence: &Evidence<'_>) -> Self {
        let shares_across = evidence.shares_across.get(member.thread as usize).is_some_and(|shares| *shares);
        let verdict = match member.verdict {
            Verdict::Community(community) => format!("community {community}"),
            Verdict::Alone if shares_across => "shares with other cells".to_owned(),
            Verdict::Alone => "alone".to_owned(),
            Verdict::SharesWithAll => "shares with all of its cell".to_owned(),
            Verdict::SharesWithSome => "shares with some of its cell".to_owned(),
            Verdict::Unknown(why @ Unknown::TooFewMisses) => {
                let misses = evidence.misses.get(member.thread as usize).copied().unwrap_or_default();
                format!("unknown: {why} ({misses:.0})")
            }
            Verdict::Unknown(why) => format!("unknown: {why}"),
        };
        let comm = member.comm.map(|comm: Comm| comm.to_string());
        let samples = thousandths(member.samples);
        Self { pid: member.pid, tid: member.tid, comm, hint: member.hint, samples, verdict }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_samples_are_rounded() {
        let member = Member {
            thread: 0,
            pid: 1,
            tid: 2,
            comm: None,
            hint: None,
            cell: 0,
            samples: f64::from(2.0f32 / 3.0),
            verdict: Verdict::Alone,
        };
        assert!((ThreadReport::new(&member, &Evidence::default()).samples - 0.667).abs() < f64::EPSILON);
    }
}
