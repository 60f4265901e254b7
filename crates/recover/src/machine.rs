//! The known part of registers, flags and stack at one moment.

use super::flags::Flags;
use super::image::Image;
use super::insn::{bit, Insn, MemOp};
use super::isa::Isa;
use super::value::Val;

/// Where control continues after an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// To the next instruction.
    Fall,
    /// To this address.
    Jump(u64),
    /// Unknown.
    Unknown,
}

/// How an instruction was undone.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Undone {
    /// It stored to an unknown address.
    pub(super) blind: bool,
    /// The known values contradict each other: this instruction did not run just before.
    pub(super) conflict: bool,
}

/// Registers, flags and stack at one moment; each value may be partly unknown.
#[derive(Debug, Clone)]
pub(super) struct Machine<I: Isa> {
    pub(super) regs: I::Registers,
    pub(super) flags: Flags,
    pub(super) stack: Image,
    /// The load bias of the code.
    pub(super) bias: u64,
    /// The base of fs: the thread-local storage.
    pub(super) fs: Option<u64>,
    /// Address and value of the memory that the next instruction loads, if known from elsewhere than the stack.
    pub(super) loaded: Option<(u64, u64)>,
    /// A store to an unknown address is assumed not to hit the stack image; used in a first pass only.
    pub(super) hopeful: bool,
}

/// The addresses of an instruction's memory operands, if known.
pub(super) type Addresses = [Option<u64>; super::insn::OPERANDS];

impl<I: Isa> Machine<I> {
    pub(super) fn reg(&self, register: u8) -> Val {
        self.regs.as_ref().get(usize::from(register)).copied().unwrap_or_default()
    }

    pub(super) fn set_reg(&mut self, register: u8, val: Val) {
        if let Some(to) = self.regs.as_mut().get_mut(usize::from(register)) {
            *to = val;
        }
    }

    pub(super) fn add_to(&mut self, register: u8, delta: i64) {
        self.set_reg(register, self.reg(register).add(Val::full(delta as u64)));
    }

    /// Adds to the known bits of a register; false for a contradiction.
    pub(super) fn learn(&mut self, register: u8, val: Val) -> bool {
        match self.reg(register).merge(val) {
            Some(both) => {
                self.set_reg(register, both);
                true
            }
            None => false,
        }
    }

    /// Marks registers as unknown, one bit each.
    pub(super) fn forget(&mut self, registers: u32) {
        for (number, register) in (0..).zip(self.regs.as_mut()) {
            if registers & bit(number) != 0 {
                *register = Val::UNKNOWN;
            }
        }
    }

    pub(super) fn address(&self, operand: &MemOp) -> Option<u64> {
        let needed = operand.needed();
        operand.address(self.bias, self.fs, |register| self.reg(register).low(needed))
    }

    /// The addresses of all memory operands before the instruction runs.
    pub(super) fn addresses(&self, insn: &Insn<I>) -> Addresses {
        let mut addresses = Addresses::default();
        for (slot, operand) in insn.operands() {
            if let Some(counter) = operand.counter {
                if self.reg(counter).low(operand.needed()).is_none_or(|count| count == 0) {
                    continue;
                }
            }
            if let Some(to) = addresses.get_mut(slot) {
                *to = self.address(operand);
            }
        }
        addresses
    }

    /// The value in memory.
    pub(super) fn load(&self, addr: u64, size: u32) -> Val {
        let val = self.stack.read(addr, size);
        match self.loaded {
            Some((at, bits)) if at == addr && val.low(size.min(8)).is_none() => Val::full(bits).zext(size),
            _ => val,
        }
    }

    /// Stores `len` bytes; `val` is the lowest eight of them.
    pub(super) fn store(&mut self, addr: Option<u64>, len: u64, val: Val) {
        match addr {
            Some(addr) if len <= 8 => self.stack.write(addr, len as u32, val),
            Some(addr) => self.stack.forget(addr, len),
            None if self.hopeful => {}
            None => self.stack.clear(),
        }
    }

    /// Marks as unknown what the stores with known addresses write; `unstep` has already handled the other stores.
    pub(super) fn forget_known_stores(&mut self, insn: &Insn<I>, addresses: Addresses) {
        for (slot, operand) in insn.operands() {
            if let (true, Some(&Some(addr))) = (operand.is_store(), addresses.get(slot)) {
                self.store(Some(addr), u64::from(operand.size), Val::UNKNOWN);
            }
        }
    }

    /// Marks as unknown everything that the stores of an instruction write.
    fn forget_stores(&mut self, insn: &Insn<I>, addresses: Addresses) {
        for (slot, operand) in insn.operands() {
            if operand.is_store() {
                let addr = addresses.get(slot).copied().flatten().filter(|_| operand.size != 0);
                self.store(addr, u64::from(operand.size), Val::UNKNOWN);
            }
        }
    }

    /// Marks as unknown everything that an instruction writes.
    pub(super) fn havoc(&mut self, insn: &Insn<I>, addresses: Addresses) {
        self.forget(insn.writes);
        self.flags.forget(insn.flags);
        if insn.wild || insn.repeated {
            self.stack.clear();
        }
        self.forget_stores(insn, addresses);
    }

    /// Keeps only the values on which `other` agrees: they hold on both paths.
    pub(super) fn keep(&mut self, other: &Self) {
        for (own, other) in self.regs.as_mut().iter_mut().zip(other.regs.as_ref()) {
            *own = own.common(*other);
        }
        self.flags = self.flags.common(other.flags);
        self.stack.keep(&other.stack);
    }

    /// Adds what `regs` and `flags` know; false if they contradict each other.
    pub(super) fn agree(&mut self, regs: &I::Registers, flags: Flags) -> bool {
        for (own, other) in self.regs.as_mut().iter_mut().zip(regs.as_ref()) {
            match own.merge(*other) {
                Some(both) => *own = both,
                None => return false,
            }
        }
        match self.flags.merge(flags) {
            Some(both) => {
                self.flags = both;
                true
            }
            None => false,
        }
    }
}
