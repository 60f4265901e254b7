//! `scxprof replay`: runs the recorded workload again, by mock threads.

mod compare;
mod print;

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::Args;
use serde::Serialize;

use self::compare::{Compared, Configuration, Scheduler};
use super::args::{text, ResultArgs, INPUT, RESULT};
use super::capture;
use super::failure::Failure;
use super::filter::{Filter, FilterArgs};
use super::format;
use super::input::{self, Damage};
use super::output::Stdout;
use super::progress::ProgressLine;
use super::signals::Signals;
use crate::host::facts::Tasks;
use crate::host::hierarchy::Mount;
use crate::host::room::{self, Room};
use crate::host::{topology, Roots};
use crate::sampler::counter::Counter;
use scxprof_replay::{
    compare as beside, knows_all, select, totals, Compared as Beside, Count, Director, Groups, Guard, Layout, LeftOut,
    Memory, Planner, Played, ReplayError, ReplayTotals, Script, Selection, Touches,
};

const EXAMPLES: &str = "\
Examples:
  sudo scxprof record --sched -t 10 -o today            record what is to be replayed
  sudo scxprof replay -f today.tar.gz                   the whole of it, without the kernel's threads and the recorder
  sudo scxprof replay -f today.tar.gz --cgroup web.slice --from 2 --to 5    a part of it
  scxprof replay -f perf.data --time-scale 0.1          of perf sched record, ten times as fast
  sudo scxprof replay -f today.tar.gz --compare none cells.json    without and with a configuration
  scxprof replay -f today.tar.gz --cpus 0-3 --loops 5 --json    five times on four CPUs";

const HOW: &str = "How to replay";

/// Bytes of memory for queues and caches while the recording is read.
const MEMORY: usize = 64 << 20;
/// Rounds of a comparison.
const COMPARED: u32 = 5;
/// Bytes of a mock process beside what its threads touch: page tables, mappings and the structures of the kernel. 8,000 of them
/// took 1.7 GB on Linux 6.18.
const PROCESS: u64 = 192 << 10;
/// Bytes of a mock thread: its stack in the kernel (16 KiB), its `task_struct`, and the pages of its own stack that it touches.
const THREAD: u64 = 48 << 10;
/// Threads whose lines are printed.
const DEFAULT_LIMIT: &str = "20";

/// Replay a recorded workload by mock threads: its run times, sleeps, wakeups, forks, names and cgroups
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_args(text("json", "Print JSON (docs/replay.md has the fields)")))]
pub(super) struct ReplayArgs {
    /// The recording, of `record --sched` or of `perf sched record`
    #[arg(short = 'f', short_alias = 'i', long = "file", alias = "input", value_name = "PROFILE", help_heading = INPUT)]
    file: PathBuf,
    /// Multiply all recorded times by F: 0.1 is ten times as fast
    #[arg(long, value_name = "F", default_value = "1", allow_negative_numbers = true, value_parser = scale, help_heading = HOW)]
    time_scale: f64,
    /// Touch memory as the recorded threads did: communities share buffers [default: if the recording has samples of memory]
    #[arg(long, conflicts_with = "no_memory", help_heading = HOW)]
    memory: bool,
    /// Work without memory
    #[arg(long, help_heading = HOW)]
    no_memory: bool,
    /// The most memory that the mock threads touch; above it, all of their buffers are smaller
    #[arg(long, value_name = "MIB", default_value = "1024", value_parser = clap::value_parser!(u32).range(1..), help_heading = HOW)]
    memory_limit: u32,
    /// Only on these CPUs, such as 0-3,8 [default: all that scxprof may use]
    #[arg(long, value_name = "LIST", help_heading = HOW)]
    cpus: Option<String>,
    /// Only on as many CPUs as give each of them N threads of the replay
    #[arg(long, value_name = "N", conflicts_with = "cpus", value_parser = clap::value_parser!(u32).range(1..), help_heading = HOW)]
    threads_per_cpu: Option<u32>,
    /// The cgroup below which the recorded cgroups are made; / for the same paths [default: /scxprof-replay-PID if possible]
    #[arg(long, value_name = "PATH", help_heading = HOW)]
    cgroup_root: Option<String>,
    /// Replay under two configurations in turn, and print how they differ; `none` is no configuration. scx_mitosis loads them if it
    /// is installed; otherwise each subcell gets its own CPUs by affinity
    #[arg(long, value_names = ["A", "B"], num_args = 2, help_heading = HOW)]
    compare: Vec<PathBuf>,
    /// Replay N times; with --compare, each configuration [default: 1; with --compare 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000), help_heading = HOW)]
    loops: Option<u32>,
    /// Replay a recording even if it needs more CPU time than the CPUs have, or lasts longer than a day
    #[arg(long, help_heading = HOW)]
    overcommit: bool,
    /// The most threads to print; 0 for all
    #[arg(long, value_name = "N", default_value = DEFAULT_LIMIT, help_heading = RESULT)]
    limit: usize,
    #[command(flatten)]
    result: ResultArgs,
    #[command(flatten)]
    filter: FilterArgs,
}

