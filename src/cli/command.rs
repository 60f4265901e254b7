//! A command that is profiled while it runs: it waits before its exec until the events are open.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{anyhow, bail, Context, Result};
use rustix::process::{kill_process, Pid, Signal};

/// How often to check whether an ending command has ended.
const POLL: Duration = Duration::from_millis(20);

/// A child that waits to call exec.
///
/// A separate thread creates the child, because spawning returns only after exec.
#[derive(Debug)]
pub(super) struct Held {
    /// The child's process id.
    pub(super) pid: u32,
    name: String,
    go: io::PipeWriter,
    spawner: JoinHandle<io::Result<Child>>,
}

impl Held {
    /// Forks; the child's stdout becomes our stderr if `stdout_is_taken`, so that it cannot mix with the result.
    pub(super) fn new(arguments: &[OsString], stdout_is_taken: bool) -> Result<Self> {
        Self::with(arguments, |command| {
            if stdout_is_taken {
                command.stdout(Stdio::from(stderr()?));
            }
            Ok(())
        })
    }

    /// The same for a child that neither reads nor writes the terminal: it has a session of its own, so that it cannot open /dev/tty
    /// either.
    pub(super) fn quiet(arguments: &[OsString]) -> Result<Self> {
        Self::with(arguments, |command| {
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            // SAFETY: the closure runs between fork and exec and only calls setsid, which is async-signal-safe.
            unsafe { command.pre_exec(|| rustix::process::setsid().map(drop).map_err(io::Error::from)) };
            Ok(())
        })
    }

    fn with(arguments: &[OsString], prepare: impl FnOnce(&mut Command) -> Result<()>) -> Result<Self> {
        let (program, rest) = arguments.split_first().context("no command after --")?;
        let name = program.to_string_lossy().into_owned();
        let (mut report, tell_pid) = io::pipe().context("cannot make a pipe")?;
        let (wait_go, go) = io::pipe().context("cannot make a pipe")?;
        let mut command = Command::new(program);
        command.args(rest);
        prepare(&mut command)?;
        let held = hold(tell_pid, wait_go, go.as_raw_fd());
        // SAFETY: the closure runs between fork and exec and only calls close, getpid, write and read, which are
        // async-signal-safe; it does not allocate.
        unsafe { command.pre_exec(held) };
        let spawner = std::thread::Builder::new()
            .name("spawn".to_owned())
            .spawn(move || {
                let result = command.spawn();
                drop(command);
                result
            })
            .context("cannot start a thread")?;
        let mut pid = [0; 4];
        if report.read_exact(&mut pid).is_err() {
            let error = spawner.join().map_err(|_| anyhow!("the thread that starts {name} died"))?.err();
            bail!("cannot run {name}: {}", error.unwrap_or_else(|| io::ErrorKind::Other.into()));
        }
        Ok(Self { pid: u32::from_ne_bytes(pid), name, go, spawner })
    }

    /// Lets the child call exec.
    ///
    /// # Errors
    /// The command cannot be executed.
    pub(super) fn release(mut self) -> Result<Running> {
        self.go.write_all(&[1]).with_context(|| format!("{} ended before it could start", self.name))?;
        drop(self.go);
        let spawned = self.spawner.join().map_err(|_| anyhow!("the thread that starts {} died", self.name))?;
        let child = spawned.map_err(|error| anyhow!("cannot run {}: {error}", self.name))?;
        Ok(Running { child, terminated: false })
    }
}

/// The child's code between fork and exec: it sends its pid and waits for a byte.
fn hold(tell_pid: io::PipeWriter, wait_go: io::PipeReader, go: RawFd) -> impl FnMut() -> io::Result<()> + Send + Sync {
    move || {
        // SAFETY: this is the child's copy of the writing end, which nothing in the child uses; while it is open, the read
        // below would never notice that the parent has ended.
        unsafe { libc::close(go) };
        (&tell_pid).write_all(&std::process::id().to_ne_bytes())?;
        let mut go = [0];
        // Without the byte, the parent gave up, and so must the child.
        (&wait_go).read_exact(&mut go)
    }
}

/// stderr as a descriptor for a child.
fn stderr() -> Result<OwnedFd> {
    io::stderr().as_fd().try_clone_to_owned().context("cannot give stderr to the command")
}

/// The running command.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    terminated: bool,
}

impl Running {
    /// True when it has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Asks it to end, with SIGTERM, if it still runs.
    pub(super) fn terminate(&mut self) {
        if !self.has_ended() {
            // The child has not been reaped yet, so the pid still belongs to it.
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
            self.terminated = true;
        }
    }

    /// Waits for its end, and kills it if `hurry` returns true. Returns the status as in a shell: 128 + signal; 0 if it ended
    /// by our signal.
    pub(super) fn finish(&mut self, mut hurry: impl FnMut() -> bool) -> Result<u8> {
        while !self.has_ended() {
            if hurry() {
                // This fails only if the command has just ended.
                let _ = self.child.kill();
                break;
            }
            std::thread::sleep(POLL);
        }
        let status = self.child.wait().context("cannot wait for the command")?;
        Ok(self.status(status))
    }

    fn status(&self, status: ExitStatus) -> u8 {
        match status.signal() {
            Some(libc::SIGTERM | libc::SIGKILL) if self.terminated => 0,
            Some(signal) => 128 + signal as u8,
            // A shell's status if its child ended by SIGTERM.
            None if self.terminated && status.code() == Some(128 + libc::SIGTERM) => 0,
            None => status.code().unwrap_or(1) as u8,
        }
    }
}
