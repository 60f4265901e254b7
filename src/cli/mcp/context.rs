//! The context of tools: the state of the server, and commands of scxprof that run in their thread.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::capturing::Capturing;
use super::error::{Kind, ToolError};
use super::page::Document;
use super::paths::{Below, Place};
use super::profiling::Profiling;
use super::recordings::{Documents, Recording, Recordings};
use crate::cli::call::{self, Called};
use crate::cli::failure::Failure;
use crate::host::scx_stats::StatsClient;
use crate::session::Around;

/// Bytes of a result as JSON.
const MAX_JSON: u64 = 32 << 20;
/// Bytes of a file that is written.
const MAX_FILE: u64 = 4 << 30;

/// Runs a command line, without the name of the program. It prints and stops as [`call`] says.
pub(in crate::cli) type RunLine = fn(&[OsString]) -> Result<(), Failure>;

/// The state that all clients share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Where paths are read.
    pub(super) root: Below,
    /// Where files may be written.
    pub(super) writable: Option<Below>,
    pub(super) run_line: RunLine,
    recordings: Mutex<Recordings>,
    documents: Mutex<Documents>,
    pub(super) profiling: Profiling,
    pub(super) capturing: Capturing,
    /// What is kept beside the capture, once it was asked for: caches; the scheduler, by a connection that is kept.
    pub(super) around: Mutex<Option<Around>>,
    pub(super) stats_client: Mutex<Option<StatsClient>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(root: Below, writable: Option<Below>, run_line: RunLine) -> Self {
        let (recordings, documents) = (Mutex::default(), Mutex::default());
        Self {
            root,
            writable,
            run_line,
            recordings,
            documents,
            profiling: Profiling::default(),
            capturing: Capturing::default(),
            around: Mutex::default(),
            stats_client: Mutex::default(),
        }
    }

    pub(super) fn recordings(&self) -> MutexGuard<'_, Recordings> {
        lock(&self.recordings)
    }

    pub(super) fn documents(&self) -> MutexGuard<'_, Documents> {
        lock(&self.documents)
    }
}

/// A command line that is put together. Values from a client are never taken for options.
#[derive(Debug, Clone, Default)]
pub(super) struct Line(Vec<OsString>);

impl Line {
    pub(super) fn new(words: &[&str]) -> Self {
        Self(words.iter().map(OsString::from).collect())
    }

    /// `--name=value`.
    pub(super) fn option(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        let mut word = OsString::from(name);
        word.push("=");
        word.push(value);
        self.0.push(word);
        self
    }

    pub(super) fn options<T: ToString>(self, name: &str, values: &[T]) -> Self {
        values.iter().fold(self, |line, value| line.option(name, value.to_string()))
    }

    pub(super) fn option_if<T: ToString>(self, name: &str, value: Option<&T>) -> Self {
        match value {
            Some(value) => self.option(name, value.to_string()),
            None => self,
        }
    }

    /// An argument, which must be an absolute path.
    pub(super) fn path(mut self, path: &Path) -> Self {
        self.0.push(path.into());
        self
    }
}

/// A client. What it started ends after its connection and the last work for it.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) number: u64,
    shared: Arc<Shared>,
}

impl Client {
    /// One more client.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        static CLIENTS: AtomicU64 = AtomicU64::new(1);
        Self { number: CLIENTS.fetch_add(1, Ordering::Relaxed), shared }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let (shared, number) = (Arc::clone(&self.shared), self.number);
        // It waits for threads, for which the others must not wait. Without a thread, it ends with the server.
        let _ = std::thread::Builder::new().spawn(move || {
            shared.profiling.left(number);
            shared.capturing.left(number);
        });
    }
}

/// The context of a tool in one call.
#[derive(Debug, Clone)]
pub(super) struct Context {
    pub(super) shared: Arc<Shared>,
    /// Work holds its client, so that what it starts ends even if the connection ends first.
    pub(super) client: Arc<Client>,
    /// Ends the work early.
    pub(super) stop: Arc<AtomicBool>,
}

impl Context {
    /// A recording by its id.
    ///
    /// # Errors
    /// As [`Recordings::get`]; if the path leads elsewhere meanwhile, those of [`Below::existing`].
    pub(super) fn recording(&self, id: &str) -> Result<Recording, ToolError> {
        let recording = self.shared.recordings().get(id)?;
        let path = self.shared.root.existing(&recording.path.to_string_lossy())?;
        if path == recording.path {
            Ok(recording)
        } else {
            Err(ToolError::new(Kind::RecordingChanged, format!("{id} has become a link")))
        }
    }

    /// A file below the root.
    ///
    /// # Errors
    /// As [`Below::existing`].
    pub(super) fn existing(&self, path: &str) -> Result<PathBuf, ToolError> {
        self.shared.root.existing(path)
    }

    /// Where a new file may be written.
    ///
    /// # Errors
    /// [`Kind::ReadOnly`], and those of [`Below::new_place`].
    pub(super) fn new_place(&self, path: &str) -> Result<Place, ToolError> {
        let writable = self.shared.writable.as_ref();
        writable.ok_or_else(|| ToolError::new(Kind::ReadOnly, "the server writes no files"))?.new_place(path)
    }

