//! Thrift's compact protocol, the part that Parquet uses: checks bytes against the shape that they must have.
//!
//! The crate `parquet` makes room for as many elements as a list claims, and reads a field as the type that it expects, whatever the
//! bytes say. So a check from outside holds only if both read the same: each known field must have its type, and the fields of a
//! struct must ascend.

/// Structs within structs.
const MAX_DEPTH: usize = 8;
/// The type that ends a struct.
const STOP: u8 = 0;

/// What a value is.
pub(super) enum Shape {
    Bool,
    Byte,
    /// The number of bits: 16, 32 or 64.
    Int(u32),
    /// A text or bytes.
    Bytes,
    /// The fields that are known, by their numbers. Others are passed over.
    Struct(&'static [(i16, Shape)]),
    List(List),
    /// What evidence does not have.
    Refused,
}

/// The greatest number of elements of a list, and the bytes that each takes in memory.
pub(super) struct List {
    pub most: u64,
    pub size: u64,
    pub of: &'static Shape,
}

/// Reads from bytes.
pub(super) struct Thrift<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Bytes that the elements of lists may still take.
    room: u64,
}

/// Takes the numbers of a struct: the fields that lead to one, and its value.
type Found<'a> = dyn FnMut(&[i16], i64) + 'a;

impl<'a> Thrift<'a> {
    /// Lists may take so much memory.
    pub(super) fn new(bytes: &'a [u8], room: u64) -> Self {
        Self { bytes, at: 0, room }
    }

    /// Bytes that were read.
    pub(super) fn read(&self) -> usize {
        self.at
    }

    /// Reads a struct with these fields. `None` if it is another one, or larger than it may be.
    pub(super) fn fields(&mut self, known: &[(i16, Shape)], found: &mut Found) -> Option<()> {
        self.fields_of(known, &mut Vec::with_capacity(MAX_DEPTH), found)
    }

    fn fields_of(&mut self, known: &[(i16, Shape)], path: &mut Vec<i16>, found: &mut Found) -> Option<()> {
        if path.len() >= MAX_DEPTH {
            return None;
        }
        let mut last = 0;
        loop {
            let (field, kind) = self.field(&mut last)?;
            if kind == STOP {
                return Some(());
            }
            path.push(field);
            match known.iter().find(|it| it.0 == field) {
                Some((_, shape)) => self.value(shape, kind, path, found)?,
                None => self.skip(kind, MAX_DEPTH)?,
            }
            path.pop();
        }
    }

