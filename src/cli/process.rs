//! `scxprof process`: a profile as lines of JSON, one per access.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{anyhow, Context};
use clap::Args;
use rustc_hash::{FxHashMap, FxHashSet};

use super::args::{text, MaxLossArgs, MemoryArgs, RESULT};
use super::decision;
use super::ends::{Ends, Step};
use super::failure::Failure;
use super::filter::{Filter, FilterArgs};
use super::input::{self, Damage, InputArgs};
use super::lines_dir::{LinesDir, LINES, SCHED_LINES};
use super::messages;
use super::output::Stdout;
use super::say::say_lines;
use super::signals::Signals;
use crate::host::phases::{Phase, Phases};
use crate::host::Roots;
use crate::profile::{jsonl, sched_text, script_writer, Profile, Records};
use crate::resolve::{symbolize, Cgroups, Symbol, SymbolOptions};
use crate::sample::sched::SchedEvent;
use crate::sample::{CodeAddr, Sample, Source};
use crate::session::{Outcome, Sink};
use scxprof_perf::format::record_name;
use scxprof_perf::reader::PerfData;

const EXAMPLES: &str = "\
Examples:
  scxprof process -f host.tar.gz                 writes host.out/perf.jsonl
  scxprof process -f perf.data --comm '^web'     what perf mem record wrote, some threads of it
  scxprof process -f web -o - | jq .addr         the lines of a directory to a filter
  perf script -F comm,pid,tid,time,addr,ip > perf.script   makes text that it reads";

/// Different instructions that are named; a name takes some 200 bytes.
const MAX_CODES: usize = 1 << 17;
/// Bytes of all their text in lines.
const MAX_TEXT: usize = 32 << 20;

/// Convert a profile to JSON Lines: DIR/perf.jsonl
#[derive(Debug, Args)]
#[command(
    after_help = EXAMPLES,
    mut_args(text("memory", "Memory for queues and mappings")),
    mut_args(text("max_loss", "Exit with 4 if more lines of a text than this are no samples")),
)]
pub(super) struct ProcessArgs {
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    max_loss: MaxLossArgs,
    /// The directory that is made for the lines, or - for the lines alone on stdout [default: PROFILE.out, without .tar.gz]. One that
    /// `process` wrote is replaced
    #[arg(short = 'o', long = "output", value_name = "DIR", help_heading = RESULT)]
    output: Option<PathBuf>,
    /// Print what was left out and why, each unreadable record, and records by type (-vv: also what each phase took)
    #[arg(short = 'v', long = "verbose", action = clap::ArgAction::Count, help_heading = RESULT)]
    verbose: u8,
    /// Do not name the code of the accesses (sym, dso)
    #[arg(long, help_heading = RESULT)]
    no_symbols: bool,
    #[command(flatten)]
    filter: FilterArgs,
}

/// The form of the lines of accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// JSON.
    Json,
    /// What `perf script` prints.
    Script,
}

impl Form {
    /// The name of their file.
    pub(super) fn file(self) -> &'static str {
        match self {
            Self::Json => LINES,
            Self::Script => script_writer::FILE,
        }
    }

    /// The part of a line that names its instruction.
    fn code_text(self, symbol: &Symbol) -> Vec<u8> {
        match self {
            Self::Json => jsonl::code_text(symbol),
            Self::Script => script_writer::code_text(symbol),
        }
    }
}

/// What writes them.
enum LineWriter<W: Write> {
    Json(jsonl::Writer<W>),
    Script(BufWriter<W>),
}

/// The text about each instruction in lines.
type CodeTexts = FxHashMap<CodeAddr, Vec<u8>>;

/// Writes each access as a line.
struct ToLines<W: Write> {
    writer: LineWriter<W>,
    /// The text about code in lines, if it is named.
    codes: Option<CodeTexts>,
    /// The last record that was written, to count records.
    last: u64,
    records: u64,
    failed: Option<std::io::Error>,
}

impl<W: Write> ToLines<W> {
    fn new(out: W, form: Form, profile: &Profile) -> Self {
        let writer = match form {
            Form::Json => {
                LineWriter::Json(jsonl::Writer::new(out, profile.source()).with_events(profile.event_names()))
            }
            Form::Script => LineWriter::Script(BufWriter::new(out)),
        };
        Self { writer, codes: None, last: 0, records: 0, failed: None }
    }

