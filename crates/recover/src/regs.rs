//! The registers of a sample (`PERF_SAMPLE_REGS_USER`, or those of interrupted kernel code), in the order that instructions number them.

/// The registers to request in `perf_event_attr::sample_regs_user`: ax bx cx dx si di bp sp ip flags and r8 to r15
/// (arch/x86/include/uapi/asm/perf_regs.h). The segment registers are of no use: they do not contain their bases.
pub const REGS_MASK: u64 = 0x00ff_03ff;

/// Bytes of stack to request in `perf_event_attr::sample_stack_user`. The rest of a longer dump is ignored.
pub const STACK_DUMP_SIZE: u16 = 512;

/// `PERF_SAMPLE_REGS_ABI_64` (linux/perf_event.h).
const ABI_64: u64 = 2;
/// `PERF_SAMPLE_REGS_ABI_32`.
const ABI_32: u64 = 1;

/// The index in perf's numbering of each general register, as instructions number them (ax cx dx bx sp bp si di r8 ..).
const PERF_INDEX: [u32; 16] = [0, 2, 3, 1, 7, 6, 4, 5, 16, 17, 18, 19, 20, 21, 22, 23];
const PERF_IP: u32 = 8;
const PERF_FLAGS: u32 = 9;

/// The registers of 64-bit code at an instruction boundary: `rip` is the next instruction to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Regs {
    /// rax rcx rdx rbx rsp rbp rsi rdi r8 .. r15: in the order of instruction encodings, which is not perf's order.
    pub gpr: [u64; 16],
    /// The next instruction.
    pub rip: u64,
    /// RFLAGS.
    pub rflags: u64,
}

/// Why the registers of a record are of no use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RegsError {
    /// The task runs 32-bit code (abi 1).
    #[error("a 32-bit task")]
    Compat32,
    /// The record has no user registers (abi 0: a kernel thread), or fewer than [`REGS_MASK`] asks for.
    #[error("no user registers in the record")]
    Missing,
}

impl Regs {
    /// The registers of a record: `abi`, then one value for each bit of `mask` (the attr's `sample_regs_user`).
    ///
    /// # Errors
    /// [`RegsError`] if the task is 32-bit or a register is missing.
    pub fn from_perf(abi: u64, mask: u64, values: &[u64]) -> Result<Self, RegsError> {
        match abi {
            ABI_64 => {}
            ABI_32 => return Err(RegsError::Compat32),
            _ => return Err(RegsError::Missing),
        }
        let value = |register: u32| {
            let bit = 1u64 << register;
            if mask & bit == 0 {
                return Err(RegsError::Missing);
            }
            values.get((mask & (bit - 1)).count_ones() as usize).copied().ok_or(RegsError::Missing)
        };
        let mut gpr = [0; 16];
        for (to, register) in gpr.iter_mut().zip(PERF_INDEX) {
            *to = value(register)?;
        }
        Ok(Self { gpr, rip: value(PERF_IP)?, rflags: value(PERF_FLAGS)? })
    }

    /// The same of 64-bit code, all of [`REGS_MASK`]; `None` if there are fewer.
    #[must_use]
    pub(super) fn from_values(values: &[u64]) -> Option<Self> {
        Self::from_perf(ABI_64, REGS_MASK, values).ok()
    }

    /// The stack pointer.
    #[must_use]
    pub fn rsp(&self) -> u64 {
        self.gpr[4]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_found_under_any_mask() {
        // perf's default mask has cs, ss and the other segments between flags and r8.
        for mask in [REGS_MASK, 0x00ff_0fff, 0x00ff_ffff] {
            let values: Vec<u64> = (0..24).filter(|bit| mask >> bit & 1 == 1).collect();
            let regs = Regs::from_perf(2, mask, &values).unwrap();
            assert_eq!(regs.gpr, [0, 2, 3, 1, 7, 6, 4, 5, 16, 17, 18, 19, 20, 21, 22, 23]);
            assert_eq!((regs.rip, regs.rflags, regs.rsp()), (8, 9, 7));
        }
    }

    #[test]
    fn short_and_foreign_records_are_told_apart() {
        assert_eq!(Regs::from_perf(1, REGS_MASK, &[0; 18]), Err(RegsError::Compat32));
        assert_eq!(Regs::from_perf(0, REGS_MASK, &[]), Err(RegsError::Missing));
        assert_eq!(Regs::from_perf(2, REGS_MASK, &[0; 17]), Err(RegsError::Missing));
        assert_eq!(Regs::from_perf(2, 0x3ff, &[0; 18]), Err(RegsError::Missing));
    }
}
