//! `scxprof record`: a capture to a profile, for later or for another host.

use std::ffi::OsStr;
use std::fs;
use std::io::BufWriter;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{anyhow, Context};
use clap::{ArgGroup, Args};

use super::args::{RESULT, WATCH};
use super::capture::{self, CaptureArgs};
use super::destination::Directory;
use super::ends::{Ends, Step};
use super::failure::Failure;
use super::filter::FilterArgs;
use super::process::Form;
use super::signals::Signals;
use super::stacks::{self, Unwind};
use super::{input, messages, names, process};
use crate::profile::meta::Host;
use crate::profile::{self, pack, ProfileError, Recorder};
use crate::sample::Source;
use crate::session::{Outcome, Progress, Rate, SchedOptions, TaskSink};

const EXAMPLES: &str = "\
Examples:
  sudo scxprof record -t 30                      for 30 s, to scxprof-HOST-DATE-TIME.tar.gz
  scxprof record ./server --port 80              a command while it runs
  sudo scxprof record -o web --disable-archive   to the directory web, which perf can read too
  sudo scxprof record -t 30 --sched -g           and what the scheduler did, and which code ran
  sudo scxprof extract -f web                    the configuration that `run` would have printed";

/// Record memory accesses to a profile, for process, extract and perf
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, group(ArgGroup::new("call_stacks").multiple(true)))]
pub(super) struct RecordArgs {
    #[command(flatten)]
    capture: CaptureArgs,
    /// The profile's directory, the name of its archive (.tar.gz), or a file for perf (.data), which holds less [default:
    /// scxprof-HOST-DATE-TIME, in UTC]
    #[arg(short = 'o', long = "output", value_name = "DIR", help_heading = RESULT)]
    output: Option<PathBuf>,
    /// The archive that takes the directory's place [default: DIR.tar.gz]
    #[arg(short = 'f', long = "file", value_name = "ARCHIVE", help_heading = RESULT, conflicts_with = "disable_archive")]
    archive: Option<PathBuf>,
    /// Leave the directory as it is
    #[arg(long, help_heading = RESULT)]
    disable_archive: bool,
    /// Write the samples as lines of JSON too, as `process` does
    #[arg(long, help_heading = RESULT)]
    samples_jsonl: bool,
    /// Write the samples as text of `perf script` too, as scx_characterize does for its own `process`
    #[arg(long, help_heading = RESULT, hide = true)]
    enable_perf_script: bool,
    /// Do not record the scheduler's events: the default here, as scx_characterize calls it
    #[arg(long, help_heading = WATCH, hide = true, conflicts_with = "sched")]
    disable_sched_trace: bool,
    /// Keep the memory around the registers of timer samples in the profile: it holds data of the programs that are watched
    #[arg(long, help_heading = RESULT)]
    keep_memory: bool,
    /// Keep the command lines of processes in the profile too: they may hold secrets
    #[arg(long, help_heading = RESULT)]
    cmdline: bool,
    /// Record the scheduler's events of the whole host too, for `scxprof sched` and `perf sched`
    #[arg(long, help_heading = WATCH)]
    sched: bool,
    /// With --sched: also interrupts and softirqs
    #[arg(long, help_heading = WATCH, requires = "sched")]
    irq: bool,
    /// Record call stacks beside memory too, for `scxprof stacks -f` and perf report: of EVENT, by default what uses the CPU
    #[arg(
        long,
        value_name = "EVENT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        group = "call_stacks",
        help_heading = WATCH
    )]
    stacks: Option<String>,
    /// The same as --stacks, as perf calls it
    #[arg(short = 'g', group = "call_stacks", help_heading = WATCH)]
    graph: bool,
    /// The same as --stacks --unwind HOW, as perf calls it
    #[arg(
        long,
        value_name = "HOW",
        group = "call_stacks",
        conflicts_with = "unwind",
        value_parser = stacks::unwind,
        help_heading = WATCH
    )]
    call_graph: Option<Unwind>,
    /// With --stacks: samples a second on each CPU [default: 99; each hit of a tracepoint]
    #[arg(
        long,
        value_name = "HZ",
        requires = "call_stacks",
        value_parser = clap::value_parser!(u64).range(1..),
        help_heading = WATCH
    )]
    stacks_freq: Option<u64>,
    /// With --stacks: how stacks are to be unwound, fp or dwarf[,BYTES]; see `scxprof stacks --help`
    #[arg(long, value_name = "HOW", requires = "call_stacks", value_parser = stacks::unwind, help_heading = WATCH)]
    unwind: Option<Unwind>,
    /// Do not name the code of these lines (sym, dso)
    #[arg(long, help_heading = RESULT, requires = "samples_jsonl")]
    no_symbols: bool,
    /// Print how much was recorded
    #[arg(short = 'v', long = "verbose", action = clap::ArgAction::Count, help_heading = RESULT)]
    verbose: u8,
}

