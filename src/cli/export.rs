//! `scxprof export`: a profile as a trace that ui.perfetto.dev opens.

use std::io::{BufWriter, Seek};
use std::path::PathBuf;

use anyhow::{anyhow, Context};
use clap::Args;
use rustc_hash::FxHashMap;

use super::capture::{RESULT, TUNING};
use super::output::{Output, Readers};
use super::process::{self, InputArgs};
use super::signals::Signals;
use super::{decision, percent, Failure};
use crate::config::{CellOptions, Placement};
use crate::profile::Profile;
use crate::sample::Comm;
use crate::session::{Error, Outcome, Session, ToTrace, TraceOptions};

const EXAMPLES: &str = "\
Examples:
  sudo scxprof record --sched -t 10 -o web       memory samples and scheduling events
  scxprof export -f web --perfetto web.pftrace   then open web.pftrace in https://ui.perfetto.dev
  scxprof export -f web --config cells.json --perfetto - | gzip > web.pftrace.gz";

/// Write a profile as a trace for ui.perfetto.dev
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ExportArgs {
    #[command(flatten)]
    input: InputArgs,
    /// Memory for the sketch, queues and mappings
    #[arg(
        long,
        value_name = "MIB",
        default_value = "64",
        value_parser = clap::value_parser!(u32).range(8..),
        help_heading = TUNING
    )]
    memory: u32,
    /// Exit with 4 if more samples than this were lost
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = percent, help_heading = TUNING)]
    max_loss: f64,
    /// Write a trace in Perfetto's format to FILE, or - for stdout: accesses by cell, subcell and thread, scheduling, hints, counters
    #[arg(long, value_name = "FILE", required = true, help_heading = RESULT)]
    perfetto: PathBuf,
    /// The configuration whose cells and subcells the trace has [default: what extract decides]
    #[arg(long, value_name = "FILE", help_heading = RESULT)]
    config: Option<PathBuf>,
}

/// More than any configuration needs.
const MANY_CPUS: usize = 4096;

/// What the memory samples say: the configuration, and the community of each thread.
type Decided = (Option<Placement>, FxHashMap<u32, u32>);

/// Reads the profile twice: to decide, and to write.
pub(super) fn run(args: &ExportArgs, stdout_is_open: bool) -> Result<(), Failure> {
    let path = args.perfetto.as_path();
    let to_stdout = path.as_os_str() == "-";
    if to_stdout && !stdout_is_open {
        return Err(Failure::Usage(anyhow!("stdout is closed, so there is nowhere to write to; name a file")));
    }
    let given = args.config.as_deref().map(super::sched::read_config).transpose()?;
    let output = Output::open(Some(path), Readers::Owner).map_err(Failure::Usage)?;
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let stop = || signals.seen();
    let mut profile = process::open(args.input.path(), &stop)?;
    let (decided, communities) = decide(&mut profile, args, &stop)?;
    let placement = given.or(decided);
    let mut profile = profile.rewind().map_err(|error| Failure::NoResult(error.into()))?;
    let place_of = |cgroup: &[u8], comm: &Comm| placement.as_ref()?.place(cgroup, comm.as_bytes());
    let places = profile.places();
    let meta = profile.meta.as_ref();
    let options = TraceOptions {
        place_of: &place_of,
        communities,
        places,
        kernel: meta.map(|meta| meta.host.kernel.clone()).unwrap_or_default(),
        real_time: meta.filter(|meta| meta.begin > 0).map(|meta| (meta.begin, (meta.begin_unix * 1e9) as u64)),
    };
    let failed = || "cannot write the trace into a temporary file (TMPDIR names another place)";
    let file = tempfile::tempfile().with_context(failed).map_err(Failure::NoResult)?;
    let mut sink = ToTrace::new(BufWriter::new(file), options).with_context(failed).map_err(Failure::NoResult)?;
    let builder = Session::builder().profile(&mut profile).memory(memory(args));
    let session = builder.start().map_err(|error| Failure::Unsupported(error.into()))?;
    let outcome = session.run_into(&mut sink, |_| stop());
    if stop() {
        return Err(process::interrupted());
    }
    let (file, counts) = sink.finish().with_context(failed).map_err(Failure::NoResult)?;
    let damage = profile.damage();
    if counts.accesses == 0 && counts.sched == 0 {
        let why = if damage.is_empty() { String::new() } else { format!(": it is damaged: {}", damage.join("; ")) };
        return Err(Failure::NoResult(anyhow!("the profile has no samples and no scheduling events{why}")));
    }
    say(&outcome, &counts);
    let mut file = file.into_inner().map_err(|error| Failure::NoResult(error.into_error().into()))?;
    file.rewind().with_context(failed).map_err(Failure::NoResult)?;
    output.copy(&mut file).map_err(Failure::NoResult)?;
    process::damaged(&damage)?;
    decision::check_loss(args.max_loss, &outcome.loss)?;
    decision::check_sched_loss(args.max_loss, &outcome.loss.sched)
}

fn memory(args: &ExportArgs) -> usize {
    (args.memory as usize).saturating_mul(1 << 20)
}

/// Decides as `extract` does; a profile without memory samples has no communities.
fn decide(profile: &mut Profile, args: &ExportArgs, stop: &dyn Fn() -> bool) -> Result<Decided, Failure> {
    // For a picture the host may have any number of CPUs.
    let builder = Session::builder().profile(profile).memory(memory(args)).cells(CellOptions::default());
    let builder = builder.target_cpus(MANY_CPUS);
    let session = builder.start().map_err(|error| Failure::Unsupported(error.into()))?;
    let sampled = session.run_until(|_| stop());
    if stop() {
        return Err(process::interrupted());
    }
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
    decision::say_loss(&outcome.loss, false);
    if counts.left_out > 0 {
        say!(
            "note: {} scheduling events are left out, as the format has none such: charged CPU time and dispatch queues",
            counts.left_out
        );
    }
    if counts.without_track > 0 {
        say!("note: {} accesses are on the track of their subcell: there are too many threads", counts.without_track);
    }
}