    fn finish(self) -> std::io::Result<()> {
        match self.failed {
            Some(error) => Err(error),
            None => match self.writer {
                LineWriter::Json(writer) => writer.finish().map(drop),
                LineWriter::Script(mut writer) => writer.flush(),
            },
        }
    }
}

impl<W: Write> Sink for ToLines<W> {
    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups) {
        let path = cgroups.path(sample.raw.cgroup).map(|path| &**path);
        let code = self.codes.as_ref().zip(sample.code).and_then(|(codes, code)| codes.get(&code));
        if self.failed.is_none() {
            let code = code.map(Vec::as_slice);
            self.failed = match &mut self.writer {
                LineWriter::Json(writer) => {
                    // scx_characterize reads no line without a name.
                    let code = code.or(self.codes.as_ref().map(|_| jsonl::UNKNOWN_CODE));
                    writer.write(sample, path, code).err()
                }
                LineWriter::Script(writer) => script_writer::write(writer, sample, path, code).err(),
            };
        }
        self.records += u64::from(self.last != sample.record);
        self.last = sample.record;
    }

    fn wants_code(&self) -> bool {
        self.codes.is_some()
    }
}

/// A file, or stdout, that is opened for the first byte: without any there is no file.
struct Late {
    /// `None` for stdout.
    path: Option<PathBuf>,
    out: Option<Box<dyn Write>>,
}

impl Write for Late {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let out = match (self.out.take(), &self.path) {
            (Some(out), _) => out,
            (None, Some(path)) => Box::new(BufWriter::new(create(path)?)),
            (None, None) => Box::new(BufWriter::new(std::io::stdout().lock())),
        };
        self.out.insert(out).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.as_mut().map_or(Ok(()), Write::flush)
    }
}

/// Writes each scheduling event as a line.
struct SchedToLines {
    writer: sched_text::Writer<Late>,
    failed: Option<std::io::Error>,
}

impl SchedToLines {
    fn new(path: Option<PathBuf>) -> Self {
        Self { writer: sched_text::Writer::new(Late { path, out: None }), failed: None }
    }

    /// The number of lines.
    fn finish(self) -> Result<u64, Failure> {
        let lines = self.writer.lines;
        let finished = self.failed.map_or_else(|| self.writer.finish(), Err);
        finished.context(format!("cannot write {SCHED_LINES}")).map_err(Failure::NoResult)?;
        Ok(lines)
    }
}

impl Sink for SchedToLines {
    fn sample(&mut self, _: &Sample, _: &mut Cgroups) {}

    fn sched(&mut self, events: &[SchedEvent], _: &mut Cgroups) {
        if self.failed.is_none() {
            self.failed = events.iter().try_for_each(|event| self.writer.write(event)).err();
        }
    }
}

/// A new file that only its owner can read.
fn create(path: &Path) -> std::io::Result<File> {
    File::options().write(true).create_new(true).mode(0o600).open(path)
}

/// The instructions of the samples, each once.
#[derive(Default)]
struct Codes {
    unique: FxHashSet<CodeAddr>,
    /// Accesses whose instruction exceeded the bound.
    unlisted: u64,
}

impl Sink for Codes {
    fn sample(&mut self, sample: &Sample, _: &mut Cgroups) {
        let Some(code) = sample.code else { return };
        if self.unique.len() < MAX_CODES {
            self.unique.insert(code);
        } else {
            self.unlisted += u64::from(!self.unique.contains(&code));
        }
    }

    fn wants_code(&self) -> bool {
        true
    }
}

/// Passes the samples of a profile to `sink`, those that the filter keeps if there is one.
fn read(
    profile: &mut Profile,
    memory: usize,
    filter: Option<&mut Filter>,
    (sink, sched): (&mut dyn Sink, Option<&mut SchedToLines>),
    stop: &dyn Fn() -> bool,
) -> Result<Outcome, Failure> {
    let mut select = filter.map(|filter| |sample: &Sample, cgroups: &mut Cgroups| filter.keeps(sample, cgroups));
    let mut builder = input::session(profile, memory);
    if let Some(select) = &mut select {
        builder = builder.select(select);
    }
    if let Some(sched) = sched {
        builder = builder.sink(sched);
    }
    // What was read until a signal came is written, if that is to stdout.
    Ok(input::start(builder)?.run_into(sink, |_| stop()))
}

