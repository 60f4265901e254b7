//! Tools about what the scheduler did.

use std::fmt::Display;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Value};

use super::super::context::{Context, Line};
use super::super::error::{Kind, ToolError};
use super::super::page::{value_of, Document};
use super::{tool, Effect, Tool, LIVE};
use crate::cli::input;
use crate::session::{Live, LiveError, LiveState, Scheduling};
use scxprof_sched::report::{self, Order};
use scxprof_sched::wakers::report::Level as WakersLevel;

/// Edges and preemptions of a capture.
const MAX_EDGES: usize = 5_000;

/// What a line is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum By {
    /// Each CPU.
    Cpu,
    /// Each thread.
    Thread,
    /// Each process.
    #[default]
    Process,
    /// Each cgroup.
    Cgroup,
    /// Each cell and subcell, or layer, of a configuration.
    Cell,
    /// The CPUs of each last-level cache.
    Llc,
    /// The CPUs of each NUMA node.
    Node,
    /// Each dispatch queue of the sched_ext scheduler.
    Dsq,
}

impl By {
    /// `None` for dispatch queues, which have other fields.
    fn of_report(self) -> Option<report::By> {
        match self {
            Self::Cpu => Some(report::By::Cpu),
            Self::Thread => Some(report::By::Thread),
            Self::Process => Some(report::By::Process),
            Self::Cgroup => Some(report::By::Cgroup),
            Self::Cell => Some(report::By::Cell),
            Self::Llc => Some(report::By::Llc),
            Self::Node => Some(report::By::Node),
            Self::Dsq => None,
        }
    }

    fn name(self) -> &'static str {
        self.of_report().map_or("dsq", report::By::name)
    }
}

/// What lines are sorted by, the largest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Sort {
    /// Time on CPUs.
    #[default]
    Run,
    /// Time waiting for a CPU.
    Wait,
    /// Latency of wakeups.
    Latency,
    /// Switches.
    Switches,
    /// Wakeups.
    Wakeups,
    /// Moves to other CPUs.
    Migrations,
    /// The name, in order of the alphabet.
    Name,
}

