//! Calls into file systems that may never return: a FUSE daemon can be stopped and an NFS server can be gone, and any user can
//! provide one. Separate threads make these calls, and the caller waits only for a limited time.
//!
//! A thread that does not return is abandoned, and no further call about the same object is made until it returns. If too many
//! threads are abandoned, no more calls are made. The process does not wait for them when it ends.

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{bounded, Receiver, Sender};
use rustc_hash::FxHashMap;

use super::priority;

/// The number of threads that may be abandoned.
const MAX_STUCK: usize = 32;
/// A thread without work ends after so long.
const IDLE: Duration = Duration::from_secs(2);

/// How long to wait for a file to be opened or read while samples wait; a disk takes some ms.
pub(crate) const SHORT: Duration = Duration::from_millis(200);

type Job = Box<dyn FnOnce() + Send>;

/// There was no answer in time, or an earlier call about the same object has not returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no answer: the file system or the process does not go on")]
pub(crate) struct NoAnswer;

impl From<NoAnswer> for std::io::Error {
    fn from(error: NoAnswer) -> Self {
        Self::new(std::io::ErrorKind::TimedOut, error)
    }
}

#[derive(Default)]
struct Calls {
    /// The number of calls about each object that have not returned yet.
    stuck: FxHashMap<u64, usize>,
    /// Calls without an answer so far.
    unanswered: u64,
}

struct Pool {
    state: Mutex<Calls>,
    jobs: (Sender<Job>, Receiver<Job>),
}

static POOL: LazyLock<Pool> = LazyLock::new(|| Pool { state: Mutex::default(), jobs: bounded(0) });

/// The object of a call, for [`within`]: calls that may block on the same object have the same number.
pub(crate) fn about(what: impl std::hash::Hash) -> u64 {
    use std::hash::BuildHasher;
    rustc_hash::FxBuildHasher.hash_one(what)
}

/// Calls without an answer so far.
pub(crate) fn unanswered() -> u64 {
    lock().unanswered
}

/// True if a call about this object has not returned yet.
pub(crate) fn is_stuck(about: u64) -> bool {
    lock().stuck.contains_key(&about)
}

/// Runs `job` on another thread, and returns its result if that comes within `limit`.
///
/// # Errors
/// It did not come in time, or was not started: an earlier call `about` the same object has not returned yet.
pub(crate) fn within<T: Send + 'static>(
    about: u64,
    limit: Duration,
    job: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NoAnswer> {
    {
        let mut state = lock();
        if state.stuck.contains_key(&about) || state.stuck.values().sum::<usize>() >= MAX_STUCK {
            state.unanswered += 1;
            return Err(NoAnswer);
        }
    }
    let is_done = Arc::new(Mutex::new(false));
    let (answer, answered) = bounded(1);
    let done = Arc::clone(&is_done);
    let job: Job = Box::new(move || {
        // It counts as done even if it panics: its object is unharmed.
        let _guard = Done { about, is_done: done };
        let _ = answer.send(job());
    });
    let begin = Instant::now();
    if let Err(unsent) = POOL.jobs.0.try_send(job) {
        let job = unsent.into_inner();
        let spawned = priority::spawn("aside", move || {
            job();
            while let Ok(job) = POOL.jobs.1.recv_timeout(IDLE) {
                job();
            }
        });
        if spawned.is_err() {
            lock().unanswered += 1;
            return Err(NoAnswer);
        }
    }
    if let Ok(answer) = answered.recv_timeout(limit.saturating_sub(begin.elapsed())) {
        return Ok(answer);
    }
    let done = is_done.lock().unwrap_or_else(PoisonError::into_inner);
    let mut state = lock();
    if !*done {
        *state.stuck.entry(about).or_default() += 1;
    }
    state.unanswered += 1;
    Err(NoAnswer)
}

/// Reports at the end of a job that it has returned.
struct Done {
    about: u64,
    is_done: Arc<Mutex<bool>>,
}

impl Drop for Done {
    fn drop(&mut self) {
        let mut done = self.is_done.lock().unwrap_or_else(PoisonError::into_inner);
        *done = true;
        let mut state = lock();
        if let Some(stuck) = state.stuck.get_mut(&self.about) {
            *stuck -= 1;
            if *stuck == 0 {
                state.stuck.remove(&self.about);
            }
        }
    }
}

fn lock() -> MutexGuard<'static, Calls> {
    POOL.state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Long enough for a busy machine.
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn what_does_not_come_back_is_left_behind_and_not_asked_again_until_it_does() {
        let (release, wait) = bounded::<()>(0);
        let stuck = about("what_does_not_come_back");
        assert_eq!(within(stuck, LONG, || 5), Ok(5));
        let waits = wait.clone();
        let before = unanswered();
        assert_eq!(within(stuck, Duration::from_millis(20), move || waits.recv().is_err()), Err(NoAnswer));
        // Immediately: the job is never started.
        assert_eq!(within(stuck, LONG, || panic!("it is not asked")), Err::<(), _>(NoAnswer));
        assert_eq!(within(about("others"), LONG, || 6), Ok(6));
        assert!(unanswered() >= before + 2);
        drop(release);
        let begin = Instant::now();
        while within(stuck, LONG, || 7) != Ok(7) {
            assert!(begin.elapsed() < LONG, "it came back long ago");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
