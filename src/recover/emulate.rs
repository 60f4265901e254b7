//! Runs one instruction forward on what is known of registers, flags and stack.
//!
//! What is not modelled makes unknown whatever it writes, so a value that stays known is right.

use iced_x86::{Code, ConditionCode, Instruction, Mnemonic, OpKind, Register, RflagsBits};

use super::arith::is_arith;
use super::decode::{bit, gpr, Flow, Insn, MemOp};
use super::flags::Flags;
use super::image::Image;
use super::regs::UserRegs;
use super::value::{mask, Val};

pub(super) const RSP: u8 = 4;
pub(super) const RBP: u8 = 5;
pub(super) const RCX: u8 = 1;
pub(super) const RSI: u8 = 6;
pub(super) const RDI: u8 = 7;

/// Where control goes after an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// To the next instruction.
    Fall,
    /// To this address.
    Jump(u64),
    /// Nobody can tell.
    Unknown,
}

/// Registers, flags and stack at one moment, as far as they are known.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    pub(super) regs: [Val; 16],
    pub(super) flags: Flags,
    pub(super) stack: Image,
    /// Where the code's own address 0 lies.
    pub(super) bias: u64,
    /// The base of fs, where the thread's own memory lies.
    pub(super) fs: Option<u64>,
    /// Address and value of the memory that the next instruction loads, where it is known beside the stack.
    pub(super) loaded: Option<(u64, u64)>,
    /// A store to an address that is not known is taken to miss the stack image. For a first look only.
    pub(super) hopeful: bool,
}

/// The addresses of an instruction's memory operands, where they are known.
pub(super) type Addresses = [Option<u64>; 2];

impl Machine {
    pub(super) fn new(regs: &UserRegs, dump: &[u8]) -> Self {
        Self {
            regs: regs.gpr.map(Val::full),
            flags: Flags::from_rflags(regs.rflags),
            stack: Image::new(regs.rsp(), dump),
            bias: 0,
            fs: None,
            loaded: None,
            hopeful: false,
        }
    }

    pub(super) fn reg(&self, register: u8) -> Val {
        self.regs.get(usize::from(register)).copied().unwrap_or_default()
    }

    pub(super) fn set_reg(&mut self, register: u8, val: Val) {
        if let Some(to) = self.regs.get_mut(usize::from(register)) {
            *to = val;
        }
    }

    pub(super) fn address(&self, operand: &MemOp) -> Option<u64> {
        let needed = if operand.addr32 { 4 } else { 8 };
        operand.address(self.bias, self.fs, |register| self.reg(register).low(needed))
    }

    /// The addresses of all memory operands before the instruction runs.
    pub(super) fn addresses(&self, insn: &Insn) -> Addresses {
        let mut addresses = [None; 2];
        for (slot, operand) in insn.operands() {
            // A repeated string instruction touches nothing where rcx is 0.
            let counter = self.reg(RCX).low(if operand.addr32 { 4 } else { 8 });
            if operand.repeated && counter.is_none_or(|count| count == 0) {
                continue;
            }
            if let Some(to) = addresses.get_mut(slot) {
                *to = self.address(operand);
            }
        }
        addresses
    }

    /// The value of an operand, zeros above its size.
    pub(super) fn read(&self, code: &Instruction, operand: u32) -> Val {
        match code.op_kind(operand) {
            OpKind::Register => self.read_register(code.op_register(operand)),
            OpKind::Memory => {
                let size = memory_size(code);
                match self.explicit_address(code) {
                    _ if size == 0 => Val::UNKNOWN,
                    Some(addr) => self.load(addr, size),
                    None => Val::UNKNOWN.zext(size),
                }
            }
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => {
                Val::full(code.near_branch_target().wrapping_add(self.bias))
            }
            _ => code.try_immediate(operand).map_or(Val::UNKNOWN, Val::full),
        }
    }

    /// The value of memory.
    fn load(&self, addr: u64, size: u32) -> Val {
        let val = self.stack.read(addr, size);
        match self.loaded {
            Some((at, bits)) if at == addr && val.low(size.min(8)).is_none() => Val::full(bits).zext(size),
            _ => val,
        }
    }

    pub(super) fn read_register(&self, register: Register) -> Val {
        let size = register.size() as u32;
        match gpr(register) {
            Some(number) => self.reg(number).shr(shift(register)).zext(size),
            None => Val::UNKNOWN,
        }
    }

