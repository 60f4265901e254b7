//! The inverse of the decoder, for tests and made recordings.

use super::record::ADDRESS;
use super::Record;

/// Writes a record as the hardware does, padded to a multiple of 64 bytes.
pub fn record(record: &Record, into: &mut Vec<u8>) {
    let begin = into.len();
    let mut packet = |header: u8, payload: &[u8]| {
        into.push(header);
        into.extend_from_slice(payload);
    };
    if let Some(level) = record.level {
        packet(0xb0, &(record.ip & ADDRESS | u64::from(level) << 61 | 1 << 63).to_le_bytes());
    }
    if let Some((class, payload)) = record.operation {
        packet(0x48 | class & 3, &[payload]);
    }
    if record.events != 0 {
        packet(0x62, &(record.events as u32).to_le_bytes());
    }
    if record.latency > 0 {
        packet(0x98, &record.latency.to_le_bytes());
    }
    if record.target != 0 {
        packet(0xb1, &(record.target & ADDRESS | 1 << 63).to_le_bytes());
    }
    if let Some(addr) = record.addr {
        packet(0xb2, &(addr & ADDRESS).to_le_bytes());
    }
    if record.phys != 0 {
        packet(0xb3, &(record.phys & ADDRESS | 1 << 63).to_le_bytes());
    }
    if let Some(source) = record.source {
        packet(0x53, &source.to_le_bytes());
    }
    if let Some(context) = record.context {
        packet(0x64, &context.to_le_bytes());
    }
    // The last packet ends where the padding does.
    let end = if record.timestamp.is_some() { 9 } else { 1 };
    let size = (into.len() - begin + end).next_multiple_of(64);
    into.resize(begin + size - end, 0);
    match record.timestamp {
        Some(count) => {
            into.push(0x71);
            into.extend_from_slice(&count.to_le_bytes());
        }
        None => into.push(0x01),
    }
}
