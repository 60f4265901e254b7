//! Cuts a file of lines into blocks, which can be parsed in parallel.

use std::io::{self, Read};

use super::{Counts, JsonSample, Reader, MAX_LINE};

/// Bytes of a block; a few more if its last line needs them.
const BLOCK: usize = 256 << 10;

/// A block has room for as many lines as if each had this number of bytes; most have more.
const SHORT_LINE: usize = 320;

/// Lines of a file, in blocks.
#[derive(Debug)]
pub struct Blocks<R> {
    inner: R,
    /// Bytes after the last whole line of the last block.
    rest: Vec<u8>,
    /// The last block ended within a line that is too long.
    is_within: bool,
    /// Returned after the lines before it.
    failed: Option<io::Error>,
    /// The lines so far of blocks that were parsed.
    pub counts: Counts,
}

impl<R: Read> Blocks<R> {
    /// Reads from the beginning.
    pub fn new(inner: R) -> Self {
        Self { inner, rest: Vec::new(), is_within: false, failed: None, counts: Counts::default() }
    }

    /// The next lines, in the memory of `block`; empty at the end. A line that is too long is cut, but still too long; for what is left
    /// of it come empty lines, so that the caller can stop within it.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn next_block(&mut self, mut block: Vec<u8>) -> io::Result<Vec<u8>> {
        block.clear();
        block.append(&mut self.rest);
        loop {
            if let Some(error) = self.failed.take_if(|_| block.is_empty()) {
                return Err(error);
            }
            let before = block.len();
            if self.failed.is_none() {
                self.failed = self.inner.by_ref().take(BLOCK as u64).read_to_end(&mut block).err();
            }
            if block.len() == before {
                // An empty block is the end.
                return self.failed.take_if(|_| block.is_empty()).map_or(Ok(block), Err);
            }
            if self.is_within {
                let end = memchr::memchr(b'\n', &block);
                self.is_within = end.is_none();
                block.drain(..end.unwrap_or(block.len()));
                if self.is_within {
                    block.push(b'\n');
                    return Ok(block);
                }
            }
            if let Some(end) = memchr::memrchr(b'\n', &block) {
                self.rest.extend_from_slice(block.get(end + 1..).unwrap_or_default());
                block.truncate(end + 1);
                return Ok(block);
            }
            if block.len() > MAX_LINE {
                block.truncate(MAX_LINE + 1);
                self.is_within = true;
                return Ok(block);
            }
        }
    }
}

/// The lines of a block.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    /// The samples; their numbers count from the first line of the block.
    pub(crate) lines: Vec<JsonSample>,
    /// The path of the cgroup from one line on, by the number of samples before it.
    pub(crate) cgroups: Vec<(usize, Option<Vec<u8>>)>,
    counts: Counts,
}

/// Parses the lines of a block.
pub(crate) fn parse_block(block: &[u8]) -> Parsed {
    let mut reader = Reader::new(block);
    let mut parsed = Parsed { lines: Vec::with_capacity(block.len() / SHORT_LINE), ..Parsed::default() };
    loop {
        // A line is made in its place.
        parsed.lines.push(JsonSample::default());
        let read = parsed.lines.last_mut().map(|line| reader.next_into(line));
        // Memory is read without errors.
        if !matches!(read, Some(Ok(true))) {
            parsed.lines.pop();
            break;
        }
        let last = parsed.cgroups.last().map(|(_, path)| path.as_deref());
        if last != Some(reader.cgroup()) {
            parsed.cgroups.push((parsed.lines.len() - 1, reader.cgroup().map(<[u8]>::to_vec)));
        }
    }
    parsed.counts = reader.counts;
    parsed
}

impl Counts {
    /// Adds the lines of the next block.
    pub(crate) fn add(&mut self, block: &Parsed) {
        let Counts { lines, unreadable, first_unreadable, cut, missing } = &block.counts;
        if self.first_unreadable.is_none() {
            self.first_unreadable = first_unreadable.as_ref().map(|(line, why)| (self.lines + line, why.clone()));
        }
        self.lines += lines;
        self.cut |= cut;
        self.unreadable += unreadable;
        let sum = &mut self.missing;
        sum.memory += missing.memory;
        sum.op += missing.op;
        sum.weight += missing.weight;
        sum.cgroup += missing.cgroup;
        sum.thread += missing.thread;
        sum.page_size += missing.page_size;
    }
}
