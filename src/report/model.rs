//! The report of a decision as it is written: cells, subcells, threads and the facts behind them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::across::CellSharing;
use super::matrix::Matrix;
use super::memory::{Granule, RegionReport};
use super::run::{Configuration, RunReport, TimelineReport};
use super::scheduling::SchedulingReport;
use super::stacks::StacksReport;
use super::wakeups::WakeupReport;
use crate::hint::HintCounts;
use scxprof_base::escape;
use scxprof_base::tables::Tables;

/// The version of the schema, raised when a field changes its meaning or is removed.
pub const VERSION: u32 = 3;

/// The report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// The version of scxprof that wrote it.
    #[serde(default)]
    pub scxprof: String,
    /// The source of the samples.
    pub source: String,
    /// Its coverage: what it can and cannot sample.
    pub coverage: String,
    /// Samples.
    pub samples: f64,
    /// The finding in a line: the groups, false sharing, and how many of the groups the configuration has.
    #[serde(default)]
    pub headline: String,
    /// The part of the avoidable misses that the configuration as written avoids, from 0 to 1. Threads in a catch-all are not kept
    /// together, so it does not count. `null` if no shared memory was sampled.
    pub locality: Option<f64>,
    /// The same if the target host had CPUs for all groups that were found.
    #[serde(default)]
    pub locality_found: Option<f64>,
    /// The same for the configuration by names alone.
    pub locality_by_name: Option<f64>,
    /// How much the two halves of the run agree (adjusted Rand index).
    pub stability: Option<f64>,
    /// The cells that were found, in the order of the cell specs. The target host may have too few CPUs for all of them and of their
    /// subcells; see [`SubcellReport::in_configuration`].
    pub cells: Vec<CellReport>,
    /// How much subcells share; each pair once.
    pub sharing: Vec<Shared>,
    /// The memory that cells share with each other, those that lose most first; 64 pairs at most. A cell is a cgroup here, as it is for
    /// scx_mitosis.
    #[serde(default)]
    pub across_cells: Vec<CellSharing>,
    /// Counts of task hints, if they were requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hints: Option<HintCounts>,
    /// Hubs, which join no threads.
    pub hubs: Vec<Granule>,
    /// The hottest lines that threads share and that are written, whatever subcell the threads are in: first those found
    /// modified in another CPU's cache most often, then by the accesses that may have found them so. 32 at most.
    #[serde(default)]
    pub lines: Vec<Granule>,
    /// Threads in cgroups beyond the number that can be distinguished.
    pub unlisted_threads: usize,
    /// Events that were counted, sampled or not.
    #[serde(default)]
    pub event_count: u64,
    /// Samples read, left out and lost, by stage.
    #[serde(default)]
    pub loss: BTreeMap<String, u64>,
    /// The sizes of the tables at the end.
    #[serde(default)]
    pub tables: Tables,
    /// Wakeups, if the scheduler's events were requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wakeups: Option<WakeupReport>,
    /// Sentences: what the configuration leaves out because of the target host, and what to do.
    #[serde(default)]
    pub limits: Vec<String>,
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
    /// The scheduling statistics, if the scheduler's events were requested and there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling: Option<SchedulingReport>,
    /// Call stacks, if they were requested and there are any.
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
    /// The part of the run in which they shared, from 0 to 1.
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SubcellKind {
    /// Threads that share memory.
    Community,
    /// Threads of one name.
    Class,
    /// All others.
    #[default]
    Rest,
}

/// A subcell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SubcellReport {
    /// Its name in the configuration.
    pub name: String,
    /// Its kind.
    pub kind: SubcellKind,
    /// The subcell of the configuration that takes its threads, as `cell/subcell`, or the cell if that is not divided: itself, or
    /// the one it was merged into. `null` if it is left out.
    #[serde(default)]
    pub in_configuration: Option<String>,
    /// Its `matches` as written: one of these lists must match, with all of its prefixes.
    pub prefixes: Vec<Vec<String>>,
    /// Samples of its threads.
    pub samples: f64,
    /// Its part of all samples, from 0 to 1.
    pub share: f64,
    /// The part of the avoidable misses that this subcell avoids, from 0 to 1; `null` as for [`Report::locality`].
    pub locality: Option<f64>,
    /// How well both halves of the run reproduce its communities; the worst of several.
    pub stability: Option<f64>,
    /// The confidence in its communities, from 0 to 1; the worst of several.
    pub confidence: Option<f64>,
    /// Whether its threads share with the same threads all the time; of several communities, the one with the lowest constancy.
    /// Missing for short runs.
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

impl Report {
    /// The groups of threads that share memory, each with its cell, whether the target host has CPUs for them or not.
    pub fn groups(&self) -> impl Iterator<Item = (&CellReport, &SubcellReport)> {
        let all = self.cells.iter().flat_map(|cell| cell.subcells.iter().map(move |subcell| (cell, subcell)));
        all.filter(|(_, subcell)| subcell.kind == SubcellKind::Community)
    }

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
}
