//! Traces and profiles as tables in Parquet, which DuckDB, Polars, Spark and DataFusion read. Pure: the caller gives the files.
//!
//! [`ToTables`] takes events in order of time, and samples, and writes rows as soon as all of a row is known, in groups of at most
//! 65,536 rows. So memory grows with the threads, with the slices and wakeups that are open at a time, and with the row groups (a
//! few bytes for each of about 10,000 row groups of a table of a gigabyte), and not with the events. docs/queries.md describes the
//! tables.

mod events;
mod people;
mod runs;
mod schema;
mod slices;
mod write;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{self, Write};

pub use people::PlaceOf;
use people::{People, Person};
use runs::{Follow, Pending};
pub use schema::{ColumnType, ParquetTable, VERSION};
use slices::Slices;
pub use write::Written;
use write::{Cell, Out};

use super::{Event, Info, Source, Trace, TraceEvent, TraceThreads, TraceWhat};
use scxprof_base::sample::sched::{SchedEvent, SchedWhat};
use scxprof_base::sample::{Access, CpuMode, MemoryId, RawSample, Sample};
use scxprof_sched::Tracker;

/// Stands for ids that are not known.
const UNKNOWN: u32 = SchedEvent::UNKNOWN;

/// What a recording says of scheduling events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Knows {
    /// The priorities of threads.
    pub priorities: bool,
    /// Whether a wakeup happened in an interrupt.
    pub contexts: bool,
}

impl Knows {
    /// What a trace has.
    #[must_use]
    pub fn of<R: io::Read + io::Seek>(trace: &Trace<R>) -> Self {
        let source = trace.source();
        let contexts = !matches!(source, Source::Wprof | Source::Systing);
        Self { priorities: source != Source::Wprof || trace.has_switches(), contexts }
    }
}

/// What was written.
#[derive(Debug)]
#[non_exhaustive]
pub struct Finished<W> {
    /// The tables.
    pub tables: Vec<Written<W>>,
    /// Threads and slices for which there was no room.
    pub left_out: u64,
}

/// Writes tables. They are complete after [`ToTables::finish`].
pub struct ToTables<'a, W: Write + Send> {
    out: Out<W>,
    knows: Knows,
    place_of: Option<PlaceOf<'a>>,
    facts: Vec<(String, String)>,
    tracker: Tracker,
    pending: Pending,
    slices: Slices,
    people: People,
}

impl<W: Write + Send> fmt::Debug for ToTables<'_, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToTables").field("knows", &self.knows).finish_non_exhaustive()
    }
}

