//! Tools about the events of a recording, whoever made it.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Value};

use super::super::context::{Context, Line};
use super::super::error::{Kind, ToolError};
use super::super::page::Document;
use super::{tool, Effect, Tool};
use scxprof_trace::analyze::ANALYSERS;

/// Events and spans that are read for all pages of a query.
const MAX_EVENTS: usize = 20_000;

/// Which events are looked at; an event must pass all of these.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Selection {
    /// Only these processes.
    #[serde(default)]
    pid: Vec<u32>,
    /// Only these threads, and events that name them.
    #[serde(default)]
    tid: Vec<u32>,
    /// Only what happened on these CPUs, each a number or a range such as "0-3".
    #[serde(default)]
    cpu: Vec<String>,
    /// Only threads whose name matches one of these regular expressions.
    #[serde(default)]
    comm: Vec<String>,
    /// Begin this long after the first event, such as "10", "500ms" or "1m".
    from: Option<String>,
    /// End this long after the first event.
    to: Option<String>,
}

impl Selection {
    fn add(&self, line: Line) -> Line {
        let line = line.options("--pid", &self.pid).options("--tid", &self.tid).options("--cpu", &self.cpu);
        let line = line.options("--comm", &self.comm);
        line.option_if("--from", self.from.as_ref()).option_if("--to", self.to.as_ref())
    }
}

/// How outliers are told from the rest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Method {
    /// More than 1.5 interquartile ranges outside of the quartiles.
    #[default]
    Iqr,
    /// More than 3.5 scaled median absolute deviations from the median.
    Mad,
    /// More than 3 standard deviations from the mean.
    Stddev,
    /// Above the 99th percentile, or below the 1st.
    Percentile,
}

impl Method {
    fn name(self) -> &'static str {
        match self {
            Self::Iqr => "iqr",
            Self::Mad => "mad",
            Self::Stddev => "stddev",
            Self::Percentile => "percentile",
        }
    }
}

