//! From one sample to its candidates, each with the method that found it, or to the reason why there are none.

use std::ops::Range;

use super::decode::{bit, Insn, MemOp, Opaque};
use super::decoded::{Decoded, Here};
use super::emulate::{Machine, RCX};
use super::forward::Forward;
use super::lines::{Lines, Snapshot};
use super::memo::CacheCounts;
use super::regs::{RegsError, UserRegs};
use super::replay::Replay;
use super::wanted::{Base, Read, Wanted};
use super::window::{CodeSource, Cut};
use crate::sample::{Access, Method};

/// Instructions read before ip; and after ip those whose accesses are recorded even on lines that are already known.
pub const MAX_STEPS: usize = 16;
/// The most candidates of one sample: half of them before ip, half from ip on.
pub const MAX_CANDIDATES: usize = 16;

/// Lines of memory that one sample can request.
const MAX_READS: usize = 24;
/// Bytes of a cache line.
const LINE: u64 = 64;
/// No process maps its first page (`vm.mmap_min_addr`).
const LOWEST: u64 = 4096;
/// An upper bound of user addresses (57-bit linear addresses; the upper half is the kernel's).
const HIGHEST: u64 = 1 << 56;

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
    /// The instruction itself contains the address (rip-relative or absolute): a variable of the program, which every run of
    /// the instruction touches. It is exact, but tells little if it is a constant or a lock that all threads use.
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
    /// The bytes at ip are no instruction, so they are not what ran.
    BadInstruction,
    /// The known values contradict: the code is not what ran, or control came another way.
    Inconsistent,
    /// An address that no process can have; the causes are the same.
    Impossible,
    /// The operands nearby are gathers or scatters: their indices are in vector registers, which no sample of a timer has. The
    /// kernel gives vector registers (`PERF_REG_EXTENDED_MASK`) only with events of a PMU that has
    /// `PERF_PMU_CAP_EXTENDED_REGS`, which on x86 is that of Intel cores, and there only xmm0 to xmm15, by PEBS and not in
    /// `sample_regs_user` (`perf_try_init_event` in kernel/events/core.c, `x86_pmu_hw_config` in arch/x86/events/core.c). Software
    /// events and tracepoints fail with `EOPNOTSUPP`.
    Gather,
    /// The operands nearby are thread-local: the fs base is not in the sample.
    Tls,
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
    pub const ALL: [Self; 13] = [
        Self::Compat32,
        Self::NoRegisters,
        Self::NoCode,
        Self::BadInstruction,
        Self::Inconsistent,
        Self::Impossible,
        Self::Gather,
        Self::Tls,
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

/// One memory operand of the instructions near a sample: at most [`MAX_STEPS`] of them before ip, and as many from ip on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    /// Address of the instruction.
    pub insn_ip: u64,
    /// Why its address is unknown; `None` if it is known.
    pub unresolved: Option<Unrecovered>,
}

/// The result for one sample.
#[derive(Debug, Clone, Copy)]
pub struct Outcome<'a> {
    /// The candidates, first those before ip, each nearest to ip first. Each represents `1 / candidates.len()` of the sample.
    pub candidates: &'a [Candidate],
    /// Why there are none.
    pub reason: Option<Unrecovered>,
    /// The operands that were looked at, each time that one was, but those on the thread's own stack.
    pub operands: &'a [Operand],
    /// The memory that was requested; `None` if the sample contains none.
    pub wanted: Option<Wanted>,
}

/// Candidates and reasons as they are found.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    pub(super) all: Vec<Candidate>,
    /// Those from ip on that the first run found, while the second one looks for all that are near.
    exact: Vec<Candidate>,
    operands: Vec<Operand>,
    /// Operands with an unknown address so far.
    unknown: usize,
    reasons: u16,
    /// Lines of requested memory that is not constant.
    reads: Vec<Read>,
}

impl Candidates {
    /// Records a request for the bytes of `operand`, which are at `addr`.
    pub(super) fn read(&mut self, operand: &MemOp, addr: u64) {
        let size = u64::from(operand.size);
        let base = match operand.registers() {
            _ if operand.fs => Base::Fs,
            0 => Base::Itself,
            _ => Base::Registers,
        };
        for addr in [addr, addr.wrapping_add(size.saturating_sub(1))] {
            let read = Read { addr, base };
            if self.reads.len() < MAX_READS && !self.reads.iter().any(|other| other.line() == read.line()) {
                self.reads.push(read);
            }
        }
    }

