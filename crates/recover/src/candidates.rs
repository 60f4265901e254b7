//! The accesses near one sample, each with the method that found it, and the reasons for missing ones.

use std::ops::Range;

use super::insn::{MemOp, Opaque};
use super::lines::{Lines, KERNEL_HALF};
use super::regs::RegsError;
use super::wanted::{Base, OwnMemory, Read};
use scxprof_base::sample::{Access, Method};

/// The number of instructions that are read before ip, and of those after ip whose accesses are recorded even on lines
/// that are already known.
pub const MAX_STEPS: usize = 16;
/// The most candidates of one sample: half of them before ip, half from ip on.
pub const MAX_CANDIDATES: usize = 16;

/// The most lines of memory that one sample can request.
const MAX_READS: usize = 24;
/// Bytes of a cache line.
const LINE: u64 = 64;
/// No process maps its first page (`vm.mmap_min_addr`).
const LOWEST: u64 = 4096;

/// One memory access near the sample; its address is exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Address of the data.
    pub addr: u64,
    /// Bytes.
    pub size: u16,
    /// Load, store or both.
    pub access: Access,
    /// The method that found it.
    pub method: Method,
    /// Address of the instruction.
    pub insn_ip: u64,
    /// The instruction itself contains the address (rip-relative or absolute): a variable of the program, which every
    /// run of the instruction touches. The address is exact, but says little if the variable is a constant or a lock
    /// that all threads use.
    pub global: bool,
}

impl Candidate {
    /// True if both are the same access, however it was found.
    fn is_same(&self, other: &Self) -> bool {
        (self.addr, self.insn_ip, self.access) == (other.addr, other.insn_ip, other.access)
    }
}

/// Why a sample gave no candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unrecovered {
    /// A 32-bit task.
    Compat32,
    /// The record has no user registers.
    NoRegisters,
    /// No code bytes at ip.
    NoCode,
    /// The bytes at ip are not an instruction, so they are not the code that ran.
    BadInstruction,
    /// The known values contradict each other: the code is not what ran, or control came by another path.
    Inconsistent,
    /// An address that no process can have, with the same causes.
    Impossible,
    /// The operands nearby are gathers or scatters. Their indices are in vector registers, which no timer sample
    /// contains. The kernel gives vector registers (`PERF_REG_EXTENDED_MASK`) only with events of a PMU that has
    /// `PERF_PMU_CAP_EXTENDED_REGS`. On x86 this is the PMU of Intel cores, which gives only xmm0 to xmm15, by PEBS and
    /// not in `sample_regs_user` (`perf_try_init_event` in kernel/events/core.c, `x86_pmu_hw_config` in
    /// arch/x86/events/core.c). Software events and tracepoints fail with `EOPNOTSUPP`.
    Gather,
    /// The operands nearby are thread-local: the fs base is not in the sample.
    Tls,
    /// The operands nearby are per-CPU data; only in kernel code.
    PerCpu,
    /// The operands nearby are under a mask, which is not in the sample.
    Masked,
    /// The operands nearby have no single size and address (`xsave`, bit strings).
    Odd,
    /// There are operands nearby, but their registers were overwritten or are not yet known.
    Overwritten,
    /// There are operands nearby, all on the thread's own stack.
    StackOnly,
    /// No memory operand nearby.
    NoOperand,
}

impl Unrecovered {
    /// All reasons; if several hold, the first one is returned.
    pub const ALL: [Self; 14] = [
        Self::Compat32,
        Self::NoRegisters,
        Self::NoCode,
        Self::BadInstruction,
        Self::Inconsistent,
        Self::Impossible,
        Self::Gather,
        Self::Tls,
        Self::PerCpu,
        Self::Masked,
        Self::Odd,
        Self::Overwritten,
        Self::StackOnly,
        Self::NoOperand,
    ];

    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Compat32 => "32-bit task",
            Self::NoRegisters => "no user registers",
            Self::NoCode => "no code at ip",
            Self::BadInstruction => "no instruction at ip",
            Self::Inconsistent => "inconsistent",
            Self::Impossible => "impossible address",
            Self::Gather => "gather or scatter",
            Self::Tls => "thread-local",
            Self::PerCpu => "per-CPU",
            Self::Masked => "masked",
            Self::Odd => "no single place",
            Self::Overwritten => "registers overwritten",
            Self::StackOnly => "stack only",
            Self::NoOperand => "no memory operand",
        }
    }
}

impl From<RegsError> for Unrecovered {
    fn from(error: RegsError) -> Self {
        match error {
            RegsError::Compat32 => Self::Compat32,
            RegsError::Missing => Self::NoRegisters,
        }
    }
}

/// One memory operand of the instructions near a sample: at most [`MAX_STEPS`] instructions before ip, and as many from
/// ip on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    /// Address of the instruction.
    pub insn_ip: u64,
    /// Why its address is unknown; `None` if it is known.
    pub unresolved: Option<Unrecovered>,
}

