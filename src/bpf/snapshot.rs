//! Reads the current hint of every task: before the first observed write, and again after writes were missed.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use libbpf_rs::{Iter, MapCore, MapFlags};
use rustix::process::PidfdFlags;

use super::event::{RawEvent, EVENT_SIZE};
use super::map::HintMap;
use super::probe::{self, pidfd_open, Loaded, Setting};
use super::refusal::Refusal;
use crate::host::clock::monotonic_ns;
use crate::host::{tasks, Roots};

/// For the pidfd of a thread that is not a group leader, since Linux 6.9 (linux/pidfd.h; `O_EXCL`).
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL as libc::c_uint);

/// The hints of all tasks.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    /// An event for each task that was read, with its hint or without.
    pub events: Vec<RawEvent>,
    /// Threads that could not be read.
    pub not_asked: u64,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// A reader of the hints of all tasks.
pub(super) struct Tasks {
    /// The kernel's iterator, or why it is not available.
    iterator: Result<Loaded, Refusal>,
    proc: PathBuf,
}

impl Tasks {
    /// Loads the iterator.
    pub(super) fn new(map: &HintMap, setting: Setting, proc: &Path) -> Self {
        Self { iterator: probe::iterator(Some(map), setting), proc: proc.to_owned() }
    }

    /// Reads every task: with the iterator if it is available, else one by one.
    pub(super) fn ask(&self, map: &HintMap) -> Snapshot {
        let iterated = match &self.iterator {
            Ok(loaded) => iterate(loaded),
            Err(refusal) => Err(refusal.to_string()),
        };
        match iterated {
            Ok(events) => Snapshot { events, ..Snapshot::default() },
            Err(reason) => {
                let mut snapshot = by_pidfd(map, &self.proc);
                if snapshot.not_asked > 0 {
                    let not_asked = snapshot.not_asked;
                    snapshot.notes.push(format!(
                        "{not_asked} threads could not be asked for the hint that they had at the start ({reason}; a lookup \
                         by pidfd reaches threads from Linux 6.9 on)"
                    ));
                }
                snapshot
            }
        }
    }
}

fn iterate(loaded: &Loaded) -> Result<Vec<RawEvent>, String> {
    let link = loaded.links.first().ok_or("iter/task: not attached")?;
    let mut bytes = Vec::new();
    Iter::new(link)
        .map_err(|_| io::Error::last_os_error())
        .and_then(|mut tasks| tasks.read_to_end(&mut bytes))
        .map_err(|error| format!("iter/task: {error}"))?;
    Ok(bytes.chunks_exact(EVENT_SIZE).filter_map(RawEvent::parse).collect())
}

fn by_pidfd(map: &HintMap, proc: &Path) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let roots = Roots { proc: proc.to_owned(), ..Roots::default() };
    let threads = match tasks::snapshot(&roots) {
        Ok(threads) => threads,
        Err(error) => {
            snapshot.notes.push(format!("the hints at the start are not known: {error}"));
            return snapshot;
        }
    };
    let mut value = vec![0; map.value_size as usize];
    for thread in threads {
        let flags = if thread.pid == thread.tid { PidfdFlags::empty() } else { PIDFD_THREAD };
        // Take the time before the look-up: a write in between has its own, later event.
        let time = monotonic_ns();
        let found = pidfd_open(thread.tid, flags).and_then(|pidfd| {
            let key = pidfd.as_fd().as_raw_fd().to_ne_bytes();
            // The errno is more precise than libbpf-rs's error.
            map.handle.lookup_into(&key, &mut value, MapFlags::ANY).map_err(|_| io::Error::last_os_error())
        });
        match found {
            Ok(has_one) => {
                let hint = value.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
                let hint = has_one.then_some(hint);
                snapshot.events.push(RawEvent { time, hint, pid: thread.pid, tid: thread.tid });
            }
            // The task has exited.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(_) => snapshot.not_asked += 1,
        }
    }
    snapshot
}
