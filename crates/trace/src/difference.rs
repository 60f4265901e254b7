//! What two traces differ in: times and moves of threads by name, layer or subcell, with how sure that is. Pure.
//!
//! A trace is cut into 32 to 64 windows of one width. What is compared is a quotient of sums over all windows, such as the waits
//! through their number. The windows of each trace are drawn again with replacement (bootstrap), as often as there are, for both traces
//! alone; of 2,000 such draws 99 % of the differences are the interval. Windows, and not single waits, are drawn
//! because the waits of a moment depend on each other. Where 0 is in the interval there is no change.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::analyze::{By, Subcells};
use super::{Event, TraceWhat};
use scxprof_base::sample::printable;
use scxprof_sched::{Fact, Facts, Slot, Threads, Tracker, Why};

/// Windows at most; then two become one.
const WINDOWS: usize = 64;
/// The first width, ns.
const WIDTH: u64 = 1 << 16;
/// Groups that are told apart; what later ones did is left out.
const MAX_GROUPS: usize = 4096;
/// Waits that are kept one by one for their 99th percentile, of 16 bytes each.
const MAX_WAITS: usize = 1 << 22;
/// Draws, and the part of them that the interval leaves out at either end.
const DRAWS: usize = 2000;
const TAIL: f64 = 0.005;
const SEED: u64 = 0x2545_f491_4f6c_dd1d;
/// Without so many windows in which a group did something, there is no interval.
const LEAST: usize = 5;

/// Sums of a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sums {
    run: u64,
    /// Waits since a wakeup: their number and their sum.
    woken: u64,
    latency: u64,
    /// All waits, since a preemption too.
    wait: u64,
    moves: u64,
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.run = self.run.saturating_add(other.run);
        self.woken += other.woken;
        self.latency = self.latency.saturating_add(other.latency);
        self.wait = self.wait.saturating_add(other.wait);
        self.moves += other.moves;
    }
}

/// What the threads of a group did.
#[derive(Debug, Clone, Default)]
struct Group {
    windows: Vec<Sums>,
    /// Waits since a wakeup, each with its window.
    waits: Vec<(u64, u8)>,
    /// Their number in each window, when all are there.
    kept: Vec<u64>,
}

impl Group {
    fn window(&mut self, at: usize) -> Option<&mut Sums> {
        if self.windows.len() <= at {
            self.windows.resize((at + 1).min(WINDOWS), Sums::default());
        }
        self.windows.get_mut(at)
    }

    /// Makes one window of two.
    fn halve(&mut self) {
        self.windows = self
            .windows
            .chunks(2)
            .map(|two| {
                two.iter().fold(Sums::default(), |mut sum, one| {
                    sum.add(one);
                    sum
                })
            })
            .collect();
        for (_, window) in &mut self.waits {
            *window /= 2;
        }
    }
}

/// A thread.
#[derive(Debug, Clone, Copy, Default)]
struct Member {
    layer: Option<u64>,
    /// The CPU that it ran on last, plus 1; 0 if it is not known.
    last_cpu: u32,
    /// When its wait ended, how long it was, and whether it began with a wakeup. Which layer it is of, wprof says after it.
    waited: Option<(u64, u64, bool)>,
    is_moved: bool,
}

/// The windows of a trace.
#[derive(Debug)]
pub struct Windowed {
    tracker: Tracker,
    sums: Adding,
}

#[derive(Debug)]
struct Adding {
    by: By,
    subcells: Option<Subcells>,
    first: Option<u64>,
    now: u64,
    width: u64,
    groups: BTreeMap<String, Group>,
    members: FxHashMap<Slot, Member>,
    waits: usize,
    no_room: u64,
}

impl Windowed {
    /// Before the first event. `by` is a name, a layer or a subcell: ids of threads and processes mean nothing in another trace.
    #[must_use]
    pub fn new(by: By, subcells: Option<Subcells>) -> Self {
        let sums = Adding {
            by,
            subcells,
            first: None,
            now: 0,
            width: WIDTH,
            groups: BTreeMap::new(),
            members: FxHashMap::default(),
            waits: 0,
            no_room: 0,
        };
        Self { tracker: Tracker::default(), sums }
    }

    /// Takes the next event.
    pub fn take(&mut self, event: &Event) {
        match event {
            Event::Sched(event) => {
                self.sums.begin(event.time);
                self.tracker.take(event, &mut self.sums);
            }
            Event::Trace(event) => {
                let (TraceWhat::Waited { layer: Some(layer), .. } | TraceWhat::Dsq { layer: Some(layer), .. }) =
                    event.what
                else {
                    return;
                };
                if let Some(slot) = self.tracker.threads().find(event.tid) {
                    self.sums.members.entry(slot).or_default().layer = Some(layer);
                }
            }
        }
    }

