//! The recordings that clients opened, and the results that pages are cut from. Both are bounded.

use std::collections::VecDeque;
use std::fs::Metadata;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::error::{Kind, ToolError};
use super::page::Document;

/// Recordings that are open at a time; the one that was used least recently is closed for a new one.
const MAX_OPEN: usize = 32;
/// Results that are kept for their next pages, and about how many bytes of memory all of them may have.
const MAX_DOCUMENTS: usize = 16;
const MAX_DOCUMENT_BYTES: usize = 64 << 20;
/// Files of a directory that tell whether it changed.
const MAX_FILES: usize = 256;

/// The stamp that tells whether a file or a directory is still the one that was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity(Vec<(u64, u64, u64, i64, i64)>);

impl Identity {
    pub(super) fn of(path: &Path) -> Self {
        let one = |it: Metadata| (it.dev(), it.ino(), it.size(), it.mtime(), it.mtime_nsec());
        let below = path.read_dir().into_iter().flatten().flatten().take(MAX_FILES);
        let below = below.filter_map(|entry| entry.metadata().ok()).filter(Metadata::is_file);
        let mut all: Vec<_> = path.metadata().into_iter().chain(below).map(one).collect();
        all.sort_unstable();
        Self(all)
    }
}

/// An open recording.
#[derive(Debug, Clone)]
pub(super) struct Recording {
    pub(super) id: String,
    /// Its path without links.
    pub(super) path: PathBuf,
    /// It is a trace of another tool, not a profile.
    pub(super) is_trace: bool,
    identity: Identity,
}

impl Recording {
    pub(super) fn has_changed(&self) -> bool {
        Identity::of(&self.path) != self.identity
    }
}

/// A number of this process, so that ids and cursors of an earlier server mean nothing to this one.
fn tag() -> u32 {
    // The lower half of a hash with a random key.
    (RandomState::new().hash_one(std::process::id()) & u64::from(u32::MAX)) as u32
}

/// True for what is written as the id of a recording, of this server or of another.
pub(super) fn is_id(name: &str) -> bool {
    let parts = name.strip_prefix('r').and_then(|rest| rest.split_once('-'));
    parts.is_some_and(|(number, tag)| {
        number.parse::<u64>().is_ok() && tag.len() == 8 && tag.bytes().all(|it| it.is_ascii_hexdigit())
    })
}

/// The open recordings, those last that were used last.
#[derive(Debug)]
pub(super) struct Recordings {
    tag: u32,
    opened: u64,
    open: VecDeque<Recording>,
}

impl Default for Recordings {
    fn default() -> Self {
        Self { tag: tag(), opened: 0, open: VecDeque::new() }
    }
}

impl Recordings {
    /// Opens one, or finds that it is open; the id of one that was closed for it comes second.
    pub(super) fn open(&mut self, path: PathBuf, is_trace: bool) -> (Recording, Option<String>) {
        let identity = Identity::of(&path);
        let there = self.open.iter().position(|it| it.path == path && it.identity == identity);
        let there = there.and_then(|at| self.open.remove(at));
        let recording = there.unwrap_or_else(|| {
            self.opened += 1;
            Recording { id: format!("r{}-{:08x}", self.opened, self.tag), path, is_trace, identity }
        });
        let closed = if self.open.len() >= MAX_OPEN { self.open.pop_front() } else { None };
        self.open.push_back(recording.clone());
        (recording, closed.map(|it| it.id))
    }

    /// # Errors
    /// [`Kind::UnknownRecording`], [`Kind::RecordingChanged`].
    pub(super) fn get(&mut self, id: &str) -> Result<Recording, ToolError> {
        let unknown = || ToolError::new(Kind::UnknownRecording, format!("no recording \"{id}\" is open"));
        let at = self.open.iter().position(|it| it.id == id).ok_or_else(unknown)?;
        let recording = self.open.remove(at).ok_or_else(unknown)?;
        if recording.has_changed() {
            let path = recording.path.display();
            return Err(ToolError::new(Kind::RecordingChanged, format!("{id} ({path}) is not what was opened")));
        }
        self.open.push_back(recording.clone());
        Ok(recording)
    }
}

