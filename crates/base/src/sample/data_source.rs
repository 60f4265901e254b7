//! The source of an access's data, and its cost.

use super::Access;

/// The kernel's `perf_mem_data_src` (linux/perf_event.h): operation, level, snoop, TLB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DataSource(pub u64);

impl DataSource {
    /// The operation, from `mem_op` (bits 0-4).
    #[must_use]
    pub fn access(self) -> Access {
        match (self.0 & 0x2 != 0, self.0 & 0x4 != 0) {
            (true, true) => Access::Update,
            (true, false) => Access::Load,
            (false, true) => Access::Store,
            (false, false) => Access::Unknown,
        }
    }

    /// True if memory was not accessed (`PERF_MEM_OP_NA`).
    #[must_use]
    pub fn is_no_access(self) -> bool {
        self.0 & 0x1 != 0
    }

    /// True if another cache held the line modified (`PERF_MEM_SNOOP_HITM`, 0x10 of `mem_snoop`, which starts at bit 19).
    #[must_use]
    pub fn is_hitm(self) -> bool {
        (self.0 >> 19) & 0x10 != 0
    }
}

/// The cost of an access, if the source gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Cost {
    /// Unknown: the source does not give it.
    #[default]
    Unknown,
    /// The core's own caches had the line.
    Hit,
    /// They did not: it came from a shared cache, another core's cache, or memory.
    Miss {
        /// Its cycles, measured, or typical ones if the source does not measure latency.
        cycles: u32,
    },
}

impl DataSource {
    /// The cost from the source of the data, with a typical latency in cycles of current servers; the fields and their values
    /// are those of `union perf_mem_data_src` in linux/perf_event.h.
    #[must_use]
    pub fn cost(self) -> Cost {
        let field = |shift: u32, bits: u32| (self.0 >> shift) & ((1 << bits) - 1);
        let (level, number) = (field(5, 14), field(33, 4));
        let remote = field(37, 1) == 1 || level & 0xf00 != 0;
        // PERF_MEM_SNOOPX_PEER: from another core's cache.
        let peer = self.is_hitm() || field(38, 2) & 0x2 != 0;
        // Memory, or a miss of the last level.
        let memory = level & 0x380 != 0 || level & 0x44 == 0x44 || matches!(number, 0x9 | 0xd | 0xe);
        let shared_cache = level & 0xc40 != 0 || matches!(number, 0x3 | 0x4 | 0x6);
        // PERF_MEM_LVL_HIT together with L1, the line fill buffer or L2.
        let own = level & 0x38 != 0 && level & 0x2 != 0 || matches!(number, 0x1 | 0x2 | 0x5 | 0xc);
        match (remote, peer, memory, shared_cache) {
            (true, _, true, _) => Cost::Miss { cycles: 350 },
            (true, ..) => Cost::Miss { cycles: 250 },
            (_, true, ..) => Cost::Miss { cycles: 100 },
            (_, _, true, _) => Cost::Miss { cycles: 200 },
            (_, _, _, true) => Cost::Miss { cycles: 50 },
            _ if own => Cost::Hit,
            _ => Cost::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_source_names_operation_and_hitm() {
        // OP_LOAD, LVL_L3 hit, SNOOP_HITM as linux/perf_event.h shifts them.
        let source = DataSource(0x2 | (0x10 << 19));
        assert_eq!(source.access(), Access::Load);
        assert!(source.is_hitm());
        assert_eq!(DataSource(0x4).access(), Access::Store);
        assert!(!DataSource(0x1 << 19).is_hitm());
    }
}
