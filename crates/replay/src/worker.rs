//! The work of mock threads while they run: arithmetic, and accesses to memory.

use std::sync::atomic::{AtomicU64, Ordering};

use super::board::Arena;
use super::memory::{Buffer, MockMemory};

/// Accesses in a unit of work.
const UNIT: u64 = 4;

/// The state of a thread's work.
pub(super) struct Worker<'a> {
    memory: MockMemory,
    shared: &'a [AtomicU64],
    private: &'a [AtomicU64],
    /// Units in a ms of CPU time.
    pub speed: u64,
    /// Of its random numbers.
    pub state: u64,
}

impl<'a> Worker<'a> {
    pub fn new(arena: &'a Arena, speed: u64, memory: MockMemory) -> Self {
        let words = |buffer: Buffer| arena.words(buffer.offset, buffer.bytes);
        let (shared, private) = (words(memory.shared), words(memory.private));
        Self { memory, shared, private, speed, state: 0x2545_f491_4f6c_dd1d }
    }

    /// This number of units: some of them accesses, the others arithmetic.
    pub fn work(&mut self, units: u64) {
        let accesses = units * u64::from(self.memory.rate) / 256;
        let to_shared = accesses * u64::from(self.memory.to_shared) / 256;
        let MockMemory { shared, private, .. } = self.memory;
        self.state = touch(self.shared, shared.writes, to_shared * UNIT, self.state);
        self.state = touch(self.private, private.writes, (accesses - to_shared) * UNIT, self.state);
        work(units - accesses);
    }
}

/// Accesses all over the words, `writes` in 256 of them writes; returns the next state of the random numbers.
#[inline(never)]
fn touch(words: &[AtomicU64], writes: u32, accesses: u64, mut state: u64) -> u64 {
    let Some(len) = u64::try_from(words.len()).ok().filter(|&len| len > 0) else { return state };
    let mut sum = 0u64;
    for _ in 0..accesses {
        // Marsaglia's xorshift64.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Lemire's multiplication in place of a division.
        let at = ((u128::from(state) * u128::from(len)) >> 64) as usize;
        let Some(word) = words.get(at) else { break };
        if (state & 0xff) as u32 >= writes {
            sum = sum.wrapping_add(word.load(Ordering::Relaxed));
        } else {
            word.store(sum, Ordering::Relaxed);
        }
    }
    std::hint::black_box(sum);
    state
}

/// Units of work, each of about 20 ns: a chain of multiplications, which no CPU can do ahead.
#[inline(never)]
pub(super) fn work(units: u64) {
    let mut sum = units;
    for _ in 0..units {
        for _ in 0..16 {
            // Knuth's MMIX.
            sum = sum.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        }
        std::hint::black_box(sum);
    }
}
