//! Runs one instruction backward: computes the known state before it from the known state after it.

use yaxpeax_arm::armv8::a64::{Opcode, Operand, ShiftStyle};

use super::decode::memory_operand;
use super::flags::holds;
use super::opcodes::{is_store, load};
use super::operands::{gpr, operand_size};
use super::step::{low_bits, signed, Field};
use super::{A64, LR, REGISTERS};
use crate::insn::{bit, Insn};
use crate::machine::{Addresses, Machine};
use crate::value::Val;

impl Machine<A64> {
    /// Restores the registers before `insn`; those that it writes are unknown at the call. False for a contradiction.
    pub(super) fn invert_registers(&mut self, insn: &Insn<A64>, after: &[Val; REGISTERS]) -> bool {
        let code = &insn.code;
        let at = |register: u8| after.get(usize::from(register)).copied().unwrap_or_default();
        let [to, from, third, fourth] = code.operands;
        let size = operand_size(to);
        let mut fine = true;
        match memory_operand(code) {
            Some(Operand::RegPreIndex(base, disp, true) | Operand::RegPostIndex(base, disp)) => {
                let before = at(base as u8).sub(Val::full(i64::from(disp) as u64));
                // The base that these instructions write back was authenticated.
                let is_signed = matches!(code.opcode, Opcode::LDRAA | Opcode::LDRAB);
                fine &= self.learn(base as u8, if is_signed { signed(before) } else { before });
            }
            Some(Operand::RegPostIndexReg(base, by)) if insn.writes & bit(by as u8) == 0 => {
                fine &= self.learn(base as u8, at(base as u8).sub(at(by as u8)));
            }
            _ => {}
        }
        if matches!(code.opcode, Opcode::PACIASP | Opcode::PACIBSP | Opcode::PACIAZ | Opcode::PACIBZ) {
            return fine & self.learn(LR, signed(at(LR)));
        }
        let Some(result) = gpr(to).map(|register| at(register).only_low(size)) else { return fine };
        fine & match code.opcode {
            Opcode::ADD | Opcode::ADDS | Opcode::SUB | Opcode::SUBS => {
                let minus = matches!(code.opcode, Opcode::SUB | Opcode::SUBS);
                let first = if minus { result.add(self.value(third)) } else { result.sub(self.value(third)) };
                let second = |machine: &Self| {
                    let first = machine.value(from);
                    if minus {
                        first.sub(result)
                    } else {
                        result.sub(first)
                    }
                };
                self.learn_operand(from, first, size) && {
                    let second = second(self);
                    self.learn_third(third, second, size)
                }
            }
            Opcode::EOR => {
                let first = result.xor(self.value(third));
                self.learn_operand(from, first, size) && {
                    let second = result.xor(self.value(from));
                    self.learn_third(third, second, size)
                }
            }
            // mov and mvn
            Opcode::ORR if from_zero(from) => self.learn_third(third, result, size),
            Opcode::ORN if from_zero(from) => self.learn_third(third, result.not(), size),
            Opcode::MOVK => {
                let Operand::ImmShift(_, shift) = from else { return fine };
                let kept = !(0xffff << (u32::from(shift) & 0x30));
                self.learn_operand(to, Val::new(result.bits(), result.known() & kept), size)
            }
            Opcode::UBFM | Opcode::SBFM | Opcode::BFM => {
                let Some(field) = Field::of(code) else { return fine };
                let inner = result.shr(field.to);
                let bits = low_bits(field.bits);
                let source = Val::new((inner.bits() & bits) << field.from, (inner.known() & bits) << field.from);
                let place = bits << field.to;
                self.learn_operand(from, source, size)
                    && (code.opcode != Opcode::BFM
                        || self.learn_operand(to, Val::new(result.bits(), result.known() & !place), size))
            }
            Opcode::REV => self.learn_operand(from, result.bswap(size), size),
            Opcode::CSEL => {
                let Operand::ConditionCode(condition) = fourth else { return fine };
                match holds(self.flags, condition) {
                    Some(true) => self.learn_operand(from, result, size),
                    Some(false) => self.learn_operand(third, result, size),
                    None => true,
                }
            }
            _ => true,
        }
    }

    /// Adds to the known low bytes of a register operand; true for other operands and the zero register.
    fn learn_operand(&mut self, operand: Operand, val: Val, size: u32) -> bool {
        gpr(operand).is_none_or(|register| self.learn(register, val.only_low(size)))
    }

    /// The same for a register that is not shifted.
    fn learn_third(&mut self, operand: Operand, val: Val, size: u32) -> bool {
        match operand {
            Operand::RegShift(ShiftStyle::LSL | ShiftStyle::UXTX | ShiftStyle::SXTX, 0, own, register) => {
                let register = Operand::Register(own, register);
                self.learn_operand(register, val, size.min(operand_size(register)))
            }
            _ => true,
        }
    }

    /// Restores the stack before `insn`, and learns registers from its content. False for a contradiction.
    pub(super) fn invert_memory(&mut self, insn: &Insn<A64>, after: &[Val; REGISTERS], addresses: Addresses) -> bool {
        let code = &insn.code;
        let at = |register: u8| after.get(usize::from(register)).copied().unwrap_or_default();
        let [first, second, ..] = code.operands;
        let registers = if matches!(second, Operand::Register(..)) { 2 } else { 1 };
        let mut fine = true;
        let operand = insn.operands.first().and_then(Option::as_ref);
        if let (Some(operand), Some(Some(addr))) = (operand, addresses.first().copied()) {
            let size = u32::from(operand.size) / registers;
            let places =
                [first, second].into_iter().take(registers as usize).zip([addr, addr.wrapping_add(size.into())]);
            if load(code.opcode).is_some() {
                // A load: memory held the value that the register got.
                for (register, addr) in places {
                    if let Some(register) = gpr(register).filter(|_| size <= 8) {
                        fine &= self.stack.learn(addr, size, at(register).only_low(size));
                    }
                }
            } else if is_store(code.opcode) {
                // A store: the register held the value that is in memory.
                for (register, addr) in places {
                    if let Some(register) = gpr(register).filter(|_| size <= 8) {
                        let val = self.stack.read(addr, size).only_low(size);
                        fine &= self.learn(register, val);
                    }
                }
            }
        }
        self.forget_known_stores(insn, addresses);
        fine
    }
}

/// True for the zero register.
fn from_zero(operand: Operand) -> bool {
    matches!(operand, Operand::Register(..)) && gpr(operand).is_none()
}