    /// The address of the explicit memory operand of a modelled instruction.
    pub(super) fn explicit_address(&self, code: &Instruction) -> Option<u64> {
        let segment = match code.memory_segment() {
            Register::FS => self.fs?,
            Register::GS => return None,
            _ => 0,
        };
        let short = matches!(code.memory_base(), Register::EIP)
            || code.memory_base().size() == 4
            || code.memory_index().size() == 4;
        let full = |register: Register| match register {
            Register::None => Some(0),
            register => gpr(register).and_then(|number| self.reg(number).low(if short { 4 } else { 8 })),
        };
        if code.is_ip_rel_memory_operand() {
            return (!short).then(|| code.memory_displacement64().wrapping_add(self.bias).wrapping_add(segment));
        }
        let addr = code
            .memory_displacement64()
            .wrapping_add(full(code.memory_base())?)
            .wrapping_add(full(code.memory_index())?.wrapping_mul(u64::from(code.memory_index_scale())));
        Some((if short { addr & 0xffff_ffff } else { addr }).wrapping_add(segment))
    }

    /// Gives operand 0 a value of its size, as the processor does: 32 bits clear what is above, 8 and 16 keep it.
    pub(super) fn write(&mut self, code: &Instruction, operand: u32, val: Val) {
        match code.op_kind(operand) {
            OpKind::Register => self.write_register(code.op_register(operand), val),
            OpKind::Memory => {
                let addr = self.explicit_address(code);
                self.store(addr, u64::from(memory_size(code)), val);
            }
            _ => {}
        }
    }

    pub(super) fn write_register(&mut self, register: Register, val: Val) {
        let Some(number) = gpr(register) else { return };
        let size = register.size() as u32;
        let val = match size {
            8 => val,
            4 => val.zext(4),
            _ => self.reg(number).insert(val, size, shift(register)),
        };
        self.set_reg(number, val);
    }

    /// A store of `len` bytes of which `val` are the low eight.
    pub(super) fn store(&mut self, addr: Option<u64>, len: u64, val: Val) {
        match addr {
            Some(addr) if len <= 8 => self.stack.write(addr, len as u32, val),
            Some(addr) => self.stack.forget(addr, len),
            None if self.hopeful => {}
            None => self.stack.clear(),
        }
    }

    /// Makes unknown all that an instruction writes.
    pub(super) fn havoc(&mut self, insn: &Insn, addresses: Addresses) {
        for register in 0..16 {
            if insn.writes & bit(register) != 0 {
                self.set_reg(register, Val::UNKNOWN);
            }
        }
        self.flags.forget(insn.code.rflags_modified());
        if insn.wild || insn.is_repeated() {
            self.stack.clear();
        }
        for (slot, operand) in insn.operands() {
            if operand.is_store() {
                let addr = addresses.get(slot).copied().flatten().filter(|_| operand.size != 0);
                self.store(addr, u64::from(operand.size), Val::UNKNOWN);
            }
        }
    }

    /// Runs one instruction and says where control goes.
    pub(super) fn step(&mut self, insn: &Insn) -> Next {
        let addresses = self.addresses(insn);
        if insn.flow == Flow::Next {
            if !self.step_plain(insn) {
                self.havoc(insn, addresses);
            }
            return Next::Fall;
        }
        self.step_branch(insn, addresses)
    }

    fn step_branch(&mut self, insn: &Insn, addresses: Addresses) -> Next {
        let code = &insn.code;
        let jump = |target: Val| target.get().map_or(Next::Unknown, Next::Jump);
        let fall = code.next_ip().wrapping_add(self.bias);
        match code.mnemonic() {
            Mnemonic::Jmp if is_near(code) => jump(self.read(code, 0)),
            Mnemonic::Call if is_near(code) => {
                let target = self.read(code, 0);
                self.push(Val::full(fall), 8);
                jump(target)
            }
            Mnemonic::Ret if matches!(code.code(), Code::Retnq | Code::Retnq_imm16) => {
                let target = self.reg(RSP).get().map_or(Val::UNKNOWN, |rsp| self.stack.read(rsp, 8));
                self.add_to(RSP, i64::from(code.stack_pointer_increment()));
                jump(target)
            }
            // loop decides on rcx too.
            _ if insn.flow == Flow::Conditional && insn.writes == 0 => match self.flags.holds(code.condition_code()) {
                Some(true) => Next::Jump(code.near_branch_target().wrapping_add(self.bias)),
                Some(false) => Next::Fall,
                None => {
                    self.havoc(insn, addresses);
                    Next::Unknown
                }
            },
            _ => {
                self.havoc(insn, addresses);
                Next::Unknown
            }
        }
    }

