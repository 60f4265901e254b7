//! Runs one instruction forward on the known part of registers, flags and stack.

use yaxpeax_arm::armv8::a64::{Instruction, Opcode, Operand};

use super::decode::{is_plain_hint, memory_operand};
use super::flags::{holds, of, of_logical, of_sum, C};
use super::opcodes::{atomic, is_store, load};
use super::operands::{gpr, operand_size, rotated};
use super::{A64, LR, VA_BITS};
use crate::insn::{bit, Flow, Insn, MemOp};
use crate::machine::{Machine, Next};
use crate::value::{mask, Val};

/// The lowest `bits` bits.
pub(super) fn low_bits(bits: u32) -> u64 {
    if bits >= 64 {
        u64::MAX
    } else {
        (1 << bits) - 1
    }
}

/// The bit field that ubfm, sbfm and bfm move: its source position, its destination, and its bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) bits: u32,
}

impl Field {
    /// The field of such an instruction, from its two immediates.
    pub(super) fn of(code: &Instruction) -> Option<Self> {
        let (Operand::Immediate(rotate), Operand::Immediate(last)) = (code.operands[2], code.operands[3]) else {
            return None;
        };
        let width = operand_size(code.operands[0]) * 8;
        if rotate >= width || last >= width {
            return None;
        }
        Some(if last >= rotate {
            Self { from: rotate, to: 0, bits: last - rotate + 1 }
        } else {
            Self { from: 0, to: width - rotate, bits: last + 1 }
        })
    }
}

impl Machine<A64> {
    /// Runs one instruction; `None` if it is not modelled, or its outcome is unknown.
    pub(super) fn step_a64(&mut self, insn: &Insn<A64>) -> Option<Next> {
        match insn.flow {
            Flow::Next => self.step_plain(insn).map(|()| Next::Fall),
            _ => self.step_branch(insn),
        }
    }

    fn step_branch(&mut self, insn: &Insn<A64>) -> Option<Next> {
        let code = &insn.code;
        let jump = |target: Val| target.get().map_or(Next::Unknown, Next::Jump);
        let target = insn.target.map(|target| target.wrapping_add(self.bias));
        let either = |taken: bool| if taken { target.map(Next::Jump) } else { Some(Next::Fall) };
        match code.opcode {
            Opcode::B => target.map(Next::Jump),
            Opcode::Bcc(condition) | Opcode::BCcc(condition) => either(holds(self.flags, condition)?),
            Opcode::CBZ | Opcode::CBNZ => {
                let val = self.value(code.operands[0]);
                // One known bit that is 1 suffices.
                let zero = if val.bits() == 0 { val.get().map(|_| true)? } else { false };
                either(zero == (code.opcode == Opcode::CBZ))
            }
            Opcode::TBZ | Opcode::TBNZ => {
                let Operand::Imm16(bit) = code.operands[1] else { return None };
                let bit = self.value(code.operands[0]).shr(u32::from(bit) & 63).and(Val::full(1)).get()?;
                either((bit == 0) == (code.opcode == Opcode::TBZ))
            }
            Opcode::BL | Opcode::BLR => {
                let to = match code.operands[0] {
                    Operand::PCOffset(distance) => {
                        Val::full(insn.ip.wrapping_add_signed(distance).wrapping_add(self.bias))
                    }
                    register => self.value(register),
                };
                self.set_reg(LR, Val::full(insn.next_ip().wrapping_add(self.bias)));
                Some(jump(to))
            }
            Opcode::BR | Opcode::RET => Some(jump(self.value(code.operands[0]))),
            Opcode::RETAA | Opcode::RETAB => Some(jump(self.reg(LR).and(Val::full(VA_BITS)))),
            _ => None,
        }
    }

