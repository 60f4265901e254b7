//! The footer of a file in Parquet, before anything makes room for what it claims (parquet.thrift, `FileMetaData`).

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::thrift::{List, Shape, Thrift};

/// Bytes of the largest footer; with statistics of all columns, that of the largest sum of a fleet has less than 1 MiB.
const MAX_FOOTER: u64 = 16 << 20;
/// Bytes that the crate makes of its lists, as far as their sizes below are right.
const MAX_ROOM: u64 = 64 << 20;
/// The most columns; evidence has 34.
const MAX_COLUMNS: u64 = 1024;
/// Row groups; those of scxprof have 65,536 rows.
const MAX_GROUPS: u64 = 8192;
/// At the end of each file.
const MAGIC: &[u8; 4] = b"PAR1";

const INT16: Shape = Shape::Int(16);
const INT32: Shape = Shape::Int(32);
const INT64: Shape = Shape::Int(64);
const EMPTY: Shape = Shape::Struct(&[]);
const UNIT: Shape = Shape::Struct(&[(1, EMPTY), (2, EMPTY), (3, EMPTY)]);
const TIME: Shape = Shape::Struct(&[(1, Shape::Bool), (2, UNIT)]);

const LOGICAL: Shape = Shape::Struct(&[
    (1, EMPTY),
    (2, EMPTY),
    (3, EMPTY),
    (4, EMPTY),
    (5, Shape::Struct(&[(1, INT32), (2, INT32)])),
    (6, EMPTY),
    (7, TIME),
    (8, TIME),
    (10, Shape::Struct(&[(1, Shape::Byte), (2, Shape::Bool)])),
    (11, EMPTY),
    (12, EMPTY),
    (13, EMPTY),
    (14, EMPTY),
    (15, EMPTY),
    (16, Shape::Struct(&[(1, Shape::Byte)])),
    (17, Shape::Struct(&[(1, Shape::Bytes)])),
    (18, Shape::Struct(&[(1, Shape::Bytes), (2, INT32)])),
]);

const SCHEMA_ELEMENT: Shape = Shape::Struct(&[
    (1, INT32),
    (2, INT32),
    (3, INT32),
    (4, Shape::Bytes),
    (5, INT32),
    (6, INT32),
    (7, INT32),
    (8, INT32),
    (9, INT32),
    (10, LOGICAL),
]);

const STATISTICS: Shape = Shape::Struct(STATISTICS_FIELDS);
/// Of a column and of a page.
pub(super) const STATISTICS_FIELDS: &[(i16, Shape)] = &[
    (1, Shape::Bytes),
    (2, Shape::Bytes),
    (3, INT64),
    (4, INT64),
    (5, Shape::Bytes),
    (6, Shape::Bytes),
    (7, Shape::Bool),
    (8, Shape::Bool),
];

const KEY_VALUE: Shape = Shape::Struct(&[(1, Shape::Bytes), (2, Shape::Bytes)]);
const KEY_VALUES: Shape = Shape::List(List { most: 1024, size: 64, of: &KEY_VALUE });
const COUNTS: Shape = Shape::List(List { most: 64, size: 8, of: &INT64 });

const COLUMN: Shape = Shape::Struct(&[
    (1, INT32),
    (2, Shape::List(List { most: 64, size: 4, of: &INT32 })),
    (3, Shape::List(List { most: 64, size: 32, of: &Shape::Bytes })),
    (4, INT32),
    (5, INT64),
    (6, INT64),
    (7, INT64),
    (8, KEY_VALUES),
    (9, INT64),
    (10, INT64),
    (11, INT64),
    (12, STATISTICS),
    (13, Shape::List(List { most: 64, size: 16, of: &Shape::Struct(&[(1, INT32), (2, INT32), (3, INT32)]) })),
    (14, INT64),
    (15, INT32),
    (16, Shape::Struct(&[(1, INT64), (2, COUNTS), (3, COUNTS)])),
    // Statistics of places on Earth.
    (17, Shape::Refused),
]);

const COLUMN_CHUNK: Shape = Shape::Struct(&[
    (1, Shape::Bytes),
    (2, INT64),
    (3, COLUMN),
    (4, INT64),
    (5, INT32),
    (6, INT64),
    (7, INT32),
    // Encryption.
    (8, Shape::Refused),
    (9, Shape::Refused),
]);

