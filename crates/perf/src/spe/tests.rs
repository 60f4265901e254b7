//! Packets and records that hardware wrote, and made ones however they are cut.

use proptest::prelude::*;

use super::packet::{next, Next, Packet};
use super::{encode, event, Cores, Counts, Decoder, Record};
use scxprof_base::sample::{Access, Cost, DataSource};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

fn decoded(hex: &str) -> (Vec<Record>, Counts) {
    let mut decoder = Decoder::default();
    let mut records = Vec::new();
    decoder.decode(&bytes(hex), &mut |record| records.push(*record));
    (records, decoder.counts())
}

/// The packets of Arm's own parser (telemetry-solution, tools/spe_parser/tests/unit/test_spe_decoder.py), which hardware wrote.
#[test]
fn packets_of_hardware() {
    for (hex, packet) in [
        ("b0 5c 8b 8c 86 c2 c0 ff c0", Packet::Address { index: 0, payload: 0xc0ff_c0c2_868c_8b5c }),
        ("b3 e8 09 8a d8 0b 08 00 80", Packet::Address { index: 3, payload: 0x8000_080b_d88a_09e8 }),
        ("b2 c0 26 c2 07 20 fc ff 00", Packet::Address { index: 2, payload: 0x00ff_fc20_07c2_26c0 }),
        ("99 07 00", Packet::Counter { index: 1, cycles: 7 }),
        ("98 0b 00", Packet::Counter { index: 0, cycles: 11 }),
        ("9a 01 00", Packet::Counter { index: 2, cycles: 1 }),
        ("01", Packet::End),
        ("71 6c f8 a5 83 00 0c 00 00", Packet::Timestamp(13_196_348_225_644)),
        ("49 16", Packet::Operation { class: 1, payload: 0x16 }),
        ("4a 01", Packet::Operation { class: 2, payload: 1 }),
        ("43 00", Packet::DataSource(0)),
        ("52 1e 03", Packet::Events(0x31e)),
        ("65 d2 04 00 00", Packet::Context { index: 1, id: 1234 }),
        // The rarer ones: the fifth address, an alignment to 64 bytes, an unknown packet of four bytes.
        ("b4 01 00 00 00 00 00 00 80", Packet::Address { index: 4, payload: 0x8000_0000_0000_0001 }),
        ("21 99 05 00", Packet::Counter { index: 9, cycles: 5 }),
        ("25 00", Packet::Alignment(64)),
        ("6f 01 02 03 04", Packet::Unknown),
    ] {
        let bytes = bytes(hex);
        assert_eq!(next(&bytes), Next::Packet(packet, bytes.len()), "{hex}");
        for cut in 0..bytes.len() {
            assert_eq!(next(&bytes[..cut]), Next::More, "{hex} cut at {cut}");
        }
    }
    for hex in ["02", "c0", "ff", "24 b0", "22 01"] {
        assert_eq!(next(&bytes(hex)), Next::Bad, "{hex}");
    }
}

#[test]
fn a_load_of_hardware() {
    // It follows the timestamp that ended the one before.
    let hex = "71 af f9 04 81 00 0c 00 00 b0 00 b6 a9 e4 aa aa 00 80 49 00 52 16 00 99 04 00 98 08 00 b2 43 da 5d e6 aa aa 00 00 \
               9a 01 00 b3 43 5a 95 2c 03 08 00 80 43 00 71 b0 f9 04 81 00 0c 00 00";
    let (records, counts) = decoded(hex);
    let [load] = records[..] else { panic!("{records:?}") };
    assert_eq!(counts, Counts { records: 1, ..Counts::default() });
    assert_eq!((load.ip, load.level, load.access()), (0xaaaa_e4a9_b600, Some(0), Access::Load));
    assert_eq!((load.addr, load.phys), (Some(0xaaaa_e65d_da43), 0x803_2c95_5a43));
    assert_eq!((load.latency, load.source, load.timestamp), (8, Some(0), Some(13_196_304_120_240)));
    assert_eq!(load.events, event::RETIRED | event::L1D_ACCESS | event::TLB_ACCESS);
    assert!(load.is_access());
}

