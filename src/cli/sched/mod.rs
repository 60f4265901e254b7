//! `scxprof sched`: what the scheduler did with threads, live or from a recording.

mod print;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use serde::Serialize;

use self::print::{Lines, Results};
use super::args::{seconds, text, ResultArgs, INPUT, RESULT, WATCH};
use super::capture::{self, TuningArgs};
use super::command::Held;
use super::ends::{Ends, Step};
use super::failure::Failure;
use super::hints::HintArgs;
use super::input::{self, Damage, InputKind};
use super::observe;
use super::output::Stdout;
use super::signals::Signals;
use super::wakers::{FoundWakers, WakerArgs};
use super::windows::{WindowArgs, WindowSink};
use super::{dsqs, messages, source};
use crate::config::Placement;
use crate::host::{limits, topology, Roots};
use crate::profile::Profile;
use crate::sample::places::CpuPlaces;
use crate::sample::{Source, Task};
use crate::session::{Error, HostOptions, Outcome, Progress, SchedOptions, SchedSink, Session, Sink};
use scxprof_sched::report::{By, Order};

const EXAMPLES: &str = "\
Examples:
  sudo scxprof sched                             the processes of this host for 10 seconds
  sudo scxprof sched -t 5 --by thread --sort latency    the threads that waited longest after a wakeup
  sudo scxprof sched --by cell --config cells.json      the subcells of a configuration
  sudo scxprof sched --wakers                    which threads wake and preempt each other, chains of wakeups
  sudo scxprof sched --by dsq                    the dispatch queues of the sched_ext scheduler
  sudo scxprof sched --by cpu -- make -j8        the CPUs while a command runs
  sudo scxprof sched --windows 1ms --category 'web=nginx*' --csv cpus.csv   the CPUs in use, each ms
  scxprof sched -f perf.data --json              of what perf sched record recorded
  scxprof sched -f trace.pb --by thread          of a trace of wprof or perfetto";

const DEFAULT_LIMIT: &str = "100";

/// Print what the scheduler does: run time, waits, wakeup latency, migrations
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_args(text("json", "Print JSON (docs/sched.md has the fields)")))]
pub(super) struct SchedArgs {
    /// Read a recording (of `record --sched`, `perf sched record`, wprof or perfetto) instead of this host's events
    #[arg(
        short = 'f',
        short_alias = 'i',
        long = "file",
        alias = "input",
        value_name = "PROFILE",
        help_heading = INPUT,
        conflicts_with_all = ["time", "cpus", "irq", "hints_map", "command", "mmap_pages", "workers", "realtime"]
    )]
    file: Option<PathBuf>,
    /// How long to watch: seconds, or a time such as 500ms or 5m [default: 10; with a COMMAND until it ends]
    #[arg(
        short = 't',
        long = "time",
        alias = "duration",
        value_name = "TIME",
        allow_negative_numbers = true,
        value_parser = seconds,
        help_heading = WATCH
    )]
    time: Option<Duration>,
    /// The whole host, as perf calls it: it always is
    #[arg(short = 'a', long = "all-cpus", hide = true)]
    all: bool,
    /// Only on these CPUs, such as 0-3,8 [default: all, also those that come online later]
    #[arg(short = 'C', long = "cpu", value_name = "CPUS", help_heading = WATCH)]
    cpus: Option<String>,
    /// Also watch interrupts and softirqs
    #[arg(long, help_heading = WATCH)]
    irq: bool,
    #[command(flatten)]
    hints: HintArgs,
    #[command(flatten)]
    tuning: TuningArgs,
    /// What a line is about
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "process",
        help_heading = RESULT
    )]
    by: What,
    /// The configuration (of scx_mitosis or scx_layered) whose cells --by cell and --wakers use
    #[arg(long, value_name = "FILE", help_heading = RESULT)]
    config: Option<PathBuf>,
    /// The field to sort lines by, the largest first
    #[arg(
        long,
        value_name = "FIELD",
        default_value = "run",
        help_heading = RESULT
    )]
    sort: Sort,
    /// The most lines to print; 0 for all
    #[arg(long, value_name = "N", default_value = DEFAULT_LIMIT, help_heading = RESULT)]
    limit: usize,
    #[command(flatten)]
    wakers: WakerArgs,
    #[command(flatten)]
    windows: WindowArgs,
    #[command(flatten)]
    result: ResultArgs,
    /// Print what was left out and why
    #[arg(short = 'v', long = "verbose", action = clap::ArgAction::Count, help_heading = RESULT)]
    verbose: u8,
    /// A command to watch the host for while it runs; its stdout becomes stderr if the result goes to stdout
    #[arg(trailing_var_arg = true, value_name = "COMMAND", help_heading = WATCH)]
    command: Vec<OsString>,
}

