//! The common part of `run` and `record`: which tasks to sample and how, and the capture itself.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;

use super::args::{seconds, text, MaxLossArgs, MemoryArgs, TUNING, WATCH};
use super::command::Held;
use super::failure::Failure;
use super::hints::HintArgs;
use super::input;
use super::progress::ProgressLine;
use super::signals::Signals;
use super::source::{self, SourceArgs};
use crate::host::limits::{self, sysctl};
use crate::host::{hierarchy, proc, topology, Roots};
use crate::resolve::cgroups::display_path;
use crate::resolve::Cgroups;
use crate::sampler::Target;
use crate::session::{Builder, Error, ErrorKind, HostOptions, Outcome, Progress, Session, TablesHandle, Whose};
use scxprof_base::cpus::{format_cpu_list, parse_cpu_list};

pub(super) const DEFAULT_SECONDS: f64 = 30.0;
/// Cgroups that are suggested if there is none of the path that was given.
const SIMILAR_CGROUPS: usize = 3;

/// What to sample and how.
#[derive(Debug, Args)]
pub(super) struct CaptureArgs {
    #[command(flatten)]
    pub(super) watch: WhoseArgs,
    #[command(flatten)]
    from: SourceArgs,
    #[command(flatten)]
    pub(super) hints: HintArgs,
    #[command(flatten)]
    pub(super) tuning: TuningArgs,
}

/// What to sample.
#[derive(Debug, Args)]
pub(super) struct WhoseArgs {
    /// The whole host (the default); with a COMMAND: while the command runs
    #[arg(short = 'a', long = "all-cpus", help_heading = WATCH, conflicts_with_all = ["pids", "cgroup"])]
    all: bool,
    /// These processes and their descendants
    #[arg(
        short = 'p',
        long = "pid",
        value_name = "PID",
        value_delimiter = ',',
        conflicts_with = "cgroup",
        help_heading = WATCH,
        value_parser = pid
    )]
    pids: Vec<u32>,
    /// This cgroup and those below it
    #[arg(long, value_name = "PATH", help_heading = WATCH)]
    cgroup: Option<PathBuf>,
    /// Only on these CPUs, such as 0-3,8 [default: all, also those that come online later]
    #[arg(short = 'C', long = "cpu", value_name = "CPUS", help_heading = WATCH)]
    cpus: Option<String>,
    /// How long to sample: seconds, or a time such as 500ms or 5m [default: 30; with a COMMAND until it ends]
    #[arg(
        short = 't',
        long = "time",
        aliases = ["duration", "timeout"],
        value_name = "TIME",
        allow_negative_numbers = true,
        value_parser = seconds,
        help_heading = WATCH
    )]
    time: Option<Duration>,
    /// Where the host's cgroup hierarchy is mounted, for a container [default: found in /proc/self/mountinfo]
    #[arg(long, value_name = "DIR", help_heading = WATCH)]
    cgroup_root: Option<PathBuf>,
    /// A command to sample while it runs; its stdout becomes stderr if the result goes to stdout. With -p, --cgroup, -a or -C, `sleep 5`
    /// is -t 5, as in perf
    #[arg(trailing_var_arg = true, value_name = "COMMAND", help_heading = WATCH)]
    command: Vec<OsString>,
}

/// How it samples: rings, threads, memory, and how much may be lost.
#[derive(Debug, Args)]
#[command(mut_args(text("memory", "Memory for queues and caches, beside the rings")))]
pub(super) struct TuningArgs {
    /// Pages in each CPU's ring, a power of two
    #[arg(long, help_heading = TUNING, value_name = "N", default_value = "256", value_parser = power_of_two)]
    mmap_pages: usize,
    /// Threads that read the rings [default: one for each 16 CPUs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), help_heading = TUNING)]
    workers: Option<u16>,
    /// Real-time priority (SCHED_FIFO) of the threads that read samples, 1 to 99, with nice -20 for the rest of scxprof; 0 leaves
    /// all priorities alone
    #[arg(
        short = 'r',
        long,
        value_name = "PRIO",
        default_value = "1",
        value_parser = clap::value_parser!(u8).range(0..=99),
        help_heading = TUNING
    )]
    realtime: u8,
    #[command(flatten)]
    pub(super) memory: MemoryArgs,
    #[command(flatten)]
    pub(super) max_loss: MaxLossArgs,
}

