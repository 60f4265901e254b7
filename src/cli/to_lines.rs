//! Accesses as lines of text, formatted by several threads where there are several CPUs.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::thread;

use crossbeam_channel::{bounded, Receiver, Sender};
use rustc_hash::FxHashMap;

use super::lines_dir::LINES;
use crate::profile::text::{Snippet, Text};
use crate::profile::{jsonl, script_writer, Profile};
use crate::resolve::{Cgroups, Symbol};
use crate::sample::{CodeAddr, Sample};
use crate::session::Sink;

/// Accesses that one thread formats at a time.
const BLOCK: usize = 1 << 10;
/// Threads that format; more would wait for what reads and names.
const FORMATTERS: usize = 4;
/// Blocks that may wait for each of them, before and after it.
const WAITING: usize = 2;

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
    pub(super) fn code_text(self, symbol: &Symbol) -> Snippet {
        Snippet::of(&match self {
            Self::Json => jsonl::code_text(symbol),
            Self::Script => script_writer::code_text(symbol),
        })
    }

    fn formatter(self, profile: &Profile, names_code: bool) -> Formatter {
        match self {
            Self::Json => {
                let formatter = jsonl::Formatter::new(profile.source(), names_code);
                Formatter::Json(Box::new(formatter.with_events(profile.event_names())))
            }
            Self::Script => Formatter::Script(Text::default()),
        }
    }
}

/// The text about each instruction in lines.
pub(super) type CodeTexts = FxHashMap<CodeAddr, Snippet>;

/// What makes the lines.
#[derive(Debug)]
enum Formatter {
    Json(Box<jsonl::Formatter>),
    Script(Text),
}

impl Formatter {
    /// The lines so far.
    fn lines(&mut self) -> &mut Text {
        match self {
            Self::Json(formatter) => &mut formatter.lines,
            Self::Script(lines) => lines,
        }
    }

    fn add(&mut self, sample: &Sample, cgroup: Option<&[u8]>, codes: Option<&CodeTexts>) {
        let code = codes.zip(sample.code).and_then(|(codes, code)| codes.get(&code));
        match self {
            Self::Json(formatter) => formatter.add(sample, cgroup, code),
            Self::Script(lines) => {
                // Text takes all that is written.
                script_writer::write(lines, sample, cgroup, code.map(Snippet::as_bytes)).unwrap_or_default();
            }
        }
    }

    /// Adds the lines of a block.
    fn add_block(&mut self, block: &Block, codes: Option<&CodeTexts>) {
        let mut cgroups = block.cgroups.iter().peekable();
        let mut cgroup = None;
        for (at, sample) in block.samples.iter().enumerate() {
            if let Some((_, path)) = cgroups.next_if(|(from, _)| *from == at) {
                cgroup = path.as_deref();
            }
            self.add(sample, cgroup, codes);
        }
    }
}

/// Consecutive accesses.
#[derive(Debug, Default)]
struct Block {
    samples: Vec<Sample>,
    /// The paths of their cgroups, each with the first access that has it.
    cgroups: Vec<(usize, Option<Arc<[u8]>>)>,
}

/// A thread that formats.
#[derive(Debug)]
struct Worker {
    to: Sender<(Block, Text)>,
    from: Receiver<(Block, Text)>,
}

/// Threads that format a block each; the blocks are distributed round-robin and come back in the same order.
#[derive(Debug)]
struct Workers {
    all: Vec<Worker>,
    /// The worker that gets the next block.
    next: usize,
    /// The workers of the blocks that did not come back yet, in order.
    pending: VecDeque<usize>,
    /// What is filled again.
    spare: Vec<(Block, Text)>,
}

impl Workers {
    /// So many of them; `None` if there is no room for threads.
    fn start(count: usize, mut formatter: impl FnMut() -> Formatter, codes: Option<&Arc<CodeTexts>>) -> Option<Self> {
        let mut all = Vec::new();
        for _ in 0..count {
            let (to, blocks) = bounded::<(Block, Text)>(WAITING);
            let (formatted, from) = bounded(WAITING);
            let (mut formatter, codes) = (formatter(), codes.cloned());
            let work = move || {
                for (block, mut lines) in blocks {
                    std::mem::swap(formatter.lines(), &mut lines);
                    formatter.lines().clear();
                    formatter.add_block(&block, codes.as_deref());
                    std::mem::swap(formatter.lines(), &mut lines);
                    if formatted.send((block, lines)).is_err() {
                        break;
                    }
                }
            };
            thread::Builder::new().name("lines".to_owned()).spawn(work).ok()?;
            all.push(Worker { to, from });
        }
        Some(Self { all, next: 0, pending: VecDeque::new(), spare: Vec::new() })
    }

