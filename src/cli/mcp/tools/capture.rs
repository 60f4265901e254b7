//! Tools that capture this host.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::super::context::Context;
use super::super::error::{Kind, ToolError};
use super::super::page::Document;
use super::scheduler::Scheduler;
use super::{tool, Effect, Nothing, Tool};
use crate::cli::args::{MAX_CPUS, MAX_LLCS};
use crate::cli::decision::{cache, SCXPROF};
use crate::config::CellOptions;
use crate::host::limits;
use crate::sample::caches::Caches;
use crate::sample::Source;
use crate::session::{AnalysisOptions, HostOptions, LiveOptions, Snapshot, Whose};

/// The longest capture, and how long one is unless the call says otherwise; s.
const MAX_TIME_S: u32 = 3600;
const TIME_S: u32 = 60;

/// Where memory samples come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum From {
    /// The first that works.
    #[default]
    Auto,
    /// Intel's precise events.
    Pebs,
    /// AMD's instruction-based sampling.
    Ibs,
    /// Arm's statistical profiling.
    Spe,
    /// A timer, with addresses recovered from registers and code.
    Timer,
    /// Page faults.
    Faults,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Start {
    /// Only these processes and their descendants [default: the whole host, which takes root or CAP_PERFMON].
    #[serde(default)]
    pid: Vec<u32>,
    /// Only this cgroup and those below it, such as "/sys/fs/cgroup/web.slice".
    cgroup: Option<String>,
    /// Where memory samples come from [default: auto].
    #[serde(default)]
    from: From,
    /// Stop after this many seconds, 1 to 3600 [default: 60].
    duration_s: Option<u32>,
    /// Also watch the scheduler's events from the start, which costs some CPU time at each switch; tools that need them switch them on
    /// otherwise [default: false].
    #[serde(default)]
    scheduling: bool,
    /// Seconds of the window of statistics, 1 to 60 [default: 1].
    interval_s: Option<u32>,
    /// Seconds of the window in which sharing is looked for, 2 to 600 [default: 10].
    sharing_window_s: Option<u32>,
    /// The scheduler that configurations are made for [default: mitosis].
    #[serde(default)]
    scheduler: Scheduler,
    /// CPUs of the host that will run the scheduler [default: those of this host].
    target_cpus: Option<u32>,
    /// Last-level caches of that host, with CPUs side by side [default: those of this host, if target_cpus is not given].
    target_llcs: Option<u32>,
    /// Cells of one's own, each NAME=REGEX of the paths of cgroups; the first that matches wins.
    #[serde(default)]
    cells: Vec<String>,
}

pub(super) fn tools() -> Vec<Tool> {
    vec![
        tool(
            "capture_start",
            "Start capturing this host",
            "Starts to sample the memory accesses of this host, and the scheduler's events where they are needed. It runs beside \
             other calls and ends by itself; one runs at a time. Tools that take a source take \"live\" then, and look at its last \
             window. Nothing is written, and nothing on the host is changed.",
            Effect::Captures,
            start,
        )
        .live(|_| true),
        tool(
            "capture_status",
            "What the capture does",
            "Says whether the capture runs or has ended, its source, for how long, the groups of threads that share memory in short, \
             CPUs, what was lost, and what the capture itself costs.",
            Effect::Reads,
            |context: &Context, _: &Nothing| Ok(status(&context.shared.capturing.snapshot(&[])?)),
        )
        .live(|_| true),
        tool(
            "capture_stop",
            "Stop the capture",
            "Stops the capture before its time is over. What it found stays, as source \"live\", until the next capture_start.",
            Effect::Captures,
            |context: &Context, _: &Nothing| Ok(status(&context.shared.capturing.stop(context.client.number)?)),
        )
        .live(|_| true),
    ]
}

/// A snapshot without what other tools tell.
pub(in super::super) fn status(snapshot: &Snapshot) -> Document {
    let sharing = snapshot.sharing.as_ref().map(|sharing| {
        let headline = sharing.report.as_ref().map(|report| report.headline.clone());
        json!({ "number": sharing.number, "seconds": sharing.seconds, "headline": headline })
    });
    let value = json!({
        "source": "live",
        "state": snapshot.state,
        "samples_from": snapshot.source,
        "elapsed_s": snapshot.elapsed_s,
        "window_s": snapshot.window_s,
        "is_scheduling": snapshot.scheduling.is_some(),
        "configuration": snapshot.configuration,
        "sharing_window": sharing,
        "groups": snapshot.groups,
        "cpus": snapshot.cpus,
        "losses": snapshot.losses,
        "cost": snapshot.cost,
    });
    Document { value, notes: snapshot.notes.clone(), warnings: Vec::new() }
}

fn seconds(name: &str, given: Option<u32>, default: u32, (least, most): (u32, u32)) -> Result<Duration, ToolError> {
    let seconds = given.unwrap_or(default);
    if (least..=most).contains(&seconds) {
        return Ok(Duration::from_secs(seconds.into()));
    }
    Err(ToolError::new(Kind::InvalidArguments, format!("{name}: it must be from {least} to {most}")))
}

fn start(context: &Context, start: &Start) -> Result<Document, ToolError> {
    let time = seconds("duration_s", start.duration_s, TIME_S, (1, MAX_TIME_S))?;
    if start.target_cpus.is_some_and(|cpus| !(1..=MAX_CPUS).contains(&i64::from(cpus))) {
        return Err(ToolError::new(Kind::InvalidArguments, format!("target_cpus: it must be from 1 to {MAX_CPUS}")));
    }
    if start.target_llcs.is_some_and(|llcs| !(1..=MAX_LLCS).contains(&i64::from(llcs))) {
        return Err(ToolError::new(Kind::InvalidArguments, format!("target_llcs: it must be from 1 to {MAX_LLCS}")));
    }
    let analysis = AnalysisOptions {
        cells: CellOptions { cells: start.cells.clone(), ..CellOptions::default() },
        target_cpus: start.target_cpus.map(|cpus| cpus as usize),
        caches: start.target_llcs.map(Caches::side_by_side),
        scheduler: start.scheduler.of_config(),
        score: true,
        symbols: true,
        symbol_cache: cache(),
        source_lines: Some(SCXPROF.into()),
        ..AnalysisOptions::default()
    };
    let options = LiveOptions {
        interval: seconds("interval_s", start.interval_s, 1, (1, 60))?,
        sharing_window: seconds("sharing_window_s", start.sharing_window_s, 10, (2, 600))?,
        analysis,
        ..LiveOptions::default()
    };
    let host = match start.from {
        From::Auto => HostOptions::default(),
        From::Pebs => HostOptions::source(Source::Pebs),
        From::Ibs => HostOptions::source(Source::Ibs),
        From::Spe => HostOptions::source(Source::Spe),
        From::Timer => HostOptions::source(Source::Timer),
        From::Faults => HostOptions::source(Source::Faults),
    };
    let whose = match (&start.cgroup, start.pid.as_slice()) {
        (Some(_), [_, ..]) => {
            return Err(ToolError::new(Kind::InvalidArguments, "give either pid or cgroup"));
        }
        (Some(cgroup), []) => Whose::Cgroup(PathBuf::from(cgroup)),
        (None, []) => Whose::Host,
        (None, pids) => Whose::Pids(pids.to_vec()),
    };
    limits::bound_realtime();
    let host = HostOptions { whose, raise_open_files: true, ..host };
    let by = (context.client.number, &*context.stop);
    let started = context.shared.capturing.start(by, time, options, host, start.scheduling)?;
    Ok(status(&started))
}
