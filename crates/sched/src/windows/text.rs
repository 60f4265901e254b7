//! Windows as lines of CSV and JSON, in CPUs in use.

use std::borrow::Cow;
use std::fmt::Write;

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::Window;

/// The first line of CSV, without its end. `columns` are those of [`Windows::columns`](super::Windows::columns).
#[must_use]
pub fn csv_header(columns: &[String]) -> String {
    let mut line = "time_ns,width_ns,cpus".to_owned();
    for name in columns {
        line.push(',');
        line.push_str(&field(name));
    }
    line
}

/// A line of CSV, without its end: time and width in ns, and of each column the CPUs in use.
#[must_use]
pub fn csv_row(window: &Window) -> String {
    let mut line = format!("{},{},{}", window.begin, window.width, window.cpus);
    for &ns in &window.ns {
        // Writing to a String cannot fail.
        let _ = write!(line, ",{:.4}", window.in_use(ns));
    }
    line
}

/// A field of CSV, in quotes if it needs them (RFC 4180).
fn field(text: &str) -> Cow<'_, str> {
    let needs = text.contains(['"', ',', '\r', '\n']) || text.trim() != text;
    if needs {
        Cow::Owned(format!("\"{}\"", text.replace('"', "\"\"")))
    } else {
        Cow::Borrowed(text)
    }
}

/// A window with the names of its columns: a JSON object with the keys and values of the CSV.
#[derive(Debug, Clone, Copy)]
pub struct NamedWindow<'a> {
    /// As [`Windows::columns`](super::Windows::columns) gives them.
    pub columns: &'a [String],
    /// The window.
    pub window: &'a Window,
}

impl Serialize for NamedWindow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(3 + self.window.ns.len()))?;
        map.serialize_entry("time_ns", &self.window.begin)?;
        map.serialize_entry("width_ns", &self.window.width)?;
        map.serialize_entry("cpus", &self.window.cpus)?;
        for (name, &ns) in self.columns.iter().zip(&self.window.ns) {
            map.serialize_entry(name, &((self.window.in_use(ns) * 1e4).round() / 1e4))?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_a_line_of_csv_and_of_json() {
        let columns: Vec<String> = ["a,\"b\"", " c", "idle"].map(String::from).into();
        let window = Window { begin: 5, width: 3000, cpus: 2, ns: vec![1000, 0, 5000] };
        assert_eq!(csv_header(&columns), "time_ns,width_ns,cpus,\"a,\"\"b\"\"\",\" c\",idle");
        assert_eq!(csv_row(&window), "5,3000,2,0.3333,0.0000,1.6667");
        let json = serde_json::to_string(&NamedWindow { columns: &columns, window: &window }).unwrap();
        assert_eq!(json, r#"{"time_ns":5,"width_ns":3000,"cpus":2,"a,\"b\"":0.3333," c":0.0,"idle":1.6667}"#);
    }
}
