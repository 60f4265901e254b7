//! Judgements: fairness, outliers, bottlenecks.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::Serialize;

use super::sums::{Cpus, Rows, Sum};
use crate::analyze::text_table::{ms, of_all, percent, share, us, TextTable, ThreadName};
use crate::analyze::{Method, Options};
use scxprof_base::sample::Comm;
use scxprof_sched::{Durations, Fact, Threads, Why};

/// A thread is starved if it got less than this part of the time that it wanted a CPU...
const STARVED: f64 = 0.1;
/// ... and wanted it for at least this number of ns.
const STARVED_WAIT: u64 = 10_000_000;
/// A thread hogs if it had more than this part of the time of all threads, and more than twice its fair part.
const HOG: f64 = 0.2;

/// CPU time of a thread.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Got {
    /// Which.
    #[serde(flatten)]
    pub thread: ThreadName,
    /// ns on a CPU.
    pub run_ns: u64,
    /// ns runnable without one.
    pub wait_ns: u64,
    /// `run_ns` as a part of both.
    pub got: Option<f64>,
    /// `run_ns` as a part of that of all threads.
    pub share: Option<f64>,
}

/// The result of `fairness`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fairness {
    /// Threads that ran or waited for a CPU.
    pub threads: u64,
    /// The Gini coefficient of their run times: 0 if all are equal, near 1 if one thread has all.
    pub gini_run: Option<f64>,
    /// The same of the part that each got of the time that it wanted: unlike `gini_run` it does not count against a thread
    /// that it wanted little.
    pub gini_got: Option<f64>,
    /// Threads that ended and had no room: they are not in these.
    pub left_out: u64,
    /// How many threads starved: they got less than 10 % of the time that they wanted, and waited at least 10 ms.
    pub starved_count: usize,
    /// Those that waited longest first.
    pub starved: Vec<Got>,
    /// How many threads hogged: they had more than 20 % of the time of all threads, and more than twice an equal part.
    pub hogging_count: usize,
    /// Those that ran longest first.
    pub hogging: Vec<Got>,
}

/// The Gini coefficient of values that are not negative.
fn gini(mut values: Vec<f64>) -> Option<f64> {
    let (count, sum) = (values.len() as f64, values.iter().sum::<f64>());
    if sum <= 0.0 {
        return None;
    }
    values.sort_by(f64::total_cmp);
    let ranked: f64 = values.iter().zip(1u64..).map(|(value, rank)| value * rank as f64).sum();
    Some(2.0 * ranked / (count * sum) - (count + 1.0) / count)
}

pub(super) fn fairness(rows: &Rows, limit: usize) -> Fairness {
    let wanted = rows.rows.iter().filter(|(_, sum)| sum.run.sum() + sum.wait() > 0);
    let all: u64 = rows.rows.iter().map(|(_, sum)| sum.run.sum()).sum();
    let got = |(thread, sum): &(ThreadName, Sum)| Got {
        thread: thread.clone(),
        run_ns: sum.run.sum(),
        wait_ns: sum.wait(),
        got: share(sum.run.sum(), sum.run.sum() + sum.wait()),
        share: share(sum.run.sum(), all),
    };
    let lines: Vec<Got> = wanted.map(got).collect();
    let is_starved = |line: &&Got| line.wait_ns >= STARVED_WAIT && line.got.is_some_and(|got| got < STARVED);
    let hog = HOG.max(2.0 / lines.len().max(1) as f64);
    let mut starved: Vec<Got> = lines.iter().filter(is_starved).cloned().collect();
    let mut hogging: Vec<Got> =
        lines.iter().filter(|line| line.share.is_some_and(|share| share > hog)).cloned().collect();
    starved.sort_by_key(|line| (Reverse(line.wait_ns), line.thread.tid));
    hogging.sort_by_key(|line| (Reverse(line.run_ns), line.thread.tid));
    let (starved_count, hogging_count) = (starved.len(), hogging.len());
    starved.truncate(limit);
    hogging.truncate(limit);
    Fairness {
        threads: lines.len() as u64,
        gini_run: gini(lines.iter().map(|line| line.run_ns as f64).collect()),
        gini_got: gini(lines.iter().filter_map(|line| line.got).collect()),
        left_out: rows.others.threads,
        starved_count,
        starved,
        hogging_count,
        hogging,
    }
}

