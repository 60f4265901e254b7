//! Text of many lines that is made fast: what is short is copied as a block of a size that the compiler knows, of which the text has room
//! for all bytes and keeps some.

use std::io;

/// Bytes by which it grows.
const GROWTH: usize = 64 << 10;

/// Text to which lines are added.
#[derive(Debug, Clone, Default)]
pub(crate) struct Text {
    /// The text, and room after it.
    bytes: Vec<u8>,
    len: usize,
}

impl Text {
    /// Its bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// The number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Makes it empty; its memory stays.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds the first `len` bytes of `block`.
    #[inline]
    pub(crate) fn block<const N: usize>(&mut self, block: &[u8; N], len: usize) {
        if let Some(room) = self.bytes.get_mut(self.len..).and_then(|room| room.first_chunk_mut()) {
            *room = *block;
            self.len += len.min(N);
        } else {
            self.bytes(block.get(..len).unwrap_or(block));
        }
    }

    /// Adds a constant.
    #[inline]
    pub(crate) fn put<const N: usize>(&mut self, constant: &[u8; N]) {
        self.block(constant, N);
    }

    /// Adds any bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        if end > self.bytes.len() {
            self.bytes.resize(end + GROWTH, 0);
        }
        if let Some(room) = self.bytes.get_mut(self.len..end) {
            room.copy_from_slice(bytes);
            self.len = end;
        }
    }

    /// Adds a number in decimal.
    #[inline]
    pub(crate) fn number(&mut self, value: u64) {
        if value < 100_000_000 {
            let digits = eight_digits(value as u32);
            let zeros = (digits.trailing_zeros() / 8).min(7);
            self.block(&(digits >> (8 * zeros) | ZEROS).to_le_bytes(), 8 - zeros as usize);
        } else {
            self.bytes(itoa::Buffer::new().format(value).as_bytes());
        }
    }

    /// Adds a point and the nine digits of a number below 1,000,000,000.
    pub(crate) fn decimals(&mut self, value: u32) {
        let mut block = [b'.'; 10];
        block[1] = b'0' + (value / 100_000_000) as u8;
        block[2..].copy_from_slice(&(eight_digits(value % 100_000_000) | ZEROS).to_le_bytes());
        self.put(&block);
    }

    /// Adds a number in hex, without zeros before it.
    #[inline]
    pub(crate) fn hex(&mut self, value: u64) {
        let digits = u128::from(hex_digits((value >> 32) as u32)) << 64 | u128::from(hex_digits(value as u32));
        let zeros = (value | 1).leading_zeros() / 4;
        self.block(&(digits << (8 * zeros)).to_be_bytes(), 16 - zeros as usize);
    }
}

impl io::Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Text that is added to many lines; mostly it is short.
#[derive(Debug, Clone)]
pub(crate) struct Snippet {
    short: [u8; SHORT],
    len: usize,
    /// All of it, if it is not short.
    long: Vec<u8>,
}

/// Bytes of a short one.
const SHORT: usize = 80;

impl Snippet {
    /// Without text.
    pub(crate) const fn new() -> Self {
        Self { short: [0; SHORT], len: 0, long: Vec::new() }
    }

    /// With this text.
    pub(crate) fn of(text: &[u8]) -> Self {
        let mut snippet = Self::new();
        snippet.set(text);
        snippet
    }

    /// Has this text from now on.
    pub(crate) fn set(&mut self, text: &[u8]) {
        self.long.clear();
        if let Some(short) = self.short.get_mut(..text.len()) {
            short.copy_from_slice(text);
        } else {
            self.long.extend_from_slice(text);
        }
        self.len = text.len();
    }

    /// The text.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.short.get(..self.len).unwrap_or(&self.long)
    }

    /// Adds it to a text.
    #[inline]
    pub(crate) fn put(&self, text: &mut Text) {
        if self.len <= SHORT {
            text.block(&self.short, self.len);
        } else {
            text.bytes(&self.long);
        }
    }
}

/// Eight zeros.
const ZEROS: u64 = 0x3030_3030_3030_3030;

/// The decimal digits of a number below 100,000,000, one in each byte, the first one in the lowest: all eight are computed at once.
fn eight_digits(value: u32) -> u64 {
    let value = u64::from(value);
    let fours = (value / 10_000) | (value % 10_000) << 32;
    // 10486 / 2^20 and 103 / 2^10 are a hundredth and a tenth, near enough for numbers of four and of two digits.
    let hundreds = (fours * 10_486) >> 20 & 0x7f_0000_007f;
    let twos = hundreds | (fours - 100 * hundreds) << 16;
    let tens = (twos * 103) >> 10 & 0x000f_000f_000f_000f;
    tens | (twos - 10 * tens) << 8
}

/// The hex digits of a number, one in each byte, the first one in the highest: digits from ten on move up to the letters.
fn hex_digits(value: u32) -> u64 {
    let mut word = u64::from(value);
    word = (word << 16 | word) & 0x0000_ffff_0000_ffff;
    word = (word << 8 | word) & 0x00ff_00ff_00ff_00ff;
    word = (word << 4 | word) & 0x0f0f_0f0f_0f0f_0f0f;
    let letters = (word + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101;
    word + ZEROS + letters * 0x27
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text that `add` makes, between others.
    fn text(add: impl FnOnce(&mut Text)) -> String {
        let mut text = Text::default();
        text.put(b"<");
        add(&mut text);
        text.put(b">");
        String::from_utf8(text.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn digits_are_those_of_format() {
        let around = |value: u64| [value.saturating_sub(1), value, value.saturating_add(1)];
        let tens = (0..20).flat_map(|power| around(10u64.pow(power)));
        let twos = (0..64).flat_map(|shift| around(1 << shift).into_iter().chain([0x0123_4567_89ab_cdef >> shift]));
        for value in tens.chain(twos).chain((0..100_000_000).step_by(9973)).chain([0, u64::MAX]) {
            assert_eq!(text(|text| text.number(value)), format!("<{value}>"));
            assert_eq!(text(|text| text.hex(value)), format!("<{value:x}>"));
            let part = value % 1_000_000_000;
            assert_eq!(text(|text| text.decimals(part as u32)), format!("<.{part:09}>"));
        }
        for value in 0..10_000 {
            assert_eq!(text(|text| text.number(value * 10_001)), format!("<{}>", value * 10_001));
        }
    }

    #[test]
    fn snippets_of_any_length_are_added() {
        let mut snippet = Snippet::new();
        for len in [0, 1, SHORT, SHORT + 1, 5000, 3] {
            let long = "x".repeat(len);
            snippet.set(long.as_bytes());
            assert_eq!(text(|text| snippet.put(text)), format!("<{long}>"));
        }
    }

    #[test]
    fn it_grows_and_is_filled_again() {
        let mut text = Text::default();
        for round in 0..3 {
            for at in 0..20_000 {
                text.number(at * round);
                text.put(b"\n");
            }
            let lines: Vec<u64> =
                std::str::from_utf8(text.as_bytes()).unwrap().lines().map(|line| line.parse().unwrap()).collect();
            assert_eq!(lines, (0..20_000).map(|at| at * round).collect::<Vec<_>>());
            text.clear();
        }
    }
}