#[test]
fn branches_of_hardware_with_and_without_a_timestamp() {
    let begin = "b0 e0 43 21 bf fd 7f 00 80 00 00 00 00 00 00 00 00 00 00 4a 01 52 02 00 99 27 00 98 28 00 \
                 b1 08 44 21 bf fd 7f 00 80 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 ";
    for (end, timestamp) in
        [("00 00 00 00 00 00 00 00 01", None), ("71 6b 72 5a 1d 8f 03 00 00", Some(3_913_207_673_451))]
    {
        let (records, counts) = decoded(&format!("{begin}{end}"));
        let [branch] = records[..] else { panic!("{records:?}") };
        assert_eq!((branch.ip, branch.target, branch.latency), (0x7ffd_bf21_43e0, 0x7ffd_bf21_4408, 40));
        assert_eq!((branch.access(), branch.is_access(), branch.timestamp), (Access::Unknown, false, timestamp));
        assert_eq!(counts.records, 1);
    }
}

#[test]
fn addresses_of_the_kernel_have_their_top_byte_and_pointers_lose_their_tag() {
    let (records, _) =
        decoded("b0 5c 8b 8c 86 c2 c0 ff c0 49 01 b2 c0 26 c2 07 20 fc ff 00 01 b2 43 da 5d e6 aa aa 00 5a 49 00 01");
    let [kernel, user] = records[..] else { panic!("{records:?}") };
    assert_eq!((kernel.ip, kernel.level), (0xffff_c0c2_868c_8b5c, Some(2)));
    assert_eq!((kernel.addr, kernel.access()), (Some(0xffff_fc20_07c2_26c0), Access::Store));
    assert_eq!(user.addr, Some(0xaaaa_e65d_da43));
}

#[test]
fn operations_are_loads_stores_or_both() {
    let access = |class, payload| Record { operation: Some((class, payload)), ..Record::default() }.access();
    for (payload, expected) in [
        (0x00, Access::Load),
        (0x01, Access::Store),
        (0x05, Access::Store),
        // Atomic; an exclusive load, and an acquiring one; a load of SVE with a length in the bits of "atomic".
        (0x16, Access::Update),
        (0x07, Access::Update),
        (0x0a, Access::Load),
        (0x12, Access::Load),
        (0x0c, Access::Load),
        (0x3d, Access::Store),
    ] {
        assert_eq!(access(1, payload), expected, "{payload:#x}");
    }
    assert_eq!((access(0, 0), access(2, 1)), (Access::Unknown, Access::Unknown));
}

#[test]
fn damage_costs_the_record_that_it_is_in() {
    // A bad byte in the first; the second is whole; the third has no end.
    let (records, counts) = decoded("49 00 ff b2 40 00 00 00 00 00 00 00 01 49 00 b2 80 00 00 00 00 00 00 00 01 49 00");
    assert_eq!(records.iter().map(|record| record.addr).collect::<Vec<_>>(), [Some(0x80)]);
    assert_eq!(counts, Counts { records: 1, cut: 1, bad_bytes: 1, unknown: 0 });
    let mut decoder = Decoder::default();
    decoder.decode(&bytes("49 00 b2 40 00"), &mut |_| panic!("not whole"));
    assert_eq!(decoder.position(), 5);
    decoder.jump(4096);
    let mut found = 0;
    decoder.decode(&bytes("49 01 01"), &mut |record| {
        assert_eq!((record.access(), record.addr), (Access::Store, None));
        found += 1;
    });
    assert_eq!((found, decoder.counts().cut, decoder.position()), (1, 1, 4099));
}

#[test]
fn an_alignment_skips_to_a_multiple_of_its_size_in_the_buffer() {
    let mut piece = bytes("49 00 24 00");
    piece.resize(32, 0xff);
    piece.extend(bytes("b2 80 00 00 00 00 00 00 00 01"));
    let mut found = Vec::new();
    let mut decoder = Decoder::default();
    decoder.jump(64);
    decoder.decode(&piece, &mut |record| found.push((record.access(), record.addr)));
    assert_eq!(found, [(Access::Load, Some(0x80))]);
    assert_eq!(decoder.counts().bad_bytes, 0);
}

