//! Finds where functions begin and end, by the search table of `.eh_frame_hdr` (Linux Standard Base, "Exception Frames"). The
//! C++ runtime needs this table, so stripping keeps it. It is searched in the file: a library of a gigabyte costs only the
//! pages that the search reads.

use std::ops::Range;

use super::{u32_at, Elf, ReadAt};

/// The search table of `.eh_frame_hdr`: pairs of 32-bit offsets from the section's own address, sorted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SearchTable {
    /// The section's address before relocation.
    pub(super) vaddr: u64,
    /// File offset of the first pair.
    offset: u64,
    pub(super) count: u64,
}

impl Elf {
    /// The number of functions in the table.
    #[must_use]
    pub fn function_count(&self) -> u64 {
        self.table.as_ref().map_or(0, |table| table.count)
    }

    /// The function around `vaddr`, up to the end in its frame description, else up to the next function.
    ///
    /// `None` if the file has no table, or if no function in it contains the address: code without frame descriptions leaves
    /// gaps between functions.
    pub fn function(&self, reader: &mut impl ReadAt, vaddr: u64) -> Option<Range<u64>> {
        let table = self.table.as_ref()?;
        let segment = self.segments.iter().find(|segment| {
            let inside = vaddr.checked_sub(segment.vaddr);
            segment.executable && inside.is_some_and(|inside| inside < segment.file.end - segment.file.start)
        })?;
        let (at, start, frame) = table.last_before(reader, vaddr)?;
        let end = self.frame_end(reader, start, frame).or_else(|| Some(table.pair(reader, at + 1)?.0));
        let last = segment.vaddr.checked_add(segment.file.end - segment.file.start)?;
        let function = start..end.unwrap_or(last).min(last);
        (start >= segment.vaddr && function.contains(&vaddr)).then_some(function)
    }

    /// The end of the function of a frame description; `None` unless it has the form that every compiler for x86-64 writes,
    /// with a 32-bit start relative to its own position.
    fn frame_end(&self, reader: &mut impl ReadAt, start: u64, frame: u64) -> Option<u64> {
        let bytes: [u8; 16] = reader.array(self.offset(frame)?)?;
        let (length, cie, range) = (u32_at(&bytes, 0), u32_at(&bytes, 4), u32_at(&bytes, 12));
        let begin = frame.checked_add(8)?.checked_add_signed(i64::from(u32_at(&bytes, 8).cast_signed()))?;
        (length >= 12 && length != u32::MAX && cie != 0 && begin == start && range != 0)
            .then(|| start.checked_add(range.into()))?
    }
}

impl SearchTable {
    /// The number of the last pair with a start not above `vaddr`, that start, and the address of the frame description. A table
    /// that is not sorted gives a wrong pair, which its frame description shows.
    pub(super) fn last_before(&self, reader: &mut impl ReadAt, vaddr: u64) -> Option<(u64, u64, u64)> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.pair(reader, middle)?.0 <= vaddr {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let at = low.checked_sub(1)?;
        let (start, frame) = self.pair(reader, at)?;
        Some((at, start, frame))
    }

    /// Addresses of a function and of its frame description.
    fn pair(&self, reader: &mut impl ReadAt, index: u64) -> Option<(u64, u64)> {
        if index >= self.count {
            return None;
        }
        let bytes: [u8; 8] = reader.array(self.offset.checked_add(index * 8)?)?;
        let address = |at| self.vaddr.checked_add_signed(i64::from(u32_at(&bytes, at).cast_signed()));
        Some((address(0)?, address(4)?))
    }
}

/// The head of `.eh_frame_hdr`: version 1, encodings of the pointer to `.eh_frame`, of the count and of the table.
pub(super) fn table(reader: &mut impl ReadAt, offset: u64, vaddr: u64, size: u64) -> Option<SearchTable> {
    let [version, pointer, count, pairs] = reader.array(offset)?;
    // 0x3b: signed 32-bit, relative to the section (DW_EH_PE_datarel|sdata4), as every linker writes it.
    if version != 1 || pairs != 0x3b {
        return None;
    }
    let count_at = 4 + encoded_size(pointer)?;
    let (count, first) = match encoded_size(count)? {
        4 => (u64::from(u32::from_le_bytes(reader.array(offset.checked_add(count_at)?)?)), count_at + 4),
        _ => (u64::from_le_bytes(reader.array(offset.checked_add(count_at)?)?), count_at + 8),
    };
    let room = size.checked_sub(first)? / 8;
    Some(SearchTable { vaddr, offset: offset.checked_add(first)?, count: count.min(room) })
}

/// Bytes of a pointer in an encoding of fixed size (`DW_EH_PE_*`, low four bits).
fn encoded_size(encoding: u8) -> Option<u64> {
    match encoding & 0xf {
        0x3 | 0xb => Some(4),
        0x0 | 0x4 | 0xc => Some(8),
        _ => None,
    }
}
