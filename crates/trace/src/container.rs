//! The packets of a file, and the files that must be inflated first.
//!
//! A trace is `Trace { repeated TracePacket packet = 1 }` and nothing else: no magic, no index, no end. Files may stand one
//! after another, and the last packet is often cut.

use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};

use flate2::read::{MultiGzDecoder, ZlibDecoder};
use ruzstd::decoding::StreamingDecoder;
use tempfile::SpooledTempFile;

use super::ndjson::{convert, is_ndjson};
use super::wire::{varint, Fields, Value};
use super::TraceError;

/// The tag of a packet: field 1, bytes.
const PACKET: u8 = 0x0a;
/// gzip (RFC 1952).
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// The first bytes of wprof's own data (`struct wprof_data_hdr` of src/data.h, wprof 228b169), and its flags of a file that is not
/// complete, which stand after two bytes for the size of the header.
const WPROF_DATA: &[u8] = b"WPROF\0";
const INCOMPLETE: [u8; 8] = [0xff; 8];
/// Fields of a packet that hold packets: `compressed_packets` (zlib) and `zstd_compressed_packets`.
pub(super) const ZLIB: u32 = 50;
pub(super) const ZSTD: u32 = 133;
/// A larger packet is skipped: the largest that is seen in practice has some MiB.
const MAX_PACKET: u64 = 64 << 20;
/// Bytes that are read at once.
const WINDOW: usize = 256 << 10;
/// Bytes of inflated packets that are kept in memory; more go to a temporary file.
const IN_MEMORY: usize = 16 << 20;
/// Bytes that any file may inflate to; a larger one to this many times its size. Recordings inflate to 3 to 20 times theirs.
const FREE: u64 = 32 << 20;
const RATIO: u64 = 50;
/// Bytes that one compressed packet may inflate to. Perfetto's writers compress some hundred KiB at a time.
const MAX_INFLATED: u64 = MAX_PACKET;
/// Packets that any compressed file may have; a larger one as many as it has bytes. Each costs time, also an empty one.
const FREE_PACKETS: u64 = 1 << 20;
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

/// Walks the packets of a file, or of a part of one, from its beginning.
#[derive(Debug)]
pub(super) struct Packets<R> {
    input: R,
    buffer: Vec<u8>,
    /// The bytes of `buffer` that were not returned yet.
    start: usize,
    /// The offset in the file of `buffer`.
    base: u64,
    /// The offset at which the packets end; `u64::MAX` if only the input tells it.
    size: u64,
    pub(super) damage: Damage,
}

impl<R: Read + Seek> Packets<R> {
    pub(super) fn new(mut input: R) -> io::Result<Self> {
        let size = input.seek(SeekFrom::End(0))?;
        input.seek(SeekFrom::Start(0))?;
        Ok(Self::of_part(input, 0, size))
    }

    pub(super) fn next(&mut self) -> io::Result<Step<'_>> {
        self.step(|input, _, end| input.seek(SeekFrom::Start(end)).map(drop))
    }
}

impl<R: Read> Packets<R> {
    /// Those from `base` to `end` of a file; the input gives their bytes.
    pub(super) fn of_part(input: R, base: u64, end: u64) -> Self {
        Self { input, buffer: Vec::new(), start: 0, base, size: end, damage: Damage::default() }
    }

    pub(super) fn into_inner(self) -> R {
        self.input
    }

    /// The next packet of an input that cannot seek.
    pub(super) fn next_read(&mut self) -> io::Result<Step<'_>> {
        self.step(|input, from, end| io::copy(&mut input.take(end - from), &mut io::sink()).map(drop))
    }

    /// Reads on until at least `want` bytes are in the buffer, or all that are left.
    fn fill(&mut self, want: usize) -> io::Result<()> {
        if self.buffer.len() - self.start >= want {
            return Ok(());
        }
        self.buffer.drain(..self.start);
        self.base += self.start as u64;
        self.start = 0;
        let have = self.buffer.len();
        let left = self.size.saturating_sub(self.base.saturating_add(have as u64));
        let missing = ((want.max(WINDOW) - have) as u64).min(left);
        // A buffer that grows by itself takes up to twice the size of the packet.
        self.buffer.reserve_exact(missing as usize);
        (&mut self.input).take(missing).read_to_end(&mut self.buffer)?;
        Ok(())
    }

    /// `skip` leaves out the bytes of the input between two offsets.
    fn step(&mut self, skip: impl FnOnce(&mut R, u64, u64) -> io::Result<()>) -> io::Result<Step<'_>> {
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
            skip(&mut self.input, self.base + self.buffer.len() as u64, end)?;
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

