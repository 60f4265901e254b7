//! The folded text that flame graph programs read: a line for each thread name and stack, the outermost function first.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Frame, Profile};

/// The profile as folded text: `COMM;OUTERMOST;...;INNERMOST SAMPLES`, sorted. Functions of the kernel have `_[k]` and inlined ones
/// `_[i]` at their end, as flamegraph.pl wants them; a semicolon or the end of a line in a name is a `:` or a space.
#[must_use]
pub fn folded(profile: &Profile) -> String {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for row in &profile.rows {
        let mut line = profile.thread(row).map_or_else(String::new, |thread| plain(&thread.comm));
        for frame in profile.frames_of(row.stack).rev() {
            line.push(';');
            line.push_str(&frame_name(frame));
        }
        *lines.entry(line).or_default() += row.samples;
    }
    let mut text = String::new();
    for (line, samples) in lines {
        let _ = writeln!(text, "{line} {samples}");
    }
    text
}

fn frame_name(frame: &Frame) -> String {
    let mut name = plain(&frame.name());
    if frame.is_kernel {
        name.push_str("_[k]");
    } else if frame.is_inlined {
        name.push_str("_[i]");
    }
    name
}

/// Without what would end the frame or the line.
fn plain(name: &str) -> String {
    name.chars()
        .map(|character| match character {
            ';' => ':',
            character if character.is_control() => ' ',
            character => character,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::made;
    use super::*;

    #[test]
    fn stacks_of_a_name_are_one_line() {
        let mut profile =
            made(&[("web", "main;work", 3), ("web", "main;work", 4), ("web", "main", 1), ("b;d\n", "x", 1)]);
        profile.frames[0].is_kernel = true;
        assert_eq!(folded(&profile), "b:d ;x 1\nweb;main 1\nweb;main;work_[k] 7\n");
    }
}
