//! Decodes x86-64.

use iced_x86::{
    Code, CodeSize, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register, UsedMemory,
};

use super::{RCX, X86};
use crate::insn::{bit, Flow, Insn, MemOp, Opaque, Part, Width, OPERANDS};
use scxprof_base::sample::Access;

/// The longest instruction in bytes.
pub(super) const MAX_LENGTH: usize = 15;
/// The number (0 to 15) of the general register that `register` is part of.
pub(super) fn gpr(register: Register) -> Option<u8> {
    if register.is_gpr() {
        u8::try_from(register.full_register().number()).ok().filter(|&number| number < 16)
    } else {
        None
    }
}

impl Insn<X86> {
    fn new(code: Instruction, factory: &mut InstructionInfoFactory) -> Self {
        let info = factory.info(&code);
        let mut writes = 0;
        for used in info.used_registers() {
            if matches!(
                used.access(),
                OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
            ) {
                writes |= gpr(used.register()).map_or(0, bit);
            }
        }
        let mut operands = [None; OPERANDS];
        let mut wild = code.is_save_restore_instruction() || code.mnemonic() == Mnemonic::Enter;
        let mut slots = operands.iter_mut();
        for used in info.used_memory() {
            let Some(access) = access(used.access()) else { continue };
            match slots.next() {
                Some(slot) => *slot = Some(operand(used, access, &code)),
                None => wild = true,
            }
        }
        Self {
            ip: code.ip(),
            len: code.len() as u8,
            flow: flow(&code),
            target: branch_target(&code),
            operands,
            writes,
            flags: code.rflags_modified(),
            reads_flags: code.rflags_read() != 0,
            landing: code.mnemonic() == Mnemonic::Endbr64,
            wild,
            repeated: is_repeated(&code),
            code,
        }
    }
}

fn is_repeated(code: &Instruction) -> bool {
    code.is_string_instruction() && (code.has_rep_prefix() || code.has_repne_prefix())
}

fn flow(code: &Instruction) -> Flow {
    match code.flow_control() {
        FlowControl::Next => Flow::Next,
        FlowControl::ConditionalBranch => Flow::Conditional,
        FlowControl::UnconditionalBranch if code.op0_kind() == OpKind::NearBranch64 => Flow::Jump,
        FlowControl::Return if code.code() == Code::Retnq => Flow::Return,
        FlowControl::Return if code.code() == Code::Retnq_imm16 => Flow::ReturnAndPop,
        FlowControl::Exception => Flow::Stop,
        FlowControl::UnconditionalBranch | FlowControl::IndirectBranch | FlowControl::Return => Flow::Away,
        FlowControl::Call | FlowControl::IndirectCall => Flow::Call,
        FlowControl::Interrupt | FlowControl::XbeginXabortXend => Flow::Beyond,
    }
}

fn access(access: OpAccess) -> Option<Access> {
    Some(match access {
        OpAccess::None | OpAccess::NoMemAccess => return None,
        OpAccess::Read | OpAccess::CondRead => Access::Load,
        OpAccess::Write | OpAccess::CondWrite => Access::Store,
        // A compare-and-swap that fails writes the old value back (Intel SDM, CMPXCHG).
        OpAccess::ReadWrite | OpAccess::ReadCondWrite => Access::Update,
    })
}

