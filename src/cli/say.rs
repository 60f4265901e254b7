//! Messages on stderr.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use scxprof_base::columns::wrapped;
use scxprof_base::escape;

use super::{call, width};

/// Prints a line to stderr, in one piece and escaped for a terminal, because a COMMAND may write there too. If stderr is full
/// or has no reader, the line is lost, but not the run: `eprintln!` would panic.
macro_rules! say {
    ($($text:tt)*) => {{
        $crate::cli::say::say_line(&format!($($text)*));
    }};
}

/// True in a service, which must not wait for who reads its messages.
pub(super) static IS_SERVICE: AtomicBool = AtomicBool::new(false);
/// How long a service waits for the reader of its stderr.
const READER: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Writes to stderr. What cannot be written is lost.
pub(super) fn to_stderr(bytes: &[u8]) {
    use std::io::Write;
    let mut stderr = std::io::stderr();
    if !IS_SERVICE.load(Ordering::Relaxed) {
        let _ = stderr.write_all(bytes);
        return;
    }
    // A pipe that has room takes so much without waiting (PIPE_BUF, pipe(7)).
    for part in bytes.chunks(4096) {
        let has_room = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&READER));
        if !has_room.is_ok_and(|ready| ready > 0) || stderr.write_all(part).is_err() {
            return;
        }
    }
}

/// True if a person reads what is said.
pub(super) fn is_read() -> bool {
    !call::is_running() && std::io::stderr().is_terminal()
}

/// One line, for `say!`; at a terminal it is divided between words.
pub(super) fn say_line(text: &str) {
    if call::note(&escape::line(text)) {
        return;
    }
    let stderr = std::io::stderr();
    let width = if stderr.is_terminal() { width::of(&stderr) } else { None };
    let line = wrapped(&escape::line(text), width);
    to_stderr((line + "\n").as_bytes());
}

/// The same for text of several lines.
pub(super) fn say_lines(text: &str) {
    if call::is_running() {
        text.lines().filter(|line| !line.trim().is_empty()).for_each(say_line);
        return;
    }
    to_stderr((escape::lines(text.trim_end()) + "\n").as_bytes());
}
