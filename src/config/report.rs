//! The report of a decision: the facts behind each subcell, as `--report FILE` writes it. docs/report.md has the schema.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::cell_specs::CellSpecs;
use super::consumer::Assigned;
use super::decide::{decide, Decision, DecisionOptions, NoSamples};
use super::members::{CommunityIndex, Member, Members, Unknown, Verdict};
use super::mitosis::Refused;
use super::tally::Tally;
use super::written::Places;
use crate::cluster::Edge;
use crate::escape;
use crate::hint::HintCounts;
use crate::sample::Comm;
use crate::tables::Tables;

mod across;
mod matrix;
mod memory;
mod run;
mod scheduling;
mod stacks;
mod wakeups;

pub use super::cell::CellName;
pub use across::CellSharing;
pub use matrix::{Matrix, MatrixLeftOut, MatrixLine, MatrixPage, MatrixRegion, MatrixThread};
pub use run::{Configuration, RecoveryReport, RunReport, SubcellTimeline, TimelineReport, UnresolvedPlaceReport};
pub use scheduling::{SchedulingReport, SubcellScheduling, WakeupsBetween};
pub use stacks::{StacksReport, SubcellStacks};
pub use wakeups::{WakeupReport, Within};

pub use memory::{Code, DataSymbol, Granule, Identity, LineSharing, LineThread, RegionReport};

/// The version of the schema, raised when a field changes its meaning or is removed.
pub const VERSION: u32 = 3;

/// The part of the avoidable misses that is avoided if threads with one label share a cache, of 1, by a label for each thread.
pub(crate) type LocalityOf<'a> = dyn Fn(&[u32]) -> f64 + 'a;
/// How much labels share with each other and within, by a label for each thread.
pub(crate) type SharingOf<'a> = dyn Fn(&[u32]) -> Vec<Edge> + 'a;

/// Facts for the report that are not in the decision; the default is none.
#[derive(Default)]
pub(crate) struct Evidence<'a> {
    /// The source of the samples.
    pub source: &'a str,
    /// What it can and cannot sample, in a sentence.
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
    /// Whether it is the same all the time.
    pub over_time: Option<TimeReport>,
    /// The largest regions that its threads share.
    pub regions: Vec<RegionReport>,
    /// The hottest pages that its threads share.
    pub pages: Vec<Granule>,
    /// The hottest lines of these.
    pub lines: Vec<Granule>,
}

/// The report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// The version of scxprof that wrote it.
    #[serde(default)]
    pub scxprof: String,
    /// The source of the samples.
    pub source: String,
    /// What it can and cannot sample.
    pub coverage: String,
    /// Samples.
    pub samples: f64,
    /// The part of the avoidable misses that the configuration as written avoids, of 1. Threads in a catch-all are not kept
    /// together, so it does not count. `null` if no shared memory was sampled.
    pub locality: Option<f64>,
    /// The same for the configuration by names alone.
    pub locality_by_name: Option<f64>,
    /// How much the two halves of the run agree (adjusted Rand index).
    pub stability: Option<f64>,
    /// The cells, in the order of the configuration.
    pub cells: Vec<CellReport>,
    /// How much subcells share; each pair once.
    pub sharing: Vec<Shared>,
    /// What cells share with each other, those first that lose most; 64 pairs at most. A cell is a cgroup here, as it is for
    /// scx_mitosis.
    #[serde(default)]
    pub across_cells: Vec<CellSharing>,
    /// Counts of task hints, if they were requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hints: Option<HintCounts>,
    /// Hubs, which join no threads.
    pub hubs: Vec<Granule>,
    /// The hottest lines that threads share and that are written, whatever subcell the threads are in: those first that were found
    /// modified in another CPU's cache most often, then by the accesses that may have found them so. 32 at most.
    #[serde(default)]
    pub lines: Vec<Granule>,
    /// Threads in cgroups beyond the number that can be distinguished.
    pub unlisted_threads: usize,
    /// Events that were counted, sampled or not.
    #[serde(default)]
    pub event_count: u64,
    /// What was read, left out and lost, by stage.
    #[serde(default)]
    pub loss: BTreeMap<String, u64>,
    /// The sizes of the tables at the end.
    #[serde(default)]
    pub tables: Tables,
    /// Wakeups, if the scheduler's events were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wakeups: Option<WakeupReport>,
    /// The notes for the user.
    pub notes: Vec<String>,
    /// The run: how long, and what was lost.
    #[serde(default)]
    pub run: RunReport,
    /// The configuration, and how it is loaded.
    #[serde(default)]
    pub configuration: Configuration,
    /// Samples, yield and loss over time.
    #[serde(default)]
    pub timeline: TimelineReport,
    /// Which threads share what.
    #[serde(default)]
    pub matrix: Matrix,
    /// What the scheduler did, if its events were asked for and there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling: Option<SchedulingReport>,
    /// Call stacks, if they were asked for and there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stacks: Option<StacksReport>,
}

