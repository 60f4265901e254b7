//! Writes the fields of a protobuf message.

/// A message.
#[derive(Debug, Clone, Default)]
pub struct Message(Vec<u8>);

fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

impl Message {
    /// A message without fields.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A varint; negative numbers are those of two's complement, as int32 and int64 are written.
    #[must_use]
    pub fn int(mut self, field: u32, value: u64) -> Self {
        varint(&mut self.0, u64::from(field) << 3);
        varint(&mut self.0, value);
        self
    }

    /// A double.
    #[must_use]
    pub fn double(mut self, field: u32, value: f64) -> Self {
        varint(&mut self.0, u64::from(field) << 3 | 1);
        self.0.extend_from_slice(&value.to_bits().to_le_bytes());
        self
    }

    /// A number of 64 bits that is written in full.
    #[must_use]
    pub fn fixed(mut self, field: u32, value: u64) -> Self {
        varint(&mut self.0, u64::from(field) << 3 | 1);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Bytes.
    #[must_use]
    pub fn bytes(mut self, field: u32, value: &[u8]) -> Self {
        varint(&mut self.0, u64::from(field) << 3 | 2);
        varint(&mut self.0, value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    /// A text; bytes that are no UTF-8, which names of threads may have, are replaced.
    #[must_use]
    pub fn text(self, field: u32, value: &[u8]) -> Self {
        self.bytes(field, String::from_utf8_lossy(value).as_bytes())
    }

    /// A message within this one.
    #[must_use]
    pub fn message(self, field: u32, value: &Self) -> Self {
        self.bytes(field, &value.0)
    }

    /// The message as it is written.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::{Fields, Value};

    proptest! {
        #[test]
        fn what_is_written_is_read(
            fields in prop::collection::vec((1..1u32 << 20, any::<u64>(), prop::collection::vec(any::<u8>(), 0..40)), 0..20)
        ) {
            let written = fields.iter().fold(Message::new(), |message, (field, number, bytes)| {
                message.int(*field, *number).bytes(*field, bytes)
            });
            let mut read = Fields::new(written.as_bytes());
            for (field, number, bytes) in &fields {
                match read.next() {
                    Some((found, Value::Varint(value))) => prop_assert_eq!((found, value), (*field, *number)),
                    other => prop_assert!(false, "{:?}", other),
                }
                match read.next() {
                    Some((found, Value::Bytes(value))) => prop_assert_eq!((found, value), (*field, &bytes[..])),
                    other => prop_assert!(false, "{:?}", other),
                }
            }
            prop_assert!(read.next().is_none() && !read.is_broken());
        }
    }
}
