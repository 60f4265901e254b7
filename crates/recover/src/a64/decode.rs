//! Decodes A64.

use yaxpeax_arch::{Decoder, U8Reader};
use yaxpeax_arm::armv8::a64::{InstDecoder, Instruction, Opcode, Operand, ShiftStyle, SizeCode};

use super::opcodes::{access, atomic, is_store, size};
use super::operands::gpr;
use super::words::{target, word};
use super::{flags, A64, LENGTH, LR, SP};
use crate::insn::{bit, Flow, Insn, MemOp, Opaque, Part, Width, OPERANDS};
use scxprof_base::sample::Access;

/// x16, x17 and the link register: instructions without operands sign or authenticate these.
const SIGNED: u32 = 1 << 16 | 1 << 17 | 1 << LR;
/// All registers that a system call may change (an over-approximation).
const ALL: u32 = u32::MAX >> 1;

/// True for an instruction of the scalable vector extension, which the decoder does not know (op0 is 0010).
pub(super) fn is_sve(word: u32) -> bool {
    word >> 25 & 15 == 2
}

/// Decodes a word; `None` if it is not an instruction, or newer than the decoder.
pub(super) fn decode_plain(word: u32) -> Option<Instruction> {
    if is_sve(word) {
        return None;
    }
    let mut code = Instruction::default();
    InstDecoder::default().decode_into(&mut code, &mut U8Reader::new(&word.to_le_bytes())).ok()?;
    // Reject words that it decodes although they are not allocated: some are marked in the operation only, and an index
    // can extend only a word or a doubleword.
    let is_small = |operand: &Operand| {
        let Operand::RegRegOffset(_, _, _, style, _) = operand else { return false };
        matches!(style, ShiftStyle::UXTB | ShiftStyle::UXTH | ShiftStyle::SXTB | ShiftStyle::SXTH)
    };
    (code.opcode != Opcode::Invalid && !code.operands.iter().any(is_small)).then_some(code)
}

/// Decodes the instruction at `at` of `bytes`; the first byte has the address `base`.
pub(super) fn decode(bytes: &[u8], base: u64, at: usize) -> Option<Insn<A64>> {
    let ip = base.wrapping_add(at as u64);
    let word = word(bytes, at).filter(|_| ip.is_multiple_of(LENGTH as u64))?;
    if is_sve(word) {
        return Some(sve(word, ip));
    }
    let code = decode_plain(word)?;
    let flow = flow(&code);
    let mut operands = [None; OPERANDS];
    if let Some(slot) = operands.first_mut() {
        *slot = memory(&code, ip);
    }
    Some(Insn {
        code,
        ip,
        len: LENGTH as u8,
        flow,
        target: target(word, ip),
        operands,
        writes: writes(&code),
        flags: if writes_flags(&code) { flags::NZCV } else { 0 },
        reads_flags: reads_flags(&code),
        landing: is_landing(&code),
        wild: is_wild(&code),
        repeated: false,
    })
}

/// An instruction of the scalable vector extension. Samples contain neither vectors, predicates nor the vector length,
/// so only the registers that it may write are known.
fn sve(word: u32, ip: u64) -> Insn<A64> {
    let memory = word >> 31 == 1;
    let operand = |opaque, access| MemOp { opaque: Some(opaque), ..location(0, access) };
    let operands = [
        // Bits 31:29: 100 32-bit gathers and loads of a whole register, 101 contiguous loads, 110 64-bit gathers, 111 stores.
        memory.then(|| match word >> 29 {
            0b111 => operand(Opaque::Masked, Access::Store),
            0b101 => operand(Opaque::Masked, Access::Load),
            _ => operand(Opaque::Gather, Access::Load),
        }),
        None,
    ];
    Insn {
        code: Instruction::default(),
        ip,
        len: LENGTH as u8,
        flow: Flow::Next,
        target: None,
        operands,
        // Counts, lengths and extracted elements go to the general register that bits 4:0 name.
        writes: if memory { 0 } else { bit(word as u8 & 31) },
        flags: flags::NZCV,
        reads_flags: false,
        landing: false,
        wild: false,
        repeated: false,
    }
}

