//! The last results of looking up memory in a recording.

use crate::sample::{MemoryId, MemoryScope};

/// Addresses of a process whose memory is of one kind while no table changes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spot {
    pub(super) pid: u32,
    /// The number of the address space, whose own memory it is without `file`.
    pub(super) space: u32,
    /// See [`Maps::changes`](super::Maps::changes).
    pub(super) changes: u64,
    /// From the first address to the one after the last.
    pub(super) start: u64,
    pub(super) end: u64,
    /// The clock at the last use; the process has not been told of that use yet.
    pub(super) used: u64,
    /// The file that is mapped there, and what to add to an address to get its offset in it.
    pub(super) file: Option<(MemoryScope, u64, u64)>,
}

/// The number of places, as bits. With two spots each they take 144 KiB.
const BITS: u32 = 10;

/// Most addresses are in the mapping of an earlier one. Only for recordings: with procfs each look-up is counted, so that the
/// busiest processes are checked first.
///
/// Each place has two spots: of the many regions that a recording uses, some have the same place.
#[derive(Debug, Default)]
pub(super) struct Spots(Vec<[Spot; 2]>);

/// The index of the place of an address, by process and 2 MiB (Fibonacci hashing, Knuth).
#[inline]
fn place(pid: u32, addr: u64) -> usize {
    ((u64::from(pid) << 32 ^ addr >> 21).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BITS)) as usize
}

impl Spots {
    /// The memory at the address, if a spot has it.
    #[inline]
    pub(super) fn find(&mut self, pid: u32, addr: u64, changes: u64, now: u64) -> Option<MemoryId> {
        let is_it =
            |spot: &&mut Spot| spot.pid == pid && spot.changes == changes && (spot.start..spot.end).contains(&addr);
        let spot = self.0.get_mut(place(pid, addr))?.iter_mut().find(is_it)?;
        spot.used = now;
        Some(match spot.file {
            Some((scope, ino, shift)) => MemoryId::Shared { scope, ino, offset: addr.wrapping_add(shift) },
            None => MemoryId::Private { space: spot.space, addr },
        })
    }

    /// Keeps what was found at `addr`, in place of what was used less lately; returns the process of the spot that was there, and
    /// when it was last used.
    pub(super) fn keep(&mut self, spot: Spot, addr: u64) -> (u32, u64) {
        self.0.resize(1 << BITS, <[Spot; 2]>::default());
        let older = self.0.get_mut(place(spot.pid, addr)).and_then(|both| both.iter_mut().min_by_key(|it| it.used));
        match older {
            Some(kept) => {
                let replaced = std::mem::replace(kept, spot);
                (replaced.pid, replaced.used)
            }
            None => (spot.pid, spot.used),
        }
    }

    /// The processes of all spots, and when these were last used.
    pub(super) fn uses(&self) -> Vec<(u32, u64)> {
        self.0.iter().flatten().map(|spot| (spot.pid, spot.used)).collect()
    }

    /// Forgets all.
    #[cfg(test)]
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_of_the_same_place_are_both_kept_and_the_older_one_gives_way() {
        let mut spots = Spots::default();
        let same = (1..).filter(|&pid| place(pid, 0) == place(1, 0)).take(3).collect::<Vec<u32>>();
        let spot = |pid, used| Spot { pid, space: pid, changes: 7, start: 0, end: 4096, used, file: None };
        let found =
            |spots: &mut Spots, pid, now| spots.find(pid, 5, 7, now) == Some(MemoryId::Private { space: pid, addr: 5 });
        assert_eq!(spots.keep(spot(same[0], 1), 0), (0, 0));
        assert_eq!(spots.keep(spot(same[1], 2), 0), (0, 0));
        assert!(found(&mut spots, same[1], 3) && found(&mut spots, same[0], 4));
        assert_eq!(spots.keep(spot(same[2], 5), 0), (same[1], 3));
        assert!(found(&mut spots, same[0], 6) && found(&mut spots, same[2], 7) && !found(&mut spots, same[1], 8));
        assert_eq!(spots.find(same[0], 4096, 7, 9), None);
        assert_eq!(spots.find(same[0], 5, 8, 9), None);
    }
}
