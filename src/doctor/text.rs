//! Prints a report as a table.

use std::fmt::Write;

use super::check::{CheckState, Report};
use scxprof_base::escape;

/// Columns of the whole table.
const WIDTH: usize = 100;
/// Columns of a name and of a state, with the space after each.
const NAME: usize = 15;
const STATE: usize = 12;

/// How the table is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Style {
    /// With the colours of a terminal.
    pub color: bool,
}

impl CheckState {
    /// The escape sequence of its colour (ECMA-48 SGR).
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
    let mut text = format!("scxprof {} on {}\n", report.scxprof, machine(report));
    let mut section = None;
    // Writing to a String cannot fail.
    for check in &report.checks {
        if section != Some(check.section) {
            section = Some(check.section);
            let _ = writeln!(text, "\n{}", check.section.name());
        }
        let (on, off) = if style.color { (check.state.color(), "\x1b[0m") } else { ("", "") };
        let _ = write!(text, "  {:NAME$}{on}{:STATE$}{off}", check.name, check.state);
        let mut lines = wrap(&check.why);
        if let Some(help) = &check.help {
            lines.extend(wrap(&format!("help: {help}")));
        }
        for (index, line) in lines.iter().enumerate() {
            let indent = if index == 0 { 0 } else { 2 + NAME + STATE };
            let _ = writeln!(text, "{:indent$}{line}", "");
        }
    }
    text
}

/// Kernel, architecture, processor and CPUs in a line.
pub(super) fn machine(report: &Report) -> String {
    let known = |text: &str| if text.is_empty() { "unknown".to_owned() } else { text.to_owned() };
    let cpus = if report.cpus == 1 { "1 CPU".to_owned() } else { format!("{} CPUs", report.cpus) };
    format!("Linux {}, {}, {}, {cpus}", known(&report.kernel), report.arch, known(&report.cpu))
}

/// Wraps the text to the remaining width; a longer word gets its own line.
fn wrap(text: &str) -> Vec<String> {
    let width = WIDTH - 2 - NAME - STATE;
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
            let lines = wrap(&words.join(" "));
            prop_assert!(lines.iter().all(|line| line.len() <= WIDTH - 2 - NAME - STATE));
            prop_assert_eq!(lines.join(" "), words.join(" "));
        }
    }
}