impl RecordArgs {
    /// True if call stacks are recorded too.
    fn has_stacks(&self) -> bool {
        self.stacks.is_some() || self.graph || self.call_graph.is_some()
    }
}

/// The destination of the profile as given, and the resolved directories.
struct Places {
    dir: PathBuf,
    /// Only the records are kept, as a file of this name.
    is_records: bool,
    archive: Option<PathBuf>,
    parent: Directory,
    /// The directory of the archive.
    archives: Option<Directory>,
}

impl Places {
    fn new(args: &RecordArgs) -> Result<Self, Failure> {
        let dir = args.output.clone().unwrap_or_else(|| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let is_taken = |name: &str| {
                let is = |path: &Path| path.symlink_metadata().is_ok();
                is(Path::new(name)) || args.archive.is_none() && is(Path::new(&format!("{name}.tar.gz")))
            };
            names::by_default(&Host::here(&args.capture.watch.roots()).name, now, is_taken).into()
        });
        if dir == Path::new("-") {
            return Err(Failure::Usage(anyhow!(
                "-o -: a profile is a directory or an archive, which stdout cannot take"
            )));
        }
        let is_records = dir.extension() == Some(OsStr::new("data"));
        for (option, is_given) in [
            ("-f", args.archive.is_some()),
            ("--samples-jsonl", args.samples_jsonl),
            ("--enable-perf-script", args.enable_perf_script),
        ] {
            if is_records && is_given {
                return Err(Failure::Usage(anyhow!(
                    "-o {}: a perf.data alone is written, so {option} has no effect; name a directory or an archive (.tar.gz)",
                    dir.display()
                )));
            }
        }
        let (dir, named) = match dir.to_str().and_then(|name| name.strip_suffix(".tar.gz")) {
            // The name of the archive was given.
            Some(stem) if !args.disable_archive && args.archive.is_none() => (PathBuf::from(stem), Some(dir)),
            _ => (dir, None),
        };
        let name =
            dir.file_name().ok_or_else(|| Failure::Usage(anyhow!("-o {}: not a directory's name", dir.display())))?;
        let parent = directory_of(&dir);
        let archive = (!args.disable_archive && !is_records).then(|| {
            args.archive.clone().or(named).unwrap_or_else(|| {
                let mut name = name.to_owned();
                name.push(".tar.gz");
                dir.with_file_name(name)
            })
        });
        // An archive leaves no directory, so one of its name is not in its way: scx_characterize unpacks to it.
        let path = archive.as_ref().unwrap_or(&dir);
        if path.symlink_metadata().is_ok() {
            return Err(Failure::Usage(ProfileError::Exists { path: path.clone() }.into()));
        }
        let open = |option: &str, directory: &Path| {
            Directory::open(directory).with_context(|| option.to_owned()).map_err(Failure::Usage)
        };
        let archives = archive.as_deref().map(|archive| open("-f", directory_of(archive))).transpose()?;
        let parent = open("-o", parent)?;
        Ok(Self { dir, is_records, archive, parent, archives })
    }

    /// A path to the directory, once it has its name.
    fn published(&self) -> PathBuf {
        self.parent.path().join(self.dir.file_name().unwrap_or_default())
    }

    /// Gives the complete profile its name: that of the archive, if one is wanted, or else of the directory.
    fn publish(&self, temporary: tempfile::TempDir, stop: &dyn Fn() -> bool) -> anyhow::Result<PathBuf> {
        let (Some(archive), Some(directory)) = (&self.archive, &self.archives) else {
            self.keep(temporary)?;
            return Ok(self.dir.clone());
        };
        if let Err(error) = self.pack(temporary.path(), archive, directory, stop) {
            let path = self.keep(temporary)?;
            let kept = format!("cannot write {}: the profile stays in {}", archive.display(), path.display());
            return Err(error.context(kept));
        }
        let shown = self.shown(temporary.path());
        temporary
            .close()
            .with_context(|| format!("{} is whole, but {} stays too", archive.display(), shown.display()))?;
        Ok(archive.clone())
    }

    /// Gives the directory its name, also if the profile is not whole; returns its path. Where something has that name, which is in
    /// no archive's way, the directory keeps its temporary one.
    fn keep(&self, temporary: tempfile::TempDir) -> anyhow::Result<PathBuf> {
        let path = temporary.keep();
        let shown = self.shown(&path);
        if self.published().symlink_metadata().is_ok() {
            if self.archive.is_some() {
                return Ok(shown);
            }
            return Err(anyhow!(
                "{} was created in the meantime; the profile is in {}",
                self.dir.display(),
                shown.display()
            ));
        }
        let named = if self.is_records { path.join("perf.data") } else { path.clone() };
        fs::rename(named, self.published()).with_context(|| {
            format!("cannot rename {} to {}: the profile stays where it is", shown.display(), self.dir.display())
        })?;
        if self.is_records {
            fs::remove_dir_all(&path)
                .with_context(|| format!("{} is whole, but {} stays too", self.dir.display(), shown.display()))?;
        }
        Ok(self.dir.clone())
    }

    /// The temporary directory as the user knows it.
    fn shown(&self, temporary: &Path) -> PathBuf {
        directory_of(&self.dir).join(temporary.file_name().unwrap_or_default())
    }

    /// Writes the archive of the temporary directory, unless the user wants to `stop`.
    fn pack(
        &self,
        temporary: &Path,
        archive: &Path,
        directory: &Directory,
        stop: &dyn Fn() -> bool,
    ) -> anyhow::Result<()> {
        let name = archive.file_name().with_context(|| format!("-f {}: not a file's name", archive.display()))?;
        let mut file = tempfile::Builder::new()
            .prefix(".scxprof-")
            .suffix(".tmp")
            .permissions(PermissionsExt::from_mode(0o600))
            .tempfile_in(directory.path())?;
        let inside = self.dir.file_name().unwrap_or_default();
        pack(temporary, inside, BufWriter::new(file.as_file_mut()), stop)?;
        file.as_file().sync_all()?;
        file.persist_noclobber(directory.path().join(name)).map_err(|error| error.error)?;
        Ok(())
    }
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Records a profile.
pub(super) fn run(args: &RecordArgs) -> Result<(), Failure> {
    let wanted = &args.capture;
    let places = Places::new(args)?;
    let (builder, mut host) = capture::builder(wanted)?;
    host.keep_memory = args.keep_memory;
    if args.sched {
        host.sched = Some(SchedOptions { irq: args.irq, runtime: true, dsq: true });
    }
    if args.has_stacks() {
        let name = args.stacks.as_deref().filter(|name| !name.is_empty());
        let rate = args.stacks_freq.map(Rate::Frequency);
        let event = stacks::event(name, rate, args.unwind.or(args.call_graph), &wanted.watch.roots());
        host.stacks = Some(event.map_err(|error| Failure::Usage(anyhow!("--stacks {error}")))?);
    }
    let held = capture::hold(&wanted.watch, false)?;
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(places.dir.file_name().unwrap_or_default());
    let temporary = tempfile::Builder::new()
        .prefix(&prefix)
        .suffix(".tmp")
        .permissions(PermissionsExt::from_mode(0o700))
        .tempdir_in(places.parent.path())
        .map_err(|error| Failure::Usage(anyhow!("cannot write {}: {}", places.dir.display(), error.kind())))?;
    // Held open: if the directory above belongs to another user, its name may come to refer to something else.
    let held_open = Directory::open(temporary.path()).map_err(|error| Failure::Usage(error.into()))?;
    let rate_before = capture::max_sample_rate();
    host.record = Some(held_open.path());
    let session = capture::start(&wanted.watch, args.verbose, (builder, host), held.as_ref())?;
    let source = session.source();
    if places.is_records && source == Source::Timer {
        say!(
            "note: a perf.data alone has no addresses of the source timer; -o {} keeps them",
            places.dir.with_extension("tar.gz").display()
        );
    }
    let recorder = session.recorder().ok_or_else(|| Failure::NoResult(anyhow!("nothing was recorded")))?;
    let mut command = held.map(super::command::Held::release).transpose().map_err(Failure::Usage)?;
    let tables = (args.verbose > 1).then(|| session.tables());
    let mut tasks = TaskSink::new(&wanted.watch.roots(), args.cmdline);
    let watched = |ended: &mut dyn FnMut(Progress) -> bool| session.run_into(&mut tasks, ended);
    let outcome = capture::watch(wanted.watch.limit(), command.as_mut(), &signals, tables.as_ref(), watched);
    capture::say_notes(&outcome, rate_before);
    // An incomplete profile is kept too: readers read what it has.
    let tasks = tasks.finish(args.sched);
    if tasks.left_out() > 0 {
        say!(
            "note: tasks.jsonl has no room for {} threads: layers that match users or nice values may be open for them",
            tasks.left_out()
        );
    }
    let written = write(&recorder, &outcome).and_then(|()| Ok(profile::tasks::write(&held_open.path(), &tasks)?));
    let lined = write_samples(args, &held_open.path(), &signals);
    let mut ends = Ends::default();
    ends.command(capture::end(command, &signals));
    let damaged = format!("not all of {} could be written", places.dir.display());
    ends.note(Step::Result, written.context(damaged).map_err(Failure::NoResult));
    let is_lined = ends.note(Step::Result, lined).is_some();
    if ends.has_result() {
        signals.begin();
        let published = places.publish(temporary, &|| signals.seen()).map_err(Failure::NoResult);
        if let Some(path) = ends.note(Step::Result, published) {
            report(args.verbose, &outcome);
            say!("wrote {}", path.display());
            if outcome.accesses == 0 {
                let why = messages::why_none(&outcome, source);
                say!("note: the profile has no samples in {}{why}", messages::lasted(outcome.duration));
            }
        }
    } else if let Some(path) = ends.note(Step::Result, places.keep(temporary).map_err(Failure::NoResult)) {
        let without = if is_lined { "" } else { " without the lines, which `scxprof process` makes" };
        say!("note: the profile stays in {}{without}", path.display());
    }
    ends.loss(&wanted.tuning.max_loss, &outcome.loss);
    ends.sched_loss(&wanted.tuning.max_loss, &outcome.loss.sched);
    ends.end()
}

