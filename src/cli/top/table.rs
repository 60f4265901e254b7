//! A table of a view: cells with a text and what they are sorted by, the rows that match a filter, in order.

use std::cmp::Ordering;
use std::ops::Range;

use scxprof_base::columns::{aligned, fitted, Column};
use scxprof_base::escape;

/// What a cell is sorted by.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    /// By the alphabet.
    Text,
    /// The largest first.
    Number(f64),
    /// After all others.
    Nothing,
}

/// A cell.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cell {
    text: String,
    value: Value,
}

impl Cell {
    /// A name, which may be anything.
    pub(super) fn text(text: &str) -> Self {
        let value = if text.is_empty() { Value::Nothing } else { Value::Text };
        Self { text: escape::line(text).into_owned(), value }
    }

    /// A number as it is shown.
    pub(super) fn number(value: f64, text: String) -> Self {
        Self { text, value: if value.is_nan() { Value::Nothing } else { Value::Number(value) } }
    }

    /// A number without a fraction.
    pub(super) fn count(value: u64) -> Self {
        Self::number(value as f64, value.to_string())
    }

    /// A number of samples or of such a kind.
    pub(super) fn rounded(value: f64) -> Self {
        Self::number(value, format!("{value:.0}"))
    }

    /// A part of 1, in percent.
    pub(super) fn percent(part: f64) -> Self {
        Self::number(part, format!("{:.1}", part * 100.0))
    }

    /// The same, if it is known.
    pub(super) fn percent_or(part: Option<f64>) -> Self {
        part.map_or_else(Self::nothing, Self::percent)
    }

    /// How often a second; nothing where no time has passed.
    pub(super) fn rate(count: f64, seconds: f64) -> Self {
        if seconds > 0.0 {
            Self::rounded(count / seconds)
        } else {
            Self::nothing()
        }
    }

    /// ns in microseconds.
    pub(super) fn us(ns: Option<u64>) -> Self {
        ns.map_or_else(Self::nothing, |ns| Self::number(ns as f64, format!("{:.1}", ns as f64 / 1e3)))
    }

    /// The number of a thread, a process, a CPU.
    pub(super) fn id(id: Option<u32>) -> Self {
        id.map_or_else(Self::nothing, |id| Self::count(id.into()))
    }

    /// As it is shown, whole.
    pub(super) fn shown(&self) -> &str {
        &self.text
    }

    /// What is not known.
    pub(super) fn nothing() -> Self {
        Self { text: "-".to_owned(), value: Value::Nothing }
    }
}

/// How a row is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Mark {
    #[default]
    Plain,
    /// Something that is worth a look: loss, false sharing.
    Warning,
}

/// A row.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    /// What it is about, by which it is found again in the next table.
    pub(super) key: String,
    pub(super) cells: Vec<Cell>,
    pub(super) mark: Mark,
}

impl Row {
    pub(super) fn new(key: impl Into<String>, cells: Vec<Cell>) -> Self {
        Self { key: key.into(), cells, mark: Mark::Plain }
    }

    pub(super) fn marked(self, is_marked: bool) -> Self {
        Self { mark: if is_marked { Mark::Warning } else { Mark::Plain }, ..self }
    }
}

/// The head of a column. In `columns::fitted`, text stands to the left in columns whose head has a blank.
pub(super) type Head = (&'static str, Column);

/// A table.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Table {
    /// What of it is missing, for the line above it.
    pub(super) note: Option<String>,
    pub(super) heads: Vec<Head>,
    pub(super) rows: Vec<Row>,
    /// The column that it is sorted by where the user says nothing; `None` leaves the order as it is.
    pub(super) sorted: Option<usize>,
    /// Why it is empty.
    pub(super) empty: String,
    /// Its last column has sentences, which are cut where the line ends.
    pub(super) has_sentences: bool,
}

/// How it is sorted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sort {
    /// The head of the column; `None` for that of the table.
    pub(super) head: Option<&'static str>,
    pub(super) is_reversed: bool,
}

impl Table {
    /// The column that it is sorted by.
    pub(super) fn column(&self, sort: Sort) -> Option<usize> {
        let wanted = sort.head.and_then(|wanted| self.heads.iter().position(|(head, _)| *head == wanted));
        wanted.or(self.sorted)
    }

    /// Sorts the rows; equal ones keep their order.
    pub(super) fn sort(&mut self, sort: Sort) {
        if let Some(column) = self.column(sort) {
            self.rows.sort_by(|a, b| compare(a.cells.get(column), b.cells.get(column), sort.is_reversed));
        } else if sort.is_reversed {
            self.rows.reverse();
        }
    }

    /// Leaves out a column without any known value. A table without rows has all columns.
    pub(super) fn drop_unknown(&mut self, head: &str) {
        let Some(at) = self.heads.iter().position(|(it, _)| *it == head) else { return };
        let is_unknown = |row: &Row| row.cells.get(at).is_none_or(|cell| cell.value == Value::Nothing);
        if self.rows.is_empty() || !self.rows.iter().all(is_unknown) {
            return;
        }
        self.heads.remove(at);
        for row in self.rows.iter_mut().filter(|row| at < row.cells.len()) {
            row.cells.remove(at);
        }
        self.sorted = self.sorted.filter(|&sorted| sorted != at).map(|sorted| sorted - usize::from(sorted > at));
    }

    /// Keeps the rows in which a cell contains a text. Capital letters count only if it has some.
    pub(super) fn filter(&mut self, wanted: &str) {
        if wanted.is_empty() {
            return;
        }
        let is_exact = wanted.contains(char::is_uppercase);
        let has =
            |cell: &Cell| if is_exact { cell.text.contains(wanted) } else { cell.text.to_lowercase().contains(wanted) };
        self.rows.retain(|row| row.cells.iter().any(has));
    }

