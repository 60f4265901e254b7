//! The part of the stack that a sample contains; each byte is known or unknown.

use super::lines::{Line, Lines};
use super::value::Val;

/// Bytes below rsp in the image: space for what forward code pushes, and the red zone.
const BELOW: usize = 256;
/// Bytes below the stack pointer that a function may use (System V ABI).
const RED_ZONE: usize = 128;
/// The total size: the bytes below rsp, and a dump of 512 bytes.
const SIZE: usize = BELOW + 512;
const WORDS: usize = SIZE / 64;

/// A window of stack memory around the sampled rsp.
#[derive(Debug, Clone)]
pub(super) struct Image {
    base: u64,
    bytes: [u8; SIZE],
    known: [u64; WORDS],
    /// Memory outside the stack.
    pub(super) lines: Lines,
}

impl Image {
    /// The stack dump of a sample; it starts at `rsp`.
    pub(super) fn new(rsp: u64, dump: &[u8]) -> Self {
        let mut image =
            Self { base: rsp.wrapping_sub(BELOW as u64), bytes: [0; SIZE], known: [0; WORDS], lines: Lines::default() };
        for (index, &byte) in (BELOW..SIZE).zip(dump) {
            image.set(index, byte);
        }
        image
    }

    /// Adds the bytes of a line at `base` that lie in the red zone, which is private to the thread like the rest of its
    /// stack. The line may begin before the red zone, or end above rsp.
    pub(super) fn add_red_zone(&mut self, line: Line<'_>) {
        let (base, bytes, known) = (line.base, line.bytes, line.known());
        let start = self.base.wrapping_add((BELOW - RED_ZONE) as u64);
        let overlaps = base.wrapping_sub(start) < RED_ZONE as u64 || start.wrapping_sub(base) < bytes.len() as u64;
        if !overlaps {
            return;
        }
        for (offset, &byte) in (0..).zip(bytes) {
            if known >> offset & 1 == 0 {
                continue;
            }
            if let Some(index) = self.index(base.wrapping_add(offset)) {
                if (BELOW - RED_ZONE..BELOW).contains(&index) {
                    self.set(index, byte);
                }
            }
        }
    }

    /// True if any of the `size` bytes at `addr` lies in the red zone.
    pub(super) fn red_zone_has(&self, addr: u64, size: u64) -> bool {
        let below = self.base.wrapping_add(BELOW as u64).wrapping_sub(addr);
        (1..RED_ZONE as u64 + size).contains(&below)
    }

    fn index(&self, addr: u64) -> Option<usize> {
        let offset = addr.wrapping_sub(self.base);
        (offset < SIZE as u64).then_some(offset as usize)
    }

    fn byte(&self, index: usize) -> Option<u8> {
        let known = self.known.get(index / 64)? >> (index % 64) & 1 == 1;
        known.then(|| self.bytes.get(index).copied()).flatten()
    }

    fn set(&mut self, index: usize, byte: u8) {
        if let (Some(to), Some(word)) = (self.bytes.get_mut(index), self.known.get_mut(index / 64)) {
            *to = byte;
            *word |= 1 << (index % 64);
        }
    }

    fn unset(&mut self, index: usize) {
        if let Some(word) = self.known.get_mut(index / 64) {
            *word &= !(1 << (index % 64));
        }
    }

    /// True if any of the `len` bytes at `addr` lies in the image.
    pub(super) fn overlaps(&self, addr: u64, len: u64) -> bool {
        self.index(addr).is_some() || self.base.wrapping_sub(addr) < len
    }

    /// The `size` bytes at `addr` (at most 8 are read), as far as known, zero-extended.
    pub(super) fn read(&self, addr: u64, size: u32) -> Val {
        if !self.overlaps(addr, 8) {
            return self.lines.read(addr, size);
        }
        let (mut bits, mut known) = (0, 0);
        for byte in 0..size.min(8) {
            let value = self.index(addr.wrapping_add(u64::from(byte))).and_then(|index| self.byte(index));
            if let Some(value) = value {
                bits |= u64::from(value) << (byte * 8);
                known |= 0xff << (byte * 8);
            }
        }
        Val::new(bits, known).zext(size)
    }

    /// Stores the low `size` bytes (at most 8) of `val` at `addr`; a byte with an unknown bit becomes unknown.
    pub(super) fn write(&mut self, addr: u64, size: u32, val: Val) {
        if !self.overlaps(addr, 8) {
            return self.lines.write(addr, size, val);
        }
        for byte in 0..size.min(8) {
            if let Some(index) = self.index(addr.wrapping_add(u64::from(byte))) {
                if val.known() >> (byte * 8) & 0xff == 0xff {
                    self.set(index, (val.bits() >> (byte * 8)) as u8);
                } else {
                    self.unset(index);
                }
            }
        }
    }

    /// Adds what `val` knows of the `size` bytes at `addr`; false if that contradicts.
    pub(super) fn learn(&mut self, addr: u64, size: u32, val: Val) -> bool {
        match self.read(addr, size).only_low(size).merge(val.only_low(size)) {
            Some(both) => {
                self.write(addr, size, both);
                true
            }
            None => false,
        }
    }

