//! Finds the point at which the two paths of a conditional branch meet, and what may be written before it.
//!
//! This uses only the code. The addresses at which control may continue are pending. Pending instructions are decoded
//! and replaced by their successors until a single address is left: both paths pass there. A loop in between ends the
//! search: code after it may be far from the sample, and a sample that interrupts a long loop says little about it.

use super::insn::{bit, Flow, Insn, MemOp};
use super::isa::Isa;
use super::machine::Machine;
use super::semantics::Semantics;
use super::value::Val;
use super::window::CodeWindow;

/// The most instructions that are read in search of the meeting point.
const MAX_INSNS: usize = 96;
/// The most stores that are recorded; with more, the whole stack becomes unknown.
const MAX_STORES: usize = 16;
/// Code at least this many bytes away from the branch was moved away by the compiler (`.cold`). It is read first,
/// because it jumps back to the rest.
const FAR: u64 = 2048;

/// The point at which the two paths of a branch meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Point {
    /// This address, relative to the code's base.
    At(u64),
    /// The address to which the function returns.
    Return,
}

/// The code between a branch and its meeting point.
#[derive(Debug, Clone)]
pub(super) struct Region {
    pub(super) to: Point,
    /// Everything that may be written in between. `None` if the code must be run to find out, because it calls a
    /// function, moves the stack pointer, or changes the return address.
    pub(super) effect: Option<Effect>,
}

/// What a piece of code may write.
#[derive(Debug, Clone, Default)]
pub(super) struct Effect {
    /// Registers, one bit each.
    writes: u32,
    flags: u32,
    /// It writes memory outside its operands.
    wild: bool,
    stores: Vec<MemOp>,
}

impl Region {
    /// The heap memory of this value, in bytes.
    pub(super) fn bytes(&self) -> usize {
        std::mem::size_of::<Self>()
            + self.effect.as_ref().map_or(0, |effect| effect.stores.len() * std::mem::size_of::<MemOp>())
    }
}

impl Effect {
    fn add<I: Isa>(&mut self, insn: &Insn<I>) {
        self.writes |= insn.writes;
        self.flags |= insn.flags;
        self.wild |= insn.wild || insn.repeated;
        for (_, operand) in insn.operands().filter(|(_, operand)| operand.is_store()) {
            if self.stores.len() < MAX_STORES && operand.size != 0 {
                self.stores.push(*operand);
            } else {
                self.wild = true;
            }
        }
    }
}

/// The addresses at which control may continue.
#[derive(Default)]
struct Pending {
    /// Relative to the code's base.
    at: Vec<u64>,
    /// One path has returned.
    returns: bool,
    visited: Vec<u64>,
}

impl Pending {
    /// `None` for an address that was read before, which means a loop.
    fn add(&mut self, at: u64) -> Option<()> {
        if self.visited.contains(&at) {
            return None;
        }
        if !self.at.contains(&at) {
            self.at.push(at);
        }
        Some(())
    }

    /// The single point that is left, if there is only one.
    fn point(&self) -> Option<Point> {
        match (self.at.as_slice(), self.returns) {
            (&[at], false) => Some(Point::At(at)),
            ([], true) => Some(Point::Return),
            _ => None,
        }
    }

    /// Takes the next address to read: a far one, else the lowest after the branch. Addresses before the branch come
    /// last, because mostly they are the head of a loop to which both paths return.
    fn take(&mut self, branch: u64) -> Option<u64> {
        let order = |at: u64| (at.abs_diff(branch) <= FAR, at <= branch, at);
        let next = (0..self.at.len()).min_by_key(|&index| self.at.get(index).copied().map(order))?;
        let at = self.at.swap_remove(next);
        self.visited.push(at);
        Some(at)
    }
}

/// Searches for the point at which the two paths of the conditional branch at `ip` meet.
pub(super) fn find<I: Semantics>(window: &CodeWindow<'_>, ip: u64, decoder: &mut I::Decoder) -> Option<Region> {
    let own_base = window.base.wrapping_sub(window.bias);
    let branch = ip.wrapping_sub(window.bias);
    let mut decode_at =
        |own: u64| I::decode(window.bytes, own_base, usize::try_from(own.wrapping_sub(own_base)).ok()?, decoder);
    let first = decode_at(branch).filter(|insn| insn.flow == Flow::Conditional)?;
    let mut pending = Pending { visited: vec![branch], ..Pending::default() };
    pending.add(first.next_ip())?;
    pending.add(first.target?)?;
    let mut effect = Some(Effect::default());
    loop {
        if let Some(to) = pending.point() {
            return Some(Region { to, effect });
        }
        if pending.visited.len() > MAX_INSNS {
            return None;
        }
        let at = pending.take(branch)?;
        let insn = decode_at(at)?;
        match insn.flow {
            Flow::Next => pending.add(insn.next_ip())?,
            Flow::Conditional => {
                pending.add(insn.next_ip())?;
                pending.add(insn.target?)?;
            }
            Flow::Jump => pending.add(insn.target?)?,
            Flow::Return => {
                pending.returns = true;
                continue;
            }
            Flow::Stop => continue,
            Flow::Call => {
                effect = None;
                pending.add(insn.next_ip())?;
            }
            Flow::ReturnAndPop | Flow::Away | Flow::Beyond => return None,
        }
        if insn.writes & (bit(I::SP) | I::RETURN) != 0 {
            effect = None;
        }
        if let Some(effect) = &mut effect {
            effect.add(&insn);
        }
    }
}

