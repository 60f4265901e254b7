//! The format of perf's records and of perf.data: decoding, encoding, reading and writing. Pure, but for the file.
//!
//! [`record`] decodes a record of a ring or a file, [`encode`] is its inverse, [`tracepoint`] decodes the scheduler's tracepoints by
//! the formats that the kernel gives, and [`spe`] the AUX data of Arm's SPE. [`reader::PerfData`] reads a perf.data of any machine,
//! whatever is damaged in it, and [`writer::PerfDataWriter`] writes one.

#![forbid(unsafe_code)]

pub mod budget;
pub mod buildid;
pub mod encode;
pub mod format;
pub mod reader;
pub mod record;
pub mod section;
pub mod spe;
mod swap;
pub mod topology;
pub mod tracepoint;
pub mod tracing;
pub mod writer;

#[cfg(test)]
mod record_tests;
