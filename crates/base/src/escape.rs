//! Escapes untrusted text before it is printed: names of threads, cgroups and files are bytes that anyone may choose.

use std::borrow::Cow;
use std::fmt::Write;

/// Bytes of a line on a terminal; longer lines are truncated with a note.
const MAX_LINE: usize = 16 << 10;

/// True for characters that a terminal obeys instead of showing: control characters (C0, DEL, C1), marks that change the
/// direction of text (Unicode Standard Annex 9), and those that end a line or a paragraph.
#[must_use]
pub fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Writes each byte of a character as `\xNN`.
pub fn push(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "\\x{byte:02x}");
    }
}

/// One line for a terminal: what it would obey is escaped, including line ends.
pub fn line(text: &str) -> Cow<'_, str> {
    let end = (0..=text.len().min(MAX_LINE)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or_default();
    let shown = text.get(..end).unwrap_or_default();
    if shown.len() == text.len() && !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(shown.len() + 32);
    for character in shown.chars() {
        if is_hidden(character) {
            push(&mut line, character.encode_utf8(&mut [0; 4]).as_bytes());
        } else {
            line.push(character);
        }
    }
    if shown.len() < text.len() {
        let _ = write!(line, "... ({} bytes more)", text.len() - shown.len());
    }
    Cow::Owned(line)
}

/// Several lines of our own text, such as a table.
pub fn lines(text: &str) -> String {
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// Equivalent JSON that is safe for a terminal: serde_json escapes only the first 32 characters. Hidden characters can occur
/// only within strings, except line ends between them.
#[must_use]
pub fn json(text: String) -> String {
    let is_to_go = |character: char| !character.is_ascii_whitespace() && is_hidden(character);
    if !text.contains(is_to_go) {
        return text;
    }
    let mut escaped = String::with_capacity(text.len() + 64);
    for character in text.chars() {
        if is_to_go(character) {
            // All of them are within the first 65,536, so one escape suffices.
            let _ = write!(escaped, "\\u{:04x}", u32::from(character));
        } else {
            escaped.push(character);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Escape sequences of both kinds, a bell, DEL, a title, and marks that change the direction of text.
    const NASTY: &str =
        "a\x1b[2J\u{9b}2J\x07\x7f\u{9d}0;x\u{9c}\u{202e}b\u{2066}\u{2069}\u{200e}\u{200f}\u{61c}\u{2028}\r\n c";

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        let shown = line(NASTY);
        assert!(!shown.contains(is_hidden), "{shown:?}");
        assert!(
            shown.starts_with(r"a\x1b[2J\xc2\x9b2J\x07\x7f\xc2\x9d") && shown.contains(r"\xe2\x80\xaeb"),
            "{shown}"
        );
        assert_eq!(crate::sample::printable(NASTY.as_bytes()), shown, "as names are");
        assert_eq!(line("čaj, 茶 and 🫖"), "čaj, 茶 and 🫖");
        assert_eq!(lines("a\x1b\nb\n"), "a\\x1b\nb\n");
    }

    #[test]
    fn a_long_line_is_cut_and_says_so() {
        let text = "ž".repeat(MAX_LINE);
        let shown = line(&text);
        assert!(shown.ends_with("ž... (16384 bytes more)") && shown.len() < MAX_LINE + 100, "{}", shown.len());
    }

    proptest! {
        #[test]
        fn json_stays_what_it_is(text in any::<String>(), key in any::<String>()) {
            let value = serde_json::json!({ key: [text, NASTY] });
            for text in [serde_json::to_string(&value).unwrap(), serde_json::to_string_pretty(&value).unwrap()] {
                let escaped = json(text);
                prop_assert!(!escaped.replace('\n', "").contains(is_hidden));
                prop_assert_eq!(&serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), &value);
            }
        }
    }
}
