//! What results have in common: distributions, names of threads, and tables for people.

use serde::Serialize;

use scxprof_base::columns::Column;
use scxprof_sched::Durations;

/// A table to print: the first row is its head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextTable {
    /// What it shows.
    pub title: String,
    /// Its rows.
    pub rows: Vec<Vec<String>>,
}

impl TextTable {
    pub(super) fn new(title: impl Into<String>, head: &[&str]) -> Self {
        Self { title: title.into(), rows: vec![head.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    /// A table of two columns.
    pub(super) fn of_values(title: impl Into<String>, values: &[(&str, String)]) -> Self {
        let rows = values.iter().map(|(name, value)| vec![(*name).to_owned(), value.clone()]).collect();
        Self { title: title.into(), rows }
    }

    /// A table of distributions.
    pub(super) fn of_spreads(title: impl Into<String>, name: &str) -> Self {
        let mut table = Self::new(title, &[name]);
        if let Some(head) = table.rows.first_mut() {
            head.extend(Spread::HEAD.map(str::to_owned));
        }
        table
    }

    /// How its columns give way where a line has no room, by their heads: the mark of losses and the first column stay, and of a
    /// distribution the count, the mean and the 99th percentile longest.
    #[must_use]
    pub fn columns(&self) -> Vec<Column> {
        let Some(head) = self.rows.first() else { return Vec::new() };
        let is_pair = head.len() == 2;
        let column = |(at, head): (usize, &String)| match head.as_str() {
            _ if at == 0 || is_pair && self.has_names(at) => Column::name(0),
            _ if is_pair => Column::number(0),
            "!" => Column::number(0),
            "COUNT" | "MEAN(us)" | "RUN(ms)" | "BUSY%" | "VALUE" | "MEAN" | "SUM(ms)" => Column::number(1),
            "P99(us)" | "P99" | "LAT(us)" | "MAX(us)" | "MAX" | "THRESHOLD" | "TID" => Column::number(2),
            "TOTAL(ms)" | "P50(us)" | "P50" | "SWITCHES" => Column::number(3),
            "P95(us)" | "P95" | "PID" | "UNKNOWN(ms)" => Column::number(5),
            "MIN(us)" | "P99.9(us)" => Column::number(6),
            _ if self.has_names(at) => Column::name(1),
            _ => Column::number(4),
        };
        head.iter().enumerate().map(column).collect()
    }

    /// True if a column is of names: its cells do not begin as numbers do.
    fn has_names(&self, column: usize) -> bool {
        let is_number = |cell: &String| cell.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+');
        let mut cells = self.rows.iter().skip(1).filter_map(|row| row.get(column)).filter(|cell| !cell.is_empty());
        cells.any(|cell| !is_number(cell))
    }

    pub(super) fn push(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// A row of a table of distributions.
    pub(super) fn push_spread(&mut self, name: String, spread: &Spread) {
        let mut row = vec![name];
        row.extend(spread.cells());
        self.push(row);
    }
}

/// Durations in ns: exact but for the percentiles, which are those of the nearest rank within 1 %. A field is `None` where
/// there was none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Spread {
    /// Their number.
    pub count: u64,
    /// Their sum.
    pub total_ns: u64,
    /// The shortest.
    pub min_ns: Option<u64>,
    /// The mean.
    pub mean_ns: Option<u64>,
    /// The median.
    pub p50_ns: Option<u64>,
    /// 95 % are at most as long.
    pub p95_ns: Option<u64>,
    /// 99 % are at most as long.
    pub p99_ns: Option<u64>,
    /// 99.9 % are at most as long.
    pub p999_ns: Option<u64>,
    /// The longest.
    pub max_ns: Option<u64>,
}

impl Spread {
    const HEAD: [&'static str; 9] =
        ["COUNT", "TOTAL(ms)", "MIN(us)", "MEAN(us)", "P50(us)", "P95(us)", "P99(us)", "P99.9(us)", "MAX(us)"];

    fn cells(&self) -> Vec<String> {
        let Self { count, total_ns, min_ns, mean_ns, p50_ns, p95_ns, p99_ns, p999_ns, max_ns } = *self;
        let mut cells = vec![count.to_string(), ms(total_ns)];
        cells.extend([min_ns, mean_ns, p50_ns, p95_ns, p99_ns, p999_ns, max_ns].map(us));
        cells
    }
}

impl From<&Durations> for Spread {
    fn from(durations: &Durations) -> Self {
        Self {
            count: durations.count(),
            total_ns: durations.sum(),
            min_ns: durations.min(),
            mean_ns: durations.mean(),
            p50_ns: durations.quantile(0.5),
            p95_ns: durations.quantile(0.95),
            p99_ns: durations.quantile(0.99),
            p999_ns: durations.quantile(0.999),
            max_ns: durations.max(),
        }
    }
}

/// Which thread.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ThreadName {
    /// Its last name.
    pub name: String,
    /// Thread id.
    pub tid: u32,
    /// Process id; `None` if it is not known.
    pub pid: Option<u32>,
}

impl ThreadName {
    /// The cells of its three columns, [`ThreadName::HEAD`].
    pub(super) fn cells(&self) -> Vec<String> {
        vec![self.name.clone(), self.tid.to_string(), self.pid.map_or("-".to_owned(), |pid| pid.to_string())]
    }

    pub(super) const HEAD: [&'static str; 3] = ["THREAD", "TID", "PID"];
}

/// ns as milliseconds.
pub(super) fn ms(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e6)
}

/// ns as microseconds.
pub(super) fn us(ns: Option<u64>) -> String {
    ns.map_or("-".to_owned(), |ns| format!("{:.1}", ns as f64 / 1e3))
}

/// A part of 1 as percent.
pub(super) fn percent(part: Option<f64>) -> String {
    part.map_or("-".to_owned(), |part| format!("{:.1}", part * 100.0))
}

/// `part / whole`, `None` of nothing.
pub(super) fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// A title that says how many lines of a list it shows.
pub(super) fn of_all(what: &str, shown: usize, all: usize) -> String {
    if shown < all {
        format!("{what} (first {shown} of {all})")
    } else {
        what.to_owned()
    }
}
