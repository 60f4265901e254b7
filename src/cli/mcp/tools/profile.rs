//! Tools that profile call stacks of this host.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::context::Context;
use super::super::error::{Kind, ToolError};
use super::super::page::{value_of, Document};
use super::super::profiling::Wanted;
use super::{tool, Effect, Nothing, Tool};
use crate::cli::capture;
use crate::cli::stacks::{self, unwind};
use crate::host::Roots;
use crate::session::{ProfilerStatus, Rate};
use crate::stacks::By;

/// Bounds of a run.
const MAX_TIME_S: u32 = 600;
const MAX_SAMPLES: u64 = 1_000_000;
const MAX_FREQUENCY: u64 = 10_000;
/// Bytes for queues and mappings.
const MEMORY: usize = 64 << 20;
/// Lines of each list of the results.
const MAX_LINES: usize = 5_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Start {
    /// The event, as perf and list_events call it, such as "cycles", "page-faults" or "sched:sched_switch" [default: what uses the
    /// CPU: cycles, or cpu-clock where there is no PMU].
    event: Option<String>,
    /// Samples a second on each CPU, 1 to 10000 [default: 99; of a tracepoint each hit]. Do not give a period too.
    frequency: Option<u64>,
    /// Sample every N events.
    period: Option<u64>,
    /// Only these processes [default: the whole host, which takes root or CAP_PERFMON].
    #[serde(default)]
    pid: Vec<u32>,
    /// Only these CPUs, such as "0-3,8" [default: all].
    cpus: Option<String>,
    /// How callers are found: "fp" by frame pointers, or "dwarf" by call frame information and a copy of the stack [default: fp].
    unwind: Option<String>,
    /// Stop after this many seconds, 1 to 600 [default: 10].
    duration_s: Option<u32>,
    /// Stop after this many samples [default: 100000].
    max_samples: Option<u64>,
}

/// What lines of groups are about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Groups {
    /// Functions alone.
    #[default]
    Symbol,
    /// Functions, and threads.
    Thread,
    /// Functions, and processes.
    Process,
    /// Functions, and cgroups.
    Cgroup,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Results {
    /// Whose samples are added up beside functions [default: symbol, which is functions alone].
    #[serde(default)]
    by: Groups,
}

pub(super) fn tools() -> Vec<Tool> {
    vec![
        tool(
            "profile_start",
            "Start profiling call stacks",
            "Starts to sample call stacks of this host: where CPU time, page faults, cache misses or any event of list_events come \
             from. It runs beside other calls and ends by itself; one runs at a time, and starting clears earlier results. Then ask \
             profile_status, and profile_results at any time.",
            Effect::Captures,
            start,
        )
        .live(|_| true),
        tool(
            "profile_status",
            "Whether profiling runs",
            "Says whether profiling of call stacks is idle, running or stopped, of which event, for how long, how many samples there \
             are and, once it has ended, how many were lost.",
            Effect::Reads,
            |context: &Context, _: &Nothing| status(&context.shared.profiling.status()),
        )
        .live(|_| true),
        tool(
            "profile_results",
            "Results of profiling",
            "The functions with the most samples, by themselves and with what they call (percent of all samples), with file and \
             line, and the most frequent call stacks, the innermost function first; also by thread, process or cgroup. While \
             profiling runs these are the results so far.",
            Effect::Reads,
            results,
        )
        .live(|_| true),
        tool(
            "profile_stop",
            "Stop profiling",
            "Stops profiling of call stacks before its time is over. The results stay until the next profile_start.",
            Effect::Captures,
            |context: &Context, _: &Nothing| status(&context.shared.profiling.stop(context.client.number)?),
        )
        .live(|_| true),
    ]
}

fn status(status: &ProfilerStatus) -> Result<Document, ToolError> {
    Ok(Document { value: value_of(status)?, ..Document::default() })
}

fn start(context: &Context, start: &Start) -> Result<Document, ToolError> {
    let wrong = |message: String| ToolError::new(Kind::InvalidArguments, message);
    let roots = Roots::default();
    let rate = match (start.frequency, start.period) {
        (Some(_), Some(_)) => return Err(wrong("give either frequency or period".to_owned())),
        (Some(hz), None) if !(1..=MAX_FREQUENCY).contains(&hz) => {
            return Err(wrong(format!("frequency: it must be from 1 to {MAX_FREQUENCY}")));
        }
        (Some(hz), None) => Some(Rate::Frequency(hz)),
        (None, Some(0)) => return Err(wrong("period: it must be at least 1".to_owned())),
        (None, period) => period.map(Rate::Period),
    };
    let seconds = start.duration_s.unwrap_or(10);
    if !(1..=MAX_TIME_S).contains(&seconds) {
        return Err(wrong(format!("duration_s: it must be from 1 to {MAX_TIME_S}")));
    }
    let how = start.unwind.as_deref().map(unwind).transpose().map_err(wrong)?;
    let event = stacks::event(start.event.as_deref(), rate, how, &roots).map_err(wrong)?;
    let cpus = match &start.cpus {
        Some(list) => capture::cpus(list, &roots)?,
        None => Vec::new(),
    };
    let wanted = Wanted {
        event,
        pids: start.pid.clone(),
        cpus,
        time: Duration::from_secs(seconds.into()),
        max_samples: start.max_samples.unwrap_or(100_000).clamp(1, MAX_SAMPLES),
        memory: MEMORY,
    };
    status(&context.shared.profiling.start(context.client.number, &context.stop, wanted)?)
}

fn results(context: &Context, results: &Results) -> Result<Document, ToolError> {
    let by = match results.by {
        Groups::Symbol => By::Symbol,
        Groups::Thread => By::Thread,
        Groups::Process => By::Process,
        Groups::Cgroup => By::Cgroup,
    };
    found(context, (by, MAX_LINES))
}

/// What was found so far, as `stacks --json` has it.
pub(in super::super) fn found(context: &Context, by: (By, usize)) -> Result<Document, ToolError> {
    let (state, profile, outcome) = context.shared.profiling.results()?;
    let value = stacks::value(by, state, &profile, &outcome);
    let value = value.map_err(|error| ToolError::new(Kind::Internal, error.to_string()))?;
    Ok(Document { value, notes: outcome.notes, warnings: Vec::new() })
}