    /// Counts the waits whose threads run at the end.
    fn settle(&mut self) {
        let threads = self.tracker.threads();
        let slots: Vec<Slot> = threads.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.sums.settle(threads, slot);
        }
    }

    /// ns from the first to the last event.
    fn duration(&self) -> u64 {
        self.sums.now.saturating_sub(self.sums.first.unwrap_or(self.sums.now))
    }

    /// The windows that its time takes.
    fn count(&self) -> usize {
        (self.duration() / self.sums.width) as usize + 1
    }
}

impl Adding {
    fn begin(&mut self, time: u64) {
        let first = *self.first.get_or_insert(time);
        self.now = self.now.max(time);
        while time.saturating_sub(first) / self.width >= WINDOWS as u64 {
            self.width = self.width.saturating_mul(2);
            self.groups.values_mut().for_each(Group::halve);
        }
    }

    fn window(&self, time: u64) -> usize {
        let at = time.saturating_sub(self.first.unwrap_or(time)) / self.width;
        (at as usize).min(WINDOWS - 1)
    }

    fn group(&mut self, threads: &Threads, slot: Slot) -> Option<&mut Group> {
        let thread = threads.get(slot)?;
        let comm = thread.comm.as_bytes();
        let key = match self.by {
            By::Layer => match self.members.get(&slot).and_then(|member| member.layer) {
                Some(layer) => format!("layer {layer}"),
                None => "(no layer)".to_owned(),
            },
            By::Subcell => self.subcells.as_ref().map_or_else(String::new, |of| (of.0)(comm)),
            _ => printable(comm),
        };
        if self.groups.len() >= MAX_GROUPS && !self.groups.contains_key(&key) {
            self.no_room += 1;
            return None;
        }
        Some(self.groups.entry(key).or_default())
    }

    fn settle(&mut self, threads: &Threads, slot: Slot) {
        let Some(member) = self.members.get_mut(&slot) else { return };
        let (waited, is_moved) = (member.waited.take(), std::mem::take(&mut member.is_moved));
        let Some(time) = waited.map(|(time, ..)| time).or(is_moved.then_some(self.now)) else { return };
        let at = self.window(time);
        let has_room = self.waits < MAX_WAITS;
        let Some(group) = self.group(threads, slot) else { return };
        let mut kept = 0;
        if let Some((_, ns, true)) = waited.filter(|_| has_room) {
            group.waits.push((ns, at as u8));
            kept = 1;
        }
        let Some(sums) = group.window(at) else { return };
        sums.moves += u64::from(is_moved);
        if let Some((_, ns, is_woken)) = waited {
            sums.wait = sums.wait.saturating_add(ns);
            sums.woken += u64::from(is_woken);
            sums.latency = sums.latency.saturating_add(if is_woken { ns } else { 0 });
        }
        self.waits += kept;
    }

    /// A run counts in each window that it is in.
    fn ran(&mut self, threads: &Threads, slot: Slot, mut from: u64, until: u64) {
        let (first, width) = (self.first.unwrap_or(from), self.width);
        while from < until {
            let at = self.window(from);
            let end = first.saturating_add(width.saturating_mul(at as u64 + 1));
            let end = if at + 1 >= WINDOWS { until } else { end.min(until) };
            if end <= from {
                return;
            }
            let Some(sums) = self.group(threads, slot).and_then(|group| group.window(at)) else { return };
            sums.run = sums.run.saturating_add(end - from);
            from = end;
        }
    }
}

impl Facts for Adding {
    fn fact(&mut self, threads: &Threads, fact: Fact) {
        match fact {
            Fact::Switched { cpu, prev, next, .. } => {
                if let Some(prev) = prev {
                    self.settle(threads, prev);
                    self.members.entry(prev).or_default().last_cpu = cpu + 1;
                }
                if let Some(next) = next {
                    let member = self.members.entry(next).or_default();
                    member.is_moved = member.last_cpu != 0 && member.last_cpu != cpu + 1;
                    member.last_cpu = cpu + 1;
                }
            }
            Fact::Ran { thread: Some(slot), from, until, .. } => {
                self.settle(threads, slot);
                self.ran(threads, slot, from, until);
            }
            Fact::Waited { thread, from, until, why, .. } => {
                self.members.entry(thread).or_default().waited = Some((until, until - from, why != Why::Preempted));
            }
            Fact::Touched { thread } => self.members.entry(thread).or_default().last_cpu = 0,
            Fact::Ended { thread } => {
                self.settle(threads, thread);
                self.members.remove(&thread);
            }
            _ => {}
        }
    }
}

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

/// What became of a number.
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

/// What two traces differ in.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TraceDifference {
    /// What a group is.
    pub by: By,
    /// How it was found.
    pub method: Method,
    /// From the first to the last event of each trace, ns.
    pub duration_ns: [u64; 2],
    /// What got slower first, then what else changed.
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
