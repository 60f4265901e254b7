//! Runs one instruction backward: computes the known state before it from the known state after it.
//!
//! What an instruction wrote is unknown before it, unless its arithmetic can be inverted. A copy shows the value of its
//! source.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register, RflagsBits};

use super::decode::gpr;
use super::flags::holds;
use super::operands::{is_cmov, memory_size, operand_size, shift};
use super::string::StringOp;
use super::{RBP, RDI, REGISTERS, RSI, RSP, X86};
use crate::insn::Insn;
use crate::machine::{Addresses, Machine};
use crate::value::Val;

impl Machine<X86> {
    /// Restores the registers before `insn`; those that it writes are unknown at the call. False for a contradiction.
    pub(super) fn invert_registers(&mut self, insn: &Insn<X86>, after: &[Val; REGISTERS]) -> bool {
        let code = &insn.code;
        let at = |register: u8| after.get(usize::from(register)).copied().unwrap_or_default();
        let size = operand_size(code, 0);
        // Operands 0 and 1 as registers, if they name the low bytes of one.
        let target = low_register(code, 0);
        let other = low_register(code, 1);
        match code.mnemonic() {
            Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movsx | Mnemonic::Movsxd => {
                let Some(target) = target else { return true };
                let mut fine = true;
                if size <= 2 {
                    fine &= self.learn(target, without_low(at(target), size));
                }
                if let Some(other) = other {
                    fine &= self.learn(other, at(target).only_low(operand_size(code, 1).min(size)));
                }
                fine
            }
            Mnemonic::Lea => target.is_none_or(|target| self.invert_lea(code, target, at(target), size, at)),
            Mnemonic::Add | Mnemonic::Sub | Mnemonic::Xor if size >= 4 => {
                let Some(target) = target else { return true };
                let operand = match code.op1_kind() {
                    OpKind::Register if other.is_none() || other == Some(target) => return true,
                    // The instruction does not write it, so it is the same before and after; memory is read, not written.
                    _ => self.read(code, 1),
                };
                let before = match code.mnemonic() {
                    Mnemonic::Add => at(target).sub(operand),
                    Mnemonic::Sub => at(target).add(operand),
                    _ => at(target).xor(operand),
                };
                self.learn(target, before.only_low(size))
            }
            Mnemonic::Inc | Mnemonic::Dec | Mnemonic::Not | Mnemonic::Neg if size >= 4 => {
                target.is_none_or(|target| self.learn(target, invert_unary(code, at(target)).only_low(size)))
            }
            Mnemonic::Bswap if size >= 4 => {
                target.is_none_or(|target| self.learn(target, at(target).bswap(size).only_low(size)))
            }
            Mnemonic::Xchg if size >= 4 => match (target, other) {
                (Some(target), Some(other)) if target != other => {
                    self.learn(target, at(other).only_low(size)) && self.learn(other, at(target).only_low(size))
                }
                _ => true,
            },
            Mnemonic::Push => self.learn(RSP, moved(at(RSP), i64::from(-code.stack_pointer_increment()))),
            Mnemonic::Pop if target != Some(RSP) => {
                self.learn(RSP, moved(at(RSP), i64::from(-code.stack_pointer_increment())))
            }
            Mnemonic::Leave if code.code() == Code::Leaveq => self.learn(RBP, moved(at(RSP), -8)),
            _ if is_cmov(code) && size >= 4 => {
                let Some(target) = target else { return true };
                match (holds(self.flags, code.condition_code()), other) {
                    (Some(false), _) => self.learn(target, at(target).only_low(size)),
                    (Some(true), Some(other)) => self.learn(other, at(target).only_low(size)),
                    _ => true,
                }
            }
            // setcc
            _ if code.op_count() == 1 && code.condition_code() != iced_x86::ConditionCode::None => {
                target.is_none_or(|target| self.learn(target, without_low(at(target), 1)))
            }
            _ if code.is_string_instruction() && !insn.repeated => {
                let (Some(string), Some(backward)) = (StringOp::of(insn), self.flags.get(RflagsBits::DF)) else {
                    return true;
                };
                let delta = if backward { string.size as i64 } else { -(string.size as i64) };
                (!string.source || self.learn(RSI, moved(at(RSI), delta)))
                    && (!string.target || self.learn(RDI, moved(at(RDI), delta)))
            }
            _ => true,
        }
    }