fn operand(used: &UsedMemory, access: Access, code: &Instruction) -> MemOp {
    let index = used.index();
    let repeated = is_repeated(code);
    // The location of one repetition; iced gives none for all repetitions together.
    let size = if repeated { code.memory_size() } else { used.memory_size() };
    let size = u16::try_from(size.size()).unwrap_or(0);
    // A cmov always loads, whatever the condition (Intel SDM, CMOVcc); string operands are touched if rcx is not 0.
    let conditional = matches!(used.access(), OpAccess::CondRead | OpAccess::CondWrite)
        && !repeated
        && code.condition_code() == iced_x86::ConditionCode::None;
    let masked = conditional
        || code.has_op_mask()
        || matches!(
            code.mnemonic(),
            Mnemonic::Vmaskmovps
                | Mnemonic::Vmaskmovpd
                | Mnemonic::Vpmaskmovd
                | Mnemonic::Vpmaskmovq
                | Mnemonic::Maskmovq
                | Mnemonic::Maskmovdqu
                | Mnemonic::Vmaskmovdqu
        );
    let bit_string = matches!(code.mnemonic(), Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc)
        && code.op1_kind() == OpKind::Register;
    // `pop [rsp+n]` computes its address from rsp after the pop.
    let popped = code.mnemonic() == Mnemonic::Pop && code.op0_kind() == OpKind::Memory && used.base() == Register::RSP;
    let known = |register: Register| register == Register::None || register.is_ip() || gpr(register).is_some();
    let opaque = if index.is_xmm() || index.is_ymm() || index.is_zmm() || used.vsib_size() != 0 {
        Some(Opaque::Gather)
    } else if masked {
        Some(Opaque::Masked)
    } else if size == 0
        || bit_string
        || popped
        || code.mnemonic() == Mnemonic::Clzero
        || !known(used.base())
        || !known(index)
        || used.address_size() == CodeSize::Code16
    {
        Some(Opaque::Odd)
    } else {
        None
    };
    let fs = used.segment() == Register::FS && opaque.is_none();
    let opaque = if matches!(used.segment(), Register::FS | Register::GS) { Some(Opaque::Tls) } else { opaque };
    MemOp {
        base: gpr(used.base()),
        index: gpr(index),
        scale: u8::try_from(used.scale()).unwrap_or(1),
        part: if index == Register::AL { Part::Byte } else { Part::Full },
        width: if used.address_size() == CodeSize::Code32 { Width::Bits32 } else { Width::Bits64 },
        relative: code.is_ip_rel_memory_operand()
            && used.base() == Register::None
            && used.index() == Register::None
            && used.displacement() == code.memory_displacement64(),
        disp: used.displacement(),
        size,
        access,
        opaque,
        fs,
        counter: repeated.then_some(RCX),
    }
}

/// Decodes the instruction at `at` of `bytes`; the first byte has the address `base`. `None` if there is no instruction.
pub(super) fn decode(bytes: &[u8], base: u64, at: usize, factory: &mut InstructionInfoFactory) -> Option<Insn<X86>> {
    let code = decode_plain(bytes, base, at)?;
    Some(Insn::new(code, factory))
}

/// Decodes without operands, to find boundaries and branches.
pub(super) fn decode_plain(bytes: &[u8], base: u64, at: usize) -> Option<Instruction> {
    let bytes = bytes.get(at..)?;
    let bytes = bytes.get(..MAX_LENGTH).unwrap_or(bytes);
    let mut decoder = Decoder::with_ip(64, bytes, base.wrapping_add(at as u64), DecoderOptions::NONE);
    let code = decoder.decode();
    (!code.is_invalid()).then_some(code)
}

