//! Reads the fields of a protobuf message without copying: <https://protobuf.dev/programming-guides/encoding>.

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// An integer, a bool or an enum. A negative one is its two's complement in 64 bits.
    Varint(u64),
    /// 8 bytes, little endian.
    Fixed64(u64),
    /// A string, a message or a packed array.
    Bytes(&'a [u8]),
    /// 4 bytes, little endian.
    Fixed32(u32),
}

impl<'a> Value<'a> {
    /// As an integer; 0 for bytes.
    #[inline]
    #[must_use]
    pub fn uint(self) -> u64 {
        match self {
            Self::Varint(value) | Self::Fixed64(value) => value,
            Self::Fixed32(value) => u64::from(value),
            Self::Bytes(_) => 0,
        }
    }

    /// The low 32 bits of the integer, in which negative ids of an int32 stay themselves.
    #[inline]
    #[must_use]
    pub fn low(self) -> u32 {
        self.uint() as u32
    }

    /// The bytes; none for a number.
    #[inline]
    #[must_use]
    pub fn bytes(self) -> &'a [u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            _ => &[],
        }
    }

    /// As a floating-point number.
    #[must_use]
    pub fn float(self) -> f64 {
        match self {
            Self::Fixed64(bits) => f64::from_bits(bits),
            Self::Fixed32(bits) => f64::from(f32::from_bits(bits)),
            Self::Varint(value) => value as i64 as f64,
            Self::Bytes(_) => 0.0,
        }
    }
}

/// The fields of a message, in their order, up to the first that makes no sense.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    rest: &'a [u8],
    broken: bool,
}

impl<'a> Fields<'a> {
    /// Of the message `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, broken: false }
    }

    /// True if the bytes after the last field are no field.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// The bytes after the last field.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Takes the next field if it is as [`short_bytes`] reads it: quicker than [`Iterator::next`].
    #[inline]
    pub(super) fn short_bytes(&mut self, number: u8) -> Option<&'a [u8]> {
        let (bytes, rest) = short_bytes(self.rest, number)?;
        self.rest = rest;
        Some(bytes)
    }

    /// Takes all fields; true if the bytes after the last one are no field. Quicker than a loop over [`Iterator::by_ref`], each step
    /// of which is a call.
    #[inline]
    pub(super) fn each(mut self, mut take: impl FnMut(u32, Value<'a>)) -> bool {
        self.by_ref().for_each(|(number, value)| take(number, value));
        self.broken
    }

    /// The next field if it is as most are: its tag, and its length if it has one, have a byte each.
    #[expect(clippy::inline_always, reason = "of each field of each event: as a call it is a fifth of reading a trace")]
    #[inline(always)]
    fn short(&self) -> Option<(u32, Value<'a>, &'a [u8])> {
        let (&tag, rest) = self.rest.split_first()?;
        if !(1 << 3..1 << 7).contains(&tag) {
            return None;
        }
        let number = u32::from(tag >> 3);
        match tag & 7 {
            0 => varint(rest).map(|(value, rest)| (number, Value::Varint(value), rest)),
            2 => short_bytes(self.rest, tag >> 3).map(|(bytes, rest)| (number, Value::Bytes(bytes), rest)),
            _ => None,
        }
    }

    #[inline(never)]
    fn field(&self) -> Option<(u32, Value<'a>, &'a [u8])> {
        let (tag, rest) = varint(self.rest)?;
        // Field numbers have 29 bits.
        let number = u32::try_from(tag >> 3).ok().filter(|number| (1..1 << 29).contains(number))?;
        let (value, rest) = match tag & 7 {
            0 => varint(rest).map(|(value, rest)| (Value::Varint(value), rest))?,
            1 => {
                let (bytes, rest) = rest.split_first_chunk()?;
                (Value::Fixed64(u64::from_le_bytes(*bytes)), rest)
            }
            2 => {
                let (len, rest) = varint(rest)?;
                let (bytes, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
                (Value::Bytes(bytes), rest)
            }
            5 => {
                let (bytes, rest) = rest.split_first_chunk()?;
                (Value::Fixed32(u32::from_le_bytes(*bytes)), rest)
            }
            // Groups (3 and 4): Perfetto has none.
            _ => return None,
        };
        Some((number, value, rest))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u32, Value<'a>);

    #[expect(clippy::inline_always, reason = "of each field of each event: as a call it is a fifth of reading a trace")]
    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() || self.broken {
            return None;
        }
        if let Some((number, value, rest)) = self.short() {
            self.rest = rest;
            return Some((number, value));
        }
        let Some((number, value, rest)) = self.field() else {
            self.broken = true;
            return None;
        };
        self.rest = rest;
        Some((number, value))
    }
}

/// The content of a field of bytes with this number, which is below 16, and the bytes after it; `None` if the next field is another one,
/// its length has more than one byte, or it is cut off.
#[inline]
pub(super) fn short_bytes(all: &[u8], number: u8) -> Option<(&[u8], &[u8])> {
    let ([tag, len], rest) = all.split_first_chunk()?;
    if *tag != number << 3 | 2 || *len >= 0x80 {
        return None;
    }
    rest.split_at_checked(usize::from(*len))
}

/// A varint and the bytes after it; `None` if it does not end, or has more than 64 bits. Quick for one that most often has one byte.
#[inline]
#[must_use]
pub fn varint(all: &[u8]) -> Option<(u64, &[u8])> {
    one_byte(all).or_else(|| varying_varint(all))
}

#[inline]
fn one_byte(all: &[u8]) -> Option<(u64, &[u8])> {
    all.split_first().filter(|(first, _)| **first < 0x80).map(|(first, rest)| (u64::from(*first), rest))
}

/// The same, quick for one whose length differs each time, so that no branch on it can be predicted.
#[inline]
pub(super) fn varying_varint(all: &[u8]) -> Option<(u64, &[u8])> {
    if let Some((bytes, _)) = all.split_first_chunk() {
        let word = u64::from_le_bytes(*bytes);
        // The highest bit of the last byte.
        let ends = !word & 0x8080_8080_8080_8080;
        if ends != 0 {
            let seven = word & (ends ^ ends.wrapping_sub(1)) & 0x7f7f_7f7f_7f7f_7f7f;
            let fourteen = seven & 0x007f_007f_007f_007f | (seven & 0x7f00_7f00_7f00_7f00) >> 1;
            let half = fourteen & 0x0000_3fff_0000_3fff | (fourteen & 0x3fff_0000_3fff_0000) >> 2;
            let value = half & 0x0fff_ffff | (half & 0x0fff_ffff_0000_0000) >> 4;
            return Some((value, all.get(ends.trailing_zeros() as usize / 8 + 1..)?));
        }
    }
    one_byte(all).or_else(|| long_varint(all))
}

/// The same for one of more than 8 bytes, or near the end of the bytes.
fn long_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (at, &byte) in bytes.iter().take(10).enumerate() {
        if at == 9 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            return Some((value, bytes.get(at + 1..)?));
        }
    }
    None
}

