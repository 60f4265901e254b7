//! The flags as far as known.

/// Flags, each known or unknown. Each instruction set has its own numbering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Flags {
    pub(super) bits: u32,
    pub(super) known: u32,
}

impl Flags {
    pub(super) fn forget(&mut self, flags: u32) {
        self.known &= !flags;
        self.bits &= self.known;
    }

    pub(super) fn set(&mut self, flag: u32, on: bool) {
        self.known |= flag;
        self.bits = if on { self.bits | flag } else { self.bits & !flag };
    }

    pub(super) fn get(self, flag: u32) -> Option<bool> {
        (self.known & flag != 0).then_some(self.bits & flag != 0)
    }

    /// The flags that both know and agree on.
    pub(super) fn common(self, other: Self) -> Self {
        let known = self.known & other.known & !(self.bits ^ other.bits);
        Self { bits: self.bits & known, known }
    }

    /// The flags that either knows; `None` if they contradict each other.
    pub(super) fn merge(self, other: Self) -> Option<Self> {
        ((self.bits ^ other.bits) & self.known & other.known == 0)
            .then_some(Self { bits: self.bits | other.bits, known: self.known | other.known })
    }
}