    /// Marks the `len` bytes at `addr` as unknown.
    pub(super) fn forget(&mut self, addr: u64, len: u64) {
        self.lines.forget(addr, len);
        if !self.overlaps(addr, len) {
            return;
        }
        for index in 0..SIZE {
            let at = self.base.wrapping_add(index as u64);
            if at.wrapping_sub(addr) < len {
                self.unset(index);
            }
        }
    }

    /// Marks all bytes as unknown.
    pub(super) fn clear(&mut self) {
        self.known = [0; WORDS];
        self.lines.clear();
    }

    /// Keeps only the bytes on which `other` (of the same sample) agrees.
    pub(super) fn keep(&mut self, other: &Self) {
        self.lines.keep(&other.lines);
        for (word, (known, theirs)) in self.known.iter_mut().zip(&other.known).enumerate() {
            let range = word * 64..(word + 1) * 64;
            *known &= theirs;
            if let (Some(own), Some(their)) = (self.bytes.get(range.clone()), other.bytes.get(range)) {
                if own != their {
                    for (at, _) in own.iter().zip(their).enumerate().filter(|(_, (own, their))| own != their) {
                        *known &= !(1 << at);
                    }
                }
            }
        }
    }

    /// Adds all bytes that `other` (of the same sample) knows; false if the two contradict each other.
    pub(super) fn merge(&mut self, other: &Self) -> bool {
        let mut agree = true;
        for word in 0..WORDS {
            let range = word * 64..(word + 1) * 64;
            let same = self.known.get(word) == other.known.get(word)
                && self.bytes.get(range.clone()) == other.bytes.get(range.clone());
            if same || other.known.get(word) == Some(&0) {
                continue;
            }
            for index in range {
                if let Some(byte) = other.byte(index) {
                    agree &= self.byte(index).is_none_or(|own| own == byte);
                    self.set(index, byte);
                }
            }
        }
        agree
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dump_is_read_and_overwritten_byte_by_byte() {
        let mut image = Image::new(0x1000, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(image.read(0x1000, 8).get(), Some(0x0807_0605_0403_0201));
        assert_eq!(image.read(0x1005, 4).low(4), Some(0x0908_0706));
        assert_eq!(image.read(0x1006, 4).low(4), None);
        image.write(0x1001, 1, Val::full(0xaa));
        assert_eq!(image.read(0x1000, 2).low(2), Some(0xaa01));
        image.forget(0xfff, 2);
        assert_eq!(image.read(0x1000, 1).low(1), None);
        assert_eq!(image.read(0x1001, 1).low(1), Some(0xaa));
        assert!(image.learn(0xff0, 4, Val::full(7)));
        assert!(!image.learn(0xff0, 4, Val::full(8)));
    }

    #[test]
    fn the_red_zone_is_taken_from_any_line_that_holds_some_of_it() {
        let red_zone = |rsp: u64| {
            let mut image = Image::new(rsp, &[7; 512]);
            // All lines near rsp, each of its own bytes.
            for line in (rsp & !63) / 64 - 4..=rsp / 64 + 1 {
                image.add_red_zone(Line { base: line * 64, changing: 0, bytes: &[line as u8; 64] });
            }
            image
        };
        for rsp in (0x1000..0x1040).step_by(8) {
            let image = red_zone(rsp);
            for addr in rsp - 200..rsp + 64 {
                let expected = match addr {
                    _ if addr < rsp - 128 => None,
                    _ if addr < rsp => Some((addr / 64) & 0xff),
                    _ => Some(7),
                };
                assert_eq!(image.read(addr, 1).low(1), expected, "{addr:#x} of {rsp:#x}");
            }
        }
    }

    #[test]
    fn only_what_two_images_share_is_kept() {
        let mut image = Image::new(0x1000, &[1, 2, 3, 4]);
        let mut other = image.clone();
        image.write(0x1001, 1, Val::full(9));
        image.write(0xff8, 1, Val::full(5));
        other.write(0xff8, 1, Val::full(5));
        other.forget(0x1003, 1);
        image.keep(&other);
        let known = |addr| image.read(addr, 1).low(1);
        assert_eq!([0x1000, 0x1001, 0x1002, 0x1003, 0xff8].map(known), [Some(1), None, Some(3), None, Some(5)]);
    }

    #[test]
    fn ranges_at_the_edges_of_the_address_space_are_kept_apart() {
        let mut image = Image::new(0, &[7; 512]);
        assert_eq!(image.read(u64::MAX - 3, 8).bits() >> 32, 0x0707_0707);
        image.forget(u64::MAX, 2);
        assert_eq!(image.read(0, 1).low(1), None);
        assert_eq!(image.read(1, 1).low(1), Some(7));
        assert!(!image.overlaps(0x1000, 8));
        assert!(image.overlaps(0x1000, u64::MAX - 0x1000 + 1));
    }
}