    fn invert_lea(&mut self, code: &Instruction, target: u8, result: Val, size: u32, at: impl Fn(u8) -> Val) -> bool {
        let short = code.memory_base().size() == 4 || code.memory_index().size() == 4;
        if size < 4 || code.is_ip_rel_memory_operand() {
            return true;
        }
        let size = if short { 4 } else { size };
        let rest = result.only_low(size).sub(Val::full(code.memory_displacement64()));
        let scale = code.memory_index_scale().trailing_zeros() & 3;
        match (gpr(code.memory_base()), gpr(code.memory_index())) {
            (Some(base), None) if code.memory_index() == Register::None => self.learn(base, rest),
            (None, Some(index)) if scale == 0 && code.memory_base() == Register::None => self.learn(index, rest),
            (Some(base), Some(index)) if base != index => {
                let mut fine = true;
                if index != target {
                    fine &= self.learn(base, rest.sub(at(index).shl(scale)));
                }
                if base != target && scale == 0 {
                    fine &= self.learn(index, rest.sub(at(base)));
                }
                fine
            }
            _ => true,
        }
    }

    /// Restores the stack before `insn`, and learns registers from its content. False for a contradiction.
    pub(super) fn invert_memory(&mut self, insn: &Insn<X86>, after: &[Val; REGISTERS], addresses: Addresses) -> bool {
        let code = &insn.code;
        let at = |register: u8| after.get(usize::from(register)).copied().unwrap_or_default();
        let size =
            if code.op0_kind() == OpKind::Memory || code.op1_kind() == OpKind::Memory { memory_size(code) } else { 8 };
        let first = addresses.first().copied().flatten();
        let mut fine = true;
        match code.mnemonic() {
            // Loads: memory held the value that the register got.
            Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movsx | Mnemonic::Movsxd
                if code.op1_kind() == OpKind::Memory =>
            {
                if let (Some(addr), Some(target)) = (first, low_register(code, 0)) {
                    fine &= self.stack.learn(addr, size, at(target).only_low(operand_size(code, 0)));
                }
                return fine;
            }
            Mnemonic::Pop if code.stack_pointer_increment() == 8 => {
                if let (Some(addr), Some(target)) = (first, low_register(code, 0)) {
                    if target != RSP {
                        fine &= self.stack.learn(addr, 8, at(target));
                    }
                }
            }
            Mnemonic::Leave if code.code() == Code::Leaveq => {
                if let Some(addr) = self.reg(RBP).get() {
                    fine &= self.stack.learn(addr, 8, at(RBP));
                }
            }
            // Stores: the register held the value that is in memory.
            Mnemonic::Mov if code.op0_kind() == OpKind::Memory => {
                if let (Some(addr), Some(source)) = (first, low_register(code, 1)) {
                    let val = self.stack.read(addr, size).only_low(size);
                    fine &= self.learn(source, val);
                }
            }
            Mnemonic::Push if code.op0_kind() == OpKind::Register && code.stack_pointer_increment() == -8 => {
                if let (Some(addr), Some(source)) = (first, low_register(code, 0)) {
                    if source != RSP {
                        let val = self.stack.read(addr, 8);
                        fine &= self.learn(source, val);
                    }
                }
            }
            Mnemonic::Add
            | Mnemonic::Sub
            | Mnemonic::Xor
            | Mnemonic::Inc
            | Mnemonic::Dec
            | Mnemonic::Not
            | Mnemonic::Neg
                if code.op0_kind() == OpKind::Memory =>
            {
                if let Some(addr) = first {
                    let val = self.stack.read(addr, size);
                    let before = match code.mnemonic() {
                        Mnemonic::Add => val.sub(self.read(code, 1)),
                        Mnemonic::Sub => val.add(self.read(code, 1)),
                        Mnemonic::Xor => val.xor(self.read(code, 1)),
                        _ => invert_unary(code, val),
                    };
                    self.stack.write(addr, size, before);
                }
                return fine;
            }
            _ => {}
        }
        self.forget_known_stores(insn, addresses);
        fine
    }
}

/// A register operand other than ah, ch, dh, bh.
fn low_register(code: &Instruction, operand: u32) -> Option<u8> {
    if operand >= code.op_count() || code.op_kind(operand) != OpKind::Register {
        return None;
    }
    let register = code.op_register(operand);
    gpr(register).filter(|_| shift(register) == 0)
}

fn without_low(val: Val, bytes: u32) -> Val {
    Val::new(val.bits(), val.known() & !crate::value::mask(bytes))
}

fn moved(val: Val, delta: i64) -> Val {
    val.add(Val::full(delta as u64))
}

fn invert_unary(code: &Instruction, after: Val) -> Val {
    match code.mnemonic() {
        Mnemonic::Inc => after.sub(Val::full(1)),
        Mnemonic::Dec => after.add(Val::full(1)),
        Mnemonic::Neg => Val::full(0).sub(after),
        _ => after.not(),
    }
}
