//! `scxprof trace analyze`: the usual questions about a trace.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{anyhow, Context};
use clap::{Args, ValueEnum};

use super::args::{self, ResultArgs, INPUT, RESULT};
use super::failure::Failure;
use super::format;
use super::input;
use super::observe;
use super::output::Stdout;
use super::selection::{range, Selection, SelectionArgs};
use super::signals::Signals;
use crate::sample::places::{CpuPlace, CpuPlaces};
use crate::sample::Task;
use scxprof_base::columns::{fitted, wrapped};
use scxprof_trace::analyze::{Analysis, By as Grouped, Id, Method, Options, Report, Subcells, TextTable, Unavailable};
use scxprof_trace::TraceThreads;

const EXAMPLES: &str = "\
Examples:
  scxprof trace analyze trace.pb                 all analysers whose events the trace has
  scxprof trace analyze trace.pb --only wakeup_latency,run_queue
  scxprof trace analyze trace.pb --only outliers --method mad --limit 50
  scxprof trace analyze trace.pb --only llc_locality --llc 0-7,8-15
  scxprof trace analyze trace.pb --only groups --by layer   what each layer of scx_layered did
  scxprof trace analyze trace.pb --comm '^web' --from 2 --to 5    of the threads web*, in three seconds
  scxprof trace analyze trace.pb --json | jq '.analyses.block_io.all'
`scxprof trace info` says which analysers can run on a file, and what the others need.
Exit codes:
  0  the result was written
  1  the trace has no events that any of the analysers needs, or the result could not be written
  2  wrong usage, also a file that cannot be opened or is no trace
  4  the result was written, but a part of the trace could not be read";

/// Analyse a trace: CPU use, latencies, interrupts, devices, frequencies, dispatch queues
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_args(args::text("json", "Print JSON (docs/traces.md has the fields)")))]
pub(super) struct AnalyzeArgs {
    /// A trace in Perfetto's format or the JSON lines of wprof, compressed or not, a profile or a perf.data
    #[arg(help_heading = INPUT)]
    file: PathBuf,
    /// CPUs that share a last-level cache, a range for each cache [default: what the file says; traces do not]
    #[arg(long, value_name = "FIRST-LAST", value_delimiter = ',', value_parser = range, help_heading = INPUT)]
    llc: Vec<(u32, u32)>,
    /// Only these analysers (docs/traces.md lists them)
    #[arg(long, value_name = "ID", value_delimiter = ',', help_heading = RESULT)]
    only: Vec<Id>,
    /// What the lines of `groups` are about
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Group::Name, help_heading = RESULT)]
    by: Group,
    /// The configuration whose subcells --by subcell means; of threads their names alone count, as traces have no cgroups
    #[arg(long, value_name = "FILE", help_heading = RESULT)]
    config: Option<PathBuf>,
    /// How outliers are told from the rest
    #[arg(long, value_enum, default_value_t = By::Iqr, help_heading = RESULT)]
    method: By,
    /// Lines of each list; 0 for all
    #[arg(long, value_name = "N", default_value_t = 20, help_heading = RESULT)]
    limit: usize,
    #[command(flatten)]
    result: ResultArgs,
    #[command(flatten)]
    selection: SelectionArgs,
}

/// What the lines of `groups` are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Group {
    /// All threads of a name
    Name,
    /// Each thread
    Thread,
    /// Each process
    Process,
    /// Each layer of scx_layered, as wprof says it
    Layer,
    /// Each cell and subcell of --config
    Subcell,
}

impl From<Group> for Grouped {
    fn from(by: Group) -> Self {
        match by {
            Group::Name => Self::Name,
            Group::Thread => Self::Thread,
            Group::Process => Self::Process,
            Group::Layer => Self::Layer,
            Group::Subcell => Self::Subcell,
        }
    }
}

/// How outliers are told from the rest.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum By {
    /// More than 1.5 interquartile ranges outside of the quartiles
    Iqr,
    /// More than 3.5 scaled median absolute deviations from the median
    Mad,
    /// More than 3 standard deviations from the mean
    Stddev,
    /// Above the 99th percentile, or below the 1st
    Percentile,
}

impl From<By> for Method {
    fn from(by: By) -> Self {
        match by {
            By::Iqr => Self::Iqr,
            By::Mad => Self::Mad,
            By::Stddev => Self::Stddev,
            By::Percentile => Self::Percentile,
        }
    }
}