/// The candidates and reasons found so far.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    pub(super) all: Vec<Candidate>,
    /// The candidates from ip on that the first run found, set aside for the second run, which searches nearby
    /// instructions again.
    exact: Vec<Candidate>,
    pub(super) operands: Vec<Operand>,
    /// Operands with an unknown address so far.
    pub(super) unknown: usize,
    reasons: u16,
    /// The requested lines of memory that is not constant.
    pub(super) reads: Vec<Read>,
    /// The memory of its own that the thread uses.
    pub(super) own: OwnMemory,
    /// Allocations of lines that are not in use.
    spare: Vec<Lines>,
}

/// The most spare allocations that are kept: as many as are in use at a time.
const MAX_SPARE: usize = 4;

impl Candidates {
    /// An allocation for lines, with undefined content.
    pub(super) fn spare_lines(&mut self) -> Lines {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes back an allocation.
    pub(super) fn give_back(&mut self, lines: Lines) {
        if lines.has_memory() && self.spare.len() < MAX_SPARE {
            self.spare.push(lines);
        }
    }

    /// Records a request for the bytes of `operand`, which are at `addr`. `literal`: its address follows from the code
    /// alone.
    pub(super) fn read(&mut self, operand: &MemOp, addr: u64, literal: bool) {
        let size = u64::from(operand.size);
        let base = match literal {
            _ if operand.fs => Base::Fs,
            true => Base::Itself,
            false => Base::Registers,
        };
        for addr in [addr, addr.wrapping_add(size.saturating_sub(1))] {
            let read = Read { addr, base };
            if self.reads.len() < MAX_READS && !self.reads.iter().any(|other| other.line() == read.line()) {
                self.reads.push(read);
            }
        }
    }

    /// Drops all but the requests.
    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.operands.clear();
        (self.reasons, self.unknown) = (0, 0);
    }

    /// Sets aside the candidates after the first `count`.
    pub(super) fn set_aside(&mut self, count: usize) {
        self.exact.clear();
        self.exact.extend(self.all.drain(count.min(self.all.len())..));
    }

    /// Adds the candidates that were set aside and not found again, while there is room.
    pub(super) fn fill(&mut self, room: usize) {
        for candidate in &self.exact {
            if self.all.len() < room && !self.all.iter().any(|other| other.is_same(candidate)) {
                self.all.push(*candidate);
            }
        }
    }

    /// Counts an operand of the instructions near the sample, unless it is on the thread's own stack.
    pub(super) fn look_at(&mut self, operand: &MemOp, addr: Option<u64>, insn_ip: u64, site: &Site) {
        if addr.is_none_or(|addr| !site.stack.contains(&addr)) {
            self.operands.push(Operand { insn_ip, unresolved: addr.is_none().then(|| unknown(operand, insn_ip)) });
        }
    }

    pub(super) fn reason(&mut self, reason: Unrecovered) {
        self.reasons |= 1 << reason as u16;
    }

    fn has(&self, reason: Unrecovered) -> bool {
        self.reasons & (1 << reason as u16) != 0
    }

    pub(super) fn first_reason(&self) -> Unrecovered {
        Unrecovered::ALL.into_iter().find(|&reason| self.has(reason)).unwrap_or(Unrecovered::NoOperand)
    }

    /// True if such an access to that line is already known.
    pub(super) fn has_line(&self, addr: u64, access: Access) -> bool {
        self.all.iter().any(|other| other.addr / LINE == addr / LINE && other.access == access)
    }

    /// Records one operand; false if its address is impossible.
    pub(super) fn take(
        &mut self,
        operand: &MemOp,
        addr: Option<u64>,
        method: Method,
        insn_ip: u64,
        site: &Site,
    ) -> bool {
        let Some(addr) = addr else {
            self.reason(unknown(operand, insn_ip));
            self.unknown += 1;
            return true;
        };
        // Only kernel code can access the kernel's half.
        let is_kernels = addr >= KERNEL_HALF && insn_ip >= KERNEL_HALF;
        if addr < LOWEST || !is_kernels && addr >= operand.highest() - u64::from(operand.size) {
            self.reason(Unrecovered::Impossible);
            return false;
        }
        if site.stack.contains(&addr) {
            self.reason(Unrecovered::StackOnly);
            return true;
        }
        let global = operand.registers() == 0;
        let mut candidate = Candidate { addr, size: operand.size, access: operand.access, method, insn_ip, global };
        if method == Method::Racy {
            // A candidate that was found without memory does not depend on memory.
            let exact = self.exact.iter().find(|other| other.is_same(&candidate));
            candidate.method = exact.map_or(method, |exact| exact.method);
        }
        if self.all.len() < site.room && !self.all.iter().any(|other| other.is_same(&candidate)) {
            self.all.push(candidate);
        }
        true
    }
}

/// Why the address of an operand is unknown.
fn unknown(operand: &MemOp, insn_ip: u64) -> Unrecovered {
    match operand.opaque {
        Some(Opaque::Tls) if insn_ip >= KERNEL_HALF => Unrecovered::PerCpu,
        Some(Opaque::Tls) => Unrecovered::Tls,
        Some(Opaque::Gather) => Unrecovered::Gather,
        Some(Opaque::Masked) => Unrecovered::Masked,
        Some(Opaque::Odd) => Unrecovered::Odd,
        None => Unrecovered::Overwritten,
    }
}

/// The conditions for candidates of one direction.
pub(super) struct Site {
    pub(super) stack: Range<u64>,
    pub(super) room: usize,
}
