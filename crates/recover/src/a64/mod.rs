//! The instruction set A64 of 64-bit Arm, decoded by yaxpeax-arm.
//!
//! Facts are those of the Arm Architecture Reference Manual (DDI 0487), chapters C3 to C6.

mod code;
mod decode;
mod flags;
mod invert;
mod opcodes;
mod operands;
mod step;
#[cfg(test)]
mod tests;
mod words;

use std::ops::Range;

use yaxpeax_arm::armv8::a64::Instruction;

use crate::flags::Flags;
use crate::insn::Insn;
use crate::isa::Isa;
use crate::machine::{Addresses, Machine, Next};
use crate::regs::Regs;
use crate::semantics::{Branch, Semantics};
use crate::value::Val;

/// The link register, with the return address.
const LR: u8 = 30;
/// Here, 31 is the stack pointer. Operands that mean the zero register by it have no number.
const SP: u8 = 31;
/// General registers and the stack pointer.
const REGISTERS: usize = 32;
/// Bytes of an instruction.
const LENGTH: usize = 4;
/// The bits of an address of user code; above them a pointer may contain an authentication code and a tag.
const VA_BITS: u64 = (1 << 48) - 1;

/// A64.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct A64;

impl Isa for A64 {
    type Code = Instruction;
    type Registers = [Val; REGISTERS];

    const SP: u8 = SP;
    const RETURN: u32 = 1 << LR;
}

impl Semantics for A64 {
    type Decoder = ();

    fn decoder() -> Self::Decoder {}

    fn registers(regs: &Regs) -> Self::Registers {
        regs.gpr.map(Val::full)
    }

    /// Samples have no flags: perf's registers of arm64 lack pstate.
    fn flags(_regs: &Regs) -> Flags {
        Flags::default()
    }

    fn decode(bytes: &[u8], base: u64, at: usize, _decoder: &mut Self::Decoder) -> Option<Insn<Self>> {
        decode::decode(bytes, base, at)
    }

    fn sweep(bytes: &[u8], base: u64, range: Range<usize>, each: impl FnMut(usize, &Branch)) {
        code::sweep(bytes, base, range, each);
    }

    fn possible_targets(bytes: &[u8], base: u64, range: Range<usize>, each: impl FnMut(i64)) {
        code::possible_targets(bytes, base, range, each);
    }

    fn boundaries(bytes: &[u8], base: u64, ip: usize) -> Vec<usize> {
        code::boundaries(bytes, base, ip)
    }

    fn step(machine: &mut Machine<Self>, insn: &Insn<Self>) -> Option<Next> {
        machine.step_a64(insn)
    }

    fn literals(insn: &Insn<Self>, before: u32) -> u32 {
        step::literals(insn, before)
    }

    fn invert_registers(machine: &mut Machine<Self>, insn: &Insn<Self>, after: &Self::Registers) -> bool {
        machine.invert_registers(insn, after)
    }

    fn invert_memory(
        machine: &mut Machine<Self>,
        insn: &Insn<Self>,
        after: &Self::Registers,
        addresses: Addresses,
    ) -> bool {
        machine.invert_memory(insn, after, addresses)
    }

    fn ret(machine: &mut Machine<Self>) -> Option<u64> {
        machine.reg(LR).and(Val::full(VA_BITS)).get()
    }
}
