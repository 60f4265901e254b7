//! What the generators of programs have in common, this one's of A64 and that of x86-64 in tests/operand of the project: numbers that
//! follow from a seed, and what is known of a register.

/// Pointers stay this near to the middle of the buffer.
pub const NEAR: i64 = 60_000;

/// Numbers that follow from a seed (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    pub fn range(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1) as usize) as i64
    }

    /// The lowest `count` bits.
    pub fn bits(&mut self, count: u32) -> u32 {
        self.next() as u32 & ((1 << count) - 1)
    }

    /// True once in `count`.
    pub fn once_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// What is known about a register or a slot of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Any,
    /// From 0 to this.
    Number(i64),
    /// Points into the buffer, at this distance from its middle.
    Pointer(i64, i64),
}

impl Kind {
    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Number(one), Self::Number(two)) => Self::Number(one.max(two)),
            (Self::Pointer(low, high), Self::Pointer(lower, higher)) => Self::Pointer(low.min(lower), high.max(higher)),
            _ => Self::Any,
        }
    }

    pub fn plus(self, low: i64, high: i64) -> Self {
        match self {
            Self::Number(max) if low >= 0 && max + high < NEAR => Self::Number(max + high),
            Self::Pointer(from, to) if from + low > -NEAR && to + high < NEAR => Self::Pointer(from + low, to + high),
            _ => Self::Any,
        }
    }
}
