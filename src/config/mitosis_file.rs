//! Reads the file of `scx_mitosis --cell-config FILE` as the scheduler does, and what scx_characterize writes beyond that.
//!
//! scx_characterize 1.1.4 writes `Hint` beside `CommPrefix` with `--use-hints`. The pull request that it comes from has `match` for
//! `matches`, and lists of lists there for cells too.

use serde::de::Error as _;
use serde::Deserialize;
use serde_json::{Map, Value};
use thiserror::Error;

use super::cell::{Cell, CellMatch, Subcell};

/// Why the scheduler cannot parse a file.
#[derive(Debug, Error)]
#[error("no cell configuration: {0}")]
pub struct ParseError(#[from] serde_json::Error);

#[derive(Deserialize)]
struct ReadCell {
    name: String,
    #[serde(default)]
    matches: Option<Value>,
    #[serde(default, rename = "match")]
    named_match: Option<Value>,
    #[serde(default)]
    subcells: Vec<ReadSubcell>,
}

#[derive(Deserialize)]
enum ReadCellMatch {
    CgroupContains(String),
    CgroupRegex(String),
}

#[derive(Deserialize)]
struct ReadSubcell {
    name: String,
    #[serde(default)]
    matches: Option<Vec<Vec<ReadSubcellMatch>>>,
    #[serde(default, rename = "match")]
    named_match: Option<Value>,
}

#[derive(Deserialize)]
enum ReadSubcellMatch {
    CommPrefix(String),
    Hint(u64),
}

/// Reads a configuration as the scheduler does: unknown keys are ignored, missing `matches` take all.
///
/// It only parses; [`check`](super::mitosis::check) checks the limits.
///
/// # Errors
/// Text that is no such list, has a condition that the scheduler does not know, or lacks a name.
pub fn parse(json: &str) -> Result<Vec<Cell>, ParseError> {
    match read(json)? {
        (cells, None) => Ok(cells),
        (_, Some(foreign)) => Err(ParseError(serde_json::Error::custom(foreign))),
    }
}

/// Reads a configuration for scx_mitosis that the scheduler, or scx_characterize, wrote; with a sentence on what the scheduler itself
/// does not read, if there is such.
///
/// # Errors
/// As [`parse`], but for what scx_characterize writes.
pub fn read(json: &str) -> Result<(Vec<Cell>, Option<String>), ParseError> {
    let cells: Vec<ReadCell> = serde_json::from_str(json)?;
    let mut foreign = Foreign::default();
    let mut read = Vec::with_capacity(cells.len());
    for ReadCell { name, matches, named_match, subcells } in cells {
        let matches = match (matches, named_match) {
            (Some(lists @ Value::Array(_)), _) => {
                foreign.lists.get_or_insert_with(|| name.clone());
                of_lists(lists)
            }
            // Any other value of a misspelt key is ignored, as the scheduler ignores it.
            (None, Some(lists @ Value::Array(_))) => {
                foreign.misnamed.get_or_insert_with(|| format!("cell {name:?}"));
                of_lists(lists)
            }
            (Some(object), _) => serde_json::from_value(object).and_then(of_object),
            (None, _) => Ok(CellMatch::All),
        };
        let of_cell = |error: serde_json::Error| serde_json::Error::custom(format!("cell {name:?}: {error}"));
        let matches = matches.map_err(of_cell)?;
        let subcell = |subcell| of_subcell(subcell, &name, &mut foreign);
        let subcells = subcells.into_iter().map(subcell).collect::<Result<_, _>>()?;
        read.push(Cell { name, matches, subcells });
    }
    Ok((read, foreign.sentence()))
}

/// What the scheduler does not read, and the first place that has it.
#[derive(Default)]
struct Foreign {
    hint: Option<String>,
    lists: Option<String>,
    misnamed: Option<String>,
}

impl Foreign {
    fn sentence(self) -> Option<String> {
        let rejected = [
            self.hint.map(|place| format!("it knows no `Hint` ({place})")),
            self.lists.map(|cell| format!("it knows no lists as the `matches` of a cell ({cell:?})")),
        ];
        let rejected: Vec<String> = rejected.into_iter().flatten().collect();
        let ignored = self.misnamed.map(|place| format!("it ignores `match` ({place}) and takes all threads for it"));
        match (rejected.is_empty(), ignored) {
            (true, None) => None,
            (true, Some(ignored)) => Some(format!("scx_mitosis itself does not load this as it is meant: {ignored}")),
            (false, ignored) => {
                let all: Vec<String> = rejected.into_iter().chain(ignored).collect();
                Some(format!("scx_mitosis itself rejects this configuration: {}", all.join(", and ")))
            }
        }
    }
}

fn of_object(object: Map<String, Value>) -> Result<CellMatch, serde_json::Error> {
    if object.is_empty() {
        return Ok(CellMatch::All);
    }
    Ok(match serde_json::from_value(Value::Object(object))? {
        ReadCellMatch::CgroupContains(part) => CellMatch::CgroupContains(part),
        ReadCellMatch::CgroupRegex(regex) => CellMatch::CgroupRegex(regex),
    })
}

/// The one condition of lists, or an expression that is the same as one of several.
fn of_lists(lists: Value) -> Result<CellMatch, serde_json::Error> {
    let mut conditions = Vec::new();
    for list in serde_json::from_value::<Vec<Vec<Map<String, Value>>>>(lists)? {
        let mut list = list.into_iter();
        conditions.push(list.next().map_or(Ok(CellMatch::All), of_object)?);
        if list.next().is_some() {
            return Err(serde_json::Error::custom("two conditions in one list, which no cell can have"));
        }
    }
    if conditions.is_empty() || conditions.contains(&CellMatch::All) {
        return Ok(CellMatch::All);
    }
    if conditions.len() == 1 {
        return Ok(conditions.swap_remove(0));
    }
    let expression = |condition: &CellMatch| match condition {
        CellMatch::CgroupContains(part) => regex::escape(part),
        CellMatch::CgroupRegex(regex) => format!("(?:{regex})"),
        CellMatch::All => String::new(),
    };
    Ok(CellMatch::CgroupRegex(conditions.iter().map(expression).collect::<Vec<_>>().join("|")))
}

fn of_subcell(subcell: ReadSubcell, cell: &str, foreign: &mut Foreign) -> Result<Subcell, serde_json::Error> {
    let ReadSubcell { name, matches, named_match } = subcell;
    let place = || format!("cell {cell:?}, subcell {name:?}");
    let lists: Vec<Vec<ReadSubcellMatch>> = match (matches, named_match) {
        (Some(lists), _) => lists,
        (None, Some(lists @ Value::Array(_))) => {
            foreign.misnamed.get_or_insert_with(place);
            serde_json::from_value(lists)?
        }
        (None, _) => vec![Vec::new()],
    };
    let (mut matches, mut hints) = (Vec::new(), Vec::new());
    for list in lists {
        let (mut prefixes, mut asked) = (Vec::new(), None);
        for condition in list {
            match condition {
                ReadSubcellMatch::CommPrefix(prefix) => prefixes.push(prefix),
                ReadSubcellMatch::Hint(hint) if asked.is_some_and(|other| other != hint) => {
                    return Err(serde_json::Error::custom(format!(
                        "{}: two hints in one list, which no thread has",
                        place()
                    )));
                }
                ReadSubcellMatch::Hint(hint) => {
                    foreign.hint.get_or_insert_with(place);
                    asked = Some(hint);
                }
            }
        }
        matches.push(prefixes);
        hints.push(asked);
    }
    if hints.iter().all(Option::is_none) {
        hints.clear();
    }
    Ok(Subcell { name, matches, hints })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::consumer::Consumer;

    #[test]
    fn reading_is_as_strict_and_as_lax_as_the_scheduler() {
        assert!(parse(r#"[{"name":"a","matches":[[]]}]"#).is_err());
        assert!(parse(r#"[{"name":"a","matches":{"Cgroup":"x"}}]"#).is_err());
        assert!(parse(r#"[{"name":"a","subcells":[{"name":"s","matches":[[{"Hint":1}]]}]}]"#).is_err());
        assert!(parse(r#"[{"matches":{}}]"#).is_err());
        let cells = parse(r#"[{"name":"a","match":{"CgroupRegex":"x"},"subcells":[{"name":"s"}]}]"#).unwrap();
        let any = Subcell { name: "s".to_owned(), matches: vec![vec![]], hints: vec![] };
        assert_eq!(cells, [Cell { name: "a".to_owned(), matches: CellMatch::All, subcells: vec![any] }]);
    }

    #[test]
    fn a_hint_leads_to_its_subcell() {
        let json = r#"[{"name":"allotment","matches":{"CgroupRegex":"a"},"subcells":[
            {"name":"alpha@hint=0","matches":[[{"CommPrefix":"alpha"},{"Hint":0}]]},
            {"name":"alpha@hint=7","matches":[[{"CommPrefix":"alpha"},{"Hint":7}],[{"CommPrefix":"alpine"},{"Hint":7}]]},
            {"name":"nine","matches":[[{"Hint":9}]]},
            {"name":"beta","matches":[[{"CommPrefix":"beta"}]]},
            {"name":"rest","matches":[[]]}]}]"#;
        let (cells, foreign) = read(json).unwrap();
        let foreign = foreign.unwrap();
        let expected = "scx_mitosis itself rejects this configuration: it knows no `Hint` (cell \"allotment\", subcell \"alpha@hint=0\")";
        assert_eq!(foreign, expected);
        assert!(!cells[0].subcells[2].is_catch_all());
        let consumer = Consumer::unchecked(&cells).unwrap();
        let go = |comm: &str, hint| consumer.assign_hinted(b"/a", comm.as_bytes(), hint).subcell;
        assert_eq!([go("alpha1", None), go("alpha1", Some(0)), go("alpha1", Some(7))], [Some(0), Some(0), Some(1)]);
        assert_eq!([go("alpine", Some(7)), go("alpine", None), go("alpha1", Some(3))], [Some(1), Some(4), Some(4)]);
        assert_eq!([go("x", Some(9)), go("beta", Some(5)), go("beta", Some(9))], [Some(2), Some(3), Some(2)]);
        assert!(read(r#"[{"name":"a","subcells":[{"name":"s","matches":[[{"Hint":1},{"Hint":2}]]}]}]"#).is_err());
    }

    #[test]
    fn the_form_of_the_pull_request_is_read() {
        let json = r#"[
            {"name":"allotment","match":[[{"CgroupRegex":"w-[^/]+"}]],"subcells":[
                {"name":"web","match":[[{"CommPrefix":"web"}]]},{"name":"rest","match":[[]]}]},
            {"name":"both","matches":[[{"CgroupContains":"a.b"}],[{"CgroupRegex":"c|d"}]]},
            {"name":"rest","matches":[[]]}]"#;
        let (cells, foreign) = read(json).unwrap();
        let foreign = foreign.unwrap();
        assert!(
            foreign.contains(
                "no lists as the `matches` of a cell (\"both\"), and it ignores `match` (cell \"allotment\")"
            ),
            "{foreign}"
        );
        let matches: Vec<_> = cells.iter().map(|cell| cell.matches.clone()).collect();
        let regex = |text: &str| CellMatch::CgroupRegex(text.to_owned());
        assert_eq!(matches, [regex("w-[^/]+"), regex(r"a\.b|(?:c|d)"), CellMatch::All]);
        assert_eq!(cells[0].subcells[0].matches, [["web"]]);
        assert!(cells[0].subcells[1].is_catch_all());
        let only = read(r#"[{"name":"a","match":[[{"CgroupContains":"x"}]]}]"#).unwrap().1.unwrap();
        assert!(only.contains("does not load this as it is meant: it ignores `match` (cell \"a\")"), "{only}");
        for wrong in [
            r#"[{"name":"a","match":[[{"CgroupContains":"x"},{"CgroupContains":"y"}]]}]"#,
            r#"[{"name":"a","match":[[{"CommPrefix":"x"}]]}]"#,
            r#"[{"name":"a","matches":"x"}]"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
