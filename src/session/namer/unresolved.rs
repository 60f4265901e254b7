//! Counts the operands near the samples whose address stays unknown, and finds the instructions whose operands always do.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::outcome::{RecoveryStats, UnresolvedPlace};
use crate::resolve::Maps;
use crate::sample::printable;
use scxprof_base::tables::Tables;
use scxprof_recover::{Operand, Unrecovered};

/// Instructions that are distinguished.
const MAX_PLACES: usize = 1024;
/// Instructions that are named.
const MAX_NAMED: usize = 10;
/// An instruction is named if it was looked at this often, and once in this many operands.
const HOT: u64 = 10;
const HOT_PART: u64 = 1000;

/// An instruction with an operand whose address was unknown at least once since it is in the table.
#[derive(Debug)]
struct Place {
    unresolved: u64,
    resolved: bool,
    /// The latest reason.
    reason: Unrecovered,
    /// The path of its file, and the offset from the file's beginning; without a file its address.
    code: Option<(Arc<[u8]>, u64)>,
}

/// Counts of operands by reason and by instruction.
#[derive(Debug, Default)]
pub(super) struct Unresolved {
    operands: u64,
    /// In the order of [`Unrecovered::ALL`].
    by_reason: [u64; Unrecovered::ALL.len()],
    /// By address space and address.
    places: FxHashMap<(u32, u64), Place>,
    /// Reused to save allocations.
    scratch: Vec<u64>,
}

impl Unresolved {
    /// Counts the operands that were looked at for a sample of process `pid`, whose address space is `space`.
    pub(super) fn count(&mut self, operands: &[Operand], pid: u32, space: u32, maps: &mut Maps) {
        for operand in operands {
            self.operands += 1;
            self.count_one(*operand, space, || {
                let mapping = maps.find(pid, operand.insn_ip)?;
                let offset = if mapping.path.starts_with(b"/") && !mapping.path.starts_with(b"//") {
                    operand.insn_ip.wrapping_sub(mapping.start).wrapping_add(mapping.pgoff)
                } else {
                    operand.insn_ip
                };
                Some((Arc::clone(&mapping.path), offset))
            });
        }
    }

    fn count_one(&mut self, operand: Operand, space: u32, locate: impl FnOnce() -> Option<(Arc<[u8]>, u64)>) {
        let known = self.places.get_mut(&(space, operand.insn_ip));
        let Some(reason) = operand.unresolved else {
            if let Some(place) = known {
                place.resolved = true;
            }
            return;
        };
        if let Some(count) = self.by_reason.get_mut(reason as usize) {
            *count += 1;
        }
        if let Some(place) = known {
            (place.unresolved, place.reason) = (place.unresolved + 1, reason);
            return;
        }
        if self.places.len() >= MAX_PLACES {
            self.drop_rare();
        }
        let place = Place { unresolved: 1, resolved: false, reason, code: locate() };
        self.places.insert((space, operand.insn_ip), place);
    }

    /// Keeps the half of the places with most operands.
    fn drop_rare(&mut self) {
        let Self { places, scratch, .. } = self;
        scratch.clear();
        scratch.extend(places.values().map(|place| place.unresolved));
        let half = scratch.len() / 2;
        let (_, &mut median, more) = scratch.select_nth_unstable(half);
        // Those that are equal to the median fill what is left of the half.
        let mut equal = half.saturating_sub(more.iter().filter(|&&count| count > median).count());
        places.retain(|_, place| {
            let fills = place.unresolved == median && equal > 0;
            equal -= usize::from(fills);
            fills || place.unresolved > median
        });
    }

    /// Its size.
    pub(super) fn measure(&self, tables: &mut Tables) {
        let (count, room) = (self.places.len(), self.places.capacity());
        let scratch = self.scratch.capacity() * size_of::<u64>();
        tables.set_map::<((u32, u64), Place)>("code places with unknown operands", count, room, scratch);
    }

    /// The counts so far.
    pub(super) fn add_to(&self, stats: &mut RecoveryStats) {
        stats.operands = self.operands;
        let reasons = Unrecovered::ALL.iter().zip(self.by_reason).filter(|&(_, count)| count > 0);
        stats.unresolved_operands = reasons.map(|(reason, count)| (reason.name(), count)).collect();
        stats.unresolved_places = self.hottest();
    }

