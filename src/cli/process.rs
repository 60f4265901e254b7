//! `scxprof process`: a profile to lines of JSON, one an access.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use anyhow::{anyhow, Context};
use clap::Args;

use super::filter::{Filter, FilterArgs, Filtered};
use super::Failure;
use crate::profile::meta::Host;
use crate::profile::names::{recorded_here, Codes};
use crate::profile::{jsonl, record_name, Profile, ProfileError};
use crate::resolve::{symbolize, Cgroups, Modules, Roots, SymbolOptions};
use crate::sample::{Sample, Source};
use crate::sampler::loss::Loss;
use crate::session::{replay, Outcome, Sink};

const EXAMPLES: &str = "\
Examples:
  scxprof process -f host.tar.gz                 writes host.tar.gz.out/perf.jsonl
  scxprof process -f perf.data --comm '^web'     what perf mem record wrote, some threads of it";

/// The kind of `PERF_RECORD_SAMPLE`.
const SAMPLE: u32 = 9;

/// Turn a profile into lines of JSON: PROFILE.out/perf.jsonl
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ProcessArgs {
    /// A profile: .tar.gz, directory, or perf.data
    #[arg(short = 'f', long = "file", value_name = "PROFILE")]
    profile: PathBuf,
    /// Memory for queues and mappings
    #[arg(long, value_name = "MIB", default_value = "64", value_parser = clap::value_parser!(u32).range(8..))]
    memory: u32,
    /// What was left out and why, each record that could not be read, records by type
    #[arg(short = 'v', long = "verbose", action = clap::ArgAction::Count)]
    verbose: u8,
    /// Do not name the code of the accesses (sym, dso)
    #[arg(long)]
    no_symbols: bool,
    #[command(flatten)]
    filter: FilterArgs,
}

/// Writes each access as a line.
pub(super) struct ToLines<W: Write> {
    writer: jsonl::Writer<W>,
    /// The code of each line, where it shall be named.
    codes: Option<Codes>,
    /// The last record that was written, to count records.
    last: u64,
    records: u64,
    failed: Option<std::io::Error>,
}

impl<W: Write> ToLines<W> {
    pub(super) fn new(out: W, source: Source) -> Self {
        Self { writer: jsonl::Writer::new(out, source), codes: None, last: 0, records: 0, failed: None }
    }

    pub(super) fn finish(self) -> std::io::Result<()> {
        match self.failed {
            Some(error) => Err(error),
            None => self.writer.finish().map(drop),
        }
    }
}

impl<W: Write> Sink for ToLines<W> {
    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups) {
        let path = cgroups.path(sample.cgroup).map(|path| &**path);
        if self.failed.is_none() {
            let written = self.writer.write(sample, path);
            let kept = written.and_then(|()| self.codes.as_mut().map_or(Ok(()), |codes| codes.push(sample.code)));
            self.failed = kept.err();
        }
        self.records += u64::from(self.last != sample.record);
        self.last = sample.record;
    }

    fn wants_code(&self) -> bool {
        self.codes.is_some()
    }
}

/// Writes the lines at `path` once more, with the names of their code.
fn name_lines(path: &Path, codes: Codes, modules: &Modules, profile: &Profile) -> anyhow::Result<()> {
    let here = Host::here(&Roots::default()).name;
    let begin = profile.meta.as_ref().and_then(|meta| recorded_here(meta, &here));
    let symbols = symbolize(modules, codes.unique(), &SymbolOptions { begin, ..SymbolOptions::default() });
    let lines = BufReader::with_capacity(1 << 18, File::open(path)?);
    let named = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
    if codes.unlisted > 0 {
        say!("scxprof: the code of {} lines has no name: there are too many different instructions", codes.unlisted);
    }
    codes.insert(lines, &symbols, BufWriter::with_capacity(1 << 18, named.as_file()))?;
    named.as_file().set_permissions(fs::metadata(path)?.permissions())?;
    named.persist(path)?;
    Ok(())
}

/// Where the lines go: a directory under a temporary name until it is whole.
struct Out {
    path: PathBuf,
    temporary: tempfile::TempDir,
}

impl Out {
    fn new(profile: &Path) -> Result<Self, Failure> {
        let mut name = profile.file_name().map_or_else(|| "profile".into(), ToOwned::to_owned);
        name.push(".out");
        let parent = match profile.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let path = parent.join(&name);
        if path.symlink_metadata().is_ok() {
            return Err(Failure::Usage(ProfileError::Exists { path }.into()));
        }
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(&name);
        let temporary = tempfile::Builder::new()
            .prefix(&prefix)
            .suffix(".tmp")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .tempdir_in(parent)
            .with_context(|| format!("cannot write in {}", parent.display()))
            .map_err(Failure::NoResult)?;
        Ok(Self { path, temporary })
    }

    fn publish(self) -> anyhow::Result<()> {
        if self.path.symlink_metadata().is_ok() {
            return Err(ProfileError::Exists { path: self.path }.into());
        }
        let temporary = self.temporary.keep();
        fs::rename(&temporary, &self.path).inspect_err(|_| {
            // Nothing half-done stays behind.
            let _ = fs::remove_dir_all(&temporary);
        })?;
        Ok(())
    }
}

