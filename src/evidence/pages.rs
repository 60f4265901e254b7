//! The pages of a column of a file in Parquet, before anything makes room for what their headers claim.
//!
//! The reader of the crate `parquet` allocates as much as a page's header says that the page has when it is not compressed, and as
//! many values as a dictionary says that it has: gigabytes for a file of some bytes. Encodings that repeat parts of values make
//! gigabytes of some bytes too. Headers are structs of Thrift's compact protocol (parquet.thrift, `PageHeader`).

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::footer::STATISTICS_FIELDS;
use super::thrift::{Shape, Thrift};

/// Bytes of a header: it has the least and the largest value of its page.
const MAX_HEADER: usize = 1 << 16;
/// Most headers are as short as this.
const USUAL_HEADER: usize = 512;
/// Bytes of a page that are not values.
const BESIDE: u64 = 256;
/// Bytes of a value and of what says which one it is.
const MAX_VALUE: u64 = 4096 + 64;
/// A value of a dictionary in memory, beside its bytes: that of a text refers to them.
const ENTRY: u64 = 32;
/// Pages of values, a dictionary, and pages of values of the second version.
const DATA: i64 = 0;
const DICTIONARY: i64 = 2;
const DATA_2: i64 = 3;
/// Values as they are, and as places in a dictionary; the latter has an older name too.
const PLAIN: i64 = 0;
const PLAIN_DICTIONARY: i64 = 2;
const RLE_DICTIONARY: i64 = 8;

const INT32: Shape = Shape::Int(32);
const STATISTICS: Shape = Shape::Struct(STATISTICS_FIELDS);
const HEADER: &[(i16, Shape)] = &[
    (1, INT32),
    (2, INT32),
    (3, INT32),
    (4, INT32),
    (5, Shape::Struct(&[(1, INT32), (2, INT32), (3, INT32), (4, INT32), (5, STATISTICS)])),
    (6, Shape::Refused),
    (7, Shape::Struct(&[(1, INT32), (2, INT32), (3, Shape::Bool)])),
    (
        8,
        Shape::Struct(&[
            (1, INT32),
            (2, INT32),
            (3, INT32),
            (4, INT32),
            (5, INT32),
            (6, INT32),
            (7, Shape::Bool),
            (8, STATISTICS),
        ]),
    ),
];

/// A column of a row group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunk {
    /// Where it begins.
    pub begin: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Its values, one for each row.
    pub rows: u64,
    /// The least bytes that a value of a dictionary has.
    pub least: u64,
}

/// The contents of a page's header.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Header {
    /// The type; that of the struct for it.
    kind: i64,
    of: Option<i64>,
    uncompressed: u64,
    compressed: u64,
    values: u64,
    encoding: i64,
    /// Bytes of levels, which are not compressed in the second version.
    levels: u64,
}

/// Bytes that reading a column needs at a time. An error says what is wrong with it.
pub(super) fn check(file: &File, chunk: Chunk) -> Result<u64, &'static str> {
    let end = chunk.begin.checked_add(chunk.bytes).ok_or("a column ends nowhere")?;
    let (mut at, mut values, mut dictionary, mut largest) = (chunk.begin, 0u64, None, 0);
    while at < end {
        let (header, len) = read(file, at, end).ok_or("the header of a page is damaged")?;
        let next = at.checked_add(len as u64).and_then(|at| at.checked_add(header.compressed));
        at = next.filter(|next| *next <= end).ok_or("a page is longer than its column")?;
        // One that is not compressed has what it has, whatever it claims.
        let size = header.uncompressed.max(header.compressed);
        if header.of != Some(header.kind) || header.levels > header.uncompressed {
            return Err("the header of a page contradicts itself");
        }
        let in_dictionary = matches!(header.encoding, PLAIN_DICTIONARY | RLE_DICTIONARY);
        if header.encoding != PLAIN && !in_dictionary {
            return Err("it has an encoding that is neither PLAIN nor a dictionary, which scxprof, DuckDB and Spark write unless \
                        told otherwise");
        }
        if header.kind == DICTIONARY {
            if dictionary.is_some() || values > 0 || header.values.saturating_mul(chunk.least) > size {
                return Err("a dictionary claims more values than it has");
            }
            dictionary = Some(size + header.values * ENTRY);
            continue;
        }
        values = values.saturating_add(header.values);
        if header.values == 0 || values > chunk.rows {
            return Err("a page claims more values than there are rows, or has none");
        }
        if in_dictionary && dictionary.is_none() {
            return Err("a page needs a dictionary that is not there");
        }
        if size > header.values.saturating_mul(MAX_VALUE).saturating_add(BESIDE) {
            return Err("a page claims to be larger than any of evidence");
        }
        largest = largest.max(size);
    }
    if values != chunk.rows {
        return Err("a column has no value in some rows");
    }
    // Values of the page before are still in use when the next one is inflated.
    Ok(dictionary.unwrap_or(0).saturating_add(largest.saturating_mul(2)))
}

