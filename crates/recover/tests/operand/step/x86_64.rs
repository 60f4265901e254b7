//! x86-64: registers, the memory around them, and accesses according to iced.

use std::io;

use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, OpAccess, Register};
use scxprof_recover::{CodeSource, Regs};

use super::{ptrace, read_memory, Stop};

fn registers(tid: i32) -> io::Result<libc::user_regs_struct> {
    // SAFETY: all-zero is a value of this struct of integers.
    let mut regs: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    ptrace(libc::PTRACE_GETREGS, tid, (&raw mut regs).cast())?;
    Ok(regs)
}

/// The memory around the registers, as operand.bpf.c reads it and in its layout.
fn snapshot(tid: i32, regs: &libc::user_regs_struct) -> Vec<u8> {
    let mut lines: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut add = |addr: u64| {
        let base = addr & !63;
        if !(65536..0x7fff_ffff_f000).contains(&addr) || lines.len() >= 48 {
            return;
        }
        if lines.iter().any(|(line, _)| *line == base) || (base >= regs.rsp && base + 64 <= regs.rsp + 512) {
            return;
        }
        let bytes = read_memory(tid, base, 64);
        if bytes.len() == 64 {
            lines.push((base, bytes));
        }
    };
    for addr in [regs.rsp - 1, regs.rsp - 64, regs.rsp - 128, regs.fs_base, regs.fs_base.wrapping_sub(64)] {
        add(addr);
    }
    for value in [
        regs.rax, regs.rcx, regs.rdx, regs.rbx, regs.rbp, regs.rsi, regs.rdi, regs.r8, regs.r9, regs.r10, regs.r11,
        regs.r12, regs.r13, regs.r14, regs.r15,
    ] {
        add(value);
        add(value.wrapping_add(64));
    }
    let mut bytes: Vec<u8> =
        [regs.fs_base, regs.rsp, lines.len() as u64].iter().flat_map(|word| word.to_le_bytes()).collect();
    for (base, line) in lines {
        bytes.extend(base.to_le_bytes());
        bytes.extend(line);
    }
    bytes
}

/// What the instruction at rip touches, according to iced and with the segment bases that a sample lacks.
fn accesses(
    regs: &libc::user_regs_struct,
    code: &mut dyn CodeSource,
    factory: &mut InstructionInfoFactory,
) -> Vec<(u64, u64)> {
    let Some(window) = code.window(regs.rip) else { return Vec::new() };
    let bytes = window.bytes.get((regs.rip - window.base) as usize..).unwrap_or_default();
    let insn = Decoder::with_ip(64, bytes, regs.rip, DecoderOptions::NONE).decode();
    let info = factory.info(&insn);
    let mut found = Vec::new();
    for used in info.used_memory() {
        let conditional = matches!(used.access(), OpAccess::CondRead | OpAccess::CondWrite);
        if used.access() == OpAccess::NoMemAccess || (conditional && insn.is_string_instruction() && regs.rcx == 0) {
            continue;
        }
        let addr = used.virtual_address(0, |register, _, _| {
            let full = match register.full_register() {
                Register::RAX => regs.rax,
                Register::RCX => regs.rcx,
                Register::RDX => regs.rdx,
                Register::RBX => regs.rbx,
                Register::RSP => regs.rsp,
                Register::RBP => regs.rbp,
                Register::RSI => regs.rsi,
                Register::RDI => regs.rdi,
                Register::R8 => regs.r8,
                Register::R9 => regs.r9,
                Register::R10 => regs.r10,
                Register::R11 => regs.r11,
                Register::R12 => regs.r12,
                Register::R13 => regs.r13,
                Register::R14 => regs.r14,
                Register::R15 => regs.r15,
                Register::FS => regs.fs_base,
                Register::GS => regs.gs_base,
                Register::ES | Register::CS | Register::SS | Register::DS => 0,
                _ => return None,
            };
            Some(match register.size() {
                1 => full & 0xff,
                4 => full & 0xffff_ffff,
                _ => full,
            })
        });
        if let Some(addr) = addr {
            let size = if insn.is_string_instruction() { insn.memory_size() } else { used.memory_size() };
            found.push((addr, size.size() as u64));
        }
    }
    found
}

/// The stop of `tid` before its next instruction.
pub fn stop(tid: i32, code: &mut dyn CodeSource) -> io::Result<Stop> {
    let regs = registers(tid)?;
    let general = [
        regs.rax, regs.rcx, regs.rdx, regs.rbx, regs.rsp, regs.rbp, regs.rsi, regs.rdi, regs.r8, regs.r9, regs.r10,
        regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
    ];
    Ok(Stop {
        regs: Regs::x86_64(general, regs.rip, regs.eflags),
        stack: read_memory(tid, regs.rsp, 512),
        memory: snapshot(tid, &regs),
        accesses: accesses(&regs, code, &mut InstructionInfoFactory::new()),
    })
}
