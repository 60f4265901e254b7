//! Compressed records (`perf record -z`): their payloads form one zstd stream, which inflates to records; a record may begin in
//! one payload and end in the next. The inflated records replace the compressed ones.
//!
//! A decoder must keep its window, the last half MiB or so. Marks of completeness (`FINISHED_ROUND`) are not compressed: they
//! wait until all data before them is decoded.

use std::collections::VecDeque;
use std::io::{Read, Seek};

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::{swap, Header, PerfData, PerfDataError, HEADER_SIZE};
use crate::format::user;
use crate::writer::finished_round;

/// The largest window, that of level 19; this bounds the memory that a file can demand.
const MAX_WINDOW: u64 = 8 << 20;
/// The factor by which a compressed record may grow, plus a constant; records of samples shrink to a tenth.
const MAX_RATIO: usize = 256;
const MIN_BYTES: usize = 1 << 20;
/// Bytes of a block's header, and of the stream's header without its optional parts.
const BLOCK_HEADER: usize = 3;
const FRAME_HEADER: usize = 6;
/// The bit of the descriptor for a stream of known size without a window.
const SINGLE_SEGMENT: u8 = 1 << 5;
/// The type of a block that repeats one byte.
const RLE: u32 = 1;
/// An empty block that is marked as the last.
const LAST_BLOCK: [u8; 3] = [1, 0, 0];

/// The stream of a file.
pub(super) struct Inflate {
    decoder: FrameDecoder,
    /// The size of the decoder's window; `None` before the stream begins.
    window: Option<u64>,
    /// Compressed bytes of an incomplete block.
    input: Vec<u8>,
    /// Bytes of an incomplete record.
    rest: Vec<u8>,
    /// Bytes decoded so far.
    out: u64,
    /// The positions in the decoded bytes after which marks follow.
    marks: VecDeque<u64>,
    /// Records are of the other byte order.
    swapped: bool,
    /// A part of the stream is missing.
    lost: bool,
    /// All of the stream was decoded.
    ended: bool,
}

impl std::fmt::Debug for Inflate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inflate").field("out", &self.out).field("ended", &self.ended).finish_non_exhaustive()
    }
}

/// Data that cannot be inflated, or exceeds what any perf writes.
struct Broken;

impl Inflate {
    pub(super) fn new(swapped: bool) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_WINDOW);
        Self {
            decoder,
            window: None,
            input: Vec::new(),
            rest: Vec::new(),
            out: 0,
            marks: VecDeque::new(),
            swapped,
            lost: false,
            ended: false,
        }
    }

    /// Decodes `payload` and adds the result to `records`.
    fn feed(&mut self, payload: &[u8], records: &mut Vec<u8>) -> Result<(), Broken> {
        if self.lost || self.ended {
            return Err(Broken);
        }
        let limit = payload.len() * MAX_RATIO + MIN_BYTES;
        self.input.extend_from_slice(payload);
        while self.block()? {
            self.collect(records);
            if records.len() > limit {
                return Err(Broken);
            }
        }
        Ok(())
    }

    /// Inflates one block; false if there is no complete one.
    fn block(&mut self) -> Result<bool, Broken> {
        let mut source = self.input.as_slice();
        if self.window.is_none() {
            // Magic, descriptor, window (RFC 8878, 3.1.1.1); perf's streams have no other fields.
            let Some(&[_, _, _, _, descriptor, window]) = source.first_chunk::<FRAME_HEADER>() else {
                return Ok(false);
            };
            if descriptor & SINGLE_SEGMENT != 0 {
                return Err(Broken);
            }
            self.decoder.init(&mut source).map_err(|_| Broken)?;
            let base = 1u64 << (10 + (window >> 3));
            self.window = Some(base + base / 8 * u64::from(window & 7));
        } else if self.decoder.is_finished() {
            return if source.is_empty() { Ok(false) } else { Err(Broken) };
        }
        let whole = source.first_chunk::<BLOCK_HEADER>().is_some_and(|&[a, b, c]| {
            let header = u32::from_le_bytes([a, b, c, 0]);
            let size = if header >> 1 & 3 == RLE { 1 } else { header >> 3 };
            source.len() - BLOCK_HEADER >= size as usize
        });
        if whole {
            self.decoder.decode_blocks(&mut source, BlockDecodingStrategy::UptoBlocks(1)).map_err(|_| Broken)?;
        }
        let taken = self.input.len() - source.len();
        self.input.drain(..taken);
        Ok(whole)
    }

    /// Moves what the decoder no longer needs to `records`, complete records only.
    fn collect(&mut self, records: &mut Vec<u8>) {
        let bytes = self.decoder.collect().unwrap_or_default();
        self.out += bytes.len() as u64;
        self.rest.extend_from_slice(&bytes);
        let mut at = 0;
        while let Some(rest) = self.rest.get(at..) {
            let begin = self.out - rest.len() as u64;
            while self.marks.front().is_some_and(|mark| *mark <= begin) {
                self.marks.pop_front();
                let mut mark = finished_round();
                if self.swapped {
                    swap::header(&mut mark);
                }
                records.extend_from_slice(&mark);
            }
            let Some(mut header) = rest.first_chunk::<HEADER_SIZE>().copied() else { break };
            if self.swapped {
                swap::header(&mut header);
            }
            // Invalid records are passed on; the reader finds the next valid one.
            let size = Header::read(&header).map_or(0, |header| usize::from(header.size)).max(HEADER_SIZE);
            let Some(record) = rest.get(..size) else { break };
            records.extend_from_slice(record);
            at += size;
        }
        self.rest.drain(..at);
    }

    /// Adds the decoder's window: no more data follows.
    fn finish(&mut self, records: &mut Vec<u8>) {
        if self.window.is_some() && !self.decoder.is_finished() {
            let _ = self.decoder.decode_blocks(&LAST_BLOCK[..], BlockDecodingStrategy::All);
        }
        self.marks.clear();
        self.collect(records);
        self.ended = true;
    }
}

