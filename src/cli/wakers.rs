//! `scxprof sched --wakers`: which threads wake and preempt each other, and chains of wakeups.

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::args::RESULT;
use super::times::us;
use crate::config::{Placement, Scheduler};
use crate::session::SchedSink;
use scxprof_base::columns::{fitted, Column};
use scxprof_sched::wakers::report::{ChainLine, EdgeLine, Level, Party, PreemptionLine, Report, Within};
use scxprof_sched::wakers::{Locality, MAX_LENGTH};

/// The name of a waker that is not a thread.
const INTERRUPT: &str = "(interrupt)";
/// The name of the idle task as a preempting thread.
const IDLE: &str = "(idle)";

#[derive(Debug, Args)]
pub(super) struct WakerArgs {
    /// Instead of --by, print which threads wake and preempt each other, and chains of wakeups: by thread [default], or by
    /// class, the threads of one name and cgroup
    #[arg(
        long,
        value_name = "LEVEL",
        num_args = 0..=1,
        default_missing_value = "thread",
        conflicts_with = "windows",
        help_heading = RESULT
    )]
    wakers: Option<LevelName>,
}

/// What an edge connects.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum LevelName {
    Thread,
    Class,
}

impl WakerArgs {
    /// `None` if it was not asked for.
    pub(super) fn level(&self) -> Option<Level> {
        self.wakers.map(|level| match level {
            LevelName::Thread => Level::Thread,
            LevelName::Class => Level::Class,
        })
    }

    pub(super) fn enable(&self, stats: SchedSink) -> SchedSink {
        match self.level() {
            Some(_) => stats.with_wakers(),
            None => stats,
        }
    }
}

/// The result.
#[derive(Debug, Serialize)]
pub(super) struct FoundWakers {
    #[serde(flatten)]
    report: Report,
    /// Of wakeups by threads, those within a subcell or layer of the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    within: Option<Within>,
    /// What a group of the configuration is called.
    #[serde(skip)]
    group: &'static str,
}

impl FoundWakers {
    /// At most `limit` edges and lines of preemptions, 0 for all; `None` if the statistics are without.
    pub(super) fn new(stats: &SchedSink, level: Level, limit: usize, placement: Option<&Placement>) -> Option<Self> {
        let report = stats.wakers(level, if limit == 0 { usize::MAX } else { limit })?;
        let within = placement.and_then(|placement| stats.within(&|task| placement.group(task)));
        let group = if placement.is_some_and(|it| it.scheduler() == Scheduler::Layered) { "layer" } else { "subcell" };
        Some(Self { report, within, group })
    }
}

/// Three tables and a line of what they add up to.
pub(super) fn table(FoundWakers { report, within, group }: &FoundWakers, width: Option<usize>) -> String {
    let percent = |part: u64, of: u64| format!("{:.1} %", 100.0 * part as f64 / of.max(1) as f64);
    let (counts, places) = (&report.counts, &report.places);
    let total = places.total();
    let Locality { same_cpu, core, llc, node, unknown, .. } = *places;
    let mut parts = vec![format!("Wakeups: {}; by threads, as far as seen: {total}", counts.wakeups)];
    // Each place has the ones before in it.
    let mut within_place = 0;
    for (name, count) in [("on the same CPU", same_cpu), ("core", core), ("LLC", llc), ("node", node)] {
        within_place += count;
        parts.push(format!("{name} {}", percent(within_place, total)));
    }
    if unknown > 0 {
        parts.push(format!("to a CPU of unknown distance {}", percent(unknown, total)));
    }
    let mut lines = vec![parts.join(", ")];
    if let Some(Within { wakeups, within, unknown, .. }) = *within {
        let (within, unknown) = (percent(within, wakeups), percent(unknown, wakeups));
        lines.push(format!("within a {group}: {within}; with a thread of no {group}: {unknown}"));
    }
    for (count, what) in [
        (counts.wakeups_uncounted, "wakeups are in no line: there are too many pairs"),
        (counts.preemptions_uncounted, "preemptions are in no line: there are too many pairs"),
        (counts.wakeups_own, "wakeups by or of scxprof itself are left out"),
    ] {
        if count > 0 {
            lines.push(format!("{count} {what}"));
        }
    }
    [edges(report, width), preemptions(report, width), chains(report, width), lines.join("\n") + "\n"].concat()
}

/// Name, and thread id or cgroup.
fn party(party: Option<&Party>, level: Level) -> [String; 2] {
    let Some(party) = party else { return [INTERRUPT.to_owned(), "-".to_owned()] };
    let second = match level {
        Level::Thread => party.tid.map(|tid| tid.to_string()),
        Level::Class => party.cgroup.clone(),
    };
    [party.name.clone(), second.unwrap_or_else(|| "-".to_owned())]
}

