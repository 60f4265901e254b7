use std::io::Cursor;

use flate2::write::{GzEncoder, ZlibEncoder};
use flate2::Compression;

use super::*;

/// A packet with its tag and length.
fn packet(bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    write_packet(bytes, &mut whole).unwrap();
    whole
}

/// Packets of a timestamp each.
fn plain(count: u8) -> Vec<u8> {
    (0..count).flat_map(|time| packet(&[8 << 3, time])).collect()
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    let inner = encoder.finish().unwrap();
    // The tag of field 50.
    let mut outer = vec![0x92, 0x03];
    let len = packet(&inner);
    outer.extend(&len[1..]);
    packet(&outer)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn all(input: impl Read + Seek) -> (Vec<u8>, Damage) {
    let mut packets = Packets::new(input).unwrap();
    let mut bytes = Vec::new();
    loop {
        match packets.next().unwrap() {
            Step::Packet { bytes: inner, .. } => bytes.extend(packet(inner)),
            Step::Skipped => {}
            Step::End => return (bytes, packets.damage),
        }
    }
}

#[test]
fn packets_are_read_up_to_a_cut_or_nonsense() {
    let bytes = plain(100);
    assert_eq!(all(Cursor::new(&bytes)), (bytes.clone(), Damage::default()));
    for end in 0..bytes.len() {
        let (read, damage) = all(Cursor::new(&bytes[..end]));
        assert_eq!(read.len(), end / 4 * 4);
        assert_eq!(damage, Damage { cut: end % 4 != 0, ..Damage::default() }, "{end}");
    }
    let (read, damage) = all(Cursor::new([&bytes[..], &[0x0b], &[0; 40]].concat()));
    assert_eq!((read.len(), damage.no_sense_from), (400, Some(400)));
    // A large packet, larger than the window, and one after it.
    let large = packet(&[&[0x92, 0x06][..], &packet(&vec![7; 3 << 20])[1..]].concat());
    let file = [&large[..], &bytes].concat();
    assert_eq!(all(Cursor::new(&file)), (file.clone(), Damage::default()));
}

#[test]
fn a_packet_that_is_too_large_is_skipped() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&plain(1)).unwrap();
    // Its length, of 128 MiB, and a hole.
    file.write_all(&[PACKET, 0x80, 0x80, 0x80, 0x40]).unwrap();
    file.seek(SeekFrom::Current(128 << 20)).unwrap();
    file.write_all(&plain(2)).unwrap();
    let (read, damage) = all(file);
    assert_eq!((read, damage.too_large), ([plain(1), plain(2)].concat(), 1));
}

#[test]
fn compressed_files_and_packets_are_inflated() {
    let bytes = plain(100);
    let mut damage = Damage::default();
    let two = [gzip(&bytes), gzip(&bytes)].concat();
    let input = open(Cursor::new(two), None, &mut damage).unwrap().0;
    assert_eq!(all(input), ([&bytes[..], &bytes].concat(), Damage::default()));
    assert!(!damage.inflating);
    // A cut one gives what is there.
    let whole = gzip(&bytes);
    let input = open(Cursor::new(&whole[..whole.len() - 9]), None, &mut damage).unwrap().0;
    assert!(damage.inflating && !all(input).0.is_empty());
    let mixed = [&bytes[..], &zlib(&bytes), &bytes].concat();
    let mut damage = Damage::default();
    let file = inflate_packets(Cursor::new(&mixed), None, None, &mut damage).unwrap();
    assert_eq!((all(file).0, damage), (bytes.repeat(3), Damage::default()));
    // Neither nested ones nor nonsense are inflated.
    for inner in [zlib(&zlib(&bytes)), packet(&[0x92, 0x03, 2, 1, 1]), packet(&[0xaa, 0x08, 2, 1, 1])] {
        let mut damage = Damage::default();
        let file = inflate_packets(Cursor::new([&bytes[..], &inner].concat()), None, None, &mut damage).unwrap();
        assert_eq!((all(file).0, damage.not_inflated), (bytes.clone(), 1));
    }
}

#[test]
fn zstd_packets_are_inflated() {
    // A frame of one raw block: a single segment of 400 bytes, then the block's header and its bytes.
    let bytes = plain(100);
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x60, 144, 0];
    frame.extend(((400u32 << 3) | 1).to_le_bytes().iter().take(3));
    frame.extend(&bytes);
    assert_eq!(window_of(&frame), Some(400));
    let outer = [&[0xaa, 0x08][..], &packet(&frame)[1..]].concat();
    let mut damage = Damage::default();
    let file = inflate_packets(Cursor::new(packet(&outer)), None, None, &mut damage).unwrap();
    assert_eq!((all(file).0, damage), (bytes, Damage::default()));
    // A window of 2 GiB, as in the descriptor 0xa8.
    assert_eq!(window_of(&[0x28, 0xb5, 0x2f, 0xfd, 0, 0xa8]), Some(1 << 31));
}

#[test]
fn inflating_has_a_budget() {
    let bomb = vec![0; 1 << 20];
    let file = [plain(1), packet(&[&[0x92, 0x06][..], &packet(&bomb)[1..]].concat())].concat();
    for packed in [gzip(&file), [plain(1), zlib(&file)].concat()] {
        let mut damage = Damage::default();
        let within = |limit| {
            let mut damage = Damage::default();
            open(Cursor::new(&packed), Some(limit), &mut damage)
                .and_then(|(input, budget)| inflate_packets(input, budget, Some(limit), &mut damage).map(drop))
        };
        assert!(matches!(within(1 << 19), Err(TraceError::Inflates { limit: 0x80000 })));
        assert!(within(4 << 20).is_ok());
        assert!(open(Cursor::new(&packed), None, &mut damage).is_ok());
    }
    assert!(TraceError::Inflates { limit: 1 << 20 }.to_string().contains("1 MiB"));
}

#[test]
fn what_is_no_trace_is_told() {
    for head in [
        &b""[..],
        b"PERFILE2",
        b"\n\nsome text",
        b"{\"a\": 1}",
        b"\x0a",
        b"\x0a\x00",
        b"\x1f\x8b\x08",
        b"\x0a\x04\x08\x01\x10\x02",
    ] {
        assert!(!is_trace(head), "{head:?}");
    }
    assert!(is_trace(&plain(1)) && is_trace(&gzip(&plain(1))));
    let mut damage = Damage::default();
    assert!(matches!(open(Cursor::new(b""), None, &mut damage), Err(TraceError::Empty)));
    assert!(matches!(open(Cursor::new(b"text"), None, &mut damage), Err(TraceError::NotATrace)));
}
