//! Tools about shared memory: who shares it, which configuration keeps sharers together, and what changed.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use rustix::fs::MemfdFlags;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Map, Value};

use super::super::context::{Context, Line};
use super::super::error::{Kind, ToolError};
use super::super::page::{value_of, Document};
use super::super::paths::Place;
use super::super::recordings::is_id;
use super::scheduler::Scheduler;
use super::{is_of_live, tool, Effect, Tool, LIVE};
use crate::cli::args::MAX_LLCS;
use crate::cli::input;
use crate::config::{Placement, PlacementError};
use crate::host::Roots;
use crate::session::Analysis;

/// Which recording, and which threads and time of it.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Selected {
    /// The id that open_recording returned, such as "r1-5ca1ab1e", or "live" for the capture of this host.
    source: String,
    /// Only threads whose name matches one of these regular expressions.
    #[serde(default)]
    comm: Vec<String>,
    /// Only cgroups whose path matches one of these regular expressions.
    #[serde(default)]
    cgroup: Vec<String>,
    /// Only these processes.
    #[serde(default)]
    pid: Vec<u32>,
    /// Begin this long after the first sample, such as "10", "500ms" or "1m".
    from: Option<String>,
    /// End this long after the first sample.
    to: Option<String>,
    /// CPUs of the host that will run the scheduler [default: those of the recorded host]. Fewer CPUs merge groups.
    target_cpus: Option<u32>,
    /// Last-level caches of that host, with CPUs side by side [default: those of the recorded host, if target_cpus is not given].
    target_llcs: Option<u32>,
    /// Cells of one's own, each NAME=REGEX of the paths of cgroups; the first that matches wins.
    #[serde(default)]
    cells: Vec<String>,
}

impl Selected {
    fn add(&self, line: Line) -> Line {
        let line = line.options("--comm", &self.comm).options("--cgroup", &self.cgroup).options("--pid", &self.pid);
        let line = line.option_if("--from", self.from.as_ref()).option_if("--to", self.to.as_ref());
        let line = line.option_if("--target-cpus", self.target_cpus.as_ref());
        line.option_if("--target-llcs", self.target_llcs.as_ref()).options("--cell", &self.cells)
    }

    /// The report of the last sharing window of the capture.
    fn live(&self, context: &Context) -> Result<Document, ToolError> {
        let selected = [!self.comm.is_empty(), !self.cgroup.is_empty(), !self.pid.is_empty(), self.from.is_some()];
        let decided = [self.target_cpus.is_some(), self.target_llcs.is_some(), !self.cells.is_empty()];
        if selected.contains(&true) || self.to.is_some() || decided.contains(&true) {
            return Err(only_of_recordings("a selection"));
        }
        let analysis = analysis(context)?;
        let report = analysis.report().map_err(internal)?;
        Ok(Document { value: value_of(&report)?, ..Document::default() })
    }

    /// The report of the decision, as `report --json` prints it.
    fn report(&self, context: &Context) -> Result<Document, ToolError> {
        if self.source == LIVE {
            return self.live(context);
        }
        let recording = context.recording(&self.source)?;
        let line = Line::new(&["report", "--json"]).option("--file", &recording.path);
        context.json(&self.add(line))
    }
}

/// Not of a capture, whose options capture_start takes.
fn only_of_recordings(option: &str) -> ToolError {
    ToolError::new(Kind::InvalidArguments, format!("{option} has no effect on a capture: give it to capture_start"))
}

/// What the last sharing window of the capture showed.
fn analysis(context: &Context) -> Result<Arc<Analysis>, ToolError> {
    let lacking =
        "the capture has no sharing window with samples yet: ask again after some seconds, or capture busier threads";
    context.shared.capturing.wait(&context.stop, lacking, |live| Ok(live.analysis()))
}

/// Not of the library's making: a bug.
fn internal(error: impl std::fmt::Display) -> ToolError {
    ToolError::new(Kind::Internal, error.to_string())
}

