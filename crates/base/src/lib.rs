//! The types that all parts of scxprof have in common: samples, accesses and scheduling events, bounded maps, the
//! sizes of tables, lists of CPUs, dates, paths of source files, and text: in columns, and safe for a terminal.
//!
//! It reads nothing and knows no other crate of scxprof.

#![forbid(unsafe_code)]

pub mod arch;
pub mod cache;
pub mod columns;
pub mod cpus;
pub mod date;
pub mod escape;
pub mod sample;
pub mod source_file;
pub mod tables;
