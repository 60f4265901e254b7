//! Prints a report as a table.

use std::fmt::Write;

use super::check::{CheckState, Report};
use scxprof_base::columns::wrapped;
use scxprof_base::escape;

/// Columns of the whole table.
const WIDTH: usize = 100;
/// Below this width, the text of a check begins on the line after its name.
const NARROW: usize = 70;
/// The indentation of that text.
const INDENT: usize = 4;
/// Columns of a name and of a state, including the space after each.
const NAME: usize = 15;
const STATE: usize = 12;

/// The format of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Style {
    /// Use the colours of a terminal.
    pub color: bool,
    /// The columns of the terminal, which no line may exceed; `None` for no limit. Wide terminals are not used fully.
    pub width: Option<usize>,
}

impl CheckState {
    /// The escape sequence for the state's colour (ECMA-48 SGR).
    fn color(self) -> &'static str {
        match self {
            Self::Works => "\x1b[32m",
            Self::Partly => "\x1b[33m",
            Self::Fails => "\x1b[31m",
            Self::NotTested => "\x1b[2m",
        }
    }
}

/// The report with one or more lines per check, section by section.
#[must_use]
pub fn table(report: &Report, style: Style) -> String {
    let width = style.width.map_or(WIDTH, |width| width.min(WIDTH));
    let is_narrow = width < NARROW;
    let indent = if is_narrow { INDENT } else { 2 + NAME + STATE };
    let room = width.saturating_sub(indent).max(1);
    let head = format!("scxprof {} on {}\n", report.scxprof, machine(report));
    let mut text = wrapped(&head, style.width);
    let mut section = None;
    // Writing to a String cannot fail.
    for check in &report.checks {
        if section != Some(check.section) {
            section = Some(check.section);
            let _ = writeln!(text, "\n{}", check.section.name());
        }
        let (on, off) = if style.color { (check.state.color(), "\x1b[0m") } else { ("", "") };
        let _ = if is_narrow {
            writeln!(text, "  {:NAME$}{on}{}{off}", check.name, check.state)
        } else {
            write!(text, "  {:NAME$}{on}{:STATE$}{off}", check.name, check.state)
        };
        let mut lines = wrap(&check.why, room, style.width.is_some());
        if let Some(help) = &check.help {
            lines.extend(wrap(&format!("help: {help}"), room, style.width.is_some()));
        }
        for (index, line) in lines.iter().enumerate() {
            let indent = if index == 0 && !is_narrow { 0 } else { indent };
            let _ = writeln!(text, "{:indent$}{line}", "");
        }
    }
    text
}

/// Kernel, architecture, processor and CPUs on one line.
pub(super) fn machine(report: &Report) -> String {
    let known = |text: &str| if text.is_empty() { "unknown".to_owned() } else { text.to_owned() };
    let cpus = if report.cpus == 1 { "1 CPU".to_owned() } else { format!("{} CPUs", report.cpus) };
    format!("Linux {}, {}, {}, {cpus}", known(&report.kernel), report.arch, known(&report.cpu))
}

/// Wraps the text to this width. A longer word gets its own line; `divides` says that it is divided if necessary.
fn wrap(text: &str, width: usize, divides: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace().map(escape::line) {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(&word);
        while divides && line.chars().count() > width {
            let at = line.char_indices().nth(width).map_or(line.len(), |(at, _)| at);
            let rest = line.split_off(at);
            lines.push(std::mem::replace(&mut line, rest));
        }
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_word_is_lost_and_no_line_too_long(words in prop::collection::vec("[a-z]{1,30}", 0..60)) {
            let room = WIDTH - 2 - NAME - STATE;
            let lines = wrap(&words.join(" "), room, false);
            prop_assert!(lines.iter().all(|line| line.len() <= room));
            prop_assert_eq!(lines.join(" "), words.join(" "));
            let narrow = wrap(&words.join(" "), 20, true);
            prop_assert!(narrow.iter().all(|line| line.len() <= 20));
            prop_assert_eq!(narrow.concat().replace(' ', ""), words.concat());
        }
    }
}