    /// Runs instructions that continue with the next one.
    fn step_plain(&mut self, insn: &Insn<A64>) -> Option<()> {
        let code = &insn.code;
        let [to, from, third, fourth] = code.operands;
        let size = operand_size(to);
        let val = match code.opcode {
            Opcode::ADD | Opcode::SUB | Opcode::ADDS | Opcode::SUBS => {
                let (a, b) = (self.value(from), self.value(third));
                let minus = matches!(code.opcode, Opcode::SUB | Opcode::SUBS);
                let same = third_is(from, third);
                let val = match minus {
                    // A register minus itself is 0, even if its value is unknown.
                    true if same => Val::full(0),
                    true => a.sub(b),
                    false => a.add(b),
                };
                if insn.flags != 0 {
                    self.flags =
                        if minus && same { of_sum(val, val, val, size, true) } else { of_sum(a, b, val, size, minus) };
                }
                val
            }
            Opcode::ADC | Opcode::SBC | Opcode::ADCS | Opcode::SBCS => self.with_carry(insn, from, third, size)?,
            Opcode::AND
            | Opcode::ANDS
            | Opcode::ORR
            | Opcode::EOR
            | Opcode::BIC
            | Opcode::BICS
            | Opcode::ORN
            | Opcode::EON => {
                let (a, b) = (self.value(from), self.value(third));
                let val = match code.opcode {
                    Opcode::EOR if third_is(from, third) => Val::full(0),
                    Opcode::AND | Opcode::ANDS => a.and(b),
                    Opcode::BIC | Opcode::BICS => a.and(b.not()),
                    Opcode::ORR => a.or(b),
                    Opcode::ORN => a.or(b.not()),
                    Opcode::EOR => a.xor(b),
                    _ => a.xor(b.not()),
                };
                if insn.flags != 0 {
                    self.flags = of_logical(val, size);
                }
                val
            }
            Opcode::MOVZ => self.value(from),
            Opcode::MOVN => self.value(from).not(),
            Opcode::MOVK => {
                let Operand::ImmShift(value, shift) = from else { return None };
                self.value(to).insert(Val::full(value.into()), 2, u32::from(shift) & 0x30)
            }
            Opcode::UBFM | Opcode::SBFM | Opcode::BFM => {
                let field = Field::of(code)?;
                let inner = self.value(from).shr(field.from).and(Val::full(low_bits(field.bits)));
                let place = low_bits(field.bits) << field.to;
                match code.opcode {
                    Opcode::UBFM => inner.shl(field.to),
                    Opcode::SBFM => inner.shl(64 - field.bits).sar(64 - field.bits).shl(field.to),
                    _ => self.value(to).and(Val::full(!place)).or(inner.shl(field.to)),
                }
            }
            Opcode::EXTR => {
                let Operand::Immediate(count) = fourth else { return None };
                let (high, low, bits) = (self.value(from), self.value(third), size * 8);
                match count {
                    0 => low,
                    count if count < bits => low.shr(count).or(high.shl(bits - count)),
                    _ => return None,
                }
            }
            Opcode::LSLV | Opcode::LSRV | Opcode::ASRV | Opcode::RORV => {
                let count = self.value(third).and(Val::full(u64::from(size * 8 - 1))).get()? as u32;
                let val = self.value(from);
                match code.opcode {
                    Opcode::LSLV => val.shl(count),
                    Opcode::LSRV => val.shr(count),
                    Opcode::ASRV => val.sext(size).sar(count),
                    _ => rotated(val, count, size),
                }
            }
            Opcode::CSEL | Opcode::CSINC | Opcode::CSINV | Opcode::CSNEG => {
                let Operand::ConditionCode(condition) = fourth else { return None };
                let other = self.value(third);
                match code.opcode {
                    _ if holds(self.flags, condition)? => self.value(from),
                    Opcode::CSEL => other,
                    Opcode::CSINC => other.add(Val::full(1)),
                    Opcode::CSINV => other.not(),
                    _ => Val::full(0).sub(other),
                }
            }
            Opcode::CCMP | Opcode::CCMN => return self.compare_if(code),
            Opcode::SMADDL | Opcode::SMSUBL => {
                let product = self.value(from).sext(4).mul(self.value(third).sext(4));
                let sum = self.value(fourth);
                if code.opcode == Opcode::SMADDL {
                    sum.add(product)
                } else {
                    sum.sub(product)
                }
            }
            Opcode::MADD | Opcode::UMADDL => self.value(fourth).add(self.value(from).mul(self.value(third))),
            // Registers of 32 bits are zero-extended anyway.
            Opcode::MSUB | Opcode::UMSUBL => self.value(fourth).sub(self.value(from).mul(self.value(third))),
            Opcode::UMULH => {
                let product = u128::from(self.value(from).get()?) * u128::from(self.value(third).get()?);
                Val::full((product >> 64) as u64)
            }
            Opcode::SMULH => {
                let wide = |val: u64| i128::from(val as i64);
                let product = wide(self.value(from).get()?) * wide(self.value(third).get()?);
                Val::full((product >> 64) as u64)
            }
            Opcode::UDIV => {
                let (a, b) = (self.value(from).low(size)?, self.value(third).low(size)?);
                Val::full(a.checked_div(b).unwrap_or(0))
            }
            Opcode::SDIV => {
                let wide = |operand| Some(self.value(operand).sext(size).get()? as i64);
                let (a, b) = (wide(from)?, wide(third)?);
                Val::full(if b == 0 { 0 } else { a.wrapping_div(b) as u64 })
            }
            Opcode::REV => self.value(from).bswap(size),
            Opcode::REV32 | Opcode::REV16 | Opcode::RBIT | Opcode::CLZ | Opcode::CLS => {
                let val = self.value(from).low(size)?;
                let unused = 64 - size * 8;
                Val::full(match code.opcode {
                    Opcode::REV32 => val.swap_bytes().rotate_left(32),
                    Opcode::REV16 => (val & 0x00ff_00ff_00ff_00ff) << 8 | val >> 8 & 0x00ff_00ff_00ff_00ff,
                    Opcode::RBIT => val.reverse_bits() >> unused,
                    Opcode::CLZ => u64::from(val.leading_zeros() - unused),
                    // Counts the bits below the sign that equal it.
                    _ => {
                        let wide = val << unused;
                        let differ = (wide ^ ((wide as i64) >> 63) as u64) | (1u64 << unused >> 1);
                        u64::from(differ.leading_zeros().min(size * 8) - 1)
                    }
                })
            }
            Opcode::ADR | Opcode::ADRP => {
                let Operand::PCOffset(distance) = from else { return None };
                let ip = insn.ip.wrapping_add(self.bias);
                let ip = if code.opcode == Opcode::ADRP { ip & !0xfff } else { ip };
                Val::full(ip.wrapping_add_signed(distance))
            }
            // Signing replaces bits above the address. Authentication restores them, or the program faults.
            Opcode::PACIASP | Opcode::PACIBSP | Opcode::PACIAZ | Opcode::PACIBZ => {
                self.set_reg(LR, signed(self.reg(LR)));
                return Some(());
            }
            Opcode::AUTIASP | Opcode::AUTIBSP | Opcode::AUTIAZ | Opcode::AUTIBZ | Opcode::XPACLRI => {
                self.set_reg(LR, authenticated(self.reg(LR)));
                return Some(());
            }
            Opcode::HINT if is_plain_hint(code) => return Some(()),
            Opcode::DMB(_) | Opcode::DSB(_) | Opcode::ISB | Opcode::PRFM | Opcode::PRFUM => {
                return Some(());
            }
            opcode => return self.step_memory(insn, opcode),
        };
        self.set(to, val);
        Some(())
    }

