//! Signals: the first one ends the current work properly, the second one ends the tool immediately.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::call;
use crate::host::clock::monotonic_ns;
use crate::host::{proc, Roots};

/// Signals within this time, in ns, have one cause: timeout(1) sends its command SIGTERM twice (to it and to its group), a
/// closing terminal SIGHUP.
const TOGETHER: u64 = 100_000_000;
/// The message of an immediate end.
const SAID: &[u8] = b"error: ended by a second signal; what was not written yet is lost\n";

/// Work that is done before a second signal ends the process.
static AT_EXIT: OnceLock<fn()> = OnceLock::new();

/// Calls `then` before a second signal ends the process. It runs in a signal handler.
pub(super) fn at_exit(then: fn()) {
    // There is one thing to put back, the terminal.
    let _ = AT_EXIT.set(then);
}

/// Ctrl-C, SIGTERM and the end of the terminal.
#[derive(Debug, Clone, Default)]
pub(super) struct Signals {
    counts: Arc<SignalCounts>,
    /// In a call of `scxprof mcp`: what ends that, in place of signals.
    call: Option<Arc<AtomicBool>>,
}

#[derive(Debug, Default)]
struct SignalCounts {
    /// Signals since the last [`Signals::begin`].
    count: AtomicUsize,
    /// When the last one came, CLOCK_MONOTONIC.
    last: AtomicU64,
    /// SIGHUP came while it does not end the work.
    reload: Arc<AtomicBool>,
}

impl Signals {
    /// Handles them from now on. The first is left to the caller; the second ends the process with 128 + its number.
    pub(super) fn handle() -> Result<Self> {
        if let Some(stop) = call::stop() {
            return Ok(Self { call: Some(stop), ..Self::default() });
        }
        let hangup = (!hangup_is_ignored()).then_some(SIGHUP);
        Self::register([SIGINT, SIGTERM].into_iter().chain(hangup))
    }

    /// The same, but SIGHUP asks to read the configuration again, as that of a daemon does.
    pub(super) fn handle_and_reload() -> Result<Self> {
        let signals = Self::register([SIGINT, SIGTERM].into_iter())?;
        signal_hook::flag::register(SIGHUP, Arc::clone(&signals.counts.reload)).context("cannot handle SIGHUP")?;
        // A file that is larger than RLIMIT_FSIZE allows is an error like a full disk. A handler, as CMD would inherit that the
        // signal is ignored.
        signal_hook::flag::register(libc::SIGXFSZ, Arc::default()).context("cannot handle SIGXFSZ")?;
        Ok(signals)
    }

    fn register(ends: impl Iterator<Item = i32>) -> Result<Self> {
        let signals = Self::default();
        for signal in ends {
            let state = Arc::clone(&signals.counts);
            // SAFETY: the handler changes atomic numbers and calls clock_gettime, write and _exit, all of which are
            // async-signal-safe.
            unsafe { signal_hook::low_level::register(signal, move || state.take(signal)) }
                .with_context(|| format!("cannot handle signal {signal}"))?;
        }
        Ok(signals)
    }

    /// True if the current work must end.
    pub(super) fn seen(&self) -> bool {
        self.counts.count.load(Ordering::Relaxed) > 0
            || self.call.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// True once after each SIGHUP that asks to read the configuration again.
    pub(super) fn take_reload(&self) -> bool {
        self.counts.reload.swap(false, Ordering::Relaxed)
    }

    /// Starts another piece of work: the next signal is the first one again.
    pub(super) fn begin(&self) {
        self.counts.count.store(0, Ordering::Relaxed);
    }
}

impl SignalCounts {
    /// Runs in a signal handler.
    fn take(&self, signal: i32) {
        let now = monotonic_ns();
        if now.saturating_sub(self.last.swap(now, Ordering::Relaxed)) < TOGETHER {
            return;
        }
        if self.count.fetch_add(1, Ordering::Relaxed) > 0 {
            if let Some(then) = AT_EXIT.get() {
                then();
            }
            // If writing fails, nothing can be done.
            let _ = rustix::io::write(rustix::stdio::stderr(), SAID);
            signal_hook::low_level::exit(128 + signal);
        }
    }
}

/// True under nohup(1), which is meant to let the program continue.
fn hangup_is_ignored() -> bool {
    proc::own_mask(&Roots::default(), "SigIgn").is_some_and(|ignored| ignored & 1 << (SIGHUP - 1) != 0)
}