fn head(level: Level, [first, second]: [&str; 2], more: &[&str]) -> Vec<String> {
    let id = if level == Level::Thread { "TID" } else { "CGROUP" };
    [first, id, second, id].iter().chain(more).map(|&it| it.to_owned()).collect()
}

/// How the columns of what identifies a party give way.
fn id_column(level: Level) -> Column {
    match level {
        Level::Thread => Column::number(3),
        Level::Class => Column::name(3),
    }
}

fn edges(report: &Report, width: Option<usize>) -> String {
    let level = report.level;
    let id = id_column(level);
    let columns = [
        Column::name(0),
        id,
        Column::name(0),
        id,
        Column::number(0),
        Column::number(2),
        Column::number(1),
        Column::number(2),
    ];
    let more = ["WAKEUPS", "%SAME-CPU", "LAT.MEAN(us)", "MAX"];
    let mut rows = vec![head(level, ["WAKER", "WAKEE"], &more)];
    rows.extend(report.edges.iter().map(|edge: &EdgeLine| {
        let here = match edge.places.total() {
            0 => "-".to_owned(),
            total => format!("{:.1}", 100.0 * edge.places.same_cpu as f64 / total as f64),
        };
        let mut row = Vec::from(party(edge.waker.as_ref(), level));
        row.extend(party(Some(&edge.wakee), level));
        row.extend([edge.wakeups.to_string(), here, us(edge.latency.mean_ns), us(edge.latency.max_ns)]);
        row
    }));
    format!("{}{} of {} edges\n\n", fitted(&rows, &columns, width), report.edges.len(), report.edge_count)
}

fn preemptions(report: &Report, width: Option<usize>) -> String {
    let level = report.level;
    let id_column = id_column(level);
    let columns = [Column::name(0), id_column, Column::name(0), id_column, Column::number(0)];
    // Of threads that were preempted the classes are kept.
    let second = |party: &Party| match level {
        Level::Thread => party.pid.map_or("-".to_owned(), |pid| pid.to_string()),
        Level::Class => party.cgroup.clone().unwrap_or_else(|| "-".to_owned()),
    };
    let id = if level == Level::Thread { "PID" } else { "CGROUP" };
    let mut rows = vec![["PREEMPTED", id, "BY", id, "TIMES"].map(str::to_owned)];
    rows.extend(report.preempted.iter().map(|line: &PreemptionLine| {
        let by = line.by.as_ref();
        let name = by.map_or(IDLE, |by| &by.name).to_owned();
        let times = line.preemptions.to_string();
        [line.thread.name.clone(), second(&line.thread), name, by.map_or("-".to_owned(), second), times]
    }));
    let (shown, count) = (report.preempted.len(), report.preempted_count);
    format!("{}{shown} of {count} pairs, {} preemptions\n\n", fitted(&rows, &columns, width), report.counts.preemptions)
}

fn chains(report: &Report, width: Option<usize>) -> String {
    let columns = [Column::number(0), Column::number(1), Column::name(0)];
    // The blank makes it a column of text.
    let mut rows = vec![["CHAIN(us)", "LENGTH", "THREADS THAT WAKE EACH OTHER"].map(str::to_owned)];
    rows.extend(report.chains.iter().map(|chain: &ChainLine| {
        let names = chain.threads.iter().map(|thread| format!("{}[{}]", thread.name, thread.tid));
        let names = names.collect::<Vec<_>>().join(" > ");
        let before = if chain.is_cut { "... > " } else { "" };
        [us(Some(chain.latency_ns)), chain.length.to_string(), format!("{before}{names}")]
    }));
    let latency = &report.chain_latency;
    let lengths = report.chain_lengths.iter();
    let of = |is: fn(usize) -> bool| {
        lengths.clone().filter(|line| is(line.length)).map(|line| line.latency.count).sum::<u64>()
    };
    let lengths = [
        ("1".to_owned(), of(|length| length == 1)),
        ("2".to_owned(), of(|length| length == 2)),
        ("3 to 7".to_owned(), of(|length| (3..8).contains(&length))),
        (format!("8 to {}", MAX_LENGTH - 1), of(|length| (8..MAX_LENGTH).contains(&length))),
        (format!("{MAX_LENGTH} or more"), of(|length| length >= MAX_LENGTH)),
    ];
    let lengths = lengths.map(|(length, count)| format!("{length}: {count}")).join(", ");
    let (p50, p99) = (us(latency.p50_ns), us(latency.p99_ns));
    let text = fitted(&rows, &columns, width);
    format!("{text}Chains by length: {lengths}; below {MAX_LENGTH}, latency P50 {p50} us, P99 {p99} us\n\n")
}
