//! Makes records of bytes that come in pieces.

use super::packet::{self, Next, Packet, MAX_SIZE};
use super::Record;

/// What a decoder has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Whole records.
    pub records: u64,
    /// Records that were begun and have no end, or damage in them.
    pub cut: u64,
    /// Bytes that begin no packet.
    pub bad_bytes: u64,
    /// Packets of unknown kinds, which are left out.
    pub unknown: u64,
}

/// The state between two pieces of one buffer.
#[derive(Debug, Default)]
pub struct Decoder {
    /// The beginning of a packet whose end is in the next piece.
    rest: Vec<u8>,
    record: Record,
    /// A record was begun.
    has_begun: bool,
    /// What follows is left out until a record ends: there was damage.
    is_damaged: bool,
    /// Bytes of the buffer so far, by which alignment packets count.
    position: u64,
    /// Bytes that an alignment packet still skips.
    skip: u64,
    counts: Counts,
}

impl Decoder {
    /// Decodes the next piece; passes each record that ends in it to `take`.
    pub fn decode(&mut self, mut bytes: &[u8], take: &mut impl FnMut(&Record)) {
        // The end of the packet that the last piece begins.
        while !self.rest.is_empty() && !bytes.is_empty() {
            let had = self.rest.len();
            let more = (MAX_SIZE - had.min(MAX_SIZE)).min(bytes.len());
            let (head, _) = bytes.split_at(more);
            self.rest.extend_from_slice(head);
            let joined = std::mem::take(&mut self.rest);
            match packet::next(&joined) {
                Next::More => {
                    self.rest = joined;
                    bytes = bytes.get(more..).unwrap_or_default();
                }
                Next::Packet(packet, size) => {
                    self.take(packet, size, take);
                    // It ends in this piece, or it would have been whole before.
                    bytes = bytes.get(size.saturating_sub(had)..).unwrap_or_default();
                }
                // Only an extended header needs a second byte to be bad, so the last piece had no byte after it.
                Next::Bad => self.bad(),
            }
        }
        loop {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len() as u64);
                bytes = bytes.get(skipped as usize..).unwrap_or_default();
                self.skip -= skipped;
                self.position = self.position.wrapping_add(skipped);
            }
            match packet::next(bytes) {
                Next::Packet(packet, size) => {
                    bytes = bytes.get(size..).unwrap_or_default();
                    self.take(packet, size, take);
                }
                Next::Bad => {
                    bytes = bytes.get(1..).unwrap_or_default();
                    self.bad();
                }
                Next::More => break,
            }
        }
        self.rest.extend_from_slice(bytes);
    }

    /// The bytes that follow do not continue those before: `position` bytes of the buffer are before them.
    pub fn jump(&mut self, position: u64) {
        if self.has_begun || !self.rest.is_empty() {
            self.counts.cut += 1;
        }
        *self = Self { position, counts: self.counts, ..Self::default() };
    }

    /// Bytes of the buffer so far, those of a begun packet included.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position.wrapping_add(self.rest.len() as u64)
    }

    /// What it has seen so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn bad(&mut self) {
        self.position = self.position.wrapping_add(1);
        self.counts.bad_bytes += 1;
        self.is_damaged = true;
    }

    fn take(&mut self, packet: Packet, size: usize, take: &mut impl FnMut(&Record)) {
        self.position = self.position.wrapping_add(size as u64);
        match packet {
            Packet::Padding => return,
            Packet::Alignment(to) => {
                // A power of two.
                self.skip = self.position.wrapping_neg() & (u64::from(to) - 1);
                return;
            }
            Packet::End => {}
            Packet::Timestamp(count) => self.record.timestamp = Some(count),
            Packet::Unknown => {
                self.counts.unknown += 1;
                self.has_begun = true;
                return;
            }
            packet => {
                self.record.take(packet);
                self.has_begun = true;
                return;
            }
        }
        if self.is_damaged {
            self.counts.cut += 1;
        } else if self.has_begun {
            self.counts.records += 1;
            take(&self.record);
        }
        (self.record, self.has_begun, self.is_damaged) = (Record::default(), false, false);
    }
}
