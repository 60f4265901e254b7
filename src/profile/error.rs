//! Why a profile cannot be read or written.

use std::path::{Path, PathBuf};

use thiserror::Error;

use scxprof_perf::reader::PerfDataError;

/// The version of the directory's layout; a reader rejects a newer one.
pub(crate) const FORMAT: u32 = 1;

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
    #[error("{}: it is of format {format}, and this scxprof reads up to {}", path.display(), FORMAT)]
    Newer {
        /// Its meta.json.
        path: PathBuf,
        /// The version of its layout.
        format: u64,
    },
    /// A directory without records.
    #[error(
        "{}: no perf.data, perf.mem.data, perf.script, perf.mem.script, perf.jsonl or perf.sched.data in it", path.display()
    )]
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
    pub(super) fn in_archive(mut self, unpacked: &Path, archive: &Path) -> Self {
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