    /// Writes the oldest block that did not come back yet.
    fn write_next(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let Some(worker) = self.pending.pop_front().and_then(|worker| self.all.get(worker)) else { return Ok(()) };
        let (block, lines) = worker.from.recv().map_err(|_| died())?;
        out.write_all(lines.as_bytes())?;
        self.spare.push((block, lines));
        Ok(())
    }

    /// Gives `block` to the next worker, and leaves an empty one.
    fn format(&mut self, block: &mut Block, out: &mut dyn Write) -> io::Result<()> {
        if self.pending.len() >= WAITING * self.all.len() {
            self.write_next(out)?;
        }
        let (mut empty, lines) = self.spare.pop().unwrap_or_default();
        empty.samples.clear();
        empty.cgroups.clear();
        let full = std::mem::replace(block, empty);
        let worker = self.all.get(self.next).ok_or_else(died)?;
        worker.to.send((full, lines)).map_err(|_| died())?;
        self.pending.push_back(self.next);
        self.next = (self.next + 1) % self.all.len();
        Ok(())
    }

    /// Writes all that did not come back yet.
    fn finish(&mut self, out: &mut dyn Write) -> io::Result<()> {
        while !self.pending.is_empty() {
            self.write_next(out)?;
        }
        Ok(())
    }
}

fn died() -> io::Error {
    io::Error::other("a thread that formats lines died")
}

/// Where the lines are made.
#[derive(Debug)]
enum Made {
    Here(Formatter),
    ByWorkers { workers: Workers, block: Block, last_cgroup: Option<u64> },
}

/// Writes each access as a line.
pub(super) struct ToLines<W: Write> {
    out: W,
    made: Made,
    codes: Option<Arc<CodeTexts>>,
    /// The last record that was written, to count records.
    last: u64,
    /// Their number.
    pub(super) records: u64,
    failed: Option<io::Error>,
}

impl<W: Write> ToLines<W> {
    /// Writes the accesses of `profile` to `out`, with the text about code, if it is named.
    pub(super) fn new(out: W, form: Form, profile: &Profile, codes: Option<CodeTexts>) -> Self {
        let codes = codes.map(Arc::new);
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let formatter = || form.formatter(profile, codes.is_some());
        let workers = (cpus > 1).then(|| Workers::start(cpus.min(FORMATTERS), formatter, codes.as_ref()));
        let made = match workers.flatten() {
            Some(workers) => Made::ByWorkers { workers, block: Block::default(), last_cgroup: None },
            None => Made::Here(formatter()),
        };
        Self { out, made, codes, last: 0, records: 0, failed: None }
    }