/// True if a file that begins with `head` may be a trace: its first packet is one, or it is the JSON of wprof; or it is compressed
/// with gzip and its inflated beginning is. wprof's own data (`wprof.data`) is told too, to be refused with what to do.
#[must_use]
pub fn is_trace(head: &[u8]) -> bool {
    if head.starts_with(&GZIP) {
        let inflated = inflated_head(head);
        return begins_with_packet(&inflated) || is_ndjson(&inflated);
    }
    begins_with_packet(head) || is_ndjson(head) || head.starts_with(WPROF_DATA)
}

/// The beginning of what a head inflates to, which may be cut.
fn inflated_head(head: &[u8]) -> Vec<u8> {
    let mut inflated = Vec::new();
    let _ = MultiGzDecoder::new(head).take(4096).read_to_end(&mut inflated);
    inflated
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

/// The bytes to which a file may still inflate, and the packets that it may still have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    left: u64,
    limit: u64,
    packets: u64,
    most_packets: u64,
}

impl Budget {
    /// That of a file of `size` bytes, unless the caller has one.
    fn new(size: u64, limit: Option<u64>) -> Self {
        let limit = limit.unwrap_or_else(|| size.saturating_mul(RATIO).max(FREE));
        let packets = size.max(FREE_PACKETS);
        Self { left: limit, limit, packets, most_packets: packets }
    }

    /// Takes one packet.
    pub(super) fn packet(&mut self) -> Result<(), TraceError> {
        let left = self.packets.checked_sub(1);
        self.packets = left.ok_or(TraceError::Packets { limit: self.most_packets })?;
        Ok(())
    }
}

/// What a decoder gives, within a budget. Damaged data end it, so that what was inflated before stays.
struct Inflating<'a, R> {
    decoder: R,
    budget: &'a mut Budget,
    /// Bytes that this decoder may still give.
    left: u64,
    is_damaged: bool,
    /// It gave more than this limit.
    beyond: Option<u64>,
}

impl<'a, R: Read> Inflating<'a, R> {
    fn new(decoder: R, budget: &'a mut Budget, most: u64) -> Self {
        Self { decoder, budget, left: most, is_damaged: false, beyond: None }
    }

    /// Whether the data were whole, after the last byte was read.
    fn end(&self) -> Result<bool, TraceError> {
        self.beyond.map_or(Ok(!self.is_damaged), |limit| Err(TraceError::Inflates { limit }))
    }
}

impl<R: Read> Read for Inflating<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.is_damaged || self.beyond.is_some() {
            return Ok(0);
        }
        match self.decoder.read(buffer) {
            Ok(count) => {
                let bytes = count as u64;
                if bytes > self.left || bytes > self.budget.left {
                    self.beyond = Some(if bytes > self.budget.left { self.budget.limit } else { MAX_INFLATED });
                    return Ok(0);
                }
                self.left -= bytes;
                self.budget.left -= bytes;
                Ok(count)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(_) => {
                self.is_damaged = true;
                Ok(0)
            }
        }
    }
}

/// Inflates a file that is compressed as a whole, and leaves others as they are. Returns what is left of the budget of the first.
pub(super) fn open<R: Read + Seek>(
    mut input: R,
    limit: Option<u64>,
    damage: &mut Damage,
) -> Result<(Input<R>, Option<Budget>), TraceError> {
    let size = input.seek(SeekFrom::End(0))?;
    input.seek(SeekFrom::Start(0))?;
    let mut head = Vec::new();
    (&mut input).take(WINDOW as u64).read_to_end(&mut head)?;
    if head.starts_with(WPROF_DATA) {
        return Err(TraceError::WprofData { is_incomplete: head.get(8..16) == Some(&INCOMPLETE) });
    }
    if !is_trace(&head) {
        return Err(if head.is_empty() { TraceError::Empty } else { TraceError::NotATrace });
    }
    input.seek(SeekFrom::Start(0))?;
    if !head.starts_with(&GZIP) {
        if is_ndjson(&head) {
            return Ok((Input::Inflated(of_ndjson(input, damage)?), None));
        }
        return Ok((Input::Plain(input), None));
    }
    let is_json = is_ndjson(&inflated_head(&head));
    let mut budget = Budget::new(size, limit);
    let mut file = BufWriter::with_capacity(WINDOW, SpooledTempFile::new(IN_MEMORY));
    let mut inflating = Inflating::new(MultiGzDecoder::new(input), &mut budget, u64::MAX);
    io::copy(&mut inflating, &mut file).map_err(TraceError::Spool)?;
    damage.inflating = !inflating.end()?;
    let mut file = file.into_inner().map_err(|error| TraceError::Spool(error.into_error()))?;
    if is_json {
        file.seek(SeekFrom::Start(0))?;
        return Ok((Input::Inflated(of_ndjson(file, damage)?), None));
    }
    Ok((Input::Inflated(file), Some(budget)))
}

