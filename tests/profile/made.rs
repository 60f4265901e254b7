//! Files that are made here, field by field and in either byte order, by nothing of what reads them.

use std::path::PathBuf;

use scxprof::profile::{Item, PerfData, Records};
use scxprof::sample::Place;
use tempfile::TempDir;

use super::{replayed, Collect};

/// IP, TID, TIME, ADDR, CPU, PERIOD, DATA_SRC, IDENTIFIER, PHYS_ADDR, CGROUP, DATA_PAGE_SIZE, WEIGHT_STRUCT.
pub const SAMPLE_TYPE: u64 =
    1 << 0 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 7 | 1 << 8 | 1 << 15 | 1 << 16 | 1 << 19 | 1 << 21 | 1 << 22 | 1 << 24;
const SAMPLE_ID_ALL: u32 = 18;

/// Numbers in one byte order.
#[derive(Clone, Copy)]
pub struct Order {
    pub big: bool,
}

impl Order {
    pub fn u16(self, value: u16) -> Vec<u8> {
        if self.big {
            value.to_be_bytes().to_vec()
        } else {
            value.to_le_bytes().to_vec()
        }
    }
    pub fn u32(self, value: u32) -> Vec<u8> {
        if self.big {
            value.to_be_bytes().to_vec()
        } else {
            value.to_le_bytes().to_vec()
        }
    }
    pub fn u64(self, value: u64) -> Vec<u8> {
        if self.big {
            value.to_be_bytes().to_vec()
        } else {
            value.to_le_bytes().to_vec()
        }
    }
}

/// A record with its header.
fn record(order: Order, kind: u32, misc: u16, body: &[Vec<u8>]) -> Vec<u8> {
    let body = body.concat();
    [order.u32(kind), order.u16(misc), order.u16(8 + body.len() as u16), body].concat()
}

fn text(text: &[u8]) -> Vec<u8> {
    let mut bytes = text.to_vec();
    bytes.resize((text.len() + 1).next_multiple_of(8), 0);
    bytes
}

/// The trailer of a record that is no sample: TID, TIME, CPU, IDENTIFIER.
fn trailer(order: Order, time: u64) -> Vec<u8> {
    [order.u32(0), order.u32(0), order.u64(time), order.u32(0), order.u32(0), order.u64(ID)].concat()
}

pub const ID: u64 = 77;

pub fn comm(order: Order, time: u64, pid: u32, tid: u32, name: &[u8]) -> Vec<u8> {
    record(order, 3, 0, &[order.u32(pid), order.u32(tid), text(name), trailer(order, time)])
}

pub fn fork(order: Order, time: u64, pid: u32, ppid: u32) -> Vec<u8> {
    let ids = [pid, ppid, pid, ppid].map(|id| order.u32(id)).concat();
    record(order, 7, 0, &[ids, order.u64(time), trailer(order, time)])
}

pub fn cgroup(order: Order, time: u64, id: u64, path: &[u8]) -> Vec<u8> {
    record(order, 19, 0, &[order.u64(id), text(path), trailer(order, time)])
}

/// A shared, writable mapping of inode 9 on device 8:1.
pub fn shared(order: Order, time: u64, pid: u32, addr: u64, len: u64, pgoff: u64, path: &[u8]) -> Vec<u8> {
    mapping(order, time, pid, [addr, len, pgoff], [3, 1], path)
}

/// A mapping of inode 9 on device 8:1 at address, length and offset, with prot and flags.
pub fn mapping(order: Order, time: u64, pid: u32, place: [u64; 3], prot_flags: [u32; 2], path: &[u8]) -> Vec<u8> {
    let ids = [pid, pid].map(|id| order.u32(id)).concat();
    let place = place.map(|word| order.u64(word)).concat();
    let file = [order.u32(8), order.u32(1), order.u64(9), order.u64(0)].concat();
    let prot_flags = prot_flags.map(|word| order.u32(word)).concat();
    record(order, 10, 1 << 13 | 2, &[ids, place, file, prot_flags, text(path), trailer(order, time)])
}

/// What a section of build ids and a record of one look like.
pub fn build_id(order: Order, id: &[u8], path: &[u8]) -> Vec<u8> {
    let mut field = id.to_vec();
    field.resize(20, 0);
    field.extend([id.len() as u8, 0, 0, 0]);
    let mut name = path.to_vec();
    name.resize((path.len() + 1).next_multiple_of(64), 0);
    record(order, 67, 1 << 15 | 2, &[order.u32(u32::MAX), field, name])
}

pub fn sample(order: Order, time: u64, pid: u32, tid: u32, addr: u64, cgroup: u64, page_size: u64) -> Vec<u8> {
    let words = |words: &[u64]| words.iter().flat_map(|&word| order.u64(word)).collect::<Vec<u8>>();
    // A latency of 300, the two shorter ones 5 and 6: in this order on a little endian machine, the other way round on a big.
    let weight = if order.big {
        [order.u16(6), order.u16(5), order.u32(300)].concat()
    } else {
        [order.u32(300), order.u16(5), order.u16(6)].concat()
    };
    record(
        order,
        9,
        2,
        &[
            words(&[ID, 0x40_1000]),
            order.u32(pid),
            order.u32(tid),
            words(&[time, addr]),
            order.u32(3),
            order.u32(0),
            words(&[17]),
            weight,
            words(&[0x0681_0014, addr + 0x1_0000_0000, cgroup, page_size]),
        ],
    )
}

