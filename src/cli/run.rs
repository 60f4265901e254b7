//! `scxprof run`: one capture, from the events to the configuration.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, Context};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::command::Held;
use super::hints::{self, HintArgs};
use super::output::Output;
use super::source::SourceArgs;
use super::{seconds, Failure};
use crate::config::{self, GroupOptions, Groups};
use crate::resolve::cgroups::Cgroups;
use crate::resolve::topology::{self, PidNamespace};
use crate::resolve::Roots;
use crate::sample::Source;
use crate::sampler::attr::Features;
use crate::sampler::{self, Target};
use crate::session::{self, Decider, Outcome, Session, Yield};

const DEFAULT_SECONDS: f64 = 30.0;

const EXAMPLES: &str = "\
Examples:
  sudo scxprof run -t 30 > cells.json            sample the host, write the configuration
  sudo scxprof run -v -o cells.json              the same, with a summary on stderr
  sudo scxprof run --cell db='db\\.service$'      a cell for a cgroup of another name
  scxprof run -p 1234 -t 10                      one process and its children
  scxprof run -- ./server --port 80              a command while it runs (Ctrl-C ends both)
Use it:
  sudo scx_mitosis --cell-config cells.json";

/// Sample memory accesses and print a cell configuration
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct RunArgs {
    /// How long to sample [default: 30; with a COMMAND until it ends]
    #[arg(short = 't', long = "time", value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds)]
    time: Option<Duration>,
    #[command(flatten)]
    from: SourceArgs,
    /// Only these CPUs, such as 0-3,8 [default: all that are online]
    #[arg(short = 'C', long = "cpu", value_name = "CPUS")]
    cpus: Option<String>,
    /// Only these processes and what they start
    #[arg(short = 'p', long = "pid", value_name = "PID", value_delimiter = ',', conflicts_with_all = ["cgroup", "command"])]
    pids: Vec<u32>,
    /// Only this cgroup and those below it
    #[arg(long, value_name = "PATH", conflicts_with = "command")]
    cgroup: Option<PathBuf>,
    /// Where the host's cgroup hierarchy is mounted, for a container [default: found in /proc/self/mountinfo]
    #[arg(long, value_name = "DIR")]
    cgroup_root: Option<PathBuf>,
    /// Write the configuration to FILE instead of stdout
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    output: Option<PathBuf>,
    /// Pages in each CPU's ring, a power of two
    #[arg(long, value_name = "N", default_value = "256", value_parser = power_of_two)]
    mmap_pages: usize,
    /// Threads that read the rings [default: one for each 16 CPUs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    workers: Option<u16>,
    /// Memory for queues and caches, beside the rings
    #[arg(long, value_name = "MIB", default_value = "64", value_parser = clap::value_parser!(u32).range(8..))]
    memory: u32,
    /// Exit with 4 where more samples than this were lost
    #[arg(long, value_name = "PERCENT", default_value = "1", allow_negative_numbers = true, value_parser = percent)]
    max_loss: f64,
    /// A thread class of less than this share of its cell's samples gets no subcell
    #[arg(long, value_name = "PERCENT", default_value = "5", allow_negative_numbers = true, value_parser = percent)]
    min_share: f64,
    /// A cell for the cgroups whose path matches (repeatable, in order; the path begins with /sys/fs/cgroup)
    #[arg(long = "cell", value_name = "NAME=REGEX")]
    cells: Vec<String>,
    /// The cgroup of all workload [default: what contains workload.slice]
    #[arg(long, value_name = "REGEX")]
    workload_cgroup_regex: Option<String>,
    /// The cgroups of allotments [default: workload-tw-[^/]+\.allotment\.slice]
    #[arg(long, value_name = "REGEX")]
    workload_allotment_cgroup_regex: Option<String>,
    /// CPUs of the host that will run the scheduler [default: this host's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    target_cpus: Option<u32>,
    /// The scheduler that the configuration is for
    #[arg(long, value_name = "SCHEDULER", default_value = "mitosis", value_parser = ["mitosis", "layered"])]
    target: String,
    #[command(flatten)]
    hints: HintArgs,
    /// Write what the decision rests on to FILE, as JSON (docs/report.md has the schema)
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// A summary on stderr; -vv for all of it
    #[arg(short = 'v', long = "verbose", action = clap::ArgAction::Count)]
    verbose: u8,
    /// A command to profile while it runs; its stdout becomes stderr where the configuration goes to stdout
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("must be a percentage from 0 to 100".to_owned()),
    }
}

