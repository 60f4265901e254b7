//! How much of the avoidable misses configurations avoid: the result of `scxprof score`.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::across::CellSharing;
use scxprof_base::columns::{fitted, wrapped, Column};
use scxprof_base::escape;

/// The scores of configurations for the same samples. Parts are fractions from 0 to 1.
///
/// A score is the part of the avoidable misses that a configuration avoids beyond what unplaced threads avoid by chance. It is 1 if
/// all threads that share memory share a cache, 0 if a configuration is no better than none, and less if it is worse.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ScoreReport {
    /// The version of this schema.
    pub version: u32,
    /// The version of scxprof.
    pub scxprof: String,
    /// The source of the samples.
    pub source: String,
    /// Samples.
    pub samples: f64,
    /// The number of last-level caches that the scores are for.
    pub llcs: u32,
    /// How the groups are placed on them.
    #[serde(default)]
    pub order: GroupOrder,
    /// The part of all possible misses that is avoidable: in each region the transfers, and the fills of all threads but one.
    pub avoidable: f64,
    /// The configurations, in the order given.
    pub configurations: Vec<Score>,
    /// The configuration that scxprof would write for these samples; `null` if it has none for the target host.
    pub best: Option<Score>,
    /// The locality if the target host had CPUs for all groups that were found.
    #[serde(default)]
    pub locality_found: Option<f64>,
    /// The memory that the cells of the best one share with each other, as in the report of a run.
    #[serde(default)]
    pub across_cells: Vec<CellSharing>,
    /// Notes: facts that the numbers do not show.
    pub notes: Vec<String>,
}

/// In which order groups have the CPUs of a host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GroupOrder {
    /// In an unknown order.
    #[default]
    Random,
    /// In the order of scx_mitosis, on last-level caches whose CPUs are known.
    Known,
}

/// The version of the schema.
pub const VERSION: u32 = 1;

/// The score of a configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Score {
    /// Its name: that of its file.
    pub name: String,
    /// The scheduler that it is for: `mitosis` or `layered`.
    pub scheduler: String,
    /// The part of the avoidable misses between threads that the configuration keeps together, as [`super::Report::locality`].
    ///
    /// If several layers may take a thread ([`Score::depends`]), it counts as kept with none: then this is the lower end of the range.
    #[serde(default)]
    pub locality: Option<f64>,
    /// The range of the locality, if the samples do not decide which layer takes some threads; else `null`.
    #[serde(default)]
    pub locality_range: Option<[f64; 2]>,
    /// The best configuration's locality less this one; `null` without one.
    #[serde(default)]
    pub locality_below_best: Option<f64>,
    /// The score; `null` if less than 2 % of all possible misses are avoidable, so that no configuration matters.
    pub score: Option<f64>,
    /// The score's 95 % interval over slices of time, and over the ways in which layers may take threads ([`Score::depends`]); `null`
    /// if there are too few slices.
    pub interval: Option<[f64; 2]>,
    /// The best configuration's score less this one; `null` without one.
    pub below_best: Option<f64>,
    /// Its 95 % interval.
    pub below_best_interval: Option<[f64; 2]>,
    /// Its cells, or layers; those that avoid most come first.
    pub cells: Vec<CellScore>,
    /// The pairs of subcells between which most avoidable misses remain.
    pub pairs: Vec<PairScore>,
    /// Threads that another subcell would suit better, by name; those that lose most come first.
    pub misplaced: Vec<MisplacedThreads>,
    /// Threads that no condition takes, but only what takes all others, by name; those with most samples come first.
    pub unmatched: Vec<UnmatchedThreads>,
    /// Layers of scx_layered that take threads or do not, by conditions that samples do not decide; those with most samples come
    /// first.
    #[serde(default)]
    pub depends: Vec<LayerDepends>,
}

/// A layer that takes some threads only under conditions that samples do not decide.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LayerDepends {
    /// The layer.
    pub layer: String,
    /// The kinds of these conditions, as in the file of scx_layered.
    pub conditions: Vec<String>,
    /// The threads that it may take.
    pub threads: usize,
    /// Their part of all samples.
    pub share: f64,
}

/// Why it is not known whether a condition holds.
fn why_unknown(condition: &str) -> &'static str {
    match condition {
        "AvgRuntime" | "SystemCpuUtilBelow" | "DsqInsertBelow" => "changes while the scheduler runs",
        "UsedGpuTid" | "UsedGpuPid" => "no sample says who uses a GPU",
        "CmdJoin" => "a thread may have joined under an earlier name",
        "NumaNode" => "no sample says on which CPUs a thread may run",
        "HintEquals" => "hints were not followed: --hints-map",
        _ => "not in this recording: `scxprof record` has it, and a live run",
    }
}