fn flow(code: &Instruction) -> Flow {
    match code.opcode {
        Opcode::B => Flow::Jump,
        Opcode::Bcc(_) | Opcode::BCcc(_) | Opcode::CBZ | Opcode::CBNZ | Opcode::TBZ | Opcode::TBNZ => Flow::Conditional,
        Opcode::BL | Opcode::BLR | Opcode::BLRAA | Opcode::BLRAAZ | Opcode::BLRAB | Opcode::BLRABZ => Flow::Call,
        Opcode::RET if gpr(code.operands[0]) == Some(LR) => Flow::Return,
        Opcode::RETAA | Opcode::RETAB => Flow::Return,
        Opcode::RET
        | Opcode::RETAASPPC
        | Opcode::RETABSPPC
        | Opcode::RETAASPPCR
        | Opcode::RETABSPPCR
        | Opcode::BR
        | Opcode::BRAA
        | Opcode::BRAAZ
        | Opcode::BRAB
        | Opcode::BRABZ
        | Opcode::ERET
        | Opcode::ERETAA
        | Opcode::ERETAB
        | Opcode::DRPS => Flow::Away,
        Opcode::UDF | Opcode::BRK | Opcode::HLT | Opcode::DCPS1 | Opcode::DCPS2 | Opcode::DCPS3 => Flow::Stop,
        Opcode::SVC | Opcode::HVC | Opcode::SMC => Flow::Beyond,
        _ => Flow::Next,
    }
}

/// The general registers that the instruction always writes, one bit each.
fn writes(code: &Instruction) -> u32 {
    let register = |index: usize| code.operands.get(index).and_then(|&operand| gpr(operand)).map_or(0, bit);
    let written = match code.opcode {
        // Stores that write no register.
        opcode if is_store(opcode) => 0,
        Opcode::STG
        | Opcode::STZG
        | Opcode::ST2G
        | Opcode::STZ2G
        | Opcode::STGM
        | Opcode::STZGM
        | Opcode::B
        | Opcode::Bcc(_)
        | Opcode::BCcc(_)
        | Opcode::CBZ
        | Opcode::CBNZ
        | Opcode::TBZ
        | Opcode::TBNZ
        | Opcode::BR
        | Opcode::BRAA
        | Opcode::BRAAZ
        | Opcode::BRAB
        | Opcode::BRABZ
        | Opcode::RET
        | Opcode::RETAA
        | Opcode::RETAB
        | Opcode::MSR
        | Opcode::SYS(_)
        | Opcode::CCMP
        | Opcode::CCMN
        | Opcode::SETF8
        | Opcode::SETF16
        | Opcode::RMIF => 0,
        Opcode::BL | Opcode::BLR | Opcode::BLRAA | Opcode::BLRAAZ | Opcode::BLRAB | Opcode::BLRABZ => bit(LR),
        Opcode::SVC | Opcode::HVC | Opcode::SMC => ALL,
        Opcode::LDP | Opcode::LDNP | Opcode::LDPSW | Opcode::LDXP | Opcode::LDAXP => register(0) | register(1),
        // The first register is the source of a read-modify-write.
        opcode if atomic(opcode).is_some() => register(1),
        Opcode::CASP(_) => match code.operands[0] {
            Operand::RegisterPair(_, first) => (bit(first as u8) | bit(first as u8 + 1)) & ALL,
            _ => ALL,
        },
        Opcode::SYSL(_) => register(0) | register(1) | register(2),
        opcode if is_authentication(opcode) => SIGNED | register(0),
        Opcode::HINT if !is_plain_hint(code) => SIGNED,
        // For most other instructions it is the destination.
        _ => register(0),
    };
    let base = match memory_operand(code) {
        Some(
            Operand::RegPreIndex(base, _, true) | Operand::RegPostIndex(base, _) | Operand::RegPostIndexReg(base, _),
        ) => bit(base as u8),
        _ => 0,
    };
    written | base
}

fn writes_flags(code: &Instruction) -> bool {
    matches!(
        code.opcode,
        Opcode::ADCS
            | Opcode::SBCS
            | Opcode::ANDS
            | Opcode::BICS
            | Opcode::ADDS
            | Opcode::SUBS
            | Opcode::SUBPS
            | Opcode::CCMN
            | Opcode::CCMP
            | Opcode::FCMP
            | Opcode::FCMPE
            | Opcode::FCCMP
            | Opcode::FCCMPE
            | Opcode::FJCVTZS
            | Opcode::SETF8
            | Opcode::SETF16
            | Opcode::RMIF
            | Opcode::MSR
            // Instructions for random numbers set the flags.
            | Opcode::MRS
            | Opcode::SVC
            | Opcode::HVC
            | Opcode::SMC
    )
}

fn reads_flags(code: &Instruction) -> bool {
    matches!(
        code.opcode,
        Opcode::Bcc(_)
            | Opcode::BCcc(_)
            | Opcode::ADC
            | Opcode::ADCS
            | Opcode::SBC
            | Opcode::SBCS
            | Opcode::CSEL
            | Opcode::CSINC
            | Opcode::CSINV
            | Opcode::CSNEG
            | Opcode::CCMN
            | Opcode::CCMP
            | Opcode::FCSEL
            | Opcode::FCCMP
            | Opcode::FCCMPE
    )
}

