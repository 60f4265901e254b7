//! A trace or a profile as tables: what `export --parquet` writes.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{anyhow, Context};

use super::args::MaxLossArgs;
use super::destination::Directory;
use super::ends::{Ends, Step};
use super::failure::{Done, Failure};
use super::input::{self, Damage, InputKind};
use super::messages;
use super::observe::losses;
use crate::config::Placement;
use crate::sample::Task;
use crate::session::TableSink;
use scxprof_trace::parquet::{Finished, Knows, ParquetTable, ToTables};

/// What is read, and how.
pub(super) struct Request<'a> {
    /// A trace, or a profile.
    pub(super) path: &'a Path,
    /// The cells of threads.
    pub(super) placement: Option<&'a Placement>,
    /// Bytes of memory for the queues and mappings of a profile.
    pub(super) memory: usize,
    /// Percent of samples of a profile that may be lost.
    pub(super) max_loss: &'a MaxLossArgs,
    pub(super) stop: &'a dyn Fn() -> bool,
}

/// Tables that are complete.
pub(super) struct Read<W> {
    pub(super) finished: Finished<W>,
    /// The messages after the result was written: losses.
    pub(super) end: Done,
}

fn unwritable(error: io::Error) -> Failure {
    Failure::NoResult(anyhow::Error::new(error).context("cannot write the tables"))
}

/// Reads a trace or a profile into the files that `create` gives.
pub(super) fn read<W: Write + Send>(
    request: &Request<'_>,
    create: &mut dyn FnMut(ParquetTable) -> io::Result<W>,
) -> Result<Read<W>, Failure> {
    let read = match input::kind(request.path) {
        InputKind::Trace => of_trace(request, create),
        InputKind::Profile | InputKind::Unknown => of_profile(request, create),
    }?;
    if read.finished.left_out > 0 {
        say!("note: there was no room for {} threads, slices or events of threads", read.finished.left_out);
    }
    Ok(read)
}

fn of_trace<W: Write + Send>(
    request: &Request<'_>,
    create: &mut dyn FnMut(ParquetTable) -> io::Result<W>,
) -> Result<Read<W>, Failure> {
    let place_of = |task: &Task<'_>| request.placement?.place(task);
    let mut trace = input::trace(request.path)?;
    input::say_unhinted("--config", request.placement);
    let mut tables = ToTables::new(create, Knows::of(&trace), Some(&place_of)).map_err(unwritable)?;
    let count = input::each_event(&mut trace, request.path, request.stop, |event, trace| {
        tables.event(event, trace);
        tables.check().map_err(unwritable)
    })?;
    let info = trace.info();
    let damage = Damage::of_trace(info.damage.clone());
    if count == 0 {
        let why = damage.because("it");
        return Err(Failure::NoResult(anyhow!("{} has no events{why}", request.path.display())));
    }
    for line in losses(&info) {
        say!("note: {line}");
    }
    let finished = tables.finish_trace(&trace).map_err(unwritable)?;
    Ok(Read { finished, end: damage.check() })
}

fn of_profile<W: Write + Send>(
    request: &Request<'_>,
    create: &mut dyn FnMut(ParquetTable) -> io::Result<W>,
) -> Result<Read<W>, Failure> {
    let place_of = |task: &Task<'_>| request.placement?.place(task);
    let mut profile = input::profile(request.path, request.stop)?;
    if profile.hints.is_none() {
        input::say_unhinted("--config", request.placement);
    }
    // Tracepoints have both.
    let knows = Knows { priorities: true, contexts: true };
    let mut tables = ToTables::new(create, knows, Some(&place_of)).map_err(unwritable)?;
    tables.says("source", profile.source().name());
    match &profile.meta {
        Some(meta) => {
            tables.says("clock", &meta.clock);
            tables.says("tool", &format!("scxprof {}", meta.scxprof));
            tables.says("host", &meta.host.name);
            tables.says("kernel", &meta.host.kernel);
            tables.says("cpu", &meta.host.cpu);
            tables.says("cpus", &meta.host.cpus.to_string());
            tables.says("begin_unix", &format!("{:.9}", meta.begin_unix));
        }
        None => tables.says("clock", "that of the recording"),
    }
    let mut sink = TableSink::new(tables);
    let outcome = input::read(input::session(&mut profile, request.memory), &mut sink, request.stop)?;
    let damage = Damage::of_profile(&profile);
    if sink.count() == 0 {
        let why = damage.because("it");
        return Err(Failure::NoResult(anyhow!("the profile has no samples and no scheduling events{why}")));
    }
    messages::say_loss(&outcome.loss, false);
    let finished = sink.finish().map_err(unwritable)?;
    let mut ends = Ends::default();
    ends.note(Step::Damage, damage.check());
    ends.loss(request.max_loss, &outcome.loss);
    ends.sched_loss(request.max_loss, &outcome.loss.sched);
    Ok(Read { finished, end: ends.end() })
}