fn write(recorder: &Recorder, outcome: &Outcome) -> anyhow::Result<()> {
    recorder.finish(outcome).map_err(|error| match error {
        // The directory gets another name.
        ProfileError::Io { path, source, .. } => {
            anyhow::Error::from(source).context(path.file_name().unwrap_or_default().to_string_lossy().into_owned())
        }
        error => error.into(),
    })
}

/// The lines of `process`, from the recording. A signal has ended the recording; the next one ends this, and deletes the lines.
fn write_samples(args: &RecordArgs, dir: &Path, signals: &Signals) -> Result<(), Failure> {
    let forms = [(Form::Json, args.samples_jsonl), (Form::Script, args.enable_perf_script)];
    for (form, _) in forms.into_iter().filter(|(_, is_wanted)| *is_wanted) {
        signals.begin();
        let stop = || signals.seen();
        let profile = input::profile(dir, &stop)?;
        let memory = args.capture.tuning.memory.bytes();
        process::write_lines(profile, form, Some(dir), &FilterArgs::default(), !args.no_symbols, memory, &stop)?;
        if stop() {
            let _ = fs::remove_file(dir.join(form.file()));
            return Err(Failure::NoResult(anyhow!("interrupted before {} was whole", form.file())));
        }
    }
    Ok(())
}

