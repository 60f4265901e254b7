//! How much a packed file may unpack to, all of it together. A stranger can pack nearly nothing into a thousandth of itself.

/// Bytes that may come out of any file.
pub(super) const FREE: u64 = 256 << 20;
/// Times its own size that may come out of a larger one; records of samples shrink to a tenth.
pub(super) const RATIO: u64 = 100;

/// What may still come out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Budget {
    left: u64,
}

impl Budget {
    /// For a file of so many bytes.
    pub(super) fn of(packed: u64) -> Self {
        Self { left: packed.saturating_mul(RATIO).max(FREE) }
    }

    /// Bytes.
    pub(super) fn left(self) -> u64 {
        self.left
    }

    /// Takes so many bytes; false if they are too many, and nothing is left then.
    #[must_use]
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        let left = self.left.checked_sub(bytes);
        self.left = left.unwrap_or(0);
        left.is_some()
    }
}