/// The values of a packed array of varints, up to the first that makes no sense.
#[derive(Debug, Clone, Default)]
pub struct Packed<'a> {
    rest: &'a [u8],
}

impl<'a> Packed<'a> {
    /// Of the array `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The number of values: each ends with a byte below 128.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rest.iter().filter(|&&byte| byte < 0x80).count()
    }

    /// True if there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

impl Iterator for Packed<'_> {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        let (value, rest) = varint(self.rest)?;
        self.rest = rest;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn put(bytes: &mut Vec<u8>, mut value: u64) {
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
    }

    fn encode(fields: &[(u32, u8, u64, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (number, kind, value, text) in fields {
            let wire = [0, 1, 2, 5][usize::from(kind % 4)];
            put(&mut bytes, u64::from(*number) << 3 | wire);
            match wire {
                0 => put(&mut bytes, *value),
                1 => bytes.extend(value.to_le_bytes()),
                2 => {
                    put(&mut bytes, text.len() as u64);
                    bytes.extend(text);
                }
                _ => bytes.extend((*value as u32).to_le_bytes()),
            }
        }
        bytes
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            fields in prop::collection::vec((1u32..1 << 29, 0u8..4, any::<u64>(), prop::collection::vec(any::<u8>(), 0..40)), 0..20),
        ) {
            let bytes = encode(&fields);
            let mut read = Fields::new(&bytes);
            for (number, kind, value, text) in &fields {
                let expected = match kind % 4 {
                    0 => Value::Varint(*value),
                    1 => Value::Fixed64(*value),
                    2 => Value::Bytes(text),
                    _ => Value::Fixed32(*value as u32),
                };
                prop_assert_eq!(read.next(), Some((*number, expected)));
            }
            prop_assert_eq!(read.next(), None);
            prop_assert!(!read.is_broken());
            // Each beginning of it is read up to its last whole field.
            for end in 0..bytes.len() {
                let mut cut = Fields::new(&bytes[..end]);
                let count = cut.by_ref().count();
                prop_assert!(count <= fields.len());
                prop_assert_eq!(cut.is_broken(), encode(&fields[..count]).len() < end);
            }
        }

        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut fields = Fields::new(&bytes);
            prop_assert!(fields.by_ref().count() <= bytes.len() / 2 + 1);
            prop_assert_eq!(fields.is_broken(), !fields.rest().is_empty());
            prop_assert!(Packed::new(&bytes).count() <= Packed::new(&bytes).len());
        }
    }

    proptest! {
        #[test]
        fn a_varint_has_any_length(shift in 0u32..64, value: u64, more in prop::collection::vec(any::<u8>(), 0..12)) {
            let mut bytes = Vec::new();
            put(&mut bytes, value >> shift);
            let len = bytes.len();
            bytes.extend(&more);
            for read in [varint, varying_varint] {
                prop_assert_eq!(read(&bytes), Some((value >> shift, &more[..])));
                prop_assert_eq!(read(&bytes[..len - 1]), None);
            }
        }
    }

    #[test]
    fn limits_of_varints_and_groups() {
        assert_eq!(varint(&[0xff; 9].iter().copied().chain([1]).collect::<Vec<_>>()), Some((u64::MAX, &[][..])));
        assert_eq!(varint(&[0xff; 10]), None, "65 bits");
        assert_eq!(varint(&[0x80]), None);
        for group in [0x0b, 0x0c] {
            let bytes = [group, 0];
            let mut fields = Fields::new(&bytes);
            assert_eq!(fields.next(), None);
            assert!(fields.is_broken());
        }
        assert_eq!(Value::Varint(-1i64 as u64).low() as i32, -1);
        assert_eq!(Fields::new(&[0, 0]).next(), None, "no field has the number 0");
    }
}
