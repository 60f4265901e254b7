//! Tests of every layout and every record type: encode, decode, compare; and of the decoder on any bytes.

use proptest::prelude::*;

use super::encode::encode;
use super::record::*;

const IPS: &[u8] = &[1, 0, 0, 0, 0, 0, 0, 0x80, 2, 0, 0, 0, 0, 0, 0, 0];
const REGS: Layout = Layout {
    sample_type: 0,
    read_format: read_format::TOTAL_TIME_ENABLED | read_format::ID | read_format::LOST,
    branch_sample_type: 1 << 17 | 1 << 19,
    regs_user: 0b1011,
    regs_intr: 0b1,
    sample_id_all: true,
};

/// A sample in which the fields in `bits` are set and all others zero or empty.
fn sample_of(bits: u64) -> SampleRecord<'static> {
    use sample_type as t;
    let has = |bit: u64| bits & bit != 0;
    let value = |bit: u64| if has(bit) { 0x1111_1111_1111_1111 ^ bit.rotate_left(30) } else { 0 };
    SampleRecord {
        identifier: value(t::IDENTIFIER),
        ip: value(t::IP),
        pid: value(t::TID) as u32,
        tid: (value(t::TID) >> 32) as u32,
        time: value(t::TIME),
        addr: value(t::ADDR),
        id: value(t::ID),
        stream_id: value(t::STREAM_ID),
        cpu: value(t::CPU) as u32,
        period: value(t::PERIOD),
        read: if has(t::READ) { Words(&[7; 32]) } else { Words::default() },
        callchain: if has(t::CALLCHAIN) { Words(IPS) } else { Words::default() },
        raw: if has(t::RAW) { &[9; 12] } else { &[] },
        branches: if has(t::BRANCH_STACK) {
            Branches { hw_index: 3, entries: Words(&[5; 48]), counters: Words(&[6; 16]) }
        } else {
            Branches::default()
        },
        regs_user: if has(t::REGS_USER) {
            Registers { abi: 2, mask: REGS.regs_user, values: Words(&[4; 24]) }
        } else {
            Registers::default()
        },
        stack_user: if has(t::STACK_USER) { &[8; 10] } else { &[] },
        stack_user_size: if has(t::STACK_USER) { 16 } else { 0 },
        weight: value(t::WEIGHT | t::WEIGHT_STRUCT) & if has(t::WEIGHT | t::WEIGHT_STRUCT) { u64::MAX } else { 0 },
        data_src: value(t::DATA_SRC),
        transaction: value(t::TRANSACTION),
        regs_intr: if has(t::REGS_INTR) {
            Registers { abi: 1, mask: REGS.regs_intr, values: Words(&[2; 8]) }
        } else {
            Registers::default()
        },
        phys_addr: value(t::PHYS_ADDR),
        cgroup: value(t::CGROUP),
        data_page_size: value(t::DATA_PAGE_SIZE),
        code_page_size: value(t::CODE_PAGE_SIZE),
        aux: if has(t::AUX) { &[3; 8] } else { &[] },
    }
}

/// All 2^25 subsets except those with both weights, which the kernel rejects; a few hundred of them in Miri.
#[test]
fn every_sample_type_subset_round_trips() {
    let step = if cfg!(miri) { 104_729 } else { 1 };
    let both = sample_type::WEIGHT | sample_type::WEIGHT_STRUCT;
    let half = |range: std::ops::RangeInclusive<u64>| {
        let mut bytes = Vec::with_capacity(512);
        for bits in range.step_by(step) {
            if bits & both == both {
                continue;
            }
            let layout = Layout { sample_type: bits, ..REGS };
            let sent = sample_of(bits);
            bytes.clear();
            assert!(encode(&Record::Sample(sent), &SampleId::default(), 2, &layout, &mut bytes), "{bits:#x}");
            match decode(&bytes, &layout) {
                Ok((header, Record::Sample(got), _)) if got == sent && header.misc == 2 => {}
                other => panic!("sample_type {bits:#x}: {other:?}\nsent {sent:?}"),
            }
            if let Some(places) = Places::new(bits) {
                let (_, words) = places.words(&bytes).unwrap().unwrap();
                assert_eq!(places.sample(words), sent, "{bits:#x}");
            }
        }
    };
    let middle = sample_type::KNOWN / 2;
    std::thread::scope(|scope| {
        scope.spawn(|| half(0..=middle));
        scope.spawn(|| half(middle + 1..=sample_type::KNOWN));
    });
}

