//! The terminal while it is ours: keys come one by one, and a screen of its own is shown. It is given back as it was, however this ends:
//! also by an error, a panic, a signal, or for as long as Ctrl-Z suspends it.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Stdout};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use anyhow::{anyhow, Context, Result};
use ratatui::backend::CrosstermBackend;
use ratatui::Terminal;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::termios::{tcgetattr, tcsetattr, OptionalActions, Termios};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGQUIT, SIGTSTP};

/// The other screen, no cursor; and back, without colours, with a cursor.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
const LEAVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

/// How long the work may go on after the terminal is gone.
const GRACE: Duration = Duration::from_secs(5);

/// How the terminal was.
static BEFORE: OnceLock<(File, Termios)> = OnceLock::new();
/// A panic gives it back.
static HOOK: OnceLock<()> = OnceLock::new();
/// It is ours now.
static IS_OURS: AtomicBool = AtomicBool::new(false);

/// The terminal.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    /// It was asked to stop, and goes on after a stop.
    suspended: Arc<AtomicBool>,
    resumed: Arc<AtomicBool>,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// stdout is no terminal, or it cannot be set.
    pub(super) fn enter() -> Result<Self> {
        if !io::stdout().is_terminal() {
            return Err(anyhow!("stdout is no terminal; --once prints one page as text"));
        }
        let terminal = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/tty")
            .context("there is no terminal to read keys from")?;
        let before = tcgetattr(&terminal).context("cannot read the settings of the terminal")?;
        // There is one terminal; if it was taken before, it is as it was then.
        let _ = BEFORE.set((terminal, before));
        HOOK.get_or_init(|| {
            let print = panic::take_hook();
            panic::set_hook(Box::new(move |panicked| {
                leave();
                print(panicked);
            }));
        });
        let flag = |signal| {
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal, Arc::clone(&flag))
                .with_context(|| format!("cannot handle signal {signal}"))?;
            anyhow::Ok(flag)
        };
        let (suspended, resumed) = (flag(SIGTSTP)?, flag(SIGCONT)?);
        // A file that is larger than RLIMIT_FSIZE allows is an error like a full disk.
        flag(libc::SIGXFSZ)?;
        let quit = || {
            leave();
            let _ = signal_hook::low_level::emulate_default_handler(SIGQUIT);
        };
        // SAFETY: the handler makes system calls alone: write, tcsetattr, and what ends the process.
        unsafe { signal_hook::low_level::register(SIGQUIT, quit) }.context("cannot handle SIGQUIT")?;
        end_without_terminal()?;
        take()?;
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()));
        let terminal = terminal.inspect_err(|_| leave()).context("cannot use the terminal")?;
        Ok(Self { terminal, suspended, resumed })
    }

    /// What draws on it.
    pub(super) fn terminal(&mut self) -> &mut Terminal<CrosstermBackend<Stdout>> {
        &mut self.terminal
    }

    /// Stops if a signal asked for it, and takes the terminal again after a stop; true if all must be drawn anew.
    pub(super) fn is_anew(&mut self) -> Result<bool> {
        if self.suspended.swap(false, Ordering::Relaxed) {
            self.suspend()?;
            return Ok(true);
        }
        if self.resumed.swap(false, Ordering::Relaxed) {
            self.retake()?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Gives the terminal back and stops, as Ctrl-Z does, until `fg`.
    pub(super) fn suspend(&mut self) -> Result<()> {
        leave();
        signal_hook::low_level::emulate_default_handler(SIGTSTP).context("cannot stop")?;
        self.resumed.store(false, Ordering::Relaxed);
        self.retake()
    }

    fn retake(&mut self) -> Result<()> {
        take()?;
        self.terminal.clear().context("cannot clear the terminal")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

/// True while the terminal is ours: a thread that panicked has given it back.
pub(super) fn is_ours() -> bool {
    IS_OURS.load(Ordering::Relaxed)
}

/// Waits for keys; false if the terminal is gone.
pub(super) fn wait(limit: Duration) -> Result<bool> {
    is_there(PollFlags::IN, Some(limit))
}

/// Waits for these events of the terminal; false if it is gone.
fn is_there(events: PollFlags, limit: Option<Duration>) -> Result<bool> {
    let (terminal, _) = BEFORE.get().context("there is no terminal")?;
    let mut polled = [PollFd::new(terminal, events)];
    let limit = limit.map(Timespec::try_from).transpose()?;
    match poll(&mut polled, limit.as_ref()) {
        // A signal.
        Err(Errno::INTR) => return Ok(true),
        done => done.context("the terminal")?,
    };
    let is_gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    Ok(!polled.iter().any(|it| it.revents().intersects(is_gone)))
}

/// Ends the process if the terminal is gone and yet not given back. crossterm reads a terminal that is gone again and again, forever,
/// and [`wait`] cannot prevent all of that: it can go between the two.
fn end_without_terminal() -> Result<()> {
    let watch = || {
        loop {
            match is_there(PollFlags::empty(), None) {
                Ok(true) => {}
                Ok(false) => break,
                // Whether it is there cannot be told.
                Err(_) => return,
            }
        }
        thread::sleep(GRACE);
        if is_ours() {
            signal_hook::low_level::exit(128 + SIGHUP);
        }
    };
    thread::Builder::new().name("terminal".to_owned()).spawn(watch).context("cannot start a thread")?;
    Ok(())
}

fn take() -> Result<()> {
    let (terminal, before) = BEFORE.get().context("there is no terminal")?;
    let mut raw = before.clone();
    raw.make_raw();
    tcsetattr(terminal, OptionalActions::Flush, &raw).context("cannot set the terminal")?;
    IS_OURS.store(true, Ordering::Relaxed);
    write(ENTER);
    Ok(())
}

/// Gives it back. This is called in a signal handler too: it makes only system calls.
pub(super) fn leave() {
    if !IS_OURS.swap(false, Ordering::Relaxed) {
        return;
    }
    write(LEAVE);
    if let Some((terminal, before)) = BEFORE.get() {
        // If it is gone, nothing can be done.
        let _ = tcsetattr(terminal, OptionalActions::Now, before);
    }
}

fn write(bytes: &[u8]) {
    let _ = rustix::io::write(rustix::stdio::stdout(), bytes);
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Child, Command, ExitStatus};
    use std::time::Instant;

    use rustix::termios::LocalModes;

    use super::super::super::signals::{self, Signals};
    use super::*;

    const END: &str = "SCXPROF_TEST_END";
    /// What a test says when crossterm has opened the terminal.
    const OPENED: &[u8] = b"it is open";

    /// A terminal: the side of the program that shows it, and that of the program in it.
    fn pair() -> (File, File) {
        // No child has either by accident: the terminal is gone when `ours` is closed.
        let ours = OpenOptions::new().read(true).write(true).open("/dev/ptmx").unwrap();
        let (unlocked, flags): (libc::c_int, _) = (0, libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        // SAFETY: the first call reads a number, and the second takes one; ioctl_tty(2).
        let theirs = unsafe {
            assert_eq!(libc::ioctl(ours.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlocked), 0);
            libc::ioctl(ours.as_raw_fd(), libc::TIOCGPTPEER, flags)
        };
        assert!(theirs >= 0, "{}", io::Error::last_os_error());
        // SAFETY: it is open, and nothing else has it.
        (ours, unsafe { OwnedFd::from_raw_fd(theirs) }.into())
    }

    /// Runs this test again in a terminal, and ends it as `end` says: returns the process, and both sides of its terminal.
    fn start(name: &str, end: &str) -> (Child, File, File) {
        let (ours, theirs) = pair();
        let name = format!("cli::top::terminal::tests::{name}");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &name, "--nocapture"]).env(END, end).env("RUST_BACKTRACE", "0");
        let of = || theirs.try_clone().unwrap();
        command.stdin(of()).stdout(of()).stderr(of());
        // SAFETY: both calls are async-signal-safe.
        unsafe {
            command.pre_exec(|| match (libc::setsid(), libc::ioctl(0, libc::TIOCSCTTY, 0)) {
                (-1, _) | (_, -1) => Err(io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
        (command.spawn().unwrap(), ours, theirs)
    }

    /// What it wrote, its end, and the modes of the terminal after that.
    fn in_a_terminal(end: &str) -> (String, ExitStatus, LocalModes) {
        let name = "the_terminal_is_given_back_after_a_panic_and_a_second_signal";
        let (mut child, mut ours, theirs) = start(name, end);
        let (mut said, mut part) = (Vec::new(), [0; 4096]);
        let status = std::thread::scope(|scope| {
            let waits = scope.spawn(move || child.wait().unwrap());
            let ended = loop {
                // Its side is held open here, so that there is something to read from.
                let mut ready = [rustix::event::PollFd::new(&ours, rustix::event::PollFlags::IN)];
                let wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                let is_ready = rustix::event::poll(&mut ready, Some(&wait)).unwrap() > 0;
                if is_ready {
                    let count = ours.read(&mut part).unwrap();
                    said.extend_from_slice(&part[..count]);
                } else if waits.is_finished() {
                    break waits.join().unwrap();
                }
            };
            ended
        });
        (String::from_utf8_lossy(&said).into_owned(), status, tcgetattr(&theirs).unwrap().local_modes)
    }

    #[test]
    fn the_terminal_is_given_back_after_a_panic_and_a_second_signal() {
        if let Some(end) = std::env::var_os(END) {
            signals::at_exit(leave);
            let _signals = Signals::handle().unwrap();
            let _screen = Screen::enter().unwrap();
            assert!(end != "panic", "it panics");
            if end == "quit" {
                signal_hook::low_level::raise(SIGQUIT).unwrap();
            }
            loop {
                signal_hook::low_level::raise(libc::SIGTERM).unwrap();
                // Two that come together count as one.
                std::thread::sleep(std::time::Duration::from_millis(150));
            }
        }
        let ends = [
            ("panic", "it panics", Some(101)),
            ("signals", "ended by a second signal", Some(128 + 15)),
            ("quit", "", None),
        ];
        for (end, says, code) in ends {
            let (said, status, modes) = in_a_terminal(end);
            let enter = said.find("\x1b[?1049h").unwrap_or_else(|| panic!("{end}: {said:?}"));
            let leave = said.find("\x1b[?1049l").unwrap_or_else(|| panic!("{end}: {said:?}"));
            assert!(enter < leave && said.rfind(says).is_some_and(|says| leave < says), "{end}: {said:?}");
            assert!(modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG), "{end}: {modes:?}");
            assert_eq!(status.code(), code, "{end}: {said:?}");
            assert_eq!(status.signal(), (end == "quit").then_some(SIGQUIT), "{end}: {said:?}");
        }
    }
    #[test]
    fn nothing_reads_a_terminal_that_is_gone_for_ever() {
        if std::env::var_os(END).is_some() {
            let _signals = Signals::handle().unwrap();
            let _screen = Screen::enter().unwrap();
            // It opens the terminal, which must be there.
            ratatui::crossterm::event::poll(Duration::ZERO).unwrap();
            write(OPENED);
            while wait(Duration::from_secs(1)).unwrap() {}
            // It went after the last look at it.
            let _ = ratatui::crossterm::event::poll(Duration::ZERO);
            std::process::exit(0);
        }
        let (mut child, mut ours, theirs) = start("nothing_reads_a_terminal_that_is_gone_for_ever", "gone");
        // So that a child that has ended is no terminal to wait for.
        drop(theirs);
        let (mut said, mut part) = (Vec::new(), [0; 4096]);
        while !said.windows(OPENED.len()).any(|it| it == OPENED) {
            let count = ours.read(&mut part).unwrap();
            said.extend_from_slice(&part[..count]);
        }
        drop(ours);
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if begin.elapsed() > Duration::from_secs(180) {
                child.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        // 0: crossterm says by itself that it is gone, and the thread is not needed any more.
        assert_eq!(status.code(), Some(128 + SIGHUP), "{status}");
    }
}