pub fn round(order: Order) -> Vec<u8> {
    record(order, 68, 0, &[])
}

fn attr(order: Order) -> Vec<u8> {
    let mut flags = (1u64 << SAMPLE_ID_ALL).to_le_bytes();
    if order.big {
        flags = flags.map(u8::reverse_bits);
    }
    let mut attr = [
        order.u32(4),
        order.u32(104),
        [0x1cdu64, 1000, SAMPLE_TYPE, 0].map(|word| order.u64(word)).concat(),
        flags.to_vec(),
    ]
    .concat();
    attr.resize(104, 0);
    attr
}

/// The same with a section of build ids.
pub fn file_with_build_ids(order: Order, records: &[Vec<u8>], build_ids: &[u8]) -> Vec<u8> {
    let mut bytes = file(order, records);
    // Bit 2 of the sections, whose table is behind the data.
    bytes[72..80].copy_from_slice(&order.u64(1 << 2));
    let section_at = bytes.len() as u64 + 16;
    bytes.extend([section_at, build_ids.len() as u64].iter().flat_map(|&word| order.u64(word)));
    bytes.extend(build_ids);
    bytes
}

/// A whole file of one event with these records.
pub fn file(order: Order, records: &[Vec<u8>]) -> Vec<u8> {
    let data = records.concat();
    let ids_at = 104;
    let attrs_at = ids_at + 8;
    let data_at = attrs_at + 104 + 16;
    let header = [104, 104 + 16, attrs_at, 104 + 16, data_at, data.len() as u64, 0, 0, 0, 0, 0, 0];
    let mut bytes = magic(order);
    bytes.extend(header.iter().flat_map(|&word| order.u64(word)));
    bytes.extend(order.u64(ID));
    bytes.extend(attr(order));
    bytes.extend([ids_at, 8].iter().flat_map(|&word| order.u64(word)));
    assert_eq!(bytes.len() as u64, data_at);
    bytes.extend(data);
    bytes
}

/// The same as it goes through a pipe.
pub fn pipe(order: Order, records: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = magic(order);
    bytes.extend(order.u64(16));
    bytes.extend(record(order, 64, 0, &[attr(order), order.u64(ID)]));
    // perf puts tracepoint formats behind such a record, whose size does not count them.
    bytes.extend(record(order, 66, 0, &[order.u32(13), order.u32(0)]));
    bytes.extend([0xee; 16]);
    // Event 77 is called "a b".
    bytes.extend(record(order, 78, 0, &[order.u64(2), order.u64(ID), text(b"a b")]));
    bytes.extend(records.concat());
    bytes
}

/// Bytes of data in a compressed record that is made here: less than a record of a sample, so that these are cut.
const PIECE: usize = 100;

/// How the data of compressed records is laid out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Zstd {
    /// As it is, in a stream with a window of 1 KiB that never ends: perf's do not.
    Raw,
    /// By a compressor.
    Compressed,
    /// As it is, in the records of newer perfs.
    Second,
}

