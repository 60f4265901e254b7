//! A decoded instruction, with what recovery needs: memory operands, written registers, control flow.

use super::isa::Isa;
use scxprof_base::sample::Access;

/// The most memory operands that are stored for an instruction; instructions with more are not modelled.
pub(super) const OPERANDS: usize = 2;

/// Why an operand's address cannot be computed from general registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opaque {
    /// Relative to a base that is not among the registers: fs or gs on x86-64.
    Tls,
    /// A vector of indices.
    Gather,
    /// Under a mask in a vector or mask register: the sample does not say which bytes are touched.
    Masked,
    /// Not a single location of known size.
    Odd,
}

/// The part of the index register that is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// All of it.
    Full,
    /// The lowest byte (`xlat`).
    Byte,
    /// The lower half, zero-extended.
    Word,
    /// The lower half, sign-extended.
    SignedWord,
}

/// A memory operand. An address relative to the instruction is stored relative to the code's own base.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemOp {
    pub(super) base: Option<u8>,
    pub(super) index: Option<u8>,
    pub(super) part: Part,
    pub(super) scale: u8,
    pub(super) width: Width,
    /// Relative to the instruction.
    pub(super) relative: bool,
    pub(super) disp: u64,
    /// Size in bytes; 0 if it is not a single location.
    pub(super) size: u16,
    pub(super) access: Access,
    pub(super) opaque: Option<Opaque>,
    /// Relative to the base of fs; the address can be computed if that base is known. Such an operand is opaque anyway.
    pub(super) fs: bool,
    /// Accessed once per repetition; not at all if this register is 0.
    pub(super) counter: Option<u8>,
}

/// The bits of an address that the processor uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    /// The lower half.
    Bits32,
    /// All.
    Bits64,
    /// All but the top byte, for addresses of user code (bit 55 is 0).
    Tagged,
}

impl Width {
    fn apply(self, addr: u64) -> u64 {
        match self {
            Self::Bits32 => addr & 0xffff_ffff,
            Self::Tagged if addr >> 55 & 1 == 0 => addr & ((1 << 56) - 1),
            Self::Bits64 | Self::Tagged => addr,
        }
    }
}

impl MemOp {
    /// True if the instruction writes it.
    pub(super) fn is_store(&self) -> bool {
        matches!(self.access, Access::Store | Access::Update)
    }

    /// The registers that the address depends on, one bit each.
    pub(super) fn registers(&self) -> u32 {
        self.base.map_or(0, bit) | self.index.map_or(0, bit)
    }

    /// The registers that the access depends on.
    pub(super) fn needs(&self) -> u32 {
        self.registers() | self.counter.map_or(0, bit)
    }

    /// The number of low bytes of a register that the address depends on.
    pub(super) fn needed(&self) -> u32 {
        if self.width == Width::Bits32 {
            4
        } else {
            8
        }
    }

    /// An upper bound of the addresses of user code: on x86-64 57-bit linear addresses, the upper half of which belongs
    /// to the kernel; on arm64 52-bit addresses (Documentation/arch/arm64/memory.rst).
    pub(super) fn highest(&self) -> u64 {
        match self.width {
            Width::Tagged => 1 << 52,
            Width::Bits32 | Width::Bits64 => 1 << 56,
        }
    }

    /// The address, if known. `register` returns register values, `bias` is the base of the code, `fs` the base of fs
    /// if known.
    pub(super) fn address(&self, bias: u64, fs: Option<u64>, register: impl Fn(u8) -> Option<u64>) -> Option<u64> {
        let segment = match self.opaque {
            None => 0,
            Some(Opaque::Tls) if self.fs => fs?,
            Some(_) => return None,
        };
        let mut addr = if self.relative { self.disp.wrapping_add(bias) } else { self.disp };
        if let Some(base) = self.base {
            addr = addr.wrapping_add(register(base)?);
        }
        if let Some(index) = self.index {
            let value = register(index)?;
            let value = match self.part {
                Part::Full => value,
                Part::Byte => value & 0xff,
                Part::Word => value & 0xffff_ffff,
                Part::SignedWord => i64::from(value as i32) as u64,
            };
            addr = addr.wrapping_add(value.wrapping_mul(u64::from(self.scale)));
        }
        Some(self.width.apply(addr).wrapping_add(segment))
    }
}

/// What an instruction does to the flow of control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    /// Continues with the next instruction.
    Next,
    /// Continues with the next instruction or at the branch target.
    Conditional,
    /// Continues at the branch target.
    Jump,
    /// Returns from the function.
    Return,
    /// Returns from the function and removes its arguments from the stack.
    ReturnAndPop,
    /// Faults: nothing runs after it.
    Stop,
    /// Continues at an unknown place.
    Away,
    /// Calls a function, and continues with the next instruction.
    Call,
    /// Other code runs before the next instruction: system calls, interrupts, transactions.
    Beyond,
}

/// A decoded instruction. Its address and its targets are relative to the code's base, so it is the same in every
/// process.
#[derive(Debug, Clone)]
pub(super) struct Insn<I: Isa> {
    pub(super) code: I::Code,
    pub(super) ip: u64,
    /// Length in bytes.
    pub(super) len: u8,
    pub(super) flow: Flow,
    /// The target of a direct branch (not of a call).
    pub(super) target: Option<u64>,
    pub(super) operands: [Option<MemOp>; OPERANDS],
    /// General registers that it writes in any part or case, one bit each.
    pub(super) writes: u32,
    /// Flags that it writes, in the numbering of [`Flags`](super::flags::Flags).
    pub(super) flags: u32,
    /// Its effect depends on flags.
    pub(super) reads_flags: bool,
    /// Indirect jumps may lead here.
    pub(super) landing: bool,
    /// It writes memory outside its operands.
    pub(super) wild: bool,
    /// It runs more than once.
    pub(super) repeated: bool,
}

/// The bit of a register.
pub(super) fn bit(register: u8) -> u32 {
    1 << (register & 31)
}

impl<I: Isa> Insn<I> {
    /// The address of the next instruction.
    pub(super) fn next_ip(&self) -> u64 {
        self.ip.wrapping_add(u64::from(self.len))
    }

    /// Its memory operands, explicit and implicit.
    pub(super) fn operands(&self) -> impl Iterator<Item = (usize, &MemOp)> {
        self.operands.iter().enumerate().filter_map(|(slot, operand)| operand.as_ref().map(|operand| (slot, operand)))
    }

    /// The memory operand in one slot.
    #[cfg(test)]
    pub(super) fn operand(&self, slot: usize) -> Option<&MemOp> {
        self.operands.get(slot).and_then(Option::as_ref)
    }
}
