//! Recordings: perf.data in and out, what travels beside it, and the samples as lines of JSON.
//!
//! A profile is a directory, or an archive of it:
//!
//! | file | what |
//! |---|---|
//! | `perf.data` | the records of the rings, byte for byte, in perf's own format |
//! | `recovered.jsonl` | the accesses of each sample, where the source recovers them (timer) |
//! | `hints.jsonl` | task hints, where they were followed |
//! | `meta.json` | how to read it again, what was lost, the host |
//!
//! [`Profile::open`] also takes what other programs wrote: a bare perf.data, or a directory with one or with the text that
//! `perf script` made of it.
//! [`session::replay`](crate::session::replay()) gives its samples to a sink as the capture did.

mod archive;
mod buildid;
mod features;
mod format;
pub mod hints;
mod input;
pub mod jsonl;
pub mod meta;
pub mod names;
mod quick;
pub mod reader;
pub mod recorder;
pub mod recovered;
pub mod script;
mod snapshot;
mod swap;
mod topology;
mod tracing;
pub mod writer;

use std::path::{Path, PathBuf};

use thiserror::Error;

pub(crate) use archive::pack;
pub use format::{record_name, Attr};
pub(crate) use input::open_lines;
pub use input::{is_archive, Profile, Records};
pub use meta::Meta;
pub use reader::{Damage, Item, PerfData, PerfDataError};
pub use recorder::Recorder;

/// Why a profile cannot be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// A file or directory.
    #[error("cannot {call} {}: {source}", path.display())]
    Io {
        /// What was tried.
        call: &'static str,
        /// The file.
        path: PathBuf,
        /// The errno and its text.
        source: std::io::Error,
    },
    /// A perf.data that gives no record.
    #[error("{}: {source}", path.display())]
    PerfData {
        /// The file.
        path: PathBuf,
        /// Why.
        source: PerfDataError,
    },
    /// A meta.json that makes no sense.
    #[error("{}: {reason}", path.display())]
    Meta {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A directory without records.
    #[error("{}: no perf.data, perf.mem.data, perf.mem.script or perf.jsonl in it", path.display())]
    NoData {
        /// The directory.
        path: PathBuf,
    },
    /// An archive that is none, or that is not safe to unpack.
    #[error("{}: {reason}", path.display())]
    Archive {
        /// The archive.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Something is there already.
    #[error("{} exists already; it is never overwritten: remove it or name another", path.display())]
    Exists {
        /// The file or directory.
        path: PathBuf,
    },
}

impl ProfileError {
    pub(crate) fn io(call: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Io { call, path: path.to_owned(), source }
    }
}
