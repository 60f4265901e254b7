//! perf.jsonl: one access per line, with the fields of scx_characterize and our own; writing and reading.
//!
//! | field | meaning |
//! |---|---|
//! | `comm`, `comm_hex` | the thread's name; its bytes in hex if they are not UTF-8 |
//! | `unnamed` | true if the name is not known, and `comm` is `:` and the thread's id; else left out |
//! | `pid`, `tid`, `cpu` | numbers; `cpu` is left out where a recording does not say it |
//! | `time` | seconds of CLOCK_MONOTONIC as text with nine decimals |
//! | `ip`, `addr`, `phys_addr`, `data_src` | hex as text; `phys_addr` is "0" if unknown |
//! | `data_page_size`, `period`, `weight`, `size` | numbers: bytes, events, cycles, bytes |
//! | `cgroup`, `cgroup_hex` | the path from the hierarchy's root; "unknown" if it is not known |
//! | `hint`, `hinted` | the task hint, 0 if there is none; `hinted` is true if there is one and it is 0, else left out |
//! | `op` | load, store, update or unknown |
//! | `source` | where the address comes from |
//! | `event` | the event's name, as `perf script` prints it; left out where a recording does not say it |
//! | `thread` | which thread: a reused tid is another one |
//! | `record`, `accesses` | which sample, and how many accesses it gave |
//! | `sym`, `dso` | the function and the file of the code; "[unknown]" if they are not known; left out if code was not to be named |
//! | `method` | how the address was recovered |
//! | `memory` | the memory: `shared` with `dev`, `ino`, `offset`; `private` with `space`; `frame`; `none` |

mod blocks;
mod writer;

use std::borrow::Cow;
use std::io::{self, BufRead, Read};

use serde::Deserialize;

use super::meta::from_hex;
use super::quick::{self, Quick};
use super::recovered::{method, op};
use crate::sample::{Comm, DataSource, MemoryId, MemoryScope, RawSample, Sample, Source};

pub use blocks::Blocks;
pub(crate) use blocks::{parse_block, Parsed};
pub use writer::{code_text, Writer, UNKNOWN_CODE};

/// Bytes of a line; a cgroup's path has at most 4 KiB, and each byte may take six as JSON.
const MAX_LINE: usize = 64 << 10;

/// A number that may be written as text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Number(u64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Number;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number that is not negative")
            }
            fn visit_u64<E>(self, value: u64) -> Result<Number, E> {
                Ok(Number(value))
            }
            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Number, E> {
                u64::try_from(value).map(Number).map_err(E::custom)
            }
            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Number, E> {
                if value >= 0.0 && value.fract() == 0.0 && value < 2f64.powi(53) {
                    return Ok(Number(value as u64));
                }
                Err(E::custom("not a whole number"))
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Number, E> {
                text.trim().parse().map(Number).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// A line as it was read; fields that other writers leave out are `None`.
#[derive(Debug, Deserialize)]
struct Fields<'a> {
    #[serde(borrow, default)]
    comm: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    comm_hex: Option<Cow<'a, str>>,
    #[serde(default)]
    unnamed: bool,
    pid: Number,
    tid: Number,
    #[serde(default)]
    cpu: Option<Number>,
    #[serde(borrow)]
    time: Cow<'a, str>,
    #[serde(borrow, default)]
    ip: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    addr: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    phys_addr: Option<Cow<'a, str>>,
    #[serde(default)]
    data_page_size: Option<Number>,
    #[serde(borrow, default)]
    cgroup: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    cgroup_hex: Option<Cow<'a, str>>,
    #[serde(default)]
    hint: Option<Number>,
    #[serde(default)]
    hinted: bool,
    #[serde(borrow, default)]
    op: Option<Cow<'a, str>>,
    #[serde(default)]
    weight: Option<Number>,
    #[serde(borrow, default)]
    data_src: Option<Cow<'a, str>>,
    #[serde(default)]
    period: Option<Number>,
    #[serde(borrow, default)]
    source: Option<Cow<'a, str>>,
    #[serde(default)]
    thread: Option<Number>,
    #[serde(default)]
    record: Option<Number>,
    #[serde(default)]
    accesses: Option<Number>,
    #[serde(default)]
    size: Option<Number>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    memory: Option<Cow<'a, str>>,
    #[serde(default)]
    dev: Option<Number>,
    #[serde(default)]
    ino: Option<Number>,
    #[serde(default)]
    offset: Option<Number>,
    #[serde(default)]
    space: Option<Number>,
}

/// The number of lines that lacked each field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Missing {
    /// No `memory`: it is identified by its physical frame, or by process and address.
    pub memory: u64,
    /// No `op` and no `data_src`: loads and stores are not distinguished.
    pub op: u64,
    /// No `weight`.
    pub weight: u64,
    /// No `cgroup`.
    pub cgroup: u64,
    /// No `thread`: a reused tid counts as the same thread.
    pub thread: u64,
    /// No `data_page_size`.
    pub page_size: u64,
}

