//! The clocks of a trace, mapped to BOOTTIME.

use rustc_hash::FxHashMap;

use super::tally::{count, OTHERS};
use super::wire::Fields;

/// Numbers of clocks (protos/perfetto/common/builtin_clock.proto).
pub(super) const BOOTTIME: u32 = 6;
const REALTIME: u32 = 1;
/// Clocks of one sequence of packets.
const OF_SEQUENCE: std::ops::RangeInclusive<u32> = 64..=127;
/// Values of clocks that are kept; a trace has about ten in some seconds.
const MAX_VALUES: usize = 1 << 20;
/// Clocks of differences, and clocks that no snapshot maps.
const MAX_KINDS: usize = 256;
/// Snapshots that are looked at for one time.
const MAX_BACK: usize = 64;

/// The name of a clock.
#[must_use]
pub(super) fn name_of(clock: u32) -> String {
    match clock {
        1 => "REALTIME",
        2 => "REALTIME_COARSE",
        3 => "MONOTONIC",
        4 => "MONOTONIC_COARSE",
        5 => "MONOTONIC_RAW",
        6 => "BOOTTIME",
        9 => "TSC",
        10 => "PERF",
        OTHERS => "other clocks",
        clock => return format!("clock {clock}"),
    }
    .to_owned()
}

/// The values that one clock and BOOTTIME had at one time.
#[derive(Debug, Clone, Copy)]
struct Pair {
    /// The offset in the file of the snapshot.
    offset: u64,
    value: u64,
    boot: u64,
}

/// A clock that only one sequence uses has its number.
type ClockId = (u32, u32);

fn id_of(sequence: u32, clock: u32) -> ClockId {
    (if OF_SEQUENCE.contains(&clock) { sequence } else { 0 }, clock)
}

/// A clock whose values are differences, and what they are multiplied with.
#[derive(Debug, Clone, Copy, Default)]
struct ClockKind {
    is_incremental: bool,
    multiplier: u64,
}

/// The sums so far of clocks whose values are differences.
pub(super) type Sums = FxHashMap<ClockId, u64>;

/// The snapshots of a trace.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    pairs: FxHashMap<ClockId, Vec<Pair>>,
    kinds: FxHashMap<ClockId, ClockKind>,
    values: usize,
    /// REALTIME when BOOTTIME was 0, ns, by the first snapshot that has both.
    pub(super) real_time: Option<i64>,
    /// Times of a clock that no snapshot maps: they are used as they are.
    pub(super) unmapped: FxHashMap<u32, u64>,
}

/// The clocks of a snapshot: number, value, whether its values are differences, and their unit in ns.
fn clocks_of(snapshot: &[u8]) -> impl Iterator<Item = (u32, u64, ClockKind)> + '_ {
    Fields::new(snapshot).filter(|(number, _)| *number == 1).map(|(_, clock)| {
        let (mut id, mut value, mut kind) = (0, 0, ClockKind { is_incremental: false, multiplier: 1 });
        for (number, field) in Fields::new(clock.bytes()) {
            match number {
                // No event has a clock of such a number.
                1 => id = u32::try_from(field.uint()).unwrap_or(0),
                2 => value = field.uint(),
                3 => kind.is_incremental = field.uint() != 0,
                4 => kind.multiplier = field.uint().max(1),
                _ => {}
            }
        }
        (id, value, kind)
    })
}

impl Clocks {
    /// Takes a snapshot. Those of a file come in the order of their offsets.
    pub(super) fn add(&mut self, snapshot: &[u8], sequence: u32, offset: u64) {
        let Some((_, boot, _)) = clocks_of(snapshot).find(|(id, ..)| *id == BOOTTIME) else { return };
        for (clock, value, kind) in clocks_of(snapshot).filter(|(id, ..)| *id != BOOTTIME) {
            if self.values >= MAX_VALUES {
                return;
            }
            self.values += 1;
            let id = id_of(sequence, clock);
            let value = value.saturating_mul(kind.multiplier);
            self.pairs.entry(id).or_default().push(Pair { offset, value, boot });
            if (kind.is_incremental || kind.multiplier > 1) && self.kinds.len() < MAX_KINDS {
                self.kinds.insert(id, kind);
            }
            if clock == REALTIME && self.real_time.is_none() {
                self.real_time = Some(value.wrapping_sub(boot) as i64);
            }
        }
    }

