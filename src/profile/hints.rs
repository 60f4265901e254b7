//! hints.jsonl: the hint of each thread over time, one line of JSON per event, in the order of time.
//!
//! The fields are those that scx_characterize writes: `pid` is the thread and `tgid` its process.

use std::io::{self, BufRead, BufReader, Read, Write};

use serde::{Deserialize, Serialize};

/// The most bytes of a line; real ones have about 80.
const MAX_LINE: u64 = 4 << 10;

/// A change of a thread's hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HintRecord {
    /// Thread id.
    #[serde(rename = "pid")]
    pub tid: u32,
    /// Process id.
    #[serde(rename = "tgid", default)]
    pub pid: u32,
    /// The hint; none if it was deleted.
    #[serde(rename = "hints")]
    pub hint: Option<u64>,
    /// CLOCK_MONOTONIC, ns; 0 for a hint that existed at the beginning.
    #[serde(rename = "timestamp")]
    pub time: u64,
    /// True if it was read from the map at the beginning, and not observed when it was set.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub snapshot: bool,
}

/// Writes one record as a line.
///
/// # Errors
/// Those of the writer.
pub fn write(out: &mut impl Write, record: &HintRecord) -> io::Result<()> {
    serde_json::to_writer(&mut *out, record)?;
    out.write_all(b"\n")
}

/// Reads hints along with the samples.
#[derive(Debug)]
pub struct Hints<R> {
    lines: BufReader<R>,
    next: Option<HintRecord>,
    ended: bool,
    /// Lines that are no valid hint.
    pub unreadable: u64,
}

impl<R: Read> Hints<R> {
    /// Reads from the beginning.
    pub fn new(inner: R) -> Self {
        Self { lines: BufReader::with_capacity(1 << 16, inner), next: None, ended: false, unreadable: 0 }
    }

    /// The next record, if it is not later than `until`; records are in the order of time.
    pub fn next_until(&mut self, until: u64) -> Option<HintRecord> {
        if self.next.is_none() {
            self.next = self.read();
        }
        self.next.take_if(|record| record.time <= until)
    }

    fn read(&mut self) -> Option<HintRecord> {
        while !self.ended {
            let mut text = Vec::new();
            match Read::by_ref(&mut self.lines).take(MAX_LINE).read_until(b'\n', &mut text) {
                Ok(0) => self.ended = true,
                Ok(_) if text.trim_ascii().is_empty() => {}
                Ok(_) => match serde_json::from_slice(&text) {
                    Ok(record) => return Some(record),
                    Err(_) => self.unreadable += 1,
                },
                Err(_) => {
                    self.unreadable += 1;
                    self.ended = true;
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_in_their_time_and_what_is_none_is_counted() {
        let text = b"{\"pid\": 7, \"tgid\": 5, \"hints\": 3, \"timestamp\": 10}\n\nno hint\n\
            {\"pid\":7,\"hints\":4,\"timestamp\":20}\n{\"pid\":7,\"tgid\":5,\"hints\":null,\"timestamp\":30}\n";
        let mut hints = Hints::new(&text[..]);
        let mut until =
            |time| std::iter::from_fn(|| hints.next_until(time)).map(|record| record.hint).collect::<Vec<_>>();
        assert_eq!(until(9), []);
        assert_eq!(until(20), [Some(3), Some(4)]);
        assert_eq!(until(u64::MAX), [None]);
        assert_eq!(hints.unreadable, 1);
    }

    #[test]
    fn a_line_is_what_scx_characterize_writes() {
        let record = HintRecord { tid: 7, pid: 5, hint: Some(1), time: 9, snapshot: false };
        let mut out = Vec::new();
        write(&mut out, &record).unwrap();
        assert_eq!(out, b"{\"pid\":7,\"tgid\":5,\"hints\":1,\"timestamp\":9}\n");
    }
}
