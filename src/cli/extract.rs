//! `scxprof extract`: the configuration from a profile or from its lines, by the engine that `run` has.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{anyhow, Context};
use clap::Args;

use super::capture;
use super::decision::{self, DecisionArgs};
use super::filter::{Filter, FilterArgs, Filtered};
use super::process::damaged;
use super::signals::Signals;
use super::{percent, Failure};
use crate::profile::{jsonl, online_cpus, open_lines, Kind, Meta, ProfileError, Records};
use crate::resolve::Cgroups;
use crate::sample::{Sample, Source};
use crate::sampler::loss::Loss;
use crate::session::{replay, Decider, Numbers, Outcome, Sink};

const EXAMPLES: &str = "\
Examples:
  scxprof extract -f host.tar.gz > cells.json       what `run` would have printed on that host
  scxprof extract -f host.tar.gz.out/perf.jsonl     the same from the lines of `process`
  scxprof extract -f perf.data --exclude-comm '^cc1'  what perf mem record wrote, without the compilers
  perf script -F comm,pid,tid,time,addr,ip > perf.script   makes text that it reads";

/// How perf records all that is read of it.
const PERF_RECORD: &str = "perf mem record -a --phys-data --data-page-size --all-cgroups";

/// Print the cell configuration for a recorded profile
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ExtractArgs {
    /// A profile (.tar.gz, which is unpacked in $TMPDIR, directory, perf.data, text of `perf script`), or lines of JSON (perf.jsonl)
    #[arg(short = 'f', long = "file", value_name = "PROFILE")]
    profile: PathBuf,
    #[command(flatten)]
    decision: DecisionArgs,
    /// Memory for the sketch, queues and mappings; with that of the capture the result is the same
    #[arg(long, value_name = "MIB", default_value = "64", value_parser = clap::value_parser!(u32).range(8..))]
    memory: u32,
    /// Exit with 4 where more samples than this were lost
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = percent)]
    max_loss: f64,
    /// A summary on stderr; -vv for all of it
    #[arg(short = 'v', long = "verbose", action = clap::ArgAction::Count)]
    verbose: u8,
    #[command(flatten)]
    filter: FilterArgs,
}

/// What was read, of either kind.
struct Taken {
    decider: Decider,
    outcome: Outcome,
    filtered_out: u64,
    /// Why the selection left nothing, where it did.
    unselected: Option<String>,
    damage: Vec<String>,
    /// perf recorded it.
    by_perf: bool,
    /// What the recorder knew of the host.
    meta: Option<Meta>,
    /// The CPUs of the host of a recording by perf.
    cpus: Option<usize>,
}

/// Reads the profile, decides and prints.
pub(super) fn run(args: &ExtractArgs, stdout_is_open: bool) -> Result<(), Failure> {
    let filter = Filter::new(&args.filter)?;
    let outputs = args.decision.outputs(stdout_is_open)?;
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let lines = lines_of(&args.profile)?;
    let taken = match &lines {
        Some(lines) => from_lines(args, lines, filter, &signals)?,
        None => from_profile(args, filter, &signals)?,
    };
    if signals.seen() {
        return Err(super::process::interrupted());
    }
    let Taken { decider, outcome, filtered_out, unselected, damage, by_perf, meta, cpus } = taken;
    let loss = outcome.loss;
    capture::say_notes(&outcome, None);
    if filtered_out > 0 {
        say!("scxprof: {filtered_out} accesses left out by the selection");
    }
    let sampled = args.decision.sampled(decider, outcome, meta.as_ref(), cpus);
    decision::report(args.verbose, &sampled);
    if by_perf && sampled.outcome.loss.no_cgroup_path > 0 {
        say!("scxprof: perf records cgroups with --all-cgroups: `{PERF_RECORD}`");
    }
    decision::finish(&args.decision, args.verbose, sampled, outputs, |outcome, source| {
        no_samples(outcome, source, unselected, &damage)
    })?;
    damaged(&damage)?;
    decision::check_loss(args.max_loss, &loss)
}

/// Why a recording has no samples.
fn no_samples(outcome: &Outcome, source: Source, unselected: Option<String>, damage: &[String]) -> anyhow::Error {
    if let Some(unselected) = unselected {
        return anyhow!(unselected);
    }
    let damaged = (!damage.is_empty()).then(|| format!("the profile is damaged: {}", damage.join("; ")));
    let reasons: Vec<String> = damaged.into_iter().chain(decision::without_address(outcome, source)).collect();
    if !reasons.is_empty() {
        anyhow!("no usable samples: {}", reasons.join("; "))
    } else if outcome.events == 0 {
        anyhow!("no usable samples: the recording has none")
    } else {
        anyhow!("no usable samples, though {} events were recorded: see the counts above", outcome.events)
    }
}

/// The file of lines that `path` is or holds; `None` for anything else.
fn lines_of(path: &Path) -> Result<Option<PathBuf>, Failure> {
    Ok(match super::process::kind(path)? {
        Kind::Lines => Some(path.to_owned()),
        Kind::Directory if ["perf.data", "perf.mem.data"].iter().any(|name| path.join(name).exists()) => None,
        Kind::Directory => {
            ["perf.jsonl", "perf.mem.jsonl"].iter().map(|name| path.join(name)).find(|path| path.is_file())
        }
        _ => None,
    })
}