const SORTING: Shape = Shape::Struct(&[(1, INT32), (2, Shape::Bool), (3, Shape::Bool)]);

const ROW_GROUP: Shape = Shape::Struct(&[
    (1, Shape::List(List { most: MAX_COLUMNS, size: 1024, of: &COLUMN_CHUNK })),
    (2, INT64),
    (3, INT64),
    (4, Shape::List(List { most: MAX_COLUMNS, size: 16, of: &SORTING })),
    (5, INT64),
    (6, INT64),
    (7, INT16),
]);

const FILE: &[(i16, Shape)] = &[
    (1, INT32),
    // The first element is the root.
    (2, Shape::List(List { most: MAX_COLUMNS + 1, size: 1024, of: &SCHEMA_ELEMENT })),
    (3, INT64),
    (4, Shape::List(List { most: MAX_GROUPS, size: 512, of: &ROW_GROUP })),
    (5, KEY_VALUES),
    (6, Shape::Bytes),
    (7, Shape::List(List { most: MAX_COLUMNS, size: 16, of: &Shape::Struct(&[(1, EMPTY), (2, EMPTY)]) })),
    // Encryption.
    (8, Shape::Refused),
    (9, Shape::Refused),
];

/// Says what is wrong with the footer of a file of this size.
pub(super) fn check(file: &File, len: u64) -> Result<(), &'static str> {
    let wrong = |_| "its last bytes cannot be read";
    let tail_at = len.checked_sub(8).filter(|at| *at >= MAGIC.len() as u64).ok_or("it is too short for Parquet")?;
    let mut tail = [0; 8];
    file.read_exact_at(&mut tail, tail_at).map_err(wrong)?;
    let [a, b, c, d, magic @ ..] = tail;
    if magic != *MAGIC {
        return Err("it does not end as Parquet");
    }
    let bytes = u64::from(u32::from_le_bytes([a, b, c, d]));
    let at = tail_at.checked_sub(bytes).ok_or("its footer is longer than the file")?;
    if bytes > MAX_FOOTER {
        return Err("its footer is larger than that of any evidence");
    }
    let mut footer = vec![0; usize::try_from(bytes).unwrap_or_default()];
    file.read_exact_at(&mut footer, at).map_err(wrong)?;
    // The crate makes room for as many children as an element of the schema claims, and one within another takes stack.
    let (mut groups, mut most) = (0, 0);
    let found = Thrift::new(&footer, MAX_ROOM).fields(FILE, &mut |path, value| {
        if path == [2, 5] && value != 0 {
            groups += 1;
            most = most.max(if value < 0 { i64::MAX } else { value });
        }
    });
    match found {
        Some(()) if groups > 1 => Err("it has columns within columns"),
        Some(()) if most <= MAX_COLUMNS as i64 => Ok(()),
        _ => Err("its footer claims more than it has, or than any evidence has"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn a_footer_is_read_no_further_than_it_goes() {
        let checked = |footer: &[u8], len: u32| {
            let mut file = tempfile::tempfile().unwrap();
            let bytes = [b"PAR1", footer, &len.to_le_bytes(), b"PAR1"].concat();
            file.write_all(&bytes).unwrap();
            check(&file, bytes.len() as u64)
        };
        // No fields at all: that is for the crate to say.
        assert_eq!(checked(&[0], 1), Ok(()));
        assert!(checked(&[0], 1000).is_err() && checked(&[0x15], 1).is_err() && checked(&[], 0).is_err());
        // An element of the schema with this number of children.
        let children = |count: &[u8]| checked(&[&[0x29, 0x1c, 0x55], count, &[0, 0]].concat(), count.len() as u32 + 5);
        assert_eq!(children(&[68]), Ok(()));
        assert!(children(&[0xfe, 0xff, 0xff, 0xff, 0x0f]).is_err() && children(&[1]).is_err());
        assert_eq!(checked(&[0x29, 0x2c, 0x55, 2, 0, 0x55, 2, 0, 0], 9), Err("it has columns within columns"));
    }
}
