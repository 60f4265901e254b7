//! Single-steps a thread: for every instruction its registers, its stack, and from these the accesses that it made.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

#[cfg(target_arch = "aarch64")]
use arm64::stop;
use scxprof_recover::{CodeSource, Regs};
#[cfg(target_arch = "x86_64")]
use x86_64::stop;

// With their paths: this file is a module of two test binaries, one of which names its path too.
#[cfg(target_arch = "aarch64")]
#[path = "step/arm64.rs"]
mod arm64;
#[cfg(target_arch = "x86_64")]
#[path = "step/x86_64.rs"]
mod x86_64;

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

pub fn wait(tid: i32) -> io::Result<i32> {
    let mut status = 0;
    // SAFETY: `status` lives over the call.
    if unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(status)
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
    let mut stops = Vec::with_capacity(count);
    for _ in 0..count {
        stops.push(stop(tid, code)?);
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
