//! Operands of instructions, read and written as the processor does.

use iced_x86::{ConditionCode, Instruction, OpKind, Register};

use super::decode::gpr;
use super::{RSP, X86};
use crate::machine::Machine;
use crate::value::Val;

impl Machine<X86> {
    /// The value of an operand, zero-extended.
    pub(super) fn read(&self, code: &Instruction, operand: u32) -> Val {
        match code.op_kind(operand) {
            OpKind::Register => self.read_register(code.op_register(operand)),
            OpKind::Memory => {
                let size = memory_size(code);
                match self.explicit_address(code) {
                    _ if size == 0 => Val::UNKNOWN,
                    Some(addr) => self.load(addr, size),
                    None => Val::UNKNOWN.zext(size),
                }
            }
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => {
                Val::full(code.near_branch_target().wrapping_add(self.bias))
            }
            _ => code.try_immediate(operand).map_or(Val::UNKNOWN, Val::full),
        }
    }

    pub(super) fn read_register(&self, register: Register) -> Val {
        let size = register.size() as u32;
        match gpr(register) {
            Some(number) => self.reg(number).shr(shift(register)).zext(size),
            None => Val::UNKNOWN,
        }
    }

    /// The address of the explicit memory operand of a modelled instruction.
    pub(super) fn explicit_address(&self, code: &Instruction) -> Option<u64> {
        let segment = match code.memory_segment() {
            Register::FS => self.fs?,
            Register::GS => return None,
            _ => 0,
        };
        let short = matches!(code.memory_base(), Register::EIP)
            || code.memory_base().size() == 4
            || code.memory_index().size() == 4;
        let full = |register: Register| match register {
            Register::None => Some(0),
            register => gpr(register).and_then(|number| self.reg(number).low(if short { 4 } else { 8 })),
        };
        if code.is_ip_rel_memory_operand() {
            return (!short).then(|| code.memory_displacement64().wrapping_add(self.bias).wrapping_add(segment));
        }
        let addr = code
            .memory_displacement64()
            .wrapping_add(full(code.memory_base())?)
            .wrapping_add(full(code.memory_index())?.wrapping_mul(u64::from(code.memory_index_scale())));
        Some((if short { addr & 0xffff_ffff } else { addr }).wrapping_add(segment))
    }

    /// Sets operand 0 to a value of its size, as the processor does: 32 bits clear the upper half, 8 and 16 bits keep the rest.
    pub(super) fn write(&mut self, code: &Instruction, operand: u32, val: Val) {
        match code.op_kind(operand) {
            OpKind::Register => self.write_register(code.op_register(operand), val),
            OpKind::Memory => {
                let addr = self.explicit_address(code);
                self.store(addr, u64::from(memory_size(code)), val);
            }
            _ => {}
        }
    }

    pub(super) fn write_register(&mut self, register: Register, val: Val) {
        let Some(number) = gpr(register) else { return };
        let size = register.size() as u32;
        let val = match size {
            8 => val,
            4 => val.zext(4),
            _ => self.reg(number).insert(val, size, shift(register)),
        };
        self.set_reg(number, val);
    }

    pub(super) fn push(&mut self, val: Val, size: u32) {
        self.add_to(RSP, -i64::from(size));
        let addr = self.reg(RSP).get();
        self.store(addr, u64::from(size), val);
    }

    /// The address that lea computes.
    pub(super) fn effective(&self, code: &Instruction) -> Val {
        if code.memory_base() == Register::EIP {
            return Val::UNKNOWN;
        }
        if code.is_ip_rel_memory_operand() {
            return Val::full(code.memory_displacement64().wrapping_add(self.bias));
        }
        let part = |register: Register| match gpr(register) {
            Some(number) => self.reg(number),
            None if register == Register::None => Val::full(0),
            None => Val::UNKNOWN,
        };
        let scaled = part(code.memory_index()).shl(code.memory_index_scale().trailing_zeros() & 3);
        let sum = part(code.memory_base()).add(scaled).add(Val::full(code.memory_displacement64()));
        let short = code.memory_base().size() == 4 || code.memory_index().size() == 4;
        if short {
            sum.zext(4)
        } else {
            sum
        }
    }
}

pub(super) fn is_cmov(code: &Instruction) -> bool {
    code.condition_code() != ConditionCode::None
        && code.op_count() == 2
        && code.op0_kind() == OpKind::Register
        && gpr(code.op0_register()).is_some()
}

/// The bit at which a byte register starts: 8 for ah, ch, dh, bh.
pub(super) fn shift(register: Register) -> u32 {
    if matches!(register, Register::AH | Register::CH | Register::DH | Register::BH) {
        8
    } else {
        0
    }
}

pub(super) fn memory_size(code: &Instruction) -> u32 {
    code.memory_size().size() as u32
}

/// The size in bytes of a register or memory operand; for other kinds the size of operand 0.
pub(super) fn operand_size(code: &Instruction, operand: u32) -> u32 {
    match code.op_kind(operand) {
        OpKind::Register => code.op_register(operand).size() as u32,
        OpKind::Memory => memory_size(code),
        _ if operand != 0 => operand_size(code, 0),
        _ => 8,
    }
}
