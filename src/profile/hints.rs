//! hints.jsonl: the hint of each thread over time, one line of JSON per event, in the order of time.
//!
//! The fields are those that scx_characterize writes: `pid` is the thread and `tgid` its process. It reads no line without a number as
//! `hints`, so a hint that was deleted is 0, as for a thread that never had one, and `deleted` says so.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, BufRead, BufReader, Read, Write};

use serde::{Deserialize, Serialize};

use super::disorder::Disorder;

/// The most bytes of a line; real ones have about 80.
const MAX_LINE: u64 = 4 << 10;
/// The number of hints that are read ahead: within these, they need not be in order.
const AHEAD: usize = 1 << 13;

/// A change of a thread's hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HintRecord {
    /// Thread id.
    pub tid: u32,
    /// Process id.
    pub pid: u32,
    /// The hint; none if it was deleted.
    pub hint: Option<u64>,
    /// CLOCK_MONOTONIC, ns; 0 for a hint that existed at the beginning.
    pub time: u64,
    /// True if it was read from the map at the beginning, and not observed when it was set.
    pub snapshot: bool,
}

/// A line.
#[derive(Serialize, Deserialize)]
struct Line {
    pid: u32,
    #[serde(default)]
    tgid: u32,
    hints: u64,
    timestamp: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    snapshot: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    deleted: bool,
}

/// Writes one record as a line.
///
/// # Errors
/// The errors of the writer.
pub fn write(out: &mut impl Write, record: &HintRecord) -> io::Result<()> {
    let HintRecord { tid, pid, hint, time, snapshot } = *record;
    let (hints, deleted) = (hint.unwrap_or(0), hint.is_none());
    let line = Line { pid: tid, tgid: pid, hints, timestamp: time, snapshot, deleted };
    serde_json::to_writer(&mut *out, &line)?;
    out.write_all(b"\n")
}

/// Reads hints along with the samples.
#[derive(Debug)]
pub struct Hints<R> {
    lines: BufReader<R>,
    /// What was read ahead, by time and by its place in the file.
    ahead: BinaryHeap<Reverse<(u64, u64, Ahead)>>,
    read: u64,
    ended: bool,
    /// Lines that are no valid hint.
    pub unreadable: u64,
    /// Hints that came after later ones of their thread.
    pub disorder: Disorder,
}

/// A hint that waits for its time. Its place in the file has told it apart before it is compared.
#[derive(Debug, PartialEq, Eq)]
struct Ahead(HintRecord);

impl Ord for Ahead {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl PartialOrd for Ahead {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<R: Read> Hints<R> {
    /// Reads from the beginning.
    pub fn new(inner: R) -> Self {
        let (lines, ahead) = (BufReader::with_capacity(1 << 16, inner), BinaryHeap::new());
        Self { lines, ahead, read: 0, ended: false, unreadable: 0, disorder: Disorder::default() }
    }

    /// The next record, if it is not later than `until`; records are in the order of time as far as they are read ahead.
    pub fn next_until(&mut self, until: u64) -> Option<HintRecord> {
        while self.ahead.len() < AHEAD {
            let Some(record) = self.read() else { break };
            self.disorder.observe(record.tid, record.time);
            self.ahead.push(Reverse((record.time, self.read, Ahead(record))));
            self.read += 1;
        }
        if self.ahead.peek()?.0 .0 > until {
            return None;
        }
        self.ahead.pop().map(|Reverse((.., Ahead(record)))| record)
    }

    fn read(&mut self) -> Option<HintRecord> {
        while !self.ended {
            let mut text = Vec::new();
            match Read::by_ref(&mut self.lines).take(MAX_LINE).read_until(b'\n', &mut text) {
                Ok(0) => self.ended = true,
                Ok(_) if text.trim_ascii().is_empty() => {}
                Ok(_) => match serde_json::from_slice(&text) {
                    Ok(Line { pid, tgid, hints, timestamp, snapshot, deleted }) => {
                        let hint = (!deleted).then_some(hints);
                        return Some(HintRecord { tid: pid, pid: tgid, hint, time: timestamp, snapshot });
                    }
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
            {\"pid\":7,\"hints\":4,\"timestamp\":20}\n{\"pid\":7,\"tgid\":5,\"hints\":0,\"timestamp\":30,\"deleted\":true}\n";
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
        let deleted = HintRecord { hint: None, ..record };
        write(&mut out, &deleted).unwrap();
        let text = String::from_utf8(out).unwrap();
        let expected = "{\"pid\":7,\"tgid\":5,\"hints\":1,\"timestamp\":9}\n\
                        {\"pid\":7,\"tgid\":5,\"hints\":0,\"timestamp\":9,\"deleted\":true}\n";
        assert_eq!(text, expected);
        let mut hints = Hints::new(text.as_bytes());
        assert_eq!([hints.next_until(9), hints.next_until(9)], [Some(record), Some(deleted)]);
    }

    #[test]
    fn hints_need_not_be_in_order() {
        let line =
            |tid: u32, time: u64| format!("{{\"pid\":{tid},\"tgid\":1,\"hints\":{time},\"timestamp\":{time}}}\n");
        let text = [(4004, 200), (4004, 100), (5, 150), (4004, 100)].map(|(tid, time)| line(tid, time)).concat();
        let mut hints = Hints::new(text.as_bytes());
        let mut until = |time| std::iter::from_fn(|| hints.next_until(time)).map(|it| it.time).collect::<Vec<_>>();
        assert_eq!((until(99), until(150), until(u64::MAX)), (vec![], vec![100, 100, 150], vec![200]));
        let said = hints.disorder.sentence("hints", "hints.jsonl").unwrap();
        assert!(said.starts_with("1 hints of 1 thread in hints.jsonl are out of order (tids 4004)"), "{said}");
    }
}
