//! The packets of a file, and the files that must be inflated first.
//!
//! A trace is `Trace { repeated TracePacket packet = 1 }` and nothing else: no magic, no index, no end. Files may stand one
//! after another, and the last packet is often cut.

use std::io::{self, Read, Seek, SeekFrom, Write};

use flate2::read::{MultiGzDecoder, ZlibDecoder};
use ruzstd::decoding::StreamingDecoder;
use tempfile::SpooledTempFile;

use super::wire::{varint, Fields, Value};
use super::TraceError;

/// The tag of a packet: field 1, bytes.
const PACKET: u8 = 0x0a;
/// gzip (RFC 1952).
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Fields of a packet that hold packets: `compressed_packets` (zlib) and `zstd_compressed_packets`.
pub(super) const ZLIB: u32 = 50;
pub(super) const ZSTD: u32 = 133;
/// A larger packet is skipped: the largest that is seen in practice has some MiB.
const MAX_PACKET: u64 = 64 << 20;
/// Bytes that are read at once.
const WINDOW: usize = 256 << 10;
/// Bytes of inflated packets that are kept in memory; more go to a temporary file.
const IN_MEMORY: usize = 16 << 20;
/// Bytes that any file may inflate to; a larger one to this many times its size.
const FREE: u64 = 256 << 20;
const RATIO: u64 = 100;
/// The largest window of zstd, which bounds its memory: that of level 19.
const MAX_WINDOW: u64 = 8 << 20;

/// Where the packets are read from.
#[derive(Debug)]
pub(super) enum Input<R> {
    /// The file itself.
    Plain(R),
    /// What it inflated to.
    Inflated(SpooledTempFile),
}

impl<R: Read> Read for Input<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(input) => input.read(buffer),
            Self::Inflated(input) => input.read(buffer),
        }
    }
}

impl<R: Seek> Seek for Input<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            Self::Plain(input) => input.seek(to),
            Self::Inflated(input) => input.seek(to),
        }
    }
}

/// What could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Damage {
    /// The last packet ends after the file.
    pub cut: bool,
    /// The gzip file ends too early, or its data is damaged.
    pub inflating: bool,
    /// From this byte on the file makes no sense; of a compressed file, of the inflated bytes.
    pub no_sense_from: Option<u64>,
    /// Packets that are too large.
    pub too_large: u64,
    /// Compressed packets that could not be inflated.
    pub not_inflated: u64,
    /// Packets that are no message.
    pub malformed: u64,
}

impl Damage {
    /// One sentence for each.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let Self { cut, inflating, no_sense_from, too_large, not_inflated, malformed } = *self;
        let mut lines = Vec::new();
        if inflating {
            lines.push("the compressed data ends too early or is damaged: it was read as far as it goes".to_owned());
        }
        if cut {
            lines.push("the file ends within a packet, as one does whose recorder was killed".to_owned());
        }
        if let Some(at) = no_sense_from {
            lines.push(format!("from byte {at} on there are no packets"));
        }
        if too_large > 0 {
            lines.push(format!("{too_large} packets of more than {} MiB were skipped", MAX_PACKET >> 20));
        }
        if not_inflated > 0 {
            lines.push(format!("{not_inflated} compressed packets cannot be inflated"));
        }
        if malformed > 0 {
            lines.push(format!("{malformed} packets, bundles or events are malformed"));
        }
        lines
    }
}

/// A packet, or the reason why there is none here.
#[derive(Debug)]
pub(super) enum Step<'a> {
    Packet { offset: u64, end: u64, bytes: &'a [u8] },
    Skipped,
    End,
}

/// Walks the packets of a file from its beginning.
#[derive(Debug)]
pub(super) struct Packets<R> {
    input: R,
    buffer: Vec<u8>,
    /// The bytes of `buffer` that were not returned yet.
    start: usize,
    /// The offset in the file of `buffer`.
    base: u64,
    size: u64,
    pub(super) damage: Damage,
}

impl<R: Read + Seek> Packets<R> {
    pub(super) fn new(mut input: R) -> io::Result<Self> {
        let size = input.seek(SeekFrom::End(0))?;
        input.seek(SeekFrom::Start(0))?;
        Ok(Self { input, buffer: Vec::new(), start: 0, base: 0, size, damage: Damage::default() })
    }

    pub(super) fn into_inner(self) -> R {
        self.input
    }

    /// Reads on until at least `want` bytes are in the buffer, or all that are left.
    fn fill(&mut self, want: usize) -> io::Result<()> {
        if self.buffer.len() - self.start >= want {
            return Ok(());
        }
        self.buffer.drain(..self.start);
        self.base += self.start as u64;
        self.start = 0;
        let missing = want.max(WINDOW) - self.buffer.len();
        (&mut self.input).take(missing as u64).read_to_end(&mut self.buffer)?;
        Ok(())
    }