/// A directory of tables, which has a temporary name until it is complete.
pub(super) struct TableDir {
    path: PathBuf,
    name: OsString,
    /// Its path leads through `parent`, which must stay open longer.
    temporary: tempfile::TempDir,
    dir: Directory,
    parent: Directory,
}

impl TableDir {
    /// `path` must not exist, or be an empty directory.
    pub(super) fn new(path: &Path) -> Result<Self, Failure> {
        let usage = |what: String| Failure::Usage(anyhow!("--parquet {}: {what}", path.display()));
        let name = path.file_name().ok_or_else(|| usage("not a directory's name".to_owned()))?.to_owned();
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        if !is_free(path) {
            return Err(usage("exists already; name a new directory, or an empty one".to_owned()));
        }
        let parent = Directory::open(parent).map_err(|error| usage(error.to_string()))?;
        let mut prefix = OsString::from(".");
        prefix.push(&name);
        // They may have addresses of other processes, so only their owner reads them.
        let temporary = tempfile::Builder::new()
            .prefix(&prefix)
            .suffix(".tmp")
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir_in(parent.path())
            .map_err(|error| usage(error.to_string()))?;
        let dir = Directory::open(temporary.path()).map_err(|error| usage(error.to_string()))?;
        Ok(Self { path: path.to_owned(), name, temporary, dir, parent })
    }

    /// The file of a table.
    pub(super) fn create(&self, table: ParquetTable) -> io::Result<BufWriter<File>> {
        let path = self.dir.path().join(format!("{}.parquet", table.name()));
        Ok(BufWriter::new(File::options().write(true).create_new(true).mode(0o600).open(path)?))
    }

    /// Gives the directory its name, unless it is stopped before.
    pub(super) fn publish(self, finished: Finished<BufWriter<File>>, stop: &dyn Fn() -> bool) -> Result<(), Failure> {
        // The last of these is dropped first, and what is temporary must be deleted through its parent.
        let Self { parent, path, name, temporary, dir } = self;
        let publish = || -> anyhow::Result<()> {
            for table in finished.tables {
                let file = table.file.into_inner().map_err(io::IntoInnerError::into_error)?;
                file.sync_all()?;
            }
            anyhow::ensure!(!stop(), "interrupted");
            let named = parent.path().join(&name);
            anyhow::ensure!(is_free(&named), "it exists meanwhile");
            // Of two directories the kernel replaces only an empty one.
            fs::rename(temporary.path(), &named)?;
            Ok(())
        };
        let published =
            publish().with_context(|| format!("cannot write {}", path.display())).map_err(Failure::NoResult);
        drop(dir);
        if published.is_ok() {
            // It has another name now.
            let _ = temporary.keep();
        }
        published
    }
}

/// True if nothing has the name but an empty directory.
fn is_free(path: &Path) -> bool {
    match path.symlink_metadata() {
        Err(_) => true,
        Ok(there) => there.is_dir() && fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_appears_whole_or_not_at_all() {
        let beside = tempfile::tempdir().unwrap();
        let path = beside.path().join("tables");
        let names = || fs::read_dir(beside.path()).unwrap().map(|it| it.unwrap().file_name()).collect::<Vec<_>>();
        let dir = TableDir::new(&path).unwrap_or_else(|_| panic!("refused"));
        dir.create(ParquetTable::Sched).unwrap().write_all(b"x").unwrap();
        assert_eq!(names().len(), 1);
        drop(dir);
        assert!(names().is_empty());
        // The last step takes time too: files are synced.
        let dir = TableDir::new(&path).unwrap_or_else(|_| panic!("refused"));
        drop(dir.create(ParquetTable::Sched).unwrap());
        assert!(matches!(dir.publish(finished(), &|| true), Err(Failure::NoResult(_))));
        assert!(names().is_empty());
        // An empty directory is replaced.
        fs::create_dir(&path).unwrap();
        for is_free in [true, false] {
            match TableDir::new(&path) {
                Ok(dir) => {
                    assert!(is_free);
                    drop(dir.create(ParquetTable::Sched).unwrap());
                    assert!(dir.publish(finished(), &|| false).is_ok());
                }
                Err(Failure::Usage(error)) => {
                    assert!(!is_free && error.to_string().contains("exists already"), "{error}");
                }
                Err(other) => panic!("{other:?}"),
            }
            assert_eq!(names(), ["tables"]);
        }
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
    }

    fn finished() -> Finished<BufWriter<File>> {
        let mut create = |_| tempfile::tempfile().map(BufWriter::new);
        let knows = Knows { priorities: true, contexts: true };
        ToTables::new(&mut create, knows, None).and_then(ToTables::finish).unwrap()
    }
}
