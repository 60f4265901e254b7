//! The folded text that flame graph programs read: a line for each thread name and stack, the outermost function first.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, Read as _};

use rustc_hash::FxHashMap;

use super::profile::{Builder, Frame, Row, StackProfile, Thread};

/// The profile as folded text: `COMM;OUTERMOST;...;INNERMOST SAMPLES`, sorted. Functions of the kernel have `_[k]` and inlined ones
/// `_[i]` at their end, as flamegraph.pl wants them; a semicolon or the end of a line in a name is a `:` or a space.
#[must_use]
pub fn folded(profile: &StackProfile) -> String {
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

/// Decimals of a count that are kept.
const MAX_DECIMALS: u32 = 6;
const MILLION: u32 = 1_000_000;
/// The mark at the beginning of text that some programs write.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The contents of folded text.
#[derive(Debug)]
pub struct FoldedStacks {
    /// The profile.
    pub profile: StackProfile,
    /// How its counts differ from those of the text, one sentence each.
    pub notes: Vec<String>,
}

/// A count: the whole part, and the millionths of the rest.
type Count = (u64, u32);

/// Reads a profile from folded text, as [`folded`] and the programs for flame graphs write it.
///
/// Comments and empty lines are skipped. Counts with fractions are scaled until they are whole. If each line has two counts, as the
/// text of `difffolded.pl`, the second is taken.
///
/// # Errors
/// [`FoldedError`].
pub fn parse_folded(mut text: impl BufRead) -> Result<FoldedStacks, FoldedError> {
    let mut builder = Builder::default();
    let mut threads: FxHashMap<String, u32> = FxHashMap::default();
    let mut stacks: FxHashMap<Vec<u32>, u32> = FxHashMap::default();
    let mut counts: Vec<Count> = Vec::new();
    let (mut number, mut all, mut sum, mut bytes) = (0, 0, 0, Vec::new());
    loop {
        bytes.clear();
        number += 1;
        if text.by_ref().take(MAX_LINE).read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        let wrong = || FoldedError::Line { line: number };
        if bytes.len() as u64 == MAX_LINE && bytes.last() != Some(&b'\n') {
            return Err(wrong());
        }
        let line = if number == 1 { bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&bytes) } else { &bytes };
        let line = line.trim_ascii_end();
        if line.is_empty() || is_comment(line) {
            continue;
        }
        let (stack, count) = split(line).ok_or_else(wrong)?;
        let count = parse_count(count).ok_or_else(wrong)?;
        // What they add up to must be a number, too.
        sum = count.0.checked_add(sum).ok_or_else(wrong)?;
        let stack = text_of(stack);
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
        let stack = *stacks.entry(frames).or_insert_with_key(|frames| {
            profile.stacks.push(frames.clone());
            profile.stacks.len() as u32 - 1
        });
        profile.rows.push(Row { thread, stack, samples: count.0, events: count.0 });
        counts.push(count);
    }
    let mut notes = Vec::new();
    if without_first_counts(&mut builder) {
        notes.push(
            "each line has two counts (differential text): the second is taken; --diff A B compares two files"
                .to_owned(),
        );
    }
    notes.extend(make_whole(&mut builder.profile, &counts));
    Ok(FoldedStacks { profile: builder.profile, notes })
}

/// `# TEXT`, and metadata without a stack. A thread's name may begin with # as well.
fn is_comment(line: &[u8]) -> bool {
    line.first() == Some(&b'#') && (!line.contains(&b';') || line.get(1).is_none_or(u8::is_ascii_whitespace))
}

/// A stack, and the word after it.
fn split(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = line.iter().rposition(|&byte| byte == b' ' || byte == b'\t')?;
    let (stack, word) = line.split_at(at);
    Some((stack.trim_ascii_end(), word.trim_ascii_start()))
}

/// Text as it is, other bytes escaped.
fn text_of(bytes: &[u8]) -> String {
    std::str::from_utf8(bytes).map_or_else(|_| crate::sample::printable(bytes), str::to_owned)
}

/// Digits, and some after a point.
fn parse_count(word: &[u8]) -> Option<Count> {
    let word = std::str::from_utf8(word).ok()?;
    let (whole, rest) = word.split_once('.').unwrap_or((word, ""));
    if whole.is_empty() || !whole.bytes().chain(rest.bytes()).all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let millionths = rest.bytes().chain(std::iter::repeat(b'0')).take(MAX_DECIMALS as usize);
    let millionths = millionths.fold(0, |sum, byte| sum * 10 + u32::from(byte - b'0'));
    Some((whole.parse().ok()?, millionths))
}

