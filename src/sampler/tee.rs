//! The interface to a recording: the records of the rings as the kernel wrote them.

/// Takes the bytes of the rings. Workers call it concurrently. While one of them waits in it, its rings fill, and the
/// kernel counts the losses.
pub trait Tee: Send + Sync + std::fmt::Debug {
    /// Complete records of one ring, oldest first; `is_beside` for a ring of scheduling events, or of call stacks
    /// beside memory. `newest` is the time of this worker's latest record so far.
    fn records(&self, records: &[u8], newest: u64, is_beside: bool);

    /// An event was opened during the recording; its records have the number `id`. It differs only in its CPU and task
    /// from the event `like`, which was open at the start; `None` if there was none of its kind.
    fn opened(&self, id: u64, like: Option<u64>);

    /// The worker has passed on everything older than `until`, CLOCK_MONOTONIC ns; `u64::MAX` means that it has ended.
    fn complete(&self, worker: usize, until: u64);
}