/// The target of a direct branch (not of a call), relative to the code's base.
pub(super) fn branch_target(code: &Instruction) -> Option<u64> {
    let branches = matches!(
        code.flow_control(),
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch | FlowControl::XbeginXabortXend
    );
    let near = matches!(code.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64);
    (branches && near).then(|| code.near_branch_target())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insn(bytes: &[u8]) -> Insn<X86> {
        decode(bytes, 0x1000, 0, &mut InstructionInfoFactory::new()).unwrap()
    }

    fn only(bytes: &[u8]) -> MemOp {
        let insn = insn(bytes);
        assert_eq!(insn.operands().count(), 1, "{:?}", insn.code);
        *insn.operand(0).unwrap()
    }

    #[test]
    fn accesses_have_their_kind_and_size() {
        let load = only(&[0x48, 0x8b, 0x44, 0xcb, 0x10]); // mov rax,[rbx+rcx*8+16]
        assert_eq!((load.access, load.size, load.opaque), (Access::Load, 8, None));
        assert_eq!(load.address(0, None, |r| Some(u64::from(r) * 0x100)), Some(0x300 + 0x100 * 8 + 16));
        assert_eq!(only(&[0x66, 0x89, 0x03]).access, Access::Store); // mov [rbx],ax
        assert_eq!(only(&[0xf0, 0x83, 0x03, 0x01]).access, Access::Update); // lock add dword [rbx],1
        assert_eq!(only(&[0xf0, 0x0f, 0xb1, 0x13]).access, Access::Update); // lock cmpxchg [rbx],edx
        assert_eq!(only(&[0x83, 0x3b, 0x01]).access, Access::Load); // cmp dword [rbx],1
        assert_eq!(only(&[0x0f, 0x44, 0x03]).opaque, None); // cmove eax,[rbx]
        assert_eq!(only(&[0x62, 0xf1, 0x7c, 0x48, 0x10, 0x03]).size, 64); // vmovups zmm0,[rbx]
    }

    #[test]
    fn what_touches_no_memory_has_no_operand() {
        for bytes in [
            &[0x48, 0x8d, 0x43, 0x08][..],       // lea rax,[rbx+8]
            &[0x0f, 0x1f, 0x44, 0x00, 0x00][..], // nop dword [rax+rax]
            &[0x0f, 0x18, 0x0b][..],             // prefetcht0 [rbx]
        ] {
            assert_eq!(insn(bytes).operands().count(), 0, "{bytes:x?}");
        }
    }

    #[test]
    fn opaque_operands_give_no_address() {
        for (bytes, why) in [
            (&[0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0][..], Opaque::Tls), // mov rax,fs:[0x28]
            (&[0xc4, 0xe2, 0x75, 0x90, 0x04, 0x93][..], Opaque::Gather),       // vpgatherdd ymm0,[rbx+ymm2*4],ymm1
            (&[0x62, 0xf1, 0x7c, 0x49, 0x10, 0x03][..], Opaque::Masked),       // vmovups zmm0{k1},[rbx]
            (&[0xc4, 0xe2, 0x75, 0x2c, 0x03][..], Opaque::Masked),             // vmaskmovps ymm0,ymm1,[rbx]
            (&[0x0f, 0xa3, 0x03][..], Opaque::Odd),                            // bt [rbx],eax
        ] {
            let operand = only(bytes);
            assert_eq!(operand.opaque, Some(why), "{bytes:x?}");
            assert_eq!(operand.address(0, None, |_| Some(0)), None);
        }
    }

    #[test]
    fn thread_local_operands_count_from_the_base_of_fs() {
        let own = only(&[0x64, 0x48, 0x8b, 0x43, 0x28]); // mov rax,fs:[rbx+0x28]
        assert_eq!(own.address(0, Some(0x7000), |_| Some(0x100)), Some(0x7128));
        let other = only(&[0x65, 0x48, 0x8b, 0x43, 0x28]); // mov rax,gs:[rbx+0x28]
        assert_eq!(other.address(0, Some(0x7000), |_| Some(0x100)), None);
        let masked = only(&[0x64, 0x62, 0xf1, 0x7c, 0x49, 0x10, 0x03]); // vmovups zmm0{k1},fs:[rbx]
        assert_eq!(masked.address(0, Some(0x7000), |_| Some(0x100)), None);
    }

    #[test]
    fn a_repeated_string_instruction_touches_one_element_at_a_time() {
        let copy = insn(&[0xf3, 0x48, 0xa5]); // rep movsq
        let operands: Vec<_> = copy.operands().map(|(_, op)| (op.base, op.size, op.access, op.counter)).collect();
        assert_eq!(operands.len(), 2);
        assert!(operands.contains(&(Some(6), 8, Access::Load, Some(RCX))), "{operands:?}");
        assert!(operands.contains(&(Some(7), 8, Access::Store, Some(RCX))), "{operands:?}");
    }

    #[test]
    fn short_and_absolute_addresses_are_computed_as_the_processor_does() {
        let short = only(&[0x67, 0x8b, 0x43, 0x08]); // mov eax,[ebx+8]
        assert_eq!(short.address(0, None, |_| Some(0xffff_ffff_ffff_ffff)), Some(7));
        let global = only(&[0x8b, 0x05, 0x10, 0, 0, 0]); // mov eax,[rip+0x10]
        assert!(global.relative);
        assert_eq!(global.address(0x10_0000, None, |_| None), Some(0x10_1016));
        let xlat = only(&[0xd7]);
        assert_eq!(xlat.address(0, None, |r| Some(if r == 0 { 0x1234 } else { 0x1000 })), Some(0x1034));
    }

    #[test]
    fn written_registers_include_implicit_and_conditional_ones() {
        assert_eq!(insn(&[0x0f, 0x44, 0xc3]).writes, bit(0)); // cmove eax,ebx
        assert_eq!(insn(&[0xf0, 0x0f, 0xb1, 0x13]).writes, bit(0)); // cmpxchg
        assert_eq!(insn(&[0xf3, 0xa4]).writes, bit(1) | bit(6) | bit(7)); // rep movsb
        assert_eq!(insn(&[0x50]).writes, bit(4)); // push rax
        assert_eq!(insn(&[0x88, 0xc4]).writes, bit(0)); // mov ah,al
        assert!(insn(&[0x0f, 0xae, 0x23]).wild); // xsave [rbx]
    }

    #[test]
    fn what_push_pop_call_ret_and_leave_do_to_the_stack_is_an_operand() {
        for code in [&[0x50][..], &[0x58], &[0xe8, 0, 0, 0, 0], &[0xc3], &[0xc9]] {
            assert_eq!(insn(code).operands().count(), 1, "{code:x?}");
        }
    }
}