    pub(super) fn next(&mut self) -> io::Result<Step<'_>> {
        self.fill(24)?;
        let offset = self.base + self.start as u64;
        let bytes = self.buffer.get(self.start..).unwrap_or_default();
        if bytes.is_empty() {
            return Ok(Step::End);
        }
        let head = if bytes[0] == PACKET { varint(&bytes[1..]) } else { None };
        let Some((len, rest)) = head else {
            // A tag whose length is cut is a cut packet.
            self.damage.cut = bytes[0] == PACKET && bytes.len() < 11;
            self.damage.no_sense_from = (!self.damage.cut).then_some(offset);
            self.start = self.buffer.len();
            self.size = offset;
            return Ok(Step::End);
        };
        let head = bytes.len() - rest.len();
        let Some(end) =
            offset.checked_add(head as u64).and_then(|at| at.checked_add(len)).filter(|end| *end <= self.size)
        else {
            self.damage.cut = true;
            self.start = self.buffer.len();
            return Ok(Step::End);
        };
        if len > MAX_PACKET {
            self.damage.too_large += 1;
            self.input.seek(SeekFrom::Start(end))?;
            self.buffer.clear();
            (self.start, self.base) = (0, end);
            return Ok(Step::Skipped);
        }
        let whole = head + len as usize;
        self.fill(whole)?;
        let from = self.start;
        let Some(bytes) = self.buffer.get(from + head..from + whole) else {
            // The file became shorter.
            self.damage.cut = true;
            self.start = self.buffer.len();
            return Ok(Step::End);
        };
        self.start += whole;
        Ok(Step::Packet { offset, end, bytes })
    }
}

/// The packets of a part of a file that was read into memory, each with its offset in the file.
pub(super) fn packets_of(bytes: &[u8], base: u64) -> impl Iterator<Item = (u64, &[u8])> {
    let mut fields = Fields::new(bytes);
    std::iter::from_fn(move || {
        let offset = base + (bytes.len() - fields.rest().len()) as u64;
        match fields.next()? {
            (1, Value::Bytes(packet)) => Some((offset, packet)),
            _ => None,
        }
    })
}

/// True if a file that begins with `head` may be a trace: its first packet is one, or it is compressed with gzip and its
/// inflated beginning is.
#[must_use]
pub fn is_trace(head: &[u8]) -> bool {
    if head.starts_with(&GZIP) {
        let mut inflated = Vec::new();
        // The head may be cut.
        let _ = MultiGzDecoder::new(head).take(4096).read_to_end(&mut inflated);
        return begins_with_packet(&inflated);
    }
    begins_with_packet(head)
}

/// Looks at the first packet: there is no magic, but text that begins with a line end is not made of fields.
fn begins_with_packet(head: &[u8]) -> bool {
    let Some((&PACKET, rest)) = head.split_first() else { return false };
    let Some((len, rest)) = varint(rest) else { return false };
    if len == 0 || len > MAX_PACKET {
        return false;
    }
    let is_whole = rest.len() as u64 >= len;
    let packet = rest.get(..len as usize).unwrap_or(rest);
    let mut fields = Fields::new(packet);
    let mut count = 0;
    for (number, value) in fields.by_ref() {
        let is_known = match number {
            // The first ones of a profile of pprof are numbers.
            1 | 2 => matches!(value, Value::Bytes(_)),
            3 | 8 | 10 | 13 | 41 | 42 | 58 | 79 | 87 => matches!(value, Value::Varint(_)),
            _ => number < 1 << 16,
        };
        if !is_known {
            return false;
        }
        count += 1;
    }
    if is_whole {
        return count > 0 && !fields.is_broken();
    }
    // The field in which the head ends.
    let Some((tag, _)) = varint(fields.rest()) else { return count > 0 };
    matches!(tag & 7, 0 | 1 | 2 | 5) && (8..1 << 19).contains(&tag)
}

/// The bytes to which a file may still inflate.
struct Budget {
    left: u64,
    limit: u64,
}

impl Budget {
    fn copy(&mut self, from: &mut impl Read, to: &mut impl Write) -> Result<io::Result<()>, TraceError> {
        let mut buffer = vec![0; WINDOW];
        loop {
            let count = match from.read(&mut buffer) {
                Ok(0) => return Ok(Ok(())),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // What was inflated before stays.
                Err(error) => return Ok(Err(error)),
            };
            let Some(left) = self.left.checked_sub(count as u64) else {
                return Err(TraceError::Inflates { limit: self.limit });
            };
            self.left = left;
            to.write_all(buffer.get(..count).unwrap_or_default()).map_err(TraceError::Spool)?;
        }
    }
}

