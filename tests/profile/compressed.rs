//! Recordings of `perf record -z`, made here: their content, its order, and what remains if they are damaged.

use std::io::Cursor;

use scxprof::testing::profile::{Damage, Item, PerfData};

use super::made::{self, file, pipe, read, records, Order};

const LITTLE: Order = Order { big: false };
const BIG: Order = Order { big: true };

/// Bytes of data in a compressed record made here: less than a record of a sample, so that these are split.
const PIECE: usize = 100;

/// How the data of compressed records is laid out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Zstd {
    /// Uncompressed, in a stream with a window of 1 KiB that never ends: perf's do not end either.
    Raw,
    /// By a compressor.
    Compressed,
    /// Uncompressed, in the records of newer perfs.
    Second,
}

/// The records as `perf record -z` writes them: all but the marks, which are between the compressed ones.
pub fn compressed(order: Order, records: &[Vec<u8>], how: Zstd) -> Vec<Vec<u8>> {
    let record = |payload: &[u8]| {
        if how == Zstd::Second {
            let size = order.u64(payload.len() as u64);
            let mut payload = payload.to_vec();
            payload.resize(payload.len().next_multiple_of(8), 0xee);
            made::record(order, 83, 0, &[size, payload])
        } else {
            made::record(order, 81, 0, &[payload.to_vec()])
        }
    };
    let mut written = Vec::new();
    let mut first = true;
    for round in records.split_inclusive(|record| record.len() == 8) {
        let (data, mark) = match round.split_last() {
            Some((last, data)) if last.len() == 8 => (data.concat(), Some(last.clone())),
            _ => (round.concat(), None),
        };
        if how == Zstd::Compressed {
            // Consecutive streams do not share a window; perf writes one stream.
            if first {
                let all: Vec<u8> = records.iter().filter(|record| record.len() > 8).flatten().copied().collect();
                let stream = ruzstd::encoding::compress_to_vec(&all[..], ruzstd::encoding::CompressionLevel::Fastest);
                written.extend(stream.chunks(PIECE).map(record));
            }
        } else {
            for piece in data.chunks(PIECE) {
                let size = (piece.len() as u32) << 3;
                let header = if std::mem::take(&mut first) { &b"\x28\xb5\x2f\xfd\0\0"[..] } else { b"" };
                written.push(record(&[header, &size.to_le_bytes()[..3], piece].concat()));
            }
        }
        first = false;
        written.extend(mark);
    }
    written
}

/// A compressed record.
fn stream(payload: &[u8]) -> Vec<u8> {
    made::record(LITTLE, 81, 0, &[payload.to_vec()])
}

/// The header of a stream with a window of 1 KiB.
const STREAM: &[u8] = b"\x28\xb5\x2f\xfd\0\0";
/// The types of a block (RFC 8878, 3.1.1.2.2); the last bit is of the last one.
const RAW: u8 = 0;
const RESERVED: u8 = 3 << 1;
const LAST: u8 = 1;

fn block(kind: u8, data: &[u8]) -> Vec<u8> {
    let header = ((data.len() as u32) << 3 | u32::from(kind)).to_le_bytes();
    [&header[..3], data].concat()
}

/// The records in it, an empty one for each mark, and the number of marks that were counted.
fn items(bytes: &[u8]) -> (Vec<Vec<u8>>, u64, Damage) {
    let mut file = PerfData::open(Cursor::new(bytes)).unwrap();
    let mut items = Vec::new();
    while let Some(item) = file.next_item().unwrap() {
        items.push(match item {
            Item::Record { bytes, .. } => bytes.to_vec(),
            Item::Round => Vec::new(),
        });
    }
    let rounds = file.counts().find(|(kind, _)| *kind == 68).map_or(0, |(_, count)| count);
    (items, rounds, file.damage())
}

fn marks(items: &[Vec<u8>]) -> usize {
    items.iter().filter(|item| item.is_empty()).count()
}

#[test]
fn compressed_records_are_the_same() {
    for order in [LITTLE, BIG] {
        let collect = read(&file(order, &records(order)));
        for how in [Zstd::Raw, Zstd::Compressed, Zstd::Second] {
            let records = compressed(order, &records(order), how);
            assert_eq!(read(&file(order, &records)), collect, "{how:?}");
            assert_eq!(read(&pipe(order, &records)), collect, "{how:?}, from a pipe");
        }
    }
}