/// Each of these lets us sample processes of other users, as bits of `CapEff` (linux/capability.h): CAP_SYS_PTRACE, CAP_SYS_ADMIN
/// and CAP_PERFMON.
const INSPECTS: u64 = 1 << 19 | 1 << 21 | 1 << 38;

/// How often `-vv` prints the sizes of the tables.
const TABLES_EVERY: Duration = Duration::from_secs(10);

/// The id of a process or thread on the command line.
pub(super) fn pid(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|&pid| pid > 0).ok_or_else(|| "not a process id".to_owned())
}

fn power_of_two(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(pages) if pages.is_power_of_two() && pages <= 1 << 20 => Ok(pages),
        _ => Err("must be a power of two from 1 to 1048576".to_owned()),
    }
}

impl WhoseArgs {
    /// Where the host is read.
    pub(super) fn roots(&self) -> Roots {
        Roots { cgroup: self.cgroup_root.clone(), ..Roots::default() }
    }

    /// True if a command is to be sampled.
    pub(super) fn has_command(&self) -> bool {
        !self.command.is_empty()
    }

    /// True if it is said how long to sample.
    pub(super) fn has_time(&self) -> bool {
        self.time.is_some()
    }

    /// How long to sample, if it is said.
    pub(super) fn limit_given(&self) -> Option<Duration> {
        self.time
    }

    /// The held command, if there is one; it neither reads nor writes the terminal.
    pub(super) fn hold_quietly(&self) -> Result<Option<Held>, Failure> {
        let held = (!self.command.is_empty()).then(|| Held::quiet(&self.command));
        held.transpose().map_err(Failure::Usage)
    }

    /// The latest end.
    pub(super) fn limit(&self) -> Option<Duration> {
        self.time.or_else(|| self.command.is_empty().then(|| Duration::from_secs_f64(DEFAULT_SECONDS)))
    }
}

impl TuningArgs {
    /// `host` with these options.
    pub(super) fn host(&self, host: HostOptions) -> HostOptions {
        HostOptions {
            mmap_pages: self.mmap_pages,
            workers: self.workers.map(Into::into),
            realtime: self.realtime,
            raise_open_files: true,
            ..host
        }
    }

    /// `--memory` in bytes; it cannot exceed the machine's memory.
    pub(super) fn memory(&self, roots: &Roots) -> Result<usize, Failure> {
        match proc::memory(roots, "MemTotal") {
            Some(total) if u64::from(self.memory.mebibytes()) * 1024 > total => {
                let memory = self.memory.mebibytes();
                Err(Failure::Usage(anyhow!("--memory {memory}: this machine has {} MiB", total / 1024)))
            }
            _ => Ok(self.memory.bytes()),
        }
    }
}

/// A session of this host, and what to sample in it except for the command.
pub(super) fn builder<'a>(args: &CaptureArgs) -> Result<(Builder<'a>, HostOptions), Failure> {
    watched(&args.watch, &args.tuning, HostOptions { hints: args.hints.options(), ..args.from.host() })
}

/// The same with `host`, which says how to sample.
pub(super) fn watched<'a>(
    args: &WhoseArgs,
    tuning: &TuningArgs,
    host: HostOptions,
) -> Result<(Builder<'a>, HostOptions), Failure> {
    let roots = args.roots();
    let mut host = tuning.host(host);
    let mut builder = Session::builder().memory(tuning.memory(&roots)?);
    if let Some(root) = args.cgroup_root.as_ref().filter(|root| !root.is_dir()) {
        return Err(Failure::Usage(anyhow!("--cgroup-root {}: not a directory", root.display())));
    }
    if let Some(root) = args.cgroup_root.as_ref().filter(|root| !hierarchy::is_mounted_at(root)) {
        return Err(Failure::Usage(anyhow!(
            "--cgroup-root {}: not a cgroup hierarchy; mount the host's into the container, such as with docker run -v \
             /sys/fs/cgroup:/host/cgroup:ro, and name that directory",
            root.display()
        )));
    }
    if let Some(limit) = args.limit() {
        builder = builder.time(limit);
    }
    if let Some(list) = &args.cpus {
        host.cpus = cpus(list, &roots)?;
    }
    if let Some(path) = &args.cgroup {
        host.whose = Whose::Cgroup(path.clone());
    }
    if !args.pids.is_empty() {
        host.whose = Whose::Pids(args.pids.clone());
    }
    Ok((builder.roots(roots), host))
}

