//! Single-steps a thread: for every instruction its registers, its stack, and from these the accesses that it made.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, OpAccess, Register};
use scxprof_recover::{CodeSource, Regs};

/// One stop before an instruction.
pub struct Stop {
    pub regs: Regs,
    pub stack: Vec<u8>,
    /// What the BPF program would read.
    pub memory: Vec<u8>,
    /// Address and size of what the instruction touches.
    pub accesses: Vec<(u64, u64)>,
}

fn ptrace(request: libc::c_uint, tid: i32, data: *mut libc::c_void) -> io::Result<()> {
    // SAFETY: every request used here takes no address, and data that is null, a number, or a live user_regs_struct.
    let result = unsafe { libc::ptrace(request, tid, std::ptr::null_mut::<libc::c_void>(), data) };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn wait(tid: i32) -> io::Result<i32> {
    let mut status = 0;
    // SAFETY: `status` lives over the call.
    if unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(status)
}

fn registers(tid: i32) -> io::Result<libc::user_regs_struct> {
    // SAFETY: all-zero is a value of this struct of integers.
    let mut regs: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    ptrace(libc::PTRACE_GETREGS, tid, (&raw mut regs).cast())?;
    Ok(regs)
}

fn read_memory(tid: i32, addr: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; length];
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: the local vector is `bytes`; the remote one is only read, by the kernel, which checks it.
    let read = unsafe { libc::process_vm_readv(tid, &raw const local, 1, &raw const remote, 1, 0) };
    bytes.truncate(usize::try_from(read).unwrap_or(0));
    bytes
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

/// Stops `tid` and steps it over `count` instructions.
pub fn trace(tid: i32, count: usize, code: &mut dyn CodeSource) -> io::Result<Vec<Stop>> {
    ptrace(libc::PTRACE_SEIZE, tid, std::ptr::null_mut())?;
    ptrace(libc::PTRACE_INTERRUPT, tid, std::ptr::null_mut())?;
    wait(tid)?;
    step(tid, count, code)
}

/// Starts a program that waits before its first instruction, for [`step`] by the same thread.
pub fn start(command: &mut Command) -> io::Result<Child> {
    let request = || {
        // SAFETY: this request ignores all other arguments.
        let result = unsafe { libc::ptrace(libc::PTRACE_TRACEME) };
        if result == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    };
    // SAFETY: the closure makes one system call and reads errno, both of which are allowed after fork.
    let child = unsafe { command.pre_exec(request) }.spawn()?;
    wait(child.id() as i32)?;
    Ok(child)
}

/// Steps `tid`, which is stopped, over `count` instructions, or until it ends or faults.
pub fn step(tid: i32, count: usize, code: &mut dyn CodeSource) -> io::Result<Vec<Stop>> {
    let mut factory = InstructionInfoFactory::new();
    let mut stops = Vec::with_capacity(count);
    for _ in 0..count {
        let regs = registers(tid)?;
        stops.push(Stop {
            regs: Regs {
                gpr: [
                    regs.rax, regs.rcx, regs.rdx, regs.rbx, regs.rsp, regs.rbp, regs.rsi, regs.rdi, regs.r8, regs.r9,
                    regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
                ],
                rip: regs.rip,
                rflags: regs.eflags,
            },
            stack: read_memory(tid, regs.rsp, 512),
            memory: snapshot(tid, &regs),
            accesses: accesses(&regs, code, &mut factory),
        });
        ptrace(libc::PTRACE_SINGLESTEP, tid, std::ptr::null_mut())?;
        let status = wait(tid)?;
        let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
        if !libc::WIFSTOPPED(status) || faults.contains(&libc::WSTOPSIG(status)) {
            break;
        }
    }
    let _ = ptrace(libc::PTRACE_DETACH, tid, std::ptr::null_mut());
    Ok(stops)
}
