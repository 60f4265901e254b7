//! The capture of this host that tools start, look at and stop: one at a time, for a bounded time, and no longer than its client.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use super::error::{Kind, ToolError};
use crate::session::{HostOptions, Live, LiveError, LiveOptions, LiveState, Snapshot};
use scxprof_sched::report::By;

/// How long a tool waits for what a capture has not shown yet.
const PATIENCE: Duration = Duration::from_secs(8);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// The capture.
#[derive(Debug, Default)]
pub(super) struct Capturing(RwLock<Option<Capture>>);

#[derive(Debug)]
struct Capture {
    live: Live,
    client: Option<u64>,
    until: Instant,
}

impl Capture {
    fn is_over(&self) -> bool {
        self.client.is_some() && Instant::now() >= self.until
    }

    fn is_running(&self) -> bool {
        self.live.state() == LiveState::Running
    }
}

impl From<LiveError> for ToolError {
    fn from(error: LiveError) -> Self {
        let kind = match error {
            LiveError::Session(crate::session::Error::CellSpecs(_)) => Kind::InvalidArguments,
            _ => Kind::Unsupported,
        };
        Self::new(kind, error.to_string())
    }
}

fn none() -> ToolError {
    ToolError::new(Kind::NotRunning, "no capture was started: call capture_start first")
}

/// # Errors
/// [`Kind::Cancelled`].
pub(super) fn not_stopped(stop: &AtomicBool) -> Result<(), ToolError> {
    if stop.load(Ordering::Relaxed) {
        return Err(ToolError::new(Kind::Cancelled, "the call was stopped"));
    }
    Ok(())
}

/// Of another client.
pub(super) fn not_yours(what: &str) -> ToolError {
    ToolError::new(Kind::Busy, format!("another client started the {what}: it ends with its time, or with its client"))
}

impl Capture {
    /// # Errors
    /// [`Kind::Busy`] if another client started it, and it runs.
    fn is_of(&self, client: u64) -> Result<(), ToolError> {
        match self.client {
            Some(owner) if owner != client && self.is_running() => Err(not_yours("capture")),
            _ => Ok(()),
        }
    }
}

impl Capturing {
    fn read(&self) -> RwLockReadGuard<'_, Option<Capture>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Option<Capture>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts one for a client; what an earlier one found is forgotten.
    ///
    /// # Errors
    /// [`Kind::Busy`] if one runs, [`Kind::Unsupported`] if this host or the rights of the server do not allow it,
    /// [`Kind::Cancelled`] once `stop` is set: no client knows of the capture then.
    pub(super) fn start(
        &self,
        (client, stop): (u64, &AtomicBool),
        time: Duration,
        options: LiveOptions,
        host: HostOptions,
        scheduling: bool,
    ) -> Result<Snapshot, ToolError> {
        let mut capture = self.write();
        // While it waited for the lock.
        not_stopped(stop)?;
        if capture.as_ref().is_some_and(Capture::is_running) {
            return Err(ToolError::new(Kind::Busy, "a capture runs already: capture_stop ends it"));
        }
        *capture = None;
        let live = Live::start(options, host)?;
        if scheduling {
            live.schedule(true)?;
        }
        // To open events takes long.
        not_stopped(stop)?;
        let snapshot = live.snapshot(&[]);
        *capture = Some(Capture { live, client: Some(client), until: Instant::now() + time });
        Ok(snapshot)
    }

    /// Looks at the capture that runs or ran last.
    ///
    /// # Errors
    /// [`Kind::NotRunning`] if there is none, and those of `look`.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Live) -> Result<T, ToolError>) -> Result<T, ToolError> {
        match &*self.read() {
            Some(capture) => look(&capture.live),
            None => Err(none()),
        }
    }

    /// Looks at it to change it.
    ///
    /// # Errors
    /// As [`Self::look`]; [`Kind::Busy`] if another client started it, and it runs.
    pub(super) fn look_as<T>(
        &self,
        client: u64,
        look: impl FnOnce(&Live) -> Result<T, ToolError>,
    ) -> Result<T, ToolError> {
        match &*self.read() {
            Some(capture) => capture.is_of(client).and_then(|()| look(&capture.live)),
            None => Err(none()),
        }
    }

    /// What a capture knows now, with lines of these kinds.
    ///
    /// # Errors
    /// As [`Self::look`].
    pub(super) fn snapshot(&self, by: &[By]) -> Result<Snapshot, ToolError> {
        self.look(|live| Ok(live.snapshot(by)))
    }

    /// Looks again and again until `look` gives something, for some seconds.
    ///
    /// # Errors
    /// As [`Self::look`]; [`Kind::NoResult`] with `lacking` if there is nothing.
    pub(super) fn wait<T>(
        &self,
        stop: &AtomicBool,
        lacking: &str,
        look: impl Fn(&Live) -> Result<Option<T>, ToolError>,
    ) -> Result<T, ToolError> {
        let began = Instant::now();
        loop {
            // After the look, as what is found may come with the end.
            let (found, has_ended) = self.look(|live| {
                let has_ended = live.state() == LiveState::Ended;
                Ok((look(live)?, has_ended))
            })?;
            if let Some(found) = found {
                return Ok(found);
            }
            let is_late = began.elapsed() > PATIENCE || stop.load(Ordering::Relaxed);
            if has_ended || is_late {
                return Err(ToolError::new(Kind::NoResult, lacking));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Ends the capture; what it found stays.
    ///
    /// # Errors
    /// [`Kind::NotRunning`] if there is none; [`Kind::Busy`] if another client started it.
    pub(super) fn stop(&self, client: u64) -> Result<Snapshot, ToolError> {
        match &mut *self.write() {
            Some(capture) => {
                capture.is_of(client)?;
                capture.live.stop();
                capture.client = None;
                Ok(capture.live.snapshot(&[]))
            }
            None => Err(none()),
        }
    }

    /// Ends it if its time is over.
    pub(super) fn end_in_time(&self) {
        if let Some(capture) = self.write().as_mut().filter(|capture| capture.is_over()) {
            capture.live.stop();
            capture.client = None;
        }
    }

    /// True if the time of the capture is over, and it runs still.
    pub(super) fn is_over(&self) -> bool {
        self.0.try_read().is_ok_and(|capture| capture.as_ref().is_some_and(Capture::is_over))
    }

    /// A client went away.
    pub(super) fn left(&self, client: u64) {
        if let Some(capture) = self.write().as_mut().filter(|capture| capture.client == Some(client)) {
            capture.live.stop();
            capture.client = None;
        }
    }

    /// The server ends.
    pub(super) fn end(&self) {
        *self.write() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_that_was_cancelled_starts_nothing() {
        let (capturing, stop) = (Capturing::default(), AtomicBool::new(true));
        let (options, host) = (LiveOptions::default(), HostOptions::default());
        let started = capturing.start((1, &stop), Duration::from_secs(1), options, host, false);
        assert_eq!(started.unwrap_err().kind, Kind::Cancelled);
        assert_eq!(capturing.snapshot(&[]).unwrap_err().kind, Kind::NotRunning);
    }
}
