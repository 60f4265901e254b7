//! The profiler of call stacks that tools start and stop: one runs at a time, and it ends with the client that started it.

use std::sync::atomic::AtomicBool;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use super::capturing::{not_stopped, not_yours};
use super::error::{Kind, ToolError};
use crate::session::{EventSpec, HostOptions, Outcome, Profiler, ProfilerError, ProfilerStatus, Whose};
use crate::stacks::{ProfilerState, StackProfile};

/// The profiler, and whose it is.
#[derive(Debug, Default)]
pub(super) struct Profiling(RwLock<Owned>);

#[derive(Debug, Default)]
struct Owned {
    profiler: Profiler,
    client: Option<u64>,
}

/// What is sampled.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) event: EventSpec,
    pub(super) pids: Vec<u32>,
    pub(super) cpus: Vec<u32>,
    pub(super) time: Duration,
    pub(super) max_samples: u64,
    pub(super) memory: usize,
}

impl Profiling {
    fn read(&self) -> RwLockReadGuard<'_, Owned> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Owned> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts it for a client.
    ///
    /// # Errors
    /// [`Kind::Busy`] if it runs, [`Kind::Unsupported`] if this host or the rights of the server do not allow it,
    /// [`Kind::Cancelled`] once `stop` is set.
    pub(super) fn start(&self, client: u64, stop: &AtomicBool, wanted: Wanted) -> Result<ProfilerStatus, ToolError> {
        let Wanted { event, pids, cpus, time, max_samples, memory } = wanted;
        let sampled = event.clone();
        let whose = if pids.is_empty() { Whose::Host } else { Whose::Pids(pids) };
        let host = HostOptions { whose, cpus, raise_open_files: true, ..HostOptions::stacks(sampled) };
        let mut owned = self.write();
        not_stopped(stop)?;
        let started =
            owned.profiler.start(event, Some(max_samples), move |builder| builder.host(host).time(time).memory(memory));
        started.map_err(|error| {
            let kind = match &error {
                ProfilerError::Running => Kind::Busy,
                ProfilerError::Event(_) => Kind::InvalidArguments,
                _ => Kind::Unsupported,
            };
            ToolError::new(kind, error.to_string())
        })?;
        if let Err(cancelled) = not_stopped(stop) {
            owned.profiler.stop();
            return Err(cancelled);
        }
        owned.client = Some(client);
        Ok(owned.profiler.status())
    }

    pub(super) fn status(&self) -> ProfilerStatus {
        self.read().profiler.status()
    }

    /// The results so far, and what was lost if it has ended.
    ///
    /// # Errors
    /// [`Kind::NotRunning`] if it was never started.
    pub(super) fn results(&self) -> Result<(ProfilerState, StackProfile, Outcome), ToolError> {
        let owned = self.read();
        let state = owned.profiler.status().state;
        if state == ProfilerState::Idle {
            return Err(ToolError::new(Kind::NotRunning, "nothing was profiled yet"));
        }
        Ok((state, owned.profiler.results(), owned.profiler.outcome().unwrap_or_default()))
    }

    /// Stops it; the results stay.
    ///
    /// # Errors
    /// [`Kind::NotRunning`]; [`Kind::Busy`] if another client started it.
    pub(super) fn stop(&self, client: u64) -> Result<ProfilerStatus, ToolError> {
        let mut owned = self.write();
        match owned.profiler.status().state {
            ProfilerState::Idle => return Err(ToolError::new(Kind::NotRunning, "nothing is profiled")),
            ProfilerState::Running if owned.client.is_some_and(|owner| owner != client) => {
                return Err(not_yours("profile"));
            }
            _ => {}
        }
        owned.profiler.stop();
        owned.client = None;
        Ok(owned.profiler.status())
    }

    /// A client went away.
    pub(super) fn left(&self, client: u64) {
        let mut owned = self.write();
        if owned.client == Some(client) {
            owned.profiler.stop();
            owned.client = None;
        }
    }

    /// The server ends.
    pub(super) fn end(&self) {
        self.write().profiler.stop();
    }
}
