//! perf.jsonl: one access a line. The fields of scx_characterize, and ours beside them; out and in.
//!
//! | field | what |
//! |---|---|
//! | `comm`, `comm_hex` | the thread's name; its bytes in hex where they are no UTF-8. `null` where nobody knew it |
//! | `pid`, `tid`, `cpu` | numbers |
//! | `time` | seconds of CLOCK_MONOTONIC as text with nine decimals |
//! | `ip`, `addr`, `phys_addr`, `data_src` | hex as text; `phys_addr` "0" where it is not known |
//! | `data_page_size`, `period`, `weight`, `size` | numbers: bytes, events, cycles, bytes |
//! | `cgroup`, `cgroup_hex` | the path from the hierarchy's root; left out where it is not known |
//! | `hint`, `hinted` | the task hint, 0 where there is none; `hinted` is true where there is one and it is 0, else left out |
//! | `op` | load, store, update or unknown |
//! | `source` | where the address comes from |
//! | `thread` | which thread: a reused tid is another one |
//! | `record`, `accesses` | which sample, and how many accesses it gave |
//! | `method` | how the address was recovered |
//! | `place` | what memory it is: `shared` with `dev`, `ino`, `offset`; `private` with `space`; `frame`; `none` |

mod writer;

use std::borrow::Cow;
use std::io::{self, BufRead, Read};

use serde::Deserialize;

use super::meta::from_hex;
use super::quick::{self, Quick};
use super::recovered::{method, op};
use crate::sample::{Comm, DataSource, Place, RawSample, Sample, Source};

pub use writer::{code_text, Writer};

/// Bytes of a line; a cgroup's path has 4 KiB at the most, and each may take six bytes as JSON writes it.
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

/// A line as it is read; what other writers leave out is `None`.
#[derive(Debug, Deserialize)]
struct Fields<'a> {
    #[serde(borrow, default)]
    comm: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    comm_hex: Option<Cow<'a, str>>,
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
    place: Option<Cow<'a, str>>,
    #[serde(default)]
    dev: Option<Number>,
    #[serde(default)]
    ino: Option<Number>,
    #[serde(default)]
    offset: Option<Number>,
    #[serde(default)]
    space: Option<Number>,
}

/// What lines lacked, by the number of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Missing {
    /// No `place`: memory is told apart by its physical frame, or by process and address.
    pub place: u64,
    /// No `op` and no `data_src`: nobody knows what was written.
    pub op: u64,
    /// No `weight`.
    pub weight: u64,
    /// No `cgroup`.
    pub cgroup: u64,
    /// No `thread`: a tid that is used again is the same thread.
    pub thread: u64,
    /// No `data_page_size`.
    pub page_size: u64,
}

impl Missing {
    /// One sentence for each.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        [
            (self.place, "say no mapping: memory is told apart by its physical frame or, without one, by its process"),
            (self.op, "do not say whether they read or wrote"),
            (self.weight, "have no latency"),
            (self.cgroup, "have no cgroup: they count to the last cell"),
            (self.thread, "do not tell a thread from a later one of the same tid"),
            (self.page_size, "do not say how large their page is"),
        ]
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} lines {what}"))
        .collect()
    }
}

/// One line. The path of its cgroup is [`Reader::cgroup`].
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The access; its `cgroup` and, where the line does not say it, its `thread` are left to the reader.
    pub sample: Sample,
    /// Where the address comes from.
    pub source: Option<Source>,
    /// The line says which thread it is.
    pub has_thread: bool,
}

/// Reads lines; those that make no sense are counted.
#[derive(Debug)]
pub struct Reader<R> {
    inner: R,
    line: Vec<u8>,
    /// What [`Reader::source`] has read, to be given next.
    next: Option<Line>,
    cgroup: Option<Vec<u8>>,
    /// Lines so far that are not empty.
    pub lines: u64,
    /// Of these, lines that are no sample.
    pub unreadable: u64,
    /// The first of them: its number and why.
    pub first_unreadable: Option<(u64, String)>,
    /// What lines lacked.
    pub missing: Missing,
}

