//! Copies the context of the interrupted program from a sample.

use crate::sample::batch::UserContext;
use scxprof_base::arch::Arch;
use scxprof_perf::record::{Registers, SampleRecord};
use scxprof_recover::regs_mask;

/// Fills in what address recovery needs.
pub(super) fn of_access(record: &SampleRecord<'_>, context: &mut UserContext) {
    let SampleRecord { regs_user: regs, stack_user, raw, .. } = record;
    context.abi = regs.abi;
    refill(&mut context.regs, regs.values.iter());
    refill(&mut context.stack, stack_user.iter().copied());
    refill(&mut context.memory, raw.iter().copied());
    context.callchain.clear();
}

/// Fills in what stack unwinding needs.
pub(super) fn of_stack(record: &SampleRecord<'_>, context: &mut UserContext) {
    refill(&mut context.callchain, record.callchain.iter());
    context.memory.clear();
    // For kernel threads, the kernel reserves no space for the stack. For a program's stack, it does so even if it
    // cannot read the stack.
    if record.stack_user_size == 0 {
        context.abi = 0;
        context.regs.clear();
        context.stack.clear();
        return;
    }
    context.abi = record.regs_user.abi;
    context.arch = arch(record.regs_user.mask);
    refill(&mut context.regs, of_arch(&record.regs_user, context.arch));
    refill(&mut context.stack, record.stack_user.iter().copied());
}

fn refill<T>(list: &mut Vec<T>, values: impl Iterator<Item = T>) {
    list.clear();
    list.extend(values);
}

/// The architecture that a register mask belongs to: x86-64 has no registers between the general and the vector
/// registers, from 32 on (arch/x86/include/uapi/asm/perf_regs.h).
fn arch(mask: u64) -> Arch {
    const OTHERS: u64 = 0xff00_0000;
    if mask & OTHERS == 0 {
        Arch::X86_64
    } else {
        Arch::Arm64
    }
}

/// The registers that stacks are unwound with; empty if some are missing.
fn of_arch<'a>(regs: &'a Registers<'_>, arch: Arch) -> impl Iterator<Item = u64> + 'a {
    let needed = regs_mask(arch);
    let are_all = regs.mask & needed == needed;
    let numbers = (0..64).filter(|bit| regs.mask >> bit & 1 == 1);
    let wanted = move |bit: &u32| are_all && needed >> bit & 1 == 1;
    numbers.zip(regs.values.iter()).filter(move |(bit, _)| wanted(bit)).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use scxprof_perf::record::Words;

    #[test]
    fn registers_are_those_of_the_machine_that_the_mask_is_of() {
        let values: Vec<u8> = (0..33u64).flat_map(u64::to_ne_bytes).collect();
        let taken = |mask: u64| -> (Arch, Vec<u64>) {
            let regs = Registers { abi: 2, mask, values: Words(&values) };
            (arch(mask), of_arch(&regs, arch(mask)).collect())
        };
        // perf's mask on x86-64 has cs and ss between flags and r8.
        let (arch, regs) = taken(0x00ff_0fff);
        let needed = regs_mask(Arch::X86_64);
        assert_eq!((arch, regs.len()), (Arch::X86_64, needed.count_ones() as usize));
        assert_eq!((regs[9], regs[10]), (9, 12));
        assert_eq!(taken(needed).1[10], 10);
        assert_eq!(taken(0x1_ffff_ffff), (Arch::Arm64, (0..33).collect()));
        assert!(taken(0xff).1.is_empty() && taken(0x1_ffff_fffe).1.is_empty());
    }
}
