//! Writes perf.jsonl.

use std::borrow::Cow;
use std::io::{self, Write};

use crate::profile::meta::to_hex;
use crate::profile::recovered::op_name;
use crate::resolve::Symbol;
use crate::sample::{printable, Access, Comm, MemoryId, RawSample, Sample, Source};
use scxprof_base::escape;

/// Bytes that are written at a time.
const BUFFER: usize = 256 << 10;
/// The text for code without a name, as perf prints it: scx_characterize reads no line without these fields.
pub const UNKNOWN_CODE: &[u8] = b",\"sym\":\"[unknown]\",\"dso\":\"[unknown]\"";
/// Threads with cached text.
const THREADS: usize = 1024;

/// Text that is the same for most lines, and what it says.
#[derive(Debug, Clone)]
struct Cached<K> {
    of: Option<K>,
    text: Vec<u8>,
}

impl<K: PartialEq> Cached<K> {
    const fn new() -> Self {
        Self { of: None, text: Vec::new() }
    }

    /// Adds the text of `key`, which `make` makes, to a line.
    #[inline]
    fn put(&mut self, line: &mut Vec<u8>, key: K, make: impl FnOnce(&mut Vec<u8>)) {
        if self.of.as_ref() != Some(&key) {
            self.text.clear();
            make(&mut self.text);
            self.of = Some(key);
        }
        line.extend_from_slice(&self.text);
    }
}

/// Writes lines.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    /// Lines that are not yet written.
    buffer: Vec<u8>,
    source: Source,
    /// The text of each event in the lines.
    events: Vec<Box<[u8]>>,
    /// The beginning of the lines of threads, at the last bits of their ids.
    threads: Vec<Cached<(Option<Comm>, u32, u32)>>,
    /// The last cgroup and its text; most samples belong to few cgroups.
    cgroup: (Vec<u8>, Vec<u8>),
    /// The hint and the kind of access.
    access: Cached<(Option<u64>, Access)>,
    /// The period and the event.
    period: Cached<(u64, u16)>,
}

impl<W: Write> Writer<W> {
    /// Writes to `out`, which need not be buffered.
    pub fn new(out: W, source: Source) -> Self {
        Self {
            out,
            buffer: Vec::with_capacity(BUFFER + 4096),
            source,
            events: Vec::new(),
            threads: vec![Cached::new(); THREADS],
            cgroup: (Vec::new(), Vec::new()),
            access: Cached::new(),
            period: Cached::new(),
        }
    }