    /// Forgets all but the requests.
    fn clear(&mut self) {
        self.all.clear();
        self.operands.clear();
        (self.reasons, self.unknown) = (0, 0);
    }

    /// Sets aside the candidates after the first `count`.
    fn set_aside(&mut self, count: usize) {
        self.exact.clear();
        self.exact.extend(self.all.drain(count.min(self.all.len())..));
    }

    /// Adds what was set aside and not found again, while there is room.
    fn fill(&mut self, room: usize) {
        for candidate in &self.exact {
            if self.all.len() < room && !self.all.iter().any(|other| other.is_same(candidate)) {
                self.all.push(*candidate);
            }
        }
    }

    /// Counts an operand of the instructions near the sample, unless it is on the thread's own stack.
    pub(super) fn look_at(&mut self, operand: &MemOp, addr: Option<u64>, insn_ip: u64, site: &Site) {
        if addr.is_none_or(|addr| !site.stack.contains(&addr)) {
            self.operands.push(Operand { insn_ip, unresolved: addr.is_none().then(|| unknown(operand)) });
        }
    }

    fn reason(&mut self, reason: Unrecovered) {
        self.reasons |= 1 << reason as u16;
    }

    fn has(&self, reason: Unrecovered) -> bool {
        self.reasons & (1 << reason as u16) != 0
    }

    fn first_reason(&self) -> Unrecovered {
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
            self.reason(unknown(operand));
            self.unknown += 1;
            return true;
        };
        if addr < LOWEST || addr >= HIGHEST - u64::from(operand.size) {
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
            // What is known without memory does not depend on it.
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
fn unknown(operand: &MemOp) -> Unrecovered {
    match operand.opaque {
        Some(Opaque::Tls) => Unrecovered::Tls,
        Some(Opaque::Gather) => Unrecovered::Gather,
        Some(Opaque::Masked) => Unrecovered::Masked,
        Some(Opaque::Odd) => Unrecovered::Odd,
        None => Unrecovered::Overwritten,
    }
}

/// What the candidates of one direction are checked against.
pub(super) struct Site {
    stack: Range<u64>,
    pub(super) room: usize,
}

/// Recovers operands; keeps decoded code within a bound.
#[derive(Debug)]
pub struct Recovery {
    decoded: Decoded,
    replay: Replay,
    found: Candidates,
}

impl Recovery {
    /// `budget`: bytes for decoded code.
    #[must_use]
    pub fn new(budget: usize) -> Self {
        Self { decoded: Decoded::new(budget), replay: Replay::default(), found: Candidates::default() }
    }

    /// Counts of the cache of decoded code.
    #[must_use]
    pub fn cache_counts(&self) -> CacheCounts {
        self.decoded.counts()
    }

    /// Recovers the accesses near one sample of user code.
    ///
    /// `dump` is the stack from rsp on (its first 512 bytes are used), without the bytes that the kernel could not read
    /// (`dyn_size`). Accesses in `stack` are left out ([`super::StackRange`]).
    pub fn recover(
        &mut self,
        regs: &UserRegs,
        dump: &[u8],
        stack: Range<u64>,
        code: &mut dyn CodeSource,
    ) -> Outcome<'_> {
        self.recover_with(regs, dump, Snapshot::default(), stack, code)
    }

    /// The same with the memory around the registers at the moment of the sample. Candidates that depend on it are
    /// [`Method::Racy`]: another thread may have written it since.
    pub fn recover_with(
        &mut self,
        regs: &UserRegs,
        dump: &[u8],
        memory: Snapshot<'_>,
        stack: Range<u64>,
        code: &mut dyn CodeSource,
    ) -> Outcome<'_> {
        self.found.clear();
        self.found.reads.clear();
        if let Err(reason) = self.look(regs, dump, memory, stack.clone(), code) {
            self.found.clear();
            self.found.reason(reason);
        }
        let operands = self.found.operands.as_slice();
        let candidates = self.found.all.as_slice();
        let reason = candidates.is_empty().then(|| self.found.first_reason());
        let wanted = (!memory.is_empty()).then(|| Wanted::of(regs, memory, &self.found.reads, &stack));
        Outcome { candidates, reason, operands, wanted }
    }

