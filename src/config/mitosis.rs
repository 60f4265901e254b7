//! Writes and reads the file of `scx_mitosis --cell-config FILE`, within the limits of the scheduler.
//!
//! The facts are from scheds/rust/scx_mitosis/src/config.rs of the sched-ext/scx repository, branch mitosis-next.

use std::collections::BTreeSet;

use serde_json::Value;
use thiserror::Error;

use super::cell::{Cell, CellMatch, Subcell};
pub use super::mitosis_file::{parse, read, ParseError};
use crate::sample::Comm;
use scxprof_base::escape;

/// Cells, with cell 0 (`MAX_CELLS`). Each matching cgroup is a cell, so the decision checks this and not the writer.
pub const MAX_CELLS: usize = 256;
/// Subcells of a cell, with the catch-all (`MAX_SUBCELLS_PER_CELL`).
pub const MAX_SUBCELLS: usize = 8;
/// Alternatives in the `matches` of a subcell.
pub const MAX_ORS: usize = 4;
/// Conditions in one alternative.
pub const MAX_ANDS: usize = 4;
/// Bytes of a prefix, as many as of a thread's name. The scheduler truncates longer ones.
pub const MAX_PREFIX: usize = Comm::MAX;

/// Why the scheduler would reject a configuration, or would not do what it says.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum MitosisError {
    /// No cells at all.
    #[error("the configuration has no cells")]
    NoCells,
    /// More than [`MAX_CELLS`]; each matching cgroup is one.
    #[error(
        "there would be {cells} cells (one for each matched cgroup that was sampled, and the root's), but scx_mitosis has {MAX_CELLS}: \
         let the expressions match fewer cgroups"
    )]
    TooManyCells {
        /// The number, including the root's.
        cells: usize,
    },
    /// Fewer CPUs than cells: the scheduler exits with "Not enough CPUs".
    #[error(
        "there would be {cells} cells (one for each matched cgroup that was sampled, and the root's), and scx_mitosis needs a CPU for \
         each, but the host it is for has {target_cpus}: let the expressions match fewer cgroups, or name a larger host (--target-cpus)"
    )]
    FewCpus {
        /// CPUs of the host.
        target_cpus: usize,
        /// The number of cells, including the root's.
        cells: usize,
    },
    /// The host has no CPU for any of the groups: such a configuration would do the same as none.
    #[error(
        "nothing of what was found can be loaded on a host of {target_cpus} CPU{}: scx_mitosis needs a CPU for each cell and each \
         subcell", if *.target_cpus == 1 { "" } else { "s" }
    )]
    NothingFits {
        /// CPUs of the host.
        target_cpus: usize,
    },
    /// Two cells, or two subcells of a cell, have the same name, or one has none.
    #[error("{place}: the name \"{name}\" is empty or taken")]
    Name {
        /// The cell, or the whole configuration.
        place: String,
        /// The name.
        name: String,
    },
    /// The cell that takes everything is not the last.
    #[error("cell \"{0}\" takes every cgroup but is not the last")]
    AllNotLast(String),
    /// A cell's text is empty, so it would take every cgroup.
    #[error("cell \"{0}\" matches an empty text, which every cgroup contains")]
    EmptyCgroup(String),
    /// A cell's regular expression does not compile.
    #[error("cell \"{cell}\": the regular expression \"{regex}\" does not compile")]
    Regex {
        /// The cell.
        cell: String,
        /// The expression.
        regex: String,
    },
    /// More than [`MAX_SUBCELLS`]; the catch-all counts whether it is written or not.
    #[error("cell \"{cell}\" has {count} subcells with its catch-all; the scheduler takes {MAX_SUBCELLS}")]
    Subcells {
        /// The cell.
        cell: String,
        /// How many.
        count: usize,
    },
    /// More than one catch-all, or one that also has conditions.
    #[error("cell \"{cell}\": subcell \"{subcell}\" is a second catch-all, or one with conditions")]
    CatchAll {
        /// The cell.
        cell: String,
        /// The subcell.
        subcell: String,
    },
    /// A condition on the task hint, which scx_characterize writes and the scheduler does not know.
    #[error("cell \"{cell}\", subcell \"{subcell}\": a condition on the hint; the scheduler knows none")]
    Hint {
        /// The cell.
        cell: String,
        /// The subcell.
        subcell: String,
    },
    /// None, or more than [`MAX_ORS`].
    #[error("cell \"{cell}\", subcell \"{subcell}\": {count} alternatives; the scheduler takes 1 to {MAX_ORS}")]
    Ors {
        /// The cell.
        cell: String,
        /// The subcell.
        subcell: String,
        /// How many.
        count: usize,
    },
    /// More than [`MAX_ANDS`].
    #[error("cell \"{cell}\", subcell \"{subcell}\": {count} conditions in one; the scheduler takes {MAX_ANDS}")]
    Ands {
        /// The cell.
        cell: String,
        /// The subcell.
        subcell: String,
        /// How many.
        count: usize,
    },
    /// Empty, longer than [`MAX_PREFIX`], or with a NUL, which no name contains.
    #[error("cell \"{cell}\", subcell \"{subcell}\": the prefix {prefix:?} is not 1 to {MAX_PREFIX} bytes of a name")]
    Prefix {
        /// The cell.
        cell: String,
        /// The subcell.
        subcell: String,
        /// The prefix.
        prefix: String,
    },
    /// No thread can ever reach the subcell: earlier ones take all of its threads.
    #[error("cell \"{cell}\": no thread reaches subcell \"{subcell}\", earlier ones take all of its prefixes")]
    Shadowed {
        /// The cell.
        cell: String,
        /// The subcell.
        subcell: String,
    },
}

