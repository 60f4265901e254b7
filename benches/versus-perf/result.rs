//! What a comparison gives: runs, checks, and what was left out.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::measure::Usage;
use crate::statistics::Middle;
use crate::tools::Ended;

/// One run of one program.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// What was done, such as the number of samples; both sides do it.
    pub case: String,
    pub tool: String,
    /// From 1.
    pub round: u32,
    pub command: String,
    pub values: BTreeMap<&'static str, f64>,
}

/// A measured value that tables show.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Measure {
    pub key: &'static str,
    pub heading: &'static str,
    pub decimals: usize,
    /// Also shown as the quotient of the baseline's value and this one.
    pub ratio: bool,
}

/// Something that must hold.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    pub what: String,
    pub holds: bool,
    /// The numbers that it rests on.
    pub because: String,
}

/// What could not be done here.
#[derive(Debug, Clone, Serialize)]
pub struct Skip {
    pub what: String,
    pub reason: String,
}

/// A plot of one measured value.
#[derive(Debug, Clone)]
pub enum Plot {
    /// A group of bars for each case, a bar for each tool.
    Bars {
        /// A key of the values.
        key: &'static str,
        title: &'static str,
        /// What the values are.
        values: &'static str,
        decimals: usize,
    },
    /// A line for each tool, over a number that each case has.
    Lines {
        key: &'static str,
        /// The key of that number.
        along: &'static str,
        title: &'static str,
        values: &'static str,
        /// What that number is.
        axis: &'static str,
        is_log: bool,
    },
}

impl Plot {
    /// For the name of its file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bars { key, .. } | Self::Lines { key, .. } => key,
        }
    }
}

/// One comparison.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    pub name: &'static str,
    pub title: &'static str,
    /// What was measured and how, in sentences.
    pub method: Vec<String>,
    pub measures: Vec<Measure>,
    /// The tool that ratios are relative to.
    pub baseline: Option<String>,
    pub runs: Vec<Run>,
    pub checks: Vec<Check>,
    pub skipped: Vec<Skip>,
    #[serde(skip)]
    pub plots: Vec<Plot>,
}

/// The runs of one tool in one case.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub case: String,
    pub tool: String,
    pub rounds: usize,
    pub values: BTreeMap<&'static str, Middle>,
    /// Of each round, the baseline's value divided by this one.
    pub ratios: BTreeMap<&'static str, Middle>,
}

/// What every run of a program has.
pub const CPU: Measure = Measure { key: "cpu_s", heading: "CPU s", decimals: 2, ratio: true };
pub const WALL: Measure = Measure { key: "wall_s", heading: "wall s", decimals: 2, ratio: true };
pub const PEAK: Measure = Measure { key: "peak_mib", heading: "peak MiB", decimals: 0, ratio: false };
pub const BYTES: Measure = Measure { key: "mb", heading: "MB written", decimals: 2, ratio: false };
pub const SAMPLES: Measure = Measure { key: "samples", heading: "samples", decimals: 0, ratio: false };
pub const LOST: Measure = Measure { key: "lost", heading: "lost", decimals: 0, ratio: false };

impl Comparison {
    pub fn new(name: &'static str, title: &'static str) -> Self {
        Self {
            name,
            title,
            method: Vec::new(),
            measures: Vec::new(),
            baseline: None,
            runs: Vec::new(),
            checks: Vec::new(),
            skipped: Vec::new(),
            plots: Vec::new(),
        }
    }

