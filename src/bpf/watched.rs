//! When snapshots of the memory around registers are taken, of which tasks, and how many.

/// The event at which snapshots of the memory around registers are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clockwork {
    /// At the scheduler's tick.
    Tick,
    /// Whenever an event of cpu-clock samples.
    Clock,
}

/// A page of a file in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FilePage {
    /// As the kernel numbers it: the major number from bit 20 on (include/linux/kdev_t.h).
    pub device: u32,
    /// The inode's number.
    pub inode: u64,
    /// Its place in the file, in pages.
    pub index: u64,
}

/// A page with objects of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlabPage {
    /// Its place among the pages of its slab.
    pub index: u64,
    /// Bytes of an object.
    pub size: u64,
    /// The name of the objects' cache.
    pub cache: String,
}

/// Objects that belong to something with a number, as in kernel_memory.bpf.c.
// Without BPF, these have no user.
#[cfg_attr(not(feature = "bpf"), allow(dead_code))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owned {
    /// The protocol's part of a socket: `struct sock`.
    Sock,
    /// The file's part of a socket: `struct socket_alloc`.
    Socket,
    /// An open file: `struct file`.
    OpenFile,
}

/// The tasks of which snapshots are taken.
// Without BPF, these have no user.
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
    /// Of these, interrupts of the kernel that give no sample, as kernel code was not requested.
    pub in_kernel: u64,
    /// The same where it was: interrupts of other interrupts and of softirqs.
    pub in_interrupt: u64,
    /// New threads that could not be watched for lack of room.
    pub unwatched: u64,
}