    fn look(
        &mut self,
        regs: &UserRegs,
        dump: &[u8],
        memory: Snapshot<'_>,
        stack: Range<u64>,
        code: &mut dyn CodeSource,
    ) -> Result<(), Unrecovered> {
        let mut here = None;
        let mut now = Machine::new(regs, dump);
        now.fs = memory.fs_base();
        for (base, bytes) in memory.lines() {
            now.stack.add_red_zone(base, bytes);
        }
        let line = self.decoded.line(code, regs.rip, &mut here).ok_or(Unrecovered::NoCode)?;
        let at_ip = line.first().ok_or(Unrecovered::BadInstruction)?;
        let mut site = Site { stack, room: MAX_CANDIDATES / 2 };
        let end = self.backward(now.clone(), at_ip, code, regs.rip, &mut here, &site);
        site.room = self.found.all.len() + MAX_CANDIDATES / 2;
        let mut machine = now;
        if let Some(end) = end {
            machine.stack = end.stack;
        }
        let lines = Lines::new(memory);
        if lines.is_empty() {
            Forward::new(&mut self.decoded, &mut self.found, code, here, &site).run(machine, regs.rip);
            return Ok(());
        }
        // First without them, to find out what depends on them.
        let (candidates, operands, unknown) = (self.found.all.len(), self.found.operands.len(), self.found.unknown);
        Forward::new(&mut self.decoded, &mut self.found, code, here, &site).run(machine.clone(), regs.rip);
        if self.found.all.len() < site.room || self.found.unknown > unknown {
            machine.stack.lines = lines;
            // It comes by the same operands again, and knows more of them. Accesses further from ip do not take the room of those
            // that need memory: they would be found more often than these.
            self.found.operands.truncate(operands);
            self.found.set_aside(candidates);
            let forward = Forward::new(&mut self.decoded, &mut self.found, code, here, &site);
            forward.with_memory().run(machine, regs.rip);
            self.found.fill(site.room);
        }
        Ok(())
    }

    /// Methods c, i and r. Returns the state at ip with what was learned of the stack, if it is consistent.
    fn backward(
        &mut self,
        mut now: Machine,
        at_ip: &Insn,
        code: &mut dyn CodeSource,
        ip: u64,
        here: &mut Option<Here>,
        site: &Site,
    ) -> Option<Box<Machine>> {
        let window = self.decoded.window(code, ip, here)?;
        now.bias = here.as_ref()?.bias;
        let mut written = 0;
        if at_ip.is_repeated() {
            // Interrupted halfway: its pointers and their memory have changed since it began.
            now.havoc(at_ip, Default::default());
            written = at_ip.writes;
        }
        if matches!(window.cut, Cut::Leader | Cut::Call | Cut::Unsynchronised) && window.insns.is_empty() {
            return None;
        }
        let Some(end) = self.replay.run(&now, &window.insns) else {
            self.found.reason(Unrecovered::Inconsistent);
            return None;
        };
        for (step, insn) in window.insns.iter().enumerate() {
            written |= insn.writes;
            let addresses = self.replay.addresses(step);
            for (slot, operand) in insn.operands() {
                let addr = addresses.get(slot).copied().flatten();
                let computed = || {
                    let before = self.replay.before(step)?;
                    operand.address(now.bias, now.fs, |register| before.get(usize::from(register))?.get())
                };
                let method = if needs(operand) & written == 0 {
                    Method::Before
                } else if computed() == addr {
                    Method::Inverted
                } else {
                    Method::Replayed
                };
                let insn_ip = insn.code.ip().wrapping_add(now.bias);
                if !self.found.take(operand, addr, method, insn_ip, site) {
                    // A certain way to an impossible address: control did not come this way.
                    self.found.all.clear();
                    self.found.operands.clear();
                    return None;
                }
                self.found.look_at(operand, addr, insn_ip, site);
            }
        }
        (!at_ip.is_repeated()).then_some(end)
    }
}

/// The registers that an access depends on.
pub(super) fn needs(operand: &MemOp) -> u16 {
    operand.registers() | if operand.repeated { bit(RCX) } else { 0 }
}
