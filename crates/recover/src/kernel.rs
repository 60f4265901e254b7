//! What a sample of kernel code has instead of the user's registers and stack.

use super::regs::Regs;

/// Bytes before the stack: `struct kernel_snapshot` in operand.bpf.c.
const HEADER: usize = 24;
const REGS: usize = 18;
/// What its `mode` is; that of a `struct snapshot`, which has it in the same place, is 0.
const KERNEL: u32 = 1;
/// Bytes of a kernel stack: `THREAD_SIZE` in arch/x86/include/asm/page_64_types.h.
const STACK: u64 = 16384;

/// The state of interrupted kernel code, as the BPF program recorded it.
///
/// u64 address of the task, u64 lowest address of its stack, u32 bytes of stack, u32 mode; then the u64 registers of
/// [`REGS_MASK`](super::REGS_MASK), and these bytes from rsp on.
#[derive(Debug, Clone, Copy)]
pub struct KernelSnapshot<'a> {
    /// The registers.
    pub regs: Regs,
    /// The stack from rsp on.
    pub dump: &'a [u8],
    /// The address of the `task_struct`.
    pub task: u64,
    stack: u64,
}

impl<'a> KernelSnapshot<'a> {
    /// The content of a record; `None` if it is of user code.
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
        let regs = Regs::from_values(&values)?;
        // A record has a few bytes more, up to the next 8.
        let size = word(16)? as u32 as usize;
        let dump = bytes.get(HEADER + 8 * REGS..)?.get(..size)?;
        Some(Self { regs, dump, task: word(0)?, stack: word(8)? })
    }

    /// The addresses of the task's own stack.
    #[must_use]
    pub fn stack(&self) -> std::ops::Range<u64> {
        self.stack..self.stack.saturating_add(STACK)
    }
}

/// True if the raw data of a sample are of kernel code.
#[must_use]
pub fn is_of_kernel(raw: &[u8]) -> bool {
    raw.get(20..).and_then(<[u8]>::first_chunk).is_some_and(|mode| u32::from_le_bytes(*mode) == KERNEL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CodeWindow, Recovery, Snapshot, Unrecovered};
    use proptest::prelude::*;
    use scxprof_base::sample::Method;

    const TASK_STACK: u64 = 0xffff_c900_0012_0000;
    const CODE: u64 = 0xffff_ffff_8100_0000;

    /// A record of kernel code at `ip` with these registers (perf's order), and `dump` bytes of stack from `sp` on.
    fn record(set: &[(usize, u64)], sp: u64, dump: &[u8], padding: usize) -> Vec<u8> {
        let mut regs = [0u64; REGS];
        (regs[7], regs[8]) = (sp, CODE);
        for &(at, value) in set {
            regs[at] = value;
        }
        let mut bytes = [0xffff_8881_0000_2000u64.to_le_bytes(), TASK_STACK.to_le_bytes()].concat();
        bytes.extend([(dump.len() as u32).to_le_bytes(), KERNEL.to_le_bytes()].concat());
        bytes.extend(regs.iter().flat_map(|value| value.to_le_bytes()));
        bytes.extend(dump);
        bytes.extend(vec![0; padding]);
        bytes
    }

    #[test]
    fn a_record_has_registers_and_stack() {
        let bytes = record(&[(0, 7), (17, 15)], TASK_STACK + STACK - 16, &[9; 16], 4);
        let snapshot = KernelSnapshot::new(&bytes).unwrap();
        assert_eq!((snapshot.regs.gpr[0], snapshot.regs.gpr[15], snapshot.regs.rip), (7, 15, CODE));
        assert_eq!(snapshot.dump, [9; 16], "padding is no stack");
        assert_eq!((snapshot.task, snapshot.stack()), (0xffff_8881_0000_2000, TASK_STACK..TASK_STACK + STACK));
        assert!(KernelSnapshot::new(&bytes[..HEADER + 8 * REGS + 15]).is_none());
        // A snapshot of user code.
        let mut bytes = bytes;
        bytes[20] = 0;
        assert!(KernelSnapshot::new(&bytes).is_none());
    }

    fn recover(code: &[u8], set: &[(usize, u64)]) -> Result<Vec<(u64, Method)>, Unrecovered> {
        let bytes = record(set, TASK_STACK + 0x3000, &[], 4);
        let snapshot = KernelSnapshot::new(&bytes).unwrap();
        let mut window =
            CodeWindow { key: 1, bias: 0, base: CODE, bytes: code, function: Some(CODE..CODE + 64), jit: false };
        let (mut recovery, memory) = (Recovery::new(1 << 20), Snapshot::default());
        let result = recovery.recover_with(&snapshot.regs, snapshot.dump, memory, snapshot.stack(), &mut window);
        let found = result.candidates.iter().map(|candidate| (candidate.addr, candidate.method)).collect();
        result.reason.map_or(Ok(found), Err)
    }

    #[test]
    fn kernel_code_accesses_both_halves() {
        let object = 0xffff_8881_1234_5000;
        // mov rax,[rdi+8]; ret; then mov [rsi],rax; ret
        let load = [0x48, 0x8b, 0x47, 0x08, 0xc3];
        assert_eq!(recover(&load, &[(5, object)]), Ok(vec![(object + 8, Method::AtIp)]));
        assert_eq!(recover(&load, &[(5, 0x7fff_1234_5000)]), Ok(vec![(0x7fff_1234_5008, Method::AtIp)]));
        assert_eq!(recover(&load, &[(5, 8)]), Err(Unrecovered::Impossible));
        // Neither half.
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
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..800)) {
            if let Some(snapshot) = KernelSnapshot::new(&bytes) {
                prop_assert!(snapshot.dump.len() < bytes.len());
            }
        }
    }
}
