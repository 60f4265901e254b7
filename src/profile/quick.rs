//! Parses a line of perf.jsonl by our own writer without a JSON parser, six times as fast. All other lines are left to a JSON
//! parser, so the result is the same.

use super::recovered::{method, op};
use crate::sample::{Comm, DataSource, MemoryId, MemoryScope, RawSample, Sample};

/// The fields of a line; names are text without escapes.
pub(super) struct Quick<'a> {
    pub sample: Sample,
    pub cgroup: Option<&'a [u8]>,
    pub source: &'a [u8],
}

/// The value of each byte as a hex digit in our format; 0xff if it is not a hex digit.
const NIBBLES: [u8; 256] = {
    let mut table = [0xff; 256];
    let digits = b"0123456789abcdef";
    let mut value = 0;
    while value < digits.len() {
        table[digits[value] as usize] = value as u8;
        value += 1;
    }
    table
};

/// Bytes that need no escape within a JSON string, except those of UTF-8.
const PLAIN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0x20;
    while byte < 0x7f {
        table[byte] = byte != b'"' as usize && byte != b'\\' as usize;
        byte += 1;
    }
    table
};

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    /// Of a known length, so that it is compared without a call.
    #[inline]
    fn word<const N: usize>(&mut self, text: &[u8; N]) -> Option<()> {
        let (begin, rest) = self.0.split_first_chunk::<N>()?;
        if begin != text {
            return None;
        }
        self.0 = rest;
        Some(())
    }

    #[inline]
    fn number(&mut self) -> Option<u64> {
        let is_zero = self.0.first() == Some(&b'0');
        let (value, digits) = self.digits()?;
        // JSON numbers have no leading zeros.
        (digits == 1 || !is_zero).then_some(value)
    }

    /// A number and its count of digits.
    #[inline]
    fn digits(&mut self) -> Option<(u64, usize)> {
        let mut value = 0u64;
        let mut digits = 0;
        for byte in self.0 {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                break;
            }
            value = value.wrapping_mul(10).wrapping_add(digit.into());
            digits += 1;
        }
        self.0 = self.0.get(digits..)?;
        // With 20 digits it may have overflowed.
        (1..20).contains(&digits).then_some((value, digits))
    }

    #[inline]
    fn id(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    #[inline]
    fn hex(&mut self) -> Option<u64> {
        let mut value = 0u64;
        let mut digits = 0;
        for &byte in self.0 {
            let nibble = NIBBLES[usize::from(byte)];
            if nibble > 15 {
                break;
            }
            value = value << 4 | u64::from(nibble);
            digits += 1;
        }
        self.0 = self.0.get(digits..)?;
        (1..17).contains(&digits).then_some(value)
    }

    /// As [`Cursor::text`], for a text that may be long.
    #[inline]
    fn long_text(&mut self) -> Option<&'a [u8]> {
        let (text, rest) = self.0.split_at_checked(memchr::memchr(b'"', self.0)?)?;
        self.0 = rest.strip_prefix(b"\"")?;
        text.iter().fold(true, |plain, &byte| plain & PLAIN[usize::from(byte)]).then_some(text)
    }

    /// The text up to the next quote; none if a byte is escaped or not plain ASCII.
    #[inline]
    fn text(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|&byte| !PLAIN[usize::from(byte)])?;
        let (text, rest) = self.0.split_at_checked(end)?;
        self.0 = rest.strip_prefix(b"\"")?;
        Some(text)
    }
}

/// Reads the fields in the order in which the writer writes them.
pub(super) fn parse(line: &[u8]) -> Option<Quick<'_>> {
    let mut at = Cursor(line);
    let mut sample = Sample::default();
    at.word(b"{\"comm\":\"")?;
    let comm = at.text()?;
    sample.comm = at.word(b",\"unnamed\":true").is_none().then(|| Comm::new(comm));
    at.word(b",\"pid\":")?;
    sample.raw.pid = at.id()?;
    at.word(b",\"tid\":")?;
    sample.raw.tid = at.id()?;
    sample.raw.cpu = match at.word(b",\"cpu\":") {
        Some(()) => at.id()?,
        None => RawSample::NO_CPU,
    };
    at.word(b",\"time\":\"")?;
    let seconds = at.number()?;
    at.word(b".")?;
    let (ns, 9) = at.digits()? else { return None };
    sample.raw.time = seconds.checked_mul(1_000_000_000)?.checked_add(ns)?;
    at.word(b"\",\"ip\":\"")?;
    sample.raw.ip = at.hex()?;
    at.word(b"\",\"addr\":\"")?;
    sample.raw.addr = at.hex()?;
    at.word(b"\",\"phys_addr\":\"")?;
    sample.raw.phys = at.hex()?;
    at.word(b"\",\"data_page_size\":")?;
    sample.raw.page_size = at.number()?;
    let cgroup = match at.word(b",\"cgroup\":\"") {
        Some(()) => Some(at.long_text()?).filter(|path| *path != b"unknown"),
        None => None,
    };
    at.word(b",\"hint\":")?;
    let hint = at.number()?;
    sample.hint = (at.word(b",\"hinted\":true").is_some() || hint > 0).then_some(hint);
    at.word(b",\"op\":\"")?;
    sample.raw.access = op(std::str::from_utf8(at.text()?).ok()?);
    at.word(b",\"weight\":")?;
    sample.raw.latency = at.id()?;
    at.word(b",\"data_src\":\"")?;
    sample.raw.data_src = DataSource(at.hex()?);
    at.word(b"\",\"period\":")?;
    sample.raw.period = at.number()?;
    at.word(b",\"source\":\"")?;
    let source = at.text()?;
    if at.word(b",\"event\":\"").is_some() {
        at.text()?;
    }
    at.word(b",\"thread\":")?;
    sample.thread = at.id()?;
    at.word(b",\"record\":")?;
    sample.record = at.number()?;
    if at.word(b",\"accesses\":").is_some() {
        sample.raw.share = 1.0 / at.number()?.clamp(1, 1 << 16) as f32;
    }
    if at.word(b",\"size\":").is_some() {
        sample.raw.size = u16::try_from(at.number()?).ok()?;
    }
    if at.word(b",\"method\":\"").is_some() {
        sample.raw.method = method(std::str::from_utf8(at.text()?).ok()?);
    }
    at.word(b",\"memory\":\"")?;
    sample.memory = match at.text()? {
        b"none" => None,
        b"frame" => Some(MemoryId::Frame { phys: sample.raw.phys }),
        b"private" => {
            at.word(b",\"space\":")?;
            Some(MemoryId::Private { space: at.id()?, addr: sample.raw.addr })
        }
        b"shared" => {
            at.word(b",\"dev\":")?;
            let scope = MemoryScope::from_number(at.number()?);
            at.word(b",\"ino\":")?;
            let ino = at.number()?;
            at.word(b",\"offset\":")?;
            Some(MemoryId::Shared { scope, ino, offset: at.number()? })
        }
        _ => return None,
    };
    for name in [b",\"sym\":\"", b",\"dso\":\""] {
        if at.word(name).is_some() {
            at.long_text()?;
        }
    }
    at.word(b"}")?;
    at.0.trim_ascii().is_empty().then_some(Quick { sample, cgroup, source })
}
