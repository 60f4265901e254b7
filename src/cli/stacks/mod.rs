//! `scxprof stacks`: which code threads run when an event is sampled.

mod diff;
mod print;
mod read;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{anyhow, Context};
use clap::{Args, ValueEnum};

use super::args::{text, ResultArgs, INPUT, RESULT, WATCH};
use super::capture::{self, TuningArgs, WhoseArgs};
use super::ends::{Ends, Step};
use super::failure::Failure;
use super::hints::HintArgs;
use super::input::{self, Damage};
use super::output::{Output, Readers, Stdout};
use super::signals::Signals;
use super::{decision, messages};
use crate::config::{Placement, Task};
use crate::host::facts::Tasks;
use crate::host::Roots;
use crate::resolve::{symbolize, SymbolOptions, UnwindCounts, UNWIND_LIMIT};
use crate::session::{default_event, parse_event, EventSpec, HostOptions, Outcome, Progress, Rate, StackSink};
use crate::stacks::{self, By, StackProfile};

#[cfg(feature = "mcp")]
pub(super) use self::print::value;

const EXAMPLES: &str = "\
Examples:
  sudo scxprof stacks -t 10                      where the host spends its CPU time, by function
  sudo scxprof stacks -t 10 --by subcell --config cells.json    and which subcells spend it
  sudo scxprof stacks -e page-faults -c 100 ./server            one of 100 page faults of a command
  sudo scxprof stacks -t 10 --flame-graph host.svg              open host.svg in a browser
  sudo scxprof stacks -e sched:sched_switch -p 1234 --folded switches.txt
  sudo scxprof stacks -t 10 --unwind dwarf -p 1234              of a program without frame pointers
  scxprof stacks -f perf.data --folded stacks.txt               of what perf record -g recorded
  scxprof stacks --diff before.txt after.txt                    which functions take more, or less
  scxprof stacks -F 999 -p 1234 --json | jq '.symbols[:5]'
Exit codes:
  0  the result was written
  1  nothing was sampled, or the result could not be written
  2  wrong usage, also an event that does not exist
  3  the event cannot be sampled on this host
  4  the result was written, but more samples were lost than --max-loss allows";

/// Print which functions use the CPU, or cause another event, with their call stacks
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_args(text("json", "Print JSON (docs/stacks.md has the fields)")))]
pub(super) struct StacksArgs {
    /// Read call stacks from FILE instead of sampling: a perf.data (`perf record -g` or --call-graph dwarf), a trace (wprof,
    /// Perfetto), or folded text
    #[arg(
        short = 'f',
        short_alias = 'i',
        long = "file",
        alias = "input",
        value_name = "FILE",
        help_heading = INPUT,
        conflicts_with_all = ["time", "cpus", "pids", "cgroup", "all", "command", "freq", "count", "unwind", "max_samples", "hints_map"]
    )]
    file: Option<PathBuf>,
    /// Print which functions take more, or less, in the second of two recordings; each as with -f
    #[arg(
        long,
        value_names = ["A", "B"],
        num_args = 2,
        help_heading = INPUT,
        conflicts_with_all = ["file", "time", "cpus", "pids", "cgroup", "all", "command", "freq", "count", "unwind", "max_samples",
            "hints_map", "by", "config", "folded", "flame_graph", "pprof", "firefox"]
    )]
    diff: Option<Vec<PathBuf>>,
    #[command(flatten)]
    watch: WhoseArgs,
    /// The event: cycles, cpu-clock, page-faults, L1-dcache-load-misses, rNNN, PMU/TERMS/, SYSTEM:TRACEPOINT ... with u or k after
    /// a colon for user or kernel code alone [default: cycles; cpu-clock without a PMU]
    #[arg(short = 'e', long, value_name = "EVENT", help_heading = WATCH)]
    event: Option<String>,
    /// Samples a second on each CPU [default: 99; each hit of a tracepoint]
    #[arg(
        short = 'F',
        long,
        value_name = "HZ",
        conflicts_with = "count",
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = WATCH
    )]
    freq: Option<u32>,
    /// Sample every N events
    #[arg(
        short = 'c',
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..),
        help_heading = WATCH
    )]
    count: Option<u64>,
    /// How to find the callers of user code: fp, its frame pointers; or dwarf, the call frame information of its files and a
    /// copy of the stack, of BYTES with dwarf,BYTES [default: fp; dwarf copies 8192]
    #[arg(long, alias = "call-graph", value_name = "HOW", value_parser = unwind, help_heading = WATCH)]
    unwind: Option<Unwind>,
    /// Call stacks, as perf calls them: they are always taken
    #[arg(short = 'g', hide = true)]
    graph: bool,
    /// Stop after N samples
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..),
        help_heading = WATCH
    )]
    max_samples: Option<u64>,
    #[command(flatten)]
    hints: HintArgs,
    #[command(flatten)]
    tuning: TuningArgs,
    /// What a line is about
    #[arg(long, value_enum, default_value_t = What::Symbol, help_heading = RESULT)]
    by: What,
    /// The configuration by which threads are assigned to cells and subcells
    #[arg(long, value_name = "FILE", help_heading = RESULT)]
    config: Option<PathBuf>,
    /// The most lines to print; 0 for all
    #[arg(long, value_name = "N", default_value = "40", help_heading = RESULT)]
    limit: usize,
    /// Write the stacks as folded text, which flame graph programs read, to FILE
    #[arg(long, value_name = "FILE", help_heading = RESULT)]
    folded: Option<PathBuf>,
    /// Write a flame graph as SVG, which any browser shows, to FILE
    #[arg(long, value_name = "FILE", help_heading = RESULT)]
    flame_graph: Option<PathBuf>,
    /// Write the profile for `go tool pprof` to FILE
    #[arg(long, value_name = "FILE", help_heading = RESULT)]
    pprof: Option<PathBuf>,
    /// Write the samples over time for profiler.firefox.com to FILE (gzipped JSON)
    #[arg(long, value_name = "FILE", help_heading = RESULT)]
    firefox: Option<PathBuf>,
    /// Do not read debug information: no source lines, no inlined functions
    #[arg(long, help_heading = RESULT)]
    no_lines: bool,
    #[command(flatten)]
    result: ResultArgs,
    /// Print what was left out and why
    #[arg(short = 'v', long = "verbose", action = clap::ArgAction::Count, help_heading = RESULT)]
    verbose: u8,
}

