//! What recovery needs to know about an instruction set. The rest of the code is the same for all of them.

use std::fmt::Debug;
use std::ops::Range;

use super::flags::Flags;
use super::image::Image;
use super::insn::{Flow, Insn};
use super::isa::Isa;
use super::machine::{Addresses, Machine, Next, Undone};
use super::regs::Regs;

/// How to decode code, and what an instruction does, forward and backward.
pub(super) trait Semantics: Isa {
    /// State of the decoder between instructions.
    type Decoder: Debug;
    /// A decoder.
    fn decoder() -> Self::Decoder;

    /// The registers of a sample.
    fn registers(regs: &Regs) -> Self::Registers;

    /// The flags of a sample; unknown if samples do not contain them.
    fn flags(regs: &Regs) -> Flags;

    /// Decodes the instruction at `at` of `bytes`; the first byte has the address `base`. `None` if there is no
    /// instruction.
    fn decode(bytes: &[u8], base: u64, at: usize, decoder: &mut Self::Decoder) -> Option<Insn<Self>>;

    /// Calls `each` with every instruction of a range and its index; skips other bytes.
    fn sweep(bytes: &[u8], base: u64, range: Range<usize>, each: impl FnMut(usize, &Branch));

    /// Calls `each` with the target (an index into `bytes`, possibly outside) of everything in `range` that could be a direct
    /// branch, whether or not an instruction begins there.
    fn possible_targets(bytes: &[u8], base: u64, range: Range<usize>, each: impl FnMut(i64));

    /// The beginnings of the instructions before `ip` (an index into `bytes`) if the beginning of the function is unknown, the
    /// nearest first; `ip` itself comes first.
    fn boundaries(bytes: &[u8], base: u64, ip: usize) -> Vec<usize>;

    /// Runs one instruction. `None` if it is not modelled, or its outcome is unknown; the machine is then unchanged.
    fn step(machine: &mut Machine<Self>, insn: &Insn<Self>) -> Option<Next>;

    /// The registers whose value after `insn` follows from the code alone, one bit each; `before` are those before it.
    /// Instruction sets whose operands contain the address of a variable need not know any.
    fn literals(insn: &Insn<Self>, before: u32) -> u32 {
        let _ = (insn, before);
        0
    }

    /// Learns the registers before `insn`; those that it writes are unknown at the call. `after` are the registers
    /// after it. False for a contradiction.
    fn invert_registers(machine: &mut Machine<Self>, insn: &Insn<Self>, after: &Self::Registers) -> bool;

    /// Restores the stack before `insn`, and learns registers from its content. False for a contradiction.
    fn invert_memory(
        machine: &mut Machine<Self>,
        insn: &Insn<Self>,
        after: &Self::Registers,
        addresses: Addresses,
    ) -> bool;

    /// Returns from the function, if the return address is known.
    fn ret(machine: &mut Machine<Self>) -> Option<u64>;
}

/// What is needed of an instruction to find branches.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Branch {
    /// The target of a direct branch (not of a call), relative to the code's base.
    pub(super) target: Option<u64>,
    /// A jump that may lead to several places of the same function.
    pub(super) table: bool,
}

/// Everything that an unmodelled instruction writes becomes unknown, so values that stay known are right.
impl<I: Semantics> Machine<I> {
    pub(super) fn new(regs: &Regs, dump: &[u8]) -> Self {
        Self {
            regs: I::registers(regs),
            flags: I::flags(regs),
            stack: Image::new(regs.sp(), dump),
            bias: 0,
            fs: None,
            loaded: None,
            hopeful: false,
        }
    }

    /// Runs one instruction and returns where control goes.
    pub(super) fn step(&mut self, insn: &Insn<I>) -> Next {
        let addresses = self.addresses(insn);
        if let Some(next) = I::step(self, insn) {
            return next;
        }
        self.havoc(insn, addresses);
        if insn.flow == Flow::Next {
            Next::Fall
        } else {
            Next::Unknown
        }
    }

    /// Undoes `insn`. `hints` are the addresses of its stores from an earlier pass.
    ///
    /// What an instruction wrote is unknown before it, unless its arithmetic can be inverted. A copy shows the value of
    /// its source.
    pub(super) fn unstep(&mut self, insn: &Insn<I>, hints: Addresses) -> Undone {
        let mut undone = Undone::default();
        let after = self.regs;
        self.forget(insn.writes);
        self.flags.forget(insn.flags);
        undone.conflict |= !I::invert_registers(self, insn, &after);

        if insn.wild || insn.repeated {
            self.stack.clear();
            return undone;
        }
        let mut addresses = self.addresses(insn);
        for (slot, operand) in insn.operands() {
            let (Some(addr), Some(&hint)) = (addresses.get_mut(slot), hints.get(slot)) else { continue };
            if operand.is_store() && addr.is_none() {
                *addr = hint;
                if hint.is_none() {
                    undone.blind = true;
                    if !self.hopeful {
                        self.stack.clear();
                    }
                }
            }
        }
        undone.conflict |= !I::invert_memory(self, insn, &after, addresses);
        undone
    }
}
