//! The differences of two profiles, by function.

use std::collections::BTreeMap;

use serde::Serialize;

use super::profile::{percent, StackProfile};
use super::{symbols, SymbolLine};

/// The standard normal quantile of an interval of 95 %.
const Z: f64 = 1.96;

/// A part of the samples of two profiles.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Change {
    /// Percent of all samples of the first.
    pub a_percent: f64,
    /// The same of the second.
    pub b_percent: f64,
    /// The second minus the first, in percentage points.
    pub change: f64,
    /// Half the width of the 95 % interval of that, if samples are independent (two binomial distributions).
    pub margin: f64,
}

impl Change {
    fn new((a, of_a): (u64, u64), (b, of_b): (u64, u64)) -> Self {
        let (a_percent, b_percent) = (percent(a, of_a), percent(b, of_b));
        let variance = |percent: f64, of: u64| percent * (100.0 - percent) / of.max(1) as f64;
        let margin = Z * (variance(a_percent, of_a) + variance(b_percent, of_b)).sqrt();
        Self { a_percent, b_percent, change: b_percent - a_percent, margin }
    }

    /// True if it is more than chance explains.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        self.change.abs() > self.margin
    }
}

/// A function in two profiles.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DiffLine {
    /// Its name.
    pub symbol: String,
    /// The name of the file that contains it, without its directory: the same code may lie elsewhere.
    pub module: String,
    /// Its own samples.
    #[serde(rename = "self")]
    pub own: Change,
    /// With what it called.
    pub total: Change,
}

/// The functions of both, the one whose own part changed most first.
#[must_use]
pub fn diff(a: &StackProfile, b: &StackProfile) -> Vec<DiffLine> {
    let all = [a.count(), b.count()];
    let mut sums: BTreeMap<(String, String), [(u64, u64); 2]> = BTreeMap::new();
    for (which, profile) in [a, b].into_iter().enumerate() {
        for SymbolLine { symbol, module, self_samples, total_samples, .. } in symbols(profile, &|_| true) {
            let module = module.rsplit('/').next().unwrap_or_default().to_owned();
            if let Some(sum) = sums.entry((symbol, module)).or_default().get_mut(which) {
                (sum.0, sum.1) = (sum.0 + self_samples, sum.1 + total_samples);
            }
        }
    }
    let line = |((symbol, module), [a, b]): ((String, String), [(u64, u64); 2])| DiffLine {
        symbol,
        module,
        own: Change::new((a.0, all[0]), (b.0, all[1])),
        total: Change::new((a.1, all[0]), (b.1, all[1])),
    };
    let mut lines: Vec<DiffLine> = sums.into_iter().map(line).collect();
    let by = |line: &DiffLine| (line.own.change.abs(), line.total.change.abs());
    lines.sort_by(|one, other| {
        let (one, other) = (by(one), by(other));
        other.0.total_cmp(&one.0).then(other.1.total_cmp(&one.1))
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::super::profile::tests::made;
    use super::*;

    #[test]
    fn parts_are_compared_with_their_margin() {
        let a = made(&[("web", "main;parse", 30), ("web", "main;send", 70)]);
        let b = made(&[("web", "main;parse", 600), ("web", "main;send", 300), ("db", "main;sync", 100)]);
        let lines = diff(&a, &b);
        let names: Vec<&str> = lines.iter().map(|line| &*line.symbol).collect();
        assert_eq!(names, ["send", "parse", "sync", "main"]);
        let send = &lines[0].own;
        assert_eq!((send.a_percent, send.b_percent, send.change), (70.0, 30.0, -40.0));
        // 1.96 * sqrt(70 * 30 / 100 + 30 * 70 / 1000)
        assert!((send.margin - 9.420).abs() < 0.001 && send.is_certain(), "{send:?}");
        assert_eq!((lines[3].total.change, lines[3].total.margin), (0.0, 0.0));
        assert!(!lines[3].total.is_certain());
    }

    #[test]
    fn a_profile_differs_not_from_itself_nor_from_nothing() {
        let a = made(&[("web", "main;parse", 30)]);
        assert!(diff(&a, &a).iter().all(|line| line.own.change == 0.0 && !line.own.is_certain()));
        let empty = StackProfile::default();
        assert_eq!(diff(&empty, &empty), []);
        assert!(diff(&empty, &a)[0].own.is_certain());
    }
}
