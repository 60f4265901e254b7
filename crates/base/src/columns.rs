//! Text in columns.

use std::fmt::Write as _;

/// Columns of equal width: the first to the left, the others to the right, but text at the end to the left.
#[must_use]
pub fn aligned<R: AsRef<[String]>>(rows: &[R]) -> String {
    let columns = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.as_ref().get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, &width)) in row.as_ref().iter().zip(&widths).enumerate() {
            let is_text = column == 0
                || rows.first().and_then(|head| head.as_ref().get(column)).is_some_and(|it| it.contains(' '));
            let _ = if column == 0 {
                write!(line, "{cell:width$}")
            } else if is_text {
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