fn scale(text: &str) -> Result<f64, String> {
    let scale: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (1e-6..=1e6).contains(&scale) {
        Ok(scale)
    } else {
        Err("must be from 0.000001 to 1000000".to_owned())
    }
}

/// The result as JSON.
#[derive(Debug, Serialize)]
struct Document<'a> {
    version: u32,
    time_scale: f64,
    /// From the first recorded event to the last, scaled.
    window_ns: u64,
    processes: usize,
    cgroups: usize,
    /// The memory that they touch; `null` without.
    memory: Option<MemoryLine>,
    cpus: &'a [u32],
    left_out: LeftOut,
    loops: &'a [ReplayTotals],
    #[serde(flatten)]
    compared: &'a Beside,
    notes: &'a [String],
}

#[derive(Debug, Serialize)]
struct MemoryLine {
    /// Of all buffers.
    bytes: u64,
    /// Communities that share a buffer.
    communities: usize,
}

/// Reads the recording, replays it and prints what came of it.
pub(super) fn run(args: &ReplayArgs, stdout: Stdout) -> Result<(), Failure> {
    let filter = Filter::new(&args.filter)?;
    let roots = Roots::default();
    let allowed = allowed_cpus(&roots)?;
    let mut cpus = match &args.cpus {
        Some(list) => capture::cpus(list, &roots)?,
        None => allowed,
    };
    let mut configurations =
        args.compare.iter().map(|path| Configuration::read(path)).collect::<Result<Vec<Configuration>, Failure>>()?;
    let output = args.result.file.open(stdout)?;
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let mut notes = Vec::new();
    let (script, memory, tasks) = read(args, filter, &signals, &mut notes)?;
    let tasks = Arc::new(tasks);
    for configuration in &mut configurations {
        configuration.know(&tasks, &script);
    }
    if let Some(each) = args.threads_per_cpu {
        let active = script.threads.iter().filter(|thread| thread.is_active).count();
        let wanted = active.div_ceil(each as usize);
        if wanted > cpus.len() {
            notes.push(format!("{active} threads, {each} per CPU, would need {wanted} CPUs: there are {}", cpus.len()));
        }
        cpus.truncate(wanted.max(1));
    }
    check_threads(&script, &roots)?;
    check_load(args, &script, &cpus)?;
    check_memory(&script, memory.as_ref(), room::here(&roots))?;
    for note in &notes {
        say!("note: {note}");
    }
    let replayed =
        Replayed { args, script: &script, memory: memory.as_ref(), cpus: &cpus, roots: &roots, signals: &signals };
    if let [a, b] = configurations.as_slice() {
        let text = replayed.compare([a, b], &notes, output.width())?;
        return output.write(text.as_bytes(), true).map_err(Failure::NoResult);
    }
    let mut loops = Vec::new();
    let mut compared = None;
    let count = args.loops.unwrap_or(1);
    for number in 1..=count {
        let played = replayed.play(Under::default(), loops.is_empty(), &format!("loop {number} of {count}"))?;
        if played.astray > 0 && loops.is_empty() {
            notes.push(format!("{} processes could not go into their cgroup", played.astray));
            say!("note: {} processes could not go into their cgroup", played.astray);
        }
        loops.push(totals(&played));
        if compared.is_none() {
            compared = Some(beside(&script, &played));
        }
        if signals.seen() {
            break;
        }
    }
    let Some(compared) = compared else { return Ok(()) };
    let document = || {
        format::json(&Document {
            version: 1,
            time_scale: script.scale,
            window_ns: script.window,
            processes: script.processes.len(),
            cgroups: script.cgroups.len(),
            memory: memory.as_ref().map(|memory| MemoryLine { bytes: memory.bytes, communities: memory.communities }),
            cpus: &cpus,
            left_out: script.left_out,
            loops: &loops,
            compared: &compared,
            notes: &notes,
        })
    };
    let text =
        args.result.format().render(document, || print::table(args, &script, &loops, &compared, output.width()))?;
    output.write(text.as_bytes(), true).map_err(Failure::NoResult)
}