    /// The hottest instructions whose operands were unknown in all processes that run them.
    fn hottest(&self) -> Vec<UnresolvedPlace> {
        let mut by_code: BTreeMap<(&[u8], u64), (u64, bool, Unrecovered)> = BTreeMap::new();
        for (&(_, ip), place) in &self.places {
            let code = place.code.as_ref().map_or((&b""[..], ip), |(path, offset)| (&**path, *offset));
            let sum = by_code.entry(code).or_insert((0, false, place.reason));
            *sum = (sum.0 + place.unresolved, sum.1 || place.resolved, sum.2.min(place.reason));
        }
        let least = HOT.max(self.operands / HOT_PART);
        let mut hottest: Vec<_> =
            by_code.into_iter().filter(|(_, (times, resolved, _))| !resolved && *times >= least).collect();
        hottest.sort_by_key(|(_, (times, ..))| std::cmp::Reverse(*times));
        let named = hottest.into_iter().take(MAX_NAMED).map(|((path, offset), (times, _, reason))| UnresolvedPlace {
            file: if path.is_empty() || path.starts_with(b"//") { "[anon]".to_owned() } else { printable(path) },
            offset,
            times,
            reason: reason.name(),
        });
        named.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn see(all: &mut Unresolved, space: u32, insn_ip: u64, unresolved: Option<Unrecovered>, times: u64) {
        for _ in 0..times {
            all.operands += 1;
            all.count_one(Operand { insn_ip, unresolved }, space, || Some((b"/lib/x.so"[..].into(), insn_ip - 0x1000)));
        }
    }

    fn stats(all: &Unresolved) -> RecoveryStats {
        let mut stats = RecoveryStats::default();
        all.add_to(&mut stats);
        stats
    }

    #[test]
    fn a_place_is_named_if_its_operand_is_hot_and_never_known() {
        let mut all = Unresolved::default();
        see(&mut all, 1, 0x2000, Some(Unrecovered::Overwritten), 30);
        see(&mut all, 2, 0x2000, Some(Unrecovered::Overwritten), 30);
        see(&mut all, 1, 0x2010, Some(Unrecovered::Gather), 50);
        // Known once, in one process.
        see(&mut all, 1, 0x2020, Some(Unrecovered::Overwritten), 100);
        see(&mut all, 2, 0x2020, Some(Unrecovered::Overwritten), 1);
        see(&mut all, 2, 0x2020, None, 1);
        see(&mut all, 1, 0x2030, Some(Unrecovered::Tls), HOT - 1);
        see(&mut all, 1, 0x2040, None, 500);
        let stats = stats(&all);
        let named: Vec<_> =
            stats.unresolved_places.iter().map(|place| (place.to_string(), place.times, place.reason)).collect();
        let expected = [
            ("x.so+0x1000".to_owned(), 60, "registers overwritten"),
            ("x.so+0x1010".to_owned(), 50, "gather or scatter"),
        ];
        assert_eq!(named, expected);
        assert_eq!(stats.operands, 60 + 50 + 102 + HOT - 1 + 500);
        let by_reason = [("gather or scatter", 50), ("registers overwritten", 161), ("thread-local", HOT - 1)];
        assert_eq!(stats.unresolved_operands, BTreeMap::from(by_reason));
        let share = (60 + 50 + 101 + HOT - 1) as f64 / stats.operands as f64;
        assert!((stats.unresolved_share() - share).abs() < 1e-9);
    }

    #[test]
    fn hot_places_stay_when_there_are_more_than_have_room() {
        let mut all = Unresolved::default();
        see(&mut all, 1, 0x1_0000, Some(Unrecovered::Overwritten), 5);
        for cold in 0..100_000 {
            see(&mut all, 1, 0x10_0000 + cold, Some(Unrecovered::Overwritten), 1 + cold % 2);
            if cold % 200 == 0 {
                see(&mut all, 1, 0x1_0000, Some(Unrecovered::Overwritten), 1);
            }
            assert!(all.places.len() <= MAX_PLACES);
        }
        let named = stats(&all).unresolved_places;
        assert_eq!(named.iter().map(|place| (place.offset, place.times)).collect::<Vec<_>>(), [(0xf000, 505)]);
    }
}