/// What a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum What {
    Cpu,
    Thread,
    Process,
    Cgroup,
    Cell,
    Llc,
    Node,
    Dsq,
}

impl What {
    /// `None` for dispatch queues, which have other columns.
    fn by(self) -> Option<By> {
        match self {
            Self::Cpu => Some(By::Cpu),
            Self::Thread => Some(By::Thread),
            Self::Process => Some(By::Process),
            Self::Cgroup => Some(By::Cgroup),
            Self::Cell => Some(By::Cell),
            Self::Llc => Some(By::Llc),
            Self::Node => Some(By::Node),
            Self::Dsq => None,
        }
    }
}

/// What lines are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sort {
    Run,
    Wait,
    Latency,
    Switches,
    Wakeups,
    Migrations,
    Name,
}

impl From<Sort> for Order {
    fn from(sort: Sort) -> Self {
        match sort {
            Sort::Run => Self::Run,
            Sort::Wait => Self::Wait,
            Sort::Latency => Self::Latency,
            Sort::Switches => Self::Switches,
            Sort::Wakeups => Self::Wakeups,
            Sort::Migrations => Self::Migrations,
            Sort::Name => Self::Name,
        }
    }
}

impl SchedArgs {
    fn limit(&self) -> Option<Duration> {
        self.time.or_else(|| self.command.is_empty().then(|| Duration::from_secs(10)))
    }

    /// Makes the requested statistics.
    fn sink(&self, places: CpuPlaces, own_pid: Option<u32>, placement: Option<&Placement>) -> SchedSink {
        let sink = SchedSink::new(places, own_pid);
        self.wakers.enable(if placement.is_some_and(Placement::uses_hints) { sink.with_hints() } else { sink })
    }
}

/// What was observed.
struct Observed {
    stats: SchedSink,
    windows: Option<WindowSink>,
    outcome: Outcome,
    /// What the recording lacks.
    lacks: Vec<String>,
    damage: Damage,
    status: Option<u8>,
    /// The configuration, with what is known of threads.
    placement: Option<Placement>,
}

/// Watches or reads, and prints.
pub(super) fn run(args: &SchedArgs, stdout: Stdout) -> Result<(), Failure> {
    if args.by == What::Cell && args.config.is_none() {
        return Err(Failure::Usage(anyhow!("--by cell needs --config, which has the cells")));
    }
    if args.config.is_some() && args.by != What::Cell && args.wakers.level().is_none() {
        return Err(Failure::Usage(anyhow!("--config has no effect without --by cell or --wakers")));
    }
    args.result.file.check(stdout)?;
    if args.by == What::Dsq
        && (args.sort != Sort::Run || args.wakers.level().is_some() || args.windows.windows.is_some())
    {
        return Err(Failure::Usage(anyhow!(
            "--by dsq has an order and columns of its own: leave out --sort, --wakers and --windows"
        )));
    }
    if args.by == What::Dsq && args.file.is_none() {
        dsqs::check(&Roots::default())?;
    }
    let placement = input::given_configuration("--config", args.config.as_deref())?;
    // Before anything is opened, so that the command does not inherit our limits.
    let held = if args.command.is_empty() {
        None
    } else {
        Some(Held::new(&args.command, args.result.file.is_stdout()).map_err(Failure::Usage)?)
    };
    let output = args.result.file.open(stdout)?;
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let observed = match &args.file {
        Some(path) => match input::kind(path) {
            InputKind::Trace => read_trace(args, path, &signals, placement)?,
            InputKind::Profile | InputKind::Unknown => read(args, path, &signals, placement)?,
        },
        None => watch(args, held, &signals, placement)?,
    };
    let Observed { stats, windows, outcome, lacks, damage, status, mut placement } = observed;
    if let Some(placement) = &mut placement {
        placement.know_cgroups(stats.cgroup_paths());
    }
    if !stats.has_hints() {
        input::say_unhinted("--config", placement.as_ref());
    } else if args.wakers.level().is_some() {
        // Wakeups are counted without hints.
        input::say_unhinted("--wakers", placement.as_ref());
    }
    capture::say_notes(&outcome, None);
    for lack in &lacks {
        say!("note: {lack}");
    }
    let loss = outcome.loss.sched;
    messages::say_loss(&outcome.loss, args.verbose > 0);
    if stats.events() == 0 {
        let why = damage.because(&format!("the {}", damage.what()));
        return Err(Failure::NoResult(match &args.file {
            Some(path) if damage.is_of_trace() => {
                anyhow!("{} has no scheduling events{why}; `scxprof trace info` says what it has", path.display())
            }
            Some(path) => anyhow!(
                "{} has no scheduling events{why}; `scxprof record --sched` and `perf sched record` record them",
                path.display()
            ),
            None => anyhow!("no scheduling events: nothing ran in that time on the CPUs that were watched"),
        }));
    }
    let cell_of = |task: &Task<'_>| placement.as_ref().map_or_else(String::new, |placement| placement.name_of(task));
    let windows = windows.map(WindowSink::finish).transpose()?;
    let lines = match args.by.by() {
        Some(by) => Lines::Of(by, stats.lines(by, args.sort.into(), &cell_of)),
        None => Lines::Dsqs(dsqs::found(&stats, args.limit, args.file.as_deref(), &outcome)?),
    };
    let wakers = args.wakers.level().and_then(|level| FoundWakers::new(&stats, level, args.limit, placement.as_ref()));
    let results = Results { stats, loss, lines, windows, wakers, lacks };
    let format = args.result.format();
    let text = format.render(|| print::document(args, &results), || print::text(args, &results, output.width()))?;
    output.write(text.as_bytes(), true).map_err(Failure::NoResult)?;
    let mut ends = Ends::default();
    ends.note(Step::Damage, damage.check());
    ends.command(Ok(status));
    ends.sched_loss(&args.tuning.max_loss, &loss);
    ends.end()
}