/// Takes the first of two counts from the name before it, if each line has one; false if not.
fn without_first_counts(builder: &mut Builder) -> bool {
    let before = |text: &str| {
        let (name, count) = split(text.as_bytes()).filter(|(name, _)| !name.is_empty())?;
        parse_count(count)?;
        Some(name.len())
    };
    let profile = &builder.profile;
    let last = |row: &Row| match profile.stacks.get(row.stack as usize).and_then(|frames| frames.first()) {
        Some(&frame) => profile.frames.get(frame as usize).and_then(|frame| frame.function.as_deref()),
        None => profile.thread(row).map(|thread| thread.comm.as_str()),
    };
    if profile.rows.is_empty() || !profile.rows.iter().all(|row| last(row).and_then(before).is_some()) {
        return false;
    }
    for at in 0..builder.profile.stacks.len() {
        let Some(&innermost) = builder.profile.stacks.get(at).and_then(|frames| frames.first()) else { continue };
        let frame = builder.profile.frames.get(innermost as usize).and_then(|frame| frame.function.clone());
        let Some(frame) = frame.and_then(|name| Some(parse_frame(name.get(..before(&name)?)?))) else { continue };
        let number = builder.frame(frame);
        if let Some(place) = builder.profile.stacks.get_mut(at).and_then(|frames| frames.first_mut()) {
            *place = number;
        }
    }
    // Stacks of a thread alone.
    let profile = &mut builder.profile;
    let alone: Vec<u32> = profile
        .rows
        .iter()
        .filter(|row| profile.stacks.get(row.stack as usize).is_some_and(Vec::is_empty))
        .map(|row| row.thread)
        .collect();
    for thread in alone {
        if let Some(thread) = profile.threads.get_mut(thread as usize) {
            if let Some(end) = before(&thread.comm) {
                thread.comm.truncate(end);
            }
        }
    }
    true
}

/// Scales counts with fractions until they are whole, and says so.
fn make_whole(profile: &mut StackProfile, counts: &[Count]) -> Option<String> {
    // The largest power of ten that divides all fractions.
    let mut unit = MILLION;
    while counts.iter().any(|(_, millionths)| millionths % unit != 0) {
        unit /= 10;
    }
    let scale = u64::from(MILLION / unit);
    if scale == 1 {
        return None;
    }
    let scaled = |&(whole, millionths): &Count| whole.checked_mul(scale)?.checked_add(u64::from(millionths / unit));
    let scaled: Option<Vec<u64>> = counts.iter().map(scaled).collect();
    let sum = |counts: &Vec<u64>| counts.iter().try_fold(0u64, |sum, count| sum.checked_add(*count));
    let (counts, note) = match scaled.filter(|scaled| sum(scaled).is_some()) {
        Some(scaled) => {
            (scaled, format!("counts have fractions: all are multiplied by {scale}, so that they are whole"))
        }
        None => (
            counts.iter().map(|(whole, _)| *whole).collect(),
            "counts have fractions, which are cut off: the counts are too large to be scaled".to_owned(),
        ),
    };
    for (row, count) in profile.rows.iter_mut().zip(counts) {
        (row.samples, row.events) = (count, count);
    }
    Some(note)
}