    pub(super) fn add_to(&mut self, register: u8, delta: i64) {
        self.set_reg(register, self.reg(register).add(Val::full(delta as u64)));
    }

    fn push(&mut self, val: Val, size: u32) {
        self.add_to(RSP, -i64::from(size));
        let addr = self.reg(RSP).get();
        self.store(addr, u64::from(size), val);
    }

    /// The instructions that go on with the next one; false where this one is not modelled.
    fn step_plain(&mut self, insn: &Insn) -> bool {
        let code = &insn.code;
        let modified = code.rflags_modified();
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
            Mnemonic::Inc | Mnemonic::Dec | Mnemonic::Neg => {
                let (size, old) = (operand_size(code, 0), self.read(code, 0));
                let carry = self.flags.get(RflagsBits::CF);
                let (a, b) = if code.mnemonic() == Mnemonic::Neg { (Val::full(0), old) } else { (old, Val::full(1)) };
                let val = if code.mnemonic() == Mnemonic::Inc { a.add(b) } else { a.sub(b) };
                self.flags.forget(modified);
                self.sum_flags(a, b, val, size, code.mnemonic() != Mnemonic::Inc);
                if code.mnemonic() != Mnemonic::Neg {
                    // inc and dec keep CF.
                    self.flags.forget(RflagsBits::CF);
                    if let Some(carry) = carry {
                        self.flags.set(RflagsBits::CF, carry);
                    }
                }
                self.write(code, 0, val);
            }
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
                self.flags.forget(modified);
                self.write(code, 0, val);
            }
            Mnemonic::Cwde => self.write_register(Register::EAX, self.read_register(Register::AX).sext(2)),
            Mnemonic::Cdqe => self.write_register(Register::RAX, self.read_register(Register::EAX).sext(4)),
            Mnemonic::Cdq => {
                let sign = self.read_register(Register::EAX).sext(4).shr(32);
                self.write_register(Register::EDX, sign);
            }
            Mnemonic::Cqo => {
                // The top bit alone says what all of rdx becomes.
                let top = self.reg(0).shr(63);
                let sign = top
                    .low(1)
                    .filter(|_| top.get().is_some())
                    .map_or(Val::UNKNOWN, |bit| Val::full(if bit == 0 { 0 } else { u64::MAX }));
                self.set_reg(2, sign);
            }
            Mnemonic::Xchg => {
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
            _ if is_cmov(code) => match self.flags.holds(code.condition_code()) {
                Some(true) => self.write(code, 0, self.read(code, 1)),
                // 32 bits clear what is above even where nothing is moved.
                Some(false) => self.write(code, 0, self.read(code, 0)),
                None => return false,
            },
            _ if code.op_count() == 1 && code.condition_code() != ConditionCode::None => {
                let val = self.flags.holds(code.condition_code()).map_or(Val::UNKNOWN, |on| Val::full(u64::from(on)));
                self.write(code, 0, val);
            }
            _ if code.is_string_instruction() => return self.step_string(insn),
            _ if is_arith(code) => return self.step_arith(code),
            _ => return false,
        }
        true
    }

    /// The address that lea computes.
    pub(super) fn effective(&self, code: &Instruction) -> Val {
        if code.memory_base() == Register::EIP {
            return Val::UNKNOWN;
        }
        if code.is_ip_rel_memory_operand() {
            return Val::full(code.memory_displacement64().wrapping_add(self.bias));
        }
        let part = |register: Register| match gpr(register) {
            Some(number) => self.reg(number),
            None if register == Register::None => Val::full(0),
            None => Val::UNKNOWN,
        };
        let scaled = part(code.memory_index()).shl(code.memory_index_scale().trailing_zeros() & 3);
        let sum = part(code.memory_base()).add(scaled).add(Val::full(code.memory_displacement64()));
        let short = code.memory_base().size() == 4 || code.memory_index().size() == 4;
        if short {
            sum.zext(4)
        } else {
            sum
        }
    }

    fn arithmetic(&mut self, code: &Instruction) {
        let size = operand_size(code, 0);
        let (a, b) = (self.read(code, 0), self.read(code, 1).zext(size));
        let same = code.op0_kind() == OpKind::Register
            && code.op1_kind() == OpKind::Register
            && code.op0_register() == code.op1_register();
        let mnemonic = code.mnemonic();
        self.flags.forget(code.rflags_modified());
        let val = match mnemonic {
            // A register less itself is 0, known or not.
            Mnemonic::Sub | Mnemonic::Xor | Mnemonic::Cmp if same => Val::full(0),
            Mnemonic::Add => a.add(b),
            Mnemonic::Sub | Mnemonic::Cmp => a.sub(b),
            Mnemonic::And | Mnemonic::Test => a.and(b),
            Mnemonic::Or => a.or(b),
            _ => a.xor(b),
        };
        match mnemonic {
            Mnemonic::Add => self.sum_flags(a, b, val, size, false),
            Mnemonic::Sub | Mnemonic::Cmp if same => self.sum_flags(val, val, val, size, true),
            Mnemonic::Sub | Mnemonic::Cmp => self.sum_flags(a, b, val, size, true),
            _ => {
                self.flags.set(RflagsBits::CF, false);
                self.flags.set(RflagsBits::OF, false);
                self.result_flags(val, size);
            }
        }
        if !matches!(mnemonic, Mnemonic::Cmp | Mnemonic::Test) {
            self.write(code, 0, val);
        }
    }

    /// ZF, SF and PF of a result, where it is known.
    fn result_flags(&mut self, val: Val, size: u32) {
        if let Some(low) = val.low(size) {
            self.flags.set(RflagsBits::ZF, low == 0);
            self.flags.set(RflagsBits::SF, low & sign(size) != 0);
            self.flags.set(RflagsBits::PF, low.to_le_bytes().first().is_some_and(|byte| byte.count_ones() % 2 == 0));
        }
    }

    /// All flags but AF of `a + b` or `a - b`, where both are known.
    pub(super) fn sum_flags(&mut self, a: Val, b: Val, result: Val, size: u32, minus: bool) {
        let (Some(a), Some(b), Some(low)) = (a.low(size), b.low(size), result.low(size)) else { return };
        let carry = if minus { a < b } else { low < a };
        let same_signs = (a ^ b) & sign(size) == 0;
        let turned = (a ^ low) & sign(size) != 0;
        self.flags.set(RflagsBits::CF, carry);
        self.flags.set(RflagsBits::OF, turned && (same_signs != minus));
        self.result_flags(result, size);
    }

    fn shift(&mut self, code: &Instruction) -> bool {
        let size = operand_size(code, 0);
        let Some(count) = self.read(code, 1).low(1) else { return false };
        let count = (count & if size == 8 { 63 } else { 31 }) as u32;
        let old = self.read(code, 0);
        if count == 0 {
            self.write(code, 0, old);
            return true;
        }
        let val = match code.mnemonic() {
            Mnemonic::Shr => old.shr(count),
            Mnemonic::Sar => match old.sext(size).get() {
                Some(wide) => Val::full(((wide as i64) >> count) as u64),
                None => Val::UNKNOWN,
            },
            _ => old.shl(count),
        };
        self.flags.forget(code.rflags_modified());
        self.result_flags(val, size);
        self.write(code, 0, val);
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

pub(super) fn is_cmov(code: &Instruction) -> bool {
    code.condition_code() != ConditionCode::None
        && code.op_count() == 2
        && code.op0_kind() == OpKind::Register
        && gpr(code.op0_register()).is_some()
}

/// Bit that a byte register starts at: 8 for ah, ch, dh, bh.
pub(super) fn shift(register: Register) -> u32 {
    if matches!(register, Register::AH | Register::CH | Register::DH | Register::BH) {
        8
    } else {
        0
    }
}

pub(super) fn memory_size(code: &Instruction) -> u32 {
    code.memory_size().size() as u32
}

/// Bytes of a register or memory operand; of other kinds the size of operand 0.
pub(super) fn operand_size(code: &Instruction, operand: u32) -> u32 {
    match code.op_kind(operand) {
        OpKind::Register => code.op_register(operand).size() as u32,
        OpKind::Memory => memory_size(code),
        _ if operand != 0 => operand_size(code, 0),
        _ => 8,
    }
}

fn sign(size: u32) -> u64 {
    let mask = mask(size);
    mask ^ (mask >> 1)
}
