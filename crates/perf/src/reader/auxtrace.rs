//! The data of AUX buffers, which perf writes between the records: where it is, and how its times are converted.

use std::io::{BufReader, Read, Seek, SeekFrom};

use rustc_hash::FxHashMap;

use super::{swap, user, PerfData, PerfDataError, HEADER_SIZE};
use crate::record::Header;

/// Records at the beginning of a file among which one says what the AUX data is; perf writes it before the first of the kernel.
const FIRST_RECORDS: usize = 1024;
/// Pieces of AUX data: 100 a second and CPU for a minute on 170 CPUs. Each takes 24 bytes.
const MAX_CHUNKS: usize = 1 << 20;
/// Buffers: one for each CPU, or for each thread.
const MAX_BUFFERS: usize = 1 << 13;

/// A piece of the data of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuxChunk {
    /// Where it is in the file, in bytes.
    pub at: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes of the buffer before it (`aux_head` wraps at none of its sizes).
    pub position: u64,
}

/// An AUX buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuxBuffer {
    /// Its number in the recording.
    pub number: u32,
    /// The CPU that filled it; `None` if it followed a thread.
    pub cpu: Option<u32>,
    /// The thread that it followed. With a CPU it is the first of the threads that were recorded there; `None` if all were.
    pub tid: Option<u32>,
    /// Its data in the order of the file, which is that of time.
    pub chunks: Vec<AuxChunk>,
}

/// What a file has of AUX data.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Auxtrace {
    /// What wrote it (`PERF_AUXTRACE_*` in tools/perf/util/auxtrace.h).
    pub kind: u32,
    /// What perf says about its hardware.
    pub info: Vec<u64>,
    /// The buffers by number.
    pub buffers: Vec<AuxBuffer>,
    /// How its times are converted.
    pub time: Option<TimeConv>,
    /// Pieces beyond the bounds, which are left out.
    pub left_out: u64,
    /// Where in the file there is something else than a record: pieces after it are not found.
    pub broken_at: Option<u64>,
}

impl Auxtrace {
    /// `PERF_AUXTRACE_ARM_SPE`.
    pub const ARM_SPE: u32 = 4;
}

/// From a hardware clock to the clock of the records (`PERF_RECORD_TIME_CONV`; linux/perf_event.h at `time_mult`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeConv {
    /// The binary logarithm of the divisor.
    pub shift: u64,
    /// The factor.
    pub mult: u64,
    /// ns at count 0.
    pub zero: u64,
    /// A count that was read, and the bits of a counter that is shorter than 64; both 0 for one that is not.
    pub cycles: u64,
    /// See [`TimeConv::cycles`].
    pub mask: u64,
}

impl TimeConv {
    /// The time of a count, in ns.
    #[must_use]
    pub fn ns(&self, count: u64) -> u64 {
        let count = match self.mask {
            0 => count,
            mask => self.cycles.wrapping_add(count.wrapping_sub(self.cycles) & mask),
        };
        // By parts, as perf does, so that the same count is the same ns.
        let shift = (self.shift & 63) as u32;
        let (whole, part) = (count >> shift, count & ((1u64 << shift) - 1));
        let part = ((u128::from(part) * u128::from(self.mult)) >> shift) as u64;
        self.zero.wrapping_add(whole.wrapping_mul(self.mult)).wrapping_add(part)
    }
}

impl<R: Read + Seek> PerfData<R> {
    /// Where the AUX data is; `None` if the file has none. Reads the headers of all records.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn auxtrace(&mut self) -> Result<Option<Auxtrace>, PerfDataError> {
        let here = self.inner.stream_position()?;
        self.inner.seek(SeekFrom::Start(self.data_at))?;
        let (inner, by_number) = (BufReader::new(&mut self.inner), FxHashMap::default());
        let (at, end) = (self.data_at, self.data_end.unwrap_or(u64::MAX));
        let found = Walk { inner, at, end, swapped: self.swapped, by_number, chunks: 0 }.auxtrace();
        self.inner.seek(SeekFrom::Start(here))?;
        found
    }

    /// True if there was AUX data so far.
    #[must_use]
    pub fn has_aux(&self) -> bool {
        self.counts.get(user::AUXTRACE as usize).is_some_and(|&count| count > 0)
    }

    /// Reads bytes of AUX data at `at`; fewer than asked for at the end of the file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read_aux(&mut self, at: u64, into: &mut [u8]) -> Result<usize, PerfDataError> {
        let here = self.inner.stream_position()?;
        self.inner.seek(SeekFrom::Start(at))?;
        let mut have = 0;
        while let Some(rest) = into.get_mut(have..).filter(|rest| !rest.is_empty()) {
            match self.inner.read(rest) {
                Ok(0) => break,
                Ok(read) => have += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.inner.seek(SeekFrom::Start(here))?;
        Ok(have)
    }
}

/// Goes over the records by their headers.
struct Walk<R> {
    inner: R,
    at: u64,
    /// The end of the records.
    end: u64,
    swapped: bool,
    /// Where each buffer is in the list.
    by_number: FxHashMap<u32, usize>,
    chunks: usize,
}

