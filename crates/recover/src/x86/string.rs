//! The string instructions movs, stos, lods, cmps, scas, with and without a repeat prefix.

use iced_x86::{Mnemonic, RflagsBits};

use super::{RCX, RDI, RSI, X86};
use crate::insn::{Insn, Width};
use crate::machine::Machine;
use crate::value::Val;

impl Machine<X86> {
    /// movs, stos, lods, cmps, scas with 64-bit addresses.
    pub(super) fn step_string(&mut self, insn: &Insn<X86>) -> bool {
        let code = &insn.code;
        let Some(string) = StringOp::of(insn) else { return false };
        let Some(backward) = self.flags.get(RflagsBits::DF) else { return false };
        let count = match (insn.repeated, self.reg(RCX).get()) {
            (false, _) => 1,
            // The end of comparing instructions depends on the data.
            (true, Some(count)) if !string.compares => count,
            _ => return false,
        };
        let len = count.saturating_mul(string.size);
        if string.stores {
            match self.reg(RDI).get() {
                Some(rdi) if backward => self.stack.forget(rdi.wrapping_add(string.size).wrapping_sub(len), len),
                Some(rdi) => self.stack.forget(rdi, len),
                None if self.hopeful => {}
                None => self.stack.clear(),
            }
        }
        let delta = if backward { len.wrapping_neg() } else { len };
        for (moves, register) in [(string.source, RSI), (string.target, RDI)] {
            if moves {
                self.add_to(register, delta as i64);
            }
        }
        if insn.repeated {
            self.set_reg(RCX, Val::full(0));
        }
        if string.loads && count != 0 {
            self.set_reg(0, Val::UNKNOWN);
        }
        self.flags.forget(code.rflags_modified());
        true
    }
}

/// How a string instruction uses its two pointers.
#[derive(Debug, Clone, Copy)]
pub(super) struct StringOp {
    pub(super) size: u64,
    pub(super) source: bool,
    pub(super) target: bool,
    pub(super) stores: bool,
    pub(super) loads: bool,
    pub(super) compares: bool,
}

impl StringOp {
    /// `None` for other instructions and for those with 32-bit addresses.
    pub(super) fn of(insn: &Insn<X86>) -> Option<Self> {
        if insn.operands().any(|(_, operand)| operand.width == Width::Bits32) {
            return None;
        }
        let op = |size, source, target, stores, loads, compares| {
            Some(Self { size, source, target, stores, loads, compares })
        };
        match insn.code.mnemonic() {
            Mnemonic::Movsb => op(1, true, true, true, false, false),
            Mnemonic::Movsw => op(2, true, true, true, false, false),
            // The SSE2 instruction of that name is no string instruction.
            Mnemonic::Movsd if insn.code.is_string_instruction() => op(4, true, true, true, false, false),
            Mnemonic::Movsq => op(8, true, true, true, false, false),
            Mnemonic::Stosb => op(1, false, true, true, false, false),
            Mnemonic::Stosw => op(2, false, true, true, false, false),
            Mnemonic::Stosd => op(4, false, true, true, false, false),
            Mnemonic::Stosq => op(8, false, true, true, false, false),
            Mnemonic::Lodsb => op(1, true, false, false, true, false),
            Mnemonic::Lodsw => op(2, true, false, false, true, false),
            Mnemonic::Lodsd => op(4, true, false, false, true, false),
            Mnemonic::Lodsq => op(8, true, false, false, true, false),
            Mnemonic::Cmpsb => op(1, true, true, false, false, true),
            Mnemonic::Cmpsw => op(2, true, true, false, false, true),
            Mnemonic::Cmpsd if insn.code.is_string_instruction() => op(4, true, true, false, false, true),
            Mnemonic::Cmpsq => op(8, true, true, false, false, true),
            Mnemonic::Scasb => op(1, false, true, false, false, true),
            Mnemonic::Scasw => op(2, false, true, false, false, true),
            Mnemonic::Scasd => op(4, false, true, false, false, true),
            Mnemonic::Scasq => op(8, false, true, false, false, true),
            _ => None,
        }
    }
}