/// Opens a profile.
pub(super) fn open(path: &Path) -> Result<Profile, Failure> {
    Profile::open(path).map_err(|error| match &error {
        ProfileError::Io { call: "open", .. } | ProfileError::NoData { .. } => Failure::Usage(error.into()),
        _ => Failure::NoResult(error.into()),
    })
}

/// Reads the profile and writes the lines.
pub(super) fn run(args: &ProcessArgs) -> Result<(), Failure> {
    let filter = Filter::new(&args.filter)?;
    let mut profile = open(&args.profile)?;
    let out = Out::new(&args.profile)?;
    let signals = super::capture::signals().map_err(Failure::Unsupported)?;
    let lines = out.temporary.path().join("perf.jsonl");
    let source = profile.source();
    let written = File::create(&lines).with_context(|| format!("cannot write {}", lines.display()));
    let writer = BufWriter::with_capacity(1 << 18, written.map_err(Failure::NoResult)?);
    let mut sink = ToLines::new(writer, source);
    if !args.no_symbols {
        let aside = tempfile::tempfile_in(out.temporary.path()).context("cannot write a temporary file");
        sink.codes = Some(Codes::new(aside.map_err(Failure::NoResult)?));
    }
    let mut filtered = Filtered { filter, sink: &mut sink };
    let memory = (args.memory as usize).saturating_mul(1 << 20);
    let replayed = replay(&mut profile, memory, &mut filtered, || signals.load(Ordering::Relaxed) > 0);
    let filtered_out = filtered.filter.left_out;
    if signals.load(Ordering::Relaxed) > 0 {
        return Err(Failure::NoResult(anyhow!("interrupted: nothing was written")));
    }
    let records = sink.records;
    let codes = sink.codes.take();
    sink.finish().with_context(|| format!("cannot write {}", lines.display())).map_err(Failure::NoResult)?;
    let mut damage = Vec::new();
    let outcome = replayed.unwrap_or_else(|error| {
        damage.push(format!("{}: {error}", args.profile.display()));
        Outcome::default()
    });
    if let Some(codes) = codes {
        name_lines(&lines, codes, &outcome.modules, &profile)
            .with_context(|| format!("cannot write {}", lines.display()))
            .map_err(Failure::NoResult)?;
    }
    if let Some(meta) = &profile.meta {
        let path = out.temporary.path().join("meta.json");
        serde_json::to_vec_pretty(meta)
            .map_err(anyhow::Error::from)
            .and_then(|bytes| fs::write(&path, bytes).map_err(Into::into))
            .with_context(|| format!("cannot write {}", path.display()))
            .map_err(Failure::NoResult)?;
    }
    let path = out.path.clone();
    out.publish().with_context(|| format!("cannot write {}", path.display())).map_err(Failure::NoResult)?;
    damage.extend(profile.damage());
    report(args, &profile, source, records, &outcome, filtered_out);
    say!("scxprof: wrote {}", path.join("perf.jsonl").display());
    damaged(&damage)
}

/// An end that says what could not be read, where anything could not.
pub(super) fn damaged(damage: &[String]) -> Result<(), Failure> {
    if damage.is_empty() {
        return Ok(());
    }
    Err(Failure::Loss(anyhow!("the profile is damaged: {}; what could be read was used", damage.join("; "))))
}

fn report(args: &ProcessArgs, profile: &Profile, source: Source, records: u64, outcome: &Outcome, filtered_out: u64) {
    let gaps = profile.perf_data.damage().gaps;
    let samples: u64 = profile.perf_data.counts().filter(|(kind, _)| *kind == SAMPLE).map(|(_, count)| count).sum();
    let Loss { malformed, .. } = outcome.loss;
    let (all, unparseable) = (samples + gaps, malformed + gaps);
    let skipped = all.saturating_sub(records).saturating_sub(unparseable);
    say!("Parsed {records} of {all} records ({skipped} skipped, {unparseable} unparseable)");
    if filtered_out > 0 {
        say!("scxprof: {filtered_out} accesses left out by the selection");
    }
    // With a selection nobody knows which of them would have been in it.
    let nothing = outcome.samples.saturating_sub(records);
    if source == Source::Timer && filtered_out == 0 && nothing > 0 {
        say!("scxprof: {nothing} gave no address");
    }
    for line in outcome.loss.left_out().into_iter().chain(outcome.loss.lines()) {
        say!("scxprof: {line}");
    }
    if args.verbose > 0 {
        for line in &profile.unparseable {
            say!("scxprof: {line}");
        }
        for (kind, count) in profile.perf_data.counts() {
            say!("{:>10} {}", count, record_name(kind));
        }
        if let Some(meta) = &profile.meta {
            let host = &meta.host;
            say!("Recorded by scxprof {} on {} ({} CPUs, Linux {})", meta.scxprof, host.name, host.cpus, host.kernel);
        }
    }
}
