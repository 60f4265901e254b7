//! What a sample says of the interrupted program.

use crate::sample::batch::UserContext;
use scxprof_base::arch::Arch;
use scxprof_perf::record::{Registers, SampleRecord};
use scxprof_recover::regs_mask;

/// Those that stacks are unwound with.
const REGS: u64 = regs_mask(Arch::X86_64);

/// Fills in what the address of an access is recovered from.
pub(super) fn of_access(record: &SampleRecord<'_>, context: &mut UserContext) {
    let SampleRecord { regs_user: regs, stack_user, raw, .. } = record;
    context.abi = regs.abi;
    refill(&mut context.regs, regs.values.iter());
    refill(&mut context.stack, stack_user.iter().copied());
    refill(&mut context.memory, raw.iter().copied());
    context.callchain.clear();
}

/// Fills in what the call stack is made of.
pub(super) fn of_stack(record: &SampleRecord<'_>, context: &mut UserContext) {
    refill(&mut context.callchain, record.callchain.iter());
    context.memory.clear();
    // The kernel reserves nothing for its own threads. What it could not read of a program's stack is reserved all the same.
    if record.stack_user_size == 0 {
        context.abi = 0;
        context.regs.clear();
        context.stack.clear();
        return;
    }
    context.abi = record.regs_user.abi;
    refill(&mut context.regs, x86_64_registers(&record.regs_user));
    refill(&mut context.stack, record.stack_user.iter().copied());
}

fn refill<T>(list: &mut Vec<T>, values: impl Iterator<Item = T>) {
    list.clear();
    list.extend(values);
}

/// Those of [`REGS`]; none if some are missing, or if they are those of another machine, which has more.
fn x86_64_registers<'a>(regs: &'a Registers<'_>) -> impl Iterator<Item = u64> + 'a {
    // PERF_REG_X86_MAX, and the vector registers from bit 32 on (arch/x86/include/uapi/asm/perf_regs.h).
    const OTHERS: u64 = 0xff00_0000;
    let are_ours = regs.mask & REGS == REGS && regs.mask & OTHERS == 0;
    let numbers = (0..64).filter(|bit| regs.mask >> bit & 1 == 1);
    let wanted = move |bit: &u32| are_ours && REGS >> bit & 1 == 1;
    numbers.zip(regs.values.iter()).filter(move |(bit, _)| wanted(bit)).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use scxprof_perf::record::Words;

    #[test]
    fn registers_of_another_machine_are_none() {
        let values: Vec<u8> = (0..33u64).flat_map(u64::to_ne_bytes).collect();
        let taken =
            |mask: u64| -> Vec<u64> { x86_64_registers(&Registers { abi: 2, mask, values: Words(&values) }).collect() };
        // perf's mask on x86-64 has cs and ss between flags and r8.
        let regs = taken(0x00ff_0fff);
        assert_eq!(regs.len(), REGS.count_ones() as usize);
        assert_eq!((regs[9], regs[10]), (9, 12));
        assert_eq!(taken(REGS)[10], 10);
        assert!(taken(0x1_ffff_ffff).is_empty(), "that of aarch64");
        assert!(taken(0xff).is_empty());
    }
}
