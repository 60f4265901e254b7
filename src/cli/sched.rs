//! `scxprof sched`: what the scheduler did with threads, live or from a recording.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{anyhow, Context};
use clap::Args;
use serde::Serialize;

use super::args::{seconds, INPUT, RESULT, WATCH};
use super::capture::{self, TuningArgs};
use super::command::Held;
use super::failure::Failure;
use super::hints::HintArgs;
use super::observe;
use super::output::{is_stdout, Stdout};
use super::process;
use super::signals::Signals;
use super::times::{incomplete, ms, us};
use super::wakers::{self, FoundWakers, WakerArgs};
use super::windows::{self, WindowArgs, WindowSink};
use super::{decision, dsqs, source};
use crate::config::Placement;
use crate::host::{limits, open, topology, Roots};
use crate::profile::Profile;
use crate::sample::places::CpuPlaces;
use crate::sample::{Comm, Source};
use crate::session::{Error, Outcome, Progress, SchedLoss, SchedOptions, SchedSink, Session, Sink};
use scxprof_base::columns::aligned;
use scxprof_base::escape;
use scxprof_sched::dsqs::DsqLine;
use scxprof_sched::report::{By, Line, Order};
use scxprof_sched::{Gaps, Summary};

const EXAMPLES: &str = "\
Examples:
  sudo scxprof sched                             the processes of this host for 10 seconds
  sudo scxprof sched -t 5 --by thread --sort latency    the threads that waited longest after a wakeup
  sudo scxprof sched --by cell --config cells.json      the subcells of a configuration
  sudo scxprof sched --wakers                    who wakes whom, who preempts whom, and chains of wakeups
  sudo scxprof sched --by dsq                    the dispatch queues of the sched_ext scheduler
  sudo scxprof sched --by cpu -- make -j8        the CPUs while a command runs
  sudo scxprof sched --windows 1ms --category 'web=nginx*' --csv cpus.csv   the CPUs in use, each ms
  scxprof sched -f perf.data --json              of what perf sched record recorded
  scxprof sched -f trace.pb --by thread          of a trace of wprof or perfetto";

const DEFAULT_LIMIT: &str = "100";

/// Print what the scheduler does: run time, waits, wakeup latency, migrations
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct SchedArgs {
    /// Read a recording (of `record --sched`, `perf sched record`, wprof or perfetto) instead of this host's events
    #[arg(
        short = 'f',
        long = "file",
        value_name = "PROFILE",
        help_heading = INPUT,
        conflicts_with_all = ["time", "cpus", "irq", "hints_map", "command", "mmap_pages", "workers", "realtime"]
    )]
    file: Option<PathBuf>,
    /// How long to watch [default: 10; with a COMMAND until it ends]
    #[arg(
        short = 't',
        long = "time",
        value_name = "SECONDS",
        allow_negative_numbers = true,
        value_parser = seconds,
        help_heading = WATCH
    )]
    time: Option<Duration>,
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
        value_parser = ["cpu", "thread", "process", "cgroup", "cell", "llc", "node", "dsq"],
        help_heading = RESULT
    )]
    by: String,
    /// The configuration whose cells --by cell and --wakers mean: of scx_mitosis or scx_layered
    #[arg(long, value_name = "FILE", help_heading = RESULT)]
    config: Option<PathBuf>,
    /// What lines are sorted by, the largest first
    #[arg(
        long,
        value_name = "FIELD",
        default_value = "run",
        value_parser = ["run", "wait", "latency", "switches", "wakeups", "migrations", "name"],
        help_heading = RESULT
    )]
    sort: String,
    /// The most lines to print; 0 for all
    #[arg(long, value_name = "N", default_value = DEFAULT_LIMIT, help_heading = RESULT)]
    limit: usize,
    #[command(flatten)]
    wakers: WakerArgs,
    #[command(flatten)]
    windows: WindowArgs,
    /// Print JSON (docs/sched.md has the fields)
    #[arg(long, help_heading = RESULT)]
    json: bool,
    /// Write the result to FILE instead of stdout
    #[arg(short = 'o', long = "output", value_name = "FILE", help_heading = RESULT)]
    output: Option<PathBuf>,
    /// Print what was left out and why
    #[arg(short = 'v', long = "verbose", action = clap::ArgAction::Count, help_heading = RESULT)]
    verbose: u8,
    /// A command to watch the host for while it runs; its stdout becomes stderr if the result goes to stdout
    #[arg(last = true, value_name = "COMMAND", help_heading = WATCH)]
    command: Vec<OsString>,
}

