//! A sink that writes tables: what a profile has, for queries.

use std::fmt;
use std::io::{self, Write};

use super::sink::Sink;
use crate::resolve::Cgroups;
use crate::sample::sched::SchedEvent;
use crate::sample::{Comm, Sample};
use scxprof_trace::parquet::{Finished, ToTables};

/// Writes a profile as tables.
pub struct TableSink<'a, W: Write + Send> {
    tables: ToTables<'a, W>,
    failed: Option<io::Error>,
    /// Samples and scheduling events.
    count: u64,
}

impl<W: Write + Send> fmt::Debug for TableSink<'_, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableSink").field("count", &self.count).finish_non_exhaustive()
    }
}

fn path(cgroups: &mut Cgroups, id: u64) -> Option<Box<[u8]>> {
    cgroups.path(id).map(|path| path.to_vec().into_boxed_slice())
}

impl<'a, W: Write + Send> TableSink<'a, W> {
    /// Fills these tables.
    #[must_use]
    pub fn new(tables: ToTables<'a, W>) -> Self {
        Self { tables, failed: None, count: 0 }
    }

    /// Samples and scheduling events so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Ends the tables.
    ///
    /// # Errors
    /// They could not be written.
    pub fn finish(self) -> io::Result<Finished<W>> {
        match self.failed {
            Some(error) => Err(error),
            None => self.tables.finish(),
        }
    }

    /// True if a file cannot be written: the rest need not be read.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    fn check(&mut self) {
        if let Err(error) = self.tables.check() {
            self.failed.get_or_insert(error);
        }
    }
}

impl<W: Write + Send> Sink for TableSink<'_, W> {
    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups) {
        self.count += 1;
        self.tables.cgroup(sample.raw.cgroup, || path(cgroups, sample.raw.cgroup));
        self.tables.sample(sample);
        self.check();
    }

    fn sched(&mut self, events: &[SchedEvent], cgroups: &mut Cgroups) {
        self.count += events.len() as u64;
        for event in events {
            self.tables.cgroup(event.cgroup, || path(cgroups, event.cgroup));
            self.tables.sched(event);
        }
        self.check();
    }

    fn processes(&mut self, names: &[(u32, Comm)], _: &mut Cgroups) {
        for (pid, name) in names {
            self.tables.process(*pid, *name);
        }
    }
}