/// The frame that [`frame_name`] writes so.
fn parse_frame(name: &str) -> Frame {
    let (name, is_kernel) = name.strip_suffix("_[k]").map_or((name, false), |name| (name, true));
    let (name, is_inlined) = name.strip_suffix("_[i]").map_or((name, false), |name| (name, true));
    // A module whose own name has the brackets, such as [vdso], is written with these alone.
    let module = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).filter(|name| !name.starts_with('['));
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

    use super::super::profile::tests::made;
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
        let profile = parse_folded(text.as_bytes()).unwrap().profile;
        assert_eq!((profile.count(), profile.threads.len(), folded(&profile).as_str()), (11, 2, text));
        let said = |text: &str| parse_folded(text.as_bytes()).unwrap_err().to_string();
        let form = "is no folded stack, THREAD;OUTERMOST;...;INNERMOST SAMPLES";
        assert_eq!(said("web;main 1\nweb;main\n"), format!("line 2 {form}"));
        assert_eq!(said("web;main x\n"), format!("line 1 {form}"));
        assert_eq!(said("a 18446744073709551615\na 1\n"), format!("line 2 {form}"));
        assert_eq!(parse_folded(&b"\n"[..]).unwrap().profile.count(), 0);
    }

    #[test]
    fn text_of_other_programs_is_read() {
        let read = |text: &[u8]| {
            let FoldedStacks { profile, notes } = parse_folded(text).unwrap();
            (folded(&profile), notes.join("\n"))
        };
        let plain = |text: &[u8], expected: &str| assert_eq!(read(text), (expected.to_owned(), String::new()));
        plain(b"# tool: 3.3.0\n#\n\na;b 5\n# duration: 23\n#1;b 3\n", "#1;b 3\na;b 5\n");
        plain(b"\xef\xbb\xbfa;b\t5\r\na;c  2 \r\n", "a;b 5\na;c 2\n");
        plain(b"a;\xffb 5\n", "a;\\xffb 5\n");
        plain(b"a;b 5.0\na;b 1.\n", "a;b 6\n");
        let (text, note) = read(b"w;main;a 31.5\nw;main;b 1.45\n");
        assert_eq!(text, "w;main;a 3150\nw;main;b 145\n");
        assert!(note.contains("multiplied by 100"), "{note}");
        let (text, note) = read(b"a 18446744073709551614\na 0.5\n");
        assert!(text.starts_with("a 18446744073709551614") && note.contains("cut off"), "{text}{note}");
        for wrong in ["a;b .5\n", "a;b -5\n", "a;b 1e3\n", "a;b 1.2.3\n", "5\n"] {
            assert!(parse_folded(wrong.as_bytes()).is_err(), "{wrong}");
        }
        let long = vec![b'a'; MAX_LINE as usize + 5];
        assert!(matches!(parse_folded(&long[..]), Err(FoldedError::Line { line: 1 })));
        // Its beginning and its end would be lines, too.
        let long = ["a".repeat(MAX_LINE as usize - 2).as_str(), " 1c;d 2\n"].concat();
        assert!(matches!(parse_folded(long.as_bytes()), Err(FoldedError::Line { line: 1 })));
    }

    #[test]
    fn two_counts_are_those_of_differential_text() {
        let FoldedStacks { profile, notes } = parse_folded(&b"w;a_[k] 10 20\nw;b 0 5\nv 3 4\n"[..]).unwrap();
        assert_eq!(folded(&profile), "v 4\nw;a_[k] 20\nw;b 5\n");
        assert!(notes[0].contains("the second is taken"), "{notes:?}");
        // A name may end with a number.
        let FoldedStacks { profile, notes } = parse_folded(&b"w;Thread 1 20\nw;b 5\n"[..]).unwrap();
        assert_eq!((folded(&profile).as_str(), notes.len()), ("w;Thread 1 20\nw;b 5\n", 0));
    }

    #[test]
    fn brackets_within_brackets_are_a_name() {
        for text in ["w;[[ ] 1\n", "w;[[a] 1\n", "w;[vdso] 1\n", "w;[] 1\n"] {
            let written = folded(&parse_folded(text.as_bytes()).unwrap().profile);
            assert_eq!(folded(&parse_folded(written.as_bytes()).unwrap().profile), written);
            assert!(text == "w;[] 1\n" || written == text, "{text:?} {written:?}");
        }
    }

    #[test]
    fn a_stack_counts_once() {
        let count = |text: &str| parse_folded(text.as_bytes()).unwrap().profile.stack_count();
        assert_eq!([count("a;b 3\n"), count("a;b 3\nc;b 1\na;b;c 2\n"), count("a;b 0\n"), count("")], [1, 2, 0, 0]);
    }

    proptest! {
        #[test]
        fn any_text_is_a_profile_or_an_error(text in "([a-z;\\[\\]_ ]{0,12} ?[0-9]{0,3}\n){0,5}") {
            if let Ok(FoldedStacks { profile, .. }) = parse_folded(text.as_bytes()) {
                let again = folded(&profile);
                prop_assert_eq!(folded(&parse_folded(again.as_bytes()).unwrap().profile), again);
            }
        }
    }
}
