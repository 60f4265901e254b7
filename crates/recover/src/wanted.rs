//! Learns which memory the samples at one place in the code need, so that only that memory is read.

use std::ops::Range;

use super::lines::Snapshot;
use super::regs::Regs;
use scxprof_base::arch::Arch;

/// Bytes of a line.
const LINE: u64 = 64;
/// Lines for each place that no register points to.
pub const WANTED_LINES: usize = 4;
/// Within this distance above rsp, or below the base of fs, a thread's own memory is identified by the distance. No
/// address is this low (`USER_LOWEST` in operand.bpf.c), so lower numbers are distances.
const NEAR: u64 = 1 << 16;
/// The bit of rsp stands for the line before the one that fs points to, because the memory at rsp is in the sample
/// anyway.
const BEFORE_FS: u64 = 1 << 4;
/// The bit of a register's second line is this many bits above that of its first.
const SECOND: u32 = 32;
/// The bit of the lines that have the red zone. No register in `FOR_EACH_REGISTER` (arch.h) has this number.
const RED_ZONE: u64 = 1 << 31;
/// The bit of the line that fs points into.
const AT_FS: u64 = RED_ZONE << SECOND;

/// The lines of memory that running the code from one place on needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wanted {
    /// Bit N: the line that register N points into (in the numbering of instructions); bit N + 32: the line after it.
    /// On x86-64, bit 4 stands for the line before the one that fs points into, bit 31 for the red zone, and bit 63 for the
    /// line that fs points into.
    pub registers: u64,
    /// Lines that are the same for all samples of the place, the latest first; 0 for none. A global variable is stored
    /// as its address. Stacks and thread-local variables differ between threads, so their lines are stored as
    /// distances: below 65,536 from rsp, from -65,536 on (as a negative number) from the base of fs. Distances are
    /// multiples of 64, and stand for the line at that distance and the next one, because rsp and fs may point into the
    /// middle of a line.
    pub fixed: [u64; WANTED_LINES],
    /// Addresses of other lines, the latest first. They depend on data, so they change often.
    pub lines: [u64; WANTED_LINES],
}

/// What an instruction computes the address of its load from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    /// The base of fs, possibly with registers.
    Fs,
    /// A constant in the instruction or, on A64, in those before it.
    Itself,
    /// Registers.
    Registers,
}

/// A request for a line of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Read {
    /// An address in the line.
    pub(super) addr: u64,
    pub(super) base: Base,
}

impl Read {
    /// The address of the line.
    pub(super) fn line(self) -> u64 {
        self.addr & !(LINE - 1)
    }
}

/// Memory of the thread itself that the code around a sample uses. No [`Read`] requests it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct OwnMemory {
    /// The red zone.
    pub(super) red_zone: bool,
    /// Thread-local variables. Their address is known only with the line that fs points into.
    pub(super) thread_local: bool,
}

impl Wanted {
    /// The needs of a sample: the lines of `reads`, and what it uses of its `own` memory; `stack` is the thread's own stack.
    pub(super) fn of(regs: &Regs, memory: Snapshot<'_>, reads: &[Read], own: OwnMemory, stack: &Range<u64>) -> Self {
        let line = |addr: u64| addr & !(LINE - 1);
        let mut wanted = Self::default();
        if regs.arch == Arch::X86_64 {
            wanted.registers = (u64::from(own.red_zone) * RED_ZONE) | (u64::from(own.thread_local) * AT_FS);
        }
        let fs_base = memory.fs_base();
        let fs = fs_base.map(line);
        let pointed = regs.gpr.map(|value| line(regs.user_address(value)));
        for read in reads {
            let needed = read.line();
            let mut bits = 0;
            for (register, first) in (0..).zip(pointed).filter(|&(register, _)| register != regs.sp_number()) {
                if needed == first {
                    bits |= 1 << register;
                } else if needed == first.wrapping_add(LINE) {
                    bits |= 1 << register << SECOND;
                }
            }
            match fs {
                Some(fs) if needed == fs => {
                    wanted.registers |= AT_FS;
                    continue;
                }
                Some(fs) if needed == fs.wrapping_sub(LINE) => bits |= BEFORE_FS,
                _ => {}
            }
            wanted.registers |= bits;
            if bits == 0 {
                let above = read.addr.wrapping_sub(regs.sp());
                let below = fs_base.map_or(0, |base| base.wrapping_sub(read.addr));
                match read.base {
                    Base::Fs if (1..=NEAR).contains(&below) => add_line(&mut wanted.fixed, line(below.wrapping_neg())),
                    Base::Itself => add_line(&mut wanted.fixed, needed),
                    Base::Registers if above < NEAR && stack.contains(&read.addr) => {
                        add_line(&mut wanted.fixed, line(above));
                    }
                    _ => add_line(&mut wanted.lines, needed),
                }
            }
        }
        wanted
    }