impl SchedArgs {
    fn by(&self) -> By {
        match self.by.as_str() {
            "cpu" => By::Cpu,
            "thread" => By::Thread,
            "cgroup" => By::Cgroup,
            "cell" => By::Cell,
            "llc" => By::Llc,
            "node" => By::Node,
            _ => By::Process,
        }
    }

    /// Lines are dispatch queues, which have other columns.
    fn by_dsq(&self) -> bool {
        self.by == "dsq"
    }

    fn order(&self) -> Order {
        match self.sort.as_str() {
            "wait" => Order::Wait,
            "latency" => Order::Latency,
            "switches" => Order::Switches,
            "wakeups" => Order::Wakeups,
            "migrations" => Order::Migrations,
            "name" => Order::Name,
            _ => Order::Run,
        }
    }

    fn limit(&self) -> Option<Duration> {
        self.time.or_else(|| self.command.is_empty().then(|| Duration::from_secs(10)))
    }

    fn to_stdout(&self) -> bool {
        is_stdout(self.output.as_deref())
    }
}

/// The result as JSON.
#[derive(Debug, Serialize)]
struct Document<'a> {
    version: u32,
    by: &'a str,
    /// From the first event to the last.
    window_ns: u64,
    events: u64,
    loss: SchedLoss,
    gaps: GapCounts,
    /// Threads that have ended; their statistics are added up by process, cgroup and name.
    threads_ended: u64,
    still_waiting: u64,
    longest_still_waiting_ns: u64,
    /// Times that a thread ran again without a wakeup, and ns in which it neither slept nor waited as far as is known.
    unwoken: u64,
    unwoken_ns: u64,
    total: &'a Line,
    scxprof: &'a Line,
    /// How many lines there are, of which `lines` has the first.
    line_count: usize,
    lines: &'a [Line],
    /// Dispatch queues, with --by dsq.
    #[serde(skip_serializing_if = "Option::is_none")]
    dsqs: Option<&'a [DsqLine]>,
    /// Times that a thread got a CPU from a dispatch queue that is not known, with --by dsq.
    #[serde(skip_serializing_if = "Option::is_none")]
    dsq_unknown: Option<u64>,
    /// CPUs in use in windows, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    windows: Option<&'a Summary>,
    /// Who wakes whom, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    wakers: Option<&'a FoundWakers>,
    /// What the recording lacks, and other facts.
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct GapCounts {
    losses: u64,
    mismatches: u64,
    backwards: u64,
    no_room: u64,
}

impl From<Gaps> for GapCounts {
    fn from(gaps: Gaps) -> Self {
        let Gaps { losses, mismatches, backwards, no_room } = gaps;
        Self { losses, mismatches, backwards, no_room }
    }
}

/// What was observed.
struct Observed {
    stats: SchedSink,
    windows: Option<WindowSink>,
    outcome: Outcome,
    /// What the recording lacks.
    lacks: Vec<String>,
    damage: Vec<String>,
    /// It was read from a trace.
    is_trace: bool,
    status: Option<u8>,
}