impl Missing {
    /// The fields that they lacked, in one sentence; `None` if no line lacked any.
    #[must_use]
    pub fn sentence(&self) -> Option<String> {
        let lacks: Vec<String> = [
            (self.memory, "say no mapping: memory is told apart by its physical frame or, without one, by its process"),
            (self.op, "do not say whether they read or wrote"),
            (self.weight, "have no latency"),
            (self.cgroup, "have no cgroup: they count to the last cell"),
            (self.thread, "do not tell a thread from a later one of the same tid"),
            (self.page_size, "do not say how large their page is"),
        ]
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} lines {what}"))
        .collect();
        (!lacks.is_empty()).then(|| lacks.join("; "))
    }
}

/// One line. [`Reader::cgroup`] has the path of its cgroup. Its `record` is 0 if the line lacks it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct JsonSample {
    /// The access; the reader fills in its `cgroup` and, if the line lacks it, its `thread`.
    pub sample: Sample,
    /// The source of the address.
    pub source: Option<Source>,
    /// The line contains the thread's number.
    pub has_thread: bool,
    /// The line's number, from 1; empty lines have none.
    pub number: u64,
}

/// The counts so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counts {
    /// Lines that are not empty.
    pub lines: u64,
    /// Of these, lines that are no valid sample.
    pub unreadable: u64,
    /// The first of them: its number and the reason.
    pub first_unreadable: Option<(u64, String)>,
    /// The file ends within a line.
    pub cut: bool,
    /// The fields that lines lacked.
    pub missing: Missing,
}

/// Reads lines; counts those that it cannot parse.
#[derive(Debug)]
pub struct Reader<R> {
    inner: R,
    line: Vec<u8>,
    cgroup: Option<Vec<u8>>,
    /// The lines so far.
    pub counts: Counts,
}

impl<R: BufRead> Reader<R> {
    /// Reads from the beginning.
    pub fn new(inner: R) -> Self {
        Self { inner, line: Vec::new(), cgroup: None, counts: Counts::default() }
    }

    /// The cgroup's path of the last line, if the line contains it.
    pub fn cgroup(&self) -> Option<&[u8]> {
        self.cgroup.as_deref()
    }

