//! The line that a person at a terminal sees while it samples.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use super::say::to_stderr;
use super::width;

/// How often the line is drawn.
const EVERY: Duration = Duration::from_millis(100);
/// Characters of the bar itself. The whole line fits most windows that are made narrower.
const BAR: u64 = 16;

/// A line on stderr that is drawn again and again.
#[derive(Debug)]
pub(super) struct ProgressLine {
    /// In seconds, if there is one.
    limit: Option<u64>,
    is_shown: bool,
    /// The characters on the terminal.
    drawn: usize,
    last: Option<Instant>,
}

impl ProgressLine {
    /// Shown if stderr is a terminal that can be drawn on.
    pub(super) fn new(limit: Option<Duration>) -> Self {
        let can_draw = std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        let is_shown = can_draw && std::io::stderr().is_terminal();
        Self { limit: limit.map(|limit| limit.as_secs().max(1)), is_shown, drawn: 0, last: None }
    }

    /// None at all.
    pub(super) fn hidden() -> Self {
        Self { limit: None, is_shown: false, drawn: 0, last: None }
    }

    /// Draws how far it is, and `what` of it.
    pub(super) fn show(&mut self, elapsed: Duration, what: &str) {
        if !self.is_shown || self.last.is_some_and(|last| last.elapsed() < EVERY) {
            return;
        }
        self.last = Some(Instant::now());
        let width = columns();
        let text = line(elapsed.as_secs(), self.limit, what, width);
        to_stderr(format!("{}{text}", cleared(self.drawn, width)).as_bytes());
        self.drawn = text.chars().count();
    }

    /// Removes the line, before something else is printed.
    pub(super) fn clear(&mut self) {
        if self.drawn > 0 {
            to_stderr(cleared(self.drawn, columns()).as_bytes());
            (self.drawn, self.last) = (0, None);
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The width now: the window may be another than at the last time.
fn columns() -> usize {
    width::of_terminal(&std::io::stderr()).unwrap_or(80)
}

/// The text, which leaves the last column free: a terminal may go to the next line after it.
fn line(seconds: u64, limit: Option<u64>, what: &str, width: usize) -> String {
    let text = match limit {
        Some(limit) => {
            let done = (seconds.min(limit) * BAR / limit) as usize;
            let bar = format!("{}{}", "█".repeat(done), "░".repeat(BAR as usize - done));
            format!("{bar} {seconds} of {limit} s, {what}")
        }
        None => format!("{seconds} s, {what}"),
    };
    text.chars().take(width.saturating_sub(1)).collect()
}

/// What removes a line of this number of characters from a terminal (ECMA-48: CUU, CR, ED). One that was made narrower since has put
/// the end of the line on further rows.
fn cleared(drawn: usize, width: usize) -> String {
    let above = drawn.saturating_sub(1) / width.max(1);
    let up = if above > 0 { format!("\x1b[{above}A") } else { String::new() };
    format!("\r{up}\x1b[J")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_narrower_than_the_terminal() {
        assert_eq!(line(3, Some(6), "12 samples", 80), "████████░░░░░░░░ 3 of 6 s, 12 samples");
        assert_eq!(line(9, Some(6), "12 samples", 80), "████████████████ 9 of 6 s, 12 samples", "late");
        assert_eq!(line(3, None, "12 samples", 80), "3 s, 12 samples");
        for width in 0..60 {
            assert!(line(3, Some(6), "123456 samples", width).chars().count() < width.max(1), "{width}");
        }
    }

    #[test]
    fn what_was_drawn_is_removed_from_each_row() {
        assert_eq!(cleared(0, 80), "\r\x1b[J");
        assert_eq!(cleared(40, 80), "\r\x1b[J");
        assert_eq!(cleared(40, 40), "\r\x1b[J", "as wide as the terminal is one row");
        assert_eq!(cleared(40, 39), "\r\x1b[1A\x1b[J");
        assert_eq!(cleared(40, 10), "\r\x1b[3A\x1b[J");
        assert_eq!(cleared(40, 0), "\r\x1b[39A\x1b[J", "no division by 0");
    }
}