/// The places of CPUs, as far as their caches are known.
fn places(llcs: &[(u32, u32)]) -> Result<CpuPlaces, Failure> {
    let mut places = CpuPlaces::default();
    for &(first, last) in llcs {
        for cpu in first..=last {
            if places.get(cpu).is_some() {
                return Err(Failure::Usage(anyhow!("--llc: CPU {cpu} is in two caches")));
            }
            places.set(cpu, CpuPlace { core: cpu, llc: first, node: 0 });
        }
    }
    Ok(places)
}

/// The subcells that `--by subcell` means.
fn subcells(args: &AnalyzeArgs) -> Result<Option<Subcells>, Failure> {
    let placement = input::given_configuration("--config", args.config.as_deref())?;
    input::say_unhinted("--config", placement.as_ref());
    match (placement, args.by) {
        (Some(placement), Group::Subcell) => {
            Ok(Some(Subcells(Arc::new(move |comm: &[u8]| placement.name_of(&Task::new(b"", comm))))))
        }
        (None, Group::Subcell) => Err(Failure::Usage(anyhow!("--by subcell needs --config, which has the subcells"))),
        (Some(_), _) => Err(Failure::Usage(anyhow!("--config has no effect without --by subcell"))),
        (None, _) => Ok(None),
    }
}

/// Runs `scxprof trace analyze`.
pub(super) fn run(args: &AnalyzeArgs, stdout: Stdout) -> Result<(), Failure> {
    let limit = if args.limit == 0 { usize::MAX } else { args.limit };
    let given = places(&args.llc)?;
    let subcells = subcells(args)?;
    let mut selection = Selection::new(&args.selection)?;
    let output = args.result.file.open(stdout)?;
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let analysis = |recorded: CpuPlaces, selection: &Selection, threads: Option<&TraceThreads>| {
        let places = if given.is_empty() { recorded } else { given };
        let (by, select) = (args.by.into(), selection.select(threads));
        let (only, method) = (args.only.clone(), args.method.into());
        Analysis::new(Options { only, limit, method, places, by, subcells, select })
    };
    let observed = observe::analyze(&args.file, &signals, &mut selection, analysis)?;
    if args.by == Group::Layer && !observed.info.events.iter().any(|count| count.name == "wprof:layer") {
        say!("note: the trace does not say the layers of threads; wprof does with scx_layered: `wprof -f scx`");
    }
    let report = observed.report.as_ref().context("a bug in scxprof: no report").map_err(Failure::NoResult)?;
    if let Some(why) = selection.nothing() {
        return Err(Failure::NoResult(anyhow!("{}: {why}", args.file.display())));
    }
    if report.analyses.is_empty() {
        let lacking: Vec<String> = report.unavailable.iter().map(Unavailable::sentence).collect();
        return Err(Failure::NoResult(anyhow!("{}: {}", args.file.display(), lacking.join("; "))));
    }
    let table = || text(report, &observed.losses, !args.only.is_empty(), output.width());
    let text = args.result.format().render(|| format::json(report), table)?;
    output.write(text.as_bytes(), true).map_err(Failure::NoResult)?;
    observed.check()
}

fn text(report: &Report, losses: &[String], is_chosen: bool, width: Option<usize>) -> String {
    let mut text = String::new();
    for outcome in &report.analyses {
        let analyser = outcome.id().analyser();
        let _ = writeln!(text, "== {}: {}", analyser.id.name(), analyser.says);
        for table in outcome.tables() {
            let TextTable { title, rows } = &table;
            if rows.is_empty() {
                continue;
            }
            let separator = if title.is_empty() { "\n".to_owned() } else { format!("\n{title}\n") };
            text.push_str(&separator);
            text.push_str(&fitted(rows, &table.columns(), width));
        }
        text.push('\n');
    }
    if is_chosen {
        for lacking in &report.unavailable {
            let _ = writeln!(text, "{}", lacking.sentence());
        }
    } else if !report.unavailable.is_empty() {
        let names: Vec<&str> = report.unavailable.iter().map(|lacking| lacking.id.name()).collect();
        let _ = writeln!(text, "The trace has no events for {} (`scxprof trace info` says which)", names.join(", "));
    }
    for line in losses {
        let _ = writeln!(text, "! {line}");
    }
    wrapped(&text, width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_is_in_one_cache() {
        let both = places(&[(0, 1), (2, 2)]).unwrap();
        assert_eq!([0, 1, 2, 3].map(|cpu| both.get(cpu).map(|place| place.llc)), [Some(0), Some(0), Some(2), None]);
        assert!(places(&[(0, 1), (1, 2)]).is_err());
    }
}
