//! Arm's Statistical Profiling Extension (SPE): what its hardware writes into the AUX buffer of an event, and the kernel and perf
//! pass on unchanged.
//!
//! Source: the Arm Architecture Reference Manual (DDI 0487), "Statistical Profiling Extension sample record specification". The
//! events and data sources that the manual leaves to the cores are those of tools/perf/util/arm-spe-decoder.
//!
//! [`packet`] decodes one packet, [`Decoder`] makes records of packets, however the bytes are cut, and [`Cores`] says what a data
//! source means.

mod decoder;
pub mod encode;
pub mod packet;
mod record;
mod source;

#[cfg(test)]
mod tests;

pub use decoder::{Counts, Decoder};
pub use record::{event, Record};
pub use source::Cores;