    fn value(&mut self, shape: &Shape, kind: u8, path: &mut Vec<i16>, found: &mut Found) -> Option<()> {
        match (shape, kind) {
            (Shape::Bool, 1 | 2) => found(path, i64::from(kind == 1)),
            (Shape::Byte, 3) => self.skip_bytes(1)?,
            (Shape::Int(bits @ 16), 4) | (Shape::Int(bits @ 32), 5) | (Shape::Int(bits @ 64), 6) => {
                let value = self.number()?;
                // The crate cuts off what is too much.
                if value >> (bits - 1) != value >> 63 {
                    return None;
                }
                found(path, value);
            }
            (Shape::Bytes, 8) => self.skip(8, 0)?,
            (Shape::Struct(fields), 12) => self.fields_of(fields, path, found)?,
            (Shape::List(list), 9) => {
                let (of, count) = self.list()?;
                self.room = self.room.checked_sub(count.checked_mul(list.size)?)?;
                if count > list.most {
                    return None;
                }
                for _ in 0..count {
                    self.value(list.of, of, path, found)?;
                }
            }
            _ => return None,
        }
        Some(())
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn number(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn skip_bytes(&mut self, count: u64) -> Option<()> {
        self.at = self.at.checked_add(usize::try_from(count).ok()?).filter(|at| *at <= self.bytes.len())?;
        Some(())
    }

    /// The number and the type of a struct's next field, which is above the last one; the type is [`STOP`] at its end.
    fn field(&mut self, last: &mut i64) -> Option<(i16, u8)> {
        let byte = self.byte()?;
        if byte & 0xf == STOP {
            // With a number, it would be another end to some readers.
            return (byte == 0).then_some((0, STOP));
        }
        let next = if byte >> 4 > 0 { *last + i64::from(byte >> 4) } else { self.number()? };
        if next <= *last {
            return None;
        }
        *last = next;
        Some((i16::try_from(next).ok()?, byte & 0xf))
    }

    /// The type and the number of a list's elements, which have a byte or more each.
    fn list(&mut self) -> Option<(u8, u64)> {
        let head = self.byte()?;
        let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        let left = self.bytes.len().saturating_sub(self.at) as u64;
        (count <= left).then_some((head & 0xf, count))
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        match kind {
            1 | 2 => Some(()),
            3 => self.skip_bytes(1),
            4..=6 => self.varint().map(drop),
            7 => self.skip_bytes(8),
            8 => {
                let len = self.varint()?;
                self.skip_bytes(len)
            }
            9 => {
                let depth = depth.checked_sub(1)?;
                let (of, count) = self.list()?;
                // Readers do not agree on how many bytes a bool takes in a list.
                (0..count).try_for_each(|_| if matches!(of, 1 | 2) { None } else { self.skip(of, depth) })
            }
            12 => {
                let depth = depth.checked_sub(1)?;
                let mut last = 0;
                loop {
                    match self.field(&mut last)?.1 {
                        STOP => return Some(()),
                        kind => self.skip(kind, depth)?,
                    }
                }
            }
            // Parquet has no sets and no maps.
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INNER: Shape = Shape::Int(32);
    const KNOWN: &[(i16, Shape)] = &[
        (1, Shape::Int(32)),
        (2, Shape::List(List { most: 4, size: 100, of: &INNER })),
        (3, Shape::Refused),
        (4, Shape::List(List { most: 1, size: 1, of: &INNER })),
    ];

    fn read(bytes: &[u8]) -> Option<Vec<(Vec<i16>, i64)>> {
        let mut found = Vec::new();
        Thrift::new(bytes, 250).fields(KNOWN, &mut |path, value| found.push((path.to_vec(), value)))?;
        Some(found)
    }

    #[test]
    fn what_a_struct_may_have_is_read() {
        assert_eq!(read(&[0x15, 6, 0x19, 0x25, 2, 4, 0]), Some(vec![(vec![1], 3), (vec![2], 1), (vec![2], 2)]));
        assert_eq!(read(&[0x49, 0x15, 2, 0]), Some(vec![(vec![4], 1)]));
        // Fields that are not known, of each type that Parquet has.
        assert_eq!(read(&[0x81, 0x18, 1, 7, 0x19, 0x18, 1, 9, 0x1c, 0x15, 2, 0, 0]), Some(vec![]));
    }

    #[test]
    fn what_the_crate_would_read_otherwise_is_refused() {
        let wrong: [&[u8]; 13] = [
            // Another type; a field twice, and one below the last; a number that does not fit; an end with a number.
            &[0x16, 6, 0],
            &[0x15, 6, 0x05, 2, 6, 0],
            &[0x25, 6, 0x05, 2, 6, 0],
            &[0x15, 0xfe, 0xff, 0xff, 0xff, 0x1f, 0],
            &[0x15, 6, 0x10],
            // Fields that evidence does not have; bools in a list; a map.
            &[0x3c, 0, 0],
            &[0x89, 0xf2, 1, 1, 0],
            &[0x8b, 0, 0],
            // Lists that are longer than their bytes, than they may be, or than the room for them; no end.
            &[0x29, 0xf5, 0xff, 0xff, 0xff, 0xff, 0x7],
            &[0x29, 0x55, 2, 2, 2, 2, 2, 0],
            &[0x49, 0x25, 2, 2, 0],
            &[0x29, 0x35, 2, 2, 2, 0],
            &[0x15, 6],
        ];
        for bytes in wrong {
            assert_eq!(read(bytes), None, "{bytes:x?}");
        }
        assert_eq!(read(&[0x8c; 5000]), None);
        assert_eq!(read(&vec![0x89; 5000]), None);
    }
}
