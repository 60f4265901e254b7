//! Tests of evidence that is written and read again, of damaged and hostile files, and of what stops reading.

use super::*;
use crate::evidence::{Class, RowKind, Scope};
use proptest::prelude::*;
use std::collections::HashSet;

fn read_bytes(bytes: &[u8]) -> Result<Evidence, FileError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("evidence.parquet");
    std::fs::write(&path, bytes).unwrap();
    let mut evidence = Evidence::default();
    read(&path, &mut evidence, &mut |key| key).map(|()| evidence)
}

fn written(evidence: &Evidence) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(evidence, &mut bytes).unwrap();
    bytes
}

fn made(rows: &[(u8, String, i64)]) -> Evidence {
    let mut evidence = Evidence::default();
    for (kind, name, value) in rows {
        let kind = RowKind::ALL[usize::from(*kind) % RowKind::ALL.len()];
        let class = Class { comm: name.clone(), cell: "rest".into(), ..Class::default() };
        let key = Key { part: value % 3, ..Key::of(kind, &Scope::default(), &class) };
        evidence.add(key, &Sums([*value; 17])).unwrap();
    }
    evidence
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_written_is_read(rows in prop::collection::vec((0u8..6, "[ -~é]{0,12}", 0i64..1 << 50), 0..40)) {
        let evidence = made(&rows);
        let bytes = written(&evidence);
        prop_assert_eq!(read_bytes(&bytes).unwrap(), evidence);
    }

    #[test]
    fn no_damage_ends_the_process(places in prop::collection::vec((0usize..8000, prop::collection::vec(any::<u8>(), 1..8)), 1..6)) {
        let rows: Vec<_> = (0..30).map(|at| (at, format!("name {at}"), 1000 + i64::from(at))).collect();
        let mut bytes = written(&made(&rows));
        // What says how long the footer is stays, so that most damage is within it.
        let len = bytes.len() - 8;
        for (at, with) in places {
            let at = len - 1 - at % len;
            for (byte, with) in bytes[at..len].iter_mut().zip(with) {
                *byte = with;
            }
        }
        let _ = read_bytes(&bytes);
    }

    #[test]
    fn damage_is_found(at in 0usize..4000, byte: u8, cut in 0usize..4000) {
        let rows: Vec<_> = (0..30).map(|at| (at, format!("name {at}"), 1000 + i64::from(at))).collect();
        let mut bytes = written(&made(&rows));
        let len = bytes.len();
        bytes[at % len] ^= byte;
        // What is not read at all may change: statistics, the name of the writer.
        if let Ok(found) = read_bytes(&bytes) {
            prop_assert_eq!(found, made(&rows));
        }
        prop_assert!(read_bytes(&bytes[..cut % len]).is_err());
    }
}

#[test]
fn reading_stops_within_a_file() {
    let rows: Vec<_> = (0..5000).map(|at| (3, format!("name {at}"), 1000)).collect();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&written(&made(&rows))).unwrap();
    let (mut evidence, added) = (Evidence::default(), std::cell::Cell::new(0));
    let mut key = |key| {
        added.set(added.get() + 1);
        key
    };
    let stopped = read_until(file.path(), &mut evidence, &mut key, &|| added.get() > 1000);
    assert!(matches!(stopped, Err(FileError::Stopped { .. })));
    assert!((1000..2000).contains(&evidence.len()), "{}", evidence.len());
}

/// A file with this number of rows, which all have the same text in a column, by its number, and 1 as numbers.
fn columns(schema: TypePtr, properties: WriterProperties, rows: usize, text: impl Fn(usize) -> String) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut at = 0;
    while let Some(mut column) = group.next_column().unwrap() {
        let levels = vec![1; rows];
        match column.untyped() {
            ColumnWriter::ByteArrayColumnWriter(writer) => {
                let values = vec![ByteArray::from(text(at).into_bytes()); rows];
                // The levels count only where a column may have several values.
                writer.write_batch(&values, Some(&levels), Some(&vec![0; rows])).unwrap();
            }
            ColumnWriter::Int64ColumnWriter(writer) => {
                writer.write_batch(&vec![1; rows], None, None).unwrap();
            }
            _ => unreachable!(),
        }
        column.close().unwrap();
        at += 1;
    }
    group.close().unwrap();
    writer.close().unwrap();
    bytes
}

#[test]
fn texts_that_are_repeated_too_often_are_refused() {
    // 14 texts of 4 KiB in each row, which the dictionaries have once.
    let text = |at| if at == 0 { "class".to_owned() } else { "x".repeat(texts::MAX_TEXT) };
    let read = |rows| read_bytes(&columns(schema().unwrap(), WriterProperties::new(), rows, text));
    assert_eq!(read(1000).unwrap().len(), 1);
    let error = read(1300).unwrap_err();
    assert!(error.to_string().contains("repeats texts too often"), "{error}");
}

