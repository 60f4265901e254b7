//! Everything that uses BPF: task hints, the memory around the registers of timer samples (`Snapshots`), and the
//! dispatch queues of sched_ext schedulers (`Dsqs`).
//!
//! Task hints are numbers that programs write for their threads into a map that a sched_ext scheduler reads.
//!
//! The map has the type `BPF_MAP_TYPE_TASK_STORAGE`, and its value begins with the hint as a u64. BPF programs observe
//! the writes; several probes are tried in order, see [`HintProbe`](crate::hint::HintProbe). No probe observes BPF
//! programs that write through a pointer into the map, or writes to user memory that is mapped into it (`BPF_UPTR`).
//!
//! If hints cannot be followed, a capture continues without them, and
//! [`HintCounts::missing`](crate::hint::HintCounts::missing) gives the reason, even without the feature `bpf`. The
//! first request for hints stops libbpf from printing to stderr, also for other users of libbpf in this process.

#[cfg(feature = "bpf")]
mod dsq;
#[cfg(feature = "bpf")]
mod event;
#[cfg(feature = "bpf")]
mod hint_watch;
mod hints;
#[cfg(feature = "bpf")]
mod kernel_memory;
mod kernel_page;
#[cfg(feature = "bpf")]
mod map;
#[cfg(feature = "bpf")]
mod operand;
#[cfg(feature = "bpf")]
mod probe;
mod refusal;
#[cfg(feature = "bpf")]
mod snapshot;
#[cfg(feature = "bpf")]
mod trials;
mod watched;
#[cfg(not(feature = "bpf"))]
mod without;

#[cfg(feature = "bpf")]
pub(crate) use dsq::{DsqOutputs, Dsqs};
#[cfg(feature = "bpf")]
pub(crate) use hint_watch::HintWatch;
pub use hints::{HintOptions, HintsError, MapRef, MapRefError};
#[cfg(feature = "bpf")]
pub(crate) use kernel_memory::KernelMemory;
pub(crate) use kernel_page::{FilePage, Owned};
#[cfg(feature = "bpf")]
pub(crate) use operand::{SnapshotOutputs, Snapshots, WantedMap};
#[doc(hidden)]
pub use refusal::{Refusal, Step};
#[cfg(feature = "bpf")]
#[doc(hidden)]
pub use trials::trials;
pub(crate) use watched::{Clockwork, Watched};
#[cfg(not(feature = "bpf"))]
#[doc(hidden)]
pub use without::trials;
#[cfg(not(feature = "bpf"))]
pub(crate) use without::{DsqOutputs, Dsqs, HintWatch, KernelMemory, SnapshotOutputs, Snapshots, WantedMap};
