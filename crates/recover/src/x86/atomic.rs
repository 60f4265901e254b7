//! xchg, cmpxchg and xadd, with and without a lock.

use iced_x86::{Instruction, OpKind, Register};

use super::operands::{memory_size, operand_size};
use super::X86;
use crate::machine::Machine;

impl Machine<X86> {
    /// xchg.
    pub(super) fn step_xchg(&mut self, code: &Instruction) {
        let (a, b) = (self.read(code, 0), self.read(code, 1));
        let addr = self.explicit_address(code);
        if code.op0_kind() == OpKind::Memory {
            self.store(addr, u64::from(memory_size(code)), b);
        } else {
            self.write(code, 0, b);
        }
        if code.op1_kind() == OpKind::Memory {
            self.store(addr, u64::from(memory_size(code)), a);
        } else {
            self.write(code, 1, a);
        }
    }

    /// Runs cmpxchg; false if it is unknown whether the two are equal.
    pub(super) fn step_cmpxchg(&mut self, code: &Instruction) -> bool {
        let size = operand_size(code, 0);
        let accumulator = match size {
            1 => Register::AL,
            2 => Register::AX,
            4 => Register::EAX,
            _ => Register::RAX,
        };
        let (wanted, old, new) = (self.read_register(accumulator), self.read(code, 0), self.read(code, 1));
        let (Some(a), Some(b)) = (wanted.low(size), old.low(size)) else { return false };
        self.flags.forget(code.rflags_modified());
        self.sum_flags(wanted, old, wanted.sub(old), size, true);
        if a == b {
            self.write(code, 0, new);
        } else {
            self.write(code, 0, old);
            self.write_register(accumulator, old);
        }
        true
    }

    /// Runs xadd.
    pub(super) fn step_xadd(&mut self, code: &Instruction) {
        let size = operand_size(code, 0);
        let (a, b) = (self.read(code, 0), self.read(code, 1));
        let sum = a.add(b);
        self.flags.forget(code.rflags_modified());
        self.sum_flags(a, b, sum, size, false);
        // The destination is written last, and may be the same register or depend on the other one.
        let addr = self.explicit_address(code);
        self.write(code, 1, a);
        if code.op0_kind() == OpKind::Memory {
            self.store(addr, u64::from(memory_size(code)), sum);
        } else {
            self.write(code, 0, sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::InstructionInfoFactory;

    use super::super::decode::decode;
    use super::*;
    use crate::machine::Next;
    use crate::regs::Regs;

    const RSP: u64 = 0x1000;

    fn run(code: &[u8], rax: u64, rcx: u64, slot: u64) -> (Machine<X86>, u64) {
        let mut gpr = [0; 16];
        (gpr[0], gpr[1], gpr[4]) = (rax, rcx, RSP);
        let mut machine = Machine::<X86>::new(&Regs::x86_64(gpr, 0, 0), &slot.to_le_bytes());
        let insn = decode(code, 0, 0, &mut InstructionInfoFactory::new()).unwrap();
        assert_eq!(machine.step(&insn), Next::Fall);
        let slot = machine.stack.read(RSP, 8).get().unwrap();
        (machine, slot)
    }

    fn zero(machine: &Machine<X86>) -> Option<bool> {
        machine.flags.get(iced_x86::RflagsBits::ZF)
    }

    #[test]
    fn a_compare_and_swap_changes_one_side() {
        // lock cmpxchg [rsp],rcx
        let code = [0xf0, 0x48, 0x0f, 0xb1, 0x0c, 0x24];
        let (machine, slot) = run(&code, 5, 7, 5);
        assert_eq!((machine.reg(0).get(), slot, zero(&machine)), (Some(5), 7, Some(true)));
        let (machine, slot) = run(&code, 5, 7, 6);
        assert_eq!((machine.reg(0).get(), slot, zero(&machine)), (Some(6), 6, Some(false)));
        // lock cmpxchg [rsp],ecx: the bytes above stay in memory, and in rax if the two are equal.
        let code = [0xf0, 0x0f, 0xb1, 0x0c, 0x24];
        let (machine, slot) = run(&code, 1 << 40 | 5, 7, 1 << 50 | 5);
        assert_eq!((machine.reg(0).get(), slot), (Some(1 << 40 | 5), 1 << 50 | 7));
        let (machine, slot) = run(&code, 1 << 40 | 5, 7, 1 << 50 | 6);
        assert_eq!((machine.reg(0).get(), slot), (Some(6), 1 << 50 | 6));
        // lock cmpxchg [rsp],cl
        let (machine, slot) = run(&[0xf0, 0x0f, 0xb0, 0x0c, 0x24], 0x1105, 7, 0x2206);
        assert_eq!((machine.reg(0).get(), slot), (Some(0x1106), 0x2206));
    }

    #[test]
    fn an_exchange_and_add_gives_the_old_value() {
        // lock xadd [rsp],ecx
        let (machine, slot) = run(&[0xf0, 0x0f, 0xc1, 0x0c, 0x24], 0, 1 << 40 | 7, 1 << 50 | 5);
        assert_eq!((machine.reg(1).get(), slot, zero(&machine)), (Some(5), (1 << 50) + 12, Some(false)));
        // xadd rax,rcx; xadd rcx,rcx
        let (machine, _) = run(&[0x48, 0x0f, 0xc1, 0xc8], 2, 3, 0);
        assert_eq!((machine.reg(0).get(), machine.reg(1).get()), (Some(5), Some(2)));
        let (machine, _) = run(&[0x48, 0x0f, 0xc1, 0xc9], 2, 3, 0);
        assert_eq!(machine.reg(1).get(), Some(6));
    }

    #[test]
    fn what_cannot_be_compared_is_forgotten() {
        // lock cmpxchg [rbx],rcx with rbx 0
        let (machine, _) = run(&[0xf0, 0x48, 0x0f, 0xb1, 0x0b], 5, 7, 5);
        assert_eq!((machine.reg(0).get(), zero(&machine)), (None, None));
    }
}
