//! The inputs of commands: profiles and other recordings, traces of other tools, folded stacks, configurations. Each is opened here,
//! with the errors about it, and read here if that is the same for several commands.

use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{anyhow, Context};
use clap::Args;

use super::args::INPUT;
use super::failure::{Done, Failure};
use crate::config::{CellSpecError, Placement};
use crate::host::facts::Tasks;
use crate::host::open;
use crate::host::Roots;
use crate::profile::{Profile, ProfileError};
use crate::sample::Source;
use crate::session::{Builder, Error, Outcome, Sampled, Session, Sink, TraceInput};
use scxprof_trace::{Event, Trace, TraceError};

/// Bytes by which a trace is known.
const HEAD: u64 = 64 << 10;
/// Events of a trace between two looks at whether to end.
const BATCH: u64 = 1024;
/// Bytes of a configuration that are read; those of scxprof have some kilobytes.
const MAX_CONFIGURATION: u64 = 16 << 20;

/// The profile to read.
#[derive(Debug, Args)]
pub(super) struct InputArgs {
    /// The profile: an archive (.tar.gz, unpacked in $TMPDIR), a directory, perf.data, text of `perf script`, or perf.jsonl
    /// [default: the newest here that record or perf named]
    #[arg(
        short = 'f',
        short_alias = 'i',
        long = "file",
        alias = "input",
        value_name = "PROFILE",
        help_heading = INPUT,
        conflicts_with = "profile"
    )]
    file: Option<PathBuf>,
    /// The same as -f PROFILE
    #[arg(value_name = "PROFILE", help_heading = INPUT)]
    profile: Option<PathBuf>,
}

impl InputArgs {
    /// Where neither was given the newest one here was put into the command line.
    pub(super) fn path(&self) -> &Path {
        self.file.as_deref().or(self.profile.as_deref()).unwrap_or_else(|| Path::new(""))
    }
}

/// The type of a file, by its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InputKind {
    /// A trace in Perfetto's format, compressed or not.
    Trace,
    /// All that [`profile`] opens; also what it refuses, but for the content of a file.
    Profile,
    /// A file that is neither.
    Unknown,
}

/// Looks what `path` is. What cannot be opened is no trace; the reader of profiles says why.
pub(super) fn kind(path: &Path) -> InputKind {
    let mut head = Vec::new();
    let read = open::regular(path).and_then(|file| file.take(HEAD).read_to_end(&mut head));
    if read.is_ok() && scxprof_trace::is_trace(&head) {
        InputKind::Trace
    } else if !path.is_dir() && matches!(Profile::check(path), Err(ProfileError::Unknown { .. })) {
        InputKind::Unknown
    } else {
        InputKind::Profile
    }
}

/// Opens a profile; `stop` ends the unpacking of an archive.
pub(super) fn profile(path: &Path, stop: &dyn Fn() -> bool) -> Result<Profile, Failure> {
    check_profile(path)?;
    Profile::open_until(path, stop).map_err(|error| match &error {
        ProfileError::Io { source, .. } if source.kind() == ErrorKind::PermissionDenied => not_ours(&error, path),
        ProfileError::Io { call: "open", .. }
        | ProfileError::NoData { .. }
        | ProfileError::Unknown { .. }
        | ProfileError::Foreign { .. } => Failure::Usage(error.into()),
        ProfileError::Stopped { .. } => interrupted(),
        _ => Failure::NoResult(error.into()),
    })
}

/// The same, with the scheduling events of a profile that has them in a file of their own.
pub(super) fn sched_profile(path: &Path, stop: &dyn Fn() -> bool) -> Result<Profile, Failure> {
    let profile = profile(path, stop)?;
    profile.into_sched().map_err(|error| Failure::NoResult(error.into()))
}

/// What to do for a recording of this kind to have addresses; `None` if they were recorded with it.
pub(super) fn addresses(profile: &mut Profile) -> Option<&'static str> {
    match profile.source() {
        Source::Recorded if profile.is_of_scxprof_alone() => Some(
            "scxprof wrote this perf.data alone, without the file beside it that has the addresses of the source timer; \
             `scxprof record -o x.tar.gz`, or without -o, keeps them",
        ),
        Source::Recorded => Some("record with `perf mem record`, or with `perf record -d` of an event that has one"),
        _ => None,
    }
}

/// Rejects a path that cannot be a profile.
pub(super) fn check_profile(path: &Path) -> Result<(), Failure> {
    if path == Path::new("-") {
        return Err(Failure::Usage(anyhow!(
            "-f -: a profile must be a file or a directory, as it is read more than once"
        )));
    }
    Profile::check(path).map_err(|error| match &error {
        ProfileError::Io { source, .. } if source.kind() == ErrorKind::PermissionDenied => not_ours(&error, path),
        _ => Failure::Usage(error.into()),
    })
}