/// Checks for everything that the scheduler would reject, or would load but not do as written.
///
/// Conditions of the host (CPUs, matching cgroups) are checked elsewhere: see [`super::Decision::refused`].
///
/// # Errors
/// The first violation.
pub fn check(cells: &[Cell]) -> Result<(), MitosisError> {
    if cells.is_empty() {
        return Err(MitosisError::NoCells);
    }
    unique("the configuration", cells.iter().map(|cell| cell.name.as_str()))?;
    for (index, cell) in cells.iter().enumerate() {
        match &cell.matches {
            CellMatch::All if index + 1 < cells.len() => return Err(MitosisError::AllNotLast(cell.name.clone())),
            CellMatch::CgroupContains(part) if part.is_empty() => {
                return Err(MitosisError::EmptyCgroup(cell.name.clone()))
            }
            CellMatch::All | CellMatch::CgroupContains(_) => {}
            CellMatch::CgroupRegex(regex) => {
                if regex::Regex::new(regex).is_err() {
                    return Err(MitosisError::Regex { cell: cell.name.clone(), regex: regex.clone() });
                }
            }
        }
        check_subcells(cell)?;
    }
    Ok(())
}

fn unique<'a>(place: &str, names: impl Iterator<Item = &'a str>) -> Result<(), MitosisError> {
    let mut taken = BTreeSet::new();
    for name in names {
        if name.is_empty() || !taken.insert(name) {
            return Err(MitosisError::Name { place: place.to_owned(), name: name.to_owned() });
        }
    }
    Ok(())
}

fn check_subcells(cell: &Cell) -> Result<(), MitosisError> {
    let name = || cell.name.clone();
    unique(&format!("cell \"{}\"", cell.name), cell.subcells.iter().map(|subcell| subcell.name.as_str()))?;
    let divided = cell.subcells.iter().filter(|subcell| !subcell.is_catch_all()).count();
    // If none is written, the scheduler adds a catch-all.
    if divided + 1 > MAX_SUBCELLS {
        return Err(MitosisError::Subcells { cell: name(), count: divided + 1 });
    }
    let mut has_catch_all = false;
    let mut earlier: Vec<&str> = Vec::new();
    for subcell in &cell.subcells {
        let in_cell = || (name(), subcell.name.clone());
        if subcell.hints.iter().any(Option::is_some) {
            let (cell, subcell) = in_cell();
            return Err(MitosisError::Hint { cell, subcell });
        }
        if subcell.is_catch_all() {
            if has_catch_all || subcell.matches.len() != 1 {
                let (cell, subcell) = in_cell();
                return Err(MitosisError::CatchAll { cell, subcell });
            }
            has_catch_all = true;
            continue;
        }
        let mut reached = false;
        let mut own = Vec::new();
        let count = subcell.matches.len();
        if count == 0 || count > MAX_ORS {
            let (cell, subcell) = in_cell();
            return Err(MitosisError::Ors { cell, subcell, count });
        }
        for prefixes in &subcell.matches {
            if prefixes.len() > MAX_ANDS {
                let (cell, subcell) = in_cell();
                return Err(MitosisError::Ands { cell, subcell, count: prefixes.len() });
            }
            if let Some(prefix) = prefixes.iter().find(|it| it.is_empty() || it.len() > MAX_PREFIX || it.contains('\0'))
            {
                let (cell, subcell) = in_cell();
                return Err(MitosisError::Prefix { cell, subcell, prefix: prefix.clone() });
            }
            // Several prefixes that must match are equivalent to the longest, or can never match together.
            let longest = prefixes.iter().max_by_key(|prefix| prefix.len()).map_or("", String::as_str);
            let possible = prefixes.iter().all(|prefix| longest.starts_with(prefix.as_str()));
            if possible && !earlier.iter().any(|prefix| longest.starts_with(prefix)) {
                reached = true;
            }
            if possible {
                own.push(longest);
            }
        }
        if !reached {
            let (cell, subcell) = in_cell();
            return Err(MitosisError::Shadowed { cell, subcell });
        }
        earlier.append(&mut own);
    }
    Ok(())
}