    /// Adds the needs of a later sample; true if that changes the result.
    pub fn add(&mut self, later: &Self) -> bool {
        let before = *self;
        self.registers |= later.registers;
        for (own, later) in [(&mut self.fixed, &later.fixed), (&mut self.lines, &later.lines)] {
            later.iter().rev().for_each(|&line| add_line(own, line));
        }
        *self != before
    }
}

/// After this many samples in a row that need none of the learned lines, these lines are dropped.
const MISSES: u8 = 8;
/// One sample that needs a learned line makes up for this many that do not.
const HIT: u8 = 4;
/// After that, this many samples that need such lines are ignored.
const PAUSE: u8 = 100;

/// What the samples at one place have needed so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Learned {
    wanted: Wanted,
    misses: u8,
    pause: u8,
}

impl Learned {
    /// What later samples should contain.
    #[must_use]
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// Adds the needs of a later sample; true if that changes [`Learned::wanted`].
    ///
    /// Lines that depend on data are dropped if samples do not need the lines of earlier samples, as in a search
    /// through a large structure: reading them finds nothing, and displaces the cache contents of the sampled threads.
    pub fn add(&mut self, later: &Wanted) -> bool {
        let before = self.wanted;
        let mut later = *later;
        if later.lines.iter().any(|&line| line != 0) {
            let is_known = later.lines.iter().any(|line| *line != 0 && before.lines.contains(line));
            if self.pause > 0 {
                self.pause -= 1;
                later.lines = [0; WANTED_LINES];
            } else if is_known {
                self.misses = self.misses.saturating_sub(HIT);
            } else if self.misses < MISSES {
                self.misses += 1;
            } else {
                // After the pause, a shorter trial follows.
                (self.pause, self.misses) = (PAUSE, MISSES - HIT);
                (self.wanted.lines, later.lines) = ([0; WANTED_LINES], [0; WANTED_LINES]);
            }
        }
        self.wanted.add(&later);
        self.wanted != before
    }
}

fn add_line(lines: &mut [u64; WANTED_LINES], line: u64) {
    let at = lines.iter().position(|&known| known == line || known == 0).unwrap_or(WANTED_LINES - 1);
    if let Some(part) = lines.get_mut(..=at).filter(|_| line != 0) {
        // A line that is already known keeps its position.
        if part.last() != Some(&line) {
            part.rotate_right(1);
            part[0] = line;
        }
    }
}

#[cfg(test)]
mod tests {
    use scxprof_base::arch::Arch;

    use super::super::regs::regs_mask;
    use super::*;

    #[test]
    fn lines_are_told_by_the_registers_that_point_to_them() {
        // In perf's order: ax bx cx dx si di bp sp ip flags ...
        let mut values = vec![0; regs_mask(Arch::X86_64).count_ones() as usize];
        values[0] = 0x1_0010;
        values[1] = 0x2_0000;
        let regs = Regs::from_perf(Arch::X86_64, 2, regs_mask(Arch::X86_64), &values).unwrap();
        let reads = [0x1_0000, 0x1_0040, 0x2_0000, 0x5_0000, 0x6_0000];
        let reads = reads.map(|addr| Read { addr, base: Base::Registers });
        let wanted = Wanted::of(&regs, Snapshot::default(), &reads, OwnMemory::default(), &(0..0));
        assert_eq!(
            wanted,
            Wanted { registers: 1 | 1 << 32 | 1 << 3, fixed: [0; 4], lines: [0x6_0000, 0x5_0000, 0, 0] }
        );
    }