/// How the sharing of a subcell is spread over the run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TimeReport {
    /// How much two moments have in common, relative to moments that follow each other: 1 if its threads always share with the
    /// same threads.
    pub constancy: f64,
    /// When partners changed, in seconds after the first sample; `null` if they did not, or several times.
    pub change: Option<f64>,
    /// The first moment at which its threads shared memory, in seconds after the first sample.
    pub from: f64,
    /// The last one.
    pub to: f64,
    /// The part of the run in which they did, of 1.
    pub busy: f64,
}

/// A cell spec.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CellReport {
    /// Its name in the configuration.
    pub name: String,
    /// Its subcells, the catch-all last; an undivided cell has one with the cell's name.
    pub subcells: Vec<SubcellReport>,
}

impl CellReport {
    /// The path of one of its subcells: `cell/subcell`, or the cell if that is not divided.
    #[must_use]
    pub fn path_of(&self, subcell: &SubcellReport) -> String {
        if self.subcells.len() == 1 && subcell.name == self.name {
            return self.name.clone();
        }
        format!("{}/{}", self.name, subcell.name)
    }
}

/// The kind of a subcell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SubcellKind {
    /// Threads that share memory.
    Community,
    /// Threads of one name.
    Class,
    /// All others.
    Rest,
}

/// A subcell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SubcellReport {
    /// Its name in the configuration.
    pub name: String,
    /// Its kind.
    pub kind: SubcellKind,
    /// Its `matches` as written: one of these lists must match, with all of its prefixes.
    pub prefixes: Vec<Vec<String>>,
    /// Samples of its threads.
    pub samples: f64,
    /// The part of all samples that these are, of 1.
    pub share: f64,
    /// The part of the avoidable misses that this subcell avoids, of 1; `null` as for [`Report::locality`].
    pub locality: Option<f64>,
    /// How well both halves of the run reproduce its communities; the worst of several.
    pub stability: Option<f64>,
    /// The confidence in its communities, from 0 to 1; the worst of several.
    pub confidence: Option<f64>,
    /// Whether its communities are the same all the time; that with the lowest constancy. Missing for short runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_time: Option<TimeReport>,
    /// Its threads by the configuration as written, most samples first.
    pub threads: Vec<ThreadReport>,
    /// The regions that its threads share; those that avoid most misses come first.
    #[serde(default)]
    pub regions: Vec<RegionReport>,
    /// The hottest pages that its threads share.
    pub pages: Vec<Granule>,
    /// The hottest lines of these.
    pub lines: Vec<Granule>,
    /// What was merged or left out for it, and why.
    pub why: Vec<String>,
}

/// A thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ThreadReport {
    /// Its process.
    pub pid: u32,
    /// Its thread id.
    pub tid: u32,
    /// Its name, with unprintable bytes as `\xNN`; `null` if unknown.
    pub comm: Option<String>,
    /// Its hint, if hints distinguish threads; a thread with several is listed once for each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<u64>,
    /// Its samples.
    pub samples: f64,
    /// The verdict: `community N`, `alone`, `shares with all of its cell`, `shares with some of its cell`, `shares with other cells` or
    /// `unknown: ` and the reason.
    pub verdict: String,
}