/// What a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Functions
    Symbol,
    /// Threads
    Thread,
    /// Processes
    Process,
    /// Cgroups
    Cgroup,
    /// Cells and subcells of --config
    Subcell,
}

/// How stacks of user code are unwound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unwind {
    /// By the kernel, along frame pointers.
    FramePointers,
    /// By scxprof, with this number of bytes of the stack in each sample.
    Dwarf(u16),
}

/// Bytes of the stack in a sample, as in perf.
const STACK_DUMP: u16 = 8192;
/// The most that fits into a record.
const MAX_STACK_DUMP: u16 = 65_528;

pub(super) fn unwind(text: &str) -> Result<Unwind, String> {
    let (how, bytes) = text.split_once(',').map_or((text, None), |(how, bytes)| (how, Some(bytes)));
    match (how, bytes) {
        ("fp", None) => Ok(Unwind::FramePointers),
        ("dwarf", None) => Ok(Unwind::Dwarf(STACK_DUMP)),
        ("dwarf", Some(bytes)) => match bytes.parse() {
            Ok(bytes @ 8..=MAX_STACK_DUMP) if bytes % 8 == 0 => Ok(Unwind::Dwarf(bytes)),
            _ => Err(format!("the stack in a sample has 8 to {MAX_STACK_DUMP} bytes, a multiple of 8")),
        },
        _ => Err(format!("\"{text}\" is not one of fp, dwarf and dwarf,BYTES")),
    }
}

/// Makes the bytes of a file.
type Form = fn(&StackProfile) -> std::io::Result<Vec<u8>>;

impl What {
    fn by(self) -> By {
        match self {
            Self::Symbol => By::Symbol,
            Self::Thread => By::Thread,
            Self::Process => By::Process,
            Self::Cgroup => By::Cgroup,
            Self::Subcell => By::Subcell,
        }
    }
}

impl StacksArgs {
    /// Other forms of the result: their files, and what writes them.
    fn files(&self) -> impl Iterator<Item = (&PathBuf, Form)> {
        let forms: [(_, Form); 4] = [
            (&self.folded, |profile| Ok(stacks::folded(profile).into_bytes())),
            (&self.flame_graph, |profile| Ok(stacks::flame_graph(profile, &|_| true).into_bytes())),
            (&self.pprof, |profile| {
                let mut bytes = Vec::new();
                stacks::pprof(profile, &mut bytes)?;
                Ok(bytes)
            }),
            (&self.firefox, |profile| {
                let mut bytes = Vec::new();
                stacks::firefox(profile, &mut bytes)?;
                Ok(bytes)
            }),
        ];
        forms.into_iter().filter_map(|(path, form)| Some((path.as_ref()?, form)))
    }