fn power_of_two(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(pages) if pages.is_power_of_two() && pages <= 1 << 20 => Ok(pages),
        _ => Err("must be a power of two from 1 to 1048576".to_owned()),
    }
}

/// Runs one capture and prints its configuration.
pub(super) fn run(args: &RunArgs, stdout_is_open: bool) -> Result<(), Failure> {
    let roots = Roots { cgroup: args.cgroup_root.clone(), ..Roots::default() };
    let memory = memory(args, &roots)?;
    if let Some(root) = args.cgroup_root.as_ref().filter(|root| !root.is_dir()) {
        return Err(Failure::Usage(anyhow!("--cgroup-root {}: not a directory", root.display())));
    }
    let pid_namespace = topology::pid_namespace(&roots);
    if let (PidNamespace::ProcfsElsewhere { .. }, Some((why, help))) =
        (&pid_namespace, pid_namespace.trouble(&roots.proc))
    {
        return Err(Failure::Unsupported(anyhow!("{why}; {help}")));
    }
    let groups = Groups::new(&GroupOptions {
        cells: args.cells.clone(),
        allotment: args.workload_allotment_cgroup_regex.clone(),
        workload: args.workload_cgroup_regex.clone(),
    })
    .map_err(|error| Failure::Usage(error.into()))?;
    let cpus = cpus(args, &roots)?;
    let to_stdout = args.output.as_deref().is_none_or(|path| path == std::path::Path::new("-"));
    if to_stdout && !stdout_is_open {
        return Err(Failure::Usage(anyhow!("stdout is closed, so there is nowhere to print to; use -o FILE")));
    }
    // Before anything is opened, so that the command does not inherit our limits.
    let held =
        if args.command.is_empty() { None } else { Some(Held::new(&args.command, to_stdout).map_err(Failure::Usage)?) };
    let target = target(args, &roots, held.as_ref())?;
    let output = Output::open(args.output.as_deref()).map_err(Failure::Usage)?;
    let report_to = match &args.report {
        Some(path) => Some(Output::open(Some(path)).map_err(Failure::Usage)?),
        None => None,
    };
    let signals = signals().map_err(Failure::Unsupported)?;
    let mut options = session::Options {
        sampler: sampler::Options {
            source: Source::Timer,
            freq: args.from.timer_freq(),
            target,
            cpus,
            mmap_pages: args.mmap_pages,
            workers: args.workers.map(usize::from),
            features: Features::all(),
            hardware: args.from.hardware(),
            proc: roots.proc.clone(),
            sys: roots.sys.clone(),
            child_pid_namespace: matches!(pid_namespace, PidNamespace::Child),
        },
        hints: args.hints.options(&roots.proc),
        roots,
        memory,
    };
    let rate_before = max_sample_rate(&options.roots);
    let session = start(args, &mut options)?;
    let mut command = held.map(Held::release).transpose().map_err(Failure::Usage)?;

    let limit = args.time.or_else(|| command.is_none().then(|| Duration::from_secs_f64(DEFAULT_SECONDS)));
    // What the command prints would mix with it.
    let bar = if command.is_some() { ProgressBar::hidden() } else { progress_bar(limit) };
    // Three eighths for the sketch; the session has its share from the same total.
    let mut decider = Decider::new(groups, options.sampler.source, options.memory / 8 * 3);
    if args.hints.use_hints {
        decider = decider.with_hints();
    }
    let outcome = session.run(&mut decider, |progress| {
        bar.set_position(progress.elapsed.as_secs());
        bar.set_message(format!("{} samples", progress.samples));
        signals.load(Ordering::Relaxed) > 0
            || limit.is_some_and(|limit| progress.elapsed >= limit)
            || command.as_mut().is_some_and(super::command::Running::has_ended)
            || all_gone(&args.pids, &options.roots)
    });
    bar.finish_and_clear();
    if let Some(command) = &mut command {
        command.terminate();
    }
    report(args, options.sampler.source, &decider, &outcome, rate_before, max_sample_rate(&options.roots));
    // The result first: a command may ignore SIGTERM. Another signal to us kills it then.
    let printed = finish(args, &decider, &outcome, output, report_to);
    let seen = signals.load(Ordering::Relaxed);
    let status = command
        .as_mut()
        .map(|command| command.finish(|| signals.load(Ordering::Relaxed) > seen))
        .transpose()
        .map_err(Failure::NoResult);
    printed?;
    let status = status?;
    match status {
        Some(status) if status != 0 => Err(Failure::Command(status)),
        _ => check_loss(args, &outcome),
    }
}