/// The held command, if there is one.
pub(super) fn hold(args: &WhoseArgs, stdout_is_taken: bool) -> Result<Option<Held>, Failure> {
    if args.command.is_empty() {
        return Ok(None);
    }
    Held::new(&args.command, stdout_is_taken).map(Some).map_err(Failure::Usage)
}

/// Starts with the held command, if any, and reports which sources do not work here.
pub(super) fn start<'a>(
    args: &WhoseArgs,
    verbose: u8,
    (builder, host): (Builder<'a>, HostOptions),
    held: Option<&Held>,
) -> Result<Session<'a>, Failure> {
    let session = begin(args, verbose, (builder, host), held)?;
    if verbose > 0 {
        source::say_skipped(session.skipped());
        if let Some(error) = session.no_kernel() {
            say!("note: only user code is sampled: {error}");
        }
    }
    source::say_chosen(session.source(), session.samples_per_second(), session.skipped(), verbose > 0);
    Ok(session)
}

/// The same without the messages.
pub(super) fn begin<'a>(
    args: &WhoseArgs,
    verbose: u8,
    (builder, host): (Builder<'a>, HostOptions),
    held: Option<&Held>,
) -> Result<Session<'a>, Failure> {
    builder.host(with_command(args, host, held)).start().map_err(|error| not_started(args, verbose, error))
}

/// The options with the held command as what is sampled, if there is one and nothing else is asked for.
pub(super) fn with_command(args: &WhoseArgs, mut host: HostOptions, held: Option<&Held>) -> HostOptions {
    limits::bound_realtime();
    if let Some(held) = held.filter(|_| !args.all) {
        host.whose = Whose::Target(Target::Tasks { tids: vec![held.pid], enable_on_exec: true });
    }
    host
}

/// Why a session did not start.
pub(super) fn not_started(args: &WhoseArgs, verbose: u8, error: Error) -> Failure {
    let watched = if args.cgroup.is_some() {
        source::Watched::Cgroup
    } else if args.pids.is_empty() && (args.command.is_empty() || args.all) {
        source::Watched::Host
    } else {
        source::Watched::Some
    };
    match error {
        Error::Start(error) => {
            let whose = if source::is_forbidden(&error) { strangers_process(&args.pids, &args.roots()) } else { None };
            match whose {
                Some(sentence) => source::forbidden(&error, verbose, sentence),
                None => source::failure_of(error, watched, verbose),
            }
        }
        Error::NoProcess(error) => Failure::Usage(anyhow!("-p {error}")),
        Error::NoCgroup(error) => Failure::Usage(anyhow!("--cgroup: {error}{}", similar_cgroups(args))),
        Error::CellSpecs(error) => input::wrong_cells(&error),
        error if error.kind() == ErrorKind::Request => Failure::Usage(error.into()),
        error => Failure::Unsupported(error.into()),
    }
}

/// The sentence for a process of another user, if one of these is and we have no right to sample it.
fn strangers_process(pids: &[u32], roots: &Roots) -> Option<String> {
    if proc::capabilities(roots)? & INSPECTS != 0 {
        return None;
    }
    // What the kernel compares (PTRACE_MODE_READ_REALCREDS in perf_event_open).
    let own = rustix::process::getuid().as_raw();
    let (pid, owner) = pids.iter().find_map(|pid| {
        let uids = proc::status(&roots.proc.join(pid.to_string()), "Uid")?;
        // The real, the effective and the saved one: all must be ours, and the effective one is what ps shows.
        let uids: Vec<u32> =
            String::from_utf8_lossy(&uids).split_whitespace().filter_map(|uid| uid.parse().ok()).collect();
        [1, 0, 2].iter().filter_map(|&at| uids.get(at)).find(|&&uid| uid != own).map(|&uid| (pid, uid))
    })?;
    let whose = user_name(owner).map_or_else(|| format!("uid {owner}"), |name| format!("{name} (uid {owner})"));
    let run_as = if owner == 0 { "as root, such as with sudo" } else { "as that user, or as root" };
    Some(format!("process {pid} belongs to {whose}: run scxprof {run_as}"))
}