/// The budget for a file of `size` bytes, unless the caller has one.
fn budget(size: u64, limit: Option<u64>) -> Budget {
    let limit = limit.unwrap_or_else(|| size.saturating_mul(RATIO).max(FREE));
    Budget { left: limit, limit }
}

/// Inflates a file that is compressed as a whole, and leaves others as they are.
pub(super) fn open<R: Read + Seek>(
    mut input: R,
    limit: Option<u64>,
    damage: &mut Damage,
) -> Result<Input<R>, TraceError> {
    let size = input.seek(SeekFrom::End(0))?;
    input.seek(SeekFrom::Start(0))?;
    let mut head = Vec::new();
    (&mut input).take(WINDOW as u64).read_to_end(&mut head)?;
    if !is_trace(&head) {
        return Err(if head.is_empty() { TraceError::Empty } else { TraceError::NotATrace });
    }
    input.seek(SeekFrom::Start(0))?;
    if !head.starts_with(&GZIP) {
        return Ok(Input::Plain(input));
    }
    let mut file = SpooledTempFile::new(IN_MEMORY);
    damage.inflating = budget(size, limit).copy(&mut MultiGzDecoder::new(input), &mut file)?.is_err();
    Ok(Input::Inflated(file))
}

/// Replaces the compressed packets of a file by what they hold.
pub(super) fn inflate_packets<R: Read + Seek>(
    mut input: R,
    limit: Option<u64>,
    damage: &mut Damage,
) -> Result<SpooledTempFile, TraceError> {
    let size = input.seek(SeekFrom::End(0))?;
    let mut budget = budget(size, limit);
    let mut packets = Packets::new(input)?;
    let mut file = SpooledTempFile::new(IN_MEMORY);
    loop {
        let bytes = match packets.next()? {
            Step::Packet { bytes, .. } => bytes,
            Step::Skipped => continue,
            Step::End => break,
        };
        let mut fields = Fields::new(bytes);
        let inner = fields.find_map(|(number, value)| match (number, value) {
            (ZLIB | ZSTD, Value::Bytes(inner)) => Some((number, inner)),
            _ => None,
        });
        let mut inflated = Vec::new();
        let ended = match inner {
            Some((ZLIB, inner)) => budget.copy(&mut ZlibDecoder::new(inner), &mut inflated)?.is_ok(),
            Some((_, inner)) if window_of(inner).is_some_and(|window| window <= MAX_WINDOW) => {
                let decoder = StreamingDecoder::new(inner);
                decoder.is_ok_and(|mut decoder| {
                    budget.copy(&mut decoder, &mut inflated).is_ok_and(|copied| copied.is_ok())
                })
            }
            Some(_) => false,
            None => {
                budget.copy(&mut &*packet(bytes), &mut file)?.map_err(TraceError::Spool)?;
                continue;
            }
        };
        damage.not_inflated += u64::from(!ended);
        // A damaged one holds whole packets up to its damage, and a nested one is not inflated again.
        for (_, bytes) in packets_of(&inflated, 0) {
            if Fields::new(bytes).any(|(number, _)| matches!(number, ZLIB | ZSTD)) {
                damage.not_inflated += 1;
            } else {
                file.write_all(&packet(bytes)).map_err(TraceError::Spool)?;
            }
        }
    }
    let Damage { cut, no_sense_from, too_large, .. } = packets.damage;
    damage.cut |= cut;
    damage.no_sense_from = damage.no_sense_from.or(no_sense_from);
    damage.too_large += too_large;
    Ok(file)
}

/// A packet with its tag and length.
fn packet(bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::with_capacity(bytes.len() + 11);
    whole.push(PACKET);
    let mut len = bytes.len();
    while len >= 0x80 {
        whole.push(len as u8 | 0x80);
        len >>= 7;
    }
    whole.push(len as u8);
    whole.extend_from_slice(bytes);
    whole
}

/// The size of the window of a zstd frame (RFC 8878, section 3.1.1.1); `None` if it is none.
fn window_of(frame: &[u8]) -> Option<u64> {
    let frame = frame.strip_prefix(&[0x28, 0xb5, 0x2f, 0xfd])?;
    let (&descriptor, rest) = frame.split_first()?;
    if descriptor & 0x20 == 0 {
        let window = rest.first()?;
        let base = 1u64 << (10 + (window >> 3));
        return Some(base + base / 8 * u64::from(window & 7));
    }
    // A single segment: its window is its size.
    let skipped = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let (width, plus) = [(1, 0), (2, 256), (4, 0), (8, 0)][usize::from(descriptor >> 6)];
    let bytes = rest.get(skipped..skipped + width)?;
    let size = bytes.iter().rev().fold(0, |size, &byte| size << 8 | u64::from(byte));
    Some(size.saturating_add(plus))
}

#[cfg(test)]
#[path = "container_tests.rs"]
mod tests;
