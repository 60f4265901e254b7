//! From one sample to its candidates, each with the method that found it, or to the reason why there are none.

use std::ops::Range;
use std::sync::Arc;

use iced_x86::InstructionInfoFactory;

use super::decode::{bit, Insn, MemOp, Opaque};
use super::emulate::{Machine, Next, RCX};
use super::memo::{Cache, CacheCounts, Entry, Key, Kind};
use super::regs::{RegsError, UserRegs};
use super::replay::Replay;
use super::window::{self, Backward, CodeSource, Cut, FunctionMap};
use crate::sample::{Access, Method};

/// Instructions looked at before ip, and run after it.
pub const MAX_STEPS: usize = 16;
/// Instructions run after ip while there are fewer than [`FEW`] candidates that are no variables of the program.
const LATE_STEPS: usize = 64;
const FEW: usize = 4;
/// Candidates of one sample: half of them from before ip, half from ip on.
pub const MAX_CANDIDATES: usize = 16;

/// No process maps its first page (`vm.mmap_min_addr`).
const LOWEST: u64 = 4096;
/// User addresses end here at the most (57-bit linear addresses, the upper half being the kernel's).
const HIGHEST: u64 = 1 << 56;

/// One memory access near the sample, its address exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Address of the data.
    pub addr: u64,
    /// Bytes.
    pub size: u16,
    /// Load, store or both.
    pub access: Access,
    /// How it was found.
    pub method: Method,
    /// Address of the instruction.
    pub insn_ip: u64,
    /// The address stands in the instruction itself (rip-relative or absolute): a variable of the program, which every
    /// run of the instruction touches. Exact, but it says little where it is a constant or a lock that all use.
    pub global: bool,
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
    /// The bytes at ip are no instruction: they are not what ran.
    BadInstruction,
    /// What is known contradicts itself: the code is not what ran, or control came another way.
    Inconsistent,
    /// An address that no process can have: likewise.
    Impossible,
    /// The operands nearby are gathers or scatters: their indices are in vector registers.
    Gather,
    /// The operands nearby are thread-local: the fs base is not in the sample.
    Tls,
    /// The operands nearby are under a mask, which is not in the sample.
    Masked,
    /// The operands nearby are of a kind without one size and place (`xsave`, bit strings).
    Odd,
    /// There are operands nearby, but their registers were overwritten or are not yet known.
    Overwritten,
    /// There are operands nearby, all on the thread's own stack.
    StackOnly,
    /// No memory operand nearby.
    NoOperand,
}

impl Unrecovered {
    /// All reasons; where several hold, the first is given.
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

    /// What reports say.
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

/// What one sample gave.
#[derive(Debug, Clone, Copy)]
pub struct Outcome<'a> {
    /// The candidates, those before ip first, the nearest to ip first. Each stands for `1 / candidates.len()` of the sample.
    pub candidates: &'a [Candidate],
    /// Why there are none.
    pub reason: Option<Unrecovered>,
}

/// Candidates and reasons as they come up.
#[derive(Debug, Default)]
struct Found {
    candidates: Vec<Candidate>,
    reasons: u16,
}

impl Found {
    fn reason(&mut self, reason: Unrecovered) {
        self.reasons |= 1 << reason as u16;
    }

    fn has(&self, reason: Unrecovered) -> bool {
        self.reasons & (1 << reason as u16) != 0
    }

    fn first_reason(&self) -> Unrecovered {
        Unrecovered::ALL.into_iter().find(|&reason| self.has(reason)).unwrap_or(Unrecovered::NoOperand)
    }