/// Reads the whole profile for its code, and returns it from its beginning with the text for each instruction
/// and what that took.
fn name_codes(
    mut profile: Profile,
    form: Form,
    memory: usize,
    filter: Option<&mut Filter>,
    stop: &dyn Fn() -> bool,
) -> Result<(Profile, CodeTexts, Phases), Failure> {
    let mut codes = Codes::default();
    // Parts that cannot be read are reported when it is read for its lines.
    let begin = Instant::now();
    let Outcome { modules, phases: stages, .. } = read(&mut profile, memory, filter, (&mut codes, None), stop)?;
    let mut phases = Phases::default();
    let cpu = stages.all().iter().map(|stage| stage.cpu).sum();
    phases.push(Phase { name: "read for its code", wall: begin.elapsed(), cpu });
    if codes.unlisted > 0 {
        say!("note: the code of {} lines has no name: there are too many different instructions", codes.unlisted);
    }
    let begin = profile.recorded_here(&Roots::default());
    let options = SymbolOptions { begin, cache: decision::cache(), ..SymbolOptions::default() };
    let symbols = phases.measure("name code", || symbolize(&modules, codes.unique, &options));
    for note in symbols.notes() {
        say!("note: {note}");
    }
    let (mut texts, mut room, mut unsaid) = (FxHashMap::default(), MAX_TEXT, 0u64);
    for (code, symbol) in symbols.iter() {
        let text = form.code_text(symbol);
        match room.checked_sub(text.len()) {
            Some(rest) => {
                room = rest;
                texts.insert(code, text);
            }
            None => unsaid += 1,
        }
    }
    if unsaid > 0 {
        say!("note: {unsaid} instructions have no name in the lines: the names are too long");
    }
    Ok((profile.rewind().map_err(|error| Failure::NoResult(error.into()))?, texts, phases))
}

/// A profile with written lines.
pub(super) struct Lines {
    profile: Profile,
    records: u64,
    /// Lines of scheduling events.
    sched: u64,
    filtered_out: u64,
    unselected: Option<String>,
    outcome: Outcome,
    /// What to do for the profile to have addresses, see [`input::addresses`].
    addresses: Option<&'static str>,
}

/// Writes the accesses of a profile to their file in `dir`, or to stdout, with the names of their code if `named`.
pub(super) fn write_lines(
    mut profile: Profile,
    form: Form,
    dir: Option<&Path>,
    selection: &FilterArgs,
    named: bool,
    memory: usize,
    stop: &dyn Fn() -> bool,
) -> Result<Lines, Failure> {
    let path = dir.map(|dir| dir.join(form.file()));
    let name = path.as_ref().map_or("to stdout".to_owned(), |path| path.display().to_string());
    let failed = || format!("cannot write {name}");
    let out: Box<dyn Write> = match &path {
        Some(path) => Box::new(create(path).with_context(failed).map_err(Failure::NoResult)?),
        None => Box::new(std::io::stdout().lock()),
    };
    let addresses = input::addresses(&mut profile);
    let mut sink = ToLines::new(out, form, &profile);
    let filter = || if selection.is_empty() { Ok(None) } else { Filter::new(selection).map(Some) };
    let mut phases = Phases::default();
    if named {
        let (rewound, codes, of_codes) = name_codes(profile, form, memory, filter()?.as_mut(), stop)?;
        (profile, sink.codes, phases) = (rewound, Some(codes), of_codes);
    }
    let mut filter = filter()?;
    // Where they have a file of their own, that has all.
    let is_here = form == Form::Json && matches!(profile.sched_beside(), Ok(None));
    let mut sched = dir.filter(|_| is_here).map(|dir| SchedToLines::new(Some(dir.join(SCHED_LINES))));
    let mut outcome = read(&mut profile, memory, filter.as_mut(), (&mut sink, sched.as_mut()), stop)?;
    phases.extend(&outcome.phases);
    outcome.phases = phases;
    let records = sink.records;
    let sched = sched.map_or(Ok(0), SchedToLines::finish)?;
    sink.finish().with_context(failed).map_err(Failure::NoResult)?;
    let filtered_out = filter.as_ref().map_or(0, |filter| filter.left_out);
    let unselected = filter.and_then(|filter| filter.nothing());
    Ok(Lines { profile, records, sched, filtered_out, unselected, outcome, addresses })
}