    /// Adds a run, and the values that all have.
    pub fn add(&mut self, case: &str, tool: &str, round: u32, ended: &Ended, more: &[(&'static str, f64)]) {
        let Usage { wall_s, user_s, system_s, peak_kib, .. } = ended.usage;
        let mut values = BTreeMap::from([
            ("wall_s", wall_s),
            ("cpu_s", ended.usage.cpu_s()),
            ("user_s", user_s),
            ("system_s", system_s),
            ("peak_mib", peak_kib as f64 / 1024.0),
        ]);
        if let Some((wall, cpu)) = ended.usage.after {
            values.extend([("after_wall_s", wall), ("after_cpu_s", cpu)]);
        }
        values.extend(more.iter().copied());
        let command = ended.command.clone();
        self.runs.push(Run { case: case.to_owned(), tool: tool.to_owned(), round, command, values });
    }

    /// A row for each tool in each case, in the order of the first round.
    pub fn rows(&self) -> Vec<Row> {
        let mut keys: Vec<(&str, &str)> = Vec::new();
        let mut cases: Vec<&str> = Vec::new();
        for run in &self.runs {
            let key = (run.case.as_str(), run.tool.as_str());
            if !keys.contains(&key) {
                keys.push(key);
            }
            if !cases.contains(&key.0) {
                cases.push(key.0);
            }
        }
        keys.sort_by_key(|key| cases.iter().position(|case| *case == key.0));
        keys.into_iter().map(|(case, tool)| self.row(case, tool)).collect()
    }

    fn row(&self, case: &str, tool: &str) -> Row {
        let of =
            |tool: &str| self.runs.iter().filter(move |run| run.case == case && run.tool == tool).collect::<Vec<_>>();
        let own = of(tool);
        let base = self.baseline.as_deref().filter(|base| *base != tool).map(of).unwrap_or_default();
        let mut row = Row {
            case: case.to_owned(),
            tool: tool.to_owned(),
            // One may run more than once a round.
            rounds: own.iter().map(|run| run.round).collect::<BTreeSet<_>>().len(),
            values: BTreeMap::new(),
            ratios: BTreeMap::new(),
        };
        for measure in &self.measures {
            let key = measure.key;
            let values: Vec<f64> = own.iter().filter_map(|run| run.values.get(key)).copied().collect();
            if let Some(middle) = Middle::of(&values) {
                row.values.insert(key, middle);
            }
            if !measure.ratio {
                continue;
            }
            let ratios: Vec<f64> = own
                .iter()
                .filter_map(|run| {
                    let other = base.iter().find(|other| other.round == run.round)?;
                    let (own, other) = (run.values.get(key)?, other.values.get(key)?);
                    (*own > 0.0).then_some(other / own)
                })
                .collect();
            if let Some(middle) = Middle::of(&ratios) {
                row.ratios.insert(key, middle);
            }
        }
        row
    }
}

/// As people read it: the median, and the interval where there is one.
pub fn shown(middle: Option<&Middle>, decimals: usize) -> String {
    match middle {
        None => "-".to_owned(),
        Some(Middle { median, count: 1, .. }) => number(*median, decimals),
        Some(Middle { median, low, high, .. }) => {
            let (median, low, high) = (number(*median, decimals), number(*low, decimals), number(*high, decimals));
            if low == high {
                median
            } else {
                format!("{median} ({low} to {high})")
            }
        }
    }
}

/// With separators of thousands; a small number has at least two digits that say something.
pub fn number(value: f64, decimals: usize) -> String {
    let mut decimals = decimals;
    while decimals > 0 && decimals < 4 && value != 0.0 && value.abs() < 9.5 * 10f64.powi(-(decimals as i32)) {
        decimals += 1;
    }
    let text = format!("{:.decimals$}", value.abs());
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let sign = if value < 0.0 && text.chars().any(|c| ('1'..='9').contains(&c)) { "-" } else { "" };
    if fraction.is_empty() {
        format!("{sign}{grouped}")
    } else {
        format!("{sign}{grouped}.{fraction}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_the_same_round() {
        let mut compared = Comparison::new("x", "x");
        compared.measures = vec![CPU, PEAK];
        compared.baseline = Some("perf".to_owned());
        let run = |tool: &str, round, cpu_s| Run {
            case: "c".into(),
            tool: tool.into(),
            round,
            command: String::new(),
            values: BTreeMap::from([("cpu_s", cpu_s), ("peak_mib", 8.0)]),
        };
        compared.runs = vec![
            run("perf", 1, 4.0),
            run("ours", 1, 2.0),
            run("ours", 2, 1.0),
            run("perf", 2, 8.0),
            run("ours", 3, 1.0),
        ];
        let rows = compared.rows();
        assert_eq!(rows.iter().map(|row| row.tool.as_str()).collect::<Vec<_>>(), ["perf", "ours"]);
        let ours = rows.last().unwrap();
        assert_eq!((ours.values.get("cpu_s").unwrap().median, ours.rounds), (1.0, 3));
        compared.runs.push(run("ours", 3, 1.0));
        assert_eq!(compared.rows().last().unwrap().rounds, 3, "one ran twice in a round");
        // 2 and 8; the third round has no other side.
        let ratio = ours.ratios.get("cpu_s").unwrap();
        assert_eq!((ratio.median, ratio.count), (5.0, 2));
        assert!(!ours.ratios.contains_key("peak_mib") && rows.first().unwrap().ratios.is_empty());
    }

    #[test]
    fn numbers_are_as_people_read_them() {
        for (value, decimals, text) in [
            (1_234_567.0, 0, "1,234,567"),
            (999.6, 0, "1,000"),
            (0.0471, 2, "0.047"),
            (12.0, 2, "12.00"),
            (0.0, 2, "0.00"),
            (-1234.5, 1, "-1,234.5"),
            (-0.0001, 0, "0"),
        ] {
            assert_eq!(number(value, decimals), text);
        }
    }
}