/// True for instructions that sign or authenticate implicit registers.
fn is_authentication(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::PACIASP
            | Opcode::PACIAZ
            | Opcode::PACIA1716
            | Opcode::PACIA171615
            | Opcode::PACIASPPC
            | Opcode::PACNBIASPPC
            | Opcode::PACIBSP
            | Opcode::PACIBZ
            | Opcode::PACIB1716
            | Opcode::PACIB171615
            | Opcode::PACIBSPPC
            | Opcode::PACNBIBSPPC
            | Opcode::AUTIASP
            | Opcode::AUTIAZ
            | Opcode::AUTIA1716
            | Opcode::AUTIA171615
            | Opcode::AUTIASPPC
            | Opcode::AUTIASPPCR
            | Opcode::AUTIBSP
            | Opcode::AUTIBZ
            | Opcode::AUTIB1716
            | Opcode::AUTIB171615
            | Opcode::AUTIBSPPC
            | Opcode::AUTIBSPPCR
            | Opcode::XPACLRI
            | Opcode::PACM
    )
}

/// True for a hint that changes nothing on any processor: nop, hints that wait, barriers, and bti. Other hints may:
/// `chkfeat` writes x16.
pub(super) fn is_plain_hint(code: &Instruction) -> bool {
    matches!(code.operands[0], Operand::ControlReg(0 | 2 | 4))
}

/// True for bti, and for other instructions that mark the beginning of a function. `hint` has its number in two parts.
fn is_landing(code: &Instruction) -> bool {
    matches!(code.opcode, Opcode::PACIASP | Opcode::PACIBSP | Opcode::PACIASPPC | Opcode::PACIBSPPC)
        || (code.opcode == Opcode::HINT && code.operands[0] == Operand::ControlReg(4))
}

/// True for cache maintenance that clears memory or its tags.
fn is_wild(code: &Instruction) -> bool {
    matches!(
        code.opcode,
        Opcode::SYS(_)
            | Opcode::STG
            | Opcode::STZG
            | Opcode::ST2G
            | Opcode::STZ2G
            | Opcode::STGM
            | Opcode::STZGM
            | Opcode::SVC
            | Opcode::HVC
            | Opcode::SMC
    )
}

/// The operand in memory.
pub(super) fn memory_operand(code: &Instruction) -> Option<Operand> {
    code.operands.iter().copied().find(|operand| {
        matches!(
            operand,
            Operand::RegRegOffset(..)
                | Operand::RegPreIndex(..)
                | Operand::RegPostIndex(..)
                | Operand::RegPostIndexReg(..)
        )
    })
}

/// A location of user code at address 0.
fn location(size: u16, access: Access) -> MemOp {
    MemOp {
        base: None,
        index: None,
        part: Part::Full,
        scale: 1,
        width: Width::Tagged,
        relative: false,
        disp: 0,
        size,
        access,
        opaque: None,
        fs: false,
        counter: None,
    }
}

/// The memory that the instruction loads or stores.
fn memory(code: &Instruction, ip: u64) -> Option<MemOp> {
    let size = u16::try_from(size(code)?).ok()?;
    let mut operand = location(size, access(code.opcode));
    match memory_operand(code) {
        Some(Operand::RegPreIndex(base, disp, _)) => {
            (operand.base, operand.disp) = (Some(base as u8), i64::from(disp) as u64);
        }
        Some(Operand::RegPostIndex(base, _) | Operand::RegPostIndexReg(base, _)) => operand.base = Some(base as u8),
        Some(Operand::RegRegOffset(base, index, size, style, shift)) => {
            operand.base = Some(base as u8);
            operand.index = Some(index as u8).filter(|&index| index != SP);
            operand.scale = 1u8.checked_shl(shift.into())?;
            operand.part = match (style, size) {
                (ShiftStyle::SXTW, _) => Part::SignedWord,
                (ShiftStyle::UXTW, _) | (_, SizeCode::W) => Part::Word,
                _ => Part::Full,
            };
        }
        // A literal.
        _ => {
            let Operand::PCOffset(distance) = code.operands[1] else { return None };
            (operand.relative, operand.disp) = (true, ip.wrapping_add_signed(distance));
        }
    }
    if matches!(code.opcode, Opcode::LDRAA | Opcode::LDRAB) {
        // The address is authenticated first.
        operand.opaque = Some(Opaque::Odd);
    }
    Some(operand)
}
