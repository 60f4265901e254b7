//! The memory around the registers of a sample, in lines of 64 bytes.

use std::ops::Range;

use super::value::Val;

/// Bytes of a line.
const LINE: usize = 64;
/// Bytes before the lines, and bytes per line including its address: `struct snapshot` in operand.bpf.c.
const HEADER: usize = 24;
const STRIDE: usize = 8 + LINE;
/// The most lines that are used.
const MAX_LINES: usize = 64;

/// The part of a line's first word that is its address. The highest byte has a bit for each of the line's 8 words whose
/// value is unknown.
const ADDRESS: u64 = (1 << 56) - 1;
/// The lowest address of the kernel's half.
pub const KERNEL_HALF: u64 = !ADDRESS;
/// The mode of a snapshot of kernel code, at the same offset as in a kernel record; user code has 0.
pub(super) const KERNEL: u32 = 1;
const MODE: usize = 20;

/// True if the raw data of a sample is of kernel code.
#[must_use]
pub fn is_of_kernel(raw: &[u8]) -> bool {
    raw.get(MODE..).and_then(<[u8]>::first_chunk).is_some_and(|mode| u32::from_le_bytes(*mode) == KERNEL)
}

/// Memory at the moment of a sample, as the BPF program recorded it.
///
/// Layout: u64 base of fs, u64 stack pointer, u32 number of lines, u32 mode (1 for kernel memory); then for each line
/// its u64 address, a multiple of 64, and its bytes. In the highest byte of the address, each bit marks 8 bytes (the
/// lowest bit the first ones) that other threads write all the time, so that their value is unknown. The address itself
/// has 0 in this byte for user memory, and 0xff for kernel memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct Snapshot<'a> {
    bytes: &'a [u8],
    left_out: &'a [Range<u64>],
}

impl<'a> Snapshot<'a> {
    /// Parses a record; a missing or malformed one is treated as empty.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, left_out: &[] }
    }

    /// The snapshot without the lines that begin in these ranges, which must be sorted and disjoint.
    #[must_use]
    pub fn without(self, left_out: &'a [Range<u64>]) -> Self {
        Self { left_out, ..self }
    }

    fn word(&self, at: usize) -> Option<u64> {
        Some(u64::from_le_bytes(*self.bytes.get(at..)?.first_chunk()?))
    }

    /// True if no memory was recorded for the sample. A record may be without lines: the samples of a place have none as long as
    /// nobody asks for any.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.bytes.len() < HEADER
    }

    /// The lines.
    pub(super) fn lines(self) -> impl Iterator<Item = Line<'a>> {
        let count = self.word(16).map_or(0, |word| word as u32 as usize).min(MAX_LINES);
        let lines = self.bytes.get(HEADER..).unwrap_or_default().chunks_exact(STRIDE).take(count);
        let half = if is_of_kernel(self.bytes) { KERNEL_HALF } else { 0 };
        lines.filter_map(move |line| {
            let (first, bytes) = line.split_first_chunk()?;
            let first = u64::from_le_bytes(*first);
            let line =
                Line { base: first & ADDRESS | half, changing: (first >> 56) as u8, bytes: bytes.first_chunk()? };
            let next = self.left_out.partition_point(|range| range.end <= line.base);
            let is_left_out = self.left_out.get(next).is_some_and(|range| range.contains(&line.base));
            (line.base.is_multiple_of(LINE as u64) && !is_left_out).then_some(line)
        })
    }

    /// The base of thread-local storage. Its first word is its own address (System V ABI, thread-local storage).
    /// Without that word the base is ignored, because the kernel's copy may be older than the register.
    #[must_use]
    pub fn fs_base(self) -> Option<u64> {
        let base = self.word(0).filter(|base| base % 8 == 0)?;
        let line = self.lines().find(|line| line.base == base - base % LINE as u64)?;
        let own = line.bytes.get((base % LINE as u64) as usize..)?.first_chunk()?;
        (u64::from_le_bytes(*own) == base).then_some(base)
    }
}

/// A line of a snapshot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line<'a> {
    pub(super) base: u64,
    /// One bit for each 8 bytes that other threads write all the time.
    pub(super) changing: u8,
    pub(super) bytes: &'a [u8; LINE],
}

impl Line<'_> {
    /// One bit for each byte that is known.
    pub(super) fn known(self) -> u64 {
        (0..8).filter(|word| self.changing >> word & 1 == 0).fold(0, |known, word| known | 0xff << (word * 8))
    }
}

