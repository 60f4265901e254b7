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

/// The number of spots, as bits: 72 KiB.
const BITS: u32 = 10;

/// Most addresses are in the mapping of an earlier one. Only for recordings: with procfs each look-up is counted, so that the
/// busiest processes are checked first.
#[derive(Debug, Default)]
pub(super) struct Spots(Vec<Spot>);

/// The index of the spot of an address, by process and 2 MiB (Fibonacci hashing, Knuth).
#[inline]
fn place(pid: u32, addr: u64) -> usize {
    ((u64::from(pid) << 32 ^ addr >> 21).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BITS)) as usize
}

impl Spots {
    /// The memory at the address, if its spot has it.
    #[inline]
    pub(super) fn find(&mut self, pid: u32, addr: u64, changes: u64, now: u64) -> Option<MemoryId> {
        let spot = self.0.get_mut(place(pid, addr))?;
        if spot.pid != pid || spot.changes != changes || !(spot.start..spot.end).contains(&addr) {
            return None;
        }
        spot.used = now;
        Some(match spot.file {
            Some((scope, ino, shift)) => MemoryId::Shared { scope, ino, offset: addr.wrapping_add(shift) },
            None => MemoryId::Private { space: spot.space, addr },
        })
    }

    /// Keeps what was found at `addr`; returns the process of the spot that was there, and when it was last used.
    pub(super) fn keep(&mut self, spot: Spot, addr: u64) -> (u32, u64) {
        self.0.resize(1 << BITS, Spot::default());
        match self.0.get_mut(place(spot.pid, addr)) {
            Some(kept) => {
                let replaced = std::mem::replace(kept, spot);
                (replaced.pid, replaced.used)
            }
            None => (spot.pid, spot.used),
        }
    }

    /// The processes of all spots, and when these were last used.
    pub(super) fn uses(&self) -> Vec<(u32, u64)> {
        self.0.iter().map(|spot| (spot.pid, spot.used)).collect()
    }

    /// Forgets all.
    #[cfg(test)]
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