    /// The next line that is a sample; `None` at the end.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn next_line(&mut self) -> io::Result<Option<JsonSample>> {
        let mut line = JsonSample::default();
        Ok(self.next_into(&mut line)?.then_some(line))
    }

    /// The same in place; false at the end.
    pub(crate) fn next_into(&mut self, into: &mut JsonSample) -> io::Result<bool> {
        loop {
            // Nearly every line lies completely in the buffer, and is parsed there.
            let buffer = self.inner.fill_buf()?;
            if let Some(used) = quick(buffer, into, &mut self.cgroup, &mut self.counts) {
                self.inner.consume(used);
                return Ok(true);
            }
            let mut is_open = false;
            let whole = memchr::memchr(b'\n', buffer).and_then(|end| buffer.get(..=end));
            let parsed = if let Some(line) = whole.filter(|line| line.len() < MAX_LINE) {
                let used = line.len();
                let parsed =
                    (!line.trim_ascii().is_empty()).then(|| parse(line, &mut self.cgroup, &mut self.counts.missing));
                self.inner.consume(used);
                parsed
            } else {
                self.line.clear();
                let read = Read::by_ref(&mut self.inner).take(MAX_LINE as u64).read_until(b'\n', &mut self.line)?;
                if read == 0 {
                    return Ok(false);
                }
                if read == MAX_LINE && !self.line.ends_with(b"\n") {
                    self.skip_line()?;
                    Some(Err(format!("it has more than {MAX_LINE} bytes")))
                } else {
                    let line = self.line.as_slice();
                    if quick(line, into, &mut self.cgroup, &mut self.counts).is_some() {
                        return Ok(true);
                    }
                    is_open = !line.ends_with(b"\n");
                    (!line.trim_ascii().is_empty()).then(|| parse(line, &mut self.cgroup, &mut self.counts.missing))
                }
            };
            let Some(parsed) = parsed else { continue };
            let Counts { lines, unreadable, first_unreadable, cut, .. } = &mut self.counts;
            *lines += 1;
            match parsed {
                Ok(line) => {
                    *into = JsonSample { number: *lines, ..line };
                    return Ok(true);
                }
                Err(reason) => {
                    *unreadable += 1;
                    *cut |= is_open;
                    first_unreadable.get_or_insert((*lines, reason));
                }
            }
        }
    }

    fn skip_line(&mut self) -> io::Result<()> {
        loop {
            let buffer = self.inner.fill_buf()?;
            let Some(&last) = buffer.last() else { return Ok(()) };
            let end = buffer.iter().position(|&byte| byte == b'\n');
            let count = end.map_or(buffer.len(), |end| end + 1);
            let _ = last;
            self.inner.consume(count);
            if end.is_some() {
                return Ok(());
            }
        }
    }
}

/// Reads the first line of `text` if our own writer wrote it, with plain names; returns its bytes.
fn quick(text: &[u8], into: &mut JsonSample, last_cgroup: &mut Option<Vec<u8>>, counts: &mut Counts) -> Option<usize> {
    let found = quick::parse(text, &mut into.sample).filter(|found| found.used < MAX_LINE)?;
    let Quick { cgroup, source, used } = found;
    counts.lines += 1;
    counts.missing.cgroup += u64::from(cgroup.is_none());
    // Nearly always the same as in the previous line.
    if last_cgroup.as_deref() != cgroup {
        *last_cgroup = cgroup.map(<[u8]>::to_vec);
    }
    into.source = Source::ALL.into_iter().find(|known| known.name().as_bytes() == source);
    (into.has_thread, into.number) = (true, counts.lines);
    Some(used)
}