#[derive(Debug, Clone)]
struct KnownLine {
    base: u64,
    bytes: [u8; LINE],
    /// One bit for each byte.
    known: u64,
}

/// Lines of memory; each byte is known or unknown.
#[derive(Debug, Clone, Default)]
pub(super) struct Lines(Vec<KnownLine>);

impl Lines {
    #[cfg(test)]
    pub(super) fn new(snapshot: Snapshot<'_>) -> Self {
        Self::default().of(snapshot)
    }

    /// Fills in the lines of a snapshot; reuses the allocation of `self`.
    pub(super) fn of(self, snapshot: Snapshot<'_>) -> Self {
        let mut lines = self.0;
        lines.clear();
        let known = |line: Line<'_>| KnownLine { base: line.base, bytes: *line.bytes, known: line.known() };
        lines.extend(snapshot.lines().map(known));
        lines.sort_unstable_by_key(|line| line.base);
        lines.dedup_by_key(|line| line.base);
        Self(lines)
    }

    /// A copy of the lines; reuses the allocation of `other`.
    pub(super) fn copied_to(&self, other: Self) -> Self {
        let mut lines = other.0;
        lines.clone_from(&self.0);
        Self(lines)
    }

    pub(super) fn has_memory(&self) -> bool {
        self.0.capacity() > 0
    }

    fn at(&self, addr: u64) -> Option<usize> {
        self.0.binary_search_by_key(&(addr & !(LINE as u64 - 1)), |line| line.base).ok()
    }

    /// The `size` bytes at `addr` (at most 8 are read), as far as known, zero-extended.
    pub(super) fn read(&self, addr: u64, size: u32) -> Val {
        let (mut bits, mut known) = (0, 0);
        if !self.0.is_empty() {
            let mut line = self.at(addr);
            for byte in 0..size.min(8) {
                let addr = addr.wrapping_add(u64::from(byte));
                if byte > 0 && addr % LINE as u64 == 0 {
                    line = self.at(addr);
                }
                let offset = addr % LINE as u64;
                let Some(line) = line.and_then(|at| self.0.get(at)) else { continue };
                if line.known >> offset & 1 == 1 {
                    bits |= u64::from(line.bytes.get(offset as usize).copied().unwrap_or(0)) << (byte * 8);
                    known |= 0xff << (byte * 8);
                }
            }
        }
        Val::new(bits, known).zext(size)
    }

    /// Stores the low `size` bytes (at most 8) of `val`; a byte with an unknown bit becomes unknown.
    pub(super) fn write(&mut self, addr: u64, size: u32, val: Val) {
        if self.0.is_empty() {
            return;
        }
        for byte in 0..size.min(8) {
            let addr = addr.wrapping_add(u64::from(byte));
            let offset = addr % LINE as u64;
            let Some(line) = self.at(addr).and_then(|at| self.0.get_mut(at)) else { continue };
            if val.known() >> (byte * 8) & 0xff == 0xff {
                if let Some(to) = line.bytes.get_mut(offset as usize) {
                    *to = (val.bits() >> (byte * 8)) as u8;
                    line.known |= 1 << offset;
                }
            } else {
                line.known &= !(1 << offset);
            }
        }
    }

    /// Marks the `len` bytes at `addr` as unknown.
    pub(super) fn forget(&mut self, addr: u64, len: u64) {
        for line in &mut self.0 {
            for offset in 0..LINE as u64 {
                if line.base.wrapping_add(offset).wrapping_sub(addr) < len {
                    line.known &= !(1 << offset);
                }
            }
        }
    }