    fn rate(&self) -> Option<Rate> {
        self.count.map(Rate::Period).or(self.freq.map(|freq| Rate::Frequency(freq.into())))
    }
}

/// The event that is called `name`, or the one that shows what uses the CPU.
pub(super) fn event(
    name: Option<&str>,
    rate: Option<Rate>,
    unwind: Option<Unwind>,
    roots: &Roots,
) -> Result<EventSpec, String> {
    let name = name.unwrap_or_else(|| default_event(roots));
    let event = parse_event(name, rate, roots).map_err(|error| format!("{name}: {error}"))?;
    Ok(match unwind {
        Some(Unwind::Dwarf(bytes)) => event.with_user_stack(bytes),
        Some(Unwind::FramePointers) | None => event,
    })
}

/// Watches, and prints.
pub(super) fn run(args: &StacksArgs, stdout: Stdout) -> Result<(), Failure> {
    if let Some(pair) = &args.diff {
        return diff::run(args, pair, stdout);
    }
    if args.by == What::Subcell && args.config.is_none() {
        return Err(Failure::Usage(anyhow!("--by subcell needs --config, which has the cells")));
    }
    let placement = input::given_configuration("--config", args.config.as_deref())?;
    let output = args.result.file.open(stdout)?;
    let mut files = Vec::new();
    for (path, write) in args.files() {
        let file = Output::open(Some(path), Readers::All).map_err(Failure::Usage)?;
        if file.is_same_file(&output) || files.iter().any(|(other, _): &(Output, _)| other.is_same_file(&file)) {
            return Err(Failure::Usage(anyhow!("{}: two results would be written to it", path.display())));
        }
        files.push((file, write));
    }
    let Observed { mut profile, outcome, damage, status, tasks } = match &args.file {
        Some(path) => read::read(args, path)?,
        None => watch(args)?,
    };
    capture::say_notes(&outcome, None);
    messages::say_loss(&outcome.loss, args.verbose > 0);
    if let Some(text) = outcome.unwound.as_ref().and_then(lacking) {
        say!("note: {text}");
    }
    place(&mut profile, placement, tasks);
    if profile.count() == 0 {
        let why = damage.because("it");
        return Err(Failure::NoResult(match &args.file {
            Some(path) => anyhow!("{} has no samples of {}{why}", path.display(), profile.event),
            None if outcome.loss.idle > 0 => anyhow!(
                "no samples of {}, but {} of the idle task: nothing that was watched ran",
                profile.event,
                outcome.loss.idle
            ),
            None => anyhow!("no samples of {}: nothing that was watched causes the event", profile.event),
        }));
    }
    if args.firefox.is_some() && (profile.samples.len() as u64) < profile.count() {
        say!("note: the file of --firefox has the first {} of {} samples", profile.samples.len(), profile.count());
    }
    for (file, write) in files {
        let bytes = write(&profile).context("cannot write the result").map_err(Failure::NoResult)?;
        file.write(&bytes, true).map_err(Failure::NoResult)?;
    }
    let format = args.result.format();
    let table = || print::table(args, &profile, output.width());
    let text = format.render(|| print::document(args, &profile, &outcome), table)?;
    output.write(text.as_bytes(), true).map_err(Failure::NoResult)?;
    let mut ends = Ends::default();
    ends.note(Step::Damage, damage.check());
    ends.command(Ok(status));
    ends.loss(&args.tuning.max_loss, &outcome.loss);
    ends.end()
}

/// Which stacks lack their outer functions, and why.
fn lacking(counts: &UnwindCounts) -> Option<String> {
    let mut parts = Vec::new();
    if counts.cut > 0 {
        parts.push(format!("{} end where the copy of the stack ends (dwarf,BYTES copies more)", counts.cut));
    }
    if counts.no_copy > 0 {
        parts.push(format!("{} have only their innermost function: their stack was not in memory", counts.no_copy));
    }
    if counts.broken > 0 {
        parts.push(format!("{} where code has neither call frame information nor frame pointers", counts.broken));
    }
    if counts.timed_out > 0 {
        parts.push(format!(
            "{} where a file was not read in {} ms (a slow disk or a busy host: try again)",
            counts.timed_out,
            UNWIND_LIMIT.as_millis()
        ));
    }
    if counts.compat > 0 {
        parts.push(format!("{} are of 32-bit programs, which are not unwound", counts.compat));
    }
    (!parts.is_empty()).then(|| format!("of {} unwound stacks {}", counts.all(), parts.join(", ")))
}

/// What was observed.
struct Observed {
    profile: StackProfile,
    outcome: Outcome,
    damage: Damage,
    status: Option<u8>,
    /// What procfs said of threads when it was recorded; `None` if it was not recorded.
    tasks: Option<Tasks>,
}

