//! Trials of BPF: each program is loaded, attached and removed again.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

/// One trial of BPF.
#[derive(Debug)]
pub struct BpfTrial {
    /// The row's name.
    pub name: &'static str,
    /// What it enables if it works.
    pub what: &'static str,
    /// The result.
    pub result: Result<(), BpfTrialError>,
}

/// Why a trial failed.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct BpfTrialError {
    /// The call and the kernel's error.
    pub why: String,
    /// The errno, 0 if there was none.
    pub errno: i32,
}

/// The rows of [`crate::bpf::trials`], in its order.
const TRIALS: [&str; 6] =
    ["hints-storage", "hints-element", "hints-syscall", "hints-snapshot", "sample-memory", "kernel-memory"];

/// Tries first what every kernel needs, then each way to follow hints, reading the memory around the registers of timer
/// samples, and reading kernel memory. Each program is loaded, attached and removed again. `proc` is procfs, for our
/// pid namespace.
#[must_use]
pub(crate) fn bpf_trials(proc: &Path) -> Vec<BpfTrial> {
    let tracing = raw_tracepoint().map_err(|(call, error)| BpfTrialError {
        why: format!("{call}: {error}"),
        errno: error.raw_os_error().unwrap_or(0),
    });
    let what = "a tracing program loads and attaches (raw tracepoint sched_process_exit)";
    let trials = TRIALS.into_iter().zip(crate::bpf::trials(proc)).map(|(name, (what, tried))| {
        let result = tried.map_err(|refusal| BpfTrialError { why: refusal.to_string(), errno: refusal.errno });
        BpfTrial { name, what, result }
    });
    std::iter::once(BpfTrial { name: "bpf-tracing", what, result: tracing }).chain(trials).collect()
}

/// The beginning of `union bpf_attr` for `BPF_PROG_LOAD` (linux/bpf.h); the kernel takes the rest as zero.
#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
}

/// The beginning of `union bpf_attr` for `BPF_RAW_TRACEPOINT_OPEN`.
#[repr(C)]
struct RawTracepointOpen {
    name: u64,
    prog_fd: u32,
    padding: u32,
}

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_RAW_TRACEPOINT_OPEN: libc::c_int = 17;
const BPF_PROG_TYPE_RAW_TRACEPOINT: u32 = 17;
/// `r0 = 0; exit`, each instruction 8 bytes (linux/bpf.h): `BPF_ALU64 | BPF_MOV | BPF_K`, `BPF_JMP | BPF_EXIT`.
static RETURN_0: [[u8; 8]; 2] = [[0xb7, 0, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];

/// A command of bpf(2).
enum Command<'a> {
    /// Load a program of these instructions.
    Load,
    /// Attach the program to the raw tracepoint.
    Attach(BorrowedFd<'a>),
}

/// bpf(2), which returns a descriptor.
fn bpf(command: &Command<'_>) -> io::Result<OwnedFd> {
    let load = ProgLoad {
        prog_type: BPF_PROG_TYPE_RAW_TRACEPOINT,
        insn_cnt: RETURN_0.len() as u32,
        insns: RETURN_0.as_ptr().addr() as u64,
        license: c"GPL".as_ptr().addr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
    };
    let mut open = RawTracepointOpen { name: c"sched_process_exit".as_ptr().addr() as u64, prog_fd: 0, padding: 0 };
    let (command, attr, size) = match command {
        Command::Load => (BPF_PROG_LOAD, (&raw const load).cast::<libc::c_void>(), size_of::<ProgLoad>()),
        Command::Attach(program) => {
            open.prog_fd = program.as_raw_fd() as u32;
            (BPF_RAW_TRACEPOINT_OPEN, (&raw const open).cast(), size_of::<RawTracepointOpen>())
        }
    };
    // SAFETY: the attr is the beginning of union bpf_attr for the command and has the given size; the instructions, the licence
    // and the name in it are static.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, attr, size) };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just returned this descriptor, and it has no other owner.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Loads a program that does nothing and attaches it to a raw tracepoint, until this returns.
fn raw_tracepoint() -> Result<(), (&'static str, io::Error)> {
    let program = bpf(&Command::Load).map_err(|error| ("bpf(BPF_PROG_LOAD)", error))?;
    let attached = bpf(&Command::Attach(program.as_fd()));
    attached.map(drop).map_err(|error| ("bpf(BPF_RAW_TRACEPOINT_OPEN)", error))
}
