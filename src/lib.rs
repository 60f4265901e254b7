//! scxprof finds the threads of a Linux host that share memory, and makes a configuration with which a sched_ext scheduler runs
//! these threads on one set of CPUs.
//!
//! [`Session::builder`] sets up a capture. Its results are values: the configuration, the report and the counts of loss. The
//! library prints nothing, handles no signals and writes only the files that the caller names. In this example the samples come
//! from a [`Feed`](session::Feed) instead of the kernel, so it runs anywhere. Without a feed, a session samples this host,
//! which needs rights (see `scxprof doctor`, or [`doctor::examine`]).
//!
//! ```
//! use scxprof::sample::{Access, RawSample};
//! use scxprof::session::{AnalysisOptions, Batch, Feed, SideBand};
//! use scxprof::Session;
//!
//! /// Two pairs of threads; each pair writes to its own pages.
//! struct Pairs(u64);
//!
//! impl Feed for Pairs {
//!     fn next_batch(&mut self) -> Option<Batch> {
//!         self.0 += 1;
//!         let time = self.0 * 1_000_000;
//!         let mut batch = Batch::until(time);
//!         for tid in 1..=4 {
//!             let (name, begin) = if tid < 3 { ("reader", 0x10_0000) } else { ("writer", 0x20_0000) };
//!             batch.side_band(time, SideBand::Comm { pid: 1, tid, exec: false, comm: name.into() });
//!             let addr = begin + self.0 % 16 * 4096;
//!             batch.samples.push(RawSample { time, pid: 1, tid, addr, access: Access::Store, ..RawSample::default() });
//!         }
//!         (self.0 < 1000).then_some(batch)
//!     }
//! }
//!
//! let found = Session::builder().feed(&mut Pairs(0)).run()?;
//! let report = found.report()?;
//! for (_, group) in report.groups() {
//!     println!("{} threads share {}", group.threads.len(), group.regions[0].memory);
//! }
//! assert_eq!(report.groups().count(), 2);
//!
//! // The configuration is for this host, which may have too few CPUs for all groups, or for another one.
//! let found = Session::builder().feed(&mut Pairs(0)).analysis(AnalysisOptions::for_cpus(16)).run()?;
//! assert!(found.mitosis()?.contains("reader"));
//! # Ok::<(), scxprof::Error>(())
//! ```
//!
//! # Modules
//!
//! These are what other programs are promised:
//!
//! | module | what it contains |
//! |---|---|
//! | [`session`] | the capture: [`Builder`](session::Builder), [`Session`], [`Analysis`](session::Analysis); custom sources ([`Feed`](session::Feed)) and sinks ([`Sink`](session::Sink)) |
//! | [`sample`] | the types of samples and accesses |
//! | [`config`] | cells and subcells for scx_mitosis, layers for scx_layered |
//! | [`report`] | the facts behind a decision: as JSON, tables, CSV, Prometheus and a page for a browser |
//! | [`profile`] | writes profiles, and reads them and recordings by other tools |
//! | [`doctor`] | what a host allows |
//!
//! The other modules, and the crates `scxprof-*`, are parts of these. They may change with any version: [`host`], [`resolve`],
//! [`cluster`], [`hint`], [`bpf`], [`evidence`], [`sched`], [`stacks`], [`trace`]. docs/architecture.md says what each is.
//!
//! docs/glossary.md has the words, and docs/bounds.md the bound of every table.
//!
//! In paths and names that other programs chose, scxprof escapes what a terminal would obey (control characters and marks that
//! change the direction of text) before it prints them or writes them as JSON.

// Without these features, some items have no user.
#![cfg_attr(not(all(feature = "cli", feature = "testing")), allow(dead_code, unused_imports))]

pub mod bpf;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
pub mod cluster;
pub mod config;
mod decider;
pub mod doctor;
pub mod evidence;
pub mod hint;
pub mod host;
mod memory;
mod outcome;
pub mod profile;
pub mod report;
pub mod resolve;
// From events to samples; `session` has the public part.
mod sampler;
pub mod session;
mod sinks;
pub mod stacks;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod timeline;

pub use scxprof_base::sample;
pub use session::{Error, ErrorKind, Session};
pub use {scxprof_sched as sched, scxprof_trace as trace};
