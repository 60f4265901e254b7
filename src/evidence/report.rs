//! The facts behind a decision on evidence.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::hosts::HostReport;
use super::key::{Class, RowKind};
use super::rows::{Evidence, Sum, Sums};
use super::totals::{threads_of_run, Totals, LEAST_COUNTED};
use crate::config::{Decision, Note};
use scxprof_base::columns::{fitted, wrapped, Column};
use scxprof_base::escape;

/// The least part of the runs that disagree on a pair which is worth a line.
const DISAGREE: f64 = 0.02;
/// Disagreements in the report.
const LISTED: usize = 64;
/// Lines of a list in the text.
const LINES: usize = 16;
/// Pairs in the report.
const PAIRS: usize = 256;

/// The facts behind a decision on evidence, as `scxprof merge --report` writes them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FleetReport {
    /// The version of this schema.
    pub version: u32,
    /// The version of scxprof.
    pub scxprof: String,
    /// Runs, and the hosts that they are of.
    pub runs: i64,
    /// Different hosts; those without a name count as often as they were sampled.
    pub hosts: usize,
    /// Samples.
    pub samples: f64,
    /// Sampled time in s.
    pub seconds: f64,
    /// Samples that were lost.
    pub lost: i64,
    /// The number of CPUs that the configuration is for, and cells of a host on average.
    pub target_cpus: usize,
    /// Cells of a host on average, with that of the root.
    pub cells_of_host: usize,
    /// The part of the avoidable misses between threads of one cell that the configuration avoids, from 0 to 1; `null` if so little is
    /// avoidable that no configuration matters.
    #[serde(default)]
    pub locality: Option<f64>,
    /// The same if hosts had CPUs for all groups that were found.
    #[serde(default)]
    pub locality_found: Option<f64>,
    /// Classes that share memory.
    pub communities: Vec<CommunityReport>,
    /// All classes, by their possible misses.
    pub classes: Vec<ClassReport>,
    /// The pairs that share most, by what one cache for both avoids; 256 at most.
    pub pairs: Vec<PairReport>,
    /// Pairs on which hosts disagree: they share on some and not on others; 64 at most.
    pub disagreements: Vec<PairReport>,
    /// Hosts on which threads share differently than on most.
    pub outliers: Vec<HostReport>,
    /// Sentences.
    pub notes: Vec<String>,
}

/// The version of the schema of [`FleetReport`].
const REPORT_VERSION: u32 = 1;

/// Classes that share memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CommunityReport {
    /// The cell spec.
    pub cell: String,
    /// The folded cgroup; empty for the root's cell.
    pub cgroup: String,
    /// The folded names, each with its hint.
    pub classes: Vec<String>,
    /// The part of their possible misses that their threads have in common.
    pub common: f64,
}

/// A class.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClassReport {
    /// The cell spec.
    pub cell: String,
    /// The folded cgroup.
    pub cgroup: String,
    /// The folded name.
    pub comm: String,
    /// Its hint.
    pub hint: Option<String>,
    /// Runs in which it was sampled.
    pub runs: i64,
    /// Threads of a run on average.
    pub threads: f64,
    /// Samples.
    pub samples: f64,
    /// Possible misses.
    pub misses: f64,
    /// Cache lines of a run on average, as far as they were sampled.
    pub lines: f64,
    /// Its community, a place in [`FleetReport::communities`].
    pub community: Option<usize>,
}

/// A pair of classes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PairReport {
    /// The cell spec.
    pub cell: String,
    /// The folded cgroup.
    pub cgroup: String,
    /// One class.
    pub a: String,
    /// The other.
    pub b: String,
    /// Runs that have both.
    pub runs: i64,
    /// Those in which they certainly share.
    pub sharing: i64,
    /// Those in which they certainly do not.
    pub apart: i64,
    /// The part of their possible misses that they share, over all runs.
    pub shared: f64,
    /// How much that differs from run to run, in multiples of what is to be expected of counts.
    pub dispersion: f64,
    /// Avoidable misses between the two, of all runs.
    pub avoidable: f64,
}

