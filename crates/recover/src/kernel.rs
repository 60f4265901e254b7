//! The state of interrupted kernel code, which replaces the user registers and stack of a sample.

use super::lines::{is_of_kernel, Snapshot};
use super::regs::Regs;
use scxprof_base::arch::Arch;

/// Bytes before the stack: `struct kernel_snapshot` in operand.bpf.c.
const HEADER: usize = 24;
const REGS: usize = 18;
/// Bytes reserved for the stack; fewer may be used.
const DUMP: usize = 512;
/// Bytes of a kernel stack: `THREAD_SIZE` in arch/x86/include/asm/page_64_types.h.
const STACK: u64 = 16384;

/// The state of interrupted kernel code, as the BPF program recorded it.
///
/// Layout: u64 address of the task, u64 lowest address of its stack, u32 number of stack bytes, u32 mode; the u64
/// registers of [`regs_mask`](super::regs_mask); the stack bytes from rsp on, in an array of 512; then a [`Snapshot`].
#[derive(Debug, Clone, Copy)]
pub struct KernelSnapshot<'a> {
    /// The registers.
    pub regs: Regs,
    /// The stack from rsp on.
    pub dump: &'a [u8],
    /// The address of the `task_struct`.
    pub task: u64,
    /// The memory around the registers.
    pub memory: Snapshot<'a>,
    stack: u64,
}