    /// Takes one operand; false where its address cannot be.
    fn take(&mut self, operand: &MemOp, addr: Option<u64>, method: Method, insn_ip: u64, site: &Site) -> bool {
        let Some(addr) = addr else {
            self.reason(match operand.opaque {
                Some(Opaque::Tls) => Unrecovered::Tls,
                Some(Opaque::Gather) => Unrecovered::Gather,
                Some(Opaque::Masked) => Unrecovered::Masked,
                Some(Opaque::Odd) => Unrecovered::Odd,
                None => Unrecovered::Overwritten,
            });
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
        let candidate = Candidate { addr, size: operand.size, access: operand.access, method, insn_ip, global };
        let twice = |other: &Candidate| {
            (other.addr, other.insn_ip, other.access) == (candidate.addr, candidate.insn_ip, candidate.access)
        };
        if self.candidates.len() < site.room && !self.candidates.iter().any(twice) {
            self.candidates.push(candidate);
        }
        true
    }
}

/// What the candidates of one direction are held against.
struct Site {
    stack: Range<u64>,
    room: usize,
}

/// The piece of code that an address lies in, without its bytes.
#[derive(Debug, Clone, Copy)]
struct Here {
    key: u64,
    bias: u64,
    base: u64,
    len: u64,
}

/// Recovers operands; keeps decoded code within a bound.
#[derive(Debug)]
pub struct Recovery {
    cache: Cache,
    factory: InstructionInfoFactory,
    replay: Replay,
    found: Found,
}

impl Recovery {
    /// `budget`: bytes for decoded code.
    #[must_use]
    pub fn new(budget: usize) -> Self {
        Self {
            cache: Cache::new(budget),
            factory: InstructionInfoFactory::new(),
            replay: Replay::default(),
            found: Found::default(),
        }
    }

    /// How the memory of decoded code did.
    #[must_use]
    pub fn cache_counts(&self) -> CacheCounts {
        self.cache.counts()
    }

    /// Recovers the accesses near one sample of user code.
    ///
    /// `dump` is the stack from rsp on (its first 512 bytes are looked at), of which only the bytes that the kernel
    /// could read (`dyn_size`). Accesses in `stack` are left out ([`super::StackRange`]).
    pub fn recover(
        &mut self,
        regs: &UserRegs,
        dump: &[u8],
        stack: Range<u64>,
        code: &mut dyn CodeSource,
    ) -> Outcome<'_> {
        self.found.candidates.clear();
        self.found.reasons = 0;
        if let Err(reason) = self.look(regs, dump, stack, code) {
            self.found.candidates.clear();
            self.found.reasons = 0;
            self.found.reason(reason);
        }
        let candidates = self.found.candidates.as_slice();
        Outcome { candidates, reason: candidates.is_empty().then(|| self.found.first_reason()) }
    }

    fn look(
        &mut self,
        regs: &UserRegs,
        dump: &[u8],
        stack: Range<u64>,
        code: &mut dyn CodeSource,
    ) -> Result<(), Unrecovered> {
        let mut here = None;
        let now = Machine::new(regs, dump);
        let line = self.line(code, regs.rip, &mut here).ok_or(Unrecovered::NoCode)?;
        let at_ip = line.first().ok_or(Unrecovered::BadInstruction)?;
        let mut site = Site { stack, room: MAX_CANDIDATES / 2 };
        let end = self.backward(now.clone(), at_ip, code, regs.rip, &mut here, &site);
        site.room = self.found.candidates.len() + MAX_CANDIDATES / 2;
        let mut machine = now;
        if let Some(end) = end {
            machine.stack = end.stack;
        }
        self.forward(machine, code, regs.rip, &mut here, &site);
        Ok(())
    }