impl PairReport {
    /// The runs that tell whether the two share.
    #[must_use]
    pub fn told(&self) -> i64 {
        self.sharing.saturating_add(self.apart)
    }

    /// The part of the runs that tell in which the two share; `None` if no run tells.
    #[must_use]
    pub fn part_sharing(&self) -> Option<f64> {
        let told = self.told();
        (told > 0).then(|| self.sharing as f64 / told as f64)
    }
}

/// The name of a class within its cell.
pub(super) fn called(class: &Class) -> String {
    if class.hint.is_empty() {
        class.comm.clone()
    } else {
        format!("{} (hint {})", class.comm, class.hint)
    }
}

impl Evidence {
    pub(super) fn report(
        &self,
        totals: &Totals,
        communities: Vec<CommunityReport>,
        community_of: &BTreeMap<&Class, usize>,
        (decision, cells_of_host): (&Decision, usize),
    ) -> FleetReport {
        let mut classes: Vec<ClassReport> = totals
            .classes
            .iter()
            .map(|(class, sums)| ClassReport {
                cell: class.cell.clone(),
                cgroup: class.cgroup.clone(),
                comm: class.comm.clone(),
                hint: (!class.hint.is_empty()).then(|| class.hint.clone()),
                runs: sums.get(Sum::Runs),
                threads: threads_of_run(sums),
                samples: sums.value(Sum::Samples),
                misses: sums.value(Sum::Misses),
                lines: sums.get(Sum::Lines) as f64 / sums.get(Sum::Runs).max(1) as f64,
                community: community_of.get(class).copied(),
            })
            .collect();
        classes.sort_by(|a, b| b.misses.total_cmp(&a.misses));
        let mut pairs: Vec<PairReport> = totals.pairs.iter().map(pair).collect();
        let mut disagreements: Vec<PairReport> = pairs.iter().filter(|it| is_disputed(it)).cloned().collect();
        pairs.retain(|pair| pair.avoidable > 0.0);
        pairs.sort_by(|a, b| b.avoidable.total_cmp(&a.avoidable));
        pairs.truncate(PAIRS);
        disagreements.sort_by_key(|pair| std::cmp::Reverse(pair.sharing.min(pair.apart)));
        disagreements.truncate(LISTED);
        let (hosts, outliers) = self.outliers();
        FleetReport {
            version: REPORT_VERSION,
            scxprof: env!("CARGO_PKG_VERSION").to_owned(),
            runs: self.total(RowKind::Run, Sum::Runs) as i64,
            hosts,
            samples: self.total(RowKind::Run, Sum::Samples) / 1000.0,
            seconds: self.total(RowKind::Run, Sum::Duration) / 1000.0,
            lost: self.total(RowKind::Run, Sum::Lost) as i64,
            target_cpus: decision.target_cpus,
            cells_of_host,
            locality: None,
            locality_found: None,
            communities,
            classes,
            pairs,
            disagreements,
            outliers,
            notes: notes(totals, decision),
        }
    }
}

/// The notes of a decision, but for those that count threads or name them: the decision was told of some that stand for others.
fn notes(totals: &Totals, decision: &Decision) -> Vec<String> {
    let is_unknown = |sums: &&Sums| sums.value(Sum::Counted) < LEAST_COUNTED;
    let unknown = totals.classes.values().filter(is_unknown).count();
    let mut notes: Vec<String> = Vec::new();
    if unknown > 0 {
        let of = totals.classes.len();
        notes
            .push(format!("{unknown} of {of} classes have too few samples to judge; they are told apart by name only"));
    }
    notes.extend(decision.notes.iter().filter_map(|note| match note {
        Note::Unknown { .. } => None,
        Note::OneName { cell, name, .. } => Some(format!(
            "{cell}: threads called \"{name}\" are in several communities by their hints: names cannot tell them apart"
        )),
        note => Some(note.to_string()),
    }));
    notes
}