/// Samples this host.
fn watch(args: &StacksArgs) -> Result<Observed, Failure> {
    let roots = args.watch.roots();
    let event = event(args.event.as_deref(), args.rate(), args.unwind, &roots);
    let event = event.map_err(|error| Failure::Usage(anyhow!("-e {error}")))?;
    let held = capture::hold(&args.watch, args.result.file.is_stdout())?;
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let host = HostOptions { hints: args.hints.options(), ..HostOptions::stacks(event.clone()) };
    let wanted = capture::watched(&args.watch, &args.tuning, host)?;
    let begin = SystemTime::now();
    let session = capture::start(&args.watch, 0, wanted, held.as_ref())?;
    let mut command = held.map(super::command::Held::release).transpose().map_err(Failure::Usage)?;
    let tables = (args.verbose > 1).then(|| session.tables());
    let mut sink = StackSink::default();
    let watched = |ended: &mut dyn FnMut(Progress) -> bool| {
        let is_enough = |samples| args.max_samples.is_some_and(|most| samples >= most);
        session.run_into(&mut sink, |progress| ended(progress) || is_enough(progress.samples))
    };
    let outcome = capture::watch(args.watch.limit(), command.as_mut(), &signals, tables.as_ref(), watched);
    let status = capture::end(command, &signals)?;
    let mut profile = named(args, &sink, &outcome, (Some(begin), roots));
    profile.event = event.name.to_string();
    profile.is_clock = event.is_clock();
    (profile.frequency, profile.period) = match event.rate {
        Rate::Frequency(hz) => (Some(hz), None),
        Rate::Period(period) => (None, Some(period)),
    };
    profile.begin_unix = begin.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs_f64());
    Ok(Observed { profile, outcome, damage: Damage::default(), status, tasks: None })
}

/// The profile with the names of its code; notes what it has not.
fn named(
    args: &StacksArgs,
    sink: &StackSink,
    outcome: &Outcome,
    (begin, roots): (Option<SystemTime>, Roots),
) -> StackProfile {
    if sink.left_out() > 0 {
        say!("note: {} samples are left out: there are too many threads or stacks", sink.left_out());
    }
    let lines = (!args.no_lines).then(|| PathBuf::from(decision::SCXPROF));
    let options = SymbolOptions { roots, begin, cache: decision::cache(), lines };
    let symbols = symbolize(&outcome.modules, outcome.stacks.codes(), &options);
    for note in symbols.notes() {
        say!("note: {note}");
    }
    let mut profile = sink.profile(&outcome.stacks, &symbols);
    profile.duration_ns = u64::try_from(outcome.duration.as_nanos()).unwrap_or(u64::MAX);
    profile
}

/// Adds the subcells of threads.
pub(super) fn place(profile: &mut StackProfile, placement: Option<Placement>, tasks: Option<Tasks>) {
    let Some(placement) = placement else { return };
    let mut placement = match tasks {
        Some(tasks) => placement.with_tasks(Arc::new(tasks)),
        None => input::with_living_tasks(placement, &Roots::default()),
    };
    placement.know_cgroups(profile.threads.iter().map(|thread| thread.cgroup.as_bytes()));
    // Where hints were not followed, no thread has one.
    let has_hints = profile.threads.iter().any(|thread| thread.hint.is_some());
    if !has_hints {
        input::say_unhinted("--config", Some(&placement));
    }
    for thread in &mut profile.threads {
        let task = Task::new(thread.cgroup.as_bytes(), thread.comm.as_bytes()).ids(thread.pid, thread.tid);
        let task = task.process(Some(thread.process.as_bytes()).filter(|name| !name.is_empty()));
        let task = if has_hints { task.hinted(thread.hint) } else { task };
        thread.subcell = Some(placement.name_of(&task));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_why_stacks_lack_functions_is_named_with_its_own_count() {
        assert_eq!(lacking(&UnwindCounts::default()), None);
        let mut late = UnwindCounts::default();
        (late.complete, late.timed_out) = (1, 64);
        let expected =
            "of 65 unwound stacks 64 where a file was not read in 200 ms (a slow disk or a busy host: try again)";
        assert_eq!(lacking(&late).as_deref(), Some(expected));
        (late.complete, late.cut, late.broken, late.compat, late.no_copy) = (0, 2, 3, 4, 5);
        let said = lacking(&late).unwrap();
        for part in [
            "of 78 unwound stacks 2 end where",
            ", 3 where code has neither",
            ", 64 where a file",
            ", 4 are of 32-bit",
            ", 5 have only their innermost function",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}
