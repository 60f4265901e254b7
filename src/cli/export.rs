//! `scxprof export`: a profile as a trace that ui.perfetto.dev opens, or a trace or a profile as tables.

use std::io::{BufWriter, Seek};
use std::path::{Path, PathBuf};

use anyhow::{anyhow, Context};
use clap::Args;
use rustc_hash::FxHashMap;

use super::args::{MaxLossArgs, MemoryArgs, RESULT};
use super::ends::{Ends, Step};
use super::failure::Failure;
use super::input::{self, Damage, InputArgs};
use super::messages;
use super::output::{is_stdout, Output, Readers, Stdout};
use super::parquet::{self, Request, TableDir};
use super::signals::Signals;
use crate::config::Placement;
use crate::profile::Profile;
use crate::sample::Task;
use crate::session::{AnalysisOptions, Error, Outcome, TraceOptions, TraceSink};

const EXAMPLES: &str = "\
Examples:
  sudo scxprof record --sched -t 10 -o web.tar.gz         memory samples and scheduling events
  scxprof export -f web.tar.gz --perfetto web.pftrace     then open web.pftrace in https://ui.perfetto.dev
  scxprof export -f web.tar.gz --config cells.json --perfetto - | gzip > web.pftrace.gz
  scxprof export -f web.tar.gz --parquet tables           tables for DuckDB, Polars and Spark (docs/queries.md)
  scxprof export -f trace.pb --parquet tables             the same of a trace of wprof or perfetto
  duckdb -c \"SELECT tid, SUM(dur) FROM 'tables/sched.parquet' GROUP BY tid\"";

/// Write a profile as a trace for ui.perfetto.dev, or a trace or a profile as tables
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ExportArgs {
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    max_loss: MaxLossArgs,
    /// Write a trace in Perfetto's format to FILE, or - for stdout: accesses by cell, subcell and thread, scheduling, hints, counters
    #[arg(long, value_name = "FILE", required_unless_present = "parquet", conflicts_with = "parquet", help_heading = RESULT)]
    perfetto: Option<PathBuf>,
    /// Write tables in Parquet into DIR, which is made; PROFILE may also be a trace of wprof or perfetto
    #[arg(long, value_name = "DIR", help_heading = RESULT)]
    parquet: Option<PathBuf>,
    /// The configuration whose cells and subcells the trace has [default: what extract decides] or the threads of tables have [default: none]
    #[arg(long, value_name = "FILE", help_heading = RESULT)]
    config: Option<PathBuf>,
}

/// More than any configuration needs.
const MANY_CPUS: usize = 4096;

/// What the memory samples say: the configuration, and the community of each thread.
type Decided = (Option<Placement>, FxHashMap<u32, u32>);

/// Writes a trace, or tables.
pub(super) fn run(args: &ExportArgs, stdout: Stdout) -> Result<(), Failure> {
    match (&args.perfetto, &args.parquet) {
        (Some(path), _) => perfetto(args, path, stdout),
        (None, Some(path)) => parquet(args, path),
        // clap lets none of both pass.
        (None, None) => Ok(()),
    }
}

/// Reads the trace or the profile once.
fn parquet(args: &ExportArgs, path: &Path) -> Result<(), Failure> {
    let given = input::given_configuration("--config", args.config.as_deref())?;
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let dir = TableDir::new(path)?;
    let request = Request {
        path: args.input.path(),
        placement: given.as_ref(),
        memory: args.memory.bytes(),
        max_loss: &args.max_loss,
        stop: &|| signals.seen(),
    };
    let parquet::Read { finished, end } = parquet::read(&request, &mut |table| dir.create(table))?;
    let filled = finished.tables.iter().filter(|table| table.rows > 0);
    let filled: Vec<String> = filled.map(|it| format!("{} {}", it.table.name(), it.rows)).collect();
    dir.publish(finished, &|| signals.seen())?;
    say!("wrote {} (rows: {})", path.display(), filled.join(", "));
    end
}