#[test]
fn columns_of_another_form_are_refused() {
    let whole = columns(schema().unwrap(), WriterProperties::new(), 3, |at| if at == 0 { "run" } else { "" }.into());
    assert!(read_bytes(&whole).is_ok());
    let said = |bytes: &[u8]| read_bytes(bytes).unwrap_err().to_string();
    // The first column's path, its codec, number of values, and sizes.
    let place = whole.windows(7).position(|bytes| bytes == b"\x19\x18\x04kind").unwrap() + 7;
    assert_eq!(whole[place] & 0xf, 5);
    let mut other = whole.clone();
    other[place + 1] = 6 << 1;
    assert!(said(&other).contains("it is compressed with ZSTD"), "{}", said(&other));
    let mut at = place + 2;
    for _ in 0..2 {
        at += 1;
        while whole[at] & 0x80 != 0 {
            at += 1;
        }
        at += 1;
    }
    assert_eq!(whole[at], 0x16);
    let size_ends = at + 1 + whole[at + 1..].iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
    let footer_at = whole.len() - 8;
    let footer = u32::from_le_bytes(whole[footer_at..footer_at + 4].try_into().unwrap());
    let large = [0xfe, 0xff, 0xff, 0xff, 0x0f];
    let longer = footer + large.len() as u32 - (size_ends - at - 1) as u32;
    let parts = [&whole[..=at], &large, &whole[size_ends..footer_at], &longer.to_le_bytes(), &whole[footer_at + 4..]];
    let bytes = parts.concat();
    assert!(said(&bytes).contains("more bytes than the file"), "{}", said(&bytes));
    // A row of such a column has any number of values.
    let fields = schema().unwrap();
    let fields = fields.get_fields().iter().map(|field| {
        let repetition = if field.name() == "kind" { Repetition::REPEATED } else { Repetition::REQUIRED };
        let made = Type::primitive_type_builder(field.name(), field.get_physical_type());
        Arc::new(made.with_repetition(repetition).build().unwrap())
    });
    let lists = Type::group_type_builder("evidence").with_fields(fields.collect()).build().unwrap();
    let bytes = columns(Arc::new(lists), WriterProperties::new(), 3, |_| "run".to_owned());
    assert!(said(&bytes).contains("a column has another type"), "{}", said(&bytes));
}

#[test]
fn a_row_group_needs_no_more_than_is_said() {
    // A page of two bytes that claims 90 MiB: type, sizes, then values, PLAIN, and the encodings of levels.
    let number = |mut value: u64| {
        let mut bytes = vec![0x15];
        value <<= 1;
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    };
    let rows = 1u64 << 20;
    let page = [number(0), number(90 << 20), number(2), vec![0x2c], number(rows), number(0), number(3), number(3)];
    let page = [page.concat(), vec![0, 0, 1, 2]].concat();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&page).unwrap();
    let schema = Arc::new(parquet::schema::types::SchemaDescriptor::new(schema().unwrap()));
    let column = ColumnChunkMetaData::builder(schema.column(0)).set_num_values(rows as i64);
    let column = column.set_total_compressed_size(page.len() as i64).set_data_page_offset(0).build().unwrap();
    let others = (1..schema.num_columns()).map(|at| ColumnChunkMetaData::builder(schema.column(at)).build().unwrap());
    let all = std::iter::once(column).chain(others).collect();
    let group = RowGroupMetaData::builder(schema).set_num_rows(rows as i64).set_column_metadata(all);
    let reader = Reader { path: Path::new("x"), len: page.len() as u64, stop: &|| false };
    let error = reader.check(&file, &group.build().unwrap(), &[0]).unwrap_err();
    assert!(error.to_string().contains("more than 160 MiB"), "{error}");
}

#[test]
fn encodings_that_repeat_parts_of_values_are_refused() {
    use parquet::basic::Encoding;
    for encoding in [Encoding::DELTA_BYTE_ARRAY, Encoding::DELTA_LENGTH_BYTE_ARRAY] {
        let properties = WriterProperties::builder().set_dictionary_enabled(false);
        let properties = properties.set_column_encoding("kind".into(), encoding).build();
        let text = |at| if at == 0 { "x".repeat(4000) } else { String::new() };
        let bytes = columns(schema().unwrap(), properties, 2000, text);
        let error = read_bytes(&bytes).unwrap_err();
        assert!(error.to_string().contains("neither PLAIN nor a dictionary"), "{error}");
    }
}