    fn call(&self, line: &Line, most: u64, spool: Option<&Path>) -> Result<(Option<Failure>, Called), ToolError> {
        let run_line = self.shared.run_line;
        let called = call::run(Arc::clone(&self.stop), most, spool, || run_line(&line.0));
        let (ended, called) = called.map_err(|error| ToolError::new(Kind::Internal, error.to_string()))?;
        if self.stop.load(Ordering::Relaxed) {
            return Err(ToolError::new(Kind::Cancelled, "the call was stopped"));
        }
        let failure = ended.err();
        if called.size > most {
            return Err(ToolError::new(Kind::TooLarge, format!("the result has more than {} MiB", most >> 20)));
        }
        match failure {
            Some(failure) if called.size == 0 => Err(failure.into()),
            failure => Ok((failure, called)),
        }
    }

    /// The text that a command prints, with its notes; the value of the document is not set.
    ///
    /// # Errors
    /// How the command failed, unless it printed a result all the same.
    pub(super) fn text(&self, line: &Line) -> Result<(String, Document), ToolError> {
        let (failure, mut called) = self.call(line, MAX_JSON, None)?;
        let text = called.text().map_err(|error| ToolError::new(Kind::Internal, error.to_string()))?;
        // That `diff` finds a difference is its exit code 1.
        let failure = failure.filter(|failure| !matches!(failure, Failure::Command(_)));
        let warnings = failure.iter().map(Failure::sentence).collect();
        Ok((text, Document { value: Value::Null, notes: called.notes, warnings }))
    }

    /// The JSON that a command prints.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub(super) fn json(&self, line: &Line) -> Result<Document, ToolError> {
        let (text, document) = self.text(line)?;
        let value = serde_json::from_str(&text);
        Ok(Document { value: value.map_err(|error| ToolError::new(Kind::Internal, error.to_string()))?, ..document })
    }

    /// The JSON Lines that a command prints, as a list.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub(super) fn json_lines(&self, line: &Line) -> Result<Document, ToolError> {
        let (text, document) = self.text(line)?;
        let rows = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>();
        let rows = rows.map_err(|error| ToolError::new(Kind::Internal, error.to_string()))?;
        Ok(Document { value: rows.into(), ..document })
    }

    /// Writes what a command prints to a new file; returns its bytes and what the command said.
    ///
    /// # Errors
    /// How the command failed, also if it printed a part, and those of [`Place::write`]; then nothing is written.
    pub(super) fn write(&self, line: &Line, place: &Place) -> Result<(u64, Document), ToolError> {
        // Beside the file: there must be room for it there, and $TMPDIR may be memory.
        let (failure, mut called) = self.call(line, MAX_FILE, Some(&place.directory()))?;
        let warnings = match failure {
            None => Vec::new(),
            Some(failure @ Failure::Loss(_)) => vec![failure.sentence()],
            Some(failure) => return Err(failure.into()),
        };
        let size = place.write(&mut called.printed, &self.stop)?;
        Ok((size, Document { value: Value::Null, notes: called.notes, warnings }))
    }

    /// Runs a command that prints nothing, as it writes a directory.
    ///
    /// # Errors
    /// How the command failed.
    pub(super) fn run(&self, line: &Line) -> Result<Document, ToolError> {
        let run_line = self.shared.run_line;
        let called = call::run(Arc::clone(&self.stop), MAX_JSON, None, || run_line(&line.0));
        let (ended, called) = called.map_err(|error| ToolError::new(Kind::Internal, error.to_string()))?;
        let warnings = match ended {
            Ok(()) => Vec::new(),
            Err(failure @ Failure::Loss(_)) => vec![failure.sentence()],
            Err(failure) => return Err(failure.into()),
        };
        Ok(Document { value: Value::Null, notes: called.notes, warnings })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use anyhow::anyhow;

    use super::*;

    /// Prints a part, then ends as its argument says.
    fn partly(line: &[OsString]) -> Result<(), Failure> {
        call::Printer.write_all(b"a part").map_err(|error| Failure::NoResult(error.into()))?;
        let why = || anyhow!("the rest is missing");
        match line.first().and_then(|word| word.to_str()) {
            Some("no result") => Err(Failure::NoResult(why())),
            Some("does not fit") => Err(Failure::DoesNotFit(why())),
            Some("loss") => Err(Failure::Loss(why())),
            Some("stopped") => {
                if let Some(stop) = call::stop() {
                    stop.store(true, Ordering::Relaxed);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    #[test]
    fn only_a_whole_result_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let below = || Below::new(dir.path()).unwrap();
        let shared = Arc::new(Shared::new(below(), Some(below()), partly));
        let client = Arc::new(Client::new(Arc::clone(&shared)));
        for (word, kind) in [
            ("no result", Some(Kind::NoResult)),
            ("does not fit", Some(Kind::NoResult)),
            ("stopped", Some(Kind::Cancelled)),
            ("loss", None),
            ("whole", None),
        ] {
            let (shared, client) = (Arc::clone(&shared), Arc::clone(&client));
            let context = Context { shared, client, stop: Arc::default() };
            let place = context.new_place(word).unwrap();
            let written = context.write(&Line::new(&[word]), &place);
            assert_eq!(written.as_ref().err().map(|error| error.kind), kind, "{word}");
            let file = dir.path().join(word);
            match written {
                Ok((size, document)) => {
                    assert_eq!((size, std::fs::read(&file).unwrap()), (6, b"a part".to_vec()), "{word}");
                    assert_eq!(document.warnings.len(), usize::from(word == "loss"), "{word}");
                }
                Err(_) => assert!(!file.exists(), "{word}"),
            }
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "nothing else is left");
    }
}