/// How much two subcells share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Shared {
    /// One subcell, as `cell/subcell`.
    pub a: String,
    /// The other, or the same.
    pub b: String,
    /// Possible misses that are avoided if both share a cache.
    pub misses: f64,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The scheduler would reject the configuration, which is a bug.
    #[error("the configuration would be refused: {0}")]
    Refused(#[from] Refused),
    /// There is nothing to report.
    #[error(transparent)]
    NoSamples(#[from] NoSamples),
}

/// Reports a decision, by where the configuration as written puts each thread.
///
/// # Errors
/// [`ReportError`].
pub(crate) fn report(
    groups: &CellSpecs,
    tally: &Tally,
    members: &Members,
    options: &DecisionOptions,
    decision: &Decision,
    evidence: &Evidence<'_>,
) -> Result<Report, ReportError> {
    let found = Places::new(decision, tally, members)?;
    let by_name = decide(groups, tally, &Members::default(), options)?;
    let by_name = Places::new(&by_name, tally, members)?;
    let total = tally.total();

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
            subcells.push(made);
        }
        if cell.subcells.is_empty() {
            let place = Assigned { cell: Some(index), subcell: None };
            subcells.push(found.subcell(&cell.name, &place, members, evidence, total));
        }
        cells.push(CellReport { name: cell.name.clone(), subcells });
    }
    Ok(Report {
        version: VERSION,
        scxprof: env!("CARGO_PKG_VERSION").to_owned(),
        source: evidence.source.to_owned(),
        coverage: evidence.coverage.to_owned(),
        samples: thousandths(total),
        locality: evidence.captured(&found.labels(None)),
        locality_by_name: evidence.captured(&by_name.labels(None)),
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
        notes: decision.notes.iter().map(ToString::to_string).collect(),
        run: RunReport { target_cpus: decision.target_cpus, ..RunReport::default() },
        configuration: Configuration::default(),
        timeline: TimelineReport::default(),
        matrix: Matrix::default(),
        scheduling: None,
        stacks: None,
    })
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

impl Report {
    /// The report as JSON.
    ///
    /// # Errors
    /// None with these types; `serde_json` requires the result.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self).map(|text| short_lists(&escape::json(text)) + "\n")
    }
}

/// Pretty JSON with lists of numbers in one line each: the matrix has thousands of short ones.
fn short_lists(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    let mut rest = json;
    let (mut in_string, mut is_escaped) = (false, false);
    while let Some(character) = rest.chars().next() {
        let (this, after) = rest.split_at(character.len_utf8());
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = in_string,
            '"' => in_string = !in_string,
            '[' if !in_string => {
                let is_plain = |c: char| c.is_ascii_digit() || " \n.,-+eE".contains(c);
                let end = after.find(|c| !is_plain(c)).filter(|&end| after[end..].starts_with(']'));
                if let Some((list, after)) = end.and_then(|end| after.split_at_checked(end)) {
                    let numbers: Vec<&str> = list.split(',').map(str::trim).collect();
                    text.push('[');
                    text += &numbers.join(", ");
                    rest = after;
                    continue;
                }
            }
            _ => {}
        }
        text.push_str(this);
        rest = after;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_numbers_take_one_line() {
        let value =
            serde_json::json!({"a": [[1, -2.5], []], "b": ["[1,\n2]", "\\\"[1"], "c": [1e-7, 3], "d": [null, 1]});
        let pretty = serde_json::to_string_pretty(&value).unwrap();
        let short = short_lists(&pretty);
        assert!(
            short.contains("[1, -2.5]") && short.contains("\"c\": [1e-7, 3]") && !short.contains("[null, 1]"),
            "{short}"
        );
        assert_eq!(serde_json::from_str::<serde_json::Value>(&short).unwrap(), value);
    }

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