fn all_records() -> Vec<Record<'static>> {
    vec![
        Record::Mmap { pid: 1, tid: 2, addr: 3, len: 4, pgoff: 5, data: true, filename: b"/a b/c" },
        Record::Lost { id: 1, lost: 2 },
        Record::Comm { pid: 1, tid: 2, exec: true, comm: b"job 3/4" },
        Record::Comm { pid: 1, tid: 2, exec: false, comm: b"\xff\xfe  exactly8" },
        Record::Comm { pid: 1, tid: 2, exec: false, comm: b"" },
        Record::Exit { pid: 1, ppid: 2, tid: 3, ptid: 4, time: 5 },
        Record::Throttle { time: 1, id: 2, stream_id: 3 },
        Record::Unthrottle { time: 1, id: 2, stream_id: 3 },
        Record::Fork { pid: 1, ppid: 2, tid: 3, ptid: 4, time: 5 },
        Record::Read { pid: 1, tid: 2, values: Words(&[7; 32]) },
        Record::Mmap2 {
            pid: 1,
            tid: 2,
            addr: 3,
            len: 4,
            pgoff: 5,
            file: MappedFile::Inode { major: 8, minor: 1, inode: 99, generation: 3 },
            prot: 1,
            flags: 2,
            data: true,
            filename: b"//anon",
        },
        Record::Mmap2 {
            pid: 1,
            tid: 2,
            addr: 3,
            len: 4,
            pgoff: 5,
            file: MappedFile::BuildId(&[0xab; 20]),
            prot: 5,
            flags: 2,
            data: false,
            filename: b"/usr/lib/x.so",
        },
        Record::Aux { offset: 1, size: 2, flags: 3 },
        Record::ItraceStart { pid: 1, tid: 2 },
        Record::LostSamples { lost: 3 },
        Record::Switch { out: true, preempt: false },
        Record::SwitchCpuWide { out: true, preempt: true, next_prev_pid: 1, next_prev_tid: 2 },
        Record::Namespaces { pid: 1, tid: 2, links: Words(&[5; 32]) },
        Record::Ksymbol { addr: 1, len: 2, ksym_type: 3, flags: 4, name: b"bpf_prog_x" },
        Record::BpfEvent { event: 1, flags: 2, id: 3, tag: *b"01234567" },
        Record::Cgroup { id: 25, path: b"/workload.slice/my app.slice" },
        Record::TextPoke { addr: 1, old: &[1, 2, 3], new: &[4, 5] },
        Record::AuxOutputHwId { hw_id: 5 },
        Record::CallchainDeferred { cookie: 9, ips: Words(IPS) },
    ]
}

#[test]
fn every_record_type_round_trips_with_every_trailer() {
    use sample_type as t;
    let bits = [t::TID, t::TIME, t::ID, t::STREAM_ID, t::CPU, t::IDENTIFIER];
    for subset in 0..1u32 << bits.len() {
        let chosen = |index: usize| subset >> index & 1 == 1;
        let sample_type = bits.iter().enumerate().filter(|(index, _)| chosen(*index)).map(|(_, bit)| bit).sum();
        let set = |index: usize, value: u64| if chosen(index) { value } else { 0 };
        let id = SampleId {
            pid: set(0, 11) as u32,
            tid: set(0, 12) as u32,
            time: set(1, 13),
            id: set(2, 14),
            stream_id: set(3, 15),
            cpu: set(4, 16) as u32,
            identifier: set(5, 17),
        };
        let layout = Layout { sample_type, ..REGS };
        for sent in all_records() {
            let mut bytes = Vec::new();
            assert!(encode(&sent, &id, 1, &layout, &mut bytes));
            let (header, got, got_id) = decode(&bytes, &layout).unwrap();
            assert_eq!((got, got_id), (sent, id));
            assert_eq!(header.misc & 7, 1);
        }
    }
}

#[test]
fn every_read_format_round_trips() {
    for format in 0..32u64 {
        let times = (format & 3).count_ones() as usize;
        let each = 1 + (format >> 2 & 1) as usize + (format >> 4 & 1) as usize;
        let mut words: Vec<u64> = Vec::new();
        if format & read_format::GROUP != 0 {
            words.push(3);
            words.extend(std::iter::repeat_n(77, times + 3 * each));
        } else {
            words.extend((0..times + each).map(|word| 100 + word as u64));
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let layout = Layout { sample_type: sample_type::READ, read_format: format, ..Layout::default() };
        let sent = SampleRecord { read: Words(&bytes), ..SampleRecord::default() };
        let mut encoded = Vec::new();
        assert!(encode(&Record::Sample(sent), &SampleId::default(), 0, &layout, &mut encoded));
        assert_eq!(decode(&encoded, &layout).unwrap().1, Record::Sample(sent), "read_format {format:#x}");
        if format & read_format::GROUP == 0 {
            let value = ReadValue::decode(Words(&bytes), format).unwrap();
            assert_eq!(value.value, 100);
            assert_eq!(value.lost != 0, format & read_format::LOST != 0);
        }
    }
}

#[test]
fn the_kernels_layout_is_what_golden_bytes_say() {
    // PERF_RECORD_LOST as printed by `perf script -D` on Linux 6.18: the count is the second word, not the first.
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&2u32.to_ne_bytes());
    bytes.extend_from_slice(&0u16.to_ne_bytes());
    bytes.extend_from_slice(&24u16.to_ne_bytes());
    bytes.extend_from_slice(&41u64.to_ne_bytes());
    bytes.extend_from_slice(&1234u64.to_ne_bytes());
    let (_, record, _) = decode(&bytes, &Layout::default()).unwrap();
    assert_eq!(record, Record::Lost { id: 41, lost: 1234 });
}

