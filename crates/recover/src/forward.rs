//! Runs the code forward from the sampled moment, to find the next accesses (methods a, b, e, and m with memory).
//!
//! If known values do not decide a branch, both of its paths are followed to the point at which they meet
//! ([`super::region`]); the values that both agree on are known there. Accesses in between are not recorded, because
//! only one path makes them.

use std::sync::Arc;

use super::candidates::{Candidates, Site, MAX_STEPS};
use super::decoded::{Decoded, Here};
use super::insn::{Flow, Insn};
use super::machine::{Addresses, Machine, Next};
use super::region::Point;
use super::semantics::Semantics;
use super::window::CodeSource;
use scxprof_base::sample::{Access, Method};

/// The nesting depth of undecided branches.
const MAX_NESTED: usize = 4;

/// One run.
pub(super) struct Forward<'a, I: Semantics> {
    decoded: &'a mut Decoded<I>,
    found: &'a mut Candidates,
    code: &'a mut dyn CodeSource,
    here: Option<Here>,
    site: &'a Site,
    /// The number of instructions that may run on all paths together, and the number that is left.
    steps: usize,
    left: usize,
    /// How many instructions had run when the last new access was found.
    last: usize,
    /// Use writable memory as it was at the moment of the sample.
    memory: bool,
    /// Registers whose value follows from the code alone, one bit each.
    literals: u32,
}

/// Where control went after an instruction.
struct Went {
    ip: u64,
    /// Calls minus returns.
    level: i32,
    /// Control certainly went on to the next instruction.
    straight: bool,
}