/// Watches or reads, and prints.
pub(super) fn run(args: &SchedArgs, stdout: Stdout) -> Result<(), Failure> {
    if args.by() == By::Cell && args.config.is_none() {
        return Err(Failure::Usage(anyhow!("--by cell needs --config, which has the cells")));
    }
    if args.config.is_some() && args.by() != By::Cell && args.wakers.level().is_none() {
        return Err(Failure::Usage(anyhow!("--config is of no use without --by cell or --wakers")));
    }
    stdout.check(args.output.as_deref())?;
    if args.by_dsq() && (args.sort != "run" || args.wakers.level().is_some() || args.windows.windows.is_some()) {
        return Err(Failure::Usage(anyhow!(
            "--by dsq has an order and columns of its own: leave out --sort, --wakers and --windows"
        )));
    }
    if args.by_dsq() && args.file.is_none() {
        dsqs::check(&Roots::default())?;
    }
    let placement = args.config.as_deref().map(read_config).transpose()?;
    // Before anything is opened, so that the command does not inherit our limits.
    let held = if args.command.is_empty() {
        None
    } else {
        Some(Held::new(&args.command, args.to_stdout()).map_err(Failure::Usage)?)
    };
    let output = stdout.open(args.output.as_deref())?;
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let observed = match &args.file {
        Some(path) if observe::is_trace(path) => read_trace(args, path, &signals)?,
        Some(path) => read(args, path, &signals)?,
        None => watch(args, held, &signals)?,
    };
    let Observed { stats, windows, outcome, lacks, damage, is_trace, status } = observed;
    capture::say_notes(&outcome, None);
    for lack in &lacks {
        say!("note: {lack}");
    }
    let loss = outcome.loss.sched;
    decision::say_loss(&outcome.loss, args.verbose > 0);
    let damaged = (!damage.is_empty()).then(|| damage.join("; "));
    if stats.events() == 0 {
        let what = if is_trace { "trace" } else { "profile" };
        let why = damaged.map_or(String::new(), |damage| format!(": the {what} is damaged: {damage}"));
        return Err(Failure::NoResult(match &args.file {
            Some(path) if is_trace => {
                anyhow!("{} has no scheduling events{why}; `scxprof trace info` says what it has", path.display())
            }
            Some(path) => anyhow!(
                "{} has no scheduling events{why}; `scxprof record --sched` and `perf sched record` record them",
                path.display()
            ),
            None => anyhow!("no scheduling events: nothing ran in that time on the CPUs that were watched"),
        }));
    }
    let cell_of = |cgroup: &[u8], comm: &Comm| {
        placement.as_ref().map_or_else(String::new, |placement| placement.name_of(cgroup, comm.as_bytes()))
    };
    let windows = windows.map(WindowSink::finish).transpose()?;
    let dsqs = args.by_dsq().then(|| dsqs::found(&stats, args.limit, args.file.as_deref(), &outcome)).transpose()?;
    let lines = if dsqs.is_some() { Vec::new() } else { stats.lines(args.by(), args.order(), &cell_of) };
    let wakers = args.wakers.level().and_then(|level| FoundWakers::new(&stats, level, args.limit, placement.as_ref()));
    let results = Results { lines: &lines, dsqs: dsqs.as_deref(), windows: windows.as_ref(), wakers: wakers.as_ref() };
    let text = if args.json {
        document(args, &stats, results, loss, lacks).context("cannot write the result").map_err(Failure::NoResult)?
    } else if let Some(windows) = &windows {
        escape::lines(&windows::table(windows))
    } else if let Some(wakers) = &wakers {
        escape::lines(&wakers::table(wakers))
    } else if let Some(dsqs) = &dsqs {
        escape::lines(&dsqs::table(dsqs, &stats))
    } else {
        escape::lines(&table(args, &stats, &lines))
    };
    output.write(text.as_bytes(), true).map_err(Failure::NoResult)?;
    if is_trace {
        process::damaged_trace(&damage)?;
    } else {
        process::damaged(&damage)?;
    }
    match status {
        Some(status) if status != 0 => Err(Failure::Command(status)),
        _ => decision::check_sched_loss(args.tuning.max_loss, &loss),
    }
}

/// Bytes of a configuration that are read; those of scxprof have some kilobytes.
const MAX_CONFIG: u64 = 16 << 20;

pub(super) fn read_config(path: &Path) -> Result<Placement, Failure> {
    placement("--config", path)
}

/// Reads the configuration that an option names.
pub(super) fn placement(option: &str, path: &Path) -> Result<Placement, Failure> {
    let read = || -> anyhow::Result<Placement> {
        let mut text = String::new();
        open::regular(path)?.take(MAX_CONFIG + 1).read_to_string(&mut text)?;
        anyhow::ensure!(text.len() as u64 <= MAX_CONFIG, "it has more than {} MiB", MAX_CONFIG >> 20);
        Ok(Placement::parse(&text)?)
    };
    read().with_context(|| format!("{option} {}", path.display())).map_err(Failure::Usage)
}

