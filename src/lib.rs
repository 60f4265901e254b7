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
//! use scxprof::session::{Batch, Feed, SideBand};
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
//! // For a host with 16 CPUs. The default is this host, which may have too few CPUs for each subcell to get one.
//! let found = Session::builder().feed(&mut Pairs(0)).target_cpus(16).run()?;
//! assert!(found.mitosis()?.contains("reader"));
//! assert_eq!(found.report()?.cells[0].subcells.len(), 3, "each pair, and the rest");
//! # Ok::<(), scxprof::Error>(())
//! ```
//!
//! # Modules
//!
//! A sample takes this way: `sampler` reads it from the kernel, `recover` computes addresses that the kernel does not give,
//! [`resolve`] adds names, [`cluster`] finds the communities, and [`config`] writes the configuration. [`session`] connects
//! them.
//!
//! | module | what it contains |
//! |---|---|
//! | [`session`] | the capture: [`Builder`](session::Builder), [`Session`], [`Analysis`](session::Analysis); custom sources ([`Feed`](session::Feed)) and sinks ([`Sink`](session::Sink)) |
//! | [`sample`] | the types of samples and accesses |
//! | `sampler` (private) | perf events: which ones to open, their rings, records and loss |
//! | `scxprof_recover` (crate) | addresses of memory operands, from registers and machine code (source `timer`) |
//! | [`host`] | the paths from which the host is read, and the errors of reading it |
//! | [`resolve`] | names of threads, cgroups, memory and code, from the kernel's records and procfs |
//! | `scxprof_elf` (crate) | symbols and call frame information of ELF files |
//! | [`cluster`] | which threads share memory: the sketch and the communities |
//! | [`config`] | cells and subcells for scx_mitosis, layers for scx_layered, and the report |
//! | [`profile`] | writes profiles, and reads them and recordings by other tools |
//! | [`hint`], [`bpf`] | task hints: their values, and the BPF programs that watch them |
//! | [`evidence`] | what runs and hosts show of classes of threads, as rows that add up; the decision for many hosts |
//! | [`sched`] | statistics of scheduling events |
//! | [`stacks`] | profiles of call stacks, and their tables |
//! | [`trace`] | reads traces of other tools in Perfetto's format, and writes tables in Parquet |
//! | [`html`] | the report as a page for a browser |
//! | [`doctor`] | what a host allows |
//! | `cli` (private) | the command line: options, messages, manual pages |
//!
//! # Glossary
//!
//! docs/glossary.md has all of it.
//!
//! | word | meaning |
//! |---|---|
//! | cell | a set of cgroups that gets its own CPUs |
//! | cell spec | one entry of the configuration: a name, a rule that matches cgroups, and subcells |
//! | subcell | a set of threads of a cell, matched by name; the last one, the catch-all `rest`, takes all other threads |
//! | layer | scx_layered's word for a set of threads with its own scheduling policy; scxprof writes one for each subcell |
//! | community | threads found to share memory |
//! | class | threads of one folded name: `pool-1` and `pool-2` fold to `pool-` |
//! | access | one load or store |
//! | sample | one record of the kernel; it gives one or more accesses |
//! | event | what the kernel counts |
//! | source | where samples and their addresses come from: `pebs`, `ibs`, `timer` or `faults` |
//! | granule | a cache line or a page with one identity, whichever process and address it is accessed through |
//! | region | a range of memory that its threads use alike: a data structure |
//! | hub | a granule that nearly all threads touch |
//! | sketch | the bounded summary of who touched what |
//! | possible miss | an access that may have had to fetch its cache line |
//! | hint | a number that a program writes for one of its threads into a BPF task-storage map |
//! | profile | a directory or archive that `scxprof record` writes |
//! | loss | samples that were taken and did not reach the decision, counted by stage |
//!
//! # Bounds
//!
//! Memory grows neither with the length of a capture nor with the size of a profile. Every table that lives as long as a
//! capture or a profile has a bound in bytes; if its bound is a number of entries, all entries have one size. What a table has
//! no room for is counted, and reported in a note, as loss or as damage of the profile. `M` is `--memory`
//! ([`session::Builder::memory`]), by default 64 MiB.
//!
//! | table | bound | what happens at the bound |
//! |---|---|---|
//! | the sketch of who touched what | 3/8 M, for a moment 9/16 M | it thins out; the report's `stability` and `confidence` say how certain the result is |
//! | slices of the samples, for the interval of a score | 1/8 M, and 8,192 threads in each of 48 slices | they thin out; later threads do not count in the interval |
//! | code and bytes of the hottest shared lines | 1/40 of the sketch | those of less hot lines are dropped |
//! | samples that wait to be sorted by time | 1/4 M; source `timer`: 1/8 M | the older half is passed on early: loss `late` |
//! | records of tasks, mappings, cgroups and hints that wait likewise | the same, at least 1 MiB | the older half is passed on early; none is lost |
//! | mappings of all processes ([`resolve`]) | 1/8 M; profile: 1/4 M | those of the least recently used processes are dropped; a capture reads them again, a profile gets a note |
//! | mappings of ended processes, to name their memory | 256 processes, within the 1/8 M | the oldest are dropped: their memory has an address only |
//! | mappings of one process, with their paths | half of that | later ones are dropped, and their memory counts as private: a note |
//! | processes that map memory, of a profile | 262,144 of 5 bytes | later ones count as the kernel's in a replay |
//! | threads and steps of a replay, its cgroups ([`replay`]) | 32,768, 4,194,304 of 24 and 16 bytes; 4,096 | the recording is refused; later ones are in the root of the others |
//! | pages that a replay counts | 65,536 of 16 threads | half of them are left out, and the rest stand for them |
//! | reused inode numbers ([`resolve`]) | 8,192, 0.3 MiB | those used once are dropped, which changes nothing; then all |
//! | ranges of pages that are checked for changed code | 4,096, 0.2 MiB | the least recently used are looked up again |
//! | processes for which a recording compares mappings | 16,384, 0.3 MiB | their mappings are recorded again |
//! | calls into file systems that have not returned | 32 threads | no file is read any more: a note |
//! | code and pages for recovering addresses (timer) | 1/4 M | the oldest are dropped, and read again |
//! | stacks and code places of that source | 65,536 threads, 16,384 places | all are dropped, and learned again |
//! | code places of that source with operands whose address is unknown | 1,024 | the half with fewer such operands is dropped |
//! | threads | 262,144 of 120 bytes | later ones have no name: a note, and loss `unnamed` |
//! | threads that have ended | 4,096 of these | the oldest are dropped |
//! | threads that procfs does not know, their cgroups from procfs | 65,536 each | all are dropped, and read again |
//! | paths of cgroups | 65,536 and 16 MiB | the oldest are dropped; a capture finds them again, a profile gets a note and loss `no_cgroup_path` |
//! | cgroups without a known path | 16,384 numbers | all are dropped, and looked up again |
//! | threads and cgroups of text lines (perf.jsonl, output of perf script) | 1,048,576 each, and 16 MiB of paths | all are numbered anew: a note |
//! | files that contain sampled code | 65,536 and 16 MiB of paths | code in later ones has no name: a note |
//! | hints | 262,144 threads, 4,096 values | later ones are dropped: `not_kept` of the hints' counts |
//! | threads of the decision | 65,536 | later ones count to their cell only: loss `evicted` |
//! | samples of threads over time | 240 steps, 1/16 M | steps get twice as long |
//! | the matrix of a report | 2,000 threads, 60,000 uses of regions, 100 pages with 10,000 uses of lines | the rest is counted: `left_out` |
//! | cells and names of the decision | 1,024 and 16,384 | later ones count together: a note |
//! | rows of evidence ([`evidence`]) | 256 MiB, about 300 bytes each beside the names; `merge --memory` | the evidence is refused |
//! | code files of a recording | 16,384 and 8 MiB of paths | later ones have no build id: a note |
//! | cgroups of a recording | 262,144 numbers | later ones may be in it twice |
//! | cgroups of a recording without a record | 2 MiB in meta.json | later ones have no path: a note |
//! | lines of recovered.jsonl that wait for their sample | 65,536 lines, 262,144 accesses (40 MiB) | the older half is dropped: damage |
//! | the unpacked size of an archive and of compressed records in it | 100 times the archive's size, at least 256 MiB | the archive is rejected; compressed records: damage |
//! | entries of an archive; its names and headers | 1,024; 4 MiB | the archive is rejected |
//! | meta.json | 4 MiB, 100 notes | damage |
//! | events of a recording by perf, and their ids | 65,536 with names of 512 bytes; 1,048,576 | the recording is rejected |
//! | what a compressed trace inflates to | 100 times its size, at least 256 MiB, of which 16 MiB in memory | the trace is rejected |
//! | events of a trace that wait to be sorted by time ([`trace`]) | 4,194,304 of about 130 bytes | the trace is rejected |
//! | call stacks ([`resolve`]) | 262,144, 4,194,304 frames of 16 bytes | later ones are not kept: their samples have no stack, a note |
//! | threads with call stacks, their pairs with stacks, samples one by one ([`session::StackSink`]) | 262,144, 2,097,152, 1,048,576 | the rest is counted ([`session::StackSink::left_out`]); later samples are only in the sums |
//! | call stacks that events of a trace name | 1,048,576 | later ones are unknown: a note |
//! | texts, entries of tables, threads, tracks of a trace | 64 MiB, 2,097,152, 1,048,576, 524,288 | later ones have no name: a note |
//! | threads and cgroups of tables in Parquet; rows that wait to be written | 1,048,576 and 65,536; 65,536 of a table, 8 MiB of text | later ones have no row: a note; the rows are written |
//! | slices that are open in these tables | 524,288 tracks of 64 | later ones have no row: a note; the oldest has no duration |
//! | a path in a record; a line of text | 4 KiB; 64 KiB | the record counts as malformed; the line as unreadable |
//! | debug information for source lines | files of 256 MiB; the process that reads them: 768 MiB and 3 s of CPU | no source lines |
//! | names of code in output lines | 131,072 instructions, 32 MiB | later ones have no name: a message |
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
pub mod doctor;
pub mod evidence;
pub mod hint;
pub mod host;
pub mod html;
mod outcome;
pub mod profile;
pub mod replay;
pub mod resolve;
// From events to samples; `session` has the public part.
mod sampler;
pub mod session;
pub mod stacks;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod timeline;

pub use scxprof_base::sample;
pub use session::{Error, ErrorKind, Session};
pub use {scxprof_sched as sched, scxprof_trace as trace};

use scxprof_base::{cache, escape, tables};
use {scxprof_elf as elf, scxprof_recover as recover};