/// What is replayed, and where.
struct Replayed<'a> {
    args: &'a ReplayArgs,
    script: &'a Script,
    memory: Option<&'a Memory>,
    cpus: &'a [u32],
    roots: &'a Roots,
    signals: &'a Signals,
}

/// Under what it is replayed.
#[derive(Default, Clone, Copy)]
struct Under<'a> {
    layout: Option<&'a Layout>,
    rates: &'a [u64],
    scheduled_by: Option<&'a Configuration>,
}

impl Replayed<'_> {
    /// `what` is what a person at a terminal reads meanwhile.
    fn play(&self, under: Under<'_>, is_first: bool, what: &str) -> Result<Played, Failure> {
        let mut groups = groups(self.args, self.script, self.roots)?;
        // Before there is something to clean up.
        let guard = Guard::start(groups.as_ref()).map_err(failure)?;
        if let Some(made) = &mut groups {
            match made.make(&|| self.signals.seen()) {
                Ok(()) if is_first && made.left_out() > 0 => {
                    say!(
                        "note: {} cgroups cannot have their names here: their processes are in the root of all",
                        made.left_out()
                    );
                }
                Ok(()) => {}
                Err(error) if self.args.cgroup_root.is_some() => return Err(failure(error)),
                Err(error) => {
                    if is_first {
                        say!("note: the mock threads stay in the cgroup of scxprof: {error}");
                    }
                    groups = None;
                }
            }
        }
        let misses = |pid| -> Option<Count> { Some(Box::new(Counter::CACHE_MISSES.start(pid).ok()?)) };
        let scheduler = Scheduler::default();
        let start = || under.scheduled_by.map_or(Ok(()), |configuration| scheduler.start(configuration));
        let director = Director {
            script: self.script,
            cpus: self.cpus,
            memory: self.memory,
            layout: under.layout,
            rates: under.rates,
            ready: Some(&start),
            groups: groups.as_ref(),
            guard: Some(&guard),
            counted: Some(&misses),
        };
        let line = RefCell::new(ProgressLine::new(Some(Duration::from_nanos(self.script.window))));
        let begin = Instant::now();
        let played = director.play(&|| {
            line.borrow_mut().show(begin.elapsed(), what);
            self.signals.seen()
        });
        line.borrow_mut().clear();
        played.map_err(failure)
    }

    /// Two configurations in turn, on the work that the threads did in a replay before, without one.
    fn compare(&self, [a, b]: [&Configuration; 2], notes: &[String], width: Option<usize>) -> Result<String, Failure> {
        let by = compare::By::here([a, b]);
        let places = topology::places(self.roots, self.cpus);
        let layout = |one: &Configuration| match by {
            compare::By::Affinity => one.layout(self.script, self.cpus, &places),
            compare::By::Scheduler => None,
        };
        let layouts = [layout(a), layout(b)];
        let rates = self.play(Under::default(), true, "counting the work")?.rates(self.script);
        let mut rounds = Vec::new();
        let count = self.args.loops.unwrap_or(COMPARED);
        for round in 0..count {
            let one = |which: usize| {
                let (configuration, layout) = if which == 0 { (a, &layouts[0]) } else { (b, &layouts[1]) };
                let scheduled_by = (by == compare::By::Scheduler).then_some(configuration);
                let what = format!("round {} of {count}: {}", round + 1, configuration.path.display());
                let under = Under { layout: layout.as_ref(), rates: &rates, scheduled_by };
                Ok::<ReplayTotals, Failure>(totals(&self.play(under, false, &what)?))
            };
            // Whichever is first may find another host.
            let (first, second) = (one(round as usize % 2)?, one(1 - round as usize % 2)?);
            if self.signals.seen() {
                break;
            }
            rounds.push(if round % 2 == 0 { (first, second) } else { (second, first) });
        }
        if rounds.is_empty() {
            return Err(Failure::NoResult(anyhow!("interrupted before both configurations were replayed once")));
        }
        let layouts = [layouts[0].as_ref(), layouts[1].as_ref()];
        let compared = Compared::new([a, b], by, self.script, &rounds, layouts, notes);
        self.args.result.format().render(|| format::json(&compared), || compared.table(width))
    }
}