    #[test]
    fn the_red_zone_and_the_line_at_fs_are_asked_for_if_the_code_uses_them() {
        let of = |arch, red_zone, thread_local| {
            let values = vec![0; regs_mask(arch).count_ones() as usize];
            let regs = Regs::from_perf(arch, 2, regs_mask(arch), &values).unwrap();
            Wanted::of(&regs, Snapshot::default(), &[], OwnMemory { red_zone, thread_local }, &(0..0)).registers
        };
        assert_eq!(of(Arch::X86_64, true, false), 1 << 31);
        assert_eq!(of(Arch::X86_64, false, true), 1 << 63);
        assert_eq!(of(Arch::X86_64, false, false), 0);
        assert_eq!(of(Arch::Arm64, true, true), 0, "its functions use nothing below sp");
    }

    #[test]
    fn a_threads_own_memory_is_told_by_its_distance() {
        const OWN: u64 = 0x7000_1230;
        let of = |rsp: u64, stack: Range<u64>| {
            let mut values = vec![0; regs_mask(Arch::X86_64).count_ones() as usize];
            values[7] = rsp;
            let regs = Regs::from_perf(Arch::X86_64, 2, regs_mask(Arch::X86_64), &values).unwrap();
            let mut memory = vec![OWN, rsp, 1, OWN & !63];
            memory.extend([0, 0, 0, 0, 0, 0, OWN, 0]);
            let memory: Vec<u8> = memory.iter().flat_map(|word| word.to_le_bytes()).collect();
            let read = |(addr, base)| Read { addr, base };
            let mut reads = vec![(rsp + 0x3a8, Base::Registers), (OWN - 0x408, Base::Fs), (0x60_1234, Base::Itself)];
            // More lines that depend on data than fit.
            reads.extend((0..9).map(|line| (rsp + 0x2_0000 + line * 64, Base::Registers)));
            let reads: Vec<_> = reads.into_iter().map(read).collect();
            Wanted::of(&regs, Snapshot::new(&memory), &reads, OwnMemory::default(), &stack)
        };
        // The threads have different stacks, and different offsets of rsp in its line.
        let mut all = Wanted::default();
        for rsp in [0x7fff_0000, 0x7ffe_0000, 0x7ffd_0010] {
            all.add(&of(rsp, rsp - 512..rsp + 0x10_0000));
            assert_eq!(all.fixed, [0x60_1200, 0x440u64.wrapping_neg(), 0x380, 0]);
            assert_eq!(all.lines[0], (rsp + 0x2_0200) & !63);
        }
        // Memory above a small stack is not the thread's own.
        let wanted = of(0x7fff_0000, 0x7ffe_fe00..0x7fff_0200);
        assert_eq!(wanted.fixed, [0x60_1200, 0x440u64.wrapping_neg(), 0, 0]);
    }

    #[test]
    fn what_is_asked_for_grows_and_its_lines_are_the_latest() {
        let of = |registers, lines| Wanted { registers, fixed: [0; 4], lines };
        let mut all = of(1, [0x40, 0x80, 0, 0]);
        assert!(!all.add(&of(1, [0x80, 0, 0, 0])));
        assert!(all.add(&of(2, [0xc0, 0x100, 0x140, 0])));
        assert_eq!(all, of(3, [0xc0, 0x100, 0x140, 0x40]));
        assert!(!all.add(&Wanted::default()));
    }

    #[test]
    fn lines_that_are_others_each_time_are_given_up_for_a_while() {
        let of = |line| Wanted { registers: 1, fixed: [0x40, 0, 0, 0], lines: [line, 0, 0, 0] };
        let mut learned = Learned::default();
        let random = (1..).map(|number| of(number << 20));
        // Until the lines are dropped, each sample changes what the kernel reads.
        let changes = random.clone().take(1000).filter(|wanted| learned.add(wanted)).count();
        assert!((5..=80).contains(&changes), "{changes}");
        assert_eq!(*learned.wanted(), Wanted { lines: [0; 4], ..of(0) }, "the rest stays");
        // Then the code works on a single object.
        for _ in 0..2 * u64::from(PAUSE) {
            learned.add(&of(0x80));
        }
        assert_eq!(learned.wanted().lines, [0x80, 0, 0, 0]);
    }

    #[test]
    fn lines_that_come_and_go_are_kept() {
        let of = |line| Wanted { lines: [line, 0, 0, 0], ..Wanted::default() };
        let mut learned = Learned::default();
        // Every second sample accesses a line that does not recur.
        for round in 1..500 {
            learned.add(&of(round << 20));
            learned.add(&of(0x40));
            assert!(learned.wanted().lines.contains(&0x40), "{round}");
        }
    }
}
