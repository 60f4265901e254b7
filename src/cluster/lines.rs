//! Which code touches the hottest shared lines, and which bytes of them each thread touched, in memory that is allocated once.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::keys::mix;
use crate::memory::prefetch;
use crate::sample::{Access, CodeAddr, LINE_SIZE};

/// Instructions that are kept for a line.
const CODES: usize = 4;
/// Threads whose bytes are kept for a line.
const THREADS: usize = 8;
/// The least number of accesses of each of two threads for the verdict that they touched no common byte: two threads that touch all
/// eight words of a line at random do so once in 4,000 times.
const ENOUGH: u32 = 8;
/// A thread with less than this part of the accesses of the line's most active thread is ignored for how the line is shared: most
/// lines were once initialized as a whole, or are read by a thread that prints a sum.
const RARE: u32 = 20;

/// Which bytes of a line one thread touched, each a bit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Bytes {
    pub thread: u32,
    /// Its accesses since it has this place, less what others took from them; 0 for a free place.
    accesses: u32,
    pub loaded: u64,
    pub stored: u64,
}

/// A line, and the instructions and threads that touched it most since it has its place.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    line: u64,
    /// The votes that keep other lines out.
    weight: u32,
    codes: [(u64, Option<NonZeroU32>, u32); CODES],
    threads: [Bytes; THREADS],
}

/// One access to a line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Touched {
    pub thread: u32,
    pub access: Access,
    /// The first byte in the line.
    pub first: u64,
    /// Bytes, 0 where the source does not say.
    pub size: u16,
    pub code: Option<CodeAddr>,
}

/// A line has one possible place, and takes it from another line by coming more often: a majority vote (Boyer and Moore), which
/// hot lines win. The last place for instructions, and for threads, of a line is taken in the same way.
#[derive(Debug, Clone)]
pub(super) struct HotLines {
    slots: Vec<Slot>,
}

impl HotLines {
    /// Allocates about `bytes` at the first access.
    pub(super) fn new(bytes: usize) -> Self {
        Self { slots: vec![Slot::default(); (bytes / size_of::<Slot>()).max(16)] }
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots.len() * size_of::<Slot>()
    }

    fn at(&self, line: u64) -> usize {
        ((u128::from(mix(line)) * self.slots.len() as u128) >> 64) as usize
    }

    /// Prefetches the place of a line.
    pub(super) fn prefetch(&self, line: u64) {
        if let Some(slot) = self.slots.get(self.at(line)) {
            prefetch(slot);
        }
    }

    pub(super) fn add(&mut self, line: u64, touched: &Touched) {
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
        if let Some(code) = touched.code {
            slot.add_code(code);
        }
        slot.add_bytes(touched);
    }

    fn of(&self, line: u64) -> Option<&Slot> {
        self.slots.get(self.at(line)).filter(|slot| slot.line == line)
    }

    /// The instructions of a line with their accesses, the hottest first. A count lacks what others took from it.
    pub(super) fn codes(&self, line: u64) -> Vec<(CodeAddr, f64)> {
        let Some(slot) = self.of(line) else { return Vec::new() };
        let mut codes: Vec<_> = slot
            .codes
            .iter()
            .filter_map(|&(offset, module, weight)| Some((CodeAddr { module: module?, offset }, weight)))
            .collect();
        codes.sort_unstable_by_key(|&(code, weight)| (std::cmp::Reverse(weight), code));
        codes.into_iter().map(|(code, weight)| (code, f64::from(weight))).collect()
    }

    /// The bytes of a line that each of its threads touched.
    pub(super) fn threads(&self, line: u64) -> impl Iterator<Item = &Bytes> {
        self.of(line).into_iter().flat_map(|slot| &slot.threads).filter(|it| it.accesses > 0)
    }
}

impl Slot {
    fn add_code(&mut self, code: CodeAddr) {
        let found = known_or_least(
            &self.codes,
            |entry| (entry.0, entry.1) == (code.offset, Some(code.module)),
            |entry| entry.2,
        );
        let Some(entry) = self.codes.get_mut(found.at) else { return };
        if found.is_known {
            entry.2 = entry.2.saturating_add(1);
        } else if entry.2 > 1 {
            entry.2 -= 1;
        } else {
            *entry = (code.offset, Some(code.module), 1);
        }
    }

    fn add_bytes(&mut self, touched: &Touched) {
        let is_it = |entry: &Bytes| entry.accesses > 0 && entry.thread == touched.thread;
        let found = known_or_least(&self.threads, is_it, |entry| entry.accesses);
        let Some(entry) = self.threads.get_mut(found.at) else { return };
        if !found.is_known {
            if entry.accesses > 1 {
                entry.accesses -= 1;
                return;
            }
            *entry = Bytes { thread: touched.thread, ..Bytes::default() };
        }
        entry.accesses = entry.accesses.saturating_add(1);
        let bytes = mask(touched.first, touched.size);
        if touched.access != Access::Store {
            entry.loaded |= bytes;
        }
        if matches!(touched.access, Access::Store | Access::Update) {
            entry.stored |= bytes;
        }
    }
}