/// Starts so that every thread is watched: those made while the events were opened, by threads without an event yet, are
/// found by listing them again.
fn start(args: &RunArgs, options: &mut session::Options) -> Result<Session, Failure> {
    const TRIES: usize = 5;
    let mut session = args.from.start(options)?;
    for _ in 0..TRIES {
        let Target::Tasks { tids, enable_on_exec: false } = &mut options.sampler.target else { return Ok(session) };
        // A process that has ended meanwhile was watched to its end.
        let Ok(now) = threads_of(&args.pids, &options.roots) else { return Ok(session) };
        if now.iter().all(|tid| tids.contains(tid)) {
            return Ok(session);
        }
        *tids = now;
        drop(session);
        session = args.from.start(options)?;
    }
    say!("scxprof: -p: threads are made so fast that some may not be watched");
    Ok(session)
}

/// `--memory` in bytes: what the machine does not have cannot be taken.
fn memory(args: &RunArgs, roots: &Roots) -> Result<usize, Failure> {
    let meminfo = std::fs::read_to_string(roots.proc.join("meminfo")).unwrap_or_default();
    let total =
        meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok());
    match total {
        Some(total) if u64::from(args.memory) * 1024 > total => {
            Err(Failure::Usage(anyhow!("--memory {}: this machine has {} MiB", args.memory, total / 1024)))
        }
        _ => Ok((args.memory as usize).saturating_mul(1024 * 1024)),
    }
}

/// CPUs to sample: those that were asked for, all of which must be online.
fn cpus(args: &RunArgs, roots: &Roots) -> Result<Vec<u32>, Failure> {
    let online = topology::online_cpus(roots).map_err(|error| Failure::Unsupported(error.into()))?;
    let Some(list) = &args.cpus else { return Ok(online) };
    let wanted = topology::parse_cpu_list(list.as_bytes())
        .filter(|wanted| !wanted.is_empty())
        .ok_or_else(|| Failure::Usage(anyhow!("-C {list}: not a list of CPUs such as 0-3,8")))?;
    match wanted.iter().find(|cpu| !online.contains(cpu)) {
        Some(cpu) => Err(Failure::Usage(anyhow!(
            "-C {list}: CPU {cpu} is not online (online: {})",
            topology::format_cpu_list(&online)
        ))),
        None => Ok(wanted),
    }
}

fn target(args: &RunArgs, roots: &Roots, held: Option<&Held>) -> Result<Target, Failure> {
    if let Some(held) = held {
        return Ok(Target::Tasks { tids: vec![held.pid], enable_on_exec: true });
    }
    if let Some(path) = &args.cgroup {
        let mut cgroups = Cgroups::new(roots).map_err(|error| Failure::Unsupported(error.into()))?;
        let directory = cgroups.find(path).map_err(|error| Failure::Usage(anyhow!("--cgroup: {error}")))?.dir;
        let directory = std::fs::File::open(&directory)
            .with_context(|| format!("--cgroup: cannot open {}", directory.display()))
            .map_err(Failure::Usage)?;
        return Ok(Target::Cgroup(directory.into()));
    }
    if args.pids.is_empty() {
        return Ok(Target::System);
    }
    Ok(Target::Tasks { tids: threads_of(&args.pids, roots)?, enable_on_exec: false })
}