    /// Sets the sums of the clocks of a snapshot.
    pub(super) fn restart(&self, snapshot: &[u8], sequence: u32, sums: &mut Sums) {
        if self.kinds.is_empty() {
            return;
        }
        for (clock, value, kind) in clocks_of(snapshot).filter(|(_, _, kind)| kind.is_incremental) {
            let id = id_of(sequence, clock);
            if self.kinds.contains_key(&id) {
                sums.insert(id, value.saturating_mul(kind.multiplier));
            }
        }
    }

    /// The clocks that the snapshots have.
    pub(super) fn names(&self) -> Vec<String> {
        let mut clocks: Vec<u32> = self.pairs.keys().map(|(_, clock)| *clock).collect();
        clocks.sort_unstable();
        clocks.dedup();
        clocks.into_iter().map(name_of).collect()
    }

    /// The value of `clock` that a packet at `offset` states, as BOOTTIME in ns, by the snapshots before it.
    pub(super) fn map(&mut self, (clock, sequence): (u32, u32), value: u64, offset: u64, sums: &mut Sums) -> u64 {
        if clock == BOOTTIME {
            return value;
        }
        let id = id_of(sequence, clock);
        let mut value = value;
        if let Some(kind) = self.kinds.get(&id) {
            value = value.saturating_mul(kind.multiplier);
            if kind.is_incremental {
                let sum = sums.entry(id).or_default();
                *sum = sum.saturating_add(value);
                value = *sum;
            }
        }
        let pairs = self.pairs.get(&id).map_or(&[][..], |pairs| pairs);
        let before = pairs.get(..pairs.partition_point(|pair| pair.offset < offset)).unwrap_or_default();
        let pair = before.iter().rev().take(MAX_BACK).find(|pair| pair.value <= value).or(before.first());
        let Some(pair) = pair else {
            count(&mut self.unmapped, clock, MAX_KINDS);
            return value;
        };
        pair.boot.saturating_add_signed(value.wrapping_sub(pair.value) as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A snapshot of clocks with small numbers and values.
    fn snapshot(clocks: &[(u8, u8, bool)]) -> Vec<u8> {
        let clock = |&(id, value, is_incremental): &(u8, u8, bool)| {
            [0x0a, 8, 8, id, 16, value, 24, u8::from(is_incremental), 32, if is_incremental { 10 } else { 1 }]
        };
        clocks.iter().flat_map(clock).collect()
    }

    #[test]
    fn a_clock_is_mapped_by_the_last_snapshot_before_it() {
        let (mut clocks, mut sums) = (Clocks::default(), Sums::default());
        clocks.add(&snapshot(&[(6, 100, false), (3, 50, false), (1, 120, false)]), 1, 10);
        clocks.add(&snapshot(&[(6, 120, false), (3, 60, false), (64, 5, true)]), 1, 20);
        clocks.restart(&snapshot(&[(64, 5, true)]), 1, &mut sums);
        let mut at = |clock, value, offset| clocks.map((clock, 1), value, offset, &mut sums);
        assert_eq!(at(6, 7, 0), 7);
        assert_eq!(at(3, 55, 15), 105, "the second snapshot comes later");
        assert_eq!([at(3, 55, 25), at(3, 60, 25), at(3, 40, 25)], [105, 120, 90]);
        // Differences of 10 ns each.
        assert_eq!([at(64, 1, 25), at(64, 2, 26)], [130, 150]);
        assert_eq!(clocks.real_time, Some(20));
        assert_eq!(clocks.map((64, 2), 3, 25, &mut sums), 3, "the clock of another sequence");
        assert_eq!(clocks.unmapped.get(&64), Some(&1));
        assert_eq!(clocks.names(), ["REALTIME", "MONOTONIC", "clock 64"]);
    }
}