fn report(verbose: u8, outcome: &Outcome) {
    let Outcome { duration, events, samples, accesses, loss, .. } = outcome;
    if verbose > 0 {
        say!("Sampled {}: {events} events, {samples} samples, {accesses} accesses", messages::lasted(*duration));
    }
    if verbose > 0 && loss.sched.events > 0 {
        say!("Scheduling events: {}", loss.sched.events);
    }
    messages::say_loss(loss, verbose > 0 || *accesses == 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_that_is_stopped_leaves_the_directory() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("web");
        let recorded = || {
            let temporary = tempfile::tempdir_in(parent.path()).unwrap();
            fs::write(temporary.path().join("perf.data"), "x").unwrap();
            temporary
        };
        let archive = parent.path().join("web.tar.gz");
        let open = || Directory::open(parent.path()).unwrap();
        let is_records = false;
        let places = Places {
            dir: dir.clone(),
            is_records,
            archive: Some(archive.clone()),
            parent: open(),
            archives: Some(open()),
        };
        let error = format!("{:#}", places.publish(recorded(), &|| true).unwrap_err());
        assert!(error.ends_with(&format!("the profile stays in {}: interrupted", dir.display())), "{error}");
        assert!(dir.join("perf.data").exists());
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1, "nothing of an archive");
        // The directory is in no archive's way; another profile that is stopped stays beside it.
        let error = format!("{:#}", places.publish(recorded(), &|| true).unwrap_err());
        assert!(error.contains(&format!("the profile stays in {}/.tmp", parent.path().display())), "{error}");
        assert_eq!(places.publish(recorded(), &|| false).unwrap(), archive);
        assert!(dir.exists() && archive.exists());
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 3);
        let mut entries = tar::Archive::new(flate2::read::GzDecoder::new(fs::File::open(&archive).unwrap()));
        let names: Vec<_> = entries.entries().unwrap().map(|it| it.unwrap().path().unwrap().into_owned()).collect();
        assert_eq!(names, [Path::new("web/perf.data")]);
    }
}