fn parse(bytes: &[u8], cgroup: &mut Option<Vec<u8>>, missing: &mut Missing) -> Result<JsonSample, String> {
    let fields: Fields<'_> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let address = |field: &Option<Cow<'_, str>>, what: &str| match field {
        Some(text) => from_hex_number(text).ok_or_else(|| format!("its {what} is not a hex number")),
        None => Ok(0),
    };
    let bytes_of = |text: &Option<Cow<'_, str>>, hex: &Option<Cow<'_, str>>| match (hex, text) {
        (Some(hex), _) => from_hex(hex).map(Some).ok_or_else(|| "a name's hex is none".to_owned()),
        (None, text) => Ok(text.as_ref().map(|text| text.as_bytes().to_vec())),
    };
    let plain = |number: Option<Number>| number.unwrap_or_default().0;
    let id = |number: Number, what: &str| u32::try_from(number.0).map_err(|_| format!("its {what} is too large"));
    let (pid, tid) = (id(fields.pid, "pid")?, id(fields.tid, "tid")?);
    let (addr, phys) = (address(&fields.addr, "addr")?, address(&fields.phys_addr, "phys_addr")?);
    let data_src = DataSource(address(&fields.data_src, "data_src")?);
    let memory = match fields.memory.as_deref() {
        Some("shared") => {
            let scope = MemoryScope::from_number(plain(fields.dev));
            Some(MemoryId::Shared { scope, ino: plain(fields.ino), offset: plain(fields.offset) })
        }
        Some("private") => Some(MemoryId::Private { space: plain(fields.space) as u32, addr }),
        Some("frame") => Some(MemoryId::Frame { phys }),
        Some("none") => None,
        Some(other) => return Err(format!("its memory \"{other}\" is unknown")),
        None => {
            missing.memory += 1;
            match (addr, phys) {
                (0, 0) => None,
                (_, 0) => Some(MemoryId::Private { space: pid, addr }),
                _ => Some(MemoryId::Frame { phys }),
            }
        }
    };
    let access = match &fields.op {
        Some(name) => op(&**name),
        None => data_src.access(),
    };
    missing.op += u64::from(fields.op.is_none() && fields.data_src.is_none());
    missing.weight += u64::from(fields.weight.is_none());
    let path = bytes_of(&fields.cgroup, &fields.cgroup_hex)?.filter(|path| path != b"unknown");
    missing.cgroup += u64::from(path.is_none());
    missing.thread += u64::from(fields.thread.is_none());
    missing.page_size += u64::from(fields.data_page_size.is_none());
    let accesses = plain(fields.accesses).clamp(1, 1 << 16);
    // perf prints this for a thread that it cannot name.
    let unnamed = fields.unnamed
        || fields.thread.is_none() && fields.comm.as_ref().is_some_and(|comm| **comm == format!(":{tid}"));
    let sample = Sample {
        raw: RawSample {
            time: parse_time(&fields.time).ok_or("its time is none")?,
            pid,
            tid,
            cpu: fields.cpu.map_or(RawSample::NO_CPU, |cpu| cpu.0 as u32),
            access,
            ip: address(&fields.ip, "ip")?,
            addr,
            phys,
            page_size: plain(fields.data_page_size),
            period: fields.period.map_or(1, |period| period.0),
            latency: plain(fields.weight) as u32,
            data_src,
            share: 1.0 / accesses as f32,
            size: plain(fields.size) as u16,
            method: fields.method.as_deref().and_then(method),
            ..RawSample::default()
        },
        record: plain(fields.record),
        thread: plain(fields.thread) as u32,
        comm: bytes_of(&fields.comm, &fields.comm_hex)?.filter(|_| !unnamed).map(|comm| Comm::new(&comm)),
        memory,
        hint: fields.hint.map(|hint| hint.0).filter(|&hint| hint > 0 || fields.hinted),
        ..Sample::default()
    };
    *cgroup = path;
    Ok(JsonSample {
        sample,
        source: fields.source.and_then(|source| source.parse().ok()),
        has_thread: fields.thread.is_some(),
        number: 0,
    })
}

fn from_hex_number(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.strip_prefix("0x").unwrap_or(text);
    if digits.is_empty() {
        return Some(0);
    }
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}

/// Seconds as text with up to nine decimals, in ns.
pub(super) fn parse_time(text: &str) -> Option<u64> {
    let (seconds, decimals) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if seconds.is_empty() || decimals.len() > 9 || !digits(seconds) || !digits(decimals) {
        return None;
    }
    let ns: u64 = if decimals.is_empty() { 0 } else { decimals.parse().ok()? };
    let scale = 10u64.pow(9 - decimals.len() as u32);
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(ns * scale)
}

#[cfg(test)]
mod tests;