impl<'a, W: Write + Send> ToTables<'a, W> {
    /// Begins all tables in the files that `create` gives. With `place_of` threads have a cell and a subcell.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn new(
        create: &mut dyn FnMut(ParquetTable) -> io::Result<W>,
        knows: Knows,
        place_of: Option<PlaceOf<'a>>,
    ) -> io::Result<Self> {
        let mut tables = Self {
            out: Out::new(create)?,
            knows,
            place_of,
            facts: Vec::new(),
            tracker: Tracker::default(),
            pending: Pending::default(),
            slices: Slices::default(),
            people: People::default(),
        };
        tables.says("schema", &VERSION.to_string());
        tables.says("version", env!("CARGO_PKG_VERSION"));
        Ok(tables)
    }

    /// Adds `scxprof.NAME` to the metadata of the files.
    pub fn says(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            self.facts.push((format!("scxprof.{name}"), value.to_owned()));
        }
    }

    /// Adds what is known of a trace; the losses are complete at its end.
    pub fn describe(&mut self, info: &Info) {
        self.says("source", info.source.name());
        self.says("tool", &info.tool);
        self.says("clock", &info.clock);
        self.says("kernel", &info.kernel);
        if info.cpus > 0 {
            self.says("cpus", &info.cpus.to_string());
        }
        if let Some(begin) = info.begin_unix {
            self.says("begin_unix", &format!("{begin:.9}"));
        }
        if let Ok(lost) = serde_json::to_string(&info.lost) {
            self.says("lost", &lost);
        }
    }

    /// Takes the next event of a trace.
    pub fn event<R: io::Read + io::Seek>(&mut self, event: &Event, trace: &Trace<R>) {
        match event {
            Event::Sched(event) => {
                self.tracker.unobserved_before(trace.observed_from().unwrap_or(0));
                self.take(event, Some(trace.threads()));
            }
            Event::Trace(event) => self.other(event, &events::Texts { names: trace.names(), tracks: trace.tracks() }),
        }
    }

    /// Takes the next scheduling event of a profile.
    pub fn sched(&mut self, event: &SchedEvent) {
        self.take(event, None);
        if let SchedWhat::Hint { tid, hint } = event.what {
            self.people.hint(tid, hint);
        }
    }

    fn take(&mut self, event: &SchedEvent, described: Option<&TraceThreads>) {
        let Self { out, knows, tracker, pending, people, slices, .. } = self;
        let mut follow = Follow { pending, people, out, event, knows: *knows, described };
        tracker.take(event, &mut follow);
        events::sched(event, slices, out);
    }

    fn other(&mut self, event: &TraceEvent, texts: &events::Texts<'_>) {
        if let TraceWhat::Blocked { tid, io } = event.what {
            self.pending.blocked(self.tracker.threads(), tid, io);
        }
        events::other(event, texts, &mut self.slices, &mut self.out);
    }

    /// Keeps the path of a cgroup; `path` is asked for if it was not seen before.
    pub fn cgroup(&mut self, id: u64, path: impl FnOnce() -> Option<Box<[u8]>>) {
        self.people.cgroup(id, path);
    }

    /// Takes a memory sample.
    pub fn sample(&mut self, sample: &Sample) {
        let known = |value: u64, cell: fn(u64) -> Cell<'static>| if value == 0 { Cell::Null } else { cell(value) };
        let Sample { raw, memory, comm, hint, .. } = *sample;
        let RawSample { time, pid, tid, cgroup, .. } = raw;
        self.people.see(tid, Person { pid, comm: comm.unwrap_or_default(), cgroup, hint });
        let kind = match raw.access {
            Access::Load => "load",
            Access::Store => "store",
            Access::Update => "update",
            Access::Unknown => "",
        };
        let mode = match raw.mode {
            CpuMode::Kernel => "kernel",
            CpuMode::User => "user",
            CpuMode::Hypervisor => "hypervisor",
            CpuMode::GuestKernel => "guest kernel",
            CpuMode::GuestUser => "guest user",
            CpuMode::Unknown => "",
        };
        let (memory, offset) = match memory {
            None => (String::new(), Cell::Null),
            Some(MemoryId::Shared { scope, ino, offset }) => {
                (format!("shared {:x}:{ino}", scope.number()), Cell::bits(offset))
            }
            Some(MemoryId::Frame { phys }) => ("physical".to_owned(), Cell::bits(phys)),
            Some(MemoryId::Private { space, addr }) => (format!("private {space}"), Cell::bits(addr)),
        };
        let row = [
            Cell::uint(time),
            Cell::id(raw.cpu),
            Cell::id(tid),
            Cell::id(pid),
            Cell::text(kind),
            known(raw.size.into(), Cell::uint),
            Cell::bits(raw.addr),
            known(raw.phys, Cell::bits),
            known(raw.page_size, Cell::uint),
            Cell::text(&memory),
            offset,
            known(raw.latency.into(), Cell::uint),
            Cell::uint(raw.period),
            Cell::Float(raw.share.into()),
            known(raw.ip, Cell::bits),
            Cell::text(mode),
            known(raw.data_src.0, Cell::bits),
            known(cgroup, Cell::uint),
            Cell::or_null(hint.map(Cell::bits)),
        ];
        self.out.row(ParquetTable::Sample, &row);
    }

    /// The name of a process, as far as no event had it.
    pub fn process(&mut self, pid: u32, name: scxprof_base::sample::Comm) {
        self.people.fill(pid, pid, name);
    }

    /// The error that ended the writing, if there was one.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn check(&mut self) -> io::Result<()> {
        self.out.check()
    }

    /// Ends the tables of a trace, whose last event was given.
    ///
    /// # Errors
    /// They could not be written.
    pub fn finish_trace<R: io::Read + io::Seek>(mut self, trace: &Trace<R>) -> io::Result<Finished<W>> {
        let threads = trace.threads();
        self.close(Some(threads));
        for (tid, thread) in threads.iter() {
            self.people.fill(tid, thread.pid, thread.comm);
        }
        self.describe(&trace.info());
        self.write_people()
    }

    /// Ends the tables.
    ///
    /// # Errors
    /// They could not be written.
    pub fn finish(mut self) -> io::Result<Finished<W>> {
        self.close(None);
        self.write_people()
    }

    fn close(&mut self, described: Option<&TraceThreads>) {
        let Self { out, tracker, pending, people, slices, .. } = self;
        pending.finish(tracker, people, out, described);
        slices.finish(out);
    }

    fn write_people(mut self) -> io::Result<Finished<W>> {
        self.people.write(self.place_of, &mut self.out);
        let left_out = self.people.left_out + self.slices.left_out + self.tracker.gaps().no_room;
        Ok(Finished { tables: self.out.finish(&self.facts)?, left_out })
    }
}
