//! Undoes the instructions before the sampled moment, and runs them forward again with what was learned about the
//! stack.

use super::candidates::MAX_STEPS;
use super::flags::Flags;
use super::image::Image;
use super::insn::{Flow, Insn};
use super::machine::{Addresses, Machine, Next};
use super::semantics::Semantics;

/// The most rounds in which the assumed addresses of stores may differ from the computed ones.
const ROUNDS: usize = 4;

/// The result of a replay; reused between samples to save allocations.
#[derive(Debug)]
pub(super) struct Replay<I: Semantics> {
    /// Registers before each instruction, the nearest to ip first, from the backward pass alone.
    before: [(I::Registers, Flags); MAX_STEPS],
    /// The stack after each instruction that stores.
    saved: Vec<(usize, Image)>,
    /// Addresses of each instruction's operands, the nearest to ip first, from the forward pass.
    addresses: [Addresses; MAX_STEPS],
    /// See [`Replay::uses_red_zone`].
    uses_red_zone: bool,
    /// The allocation of a state that is not in use.
    spare: Option<Box<Machine<I>>>,
}

/// The result of one pass.
enum Pass<I: Semantics> {
    /// The pass is consistent; `blind` if the backward pass did not know the address of a store.
    Closed { end: Box<Machine<I>>, blind: bool },
    /// The known values contradict each other.
    Conflict { blind: bool },
}

impl<I: Semantics> Default for Replay<I> {
    fn default() -> Self {
        Self {
            before: Default::default(),
            saved: Vec::new(),
            addresses: Default::default(),
            uses_red_zone: false,
            spare: None,
        }
    }
}

impl<I: Semantics> Replay<I> {
    /// Replays `insns` (the nearest to ip first), which ran in sequence until the moment `now`.
    ///
    /// Returns `now` with what was learned of the stack; `None` if the known values contradict each other, that is, if
    /// these instructions did not run.
    pub(super) fn run(&mut self, now: &Machine<I>, insns: &[Insn<I>]) -> Option<Box<Machine<I>>> {
        let mut hints = [Addresses::default(); MAX_STEPS];
        // First assume that no store to an unknown address hits the stack: the forward pass finds many of these
        // addresses. Repeat with them until they equal the result. Stores whose address is still unknown may then hit
        // anything.
        let mut hopeful = true;
        self.uses_red_zone = false;
        for _ in 0..ROUNDS {
            match self.pass(now, insns, &hints, hopeful) {
                Pass::Closed { end, blind: false } if hopeful => return Some(end),
                Pass::Conflict { blind: false } if hopeful => return None,
                Pass::Closed { end, .. } if hopeful => {
                    hints = self.addresses;
                    self.give_back(end);
                }
                Pass::Conflict { .. } if hopeful => {}
                Pass::Closed { end, .. } => {
                    let mut stands = true;
                    for (hint, found) in hints.iter_mut().flatten().zip(self.addresses.iter().flatten()) {
                        if hint.is_some() && hint != found {
                            *hint = None;
                            stands = false;
                        }
                    }
                    if stands {
                        return Some(end);
                    }
                    self.give_back(end);
                }
                Pass::Conflict { .. } => {
                    if hints.iter().flatten().all(Option::is_none) {
                        return None;
                    }
                    hints = Default::default();
                }
            }
            hopeful = false;
        }
        match self.pass(now, insns, &Default::default(), false) {
            Pass::Closed { end, .. } => Some(end),
            Pass::Conflict { .. } => None,
        }
    }

    /// True if any pass looked into the red zone, or found a contradiction, which may come from it.
    pub(super) fn uses_red_zone(&self) -> bool {
        self.uses_red_zone
    }

    /// Takes back the state that [`Replay::run`] returned.
    pub(super) fn give_back(&mut self, end: Box<Machine<I>>) {
        self.spare = Some(end);
    }

    /// Registers before the instruction at `step` from the backward pass alone.
    pub(super) fn before(&self, step: usize) -> Option<&I::Registers> {
        self.before.get(step).map(|(regs, _)| regs)
    }

    /// Addresses of the operands of the instruction at `step`.
    pub(super) fn addresses(&self, step: usize) -> Addresses {
        self.addresses.get(step).copied().unwrap_or_default()
    }

    fn pass(&mut self, now: &Machine<I>, insns: &[Insn<I>], hints: &[Addresses; MAX_STEPS], hopeful: bool) -> Pass<I> {
        let mut machine = match self.spare.take() {
            Some(mut spare) => {
                Machine::clone_from(&mut spare, now);
                spare
            }
            None => Box::new(now.clone()),
        };
        machine.hopeful = hopeful;
        match self.both_ways(&mut machine, now, insns, hints) {
            (true, blind) => Pass::Closed { end: machine, blind },
            (false, blind) => {
                self.uses_red_zone = true;
                self.spare = Some(machine);
                Pass::Conflict { blind }
            }
        }
    }

    /// Takes a copy of `now` back over the instructions and forward again. Returns whether all values agree, and
    /// whether the backward pass did not know the address of a store.
    fn both_ways(
        &mut self,
        machine: &mut Machine<I>,
        now: &Machine<I>,
        insns: &[Insn<I>],
        hints: &[Addresses; MAX_STEPS],
    ) -> (bool, bool) {
        self.saved.clear();
        self.addresses = Default::default();
        let mut blind = false;
        for (step, (insn, hint)) in insns.iter().zip(hints).enumerate() {
            if insn.wild || insn.operands().any(|(_, operand)| operand.is_store()) {
                self.saved.push((step, machine.stack.clone()));
            }
            let undone = machine.unstep(insn, *hint);
            blind |= undone.blind;
            if undone.conflict {
                return (false, blind);
            }
            if let Some(before) = self.before.get_mut(step) {
                *before = (machine.regs, machine.flags);
            }
        }
        for (step, insn) in insns.iter().enumerate().take(MAX_STEPS).rev() {
            if let Some(addresses) = self.addresses.get_mut(step) {
                *addresses = machine.addresses(insn);
                // Of a store too: what is there now tells the register that was stored.
                self.uses_red_zone |= insn.operands().any(|(slot, operand)| {
                    let addr = addresses.get(slot).copied().flatten();
                    addr.is_some_and(|addr| machine.stack.red_zone_has(addr, u64::from(operand.size)))
                });
            }
            let next = machine.step(insn);
            let fell = match next {
                Next::Fall | Next::Unknown => true,
                Next::Jump(target) => {
                    insn.flow == Flow::Conditional && target == insn.next_ip().wrapping_add(machine.bias)
                }
            };
            let after = match step.checked_sub(1).and_then(|step| self.before.get(step)) {
                Some((regs, flags)) => (regs, *flags),
                None => (&now.regs, now.flags),
            };
            let agree = fell
                && machine.agree(after.0, after.1)
                && self.saved.iter().filter(|(at, _)| *at == step).all(|(_, stack)| machine.stack.merge(stack));
            if !agree {
                return (false, blind);
            }
        }
        (true, blind)
    }
}
