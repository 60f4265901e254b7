//! Counts of durations in bins whose bounds grow by a constant factor: those of a DDSketch (arXiv:1908.10693) of whole numbers.
//!
//! A bin is found by a table rather than by a logarithm: several distributions take each wait of a trace.

use std::borrow::Cow;
use std::sync::LazyLock;

/// Quantiles are right within this part of their value.
pub(super) const ERROR: f64 = 0.01;
/// The ratio between the bounds of a bin.
const GAMMA: f64 = (1.0 + ERROR) / (1.0 - ERROR);
/// Bins that are kept: with this error, durations from 1 ns to 18 s take 1,180.
pub(super) const MAX_BINS: usize = 1280;
/// Bins that are added at a time.
const CHUNK: u32 = 64;

/// The number of slots of the table for each power of two, in bits: a slot is narrower than a bin.
const SLOTS: u32 = 6;
/// The table goes to this power of two, about 5 hours. Up to there the logarithms of two whole numbers differ by more than their
/// error, so that a bin has one beginning.
const POWERS: u32 = 44;
/// A slot is one number: from this bit on the bin of its first duration, below it the first duration of the next bin.
const BIN: u32 = 48;
const BEGIN: u64 = (1 << BIN) - 1;

static TABLE: LazyLock<Table> = LazyLock::new(Table::new);

struct Table {
    gamma_ln: f64,
    slots: Vec<u64>,
}

impl Table {
    fn new() -> Self {
        let gamma_ln = GAMMA.ln();
        let mut table = Self { gamma_ln, slots: Vec::with_capacity((POWERS << SLOTS) as usize) };
        let (mut bin, mut next) = (0, table.begin(1));
        for power in 0..POWERS {
            for slot in 0..1u64 << SLOTS {
                let begin = |slot: u64| (((1 << SLOTS) + slot) << power).div_ceil(1 << SLOTS);
                while next <= begin(slot) {
                    bin += 1;
                    next = table.begin(bin + 1);
                }
                let next = if next < begin(slot + 1) { next } else { BEGIN };
                table.slots.push(u64::from(bin) << BIN | next);
            }
        }
        table
    }

    /// The bin of a duration that is not 0.
    fn bin(&self, ns: u64) -> u32 {
        let power = ns.ilog2();
        let slot = (u64::from(power) << SLOTS) + ((ns << SLOTS >> power) & ((1 << SLOTS) - 1));
        match self.slots.get(slot as usize) {
            Some(slot) if power < POWERS => (slot >> BIN) as u32 + u32::from(ns >= slot & BEGIN),
            _ => self.computed(ns),
        }
    }

    /// The same, of any duration.
    fn computed(&self, ns: u64) -> u32 {
        ((ns as f64).ln() / self.gamma_ln).floor() as u32
    }

    /// The first duration of a bin; where that is so narrow that it has none, of the next one.
    fn begin(&self, bin: u32) -> u64 {
        // That of the power, but for its error.
        let mut ns = ((f64::from(bin) * self.gamma_ln).exp() as u64).max(1);
        while ns > 1 && self.computed(ns - 1) >= bin {
            ns -= 1;
        }
        while self.computed(ns) < bin {
            ns += 1;
        }
        ns
    }

    /// The value that represents the durations of a bin.
    fn value(&self, bin: u32) -> f64 {
        (f64::from(bin) * self.gamma_ln).exp() * (2.0 * GAMMA / (1.0 + GAMMA))
    }
}

/// The number of durations that wait to be counted. The counts are seldom in the nearest caches; those of several durations are
/// fetched at the same time.
const WAITING: usize = 14;

/// Counts by bin. If the bins between the first and the last one are more than [`MAX_BINS`], the first ones are one.
#[derive(Clone, Default)]
pub(super) struct Bins {
    /// Bins of durations that are not in `counts` yet; the first `len` of these.
    waiting: [u16; WAITING],
    len: u8,
    /// The number of the first one of `counts`.
    first: u32,
    counts: Vec<u64>,
}

