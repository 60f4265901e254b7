//! Categories of threads: by the whole name, with wildcards, and by hint.

use thiserror::Error;

use scxprof_base::sample::Comm;

/// The names of the columns that every window has; no category can have one of them.
pub(super) const FIXED: [&str; 5] = ["uncategorised", "irq", "softirq", "idle", "unknown"];
/// The other keys of a window, and of a summary.
const TAKEN: [&str; 4] = ["time_ns", "width_ns", "cpus", "busy"];
/// What separates the name from the hint.
const HINT: &str = "@hint=";

/// Threads whose CPU time is counted together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Category {
    /// The name of its column. Categories of one name share a column.
    pub name: String,
    /// Which names its threads have.
    pub glob: Glob,
    /// The hint that its threads have; `None` if it does not matter.
    pub hint: Option<u64>,
}

/// A text is no category.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CategoryError {
    /// No name before the `=`.
    #[error("the category \"{0}\" has no name before the \"=\"; write NAME=COMM-GLOB or COMM-GLOB")]
    NoName(String),
    /// No glob.
    #[error("the category \"{0}\" has no thread name; write NAME=COMM-GLOB, with * as COMM-GLOB for all names")]
    NoGlob(String),
    /// A name that is a key of each window.
    #[error("the category \"{text}\" takes the name \"{name}\", which every window has; choose another name")]
    Taken {
        /// The whole text.
        text: String,
        /// The name.
        name: String,
    },
    /// The hint is no number.
    #[error("the category \"{text}\" has the hint \"{hint}\", which is no number from 0 to 18446744073709551615")]
    Hint {
        /// The whole text.
        text: String,
        /// What is there in place of the hint.
        hint: String,
    },
    /// A `\` that escapes nothing.
    #[error("the category \"{0}\" ends its thread name with \"\\\"; write \"\\\\\" for the character itself")]
    Escape(String),
    /// It matches no name of the kernel.
    #[error("the category \"{text}\" asks for thread names of {bytes} bytes or more; the kernel keeps {}", Comm::MAX)]
    TooLong {
        /// The whole text.
        text: String,
        /// The shortest name that would match, in bytes.
        bytes: usize,
    },
}

impl Category {
    /// Reads `NAME=COMM-GLOB@hint=N`. Without `NAME=`, the rest is the name; without `@hint=N`, any hint and none match.
    ///
    /// # Errors
    /// [`CategoryError`] says what to write instead.
    pub fn parse(text: &str) -> Result<Self, CategoryError> {
        let own = || text.to_owned();
        let (rest, hint) = match find(text, HINT) {
            None => (text, None),
            Some((rest, digits)) => {
                let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
                let hint = digits.parse().ok().filter(|_| is_number);
                (rest, Some(hint.ok_or_else(|| CategoryError::Hint { text: own(), hint: digits.to_owned() })?))
            }
        };
        let (name, glob) = find(rest, "=").unwrap_or((text, rest));
        if name.is_empty() && !text.is_empty() {
            return Err(CategoryError::NoName(own()));
        }
        if glob.is_empty() {
            return Err(CategoryError::NoGlob(own()));
        }
        if FIXED.contains(&name) || TAKEN.contains(&name) {
            return Err(CategoryError::Taken { text: own(), name: name.to_owned() });
        }
        let glob = Glob::new(glob.as_bytes()).ok_or_else(|| CategoryError::Escape(own()))?;
        let bytes = glob.shortest();
        if bytes > Comm::MAX {
            return Err(CategoryError::TooLong { text: own(), bytes });
        }
        Ok(Self { name: name.to_owned(), glob, hint })
    }

    /// True if a thread with this name and hint belongs to it.
    #[must_use]
    pub fn matches(&self, comm: &Comm, hint: Option<u64>) -> bool {
        (self.hint.is_none() || self.hint == hint) && self.glob.matches(comm.as_bytes())
    }
}

/// What is before and after the first `what` that no `\` escapes.
fn find<'a>(text: &'a str, what: &str) -> Option<(&'a str, &'a str)> {
    let mut escaped = false;
    for (at, character) in text.char_indices() {
        if !escaped {
            if let Some(after) = text.get(at..).and_then(|rest| rest.strip_prefix(what)) {
                return Some((text.get(..at)?, after));
            }
        }
        escaped = character == '\\' && !escaped;
    }
    None
}

/// A pattern for whole names: `*` stands for any bytes, `?` for any one byte, `\` takes the special meaning of what follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob(Vec<Part>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Byte(u8),
    One,
    Any,
}

impl Glob {
    /// `None` if it ends with a `\` that escapes nothing.
    #[must_use]
    pub fn new(pattern: &[u8]) -> Option<Self> {
        let mut parts = Vec::with_capacity(pattern.len());
        let mut bytes = pattern.iter();
        while let Some(&byte) = bytes.next() {
            match byte {
                // Several in a row match the same as one, and take longer.
                b'*' if parts.last() == Some(&Part::Any) => {}
                b'*' => parts.push(Part::Any),
                b'?' => parts.push(Part::One),
                b'\\' => parts.push(Part::Byte(*bytes.next()?)),
                byte => parts.push(Part::Byte(byte)),
            }
        }
        Some(Self(parts))
    }

    /// Bytes of the shortest name that it matches.
    fn shortest(&self) -> usize {
        self.0.iter().filter(|&&part| part != Part::Any).count()
    }

