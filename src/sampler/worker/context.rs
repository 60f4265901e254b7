//! What a sample says of the interrupted program.

use crate::sample::batch::UserContext;
use scxprof_perf::record::{Registers, SampleRecord};
use scxprof_recover::REGS_MASK;

/// What the address of an access is recovered from.
pub(super) fn of_access(record: &SampleRecord<'_>) -> UserContext {
    let SampleRecord { regs_user: regs, stack_user, raw, .. } = record;
    UserContext {
        abi: regs.abi,
        regs: regs.values.iter().collect(),
        stack: (*stack_user).into(),
        memory: (*raw).into(),
        callchain: Box::default(),
    }
}

/// What the call stack is made of.
pub(super) fn of_stack(record: &SampleRecord<'_>) -> UserContext {
    let callchain = record.callchain.iter().collect();
    // The kernel reserves nothing for its own threads. What it could not read of a program's stack is reserved all the same.
    if record.stack_user_size == 0 {
        return UserContext { callchain, ..UserContext::default() };
    }
    let (abi, regs) = (record.regs_user.abi, x86_64_registers(&record.regs_user));
    UserContext { abi, regs, stack: record.stack_user.into(), callchain, ..UserContext::default() }
}

/// Those of [`REGS_MASK`]; none if some are missing, or if they are those of another machine, which has more.
fn x86_64_registers(regs: &Registers<'_>) -> Box<[u64]> {
    // PERF_REG_X86_MAX, and the vector registers from bit 32 on (arch/x86/include/uapi/asm/perf_regs.h).
    const OTHERS: u64 = 0xff00_0000;
    if regs.mask & REGS_MASK != REGS_MASK || regs.mask & OTHERS != 0 {
        return Box::default();
    }
    let numbers = (0..64).filter(|bit| regs.mask >> bit & 1 == 1);
    numbers.zip(regs.values.iter()).filter(|(bit, _)| REGS_MASK >> bit & 1 == 1).map(|(_, value)| value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use scxprof_perf::record::Words;

    #[test]
    fn registers_of_another_machine_are_none() {
        let values: Vec<u8> = (0..33u64).flat_map(u64::to_ne_bytes).collect();
        let taken = |mask: u64| x86_64_registers(&Registers { abi: 2, mask, values: Words(&values) });
        // perf's mask on x86-64 has cs and ss between flags and r8.
        let regs = taken(0x00ff_0fff);
        assert_eq!(regs.len(), REGS_MASK.count_ones() as usize);
        assert_eq!((regs[9], regs[10]), (9, 12));
        assert_eq!(taken(REGS_MASK)[10], 10);
        assert!(taken(0x1_ffff_ffff).is_empty(), "that of aarch64");
        assert!(taken(0xff).is_empty());
    }
}