    fn with_carry(&mut self, insn: &Insn<A64>, from: Operand, third: Operand, size: u32) -> Option<Val> {
        let carry = u64::from(self.flags.get(C)?);
        let (a, b) = (self.value(from).low(size)?, self.value(third).low(size)?);
        let minus = matches!(insn.code.opcode, Opcode::SBC | Opcode::SBCS);
        let b = if minus { !b & mask(size) } else { b };
        let sum = u128::from(a) + u128::from(b) + u128::from(carry);
        let val = Val::full(sum as u64).zext(size);
        if insn.flags != 0 {
            let mut flags = of_sum(Val::full(a), Val::full(b), val, size, false);
            flags.set(C, sum > u128::from(mask(size)));
            self.flags = flags;
        }
        Some(val)
    }

    /// ccmp and ccmn: a comparison if the condition holds, else the flags that the instruction contains.
    fn compare_if(&mut self, code: &Instruction) -> Option<()> {
        let [a, b, nzcv, condition] = code.operands;
        let (Operand::Immediate(nzcv), Operand::ConditionCode(condition)) = (nzcv, condition) else { return None };
        self.flags = if holds(self.flags, condition)? {
            let (minus, size) = (code.opcode == Opcode::CCMP, operand_size(a));
            let (a, b) = (self.value(a), self.value(b));
            of_sum(a, b, if minus { a.sub(b) } else { a.add(b) }, size, minus)
        } else {
            of(nzcv)
        };
        Some(())
    }

