//! The instruction set x86-64, decoded by iced-x86.

mod arith;
mod atomic;
mod code;
mod decode;
mod flags;
mod invert;
mod operands;
mod step;
mod string;
mod sums;

use std::ops::Range;

use iced_x86::{Instruction, InstructionInfoFactory};

use crate::flags::Flags;
use crate::insn::Insn;
use crate::isa::Isa;
use crate::machine::{Addresses, Machine, Next};
use crate::regs::Regs;
use crate::semantics::{Branch, Semantics};
use crate::value::Val;

pub(super) const RCX: u8 = 1;
pub(super) const RSP: u8 = 4;
const RBP: u8 = 5;
const RSI: u8 = 6;
const RDI: u8 = 7;
/// General registers.
const REGISTERS: usize = 16;

/// x86-64.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct X86;

impl Isa for X86 {
    type Code = Instruction;
    type Registers = [Val; REGISTERS];

    const SP: u8 = RSP;
    // The return address is on top of the stack.
    const RETURN: u32 = 1 << RSP;
}

impl Semantics for X86 {
    type Decoder = InstructionInfoFactory;

    fn decoder() -> Self::Decoder {
        InstructionInfoFactory::new()
    }

    fn registers(regs: &Regs) -> Self::Registers {
        let mut all = Self::Registers::default();
        for (register, &value) in all.iter_mut().zip(&regs.gpr) {
            *register = Val::full(value);
        }
        all
    }

    fn flags(regs: &Regs) -> Flags {
        flags::from_rflags(regs.flags)
    }

    fn decode(bytes: &[u8], base: u64, at: usize, decoder: &mut Self::Decoder) -> Option<Insn<Self>> {
        decode::decode(bytes, base, at, decoder)
    }

    fn sweep(bytes: &[u8], base: u64, range: Range<usize>, each: impl FnMut(usize, &Branch)) {
        code::sweep(bytes, base, range, each);
    }

    fn possible_targets(bytes: &[u8], _base: u64, range: Range<usize>, each: impl FnMut(i64)) {
        code::possible_targets(bytes, range, each);
    }

    fn boundaries(bytes: &[u8], _base: u64, ip: usize) -> Vec<usize> {
        code::synchronise(bytes, ip)
    }

    fn step(machine: &mut Machine<Self>, insn: &Insn<Self>) -> Option<Next> {
        machine.step_x86(insn)
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
        let target = machine.stack.read(machine.reg(RSP).get()?, 8).get();
        machine.add_to(RSP, 8);
        target
    }
}