impl<I: Isa> Machine<I> {
    /// Marks as unknown everything that a piece of code may write, on any path through it.
    pub(super) fn skip(&mut self, effect: &Effect) {
        self.forget(effect.writes);
        self.flags.forget(effect.flags);
        if effect.wild {
            self.stack.clear();
        }
        // Registers that are still known had the same value throughout.
        for operand in &effect.stores {
            let addr = self.address(operand);
            self.store(addr, u64::from(operand.size), Val::UNKNOWN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x86::X86;

    const BASE: u64 = 0x1000;

    fn region(bytes: &[u8], at: u64) -> Option<Region> {
        let window = CodeWindow { key: 1, bias: 0, base: BASE, bytes, function: None, jit: false };
        find::<X86>(&window, BASE + at, &mut X86::decoder())
    }

    #[test]
    fn the_arms_of_an_if_meet_behind_it() {
        // je +5; inc eax; jmp +2; dec ecx; nop
        let found = region(&[0x74, 4, 0xff, 0xc0, 0xeb, 2, 0xff, 0xc9, 0x90, 0xc3], 0).unwrap();
        assert_eq!(found.to, Point::At(BASE + 8));
        assert_eq!(found.effect.unwrap().writes, bit(0) | bit(1));
        // Without an else.
        let found = region(&[0x74, 2, 0xff, 0xc0, 0x90, 0xc3], 0).unwrap();
        assert_eq!(found.to, Point::At(BASE + 4));
    }

    #[test]
    fn both_ways_go_back_to_the_head_of_a_loop() {
        // L: mov rax,[rbx]; test eax,eax; je +4; inc ecx; jmp L; dec ecx; jmp L
        let code = [0x48, 0x8b, 0x03, 0x85, 0xc0, 0x74, 4, 0xff, 0xc1, 0xeb, 0xf5, 0xff, 0xc9, 0xeb, 0xf1];
        assert_eq!(region(&code, 5).unwrap().to, Point::At(BASE));
    }

    #[test]
    fn a_loop_is_not_left() {
        // L: mov rax,[rbx]; inc ecx; test eax,eax; jne L; nop
        assert!(region(&[0x48, 0x8b, 0x03, 0xff, 0xc1, 0x85, 0xc0, 0x75, 0xf7, 0x90, 0xc3], 7).is_none());
        // L: test eax,eax; je out; inc ecx; jmp L; out: nop
        assert!(region(&[0x85, 0xc0, 0x74, 4, 0xff, 0xc1, 0xeb, 0xf8, 0x90, 0xc3], 2).is_none());
        // je +0 is no loop, je -2 is one.
        assert_eq!(region(&[0x74, 0, 0xc3], 0).unwrap().to, Point::At(BASE + 2));
        assert!(region(&[0x74, 0xfe, 0xc3], 0).is_none());
    }

    #[test]
    fn two_returns_meet_in_the_caller() {
        // je +3; inc eax; ret; xor eax,eax; ret
        let found = region(&[0x74, 3, 0xff, 0xc0, 0xc3, 0x31, 0xc0, 0xc3], 0).unwrap();
        assert_eq!(found.to, Point::Return);
        assert!(found.effect.is_some());
        // pop rbx on one path: rsp depends on the path.
        assert!(region(&[0x74, 2, 0x5b, 0xc3, 0x31, 0xc0, 0xc3], 0).unwrap().effect.is_none());
        // ret 8 pops more than ret.
        assert!(region(&[0x74, 1, 0xc3, 0xc2, 8, 0], 0).is_none());
    }

    #[test]
    fn calls_are_to_be_run_and_jumps_to_anywhere_lead_nowhere() {
        // je +5; call +0; nop
        let found = region(&[0x74, 5, 0xe8, 0, 0, 0, 0, 0x90, 0xc3], 0).unwrap();
        assert_eq!(found.to, Point::At(BASE + 7));
        assert!(found.effect.is_none());
        // je +2; jmp rax; nop
        assert!(region(&[0x74, 2, 0xff, 0xe0, 0x90, 0xc3], 0).is_none());
        // je +2; syscall; nop: the same; running the code ends there.
        assert!(region(&[0x74, 2, 0x0f, 0x05, 0x90, 0xc3], 0).unwrap().effect.is_none());
        // The code ends before the paths meet.
        assert!(region(&[0x74, 4, 0xff, 0xc0], 0).is_none());
    }
}
