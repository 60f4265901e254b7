//! Why a perf.data cannot be read, and what of it could not be.

use thiserror::Error;

/// Why a file cannot be read at all.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PerfDataError {
    /// It is something else.
    #[error("not a perf.data file: it does not begin with PERFILE2 in either byte order")]
    NotPerfData,
    /// It ends before its first record.
    #[error("the file ends within its header, before the first record")]
    NoHeader,
    /// The header contradicts itself.
    #[error("the header is damaged: {0}")]
    Header(&'static str),
    /// It came from a pipe, and its records begin before it says what they are of.
    #[error(
        "its records come before the events that they are of, as in a pipe of `perf record --tail-synthesize`: record without \
         --tail-synthesize"
    )]
    NoEvents,
    /// The file cannot be read.
    #[error("cannot read the file: {0}")]
    Read(#[from] std::io::Error),
}

/// What of a file could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Damage {
    /// Places where no record could be, after which the next one had to be looked for.
    pub gaps: u64,
    /// Bytes that were passed over there.
    pub skipped: u64,
    /// Bytes that the header says there are beyond the end of the file.
    pub missing: u64,
    /// The file ends within a record.
    pub cut: bool,
    /// Compressed records (`perf record -z`) that could not be inflated.
    pub compressed: u64,
    /// What was compressed ends within a block or a record, and the file does not: at its end `perf record -z` leaves out what did
    /// not fit into the last compressed record (seen with perf 6.1 at `-z19`), and perf reads such a file without a word.
    pub unflushed: bool,
    /// What is compressed inflates to more than any recording does; the rest of it was not read.
    pub oversized: bool,
    /// A file whose writer did not come to its end: its header does not say where the data ends.
    pub unfinished: bool,
}

impl Damage {
    /// True if anything could not be read.
    #[must_use]
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}
