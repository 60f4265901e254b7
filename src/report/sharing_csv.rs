//! The sharing between subcells as CSV.

use std::fmt::Write as _;

use super::model::Report;

/// The sharing between subcells as CSV (RFC 4180), a pair a line: `a,b,misses`.
#[must_use]
pub fn sharing_csv(report: &Report) -> String {
    let mut text = "a,b,misses\r\n".to_owned();
    // A sum of nothing is -0, which would be printed so.
    for shared in &report.sharing {
        let _ = write!(text, "{},{},{}\r\n", quoted(&shared.a), quoted(&shared.b), shared.misses + 0.0);
    }
    text
}

/// A field, in quotes where it has to be.
fn quoted(field: &str) -> String {
    if field.contains(['"', ',', '\r', '\n']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::prometheus::tests::nasty;

    #[test]
    fn csv_is_quoted_where_it_has_to_be() {
        let report = nasty();
        let text = sharing_csv(&report);
        let mut lines = text.split("\r\n");
        assert_eq!(lines.next(), Some("a,b,misses"));
        let expected = format!("\"a \"\"cell\"\",/x\",{},60", report.sharing[0].b);
        assert_eq!(lines.next(), Some(&*expected));
        assert_eq!(text.matches("\r\n").count(), report.sharing.len() + 1);
    }
}
