//! Damaged traces: no panic, bounded work, and one sentence for what could not be read.

use std::fs;

use super::files::*;

/// A generator of numbers from a seed (xorshift64*).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// Reads it to its end; returns the number of events.
fn read_damaged(bytes: Vec<u8>) -> Option<usize> {
    let size = bytes.len();
    let mut trace = open(bytes).ok()?;
    let mut count = 0;
    while let Ok(Some(_)) = trace.next_event() {
        count += 1;
        // An event has at least a byte; wprof's slices may be several events.
        assert!(count <= 8 * size + 64, "{count} events of {size} bytes");
    }
    let info = trace.info();
    assert!(info.damage.iter().all(|line| !line.is_empty() && line.len() < 200));
    Some(count)
}

#[test]
fn every_beginning_of_a_trace_is_read() {
    for name in ALL {
        let bytes = fixture(name);
        let step = (bytes.len() / 600).max(1);
        let whole = read_damaged(bytes.clone()).unwrap();
        let mut most = 0;
        for end in (0..bytes.len()).step_by(step) {
            if let Some(count) = read_damaged(bytes[..end].to_vec()) {
                assert!(count <= whole, "{name}: {count} events of {end} bytes, {whole} of all");
                most = most.max(count);
            }
        }
        assert!(most * 10 > whole * 9, "{name}: {most} of {whole}");
    }
}

#[test]
fn mutations_of_a_trace_are_read() {
    // SCXPROF_TRACE_MUTATIONS makes more.
    let rounds = std::env::var("SCXPROF_TRACE_MUTATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(300);
    let mut numbers = Numbers(0x5ca1_ab1e);
    let texts = fs::read_dir(path("textproto")).unwrap().map(|entry| entry.unwrap().file_name());
    let texts = texts.map(|name| format!("textproto/{}", name.to_str().unwrap()));
    for name in ALL.map(str::to_owned).into_iter().chain(texts) {
        let mut original = fixture(&name);
        // The beginning has the tables; a shorter file is quicker.
        original.truncate(60_000);
        let mut opened = 0;
        for _ in 0..rounds {
            let mut bytes = original.clone();
            for _ in 0..=numbers.below(8) {
                let at = numbers.below(bytes.len());
                match numbers.below(5) {
                    0 => bytes[at] ^= 1 << numbers.below(8),
                    1 => bytes[at] = numbers.next() as u8,
                    2 => drop(bytes.drain(at..(at + numbers.below(40)).min(original.len()).min(bytes.len()).max(at))),
                    3 => {
                        let from = numbers.below(bytes.len());
                        let piece = bytes[from..(from + numbers.below(200)).min(bytes.len())].to_vec();
                        bytes.splice(at..at, piece);
                    }
                    _ => bytes[at] = [0, 0x7f, 0x80, 0xff][numbers.below(4)],
                }
                if bytes.is_empty() {
                    break;
                }
            }
            opened += usize::from(read_damaged(bytes).is_some());
        }
        assert!(opened * 2 > rounds, "{name}: {opened} of {rounds}");
    }
}

#[test]
fn damage_is_said() {
    let bytes = fixture("ftrace-all.pftrace");
    let cut = super::files::read(bytes[..bytes.len() - 7].to_vec());
    assert_eq!(cut.info.damage, ["the file ends within a packet, as one does whose recorder was killed"]);
    let nonsense = super::files::read([&bytes[..], b"\x0bnonsense"].concat());
    assert_eq!(nonsense.info.damage, [format!("from byte {} on there are no packets", bytes.len())]);
    let whole = super::files::read(bytes);
    assert_eq!(nonsense.info.events, whole.info.events);
}