/// Writes the scheduling events of a profile to their file in `dir`, or to stdout; returns the lines and what is said of them.
fn write_sched(
    profile: &mut Profile,
    dir: Option<&Path>,
    memory: usize,
    stop: &dyn Fn() -> bool,
) -> Result<(u64, Outcome), Failure> {
    let mut sink = SchedToLines::new(dir.map(|dir| dir.join(SCHED_LINES)));
    let outcome = input::start(input::session(profile, memory))?.run_into(&mut sink, |_| stop());
    Ok((sink.finish()?, outcome))
}

/// Reads the profile and writes the lines.
pub(super) fn run(args: &ProcessArgs, stdout: Stdout) -> Result<(), Failure> {
    Filter::new(&args.filter)?;
    let to_stdout = args.output.as_deref() == Some(Path::new("-"));
    if to_stdout {
        stdout.demand("there is nowhere to print to; use -o DIR")?;
    }
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let stop = || signals.seen();
    input::check_profile(args.input.path())?;
    // Before a large archive is unpacked for nothing.
    let out = if to_stdout { None } else { Some(LinesDir::new(args.input.path(), args.output.as_deref())?) };
    let profile = input::profile(args.input.path(), &stop)?;
    if matches!(profile.records, Records::Lines(_)) {
        let path = args.input.path().display();
        return Err(Failure::Usage(anyhow!("{path}: has the lines of `process` already: extract reads them")));
    }
    let memory = args.memory.bytes();
    let dir = out.as_ref().map(|out| out.dir.path());
    if profile.has_only_sched() {
        return only_sched(args, profile, out, &stop);
    }
    let lines = write_lines(profile, Form::Json, dir.as_deref(), &args.filter, !args.no_symbols, memory, &stop)?;
    if stop() {
        return Err(if to_stdout { Failure::NoResult(anyhow!("interrupted")) } else { input::interrupted() });
    }
    let Lines { profile, .. } = &lines;
    // scx_characterize has a file for memory and one for the scheduler.
    let beside = profile.sched_beside().map_err(|error| Failure::NoResult(error.into()))?;
    let mut ends = Ends::default();
    if beside.is_some() && dir.is_none() {
        say!("note: the scheduling events beside the samples are written only to a directory (-o DIR)");
    }
    if let (Some(mut sched), Some(dir)) = (beside, &dir) {
        let (count, outcome) = write_sched(&mut sched, Some(dir), memory, &stop)?;
        if stop() {
            return Err(input::interrupted());
        }
        report_sched(&sched, count, &outcome);
        ends.note(Step::Damage, Damage::of_profile(&sched).check());
    }
    if let Some(out) = &out {
        let meta = profile.meta_of_lines(&lines.outcome, profile.damage());
        meta.write(&out.dir.path()).map_err(|error| Failure::NoResult(error.into()))?;
        write_tasks(profile, &out.dir.path())?;
    }
    let path = out.as_ref().map(|out| out.path.clone());
    if let (Some(out), Some(path)) = (out, &path) {
        out.publish().with_context(|| format!("cannot write {}", path.display())).map_err(Failure::NoResult)?;
    }
    report(args, &lines);
    if let Some(path) = path {
        say!("wrote {}", path.join(LINES).display());
    }
    ends.note(Step::Damage, Damage::of_profile(profile).check());
    ends.note(Step::Loss, input::check_lines(args.max_loss.max_loss, profile));
    ends.end()
}

/// What the profile says of threads beside samples, if it says anything.
fn write_tasks(profile: &Profile, dir: &Path) -> Result<(), Failure> {
    let tasks = input::recorded_tasks(profile);
    if tasks.is_empty() {
        return Ok(());
    }
    crate::profile::tasks::write(dir, &tasks).map_err(|error| Failure::NoResult(error.into()))
}

