//! Why a perf.data cannot be read, and which parts could not be read.

use thiserror::Error;

/// Why a file cannot be read at all.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PerfDataError {
    /// It is another kind of file.
    #[error("not a perf.data file: it does not begin with PERFILE2 in either byte order")]
    NotPerfData,
    /// It ends before its first record.
    #[error("the file ends within its header, before the first record")]
    NoHeader,
    /// The header contradicts itself.
    #[error("the header is damaged: {0}")]
    Header(&'static str),
    /// It came from a pipe, and its records precede the description of their events.
    #[error(
        "its records come before the events that they are of, as in a pipe of `perf record --tail-synthesize`: record without \
         --tail-synthesize"
    )]
    NoEvents,
    /// The file cannot be read.
    #[error("cannot read the file: {0}")]
    Read(#[from] std::io::Error),
}

/// The parts of a file that could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Damage {
    /// Places with invalid data, after which the next record had to be searched.
    pub gaps: u64,
    /// Bytes that were skipped there.
    pub skipped: u64,
    /// Bytes that the header announces beyond the end of the file.
    pub missing: u64,
    /// The file ends within a record.
    pub cut: bool,
    /// Compressed records (`perf record -z`) that could not be inflated.
    pub compressed: u64,
    /// The compressed data ends within a block or a record, but the file does not: `perf record -z` drops at its end what does
    /// not fit into the last compressed record (observed with perf 6.1 at `-z19`), and perf reads such a file without a
    /// message.
    pub unflushed: bool,
    /// The compressed data inflates to more than any recording; the rest of it was not read.
    pub oversized: bool,
    /// The writer did not finish the file: its header lacks the end of the data.
    pub unfinished: bool,
}

impl Damage {
    /// True if anything could not be read.
    #[must_use]
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}