/// What outliers are looked for in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Category {
    /// All of them.
    #[default]
    All,
    /// Waits of woken threads.
    Latency,
    /// Run times of threads.
    RunTime,
    /// Use of CPUs.
    Cpu,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Analyze {
    /// The id that open_recording returned, such as "r1-5ca1ab1e".
    recording: String,
    /// Names of analysers, such as wakeup_latency and run_queue [default: all that can run]; recording_info lists them, and a
    /// wrong name is answered with the list.
    #[serde(default)]
    analysers: Vec<String>,
    /// What lines of the analyser `groups` are about: name, thread, process or layer [default: name].
    by: Option<String>,
    /// CPUs that share a last-level cache, a range for each, such as 0-7 and 8-15 [default: what the recording says].
    #[serde(default)]
    llc: Vec<String>,
    /// Which events are looked at [default: all].
    #[serde(default)]
    select: Selection,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Query {
    /// The id that open_recording returned, such as "r1-5ca1ab1e".
    recording: String,
    /// Types of events, such as "sched_switch"; * stands for any text, such as "sched_*" [default: all].
    #[serde(default)]
    types: Vec<String>,
    /// Which events are looked at [default: all].
    #[serde(default)]
    select: Selection,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Timeline {
    /// The id that open_recording returned, such as "r1-5ca1ab1e".
    recording: String,
    /// The thread; or give a CPU.
    tid: Option<u32>,
    /// The CPU; or give a thread.
    cpu: Option<u32>,
    /// Begin this long after the first event, such as "10", "500ms" or "1m".
    from: Option<String>,
    /// End this long after the first event.
    to: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Outliers {
    /// The id that open_recording returned, such as "r1-5ca1ab1e".
    recording: String,
    /// How outliers are told from the rest [default: iqr].
    #[serde(default)]
    method: Method,
    /// What outliers are looked for in [default: all].
    #[serde(default)]
    category: Category,
    /// Which events are looked at [default: all].
    #[serde(default)]
    select: Selection,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Of {
    /// The id that open_recording returned, such as "r1-5ca1ab1e".
    recording: String,
    /// Which events are looked at [default: all].
    #[serde(default)]
    select: Selection,
}

pub(super) fn tools() -> Vec<Tool> {
    vec![
        tool(
            "analyze",
            "Run analysers on a recording",
            "Runs one, several or all analysers that can run on a recording: use of CPUs, latency of wakeups, states of threads, \
             preemptions, migrations, run queues, chains of wakeups, fairness, interrupts, block and network I/O, frequencies, idle \
             states, dispatch queues and others. Under `unavailable` is what the others lack. Ask for few at a time.",
            Effect::Reads,
            analyze,
        ),
        tool(
            "query_events",
            "Events of a recording",
            "Lists events of a recording in order of time, with type, CPU, process, thread and arguments, selected by type, thread, \
             CPU and time. Times are ns; since_ns counts from the first event. At most 20,000 events are looked through by pages: \
             select a shorter time for others. For counts and sums use analyze instead.",
            Effect::Reads,
            query,
        ),
        tool(
            "timeline",
            "What a thread or a CPU did over time",
            "Lists what one thread or one CPU did, span by span: running, waiting for a CPU, sleeping or blocked, for how long (ns), \
             on which CPU, who woke it or took its CPU. Select a short time around a moment of interest.",
            Effect::Reads,
            timeline,
        ),
        tool(
            "detect_outliers",
            "Values far from the rest",
            "Finds waits, run times of threads and use of CPUs that are far from the rest, by interquartile range, median absolute \
             deviation, standard deviation or percentile, with the limits that were used and the threads, CPUs and times.",
            Effect::Reads,
            outliers,
        ),
        tool(
            "bottlenecks",
            "Scheduling bottlenecks",
            "Finds CPUs and threads with many switches, long waits or many moves, by thresholds that the result states, the worst \
             first. A quick first look at a recording with scheduling events.",
            Effect::Reads,
            |context, of: &Of| of.one(context, "bottlenecks"),
        ),
        tool(
            "correlate_wakeup",
            "Whether wakeups led to runs",
            "Says how many wakeups led to a run of the woken thread, and why the others did not (it ran already, the events were \
             lost, it still waited at the end). For lost wakeups, and for how much of a recording can be trusted.",
            Effect::Reads,
            |context, of: &Of| of.one(context, "wakeup_correlation"),
        ),
    ]
}

impl Of {
    /// The result of one analyser.
    fn one(&self, context: &Context, analyser: &str) -> Result<Document, ToolError> {
        let recording = context.recording(&self.recording)?;
        let line = Line::new(&["trace", "analyze", "--json", "--limit=0"]).option("--only", analyser);
        let mut document = context.json(&self.select.add(line).path(&recording.path))?;
        document.value = document.value["analyses"][analyser].take();
        Ok(document)
    }
}

fn analyze(context: &Context, analyze: &Analyze) -> Result<Document, ToolError> {
    let recording = context.recording(&analyze.recording)?;
    let known = |name: &&String| !ANALYSERS.iter().any(|analyser| analyser.id.name() == name.as_str());
    if let Some(unknown) = analyze.analysers.iter().find(known) {
        let names: Vec<&str> = ANALYSERS.iter().map(|analyser| analyser.id.name()).collect();
        return Err(ToolError::new(
            Kind::InvalidArguments,
            format!("no analyser is called \"{unknown}\"; they are {}", names.join(", ")),
        ));
    }
    let line = Line::new(&["trace", "analyze", "--json", "--limit=0"]).options("--only", &analyze.analysers);
    let line = line.options("--llc", &analyze.llc).option_if("--by", analyze.by.as_ref());
    context.json(&analyze.select.add(line).path(&recording.path))
}

/// A list, and whether it is all that there is.
fn listed(mut document: Document, name: &str) -> Document {
    let list = document.value.as_array_mut().map(std::mem::take).unwrap_or_default();
    if list.len() >= MAX_EVENTS {
        document.warnings.push(format!(
            "only the first {MAX_EVENTS} {name} are looked through: select a later or shorter time for others"
        ));
    }
    document.value = json!({ name: list });
    document
}

fn query(context: &Context, query: &Query) -> Result<Document, ToolError> {
    let recording = context.recording(&query.recording)?;
    let line = Line::new(&["trace", "events", "--json"]).option("--limit", MAX_EVENTS.to_string());
    let line = query.select.add(line.options("--type", &query.types)).path(&recording.path);
    Ok(listed(context.json_lines(&line)?, "events"))
}

fn timeline(context: &Context, timeline: &Timeline) -> Result<Document, ToolError> {
    let recording = context.recording(&timeline.recording)?;
    if timeline.tid.is_some() == timeline.cpu.is_some() {
        return Err(ToolError::new(Kind::InvalidArguments, "give either tid or cpu"));
    }
    let line = Line::new(&["trace", "timeline", "--json"]).option("--limit", MAX_EVENTS.to_string());
    let line = line.option_if("--tid", timeline.tid.as_ref()).option_if("--cpu", timeline.cpu.as_ref());
    let line = line.option_if("--from", timeline.from.as_ref()).option_if("--to", timeline.to.as_ref());
    Ok(listed(context.json_lines(&line.path(&recording.path))?, "spans"))
}

fn outliers(context: &Context, outliers: &Outliers) -> Result<Document, ToolError> {
    let recording = context.recording(&outliers.recording)?;
    let line = Line::new(&["trace", "analyze", "--json", "--limit=0", "--only=outliers"]);
    let line = outliers.select.add(line.option("--method", outliers.method.name()));
    let mut document = context.json(&line.path(&recording.path))?;
    let mut found = document.value["analyses"]["outliers"].take();
    let kept = match outliers.category {
        Category::All => None,
        Category::Latency => Some("latency"),
        Category::RunTime => Some("run_time"),
        Category::Cpu => Some("cpu"),
    };
    if let (Some(kept), Value::Object(fields)) = (kept, &mut found) {
        fields.retain(|name, value| name == kept || !value.is_object());
    }
    document.value = found;
    Ok(document)
}