/// The name of a user of this host, if it is in /etc/passwd (passwd(5)).
fn user_name(uid: u32) -> Option<String> {
    let users = std::fs::read("/etc/passwd").ok()?;
    let users = String::from_utf8_lossy(&users);
    let of = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    };
    users.lines().find_map(of)
}

/// Cgroups whose last component is that of `--cgroup`, as the end of a sentence that says there is no such path.
fn similar_cgroups(args: &WhoseArgs) -> String {
    let Some(name) = args.cgroup.as_deref().and_then(Path::file_name) else { return String::new() };
    let roots = args.roots();
    let found =
        Cgroups::new(&roots).map(|mut cgroups| cgroups.named(name.as_bytes(), SIMILAR_CGROUPS)).unwrap_or_default();
    let found: Vec<String> =
        found.iter().map(|path| format!("--cgroup {}", String::from_utf8_lossy(&display_path(path)))).collect();
    if found.is_empty() {
        return String::new();
    }
    format!("; did you mean {}?", found.join(" or "))
}

/// Lets the session `run` until the command has ended or a signal came, unless something else ends it before. Prints the sizes of
/// `tables` now and then.
pub(super) fn watch<T>(
    limit: Option<Duration>,
    mut command: Option<&mut super::command::Running>,
    signals: &Signals,
    tables: Option<&TablesHandle>,
    run: impl FnOnce(&mut dyn FnMut(Progress) -> bool) -> T,
) -> T {
    // The command's output would mix with it.
    let mut line = if command.is_some() { ProgressLine::hidden() } else { ProgressLine::new(limit) };
    let mut due = TABLES_EVERY;
    let given = run(&mut |progress| {
        if let Some(tables) = tables.filter(|_| progress.elapsed >= due) {
            line.clear();
            say!("Tables after {} s: {}", due.as_secs(), tables.now());
            due += TABLES_EVERY;
        }
        line.show(progress.elapsed, &format!("{} samples", progress.samples));
        signals.seen() || command.as_mut().is_some_and(|command| command.has_ended())
    });
    line.clear();
    if let Some(command) = command {
        command.terminate();
    }
    given
}

/// Waits for the command, which the next signal kills; returns its status.
pub(super) fn end(mut command: Option<super::command::Running>, signals: &Signals) -> Result<Option<u8>, Failure> {
    if command.is_some() {
        signals.begin();
    }
    command.as_mut().map(|command| command.finish(|| signals.seen())).transpose().map_err(Failure::NoResult)
}

/// The CPUs of a list; all of them must be online.
pub(super) fn cpus(list: &str, roots: &Roots) -> Result<Vec<u32>, Failure> {
    let online = topology::online_cpus(roots).map_err(|error| Failure::Unsupported(error.into()))?;
    let wanted = parse_cpu_list(list.as_bytes())
        .filter(|wanted| !wanted.is_empty())
        .ok_or_else(|| Failure::Usage(anyhow!("-C {list}: not a list of CPUs such as 0-3,8")))?;
    match wanted.iter().find(|cpu| !online.contains(cpu)) {
        Some(cpu) => {
            Err(Failure::Usage(anyhow!("-C {list}: CPU {cpu} is not online (online: {})", format_cpu_list(&online))))
        }
        None => Ok(wanted),
    }
}

/// The kernel lowers this for the whole host if it finds sampling too expensive.
pub(super) fn max_sample_rate() -> Option<i64> {
    sysctl(&Roots::default().proc, "perf_event_max_sample_rate")
}

/// Prints the notes of any capture.
pub(super) fn say_notes(outcome: &Outcome, rate_before: Option<i64>) {
    for note in &outcome.notes {
        say!("note: {note}");
    }
    if let (Some(before), Some(after)) = (rate_before, max_sample_rate()) {
        if after < before {
            say!(
                "note: the kernel lowered kernel.perf_event_max_sample_rate from {before} to {after}; \
                 `sysctl kernel.perf_event_max_sample_rate={before}` restores it"
            );
        }
    }
}