/// An entry of a few.
struct Found {
    at: usize,
    is_known: bool,
}

/// The entry that is searched for, or the first of those with the least weight.
#[inline]
fn known_or_least<T>(entries: &[T], is_it: impl Fn(&T) -> bool, weight: impl Fn(&T) -> u32) -> Found {
    let mut least = (u32::MAX, 0);
    for (at, entry) in entries.iter().enumerate() {
        if is_it(entry) {
            return Found { at, is_known: true };
        }
        if weight(entry) < least.0 {
            least = (weight(entry), at);
        }
    }
    Found { at: least.1, is_known: false }
}

/// The bytes of an access that are in the line of its first one, each a bit; of an unknown size it is the first one alone.
fn mask(first: u64, size: u16) -> u64 {
    let end = (first % LINE_SIZE + u64::from(size.max(1))).min(LINE_SIZE);
    (u64::MAX >> (LINE_SIZE - end)) & (u64::MAX << (first % LINE_SIZE))
}

/// How threads share a cache line, by the bytes that they touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LineSharing {
    /// Two threads touched the same byte, and one of them wrote it.
    True,
    /// The line is written, and no thread touched a byte that another one wrote.
    False,
    /// No thread wrote it, as far as the samples show.
    None,
    /// There are too few samples to decide, or the source does not see writes.
    Unknown,
}

impl LineSharing {
    /// Its name in the JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::True => "true",
            Self::False => "false",
            Self::None => "none",
            Self::Unknown => "unknown",
        }
    }
}

