//! The flags as far as known, and which conditions they decide.

use iced_x86::{ConditionCode, RflagsBits};

/// Flags that conditions test.
const STATUS: u32 = RflagsBits::CF | RflagsBits::PF | RflagsBits::AF | RflagsBits::ZF | RflagsBits::SF | RflagsBits::OF;

/// Flags as far as known, numbered as iced's `RflagsBits`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Flags {
    pub(super) bits: u32,
    pub(super) known: u32,
}

impl Flags {
    /// From RFLAGS as the processor keeps it (Intel SDM volume 1, 3.4.3).
    pub(super) fn from_rflags(rflags: u64) -> Self {
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
        Self { bits, known: STATUS | RflagsBits::DF }
    }

    pub(super) fn forget(&mut self, flags: u32) {
        self.known &= !flags;
        self.bits &= self.known;
    }

    pub(super) fn set(&mut self, flag: u32, on: bool) {
        self.known |= flag;
        self.bits = if on { self.bits | flag } else { self.bits & !flag };
    }

    pub(super) fn get(self, flag: u32) -> Option<bool> {
        (self.known & flag != 0).then_some(self.bits & flag != 0)
    }

    /// What both know and agree on.
    pub(super) fn common(self, other: Self) -> Self {
        let known = self.known & other.known & !(self.bits ^ other.bits);
        Self { bits: self.bits & known, known }
    }

    /// What either knows; `None` if they contradict.
    pub(super) fn merge(self, other: Self) -> Option<Self> {
        ((self.bits ^ other.bits) & self.known & other.known == 0)
            .then_some(Self { bits: self.bits | other.bits, known: self.known | other.known })
    }

    /// Whether a condition holds, if the flags decide it.
    pub(super) fn holds(self, condition: ConditionCode) -> Option<bool> {
        let flag = |flag| self.get(flag);
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
}
