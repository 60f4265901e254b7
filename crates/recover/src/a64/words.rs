//! The words of code, and the targets of branches in them.

use super::LENGTH;

/// The word at `at`.
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The distance in bytes that a direct branch or call jumps.
pub(super) fn distance(word: u32) -> Option<i64> {
    let signed = |shift: u32, bits: u32| {
        let unused = 32 - bits;
        i64::from(((word >> shift) << unused) as i32 >> unused) * LENGTH as i64
    };
    match word >> 24 {
        // b, bl
        0x14..=0x17 | 0x94..=0x97 => Some(signed(0, 26)),
        // b.cond, bc.cond; cbz, cbnz
        0x54 | 0x34 | 0x35 | 0xb4 | 0xb5 => Some(signed(5, 19)),
        // cb<cc>, cbb<cc>, cbh<cc> (FEAT_CMPBR), which the decoder does not know
        0x74 | 0x75 | 0xf4 | 0xf5 => Some(signed(5, 9)),
        // tbz, tbnz
        0x36 | 0x37 | 0xb6 | 0xb7 => Some(signed(5, 14)),
        _ => None,
    }
}

/// The target of a direct branch (not of a call) at `ip`.
pub(super) fn target(word: u32, ip: u64) -> Option<u64> {
    let is_call = word >> 26 == 0b10_0101;
    distance(word).filter(|_| !is_call).map(|distance| ip.wrapping_add_signed(distance))
}