impl<'a, I: Semantics> Forward<'a, I> {
    /// A run of at most `steps` instructions.
    pub(super) fn new(
        decoded: &'a mut Decoded<I>,
        found: &'a mut Candidates,
        code: &'a mut dyn CodeSource,
        here: Option<Here>,
        (site, steps): (&'a Site, usize),
    ) -> Self {
        Self { decoded, found, code, here, site, steps, left: steps, last: 0, memory: false, literals: 0 }
    }

    /// New candidates depend on memory that other threads may write.
    pub(super) fn with_memory(self) -> Self {
        Self { memory: true, ..self }
    }

    /// Runs from `ip` on and records the accesses; returns how many instructions had run when the last new one was found.
    pub(super) fn run(mut self, mut machine: Machine<I>, ip: u64) -> usize {
        self.run_on(&mut machine, ip);
        self.found.give_back(machine.stack.lines);
        self.last
    }

    fn run_on(&mut self, machine: &mut Machine<I>, mut ip: u64) {
        let mut steps = 0;
        let mut written = 0;
        let mut straight = true;
        while let Some(line) = self.line(ip, machine) {
            for insn in line.iter() {
                if self.left == 0 || self.found.all.len() >= self.site.room {
                    return;
                }
                let addresses = self.addresses(machine, insn);
                for (slot, operand) in insn.operands() {
                    let method = match steps {
                        _ if self.memory => Method::Racy,
                        0 => Method::AtIp,
                        _ if straight && operand.needs() & written == 0 => Method::After,
                        _ => Method::Emulated,
                    };
                    let addr = addresses.get(slot).copied().flatten();
                    // Far from ip, only accesses to new lines are worth recording.
                    if steps >= MAX_STEPS && addr.is_some_and(|addr| self.found.has_line(addr, operand.access)) {
                        continue;
                    }
                    let known = self.found.all.len();
                    let goes_on = self.found.take(operand, addr, method, ip, self.site);
                    if self.found.all.len() > known {
                        self.last = self.steps - self.left;
                    }
                    if !goes_on {
                        // The code will fault, or it is not the code that runs.
                        return;
                    }
                    if steps < MAX_STEPS {
                        self.found.look_at(operand, addr, ip, self.site);
                    }
                }
                steps += 1;
                written |= insn.writes;
                let Some(went) = self.step(machine, insn, ip, addresses, 0) else { return };
                straight &= went.straight;
                ip = went.ip;
            }
            if line.is_empty() {
                return;
            }
        }
    }

    fn line(&mut self, ip: u64, machine: &mut Machine<I>) -> Option<Arc<[Insn<I>]>> {
        let line = self.decoded.line(self.code, ip, &mut self.here)?;
        machine.bias = self.here.as_ref()?.bias;
        Some(line)
    }

    /// The addresses of an instruction's operands before it runs.
    fn addresses(&mut self, machine: &Machine<I>, insn: &Insn<I>) -> Addresses {
        let addresses = machine.addresses(insn);
        for (slot, operand) in insn.operands() {
            self.found.own.thread_local |= operand.fs;
            // What a store replaces does not matter.
            if let (Some(&Some(addr)), true) = (addresses.get(slot), operand.access != Access::Store) {
                self.found.own.red_zone |= machine.stack.red_zone_has(addr, u64::from(operand.size));
            }
        }
        addresses
    }

    /// Runs one instruction or, at an undecided branch, both paths until they meet.
    fn step(
        &mut self,
        machine: &mut Machine<I>,
        insn: &Insn<I>,
        ip: u64,
        addresses: Addresses,
        nested: usize,
    ) -> Option<Went> {
        self.left = self.left.checked_sub(1)?;
        machine.loaded = self.loaded(machine, insn, addresses);
        let next = machine.step(insn);
        machine.loaded = None;
        self.literals = I::literals(insn, self.literals);
        match next {
            Next::Fall => Some(Went { ip: ip.wrapping_add(u64::from(insn.len)), level: 0, straight: true }),
            Next::Jump(ip) => {
                let level = match insn.flow {
                    Flow::Call => 1,
                    Flow::Return | Flow::ReturnAndPop => -1,
                    _ => 0,
                };
                Some(Went { ip, level, straight: false })
            }
            Next::Unknown if insn.flow == Flow::Conditional => self.meet(machine, insn, ip, nested),
            Next::Unknown => None,
        }
    }

    /// Address and value of what an instruction loads, if no thread can write that memory.
    fn loaded(&mut self, machine: &Machine<I>, insn: &Insn<I>, addresses: Addresses) -> Option<(u64, u64)> {
        let mut loads = insn.operands().filter(|(_, operand)| !operand.is_store());
        let (slot, operand) = loads.next()?;
        let (addr, size) = (addresses.get(slot).copied().flatten()?, u32::from(operand.size));
        // Memory is not requested if its value is known, or if the instruction does not keep it.
        let known = size > 8 || machine.stack.overlaps(addr, u64::from(size));
        if known || (insn.writes == 0 && insn.flow == Flow::Next && insn.flags == 0) {
            return None;
        }
        // Thread-local variables are writable.
        let constant = if operand.fs { None } else { self.code.constant(addr, size) };
        if constant.is_none() && self.memory {
            self.found.read(operand, addr, operand.registers() & !self.literals == 0);
        }
        Some((addr, constant?))
    }

    /// Continues from an undecided branch at the point at which its two paths meet.
    fn meet(&mut self, machine: &mut Machine<I>, branch: &Insn<I>, ip: u64, nested: usize) -> Option<Went> {
        let region = self.decoded.region(self.code, ip, &mut self.here)?;
        let bias = machine.bias;
        // Either path may have changed them.
        self.literals = 0;
        if let Some(effect) = &region.effect {
            machine.skip(effect);
            return match region.to {
                Point::At(at) => Some(Went { ip: at.wrapping_add(bias), level: 0, straight: false }),
                Point::Return => Some(Went { ip: I::ret(machine)?, level: -1, straight: false }),
            };
        }
        if nested >= MAX_NESTED {
            return None;
        }
        let lines = std::mem::take(&mut machine.stack.lines);
        let mut other = machine.clone();
        other.stack.lines = lines.copied_to(self.found.spare_lines());
        machine.stack.lines = lines;
        let met = self.arms(machine, &mut other, branch, region.to, nested + 1);
        self.literals = 0;
        self.found.give_back(other.stack.lines);
        let level = if region.to == Point::Return { -1 } else { 0 };
        Some(Went { ip: met?, level, straight: false })
    }

    /// Runs one path of a branch with `machine` and the other with `other` up to `to`; `machine` then knows what both
    /// agree on. Returns where they ended.
    fn arms(
        &mut self,
        machine: &mut Machine<I>,
        other: &mut Machine<I>,
        branch: &Insn<I>,
        to: Point,
        nested: usize,
    ) -> Option<u64> {
        let next = branch.next_ip().wrapping_add(machine.bias);
        let target = branch.target?.wrapping_add(machine.bias);
        let met = self.arm(machine, next, to, nested)?;
        if self.arm(other, target, to, nested)? != met {
            return None;
        }
        machine.keep(other);
        Some(met)
    }

    /// Runs one path of a branch up to `to`; returns where it ended.
    fn arm(&mut self, machine: &mut Machine<I>, mut ip: u64, to: Point, nested: usize) -> Option<u64> {
        let bias = machine.bias;
        let mut level = 0;
        loop {
            let line = self.line(ip, machine)?;
            if line.is_empty() {
                return None;
            }
            for insn in line.iter() {
                if level == 0 && matches!(to, Point::At(at) if at.wrapping_add(bias) == ip) {
                    return Some(ip);
                }
                let addresses = self.addresses(machine, insn);
                let went = self.step(machine, insn, ip, addresses, nested)?;
                ip = went.ip;
                level += went.level;
                if level < 0 {
                    return (to == Point::Return).then_some(ip);
                }
            }
        }
    }
}
