//! Parses a line of perf.jsonl by our own writer without a JSON parser, six times as fast. All other lines are left to a JSON
//! parser, so the result is the same.

use super::recovered::{method, op};
use crate::sample::{Comm, DataSource, MemoryId, MemoryScope, RawSample, Sample};

/// What a line says beside its sample; names are text without escapes.
pub(super) struct Quick<'a> {
    pub cgroup: Option<&'a [u8]>,
    pub source: &'a [u8],
    /// Bytes of the line, with its end.
    pub used: usize,
}

/// The same byte eight times.
const fn each(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// The powers of ten up to that of eight digits.
const POWERS: [u64; 9] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// The number of digits at the beginning of eight characters (the first is the lowest byte), and their value.
#[inline]
fn decimal(word: u64) -> (u32, u64) {
    let values = word ^ each(b'0');
    // The upper bit of each that is above nine.
    let others = (((values & each(0x7f)) + each(0x80 - 10)) | values) & each(0x80);
    let digits = others.trailing_zeros() / 8;
    // As if there were eight: zeros before them.
    let values = values.checked_shl(64 - 8 * digits).unwrap_or(0);
    let twos = values.wrapping_mul(10).wrapping_add(values >> 8);
    let fours = (twos & 0xff_0000_00ff).wrapping_mul(100 + (1_000_000 << 32));
    let rest = (twos >> 16 & 0xff_0000_00ff).wrapping_mul(1 + (10_000 << 32));
    (digits, fours.wrapping_add(rest) >> 32)
}

/// The same of hex digits in our format.
#[inline]
fn hexadecimal(word: u64) -> (u32, u64) {
    let ascii = word & each(0x7f);
    // The upper bit of each from `low` to `high`.
    let within = |low: u8, high: u8| (ascii + each(0x80 - low)) & !(ascii + each(0x7f - high));
    let others = !((within(b'0', b'9') | within(b'a', b'f')) & !word) & each(0x80);
    let digits = others.trailing_zeros() / 8;
    let values = (word & each(0x0f)) + 9 * (word >> 6 & each(1));
    let values = values.checked_shl(64 - 8 * digits).unwrap_or(0);
    let twos = (values << 4 | values >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = (twos << 8 | twos >> 16) & 0x0000_ffff_0000_ffff;
    (digits, (fours << 16 | fours >> 32) & 0xffff_ffff)
}

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

/// The last characters of a text, less than eight.
#[cold]
fn word_of(rest: &[u8]) -> u64 {
    rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

// Always inlined: each call would wait for the place that the one before it stored.
#[allow(clippy::inline_always)]
impl<'a> Cursor<'a> {
    /// Of a known length, so that it is compared without a call.
    #[inline(always)]
    fn word<const N: usize>(&mut self, text: &[u8; N]) -> Option<()> {
        let (begin, rest) = self.0.split_first_chunk::<N>()?;
        if begin != text {
            return None;
        }
        self.0 = rest;
        Some(())
    }

    #[inline(always)]
    fn number(&mut self) -> Option<u64> {
        let is_zero = self.0.first() == Some(&b'0');
        let (value, digits) = self.digits()?;
        // JSON numbers have no leading zeros.
        (digits == 1 || !is_zero).then_some(value)
    }

    /// A number and its count of digits.
    #[inline(always)]
    fn digits(&mut self) -> Option<(u64, u32)> {
        let (value, digits) = self.digits_by(decimal, |digits| POWERS.get(digits as usize).copied().unwrap_or(1))?;
        // With 20 digits it may have overflowed.
        (1..20).contains(&digits).then_some((value, digits))
    }

    /// A value and its count of digits. `read` gives those at the beginning of eight characters, and `power` is the power of their base.
    #[inline(always)]
    fn digits_by(&mut self, read: impl Fn(u64) -> (u32, u64), power: impl Fn(u32) -> u64) -> Option<(u64, u32)> {
        let (mut digits, mut value) = read(self.next_word());
        self.0 = self.0.get(digits as usize..)?;
        let mut last = digits;
        // No number has more than 20.
        while last == 8 && digits <= 16 {
            let part;
            (last, part) = read(self.next_word());
            self.0 = self.0.get(last as usize..)?;
            value = value.wrapping_mul(power(last)).wrapping_add(part);
            digits += last;
        }
        Some((value, digits))
    }

    /// The next eight characters, the first of them lowest; zeros after the end.
    #[inline(always)]
    fn next_word(&self) -> u64 {
        self.0.first_chunk().map_or_else(|| word_of(self.0), |word| u64::from_le_bytes(*word))
    }

    #[inline(always)]
    fn id(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    #[inline(always)]
    fn hex(&mut self) -> Option<u64> {
        let (value, digits) = self.digits_by(hexadecimal, |digits| 1 << (4 * digits))?;
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
    #[inline(always)]
    fn text(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|&byte| !PLAIN[usize::from(byte)])?;
        let (text, rest) = self.0.split_at_checked(end)?;
        self.0 = rest.strip_prefix(b"\"")?;
        Some(text)
    }
}

/// Reads the fields of the first line of `text` in the order in which the writer writes them; without a result, `sample` may have
/// some of them.
pub(super) fn parse<'a>(text: &'a [u8], sample: &mut Sample) -> Option<Quick<'a>> {
    let mut at = Cursor(text);
    *sample = Sample::default();
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
    sample.raw.access = op(at.text()?);
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
        sample.raw.method = method(at.text()?);
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
    // Another program may have changed how lines end.
    let _ = at.word(b"\r");
    at.word(b"\n")?;
    Some(Quick { cgroup, source, used: text.len() - at.0.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        /// Numbers of any length, whatever is after them, are those of the parsers of std.
        #[test]
        fn digits_are_those_of_std(value in 0u64.., bits in 0u32..64, after in proptest::collection::vec(0u8.., 0..10)) {
            let value = value >> bits;
            for (text, radix) in [(value.to_string(), 10), (format!("{value:x}"), 16)] {
                let all = [text.as_bytes(), &after].concat();
                let mut at = Cursor(&all);
                let is_digit = |byte: &&u8| byte.is_ascii_digit() || radix == 16 && (b'a'..=b'f').contains(*byte);
                let digits = all.iter().take_while(is_digit).count();
                let expected = u64::from_str_radix(std::str::from_utf8(&all[..digits]).unwrap(), radix);
                let found = if radix == 16 { at.hex() } else { at.number() };
                if digits < if radix == 16 { 17 } else { 20 } && (value > 0 || digits == 1) {
                    proptest::prop_assert_eq!(found, expected.ok());
                    proptest::prop_assert_eq!(at.0, &all[digits..]);
                } else if radix == 10 || digits > 16 {
                    proptest::prop_assert_eq!(found, None);
                }
            }
        }
    }
}
