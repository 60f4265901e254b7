//! Finds the threads of a host that share memory, and says so in the form that a sched_ext scheduler loads.
//!
//! [`Session::builder`] sets up a capture; what comes of it are values: the configuration, the report, what was lost. Nothing
//! is printed, no file is written that was not asked for, no signal is handled. Here samples come from a
//! [`Feed`](session::Feed) in place of the kernel, so that the example runs anywhere; without one it samples this host, which
//! takes rights (`scxprof doctor`, or [`doctor::examine`]).
//!
//! ```
//! use scxprof::sample::{Access, Sample};
//! use scxprof::session::{Batch, Feed, SideBand};
//! use scxprof::Session;
//!
//! /// Two pairs of threads; each pair writes to pages of its own.
//! struct Pairs(u64);
//!
//! impl Feed for Pairs {
//!     fn next_batch(&mut self) -> Option<Batch> {
//!         self.0 += 1;
//!         let time = self.0 * 1_000_000;
//!         let mut batch = Batch::until(time);
//!         for tid in 1..=4 {
//!             let (name, begin) = if tid < 3 { ("reader", 0x10_0000) } else { ("writer", 0x20_0000) };
//!             batch.happened(time, SideBand::Comm { pid: 1, tid, exec: false, comm: name.into() });
//!             let addr = begin + self.0 % 16 * 4096;
//!             batch.samples.push(Sample { time, pid: 1, tid, addr, access: Access::Store, ..Sample::default() });
//!         }
//!         (self.0 < 1000).then_some(batch)
//!     }
//! }
//!
//! let found = Session::builder().feed(&mut Pairs(0)).run()?;
//! assert!(found.mitosis()?.contains("reader"));
//! assert_eq!(found.report()?.cells[0].subcells.len(), 3, "each pair, and the rest");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The way of a sample, and the modules
//!
//! | module | what |
//! |---|---|
//! | [`session`] | the capture: [`Builder`](session::Builder), [`Session`], [`Found`](session::Found); sources ([`Feed`](session::Feed)) and sinks ([`Sink`](session::Sink)) of one's own |
//! | [`sample`] | what one memory access is |
//! | [`resolve`] | names: threads, cgroups, memory and code, from the kernel's records and procfs |
//! | [`cluster`] | which threads share memory, and how that is found out |
//! | [`config`] | what cells that makes, for scx_mitosis and scx_layered, and the report |
//! | [`profile`] | recordings, written and read again |
//! | [`bpf`] | task hints |
//! | [`doctor`] | what a host allows |

pub mod bpf;
#[doc(hidden)]
pub mod cli;
pub mod cluster;
pub mod config;
pub mod doctor;
mod escape;
pub mod profile;
pub mod resolve;
pub mod sample;
// From events to samples: public for tests, benches and fuzzing, which work on its parts. What a program needs of it is in
// `session`.
#[doc(hidden)]
pub mod sampler;
pub mod session;

pub use session::Session;