#[test]
fn each_kind_of_rows_is_documented() {
    // Columns: tests/profile/fields.rs.
    let docs = include_str!("../../../docs/evidence.md");
    for name in RowKind::ALL.map(RowKind::name) {
        assert!(docs.contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn what_a_crafted_file_claims_is_bounded() {
    let mut evidence = Evidence::default();
    let long = Class { cgroup: "x".repeat(4097), ..Class::default() };
    evidence.add(Key::of(RowKind::Class, &Scope::default(), &long), &Sums::default()).unwrap();
    let error = read_bytes(&written(&evidence)).unwrap_err();
    assert!(error.to_string().contains("longer than a path"), "{error}");
    let mut evidence = Evidence::default();
    let key = Key { part: i64::MAX, ..Key::new(RowKind::Spec, &Scope::default()) };
    evidence.add(key, &Sums::default()).unwrap();
    assert!(read_bytes(&written(&evidence)).unwrap_err().to_string().contains("out of bounds"));
}

#[test]
fn what_is_no_evidence_is_refused() {
    assert!(matches!(read_bytes(b""), Err(FileError::Damaged { .. })));
    assert!(matches!(read_bytes(b"PAR1 and more text PAR1"), Err(FileError::Damaged { .. })));
    let mut evidence = Evidence::default();
    let missing = read(Path::new("/nonexistent"), &mut evidence, &mut |key| key).unwrap_err();
    assert!(matches!(missing, FileError::Open { .. }));
    let directory = read(Path::new("/"), &mut evidence, &mut |key| key).unwrap_err();
    assert!(matches!(directory, FileError::NotRegular { .. }));
}

#[test]
fn files_are_added_one_after_the_other() {
    let names = |from: u8| (0..200).map(move |at| (from, format!("name {}", at / 2), 1000 + at)).collect::<Vec<_>>();
    let rows = [names(3), names(4)].concat();
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let paths: Vec<_> = (0..20).map(|at| dir.path().join(format!("{at}.parquet"))).collect();
    for path in &paths {
        std::fs::write(path, written(&made(&rows))).unwrap();
    }
    let open = || {
        let files = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|file| file.ok()?.path().read_link().ok());
        let mut files: Vec<_> = files.filter(|path| path.starts_with(&root)).collect();
        files.sort();
        files.dedup();
        files.len()
    };
    let (mut merged, mut after_one) = (Evidence::default(), None);
    for path in &paths {
        read(path, &mut merged, &mut |key| {
            assert_eq!(open(), 1, "no other file is open");
            key
        })
        .unwrap();
        assert_eq!(open(), 0);
        // Nothing is left of a file but its different rows.
        assert_eq!(*after_one.get_or_insert(merged.bytes()), merged.bytes());
        let classes: Vec<_> = merged.rows().flat_map(|(key, _)| [&key.a, &key.b]).collect();
        let held: HashSet<_> = classes.iter().map(|class| Arc::as_ptr(class) as usize).collect();
        let different: HashSet<_> = classes.into_iter().collect();
        assert_eq!(held.len(), different.len(), "each class is held once");
    }
    let mut sum = Evidence::default();
    for _ in &paths {
        sum.merge(&made(&rows)).unwrap();
    }
    assert_eq!(merged, sum);
}

#[test]
fn rows_are_added_in_any_order_of_a_file() {
    // What others write has any order, and the same row more than once.
    let rows: Vec<_> = (0..600).map(|at| (at as u8, format!("name {}", at * 7 % 50), 1 + at)).collect();
    let key = |(kind, name, value): &(u8, String, i64)| {
        let kind = RowKind::ALL[usize::from(*kind) % RowKind::ALL.len()];
        let class = Class { comm: name.clone(), ..Class::default() };
        (Key::of(kind, &Scope::default(), &class), Sums([*value; 17]))
    };
    let (mut all, mut each) = (Evidence::default(), Evidence::default());
    for rows in rows.chunks(70) {
        all.add_all(&mut rows.iter().map(key).collect()).unwrap();
        rows.iter().map(key).for_each(|(key, sums)| each.add(key, &sums).unwrap());
    }
    assert_eq!(all, each);
    let mut wrong = vec![key(&rows[0]), (key(&rows[6]).0, Sums([-1; 17])), key(&rows[12])];
    assert_eq!(all.add_all(&mut wrong), Err(EvidenceError::Negative { column: "runs" }));
    let (first, sums) = key(&rows[0]);
    each.add(first, &sums).unwrap();
    assert!(wrong.is_empty() && all == each);
}