/// Reads the profile twice: to decide, and to write.
fn perfetto(args: &ExportArgs, path: &Path, stdout: Stdout) -> Result<(), Failure> {
    if is_stdout(Some(path)) {
        stdout.demand("there is nowhere to write to; name a file")?;
    }
    let given = input::given_configuration("--config", args.config.as_deref())?;
    let output = Output::open(Some(path), Readers::Owner).map_err(Failure::Usage)?;
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let stop = || signals.seen();
    let mut profile = input::profile(args.input.path(), &stop)?;
    let (decided, communities) = decide(&mut profile, args, &stop)?;
    let placement = given.or(decided);
    let mut profile = profile.rewind().map_err(|error| Failure::NoResult(error.into()))?;
    let place_of = |task: &Task<'_>| placement.as_ref()?.place(task);
    let by_hint = profile.hints.is_some() && placement.as_ref().is_some_and(Placement::uses_hints);
    if !by_hint {
        input::say_unhinted("--config", placement.as_ref());
    }
    let places = profile.places();
    let meta = profile.meta.as_ref();
    let options = TraceOptions {
        place_of: &place_of,
        by_hint,
        communities,
        places,
        kernel: meta.map(|meta| meta.host.kernel.clone()).unwrap_or_default(),
        real_time: meta.filter(|meta| meta.begin > 0).map(|meta| (meta.begin, (meta.begin_unix * 1e9) as u64)),
    };
    let failed = || "cannot write the trace into a temporary file (TMPDIR names another place)";
    let file = tempfile::tempfile().with_context(failed).map_err(Failure::NoResult)?;
    let mut sink = TraceSink::new(BufWriter::new(file), options).with_context(failed).map_err(Failure::NoResult)?;
    let outcome = input::read(input::session(&mut profile, args.memory.bytes()), &mut sink, &stop)?;
    let (file, counts) = sink.finish().with_context(failed).map_err(Failure::NoResult)?;
    let damage = Damage::of_profile(&profile);
    if counts.accesses == 0 && counts.sched == 0 {
        let why = damage.because("it");
        return Err(Failure::NoResult(anyhow!("the profile has no samples and no scheduling events{why}")));
    }
    say(&outcome, &counts);
    let mut file = file.into_inner().map_err(|error| Failure::NoResult(error.into_error().into()))?;
    file.rewind().with_context(failed).map_err(Failure::NoResult)?;
    output.copy(&mut file).map_err(Failure::NoResult)?;
    let mut ends = Ends::default();
    ends.note(Step::Damage, damage.check());
    ends.loss(&args.max_loss, &outcome.loss);
    ends.sched_loss(&args.max_loss, &outcome.loss.sched);
    ends.end()
}

/// Decides as `extract` does; a profile without memory samples has no communities.
fn decide(profile: &mut Profile, args: &ExportArgs, stop: &dyn Fn() -> bool) -> Result<Decided, Failure> {
    // For a picture the host may have any number of CPUs.
    let builder = input::session(profile, args.memory.bytes()).analysis(AnalysisOptions::for_cpus(MANY_CPUS));
    let sampled = input::sample(builder, stop)?;
    let analysis = match sampled.decide() {
        Ok(analysis) => analysis,
        Err(Error::NoSamples { .. }) => {
            say!("note: the profile has no memory samples, so it has no communities");
            return Ok((None, FxHashMap::default()));
        }
        Err(error) => return Err(Failure::NoResult(error.into())),
    };
    let placement = match analysis.mitosis() {
        Ok(json) => Some(Placement::parse(&json).context("a bug in scxprof").map_err(Failure::NoResult)?),
        Err(error) => {
            say!("note: without cells, as there is no configuration: {error}");
            None
        }
    };
    Ok((placement, analysis.communities()))
}

fn say(outcome: &Outcome, counts: &crate::session::TraceCounts) {
    messages::say_loss(&outcome.loss, false);
    if counts.left_out > 0 {
        say!(
            "note: {} scheduling events are left out, because the format has no such events: charged CPU time",
            counts.left_out
        );
    }
    if counts.without_track > 0 {
        say!("note: {} accesses are on the track of their subcell: there are too many threads", counts.without_track);
    }
}
