//! Small files that inflate to very much, or say little in many bytes: each is refused or read in little memory and time.

use std::io::Write;
use std::process::Command;

use flate2::write::{GzEncoder, ZlibEncoder};
use flate2::Compression;

use super::encode::{file, packet, slice, Message};

/// Two arrays of as many bytes are less than any file may inflate to.
const MANY: usize = 15_000_000;

fn gzip(packets: &[Message]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&file(packets)).unwrap();
    encoder.finish().unwrap()
}

/// A packet that holds others, compressed with zlib.
fn zlib(bytes: &[u8]) -> Message {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    packet(1).bytes(50, &encoder.finish().unwrap())
}

/// A packet that holds `blocks` times 128 KiB of the same byte, compressed with zstd (RFC 8878): each block is that byte.
fn zstd(byte: u8, blocks: usize) -> Message {
    let block = |is_last: u32| {
        let head = ((128u32 << 10) << 3 | 1 << 1 | is_last).to_le_bytes();
        [head[0], head[1], head[2], byte]
    };
    let frame = [&b"\x28\xb5\x2f\xfd\0\x50"[..], &block(0).repeat(blocks - 1), &block(1)].concat();
    packet(1).bytes(133, &frame)
}

/// The exit code and stderr of `trace info` on the file, in 512 MiB of address space and 10 s of CPU time.
fn bounded(bytes: &[u8]) -> (Option<i32>, String) {
    assert!(bytes.len() < 4 << 20);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hostile");
    std::fs::write(&path, bytes).unwrap();
    let limited = "ulimit -v 524288; ulimit -t 10; exec \"$0\" trace info \"$1\"";
    let arguments = ["-c", limited, env!("CARGO_BIN_EXE_scxprof"), path.to_str().unwrap()];
    let output = Command::new("sh").args(arguments).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[track_caller]
fn refused(bytes: &[u8], sentence: &str) {
    let (code, said) = bounded(bytes);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.lines().count() == 1 && said.contains(sentence), "{said}");
}

/// Read: with a result, without an event, or damaged.
#[track_caller]
fn read(bytes: &[u8], expected: i32) {
    let (code, said) = bounded(bytes);
    assert_eq!(code, Some(expected), "{said}");
}

#[test]
fn events_of_one_packet_are_bounded_before_they_are_decoded() {
    let zeros = vec![0; MANY];
    let refused = |message: Message| {
        refused(&gzip(&[message]), "the trace is out of order: its events would take more than 256 MiB of memory");
    };
    // Compact switches and wakeups: their times and threads.
    for (times, threads) in [(1, 3), (7, 8)] {
        let compact = Message::new().bytes(times, &zeros).bytes(threads, &zeros);
        refused(packet(1).message(1, &Message::new().message(4, &compact)));
    }
    // Extra counters of an event with tracks of its own: integers, and doubles of 8 bytes.
    let counters = slice(3, 1, "a", "b").bytes(31, &zeros).bytes(12, &zeros);
    refused(packet(1).int(8, 5).message(11, &counters));
    let counters = slice(3, 1, "a", "b").bytes(45, &zeros[..3_000_000]).bytes(46, &vec![0; 24_000_000]);
    refused(packet(1).int(8, 5).message(11, &counters));
    // Events without a content.
    refused(packet(1).bytes(1, &[0x12, 0].repeat(MANY / 3)));
}

#[test]
fn packets_that_a_file_inflates_to_are_bounded() {
    const SENTENCE: &str = "the compressed trace has more than 1048576 packets";
    let empty = [0x0a, 0].repeat(4_000_000);
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&[&file(&[packet(1)]), &empty[..]].concat()).unwrap();
    refused(&encoder.finish().unwrap(), SENTENCE);
    refused(&file(&[zlib(&empty)]), SENTENCE);
    refused(&file(&vec![zlib(&empty[..400_000]); 10]), SENTENCE);
    // Packets of 12 bytes: each of these bytes is a tag or a length too.
    refused(&file(&[zstd(0x0a, 200)]), SENTENCE);
    refused(&file(&vec![zstd(0x0a, 10); 15]), SENTENCE);
}

#[test]
fn a_packet_inflates_to_no_more_than_any_packet_has() {
    let large = file(&vec![packet(1).bytes(900, &vec![0; 8 << 20]); 10]);
    refused(&file(&[zlib(&large)]), "the compressed trace inflates to more than 32 MiB");
    refused(&file(&[zlib(&large[..20 << 20]), zlib(&large[..20 << 20])]), "inflates to more than 32 MiB");
    // Bytes that are no packets.
    refused(&file(&[zstd(0, 400)]), "inflates to more than 32 MiB");
    // A larger file may inflate to more, but not one packet.
    let with = [packet(1).bytes(900, &vec![0; 2 << 20]), zlib(&large)];
    refused(&file(&with), "inflates to more than 64 MiB");
}

#[test]
fn what_a_packet_says_takes_no_more_than_is_kept_of_it() {
    let zeros = vec![0; MANY];
    // Names of compact events.
    let names = Message::new().bytes(1, &zeros[..9]).bytes(3, &zeros[..9]);
    let names = packet(1).message(1, &Message::new().bytes(4, &[&names.0[..], &[0x2a, 0].repeat(MANY)].concat()));
    read(&gzip(&[names]), 4);
    // A stack of the tables, and one within an event.
    let stack = Message::new().int(1, 1).bytes(2, &zeros).bytes(2, &zeros);
    read(&gzip(&[packet(1).message(12, &Message::new().message(7, &stack))]), 1);
    let inline = slice(3, 1, "a", "b").bytes(55, &[0x0a, 0].repeat(MANY));
    read(&gzip(&[packet(1).int(8, 5).message(11, &inline)]), 0);
    // Entries of a dictionary with a long name.
    let name = Message::new().int(1, 1).text(2, &"x".repeat(4096));
    let table = packet(1).message(12, &Message::new().message(3, &name));
    let entries = Message::new().bytes(4, &[&[8, 1][..], &[0x5a, 0].repeat(MANY)].concat());
    let event = [&slice(3, 1, "a", "b").0[..], &entries.0].concat();
    read(&gzip(&[table, packet(1).int(8, 5).bytes(11, &event)]), 0);
}

#[test]
fn clocks_that_each_chunk_keeps_are_bounded() {
    // 240 clocks of differences, then events each of which is older than the one before.
    let clock = |id: u64| Message::new().int(1, id).int(2, 100).int(3, 1).int(4, 10);
    let snapshot = |sequence| {
        let boot = Message::new().message(1, &Message::new().int(1, 6).int(2, 100));
        packet(sequence).message(6, &(64..124).fold(boot, |snapshot, id| snapshot.message(1, &clock(id))))
    };
    let mut packets: Vec<Message> = (1..5).map(snapshot).collect();
    let event = Message::new().int(9, 3).int(11, 1).bytes(900, &[0; 520]);
    packets.extend((0..60_000).map(|at| packet(1).int(8, 1_000_000_000 - at).int(58, 6).message(11, &event)));
    let bytes = gzip(&packets);
    read(&bytes, 0);
}
