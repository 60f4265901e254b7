//! The differences of two traces: times and moves of threads by name, layer or subcell, with their certainty. Pure.
//!
//! A trace is cut into 32 to 64 windows of one width. What is compared is a quotient of sums over all windows, such as the waits
//! through their number. The windows of each trace are drawn again with replacement (bootstrap), as often as there are, for both traces
//! alone; of 2,000 such draws 99 % of the differences are the interval. Windows, and not single waits, are drawn
//! because the waits of a moment depend on each other. Where 0 is in the interval there is no change.

mod windows;

use std::collections::BTreeSet;

use serde::Serialize;

use self::windows::{Group, Sums, WINDOWS};
use super::analyze::By;
pub use windows::Windowed;

/// Draws, and the part of them that the interval leaves out at either end.
const DRAWS: usize = 2000;
const TAIL: f64 = 0.005;
const SEED: u64 = 0x2545_f491_4f6c_dd1d;
/// If a group was active in fewer windows than this, there is no interval.
const LEAST: usize = 5;

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// The mean time from a wakeup to the CPU, ns.
    WakeupLatency,
    /// The 99th percentile of that, ns.
    WakeupLatencyP99,
    /// Time runnable without a CPU, ns a second.
    Waiting,
    /// Time on CPUs, ns a second.
    Running,
    /// Runs on another CPU than the one before, a second.
    Migrations,
}

impl Metric {
    const ALL: [Self; 5] =
        [Self::WakeupLatency, Self::WakeupLatencyP99, Self::Waiting, Self::Running, Self::Migrations];

    /// True if more of it means that threads got slower.
    fn is_slower(self) -> bool {
        matches!(self, Self::WakeupLatency | Self::WakeupLatencyP99 | Self::Waiting)
    }

    /// Of a group, with each window as often as drawn; `width` is that of a window. `None` without any.
    fn of(self, group: &Group, drawn: &[u32], width: u64) -> Option<f64> {
        let quotient = |part: fn(&Sums) -> u64, of: fn(&Sums) -> u64| {
            let sum = |of: fn(&Sums) -> u64| {
                group.windows.iter().zip(drawn).map(|(sums, times)| of(sums) as f64 * f64::from(*times)).sum::<f64>()
            };
            let all = sum(of);
            (all > 0.0).then(|| sum(part) / all)
        };
        let a_second = |part: fn(&Sums) -> u64| {
            let windows: f64 = drawn.iter().map(|times| f64::from(*times)).sum();
            let sum: f64 =
                group.windows.iter().zip(drawn).map(|(sums, times)| part(sums) as f64 * f64::from(*times)).sum();
            (windows > 0.0).then(|| sum / (windows * width as f64) * 1e9)
        };
        match self {
            Self::WakeupLatency => quotient(|sums| sums.latency, |sums| sums.woken),
            Self::WakeupLatencyP99 => p99(group, drawn),
            Self::Waiting => a_second(|sums| sums.wait),
            Self::Running => a_second(|sums| sums.run),
            Self::Migrations => a_second(|sums| sums.moves),
        }
    }
}

/// The 99th percentile (nearest rank) of waits in descending order, each as often as its window was drawn.
fn p99(group: &Group, drawn: &[u32]) -> Option<f64> {
    let times = |window: usize| u64::from(drawn.get(window).copied().unwrap_or(0));
    let all: u64 = group.kept.iter().enumerate().map(|(window, count)| count * times(window)).sum();
    let above = all - (all as f64 * 0.99).ceil() as u64;
    let mut seen = 0;
    group.waits.iter().find_map(|(ns, window)| {
        seen += times(usize::from(*window));
        (seen > above).then_some(*ns as f64)
    })
}

/// The change of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Threads wait longer.
    Slower,
    /// Threads wait for a shorter time.
    Faster,
    /// There is more of it.
    More,
    /// There is less of it.
    Less,
    /// The group is only in the second trace.
    OnlyInB,
    /// The group is only in the first trace.
    OnlyInA,
    /// The difference is within what windows of one trace differ in.
    NoChange,
    /// Too few windows to say it.
    TooFew,
}

impl Verdict {
    /// For people.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Slower => "slower",
            Self::Faster => "faster",
            Self::More => "more",
            Self::Less => "less",
            Self::OnlyInB => "only in B",
            Self::OnlyInA => "only in A",
            Self::NoChange => "no change",
            Self::TooFew => "too few",
        }
    }
}

/// A number of a group in both traces.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    /// The name, layer or subcell.
    pub group: String,
    /// What it is.
    pub metric: Metric,
    /// In the first trace; `None` if there was none.
    pub a: Option<f64>,
    /// In the second one.
    pub b: Option<f64>,
    /// How much more the second one has, as a part of the first; `None` if that has none.
    pub change: Option<f64>,
    /// The interval of the change; `None` if there are too few windows, or the first has none.
    pub interval: Option<(f64, f64)>,
    /// What that means.
    pub verdict: Verdict,
}

/// How lines were found.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Method {
    /// Windows of each trace, and their width in ns.
    pub windows: [usize; 2],
    /// ns.
    pub width_ns: [u64; 2],
    /// Draws of windows.
    pub draws: usize,
    /// The part of the draws that is in the interval.
    pub confidence: f64,
    /// Where the numbers for the draws begin: the same traces give the same result.
    pub seed: u64,
}