    /// True if it matches the whole name.
    #[must_use]
    pub fn matches(&self, name: &[u8]) -> bool {
        let (mut part, mut byte) = (0, 0);
        // Behind the last `*`, and the first byte that it does not take: a mismatch lets it take one more. The last one suffices, as
        // what is between two of them matches best as early as possible.
        let mut last = None;
        while let Some(&next) = name.get(byte) {
            match self.0.get(part) {
                Some(Part::Any) => {
                    part += 1;
                    last = Some((part, byte));
                    continue;
                }
                Some(Part::Byte(wanted)) if *wanted != next => {}
                Some(_) => {
                    part += 1;
                    byte += 1;
                    continue;
                }
                None => {}
            }
            let Some((behind, taken)) = last else { return false };
            (part, byte) = (behind, taken + 1);
            last = Some((part, byte));
        }
        self.0.get(part..).unwrap_or_default().iter().all(|&part| part == Part::Any)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_match(glob: &str, name: &str) -> bool {
        Glob::new(glob.as_bytes()).unwrap().matches(name.as_bytes())
    }

    #[test]
    fn a_glob_matches_the_whole_name() {
        for (glob, name) in [
            ("nginx", "nginx"),
            ("nginx*", "nginx"),
            ("nginx*", "nginx: worker"),
            ("*worker", "nginx: worker"),
            ("n*:*r", "nginx: worker"),
            ("??", "ab"),
            ("*", ""),
            (r"\*", "*"),
            (r"a\\b", r"a\b"),
            ("*ab*abc", "abababc"),
            ("***?", "x"),
        ] {
            assert!(is_match(glob, name), "{glob} {name}");
        }
        for (glob, name) in [
            ("nginx", "nginx2"),
            ("nginx", "2nginx"),
            ("??", "a"),
            ("?", ""),
            (r"\*", "a"),
            (r"\?", "a"),
            ("*ab", "aba"),
            ("a*b*c", "acb"),
            ("", "a"),
        ] {
            assert!(!is_match(glob, name), "{glob} {name}");
        }
        assert_eq!(Glob::new(br"a\"), None);
    }

    #[test]
    fn a_category_has_a_name_a_glob_and_a_hint() {
        let parts = |text: &str| {
            let category = Category::parse(text).unwrap();
            (category.name.clone(), category.matches(&"nginx".into(), Some(3)), category.hint)
        };
        assert_eq!(parts("web=nginx*@hint=3"), ("web".into(), true, Some(3)));
        assert_eq!(parts("web=nginx*@hint=4"), ("web".into(), false, Some(4)));
        assert_eq!(parts("nginx*"), ("nginx*".into(), true, None));
        assert_eq!(parts("nginx*@hint=3"), ("nginx*@hint=3".into(), true, Some(3)));
        assert!(!Category::parse("nginx@hint=0").unwrap().matches(&"nginx".into(), None), "no hint is not hint 0");
        // Names with the characters of the syntax.
        assert!(Category::parse(r"x=a\@hint=1").unwrap().matches(&"a@hint=1".into(), None));
        assert!(Category::parse(r"x=a=b").unwrap().matches(&"a=b".into(), None));
        assert!(Category::parse(r"a\=b").unwrap().matches(&"a=b".into(), None));
    }

    #[test]
    fn what_is_no_category_says_what_to_write() {
        let error = |text: &str| Category::parse(text).unwrap_err();
        assert_eq!(error("=nginx"), CategoryError::NoName("=nginx".into()));
        for text in ["", "web=", "web=@hint=1", "@hint=1"] {
            assert_eq!(error(text), CategoryError::NoGlob(text.into()));
        }
        for hint in ["", "x", "-1", "+1", "18446744073709551616", "1@hint=2"] {
            let text = format!("a@hint={hint}");
            assert_eq!(error(&text), CategoryError::Hint { text: text.clone(), hint: hint.into() });
        }
        assert_eq!(error("irq"), CategoryError::Taken { text: "irq".into(), name: "irq".into() });
        assert_eq!(error(r"a=b\"), CategoryError::Escape(r"a=b\".into()));
        assert_eq!(error("0123456789abcdef*"), CategoryError::TooLong { text: "0123456789abcdef*".into(), bytes: 16 });
        assert_eq!(
            error(r"a=b\").to_string(),
            r#"the category "a=b\" ends its thread name with "\"; write "\\" for the character itself"#
        );
    }

    /// Tries every way.
    fn slow(parts: &[Part], name: &[u8]) -> bool {
        match (parts.split_first(), name.split_first()) {
            (None, _) => name.is_empty(),
            (Some((Part::Any, rest)), _) => (0..=name.len()).any(|taken| slow(rest, &name[taken..])),
            (Some((Part::One, rest)), Some((_, name))) => slow(rest, name),
            (Some((Part::Byte(wanted), rest)), Some((byte, name))) => wanted == byte && slow(rest, name),
            (Some(_), None) => false,
        }
    }

    proptest! {
        #[test]
        fn a_glob_matches_what_trying_every_way_matches(glob in r"[ab*?]{0,10}", name in "[ab]{0,15}") {
            let glob = Glob::new(glob.as_bytes()).unwrap();
            prop_assert_eq!(glob.matches(name.as_bytes()), slow(&glob.0, name.as_bytes()));
        }

        #[test]
        fn any_text_is_a_category_or_an_error(text in r"[a=@hint\\*?0-9 ]{0,30}") {
            if let Ok(category) = Category::parse(&text) {
                prop_assert!(!category.name.is_empty());
            }
        }
    }
}
