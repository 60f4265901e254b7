//! The way to a recording: the records of the rings as the kernel wrote them, before anything is made of them.

/// Takes the bytes of the rings. Workers call it at the same time; one that waits in it lets its rings fill, and what is
/// lost then is counted by the kernel.
pub trait Tee: Send + Sync + std::fmt::Debug {
    /// Whole records of one ring, oldest first. `newest` is the time of the latest record from this worker so far.
    fn records(&self, records: &[u8], newest: u64);

    /// The worker has handed over all that is older than `until`, CLOCK_MONOTONIC ns; `u64::MAX` is its end.
    fn complete(&self, worker: usize, until: u64);
}
