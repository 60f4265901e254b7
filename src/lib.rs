//! Finds the threads of a host that share memory, and says so in the form that a sched_ext scheduler loads.
//!
//! [`Session::builder`] sets up a capture; what comes of it are values: the configuration, the report, what was lost. Nothing
//! is printed, no file is written that was not asked for, no signal is handled. Here samples come from a
//! [`Feed`](session::Feed) in place of the kernel, so that the example runs anywhere; without one it samples this host, which
//! takes rights (`scxprof doctor`, or [`doctor::examine`]).
//!
//! ```
//! use scxprof::sample::{Access, RawSample};
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
//!             batch.side_band(time, SideBand::Comm { pid: 1, tid, exec: false, comm: name.into() });
//!             let addr = begin + self.0 % 16 * 4096;
//!             batch.samples.push(RawSample { time, pid: 1, tid, addr, access: Access::Store, ..RawSample::default() });
//!         }
//!         (self.0 < 1000).then_some(batch)
//!     }
//! }
//!
//! // Of a host with 16 CPUs; without it of this one, where a subcell may have no CPU.
//! let found = Session::builder().feed(&mut Pairs(0)).target_cpus(16).run()?;
//! assert!(found.mitosis()?.contains("reader"));
//! assert_eq!(found.report()?.cells[0].subcells.len(), 3, "each pair, and the rest");
//! # Ok::<(), scxprof::Error>(())
//! ```
//!
//! # The way of a sample, and the modules
//!
//! | module | what |
//! |---|---|
//! | [`session`] | the capture: [`Builder`](session::Builder), [`Session`], [`Analysis`](session::Analysis); sources ([`Feed`](session::Feed)) and sinks ([`Sink`](session::Sink)) of one's own |
//! | [`sample`] | what one memory access is |
//! | [`host`] | where the host is read, and what can go wrong there |
//! | [`resolve`] | names: threads, cgroups, memory and code, from the kernel's records and procfs |
//! | [`cluster`] | which threads share memory, and how that is found out |
//! | [`config`] | what cells that makes, for scx_mitosis and scx_layered, and the report |
//! | [`profile`] | recordings, written and read again |
//! | [`bpf`] | task hints |
//! | [`doctor`] | what a host allows |
//!
//! # Bounds
//!
//! Memory does not grow with the length of a capture, nor with the size of a profile. Every table that lives as long as one of
//! them has a bound in bytes; where it counts by number, its entries are of one size. What there is no room for is counted, and
//! said in a note, by the counts of loss, or as damage of the profile. `M` is `--memory` ([`session::Builder::memory`]), 64 MiB
//! if nothing else is said.
//!
//! | table | bound | what comes then |
//! |---|---|---|
//! | the sketch of who touched what | 3/8 M, half as much again for a moment | thins out; the report's `stability` and `confidence` say how sure it is |
//! | code and bytes of the hottest shared lines, in the sketch | 1/40 of it | what is less hot has none |
//! | samples that wait for their order in time | 1/4 M; of the timer source 1/8 M | the older half goes out early: loss `late` |
//! | tasks, mappings, cgroups and hints that wait so | as much again, 1 MiB at the least | the older half goes out early; none is lost |
//! | mappings of all processes ([`resolve`]) | 1/8 M; of a profile 1/4 M | the least recently used processes' are forgotten, and read again in a capture; a note of a profile |
//! | mappings of processes that ended, for the names of their memory | 256 processes, within the 1/8 M | the oldest go: their memory has an address only |
//! | mappings of one process, with their paths | half of that | later ones are not kept, and their memory counts as private: a note |
//! | inode numbers that were used again ([`resolve`]) | 8,192, 0.3 MiB | those used once are forgotten, which changes nothing; then all |
//! | ranges of pages, to see whether code was changed | 4,096, 0.2 MiB | the least recently used are looked up again |
//! | processes whose mappings are compared, of a recording | 16,384, 0.3 MiB | they are recorded again |
//! | calls into file systems that did not come back | 32 threads | nothing is asked of files any more: a note |
//! | code and pages for recovering addresses (timer) | 1/4 M | the oldest go, and are read again |
//! | stacks and places of that source | 65,536 threads, 16,384 places | all go, and are learned again |
//! | threads | 262,144 of 120 bytes | later ones have no name: a note, and loss `unnamed` |
//! | threads that have ended | 4,096 of these | the oldest go |
//! | threads that procfs does not know, their cgroups from procfs | 65,536 each | all go, and are read again |
//! | paths of cgroups | 65,536 and 16 MiB | the oldest go; in a capture they are found again, of a profile it is a note and loss `no_cgroup_path` |
//! | cgroups that nobody knows | 16,384 numbers | all go, and are asked for again |
//! | threads and cgroups of lines (perf.jsonl, text of perf) | 1,048,576 each, and 16 MiB of paths | all are numbered anew: a note |
//! | files that code is in | 65,536 and 16 MiB of paths | code in further ones has no name: a note |
//! | hints | 262,144 threads, 4,096 values | later ones are not kept: `not_kept` of the hints' counts |
//! | threads of the decision | 65,536 | later ones count to their cell only: loss `evicted` |
//! | cells and names of the decision | 1,024 and 16,384 | later ones count together: a note |
//! | a recording's files of code | 16,384 and 8 MiB of paths | further ones have no build id: a note |
//! | a recording's cgroups | 262,144 numbers | further ones may be in it twice |
//! | a recording's cgroups without a record | 2 MiB in meta.json | further ones have no path: a note |
//! | lines of recovered.jsonl that wait for their sample | 65,536 lines, 262,144 accesses (40 MiB) | the oldest half goes: damage |
//! | what an archive and the compressed records in it unpack to | 100 times the archive's size, 256 MiB at the least | it is refused; of compressed records damage |
//! | entries of an archive; its names and headers | 1,024; 4 MiB | it is refused |
//! | meta.json | 4 MiB, 100 notes | damage |
//! | events of a recording by perf, and their ids | 65,536 with names of 512 bytes; 1,048,576 | it is refused |
//! | a path in a record, a line of text | 4 KiB, 64 KiB | malformed, unreadable |
//! | debug information that source lines are read from | files of 256 MiB, by a process of 768 MiB and 3 s of CPU | there are no lines |
//! | names of code in lines | 131,072 instructions, 32 MiB | further ones have none: a message |
//!
//! Paths and names of others reach a terminal only with what it would obey escaped (control characters, marks that turn the
//! direction of text), and JSON likewise.

// What only the command line or tests use.
#![cfg_attr(not(all(feature = "cli", feature = "testing")), allow(dead_code, unused_imports))]

pub mod bpf;
mod cache;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
pub mod cluster;
pub mod config;
pub mod doctor;
mod elf;
mod escape;
pub mod hint;
pub mod host;
mod outcome;
pub mod profile;
mod recover;
pub mod resolve;
pub mod sample;
// From events to samples. What a program needs of it is in `session`.
mod sampler;
pub mod session;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;

pub use session::{Error, ErrorKind, Session};
