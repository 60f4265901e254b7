//! Runs one instruction forward on the known part of registers, flags and stack.
//!
//! Everything that an unmodelled instruction writes becomes unknown, so values that stay known are right.

use iced_x86::{Code, ConditionCode, Instruction, Mnemonic, OpKind};

use super::arith::is_arith;
use super::flags::holds;
use super::operands::{is_cmov, operand_size};
use super::{RBP, RSP, X86};
use crate::insn::{Flow, Insn};
use crate::machine::{Machine, Next};
use crate::value::Val;

impl Machine<X86> {
    /// Runs one instruction; `None` if it is not modelled, or its outcome is unknown.
    pub(super) fn step_x86(&mut self, insn: &Insn<X86>) -> Option<Next> {
        if insn.flow == Flow::Next {
            return self.step_plain(insn).then_some(Next::Fall);
        }
        let code = &insn.code;
        let jump = |target: Val| target.get().map_or(Next::Unknown, Next::Jump);
        let fall = insn.next_ip().wrapping_add(self.bias);
        match code.mnemonic() {
            Mnemonic::Jmp if is_near(code) => Some(jump(self.read(code, 0))),
            Mnemonic::Call if is_near(code) => {
                let target = self.read(code, 0);
                self.push(Val::full(fall), 8);
                Some(jump(target))
            }
            Mnemonic::Ret if matches!(insn.flow, Flow::Return | Flow::ReturnAndPop) => {
                let target = self.reg(RSP).get().map_or(Val::UNKNOWN, |rsp| self.stack.read(rsp, 8));
                self.add_to(RSP, i64::from(code.stack_pointer_increment()));
                Some(jump(target))
            }
            // loop depends on rcx too.
            _ if insn.flow == Flow::Conditional && insn.writes == 0 => {
                let taken = holds(self.flags, code.condition_code())?;
                let target = code.near_branch_target().wrapping_add(self.bias);
                Some(if taken { Next::Jump(target) } else { Next::Fall })
            }
            _ => None,
        }
    }

    /// The instructions that continue with the next one; false if this one is not modelled.
    fn step_plain(&mut self, insn: &Insn<X86>) -> bool {
        let code = &insn.code;
        match code.mnemonic() {
            Mnemonic::Mov | Mnemonic::Movzx => self.write(code, 0, self.read(code, 1)),
            Mnemonic::Movsx | Mnemonic::Movsxd => {
                let from = self.read(code, 1).sext(operand_size(code, 1));
                self.write(code, 0, from);
            }
            Mnemonic::Lea => {
                let val = self.effective(code);
                self.write(code, 0, val);
            }
            Mnemonic::Add
            | Mnemonic::Sub
            | Mnemonic::Cmp
            | Mnemonic::And
            | Mnemonic::Or
            | Mnemonic::Xor
            | Mnemonic::Test => self.arithmetic(code),
            Mnemonic::Inc | Mnemonic::Dec | Mnemonic::Neg => self.step_by_one(code),
            Mnemonic::Not => self.write(code, 0, self.read(code, 0).not()),
            Mnemonic::Bswap => {
                let size = operand_size(code, 0);
                self.write(code, 0, self.read(code, 0).bswap(size));
            }
            Mnemonic::Shl | Mnemonic::Sal | Mnemonic::Shr | Mnemonic::Sar => return self.shift(code),
            Mnemonic::Imul if code.op_count() >= 2 => {
                let size = operand_size(code, 0);
                let (a, b) = if code.op_count() == 3 { (1, 2) } else { (0, 1) };
                let val = self.read(code, a).sext(size).mul(self.read(code, b).sext(size));
                self.flags.forget(code.rflags_modified());
                self.write(code, 0, val);
            }
            Mnemonic::Cwde | Mnemonic::Cdqe | Mnemonic::Cdq | Mnemonic::Cqo => self.extend_sign(code.mnemonic()),
            Mnemonic::Xchg => self.step_xchg(code),
            Mnemonic::Cmpxchg => return self.step_cmpxchg(code),
            Mnemonic::Xadd => self.step_xadd(code),
            Mnemonic::Push => {
                let size = code.stack_pointer_increment().unsigned_abs();
                self.push(self.read(code, 0), size);
            }
            Mnemonic::Pop if code.op0_kind() == OpKind::Register => {
                let size = code.stack_pointer_increment().unsigned_abs();
                let val = self.reg(RSP).get().map_or(Val::UNKNOWN, |rsp| self.stack.read(rsp, size));
                self.add_to(RSP, i64::from(size));
                self.write(code, 0, val);
            }
            Mnemonic::Leave if code.code() == Code::Leaveq => {
                let frame = self.reg(RBP);
                let val = frame.get().map_or(Val::UNKNOWN, |rbp| self.stack.read(rbp, 8));
                self.set_reg(RSP, frame.add(Val::full(8)));
                self.set_reg(RBP, val);
            }
            _ if is_cmov(code) => match holds(self.flags, code.condition_code()) {
                Some(true) => self.write(code, 0, self.read(code, 1)),
                // A destination of 32 bits clears the upper half even if nothing is moved.
                Some(false) => self.write(code, 0, self.read(code, 0)),
                None => return false,
            },
            _ if code.op_count() == 1 && code.condition_code() != ConditionCode::None => {
                let val = holds(self.flags, code.condition_code()).map_or(Val::UNKNOWN, |on| Val::full(u64::from(on)));
                self.write(code, 0, val);
            }
            _ if code.is_string_instruction() => return self.step_string(insn),
            _ if is_arith(code) => return self.step_arith(code),
            _ => return false,
        }
        true
    }
}

fn is_near(code: &Instruction) -> bool {
    match code.op0_kind() {
        OpKind::NearBranch64 => true,
        OpKind::Register => code.op0_register().size() == 8,
        OpKind::Memory => matches!(code.code(), Code::Jmp_rm64 | Code::Call_rm64),
        _ => false,
    }
}
