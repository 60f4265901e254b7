//! Operands of instructions, read and written as the processor does.

use yaxpeax_arm::armv8::a64::{Operand, ShiftStyle, SizeCode};

use super::{A64, SP};
use crate::machine::Machine;
use crate::value::Val;

/// Bytes of a general register.
pub(super) fn width(size: SizeCode) -> u32 {
    match size {
        SizeCode::X => 8,
        SizeCode::W => 4,
    }
}

/// Bytes of the general register that an operand is; 8 for other operands.
pub(super) fn operand_size(operand: Operand) -> u32 {
    match operand {
        Operand::Register(size, _) | Operand::RegisterOrSP(size, _) | Operand::RegisterPair(size, _) => width(size),
        _ => 8,
    }
}

/// The number of the general register that an operand is; `None` for the zero register and for other operands.
pub(super) fn gpr(operand: Operand) -> Option<u8> {
    match operand {
        Operand::Register(_, number) if number != u16::from(SP) => u8::try_from(number).ok(),
        Operand::RegisterOrSP(_, number) => u8::try_from(number).ok(),
        _ => None,
    }
}

impl Machine<A64> {
    /// The value of an operand that is not in memory, zero-extended.
    pub(super) fn value(&self, operand: Operand) -> Val {
        match operand {
            Operand::Register(size, _) | Operand::RegisterOrSP(size, _) => {
                gpr(operand).map_or(Val::full(0), |number| self.reg(number).zext(width(size)))
            }
            Operand::Immediate(value) => Val::full(value.into()),
            Operand::Imm16(value) => Val::full(value.into()),
            Operand::Imm64(value) => Val::full(value),
            Operand::ImmShift(value, shift) if shift < 64 => Val::full(u64::from(value) << shift),
            Operand::RegShift(style, shift, size, number) => {
                self.shifted(style, shift.into(), size, Operand::Register(size, number))
            }
            _ => Val::UNKNOWN,
        }
    }

    fn shifted(&self, style: ShiftStyle, shift: u32, size: SizeCode, register: Operand) -> Val {
        let (val, size) = (self.value(register), width(size));
        if shift >= size * 8 {
            return Val::UNKNOWN;
        }
        match style {
            ShiftStyle::LSL | ShiftStyle::UXTX | ShiftStyle::SXTX => val.shl(shift),
            ShiftStyle::LSR => val.shr(shift),
            ShiftStyle::ASR => val.sext(size).sar(shift).zext(size),
            ShiftStyle::ROR => rotated(val, shift, size),
            ShiftStyle::UXTB => val.zext(1).shl(shift),
            ShiftStyle::UXTH => val.zext(2).shl(shift),
            ShiftStyle::UXTW => val.zext(4).shl(shift),
            ShiftStyle::SXTB => val.sext(1).shl(shift),
            ShiftStyle::SXTH => val.sext(2).shl(shift),
            ShiftStyle::SXTW => val.sext(4).shl(shift),
        }
    }

    /// Sets a general register to a value of its size: a value of 32 bits clears the upper half. Ignores the zero
    /// register.
    pub(super) fn set(&mut self, operand: Operand, val: Val) {
        if let Some(number) = gpr(operand) {
            self.set_reg(number, val.zext(operand_size(operand)));
        }
    }
}

/// The low `size` bytes rotated right by `count` bits, which is less than their number.
pub(super) fn rotated(val: Val, count: u32, size: u32) -> Val {
    if count == 0 {
        return val.zext(size);
    }
    val.zext(size).shr(count).or(val.shl(size * 8 - count)).zext(size)
}
