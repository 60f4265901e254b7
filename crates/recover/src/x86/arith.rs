//! Multiplication, division, rotations and bit counts, which hashes and remainders use. Results are computed only from
//! fully known values.

use iced_x86::{Instruction, Mnemonic, Register};

use super::operands::operand_size;
use super::X86;
use crate::machine::Machine;
use crate::value::{mask, Val};

impl Machine<X86> {
    /// Runs one of these instructions; false if it is another one, or a value is unknown.
    pub(super) fn step_arith(&mut self, code: &Instruction) -> bool {
        self.try_arith(code).is_some()
    }

    fn try_arith(&mut self, code: &Instruction) -> Option<()> {
        let size = operand_size(code, 0);
        if size != 4 && size != 8 {
            return None;
        }
        let bits = size * 8;
        let value = |machine: &Self, operand: u32| machine.read(code, operand).low(size);
        let result = match code.mnemonic() {
            Mnemonic::Mul | Mnemonic::Imul | Mnemonic::Div | Mnemonic::Idiv if code.op_count() == 1 => {
                return self.step_wide(code, size);
            }
            Mnemonic::Rol | Mnemonic::Ror | Mnemonic::Rorx => {
                let (from, by) = if code.mnemonic() == Mnemonic::Rorx { (1, 2) } else { (0, 1) };
                let count = (self.read(code, by).low(1)? as u32) & (bits - 1);
                let left = if code.mnemonic() == Mnemonic::Rol { count } else { (bits - count) & (bits - 1) };
                let value = value(self, from)?;
                if left == 0 {
                    value
                } else {
                    value << left | value >> (bits - left)
                }
            }
            Mnemonic::Shlx | Mnemonic::Shrx | Mnemonic::Sarx => {
                let (value, count) = (value(self, 1)?, (self.read(code, 2).low(1)? as u32) & (bits - 1));
                match code.mnemonic() {
                    Mnemonic::Shlx => value << count,
                    Mnemonic::Shrx => value >> count,
                    _ => (Val::full(value).sext(size).bits() as i64 >> count) as u64,
                }
            }
            Mnemonic::Andn => !value(self, 1)? & value(self, 2)?,
            Mnemonic::Popcnt => value(self, 1)?.count_ones().into(),
            Mnemonic::Tzcnt => value(self, 1)?.trailing_zeros().min(bits).into(),
            Mnemonic::Lzcnt => u64::from(value(self, 1)?.leading_zeros()) - u64::from(64 - bits),
            // The result for an input of 0 differs between processors.
            Mnemonic::Bsf => value(self, 1).filter(|&value| value != 0)?.trailing_zeros().into(),
            Mnemonic::Bsr => value(self, 1).filter(|&value| value != 0)?.ilog2().into(),
            _ => return None,
        };
        self.flags.forget(code.rflags_modified());
        self.write(code, 0, Val::full(result & mask(size)));
        Some(())
    }

    /// Runs forms with one explicit operand; rdx and rax hold the other.
    fn step_wide(&mut self, code: &Instruction, size: u32) -> Option<()> {
        let bits = size * 8;
        let (low, high) = if size == 8 { (Register::RAX, Register::RDX) } else { (Register::EAX, Register::EDX) };
        let operand = u128::from(self.read(code, 0).low(size)?);
        let a = u128::from(self.read_register(low).low(size)?);
        let signed = |value: u128, bits: u32| ((value << (128 - bits)) as i128) >> (128 - bits);
        let whole = |machine: &Self| Some(u128::from(machine.read_register(high).low(size)?) << bits | a);
        let (low_value, high_value) = match code.mnemonic() {
            Mnemonic::Mul => {
                let product = a.wrapping_mul(operand);
                (product, product >> bits)
            }
            Mnemonic::Imul => {
                let product = signed(a, bits).wrapping_mul(signed(operand, bits)) as u128;
                (product, product >> bits)
            }
            Mnemonic::Div => {
                let whole = whole(self)?;
                (whole.checked_div(operand)?, whole.checked_rem(operand)?)
            }
            _ => {
                let (whole, operand) = (signed(whole(self)?, 2 * bits), signed(operand, bits));
                (whole.checked_div(operand)? as u128, whole.checked_rem(operand)? as u128)
            }
        };
        self.flags.forget(code.rflags_modified());
        self.write_register(low, Val::full(low_value as u64));
        self.write_register(high, Val::full(high_value as u64));
        Some(())
    }
}