#[test]
fn sources_say_what_the_core_means_by_them() {
    // Implementer, part and revision: Neoverse N1, AmpereOne, another.
    let cores = [0x413f_d0c1, 0xc00f_ac40, 0x480f_d010].map(Cores::of);
    assert_eq!(cores, [Cores::Neoverse, Cores::AmpereOne, Cores::Other]);
    let load = Record { operation: Some((1, 0)), events: event::LLC_MISS | event::REMOTE, ..Record::default() };
    let cost = |cores: Cores, source| cores.data_source(&Record { source: Some(source), ..load }).cost();
    for (at, source, cycles) in [
        (0, 0x9, 100),
        (0, 0xc, 100),
        (0, 0xb, 50),
        (0, 0xd, 250),
        (0, 0xe, 200),
        (1, 0x3, 50),
        (1, 0x5, 250),
        (1, 0x7, 200),
    ] {
        assert_eq!(cost(cores[at], source), Cost::Miss { cycles }, "{source:#x}");
    }
    for (at, source) in [(0, 0x0), (0, 0x8), (1, 0x8), (1, 0x9)] {
        assert_eq!(cost(cores[at], source), Cost::Hit, "{source:#x}");
    }
    // Its own numbers are not known, and its events say enough.
    assert_eq!(cost(cores[2], 0x0), Cost::Miss { cycles: 350 });
    let snooped = Record { events: event::SNOOPED | event::MODIFIED | event::L2D_MISS, ..load };
    assert!(cores[2].data_source(&snooped).is_hitm());
    let store = Record { operation: Some((1, 1)), source: Some(0xe), ..load };
    assert_eq!(
        (cores[0].data_source(&store).access(), cores[0].data_source(&store).cost()),
        (Access::Store, Cost::Unknown)
    );
    assert_eq!(cores[0].data_source(&Record::default()), DataSource(0));
}

fn any_record() -> impl Strategy<Value = Record> {
    let address = 1u64..1 << 47;
    let kernel = address.clone().prop_map(|address| address | 0xffff << 48);
    let virt = prop_oneof![address.clone(), kernel.clone()];
    let code = prop_oneof![address.clone().prop_map(|ip| (ip, 0)), kernel.prop_map(|ip| (ip, 2))];
    let what = (code, proptest::option::of(virt), 0..1u64 << 40, any::<u32>(), any::<u16>());
    (
        what,
        proptest::option::of(any::<u16>()),
        proptest::option::of(any::<u32>()),
        proptest::option::of(any::<u64>()),
        any::<u8>(),
    )
        .prop_map(|(((ip, level), addr, phys, events, latency), source, context, timestamp, payload)| Record {
            ip,
            level: Some(level),
            target: 0,
            addr,
            phys,
            events: events.into(),
            operation: Some((1, payload)),
            source,
            latency,
            context,
            timestamp,
        })
}

proptest! {
    #[test]
    fn records_are_read_as_they_were_written_however_they_are_cut(
        records in proptest::collection::vec(any_record(), 0..20),
        pieces in proptest::collection::vec(1usize..200, 1..50),
    ) {
        let mut written = Vec::new();
        for record in &records {
            encode::record(record, &mut written);
        }
        prop_assert_eq!(written.len() % 64, 0);
        let (mut read, mut decoder, mut rest) = (Vec::new(), Decoder::default(), &written[..]);
        for piece in pieces.iter().cycle() {
            let (piece, after) = rest.split_at(rest.len().min(*piece));
            decoder.decode(piece, &mut |record| read.push(*record));
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(&read, &records);
        prop_assert_eq!(decoder.counts(), Counts { records: records.len() as u64, ..Counts::default() });
    }

    #[test]
    fn any_bytes_are_read_alike_whole_and_in_pieces(
        any in proptest::collection::vec(prop_oneof![any::<u8>(), Just(0x49u8), Just(0xb2), Just(0x01), Just(0x25), Just(0x00)], 0..400),
        pieces in proptest::collection::vec(1usize..40, 1..50),
    ) {
        let (mut whole, mut decoder) = (Vec::new(), Decoder::default());
        decoder.decode(&any, &mut |record| whole.push(*record));
        let (mut read, mut cut, mut rest) = (Vec::new(), Decoder::default(), &any[..]);
        for piece in pieces.iter().cycle() {
            let (piece, after) = rest.split_at(rest.len().min(*piece));
            cut.decode(piece, &mut |record| read.push(*record));
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(read, whole);
        prop_assert_eq!(cut.counts(), decoder.counts());
        prop_assert_eq!(cut.position(), decoder.position());
    }
}