/// One group of a recording.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OneGroup {
    /// The id that open_recording returned, such as "r1-5ca1ab1e", or "live" for the capture of this host.
    source: String,
    /// The group: a subcell as "cell/subcell", or a part of its name, as find_sharing has them.
    group: String,
    /// CPUs of the host that will run the scheduler [default: those of the recorded host].
    target_cpus: Option<u32>,
    /// Last-level caches of that host, with CPUs side by side [default: those of the recorded host, if target_cpus is not given].
    target_llcs: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Score {
    /// The id that open_recording returned, such as "r1-5ca1ab1e", or "live" for the capture of this host.
    source: String,
    /// Paths of configurations of one scheduler below the root directory of the server.
    #[serde(default)]
    paths: Vec<String>,
    /// A configuration itself, as the JSON that the scheduler reads.
    configuration: Option<Value>,
    /// Last-level caches of the host that will run the scheduler [default: those of the sampled host, or 2].
    llcs: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Make {
    /// The id that open_recording returned, such as "r1-5ca1ab1e", or "live" for the capture of this host.
    source: String,
    /// The scheduler that will read it [default: mitosis].
    #[serde(default)]
    scheduler: Scheduler,
    /// CPUs of the host that will run the scheduler [default: those of the recorded host].
    target_cpus: Option<u32>,
    /// Last-level caches of that host, with CPUs side by side [default: those of the recorded host, if target_cpus is not given].
    target_llcs: Option<u32>,
    /// Cells of one's own, each NAME=REGEX of the paths of cgroups; the first that matches wins.
    #[serde(default)]
    cells: Vec<String>,
    /// Write it to this new file, below the directory that the server may write to (--allow-write).
    write_to: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Diff {
    /// Before: the id of a recording, or the path of a report or a configuration below the root directory of the server.
    before: String,
    /// After: the same.
    after: String,
    /// Compare what the scheduler did (latency, waits, run time, with intervals) instead of the groups of threads [default: of two
    /// traces alone].
    scheduling: Option<bool>,
}

pub(super) fn tools() -> Vec<Tool> {
    vec![
        tool(
            "find_sharing",
            "Which threads share memory",
            "Finds the groups of threads that share memory, which should share a last-level cache: each cell and subcell with its \
             threads, how many of the avoidable cache misses it avoids (locality, of 1), how sure that is (confidence, stability), \
             and how much subcells share with each other. Answers \"which threads should share a cache\". Details of one group: \
             explain_group; the hottest lines: hot_lines.",
            Effect::Reads,
            find_sharing,
        )
        .of_source(),
        tool(
            "explain_group",
            "Why threads are a group",
            "Explains one group of find_sharing: its threads and their verdicts, the regions, pages and lines of memory that they \
             share with the names of variables and code, what it shares with other groups, and what was merged or left out and why.",
            Effect::Reads,
            explain_group,
        )
        .of_source(),
        tool(
            "hot_lines",
            "Hottest shared cache lines, and false sharing",
            "Lists the cache lines that threads share and write most, whether each is shared truly or falsely (different threads use \
             different bytes), its threads with their bytes, and the code and variable. Answers \"is there false sharing\". `hubs` \
             are lines that nearly all threads touch, which join no group.",
            Effect::Reads,
            hot_lines,
        )
        .of_source(),
        tool(
            "score_configuration",
            "How good a configuration is",
            "Scores configurations of scx_mitosis or scx_layered for what was recorded: the locality is which part of the avoidable \
             misses one avoids, with an interval. Several at a time are compared. Answers \"is my configuration still good\". Give \
             paths or a configuration.",
            Effect::Reads,
            score,
        )
        .live(|arguments| is_of_live(arguments) || arguments["paths"].as_array().is_some_and(|paths| !paths.is_empty())),
        tool(
            "make_configuration",
            "Make a configuration",
            "Makes the configuration that keeps threads together that share memory, for scx_mitosis or scx_layered. It is returned \
             and can be written to a file; it is never loaded into the kernel.",
            Effect::Writes,
            make,
        )
        .of_source(),
        tool(
            "diff",
            "What changed between two recordings",
            "Compares two recordings, reports or configurations: which cells and subcells came, went or changed, and which threads \
             moved. Of two traces, or with scheduling=true, it compares latency, waits and run time of threads by name, and says for \
             each change whether it may be chance. Answers \"what did this change do\".",
            Effect::Reads,
            diff,
        )
        .live(|arguments| ["before", "after"].iter().any(|side| !arguments[side].as_str().is_some_and(is_id))),
    ]
}

/// The named fields of an object.
fn take(value: &mut Value, names: &[&str]) -> Map<String, Value> {
    let Some(fields) = value.as_object_mut() else { return Map::new() };
    names.iter().filter_map(|name| fields.remove_entry(*name)).collect()
}

fn find_sharing(context: &Context, selected: &Selected) -> Result<Document, ToolError> {
    let mut document = selected.report(context)?;
    let mut kept = take(
        &mut document.value,
        &[
            "version",
            "headline",
            "source",
            "coverage",
            "samples",
            "locality",
            "locality_found",
            "locality_by_name",
            "stability",
            "cells",
            "sharing",
            "across_cells",
            "limits",
            "notes",
        ],
    );
    let subcells = kept.get_mut("cells").and_then(Value::as_array_mut).into_iter().flatten();
    for subcell in subcells.filter_map(|cell| cell.get_mut("subcells")).filter_map(Value::as_array_mut).flatten() {
        take(subcell, &["regions", "pages", "lines"]);
    }
    document.value = Value::Object(kept);
    Ok(document)
}

fn explain_group(
    context: &Context,
    OneGroup { source, group: name, target_cpus, target_llcs }: &OneGroup,
) -> Result<Document, ToolError> {
    let (source, target_cpus, target_llcs) = (source.clone(), *target_cpus, *target_llcs);
    let mut document = Selected { source, target_cpus, target_llcs, ..Selected::default() }.report(context)?;
    let text = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
    let mut all = Vec::new();
    for cell in document.value["cells"].as_array_mut().into_iter().flatten() {
        let cell_name = text(cell, "name");
        let subcells = cell["subcells"].as_array_mut().map(std::mem::take).unwrap_or_default();
        let is_whole = |subcell: &Value| subcells.len() == 1 && text(subcell, "name") == cell_name;
        let paths: Vec<String> = subcells
            .iter()
            .map(|it| if is_whole(it) { cell_name.clone() } else { format!("{cell_name}/{}", text(it, "name")) })
            .collect();
        all.extend(paths.into_iter().zip(subcells));
    }
    let exact = all.iter().filter(|(path, _)| path == name).count();
    let is_it = |path: &str| if exact > 0 { path == name } else { path.contains(name.as_str()) };
    let names: Vec<String> = all.iter().map(|(path, _)| path.clone()).collect();
    let mut found = all.into_iter().filter(|(path, _)| is_it(path));
    let (Some((path, subcell)), None) = (found.next(), found.next()) else {
        let shown: Vec<&str> = names.iter().map(String::as_str).take(40).collect();
        let how = if names.iter().any(|path| is_it(path)) { "more than one group is" } else { "no group is" };
        return Err(ToolError::new(
            Kind::InvalidArguments,
            format!("{how} called \"{name}\"; the groups are {}", shown.join(", ")),
        ));
    };
    let with = |shared: &Value| text(shared, "a") == path || text(shared, "b") == path;
    let sharing = document.value["sharing"].as_array().into_iter().flatten();
    let sharing: Vec<Value> = sharing.filter(|shared| with(shared)).cloned().collect();
    document.value = json!({ "group": path, "subcell": subcell, "sharing": sharing });
    Ok(document)
}

fn hot_lines(context: &Context, selected: &Selected) -> Result<Document, ToolError> {
    let mut document = selected.report(context)?;
    document.value = Value::Object(take(&mut document.value, &["version", "headline", "samples", "lines", "hubs"]));
    Ok(document)
}

/// A file with this configuration, which is in no file system.
fn in_memory(configuration: &Value) -> Result<File, ToolError> {
    let kept = rustix::fs::memfd_create("configuration", MemfdFlags::CLOEXEC).map_err(std::io::Error::from);
    let kept = kept.map(File::from).and_then(|mut file| {
        file.write_all(configuration.to_string().as_bytes())?;
        Ok(file)
    });
    kept.map_err(|error| ToolError::new(Kind::Internal, format!("cannot keep the configuration: {error}")))
}

fn score(context: &Context, score: &Score) -> Result<Document, ToolError> {
    let Score { source, paths, configuration, llcs } = score;
    if source == LIVE {
        return score_live(context, score);
    }
    let recording = context.recording(source)?;
    let mut line = Line::new(&["score", "--json"]).option("--file", &recording.path);
    for path in paths {
        line = line.option("--config", context.existing(path)?);
    }
    let given = configuration.as_ref().map(in_memory).transpose()?;
    let given_path = given.as_ref().map(|file| format!("/proc/self/fd/{}", file.as_raw_fd()));
    if let Some(path) = &given_path {
        line = line.option("--config", path);
    }
    if paths.is_empty() && given.is_none() {
        return Err(ToolError::new(Kind::InvalidArguments, "give paths, or a configuration"));
    }
    let named = |text: String| match &given_path {
        Some(path) => text.replace(path, "the given configuration"),
        None => text,
    };
    let scored = context.json(&line.option_if("--llcs", llcs.as_ref()));
    let mut document = scored.map_err(|error| ToolError::new(error.kind, named(error.message())))?;
    for score in document.value["configurations"].as_array_mut().into_iter().flatten() {
        if let Some(name) = score.get_mut("name") {
            *name = named(name.as_str().unwrap_or_default().to_owned()).into();
        }
    }
    document.notes = document.notes.into_iter().map(named).collect();
    Ok(document)
}

/// The same of what the capture found last.
fn score_live(context: &Context, score: &Score) -> Result<Document, ToolError> {
    let wrong = |error: PlacementError| ToolError::new(Kind::InvalidArguments, format!("configuration: {error}"));
    let mut configurations: Vec<(String, Placement)> = Vec::new();
    for path in &score.paths {
        configurations.push((path.clone(), input::configuration("configuration", &context.existing(path)?)?));
    }
    if let Some(given) = &score.configuration {
        let placement = Placement::parse(&given.to_string()).map_err(wrong)?;
        configurations.push(("the given configuration".to_owned(), placement));
    }
    let schedulers: Vec<_> = configurations.iter().map(|it| it.1.scheduler()).collect();
    if schedulers.is_empty() || schedulers.windows(2).any(|pair| pair.first() != pair.last()) {
        return Err(ToolError::new(Kind::InvalidArguments, "give paths, or a configuration, of one scheduler"));
    }
    for (_, placement) in &mut configurations {
        *placement = input::with_living_tasks(placement.clone(), &Roots::default());
    }
    if score.llcs.is_some_and(|llcs| !(2..=MAX_LLCS).contains(&i64::from(llcs))) {
        return Err(ToolError::new(Kind::InvalidArguments, format!("llcs: it must be from 2 to {MAX_LLCS}")));
    }
    let scored = analysis(context)?.score(&configurations, score.llcs);
    Ok(Document { value: value_of(&scored)?, notes: scored.notes, warnings: Vec::new() })
}

fn make(context: &Context, make: &Make) -> Result<Document, ToolError> {
    let place = make.write_to.as_deref().map(|path| context.new_place(path)).transpose()?;
    if make.source == LIVE {
        if make.target_cpus.is_some() || make.target_llcs.is_some() || !make.cells.is_empty() {
            return Err(only_of_recordings("target_cpus, target_llcs or cells"));
        }
        let analysis = analysis(context)?;
        let refused = |error: crate::session::Error| ToolError::new(Kind::NoResult, error.to_string());
        let (text, notes) = match make.scheduler {
            Scheduler::Mitosis => (analysis.mitosis().map_err(refused)?, Vec::new()),
            Scheduler::Layered => analysis.layered().map_err(refused)?,
        };
        let notes = notes.iter().map(ToString::to_string).collect();
        return made(context, make.scheduler, &text, place.as_ref(), Document { notes, ..Document::default() });
    }
    let recording = context.recording(&make.source)?;
    let line = Line::new(&["extract", "-o", "-"]).option("--file", &recording.path);
    let line = line.option("--target", make.scheduler.name()).option_if("--target-cpus", make.target_cpus.as_ref());
    let line = line.option_if("--target-llcs", make.target_llcs.as_ref());
    let (text, document) = context.text(&line.options("--cell", &make.cells))?;
    made(context, make.scheduler, &text, place.as_ref(), document)
}

/// A configuration as the result, after it was written if that is wanted.
fn made(
    context: &Context,
    scheduler: Scheduler,
    text: &str,
    place: Option<&Place>,
    document: Document,
) -> Result<Document, ToolError> {
    let configuration: Value = serde_json::from_str(text).map_err(internal)?;
    let mut value = json!({ "scheduler": scheduler.name(), "configuration": configuration });
    if let Some(place) = place {
        place.write(&mut text.as_bytes(), &context.stop)?;
        value["written"] = place.shown.display().to_string().into();
    }
    Ok(Document { value, ..document })
}

fn diff(context: &Context, diff: &Diff) -> Result<Document, ToolError> {
    let side = |name: &str| -> Result<_, ToolError> {
        if is_id(name) {
            let recording = context.recording(name)?;
            Ok((recording.path, recording.is_trace))
        } else {
            Ok((context.existing(name)?, false))
        }
    };
    let (before, before_is_trace) = side(&diff.before)?;
    let (after, after_is_trace) = side(&diff.after)?;
    let is_sched = diff.scheduling.unwrap_or(before_is_trace && after_is_trace);
    let line = if is_sched { Line::new(&["trace", "diff", "--json"]) } else { Line::new(&["diff", "--json"]) };
    context.json(&line.path(&before).path(&after))
}