fn failure(error: ReplayError) -> Failure {
    match error {
        ReplayError::Nothing | ReplayError::Died { .. } | ReplayError::Stuck { .. } => Failure::NoResult(error.into()),
        _ => Failure::Unsupported(error.into()),
    }
}

/// The CPUs that this process may use.
fn allowed_cpus(roots: &Roots) -> Result<Vec<u32>, Failure> {
    let online = topology::online_cpus(roots).map_err(|error| Failure::Unsupported(error.into()))?;
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Ok(online) };
    let allowed = online.iter().copied().filter(|&cpu| set.is_set(cpu as usize)).collect::<Vec<_>>();
    Ok(if allowed.is_empty() { online } else { allowed })
}

/// Reads the recording.
fn read(
    args: &ReplayArgs,
    mut filter: Filter,
    signals: &Signals,
    notes: &mut Vec<String>,
) -> Result<(Script, Option<Memory>, Tasks), Failure> {
    let path = &args.file;
    let mut profile = input::sched_profile(path, &|| signals.seen())?;
    notes.extend(profile.sched_lacks());
    let recorder = profile.own_pid();
    let (from, to) = filter.window();
    let (mut planner, mut touches) = (Planner::new(from, to), Touches::default());
    let builder = input::session(&mut profile, MEMORY);
    let (read, communities) = if args.no_memory {
        (input::start(builder)?.run_into(&mut planner, |_| signals.seen()), None)
    } else {
        let sampled = input::start(builder.sink(&mut planner).sink(&mut touches))?.run_until(|_| signals.seen());
        let outcome = sampled.outcome.clone();
        (outcome, sampled.decide().ok().map(|analysis| analysis.communities()))
    };
    if signals.seen() {
        return Err(input::interrupted());
    }
    if args.memory && communities.is_none() {
        return Err(Failure::NoResult(anyhow!(
            "{} has no samples of memory for --memory; `scxprof record --sched` records them where it can",
            path.display()
        )));
    }
    let plan = planner.finish();
    let damage = Damage::of_profile(&profile);
    let damaged = damage.because("the profile");
    if plan.threads.is_empty() {
        return Err(Failure::NoResult(anyhow!(
            "{} has no scheduling events{} to replay{damaged}; `scxprof record --sched` and `perf sched record` record them",
            path.display(),
            if (from, to) == (0, None) { "" } else { " in that time" },
        )));
    }
    if plan.beyond > 0 {
        return Err(Failure::Usage(anyhow!(
            "{} has more than {} threads or {} steps of threads: replay a part of it with --from and --to",
            path.display(),
            scxprof_replay::MAX_THREADS,
            scxprof_replay::MAX_STEPS
        )));
    }
    let lost = read.loss.sched.lost();
    if let Some(damage) = damage.list() {
        notes.push(format!("the profile is damaged, and what can be read of it is replayed: {damage}"));
    }
    if lost > 0 {
        notes.push(format!(
            "{lost} scheduling events were lost: runs, sleeps and wakeups that only these show are not replayed"
        ));
    }
    if plan.unknown_ends > 0 {
        notes.push(format!(
            "the recording does not say what ended {} sleeps: they end when the thread ran again",
            plan.unknown_ends
        ));
    }
    if read.user_processes.is_empty() {
        notes.push("the recording does not say which threads are the kernel's: all are replayed".to_owned());
    } else if !knows_all(&read.user_processes) {
        notes.push(
            "the recording has the mappings of some processes only, as recordings of a command do: kernel threads among the others are \
             recognized by their names"
                .to_owned(),
        );
    }
    let script = select(
        &plan,
        &mut Selection {
            is_selected: &mut |thread| {
                filter.looks_at_thread((thread.pid, thread.tid), Some(thread.comm), thread.cgroup)
            },
            user: &read.user_processes,
            recorder,
            scale: args.time_scale,
        },
    );
    let LeftOut { kernel, recorder, not_selected, idle, realtime } = script.left_out;
    if script.threads.is_empty() {
        return Err(Failure::NoResult(anyhow!(
            "no thread is left to replay: of {} threads {kernel} are the kernel's, {recorder} the recorder's, {not_selected} are not \
             selected, and {idle} did not run",
            plan.threads.len()
        )));
    }
    if realtime > 0 {
        notes.push(format!("{realtime} threads had a real-time priority: they are replayed without it"));
    }
    let memory = communities.map(|communities| {
        let memory = touches.memory(&script, &communities, u64::from(args.memory_limit) << 20);
        if memory.divided_by > 1 {
            notes.push(format!(
                "the threads touched more memory than --memory-limit: their buffers have 1/{} of the size",
                memory.divided_by
            ));
        }
        memory
    });
    Ok((script, memory, input::recorded_tasks(&profile)))
}