#[test]
fn marks_come_when_what_was_before_them_has_come() {
    // The last byte of the stream's header: windows of 1,024 and of 1,920 bytes (RFC 8878, 3.1.1.1.2).
    for (order, window) in [(LITTLE, 0), (BIG, 0), (LITTLE, 7)] {
        for every in [2, 9] {
            let records = records(order).into_iter().filter(|record| record.len() > 8).collect::<Vec<_>>();
            let rounds = records.chunks(every).flat_map(|round| [round, &[made::round(order)]].concat());
            let records: Vec<_> = rounds.collect();
            let (plain, counted, _) = items(&file(order, &records));
            assert_eq!((marks(&plain) as u64, marks(&plain)), (counted, records.len() - 49));
            let mut compressed = compressed(order, &records, Zstd::Raw);
            compressed[0][8 + 5] = window;
            let (inflated, counted, _) = items(&file(order, &compressed));
            assert_eq!(counted, marks(&plain) as u64, "each is counted once, as perf does");
            // Marks of the first window cannot be placed and are left out; each of the others is at its position.
            let mut rest = plain.iter();
            for item in &inflated {
                assert!(rest.any(|plain| plain == item), "{item:?} is not where it was");
            }
            assert_eq!(inflated.len() - marks(&inflated), 49);
            assert!((1..marks(&plain)).contains(&marks(&inflated)), "{} of {}", marks(&inflated), marks(&plain));
        }
    }
}

#[test]
fn what_shrinks_to_nearly_nothing_is_no_bomb() {
    let same = made::sample(LITTLE, 1_000_000_000, 100, 100, 0x1_0000, 5, 4096);
    let records: Vec<_> = vec![same; 5000];
    let compressed = compressed(LITTLE, &records, Zstd::Compressed);
    assert!(compressed.concat().len() * 256 < records.concat().len(), "{}", compressed.concat().len());
    let (items, _, damage) = items(&file(LITTLE, &compressed));
    assert_eq!((items.len(), damage), (5000, Damage::default()));
}

#[test]
fn a_hole_in_what_is_inflated_does_not_end_the_stream() {
    let mut records = records(LITTLE);
    records[10][..24].fill(0);
    let (items, _, damage) = items(&file(LITTLE, &compressed(LITTLE, &records, Zstd::Raw)));
    assert_eq!(items.iter().filter(|item| !item.is_empty()).count(), 48, "one record was lost");
    assert!(damage.gaps > 0 && damage.compressed == 0, "{damage:?}");
}

#[test]
fn a_stream_that_breaks_gives_what_was_before_it() {
    let sample = |time| made::sample(LITTLE, time, 100, 100, 0x1_0000, 5, 4096);
    let good = |time| stream(&block(RAW, &sample(time)));
    let begin = stream(&[STREAM, &block(RAW, &sample(1))].concat());
    let round = || made::round(LITTLE);
    let all = [
        begin.clone(),
        good(2),
        stream(&block(RESERVED, &sample(3))),
        round(),
        good(4),
        // Reading continues with what is not compressed.
        sample(5),
        round(),
    ];
    let (items, counted, damage) = items(&file(LITTLE, &all));
    assert_eq!(items, [sample(1), sample(2), vec![], sample(5), vec![]]);
    assert_eq!((counted, damage), (2, Damage { compressed: 2, ..Damage::default() }));

    let last = stream(&block(RAW | LAST, &sample(2)));
    let (items, _, damage) = self::items(&file(LITTLE, &[begin.clone(), last.clone()]));
    assert_eq!((items.len(), damage), (2, Damage::default()));
    let (items, _, damage) = self::items(&file(LITTLE, &[begin.clone(), last, good(3)]));
    assert_eq!((items.len(), damage.compressed), (2, 1), "nothing can follow the last block");
    // A stream of one segment contains its size, and has no window for marks to wait for.
    let single = stream(&[&STREAM[..4], &[1 << 5, 112], &block(RAW | LAST, &sample(1))].concat());
    let (items, _, damage) = self::items(&file(LITTLE, &[single]));
    assert_eq!((items.len(), damage.compressed), (0, 1));
    let half = stream(&block(RAW, &sample(2)[..50]));
    // perf drops the end of what it compresses, within a record or within a block.
    let long = stream(&block(RAW, &sample(2))[..50]);
    for last in [half, long] {
        let all = [begin.clone(), last, sample(3), round()];
        for data in [file(LITTLE, &all), pipe(LITTLE, &all)] {
            let (items, counted, damage) = self::items(&data);
            assert_eq!((items, counted), (vec![sample(3), sample(1)], 1));
            assert_eq!(damage, Damage { unflushed: true, ..Damage::default() });
        }
        // The file itself is truncated, which explains everything.
        let mut data = file(LITTLE, &all[..2]);
        data.truncate(data.len() - 8);
        assert!(self::items(&data).2.cut && !self::items(&data).2.unflushed);
    }
}