/// The configuration as the scheduler reads it, one subcell per line, if it would accept it.
///
/// # Errors
/// Those of [`check`]; then there is no text.
pub fn to_json(cells: &[Cell]) -> Result<String, MitosisError> {
    check(cells)?;
    let cells: Vec<String> = cells.iter().map(cell_json).collect();
    Ok(escape::json(format!("[\n{}\n]\n", cells.join(",\n"))))
}

fn cell_json(cell: &Cell) -> String {
    let matches = match &cell.matches {
        CellMatch::CgroupContains(part) => object("CgroupContains", part),
        CellMatch::CgroupRegex(regex) => object("CgroupRegex", regex),
        CellMatch::All => "{}".to_owned(),
    };
    let mut text = format!("  {{\n    \"name\": {},\n    \"matches\": {matches}", string(&cell.name));
    if !cell.subcells.is_empty() {
        let subcells: Vec<String> = cell.subcells.iter().map(subcell_json).collect();
        text.push_str(",\n    \"subcells\": [\n");
        text.push_str(&subcells.join(",\n"));
        text.push_str("\n    ]");
    }
    text.push_str("\n  }");
    text
}

fn subcell_json(subcell: &Subcell) -> String {
    let list = |items: Vec<String>| format!("[{}]", items.join(", "));
    let ands = |prefixes: &Vec<String>| list(prefixes.iter().map(|prefix| object("CommPrefix", prefix)).collect());
    let matches = list(subcell.matches.iter().map(ands).collect());
    format!("      {{\"name\": {}, \"matches\": {matches}}}", string(&subcell.name))
}

fn object(key: &str, value: &str) -> String {
    format!("{{{}: {}}}", string(key), string(value))
}