impl Fairness {
    pub(in crate::analyze) fn tables(&self) -> Vec<TextTable> {
        let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
        let values = [
            ("threads that wanted a CPU", self.threads.to_string()),
            ("Gini coefficient of their run times", number(self.gini_run)),
            ("Gini coefficient of what they got of what they wanted", number(self.gini_got)),
        ];
        let mut tables = vec![TextTable::of_values("", &values)];
        for (what, lines, count) in [
            ("Starved: got less than 10 %, waited at least 10 ms", &self.starved, self.starved_count),
            ("Hogging: more than 20 % of all, and more than twice an equal part", &self.hogging, self.hogging_count),
        ] {
            let mut head = ThreadName::HEAD.to_vec();
            head.extend(["RUN(ms)", "WAIT(ms)", "GOT%", "OF-ALL%"]);
            let mut table = TextTable::new(of_all(what, lines.len(), count), &head);
            for line in lines {
                let cells = [ms(line.run_ns), ms(line.wait_ns), percent(line.got), percent(line.share)];
                table.push(line.thread.cells().into_iter().chain(cells).collect());
            }
            tables.push(table);
        }
        tables
    }
}

/// The longest waits that are kept, of about 50 bytes each.
const MAX_WAITS: usize = 4096;

/// A wait that is kept: ns, beginning, CPU, thread id, name.
type Kept = (u64, u64, u32, u32, Comm);

/// The waits after wakeups.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// The sum of squares, for the standard deviation.
    squares: f64,
    longest: BinaryHeap<Reverse<Kept>>,
}

impl Waits {
    pub(super) fn fact(&mut self, threads: &Threads, fact: &Fact) {
        let Fact::Waited { thread, cpu, from, until, why: Why::Woken(_) | Why::New } = *fact else { return };
        let ns = until - from;
        self.squares += ns as f64 * ns as f64;
        let is_full = self.longest.len() >= MAX_WAITS;
        if is_full && self.longest.peek().is_some_and(|Reverse((least, ..))| ns <= *least) {
            return;
        }
        let Some(thread) = threads.get(thread) else { return };
        if is_full {
            self.longest.pop();
        }
        self.longest.push(Reverse((ns, from, cpu, thread.tid, thread.comm)));
    }

    /// The bounds of what is usual.
    fn bounds(&self, all: &Durations, method: Method) -> Option<(f64, f64)> {
        let quantile = |q| all.quantile(q).map(|ns| ns as f64);
        match method {
            Method::Stddev => {
                let count = all.count() as f64;
                let mean = all.sum() as f64 / count;
                let variance = (self.squares / count - mean * mean).max(0.0);
                (count > 0.0).then(|| stddev_bounds(mean, variance.sqrt()))
            }
            Method::Mad => {
                // The deviations of a thousand quantiles stand for those of all.
                let values: Option<Vec<f64>> = (0..1000u32).map(|at| quantile((f64::from(at) + 0.5) / 1e3)).collect();
                mad_bounds(values?)
            }
            Method::Iqr => Some(iqr_bounds(quantile(0.25)?, quantile(0.75)?)),
            Method::Percentile => Some((quantile(0.01)?, quantile(0.99)?)),
        }
    }
}

fn stddev_bounds(mean: f64, deviation: f64) -> (f64, f64) {
    (mean - 3.0 * deviation, mean + 3.0 * deviation)
}

fn iqr_bounds(first: f64, third: f64) -> (f64, f64) {
    let range = 1.5 * (third - first);
    (first - range, third + range)
}

/// The middle of values, or the mean of the two middle ones.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.get(values.len().checked_sub(1)? / 2)?, values.get(values.len() / 2)?);
    Some(f64::midpoint(*low, *high))
}

fn mad_bounds(mut values: Vec<f64>) -> Option<(f64, f64)> {
    let middle = median(&mut values)?;
    let mut deviations: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    let range = 3.5 * 1.4826 * median(&mut deviations)?;
    Some((middle - range, middle + range))
}

/// The bounds of what is usual, of values that are all known.
fn bounds(values: &[f64], method: Method) -> Option<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len() as f64;
    // The nearest rank.
    let quantile = |q: f64| sorted.get((q * count).ceil().max(1.0) as usize - 1).copied();
    match method {
        Method::Iqr => Some(iqr_bounds(quantile(0.25)?, quantile(0.75)?)),
        Method::Percentile => Some((quantile(0.01)?, quantile(0.99)?)),
        Method::Mad => mad_bounds(sorted),
        Method::Stddev => {
            let mean = sorted.iter().sum::<f64>() / count;
            let variance = sorted.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
            (count > 0.0).then(|| stddev_bounds(mean, variance.sqrt()))
        }
    }
}

