//! A number of 24 bits: four of them take as much memory as three numbers of 32 bits.

/// A count that stays at its largest value, 16,777,215, or 24 bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Small([u8; 3]);

impl Small {
    pub(crate) const MAX: u32 = (1 << 24) - 1;

    pub(crate) fn new(value: u32) -> Self {
        let [a, b, c, _] = value.min(Self::MAX).to_le_bytes();
        Self([a, b, c])
    }

    pub(crate) fn get(self) -> u32 {
        let [a, b, c] = self.0;
        u32::from_le_bytes([a, b, c, 0])
    }

    pub(crate) fn add(&mut self, by: u32) {
        *self = Self::new(self.get().saturating_add(by));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_up_to_its_largest_value() {
        let mut count = Small::new(0x12_3456);
        count.add(0x01_0001);
        assert_eq!(count.get(), 0x13_3457);
        count.add(u32::MAX);
        assert_eq!((count.get(), size_of::<Small>()), (Small::MAX, 3));
    }
}