/// A JSON string.
fn string(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subcell(name: &str, matches: &[&[&str]]) -> Subcell {
        let ands = |ands: &&[&str]| ands.iter().map(|&prefix| prefix.to_owned()).collect();
        Subcell { name: name.to_owned(), matches: matches.iter().map(ands).collect(), hints: Vec::new() }
    }

    fn cell(name: &str, matches: CellMatch, subcells: &[Subcell]) -> Cell {
        Cell { name: name.to_owned(), matches, subcells: subcells.to_vec() }
    }

    fn divided(subcells: &[Subcell]) -> Result<(), MitosisError> {
        check(&[cell("c", CellMatch::All, subcells)])
    }

    #[test]
    fn cells_are_checked() {
        let part = |part: &str| CellMatch::CgroupContains(part.to_owned());
        assert_eq!(check(&[]), Err(MitosisError::NoCells));
        assert_eq!(check(&[cell("a", CellMatch::All, &[])]), Ok(()));
        let cells = [cell("a", CellMatch::All, &[]), cell("b", part("x"), &[])];
        assert_eq!(check(&cells), Err(MitosisError::AllNotLast("a".to_owned())));
        assert!(matches!(
            check(&[cell("a", part("x"), &[]), cell("a", part("y"), &[])]),
            Err(MitosisError::Name { .. })
        ));
        assert!(matches!(check(&[cell("", part("x"), &[])]), Err(MitosisError::Name { .. })));
        assert_eq!(check(&[cell("a", part(""), &[])]), Err(MitosisError::EmptyCgroup("a".to_owned())));
        let regex = CellMatch::CgroupRegex("(".to_owned());
        assert!(matches!(check(&[cell("a", regex, &[])]), Err(MitosisError::Regex { .. })));
    }

    #[test]
    fn eight_subcells_with_the_catch_all_are_the_limit() {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let mut subcells: Vec<_> = names.iter().map(|&name| subcell(name, &[&[name]])).collect();
        // The scheduler's own catch-all is the ninth.
        assert_eq!(divided(&subcells), Err(MitosisError::Subcells { cell: "c".to_owned(), count: 9 }));
        subcells.pop();
        assert_eq!(divided(&subcells), Ok(()));
        subcells.push(Subcell::catch_all());
        assert_eq!(divided(&subcells), Ok(()));
    }

    #[test]
    fn conditions_are_checked() {
        assert!(matches!(divided(&[subcell("s", &[])]), Err(MitosisError::Ors { count: 0, .. })));
        let ors: [&[&str]; 5] = [&["a"], &["b"], &["c"], &["d"], &["e"]];
        assert_eq!(divided(&[subcell("s", &ors[..4])]), Ok(()));
        assert!(matches!(divided(&[subcell("s", &ors)]), Err(MitosisError::Ors { count: 5, .. })));
        assert_eq!(divided(&[subcell("s", &[&["a", "ab", "abc", "abcd"]])]), Ok(()));
        let ands: &[&str] = &["a", "ab", "abc", "abcd", "abcde"];
        assert!(matches!(divided(&[subcell("s", &[ands])]), Err(MitosisError::Ands { count: 5, .. })));
        assert_eq!(divided(&[subcell("s", &[&["123456789012345"]])]), Ok(()));
        for prefix in ["1234567890123456", "", "a\0b"] {
            assert!(matches!(divided(&[subcell("s", &[&[prefix]])]), Err(MitosisError::Prefix { .. })), "{prefix:?}");
        }
    }

    #[test]
    fn one_catch_all_is_the_limit() {
        let all = Subcell::catch_all();
        assert_eq!(divided(&[subcell("s", &[&["a"]]), all.clone()]), Ok(()));
        assert!(matches!(divided(&[all.clone(), subcell("t", &[&[]])]), Err(MitosisError::CatchAll { .. })));
        assert!(matches!(divided(&[subcell("t", &[&["a"], &[]])]), Err(MitosisError::CatchAll { .. })));
        assert!(matches!(divided(&[all.clone(), all]), Err(MitosisError::Name { .. })));
    }

    #[test]
    fn a_subcell_that_no_thread_reaches_is_refused() {
        let web = subcell("web", &[&["web"]]);
        let webserver = subcell("webserver", &[&["webserver"]]);
        assert_eq!(divided(&[webserver.clone(), web.clone()]), Ok(()));
        assert!(matches!(divided(&[web.clone(), webserver]), Err(MitosisError::Shadowed { .. })));
        assert!(matches!(divided(&[web.clone(), subcell("w", &[&["web"]])]), Err(MitosisError::Shadowed { .. })));
        assert_eq!(divided(&[web.clone(), subcell("w", &[&["webx"], &["db"]])]), Ok(()));
        assert!(matches!(
            divided(&[web, subcell("w", &[&["webx"], &["w", "web"]])]),
            Err(MitosisError::Shadowed { .. })
        ));
        assert!(matches!(divided(&[subcell("w", &[&["a", "b"]])]), Err(MitosisError::Shadowed { .. })));
        // A subcell that can never match takes nothing from others.
        assert_eq!(divided(&[subcell("v", &[&["a", "b"], &["c"]]), subcell("w", &[&["b"]])]), Ok(()));
    }

    #[test]
    fn what_is_refused_is_not_written() {
        assert_eq!(to_json(&[]), Err(MitosisError::NoCells));
    }

    #[test]
    fn any_text_survives_writing_and_reading() {
        let odd = "a \"b\\ \u{1}\u{7f}ä\u{2028}";
        let cells = [
            cell(odd, CellMatch::CgroupContains(odd.to_owned()), &[subcell(odd, &[&["\"\\\u{1}ä", "\""]])]),
            cell("rest", CellMatch::All, &[]),
        ];
        assert_eq!(parse(&to_json(&cells).unwrap()).unwrap(), cells);
    }
}
