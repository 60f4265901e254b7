//! From evidence to a configuration: communities of classes, and the decision on cells and subcells.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::hosts::HostReport;
use super::link::{link, Pair, Rules};
use super::table::{Class, Evidence, Kind, Sum, Sums};
use crate::config::cell_specs::CellKey;
use crate::config::{
    self, aligned, Affinity, CellMatch, CellSpecs, Decision, DecisionOptions, Member, Members, Scheduler,
};
use crate::config::{NoSamples, Note, Tally, Unknown, Verdict};
use crate::escape;
use crate::sample::Comm;

/// Possible misses that were counted of a class without which nothing is said of it.
const LEAST_COUNTED: f64 = 20.0;
/// Classes of a cell that are compared: those with most misses.
const MAX_CLASSES: usize = 512;
/// Threads that are told to the decision: of a class, and of all, but at least one of each.
const MAX_THREADS: usize = 64;
const MAX_ALL_THREADS: usize = 1 << 18;
/// Cell specs of a run.
const MAX_SPECS: usize = 1024;
/// The least part of the runs that disagree on a pair which is worth a line.
const DISAGREE: f64 = 0.02;
/// Disagreements in the report.
const LISTED: usize = 64;
/// Lines of a list in the text.
const LINES: usize = 16;
/// Pairs in the report.
const PAIRS: usize = 256;

/// Communities that share data, beyond hubs.
const SHARING: Rules = Rules { worth: 0.02, cohesion: 0.5, join: 1.64, sure: 2.33 };
/// All classes of a program, which share what looks like a hub because nobody else is there to compare with.
const ALL: Rules = Rules { worth: 0.07, ..SHARING };
/// Classes that contend for few lines.
const CONTENDING: Rules = Rules { worth: 1.0 / 3.0, ..SHARING };

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
    /// What the rows say of cell specs are none.
    #[error("the evidence has no cell specs, or some that are no cell specs")]
    NoSpecs,
    /// There is nothing to decide from.
    #[error(transparent)]
    NoSamples(#[from] NoSamples),
    /// The scheduler would refuse the configuration.
    #[error(transparent)]
    Refused(#[from] config::mitosis::Refused),
    /// The same for scx_layered.
    #[error(transparent)]
    LayeredRefused(#[from] config::layered::Refused),
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
    /// Classes that share memory.
    pub communities: Vec<CommunityReport>,
    /// All classes, by their possible misses.
    pub classes: Vec<ClassReport>,
    /// The pairs that share most, by what one cache for both avoids; 256 at most.
    pub pairs: Vec<PairReport>,
    /// Pairs on which hosts disagree: they share on some and not on others; 64 at most.
    pub disagreements: Vec<PairReport>,
    /// Hosts that share otherwise than most.
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

/// What a class is called within its cell.
fn called(class: &Class) -> String {
    if class.hint.is_empty() {
        class.comm.clone()
    } else {
        format!("{} (hint {})", class.comm, class.hint)
    }
}

/// Evidence without its scopes: of each class, and of each pair within a cell.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub classes: BTreeMap<Class, Sums>,
    /// Pairs in one cell.
    pub pairs: BTreeMap<(Class, Class), Sums>,
    /// Pairs in different cells.
    pub across: BTreeMap<(Class, Class), Sums>,
}

impl Totals {
    pub(super) fn new(evidence: &Evidence) -> Self {
        fn add<K: Ord>(to: &mut BTreeMap<K, Sums>, key: K, sums: &Sums) {
            // Each row has at most 2^63 - 1; so has the sum over the scopes, unless a file is made to have more.
            let sum = to.entry(key).or_default();
            sum.0.iter_mut().zip(&sums.0).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
        }
        let mut totals = Self::default();
        for (key, sums) in evidence.of_kind(Kind::Class) {
            add(&mut totals.classes, key.a.clone(), sums);
        }
        for (key, sums) in evidence.of_kind(Kind::Pair) {
            let pair = (key.a.clone(), key.second());
            let to = if key.b.cell.is_empty() { &mut totals.pairs } else { &mut totals.across };
            add(to, pair, sums);
        }
        totals
    }

    /// The sums of two classes of one cell.
    fn pair(&self, a: &Class, b: &Class) -> Option<&Sums> {
        let (a, b) = if a <= b { (a, b) } else { (b, a) };
        self.pairs.get(&(a.clone(), b.clone()))
    }

    /// The communities of the classes of a cell, with what each has in common.
    fn communities<'a>(&self, classes: &[(&'a Class, &Sums)]) -> Vec<(Vec<&'a Class>, f64)> {
        let mut open: Vec<(&'a Class, f64)> =
            classes.iter().map(|(class, sums)| (*class, sums.value(Sum::Counted))).collect();
        open.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(b.0)));
        open.retain(|it| it.1 >= LEAST_COUNTED);
        open.truncate(MAX_CLASSES);
        let mut found = Vec::new();
        for (rules, sum) in [(SHARING, Sum::Shared), (ALL, Sum::Common), (CONTENDING, Sum::Contended)] {
            let pair = |a: &Class, b: &Class| {
                self.pair(a, b).map_or_else(Pair::default, |sums| Pair {
                    possible: sums.value(Sum::Possible),
                    shared: sums.value(sum),
                })
            };
            let row = |a: &(&Class, f64)| open.iter().map(|b| pair(a.0, b.0)).collect::<Vec<Pair>>();
            let pairs: Vec<Vec<Pair>> = open.iter().map(row).collect();
            let counted: Vec<f64> = open.iter().map(|it| it.1).collect();
            let mut taken = vec![false; open.len()];
            for members in link(&counted, pairs, &rules) {
                let names: Vec<&Class> = members.iter().filter_map(|&at| open.get(at)).map(|it| it.0).collect();
                let (mut possible, mut shared) = (0.0, 0.0);
                for (at, a) in names.iter().enumerate() {
                    for b in names.iter().skip(at) {
                        let pair = pair(a, b);
                        (possible, shared) = (possible + pair.possible, shared + pair.shared);
                    }
                }
                found.push((names, if possible > 0.0 { shared / possible } else { 0.0 }));
                for &at in &members {
                    taken[at] = true;
                }
            }
            let mut at = 0;
            open.retain(|_| {
                at += 1;
                !taken.get(at - 1).copied().unwrap_or_default()
            });
        }
        found
    }
}

