//! Tools that open recordings, say what they have, and write them in other forms.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::super::context::{Context, Line};
use super::super::error::{Kind, ToolError};
use super::super::page::Document;
use super::{tool, Effect, Tool};
use crate::cli::input::{self, InputKind};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Open {
    /// The path, relative to the root directory of the server or absolute below it: an archive or a directory of `scxprof record`,
    /// a perf.data, text of `perf script`, lines of `scxprof process`, or a trace of wprof, perfetto, scxtop, systing or Chrome.
    path: String,
}

/// A recording.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Of {
    /// The id that open_recording returned, such as "r1-5ca1ab1e".
    pub(super) recording: String,
}

/// A form of what a recording says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Form {
    /// A trace for ui.perfetto.dev.
    Perfetto,
    /// A directory of tables in Parquet, for DuckDB, Polars and Spark.
    Parquet,
    /// The report of the decision as JSON.
    Report,
    /// The report as a page for a browser.
    Html,
    /// Which subcells share how much, as CSV.
    SharingCsv,
    /// The results of all analysers that can run, as JSON.
    Analysis,
    /// Call stacks as folded text.
    Folded,
    /// Call stacks as a flame graph in SVG.
    FlameGraph,
    /// Call stacks for `go tool pprof`.
    Pprof,
    /// Call stacks for profiler.firefox.com.
    Firefox,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Export {
    /// The id that open_recording returned.
    recording: String,
    /// What to write.
    form: Form,
    /// The new file (of parquet the new directory), below the directory that the server may write to.
    path: String,
}

pub(super) fn tools() -> Vec<Tool> {
    vec![
        tool(
            "open_recording",
            "Open a recording",
            "Opens a recording of a host, and returns its id, which other tools take. Call this first. A recording is a profile of \
             memory accesses or scheduling events by scxprof or perf, or a trace of wprof, perfetto, scxtop, systing or Chrome; \
             which it is, its content says. The 32 recordings that were used last stay open.",
            Effect::Reads,
            open,
        ),
        tool(
            "recording_info",
            "What a recording has",
            "Says who made a recording and when, how many events of each kind it has, its threads, clocks and losses, and under \
             `analysers` which analysers of the tool `analyze` can run on it and what the others lack.",
            Effect::Reads,
            info,
        ),
        tool(
            "export",
            "Write a recording in another form",
            "Writes what a recording says to a new file for other programs: a trace for ui.perfetto.dev, tables in Parquet, the \
             report as JSON or as a page, results of analysers, call stacks. Works only if the server was started with \
             --allow-write DIR; existing files are not replaced.",
            Effect::Writes,
            export,
        ),
    ]
}

fn open(context: &Context, Open { path }: &Open) -> Result<Document, ToolError> {
    let path = context.existing(path)?;
    let kind = input::kind(&path);
    if kind == InputKind::Profile {
        input::check_profile(&path)?;
    }
    if kind == InputKind::Unknown {
        return Err(ToolError::new(
            Kind::InvalidArguments,
            format!("{}: it is neither a profile nor a trace", path.display()),
        ));
    }
    let (recording, closed) = context.shared.recordings().open(path, kind == InputKind::Trace);
    let mut value = json!({
        "recording": recording.id,
        "path": recording.path.display().to_string(),
        "kind": if recording.is_trace { "trace" } else { "profile" },
    });
    if let Some(closed) = closed {
        value["closed"] = closed.into();
    }
    Ok(Document { value, ..Document::default() })
}

fn info(context: &Context, Of { recording }: &Of) -> Result<Document, ToolError> {
    let recording = context.recording(recording)?;
    context.json(&Line::new(&["trace", "info", "--json"]).path(&recording.path))
}

fn export(context: &Context, Export { recording, form, path }: &Export) -> Result<Document, ToolError> {
    let place = context.new_place(path)?;
    let recording = context.recording(recording)?;
    let file = |line: Line| line.option("--file", &recording.path);
    let report = |option: &str| file(Line::new(&["extract", "-o", "/dev/null"])).option(option, "-");
    let stacks = |option: &str| file(Line::new(&["stacks", "-o", "/dev/null"])).option(option, "-");
    let line = match form {
        Form::Parquet => {
            let line = file(Line::new(&["export"])).option("--parquet", place.held());
            let document = context.run(&line)?;
            return Ok(Document { value: json!({ "written": place.shown.display().to_string() }), ..document });
        }
        Form::Perfetto => file(Line::new(&["export"])).option("--perfetto", "-"),
        Form::Report => report("--report"),
        Form::Html => report("--html"),
        Form::SharingCsv => report("--sharing-csv"),
        Form::Analysis => Line::new(&["trace", "analyze", "--json"]).path(&recording.path),
        Form::Folded => stacks("--folded"),
        Form::FlameGraph => stacks("--flame-graph"),
        Form::Pprof => stacks("--pprof"),
        Form::Firefox => stacks("--firefox"),
    };
    let (size, document) = context.write(&line, &place)?;
    let value = json!({ "written": place.shown.display().to_string(), "bytes": size });
    Ok(Document { value, ..document })
}