fn bytes(args: &ExtractArgs) -> usize {
    (args.memory as usize).saturating_mul(1 << 20)
}

fn from_profile(args: &ExtractArgs, filter: Filter, signals: &Signals) -> Result<Taken, Failure> {
    let mut profile = super::process::open(&args.profile, &|| signals.seen())?;
    let source = profile.source();
    let mut decider = args.decision.decider(source, bytes(args), args.verbose)?;
    let mut filtered = Filtered { filter, sink: &mut decider };
    let replayed = replay(&mut profile, bytes(args), &mut filtered, || signals.seen());
    let (filtered_out, unselected) = (filtered.filter.left_out, filtered.filter.nothing());
    let mut damage = Vec::new();
    let outcome = replayed.unwrap_or_else(|error| {
        damage.push(error.to_string());
        Outcome::default()
    });
    damage.extend(profile.damage());
    let by_perf = profile.meta.is_none() && profile.perf_data().is_some();
    let meta = profile.meta.take();
    let cpus = match &mut profile.records {
        Records::PerfData(perf_data) => online_cpus(perf_data),
        Records::Script(_) => None,
    };
    Ok(Taken { decider, outcome, filtered_out, unselected, damage, by_perf, meta, cpus })
}

/// Samples that are given to the sink at once.
const TOGETHER: usize = 64;

fn from_lines(args: &ExtractArgs, path: &Path, filter: Filter, signals: &Signals) -> Result<Taken, Failure> {
    let mut reader =
        jsonl::Reader::new(open_lines(path, path != args.profile).map_err(|error| Failure::Usage(error.into()))?);
    let mut damage = Vec::new();
    let meta = match Meta::read(path.parent().unwrap_or(Path::new(""))) {
        Err(ProfileError::Meta { reason, .. }) => {
            damage.push(format!("meta.json makes no sense ({reason})"));
            None
        }
        meta => meta.map_err(|error| Failure::NoResult(error.into()))?,
    };
    let failed = || format!("cannot read {}", path.display());
    let mut next = reader.next_line().with_context(failed).map_err(Failure::NoResult)?;
    let recorded = meta.as_ref().and_then(|meta| meta.source.parse().ok());
    let source = next.as_ref().and_then(|line| line.source).or(recorded).unwrap_or(Source::Recorded);
    let mut decider = args.decision.decider(source, bytes(args), args.verbose)?;
    let mut filtered = Filtered { filter, sink: &mut decider };
    let mut cgroups = Cgroups::recorded();
    let mut numbers = Numbers::default();
    let mut outcome = Outcome::default();
    let (mut first, mut last, mut record, mut without_address) = (None, 0, None, 0);
    let mut ready = Vec::with_capacity(TOGETHER);
    while let Some(line) = next {
        let mut sample: Sample = line.sample;
        if !line.has_thread {
            sample.thread = numbers.thread(sample.pid, sample.tid);
        }
        if let Some(path) = reader.cgroup() {
            sample.cgroup = numbers.cgroup(path, &mut cgroups);
        }
        first.get_or_insert(sample.time);
        last = last.max(sample.time);
        outcome.accesses += 1;
        without_address += u64::from(sample.place.is_none());
        outcome.samples += u64::from(record != Some(sample.record));
        record = Some(sample.record);
        ready.push(sample);
        if ready.len() >= TOGETHER {
            filtered.samples(&ready, &mut cgroups);
            ready.clear();
        }
        if outcome.accesses.is_multiple_of(1 << 16) && signals.seen() {
            break;
        }
        next = match reader.next_line() {
            Ok(next) => next,
            Err(error) => {
                damage.push(format!("{}: {error}", failed()));
                None
            }
        };
    }
    filtered.samples(&ready, &mut cgroups);
    let (filtered_out, unselected) = (filtered.filter.left_out, filtered.filter.nothing());
    outcome.events = outcome.samples;
    outcome.loss.samples = outcome.samples;
    outcome.duration = Duration::from_nanos(last.saturating_sub(first.unwrap_or(last)));
    if let Some(meta) = meta.as_ref().filter(|meta| !meta.unfinished) {
        outcome.events = meta.happened;
        outcome.duration = Duration::try_from_secs_f64(meta.duration).unwrap_or(outcome.duration);
        // What the session had to drop is recorded, and in the lines; the rest is counted again.
        outcome.loss = Loss { channel_full: 0, no_cgroup_path: 0, evicted: 0, ..meta.loss };
        outcome.notes.clone_from(&meta.notes);
    }
    outcome.loss.no_user_address = without_address;
    damage.extend(meta.iter().flat_map(|meta| meta.damage.clone()));
    outcome.notes.extend(reader.missing.lines());
    outcome.notes.extend(numbers.left_out().into_iter().chain(cgroups.left_out()));
    if let Some((line, reason)) = reader.first_unreadable {
        damage.push(format!(
            "{} of {} lines of {} are no samples (the first is line {line}: {reason})",
            reader.unreadable,
            reader.lines,
            path.display()
        ));
    }
    Ok(Taken { decider, outcome, filtered_out, unselected, damage, by_perf: false, meta, cpus: None })
}