    /// Its lines: the head and one for each row of these, in this width. Columns are as wide as if all rows were there, so that they
    /// stay where they are while the user scrolls.
    pub(super) fn lines(&self, width: Option<usize>, shown: Range<usize>) -> Vec<String> {
        let head: Vec<String> = self.heads.iter().map(|(name, _)| (*name).to_owned()).collect();
        let cells = |row: &Row| row.cells.iter().map(|cell| cell.text.clone()).collect();
        let rows = self.rows.get(shown).unwrap_or_default().iter().map(cells);
        let rows: Vec<Vec<String>> = [head, self.widest()].into_iter().chain(rows).collect();
        let text = if self.has_sentences {
            aligned(&rows)
        } else {
            let columns: Vec<Column> = self.heads.iter().map(|(_, column)| *column).collect();
            fitted(&rows, &columns, width)
        };
        let cut = |line: &str| width.map_or_else(|| line.to_owned(), |width| line.chars().take(width).collect());
        text.lines().enumerate().filter(|(at, _)| *at != 1).map(|(_, line)| cut(line)).collect()
    }

    /// The longest text of each column.
    fn widest(&self) -> Vec<String> {
        let widest = |column: usize| {
            let texts = self.rows.iter().filter_map(|row| row.cells.get(column)).map(|cell| cell.text.as_str());
            texts.max_by_key(|text| text.chars().count()).unwrap_or_default().to_owned()
        };
        (0..self.heads.len()).map(widest).collect()
    }
}

/// Numbers descend and text ascends; what is missing is last, however it is sorted.
fn compare(a: Option<&Cell>, b: Option<&Cell>, is_reversed: bool) -> Ordering {
    let turned = |order: Ordering| if is_reversed { order.reverse() } else { order };
    let (Some(a), Some(b)) = (a, b) else { return Ordering::Equal };
    match (&a.value, &b.value) {
        (Value::Nothing, Value::Nothing) => Ordering::Equal,
        (Value::Nothing, _) => Ordering::Greater,
        (_, Value::Nothing) => Ordering::Less,
        (Value::Number(a), Value::Number(b)) => turned(b.total_cmp(a)),
        (Value::Text, Value::Text) => turned(a.text.cmp(&b.text)),
        (Value::Number(_), Value::Text) => turned(Ordering::Less),
        (Value::Text, Value::Number(_)) => turned(Ordering::Greater),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let row = |name: &str, number: Option<f64>| {
            Row::new(name, vec![Cell::text(name), number.map_or_else(Cell::nothing, Cell::percent)])
        };
        Table {
            heads: vec![("NAME", Column::name(0)), ("PART%", Column::number(1))],
            rows: vec![row("b", None), row("Ac", Some(0.5)), row("a\x1b[2J", Some(0.75))],
            sorted: Some(1),
            ..Table::default()
        }
    }

    fn keys(table: &Table) -> String {
        table.rows.iter().map(|row| row.key.get(..1).unwrap()).collect()
    }

    #[test]
    fn numbers_descend_names_ascend_and_what_is_missing_is_last() {
        let by = |head, is_reversed| {
            let mut table = table();
            table.sort(Sort { head, is_reversed });
            keys(&table)
        };
        assert_eq!((by(None, false), by(None, true)), ("aAb".into(), "Aab".into()));
        assert_eq!((by(Some("NAME"), false), by(Some("NAME"), true)), ("Aab".into(), "baA".into()));
        assert_eq!(by(Some("OTHER"), false), "aAb", "a column of another table");
    }

    #[test]
    fn a_column_of_which_nothing_is_known_goes() {
        let mut table = table();
        table.drop_unknown("PART%");
        assert_eq!((table.heads.len(), table.sorted), (2, Some(1)), "something is known");
        table.rows.truncate(1);
        table.heads.insert(0, ("FIRST", Column::name(0)));
        table.rows[0].cells.insert(0, Cell::text(""));
        table.sorted = Some(1);
        table.drop_unknown("FIRST");
        assert_eq!((table.heads[0].0, table.sorted, table.rows[0].cells.len()), ("NAME", Some(0), 2));
        table.drop_unknown("NAME");
        assert_eq!(table.heads.len(), 2);
    }

    #[test]
    fn a_filter_is_about_any_cell() {
        let with = |wanted: &str| {
            let mut table = table();
            table.filter(wanted);
            keys(&table)
        };
        assert_eq!(
            (with(""), with("a"), with("A"), with("75"), with("x1b")),
            ("bAa".into(), "Aa".into(), "A".into(), "a".into(), "a".into())
        );
        assert_eq!(with("none"), "");
    }

    #[test]
    fn what_a_terminal_obeys_is_escaped() {
        let lines = table().lines(None, 0..3);
        assert_eq!(lines, ["NAME      PART%", "b             -", "Ac         50.0", "a\\x1b[2J   75.0"]);
        assert!(table().lines(Some(12), 0..3).iter().all(|line| line.chars().count() <= 12));
    }
    #[test]
    fn columns_stay_where_they_are_while_other_rows_are_shown() {
        let table = table();
        for width in [None, Some(80), Some(12)] {
            let all = table.lines(width, 0..3);
            for (first, last) in [(0, 1), (1, 2), (1, 3), (2, 3), (3, 3)] {
                let shown = table.lines(width, first..last);
                assert_eq!((&shown[0], &shown[1..]), (&all[0], &all[first + 1..=last]), "{first}..{last} of {width:?}");
            }
        }
        assert_eq!(table.lines(None, 7..9).len(), 1);
    }
}
