//! Finds the instructions and branches of A64 code: each has four bytes, at a multiple of four.

use std::ops::Range;

use yaxpeax_arm::armv8::a64::Opcode;

use super::decode::{decode_plain, is_sve};
use super::words::{distance, target, word};
use super::LENGTH;
use crate::candidates::MAX_STEPS;
use crate::semantics::Branch;

/// The indices in `range` at which instructions may begin.
fn words(bytes: &[u8], base: u64, range: Range<usize>) -> impl Iterator<Item = (usize, u32)> + '_ {
    let first = base.wrapping_add(range.start as u64).wrapping_neg() as usize % LENGTH;
    let starts = (range.start.saturating_add(first)..range.end).step_by(LENGTH);
    starts.map_while(|at| Some((at, word(bytes, at)?)))
}

/// Calls `each` with every instruction of a range and its index; skips other words.
pub(super) fn sweep(bytes: &[u8], base: u64, range: Range<usize>, mut each: impl FnMut(usize, &Branch)) {
    for (at, word) in words(bytes, base, range) {
        let ip = base.wrapping_add(at as u64);
        let target = target(word, ip);
        let table = match decode_plain(word) {
            Some(code) => {
                matches!(code.opcode, Opcode::BR | Opcode::BRAA | Opcode::BRAAZ | Opcode::BRAB | Opcode::BRABZ)
            }
            None if is_sve(word) || target.is_some() => false,
            None => continue,
        };
        each(at, &Branch { target, table });
    }
}

/// Calls `each` with the target of every direct branch and call in `range`.
pub(super) fn possible_targets(bytes: &[u8], base: u64, range: Range<usize>, mut each: impl FnMut(i64)) {
    for (at, word) in words(bytes, base, range) {
        if let Some(distance) = distance(word) {
            each((at as i64).wrapping_add(distance));
        }
    }
}

/// The beginnings of the instructions before `ip`, the nearest first; `ip` itself comes first.
pub(super) fn boundaries(bytes: &[u8], base: u64, ip: usize) -> Vec<usize> {
    let mut boundaries = vec![ip];
    let mut at = ip;
    while boundaries.len() <= MAX_STEPS && base.wrapping_add(ip as u64).is_multiple_of(LENGTH as u64) {
        let Some(before) = at.checked_sub(LENGTH) else { break };
        if !word(bytes, before).is_some_and(|word| is_sve(word) || decode_plain(word).is_some()) {
            break;
        }
        boundaries.push(before);
        at = before;
    }
    boundaries
}
