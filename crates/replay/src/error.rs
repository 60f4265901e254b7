//! Why a replay failed.

use std::io;
use std::path::PathBuf;

/// A replay that failed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// There is nothing to do.
    #[error("no thread is left to replay")]
    Nothing,
    /// A thread or process could not be made.
    #[error("cannot make {threads} mock threads: {source}; replay fewer (--comm, --cgroup, --pid), or raise the limit of processes (ulimit -u, pids.max)")]
    Make {
        /// How many there were to be.
        threads: usize,
        /// Why.
        source: io::Error,
    },
    /// Mock processes ended that should not have.
    #[error("{missing} of {threads} mock threads ended early: something else has killed them")]
    Died {
        /// How many.
        missing: usize,
        /// Of how many.
        threads: usize,
    },
    /// Nothing happened any more.
    #[error("the replay is stuck: {missing} of {threads} mock threads, such as {example}, wait for a wakeup that does not come")]
    Stuck {
        /// One of them.
        example: String,
        /// How many.
        missing: usize,
        /// Of how many.
        threads: usize,
    },
    /// The scheduler did not start.
    #[error("{name} does not start: {reason}")]
    Scheduler {
        /// The program.
        name: &'static str,
        /// Why.
        reason: String,
    },
    /// A cgroup cannot be made.
    #[error("cannot make the cgroup {}: {source}", path.display())]
    Cgroup {
        /// Its directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something that each replay needs.
    #[error("cannot {what}: {source}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}
