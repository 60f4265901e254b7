//! The total size to which a packed file may unpack. An attacker can pack data to a thousandth of its size.

/// Bytes that any file may unpack to.
pub const FREE: u64 = 256 << 20;
/// A larger file may unpack to this many times its size; records of samples shrink to a tenth.
pub const RATIO: u64 = 100;

/// The bytes that may still be unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    left: u64,
}

impl Budget {
    /// The budget of a file of this size.
    #[must_use]
    pub fn of(packed: u64) -> Self {
        Self { left: packed.saturating_mul(RATIO).max(FREE) }
    }

    /// Bytes.
    #[must_use]
    pub fn left(self) -> u64 {
        self.left
    }

    /// Takes this many bytes; false if they are too many, and then nothing is left.
    #[must_use]
    pub fn take(&mut self, bytes: u64) -> bool {
        let left = self.left.checked_sub(bytes);
        self.left = left.unwrap_or(0);
        left.is_some()
    }
}