/// What a result belongs to: the tool and its arguments, without those that choose the page.
pub(super) type Key = (&'static str, String);

#[derive(Debug)]
struct Kept {
    number: u64,
    key: Key,
    document: Arc<Document>,
    bytes: usize,
}

/// The newest results.
#[derive(Debug)]
pub(super) struct Documents {
    numbers: u64,
    kept: VecDeque<Kept>,
}

impl Default for Documents {
    fn default() -> Self {
        Self { numbers: u64::from(tag()) << 20, kept: VecDeque::new() }
    }
}

impl Documents {
    /// Keeps a result; returns its number.
    pub(super) fn keep(&mut self, key: Key, document: Arc<Document>) -> u64 {
        self.numbers += 1;
        let bytes = memory_of(&document.value);
        self.kept.push_back(Kept { number: self.numbers, key, document, bytes });
        while self.kept.len() > MAX_DOCUMENTS || self.bytes() > MAX_DOCUMENT_BYTES {
            self.kept.pop_front();
        }
        self.numbers
    }

    fn bytes(&self) -> usize {
        self.kept.iter().map(|it| it.bytes).sum()
    }

    /// The result of this number, if it is kept.
    ///
    /// # Errors
    /// [`Kind::InvalidArguments`]: the cursor belongs to another call.
    pub(super) fn get(&self, number: u64, key: &Key) -> Result<Option<Arc<Document>>, ToolError> {
        match self.kept.iter().find(|it| it.number == number) {
            Some(kept) if kept.key == *key => Ok(Some(Arc::clone(&kept.document))),
            Some(_) => Err(ToolError::new(
                Kind::InvalidArguments,
                "cursor: repeat the arguments of the call that it is from, with this cursor",
            )),
            None => Ok(None),
        }
    }
}

/// About the bytes of memory of a value.
fn memory_of(value: &Value) -> usize {
    size_of::<Value>()
        + match value {
            Value::Array(list) => list.iter().map(memory_of).sum(),
            Value::Object(fields) => {
                fields.iter().map(|(name, value)| size_of::<String>() + name.len() + memory_of(value)).sum()
            }
            Value::String(text) => text.len(),
            _ => 0,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_are_found_until_they_change_or_many_others_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = |number: usize| {
            let path = dir.path().join(number.to_string());
            std::fs::write(&path, "x").unwrap();
            path
        };
        let mut recordings = Recordings::default();
        let (first, _) = recordings.open(path(0), false);
        assert_eq!(recordings.open(first.path.clone(), false).0.id, first.id);
        assert!(recordings.get(&first.id).is_ok());
        std::fs::write(&first.path, "longer").unwrap();
        assert_eq!(recordings.get(&first.id).unwrap_err().kind, Kind::RecordingChanged);
        let (again, _) = recordings.open(first.path.clone(), false);
        assert_ne!(again.id, first.id);
        let closed: Vec<_> = (1..=MAX_OPEN).filter_map(|number| recordings.open(path(number), true).1).collect();
        assert_eq!(closed, std::slice::from_ref(&again.id));
        assert_eq!(recordings.get(&again.id).unwrap_err().kind, Kind::UnknownRecording);
    }

    #[test]
    fn ids_and_cursors_of_another_server_are_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let (mut before, mut after) = (Recordings::default(), Recordings::default());
        let ids = [&mut before, &mut after].map(|it| it.open(dir.path().to_owned(), false).0.id);
        assert!(ids.iter().all(|id| is_id(id)), "{ids:?}");
        assert_eq!(after.get(&ids[0]).unwrap_err().kind, Kind::UnknownRecording);
        assert!(["r1", "r1-", "r1-0123456", "run-01234567", "r1-0123456x", "report"].iter().all(|name| !is_id(name)));
        let (mut before, after) = (Documents::default(), Documents::default());
        let number = before.keep(("tool", String::new()), Arc::default());
        assert!(after.get(number, &("tool", String::new())).unwrap().is_none());
    }

    #[test]
    fn results_are_bounded_in_number_and_size() {
        let mut documents = Documents::default();
        let key = |number: usize| ("tool", number.to_string());
        let large = |size: usize| Arc::new(Document { value: "x".repeat(size).into(), ..Document::default() });
        let numbers: Vec<u64> = (0..=MAX_DOCUMENTS).map(|it| documents.keep(key(it), large(1))).collect();
        assert!(documents.get(numbers[0], &key(0)).unwrap().is_none());
        assert!(documents.get(numbers[1], &key(1)).unwrap().is_some());
        assert_eq!(documents.get(numbers[1], &key(2)).unwrap_err().kind, Kind::InvalidArguments);
        let half = MAX_DOCUMENT_BYTES / 2 - size_of::<Value>() + 1;
        let number = documents.keep(key(99), large(half));
        let last = documents.keep(key(100), large(half));
        assert!(documents.get(number, &key(99)).unwrap().is_none());
        // Too large alone, it is answered but not kept.
        // Numbers have more bytes in memory than as text.
        let numbers = vec![Value::from(1); MAX_DOCUMENT_BYTES / size_of::<Value>()];
        let numbers = Arc::new(Document { value: numbers.into(), ..Document::default() });
        let huge = documents.keep(key(101), numbers);
        assert!(documents.get(huge, &key(101)).unwrap().is_none() && documents.get(last, &key(100)).unwrap().is_none());
    }
}
