//! Profiles: perf.data, the files beside it, and the samples as lines of JSON; reading and writing.
//!
//! A profile is a directory, or an archive of it:
//!
//! | file | content |
//! |---|---|
//! | `perf.data` | the records of the rings, byte for byte, in perf's own format |
//! | `recovered.jsonl` | the accesses of each sample, if the source recovers them (timer) |
//! | `hints.jsonl` | task hints, if they were followed |
//! | `meta.json` | how to read the profile, what was lost, the host |
//!
//! [`Profile::open`] opens it, and other files that contain samples: a bare perf.data, the text that `perf script` printed of
//! one, the lines of JSON that `scxprof process` wrote of a profile, or a directory with one of these.
//! [`Builder::profile`](crate::session::Builder::profile) computes from it what the capture would have given:
//!
//! ```no_run
//! use std::path::Path;
//!
//! use scxprof::profile::Profile;
//! use scxprof::Session;
//!
//! let mut profile = Profile::open(Path::new("host.tar.gz"))?;
//! let found = Session::builder().profile(&mut profile).run()?;
//! for damage in profile.damage() {
//!     eprintln!("{damage}");
//! }
//! println!("{}", found.mitosis()?);
//! # Ok::<(), scxprof::Error>(())
//! ```

// The public items of these modules are for tests, benches and fuzzing.
mod archive;
mod boot;
mod budget;
mod buildid;
mod chains;
mod code_files;
mod features;
mod foreign;
pub(crate) mod format;
pub(crate) mod hints;
pub(crate) mod input;
pub(crate) mod jsonl;
mod kind;
mod memory;
pub(crate) mod meta;
mod quick;
pub(crate) mod reader;
mod recorder;
pub(crate) mod recovered;
pub(crate) mod script;
mod section;
mod snapshot;
mod swap;
mod topology;
mod tracing;
pub(crate) mod writer;

use std::path::{Path, PathBuf};

use thiserror::Error;

pub(crate) use archive::pack;
pub(crate) use chains::ChainEvent;
pub(crate) use format::record_name;
pub use input::Profile;
pub(crate) use input::Records;
pub use meta::{Host, Meta, MetaEvent};
pub use reader::PerfDataError;
pub(crate) use reader::{Damage, Item, PerfData};
pub(crate) use recorder::FilesOf;
pub use recorder::Recorder;

/// Why a profile cannot be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// A file or directory.
    #[error("cannot {call} {}: {source}", path.display())]
    Io {
        /// The operation that failed.
        call: &'static str,
        /// The file.
        path: PathBuf,
        /// The errno and its text.
        source: std::io::Error,
    },
    /// A perf.data without any record.
    #[error("{}: {source}", path.display())]
    PerfData {
        /// The file.
        path: PathBuf,
        /// Why.
        source: PerfDataError,
    },
    /// A meta.json that cannot be parsed.
    #[error("{}: {reason}", path.display())]
    Meta {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A profile of a newer scxprof.
    #[error("{}: it is of format {format}, and this scxprof reads up to {}", path.display(), meta::FORMAT)]
    Newer {
        /// Its meta.json.
        path: PathBuf,
        /// The version of its layout.
        format: u64,
    },
    /// A directory without records.
    #[error("{}: no perf.data, perf.mem.data, perf.script, perf.mem.script or perf.jsonl in it", path.display())]
    NoData {
        /// The directory.
        path: PathBuf,
    },
    /// A file that is no archive, or one that is not safe to unpack.
    #[error("{}: {reason}", path.display())]
    Archive {
        /// The archive.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A file of an unsupported type.
    #[error("{}: {reason}", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A file of another program, which is known but not read.
    #[error("{}: {reason}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is, and what to do instead.
        reason: String,
    },
    /// The caller stopped it.
    #[error("{}: stopped", path.display())]
    Stopped {
        /// The path that was being opened.
        path: PathBuf,
    },
    /// The path exists already.
    #[error("{} exists already; it is never overwritten: remove it or name another with -o", path.display())]
    Exists {
        /// The file or directory.
        path: PathBuf,
    },
}

impl ProfileError {
    /// The same about a file in an archive, which was unpacked to `unpacked`: it is named as one of `archive`.
    fn in_archive(mut self, unpacked: &Path, archive: &Path) -> Self {
        let (Self::Io { path, .. }
        | Self::PerfData { path, .. }
        | Self::Meta { path, .. }
        | Self::Newer { path, .. }
        | Self::NoData { path }
        | Self::Archive { path, .. }
        | Self::Unknown { path, .. }
        | Self::Foreign { path, .. }
        | Self::Stopped { path }
        | Self::Exists { path }) = &mut self;
        if let Ok(inside) = path.strip_prefix(unpacked) {
            *path = archive.join(inside);
        }
        self
    }

    pub(crate) fn io(call: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Io { call, path: path.to_owned(), source }
    }
}