/// Watches this host.
fn watch(args: &SchedArgs, held: Option<Held>, signals: &Signals) -> Result<Observed, Failure> {
    let roots = Roots::default();
    let mut cpus = topology::online_cpus(&roots).map_err(|error| Failure::Unsupported(error.into()))?;
    let mut stats = args.wakers.enable(SchedSink::new(topology::places(&roots, &cpus), Some(std::process::id())));
    let mut builder = args
        .tuning
        .configure(Session::builder(), &roots)?
        .sources(&[Source::Wakeups])
        .sched(SchedOptions { irq: args.irq, dsq: true, ..SchedOptions::default() });
    if let Some(limit) = args.limit() {
        builder = builder.time(limit);
    }
    if let Some(list) = &args.cpus {
        cpus = capture::cpus(list, &roots)?;
        builder = builder.cpus(&cpus);
    }
    if let Some(hints) = args.hints.options() {
        builder = builder.hints(hints);
    }
    let mut windows = WindowSink::new(&args.windows, cpus)?;
    if let Some(windows) = &mut windows {
        builder = builder.sink(windows);
    }
    limits::bound_realtime();
    let session = builder.start().map_err(|error| match error {
        Error::Start(error) => source::failure_of(error, source::Watched::Sched, args.verbose),
        error => Failure::Unsupported(error.into()),
    })?;
    let mut command = held.map(Held::release).transpose().map_err(Failure::Usage)?;
    let tables = (args.verbose > 1).then(|| session.tables());
    let watched = |ended: &mut dyn FnMut(Progress) -> bool| session.run_into(&mut stats, ended);
    let outcome = capture::watch(args.limit(), command.as_mut(), signals, tables.as_ref(), watched);
    let status = capture::end(command, signals)?;
    Ok(Observed { stats, windows, outcome, lacks: Vec::new(), damage: Vec::new(), is_trace: false, status })
}

/// Reads a recording.
fn read(args: &SchedArgs, path: &Path, signals: &Signals) -> Result<Observed, Failure> {
    let mut profile: Profile = process::open(path, &|| signals.seen())?;
    let memory = args.tuning.memory(&Roots::default())?;
    let lacks = profile.sched_lacks();
    let mut stats = args.wakers.enable(SchedSink::new(profile.places(), profile.own_pid()));
    let mut windows = WindowSink::new(&args.windows, Vec::new())?;
    let mut builder = Session::builder().profile(&mut profile).memory(memory);
    if let Some(windows) = &mut windows {
        builder = builder.sink(windows);
    }
    let session = builder.start().map_err(|error| Failure::Unsupported(error.into()))?;
    let outcome = session.run_into(&mut stats, |_| signals.seen());
    if signals.seen() {
        return Err(process::interrupted());
    }
    Ok(Observed { stats, windows, outcome, lacks, damage: profile.damage(), is_trace: false, status: None })
}

/// Reads a trace of another tool.
fn read_trace(args: &SchedArgs, path: &Path, signals: &Signals) -> Result<Observed, Failure> {
    let mut trace = observe::open_trace(path)?;
    let mut stats = args.wakers.enable(SchedSink::new(CpuPlaces::default(), None));
    stats.unobserved_before(trace.observed_from().unwrap_or(0));
    let mut windows = WindowSink::new(&args.windows, Vec::new())?;
    let mut sinks: Vec<&mut dyn Sink> = vec![&mut stats];
    if let Some(windows) = &mut windows {
        sinks.push(windows);
    }
    if observe::feed(&mut trace, path, &mut sinks, &|| signals.seen())? {
        return Err(process::interrupted());
    }
    let info = trace.info();
    let lacks = observe::losses(&info);
    Ok(Observed {
        stats,
        windows,
        outcome: Outcome::default(),
        lacks,
        damage: info.damage,
        is_trace: true,
        status: None,
    })
}

/// What is printed, of which `--json` prints all.
#[derive(Clone, Copy)]
struct Results<'a> {
    lines: &'a [Line],
    dsqs: Option<&'a [DsqLine]>,
    windows: Option<&'a Summary>,
    wakers: Option<&'a FoundWakers>,
}

fn document(
    args: &SchedArgs,
    stats: &SchedSink,
    Results { lines, dsqs, windows, wakers }: Results<'_>,
    loss: SchedLoss,
    notes: Vec<String>,
) -> serde_json::Result<String> {
    let (total, own) = stats.totals();
    let (still_waiting, longest_still_waiting_ns) = stats.still_waiting();
    let document = Document {
        version: 1,
        by: &args.by,
        window_ns: stats.window(),
        events: stats.events(),
        loss,
        gaps: stats.gaps().into(),
        threads_ended: stats.folded(),
        still_waiting,
        longest_still_waiting_ns,
        unwoken: stats.unwoken().count,
        unwoken_ns: stats.unwoken().total_ns,
        total: &total,
        scxprof: &own,
        line_count: lines.len(),
        lines: shown(args, lines),
        dsqs,
        dsq_unknown: dsqs.map(|_| stats.unknown_dsqs()),
        windows,
        wakers,
        notes,
    };
    serde_json::to_string_pretty(&document).map(|text| escape::json(text) + "\n")
}