/// The threads of processes, which must all exist.
fn threads_of(pids: &[u32], roots: &Roots) -> Result<Vec<u32>, Failure> {
    let mut tids = Vec::new();
    for &pid in pids {
        let tasks = roots.proc.join(pid.to_string()).join("task");
        let listed = std::fs::read_dir(&tasks)
            .map_err(|error| Failure::Usage(anyhow!("-p {pid}: no such process ({}: {error})", tasks.display())))?;
        tids.extend(listed.flatten().filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok()));
    }
    Ok(tids)
}

/// True where processes were asked for and none is left.
fn all_gone(pids: &[u32], roots: &Roots) -> bool {
    // What follows the name in parentheses is the state (proc_pid_stat(5)); a zombie runs no more.
    let runs = |pid: &u32| {
        let stat = std::fs::read(roots.proc.join(pid.to_string()).join("stat")).ok()?;
        let name_end = stat.iter().rposition(|&byte| byte == b')')?;
        stat.get(name_end + 2).filter(|state| !b"ZX".contains(state)).copied()
    };
    !pids.is_empty() && pids.iter().all(|pid| runs(pid).is_none())
}

/// Ctrl-C and SIGTERM as a number that grows.
fn signals() -> anyhow::Result<Arc<AtomicUsize>> {
    let seen = Arc::new(AtomicUsize::new(0));
    for signal in [SIGINT, SIGTERM] {
        let count = Arc::clone(&seen);
        // SAFETY: the handler only adds to an atomic number, which is async-signal-safe.
        unsafe {
            signal_hook::low_level::register(signal, move || {
                count.fetch_add(1, Ordering::Relaxed);
            })
        }
        .with_context(|| format!("cannot handle signal {signal}"))?;
    }
    Ok(seen)
}

fn progress_bar(limit: Option<Duration>) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = match limit {
        Some(limit) => ProgressBar::new(limit.as_secs().max(1)),
        None => ProgressBar::no_length(),
    };
    let template = if limit.is_some() { "{bar:30} {pos} of {len} s, {msg}" } else { "{spinner} {pos} s, {msg}" };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// The kernel lowers this for the whole host where it finds sampling too expensive.
fn max_sample_rate(roots: &Roots) -> Option<i64> {
    sampler::open::sysctl(&roots.proc, "perf_event_max_sample_rate")
}

/// What a person is told of the capture: facts and losses always, the summary with -v.
fn report(
    args: &RunArgs,
    source: Source,
    decider: &Decider,
    outcome: &Outcome,
    rate_before: Option<i64>,
    rate_after: Option<i64>,
) {
    for note in &outcome.notes {
        say!("scxprof: {note}");
    }
    if let (Some(before), Some(after)) = (rate_before, rate_after) {
        if after < before {
            say!(
                "scxprof: the kernel lowered kernel.perf_event_max_sample_rate from {before} to {after}; \
                 `sysctl kernel.perf_event_max_sample_rate={before}` restores it"
            );
        }
    }
    let mut loss = outcome.loss;
    loss.no_cgroup_path += decider.no_cgroup_path();
    loss.evicted += decider.unlisted();
    if args.verbose > 0 {
        say!("Source: {source} ({})", source.sight());
        let Outcome { duration, events, samples, accesses, .. } = outcome;
        say!("Sampled {:.1} s: {events} events, {samples} samples, {accesses} accesses", duration.as_secs_f64());
        if let Some(recovery) = &outcome.recovery {
            say!("{}", yield_text(recovery));
        }
        say!("{}", config::summary(decider.groups(), decider.tally(), args.verbose > 1).trim_end());
    }
    if let Some(hints) = &outcome.hints {
        hints::report(hints, args.verbose);
    }
    let left_out = if args.verbose > 0 || outcome.accesses == 0 { loss.left_out() } else { Vec::new() };
    for line in left_out.into_iter().chain(loss.lines()) {
        say!("scxprof: {line}");
    }
    if loss.lost() > 0 || args.verbose > 0 {
        say!("scxprof: {:.3} % of the samples were lost ({} of {})", loss.percent(), loss.lost(), loss.happened());
    }
}