/// A profile is readable by its owner alone, which is root after `sudo scxprof record`.
fn not_ours(error: &ProfileError, path: &Path) -> Failure {
    Failure::Usage(anyhow!(
        "{error}. Only the owner of a profile can read it; to give it away: sudo chown -R \"$USER\" {}",
        path.display()
    ))
}

/// A session that reads a profile, with this number of bytes of memory.
pub(super) fn session(profile: &mut Profile, memory: usize) -> Builder<'_> {
    Session::builder().profile(profile).memory(memory)
}

/// Starts a session that reads.
pub(super) fn start(builder: Builder<'_>) -> Result<Session<'_>, Failure> {
    builder.start().map_err(|error| match error {
        Error::CellSpecs(error) => wrong_cells(&error),
        error => Failure::Unsupported(error.into()),
    })
}

/// Reads all of it into `sink`, unless it is interrupted.
pub(super) fn read(builder: Builder<'_>, sink: &mut dyn Sink, stop: &dyn Fn() -> bool) -> Result<Outcome, Failure> {
    let outcome = start(builder)?.run_into(sink, |_| stop());
    if stop() {
        return Err(interrupted());
    }
    Ok(outcome)
}

/// Reads all of it to decide, unless it is interrupted.
pub(super) fn sample(builder: Builder<'_>, stop: &dyn Fn() -> bool) -> Result<Sampled, Failure> {
    let sampled = start(builder)?.run_until(|_| stop());
    if stop() {
        return Err(interrupted());
    }
    Ok(sampled)
}

/// The error of the options for cell specs.
pub(super) fn wrong_cells(error: &CellSpecError) -> Failure {
    let option = match error {
        CellSpecError::Regex { option, .. } if option == "allotment" => "--workload-allotment-cgroup-regex",
        CellSpecError::Regex { option, .. } if option == "workload" => "--workload-cgroup-regex",
        _ => "--cell",
    };
    Failure::Usage(anyhow!("{option}: {error}"))
}

/// Opens a trace.
pub(super) fn trace(path: &Path) -> Result<Trace<File>, Failure> {
    let file = open::regular(path).with_context(|| format!("cannot open {}", path.display()));
    Trace::open(file.map_err(Failure::Usage)?).map_err(|error| wrong_trace(&error, path))
}

/// Reads all of a trace into `sink`, and into `other`, unless it is interrupted.
pub(super) fn read_trace(
    trace: Trace<File>,
    path: &Path,
    other: Option<&mut dyn Sink>,
    sink: &mut dyn Sink,
    stop: &dyn Fn() -> bool,
) -> Result<Trace<File>, Failure> {
    let mut input = TraceInput::new(trace);
    let mut builder = Session::builder().trace(&mut input);
    if let Some(other) = other {
        builder = builder.sink(other);
    }
    read(builder, sink, stop)?;
    input.result().map_err(|error| wrong_trace(&error, path))?;
    Ok(input.trace)
}

/// Reads the events of a trace one by one, with what it says until then, unless it is interrupted; returns how many there are.
pub(super) fn each_event(
    trace: &mut Trace<File>,
    path: &Path,
    stop: &dyn Fn() -> bool,
    mut take: impl FnMut(&Event, &Trace<File>) -> Result<(), Failure>,
) -> Result<u64, Failure> {
    let mut count = 0u64;
    while let Some(event) = trace.next_event().map_err(|error| wrong_trace(&error, path))? {
        take(&event, trace)?;
        count += 1;
        if count.is_multiple_of(BATCH) && stop() {
            return Err(interrupted());
        }
    }
    if stop() {
        return Err(interrupted());
    }
    Ok(count)
}

pub(super) fn wrong_trace(error: &TraceError, path: &Path) -> Failure {
    let is_usage = !matches!(error, TraceError::Read(_) | TraceError::Spool(_));
    let error = match error {
        TraceError::NotATrace => anyhow!("{}: {error}; nor is it a profile or a perf.data", path.display()),
        _ => anyhow!("{}: {error}", path.display()),
    };
    if is_usage {
        Failure::Usage(error)
    } else {
        Failure::NoResult(error)
    }
}

/// Opens a text.
pub(super) fn text(path: &Path) -> Result<BufReader<File>, Failure> {
    let file = open::regular(path);
    file.map(BufReader::new).map_err(|error| Failure::Usage(anyhow!("cannot open {}: {error}", path.display())))
}

/// The text of a file that is a list of objects with names, as configurations are; `None` for other files.
pub(super) fn list_of_named(path: &Path) -> Option<String> {
    let mut text = String::new();
    let mut file = BufReader::new(open::regular(path).ok()?.take(MAX_CONFIGURATION + 1));
    let begin = file.fill_buf().ok()?.trim_ascii_start().first().copied();
    if begin != Some(b'[') {
        return None;
    }
    file.read_to_string(&mut text).ok()?;
    let list: Vec<serde_json::Map<String, serde_json::Value>> = serde_json::from_str(&text).ok()?;
    // Elements of a Chrome JSON trace have names, too.
    list.iter().all(|it| it.contains_key("name") && !it.contains_key("ph")).then_some(text)
}

/// The text of a configuration that an option names, of bounded size.
pub(super) fn configuration_text(option: &str, path: &Path) -> Result<String, Failure> {
    let read = || -> anyhow::Result<String> {
        let mut text = String::new();
        open::regular(path)?.take(MAX_CONFIGURATION + 1).read_to_string(&mut text)?;
        let is_whole = text.len() as u64 <= MAX_CONFIGURATION;
        anyhow::ensure!(is_whole, "it has more than {} MiB", MAX_CONFIGURATION >> 20);
        Ok(text)
    };
    read().with_context(|| format!("{option} {}", path.display())).map_err(Failure::Usage)
}

/// Reads the configuration of a scheduler that `option` names.
pub(super) fn configuration(option: &str, path: &Path) -> Result<Placement, Failure> {
    let name = || format!("{option} {}", path.display());
    let text = configuration_text(option, path)?;
    let (placement, foreign) = Placement::read(&text).with_context(name).map_err(Failure::Usage)?;
    if let Some(foreign) = foreign {
        say!("note: {}: {foreign}", name());
    }
    Ok(placement)
}

/// A configuration with what a recording says of threads, if it has conditions on that.
pub(super) fn with_recorded_tasks(placement: Placement, profile: &Profile) -> Placement {
    if !placement.needs_tasks() {
        return placement;
    }
    placement.with_tasks(Arc::new(recorded_tasks(profile)))
}

/// The facts about threads in a recording beside samples.
pub(super) fn recorded_tasks(profile: &Profile) -> Tasks {
    let (tasks, damage) = profile.tasks();
    if let Some(damage) = damage {
        say!("note: {damage}");
    }
    tasks
}

/// The same with what procfs says of the threads that live now.
pub(super) fn with_living_tasks(placement: Placement, roots: &Roots) -> Placement {
    if !placement.needs_tasks() {
        return placement;
    }
    let mut tasks = Tasks::default();
    if let Err(error) = tasks.read(roots, None, false) {
        say!("note: conditions on users, parents and nice values cannot be decided: {error}");
    }
    placement.with_tasks(Arc::new(tasks))
}

/// The same of an option that need not be given.
pub(super) fn given_configuration(option: &str, path: Option<&Path>) -> Result<Option<Placement>, Failure> {
    path.map(|path| configuration(option, path)).transpose()
}

/// Says that cells ask for hints that are not known. A layer that may take a thread by its hint is named beside the others.
pub(super) fn say_unhinted(option: &str, placement: Option<&Placement>) {
    if placement.is_some_and(|it| it.cells().is_some() && it.uses_hints()) {
        say!("note: {option}: the configuration matches task hints, and none are known here: threads count as if they had none");
    }
}

/// The end of a command that a signal ended before there was a result.
pub(super) fn interrupted() -> Failure {
    Failure::NoResult(anyhow!("interrupted: nothing was written"))
}

/// The damage of an input, one sentence each.
#[derive(Debug, Clone, Default)]
pub(super) struct Damage {
    is_trace: bool,
    parts: Vec<String>,
}

impl Damage {
    pub(super) fn of_profile(profile: &Profile) -> Self {
        Self { is_trace: false, parts: profile.damage() }
    }

    pub(super) fn of_trace(parts: Vec<String>) -> Self {
        Self { is_trace: true, parts }
    }

    /// The input, as messages call it.
    pub(super) fn what(&self) -> &'static str {
        if self.is_trace {
            "trace"
        } else {
            "profile"
        }
    }

    pub(super) fn is_of_trace(&self) -> bool {
        self.is_trace
    }

    /// All that is damaged; `None` if nothing is.
    pub(super) fn list(&self) -> Option<String> {
        (!self.parts.is_empty()).then(|| self.parts.join("; "))
    }

    /// The end of a sentence that says what an input lacks; empty if nothing is damaged.
    pub(super) fn because(&self, what: &str) -> String {
        self.list().map_or_else(String::new, |list| format!(": {what} is damaged: {list}"))
    }

    /// The failure that reports it, after what could be read was used.
    pub(super) fn check(&self) -> Done {
        match self.list() {
            None => Ok(()),
            Some(list) => {
                let what = self.what();
                Err(Failure::Loss(anyhow!("the {what} is damaged: {list}; what could be read was used")))
            }
        }
    }
}

/// The failure of a text with too many lines that are no samples.
pub(super) fn check_lines(max_loss: f64, profile: &Profile) -> Done {
    match profile.unreadable_lines() {
        Some(lines) if lines.percent() > max_loss => Err(Failure::Loss(anyhow!(
            "{:.1} % of the lines are no samples, more than --max-loss {max_loss}: the result may be wrong",
            lines.percent()
        ))),
        _ => Ok(()),
    }
}