impl<R: Read + Seek> Walk<BufReader<R>> {
    fn auxtrace(&mut self) -> Result<Option<Auxtrace>, PerfDataError> {
        let mut found = Auxtrace::default();
        let mut has_begun = false;
        let mut count = 0;
        while let Some((kind, size)) = self.header(&mut found.broken_at)? {
            count += 1;
            match kind {
                user::AUXTRACE_INFO if !has_begun => {
                    let words = self.words(size)?;
                    found.kind = words.first().map_or(0, |&word| self.halves(word).0);
                    found.info = words.get(1..).unwrap_or_default().to_vec();
                    has_begun = true;
                    continue;
                }
                user::TIME_CONV if found.time.is_none() => {
                    let words = self.words(size)?;
                    let [shift, mult, zero, ref more @ ..] = words[..] else { continue };
                    let (cycles, mask) = match more {
                        // Two bytes: `cap_user_time_zero`, `cap_user_time_short`.
                        [cycles, mask, caps, ..] if caps >> (if self.is_big() { 48 } else { 8 }) & 0xff != 0 => {
                            (*cycles, *mask)
                        }
                        _ => (0, 0),
                    };
                    found.time = Some(TimeConv { shift, mult, zero, cycles, mask });
                    continue;
                }
                user::AUXTRACE if has_begun => {
                    let words = self.words(size)?;
                    let [bytes, position, _, number_tid, cpu, ..] = words[..] else { continue };
                    let ((number, tid), (cpu, _)) = (self.halves(number_tid), self.halves(cpu));
                    self.add(
                        &mut found,
                        AuxBuffer { number, cpu: known(cpu), tid: known(tid), chunks: Vec::new() },
                        AuxChunk { at: self.at, size: bytes, position },
                    );
                    self.skip(bytes)?;
                    continue;
                }
                user::AUXTRACE => {
                    let words = self.words(size)?;
                    self.skip(words.first().copied().unwrap_or(0))?;
                    continue;
                }
                user::HEADER_TRACING_DATA => {
                    let words = self.words(size)?;
                    let more = words.first().map_or(0, |&word| u64::from(self.halves(word).0).next_multiple_of(8));
                    self.skip(more)?;
                    continue;
                }
                _ => {}
            }
            if !has_begun && (kind < user::START || count > FIRST_RECORDS) {
                return Ok(None);
            }
            self.skip(size)?;
        }
        found.buffers.sort_by_key(|buffer| buffer.number);
        Ok(has_begun.then_some(found))
    }

    /// Type and size without the header of the next record; `None` at the end, or where there is no record.
    fn header(&mut self, broken_at: &mut Option<u64>) -> Result<Option<(u32, u64)>, PerfDataError> {
        let (mut bytes, at) = ([0; HEADER_SIZE], self.at);
        if at >= self.end || !self.fill(&mut bytes)? {
            return Ok(None);
        }
        if self.swapped {
            swap::header(&mut bytes);
        }
        let size = |header: Header| Some((header.kind, u64::from(header.size).checked_sub(HEADER_SIZE as u64)?));
        let found = Header::read(&bytes).and_then(size);
        if found.is_none() {
            *broken_at = Some(at);
        }
        Ok(found)
    }

    /// The file is of a big-endian machine.
    fn is_big(&self) -> bool {
        self.swapped != cfg!(target_endian = "big")
    }

    /// The two numbers of four bytes in a word.
    fn halves(&self, word: u64) -> (u32, u32) {
        let (low, high) = (word as u32, (word >> 32) as u32);
        if self.is_big() {
            (high, low)
        } else {
            (low, high)
        }
    }

    /// The words of the record whose header was read, of at most 64 KiB.
    fn words(&mut self, size: u64) -> Result<Vec<u64>, PerfDataError> {
        let mut bytes = vec![0; size as usize];
        if !self.fill(&mut bytes)? {
            return Ok(Vec::new());
        }
        let (mut words, swapped) = (Vec::with_capacity(bytes.len() / 8 + 1), self.swapped);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
            let word = u64::from_ne_bytes(word);
            words.push(if swapped { word.swap_bytes() } else { word });
        }
        Ok(words)
    }

    fn add(&mut self, found: &mut Auxtrace, buffer: AuxBuffer, chunk: AuxChunk) {
        let is_new = !self.by_number.contains_key(&buffer.number);
        if self.chunks >= MAX_CHUNKS || is_new && found.buffers.len() >= MAX_BUFFERS {
            found.left_out += 1;
            return;
        }
        self.chunks += 1;
        let at = *self.by_number.entry(buffer.number).or_insert_with(|| {
            found.buffers.push(buffer);
            found.buffers.len() - 1
        });
        if let Some(buffer) = found.buffers.get_mut(at) {
            buffer.chunks.push(chunk);
        }
    }

    fn skip(&mut self, bytes: u64) -> Result<(), PerfDataError> {
        self.at = self.at.saturating_add(bytes);
        let is_possible = i64::try_from(bytes).is_ok_and(|bytes| self.inner.seek_relative(bytes).is_ok());
        if !is_possible {
            // No file is so large: what follows is missing.
            self.inner.seek(SeekFrom::End(0))?;
        }
        Ok(())
    }

    fn fill(&mut self, into: &mut [u8]) -> Result<bool, PerfDataError> {
        match self.inner.read_exact(into) {
            Ok(()) => {
                self.at += into.len() as u64;
                Ok(true)
            }
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// perf writes -1 for "any".
fn known(id: u32) -> Option<u32> {
    (id != u32::MAX).then_some(id)
}
