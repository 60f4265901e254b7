//! Where loaded data came from, by core.

use super::{event, Record};
use scxprof_base::sample::{Access, DataSource};

/// Cores with the same numbers for data sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cores {
    /// Arm's Neoverse, and Cortex of the same generations.
    Neoverse,
    /// AmpereOne.
    AmpereOne,
    /// Others: their numbers are not known, their events are.
    #[default]
    Other,
}

// linux/perf_event.h: `mem_op` at bit 0, `mem_lvl` at 5, `mem_snoop` at 19, `mem_dtlb` at 26, `mem_lvl_num` at 33, `mem_remote` at
// 37, `mem_snoopx` at 38.
const OP_LOAD: u64 = 0x2;
const OP_STORE: u64 = 0x4;
const LVL_NA: u64 = 0x1 << 5;
const LVL_HIT: u64 = 0x2 << 5;
const LVL_MISS: u64 = 0x4 << 5;
const LVL_L1: u64 = 0x8 << 5;
const LVL_L2: u64 = 0x20 << 5;
const LVL_L3: u64 = 0x40 << 5;
const LVL_LOCAL_RAM: u64 = 0x80 << 5;
const LVL_REMOTE_CACHE: u64 = 0x400 << 5;
const SNOOP_NA: u64 = 0x1 << 19;
const SNOOP_NONE: u64 = 0x2 << 19;
const SNOOP_HIT: u64 = 0x4 << 19;
const SNOOP_HITM: u64 = 0x10 << 19;
const TLB_HIT: u64 = 0x2 << 26;
const TLB_MISS: u64 = 0x4 << 26;
const TLB_WALKER: u64 = 0x20 << 26;
const NUMBER_L1: u64 = 0x1 << 33;
const NUMBER_L2: u64 = 0x2 << 33;
const NUMBER_L3: u64 = 0x3 << 33;
const NUMBER_ANY_CACHE: u64 = 0xb << 33;
const NUMBER_RAM: u64 = 0xd << 33;
const NUMBER_NA: u64 = 0xf << 33;
const REMOTE: u64 = 1 << 37;
/// From another core's cache; whether modified, SPE does not say by its sources.
const SNOOPX_PEER: u64 = 0x2 << 38;

impl Cores {
    /// By the content of `MIDR_EL1`: the implementer in bits 31 to 24, the part in bits 15 to 4.
    #[must_use]
    pub fn of(midr: u64) -> Self {
        let (implementer, part) = (midr >> 24 & 0xff, midr >> 4 & 0xfff);
        match (implementer, part) {
            // Cortex-A720, A720AE, A725, X1C, X3, X925; Neoverse N1, V1, N2, V2.
            (0x41, 0xd81 | 0xd89 | 0xd87 | 0xd4c | 0xd4e | 0xd85 | 0xd0c | 0xd40 | 0xd49 | 0xd4f) => Self::Neoverse,
            (0xc0, 0xac4) => Self::AmpereOne,
            _ => Self::Other,
        }
    }

    /// The same as the kernel's `perf_mem_data_src`, as perf makes it of a record.
    #[must_use]
    pub fn data_source(self, record: &Record) -> DataSource {
        let (operation, is_store) = match record.access() {
            Access::Load => (OP_LOAD, false),
            Access::Store => (OP_STORE, true),
            Access::Update => (OP_LOAD | OP_STORE, false),
            Access::Unknown => return DataSource(0),
        };
        let common = match self {
            // These say nothing of stores.
            Self::Neoverse | Self::AmpereOne if is_store => {
                return DataSource(operation | LVL_NA | NUMBER_NA | SNOOP_NA | translation(record))
            }
            Self::Neoverse => record.source,
            Self::AmpereOne => record.source.map(|source| match source {
                0x0 => 0x9,
                0x3 => 0xb,
                0x5 => 0xd,
                0x7 => 0xe,
                0x8 => 0x0,
                0x9 => 0x8,
                _ => u16::MAX,
            }),
            Self::Other => None,
        };
        let from = match common {
            Some(0x0) => LVL_L1 | LVL_HIT | NUMBER_L1 | SNOOP_NONE,
            Some(0x8) => LVL_L2 | LVL_HIT | NUMBER_L2 | SNOOP_NONE,
            // Another core of the cluster.
            Some(0x9) => LVL_L2 | LVL_HIT | NUMBER_L2 | SNOOPX_PEER,
            // A core of the local cluster or of another one: between the caches of both.
            Some(0xa | 0xc) => LVL_L3 | LVL_HIT | NUMBER_L3 | SNOOPX_PEER,
            Some(0xb) => LVL_L3 | LVL_HIT | NUMBER_L3 | SNOOP_HIT,
            Some(0xd) => LVL_REMOTE_CACHE | NUMBER_ANY_CACHE | REMOTE | SNOOPX_PEER,
            Some(0xe) => LVL_LOCAL_RAM | LVL_HIT | NUMBER_RAM | SNOOP_NONE,
            _ => Self::by_events(record),
        };
        DataSource(operation | from | translation(record))
    }

    /// The level by what the architecture's own events say.
    fn by_events(record: &Record) -> u64 {
        let has = |bits: u64| record.events & bits != 0;
        let level = |level: u64, miss: u64| level | if has(miss) { LVL_MISS } else { LVL_HIT };
        let found = if has(event::LLC_ACCESS | event::LLC_MISS) {
            level(LVL_L3, event::LLC_MISS)
        } else if has(event::L2D_ACCESS | event::L2D_MISS) {
            level(LVL_L2, event::L2D_MISS)
        } else if has(event::L1D_ACCESS | event::L1D_MISS) {
            level(LVL_L1, event::L1D_MISS)
        } else {
            0
        };
        let snoop = match (has(event::SNOOPED), has(event::MODIFIED)) {
            (true, true) => SNOOP_HITM,
            (true, false) => SNOOPX_PEER,
            _ => 0,
        };
        found | snoop | if has(event::REMOTE) { LVL_REMOTE_CACHE } else { 0 }
    }
}

fn translation(record: &Record) -> u64 {
    let has = |bits: u64| record.events & bits != 0;
    match (has(event::TLB_ACCESS), has(event::TLB_WALK)) {
        (_, true) => TLB_WALKER | TLB_MISS,
        (true, false) => TLB_WALKER | TLB_HIT,
        _ => 0,
    }
}