impl Sort {
    fn order(self) -> Order {
        match self {
            Self::Run => Order::Run,
            Self::Wait => Order::Wait,
            Self::Latency => Order::Latency,
            Self::Switches => Order::Switches,
            Self::Wakeups => Order::Wakeups,
            Self::Migrations => Order::Migrations,
            Self::Name => Order::Name,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Wait => "wait",
            Self::Latency => "latency",
            Self::Switches => "switches",
            Self::Wakeups => "wakeups",
            Self::Migrations => "migrations",
            Self::Name => "name",
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Stats {
    /// The id that open_recording returned, such as "r1-5ca1ab1e", or "live" for the capture of this host.
    source: String,
    /// What a line is about [default: process].
    #[serde(default)]
    by: By,
    /// What lines are sorted by [default: run]; dispatch queues have an order of their own.
    #[serde(default)]
    sort: Sort,
    /// For by=cell: the path of the configuration below the root directory of the server. Of a capture it stays loaded.
    configuration: Option<String>,
}

/// What edges connect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Level {
    /// Threads.
    #[default]
    Thread,
    /// Classes: the threads of a name and cgroup.
    Class,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Wakers {
    /// The id that open_recording returned, such as "r1-5ca1ab1e", or "live" for the capture of this host.
    source: String,
    /// What edges connect [default: thread].
    #[serde(default)]
    level: Level,
    /// Of a recording: the path of a configuration below the root directory of the server; says which part of the wakeups stay
    /// within a subcell.
    configuration: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Latency {
    /// The id that open_recording returned, such as "r1-5ca1ab1e", or "live" for the capture of this host.
    source: String,
    /// How many threads and outliers to return [default: 20].
    count: Option<u32>,
}

pub(super) fn tools() -> Vec<Tool> {
    vec![
        tool(
            "scheduling_stats",
            "What the scheduler did",
            "Statistics of scheduling by CPU, thread, process, cgroup, cell, last-level cache, node or dispatch queue: run time, \
             waits, latency of wakeups (mean, p50, p95, p99, max in ns), switches, preemptions, migrations by distance, and what was \
             lost. Start here for \"why is it slow\" and for imbalance between CPUs (by=cpu).",
            Effect::Captures,
            stats,
        )
        .of_source(),
        tool(
            "wakers",
            "Which threads wake each other",
            "Which threads wake each other, how long the woken threads waited, which threads preempt each other, how many wakeups \
             cross cores, caches and nodes, and chains of wakeups. For work that passes between threads and for scheduling dependencies.",
            Effect::Captures,
            wakers,
        )
        .of_source(),
        tool(
            "latency_outliers",
            "Threads and moments that waited longest",
            "The threads with the most latency of wakeups, and of a recording the single waits that are far outside of the rest, \
             each with thread, CPU and time in ns. For \"what causes the tail latency\"; then timeline shows what happened there.",
            Effect::Captures,
            latency,
        )
        .of_source(),
    ]
}

/// The scheduling statistics since the events were switched on in the capture; they are switched on if they are off.
fn live<T>(
    context: &Context,
    by: &[report::By],
    of: impl Fn(&Live, Scheduling) -> Result<Option<T>, ToolError>,
) -> Result<T, ToolError> {
    context.shared.capturing.look(|live| {
        // Of a capture that has ended, what it found is shown.
        if !live.is_scheduling() && live.state() == LiveState::Ended {
            return Ok(());
        }
        match live.schedule(true) {
            Ok(()) | Err(LiveError::Ended) => Ok(()),
            Err(error) => Err(error.into()),
        }
    })?;
    let lacking = "the capture has no scheduling events: while it runs, ask again after some seconds";
    context.shared.capturing.wait(&context.stop, lacking, |live| match live.snapshot(by).scheduling {
        // Without a whole window there is little to see.
        Some(scheduling) if scheduling.events > 0 && scheduling.window_s > 0.0 => of(live, scheduling),
        _ => Ok(None),
    })
}

fn live_stats(context: &Context, stats: &Stats) -> Result<Document, ToolError> {
    if let Some(path) = &stats.configuration {
        let wrong = |error: &dyn Display| ToolError::new(Kind::InvalidArguments, format!("{path}: {error}"));
        let given = input::configuration_text("configuration", &context.existing(path)?)?;
        let number = context.client.number;
        context
            .shared
            .capturing
            .look_as(number, |live| live.load(Some((path.clone(), given))).map_err(|error| wrong(&error)))?;
    }
    let by = stats.by.of_report();
    let is_loaded = context.shared.capturing.snapshot(&[])?.configuration.is_some();
    if stats.by == By::Cell && !is_loaded {
        return Err(ToolError::new(Kind::InvalidArguments, "by=cell needs a configuration, which has the cells"));
    }
    let by_list: Vec<report::By> = by.into_iter().collect();
    let scheduling = live(context, &by_list, |_, scheduling| Ok(Some(scheduling)))?;
    let mut found = json!({
        "by": stats.by.name(),
        "window_s": scheduling.window_s,
        "total_s": scheduling.total_s,
        "events": scheduling.events,
        "lost": scheduling.lost,
    });
    if by.is_none() {
        found["dsqs"] = value_of(&scheduling.dsqs)?;
        found["dsqs_window"] = value_of(&scheduling.dsqs_window)?;
    }
    for mut lines in scheduling.lines {
        report::sort(&mut lines.total, stats.sort.order());
        report::sort(&mut lines.window, stats.sort.order());
        found["lines"] = value_of(&lines.total)?;
        found["lines_window"] = value_of(&lines.window)?;
    }
    let lost =
        (scheduling.lost > 0).then(|| format!("{} scheduling events were lost: figures are too low", scheduling.lost));
    Ok(Document { value: found, warnings: lost.into_iter().collect(), ..Document::default() })
}

fn live_wakers(context: &Context, level: Level) -> Result<Document, ToolError> {
    let level = if level == Level::Class { WakersLevel::Class } else { WakersLevel::Thread };
    let found = live(context, &[], |live, _| Ok(live.wakers(level, MAX_EDGES)))?;
    Ok(Document { value: json!({ "wakers": value_of(&found)? }), ..Document::default() })
}

fn live_latency(context: &Context, count: usize) -> Result<Document, ToolError> {
    let scheduling = live(context, &[report::By::Thread], |_, scheduling| Ok(Some(scheduling)))?;
    let mut threads = scheduling.lines.into_iter().next().map(|lines| lines.total).unwrap_or_default();
    report::sort(&mut threads, Order::Latency);
    threads.truncate(count);
    let notes = vec!["single waits that are outliers are told of recordings alone".to_owned()];
    Ok(Document { value: json!({ "threads": value_of(&threads)?, "outliers": null }), notes, warnings: Vec::new() })
}

fn stats(context: &Context, stats: &Stats) -> Result<Document, ToolError> {
    if stats.source == LIVE {
        return live_stats(context, stats);
    }
    let recording = context.recording(&stats.source)?;
    let line = Line::new(&["sched", "--json", "--limit=0"]).option("--file", &recording.path);
    let line = line.option("--by", stats.by.name()).option("--sort", stats.sort.name());
    context.json(&with_configuration(context, line, stats.configuration.as_deref())?)
}

fn with_configuration(context: &Context, line: Line, path: Option<&str>) -> Result<Line, ToolError> {
    Ok(match path {
        Some(path) => line.option("--config", context.existing(path)?),
        None => line,
    })
}

fn wakers(context: &Context, wakers: &Wakers) -> Result<Document, ToolError> {
    if wakers.source == LIVE {
        if wakers.configuration.is_some() {
            let message = "a configuration has no effect on the wakeups of a capture: give it with a recording";
            return Err(ToolError::new(Kind::InvalidArguments, message));
        }
        return live_wakers(context, wakers.level);
    }
    let recording = context.recording(&wakers.source)?;
    let level = if wakers.level == Level::Class { "class" } else { "thread" };
    let line = Line::new(&["sched", "--json", "--limit=0"]).option("--file", &recording.path).option("--wakers", level);
    let mut document = context.json(&with_configuration(context, line, wakers.configuration.as_deref())?)?;
    // Statistics by process, which scheduling_stats has.
    if let Some(fields) = document.value.as_object_mut() {
        fields.remove("lines");
        fields.remove("by");
        fields.remove("line_count");
    }
    Ok(document)
}

fn latency(context: &Context, Latency { source, count }: &Latency) -> Result<Document, ToolError> {
    let count = count.unwrap_or(20).clamp(1, 1000);
    if source == LIVE {
        return live_latency(context, count as usize);
    }
    let recording = context.recording(source)?;
    let count = count.to_string();
    let line = Line::new(&["sched", "--json", "--by=thread", "--sort=latency"]);
    let stats = context.json(&line.option("--limit", &count).option("--file", &recording.path))?;
    let line = Line::new(&["trace", "analyze", "--json", "--only=outliers"]).option("--limit", &count);
    let analysed = context.json(&line.path(&recording.path))?;
    let value = json!({
        "total": stats.value["total"]["latency"],
        "threads": stats.value["lines"],
        "outliers": analysed.value.pointer("/analyses/outliers/latency").cloned().unwrap_or(Value::Null),
    });
    Ok(Document { value, ..stats })
}
