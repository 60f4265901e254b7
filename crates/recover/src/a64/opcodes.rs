//! Which instructions load and store, and how much.

use yaxpeax_arm::armv8::a64::{Instruction, Opcode, Operand, SIMDSizeCode};

use super::operands::operand_size;
use scxprof_base::sample::Access;

/// For a read-modify-write of one location: its size in bytes, 0 for the size of the register.
pub(super) fn atomic(opcode: Opcode) -> Option<u32> {
    match opcode {
        Opcode::SWP(_)
        | Opcode::LDADD(_)
        | Opcode::LDCLR(_)
        | Opcode::LDEOR(_)
        | Opcode::LDSET(_)
        | Opcode::LDSMAX(_)
        | Opcode::LDSMIN(_)
        | Opcode::LDUMAX(_)
        | Opcode::LDUMIN(_) => Some(0),
        Opcode::SWPB(_)
        | Opcode::LDADDB(_)
        | Opcode::LDCLRB(_)
        | Opcode::LDEORB(_)
        | Opcode::LDSETB(_)
        | Opcode::LDSMAXB(_)
        | Opcode::LDSMINB(_)
        | Opcode::LDUMAXB(_)
        | Opcode::LDUMINB(_) => Some(1),
        Opcode::SWPH(_)
        | Opcode::LDADDH(_)
        | Opcode::LDCLRH(_)
        | Opcode::LDEORH(_)
        | Opcode::LDSETH(_)
        | Opcode::LDSMAXH(_)
        | Opcode::LDSMINH(_)
        | Opcode::LDUMAXH(_)
        | Opcode::LDUMINH(_) => Some(2),
        _ => None,
    }
}

/// For a load of one or two general registers: whether it extends the sign.
pub(super) fn load(opcode: Opcode) -> Option<bool> {
    match opcode {
        Opcode::LDR
        | Opcode::LDRB
        | Opcode::LDRH
        | Opcode::LDUR
        | Opcode::LDURB
        | Opcode::LDURH
        | Opcode::LDTR
        | Opcode::LDTRB
        | Opcode::LDTRH
        | Opcode::LDAR
        | Opcode::LDARB
        | Opcode::LDARH
        | Opcode::LDLAR
        | Opcode::LDLARB
        | Opcode::LDLARH
        | Opcode::LDXR
        | Opcode::LDXRB
        | Opcode::LDXRH
        | Opcode::LDAXR
        | Opcode::LDAXRB
        | Opcode::LDAXRH
        | Opcode::LDAPR
        | Opcode::LDAPRB
        | Opcode::LDAPRH
        | Opcode::LDAPUR
        | Opcode::LDAPURB
        | Opcode::LDAPURH
        | Opcode::LDP
        | Opcode::LDNP
        | Opcode::LDXP
        | Opcode::LDAXP => Some(false),
        Opcode::LDRSB
        | Opcode::LDRSH
        | Opcode::LDRSW
        | Opcode::LDURSB
        | Opcode::LDURSH
        | Opcode::LDURSW
        | Opcode::LDTRSB
        | Opcode::LDTRSH
        | Opcode::LDTRSW
        | Opcode::LDAPURSB
        | Opcode::LDAPURSH
        | Opcode::LDAPURSW
        | Opcode::LDPSW => Some(true),
        _ => None,
    }
}

/// True for a store of one or two general registers.
pub(super) fn is_store(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::STR
            | Opcode::STRB
            | Opcode::STRH
            | Opcode::STUR
            | Opcode::STURB
            | Opcode::STURH
            | Opcode::STTR
            | Opcode::STTRB
            | Opcode::STTRH
            | Opcode::STLR
            | Opcode::STLRB
            | Opcode::STLRH
            | Opcode::STLLR
            | Opcode::STLLRB
            | Opcode::STLLRH
            | Opcode::STLUR
            | Opcode::STLURB
            | Opcode::STLURH
            | Opcode::STP
            | Opcode::STNP
    )
}

/// True for a store that may fail; its first register gets the result.
fn is_exclusive_store(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::STXR
            | Opcode::STXRB
            | Opcode::STXRH
            | Opcode::STLXR
            | Opcode::STLXRB
            | Opcode::STLXRH
            | Opcode::STXP
            | Opcode::STLXP
    )
}