/// The timer source's yield, for people.
fn yield_text(recovery: &Yield) -> String {
    let list = |counts: &std::collections::BTreeMap<&str, u64>| {
        counts.iter().map(|(what, count)| format!("{what} {count}")).collect::<Vec<_>>().join(", ")
    };
    let mut lines = vec![format!(
        "Recovered: {} of {} user samples ({:.1}%){}",
        recovery.recovered,
        recovery.user_samples,
        recovery.share() * 100.0,
        if recovery.by_method.is_empty() {
            String::new()
        } else {
            format!("; addresses by method: {}", list(&recovery.by_method))
        }
    )];
    if !recovery.unrecovered.is_empty() {
        lines.push(format!("Not recoverable: {}", list(&recovery.unrecovered)));
    }
    if recovery.code_unsettled > 0 {
        lines.push(format!("Code in memory that may have changed since it ran: {} times", recovery.code_unsettled));
    }
    if recovery.absent_pages > 0 {
        lines.push(format!("Addresses without a page: {}", recovery.absent_pages));
    }
    if !recovery.frames_visible {
        lines.push(session::FRAMES_HIDDEN.to_owned());
    }
    lines.join("\n")
}

/// Decides, and writes the configuration and the report.
fn finish(
    args: &RunArgs,
    decider: &Decider,
    outcome: &Outcome,
    output: Output,
    report_to: Option<Output>,
) -> Result<(), Failure> {
    let options = config::Options {
        min_share: args.min_share / 100.0,
        target_cpus: match args.target_cpus {
            Some(cpus) => cpus as usize,
            None => topology::online_cpus(&Roots::default()).map_or(1, |cpus| cpus.len()),
        },
    };
    let decided = decider.decide(&options).map_err(|_| Failure::NoResult(no_samples(outcome)))?;
    let decision = &decided.decision;
    let bug = "the configuration would be refused by the scheduler, which is a bug in scxprof";
    let (json, notes) = if args.target == "layered" {
        let layers = if args.hints.use_hints {
            config::layers_by_hint(decision, &decided.members)
        } else {
            config::layers(decision)
        };
        let json = config::layered::to_json(&layers.layers).context(bug).map_err(Failure::NoResult)?;
        (json, layers.notes)
    } else {
        (config::mitosis::to_json(&decision.cells).context(bug).map_err(Failure::NoResult)?, Vec::new())
    };
    if args.verbose > 0 || report_to.is_some() {
        let mut report = decider.report(&decided, &options).context(bug).map_err(Failure::NoResult)?;
        report.hints.clone_from(&outcome.hints);
        if args.verbose > 0 {
            say!("{}", config::table(&report).trim_end());
        }
        if args.verbose > 1 {
            say!("{}", config::matrix(&report).trim_end());
        }
        if let Some(report_to) = report_to {
            let json = report.to_json().context("cannot write the report").map_err(Failure::NoResult)?;
            report_to.write(json.as_bytes()).map_err(Failure::NoResult)?;
        }
    }
    for note in decision.notes.iter().chain(&notes) {
        say!("scxprof: {note}");
    }
    if args.hints.use_hints {
        say!("scxprof: {}", hints::used(&args.target));
    }
    output.write(json.as_bytes()).map_err(Failure::NoResult)
}

fn no_samples(outcome: &Outcome) -> anyhow::Error {
    let seconds = outcome.duration.as_secs_f64();
    if outcome.events == 0 {
        anyhow!("no usable samples in {seconds:.1} s: nothing that was watched ran long enough to be seen; sample longer (-t) or a busier host")
    } else if outcome.loss.happened() == 0 && outcome.loss.left_out().is_empty() {
        anyhow!(
            "no usable samples in {seconds:.1} s: {} events happened, and none of them gave a sample",
            outcome.events
        )
    } else {
        anyhow!("no usable samples in {seconds:.1} s, though {} events happened: see the counts above", outcome.events)
    }
}

fn check_loss(args: &RunArgs, outcome: &Outcome) -> Result<(), Failure> {
    let percent = outcome.loss.percent();
    if percent > args.max_loss {
        return Err(Failure::Loss(anyhow!(
            "{percent:.1} % of the samples were lost, more than --max-loss {}: the configuration may be wrong",
            args.max_loss
        )));
    }
    Ok(())
}
