//! The condition flags N, Z, C and V, and which conditions they decide.

use crate::flags::Flags;
use crate::value::{mask, Val};

pub(super) const N: u32 = 8;
pub(super) const Z: u32 = 4;
pub(super) const C: u32 = 2;
pub(super) const V: u32 = 1;
/// All four flags.
pub(super) const NZCV: u32 = 15;

/// The flags for the four bits of `nzcv`, as in the encoding of instructions.
pub(super) fn of(nzcv: u32) -> Flags {
    Flags { bits: nzcv & NZCV, known: NZCV }
}

/// Whether a condition (0 to 15: eq ne cs cc mi pl vs vc hi ls ge lt gt le al nv) holds, if the known flags decide it.
pub(super) fn holds(flags: Flags, condition: u8) -> Option<bool> {
    let flag = |flag| flags.get(flag);
    let both = |a: Option<bool>, b: Option<bool>| match (a, b) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    };
    let same = || Some(flag(N)? == flag(V)?);
    let not_zero = || flag(Z).map(|zero| !zero);
    let on = match condition >> 1 {
        0 => flag(Z),
        1 => flag(C),
        2 => flag(N),
        3 => flag(V),
        4 => both(flag(C), not_zero()),
        5 => same(),
        6 => both(same(), not_zero()),
        _ => return Some(true),
    };
    on.map(|on| on == (condition & 1 == 0))
}

/// N and Z of a result, if known.
fn of_result(flags: &mut Flags, val: Val, size: u32) {
    if let Some(low) = val.low(size) {
        flags.set(Z, low == 0);
        flags.set(N, low & sign(size) != 0);
    }
}

/// The flags of a logical operation.
pub(super) fn of_logical(result: Val, size: u32) -> Flags {
    let mut flags = Flags::default();
    flags.set(C, false);
    flags.set(V, false);
    of_result(&mut flags, result, size);
    flags
}

/// The flags of `a + b`, or of `a - b`.
pub(super) fn of_sum(a: Val, b: Val, result: Val, size: u32, minus: bool) -> Flags {
    let mut flags = Flags::default();
    of_result(&mut flags, result, size);
    let (Some(a), Some(b), Some(low)) = (a.low(size), b.low(size), result.low(size)) else { return flags };
    // C is the inverse of a borrow.
    flags.set(C, if minus { a >= b } else { low < a });
    let same_signs = (a ^ b) & sign(size) == 0;
    let turned = (a ^ low) & sign(size) != 0;
    flags.set(V, turned && same_signs != minus);
    flags
}

fn sign(size: u32) -> u64 {
    let mask = mask(size);
    mask ^ (mask >> 1)
}