/// The misses that a cell avoids.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CellScore {
    /// The cell spec or the layer.
    pub name: String,
    /// The cgroup that is the cell; `null` for the root's cell and for layers.
    pub cgroup: Option<String>,
    /// Its sampled threads.
    pub threads: usize,
    /// The part of the CPUs that it has.
    pub cpus: f64,
    /// Its part of the score.
    pub avoids: f64,
    /// The 95 % interval of that.
    pub interval: Option<[f64; 2]>,
    /// The part of all avoidable misses that one cache for all of its threads would avoid.
    pub at_most: f64,
    /// Its subcells with threads; none if it is not divided.
    pub subcells: Vec<SubcellScore>,
}

/// The misses that a subcell avoids.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SubcellScore {
    /// Its name.
    pub name: String,
    /// Its sampled threads.
    pub threads: usize,
    /// The part of the CPUs that it has.
    pub cpus: f64,
    /// Its part of the score.
    pub avoids: f64,
    /// The 95 % interval of that.
    pub interval: Option<[f64; 2]>,
}

/// What two subcells share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PairScore {
    /// One, as `cell/subcell`.
    pub a: String,
    /// The other.
    pub b: String,
    /// The part of the avoidable misses that one cache for both would avoid, beyond those that each avoids.
    pub misses: f64,
}

/// Threads that are in the wrong subcell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MisplacedThreads {
    /// Their name, without a number at its end.
    pub comm: String,
    /// How many.
    pub threads: usize,
    /// Where they are, as `cell/subcell`.
    pub from: String,
    /// Where they would avoid most.
    pub to: String,
    /// The part of the avoidable misses that they would avoid there, beyond those where they are.
    pub misses: f64,
}

/// Threads that match nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UnmatchedThreads {
    /// Their name, without a number at its end.
    pub comm: String,
    /// How many.
    pub threads: usize,
    /// Where they are, as `cell/subcell`.
    pub place: String,
    /// Their part of all samples.
    pub share: f64,
}

/// How the columns of configurations give way.
const CONFIGURATIONS: [Column; 5] =
    [Column::name(0), Column::number(0), Column::number(1), Column::number(2), Column::number(3)];
/// The same of cells and subcells.
const SUBCELLS: [Column; 6] =
    [Column::name(0), Column::number(3), Column::number(2), Column::number(0), Column::number(1), Column::number(4)];
/// Lines of pairs and of names in the text.
const LINES: usize = 8;

impl ScoreReport {
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
            "{:.0} samples (source {}); {:.1} % of all possible misses are avoidable.",
            self.samples,
            self.source,
            self.avoidable * 100.0
        );
        text += "LOCALITY: the part of the avoidable misses that are between threads which a configuration keeps together.\n";
        let _ = writeln!(
            text,
            "BEYOND-CHANCE: what it avoids on {} last-level caches{}, less what unplaced threads avoid by chance; its 95 % interval.\n",
            self.llcs,
            match self.order {
                GroupOrder::Random => "",
                GroupOrder::Known => " with the CPUs that scx_mitosis gives to each subcell",
            }
        );
        let head = ["CONFIGURATION", "LOCALITY", "BELOW-BEST", "BEYOND-CHANCE", "INTERVAL"].map(str::to_owned);
        let mut rows = vec![head];
        rows.extend(self.configurations.iter().map(Score::row));
        if let Some(best) = &self.best {
            rows.push(best.row());
        }
        let own = self.best.as_ref().and_then(|best| best.locality);
        if let Some(found) = self.locality_found.filter(|found| own.is_none_or(|own| *found > own + 0.0005)) {
            let none = || "-".to_owned();
            rows.push(["(with CPUs for all groups)".to_owned(), percent(found), none(), none(), none()]);
        }
        text += &fitted(&rows, &CONFIGURATIONS, width);
        if self.configurations.iter().any(|it| it.locality_below_best.is_some_and(|below| below < -ABOVE)) {
            text += "\n(best) is what scxprof would write for these samples and the target host. A configuration above it needs more \
                     CPUs than that host has, keeps a group together with more threads awake than a last-level cache has CPUs, or keeps \
                     threads in one subcell that these samples do not show to belong together: they share what nearly all threads use, \
                     or have too few samples.\n";
        }
        for score in &self.configurations {
            let _ = writeln!(text, "\n{}", score.name);
            text += &score.text(width);
        }
        if !self.across_cells.is_empty() {
            text += "\nShared across cells, as --cell makes them:\n";
        }
        for pair in self.across_cells.iter().take(LINES) {
            let _ = writeln!(text, "  {}; {}", pair.text(), pair.advice);
        }
        if self.across_cells.len() > LINES {
            let _ = writeln!(text, "  {} more (--json has all)", self.across_cells.len() - LINES);
        }
        wrapped(&text, width)
    }
}