/// The facts about a pair.
fn pair(((a, b), sums): (&(Class, Class), &Sums)) -> PairReport {
    let (possible, shared, runs) = (sums.value(Sum::Possible), sums.value(Sum::Shared), sums.get(Sum::Runs));
    let beyond = sums.value(Sum::Spread) - shared * shared / possible.max(f64::MIN_POSITIVE);
    let part = shared / possible.max(f64::MIN_POSITIVE);
    PairReport {
        cell: a.cell.clone(),
        cgroup: a.cgroup.clone(),
        a: called(a),
        b: called(b),
        runs,
        sharing: sums.get(Sum::Sharing),
        apart: sums.get(Sum::Apart),
        shared: part,
        dispersion: beyond.max(0.0) / part.max(f64::MIN_POSITIVE) / runs.saturating_sub(1).max(1) as f64,
        avoidable: sums.value(Sum::Avoidable),
    }
}

/// True if it shares in some runs and does not in others.
fn is_disputed(pair: &PairReport) -> bool {
    let few = pair.sharing.min(pair.apart) as f64;
    few >= 1.0 && few >= DISAGREE * pair.told() as f64
}

/// How the columns of communities, of pairs and of hosts give way.
const COMMUNITY_COLUMNS: [Column; 3] = [Column::name(1), Column::name(0).at_least(24), Column::number(0)];
const PAIR_COLUMNS: [Column; 4] = [Column::name(2), Column::name(0).at_least(24), Column::number(0), Column::number(1)];
const HOST_COLUMNS: [Column; 3] = [Column::name(0), Column::number(1), Column::number(0)];

impl FleetReport {
    /// As JSON.
    ///
    /// # Errors
    /// None with these types; `serde_json` requires the result.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self).map(|text| escape::json(text) + "\n")
    }

    /// As text for people; no line is longer than `width`.
    #[must_use]
    pub fn text(&self, width: Option<usize>) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "{} of {}, {:.0} samples in {:.1} s, {} lost; for hosts with {} CPUs and {} cells",
            counted(self.runs as usize, "run"),
            counted(self.hosts, "host"),
            self.samples,
            self.seconds,
            self.lost,
            self.target_cpus,
            self.cells_of_host
        );
        let place =
            |cell: &str, cgroup: &str| if cgroup.is_empty() { cell.to_owned() } else { format!("{cell} of {cgroup}") };
        let percent = |part: f64| format!("{:.1} %", part * 100.0);
        let mut rows = vec![["CELL", "CLASSES THAT SHARE", "IN COMMON"].map(str::to_owned)];
        rows.extend(
            self.communities.iter().map(|it| [place(&it.cell, &it.cgroup), it.classes.join(", "), percent(it.common)]),
        );
        text += &fitted(&rows, &COMMUNITY_COLUMNS, width);
        if let Some(locality) = self.locality {
            let found = self.locality_found.filter(|found| *found > locality + 0.0005);
            let found = found.map_or_else(String::new, |found| format!(" ({} with all groups)", percent(found)));
            let _ = writeln!(text, "Locality captured: {}{found}", percent(locality));
        }
        if !self.disagreements.is_empty() {
            let _ = writeln!(text, "Hosts disagree on these pairs:");
            let mut rows = vec![["CELL", "PAIR", "SHARE ON", "OF RUNS THAT TELL"].map(str::to_owned)];
            rows.extend(self.disagreements.iter().take(LINES).map(|it| {
                let part = it.part_sharing().map_or_else(|| "-".to_owned(), percent);
                [place(&it.cell, &it.cgroup), format!("{} and {}", it.a, it.b), part, it.told().to_string()]
            }));
            text += &fitted(&rows, &PAIR_COLUMNS, width);
        }
        if !self.outliers.is_empty() {
            let _ = writeln!(text, "Hosts on which threads share differently than on most:");
            let mut rows = vec![["HOST", "RUNS", "DIFFERS"].map(str::to_owned)];
            rows.extend(
                self.outliers.iter().take(LINES).map(|it| [it.host.clone(), it.runs.to_string(), percent(it.differs)]),
            );
            text += &fitted(&rows, &HOST_COLUMNS, width);
        }
        wrapped(&text, width)
    }
}

/// A number of things.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
