//! Adds names to samples before the sinks get them: the thread, its cgroup and hint, the memory and the code.

mod accesses;
mod cgroups;
mod hints;
mod judge;
mod kernel;
#[allow(clippy::module_inception)]
mod namer;
mod recovery;
mod samples;
mod side_band;
mod unresolved;
mod wakeups;

pub(super) use accesses::Accesses;
pub(super) use kernel::KernelRecovery;
pub(super) use namer::Namer;
pub(super) use recovery::Recoverer;
pub(super) use wakeups::Wakeups;
