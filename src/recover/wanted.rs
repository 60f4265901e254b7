//! Learns which memory the samples at one place in the code need, so that no other is read.

use super::lines::Snapshot;
use super::regs::UserRegs;

/// Bytes of a line.
const LINE: u64 = 64;
/// Lines that no register points to, per place.
pub const WANTED_LINES: usize = 4;
/// The bit of rsp, whose memory is in the sample anyway: it means the line before the one that fs points to.
const BEFORE_FS: u32 = 1 << 4;
/// The bit of a register's second line is this many bits above that of its first.
const SECOND: u32 = 16;
const RSP: u32 = 4;

/// Lines of memory that running the code from one place on needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wanted {
    /// Bit N: the line that register N points into (in the order of their encoding); bit N + 16: the line after that. Bit 4:
    /// the line before the one that fs points into.
    pub registers: u32,
    /// Addresses of other lines, the latest first; 0 for none.
    pub lines: [u64; WANTED_LINES],
}

impl Wanted {
    /// What a sample needed: the lines at `reads`.
    pub(super) fn of(regs: &UserRegs, memory: Snapshot<'_>, reads: &[u64]) -> Self {
        let line = |addr: u64| addr & !(LINE - 1);
        let mut wanted = Self::default();
        let fs = memory.fs_base().map(line);
        for &read in reads {
            let mut bits = 0;
            for (register, &value) in (0..).zip(&regs.gpr).filter(|&(register, _)| register != RSP) {
                let first = line(value);
                if read == first {
                    bits |= 1 << register;
                } else if read == first.wrapping_add(LINE) {
                    bits |= 1 << register << SECOND;
                }
            }
            match fs {
                // It is always read.
                Some(fs) if read == fs => continue,
                Some(fs) if read == fs.wrapping_sub(LINE) => bits |= BEFORE_FS,
                _ => {}
            }
            wanted.registers |= bits;
            if bits == 0 {
                wanted.add_line(read);
            }
        }
        wanted
    }

    /// Adds what a later sample needed; true if that is more than before.
    pub fn add(&mut self, later: &Self) -> bool {
        let before = *self;
        self.registers |= later.registers;
        for &line in later.lines.iter().rev().filter(|&&line| line != 0) {
            self.add_line(line);
        }
        *self != before
    }

    fn add_line(&mut self, line: u64) {
        let at = self.lines.iter().position(|&known| known == line || known == 0).unwrap_or(WANTED_LINES - 1);
        if let Some(part) = self.lines.get_mut(..=at) {
            // A line that is already known keeps its position.
            if part.last() != Some(&line) {
                part.rotate_right(1);
                part[0] = line;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::regs::REGS_MASK;
    use super::*;

    #[test]
    fn lines_are_told_by_the_registers_that_point_to_them() {
        // In perf's order: ax bx cx dx si di bp sp ip flags ...
        let mut values = vec![0; REGS_MASK.count_ones() as usize];
        values[0] = 0x1_0010;
        values[1] = 0x2_0000;
        let regs = UserRegs::from_perf(2, REGS_MASK, &values).unwrap();
        let reads = [0x1_0000, 0x1_0040, 0x2_0000, 0x5_0000, 0x6_0000];
        let wanted = Wanted::of(&regs, Snapshot::default(), &reads);
        assert_eq!(wanted, Wanted { registers: 1 | 1 << 16 | 1 << 3, lines: [0x6_0000, 0x5_0000, 0, 0] });
    }

    #[test]
    fn what_is_asked_for_grows_and_its_lines_are_the_latest() {
        let of = |registers, lines| Wanted { registers, lines };
        let mut all = of(1, [0x40, 0x80, 0, 0]);
        assert!(!all.add(&of(1, [0x80, 0, 0, 0])));
        assert!(all.add(&of(2, [0xc0, 0x100, 0x140, 0])));
        assert_eq!(all, of(3, [0xc0, 0x100, 0x140, 0x40]));
        assert!(!all.add(&Wanted::default()));
    }
}
