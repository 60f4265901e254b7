//! The folded text that flame graph programs read: a line for each thread name and stack, the outermost function first.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, Read as _};

use rustc_hash::FxHashMap;

use super::{Builder, Frame, Profile, Row, Thread};

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

/// A line that is no folded stack.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FoldedError {
    /// It has another form.
    #[error("line {line} is no folded stack, THREAD;OUTERMOST;...;INNERMOST SAMPLES")]
    Line {
        /// The number of the line, from 1.
        line: u64,
    },
    /// There are more different stacks than are kept.
    #[error("it has more than {MAX_STACKS} stacks, or {MAX_FRAMES} frames of them")]
    TooMany,
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Different stacks, and frames of all, that are read from text.
const MAX_STACKS: usize = 1 << 20;
const MAX_FRAMES: usize = 8 << 20;
/// Bytes of a line.
const MAX_LINE: u64 = 1 << 20;

/// Reads a profile from folded text, as [`folded`] and the programs for flame graphs write it.
///
/// # Errors
/// [`FoldedError`].
pub fn parse_folded(mut text: impl BufRead) -> Result<Profile, FoldedError> {
    let mut builder = Builder::default();
    let mut threads: FxHashMap<String, u32> = FxHashMap::default();
    let (mut number, mut all, mut sum, mut bytes) = (0, 0, 0, Vec::new());
    loop {
        bytes.clear();
        number += 1;
        if text.by_ref().take(MAX_LINE).read_until(b'\n', &mut bytes)? == 0 {
            return Ok(builder.profile);
        }
        let wrong = || FoldedError::Line { line: number };
        let line = std::str::from_utf8(&bytes).map_err(|_| wrong())?.trim_end_matches(['\n', '\r']);
        if line.is_empty() {
            continue;
        }
        let (stack, samples) = line.rsplit_once(' ').ok_or_else(wrong)?;
        let samples: u64 = samples.parse().map_err(|_| wrong())?;
        // What they add up to must be a number, too.
        sum = samples.checked_add(sum).ok_or_else(wrong)?;
        let mut names = stack.split(';');
        let comm = names.next().unwrap_or_default();
        let mut frames: Vec<u32> = names.map(|name| builder.frame(parse_frame(name))).collect();
        frames.reverse();
        all += frames.len();
        let profile = &mut builder.profile;
        if profile.rows.len() >= MAX_STACKS || all > MAX_FRAMES {
            return Err(FoldedError::TooMany);
        }
        let thread = *threads.entry(comm.to_owned()).or_insert_with(|| {
            profile.threads.push(Thread { comm: comm.to_owned(), ..Thread::default() });
            profile.threads.len() as u32 - 1
        });
        profile.stacks.push(frames);
        let stack = profile.stacks.len() as u32 - 1;
        profile.rows.push(Row { thread, stack, samples, events: samples });
    }
}

/// The frame that [`frame_name`] writes so.
fn parse_frame(name: &str) -> Frame {
    let (name, is_kernel) = name.strip_suffix("_[k]").map_or((name, false), |name| (name, true));
    let (name, is_inlined) = name.strip_suffix("_[i]").map_or((name, false), |name| (name, true));
    let module = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let function = if module.is_some() { None } else { Some(name.into()) };
    let module = module.filter(|module| *module != "unknown").unwrap_or_default();
    Frame { function, module: module.as_bytes().into(), file: None, line: 0, is_kernel, is_inlined }
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
    use proptest::prelude::*;

    use super::super::tests::made;
    use super::*;

    #[test]
    fn stacks_of_a_name_are_one_line() {
        let mut profile =
            made(&[("web", "main;work", 3), ("web", "main;work", 4), ("web", "main", 1), ("b;d\n", "x", 1)]);
        profile.frames[0].is_kernel = true;
        assert_eq!(folded(&profile), "b:d ;x 1\nweb;main 1\nweb;main;work_[k] 7\n");
    }

    #[test]
    fn what_was_written_is_read() {
        let text = "db;[unknown] 3\nweb;[libc.so.6];main;inner_[i];work_[k] 7\nweb;main 1\n";
        let profile = parse_folded(text.as_bytes()).unwrap();
        assert_eq!((profile.count(), profile.threads.len(), folded(&profile).as_str()), (11, 2, text));
        let said = |text: &str| parse_folded(text.as_bytes()).unwrap_err().to_string();
        let form = "is no folded stack, THREAD;OUTERMOST;...;INNERMOST SAMPLES";
        assert_eq!(said("web;main 1\nweb;main\n"), format!("line 2 {form}"));
        assert_eq!(said("web;main x\n"), format!("line 1 {form}"));
        assert_eq!(said("a 18446744073709551615\na 1\n"), format!("line 2 {form}"));
        assert_eq!(parse_folded(&b"\n"[..]).unwrap().count(), 0);
    }

    proptest! {
        #[test]
        fn any_text_is_a_profile_or_an_error(text in "([a-z;\\[\\]_ ]{0,12} ?[0-9]{0,3}\n){0,5}") {
            if let Ok(profile) = parse_folded(text.as_bytes()) {
                let again = folded(&profile);
                prop_assert_eq!(folded(&parse_folded(again.as_bytes()).unwrap()), again);
            }
        }
    }
}