    /// Loads, stores and atomics.
    fn step_memory(&mut self, insn: &Insn<A64>, opcode: Opcode) -> Option<()> {
        let operand = insn.operands.first()?.as_ref().filter(|operand| operand.opaque.is_none())?;
        let addr = self.address(operand);
        let [first, second, ..] = insn.code.operands;
        let size = u32::from(operand.size);
        let pair = matches!(second, Operand::Register(..)).then_some(second);
        if let Some(signed) = load(opcode) {
            self.load_registers(operand, addr, first, pair, signed);
        } else if is_store(opcode) {
            let part = if pair.is_some() { size / 2 } else { size };
            let (low, high) = (self.stored(first), pair.map(|second| self.stored(second)));
            self.store(addr, part.into(), low);
            if let Some(high) = high {
                self.store(addr.map(|addr| addr.wrapping_add(part.into())), part.into(), high);
            }
        } else if atomic(opcode).is_some() {
            let old = addr.map_or(Val::UNKNOWN, |addr| self.load(addr, size));
            let new = if matches!(opcode, Opcode::SWP(_) | Opcode::SWPB(_) | Opcode::SWPH(_)) {
                self.value(first)
            } else {
                Val::UNKNOWN
            };
            self.store(addr, size.into(), new);
            self.set(second, old.zext(size));
        } else if matches!(first, Operand::SIMDRegisterGroup(..) | Operand::SIMDRegisterGroupLane(..)) {
            if operand.is_store() {
                self.store(addr, size.into(), Val::UNKNOWN);
            }
        } else {
            return None;
        }
        self.write_back(&insn.code);
        Some(())
    }

    /// The value of a register to store; vector registers are unknown.
    fn stored(&self, register: Operand) -> Val {
        match register {
            Operand::Register(..) => self.value(register),
            _ => Val::UNKNOWN,
        }
    }

    fn load_registers(
        &mut self,
        operand: &MemOp,
        addr: Option<u64>,
        first: Operand,
        second: Option<Operand>,
        signed: bool,
    ) {
        let size = u32::from(operand.size) / if second.is_some() { 2 } else { 1 };
        let loaded = |offset: u32| {
            let val = addr.map_or(Val::UNKNOWN.zext(size), |addr| self.load(addr.wrapping_add(offset.into()), size));
            if signed {
                val.sext(size)
            } else {
                val
            }
        };
        let (low, high) = (loaded(0), second.map(|_| loaded(size)));
        self.set(first, low);
        if let (Some(second), Some(high)) = (second, high) {
            self.set(second, high);
        }
    }

    /// Sets the base register of a pre- or post-indexed operand.
    fn write_back(&mut self, code: &Instruction) {
        match memory_operand(code) {
            Some(Operand::RegPreIndex(base, disp, true) | Operand::RegPostIndex(base, disp)) => {
                self.add_to(base as u8, disp.into());
            }
            Some(Operand::RegPostIndexReg(base, by)) => {
                let by = self.reg(by as u8);
                self.set_reg(base as u8, self.reg(base as u8).add(by));
            }
            _ => {}
        }
    }
}

/// The registers that contain the address of a variable of the program, as `adrp` and `add` compute it; `before` are
/// those before the instruction.
pub(super) fn literals(insn: &Insn<A64>, before: u32) -> u32 {
    let [to, from, third, _] = insn.code.operands;
    let is_literal = match insn.code.opcode {
        Opcode::ADR | Opcode::ADRP => true,
        Opcode::ADD => {
            let is_constant = matches!(third, Operand::Immediate(_) | Operand::Imm64(_) | Operand::ImmShift(..));
            is_constant && gpr(from).is_some_and(|from| before & bit(from) != 0)
        }
        _ => false,
    };
    let to = gpr(to).filter(|_| is_literal).map_or(0, bit);
    before & !insn.writes | to
}

/// True if the third operand is the same register as the second one, without a shift.
pub(super) fn third_is(second: Operand, third: Operand) -> bool {
    let Operand::RegShift(_, 0, size, number) = third else { return false };
    let third = Operand::Register(size, number);
    second == third && gpr(third).is_some()
}

/// The value after signing: the code may be in any bit above the address.
pub(super) fn signed(val: Val) -> Val {
    Val::new(val.bits(), val.known() & VA_BITS)
}

/// The address in a signed pointer.
fn authenticated(val: Val) -> Val {
    val.and(Val::full(VA_BITS))
}