    /// With the names of the events by their number ([`RawSample::event`](crate::sample::RawSample::event)), where they are known.
    #[must_use]
    pub fn with_events<'a>(mut self, names: impl Iterator<Item = Option<&'a str>>) -> Self {
        let text = |name: Option<&str>| {
            let mut text = Vec::new();
            if let Some(name) = name {
                text.extend_from_slice(b",\"event\":");
                string(&mut text, name);
            }
            text.into()
        };
        self.events = names.map(text).collect();
        self.period = Cached::new();
        self
    }

    /// Writes one access; `code` is the [`code_text`] of its instruction, or [`UNKNOWN_CODE`]; without one the line says nothing of it.
    ///
    /// # Errors
    /// The errors of the writer.
    pub fn write(&mut self, sample: &Sample, cgroup: Option<&[u8]>, code: Option<&[u8]>) -> io::Result<()> {
        let raw = &sample.raw;
        let line = &mut self.buffer;
        let (comm, pid, tid) = (sample.comm, raw.pid, raw.tid);
        let put_thread = |text: &mut Vec<u8>| thread(text, comm, pid, tid);
        match self.threads.get_mut(tid as usize % THREADS) {
            Some(cached) => cached.put(line, (comm, pid, tid), put_thread),
            None => put_thread(line),
        }
        if raw.cpu != RawSample::NO_CPU {
            number(line, ",\"cpu\":", raw.cpu.into());
        }
        number(line, ",\"time\":\"", raw.time / 1_000_000_000);
        decimals(line, raw.time % 1_000_000_000);
        hex(line, "\",\"ip\":\"", raw.ip);
        hex(line, "\",\"addr\":\"", raw.addr);
        hex(line, "\",\"phys_addr\":\"", raw.phys);
        number(line, "\",\"data_page_size\":", raw.page_size);
        if cgroup.is_none() {
            line.extend_from_slice(b",\"cgroup\":\"unknown\"");
        }
        if let Some(path) = cgroup {
            if self.cgroup.0 != path || self.cgroup.1.is_empty() {
                self.cgroup.0 = path.to_vec();
                self.cgroup.1.clear();
                name(&mut self.cgroup.1, ",\"cgroup\":", "cgroup_hex", path);
            }
            line.extend_from_slice(&self.cgroup.1);
        }
        self.access.put(line, (sample.hint, raw.access), |line| {
            number(line, ",\"hint\":", sample.hint.unwrap_or(0));
            if sample.hint == Some(0) {
                line.extend_from_slice(b",\"hinted\":true");
            }
            text(line, ",\"op\":\"", op_name(raw.access));
            line.extend_from_slice(b"\",\"weight\":");
        });
        number(line, "", raw.latency.into());
        hex(line, ",\"data_src\":\"", raw.data_src.0);
        let Self { events, source, .. } = self;
        self.period.put(line, (raw.period, raw.event), |line| {
            number(line, "\",\"period\":", raw.period);
            text(line, ",\"source\":\"", source.name());
            line.push(b'"');
            line.extend_from_slice(events.get(usize::from(raw.event)).map_or(&[][..], |event| event));
            line.extend_from_slice(b",\"thread\":");
        });
        number(line, "", sample.thread.into());
        number(line, ",\"record\":", sample.record);
        if raw.share < 1.0 {
            let accesses = (1.0 / f64::from(raw.share)).round();
            if accesses > 1.0 {
                number(line, ",\"accesses\":", accesses as u64);
            }
        }
        if raw.size > 0 {
            number(line, ",\"size\":", raw.size.into());
        }
        if let Some(method) = raw.method {
            text(line, ",\"method\":\"", method.name());
            line.push(b'"');
        }
        match sample.memory {
            None => line.extend_from_slice(b",\"memory\":\"none\""),
            Some(MemoryId::Frame { .. }) => line.extend_from_slice(b",\"memory\":\"frame\""),
            Some(MemoryId::Private { space, .. }) => number(line, ",\"memory\":\"private\",\"space\":", space.into()),
            Some(MemoryId::Shared { scope, ino, offset }) => {
                number(line, ",\"memory\":\"shared\",\"dev\":", scope.number());
                number(line, ",\"ino\":", ino);
                number(line, ",\"offset\":", offset);
            }
        }
        line.extend_from_slice(code.unwrap_or_default());
        line.extend_from_slice(b"}\n");
        if line.len() >= BUFFER {
            self.out.write_all(line)?;
            line.clear();
        }
        Ok(())
    }

    /// Writes the rest and returns the writer.
    ///
    /// # Errors
    /// The errors of the writer.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&self.buffer)?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// The beginning of the lines of a thread.
fn thread(line: &mut Vec<u8>, comm: Option<Comm>, pid: u32, tid: u32) {
    if let Some(comm) = comm {
        name(line, "{\"comm\":", "comm_hex", comm.as_bytes());
    } else {
        // As perf prints it; its readers want a name.
        number(line, "{\"comm\":\":", tid.into());
        line.extend_from_slice(b"\",\"unnamed\":true");
    }
    number(line, ",\"pid\":", pid.into());
    number(line, ",\"tid\":", tid.into());
}

/// The part of a line that names its instruction.
#[must_use]
pub fn code_text(symbol: &Symbol) -> Vec<u8> {
    let mut text = b",\"sym\":".to_vec();
    string(&mut text, symbol.function.as_ref().map_or("[unknown]", |(name, _)| name));
    text.extend_from_slice(b",\"dso\":");
    string(&mut text, &printable(&symbol.dso));
    text
}

// The keys are added where their length is known.
#[inline]
fn text(line: &mut Vec<u8>, key: &str, text: &str) {
    line.extend_from_slice(key.as_bytes());
    line.extend_from_slice(text.as_bytes());
}

#[allow(clippy::inline_always)]
#[inline(always)]
fn number(line: &mut Vec<u8>, key: &str, value: u64) {
    line.extend_from_slice(key.as_bytes());
    push_number(line, value);
}

fn push_number(line: &mut Vec<u8>, value: u64) {
    match u32::try_from(value) {
        Ok(value) if value < 100_000_000 => {
            let digits = decimal_digits(value);
            let zeros = (digits.trailing_zeros() / 8).min(7);
            push_some(line, (digits | ASCII_ZEROS) >> (8 * zeros), 8 - zeros as usize);
        }
        _ => line.extend_from_slice(itoa::Buffer::new().format(value).as_bytes()),
    }
}