impl Bins {
    /// Adds a duration; 0 is in no bin.
    #[inline]
    pub(super) fn add(&mut self, ns: u64) {
        if ns == 0 {
            return;
        }
        if usize::from(self.len) == WAITING {
            self.settle();
        }
        // There are some 2,200 bins, so that the number of one has 16 bits.
        let bin = TABLE.bin(ns) as u16;
        if let Some(place) = self.waiting.get_mut(usize::from(self.len)) {
            *place = bin;
            self.len += 1;
        }
    }

    /// Counts those that wait.
    #[inline(never)]
    fn settle(&mut self) {
        let (waiting, len) = (self.waiting, std::mem::take(&mut self.len));
        for &bin in waiting.iter().take(usize::from(len)) {
            self.add_to(u32::from(bin), 1);
        }
    }

    /// The same with all counted.
    fn settled(&self) -> Cow<'_, Self> {
        if self.len == 0 {
            return Cow::Borrowed(self);
        }
        let mut settled = self.clone();
        settled.settle();
        Cow::Owned(settled)
    }

    #[inline]
    fn add_to(&mut self, bin: u32, count: u64) {
        match self.counts.get_mut(bin.wrapping_sub(self.first) as usize) {
            Some(sum) => *sum += count,
            None => self.grow(bin, count),
        }
    }

    /// Adds to a bin that is not there yet.
    #[cold]
    fn grow(&mut self, bin: u32, count: u64) {
        let is_full = self.counts.len() >= MAX_BINS && self.counts.last().is_some_and(|last| *last > 0);
        if let Some(lowest) = self.counts.first_mut().filter(|_| is_full && bin < self.first) {
            *lowest += count;
            return;
        }
        let before = Self { first: self.first, counts: std::mem::take(&mut self.counts), ..Self::default() };
        let low = before.iter().next().map_or(bin, |(low, _)| low.min(bin));
        let high = before.iter().next_back().map_or(bin, |(high, _)| high.max(bin));
        let least = (high + 1).saturating_sub(MAX_BINS as u32);
        self.first = (low / CHUNK * CHUNK).max(least);
        let bins = (high + 1 - self.first).next_multiple_of(CHUNK);
        self.counts = vec![0; (bins as usize).min(MAX_BINS)];
        for (bin, count) in before.iter().chain([(bin, count)]) {
            if let Some(sum) = self.counts.get_mut((bin.max(least) - self.first) as usize) {
                *sum += count;
            }
        }
    }

    /// The bins that are not empty, with their counts, but for those that wait.
    fn iter(&self) -> impl DoubleEndedIterator<Item = (u32, u64)> + '_ {
        let bins = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        bins.map(|(at, count)| (self.first + at as u32, *count))
    }

    /// Adds all of `other`.
    pub(super) fn merge(&mut self, other: &Self) {
        // From the highest one on, they grow once.
        for (bin, count) in other.settled().iter().rev() {
            self.add_to(bin, count);
        }
    }

    /// The value that represents the duration at `rank`, from 0, of `all` durations; those in no bin are 0.
    pub(super) fn at(&self, rank: u64, all: u64) -> f64 {
        let this = self.settled();
        let zeros = all - this.counts.iter().sum::<u64>().min(all);
        let Some(rank) = rank.checked_sub(zeros) else { return 0.0 };
        let mut sum = 0;
        let reaches = |(_, count): &(u32, u64)| {
            sum += count;
            sum > rank
        };
        let bin = this.iter().find(reaches).or_else(|| this.iter().next_back());
        bin.map_or(0.0, |(bin, _)| TABLE.value(bin))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counts.is_empty() && self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_bins_of_the_logarithm() {
        let check = |ns: u64| assert_eq!(TABLE.bin(ns), TABLE.computed(ns), "{ns}");
        (1..100_000).for_each(check);
        for bin in 1..TABLE.computed(u64::MAX) {
            let begin = if bin < 2000 { TABLE.begin(bin) } else { (f64::from(bin) * TABLE.gamma_ln).exp() as u64 };
            (begin.saturating_sub(3).max(1)..begin.saturating_add(3)).for_each(check);
        }
        for power in 0..64 {
            (-3..=3).filter_map(|by| (1u64 << power).checked_add_signed(by)).filter(|ns| *ns > 0).for_each(check);
        }
        assert_eq!(TABLE.slots.len(), (POWERS << SLOTS) as usize);
    }
}
