//! Files made here, field by field and in either byte order, without the code under test.

use std::path::PathBuf;

use scxprof::sample::{MemoryId, MemoryScope};
use scxprof::testing::profile::{Item, PerfData, Records};
use scxprof::testing::sampler::record::{decode, Record};
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
pub fn record(order: Order, kind: u32, misc: u16, body: &[Vec<u8>]) -> Vec<u8> {
    let body = body.concat();
    [order.u32(kind), order.u16(misc), order.u16(8 + body.len() as u16), body].concat()
}

pub fn text(text: &[u8]) -> Vec<u8> {
    let mut bytes = text.to_vec();
    bytes.resize((text.len() + 1).next_multiple_of(8), 0);
    bytes
}

/// The trailer of a record that is no sample: TID, TIME, CPU, IDENTIFIER.
pub fn trailer(order: Order, time: u64) -> Vec<u8> {
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
pub fn mapping(order: Order, time: u64, pid: u32, memory: [u64; 3], prot_flags: [u32; 2], path: &[u8]) -> Vec<u8> {
    let ids = [pid, pid].map(|id| order.u32(id)).concat();
    let memory = memory.map(|word| order.u64(word)).concat();
    let file = [order.u32(8), order.u32(1), order.u64(9), order.u64(0)].concat();
    let prot_flags = prot_flags.map(|word| order.u32(word)).concat();
    record(order, 10, 1 << 13 | 2, &[ids, memory, file, prot_flags, text(path), trailer(order, time)])
}

/// The content of a section of build ids, and of a record of one.
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
    // A latency of 300, the two shorter ones 5 and 6: in this order on a little-endian machine, reversed on a big-endian one.
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

pub fn attr(order: Order) -> Vec<u8> {
    attr_of(order, SAMPLE_TYPE, 0)
}

/// Samples with these fields, READ in this format; branches and registers as in [`wide`].
fn attr_of(order: Order, sample_type: u64, read_format: u64) -> Vec<u8> {
    let mut flags = (1u64 << SAMPLE_ID_ALL).to_le_bytes();
    if order.big {
        flags = flags.map(u8::reverse_bits);
    }
    let mut attr = [
        order.u32(4),
        order.u32(104),
        [0x1cdu64, 1000, sample_type, read_format].map(|word| order.u64(word)).concat(),
        flags.to_vec(),
    ]
    .concat();
    attr.resize(72, 0);
    attr.extend([HW_INDEX, USER_REGS].map(|word| order.u64(word)).concat());
    attr.resize(96, 0);
    attr.extend(order.u64(INTR_REGS));
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

/// `PERF_SAMPLE_BRANCH_HW_INDEX`, and as many registers as these have bits.
const HW_INDEX: u64 = 1 << 17;
const USER_REGS: u64 = 0b1011;
const INTR_REGS: u64 = 0b110;

/// A file with one sample with all fields of special layout: numbers of 32 bits, lists, bytes.
fn wide(order: Order) -> Vec<u8> {
    let words = |words: &[u64]| words.iter().flat_map(|&word| order.u64(word)).collect::<Vec<u8>>();
    let pair = |a, b| [order.u32(a), order.u32(b)].concat();
    // IP, TID, TIME, ADDR, READ, CALLCHAIN, ID, CPU, PERIOD, STREAM_ID, RAW, BRANCH_STACK, REGS_USER, STACK_USER, WEIGHT,
    // DATA_SRC, IDENTIFIER, TRANSACTION, REGS_INTR, PHYS_ADDR, AUX, CGROUP, DATA_PAGE_SIZE, CODE_PAGE_SIZE.
    let sample_type = (1 << 24) - 1;
    // A group with times, ids and losses.
    let read_format = 0b1_1111;
    let sample = record(
        order,
        9,
        2,
        &[
            words(&[ID, 0x40_1000]),
            pair(7, 8),
            words(&[99, 0x1234, ID, 5]),
            pair(3, 0),
            words(&[17]),
            // READ: two events, two times, each value with its id and losses.
            words(&[2, 10, 11, 20, ID, 21, 30, 31, 32]),
            words(&[3, 0xffff_ffff_ffff_ff80, 0x50, 0x51]),
            // RAW: its size, then bytes that are never swapped.
            [order.u32(12), b"as they are!".to_vec()].concat(),
            // Branches: their number, an index, and from, to, flags of each.
            words(&[2, 40, 41, 42, 43, 44, 45, 46]),
            // REGS_USER, with 64 bits each.
            words(&[2, 60, 61, 62]),
            // STACK_USER: bytes, then how many of them hold anything.
            [words(&[8]), b"as it is".to_vec(), words(&[6])].concat(),
            words(&[300, 0x0681_0014, 70]),
            words(&[2, 80, 81]),
            words(&[90, 91, 92, 93, 3]),
            // AUX, as many bytes as its size says.
            b"aux\0\0\0\0\0".to_vec(),
        ],
    );
    of_event(order, &attr_of(order, sample_type, read_format), &[sample], &[])
}

#[test]
fn every_field_of_a_sample_is_turned() {
    let read = |big| {
        let mut file = PerfData::open(std::io::Cursor::new(wide(Order { big }))).unwrap();
        assert_eq!(file.is_swapped(), big != cfg!(target_endian = "big"));
        let Some(Item::Record { bytes, layout, .. }) = file.next_item().unwrap() else { panic!("no record") };
        let bytes = bytes.to_vec();
        let layout = *layout;
        assert!(file.next_item().unwrap().is_none() && !file.damage().any());
        (bytes, layout)
    };
    let ((little, layout), (big, of_big)) = (read(false), read(true));
    assert_eq!(layout, of_big);
    assert_eq!(little, big, "turned, it is the same bytes");
    let Ok((_, Record::Sample(sample), _)) = decode(&little, &layout) else { panic!("no sample") };
    assert_eq!((sample.pid, sample.tid, sample.time, sample.cpu, sample.period), (7, 8, 99, 3, 17));
    assert_eq!(sample.callchain.iter().collect::<Vec<_>>(), [0xffff_ffff_ffff_ff80, 0x50, 0x51]);
    assert_eq!((sample.regs_user.abi, sample.regs_user.values.iter().collect::<Vec<_>>()), (2, vec![60, 61, 62]));
    assert_eq!((sample.weight, sample.data_src, sample.phys_addr), (300, 0x0681_0014, 90));
    assert_eq!((sample.cgroup, sample.data_page_size), (91, 92));
    assert!(sample.stack_user.starts_with(b"as it "));
}

/// A whole file of one event with these records.
pub fn file(order: Order, records: &[Vec<u8>]) -> Vec<u8> {
    of_event(order, &attr(order), records, &[])
}

/// The same, with the section that says that the event is called "a b".
pub fn named(order: Order, records: &[Vec<u8>]) -> Vec<u8> {
    let name = text(b"a b");
    let section = [
        [order.u32(1), order.u32(104), attr(order)].concat(),
        [order.u32(1), order.u32(name.len() as u32), name, order.u64(ID)].concat(),
    ];
    of_event(order, &attr(order), records, &[(12, section.concat())])
}

/// A file of one event with these sections behind the records, by their bits.
fn of_event(order: Order, attr: &[u8], records: &[Vec<u8>], sections: &[(u8, Vec<u8>)]) -> Vec<u8> {
    of_events(order, &[(attr.to_vec(), vec![ID])], records, sections)
}

/// The same of events with attrs of one size and their ids.
pub fn of_events(
    order: Order,
    events: &[(Vec<u8>, Vec<u64>)],
    records: &[Vec<u8>],
    sections: &[(u8, Vec<u8>)],
) -> Vec<u8> {
    let words = |words: &[u64]| words.iter().flat_map(|&word| order.u64(word)).collect::<Vec<u8>>();
    let data = records.concat();
    let mut ids_at = 104;
    let (mut ids, mut attrs) = (Vec::new(), Vec::new());
    for (attr, of_event) in events {
        let size = of_event.len() as u64 * 8;
        attrs.extend([&attr[..], &words(&[ids_at, size])].concat());
        ids.extend(words(of_event));
        ids_at += size;
    }
    let (attrs_at, attrs_size) = (ids_at, attrs.len() as u64);
    let data_at = attrs_at + attrs_size;
    let bits = sections.iter().fold(0, |bits, (bit, _)| bits | 1u64 << bit);
    let entry = attrs_size / events.len() as u64;
    let header = [104, entry, attrs_at, attrs_size, data_at, data.len() as u64, 0, 0, bits, 0, 0, 0];
    let mut bytes = [magic(order), words(&header), ids, attrs].concat();
    assert_eq!(bytes.len() as u64, data_at);
    bytes.extend(data);
    let mut at = bytes.len() as u64 + sections.len() as u64 * 16;
    for (_, section) in sections {
        bytes.extend(words(&[at, section.len() as u64]));
        at += section.len() as u64;
    }
    bytes.extend(sections.iter().flat_map(|(_, section)| section));
    bytes
}

/// The same as it goes through a pipe.
pub fn pipe(order: Order, records: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = magic(order);
    bytes.extend(order.u64(16));
    bytes.extend(record(order, 64, 0, &[attr(order), order.u64(ID)]));
    // perf writes tracepoint formats after such a record; its size does not include them.
    bytes.extend(record(order, 66, 0, &[order.u32(13), order.u32(0)]));
    bytes.extend([0xee; 16]);
    // Event 77 is called "a b".
    bytes.extend(record(order, 78, 0, &[order.u64(2), order.u64(ID), text(b"a b")]));
    bytes.extend(records.concat());
    bytes
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

/// A file in its own directory.
pub fn write(bytes: &[u8]) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    std::fs::write(&path, bytes).unwrap();
    (dir, path)
}

/// The samples of an undamaged file.
pub fn read(bytes: &[u8]) -> Collect {
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
    let times: Vec<u64> = collect.samples.iter().map(|sample| sample.raw.time).collect();
    assert!(times.is_sorted());
    let first = &collect.samples[0];
    assert_eq!((first.raw.pid, first.raw.cpu, first.raw.latency, first.raw.period), (200, 3, 300, 17));
    assert_eq!((first.raw.page_size, first.raw.phys), (0x1_0000, 0x1_0007_0000));
    assert_eq!(first.comm.unwrap().as_bytes(), b"caf\xc3\xff");
    assert_eq!(collect.paths[0].as_deref(), Some(&b"/workload.slice/my app.slice"[..]));
    let shared = |offset| Some(MemoryId::Shared { scope: MemoryScope::device(libc::makedev(8, 1), 0), ino: 9, offset });
    assert_eq!(first.memory, shared(0x2_0000));
    assert_eq!(collect.samples[1].memory, shared(0x2_0000), "the other process maps it elsewhere");
    assert_eq!(collect.samples[1].comm.unwrap().as_bytes(), b"job 3/4");
    assert_eq!(collect.samples.last().unwrap().comm.unwrap().as_bytes(), b"renamed");
    let child: Vec<_> = collect.samples.iter().filter(|sample| sample.raw.pid == 300).collect();
    assert_eq!(child[0].comm.unwrap().as_bytes(), b"caf\xc3\xff", "a child has its parent's name");
    assert_eq!(child[0].memory, shared(0x2_0008), "and its mappings");
    assert!(matches!(child[1].memory, Some(MemoryId::Private { addr: 0xabc_0000, .. })));

    let big = Order { big: true };
    assert_eq!(read(&file(big, &records(big))), collect, "big endian");
    assert_eq!(read(&pipe(little, &records(little))), collect, "from a pipe");
    assert_eq!(read(&pipe(big, &records(big))), collect, "big endian, from a pipe");
    let without_rounds: Vec<_> = records(little).into_iter().filter(|record| record.len() > 8).collect();
    assert_eq!(read(&file(little, &without_rounds)), collect, "an old perf writes no marks");
}

#[test]
fn a_mark_says_what_is_complete_at_the_one_before() {
    let order = Order { big: false };
    // In ms: fewer than 20 at a time are not released.
    let at = |ms: u64| sample(order, ms * 1_000_000, 100, 100, 0x1_0000, 5, 4096);
    // A ring that is read first has newer samples than one that is read in the next round.
    let rounds = [vec![at(200), at(210)], vec![at(100), at(300)], vec![at(220), at(400)], vec![at(310)]];
    let records: Vec<_> =
        rounds.into_iter().flat_map(|round| [round, vec![super::made::round(order)]]).flatten().collect();
    let (_dir, path) = write(&file(order, &[vec![comm(order, 0, 100, 100, b"web")], records].concat()));
    let (collect, outcome, _) = replayed(&path);
    let times: Vec<u64> = collect.samples.iter().map(|sample| sample.raw.time / 1_000_000).collect();
    assert_eq!((times, outcome.loss.late), (vec![100, 200, 210, 220, 300, 310, 400], 0));
}

#[test]
fn a_section_names_the_event() {
    for order in [Order { big: false }, Order { big: true }] {
        let file = PerfData::open(std::io::Cursor::new(named(order, &records(order)))).unwrap();
        assert_eq!((file.events()[0].name.as_deref(), &file.events()[0].ids[..]), (Some("a b"), &[ID][..]));
    }
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