/// What lies far from the rest.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outlier {
    /// The thread, or the CPU.
    pub who: String,
    /// Thread id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// The CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// When a wait began, ns of the trace's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_ns: Option<u64>,
    /// Its value: ns, or of a CPU the part of the time in which it ran threads.
    pub value: f64,
}

/// The outliers among values of one kind.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct OutlierSet {
    /// Values that were looked at.
    pub values: u64,
    /// Below this a value is one; `None` without values.
    pub below: Option<f64>,
    /// Above this.
    pub above: Option<f64>,
    /// How many there are.
    pub count: usize,
    /// There may be more: no more were kept.
    pub is_cut: bool,
    /// Those with the largest values first.
    pub outliers: Vec<Outlier>,
}

impl OutlierSet {
    fn new(values: u64, bounds: Option<(f64, f64)>, mut all: Vec<Outlier>, limit: usize) -> Self {
        let (below, above) = bounds.unzip();
        let is_far = |value: f64| below.is_some_and(|below| value < below) || above.is_some_and(|above| value > above);
        all.retain(|outlier| is_far(outlier.value));
        all.sort_by(|a, b| b.value.total_cmp(&a.value).then(a.tid.cmp(&b.tid)));
        let count = all.len();
        all.truncate(limit);
        Self { values, below, above, count, is_cut: false, outliers: all }
    }

    fn table(&self, what: &str, cell: impl Fn(f64) -> String) -> TextTable {
        let bound = |bound: Option<f64>| bound.map_or("-".to_owned(), |bound| cell(bound.max(0.0)));
        let more = if self.is_cut { " or more" } else { "" };
        let (below, above) = (bound(self.below), bound(self.above));
        let title = format!("{what}: {}{more} of {} below {below} or above {above}", self.count, self.values);
        let mut table = TextTable::new(title, &["WHO", "TID", "CPU", "AT(s)", "VALUE"]);
        for line in &self.outliers {
            let or_dash = |number: Option<u32>| number.map_or("-".to_owned(), |number| number.to_string());
            let at = line.at_ns.map_or("-".to_owned(), |ns| format!("{:.9}", ns as f64 / 1e9));
            table.push(vec![line.who.clone(), or_dash(line.tid), or_dash(line.cpu), at, cell(line.value)]);
        }
        table
    }
}

/// The result of `outliers`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outliers {
    /// How they are told from the rest.
    pub method: Method,
    /// Waits after wakeups; only long ones count. Quartiles and medians of them are within 1 %.
    pub latency: OutlierSet,
    /// Run times of threads.
    pub run_time: OutlierSet,
    /// Use of CPUs.
    pub cpu: OutlierSet,
}

pub(super) fn outliers(waits: Waits, cpus: &Cpus, rows: &Rows, options: &Options) -> Outliers {
    let method = options.method;
    // Each is one of a CPU, too.
    let mut all = Durations::default();
    cpus.iter().for_each(|(_, cpu)| all.merge(&cpu.latency));
    let limits = waits.bounds(&all, method).map(|(_, above)| (0.0, above));
    let kept = waits.longest.into_sorted_vec();
    let least = kept.last().map_or(0, |Reverse((ns, ..))| *ns);
    let is_full = kept.len() >= MAX_WAITS;
    let wait = |Reverse((ns, from, cpu, tid, comm)): Reverse<Kept>| Outlier {
        who: comm.to_string(),
        tid: Some(tid),
        cpu: Some(cpu),
        at_ns: Some(from),
        value: ns as f64,
    };
    let found = kept.into_iter().map(wait).collect();
    let mut latency = OutlierSet::new(all.count(), limits, found, options.limit);
    // Below the shortest that is kept there may be more.
    latency.is_cut = is_full && latency.above.is_some_and(|above| least as f64 > above);
    let ran = rows.rows.iter().filter(|(_, sum)| sum.run.count() > 0);
    let ran = ran.map(|(thread, sum)| Outlier {
        who: thread.name.clone(),
        tid: Some(thread.tid),
        cpu: None,
        at_ns: None,
        value: sum.run.sum() as f64,
    });
    let busy = cpus.iter().filter_map(|(cpu, row)| {
        let value = share(row.run.sum(), row.run.sum() + row.idle)?;
        Some(Outlier { who: format!("CPU {cpu}"), tid: None, cpu: Some(cpu), at_ns: None, value })
    });
    let exact = |found: Vec<Outlier>| {
        let values: Vec<f64> = found.iter().map(|outlier| outlier.value).collect();
        OutlierSet::new(values.len() as u64, bounds(&values, method), found, options.limit)
    };
    Outliers { method, latency, run_time: exact(ran.collect()), cpu: exact(busy.collect()) }
}

