//! The headers of the pages of a file in Parquet, before anything makes room for what they claim.
//!
//! The reader of the crate `parquet` allocates as much as a page's header says that the page has when it is not compressed, up to
//! 2 GiB for a file of some bytes. Headers are structs of Thrift's compact protocol (parquet.thrift, `PageHeader`).

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes of a page that is not compressed; those of our files have about 1 MiB.
const MAX_PAGE: i64 = 64 << 20;
/// Values of a page.
const MAX_VALUES: i64 = 1 << 22;
/// Bytes of a header: it has the least and the largest value of its page.
const MAX_HEADER: usize = 1 << 16;
/// Most headers are as short as this.
const USUAL_HEADER: usize = 512;
/// Structs within structs.
const MAX_DEPTH: usize = 8;
/// The type that ends a struct.
const STOP: u8 = 0;

/// What a page's header says.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Header {
    uncompressed: i64,
    compressed: i64,
    values: i64,
}

/// True if all pages from `begin` on, in so many bytes, claim a bounded size.
pub(super) fn are_bounded(file: &File, begin: u64, bytes: u64) -> bool {
    let Some(end) = begin.checked_add(bytes) else { return false };
    let mut at = begin;
    while at < end {
        let Some((header, len)) = read(file, at, end) else { return false };
        let Header { uncompressed, compressed, values } = header;
        let is_bounded = (0..=MAX_PAGE).contains(&uncompressed) && (0..=MAX_VALUES).contains(&values);
        let Ok(compressed) = u64::try_from(compressed) else { return false };
        let next = at.checked_add(len as u64).and_then(|at| at.checked_add(compressed));
        match next {
            Some(next) if is_bounded && next <= end => at = next,
            _ => return false,
        }
    }
    true
}

/// The header at a place, and its bytes.
fn read(file: &File, at: u64, end: u64) -> Option<(Header, usize)> {
    [USUAL_HEADER, MAX_HEADER].into_iter().find_map(|most| {
        let mut bytes = vec![0; most.min(usize::try_from(end - at).ok()?)];
        file.read_exact_at(&mut bytes, at).ok()?;
        let mut thrift = Thrift { bytes: &bytes, at: 0 };
        let header = thrift.header()?;
        Some((header, thrift.at))
    })
}

/// Reads Thrift's compact protocol.
struct Thrift<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Thrift<'_> {
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

    /// The number and the type of a struct's next field; the type is [`STOP`] at its end.
    fn field(&mut self, last: &mut i64) -> Option<(i64, u8)> {
        let byte = self.byte()?;
        if byte == 0 {
            return Some((0, STOP));
        }
        *last = if byte >> 4 > 0 { last.checked_add(i64::from(byte >> 4))? } else { self.number()? };
        Some((*last, byte & 0xf))
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
            9 | 10 => {
                let head = self.byte()?;
                let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                // Each element has a byte or more, in a list also a bool.
                (0..count).try_for_each(|_| match head & 0xf {
                    1 | 2 => self.skip_bytes(1),
                    kind => self.skip(kind, depth.checked_sub(1)?),
                })
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
            // No field of a page's header is a map.
            _ => None,
        }
    }

    fn header(&mut self) -> Option<Header> {
        let mut header = Header::default();
        let mut last = 0;
        loop {
            match self.field(&mut last)? {
                (_, STOP) => return Some(header),
                (2, 5) => header.uncompressed = self.number()?,
                (3, 5) => header.compressed = self.number()?,
                // Of a page with data, a dictionary, and a page of the second version.
                (5 | 7 | 8, 12) => {
                    let mut last = 0;
                    loop {
                        match self.field(&mut last)? {
                            (_, STOP) => break,
                            (1, 5) => header.values = self.number()?,
                            (_, kind) => self.skip(kind, MAX_DEPTH)?,
                        }
                    }
                }
                (_, kind) => self.skip(kind, MAX_DEPTH)?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn varint(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            let byte = (value & 0x7f) as u8;
            value >>= 7;
            bytes.push(if value > 0 { byte | 0x80 } else { byte });
            if value == 0 {
                return bytes;
            }
        }
    }

    /// A page of a dictionary with so many values, which has these sizes and no data.
    fn page(uncompressed: i64, compressed: i64, values: i64) -> Vec<u8> {
        let number = |value: i64| varint(((value << 1) ^ (value >> 63)) as u64);
        let fields = [&[0x15][..], &number(2), &[0x15], &number(uncompressed), &[0x15], &number(compressed)].concat();
        [&fields[..], &[0x4c, 0x15], &number(values), &[0x15, 0, 0x11, 0, 0]].concat()
    }

    fn is_bounded(bytes: &[u8]) -> bool {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        are_bounded(&file, 0, bytes.len() as u64)
    }

    #[test]
    fn what_a_page_claims_is_bounded() {
        let with_data = |uncompressed, values| [page(uncompressed, 3, values), vec![1, 2, 3]].concat();
        assert!(is_bounded(&with_data(10, 2)) && is_bounded(&[with_data(10, 2), with_data(1 << 20, 9)].concat()));
        assert!(!is_bounded(&with_data(i64::from(i32::MAX), 2)));
        assert!(!is_bounded(&with_data(10, i64::from(i32::MAX))) && !is_bounded(&with_data(-1, 2)));
        // It ends beyond its chunk.
        assert!(!is_bounded(&page(10, 3, 2)) && !is_bounded(&[0x15]) && is_bounded(&[]));
    }

    #[test]
    fn structs_within_structs_end() {
        assert!(!is_bounded(&vec![0x1c; 5000]));
        assert!(!is_bounded(&[0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x0f]));
    }
}