/// A point and nine digits.
fn decimals(line: &mut Vec<u8>, value: u64) {
    let first = (value / 100_000_000) as u8;
    line.extend_from_slice(&[b'.', b'0' + first % 10]);
    push_some(line, decimal_digits((value % 100_000_000) as u32) | ASCII_ZEROS, 8);
}

#[allow(clippy::inline_always)]
#[inline(always)]
fn hex(line: &mut Vec<u8>, key: &str, value: u64) {
    line.extend_from_slice(key.as_bytes());
    push_hex(line, value);
}

fn push_hex(line: &mut Vec<u8>, value: u64) {
    let zeros = (value | 1).leading_zeros() as usize / 4;
    if let Ok(value) = u32::try_from(value) {
        let digits = u64::from_le_bytes(hex_digits(value));
        push_some(line, digits >> (8 * (zeros - 8)), 16 - zeros);
    } else {
        let upper = u64::from_le_bytes(hex_digits((value >> 32) as u32));
        push_some(line, upper >> (8 * zeros), 8 - zeros);
        line.extend_from_slice(&hex_digits(value as u32));
    }
}

/// Adds up to eight bytes, the first of which is the lowest: a copy of a length that is not known takes a call.
#[inline]
fn push_some(line: &mut Vec<u8>, bytes: u64, count: usize) {
    line.extend_from_slice(&bytes.to_le_bytes());
    line.truncate(line.len() - (8 - count.min(8)));
}

const ASCII_ZEROS: u64 = 0x3030_3030_3030_3030;

/// Computes all eight digits at once, of a number below 100,000,000: one in each byte of a word, the first of them lowest. Pieces
/// of four, two and one digit are divided side by side.
#[inline]
fn decimal_digits(value: u32) -> u64 {
    let fours = u64::from(value / 10_000) | u64::from(value % 10_000) << 32;
    // n * 10486 >> 20 is n / 100 up to 9999, and n * 103 >> 10 is n / 10 up to 99.
    let hundreds = (fours * 10_486) >> 20 & 0x7f_0000_007f;
    let twos = hundreds | (fours - 100 * hundreds) << 16;
    let tens = (twos * 103) >> 10 & 0x0f_000f_000f_000f;
    tens | (twos - 10 * tens) << 8
}

/// Computes all eight hex digits at once: one digit in each byte of a word; those from ten on move up to the letters.
#[inline]
fn hex_digits(value: u32) -> [u8; 8] {
    let mut word = u64::from(value);
    word = (word << 16 | word) & 0x0000_ffff_0000_ffff;
    word = (word << 8 | word) & 0x00ff_00ff_00ff_00ff;
    word = (word << 4 | word) & 0x0f0f_0f0f_0f0f_0f0f;
    let letters = (word + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101;
    (word + 0x3030_3030_3030_3030 + letters * 0x27).to_be_bytes()
}

/// Bytes as a JSON string, and also in hex if they are not UTF-8.
fn name(line: &mut Vec<u8>, key: &str, hex_key: &str, bytes: &[u8]) {
    line.extend_from_slice(key.as_bytes());
    let lossy = String::from_utf8_lossy(bytes);
    string(line, &lossy);
    if matches!(lossy, Cow::Owned(_)) {
        text(line, ",\"", hex_key);
        text(line, "\":\"", &to_hex(bytes));
        line.push(b'"');
    }
}

/// A JSON string.
fn string(line: &mut Vec<u8>, text: &str) {
    // Serializing a string cannot fail.
    let json = serde_json::to_string(text).unwrap_or_default();
    line.extend_from_slice(escape::json(json).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_format() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1 << shift) - 1, 0x0123_4567_89ab_cdef >> shift] {
                let mut line = Vec::new();
                hex(&mut line, "", value);
                decimals(&mut line, value % 1_000_000_000);
                number(&mut line, ",", value);
                let expected = format!("{value:x}.{:09},{value}", value % 1_000_000_000);
                assert_eq!(String::from_utf8(line).unwrap(), expected);
            }
        }
    }

    #[test]
    fn numbers_of_any_count_of_digits_are_those_of_format() {
        // All of four digits, beside each other, and the ends of the others.
        let fours = (0..10_000).flat_map(|four| [four, four * 10_000 + 9_999 - four]);
        let ends = (0..20).flat_map(|power| [10u64.pow(power) - 1, 10u64.pow(power), 10u64.pow(power) + 1]);
        for value in fours.chain(ends).chain([u64::MAX]) {
            let mut line = Vec::new();
            number(&mut line, "", value);
            assert_eq!(String::from_utf8(line).unwrap(), value.to_string());
        }
    }
}
