//! cgroups.jsonl: the cgroup of each thread over time, where the samples have none: one line of JSON when a thread's cgroup is first
//! read, and for each later change, in the order of time.

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read, Write};

use serde::{Deserialize, Serialize};

use super::meta::{from_hex, to_hex};
use crate::sample::{SideBand, TimedSideBand};

/// Its name in the directory.
pub(crate) const NAME: &str = "cgroups.jsonl";
/// The most bytes of a line: a path has at most 4 KiB, each byte of it at most six.
const MAX_LINE: u64 = 32 << 10;

/// A line.
#[derive(Serialize, Deserialize)]
struct Line<'a> {
    pid: u32,
    tid: u32,
    timestamp: u64,
    id: u64,
    /// The path, or its bytes as hex if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cgroup: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cgroup_hex: Option<String>,
}

/// Writes that a thread (its process and its id) is in a cgroup from `time` on: CLOCK_MONOTONIC, ns.
///
/// # Errors
/// The errors of the writer.
pub(super) fn write(
    out: &mut impl Write,
    time: u64,
    (pid, tid): (u32, u32),
    (id, path): (u64, &[u8]),
) -> io::Result<()> {
    let cgroup = std::str::from_utf8(path).ok().map(Cow::from);
    let cgroup_hex = cgroup.is_none().then(|| to_hex(path));
    serde_json::to_writer(&mut *out, &Line { pid, tid, timestamp: time, id, cgroup, cgroup_hex })?;
    out.write_all(b"\n")
}

/// Reads the cgroups of threads along with the samples.
#[derive(Debug)]
pub struct ThreadCgroups<R> {
    lines: BufReader<R>,
    /// What was read last, until its time has come.
    next: Option<(TimedSideBand, TimedSideBand)>,
    ended: bool,
    /// Lines that make no sense.
    pub unreadable: u64,
}

impl<R: Read> ThreadCgroups<R> {
    /// Reads from the beginning.
    pub(super) fn new(inner: R) -> Self {
        Self { lines: BufReader::with_capacity(1 << 16, inner), next: None, ended: false, unreadable: 0 }
    }

    /// The next line if it is not later than `until`: the path of a cgroup, and a thread that is in it.
    pub(crate) fn next_until(&mut self, until: u64) -> Option<[TimedSideBand; 2]> {
        if self.next.is_none() {
            self.next = self.read();
        }
        self.next.take_if(|(cgroup, _)| cgroup.time <= until).map(|(cgroup, thread)| [cgroup, thread])
    }

    fn read(&mut self) -> Option<(TimedSideBand, TimedSideBand)> {
        while !self.ended {
            let mut text = Vec::new();
            match Read::by_ref(&mut self.lines).take(MAX_LINE).read_until(b'\n', &mut text) {
                Ok(0) => self.ended = true,
                Ok(_) if text.trim_ascii().is_empty() => {}
                Ok(_) => match parse(&text) {
                    Some(found) => return Some(found),
                    None => self.unreadable += 1,
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

fn parse(text: &[u8]) -> Option<(TimedSideBand, TimedSideBand)> {
    let Line { pid, tid, timestamp: time, id, cgroup, cgroup_hex } = serde_json::from_slice(text).ok()?;
    let path = match (cgroup, cgroup_hex) {
        (Some(path), _) => path.into_owned().into_bytes(),
        (None, hex) => from_hex(&hex?)?,
    };
    let timed = |what| TimedSideBand { time, what };
    Some((timed(SideBand::Cgroup { id, path: path.into() }), timed(SideBand::ThreadCgroup { pid, tid, id })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_in_its_time_and_other_lines_are_counted() {
        let mut out = Vec::new();
        write(&mut out, 5, (7, 8), (90, b"/web.slice")).unwrap();
        out.extend_from_slice(b"\nnone\n{\"pid\":7,\"tid\":8,\"timestamp\":6,\"id\":90}\n");
        write(&mut out, 10, (7, 8), (91, b"/\xff")).unwrap();
        let mut cgroups = ThreadCgroups::new(&out[..]);
        let expected = |time, id, path: &[u8]| {
            [SideBand::Cgroup { id, path: path.into() }, SideBand::ThreadCgroup { pid: 7, tid: 8, id }]
                .map(|what| TimedSideBand { time, what })
        };
        assert_eq!(cgroups.next_until(4), None);
        assert_eq!(cgroups.next_until(5), Some(expected(5, 90, b"/web.slice")));
        assert_eq!(cgroups.next_until(9), None);
        assert_eq!(cgroups.next_until(u64::MAX), Some(expected(10, 91, b"/\xff")));
        assert_eq!((cgroups.next_until(u64::MAX), cgroups.unreadable), (None, 2));
    }
}
