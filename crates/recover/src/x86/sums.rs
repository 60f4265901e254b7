//! Sums, shifts and sign extension, with the flags that they set.

use iced_x86::{Instruction, Mnemonic, OpKind, Register, RflagsBits};

use super::operands::operand_size;
use super::X86;
use crate::machine::Machine;
use crate::value::{mask, Val};

impl Machine<X86> {
    /// inc, dec and neg.
    pub(super) fn step_by_one(&mut self, code: &Instruction) {
        let (size, old) = (operand_size(code, 0), self.read(code, 0));
        let carry = self.flags.get(RflagsBits::CF);
        let (a, b) = if code.mnemonic() == Mnemonic::Neg { (Val::full(0), old) } else { (old, Val::full(1)) };
        let val = if code.mnemonic() == Mnemonic::Inc { a.add(b) } else { a.sub(b) };
        self.flags.forget(code.rflags_modified());
        self.sum_flags(a, b, val, size, code.mnemonic() != Mnemonic::Inc);
        if code.mnemonic() != Mnemonic::Neg {
            // inc and dec keep CF.
            self.flags.forget(RflagsBits::CF);
            if let Some(carry) = carry {
                self.flags.set(RflagsBits::CF, carry);
            }
        }
        self.write(code, 0, val);
    }

    /// cwde and cdqe within rax, cdq and cqo into rdx.
    pub(super) fn extend_sign(&mut self, mnemonic: Mnemonic) {
        match mnemonic {
            Mnemonic::Cwde => self.write_register(Register::EAX, self.read_register(Register::AX).sext(2)),
            Mnemonic::Cdqe => self.write_register(Register::RAX, self.read_register(Register::EAX).sext(4)),
            Mnemonic::Cdq => {
                let sign = self.read_register(Register::EAX).sext(4).shr(32);
                self.write_register(Register::EDX, sign);
            }
            _ => {
                // The top bit alone determines all of rdx.
                let top = self.reg(0).shr(63);
                let sign = top
                    .low(1)
                    .filter(|_| top.get().is_some())
                    .map_or(Val::UNKNOWN, |bit| Val::full(if bit == 0 { 0 } else { u64::MAX }));
                self.set_reg(2, sign);
            }
        }
    }

    pub(super) fn arithmetic(&mut self, code: &Instruction) {
        let size = operand_size(code, 0);
        let (a, b) = (self.read(code, 0), self.read(code, 1).zext(size));
        let same = code.op0_kind() == OpKind::Register
            && code.op1_kind() == OpKind::Register
            && code.op0_register() == code.op1_register();
        let mnemonic = code.mnemonic();
        self.flags.forget(code.rflags_modified());
        let val = match mnemonic {
            // A register minus itself is 0, even if its value is unknown.
            Mnemonic::Sub | Mnemonic::Xor | Mnemonic::Cmp if same => Val::full(0),
            Mnemonic::Add => a.add(b),
            Mnemonic::Sub | Mnemonic::Cmp => a.sub(b),
            Mnemonic::And | Mnemonic::Test => a.and(b),
            Mnemonic::Or => a.or(b),
            _ => a.xor(b),
        };
        match mnemonic {
            Mnemonic::Add => self.sum_flags(a, b, val, size, false),
            Mnemonic::Sub | Mnemonic::Cmp if same => self.sum_flags(val, val, val, size, true),
            Mnemonic::Sub | Mnemonic::Cmp => self.sum_flags(a, b, val, size, true),
            _ => {
                self.flags.set(RflagsBits::CF, false);
                self.flags.set(RflagsBits::OF, false);
                self.result_flags(val, size);
            }
        }
        if !matches!(mnemonic, Mnemonic::Cmp | Mnemonic::Test) {
            self.write(code, 0, val);
        }
    }

    /// ZF, SF and PF of a result, if known.
    fn result_flags(&mut self, val: Val, size: u32) {
        if let Some(low) = val.low(size) {
            self.flags.set(RflagsBits::ZF, low == 0);
            self.flags.set(RflagsBits::SF, low & sign(size) != 0);
            self.flags.set(RflagsBits::PF, low.to_le_bytes().first().is_some_and(|byte| byte.count_ones() % 2 == 0));
        }
    }

    /// All flags but AF of `a + b` or `a - b`, if both are known.
    pub(super) fn sum_flags(&mut self, a: Val, b: Val, result: Val, size: u32, minus: bool) {
        let (Some(a), Some(b), Some(low)) = (a.low(size), b.low(size), result.low(size)) else { return };
        let carry = if minus { a < b } else { low < a };
        let same_signs = (a ^ b) & sign(size) == 0;
        let turned = (a ^ low) & sign(size) != 0;
        self.flags.set(RflagsBits::CF, carry);
        self.flags.set(RflagsBits::OF, turned && (same_signs != minus));
        self.result_flags(result, size);
    }

    pub(super) fn shift(&mut self, code: &Instruction) -> bool {
        let size = operand_size(code, 0);
        let Some(count) = self.read(code, 1).low(1) else { return false };
        let count = (count & if size == 8 { 63 } else { 31 }) as u32;
        let old = self.read(code, 0);
        if count == 0 {
            self.write(code, 0, old);
            return true;
        }
        let val = match code.mnemonic() {
            Mnemonic::Shr => old.shr(count),
            Mnemonic::Sar => match old.sext(size).get() {
                Some(wide) => Val::full(((wide as i64) >> count) as u64),
                None => Val::UNKNOWN,
            },
            _ => old.shl(count),
        };
        self.flags.forget(code.rflags_modified());
        self.result_flags(val, size);
        self.write(code, 0, val);
        true
    }
}

fn sign(size: u32) -> u64 {
    let mask = mask(size);
    mask ^ (mask >> 1)
}