impl Outliers {
    pub(in crate::analyze) fn tables(&self) -> Vec<TextTable> {
        let ns = |ns: f64| format!("{} us", us(Some(ns as u64)));
        vec![
            self.latency.table("Waits after wakeups", ns),
            self.run_time.table("Run times of threads", |ns| format!("{} ms", ms(ns as u64))),
            self.cpu.table("Use of CPUs", |part| format!("{} %", percent(Some(part)))),
        ]
    }
}

/// Switches of a CPU in a second from which on they are many.
const SWITCHES: f64 = 10_000.0;
/// A mean wait of woken threads from which on it is long, ns; and how many wakeups must be behind it.
const LATENCY: f64 = 1_000_000.0;
const WAKEUPS: u64 = 10;
/// The part of its runs that a thread begins on another CPU, from which on they are many; and how many runs must be behind it.
const MOVES: f64 = 0.5;
const RUNS: u64 = 20;

/// What is slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BottleneckKind {
    /// Switches of a CPU in a second.
    ManySwitches,
    /// ns of the mean wait of a woken thread.
    LongLatency,
    /// The part of its runs that a thread begins on another CPU.
    ManyMoves,
}

/// A bottleneck.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bottleneck {
    /// What is slow.
    pub kind: BottleneckKind,
    /// The CPU, or the thread.
    pub who: String,
    /// Thread id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// Its value.
    pub value: f64,
    /// From which value on it counts.
    pub threshold: f64,
    /// Events behind it.
    pub count: u64,
}

/// The result of `bottlenecks`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bottlenecks {
    /// How many there are.
    pub count: usize,
    /// Those furthest above their threshold first.
    pub bottlenecks: Vec<Bottleneck>,
}

pub(super) fn bottlenecks(cpus: &Cpus, rows: &Rows, window: u64, limit: usize) -> Bottlenecks {
    let mut found = Vec::new();
    let mut offer = |kind, who: String, tid, (value, threshold): (f64, f64), count| {
        if value > threshold {
            found.push(Bottleneck { kind, who, tid, value, threshold, count });
        }
    };
    for (cpu, row) in cpus.iter().filter(|_| window > 0) {
        let rate = row.switches as f64 / (window as f64 / 1e9);
        offer(BottleneckKind::ManySwitches, format!("CPU {cpu}"), None, (rate, SWITCHES), row.switches);
    }
    for (thread, sum) in &rows.rows {
        let (name, tid) = (thread.name.clone(), Some(thread.tid));
        let (waits, runs) = (sum.latency.count(), sum.switches());
        if let Some(mean) = sum.latency.mean().filter(|_| waits >= WAKEUPS) {
            offer(BottleneckKind::LongLatency, name.clone(), tid, (mean as f64, LATENCY), waits);
        }
        if let Some(part) = share(sum.moves, runs).filter(|_| runs >= RUNS) {
            offer(BottleneckKind::ManyMoves, name, tid, (part, MOVES), sum.moves);
        }
    }
    found.sort_by(|a, b| (b.value / b.threshold).total_cmp(&(a.value / a.threshold)).then(a.tid.cmp(&b.tid)));
    let count = found.len();
    found.truncate(limit);
    Bottlenecks { count, bottlenecks: found }
}

impl Bottlenecks {
    pub(in crate::analyze) fn tables(&self) -> Vec<TextTable> {
        let head = ["WHAT IS SLOW", "WHO", "TID", "VALUE", "THRESHOLD", "COUNT"];
        let mut table = TextTable::new(of_all("Bottlenecks", self.bottlenecks.len(), self.count), &head);
        for line in &self.bottlenecks {
            let (what, cell): (_, fn(f64) -> String) = match line.kind {
                BottleneckKind::ManySwitches => ("many switches", |rate| format!("{rate:.0}/s")),
                BottleneckKind::LongLatency => ("long waits after wakeups", |ns| format!("{}us", us(Some(ns as u64)))),
                BottleneckKind::ManyMoves => ("many moves", |part| format!("{}%", percent(Some(part)))),
            };
            let tid = line.tid.map_or("-".to_owned(), |tid| tid.to_string());
            let numbers = [tid, cell(line.value), cell(line.threshold), line.count.to_string()];
            table.push([what.to_owned(), line.who.clone()].into_iter().chain(numbers).collect());
        }
        vec![table]
    }
}
