//! Tools about what the scheduler did.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Value};

use super::super::context::{Context, Line};
use super::super::error::ToolError;
use super::super::page::Document;
use super::{tool, Effect, Tool};

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
    fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Thread => "thread",
            Self::Process => "process",
            Self::Cgroup => "cgroup",
            Self::Cell => "cell",
            Self::Llc => "llc",
            Self::Node => "node",
            Self::Dsq => "dsq",
        }
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
    /// The id that open_recording returned, such as "r1".
    source: String,
    /// What a line is about [default: process].
    #[serde(default)]
    by: By,
    /// What lines are sorted by [default: run]; dispatch queues have an order of their own.
    #[serde(default)]
    sort: Sort,
    /// For by=cell: the path of the configuration below the root directory of the server.
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
    /// The id that open_recording returned, such as "r1".
    source: String,
    /// What edges connect [default: thread].
    #[serde(default)]
    level: Level,
    /// The path of a configuration below the root directory of the server: says which part of the wakeups stay within a subcell.
    configuration: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Latency {
    /// The id that open_recording returned, such as "r1".
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
            Effect::Reads,
            stats,
        ),
        tool(
            "wakers",
            "Who wakes whom",
            "Who wakes whom and how long the woken waited, who takes whose CPU (preemptions), how many wakeups cross cores, caches \
             and nodes, and chains of wakeups. For work that passes between threads and for scheduling dependencies.",
            Effect::Reads,
            wakers,
        ),
        tool(
            "latency_outliers",
            "Threads and moments that waited longest",
            "The threads with the most latency of wakeups, and of a recording the single waits that are far outside of the rest, \
             each with thread, CPU and time in ns. For \"what causes the tail latency\"; then timeline shows what happened there.",
            Effect::Reads,
            latency,
        ),
    ]
}

fn stats(context: &Context, stats: &Stats) -> Result<Document, ToolError> {
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
    let recording = context.recording(source)?;
    let count = count.unwrap_or(20).clamp(1, 1000).to_string();
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
