//! Work in threads of its own: it is bounded in time and memory, tells its progress, and ends when the client cancels it.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rmcp::model::ProgressNotificationParam;
use rmcp::service::RequestContext;
use rmcp::RoleServer;
use tokio::sync::Semaphore;
use tokio::time::{Interval, MissedTickBehavior};

use super::error::{Kind, ToolError};
use crate::host::{proc, Roots};

/// Pieces of work at a time; others wait for their turn.
const AT_A_TIME: usize = 2;
/// Between two looks at the memory, and two messages about progress.
const TICK: Duration = Duration::from_millis(200);

/// Starts work, and ends all of it with the server.
#[derive(Debug)]
pub(super) struct Workers {
    turns: Arc<Semaphore>,
    /// Bytes by which a call may let the process grow.
    memory: u64,
    running: Mutex<Vec<Weak<AtomicBool>>>,
}

/// Why work was ended.
#[derive(Debug, Clone, Copy)]
enum Ended {
    Cancelled,
    TimedOut,
    OutOfMemory,
}

impl Workers {
    pub(super) fn new(memory: u64) -> Self {
        Self { turns: Arc::new(Semaphore::new(AT_A_TIME)), memory, running: Mutex::default() }
    }

    /// Ends all work.
    pub(super) fn stop(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.iter().filter_map(Weak::upgrade).for_each(|stop| stop.store(true, Ordering::Relaxed));
    }

    /// True if the process grew by more than a call may let it since it had `before` bytes.
    fn is_too_much(&self, before: u64) -> bool {
        resident().saturating_sub(before) > self.memory
    }

    fn flag(&self) -> Arc<AtomicBool> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|it| it.strong_count() > 0);
        running.push(Arc::downgrade(&stop));
        stop
    }

    /// Runs `work` in a thread; it must end soon after its flag is set.
    ///
    /// # Errors
    /// Those of the work, [`Kind::Cancelled`], [`Kind::TimedOut`], [`Kind::OutOfMemory`] and, after a panic, [`Kind::Internal`].
    pub(super) async fn run<T: Send + 'static>(
        &self,
        context: &RequestContext<RoleServer>,
        time: Duration,
        what: &str,
        work: impl FnOnce(Arc<AtomicBool>) -> Result<T, ToolError> + Send + 'static,
    ) -> Result<T, ToolError> {
        let began = Instant::now();
        let cancelled = || ToolError::new(Kind::Cancelled, "the client cancelled the call");
        let turn = tokio::select! {
            turn = Arc::clone(&self.turns).acquire_owned() => turn,
            () = context.ct.cancelled() => return Err(cancelled()),
            () = tokio::time::sleep(time) => {
                return Err(ToolError::new(Kind::Busy, format!("{what} waited {} s for other calls", time.as_secs_f64())));
            }
        };
        let turn = turn.map_err(|error| ToolError::new(Kind::Internal, error.to_string()))?;
        let stop = self.flag();
        let own = Arc::clone(&stop);
        let before = resident();
        let mut thread = tokio::task::spawn_blocking(move || {
            // Also work that goes on after its call was answered has its turn.
            let _turn = turn;
            work(own)
        });
        let mut tick = ticks();
        // A client that does not read its messages holds up those about progress, and nothing else.
        let telling = tell(context, began, what);
        tokio::pin!(telling);
        let over = tokio::time::sleep(time.saturating_sub(began.elapsed()));
        tokio::pin!(over);
        let ended = loop {
            tokio::select! {
                done = &mut thread => {
                    let done = done.unwrap_or_else(|_| Err(ToolError::new(Kind::Internal, format!("{what} failed"))));
                    // A result is memory too, and may have come between two looks.
                    if done.is_ok() && self.is_too_much(before) {
                        break Ended::OutOfMemory;
                    }
                    return done;
                }
                () = context.ct.cancelled() => break Ended::Cancelled,
                () = &mut over => break Ended::TimedOut,
                _ = tick.tick() => {
                    if self.is_too_much(before) {
                        break Ended::OutOfMemory;
                    }
                }
                never = &mut telling => match never {},
            }
        };
        stop.store(true, Ordering::Relaxed);
        Err(match ended {
            Ended::Cancelled => cancelled(),
            Ended::TimedOut => {
                ToolError::new(Kind::TimedOut, format!("{what} did not end within {} s", time.as_secs_f64()))
            }
            Ended::OutOfMemory => {
                ToolError::new(Kind::OutOfMemory, format!("{what} needed more than {} MiB", self.memory >> 20))
            }
        })
    }
}

fn ticks() -> Interval {
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick
}

/// Tells the client again and again how long the work has taken, if it wants to know.
async fn tell(context: &RequestContext<RoleServer>, began: Instant, what: &str) -> Infallible {
    let Some(token) = context.meta.get_progress_token() else { return std::future::pending().await };
    let mut tick = ticks();
    loop {
        tick.tick().await;
        let elapsed = began.elapsed().as_secs_f64();
        // What must grow with each message; how much there is to do is not known.
        let progress = ProgressNotificationParam::new(token.clone(), elapsed);
        // Without a client, the call is cancelled.
        let _ = context.peer.notify_progress(progress.with_message(format!("{what}: {elapsed:.1} s"))).await;
    }
}

/// Bytes of memory that the process has; 0 if they are not known.
fn resident() -> u64 {
    proc::resident_bytes(&Roots::default()).unwrap_or(0)
}
