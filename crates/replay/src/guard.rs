//! The guard of a replay: a process that ends the mock processes and takes the cgroups away, whatever ends scxprof.
//!
//! It is there before there is something to clean up, and learns of that through memory that both share: the first mock process,
//! and which of the planned cgroups have been made.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::board::Arena;
use super::calls::interrupted;
use super::error::ReplayError;
use super::groups::Groups;

/// How often the guard tries to remove a cgroup whose processes are on their way out, and how long it sleeps in between.
const TRIES: u32 = 2000;
const NAP_US: u32 = 5000;

/// The process, as long as this lives.
#[derive(Debug)]
pub struct Guard {
    pid: i32,
    alive: Option<OwnedFd>,
    /// The first mock process, whose group it ends; 0 without one.
    first: Arena,
}

impl Guard {
    /// Starts it, before anything is made. It removes those of `groups` that are made later.
    ///
    /// # Errors
    /// The process cannot be made.
    pub fn start(groups: Option<&Groups>) -> Result<Self, ReplayError> {
        let failed = |source| ReplayError::System { what: "start the guard of the replay", source };
        let first = Arena::new(8).map_err(failed)?;
        let (read, write) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
        // SAFETY: the child makes system calls only, all of them async-signal-safe, on memory that was there before.
        let pid = match unsafe { libc::fork() } {
            -1 => return Err(failed(io::Error::last_os_error())),
            0 => {
                // SAFETY: the guard's own copy of the writing end, which it does not use otherwise.
                unsafe { libc::close(write.as_raw_fd()) };
                keep(read.as_raw_fd(), first.words(0, 8), groups)
            }
            pid => pid,
        };
        // Both do it, so that it is done when either goes on.
        // SAFETY: sets the process group of a child.
        unsafe { libc::setpgid(pid, pid) };
        Ok(Self { pid, alive: Some(write), first })
    }

    /// Its process, and its group.
    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// Closes the copy of the pipe that a child of scxprof has: the guard waits until all copies are closed, and the mock processes
    /// inherit it. Only for a child that never drops this.
    pub(super) fn leave_to_parent(&self) {
        if let Some(alive) = &self.alive {
            // SAFETY: the child's own copy, which nothing uses after this.
            unsafe { libc::close(alive.as_raw_fd()) };
        }
    }

    /// The word that holds the first mock process.
    pub(super) fn first(&self) -> Option<&AtomicU64> {
        self.first.words(0, 8).first()
    }
}

impl Drop for Guard {
    /// Waits until the guard has removed everything.
    fn drop(&mut self) {
        drop(self.alive.take());
        // SAFETY: waits for a child of ours, without its status.
        while unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) } < 0 && interrupted() {}
    }
}

/// The guard's work: when the pipe is closed, it ends the group of the first mock process and removes the directories.
fn keep(pipe: i32, first: &[AtomicU64], groups: Option<&Groups>) -> ! {
    // SAFETY: system calls on numbers, a buffer and C strings that live; all of them are async-signal-safe.
    unsafe {
        libc::setpgid(0, 0);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
        let mut byte = 0u8;
        while libc::read(pipe, (&raw mut byte).cast(), 1) < 0 && interrupted() {}
        let first = first.first().map_or(0, |first| first.load(Ordering::Acquire)) as i32;
        if first > 0 {
            libc::kill(-first, libc::SIGKILL);
        }
    }
    if let Some(groups) = groups {
        let mut tries = TRIES;
        for directory in groups.made_last_first() {
            // SAFETY: as above.
            while unsafe { libc::rmdir(directory.as_ptr()) } != 0
                && io::Error::last_os_error().raw_os_error() == Some(libc::EBUSY)
                && tries > 0
            {
                tries -= 1;
                // SAFETY: as above.
                unsafe { libc::usleep(NAP_US) };
            }
        }
    }
    // SAFETY: ends the process without handlers of the parent's.
    unsafe { libc::_exit(0) }
}
