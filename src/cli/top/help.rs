//! What `?` shows: the views and the keys. docs/top.md has the same table of keys.

use std::fmt::Write as _;

const VIEWS: &str = "\
Views
  1 groups      threads that share memory: the part of the avoidable misses
                that keeping them together avoids, and what the loaded
                configuration keeps
  2 threads     accesses of each thread
  3 processes   of each process, cgroup or cell
  4 lines       cache lines that threads share, and whether falsely
  5 scheduling  times on a CPU and waiting for one, from a wakeup to the CPU
                (P50 to MAX), moves; its events cost CPU time: they are on
                only while it is shown
  6 CPUs        each CPU, last-level cache, and the scheduler's own figures
  7 losses      what was lost, and what scxprof costs
Keys
";

/// The keys, with blanks between them, and what they do.
const KEYS: [(&str, &str); 24] = [
    ("1-7 Tab", "another view"),
    ("c C", "another kind of rows"),
    ("Shift-Tab", "the view before"),
    ("Enter", "details of the row"),
    ("Up Down k j", "another row"),
    ("Home End g G", "first and last row"),
    ("PgUp PgDn", "a page of rows"),
    ("Esc", "back; all rows again"),
    ("Ctrl-B Ctrl-F", "a page of rows"),
    ("/", "rows that contain a text"),
    ("< > Left Right", "sort by another column"),
    ("o O", "sort by another column"),
    ("r", "sort the other way"),
    ("+ - = _", "longer, shorter interval"),
    ("t", "since the start, or of the last window"),
    ("p", "in details of a group, thread or process: the code it runs"),
    ("w", "write the configuration to a file"),
    ("W", "write the report (.json, .html) or the last accesses (.jsonl)"),
    ("s", "load a configuration, and see what it keeps; no name: unload"),
    ("Ctrl-U Ctrl-W", "while a name is typed: remove all of it, or its last word"),
    ("space", "freeze, and go on"),
    ("? h", "help"),
    ("q Ctrl-C", "end"),
    ("Ctrl-Z Ctrl-L", "suspend; draw anew"),
];

/// Where the text of the left column and the right column begin.
const LEFT: usize = 15;
const RIGHT: usize = 39;
/// The width of the keys on the right.
const RIGHT_KEYS: usize = 13;

/// Its lines, of at most 79 characters. Two keys are on one line if both are short.
pub(super) fn text() -> String {
    let mut text = VIEWS.to_owned();
    let mut keys = KEYS.iter().peekable();
    while let Some((key, does)) = keys.next() {
        let left = format!("{key:LEFT$}{does}");
        let fits = |(key, does): &&(&str, &str)| key.len() < RIGHT_KEYS && does.len() <= 25;
        let right = if left.len() < RIGHT { keys.next_if(|it| fits(it)) } else { None };
        let line = right.map_or(left.clone(), |(key, does)| format!("{left:RIGHT$}{key:RIGHT_KEYS$}{does}"));
        let _ = writeln!(text, "  {line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::time::Duration;

    use super::super::keys::{press, Action, Key, Shown};
    use super::super::state::{State, View};
    use super::*;

    fn keys() -> BTreeSet<&'static str> {
        KEYS.iter().flat_map(|(keys, _)| keys.split(' ')).collect()
    }

    #[test]
    fn each_key_is_in_the_help_and_in_the_documentation() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/top.md");
        let text = std::fs::read_to_string(path).unwrap();
        let table = text.split("\n| key |").nth(1).unwrap().split("\n\n").next().unwrap();
        // | `KEY` `KEY` | what it does |
        let cells = table.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
        let documented: BTreeSet<&str> =
            cells.flat_map(|cell| cell.split('`').filter(|key| !key.trim().is_empty())).collect();
        assert_eq!(documented, keys());
    }

    #[test]
    fn each_letter_that_does_something_is_a_key_of_the_help() {
        let shown = Shown {
            keys: ["a", "b", "c"].map(str::to_owned).to_vec(),
            heads: vec!["A", "B"],
            sorted: Some(0),
            over: 40,
            height: 5,
        };
        for letter in ' '..='~' {
            // In the table, in a later row, in details, and in help.
            for before in ["", "jj", "\n", "?j"] {
                let mut state = State::new(View::Threads, Duration::from_secs(1));
                for key in before.chars() {
                    press(&mut state, if key == '\n' { Key::Enter } else { Key::Char(key) }, &shown);
                }
                let was = state.clone();
                let action = press(&mut state, Key::Char(letter), &shown);
                let name = match letter {
                    ' ' => "space".to_owned(),
                    '1'..='7' => "1-7".to_owned(),
                    letter => letter.to_string(),
                };
                let does = was != state || action != Action::Nothing;
                assert!(!does || keys().contains(name.as_str()), "{letter:?} after {before:?}: {action:?}");
            }
        }
    }

    #[test]
    fn its_lines_have_room_on_a_small_screen() {
        let text = text();
        assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
        assert!(text.lines().count() <= 36, "{text}");
        for (keys, does) in KEYS {
            assert!(text.lines().any(|line| line.contains(keys) && line.contains(does)), "{keys}");
        }
    }
}