impl<R: BufRead> Reader<R> {
    /// From the beginning.
    pub fn new(inner: R) -> Self {
        Self {
            inner,
            line: Vec::new(),
            next: None,
            cgroup: None,
            lines: 0,
            unreadable: 0,
            first_unreadable: None,
            missing: Missing::default(),
        }
    }

    /// The cgroup's path of the line that was read last, where that says it.
    pub fn cgroup(&self) -> Option<&[u8]> {
        self.cgroup.as_deref()
    }

    /// Where the addresses come from, as the next line says it.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn source(&mut self) -> io::Result<Option<Source>> {
        self.next = self.next_line()?;
        Ok(self.next.as_ref().and_then(|line| line.source))
    }

    /// The next line that is a sample; `None` at the end.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn next_line(&mut self) -> io::Result<Option<Line>> {
        if let Some(line) = self.next.take() {
            return Ok(Some(line));
        }
        loop {
            // Nearly every line lies whole in the buffer, and is read where it lies.
            let buffer = self.inner.fill_buf()?;
            let whole = memchr::memchr(b'\n', buffer).and_then(|end| buffer.get(..=end));
            let parsed = if let Some(line) = whole.filter(|line| line.len() < MAX_LINE) {
                let used = line.len();
                let parsed = (!line.trim_ascii().is_empty()).then(|| take(line, &mut self.cgroup, &mut self.missing));
                self.inner.consume(used);
                parsed
            } else {
                self.line.clear();
                let read = Read::by_ref(&mut self.inner).take(MAX_LINE as u64).read_until(b'\n', &mut self.line)?;
                if read == 0 {
                    return Ok(None);
                }
                if read == MAX_LINE && !self.line.ends_with(b"\n") {
                    self.skip_line()?;
                    Some(Err(format!("it has more than {MAX_LINE} bytes")))
                } else {
                    let line = self.line.as_slice();
                    (!line.trim_ascii().is_empty()).then(|| take(line, &mut self.cgroup, &mut self.missing))
                }
            };
            let Some(parsed) = parsed else { continue };
            self.lines += 1;
            match parsed {
                Ok(mut line) => {
                    if line.sample.record == 0 {
                        line.sample.record = self.lines;
                    }
                    return Ok(Some(line));
                }
                Err(reason) => {
                    self.unreadable += 1;
                    self.first_unreadable.get_or_insert((self.lines, reason));
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

fn take(line: &[u8], cgroup: &mut Option<Vec<u8>>, missing: &mut Missing) -> Result<Line, String> {
    quick(line, cgroup, missing).map_or_else(|| parse(line, cgroup, missing), Ok)
}

/// A line that our own writer wrote, of plain names.
fn quick(bytes: &[u8], last_cgroup: &mut Option<Vec<u8>>, missing: &mut Missing) -> Option<Line> {
    let Quick { sample, cgroup, source } = quick::parse(bytes)?;
    missing.cgroup += u64::from(cgroup.is_none());
    // Nearly always the one of the line before.
    if last_cgroup.as_deref() != cgroup {
        *last_cgroup = cgroup.map(<[u8]>::to_vec);
    }
    let source = Source::ALL.into_iter().find(|known| known.name().as_bytes() == source);
    Some(Line { sample, source, has_thread: true })
}

fn parse(bytes: &[u8], cgroup: &mut Option<Vec<u8>>, missing: &mut Missing) -> Result<Line, String> {
    let fields: Fields<'_> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let address = |field: &Option<Cow<'_, str>>, what: &str| match field {
        Some(text) => from_hex_number(text).ok_or_else(|| format!("its {what} is no hex number")),
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
    let place = match fields.place.as_deref() {
        Some("shared") => {
            Some(Place::Shared { dev: plain(fields.dev), ino: plain(fields.ino), offset: plain(fields.offset) })
        }
        Some("private") => Some(Place::Private { space: plain(fields.space) as u32, addr }),
        Some("frame") => Some(Place::Frame { phys }),
        Some("none") => None,
        Some(other) => return Err(format!("its place \"{other}\" is unknown")),
        None => {
            missing.place += 1;
            match (addr, phys) {
                (0, 0) => None,
                (_, 0) => Some(Place::Private { space: pid, addr }),
                _ => Some(Place::Frame { phys }),
            }
        }
    };
    let access = match &fields.op {
        Some(name) => op(name),
        None => data_src.access(),
    };
    missing.op += u64::from(fields.op.is_none() && fields.data_src.is_none());
    missing.weight += u64::from(fields.weight.is_none());
    missing.cgroup += u64::from(fields.cgroup.is_none());
    missing.thread += u64::from(fields.thread.is_none());
    missing.page_size += u64::from(fields.data_page_size.is_none());
    let accesses = plain(fields.accesses).clamp(1, 1 << 16);
    // What perf prints for a thread that it cannot name.
    let unnamed = fields.thread.is_none() && fields.comm.as_ref().is_some_and(|comm| **comm == format!(":{tid}"));
    let sample = Sample {
        raw: RawSample {
            time: parse_time(&fields.time).ok_or("its time is none")?,
            pid,
            tid,
            cpu: plain(fields.cpu) as u32,
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
        place,
        hint: fields.hint.map(|hint| hint.0).filter(|&hint| hint > 0 || fields.hinted),
        ..Sample::default()
    };
    *cgroup = bytes_of(&fields.cgroup, &fields.cgroup_hex)?;
    Ok(Line {
        sample,
        source: fields.source.and_then(|source| source.parse().ok()),
        has_thread: fields.thread.is_some(),
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
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sample::{Access, Method};

    fn written(sample: &Sample, cgroup: Option<&[u8]>, source: Source) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), source);
        writer.write(sample, cgroup, None).unwrap();
        writer.finish().unwrap()
    }

    fn read(text: &[u8]) -> (Vec<Line>, Reader<&[u8]>) {
        let mut reader = Reader::new(text);
        let mut lines = Vec::new();
        while let Some(line) = reader.next_line().unwrap() {
            lines.push(line);
        }
        (lines, reader)
    }

    #[test]
    fn a_line_has_the_known_fields() {
        let sample = Sample {
            raw: RawSample {
                time: 123_456_789_012,
                pid: 7,
                tid: 8,
                addr: 0x7fff,
                phys: 0xabc,
                page_size: 4096,
                ..RawSample::default()
            },
            comm: Some(Comm::new(b"job 3/4")),
            place: Some(Place::Private { space: 3, addr: 0x7fff }),
            hint: Some(9),
            ..Sample::default()
        };
        let out = written(&sample, Some(b"/a b"), Source::Faults);
        let text = String::from_utf8(out).unwrap();
        let expected = concat!(
            r#"{"comm":"job 3/4","pid":7,"tid":8,"cpu":0,"time":"123.456789012","ip":"0","addr":"7fff","#,
            r#""phys_addr":"abc","data_page_size":4096,"cgroup":"/a b","hint":9,"op":"unknown","weight":0,"#,
            r#""data_src":"0","period":1,"source":"faults","thread":0,"record":0,"place":"private","space":3}"#,
            "\n"
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn our_own_lines_are_read_quickly() {
        let sample = Sample {
            raw: RawSample { time: 5, ..RawSample::default() },
            comm: Some(Comm::new(b"job 3/4")),
            record: 1,
            ..Sample::default()
        };
        let out = written(&sample, Some(b"/a b"), Source::Faults);
        assert!(quick(&out, &mut None, &mut Missing::default()).is_some());
        // What follows the object is for the parser to judge.
        let more = [out.trim_ascii_end(), b"x"].concat();
        assert!(quick(&more, &mut None, &mut Missing::default()).is_none());
        assert!(parse(&more, &mut None, &mut Missing::default()).is_err());
    }

    #[test]
    fn foreign_lines_work_and_what_they_lack_is_counted() {
        let text = br#"{"comm":"web","tid":11,"pid":10,"time":"5.000001","addr":"7f00","cgroup":"/a","ip":"40","sym":"main","dso":"/x (deleted)","phys_addr":"1240","data_page_size":4096,"hint":3}

{"comm":"web","tid":11
{"comm":"db","tid":"12","pid":"12","time":"6","addr":"0x10","phys_addr":""}
"#;
        let (lines, reader) = read(text);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].sample.place, Some(Place::Frame { phys: 0x1240 }));
        assert_eq!((lines[0].sample.time, lines[0].sample.hint, lines[0].has_thread), (5_000_001_000, Some(3), false));
        assert_eq!(lines[1].sample.place, Some(Place::Private { space: 12, addr: 0x10 }));
        assert_eq!((reader.lines, reader.unreadable), (3, 1));
        let Missing { place, op, weight, cgroup, thread, page_size } = reader.missing;
        assert_eq!((place, op, weight, cgroup, thread, page_size), (2, 2, 2, 1, 2, 1));
        assert_eq!(reader.missing.lines().len(), 6);
    }

    proptest! {
        #[test]
        fn lines_survive_the_round_trip(
            comm in proptest::option::of(proptest::collection::vec(1u8.., 0..16)),
            cgroup in proptest::option::of(proptest::collection::vec(any::<u8>(), 1..40)),
            ids in any::<(u32, u32, u32, u32)>(), words in any::<(u64, u64, u64, u64)>(), kind in 0u8..4,
            accesses in 1u8..20, op in 0usize..4, method in 0usize..7, hint in any::<Option<u8>>(), latency in any::<u32>(),
        ) {
            let place = match kind {
                0 => None,
                1 => Some(Place::Frame { phys: words.1 }),
                2 => Some(Place::Private { space: ids.3, addr: words.0 }),
                _ => Some(Place::Shared { dev: words.1, ino: words.2, offset: words.3 }),
            };
            let sample = Sample { raw: RawSample { time: words.2, pid: ids.0, tid: ids.1, cpu: ids.2, addr: words.0, phys: words.1, ip: words.3, latency, data_src: DataSource(words.3), page_size: words.2, period: words.1, share: 1.0 / f32::from(accesses), access: [Access::Unknown, Access::Load, Access::Store, Access::Update][op], method: Method::ALL.get(method).copied(), size: accesses.into(), ..RawSample::default() }, thread: ids.3, record: u64::from(ids.0).max(1), comm: comm.as_deref().map(Comm::new), place, hint: hint.map(|hint| u64::from(hint / 16)), ..Sample::default() };
            let out = written(&sample, cgroup.as_deref(), Source::Timer);
            let (lines, reader) = read(&out);
            prop_assert_eq!(reader.unreadable, 0);
            prop_assert_eq!(reader.missing, Missing { cgroup: u64::from(cgroup.is_none()), ..Missing::default() });
            let expected = Line { sample, source: Some(Source::Timer), has_thread: true };
            prop_assert_eq!(reader.cgroup(), cgroup.as_deref());
            prop_assert_eq!(&lines[..], std::slice::from_ref(&expected));
            // Both ways of reading a line say the same.
            let mut slow = None;
            prop_assert_eq!(&parse(&out, &mut slow, &mut Missing::default()).unwrap(), &expected);
            prop_assert_eq!(slow.as_deref(), cgroup.as_deref());
            if let Some(line) = quick(&out, &mut None, &mut Missing::default()) {
                prop_assert_eq!(&line, &expected);
            }
        }

        #[test]
        fn a_changed_line_is_read_by_both_ways_alike(
            at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in 0usize..4, kind in 0u8..4, words in any::<(u64, u64)>(),
        ) {
            let place = match kind {
                0 => None,
                1 => Some(Place::Frame { phys: words.1 }),
                2 => Some(Place::Private { space: 3, addr: words.0 }),
                _ => Some(Place::Shared { dev: 1, ino: words.1, offset: 5 }),
            };
            let sample = Sample { raw: RawSample { time: words.0, addr: words.0, phys: words.1, size: 8, share: 0.5, method: Some(Method::E), ..RawSample::default() }, comm: Some(Comm::new(b"web")), record: 1, place, hint: Some(0), ..Sample::default() };
            let mut line = written(&sample, Some(b"/a b"), Source::Timer);
            let at = at.index(line.len());
            line[at] = byte;
            line.truncate(line.len() - cut);
            if let Some(quickly) = quick(&line, &mut None, &mut Missing::default()) {
                let text = String::from_utf8_lossy(&line);
                prop_assert_eq!(parse(&line, &mut None, &mut Missing::default()), Ok(quickly), "{}", text);
            }
        }

        #[test]
        fn any_bytes_are_lines_or_counted(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            let (lines, reader) = read(&text);
            prop_assert_eq!(lines.len() as u64 + reader.unreadable, reader.lines);
        }
    }
}