/// The header at a place, and its bytes.
fn read(file: &File, at: u64, end: u64) -> Option<(Header, usize)> {
    [USUAL_HEADER, MAX_HEADER].into_iter().find_map(|most| {
        let mut bytes = vec![0; most.min(usize::try_from(end - at).ok()?)];
        file.read_exact_at(&mut bytes, at).ok()?;
        header(&bytes)
    })
}

fn header(bytes: &[u8]) -> Option<(Header, usize)> {
    let mut header = Header::default();
    let (mut is_negative, mut structs) = (false, 0);
    let mut thrift = Thrift::new(bytes, 0);
    thrift.fields(HEADER, &mut |path, value| {
        let [field, more @ ..] = path else { return };
        let count = u64::try_from(value);
        let slot = match (field, more) {
            (1, []) => return header.kind = value,
            (2, []) => &mut header.uncompressed,
            (3, []) => &mut header.compressed,
            (5 | 7 | 8, [1]) => {
                structs += 1;
                header.of = Some(match field {
                    5 => DATA,
                    7 => DICTIONARY,
                    _ => DATA_2,
                });
                &mut header.values
            }
            (5 | 7, [2]) | (8, [4]) => return header.encoding = value,
            (8, [2 | 3]) => &mut 0,
            (8, [5 | 6]) => {
                is_negative |= value < 0;
                header.levels = header.levels.saturating_add(count.unwrap_or_default());
                return;
            }
            _ => return,
        };
        is_negative |= value < 0;
        *slot = count.unwrap_or_default();
    })?;
    (!is_negative && structs == 1).then_some((header, thrift.read()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn number(value: i64) -> Vec<u8> {
        let mut value = ((value << 1) ^ (value >> 63)) as u64;
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    /// A page with these bytes, which claims these sizes.
    fn page(kind: i64, sizes: [i64; 2], values: i64, encoding: i64, data: &[u8]) -> Vec<u8> {
        let fields =
            |values: &[i64]| values.iter().flat_map(|it| [vec![0x15], number(*it)].concat()).collect::<Vec<_>>();
        let head = fields(&[kind, sizes[0], sizes[1]]);
        match kind {
            DICTIONARY => [&head[..], &[0x4c], &fields(&[values, encoding]), &[0, 0], data].concat(),
            DATA => [&head[..], &[0x2c], &fields(&[values, encoding, 3, 3]), &[0, 0], data].concat(),
            _ => [&head[..], &[0x5c], &fields(&[values, 0, values, encoding, 0, 0]), &[0, 0], data].concat(),
        }
    }

    fn checked(bytes: &[u8], rows: u64) -> Result<u64, &'static str> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        check(&file, Chunk { begin: 0, bytes: bytes.len() as u64, rows, least: 4 })
    }

    #[test]
    fn what_reading_a_column_needs_is_known_before() {
        let data = |values| page(DATA, [40, 3], values, PLAIN, b"abc");
        assert_eq!(checked(&data(2), 2), Ok(80));
        assert_eq!(checked(&[data(2), page(DATA_2, [90, 0], 3, PLAIN, b"")].concat(), 5), Ok(180));
        let dictionary = page(DICTIONARY, [8, 4], 2, PLAIN, b"abcd");
        let places = page(DATA, [2, 2], 1 << 20, RLE_DICTIONARY, b"ab");
        assert_eq!(checked(&[&dictionary[..], &places].concat(), 1 << 20), Ok(8 + 64 + 4));
        assert_eq!(checked(&[], 0), Ok(0));
    }

    #[test]
    fn what_a_page_claims_is_bounded() {
        let most = i64::from(i32::MAX);
        let data = |values, size| page(DATA, [size, 3], values, PLAIN, b"abc");
        let dictionary = |values| page(DICTIONARY, [8, 4], values, PLAIN, b"abcd");
        let wrong = [
            (data(2, most), 2),
            (data(2, -1), 2),
            (data(most, 40), 2),
            (data(-1, 40), 2),
            (data(0, 40), 0),
            (data(2, 40), 3),
            (dictionary(3), 0),
            (dictionary(most), 0),
            ([dictionary(2), dictionary(2)].concat(), 0),
            ([data(2, 40), dictionary(2)].concat(), 2),
            // A dictionary that is not there, another encoding, an index, and a page beyond its column.
            (page(DATA, [40, 3], 2, RLE_DICTIONARY, b"abc"), 2),
            (page(DATA, [40, 3], 2, 7, b"abc"), 2),
            (page(1, [40, 3], 2, PLAIN, b"abc"), 2),
            (page(DATA, [40, 4], 2, PLAIN, b"abc"), 2),
            (vec![0x15], 0),
            (vec![0x1c; 5000], 0),
            (vec![0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x0f], 0),
        ];
        for (bytes, rows) in wrong {
            assert!(checked(&bytes, rows).is_err(), "{bytes:x?}");
        }
        // A header of one type with the struct of another one.
        let mut other = data(2, 40);
        other[1] = 4;
        assert!(checked(&other, 2).is_err());
    }
}