fn simd(size: SIMDSizeCode) -> u32 {
    match size {
        SIMDSizeCode::B => 1,
        SIMDSizeCode::H => 2,
        SIMDSizeCode::S => 4,
        SIMDSizeCode::D => 8,
        SIMDSizeCode::Q => 16,
    }
}

/// The size of one of the registers that are loaded or stored.
fn register_bytes(operand: Operand) -> u32 {
    match operand {
        Operand::SIMDRegister(size, _) => simd(size),
        operand => operand_size(operand),
    }
}

/// The number of bytes that the instruction loads or stores, for a pair in all.
pub(super) fn size(code: &Instruction) -> Option<u32> {
    let [first, second, ..] = code.operands;
    Some(match code.opcode {
        Opcode::LDRB
        | Opcode::LDRSB
        | Opcode::LDTRB
        | Opcode::LDTRSB
        | Opcode::LDURB
        | Opcode::LDURSB
        | Opcode::LDARB
        | Opcode::LDLARB
        | Opcode::LDAPRB
        | Opcode::LDAPURB
        | Opcode::LDAPURSB
        | Opcode::LDXRB
        | Opcode::LDAXRB
        | Opcode::STRB
        | Opcode::STTRB
        | Opcode::STURB
        | Opcode::STLRB
        | Opcode::STLLRB
        | Opcode::STLURB
        | Opcode::STXRB
        | Opcode::STLXRB
        | Opcode::CASB(_) => 1,
        Opcode::LDRH
        | Opcode::LDRSH
        | Opcode::LDTRH
        | Opcode::LDTRSH
        | Opcode::LDURH
        | Opcode::LDURSH
        | Opcode::LDARH
        | Opcode::LDLARH
        | Opcode::LDAPRH
        | Opcode::LDAPURH
        | Opcode::LDAPURSH
        | Opcode::LDXRH
        | Opcode::LDAXRH
        | Opcode::STRH
        | Opcode::STTRH
        | Opcode::STURH
        | Opcode::STLRH
        | Opcode::STLLRH
        | Opcode::STLURH
        | Opcode::STXRH
        | Opcode::STLXRH
        | Opcode::CASH(_) => 2,
        Opcode::LDRSW | Opcode::LDTRSW | Opcode::LDURSW | Opcode::LDAPURSW => 4,
        Opcode::LDPSW | Opcode::LDRAA | Opcode::LDRAB => 8,
        Opcode::LDP | Opcode::LDNP | Opcode::STP | Opcode::STNP | Opcode::LDXP | Opcode::LDAXP | Opcode::CASP(_) => {
            2 * register_bytes(first)
        }
        Opcode::STXP | Opcode::STLXP => 2 * register_bytes(second),
        Opcode::STXR | Opcode::STLXR => register_bytes(second),
        Opcode::LD1
        | Opcode::LD2
        | Opcode::LD3
        | Opcode::LD4
        | Opcode::ST1
        | Opcode::ST2
        | Opcode::ST3
        | Opcode::ST4 => {
            let (Operand::SIMDRegisterGroup(size, _, _, count) | Operand::SIMDRegisterGroupLane(_, size, count, _)) =
                first
            else {
                return None;
            };
            simd(size) * u32::from(count)
        }
        // One element for each register.
        Opcode::LD1R | Opcode::LD2R | Opcode::LD3R | Opcode::LD4R => {
            let Operand::SIMDRegisterGroup(_, _, size, count) = first else { return None };
            simd(size) * u32::from(count)
        }
        opcode => match atomic(opcode) {
            Some(bytes) if bytes != 0 => bytes,
            None if load(opcode).is_none() && !is_store(opcode) && !matches!(opcode, Opcode::CAS(_)) => return None,
            _ => register_bytes(first),
        },
    })
}

pub(super) fn access(opcode: Opcode) -> Access {
    match opcode {
        Opcode::CAS(_) | Opcode::CASB(_) | Opcode::CASH(_) | Opcode::CASP(_) => Access::Update,
        opcode if atomic(opcode).is_some() => Access::Update,
        Opcode::ST1 | Opcode::ST2 | Opcode::ST3 | Opcode::ST4 => Access::Store,
        opcode if is_store(opcode) || is_exclusive_store(opcode) => Access::Store,
        _ => Access::Load,
    }
}