/// The packets that the lines of wprof's JSON stand for.
fn of_ndjson(lines: impl Read, damage: &mut Damage) -> Result<SpooledTempFile, TraceError> {
    let mut file = BufWriter::with_capacity(WINDOW, SpooledTempFile::new(IN_MEMORY));
    let lost = convert(BufReader::with_capacity(WINDOW, lines), &mut file).map_err(TraceError::Spool)?;
    damage.cut |= lost.is_cut;
    damage.malformed += lost.count;
    file.into_inner().map_err(|error| TraceError::Spool(error.into_error()))
}

/// Replaces the compressed packets of a file by what they hold. `budget` is what is left of that of the whole file, if that is
/// compressed too: then its other packets count as well.
pub(super) fn inflate_packets<R: Read + Seek>(
    mut input: R,
    budget: Option<Budget>,
    limit: Option<u64>,
    damage: &mut Damage,
) -> Result<SpooledTempFile, TraceError> {
    let size = input.seek(SeekFrom::End(0))?;
    let all_count = budget.is_some();
    let mut budget = budget.unwrap_or_else(|| Budget::new(size, limit));
    let mut packets = Packets::new(input)?;
    let mut file = BufWriter::with_capacity(WINDOW, SpooledTempFile::new(IN_MEMORY));
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
        let ended = match inner {
            Some((ZLIB, inner)) => unpack(ZlibDecoder::new(inner), &mut budget, &mut file, damage)?,
            Some((_, inner)) if window_of(inner).is_some_and(|window| window <= MAX_WINDOW) => {
                match StreamingDecoder::new(inner) {
                    Ok(decoder) => unpack(decoder, &mut budget, &mut file, damage)?,
                    Err(_) => false,
                }
            }
            Some(_) => false,
            None => {
                if all_count {
                    budget.packet()?;
                }
                write_packet(bytes, &mut file).map_err(TraceError::Spool)?;
                continue;
            }
        };
        damage.not_inflated += u64::from(!ended);
    }
    let Damage { cut, no_sense_from, too_large, .. } = packets.damage;
    damage.cut |= cut;
    damage.no_sense_from = damage.no_sense_from.or(no_sense_from);
    damage.too_large += too_large;
    file.into_inner().map_err(|error| TraceError::Spool(error.into_error()))
}

/// Writes the packets that a compressed one holds, as they are inflated; false if it is damaged.
fn unpack(
    decoder: impl Read,
    budget: &mut Budget,
    file: &mut impl Write,
    damage: &mut Damage,
) -> Result<bool, TraceError> {
    // The decoder has the budget meanwhile.
    let mut count = *budget;
    let mut packets = Packets::of_part(Inflating::new(decoder, budget, MAX_INFLATED), 0, u64::MAX);
    loop {
        let bytes = match packets.next_read()? {
            Step::Packet { bytes, .. } => bytes,
            Step::Skipped => continue,
            Step::End => break,
        };
        count.packet()?;
        // A damaged one holds whole packets up to its damage, and a nested one is not inflated again.
        if Fields::new(bytes).any(|(number, _)| matches!(number, ZLIB | ZSTD)) {
            damage.not_inflated += 1;
        } else {
            write_packet(bytes, file).map_err(TraceError::Spool)?;
        }
    }
    damage.too_large += packets.damage.too_large;
    let mut inflating = packets.into_inner();
    // What follows and is no packet counts as well, and may be damaged.
    io::copy(&mut inflating, &mut io::sink())?;
    let ended = inflating.end()?;
    budget.packets = count.packets;
    Ok(ended)
}

/// Writes a packet with its tag and length.
fn write_packet(bytes: &[u8], file: &mut impl Write) -> io::Result<()> {
    let (mut head, mut at, mut len) = ([PACKET; 11], 1, bytes.len());
    while len >= 0x80 {
        head[at] = len as u8 | 0x80;
        at += 1;
        len >>= 7;
    }
    head[at] = len as u8;
    file.write_all(head.get(..=at).unwrap_or_default())?;
    file.write_all(bytes)
}

/// The size of the window of a zstd frame (RFC 8878, section 3.1.1.1); `None` for other bytes.
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
