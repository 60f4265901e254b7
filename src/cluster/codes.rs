//! Which code touches the hottest shared lines, in memory of fixed size.

use std::num::NonZeroU32;

use super::keys::mix;
use crate::sample::CodeAddr;

/// Instructions that are kept for a line.
const KEPT: usize = 4;

/// A line, and the instructions that touched it most since it took this slot.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    line: u64,
    /// Keeps other lines out of the slot.
    weight: u32,
    codes: [(u64, Option<NonZeroU32>, u32); KEPT],
}

/// Each line has one possible slot. It takes the slot from another line by coming more often: a majority vote (Boyer and
/// Moore), which hot lines win. The last of a line's instructions is chosen in the same way.
#[derive(Debug, Clone)]
pub(super) struct Codes {
    slots: Vec<Slot>,
}

impl Codes {
    /// Takes about `bytes`, as soon as it counts the first instruction.
    pub(super) fn new(bytes: usize) -> Self {
        Self { slots: vec![Slot::default(); (bytes / size_of::<Slot>()).max(16)] }
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots.len() * size_of::<Slot>()
    }

    fn at(&self, line: u64) -> usize {
        ((u128::from(mix(line)) * self.slots.len() as u128) >> 64) as usize
    }

    pub(super) fn add(&mut self, line: u64, code: CodeAddr) {
        let at = self.at(line);
        let Some(slot) = self.slots.get_mut(at) else { return };
        if slot.line != line {
            if slot.weight > 1 {
                slot.weight -= 1;
                return;
            }
            *slot = Slot { line, ..Slot::default() };
        }
        slot.weight = slot.weight.saturating_add(1);
        let is_it =
            |entry: &&mut (u64, Option<NonZeroU32>, u32)| (entry.0, entry.1) == (code.offset, Some(code.module));
        if let Some(entry) = slot.codes.iter_mut().find(is_it) {
            entry.2 = entry.2.saturating_add(1);
        } else if let Some(entry) = slot.codes.iter_mut().min_by_key(|entry| entry.2) {
            if entry.2 > 1 {
                entry.2 -= 1;
            } else {
                *entry = (code.offset, Some(code.module), 1);
            }
        }
    }

    /// The instructions of a line with their accesses, the hottest first. A count lacks the accesses that others took from it.
    pub(super) fn of(&self, line: u64) -> Vec<(CodeAddr, f64)> {
        let Some(slot) = self.slots.get(self.at(line)).filter(|slot| slot.line == line) else { return Vec::new() };
        let mut codes: Vec<_> = slot
            .codes
            .iter()
            .filter_map(|&(offset, module, weight)| Some((CodeAddr { module: module?, offset }, weight)))
            .collect();
        codes.sort_unstable_by_key(|&(code, weight)| (std::cmp::Reverse(weight), code));
        codes.into_iter().map(|(code, weight)| (code, f64::from(weight))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(offset: u64) -> CodeAddr {
        CodeAddr { module: NonZeroU32::MIN, offset }
    }

    #[test]
    fn the_hottest_code_of_hot_lines_is_kept() {
        let mut codes = Codes::new(1 << 12);
        let hot = 7;
        for n in 0..20_000u64 {
            // Lines that come once contend for every slot.
            codes.add(1000 + n, code(n));
            codes.add(hot, code(n % 3));
            if n % 10 == 0 {
                codes.add(hot, code(100 + n));
            }
        }
        let kept = codes.of(hot);
        let mut first: Vec<u64> = kept.iter().take(3).map(|(code, _)| code.offset).collect();
        first.sort_unstable();
        assert_eq!(first, [0, 1, 2], "{kept:?}");
        assert!(kept[2].1 > 5_000.0, "{kept:?}");
        assert_eq!(codes.bytes(), Codes::new(1 << 12).bytes());
    }

    #[test]
    fn counts_are_exact_where_few_instructions_touch_a_line() {
        let mut codes = Codes::new(1 << 12);
        for _ in 0..10 {
            codes.add(7, code(1));
            codes.add(7, code(2));
            codes.add(7, code(2));
        }
        assert_eq!(codes.of(7), [(code(2), 20.0), (code(1), 10.0)]);
        assert_eq!(codes.of(8), []);
    }

    #[test]
    fn a_place_goes_to_whoever_comes_more_often() {
        let mut codes = Codes::new(0);
        let other = (2..1000).find(|&line| codes.at(line) == codes.at(1)).unwrap();
        let mut times = |line: u64, offset: u64, count: usize| {
            (0..count).for_each(|_| codes.add(line, code(offset)));
            [1, other].map(|line| codes.of(line).iter().map(|it| (it.0.offset, it.1)).collect::<Vec<_>>())
        };
        // Equal counts come in order.
        times(1, 9, 1);
        assert_eq!(times(1, 4, 1), [vec![(4, 1.0), (9, 1.0)], vec![]]);
        // The other line comes as often, and begins with no count.
        assert_eq!(times(other, 7, 1), [vec![(4, 1.0), (9, 1.0)], vec![]]);
        assert_eq!(times(other, 7, 1), [vec![], vec![(7, 1.0)]]);
        // The last slot of a line's instructions works the same way.
        for offset in [1, 2, 3] {
            times(other, offset, 2);
        }
        times(other, 7, 2);
        assert_eq!(times(other, 5, 1)[1], [(7, 3.0), (2, 2.0), (3, 2.0), (1, 1.0)]);
        assert_eq!(times(other, 5, 1)[1], [(7, 3.0), (2, 2.0), (3, 2.0), (5, 1.0)]);
    }
}
