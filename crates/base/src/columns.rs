//! Text in columns, as wide as it is or as the terminal allows.

use std::fmt::Write as _;

/// Blanks between two columns.
const GAP: usize = 2;
/// Names are not cut to less than this, if a column can be left out instead: the first column, and others.
const LEAST_NAME: [u8; 2] = [16, 10];
/// The least that is left of a name where nothing can be left out.
const TINY_NAME: usize = 4;
/// The mark that replaces the rest of a name.
const CUT: &str = "..";

/// Columns of equal width: the first to the left, the others to the right, but text at the end to the left.
#[must_use]
pub fn aligned<R: AsRef<[String]>>(rows: &[R]) -> String {
    let columns = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(|column| natural(rows, column)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, &width)) in row.as_ref().iter().zip(&widths).enumerate() {
            let _ = if column == 0 {
                write!(line, "{cell:width$}")
            } else if is_text(rows, column) {
                write!(line, "  {cell}")
            } else {
                write!(line, "  {cell:>width$}")
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// How a column gives way where a table is too wide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    rank: u8,
    is_name: bool,
    least: Option<u8>,
}

impl Column {
    /// Numbers, which are never cut. Columns of the highest rank are left out first, and of one rank the last; those of rank 0
    /// stay.
    #[must_use]
    pub const fn number(rank: u8) -> Self {
        Self { rank, is_name: false, least: None }
    }

    /// Names and other text, which are cut before a column is left out.
    #[must_use]
    pub const fn name(rank: u8) -> Self {
        Self { rank, is_name: true, least: None }
    }

    /// The same for names that are not cut to less than this number of characters, if a column can be left out instead.
    #[must_use]
    pub const fn at_least(self, least: u8) -> Self {
        Self { least: Some(least), ..self }
    }
}

/// The same as [`aligned`], but with no line longer than `width`: names are cut, then columns are left out. `columns` says how each
/// gives way; if it is empty, those with anything but numbers are names, and the last is left out first.
#[must_use]
pub fn fitted<R: AsRef<[String]>>(rows: &[R], columns: &[Column], width: Option<usize>) -> String {
    let text = aligned(rows);
    let Some(width) = width.filter(|&width| text.lines().any(|line| line.chars().count() > width)) else { return text };
    let count = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
    let column = |at: usize| {
        let rank = u8::try_from(at).unwrap_or(u8::MAX);
        let guessed = || if has_names(rows, at) { Column::name(rank) } else { Column::number(rank) };
        columns.get(at).copied().unwrap_or_else(guessed)
    };
    let columns: Vec<Column> = (0..count).map(column).collect();
    let widths = widths(rows, &columns, width);
    let last = widths.iter().rposition(Option::is_some);
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (at, (cell, room)) in row.as_ref().iter().zip(&widths).enumerate() {
            let Some(room) = *room else { continue };
            let cell = cut(cell, room);
            let _ = match (at, is_text(rows, at)) {
                (0, _) => write!(line, "{cell:room$}"),
                (_, true) if Some(at) == last => write!(line, "  {cell}"),
                (_, true) => write!(line, "  {cell:room$}"),
                (_, false) => write!(line, "  {cell:>room$}"),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Text in lines of at most `width`: lines are broken between words, and within a word only if it is longer.
/// Further lines are indented as the first, and by two more.
#[must_use]
pub fn wrapped(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return text.to_owned() };
    let mut wrapped = String::with_capacity(text.len());
    for (at, line) in text.split('\n').enumerate() {
        if at > 0 {
            wrapped.push('\n');
        }
        wrap(line, width.max(1), &mut wrapped);
    }
    wrapped
}

fn wrap(line: &str, width: usize, wrapped: &mut String) {
    if line.chars().count() <= width {
        wrapped.push_str(line);
        return;
    }
    let blanks = |text: &str| text.chars().take_while(|&c| c == ' ').count();
    let indent = blanks(line).min(width / 2);
    let further = (indent + 2).min(width / 2);
    let mut column = indent;
    wrapped.extend(std::iter::repeat_n(' ', indent));
    let mut rest = line.trim_start_matches(' ');
    let mut before = 0;
    while !rest.is_empty() {
        let (mut word, left) = rest.split_at(end_of_word(rest));
        let length = word.chars().count();
        if column + before + length <= width {
            wrapped.extend(std::iter::repeat_n(' ', before));
            column += before;
        } else if before > 0 {
            column = next_line(wrapped, further);
        }
        // Only one that is longer than a whole line.
        while word.chars().count() > width - column {
            let (head, tail) = split_at_char(word, width - column);
            wrapped.push_str(head);
            column = next_line(wrapped, further);
            word = tail;
        }
        wrapped.push_str(word);
        column += word.chars().count();
        before = blanks(left);
        rest = left.trim_start_matches(' ');
    }
}

/// Where the first word of a text ends; a number and its % are one.
fn end_of_word(text: &str) -> usize {
    let blank = |from: usize| text.get(from..).and_then(|rest| rest.find(' ')).map_or(text.len(), |at| from + at);
    let end = blank(0);
    let is_percent = text.get(end..).is_some_and(|rest| rest.starts_with(" %"));
    if is_percent {
        blank(end + 1)
    } else {
        end
    }
}

fn next_line(text: &mut String, indent: usize) -> usize {
    text.push('\n');
    text.extend(std::iter::repeat_n(' ', indent));
    indent
}

fn split_at_char(text: &str, count: usize) -> (&str, &str) {
    let at = text.char_indices().nth(count).map_or(text.len(), |(at, _)| at);
    text.split_at(at)
}

/// The width of the widest cell.
fn natural<R: AsRef<[String]>>(rows: &[R], column: usize) -> usize {
    rows.iter().filter_map(|row| row.as_ref().get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
}

/// True if the head of a column has a blank: text, which stands to the left.
fn is_text<R: AsRef<[String]>>(rows: &[R], column: usize) -> bool {
    column == 0 || rows.first().and_then(|head| head.as_ref().get(column)).is_some_and(|it| it.contains(' '))
}

/// True if a column has anything but numbers below its head.
fn has_names<R: AsRef<[String]>>(rows: &[R], column: usize) -> bool {
    rows.iter().skip(1).filter_map(|row| row.as_ref().get(column)).any(|cell| !is_number(cell))
}

/// True for a number, with or without a unit, several of them, and what stands for none.
fn is_number(cell: &str) -> bool {
    let first = cell.trim_start().trim_start_matches(['+', '-', '!']).chars().next();
    first.is_none_or(|first| first.is_ascii_digit())
}

/// The width of each column; `None` if it is left out.
fn widths<R: AsRef<[String]>>(rows: &[R], columns: &[Column], width: usize) -> Vec<Option<usize>> {
    let natural: Vec<usize> = (0..columns.len()).map(|at| natural(rows, at)).collect();
    // Of a name that is a number nothing is cut either.
    let numbers = |at: usize| {
        let cells = rows.iter().skip(1).filter_map(|row| row.as_ref().get(at)).filter(|cell| is_number(cell));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let least = |at: usize, name: usize| {
        let natural = natural.get(at).copied().unwrap_or(0);
        match columns.get(at) {
            Some(column) if column.is_name => natural.min(name.max(numbers(at))),
            _ => natural,
        }
    };
    let sum = |widths: &[Option<usize>]| {
        let kept = widths.iter().flatten();
        kept.clone().sum::<usize>() + GAP * kept.count().saturating_sub(1)
    };
    let readable = |at: usize| {
        let given = columns.get(at).and_then(|column| column.least);
        least(at, given.unwrap_or(if at == 0 { LEAST_NAME[0] } else { LEAST_NAME[1] }).into())
    };
    let mut widths: Vec<Option<usize>> = (0..columns.len()).map(|at| Some(readable(at))).collect();
    while sum(&widths) > width {
        let kept = columns
            .iter()
            .enumerate()
            .filter(|(at, column)| column.rank > 0 && *at > 0 && widths.get(*at).is_some_and(Option::is_some));
        let Some((last, _)) = kept.max_by_key(|(at, column)| (column.rank, *at)) else { break };
        widths[last] = None;
    }
    // What must stay is cut to little, and goes too if not even that is enough.
    if sum(&widths) > width {
        for (at, room) in widths.iter_mut().enumerate() {
            *room = room.map(|_| least(at, TINY_NAME));
        }
    }
    while sum(&widths) > width {
        match widths.iter().rposition(Option::is_some) {
            Some(last) if last > 0 => widths[last] = None,
            _ => break,
        }
    }
    if let Some(Some(first)) = widths.first_mut() {
        *first = (*first).min(width);
    }
    let mut left = width.saturating_sub(sum(&widths));
    loop {
        let mut grew = false;
        for (room, natural) in widths.iter_mut().zip(&natural) {
            if let Some(room) = room.as_mut().filter(|room| left > 0 && **room < *natural) {
                *room += 1;
                left -= 1;
                grew = true;
            }
        }
        if !grew {
            return widths;
        }
    }
}

/// A name of at most this number of characters. A path keeps its end, other names their beginning, and no number is cut.
fn cut(name: &str, room: usize) -> String {
    let all: Vec<char> = name.chars().collect();
    if all.len() <= room {
        return name.to_owned();
    }
    let kept = room.saturating_sub(CUT.len());
    let shown = |part: &[char]| part.iter().collect::<String>();
    if name.starts_with('/') {
        let mut at = all.len() - kept;
        while is_within_number(&all, at) {
            at += 1;
        }
        return format!(
            "{}{}",
            CUT.get(..room.min(CUT.len())).unwrap_or_default(),
            shown(all.get(at..).unwrap_or_default())
        );
    }
    let mut at = kept;
    while is_within_number(&all, at) {
        at -= 1;
    }
    format!("{}{}", shown(all.get(..at).unwrap_or_default()), CUT.get(..room.min(CUT.len())).unwrap_or_default())
}

/// True if a cut before the character `at` would divide a number, decimal or `0x`.
fn is_within_number(text: &[char], at: usize) -> bool {
    let is = |at: Option<usize>, what: fn(char) -> bool| at.and_then(|at| text.get(at)).is_some_and(|&c| what(c));
    let (before, after) = (at.checked_sub(1), Some(at));
    let is_digit: fn(char) -> bool = |c| c.is_ascii_digit();
    let is_point: fn(char) -> bool = |c| c == '.' || c == ',';
    if is(before, is_digit) && (is(after, is_digit) || is(after, is_point) && is(Some(at + 1), is_digit)) {
        return true;
    }
    if is(before, is_point) && is(after, is_digit) && is(at.checked_sub(2), is_digit) {
        return true;
    }
    // Within 0x1f, or between its digits.
    if !is(after, |c| c.is_ascii_hexdigit() || c == 'x') {
        return false;
    }
    let head = text.get(..at).unwrap_or_default();
    let digits = head.iter().rev().take_while(|c| c.is_ascii_hexdigit()).count();
    let start = head.len() - digits;
    let is_prefixed = |end: usize| end >= 2 && head.get(end - 2..end) == Some(&['0', 'x'][..]);
    is_prefixed(start) || head.last() == Some(&'0') && text.get(at) == Some(&'x')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rows(text: &str) -> Vec<Vec<String>> {
        text.lines().map(|line| line.split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
    }

    const COLUMNS: [Column; 5] =
        [Column::name(0), Column::number(0), Column::number(2), Column::number(1), Column::name(3)];

    fn table() -> Vec<Vec<String>> {
        rows(
            "THREAD | RUN(ms) | SWITCHES | WAIT(ms) | IN WHAT\n\
              a-thread-with-a-long-name | 12345.678 | 99 | 0.001 | do_something_that_has_a_name\n\
              b | 1.000 | 1234567 | 22.5 | /usr/lib/x86_64-linux-gnu/libc.so.6",
        )
    }

    #[test]
    fn a_table_that_fits_is_as_it_was() {
        let table = table();
        for width in [None, Some(1000)] {
            assert_eq!(fitted(&table, &COLUMNS, width), aligned(&table));
        }
    }

    #[test]
    fn names_are_cut_and_then_columns_go_by_their_rank() {
        let at = |width: usize| fitted(&table(), &COLUMNS, Some(width));
        assert_eq!(
            at(80),
            "\
THREAD                       RUN(ms)  SWITCHES  WAIT(ms)  IN WHAT
a-thread-with-a-long-name  12345.678        99     0.001  do_something_that_ha..
b                              1.000   1234567      22.5  ..-linux-gnu/libc.so.6
"
        );
        assert_eq!(
            at(45),
            "\
THREAD                      RUN(ms)  WAIT(ms)
a-thread-with-a-long-n..  12345.678     0.001
b                             1.000      22.5
"
        );
        assert_eq!(
            at(20),
            "\
THREAD       RUN(ms)
a-threa..  12345.678
b              1.000
"
        );
    }

    #[test]
    fn no_number_is_cut_within_a_name() {
        assert_eq!(cut("heap+0x1000 (10 accesses)", 10), "heap+..");
        assert_eq!(cut("heap+0x1000 (10 accesses)", 14), "heap+0x1000 ..");
        assert_eq!(cut("worker-12345", 10), "worker-..");
        assert_eq!(cut("/a/b-4123.service", 12), "...service");
        assert_eq!(cut("12.345 of it", 6), "..");
        assert_eq!(cut("name", 1), ".");
        assert_eq!(cut("name", 0), "");
        assert_eq!(cut("name", 4), "name");
        assert_eq!(cut("čaj and tea", 5), "čaj..");
    }

    #[test]
    fn lines_are_divided_between_words() {
        assert_eq!(
            wrapped("one two three\n\n  four five six\n", Some(9)),
            "one two\n  three\n\n  four\n    five\n    six\n"
        );
        assert_eq!(wrapped("0123456789 x", Some(4)), "0123\n  45\n  67\n  89\n  x");
        assert_eq!(wrapped("one two", None), "one two");
        assert_eq!(wrapped("key    value of it", Some(16)), "key    value of\n  it", "blanks within a line stay");
        assert_eq!(wrapped("a part of 48.7 %, and", Some(14)), "a part of\n  48.7 %, and", "a number has its unit");
    }

    /// The numbers of a text.
    fn numbers(text: &str) -> Vec<String> {
        let words = text.split_whitespace().filter(|word| is_number(word) && word.chars().any(|c| c.is_ascii_digit()));
        words.map(ToOwned::to_owned).collect()
    }

    proptest! {
        #[test]
        fn no_line_is_too_long_and_no_number_in_part(
            cells in prop::collection::vec(("[a-z/:]{1,60}", "[0-9]{1,9}", "[0-9]{1,6}\\.[0-9]{3}", "[a-z]{1,8}-[0-9]{1,9}"), 1..8),
            ranks in prop::array::uniform4(0..4u8),
            width in 12..120usize,
        ) {
            let mut rows = vec![["NAME", "ONE", "TWO(ms)", "OF WHAT"].map(str::to_owned)];
            rows.extend(cells.iter().map(|(a, b, c, d)| [a.clone(), b.clone(), c.clone(), d.clone()]));
            let columns =
                [Column::name(ranks[0]), Column::number(ranks[1]), Column::number(ranks[2]), Column::name(ranks[3])];
            for columns in [&columns[..], &[]] {
                let text = fitted(&rows, columns, Some(width));
                prop_assert_eq!(text.lines().count(), rows.len());
                prop_assert!(text.lines().all(|line| line.chars().count() <= width), "{}", text);
                let whole = numbers(&aligned(&rows));
                prop_assert!(numbers(&text).iter().all(|number| whole.contains(number)), "{}", text);
                // The number after a name is there as a whole or not at all.
                for (line, row) in text.lines().zip(&rows).skip(1) {
                    let digits = line.rsplit_once('-').map_or("", |(_, digits)| digits);
                    prop_assert!(digits.is_empty() || digits == ".." || row[3].ends_with(digits), "{} of {}", line, row[3]);
                }
            }
        }

        #[test]
        fn no_word_is_lost_by_wrapping(words in prop::collection::vec("[a-z]{1,20}", 0..30), width in 24..60usize) {
            let text = wrapped(&words.join(" "), Some(width));
            prop_assert!(text.lines().all(|line| line.chars().count() <= width));
            prop_assert_eq!(text.split_whitespace().collect::<Vec<_>>(), words);
        }
    }
}
