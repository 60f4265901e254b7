//! What the recovery needs to know of an instruction set. Everything else is the same for all of them.

use std::fmt::Debug;
use std::ops::Range;

use super::flags::Flags;
use super::insn::Insn;
use super::machine::{Addresses, Machine, Next};
use super::regs::Regs;
use super::value::Val;

/// An instruction set: how its code is decoded, and what an instruction does, forward and backward.
pub(super) trait Isa: Debug + Clone + Copy + Default + 'static {
    /// An instruction as the decoder gives it.
    type Code: Debug + Clone;
    /// What decoding keeps between instructions.
    type Decoder: Debug;
    /// One value for each general register, by its number in instructions.
    type Registers: Debug + Copy + Default + AsRef<[Val]> + AsMut<[Val]>;

    /// The number of the stack pointer.
    const SP: u8;
    /// Registers that hold where the function returns to: code that changes them has to be run.
    const RETURN: u32;

    /// A decoder.
    fn decoder() -> Self::Decoder;

    /// The registers of a sample.
    fn registers(regs: &Regs) -> Self::Registers;

    /// The flags of a sample, as far as it contains them.
    fn flags(regs: &Regs) -> Flags;

    /// Decodes the instruction at `at` of `bytes`; the first byte has the address `base`. `None` if there is no instruction.
    fn decode(bytes: &[u8], base: u64, at: usize, decoder: &mut Self::Decoder) -> Option<Insn<Self>>;

    /// Calls `each` with every instruction of a range and its index; skips other bytes.
    fn sweep(bytes: &[u8], base: u64, range: Range<usize>, each: impl FnMut(usize, &Branch));

    /// Calls `each` with the target (an index into `bytes`, possibly outside) of everything in `range` that could be a direct
    /// branch, whether or not an instruction begins there.
    fn possible_targets(bytes: &[u8], base: u64, range: Range<usize>, each: impl FnMut(i64));

    /// The beginnings of the instructions before `ip` (an index into `bytes`) if the beginning of the function is unknown, the
    /// nearest first; `ip` itself comes first.
    fn boundaries(bytes: &[u8], base: u64, ip: usize) -> Vec<usize>;

    /// Runs one instruction; `None` if it is not modelled, or its outcome is unknown: then nothing has changed.
    fn step(machine: &mut Machine<Self>, insn: &Insn<Self>) -> Option<Next>;

    /// Adds what is known of the registers before `insn`; those that it writes are unknown at the call. `after` are those after it. False for
    /// a contradiction.
    fn invert_registers(machine: &mut Machine<Self>, insn: &Insn<Self>, after: &Self::Registers) -> bool;

    /// Takes the stack back to before `insn`, and adds what its content shows of registers. False for a contradiction.
    fn invert_memory(
        machine: &mut Machine<Self>,
        insn: &Insn<Self>,
        after: &Self::Registers,
        addresses: Addresses,
    ) -> bool;

    /// Returns from the function, if it is known where to.
    fn ret(machine: &mut Machine<Self>) -> Option<u64>;
}

/// What finding branches needs of an instruction.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Branch {
    /// The target of a direct branch (not of a call), relative to the code's base.
    pub(super) target: Option<u64>,
    /// A jump that may lead to several places of the same function.
    pub(super) table: bool,
}