    /// Marks all bytes as unknown.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Keeps only the bytes on which `other` (of the same sample) agrees.
    pub(super) fn keep(&mut self, other: &Self) {
        self.0.retain_mut(|line| {
            let Some(other) = other.at(line.base).and_then(|at| other.0.get(at)) else { return false };
            line.known &= other.known;
            if line.bytes != other.bytes {
                for (offset, (own, their)) in line.bytes.iter().zip(&other.bytes).enumerate() {
                    line.known &= !(u64::from(own != their) << offset);
                }
            }
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes lines as operand.bpf.c does.
    fn encode(fs_base: u64, lines: &[(u64, [u8; LINE])]) -> Vec<u8> {
        let mut bytes = [fs_base, 0, lines.len() as u64].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        for (base, line) in lines {
            bytes.extend(base.to_le_bytes());
            bytes.extend(line);
        }
        bytes
    }

    #[test]
    fn the_base_of_fs_is_believed_where_it_points_to_itself() {
        let mut own = [0; LINE];
        own[0x20..0x28].copy_from_slice(&0x1020u64.to_le_bytes());
        assert_eq!(Snapshot::new(&encode(0x1020, &[(0x1000, own)])).fs_base(), Some(0x1020));
        assert_eq!(Snapshot::new(&encode(0x1018, &[(0x1000, own)])).fs_base(), None);
        assert_eq!(Snapshot::new(&encode(0x1020, &[(0x1040, own)])).fs_base(), None);
        assert_eq!(Snapshot::new(&[]).fs_base(), None);
    }

    #[test]
    fn what_is_cut_or_odd_gives_no_lines() {
        let whole = encode(0, &[(0x40, [1; LINE]), (0x81, [2; LINE]), (0xc0, [3; LINE])]);
        let bases = |bytes: &[u8]| Snapshot::new(bytes).lines().map(|line| line.base).collect::<Vec<_>>();
        assert_eq!(bases(&whole), [0x40, 0xc0]);
        for length in 0..whole.len() {
            assert!(bases(&whole[..length]).len() < 2, "{length}");
        }
        // Padding after the lines is not a line.
        assert_eq!(bases(&[&whole[..], &[0; 100]].concat()), [0x40, 0xc0]);
    }

    #[test]
    fn lines_of_the_kernel_have_its_addresses_and_some_are_left_out() {
        let mut bytes = encode(0, &[(0x00_8881_0000_0040, [1; LINE]), (0x05_0088_8100_0080, [2; LINE])]);
        bytes[HEADER..][..8].copy_from_slice(&0x03ff_8881_0000_0040u64.to_le_bytes());
        bytes[HEADER + STRIDE..][..8].copy_from_slice(&0x00ff_8881_0000_0080u64.to_le_bytes());
        bytes[20] = 1;
        let lines = |left_out: &[Range<u64>]| {
            let snapshot = Snapshot::new(&bytes).without(left_out);
            snapshot.lines().map(|line| (line.base, line.changing)).collect::<Vec<_>>()
        };
        let [first, second] = [(0xffff_8881_0000_0040, 3), (0xffff_8881_0000_0080, 0)];
        assert_eq!(lines(&[]), [first, second]);
        assert_eq!(lines(&[0..1, first.0..second.0, second.0 + 64..u64::MAX]), [second]);
        assert_eq!(lines(&[first.0 - 64..first.0, first.0 + 1..u64::MAX]), [first]);
    }

    #[test]
    fn words_that_others_write_are_not_known() {
        let bytes = encode(0, &[(0x80 | 0b101 << 56, [2; LINE]), (0xc0, [3; LINE])]);
        let lines = Lines::new(Snapshot::new(&bytes));
        let known = |addr| lines.read(addr, 8).get();
        assert_eq!(known(0x88), Some(0x0202_0202_0202_0202));
        assert_eq!((known(0x80), known(0x90), lines.read(0x8c, 8).low(4)), (None, None, Some(0x0202_0202)));
        assert!(known(0x98).is_some() && known(0xb8).is_some() && known(0xc0).is_some());
    }

    #[test]
    fn lines_are_read_across_their_ends_and_overwritten() {
        let bytes = encode(0, &[(0x80, [2; LINE]), (0x40, [1; LINE]), (0x80, [9; LINE])]);
        let mut lines = Lines::new(Snapshot::new(&bytes));
        assert_eq!(lines.read(0x7c, 8).get(), Some(0x0202_0202_0101_0101));
        assert_eq!(lines.read(0xbc, 8).low(4), Some(0x0202_0202));
        assert_eq!(lines.read(0xbc, 8).low(8), None);
        let mut other = lines.clone();
        lines.write(0x7e, 4, Val::full(0x0403_0201));
        assert_eq!(lines.read(0x7c, 8).get(), Some(0x0202_0403_0201_0101));
        lines.write(0x90, 1, Val::UNKNOWN);
        lines.forget(0xa0, 2);
        assert_eq!([0x90, 0xa0, 0xa1, 0xa2].map(|addr| lines.read(addr, 1).low(1)), [None, None, None, Some(2)]);
        other.write(0x40, 1, Val::full(7));
        lines.keep(&other);
        assert_eq!([0x40, 0x41, 0x7e, 0x7f].map(|addr| lines.read(addr, 1).low(1)), [None, Some(1), Some(1), None]);
        lines.clear();
        assert_eq!(lines.read(0x41, 1).low(1), None);
    }
}
