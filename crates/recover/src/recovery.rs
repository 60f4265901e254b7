//! From one sample to its candidates, each with the method that found it, or to the reason why there are none.

use std::ops::Range;

use super::a64::A64;
use super::candidates::{Candidate, Candidates, Operand, Site, Unrecovered, MAX_CANDIDATES};
use super::decoded::{Decoded, Here};
use super::forward::Forward;
use super::insn::Insn;
use super::lines::Snapshot;
use super::machine::Machine;
use super::memo::CacheCounts;
use super::reach::Reach;
use super::regs::Regs;
use super::replay::Replay;
use super::semantics::Semantics;
use super::wanted::{OwnMemory, Wanted};
use super::window::{CodeSource, Cut};
use super::x86::X86;
use scxprof_base::arch::Arch;
use scxprof_base::sample::Method;

/// The result for one sample.
#[derive(Debug, Clone, Copy)]
pub struct RecoveryResult<'a> {
    /// The candidates, first those before ip, each nearest to ip first. Each represents `1 / candidates.len()` of the sample.
    pub candidates: &'a [Candidate],
    /// Why there are no candidates.
    pub reason: Option<Unrecovered>,
    /// The memory operands near the sample, each time that one was evaluated, except those on the thread's own stack.
    pub operands: &'a [Operand],
    /// The requested memory; `None` if the sample contains no memory.
    pub wanted: Option<Wanted>,
}

/// Recovers operand addresses; keeps a bounded cache of decoded code.
#[derive(Debug)]
pub struct Recovery {
    budget: usize,
    /// The engines, each created at the first sample of its instruction set.
    x86: Option<Box<Engine<X86>>>,
    a64: Option<Box<Engine<A64>>>,
}

impl Recovery {
    /// `budget`: bytes for decoded code.
    #[must_use]
    pub fn new(budget: usize) -> Self {
        Self { budget, x86: None, a64: None }
    }

    /// Counts of the cache of decoded code.
    #[must_use]
    pub fn cache_counts(&self) -> CacheCounts {
        let x86 = self.x86.as_ref().map(|engine| engine.decoded.counts());
        let a64 = self.a64.as_ref().map(|engine| engine.decoded.counts());
        x86.or(a64).unwrap_or_default()
    }

    /// Recovers the accesses near one sample of user code.
    ///
    /// `dump` is the stack from rsp on (its first 512 bytes are used), without the bytes that the kernel could not read
    /// (`dyn_size`). Accesses in `stack` are left out ([`super::StackRange`]).
    pub fn recover(
        &mut self,
        regs: &Regs,
        dump: &[u8],
        stack: Range<u64>,
        code: &mut dyn CodeSource,
    ) -> RecoveryResult<'_> {
        self.recover_with(regs, dump, Snapshot::default(), stack, code)
    }

    /// As [`Recovery::recover`], with the memory around the registers at the moment of the sample. Candidates that
    /// depend on it are [`Method::Racy`]: another thread may have written it before the access.
    pub fn recover_with(
        &mut self,
        regs: &Regs,
        dump: &[u8],
        memory: Snapshot<'_>,
        stack: Range<u64>,
        code: &mut dyn CodeSource,
    ) -> RecoveryResult<'_> {
        match regs.arch {
            Arch::X86_64 => engine(&mut self.x86, self.budget).recover(regs, dump, memory, stack, code),
            Arch::Arm64 => engine(&mut self.a64, self.budget).recover(regs, dump, memory, stack, code),
        }
    }
}

#[cfg(test)]
impl Recovery {
    /// Resets the learned lengths of runs.
    pub(super) fn forget_reach(&mut self) {
        if let Some(engine) = &mut self.x86 {
            engine.reach = Reach::default();
        }
        if let Some(engine) = &mut self.a64 {
            engine.reach = Reach::default();
        }
    }
}

/// The engine of an instruction set, created if necessary.
fn engine<I: Semantics>(slot: &mut Option<Box<Engine<I>>>, budget: usize) -> &mut Engine<I> {
    slot.get_or_insert_with(|| Box::new(Engine::new(budget)))
}

/// The recovery for one instruction set.
#[derive(Debug)]
struct Engine<I: Semantics> {
    decoded: Decoded<I>,
    replay: Replay<I>,
    found: Candidates,
    reach: Reach,
}

impl<I: Semantics> Engine<I> {
    fn new(budget: usize) -> Self {
        Self {
            decoded: Decoded::new(budget),
            replay: Replay::default(),
            found: Candidates::default(),
            reach: Reach::default(),
        }
    }

