//! One packet: a header of one or two bytes, which says how long the payload is, and the payload, in little-endian order.

/// The longest packet: two bytes of header and eight of payload. Only an alignment packet skips more.
pub const MAX_SIZE: usize = 10;

/// A packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packet {
    /// One byte of no meaning.
    Padding,
    /// Skips to the next multiple of so many bytes in the buffer, a power of two.
    Alignment(u32),
    /// The end of a record that has no timestamp.
    End,
    /// The generic timer's count: CNTVCT, or CNTPCT if the event was opened with `pct_enable`. It ends a record.
    Timestamp(u64),
    /// What happened to the operation, as bits ([`super::event`]).
    Events(u64),
    /// Where loaded data came from; what the number means depends on the core.
    DataSource(u16),
    /// `CONTEXTIDR_EL1` for index 0, `CONTEXTIDR_EL2` for 1.
    Context {
        /// Which of them.
        index: u8,
        /// Its content.
        id: u32,
    },
    /// What was executed.
    Operation {
        /// 0 other, 1 load, store or atomic, 2 branch or exception return.
        class: u8,
        /// Its kind, by class.
        payload: u8,
    },
    /// An address.
    Address {
        /// 0 the instruction, 1 the target of a branch, 2 virtual and 3 physical address of the data, 4 the target of the last branch.
        index: u8,
        /// The address and, above it, what belongs to it.
        payload: u64,
    },
    /// A latency in cycles.
    Counter {
        /// 0 total, 1 until the operation was issued, 2 of the translation of the address.
        index: u8,
        /// The cycles.
        cycles: u16,
    },
    /// A packet that this decoder does not know and that says its size.
    Unknown,
}

/// What comes next in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// A packet of so many bytes.
    Packet(Packet, usize),
    /// The buffer ends within a packet.
    More,
    /// No packet begins with this byte.
    Bad,
}

/// The packet at the beginning of `bytes`.
#[must_use]
pub fn next(bytes: &[u8]) -> Next {
    let Some((&header, after)) = bytes.split_first() else { return Next::More };
    match header {
        0x00 => return Next::Packet(Packet::Padding, 1),
        0x01 => return Next::Packet(Packet::End, 1),
        // An extended header: two bits more for the index of the header after it.
        0x20..=0x2f => {
            let Some((&second, payload)) = after.split_first() else { return Next::More };
            if second == 0 {
                return Next::Packet(Packet::Alignment(2 << (header & 0xf)), 2);
            }
            return match header {
                0x20..=0x23 => with_payload(second, (header & 3) << 3 | second & 7, payload, 2),
                _ => Next::Bad,
            };
        }
        _ => {}
    }
    with_payload(header, header & 7, after, 1)
}

/// The packet whose last byte of header is `header`, after `before` bytes.
fn with_payload(header: u8, index: u8, payload: &[u8], before: usize) -> Next {
    // Bits 7 and 6 of a header with a payload are 01 or 10; bits 5 and 4 are the logarithm of its size.
    if !matches!(header >> 6, 1 | 2) {
        return Next::Bad;
    }
    let size = 1 << (header >> 4 & 3);
    let Some(payload) = payload.get(..size) else { return Next::More };
    let value = payload.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
    let packet = match header {
        0x71 if before == 1 => Packet::Timestamp(value),
        0x42 | 0x52 | 0x62 | 0x72 if before == 1 => Packet::Events(value),
        0x43 | 0x53 if before == 1 => Packet::DataSource(value as u16),
        0x64..=0x67 if before == 1 => Packet::Context { index: header & 3, id: value as u32 },
        0x48..=0x4b if before == 1 => Packet::Operation { class: header & 3, payload: value as u8 },
        0xb0..=0xb7 => Packet::Address { index, payload: value },
        0x98..=0x9f => Packet::Counter { index, cycles: value as u16 },
        _ => Packet::Unknown,
    };
    Next::Packet(packet, before + size)
}
