//! RFLAGS, and the conditions that they decide.

use iced_x86::{ConditionCode, RflagsBits};

use crate::flags::Flags;

/// Flags that conditions test.
const STATUS: u32 = RflagsBits::CF | RflagsBits::PF | RflagsBits::AF | RflagsBits::ZF | RflagsBits::SF | RflagsBits::OF;

/// Converts RFLAGS as the processor keeps them (Intel SDM volume 1, 3.4.3) to the numbering of iced's `RflagsBits`.
pub(super) fn from_rflags(rflags: u64) -> Flags {
    let bits = [
        (0, RflagsBits::CF),
        (2, RflagsBits::PF),
        (4, RflagsBits::AF),
        (6, RflagsBits::ZF),
        (7, RflagsBits::SF),
        (10, RflagsBits::DF),
        (11, RflagsBits::OF),
    ];
    let bits = bits.iter().filter(|(bit, _)| rflags >> bit & 1 == 1).map(|(_, flag)| flag).sum();
    Flags { bits, known: STATUS | RflagsBits::DF }
}

/// Whether a condition holds, if the flags decide it.
pub(super) fn holds(flags: Flags, condition: ConditionCode) -> Option<bool> {
    let flag = |flag| flags.get(flag);
    let either = |a: Option<bool>, b: Option<bool>| match (a, b) {
        (Some(true), _) | (_, Some(true)) => Some(true),
        (Some(false), Some(false)) => Some(false),
        _ => None,
    };
    let less = || Some(flag(RflagsBits::SF)? != flag(RflagsBits::OF)?);
    let not = |known: Option<bool>| known.map(|on| !on);
    match condition {
        ConditionCode::None => None,
        ConditionCode::o => flag(RflagsBits::OF),
        ConditionCode::no => not(flag(RflagsBits::OF)),
        ConditionCode::b => flag(RflagsBits::CF),
        ConditionCode::ae => not(flag(RflagsBits::CF)),
        ConditionCode::e => flag(RflagsBits::ZF),
        ConditionCode::ne => not(flag(RflagsBits::ZF)),
        ConditionCode::be => either(flag(RflagsBits::CF), flag(RflagsBits::ZF)),
        ConditionCode::a => not(either(flag(RflagsBits::CF), flag(RflagsBits::ZF))),
        ConditionCode::s => flag(RflagsBits::SF),
        ConditionCode::ns => not(flag(RflagsBits::SF)),
        ConditionCode::p => flag(RflagsBits::PF),
        ConditionCode::np => not(flag(RflagsBits::PF)),
        ConditionCode::l => less(),
        ConditionCode::ge => not(less()),
        ConditionCode::le => either(flag(RflagsBits::ZF), less()),
        ConditionCode::g => not(either(flag(RflagsBits::ZF), less())),
    }
}