/// The same for a profile without any memory.
fn only_sched(
    args: &ProcessArgs,
    mut profile: Profile,
    out: Option<LinesDir>,
    stop: &dyn Fn() -> bool,
) -> Result<(), Failure> {
    let dir = out.as_ref().map(|out| out.dir.path());
    let (count, outcome) = write_sched(&mut profile, dir.as_deref(), args.memory.bytes(), stop)?;
    if stop() {
        return Err(if out.is_none() { Failure::NoResult(anyhow!("interrupted")) } else { input::interrupted() });
    }
    let damage = Damage::of_profile(&profile);
    report_sched(&profile, count, &outcome);
    if count == 0 {
        let path = args.input.path().display();
        return Err(Failure::NoResult(anyhow!("{path} has no scheduling events{}", damage.because("the profile"))));
    }
    if let Some(out) = out {
        let meta = profile.meta_of_lines(&outcome, profile.damage());
        meta.write(&out.dir.path()).map_err(|error| Failure::NoResult(error.into()))?;
        write_tasks(&profile, &out.dir.path())?;
        let path = out.path.join(SCHED_LINES);
        out.publish().with_context(|| format!("cannot write {}", path.display())).map_err(Failure::NoResult)?;
        say!("wrote {}", path.display());
    }
    let mut ends = Ends::default();
    ends.note(Step::Damage, damage.check());
    ends.note(Step::Loss, input::check_lines(args.max_loss.max_loss, &profile));
    ends.end()
}

fn report_sched(profile: &Profile, count: u64, outcome: &Outcome) {
    let (all, _) = profile.samples();
    let unparseable = outcome.loss.sched.malformed;
    let others = all.saturating_sub(count).saturating_sub(unparseable);
    say!("Parsed {count} of {all} sched trace records ({others} are of other events, {unparseable} unparseable)");
    for line in &outcome.notes {
        say!("note: {line}");
    }
}

fn report(args: &ProcessArgs, lines: &Lines) {
    let Lines { profile, records, filtered_out, outcome, .. } = lines;
    let (records, filtered_out) = (*records, *filtered_out);
    let (all, not_found) = profile.samples();
    let unparseable = outcome.loss.malformed + not_found;
    let skipped = all.saturating_sub(records).saturating_sub(unparseable);
    say!("Parsed {records} of {all} records ({skipped} are not memory samples, {unparseable} unparseable)");
    if lines.sched > 0 {
        say!("Wrote {} scheduling events to {SCHED_LINES}", lines.sched);
    }
    if filtered_out > 0 {
        say!("note: {filtered_out} accesses left out by the selection");
    }
    if let Some(unselected) = &lines.unselected {
        say!("note: {unselected}");
    }
    // With a selection it is unknown which of them it would have contained.
    let nothing = outcome.samples.saturating_sub(records);
    if profile.source() == Source::Timer && filtered_out == 0 && nothing > 0 {
        say!("note: {nothing} gave no address");
    }
    messages::say_loss(&outcome.loss, true);
    if let Some(sentence) = messages::without_address(outcome, lines.addresses) {
        say!("note: {sentence}");
    }
    // The recorder's own notes were printed when it recorded. The lines do not show what was unknown.
    let recorded = profile.meta.as_ref().map(|meta| meta.notes.as_slice()).unwrap_or_default();
    for line in outcome.notes.iter().filter(|line| !recorded.contains(line)) {
        say!("note: {line}");
    }
    if args.verbose > 0 {
        for line in profile.unparseable() {
            say!("note: {line}");
        }
        for (kind, count) in profile.perf_data().into_iter().flat_map(PerfData::counts) {
            say!("{:>10} {}", count, record_name(kind));
        }
        if let Some(meta) = &profile.meta {
            let host = &meta.host;
            say!("Recorded by scxprof {} on {} ({} CPUs, Linux {})", meta.scxprof, host.name, host.cpus, host.kernel);
        }
    }
    if args.verbose > 1 {
        say_lines(&messages::phases(&outcome.phases));
    }
}
