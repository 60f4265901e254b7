//! Traces of other tools in Perfetto's format: perfetto (ftrace), wprof, scxtop, systing and Chrome. Pure, but for the file.
//!
//! [`Trace::open`] walks the file once and keeps what packets refer to: clocks, names by sequence and generation, tracks,
//! threads, and an index of *chunks*, ranges of the file with their earliest time. [`Trace::next_event`] then merges the
//! chunks by time: a chunk is decoded when its earliest time is reached, and dropped when its last event was taken. Of most
//! events of a large bundle of ftrace only the time is read then, and the rest when it comes: as bytes they are small. So memory
//! grows with the tables, with 40 bytes for each chunk of 128 KiB, and with the chunks that overlap in time, and not with
//! the events. A packet that is older than its chunk, as the beginnings of slices in a trace of wprof that are written at
//! their end, is indexed alone.
//!
//! Times are those of BOOTTIME in ns.

#![forbid(unsafe_code)]

pub mod analyze;
mod clock;
mod compact;
mod container;
mod cursor;
mod derive;
mod describe;
pub mod difference;
mod dynamic;
mod event;
mod ftrace;
mod index;
mod info;
mod names;
mod ndjson;
mod nodes;
#[cfg(feature = "parquet")]
pub mod parquet;
mod placing;
mod raw;
mod reader;
mod recording;
mod sequence;
mod slices;
mod stack_tables;
mod stacks;
mod tally;
mod threads;
pub mod timeline;
mod usual;
pub mod wire;
pub mod write;

use thiserror::Error;

pub use container::{is_trace, Damage};
pub use describe::Said;
pub use event::{Arg, Args, BlockStep, Edge, Event, TraceEvent, TraceWhat, TrackId};
pub use info::{Count, Info, Lost, Source};
pub use names::{Name, Names};
pub use reader::Trace;
pub use recording::{Recorded, Recording};
pub use stacks::{StackFrame, StackId};
pub use threads::{TraceThread, TraceThreads, Track, Tracks};

/// Why a trace cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TraceError {
    /// It has no bytes.
    #[error("the file is empty")]
    Empty,
    /// It is another kind of file.
    #[error(
        "not a trace: it does not begin with a packet of Perfetto's format (TracePacket), nor does it inflate to one"
    )]
    NotATrace,
    /// It is wprof's own file, from which wprof makes traces.
    #[error(
        "wprof's own data, not a trace: `wprof -R -D {FILE} -T trace.pb` makes a trace of it, and `-J trace.ndjson` JSON lines{}",
        if *.is_incomplete { "; it is not complete: wprof was ended before it had written all" } else { "" }, FILE = "FILE"
    )]
    WprofData {
        /// wprof was ended while it wrote the file.
        is_incomplete: bool,
    },
    /// It inflates to too much.
    #[error("the compressed trace inflates to more than {} MiB, which no recording does", .limit >> 20)]
    Inflates {
        /// Bytes.
        limit: u64,
    },
    /// It inflates to more packets than a recording has.
    #[error("the compressed trace has more than {limit} packets, which no recording of its size has")]
    Packets {
        /// Packets.
        limit: u64,
    },
    /// Too many events would have to be sorted at a time.
    #[error(
        "the trace is out of order: its events would take more than {} MiB of memory to be sorted by time; record it in \
         shorter parts", .limit >> 20
    )]
    Disorder {
        /// Bytes.
        limit: usize,
    },
    /// The file cannot be read.
    #[error("cannot read the file: {0}")]
    Read(#[from] std::io::Error),
    /// What the file inflates to cannot be written.
    #[error("cannot write what the trace inflates to into a temporary file (TMPDIR names another place): {0}")]
    Spool(std::io::Error),
}
