//! Finds the instructions and branches of x86-64 code, whose instructions vary in length.

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind};

use super::decode::{branch_target, decode_plain, MAX_LENGTH};
use crate::candidates::MAX_STEPS;
use crate::semantics::Branch;

/// Decoding begins up to this many bytes before ip if no function range is known.
const SYNC_SPAN: usize = 160;
/// Of these starts, those at least this far before ip must agree on the boundaries.
const SYNC_FAR: usize = 48;
/// Calls `each` with every instruction of a range; skips other bytes one by one.
pub(super) fn sweep(bytes: &[u8], own_base: u64, range: Range<usize>, mut each: impl FnMut(usize, &Branch)) {
    let mut decoder = Decoder::with_ip(64, bytes, own_base, DecoderOptions::NONE);
    let mut code = Instruction::default();
    let mut at = range.start;
    while at < range.end {
        if decoder.position() != at {
            if decoder.set_position(at).is_err() {
                return;
            }
            decoder.set_ip(own_base.wrapping_add(at as u64));
        }
        decoder.decode_out(&mut code);
        if code.is_invalid() {
            at += 1;
        } else {
            each(at, &Branch { target: branch_target(&code), table: is_table_jump(&code) });
            at += code.len().max(1);
        }
    }
}

/// True for jumps that may lead to several places of the same function: all indirect ones except those through
/// `[rip+x]`, which go to another function by the dynamic linker's table.
fn is_table_jump(code: &Instruction) -> bool {
    code.mnemonic() == Mnemonic::Jmp
        && match code.op0_kind() {
            OpKind::Register => true,
            OpKind::Memory => !code.is_ip_rel_memory_operand(),
            _ => false,
        }
}

/// Calls `each` with the target (an index into `bytes`, possibly outside) of every byte in `range` that could begin a direct
/// branch, whether or not an instruction begins there.
pub(super) fn possible_targets(bytes: &[u8], range: Range<usize>, mut each: impl FnMut(i64)) {
    let byte = |at: usize| bytes.get(at).copied();
    let rel32 = |at: usize| {
        let field = bytes.get(at..at.checked_add(4)?)?;
        Some(i64::from(i32::from_le_bytes(field.try_into().ok()?)) + at as i64 + 4)
    };
    for at in range {
        let target = match byte(at) {
            // jcc, loop, jrcxz, jmp with 8 bits
            Some(0x70..=0x7f | 0xe0..=0xe3 | 0xeb) => byte(at + 1).map(|rel| i64::from(rel as i8) + at as i64 + 2),
            // call and jmp with 32 bits
            Some(0xe8 | 0xe9) => rel32(at + 1),
            // jcc with 32 bits
            Some(0x0f) if matches!(byte(at + 1), Some(0x80..=0x8f)) => rel32(at + 2),
            // xbegin
            Some(0xc7) if byte(at + 1) == Some(0xf8) => rel32(at + 2),
            _ => None,
        };
        if let Some(target) = target {
            each(target);
        }
    }
}

/// The boundaries before `ip` that decoding from many starts agrees on, the nearest first; `ip` itself comes first.
///
/// x86 decoding from a wrong byte soon finds the right boundaries. Starts far enough before ip whose instructions end at ip
/// must agree; the first boundary on which they disagree ends the list.
pub(super) fn synchronise(bytes: &[u8], ip: usize) -> Vec<usize> {
    let mut boundaries = vec![ip];
    let low = ip.saturating_sub(SYNC_SPAN);
    let span = ip - low;
    if span < SYNC_FAR + MAX_LENGTH {
        return boundaries;
    }
    // For each byte, how many far starts have an instruction that begins there.
    let mut through = [0u32; SYNC_SPAN + 1];
    let mut length = [0usize; SYNC_SPAN + 1];
    for offset in 0..span {
        let Some(count) = through.get_mut(offset) else { break };
        if offset + SYNC_FAR <= span {
            *count += 1;
        }
        let count = *count;
        let Some(code) = decode_plain(bytes, 0, low + offset) else { continue };
        if let (Some(to), Some(len)) = (through.get_mut(offset + code.len()), length.get_mut(offset)) {
            *to += count;
            *len = code.len();
        }
    }
    let mut to = span;
    while boundaries.len() <= MAX_STEPS {
        let arriving = through.get(to).copied().unwrap_or_default();
        let best = (to.saturating_sub(MAX_LENGTH)..to)
            .filter(|&from| length.get(from).is_some_and(|&len| len != 0 && from + len == to))
            .max_by_key(|&from| through.get(from).copied().unwrap_or_default());
        let Some(from) = best else { break };
        let votes = through.get(from).copied().unwrap_or_default();
        // Nine of ten starts, and at least eight.
        if votes < 8 || votes * 10 < arriving * 9 {
            break;
        }
        boundaries.push(low + from);
        to = from;
    }
    boundaries
}