#[test]
fn unknown_types_are_passed_over_whatever_they_hold() {
    let layout = Layout { sample_type: sample_type::TID | sample_type::TIME, sample_id_all: true, ..Layout::default() };
    let mut bytes = vec![0xff; 40];
    bytes[..4].copy_from_slice(&77u32.to_ne_bytes());
    bytes[6..8].copy_from_slice(&40u16.to_ne_bytes());
    assert_eq!(decode(&bytes, &layout).unwrap().1, Record::Unknown { kind: 77 });
}

#[test]
fn a_cut_record_is_malformed_and_never_read_beyond_its_end() {
    let layout = Layout { sample_type: sample_type::KNOWN & !sample_type::WEIGHT, ..REGS };
    let mut whole = Vec::new();
    let sample = Record::Sample(sample_of(layout.sample_type));
    assert!(encode(&sample, &SampleId::default(), 0, &layout, &mut whole));
    for record in all_records() {
        assert!(encode(&record, &SampleId::default(), 0, &layout, &mut whole));
    }
    let mut at = 0;
    while let Some(header) = Header::read(&whole[at..]) {
        let size = usize::from(header.size);
        for cut in (8..size).step_by(8) {
            let mut bytes = whole[at..at + cut].to_vec();
            bytes[6..8].copy_from_slice(&(cut as u16).to_ne_bytes());
            let _ = decode(&bytes, &layout);
        }
        let mut cut = whole[at..at + 8].to_vec();
        cut[6..8].copy_from_slice(&8u16.to_ne_bytes());
        assert!(decode(&cut, &layout).is_err(), "type {} of no body", header.kind);
        at += size;
    }
}

fn any_layout() -> impl Strategy<Value = Layout> {
    (any::<u64>(), 0u64..32, any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>()).prop_map(
        |(sample_type, read_format, branch_sample_type, regs_user, regs_intr, sample_id_all)| Layout {
            sample_type,
            read_format,
            branch_sample_type,
            regs_user,
            regs_intr,
            sample_id_all,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn any_bytes_are_decoded_or_refused(kind in 0u32..26, misc: u16, body in prop::collection::vec(any::<u8>(), 0..512), layout in any_layout()) {
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&misc.to_ne_bytes());
        let size = 8 + body.len() / 8 * 8;
        bytes.extend_from_slice(&(size as u16).to_ne_bytes());
        bytes.extend_from_slice(&body[..size - 8]);
        if let Ok((_, record, id)) = decode(&bytes, &layout) {
            // A decoded record can be encoded again and reads the same.
            let mut again = Vec::new();
            if encode(&record, &id, misc & 7, &layout, &mut again) && !matches!(record, Record::Unknown { .. }) {
                if let Ok((_, second, _)) = decode(&again, &layout) {
                    prop_assert_eq!(second, record);
                }
            }
        }
    }

    #[test]
    fn fields_at_their_places_are_those_in_their_order(bits in 0..=sample_type::KNOWN, body in prop::collection::vec(any::<u64>(), 0..24)) {
        let varying = !(0..25).map(|bit| 1 << bit).filter(|&bit| Places::new(bit).is_some()).fold(0, |all, bit| all | bit);
        let layout = Layout { sample_type: bits & !varying, ..REGS };
        let places = Places::new(layout.sample_type).unwrap();
        let mut bytes = [9u32.to_ne_bytes(), [2, 0, (8 + body.len() * 8) as u8, 0]].concat();
        bytes.extend(body.iter().flat_map(|word| word.to_ne_bytes()));
        let quick = places.words(&bytes).map(|it| it.map(|(header, words)| (header, places.sample(words))));
        prop_assert_eq!(quick, decode_sample(&bytes, &layout));
    }

    #[test]
    fn any_bytes_at_all(bytes in prop::collection::vec(any::<u8>(), 0..64), layout in any_layout()) {
        let _ = decode(&bytes, &layout);
    }
}

#[test]
fn a_build_id_is_told_from_an_inode() {
    let field = |device: u64, inode: u64, generation: u64| [device, inode, generation].map(u64::to_le_bytes).concat();
    // As on /dev/vda1, /dev/nvme0n1p1, /dev/sda1, tmpfs.
    for device in [0x1_0000_00fe, 0x1_0000_0103, 0x1_0000_0008, 0x1_0000_0000] {
        assert_eq!(build_id(&field(device, 99, 3)), None, "{device:x}");
    }
    let id = |size: u8| {
        let mut field = [0; 24];
        field[0] = size;
        field[4..4 + usize::from(size)].fill(0xab);
        field
    };
    for size in [8, 16, 20] {
        assert_eq!(build_id(&id(size)), Some(&vec![0xab; size.into()][..]));
    }
    assert_eq!((build_id(&id(0)), build_id(&[1; 23])), (None, None));
}