    /// Writes the rest.
    pub(super) fn finish(mut self) -> io::Result<()> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        match &mut self.made {
            Made::Here(formatter) => self.out.write_all(formatter.lines().as_bytes())?,
            Made::ByWorkers { workers, block, .. } => {
                workers.format(block, &mut self.out)?;
                workers.finish(&mut self.out)?;
            }
        }
        self.out.flush()
    }

    fn take(&mut self, samples: &[Sample], cgroups: &mut Cgroups) -> io::Result<()> {
        match &mut self.made {
            Made::Here(formatter) => {
                for sample in samples {
                    let path = cgroups.path(sample.raw.cgroup).map(|path| &**path);
                    formatter.add(sample, path, self.codes.as_deref());
                    let lines = formatter.lines();
                    if lines.len() >= jsonl::BUFFER {
                        self.out.write_all(lines.as_bytes())?;
                        lines.clear();
                    }
                }
            }
            Made::ByWorkers { workers, block, last_cgroup } => {
                // It may have got a path since the last call.
                *last_cgroup = None;
                for sample in samples {
                    if block.samples.is_empty() || *last_cgroup != Some(sample.raw.cgroup) {
                        *last_cgroup = Some(sample.raw.cgroup);
                        block.cgroups.push((block.samples.len(), cgroups.path(sample.raw.cgroup).cloned()));
                    }
                    block.samples.push(*sample);
                    if block.samples.len() >= BLOCK {
                        workers.format(block, &mut self.out)?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl<W: Write> Sink for ToLines<W> {
    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups) {
        self.samples(std::slice::from_ref(sample), cgroups);
    }

    fn samples(&mut self, samples: &[Sample], cgroups: &mut Cgroups) {
        for sample in samples {
            self.records += u64::from(self.last != sample.record);
            self.last = sample.record;
        }
        if self.failed.is_none() {
            self.failed = self.take(samples, cgroups).err();
        }
    }

    fn wants_code(&self) -> bool {
        self.codes.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Comm, RawSample, Source};
    use std::num::NonZeroU32;

    const SAMPLES: u64 = 5 * BLOCK as u64 + 7;

    /// A sink that makes its lines here, or by three workers.
    fn to_lines<W: Write>(out: W, by_workers: bool) -> ToLines<W> {
        let formatter = || Formatter::Json(Box::new(jsonl::Formatter::new(Source::Faults, true)));
        let code =
            |offset| (CodeAddr { module: NonZeroU32::MIN, offset }, Snippet::of(format!(",{offset}").as_bytes()));
        let codes = Some(Arc::new((0..50).map(code).collect::<CodeTexts>()));
        let made = if by_workers {
            let workers = Workers::start(3, formatter, codes.as_ref()).unwrap();
            Made::ByWorkers { workers, block: Block::default(), last_cgroup: None }
        } else {
            Made::Here(formatter())
        };
        ToLines { out, made, codes, last: 0, records: 0, failed: None }
    }

    /// Gives it samples of several cgroups, of which one gets its path meanwhile, in pieces of all sizes.
    fn fill<W: Write>(sink: &mut ToLines<W>) {
        let mut cgroups = Cgroups::recorded();
        cgroups.record(1, b"/web");
        cgroups.record(2, b"/db");
        let sample = |at: u64| Sample {
            raw: RawSample { time: at, cgroup: at / 37 % 4, ..RawSample::default() },
            record: at + 1,
            comm: Some(Comm::from("web")),
            code: Some(CodeAddr { module: NonZeroU32::MIN, offset: at % 60 }),
            ..Sample::default()
        };
        let samples: Vec<Sample> = (0..SAMPLES).map(sample).collect();
        let (mut rest, mut size) = (samples.as_slice(), 1);
        while !rest.is_empty() {
            let (some, others) = rest.split_at(size.min(rest.len()));
            sink.samples(some, &mut cgroups);
            (rest, size) = (others, size * 2 % 1021);
            if rest.len() < samples.len() / 2 {
                cgroups.record(3, b"/late");
            }
        }
    }

    #[test]
    fn workers_make_the_same_lines_in_the_same_order() {
        let made = [false, true].map(|by_workers| {
            let mut out = Vec::new();
            let mut sink = to_lines(&mut out, by_workers);
            fill(&mut sink);
            assert_eq!(sink.records, SAMPLES);
            sink.finish().unwrap();
            String::from_utf8(out).unwrap()
        });
        assert_eq!(made[0].lines().count() as u64, SAMPLES);
        assert!(made[0].contains("/late") && made[0].contains("[unknown]"));
        assert!(made[0] == made[1]);
    }

    /// Takes some bytes, and then no more.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_cannot_be_written_is_an_error() {
        for by_workers in [false, true] {
            for bytes in [0, 700_000] {
                let mut sink = to_lines(Full(bytes), by_workers);
                fill(&mut sink);
                assert_eq!(sink.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
            }
        }
    }

    #[test]
    fn a_dead_worker_is_an_error() {
        let mut sink = to_lines(Vec::new(), true);
        if let Made::ByWorkers { workers, .. } = &mut sink.made {
            for worker in &mut workers.all {
                worker.to = bounded(1).0;
            }
        }
        fill(&mut sink);
        assert!(sink.finish().unwrap_err().to_string().contains("died"));
    }
}
