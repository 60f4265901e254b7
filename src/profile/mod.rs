//! Profiles: perf.data, the files beside it, and the samples as lines of JSON; reading and writing.
//!
//! A profile is a directory, or an archive of it:
//!
//! | file | content |
//! |---|---|
//! | `perf.data` | the records of the rings, byte for byte, in perf's own format |
//! | `recovered.jsonl` | the accesses of each sample, if the source recovers them (timer) |
//! | `hints.jsonl` | task hints, if they were followed |
//! | `cgroups.jsonl` | the cgroups of threads, if samples have none |
//! | `meta.json` | how to read the profile, what was lost, the host |
//!
//! [`Profile::open`] opens it, and other files that contain samples: a bare perf.data, the text that `perf script` printed of
//! one, the JSON Lines that `scxprof process` wrote for a profile, or a directory with one of these.
//! [`Builder::profile`](crate::session::Builder::profile) computes from it the result of the capture:
//!
//! ```no_run
//! use std::path::Path;
//!
//! use scxprof::profile::Profile;
//! use scxprof::Session;
//!
//! let mut profile = Profile::open(Path::new("host.tar.gz"))?;
//! let found = Session::builder().profile(&mut profile).run()?;
//! for damage in profile.damage() {
//!     eprintln!("{damage}");
//! }
//! println!("{}", found.mitosis()?);
//! # Ok::<(), scxprof::Error>(())
//! ```

// The public items of these modules are for tests, benches and fuzzing.
mod archive;
mod boot;
mod chains;
mod code_files;
mod disorder;
mod error;
mod features;
mod file_type;
mod foreign;
pub(crate) mod hints;
pub(crate) mod input;
pub(crate) mod jsonl;
pub(crate) mod meta;
mod quick;
mod recorder;
pub(crate) mod recovered;
pub(crate) mod sched_text;
pub(crate) mod script;
pub(crate) mod script_writer;
mod snapshot;
mod strip;
pub(crate) mod tasks;
pub(crate) mod thread_cgroups;
mod topology;
mod tracing;

pub(crate) use archive::pack;
pub(crate) use chains::ChainEvent;
pub use error::ProfileError;
pub use input::Profile;
pub(crate) use input::Records;
pub use meta::{Host, Meta, MetaEvent};
pub(crate) use recorder::FilesOf;
pub use recorder::Recorder;
pub use scxprof_perf::reader::PerfDataError;