    /// Methods c, i and r. Gives the state at ip with what was learned of the stack, where that holds.
    fn backward(
        &mut self,
        mut now: Machine,
        at_ip: &Insn,
        code: &mut dyn CodeSource,
        ip: u64,
        here: &mut Option<Here>,
        site: &Site,
    ) -> Option<Box<Machine>> {
        let window = self.window(code, ip, here)?;
        now.bias = here.as_ref()?.bias;
        let mut written = 0;
        if at_ip.is_repeated() {
            // Interrupted on its way: its pointers and what they point to have moved on since it began.
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
                    operand.address(now.bias, |register| before.get(usize::from(register))?.get())
                };
                let method = if needs(operand) & written == 0 {
                    Method::C
                } else if computed() == addr {
                    Method::I
                } else {
                    Method::R
                };
                let insn_ip = insn.code.ip().wrapping_add(now.bias);
                if !self.found.take(operand, addr, method, insn_ip, site) {
                    // A sure way to an impossible address: it was not the way.
                    self.found.candidates.clear();
                    return None;
                }
            }
        }
        (!at_ip.is_repeated()).then_some(end)
    }

    /// Methods a, b and e.
    fn forward(
        &mut self,
        mut machine: Machine,
        code: &mut dyn CodeSource,
        mut ip: u64,
        here: &mut Option<Here>,
        site: &Site,
    ) {
        let mut steps = 0;
        let mut written = 0;
        let mut straight = true;
        'run: loop {
            let Some(line) = self.line(code, ip, here) else { return };
            machine.bias = here.as_ref().map_or(0, |here| here.bias);
            if line.is_empty() {
                return;
            }
            for insn in line.iter() {
                let enough = || self.found.candidates.iter().filter(|candidate| !candidate.global).count() >= FEW;
                if steps >= LATE_STEPS || (steps >= MAX_STEPS && enough()) {
                    return;
                }
                let addresses = machine.addresses(insn);
                for (slot, operand) in insn.operands() {
                    let method = match steps {
                        0 => Method::A,
                        _ if straight && needs(operand) & written == 0 => Method::B,
                        _ => Method::E,
                    };
                    if !self.found.take(operand, addresses.get(slot).copied().flatten(), method, ip, site) {
                        // It will fault, or the code is not what runs.
                        return;
                    }
                }
                steps += 1;
                written |= insn.writes;
                match machine.step(insn) {
                    Next::Fall => ip = ip.wrapping_add(insn.code.len() as u64),
                    Next::Jump(target) => {
                        ip = target;
                        straight = false;
                        continue 'run;
                    }
                    Next::Unknown => return,
                }
            }
        }
    }

    /// The identity of the code at `ip`; asks only where `ip` has left the piece it was in.
    fn locate(code: &mut dyn CodeSource, ip: u64, here: &mut Option<Here>) -> Option<Here> {
        let inside = |here: &Here| ip.wrapping_sub(here.base) < here.len;
        if !here.as_ref().is_some_and(inside) {
            let window = code.window(ip)?;
            *here =
                Some(Here { key: window.key, bias: window.bias, base: window.base, len: window.bytes.len() as u64 });
        }
        (*here).filter(inside)
    }

    fn line(&mut self, code: &mut dyn CodeSource, ip: u64, here: &mut Option<Here>) -> Option<Arc<[Insn]>> {
        let at = Self::locate(code, ip, here)?;
        let key: Key = (at.key, ip.wrapping_sub(at.bias), Kind::Forward);
        if let Some(Entry::Forward(insns)) = self.cache.get(&key) {
            return Some(insns);
        }
        let insns: Arc<[Insn]> = window::forward(&code.window(ip)?, ip, &mut self.factory).into();
        self.cache.insert(key, Entry::Forward(Arc::clone(&insns)));
        Some(insns)
    }

    fn window(&mut self, code: &mut dyn CodeSource, ip: u64, here: &mut Option<Here>) -> Option<Arc<Backward>> {
        let at = Self::locate(code, ip, here)?;
        let key: Key = (at.key, ip.wrapping_sub(at.bias), Kind::Backward);
        if let Some(Entry::Backward(window)) = self.cache.get(&key) {
            return Some(window);
        }
        let map = self.function(code, ip);
        let window = Arc::new(window::backward(&code.window(ip)?, map.as_deref(), ip, &mut self.factory));
        self.cache.insert(key, Entry::Backward(Arc::clone(&window)));
        Some(window)
    }

    /// The map of the function around `ip`, where its range is known.
    fn function(&mut self, code: &mut dyn CodeSource, ip: u64) -> Option<Arc<FunctionMap>> {
        let window = code.window(ip)?;
        let (code_key, bias) = (window.key, window.bias);
        let range = window.function.clone().filter(|range| range.contains(&ip))?;
        let range = range.start.wrapping_sub(bias)..range.end.wrapping_sub(bias);
        let key: Key = (code_key, range.start, Kind::Function);
        if let Some(Entry::Function(map)) = self.cache.get(&key) {
            return Some(map);
        }
        let mut map = FunctionMap::new(&window)?;
        for target in std::mem::take(&mut map.outside) {
            if let Some(other) = code.window(target.wrapping_add(bias)) {
                if other.key == code_key {
                    map.add_branches_from(&other, &range);
                }
            }
        }
        let map = Arc::new(map);
        self.cache.insert(key, Entry::Function(Arc::clone(&map)));
        Some(map)
    }
}

/// The registers that an access depends on.
fn needs(operand: &MemOp) -> u16 {
    operand.registers() | if operand.repeated { bit(RCX) } else { 0 }
}