/// A smaller difference of localities counts as none.
const ABOVE: f64 = 0.005;

fn percent(part: f64) -> String {
    format!("{:.1} %", tenths(part))
}

/// In percent, rounded; never -0.
fn tenths(part: f64) -> f64 {
    (part * 1000.0).round() / 10.0 + 0.0
}

fn range(interval: Option<[f64; 2]>) -> String {
    interval.map_or_else(|| "-".to_owned(), |[low, high]| format!("{:.1} to {:.1}", tenths(low), tenths(high)))
}

impl Score {
    fn row(&self) -> [String; 5] {
        let part = |part: Option<f64>| part.map_or_else(|| "-".to_owned(), percent);
        let locality = match self.locality_range {
            Some([low, high]) => format!("{:.1} to {:.1} %", tenths(low), tenths(high)),
            None => part(self.locality),
        };
        [self.name.clone(), locality, part(self.locality_below_best), part(self.score), range(self.interval)]
    }

    fn text(&self, width: Option<usize>) -> String {
        let mut text = String::new();
        let mut rows = vec![["CELL/SUBCELL", "THREADS", "CPUS", "AVOIDS", "INTERVAL", "AT-MOST"].map(str::to_owned)];
        for cell in &self.cells {
            let of = cell.cgroup.as_ref().map_or_else(String::new, |cgroup| format!(" of {cgroup}"));
            let CellScore { name, threads, cpus, avoids, interval, at_most, .. } = cell;
            let name = format!("{name}{of}");
            rows.push([
                name,
                threads.to_string(),
                percent(*cpus),
                percent(*avoids),
                range(*interval),
                percent(*at_most),
            ]);
            for SubcellScore { name, threads, cpus, avoids, interval } in &cell.subcells {
                let name = format!("  {name}");
                rows.push([
                    name,
                    threads.to_string(),
                    percent(*cpus),
                    percent(*avoids),
                    range(*interval),
                    String::new(),
                ]);
            }
        }
        if rows.len() > 1 {
            text += &fitted(&rows, &SUBCELLS, width);
        }
        let mut section = |title: &str, count: usize, lines: &mut dyn Iterator<Item = String>| {
            if count > 0 {
                let _ = writeln!(text, "{title}");
                for line in lines.take(LINES) {
                    let _ = writeln!(text, "  {line}");
                }
                if count > LINES {
                    let _ = writeln!(text, "  {} more (--json has all)", count - LINES);
                }
            }
        };
        let threads = |count: usize| if count == 1 { "1 thread".to_owned() } else { format!("{count} threads") };
        section(
            "Most is lost between:",
            self.pairs.len(),
            &mut self.pairs.iter().map(|it| format!("{} and {}: {}", it.a, it.b, percent(it.misses))),
        );
        section(
            "Threads that another subcell would suit better:",
            self.misplaced.len(),
            &mut self.misplaced.iter().map(|it| {
                format!(
                    "{} ({}) in {}: {} more in {}",
                    it.comm,
                    threads(it.threads),
                    it.from,
                    percent(it.misses),
                    it.to
                )
            }),
        );
        section(
            "Layers that depend on what these samples do not say (each way is in the intervals):",
            self.depends.len(),
            &mut self.depends.iter().map(|it| {
                let why = it.conditions.iter().map(|condition| format!("{condition}: {}", why_unknown(condition)));
                let why = why.collect::<Vec<_>>().join("; ");
                format!("{} ({}, {} of the samples): {why}", it.layer, threads(it.threads), percent(it.share))
            }),
        );
        section(
            "Threads that no condition takes:",
            self.unmatched.len(),
            &mut self.unmatched.iter().map(|it| {
                format!("{} ({}) in {}: {} of the samples", it.comm, threads(it.threads), it.place, percent(it.share))
            }),
        );
        text
    }
}