fn shown<'a>(args: &SchedArgs, lines: &'a [Line]) -> &'a [Line] {
    if args.limit == 0 {
        return lines;
    }
    lines.get(..args.limit).unwrap_or(lines)
}

fn table(args: &SchedArgs, stats: &SchedSink, lines: &[Line]) -> String {
    let window = stats.window();
    let is_cpus = matches!(args.by(), By::Cpu | By::Llc | By::Node);
    let by = match args.by() {
        By::Thread => "THREAD",
        By::Process => "PROCESS",
        By::Cgroup => "CGROUP",
        By::Cell => "CELL",
        By::Cpu | By::Llc | By::Node => "CPUS",
    };
    let mut head = vec![by];
    head.extend(match args.by() {
        By::Thread => &["TID", "PID"][..],
        By::Process => &["PID", "THREADS"],
        By::Cgroup | By::Cell => &["THREADS"],
        By::Cpu | By::Llc | By::Node => &["NR", "IDLE(ms)", "UNKNOWN(ms)"],
    });
    head.extend(["RUN(ms)", "%CPU", "SWITCHES", "INVOL", "WAKEUPS", "MIGR", "WAIT(ms)"]);
    if !is_cpus {
        head.extend(["SLEEP(ms)", "BLOCKED(ms)"]);
    }
    head.extend(["LAT.MEAN(us)", "P50", "P95", "P99", "MAX"]);
    let mut rows = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    let (total, own) = stats.totals();
    let id = |id: Option<u32>| id.map_or("-".to_owned(), |id| id.to_string());
    let row = |line: &Line| {
        let mark = if line.losses > 0 { "!" } else { "" };
        let mut row = vec![format!("{mark}{}", line.name)];
        row.extend(match (args.by(), &line.cpu) {
            (_, Some(cpu)) => vec![cpu.cpus.to_string(), ms(cpu.idle_ns), ms(cpu.unknown_ns)],
            (By::Thread, _) => vec![id(line.tid), id(line.pid)],
            (By::Process, _) => vec![id(line.pid), line.threads.to_string()],
            _ => vec![line.threads.to_string()],
        });
        let cpus = line.cpu.as_ref().map_or(1, |cpu| cpu.cpus.max(1));
        let percent = 100.0 * line.run.total_ns as f64 / (window.max(1) as f64 * cpus as f64);
        row.extend([
            ms(line.run.total_ns),
            format!("{percent:.1}"),
            line.switches.to_string(),
            line.involuntary.to_string(),
            line.wakeups.to_string(),
            line.migrations.total.to_string(),
            ms(line.wait.total_ns),
        ]);
        if !is_cpus {
            row.extend([ms(line.sleep.total_ns), ms(line.blocked.total_ns)]);
        }
        let latency = &line.latency;
        row.extend([
            us(latency.times.mean_ns),
            us(latency.p50_ns),
            us(latency.p95_ns),
            us(latency.p99_ns),
            us(latency.times.max_ns),
        ]);
        row
    };
    let shown = shown(args, lines);
    rows.extend(shown.iter().map(row));
    let mut text = aligned(&rows);
    let seconds = window as f64 / 1e9;
    let _ = write!(text, "\n{} of {} lines, {seconds:.3} s, {} events", shown.len(), lines.len(), stats.events());
    let _ = write!(
        text,
        "\nAll threads: {} ms on CPUs, {} switches, {} wakeups, {} migrations; {} threads have ended",
        ms(total.run.total_ns),
        total.switches,
        total.wakeups,
        total.migrations.total,
        stats.folded()
    );
    if own.run.count > 0 {
        let _ =
            write!(text, "\nscxprof itself, left out: {} ms on CPUs, {} switches", ms(own.run.total_ns), own.switches);
    }
    let (waiting, longest) = stats.still_waiting();
    if waiting > 0 {
        let _ =
            write!(text, "\n{waiting} threads were waiting for a CPU at the end, the longest for {} ms", ms(longest));
    }
    let unwoken = stats.unwoken();
    if unwoken.count > 0 {
        let _ = write!(
            text,
            "\n{} times a thread ran again without a wakeup that was seen: {} ms are in none of WAIT, SLEEP and BLOCKED",
            unwoken.count,
            ms(unwoken.total_ns)
        );
    }
    if shown.iter().any(|line| line.losses > 0) {
        text += incomplete(stats);
    }
    text + "\n"
}