/// The records as `perf record -z` writes them: all but the marks, which are between the compressed ones.
pub fn compressed(order: Order, records: &[Vec<u8>], how: Zstd) -> Vec<Vec<u8>> {
    let record = |payload: &[u8]| {
        if how == Zstd::Second {
            let size = order.u64(payload.len() as u64);
            let mut payload = payload.to_vec();
            payload.resize(payload.len().next_multiple_of(8), 0xee);
            record(order, 83, 0, &[size, payload])
        } else {
            record(order, 81, 0, &[payload.to_vec()])
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
            // Streams that follow one another have no window in common; perf writes one.
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

fn magic(order: Order) -> Vec<u8> {
    let mut magic = b"PERFILE2".to_vec();
    if order.big {
        magic.reverse();
    }
    magic
}

/// Two processes of odd names in a cgroup of an odd path, with shared memory of 64 KiB pages between them.
pub fn records(order: Order) -> Vec<Vec<u8>> {
    let mut records = vec![
        cgroup(order, 0, 5, b"/workload.slice/my app.slice"),
        comm(order, 0, 100, 100, b"job 3/4"),
        comm(order, 0, 200, 200, b"caf\xc3\xff"),
        shared(order, 0, 100, 0x1_0000, 0x4_0000, 0x2_0000, b"/memfd:jit x (deleted)"),
        shared(order, 0, 200, 0x7_0000, 0x4_0000, 0x2_0000, b"/memfd:jit x (deleted)"),
    ];
    for step in 0..20 {
        let time = 1_000_000_000 + step * 1000;
        records.push(sample(order, time + 500, 100, 100, 0x1_0000 + step * 8, 5, 0x1_0000));
        // Out of order, as another CPU's.
        records.push(sample(order, time, 200, 200, 0x7_0000 + step * 8, 5, 0x1_0000));
        if step == 10 {
            records.push(comm(order, time + 600, 100, 100, b"renamed"));
            records.push(fork(order, time + 700, 300, 200));
            records.push(sample(order, time + 800, 300, 300, 0x7_0008, 5, 0x1_0000));
            records.push(sample(order, time + 900, 300, 300, 0xabc_0000, 5, 0x1_0000));
        }
        if step % 4 == 3 {
            records.push(round(order));
        }
    }
    records
}

/// A file in a directory of its own.
pub fn write(bytes: &[u8]) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    std::fs::write(&path, bytes).unwrap();
    (dir, path)
}

fn read(bytes: &[u8]) -> Collect {
    let (_dir, path) = write(bytes);
    let (collect, outcome, damage) = replayed(&path);
    assert_eq!(damage, Vec::<String>::new());
    assert_eq!(outcome.loss.malformed + outcome.loss.late + outcome.loss.unnamed, 0);
    collect
}

#[test]
fn a_profile_is_the_same_on_every_machine() {
    let little = Order { big: false };
    let collect = read(&file(little, &records(little)));
    assert_eq!(collect.samples.len(), 42);
    let times: Vec<u64> = collect.samples.iter().map(|sample| sample.time).collect();
    assert!(times.is_sorted());
    let first = &collect.samples[0];
    assert_eq!((first.pid, first.cpu, first.latency, first.period), (200, 3, 300, 17));
    assert_eq!((first.page_size, first.phys), (0x1_0000, 0x1_0007_0000));
    assert_eq!(first.comm.unwrap().as_bytes(), b"caf\xc3\xff");
    assert_eq!(collect.paths[0].as_deref(), Some(&b"/workload.slice/my app.slice"[..]));
    let shared = |offset| Some(Place::Shared { dev: libc::makedev(8, 1), ino: 9, offset });
    assert_eq!(first.place, shared(0x2_0000));
    assert_eq!(collect.samples[1].place, shared(0x2_0000), "the other process maps it elsewhere");
    assert_eq!(collect.samples[1].comm.unwrap().as_bytes(), b"job 3/4");
    assert_eq!(collect.samples.last().unwrap().comm.unwrap().as_bytes(), b"renamed");
    let child: Vec<_> = collect.samples.iter().filter(|sample| sample.pid == 300).collect();
    assert_eq!(child[0].comm.unwrap().as_bytes(), b"caf\xc3\xff", "a child has its parent's name");
    assert_eq!(child[0].place, shared(0x2_0008), "and its mappings");
    assert!(matches!(child[1].place, Some(Place::Private { addr: 0xabc_0000, .. })));

    let big = Order { big: true };
    assert_eq!(read(&file(big, &records(big))), collect, "big endian");
    assert_eq!(read(&pipe(little, &records(little))), collect, "from a pipe");
    assert_eq!(read(&pipe(big, &records(big))), collect, "big endian, from a pipe");
    let without_rounds: Vec<_> = records(little).into_iter().filter(|record| record.len() > 8).collect();
    assert_eq!(read(&file(little, &without_rounds)), collect, "an old perf writes no marks");
}

#[test]
fn compressed_records_are_the_same() {
    for order in [Order { big: false }, Order { big: true }] {
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
    let order = Order { big: false };
    let order_of = |records: &[Vec<u8>]| {
        let mut file = PerfData::open(std::io::Cursor::new(file(order, records))).unwrap();
        let mut order = Vec::new();
        while let Some(item) = file.next_item().unwrap() {
            order.push(match item {
                Item::Record { bytes, .. } => bytes.to_vec(),
                Item::Round => Vec::new(),
            });
        }
        let rounds = file.counts().find(|(kind, _)| *kind == 68).unwrap().1;
        (order, rounds)
    };
    let (plain, rounds) = order_of(&records(order));
    assert_eq!((plain.iter().filter(|item| item.is_empty()).count(), rounds), (5, 5));
    let (inflated, counted) = order_of(&compressed(order, &records(order), Zstd::Raw));
    assert_eq!(counted, 5, "each is counted once, as perf does");
    // Those of the first window cannot be placed and are left out; each of the others is where it was.
    let mut rest = plain.iter();
    for item in &inflated {
        assert!(rest.any(|plain| plain == item), "{item:?} is not where it was");
    }
    let with = |items: &[Vec<u8>], marks: bool| items.iter().filter(|item| item.is_empty() == marks).count();
    assert_eq!(with(&inflated, false), with(&plain, false));
    assert!((3..5).contains(&with(&inflated, true)), "{}", with(&inflated, true));
}

#[test]
fn a_file_of_perf_is_named_by_its_pipe() {
    let order = Order { big: false };
    let (_dir, path) = write(&pipe(order, &records(order)));
    let mut profile = scxprof::profile::Profile::open(&path).unwrap();
    let Records::PerfData(perf_data) = &mut profile.records else { panic!("it is no text") };
    while perf_data.next_item().unwrap().is_some() {}
    assert_eq!(perf_data.events()[0].name.as_deref(), Some("a b"));
}
