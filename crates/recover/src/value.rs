//! A 64-bit value; each bit is known or unknown.

/// The content of a register or stack slot. Bits outside `known` are 0 in `bits`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Val {
    bits: u64,
    known: u64,
}

/// All ones in the low `bytes` bytes.
pub(super) fn mask(bytes: u32) -> u64 {
    match bytes {
        0 => 0,
        1..=7 => (1 << (bytes * 8)) - 1,
        _ => u64::MAX,
    }
}

impl Val {
    pub(super) const UNKNOWN: Self = Self { bits: 0, known: 0 };

    pub(super) fn new(bits: u64, known: u64) -> Self {
        Self { bits: bits & known, known }
    }

    pub(super) fn full(bits: u64) -> Self {
        Self { bits, known: u64::MAX }
    }

    pub(super) fn bits(self) -> u64 {
        self.bits
    }

    pub(super) fn known(self) -> u64 {
        self.known
    }

    /// The value, if all bits are known.
    pub(super) fn get(self) -> Option<u64> {
        (self.known == u64::MAX).then_some(self.bits)
    }

    /// The low `bytes` bytes, if all of them are known.
    pub(super) fn low(self, bytes: u32) -> Option<u64> {
        let mask = mask(bytes);
        (self.known & mask == mask).then_some(self.bits & mask)
    }

    /// The low `bytes` bytes, zero-extended.
    pub(super) fn zext(self, bytes: u32) -> Self {
        let mask = mask(bytes);
        Self { bits: self.bits & mask, known: self.known | !mask }
    }

    /// The low `bytes` bytes; the rest becomes unknown.
    pub(super) fn only_low(self, bytes: u32) -> Self {
        Self::new(self.bits, self.known & mask(bytes))
    }

    /// The low `bytes` bytes, sign-extended.
    pub(super) fn sext(self, bytes: u32) -> Self {
        let low = mask(bytes);
        let sign = low ^ (low >> 1);
        if self.known & sign == 0 {
            return self.only_low(bytes);
        }
        let above = if self.bits & sign == 0 { 0 } else { !low };
        Self { bits: (self.bits & low) | above, known: (self.known & low) | !low }
    }

    /// `self` with its `bytes` bytes from bit `shift` on replaced by the low ones of `low`.
    pub(super) fn insert(self, low: Self, bytes: u32, shift: u32) -> Self {
        let mask = mask(bytes) << shift;
        Self {
            bits: (self.bits & !mask) | ((low.bits << shift) & mask),
            known: (self.known & !mask) | ((low.known << shift) & mask),
        }
    }

    /// A mask of the low bits that both know without a gap, for which carries can be computed.
    fn prefix(self, other: Self) -> u64 {
        match (self.known & other.known).trailing_ones() {
            64 => u64::MAX,
            ones => (1 << ones) - 1,
        }
    }

    pub(super) fn add(self, other: Self) -> Self {
        Self::new(self.bits.wrapping_add(other.bits), self.prefix(other))
    }

    pub(super) fn sub(self, other: Self) -> Self {
        Self::new(self.bits.wrapping_sub(other.bits), self.prefix(other))
    }

    pub(super) fn mul(self, other: Self) -> Self {
        Self::new(self.bits.wrapping_mul(other.bits), self.prefix(other))
    }

    pub(super) fn and(self, other: Self) -> Self {
        // A known 0 on either side decides the bit.
        let zero = (self.known & !self.bits) | (other.known & !other.bits);
        Self::new(self.bits & other.bits, (self.known & other.known) | zero)
    }

    pub(super) fn or(self, other: Self) -> Self {
        // A known 1 on either side decides the bit.
        let bits = self.bits | other.bits;
        Self::new(bits, (self.known & other.known) | bits)
    }

    pub(super) fn xor(self, other: Self) -> Self {
        Self::new(self.bits ^ other.bits, self.known & other.known)
    }

    pub(super) fn not(self) -> Self {
        Self::new(!self.bits, self.known)
    }

    /// Shifts left by fewer than 64 bits.
    pub(super) fn shl(self, count: u32) -> Self {
        Self { bits: self.bits << count, known: (self.known << count) | !(u64::MAX << count) }
    }

    /// Shifts right by fewer than 64 bits and fills with zeros.
    pub(super) fn shr(self, count: u32) -> Self {
        Self { bits: self.bits >> count, known: (self.known >> count) | !(u64::MAX >> count) }
    }

    /// Shifts right by fewer than 64 bits and fills with the sign.
    pub(super) fn sar(self, count: u32) -> Self {
        // The highest bit of `known` says whether the sign is known.
        Self { bits: ((self.bits as i64) >> count) as u64, known: ((self.known as i64) >> count) as u64 }
    }

    /// The bytes of the low `bytes` (4 or 8) in reverse order.
    pub(super) fn bswap(self, bytes: u32) -> Self {
        let shift = 64 - bytes.min(8) * 8;
        if shift > 32 {
            return Self::UNKNOWN;
        }
        Self { bits: self.bits.swap_bytes() >> shift, known: self.known.swap_bytes() >> shift }
    }

    /// The bits that both know and agree on.
    pub(super) fn common(self, other: Self) -> Self {
        Self::new(self.bits, self.known & other.known & !(self.bits ^ other.bits))
    }

    /// The bits that either knows; `None` if they contradict each other.
    pub(super) fn merge(self, other: Self) -> Option<Self> {
        ((self.bits ^ other.bits) & self.known & other.known == 0)
            .then_some(Self { bits: self.bits | other.bits, known: self.known | other.known })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Bits that the result claims to know are right, whatever the unknown bits are.
        #[test]
        fn operations_never_claim_too_much(a: u64, b: u64, ka: u64, kb: u64, count in 0u32..64, bytes in 1u32..=8) {
            let (x, y) = (Val::new(a, ka), Val::new(b, kb));
            let check = |val: Val, truth: u64| (val.bits ^ truth) & val.known == 0 && val.bits & !val.known == 0;
            prop_assert!(check(x.add(y), a.wrapping_add(b)));
            prop_assert!(check(x.sub(y), a.wrapping_sub(b)));
            prop_assert!(check(x.mul(y), a.wrapping_mul(b)));
            prop_assert!(check(x.and(y), a & b));
            prop_assert!(check(x.or(y), a | b));
            prop_assert!(check(x.xor(y), a ^ b));
            prop_assert!(check(x.not(), !a));
            prop_assert!(check(x.shl(count), a << count));
            prop_assert!(check(x.shr(count), a >> count));
            prop_assert!(check(x.sar(count), ((a as i64) >> count) as u64));
            prop_assert!(check(x.zext(bytes), a & mask(bytes)));
            let shift = 64 - bytes * 8;
            prop_assert!(check(x.sext(bytes), (((a << shift) as i64) >> shift) as u64));
            prop_assert!(check(x.bswap(8), a.swap_bytes()));
            prop_assert!(check(x.bswap(4), u64::from((a as u32).swap_bytes())));
            // Either of the two may be the true value.
            prop_assert!(check(x.common(y), a) && check(x.common(y), b));
            prop_assert!(check(x.insert(y, 1, 8), (a & !0xff00) | ((b & 0xff) << 8)));
        }
    }

    #[test]
    fn contradictions_do_not_merge() {
        assert_eq!(Val::new(1, 0xff).merge(Val::new(2, 0xff)), None);
        assert_eq!(Val::new(1, 0xff).merge(Val::new(0x201, 0xff00)), Some(Val::new(0x201, 0xffff)));
    }
}