impl Evidence {
    /// The cell specs of the runs.
    pub(super) fn specs(&self) -> Result<CellSpecs, FleetError> {
        let mut specs: BTreeMap<i64, (&str, &str)> = BTreeMap::new();
        for (key, _) in self.of_kind(Kind::Spec) {
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
        self.of_kind(Kind::Run).filter_map(|(key, _)| key.scope.cpus.parse().ok()).filter(|cpus| *cpus > 0).min()
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
        let runs = self.total(Kind::Run, Sum::Runs).max(1.0);
        let cells_of_host = 1 + (self.total(Kind::Cell, Sum::Cgroups) / runs).ceil().min(1e6) as usize;
        let options = DecisionOptions { cells: Some(cells_of_host), ..*options };
        let mut decision = config::decide(&specs, &tally, &members, &options)?;
        unfold(&mut decision, &specs);
        let report = self.report(&totals, communities, &community_of, (&decision, cells_of_host));
        let uses_hints = totals.classes.keys().any(|class| !class.hint.is_empty());
        Ok(FleetDecision { decision, report, members, uses_hints })
    }

    fn report(
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
            runs: self.total(Kind::Run, Sum::Runs) as i64,
            hosts,
            samples: self.total(Kind::Run, Sum::Samples) / 1000.0,
            seconds: self.total(Kind::Run, Sum::Duration) / 1000.0,
            lost: self.total(Kind::Run, Sum::Lost) as i64,
            target_cpus: decision.target_cpus,
            cells_of_host,
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

/// Threads of a run that has the class.
pub(super) fn threads_of_run(sums: &Sums) -> f64 {
    sums.get(Sum::Threads) as f64 / sums.get(Sum::Runs).max(1) as f64
}

/// What communities avoid within and between each other.
fn affinity(totals: &Totals, community_of: &BTreeMap<&Class, usize>) -> Affinity {
    let mut affinity = Affinity::default();
    for ((a, b), sums) in totals.pairs.iter().chain(&totals.across) {
        if let (Some(&a), Some(&b)) = (community_of.get(a), community_of.get(b)) {
            affinity.add(a as u32, b as u32, sums.value(Sum::Avoidable));
        }
    }
    affinity
}

/// What is known of a pair.
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

impl FleetReport {
    /// As JSON.
    ///
    /// # Errors
    /// None with these types; `serde_json` requires the result.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self).map(|text| escape::json(text) + "\n")
    }

    /// As text for people.
    #[must_use]
    pub fn text(&self) -> String {
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
        text += &aligned(&rows);
        if !self.disagreements.is_empty() {
            let _ = writeln!(text, "Hosts disagree on these pairs:");
            let mut rows = vec![["CELL", "PAIR", "SHARE ON", "OF RUNS THAT TELL"].map(str::to_owned)];
            rows.extend(self.disagreements.iter().take(LINES).map(|it| {
                let part = it.part_sharing().map_or_else(|| "-".to_owned(), percent);
                [place(&it.cell, &it.cgroup), format!("{} and {}", it.a, it.b), part, it.told().to_string()]
            }));
            text += &aligned(&rows);
        }
        if !self.outliers.is_empty() {
            let _ = writeln!(text, "Hosts that share otherwise than most:");
            let mut rows = vec![["HOST", "RUNS", "DIFFERS"].map(str::to_owned)];
            rows.extend(
                self.outliers.iter().take(LINES).map(|it| [it.host.clone(), it.runs.to_string(), percent(it.differs)]),
            );
            text += &aligned(&rows);
        }
        text
    }
}

/// A number of things.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