    fn recover(
        &mut self,
        regs: &Regs,
        dump: &[u8],
        memory: Snapshot<'_>,
        stack: Range<u64>,
        code: &mut dyn CodeSource,
    ) -> RecoveryResult<'_> {
        self.found.clear();
        self.found.reads.clear();
        self.found.own = OwnMemory::default();
        if let Err(reason) = self.look(regs, dump, memory, stack.clone(), code) {
            self.found.clear();
            self.found.reason(reason);
        }
        let operands = self.found.operands.as_slice();
        let candidates = self.found.all.as_slice();
        let reason = candidates.is_empty().then(|| self.found.first_reason());
        let wanted = (!memory.is_empty()).then(|| Wanted::of(regs, memory, &self.found.reads, self.found.own, &stack));
        RecoveryResult { candidates, reason, operands, wanted }
    }

    fn look(
        &mut self,
        regs: &Regs,
        dump: &[u8],
        memory: Snapshot<'_>,
        stack: Range<u64>,
        code: &mut dyn CodeSource,
    ) -> Result<(), Unrecovered> {
        let mut here = None;
        let mut now = Machine::<I>::new(regs, dump);
        now.fs = memory.fs_base();
        for line in memory.lines() {
            now.stack.add_red_zone(line);
        }
        let line = self.decoded.line(code, regs.ip, &mut here).ok_or(Unrecovered::NoCode)?;
        let at_ip = line.first().ok_or(Unrecovered::BadInstruction)?;
        let mut site = Site { stack, room: MAX_CANDIDATES / 2 };
        let end = self.backward(now.clone(), at_ip, code, regs.ip, &mut here, &site);
        site.room = self.found.all.len() + MAX_CANDIDATES / 2;
        let mut machine = now;
        if let Some(mut end) = end {
            std::mem::swap(&mut machine.stack, &mut end.stack);
            // A sample without flags (A64) has those of a comparison that ran just before ip and whose operands are known.
            machine.flags = end.flags;
            self.replay.give_back(end);
        }
        let steps = self.reach.steps(regs.ip);
        let limits = (&site, steps);
        if memory.is_empty() {
            let last = Forward::new(&mut self.decoded, &mut self.found, code, here, limits).run(machine, regs.ip);
            self.reach.found(regs.ip, steps, last);
            return Ok(());
        }
        // First run without these lines, to find out which results depend on them.
        let (candidates, operands, unknown) = (self.found.all.len(), self.found.operands.len(), self.found.unknown);
        let forward = Forward::new(&mut self.decoded, &mut self.found, code, here, limits);
        let mut last = forward.run(machine.clone(), regs.ip);
        if self.found.all.len() < site.room || self.found.unknown > unknown {
            // Even a run without any line finds out which lines the next samples should have.
            machine.stack.lines = self.found.spare_lines().of(memory);
            // The second run evaluates the same operands again, with more knowledge. Accesses further from ip must not
            // take the place of accesses that need memory, because other samples find them more often.
            self.found.operands.truncate(operands);
            self.found.set_aside(candidates);
            let forward = Forward::new(&mut self.decoded, &mut self.found, code, here, limits);
            last = last.max(forward.with_memory().run(machine, regs.ip));
            self.found.fill(site.room);
        }
        self.reach.found(regs.ip, steps, last);
        Ok(())
    }

    /// Methods c, i and r. Returns the state at ip with the stack content that was learned, if it is consistent.
    fn backward(
        &mut self,
        mut now: Machine<I>,
        at_ip: &Insn<I>,
        code: &mut dyn CodeSource,
        ip: u64,
        here: &mut Option<Here>,
        site: &Site,
    ) -> Option<Box<Machine<I>>> {
        let window = self.decoded.window(code, ip, here)?;
        now.bias = here.as_ref()?.bias;
        let mut written = 0;
        if at_ip.repeated {
            // The instruction at ip is interrupted halfway: its pointers and their memory have changed since it began.
            now.havoc(at_ip, Default::default());
            written = at_ip.writes;
        }
        if matches!(window.cut, Cut::Leader | Cut::Call | Cut::Unsynchronised) && window.insns.is_empty() {
            return None;
        }
        let end = self.replay.run(&now, &window.insns);
        let mut operands = window.insns.iter().flat_map(Insn::operands);
        self.found.own.thread_local |= operands.any(|(_, operand)| operand.fs);
        self.found.own.red_zone |= self.replay.uses_red_zone();
        let Some(end) = end else {
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
                    operand.address(now.bias, now.fs, |register| before.as_ref().get(usize::from(register))?.get())
                };
                let method = if operand.needs() & written == 0 {
                    Method::Before
                } else if computed() == addr {
                    Method::Inverted
                } else {
                    Method::Replayed
                };
                let insn_ip = insn.ip.wrapping_add(now.bias);
                if !self.found.take(operand, addr, method, insn_ip, site) {
                    // A certain path leads to an impossible address: control did not come this way.
                    self.found.all.clear();
                    self.found.operands.clear();
                    self.replay.give_back(end);
                    return None;
                }
                self.found.look_at(operand, addr, insn_ip, site);
            }
        }
        if at_ip.repeated {
            self.replay.give_back(end);
            return None;
        }
        Some(end)
    }
}
