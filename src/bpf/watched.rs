//! At which event and of which tasks snapshots of the memory around registers are taken, and counts of them.

/// The event at which snapshots of the memory around registers are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clockwork {
    /// At the scheduler's tick.
    Tick,
    /// Whenever an event of cpu-clock samples.
    Clock,
}

/// The tasks of which snapshots are taken.
// Unused in builds without BPF.
#[cfg_attr(not(feature = "bpf"), allow(dead_code))]
#[derive(Debug, Clone, Copy)]
pub(crate) enum Watched<'a> {
    /// Every task.
    Everything,
    /// These threads and their children.
    Tasks(&'a [u32]),
    /// A cgroup of the unified hierarchy and those below it.
    Cgroup(&'a std::os::fd::OwnedFd),
}

/// Counts of the programs that take snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SnapshotCounts {
    /// Interrupts of watched tasks.
    pub hits: u64,
    /// Of these, interrupts of kernel code, which was not requested.
    pub in_kernel: u64,
    /// If kernel code was requested: interrupts of other interrupts and of softirqs.
    pub in_interrupt: u64,
    /// New threads that could not be watched because the map was full.
    pub unwatched: u64,
}
