//! A summary of the columns of all windows: mean, quantiles and maximum of the CPUs in use.

use serde::Serialize;
use sketches_ddsketch::{Config, DDSketch};

use super::{Columns, Window};

/// The largest relative error of a quantile.
const ALPHA: f64 = 0.01;
/// Enough for all values from 1 ns to 100 CPU hours.
const BINS: u32 = 2048;
/// Values below are 0; the smallest other one is 1 ns.
const MIN_VALUE: f64 = 0.5;

/// The windows of a stream in numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The windows that were counted: those of full width, or the only one.
    pub windows: u64,
    /// Their width in ns.
    pub width: u64,
    /// The columns of [`Window::ns`], and `busy`: all of them except idle and unknown time.
    pub columns: Vec<ColumnSummary>,
}

/// CPUs in use over the windows. Mean and maximum are exact, quantiles within 1 %. All are 0 without any window.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ColumnSummary {
    /// The column.
    pub name: String,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Maximum.
    pub max: f64,
}

/// Adds up windows in bounded memory.
#[derive(Debug)]
pub(super) struct Totals {
    width: u64,
    windows: u64,
    columns: Vec<Column>,
}

struct Column {
    sketch: DDSketch,
    /// ns.
    sum: u128,
    max: u64,
}

impl std::fmt::Debug for Column {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Column").field("sum", &self.sum).field("max", &self.max).finish_non_exhaustive()
    }
}

impl Column {
    fn add(&mut self, ns: u64) {
        self.sketch.add(ns as f64);
        self.sum += u128::from(ns);
        self.max = self.max.max(ns);
    }
}

impl Totals {
    pub(super) fn new(width: u64, columns: &Columns) -> Self {
        let sketch = || DDSketch::new(Config::new(ALPHA, BINS, MIN_VALUE));
        // One more is for all busy time.
        let columns = (0..=columns.names.len()).map(|_| Column { sketch: sketch(), sum: 0, max: 0 }).collect();
        Self { width, windows: 0, columns }
    }

    /// Counts a window; a partial one only if there is no other.
    pub(super) fn add(&mut self, window: &Window, busy: u64) {
        if window.width != self.width {
            if self.windows > 0 {
                return;
            }
            self.width = window.width;
        }
        self.windows += 1;
        for (column, ns) in self.columns.iter_mut().zip(window.ns.iter().copied().chain([busy])) {
            column.add(ns);
        }
    }

    pub(super) fn summary(&self, columns: &Columns) -> Summary {
        let width = self.width as f64;
        let of = |(column, name): (&Column, &str)| {
            let quantile = |q| {
                let ns = column.sketch.quantile(q).ok().flatten().unwrap_or(0.0);
                // A quantile is not more than the maximum, which is exact.
                ns.min(column.max as f64) / width
            };
            ColumnSummary {
                name: name.to_owned(),
                mean: column.sum as f64 / (self.windows.max(1) as f64 * width),
                p50: quantile(0.5),
                p95: quantile(0.95),
                p99: quantile(0.99),
                max: column.max as f64 / width,
            }
        };
        let names = columns.names.iter().map(String::as_str).chain(["busy"]);
        Summary { windows: self.windows, width: self.width, columns: self.columns.iter().zip(names).map(of).collect() }
    }
}