/// True for the instructions that are run here; multiplications with two or three operands are run elsewhere.
pub(super) fn is_arith(code: &Instruction) -> bool {
    match code.mnemonic() {
        Mnemonic::Mul | Mnemonic::Imul | Mnemonic::Div | Mnemonic::Idiv => code.op_count() == 1,
        Mnemonic::Rol
        | Mnemonic::Ror
        | Mnemonic::Rorx
        | Mnemonic::Shlx
        | Mnemonic::Shrx
        | Mnemonic::Sarx
        | Mnemonic::Andn
        | Mnemonic::Popcnt
        | Mnemonic::Tzcnt
        | Mnemonic::Lzcnt
        | Mnemonic::Bsf
        | Mnemonic::Bsr => true,
        _ => false,
    }
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use std::arch::asm;

    use iced_x86::InstructionInfoFactory;
    use proptest::prelude::*;

    use super::super::decode::decode;
    use super::*;
    use crate::regs::Regs;

    /// rax and rdx after an instruction with the operand rcx.
    fn run(code: &[u8], rax: u64, rcx: u64, rdx: u64) -> [Option<u64>; 2] {
        let mut gpr = [0; 16];
        (gpr[0], gpr[1], gpr[2]) = (rax, rcx, rdx);
        let mut machine = Machine::<X86>::new(&Regs::x86_64(gpr, 0, 0), &[]);
        let _ = machine.step(&decode(code, 0, 0, &mut InstructionInfoFactory::new()).unwrap());
        [machine.reg(0).get(), machine.reg(2).get()]
    }

    macro_rules! native {
        ($text:literal, $rax:expr, $rcx:expr, $rdx:expr) => {{
            let (mut a, c, mut d): (u64, u64, u64) = ($rax, $rcx, $rdx);
            // SAFETY: the instruction touches registers that are named here, and no memory; divisors are not too small.
            unsafe { asm!($text, inout("rax") a, in("rcx") c, inout("rdx") d, options(nomem, nostack)) };
            [Some(a), Some(d)]
        }};
    }

    proptest! {
        /// Each instruction gives the same result as this processor.
        #[test]
        fn instructions_do_what_the_processor_does(rax: u64, rcx: u64, rdx: u64, shift in 0u32..64) {
            let (rax, rcx, rdx) = (rax >> shift, rcx.rotate_left(shift), rdx);
            prop_assert_eq!(run(&[0x48, 0xf7, 0xe1], rax, rcx, rdx), native!("mul rcx", rax, rcx, rdx));
            prop_assert_eq!(run(&[0xf7, 0xe1], rax, rcx, rdx), native!("mul ecx", rax, rcx, rdx));
            prop_assert_eq!(run(&[0x48, 0xf7, 0xe9], rax, rcx, rdx), native!("imul rcx", rax, rcx, rdx));
            prop_assert_eq!(run(&[0xf7, 0xe9], rax, rcx, rdx), native!("imul ecx", rax, rcx, rdx));
            prop_assert_eq!(run(&[0x48, 0xd3, 0xc0], rax, rcx, rdx), native!("rol rax, cl", rax, rcx, rdx));
            prop_assert_eq!(run(&[0xd3, 0xc0], rax, rcx, rdx), native!("rol eax, cl", rax, rcx, rdx));
            prop_assert_eq!(run(&[0x48, 0xd3, 0xc8], rax, rcx, rdx), native!("ror rax, cl", rax, rcx, rdx));
            prop_assert_eq!(run(&[0xd3, 0xc8], rax, rcx, rdx), native!("ror eax, cl", rax, rcx, rdx));
            let (dividend, divisor) = (rdx % (rcx | 1), rcx | 1);
            prop_assert_eq!(
                run(&[0x48, 0xf7, 0xf1], rax, divisor, dividend),
                native!("div rcx", rax, divisor, dividend)
            );
            // Makes the quotient fit, whatever the divisor's sign.
            let (half, divisor) = (rdx >> 36, rcx & 0x7fff_ffff | 0x4000_0000);
            prop_assert_eq!(run(&[0xf7, 0xf9], rax, divisor, half), native!("idiv ecx", rax, divisor, half));
            let top = half & 0x0fff_ffff;
            let wide = rcx & (u64::MAX >> 1) | 1 << 62;
            prop_assert_eq!(run(&[0x48, 0xf7, 0xf9], rax, wide, top), native!("idiv rcx", rax, wide, top));
            let some = rcx | 1 << shift;
            prop_assert_eq!(run(&[0x48, 0x0f, 0xbc, 0xc1], rax, some, rdx), native!("bsf rax, rcx", rax, some, rdx));
            prop_assert_eq!(run(&[0x48, 0x0f, 0xbd, 0xc1], rax, some, rdx), native!("bsr rax, rcx", rax, some, rdx));
            if std::is_x86_feature_detected!("bmi2") && std::is_x86_feature_detected!("lzcnt") {
                let is = |code: &[u8], native| (run(code, rax, rcx, rdx) == native, code.to_vec());
                for (same, code) in [
                    is(&[0xf3, 0x48, 0x0f, 0xb8, 0xc1], native!("popcnt rax, rcx", rax, rcx, rdx)),
                    is(&[0xf3, 0x0f, 0xbc, 0xc1], native!("tzcnt eax, ecx", rax, rcx, rdx)),
                    is(&[0xf3, 0x0f, 0xbd, 0xc1], native!("lzcnt eax, ecx", rax, rcx, rdx)),
                    is(&[0xf3, 0x48, 0x0f, 0xbd, 0xc1], native!("lzcnt rax, rcx", rax, rcx, rdx)),
                    is(&[0xc4, 0xe2, 0xe9, 0xf7, 0xc1], native!("shlx rax, rcx, rdx", rax, rcx, rdx)),
                    is(&[0xc4, 0xe2, 0xeb, 0xf7, 0xc1], native!("shrx rax, rcx, rdx", rax, rcx, rdx)),
                    is(&[0xc4, 0xe2, 0x6a, 0xf7, 0xc1], native!("sarx eax, ecx, edx", rax, rcx, rdx)),
                    is(&[0xc4, 0xe3, 0xfb, 0xf0, 0xc1, 13], native!("rorx rax, rcx, 13", rax, rcx, rdx)),
                    is(&[0xc4, 0xe2, 0xf0, 0xf2, 0xc2], native!("andn rax, rcx, rdx", rax, rcx, rdx)),
                ] {
                    prop_assert!(same, "{code:x?}");
                }
            }
        }
    }

    #[test]
    fn what_faults_or_is_undefined_is_not_computed() {
        assert_eq!(run(&[0x48, 0xf7, 0xf1], 1, 0, 0), [None, None]);
        // bsf of 0: the destination is unknown.
        assert_eq!(run(&[0x48, 0x0f, 0xbc, 0xc1], 1, 0, 3), [None, Some(3)]);
    }
}
