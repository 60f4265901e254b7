//! The registers of a sample (`PERF_SAMPLE_REGS_USER`, or those of interrupted kernel code), in the numbering of
//! instructions.

use scxprof_base::arch::Arch;

/// The registers of x86-64 to request in `perf_event_attr::sample_regs_user`: ax bx cx dx si di bp sp ip flags and r8
/// to r15 (arch/x86/include/uapi/asm/perf_regs.h). The segment registers are useless, because they do not contain their
/// bases.
const X86_64_MASK: u64 = 0x00ff_03ff;
/// The registers of arm64: x0 to x30, sp and pc (arch/arm64/include/uapi/asm/perf_regs.h). The kernel gives no flags.
const ARM64_MASK: u64 = 0x1_ffff_ffff;

/// Bytes of stack to request in `perf_event_attr::sample_stack_user`. The rest of a longer dump is ignored.
pub const STACK_DUMP_SIZE: u16 = 512;

/// `PERF_SAMPLE_REGS_ABI_64` (linux/perf_event.h).
const ABI_64: u64 = 2;
/// `PERF_SAMPLE_REGS_ABI_32`.
const ABI_32: u64 = 1;

/// perf's number of each general register of x86-64, in the numbering of instructions (ax cx dx bx sp bp si di r8 ..).
const PERF_INDEX: [u32; 16] = [0, 2, 3, 1, 7, 6, 4, 5, 16, 17, 18, 19, 20, 21, 22, 23];
const PERF_IP: u32 = 8;
const PERF_FLAGS: u32 = 9;
/// perf's number of pc on arm64. x0 to x30 and sp have the same numbers in perf and in instructions.
const ARM64_PC: u32 = 32;

/// The registers to request in `perf_event_attr::sample_regs_user`.
#[must_use]
pub const fn regs_mask(arch: Arch) -> u64 {
    match arch {
        Arch::X86_64 => X86_64_MASK,
        Arch::Arm64 => ARM64_MASK,
    }
}

/// The registers to request on this host; none if recovery does not support its architecture.
pub const REGS_MASK: u64 = match Arch::HOST {
    Some(arch) => regs_mask(arch),
    None => 0,
};

/// The registers of 64-bit code at an instruction boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Regs {
    /// The architecture that they belong to.
    pub arch: Arch,
    /// The general registers in the numbering of instructions, which differs from perf's: rax rcx rdx rbx rsp rbp rsi
    /// rdi r8 .. r15, or x0 .. x30 sp.
    pub gpr: [u64; 32],
    /// The next instruction to run.
    pub ip: u64,
    /// RFLAGS; 0 on arm64, where a sample has no flags.
    pub flags: u64,
}

/// Why the registers of a record cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RegsError {
    /// The task runs 32-bit code (abi 1).
    #[error("a 32-bit task")]
    Compat32,
    /// The record has no user registers (abi 0: a kernel thread), or fewer than [`regs_mask`] asks for.
    #[error("no user registers in the record")]
    Missing,
}

impl Regs {
    /// The registers of a record: `abi`, then one value for each bit of `mask` (the attr's `sample_regs_user`).
    ///
    /// # Errors
    /// [`RegsError`] if the task is 32-bit or a register is missing.
    pub fn from_perf(arch: Arch, abi: u64, mask: u64, values: &[u64]) -> Result<Self, RegsError> {
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
        let mut regs = Self { arch, ..Self::default() };
        match arch {
            Arch::X86_64 => {
                for (to, register) in regs.gpr.iter_mut().zip(PERF_INDEX) {
                    *to = value(register)?;
                }
                (regs.ip, regs.flags) = (value(PERF_IP)?, value(PERF_FLAGS)?);
            }
            Arch::Arm64 => {
                for (to, register) in regs.gpr.iter_mut().zip(0..) {
                    *to = value(register)?;
                }
                regs.ip = value(ARM64_PC)?;
            }
        }
        Ok(regs)
    }

    /// The registers of a sample of this host, all of [`REGS_MASK`].
    ///
    /// # Errors
    /// [`RegsError`] if the task is 32-bit, registers are missing, or recovery does not support this host.
    pub fn of_host(abi: u64, values: &[u64]) -> Result<Self, RegsError> {
        Self::from_perf(Arch::HOST.ok_or(RegsError::Missing)?, abi, REGS_MASK, values)
    }

    /// The registers of 64-bit code, all of [`regs_mask`]; `None` if some are missing.
    #[must_use]
    pub(super) fn from_values(arch: Arch, values: &[u64]) -> Option<Self> {
        Self::from_perf(arch, ABI_64, regs_mask(arch), values).ok()
    }

    /// The registers of x86-64, in the order of `gpr`.
    #[must_use]
    pub fn x86_64(general: [u64; 16], rip: u64, rflags: u64) -> Self {
        let mut gpr = [0; 32];
        for (to, from) in gpr.iter_mut().zip(general) {
            *to = from;
        }
        Self { arch: Arch::X86_64, gpr, ip: rip, flags: rflags }
    }

    /// The stack pointer.
    #[must_use]
    pub fn sp(&self) -> u64 {
        self.gpr.get(usize::from(self.sp_number())).copied().unwrap_or_default()
    }

    /// The number of the stack pointer among the general registers.
    pub(super) fn sp_number(&self) -> u8 {
        match self.arch {
            Arch::X86_64 => 4,
            Arch::Arm64 => 31,
        }
    }

    /// The user address that code accesses through a register with this value: arm64 ignores the top byte
    /// (Documentation/arch/arm64/tagged-pointers.rst).
    pub(super) fn user_address(&self, value: u64) -> u64 {
        match self.arch {
            Arch::X86_64 => value,
            Arch::Arm64 => value & ((1 << 56) - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_found_under_any_mask() {
        // perf's default mask has cs, ss and the other segments between flags and r8.
        for mask in [X86_64_MASK, 0x00ff_0fff, 0x00ff_ffff] {
            let values: Vec<u64> = (0..24).filter(|bit| mask >> bit & 1 == 1).collect();
            let regs = Regs::from_perf(Arch::X86_64, 2, mask, &values).unwrap();
            assert_eq!(regs.gpr[..16], [0, 2, 3, 1, 7, 6, 4, 5, 16, 17, 18, 19, 20, 21, 22, 23]);
            assert_eq!((regs.ip, regs.flags, regs.sp()), (8, 9, 7));
        }
        // vg of SVE comes after pc.
        for mask in [ARM64_MASK, ARM64_MASK | 1 << 46] {
            let values: Vec<u64> = (100..).take(mask.count_ones() as usize).collect();
            let regs = Regs::from_perf(Arch::Arm64, 2, mask, &values).unwrap();
            assert_eq!((regs.gpr[0], regs.gpr[30], regs.sp(), regs.ip), (100, 130, 131, 132));
        }
    }

    #[test]
    fn short_and_foreign_records_are_told_apart() {
        let x86 = |abi, mask, values| Regs::from_perf(Arch::X86_64, abi, mask, values);
        assert_eq!(x86(1, X86_64_MASK, &[0; 18]), Err(RegsError::Compat32));
        assert_eq!(x86(0, X86_64_MASK, &[]), Err(RegsError::Missing));
        assert_eq!(x86(2, X86_64_MASK, &[0; 17]), Err(RegsError::Missing));
        assert_eq!(x86(2, 0x3ff, &[0; 18]), Err(RegsError::Missing));
        assert_eq!(Regs::from_perf(Arch::Arm64, 2, ARM64_MASK, &[0; 32]), Err(RegsError::Missing));
    }
}