/// Watches this host.
fn watch(
    args: &SchedArgs,
    held: Option<Held>,
    signals: &Signals,
    placement: Option<Placement>,
) -> Result<Observed, Failure> {
    let roots = Roots::default();
    let mut cpus = topology::online_cpus(&roots).map_err(|error| Failure::Unsupported(error.into()))?;
    let mut stats = args.sink(topology::places(&roots, &cpus), Some(std::process::id()), placement.as_ref());
    let mut builder = Session::builder().memory(args.tuning.memory(&roots)?);
    let mut host = args.tuning.host(HostOptions {
        sched: Some(SchedOptions { irq: args.irq, dsq: true, ..SchedOptions::default() }),
        hints: args.hints.options(),
        ..HostOptions::source(Source::Wakeups)
    });
    if let Some(limit) = args.limit() {
        builder = builder.time(limit);
    }
    if let Some(list) = &args.cpus {
        cpus = capture::cpus(list, &roots)?;
        host.cpus.clone_from(&cpus);
    }
    let mut windows = WindowSink::new(&args.windows, cpus)?;
    if let Some(windows) = &mut windows {
        builder = builder.sink(windows);
    }
    limits::bound_realtime();
    let session = builder.host(host).start().map_err(|error| match error {
        Error::Start(error) => source::failure_of(error, source::Watched::Sched, args.verbose),
        error => Failure::Unsupported(error.into()),
    })?;
    let mut command = held.map(Held::release).transpose().map_err(Failure::Usage)?;
    let tables = (args.verbose > 1).then(|| session.tables());
    let watched = |ended: &mut dyn FnMut(Progress) -> bool| session.run_into(&mut stats, ended);
    let outcome = capture::watch(args.limit(), command.as_mut(), signals, tables.as_ref(), watched);
    let status = capture::end(command, signals)?;
    let placement = placement.map(|placement| input::with_living_tasks(placement, &roots));
    Ok(Observed { stats, windows, outcome, lacks: Vec::new(), damage: Damage::default(), status, placement })
}

/// Reads a recording.
fn read(args: &SchedArgs, path: &Path, signals: &Signals, placement: Option<Placement>) -> Result<Observed, Failure> {
    let mut profile: Profile = input::sched_profile(path, &|| signals.seen())?;
    let memory = args.tuning.memory(&Roots::default())?;
    let lacks = profile.sched_lacks();
    let mut stats = args.sink(profile.places(), profile.own_pid(), placement.as_ref());
    let mut windows = WindowSink::new(&args.windows, Vec::new())?;
    let mut builder = input::session(&mut profile, memory);
    if let Some(windows) = &mut windows {
        builder = builder.sink(windows);
    }
    let outcome = input::read(builder, &mut stats, &|| signals.seen())?;
    let damage = Damage::of_profile(&profile);
    let placement = placement.map(|placement| input::with_recorded_tasks(placement, &profile));
    Ok(Observed { stats, windows, outcome, lacks, damage, status: None, placement })
}

/// Reads a trace of another tool.
fn read_trace(
    args: &SchedArgs,
    path: &Path,
    signals: &Signals,
    placement: Option<Placement>,
) -> Result<Observed, Failure> {
    let trace = input::trace(path)?;
    let mut stats = args.sink(CpuPlaces::default(), None, placement.as_ref());
    stats.unobserved_before(trace.observed_from().unwrap_or(0));
    let mut windows = WindowSink::new(&args.windows, Vec::new())?;
    let other = windows.as_mut().map(|windows| windows as &mut dyn Sink);
    let info = input::read_trace(trace, path, other, &mut stats, &|| signals.seen())?.info();
    let lacks = observe::losses(&info);
    let damage = Damage::of_trace(info.damage);
    Ok(Observed { stats, windows, outcome: Outcome::default(), lacks, damage, status: None, placement })
}