/// The differences of two traces.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TraceDifference {
    /// What a group is.
    pub by: By,
    /// How it was found.
    pub method: Method,
    /// From the first to the last event of each trace, ns.
    pub duration_ns: [u64; 2],
    /// Groups that got slower first, then other changes.
    pub lines: Vec<Line>,
    /// Runs and waits of groups for which there was no room.
    pub no_room: u64,
}

/// Marsaglia's xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % count.max(1)
    }

    /// How often each of `count` windows is drawn.
    fn draw(&mut self, count: usize) -> Vec<u32> {
        let mut drawn = vec![0; count];
        for _ in 0..count {
            if let Some(times) = drawn.get_mut(self.below(count)) {
                *times += 1;
            }
        }
        drawn
    }
}

/// Compares two traces after their last events.
#[must_use]
pub fn compare(mut a: Windowed, mut b: Windowed) -> TraceDifference {
    for one in [&mut a, &mut b] {
        one.settle();
        for group in one.sums.groups.values_mut() {
            group.waits.sort_unstable_by_key(|(ns, _)| std::cmp::Reverse(*ns));
            group.kept = vec![0; WINDOWS];
            for (_, window) in &group.waits {
                if let Some(count) = group.kept.get_mut(usize::from(*window)) {
                    *count += 1;
                }
            }
        }
    }
    let names: BTreeSet<&String> = a.sums.groups.keys().chain(b.sums.groups.keys()).collect();
    let counts = [a.count(), b.count()];
    let mut random = Random(SEED);
    // All groups are drawn alike.
    let draws: Vec<[Vec<u32>; 2]> = (0..DRAWS).map(|_| counts.map(|count| random.draw(count))).collect();
    let mut lines = Vec::new();
    let nothing = Group::default();
    for name in names {
        let groups = [a.sums.groups.get(name), b.sums.groups.get(name)];
        for metric in Metric::ALL {
            lines.extend(line(name, metric, groups, &nothing, [(&a, 0), (&b, 1)], &draws));
        }
    }
    let size = |line: &Line| line.change.map_or(0.0, f64::abs);
    lines.sort_by(|x, y| x.verdict.cmp(&y.verdict).then_with(|| size(y).total_cmp(&size(x))));
    TraceDifference {
        by: a.sums.by,
        method: Method {
            windows: counts,
            width_ns: [a.sums.width, b.sums.width],
            draws: DRAWS,
            confidence: 1.0 - 2.0 * TAIL,
            seed: SEED,
        },
        duration_ns: [a.duration(), b.duration()],
        lines,
        no_room: a.sums.no_room + b.sums.no_room,
    }
}

/// The line of a group and a number; `None` if neither trace has it.
fn line(
    name: &str,
    metric: Metric,
    groups: [Option<&Group>; 2],
    nothing: &Group,
    traces: [(&Windowed, usize); 2],
    draws: &[[Vec<u32>; 2]],
) -> Option<Line> {
    let whole = traces.map(|(trace, at)| {
        let group = groups.get(at).copied().flatten()?;
        metric.of(group, &vec![1; trace.count()], trace.sums.width)
    });
    let [a, b] = whole;
    let is_none = |value: Option<f64>| value.is_none_or(|value| value == 0.0);
    if is_none(a) && is_none(b) {
        return None;
    }
    let mut line =
        Line { group: name.to_owned(), metric, a, b, change: None, interval: None, verdict: Verdict::TooFew };
    if groups[0].is_none() || groups[1].is_none() {
        line.verdict = if groups[0].is_none() { Verdict::OnlyInB } else { Verdict::OnlyInA };
        return Some(line);
    }
    // A latency without a wait is not known; a rate without an event is 0.
    let (Some(a), Some(b)) = (a, b) else { return Some(line) };
    line.change = (a > 0.0).then(|| b / a - 1.0);
    let used = |group: Option<&Group>| {
        group.map_or(0, |group| group.windows.iter().filter(|sums| **sums != Sums::default()).count())
    };
    if groups.iter().any(|group| used(*group) < LEAST) {
        return Some(line);
    }
    let of = |at: usize, drawn: &[u32]| {
        let (trace, _) = traces.get(at)?;
        metric.of(groups.get(at).copied().flatten().unwrap_or(nothing), drawn, trace.sums.width)
    };
    let mut differences: Vec<f64> = draws.iter().filter_map(|[in_a, in_b]| Some(of(1, in_b)? - of(0, in_a)?)).collect();
    differences.sort_unstable_by(f64::total_cmp);
    let at = |part: f64| differences.get((part * differences.len().saturating_sub(1) as f64).round() as usize).copied();
    let (Some(low), Some(high)) = (at(TAIL), at(1.0 - TAIL)) else { return Some(line) };
    line.interval = (a > 0.0).then(|| (low / a, high / a));
    line.verdict = match (low > 0.0, high < 0.0) {
        (true, _) if metric.is_slower() => Verdict::Slower,
        (true, _) => Verdict::More,
        (_, true) if metric.is_slower() => Verdict::Faster,
        (_, true) => Verdict::Less,
        _ => Verdict::NoChange,
    };
    Some(line)
}
