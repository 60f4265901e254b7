//! The time of a run in a few spans: a bit for each says whether something was seen in it.

/// The most spans. As time goes on, neighbours become one, so that there are always at least three quarters as many.
pub(crate) const MOST: usize = 24;
/// The first length of a span in ns: a run of 2.4 s has 24.
const FIRST: u64 = 100_000_000;
/// Neighbours that become one at once: each time, all bits move.
const AT_ONCE: usize = 6;

/// Spans that follow each other. The length of one is at most twice that of another.
#[derive(Debug, Clone)]
pub(crate) struct Spans {
    /// When each begins, in ns.
    begins: Vec<u64>,
    /// When the last one ends.
    end: u64,
    /// The length of new ones.
    length: u64,
}

impl Default for Spans {
    fn default() -> Self {
        Self { begins: Vec::new(), end: 0, length: FIRST }
    }
}

impl Spans {
    /// The bit of a time; of one before the first span the first bit. `None` if the spans end before it.
    pub(crate) fn bit(&self, time: u64) -> Option<u32> {
        let &last = self.begins.last()?;
        let at = if time >= last { self.begins.len() } else { self.begins.partition_point(|&begin| begin <= time) };
        (time < self.end).then_some(1 << at.saturating_sub(1))
    }

    /// Adds spans up to a time; returns the places of spans that took in the next one, in this order: see [`Merged`].
    pub(crate) fn extend(&mut self, time: u64) -> Vec<u32> {
        let mut places = Vec::new();
        if self.begins.is_empty() {
            self.end = time;
        }
        while time >= self.end && self.end < u64::MAX {
            if self.begins.len() >= MOST {
                self.merge(&mut places);
            }
            self.begins.push(self.end);
            self.end = self.end.saturating_add(self.length);
        }
        places
    }

    /// Makes some of the shortest neighbours one.
    fn merge(&mut self, places: &mut Vec<u32>) {
        let of_two = |spans: &Self, at: usize| {
            let end = spans.begins.get(at + 2).copied().unwrap_or(spans.end);
            spans.begins.get(at).map(|begin| end - begin)
        };
        let (mut at, mut left) = (0, AT_ONCE);
        while left > 0 && at + 1 < self.begins.len() {
            if of_two(self, at).is_some_and(|length| length <= self.length) {
                self.begins.remove(at + 1);
                places.push(at as u32);
                left -= 1;
            }
            at += 1;
        }
        if left == AT_ONCE {
            self.length = self.length.saturating_mul(2);
            self.merge(places);
        }
    }

    /// When each begins, in ns, and when the last one ends.
    pub(crate) fn begins(&self) -> (&[u64], u64) {
        (&self.begins, self.end)
    }
}

/// The bits after [`Spans::extend`], by a table for each eight of them: there are many to move.
pub(crate) struct Merged([[u32; 256]; MOST.div_ceil(8)]);

impl Merged {
    pub(crate) fn new(places: &[u32]) -> Self {
        Self(std::array::from_fn(|byte| std::array::from_fn(|bits| merged((bits as u32) << (8 * byte), places))))
    }

    pub(crate) fn of(&self, bits: u32) -> u32 {
        self.0.iter().zip(bits.to_le_bytes()).fold(0, |all, (table, byte)| all | table[usize::from(byte)])
    }
}

fn merged(bits: u32, places: &[u32]) -> u32 {
    places.iter().fold(bits, |bits, &at| {
        let below = bits & ((1 << at) - 1);
        let one = (bits >> at | bits >> (at + 1)) & 1;
        below | one << at | bits >> (at + 2) << (at + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        /// The bits of times are those of the spans that hold them, whatever came later.
        #[test]
        fn bits_follow_the_spans(steps in proptest::collection::vec(0u64..3_000_000_000, 1..300), first in 0u64..1 << 50) {
            let mut spans = Spans::default();
            let mut seen: Vec<(u64, u32)> = Vec::new();
            let mut time = first;
            for step in steps {
                time += step / (1 + step % 50);
                let merged = Merged::new(&spans.extend(time));
                for it in &mut seen {
                    it.1 = merged.of(it.1);
                }
                seen.push((time, spans.bit(time).unwrap_or_default()));
                for &(time, bit) in &seen {
                    proptest::prop_assert_eq!(spans.bit(time), Some(bit));
                }
                let (begins, end) = spans.begins();
                proptest::prop_assert!(begins.len() <= MOST && time < end);
                let lengths: Vec<u64> = begins.iter().zip(begins[1..].iter().chain([&end])).map(|it| it.1 - it.0).collect();
                let (least, most) = (lengths.iter().min().unwrap(), lengths.iter().max().unwrap());
                proptest::prop_assert!(most <= &(2 * least), "{:?}", lengths);
                proptest::prop_assert!(end - begins[0] < 2_400_000_000 || begins.len() >= MOST * 3 / 4);
            }
        }
    }

    #[test]
    fn the_end_of_time_is_a_span_too() {
        let mut spans = Spans::default();
        assert_eq!(spans.bit(5), None);
        spans.extend(5);
        assert_eq!((spans.bit(0), spans.bit(5), spans.bit(6)), (Some(1), Some(1), Some(1)));
        spans.extend(u64::MAX);
        assert!(spans.bit(u64::MAX - 1).is_some() && spans.bit(u64::MAX).is_none(), "{spans:?}");
        assert!(spans.extend(u64::MAX).is_empty());
    }
}