/// How threads share a line; `owner` gives the same number for all numbers of one thread. `hitm` says that the line was found
/// modified in another cache, whether a store was seen or not.
pub(super) fn sharing(threads: &[Bytes], owner: impl Fn(u32) -> u32, is_written: bool, hitm: bool) -> LineSharing {
    if !is_written {
        return if hitm { LineSharing::Unknown } else { LineSharing::None };
    }
    let most = threads.iter().map(|it| it.accesses).max().unwrap_or(0);
    let active: Vec<&Bytes> = threads.iter().filter(|it| it.accesses >= most.div_ceil(RARE)).collect();
    let mut found = LineSharing::Unknown;
    for (at, a) in active.iter().enumerate() {
        for b in active.iter().skip(at + 1).filter(|b| owner(a.thread) != owner(b.thread)) {
            if a.stored & (b.loaded | b.stored) != 0 || b.stored & a.loaded != 0 {
                return LineSharing::True;
            }
            if a.stored | b.stored != 0 && a.accesses.min(b.accesses) >= ENOUGH {
                found = LineSharing::False;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(offset: u64) -> CodeAddr {
        CodeAddr { module: NonZeroU32::MIN, offset }
    }

    impl HotLines {
        fn add_code(&mut self, line: u64, code: CodeAddr) {
            let access = Access::Load;
            self.add(line, &Touched { thread: 0, access, first: 0, size: 8, code: Some(code) });
        }
    }

    #[test]
    fn the_hottest_code_of_hot_lines_is_kept() {
        let mut codes = HotLines::new(1 << 12);
        let hot = 7;
        for n in 0..20_000u64 {
            // Lines that come once push at every place.
            codes.add_code(1000 + n, code(n));
            codes.add_code(hot, code(n % 3));
            if n % 10 == 0 {
                codes.add_code(hot, code(100 + n));
            }
        }
        let kept = codes.codes(hot);
        let mut first: Vec<u64> = kept.iter().take(3).map(|(code, _)| code.offset).collect();
        first.sort_unstable();
        assert_eq!(first, [0, 1, 2], "{kept:?}");
        assert!(kept[2].1 > 5_000.0, "{kept:?}");
        assert_eq!(codes.bytes(), HotLines::new(1 << 12).bytes());
    }

    #[test]
    fn counts_are_exact_where_few_instructions_touch_a_line() {
        let mut codes = HotLines::new(1 << 12);
        for _ in 0..10 {
            codes.add_code(7, code(1));
            codes.add_code(7, code(2));
            codes.add_code(7, code(2));
        }
        assert_eq!(codes.codes(7), [(code(2), 20.0), (code(1), 10.0)]);
        assert_eq!(codes.codes(8), []);
    }

    #[test]
    fn a_place_goes_to_whoever_comes_more_often() {
        let mut codes = HotLines::new(0);
        let other = (2..1000).find(|&line| codes.at(line) == codes.at(1)).unwrap();
        let mut times = |line: u64, offset: u64, count: usize| {
            (0..count).for_each(|_| codes.add_code(line, code(offset)));
            [1, other].map(|line| codes.codes(line).iter().map(|it| (it.0.offset, it.1)).collect::<Vec<_>>())
        };
        // Equal ones come in order.
        times(1, 9, 1);
        assert_eq!(times(1, 4, 1), [vec![(4, 1.0), (9, 1.0)], vec![]]);
        // The other line comes as often, and begins with nothing.
        assert_eq!(times(other, 7, 1), [vec![(4, 1.0), (9, 1.0)], vec![]]);
        assert_eq!(times(other, 7, 1), [vec![], vec![(7, 1.0)]]);
        // The last place of a line's instructions goes the same way.
        for offset in [1, 2, 3] {
            times(other, offset, 2);
        }
        times(other, 7, 2);
        assert_eq!(times(other, 5, 1)[1], [(7, 3.0), (2, 2.0), (3, 2.0), (1, 1.0)]);
        assert_eq!(times(other, 5, 1)[1], [(7, 3.0), (2, 2.0), (3, 2.0), (5, 1.0)]);
    }

    /// Thread, kind, first byte, size, and how often.
    type Accesses<'a> = &'a [(u32, Access, u64, u16, u32)];

    fn of(accesses: Accesses<'_>) -> LineSharing {
        let mut lines = HotLines::new(0);
        for &(thread, access, first, size, times) in accesses {
            for _ in 0..times {
                lines.add(7, &Touched { thread, access, first, size, code: None });
            }
        }
        let threads: Vec<Bytes> = lines.threads(7).copied().collect();
        sharing(&threads, |thread| thread % 100, threads.iter().any(|it| it.stored != 0), false)
    }

    #[test]
    fn true_and_false_sharing_are_told_apart() {
        use Access::{Load, Store, Unknown, Update};
        let cases: [(Accesses<'_>, LineSharing); 12] = [
            (&[(1, Load, 0, 8, 50), (2, Load, 0, 8, 50)], LineSharing::None),
            (&[(1, Store, 0, 8, 50), (2, Load, 0, 8, 50)], LineSharing::True),
            (&[(1, Store, 0, 8, 50), (2, Load, 7, 1, 50)], LineSharing::True),
            (&[(1, Update, 0, 8, 50), (2, Update, 0, 8, 50)], LineSharing::True),
            (&[(1, Store, 0, 8, 50), (2, Load, 8, 8, 50)], LineSharing::False),
            (&[(1, Store, 0, 8, 50), (2, Unknown, 8, 8, 50)], LineSharing::False),
            (&[(1, Update, 0, 4, 50), (2, Update, 4, 4, 50), (3, Update, 60, 8, 50)], LineSharing::False),
            // Both load bytes that no thread writes, and one writes bytes that only it touches.
            (&[(1, Load, 0, 8, 50), (2, Load, 0, 8, 50), (1, Store, 32, 8, 50)], LineSharing::False),
            // Two accesses say nothing of what two threads never touch.
            (&[(1, Store, 0, 8, 50), (2, Load, 32, 8, 2)], LineSharing::Unknown),
            (&[(1, Store, 0, 8, 7), (2, Load, 32, 8, 7)], LineSharing::Unknown),
            // The thread that initialized it does not share it.
            (&[(3, Store, 0, 64, 2), (1, Store, 0, 8, 50), (2, Store, 8, 8, 50)], LineSharing::False),
            // One thread under two hints.
            (&[(1, Store, 0, 8, 50), (101, Load, 0, 8, 50)], LineSharing::Unknown),
        ];
        for (accesses, expected) in cases {
            assert_eq!(of(accesses), expected, "{accesses:?}");
        }
        assert_eq!(sharing(&[], |thread| thread, false, true), LineSharing::Unknown, "the source sees no stores");
    }

    proptest::proptest! {
        #[test]
        fn a_mask_has_the_bytes_of_the_access(first in 0u64..64, size in 0u16..200) {
            let bytes = mask(first, size);
            for byte in 0..64 {
                let is_in = byte >= first && byte < first + u64::from(size.max(1));
                proptest::prop_assert_eq!(bytes >> byte & 1 == 1, is_in);
            }
        }

        /// In whatever order the accesses come: where two threads have any byte in common that is written, it is true sharing,
        /// else false.
        #[test]
        fn sharing_is_what_the_bytes_say(
            accesses in proptest::collection::vec((0u32..4, 0u64..60, 1u16..9, proptest::bool::ANY), 2..12),
        ) {
            let mut lines = HotLines::new(0);
            let mut all: Vec<_> = accesses.iter().cycle().take(accesses.len() * 10).collect();
            all.rotate_left(accesses.len() / 2);
            for &(thread, first, size, writes) in all {
                let access = if writes { Access::Store } else { Access::Load };
                lines.add(7, &Touched { thread, access, first, size, code: None });
            }
            let range = |it: &(u32, u64, u16, bool)| it.1..it.1 + u64::from(it.2);
            let pairs = || accesses.iter().flat_map(|a| accesses.iter().map(move |b| (a, b))).filter(|(a, b)| a.0 != b.0 && a.3);
            let meet = pairs().any(|(a, b)| range(a).start.max(range(b).start) < range(a).end.min(range(b).end));
            let expected = match (accesses.iter().any(|it| it.3), meet, pairs().next().is_some()) {
                (false, ..) => LineSharing::None,
                (_, true, _) => LineSharing::True,
                (_, _, true) => LineSharing::False,
                _ => LineSharing::Unknown,
            };
            let threads: Vec<Bytes> = lines.threads(7).copied().collect();
            let is_written = accesses.iter().any(|it| it.3);
            proptest::prop_assert_eq!(sharing(&threads, |thread| thread, is_written, false), expected);
        }
    }
}