/// Refuses more threads than a quarter of what this host can have.
fn check_threads(script: &Script, roots: &Roots) -> Result<(), Failure> {
    let threads = script.threads.len();
    for name in ["pid_max", "threads-max"] {
        let limit = std::fs::read_to_string(roots.proc.join("sys/kernel").join(name)).ok();
        let limit = limit.and_then(|text| text.trim().parse::<usize>().ok());
        if let Some(limit) = limit.filter(|limit| threads > limit / 4) {
            return Err(Failure::Usage(anyhow!(
                "the recording has {threads} threads, more than a quarter of what this host can have (kernel.{name} is {limit}): \
                 select some of them, or a part of the time with --from and --to"
            )));
        }
    }
    Ok(())
}

/// Refuses a replay that needs more memory than there is: the host would kill other processes.
fn check_memory(script: &Script, memory: Option<&Memory>, room: Option<Room>) -> Result<(), Failure> {
    let (processes, threads) = (script.processes.len() as u64, script.threads.len() as u64);
    let buffers = memory.map_or(0, |memory| memory.bytes);
    let needed = processes * PROCESS + threads * THREAD + buffers;
    match room {
        Some(Room { bytes, of }) if needed > bytes => Err(Failure::Usage(anyhow!(
            "{processes} mock processes with {threads} threads take about {} MiB{}, and {} MiB are left ({of}): select some of them \
             (--comm, --cgroup, --pid), or a part of the time with --from and --to",
            needed >> 20,
            if buffers > 0 { format!(", {} MiB of them buffers (--memory-limit)", buffers >> 20) } else { String::new() },
            bytes >> 20
        ))),
        _ => Ok(()),
    }
}

/// Refuses what this host cannot do in the time.
fn check_load(args: &ReplayArgs, script: &Script, cpus: &[u32]) -> Result<(), Failure> {
    let needed = script.cpu_time() as f64 / 1e9;
    let window = script.window as f64 / 1e9;
    let there = window * cpus.len() as f64;
    if window > 86_400.0 && !args.overcommit {
        return Err(Failure::Usage(anyhow!(
            "the replay lasts {window:.0} s, more than a day: select a part with --from and --to, or take --overcommit"
        )));
    }
    if needed > there && !args.overcommit {
        return Err(Failure::Usage(anyhow!(
            "the recording has {needed:.1} s of CPU time in {window:.1} s, and {} CPUs have {there:.1} s: select a part of its threads, \
             or take --overcommit, which makes it last longer",
            cpus.len()
        )));
    }
    Ok(())
}

/// The cgroups that are to be made; `None` if they were not asked for and there can be none.
fn groups(args: &ReplayArgs, script: &Script, roots: &Roots) -> Result<Option<Groups>, Failure> {
    let default = format!("/scxprof-replay-{}", std::process::id());
    let root = args.cgroup_root.as_deref().unwrap_or(&default);
    match Mount::find(roots) {
        Ok(mount) => Groups::plan(&mount.point, root, &script.cgroups).map(Some).map_err(failure),
        Err(error) if args.cgroup_root.is_some() => Err(Failure::Unsupported(error.into())),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scxprof_replay::{Mock, MockProcess};

    #[test]
    fn what_there_is_no_memory_for_is_refused_with_its_figure() {
        let script = Script {
            threads: (0..2000).map(|_| Mock::default()).collect(),
            processes: (0..1000).map(|_| MockProcess::default()).collect(),
            ..Script::default()
        };
        let memory = Memory { bytes: 100 << 20, ..Memory::default() };
        let room = |mib: u64| Some(Room { bytes: mib << 20, of: "/sys/fs/cgroup/x/memory.max".to_owned() });
        assert!(check_memory(&script, None, None).is_ok() && check_memory(&script, None, room(300)).is_ok());
        let said = check_memory(&script, Some(&memory), room(300)).unwrap_err().sentence();
        assert!(said.contains("take about 381 MiB, 100 MiB of them buffers (--memory-limit)"), "{said}");
        assert!(said.contains("300 MiB are left (/sys/fs/cgroup/x/memory.max)") && said.contains("--pid"), "{said}");
    }
}
