//! The terminal while it is ours: keys come one by one, and a screen of its own is shown. It is given back as it was, however this ends:
//! also by an error, a panic, a signal, or for as long as Ctrl-Z suspends it.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Stdout};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{anyhow, Context, Result};
use ratatui::backend::CrosstermBackend;
use ratatui::Terminal;
use rustix::termios::{tcgetattr, tcsetattr, OptionalActions, Termios};
use signal_hook::consts::{SIGCONT, SIGTSTP};

/// The other screen, no cursor; and back, without colours, with a cursor.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
const LEAVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

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