impl<'a> KernelSnapshot<'a> {
    /// Parses a record; `None` if it is of user code.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        if !is_of_kernel(bytes) {
            return None;
        }
        let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let mut values = [0; REGS];
        for (at, value) in values.iter_mut().enumerate() {
            *value = word(HEADER + 8 * at)?;
        }
        let regs = Regs::from_values(Arch::X86_64, &values)?;
        let size = word(16)? as u32 as usize;
        let (dump, memory) = bytes.get(HEADER + 8 * REGS..)?.split_at_checked(DUMP)?;
        Some(Self { regs, dump: dump.get(..size)?, task: word(0)?, memory: Snapshot::new(memory), stack: word(8)? })
    }

    /// The addresses of the task's own stack.
    #[must_use]
    pub fn stack(&self) -> std::ops::Range<u64> {
        self.stack..self.stack.saturating_add(STACK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::KERNEL;
    use crate::{CodeWindow, Recovery, Unrecovered};
    use proptest::prelude::*;
    use scxprof_base::sample::Method;

    const TASK_STACK: u64 = 0xffff_c900_0012_0000;
    const CODE: u64 = 0xffff_ffff_8100_0000;

    /// A record of kernel code with these registers (perf's order), `dump` bytes of stack from `sp` on, and lines of memory.
    fn record(set: &[(usize, u64)], sp: u64, dump: &[u8], lines: &[(u64, [u64; 8])]) -> Vec<u8> {
        let mut regs = [0u64; REGS];
        (regs[7], regs[8]) = (sp, CODE);
        for &(at, value) in set {
            regs[at] = value;
        }
        let mut bytes = [0xffff_8881_0000_2000u64.to_le_bytes(), TASK_STACK.to_le_bytes()].concat();
        bytes.extend([(dump.len() as u32).to_le_bytes(), KERNEL.to_le_bytes()].concat());
        bytes.extend(regs.iter().flat_map(|value| value.to_le_bytes()));
        bytes.extend(dump);
        // Stale bytes of an earlier sample.
        bytes.extend(vec![0xee; DUMP - dump.len()]);
        bytes.extend([TASK_STACK, sp].iter().flat_map(|value| value.to_le_bytes()));
        bytes.extend([(lines.len() as u32).to_le_bytes(), KERNEL.to_le_bytes()].concat());
        for (base, words) in lines {
            // The highest byte has a bit for each word that is not known.
            bytes.extend((base ^ 0xff << 56).to_le_bytes());
            bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        bytes
    }

    #[test]
    fn a_record_has_registers_stack_and_memory() {
        let object = 0xffff_8881_1234_5040;
        let bytes = record(&[(0, 7), (17, 15)], TASK_STACK + STACK - 16, &[9; 16], &[(object, [1; 8])]);
        let snapshot = KernelSnapshot::new(&bytes).unwrap();
        assert_eq!((snapshot.regs.gpr[0], snapshot.regs.gpr[15], snapshot.regs.ip), (7, 15, CODE));
        assert_eq!(snapshot.dump, [9; 16], "the rest of the room is no stack");
        assert_eq!((snapshot.task, snapshot.stack()), (0xffff_8881_0000_2000, TASK_STACK..TASK_STACK + STACK));
        assert_eq!(snapshot.memory.lines().map(|line| line.base).collect::<Vec<_>>(), [object]);
        assert!(KernelSnapshot::new(&bytes[..HEADER + 8 * REGS + DUMP - 1]).is_none());
        let mut other = bytes.clone();
        other[17] = 3;
        assert!(KernelSnapshot::new(&other).is_none(), "more stack than there is room for");
        // A snapshot of user code.
        other.clone_from(&bytes);
        other[20] = 0;
        assert!(KernelSnapshot::new(&other).is_none());
    }

    fn recover(code: &[u8], set: &[(usize, u64)]) -> Result<Vec<(u64, Method)>, Unrecovered> {
        recover_with(code, set, &[])
    }

    fn recover_with(
        code: &[u8],
        set: &[(usize, u64)],
        lines: &[(u64, [u64; 8])],
    ) -> Result<Vec<(u64, Method)>, Unrecovered> {
        let bytes = record(set, TASK_STACK + 0x3000, &[], lines);
        let snapshot = KernelSnapshot::new(&bytes).unwrap();
        let mut window =
            CodeWindow { key: 1, bias: 0, base: CODE, bytes: code, function: Some(CODE..CODE + 64), jit: false };
        let (mut recovery, stack) = (Recovery::new(1 << 20), snapshot.stack());
        let result = recovery.recover_with(&snapshot.regs, snapshot.dump, snapshot.memory, stack, &mut window);
        let found = result.candidates.iter().map(|candidate| (candidate.addr, candidate.method)).collect();
        result.reason.map_or(Ok(found), Err)
    }

    #[test]
    fn memory_leads_to_the_next_object() {
        let (first, second) = (0xffff_8881_1234_5000, 0xffff_8881_4321_0100);
        // mov rax,[rdi+8]; mov rcx,[rax+16]; ret
        let code = [0x48, 0x8b, 0x47, 0x08, 0x48, 0x8b, 0x48, 0x10, 0xc3];
        let mut words = [0; 8];
        words[1] = second;
        let found = recover_with(&code, &[(5, first)], &[(first, words)]);
        assert_eq!(found, Ok(vec![(first + 8, Method::AtIp), (second + 16, Method::Racy)]));
        assert_eq!(recover(&code, &[(5, first)]), Ok(vec![(first + 8, Method::AtIp)]));
        let changing = recover_with(&code, &[(5, first)], &[(first ^ 0x02 << 56, words)]);
        assert_eq!(changing, Ok(vec![(first + 8, Method::AtIp)]), "others write that word");
    }

    #[test]
    fn kernel_code_accesses_both_halves() {
        let object = 0xffff_8881_1234_5000;
        // mov rax,[rdi+8]; ret; then mov [rsi],rax; ret
        let load = [0x48, 0x8b, 0x47, 0x08, 0xc3];
        assert_eq!(recover(&load, &[(5, object)]), Ok(vec![(object + 8, Method::AtIp)]));
        assert_eq!(recover(&load, &[(5, 0x7fff_1234_5000)]), Ok(vec![(0x7fff_1234_5008, Method::AtIp)]));
        assert_eq!(recover(&load, &[(5, 8)]), Err(Unrecovered::Impossible));
        // In neither half of the address space.
        assert_eq!(recover(&load, &[(5, 0x1234_5678_1234_5678)]), Err(Unrecovered::Impossible));
        assert_eq!(recover(&load, &[(5, TASK_STACK + 0x3f00)]), Err(Unrecovered::StackOnly));
        // mov rax,gs:[rdi]; ret
        assert_eq!(recover(&[0x65, 0x48, 0x8b, 0x07, 0xc3], &[(5, object)]), Err(Unrecovered::PerCpu));
    }

    #[test]
    fn a_copy_to_a_program_gives_both_sides() {
        // rep movsb
        let (from, to) = (0xffff_8881_1234_5040, 0x7fff_1234_5000);
        let found = recover(&[0xf3, 0xa4, 0xc3], &[(2, 256), (4, from), (5, to)]).unwrap();
        let addresses: Vec<u64> = found.iter().map(|(addr, _)| *addr).collect();
        assert!(addresses.contains(&from) && addresses.contains(&to), "{found:x?}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..1600)) {
            if let Some(snapshot) = KernelSnapshot::new(&bytes) {
                prop_assert!(snapshot.dump.len() < bytes.len());
            }
        }
    }
}
