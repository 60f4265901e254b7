//! arm64: registers, and accesses according to a decoder of its own.

use std::io;

use scxprof_base::arch::Arch;
use scxprof_recover::{CodeSource, Regs};

use super::{read_memory, Stop};

#[path = "../a64.rs"]
mod a64;

/// `NT_PRSTATUS` (linux/elf.h).
const NT_PRSTATUS: usize = 1;

fn registers(tid: i32) -> io::Result<libc::user_regs_struct> {
    // SAFETY: all-zero is a value of this struct of integers.
    let mut regs: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    let mut part = libc::iovec { iov_base: (&raw mut regs).cast(), iov_len: std::mem::size_of_val(&regs) };
    // SAFETY: the vector is `regs`, which the kernel fills in as far as its length goes.
    let result = unsafe { libc::ptrace(libc::PTRACE_GETREGSET, tid, NT_PRSTATUS, &raw mut part) };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(regs)
}

/// The stop of `tid` before its next instruction.
pub fn stop(tid: i32, code: &mut dyn CodeSource) -> io::Result<Stop> {
    let found = registers(tid)?;
    let mut regs = Regs { arch: Arch::Arm64, ip: found.pc, ..Regs::default() };
    for (to, from) in regs.gpr.iter_mut().zip(found.regs.into_iter().chain([found.sp])) {
        *to = from;
    }
    let word = code.window(found.pc).and_then(|window| {
        let bytes = window.bytes.get((found.pc - window.base) as usize..)?;
        Some(u32::from_le_bytes(*bytes.first_chunk()?))
    });
    let accesses = word.map_or_else(Vec::new, |word| a64::accesses(word, found.pc, &regs.gpr).into_iter().collect());
    Ok(Stop { regs, stack: read_memory(tid, found.sp, 512), memory: Vec::new(), accesses })
}