impl<R: Read + Seek> PerfData<R> {
    /// Replaces a compressed record by its content, to be read next. `payload` begins with the stream, or with its size.
    pub(super) fn inflate(&mut self, kind: u32, payload: &[u8]) {
        let payload = if kind == user::COMPRESSED2 {
            let size = payload.first_chunk::<8>().map_or(0, |size| u64::from_ne_bytes(*size));
            payload.get(8..).and_then(|rest| rest.get(..usize::try_from(size).ok()?))
        } else {
            Some(payload)
        };
        // perf never compresses twice.
        let payload = payload.filter(|_| !self.is_inflated());
        let swapped = self.swapped;
        let inflate = self.inflate.get_or_insert_with(|| Box::new(Inflate::new(swapped)));
        let mut records = Vec::new();
        let fed = payload.ok_or(Broken).and_then(|payload| inflate.feed(payload, &mut records));
        if fed.is_err() {
            inflate.finish(&mut records);
            self.damage.compressed += 1;
        }
        if self.budget.take(records.len() as u64) {
            self.insert(records);
        } else {
            inflate.ended = true;
            self.damage.oversized = true;
        }
    }

    /// A mark was read: true if it is to be returned now.
    pub(super) fn round(&mut self) -> bool {
        if self.is_inflated() {
            // It was postponed, and counted at its original position.
            if let Some(count) = self.counts.get_mut(user::FINISHED_ROUND as usize) {
                *count -= 1;
            }
            return true;
        }
        let Some(inflate) = self.inflate.as_mut().filter(|inflate| !inflate.ended) else { return true };
        // Once any data was decoded, the decoder holds a full window. Before that the size of the window is unknown, and the
        // mark is dropped: what it would release waits for the next one.
        if let Some(window) = inflate.window.filter(|_| inflate.out > 0) {
            let at = inflate.out + window;
            // A third mark at the same position adds nothing to the second.
            if inflate.marks.iter().rev().take(2).filter(|mark| **mark == at).count() < 2 {
                inflate.marks.push_back(at);
            }
        }
        false
    }

    /// Notes a place with invalid data: if it lies between compressed records, some of these may be missing, and the stream
    /// cannot continue without them.
    pub(super) fn note_gap(&mut self) {
        if !self.is_inflated() {
            if let Some(inflate) = &mut self.inflate {
                inflate.lost = true;
            }
        }
    }

    /// True if the current data comes from a compressed record.
    fn is_inflated(&self) -> bool {
        self.position < self.inflated_until
    }

    /// The next header; at the end of the file, the decoder's window is read.
    pub(super) fn next_header(&mut self) -> Result<Option<Header>, PerfDataError> {
        if let Some(header) = self.next_in_file()? {
            return Ok(Some(header));
        }
        let Some(mut inflate) = self.inflate.take() else { return Ok(None) };
        let mut records = Vec::new();
        inflate.finish(&mut records);
        let rest = !inflate.input.is_empty() || !inflate.rest.is_empty();
        self.damage.unflushed = rest && !self.damage.cut && self.damage.compressed == 0;
        if self.budget.take(records.len() as u64) {
            self.insert(records);
        } else {
            self.damage.oversized = true;
        }
        self.ended = false;
        self.next_in_file()
    }

    /// Makes `records` the next to be read, in place of the record at the front and of all that was read before it.
    fn insert(&mut self, records: Vec<u8>) {
        self.advance(self.taken);
        self.taken = 0;
        self.inflated_until = self.position + records.len() as u64;
        if let Some(left) = &mut self.left {
            *left += records.len() as u64;
        }
        self.resurface();
        let file = std::mem::replace(&mut self.buffer, records);
        self.file = Some((file, std::mem::take(&mut self.start)));
    }

    /// Continues with the file's own data, after the rest of the inflated records, which mostly is empty.
    pub(super) fn resurface(&mut self) {
        let Some((file, start)) = self.file.take() else { return };
        let inflated = std::mem::replace(&mut self.buffer, file);
        let rest = inflated.get(std::mem::replace(&mut self.start, start)..).unwrap_or_default();
        if !rest.is_empty() {
            self.buffer.splice(..start, rest.iter().copied());
            self.start = 0;
        }
    }
}
