//! Wakes the session's thread.

use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

use crossbeam_channel::TryRecvError;

/// Lets the session's thread sleep until there is a batch.
///
/// The receive operation of a channel yields the CPU several times before it sleeps. While every CPU is busy, each
/// yield switches to a sampled thread and back, which displaces that thread's cache contents.
#[derive(Debug, Clone, Default)]
pub struct Waker(Arc<OnceLock<Thread>>);

impl Waker {
    /// Tells the session that there is something to read.
    pub(super) fn wake(&self) {
        if let Some(thread) = self.0.get() {
            thread.unpark();
        }
    }

    /// Returns the result of `next`. If it has nothing yet, waits for [`Waker::wake`], at most `most`, and calls it
    /// again. Only the thread that waited first is woken.
    pub(super) fn wait<T>(
        &self,
        most: Duration,
        mut next: impl FnMut() -> Result<T, TryRecvError>,
    ) -> Result<T, TryRecvError> {
        self.0.get_or_init(thread::current);
        match next() {
            Err(TryRecvError::Empty) => {
                // Returns at once if the thread was woken since `next` was called.
                thread::park_timeout(most);
                next()
            }
            other => other,
        }
    }
}

/// Wakes the session when dropped, because the end of a channel does not.
#[derive(Debug, Clone)]
pub(super) struct WakesAtEnd(pub(super) Waker);

impl Drop for WakesAtEnd {
    fn drop(&mut self) {
        self.0.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use crossbeam_channel::{bounded, Sender};

    use super::*;

    #[test]
    fn what_comes_and_the_end_wake_the_thread_that_waits() {
        /// Has the form of a worker's outlet.
        struct Outlet {
            to: Sender<u32>,
            waker: WakesAtEnd,
        }
        let (to, from) = bounded(1000);
        let waker = Waker::default();
        let outlet = Outlet { to, waker: WakesAtEnd(waker.clone()) };
        let sender = thread::spawn(move || {
            let Outlet { to, waker } = &outlet;
            for at in 0..1000 {
                if at % 100 == 0 {
                    thread::sleep(Duration::from_millis(3));
                }
                to.send(at).unwrap();
                waker.0.wake();
            }
            thread::sleep(Duration::from_millis(10));
            drop(outlet);
        });
        let begin = Instant::now();
        let mut got = Vec::new();
        loop {
            // If it is not woken, this takes an hour.
            match waker.wait(Duration::from_secs(3600), || from.try_recv()) {
                Ok(at) => got.push(at),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => break,
            }
        }
        assert_eq!(got, (0..1000).collect::<Vec<_>>());
        assert!(begin.elapsed() < Duration::from_secs(1800));
        sender.join().unwrap();
    }
}
