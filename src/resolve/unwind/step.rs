//! One step of unwinding: from the registers of a function to those of its caller.

use gimli::{Encoding, EndianSlice, Evaluation, EvaluationResult, Format, LittleEndian, Location, Register, Value};

use scxprof_elf::{Cfa, Saved, UnwindRule};
use scxprof_recover::Regs;

/// Operations of an expression that are done; compilers and linkers write up to ten.
const MAX_OPERATIONS: u32 = 256;
/// The numbers of registers in DWARF (System V ABI for x86-64, figure 3.36).
const RBP: u8 = 6;
const RSP: u8 = 7;
const RIP: u8 = 16;
/// Those that a function leaves as they were, if its rule says nothing of them: rbx, rbp, r12 to r15.
const PRESERVED: [u8; 6] = [3, RBP, 12, 13, 14, 15];
/// The number in DWARF of each register of [`Regs::gpr`] (ax cx dx bx sp bp si di r8 ..).
const IN_DWARF: [u8; 16] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];

/// The registers of one function of a stack, as far as they are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Registers {
    /// By their numbers in DWARF.
    values: [u64; 17],
    /// A bit for each of them.
    known: u32,
}

/// The part of a stack that was copied.
#[derive(Debug, Clone, Copy)]
pub(super) struct Copied<'a> {
    /// The address of its first byte: rsp when it was copied.
    pub start: u64,
    pub bytes: &'a [u8],
}

/// What a step leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The registers are those of the caller.
    Caller,
    /// There is no caller: it is the first function of the thread.
    End,
    /// The caller's registers are in a part of the stack that was not copied.
    Beyond,
    /// The rule does not fit the stack.
    Wrong,
}

impl Registers {
    /// Those of the interrupted function.
    pub(super) fn new(regs: &Regs) -> Self {
        let mut values = [0; 17];
        for (value, number) in regs.gpr.iter().zip(IN_DWARF) {
            if let Some(to) = values.get_mut(usize::from(number)) {
                *to = *value;
            }
        }
        values[usize::from(RIP)] = regs.ip;
        Self { values, known: (1 << 17) - 1 }
    }

    /// Where it goes on.
    pub(super) fn ip(&self) -> u64 {
        self.values[usize::from(RIP)]
    }

    fn sp(&self) -> u64 {
        self.values[usize::from(RSP)]
    }

    fn get(&self, register: u8) -> Option<u64> {
        let value = self.values.get(usize::from(register))?;
        (self.known & 1 << register != 0).then_some(*value)
    }

    fn set(&mut self, register: u8, value: u64) {
        if let Some(to) = self.values.get_mut(usize::from(register)) {
            *to = value;
            self.known |= 1 << register;
        }
    }

    /// Goes to the caller by a rule.
    pub(super) fn step(&mut self, rule: &UnwindRule, stack: Copied<'_>) -> Step {
        let cfa = match &rule.cfa {
            Cfa::Register(register, offset) => self.get(*register).map(|base| base.wrapping_add_signed(*offset)),
            Cfa::Expression(code) => match self.evaluate(code, None, stack) {
                Ok(value) => value,
                Err(step) => return step,
            },
        };
        let Some(cfa) = cfa else { return Step::Wrong };
        // The kernel may handle a signal on another stack, but else a caller's frame is above.
        if cfa <= self.sp() && !rule.is_signal {
            return Step::Wrong;
        }
        let mut caller = Self { values: self.values, known: 0 };
        for register in PRESERVED {
            caller.known |= self.known & 1 << register;
        }
        caller.set(RSP, cfa);
        let mut has_caller = false;
        for (register, saved) in &rule.saved {
            let value = match saved {
                Saved::Undefined => None,
                Saved::Same => self.get(*register),
                Saved::Is(offset) => Some(cfa.wrapping_add_signed(*offset)),
                Saved::Register(other) => self.get(*other),
                Saved::At(offset) => match stack.word(cfa.wrapping_add_signed(*offset)) {
                    Ok(value) => Some(value),
                    // Only what is needed later must be there.
                    Err(step) if *register == RIP => return step,
                    Err(_) => None,
                },
                Saved::IsExpression(code) => self.evaluate(code, Some(cfa), stack).unwrap_or(None),
                Saved::AtExpression(code) => match self.evaluate(code, Some(cfa), stack) {
                    Ok(Some(address)) => match stack.word(address) {
                        Ok(value) => Some(value),
                        Err(step) if *register == RIP => return step,
                        Err(_) => None,
                    },
                    _ => None,
                },
            };
            match value {
                Some(value) => caller.set(*register, value),
                None => caller.known &= !(1 << register),
            }
            has_caller |= *register == RIP && value.is_some();
        }
        if !has_caller || caller.ip() == 0 {
            return Step::End;
        }
        *self = caller;
        Step::Caller
    }

    /// Goes to the caller by the frame pointer, as the kernel does: for code without a rule.
    pub(super) fn step_by_frame_pointer(&mut self, stack: Copied<'_>) -> Step {
        let Some(frame) = self.get(RBP) else { return Step::Wrong };
        if frame == 0 {
            return Step::End;
        }
        if frame < self.sp() || !frame.is_multiple_of(8) {
            return Step::Wrong;
        }
        let (next, ip) = match (stack.word(frame), stack.word(frame.wrapping_add(8))) {
            (Ok(next), Ok(ip)) => (next, ip),
            (Err(step), _) | (_, Err(step)) => return step,
        };
        if ip == 0 {
            return Step::End;
        }
        self.known = 0;
        self.set(RBP, next);
        self.set(RSP, frame.wrapping_add(16));
        self.set(RIP, ip);
        Step::Caller
    }

    /// The result of an expression; `None` if it is not known.
    fn evaluate(&self, code: &[u8], cfa: Option<u64>, stack: Copied<'_>) -> Result<Option<u64>, Step> {
        let encoding = Encoding { address_size: 8, format: Format::Dwarf32, version: 4 };
        let mut evaluation = Evaluation::new(EndianSlice::new(code, LittleEndian), encoding);
        evaluation.set_max_iterations(MAX_OPERATIONS);
        if let Some(cfa) = cfa {
            evaluation.set_initial_value(cfa);
        }
        let mut state = evaluation.evaluate();
        loop {
            state = match state {
                Ok(EvaluationResult::Complete) => break,
                Ok(EvaluationResult::RequiresRegister { register: Register(register), .. }) => {
                    let value = u8::try_from(register).ok().and_then(|register| self.get(register));
                    let Some(value) = value else { return Ok(None) };
                    evaluation.resume_with_register(Value::Generic(value))
                }
                Ok(EvaluationResult::RequiresMemory { address, size: 8, .. }) => {
                    evaluation.resume_with_memory(Value::Generic(stack.word(address)?))
                }
                _ => return Ok(None),
            };
        }
        Ok(evaluation.as_result().last().and_then(|piece| match piece.location {
            Location::Address { address } => Some(address),
            _ => None,
        }))
    }
}

impl Copied<'_> {
    fn word(&self, address: u64) -> Result<u64, Step> {
        let at = address.checked_sub(self.start).ok_or(Step::Wrong)?;
        let bytes = usize::try_from(at).ok().and_then(|at| self.bytes.get(at..)?.first_chunk());
        bytes.map(|bytes| u64::from_le_bytes(*bytes)).ok_or(Step::Beyond)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SP: u64 = 0x7fff_0000;

    /// Words from rsp on, and registers with these values of rsp and rbp.
    fn stack(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn registers(rbp: u64) -> Registers {
        let mut gpr = [7; 16];
        (gpr[4], gpr[5]) = (SP, rbp);
        Registers::new(&Regs::x86_64(gpr, 0x1000, 0))
    }

    fn rule(cfa: Cfa, saved: &[(u8, Saved)]) -> UnwindRule {
        UnwindRule { cfa, saved: saved.into(), is_signal: false }
    }

    #[test]
    fn a_step_restores_the_registers_of_the_caller() {
        let words = stack(&[1, 0x55, 0x2000, 3]);
        let copied = Copied { start: SP, bytes: &words };
        let mut regs = registers(9);
        let saved = [(RIP, Saved::At(-8)), (RBP, Saved::At(-16)), (3, Saved::Is(5)), (12, Saved::Undefined)];
        assert_eq!(regs.step(&rule(Cfa::Register(RSP, 24), &saved), copied), Step::Caller);
        assert_eq!((regs.ip(), regs.sp(), regs.get(RBP)), (0x2000, SP + 24, Some(0x55)));
        assert_eq!((regs.get(3), regs.get(12), regs.get(13)), (Some(SP + 29), None, Some(7)));
        // A callee need not keep rax.
        assert_eq!(regs.get(0), None);
    }

    #[test]
    fn a_stack_ends_where_it_is_known_to_end() {
        let words = stack(&[1, 0x55, 0x2000, 0]);
        let copied = Copied { start: SP, bytes: &words };
        let step = |cfa, saved: &[(u8, Saved)]| registers(0).step(&rule(cfa, saved), copied);
        assert_eq!(step(Cfa::Register(RSP, 8), &[(RIP, Saved::Undefined)]), Step::End);
        assert_eq!(step(Cfa::Register(RSP, 8), &[]), Step::End);
        assert_eq!(step(Cfa::Register(RSP, 32), &[(RIP, Saved::At(-8))]), Step::End, "it goes on at 0");
        assert_eq!(step(Cfa::Register(RSP, 64), &[(RIP, Saved::At(-8))]), Step::Beyond);
        assert_eq!(step(Cfa::Register(RSP, 0), &[(RIP, Saved::At(16))]), Step::Wrong, "the frame has no size");
        assert_eq!(step(Cfa::Register(RBP, 16), &[(RIP, Saved::At(-8))]), Step::Wrong, "below the stack");
        assert_eq!(step(Cfa::Register(40, 16), &[(RIP, Saved::At(-8))]), Step::Wrong);
    }

    #[test]
    fn expressions_read_registers_and_the_stack() {
        let words = stack(&[1, SP + 32, 0x2000, 0x3000]);
        let copied = Copied { start: SP, bytes: &words };
        let mut regs = registers(0);
        // DW_OP_breg7 8, DW_OP_deref: the word after the first one.
        let cfa = Cfa::Expression([0x77, 8, 0x06].into());
        assert_eq!(regs.step(&rule(cfa, &[(RIP, Saved::At(-8))]), copied), Step::Caller);
        assert_eq!((regs.ip(), regs.sp()), (0x3000, SP + 32));
        let mut regs = registers(0);
        // DW_OP_lit16, DW_OP_minus: 16 below the canonical frame address.
        let saved = [(RIP, Saved::AtExpression([0x40, 0x1c].into()))];
        assert_eq!(regs.step(&rule(Cfa::Register(RSP, 32), &saved), copied), Step::Caller);
        assert_eq!(regs.ip(), 0x2000);
    }

    #[test]
    fn an_endless_expression_ends() {
        let copied = Copied { start: SP, bytes: &[] };
        // DW_OP_skip -3: to itself.
        let cfa = Cfa::Expression([0x2f, 0xfd, 0xff].into());
        assert_eq!(registers(0).step(&rule(cfa, &[(RIP, Saved::At(-8))]), copied), Step::Wrong);
    }

    #[test]
    fn frame_pointers_lead_to_callers() {
        let words = stack(&[1, 2, SP + 40, 0x2000, 4, 0, 0x3000]);
        let copied = Copied { start: SP, bytes: &words };
        let mut regs = registers(SP + 16);
        assert_eq!(regs.step_by_frame_pointer(copied), Step::Caller);
        assert_eq!((regs.ip(), regs.sp()), (0x2000, SP + 32));
        assert_eq!(regs.step_by_frame_pointer(copied), Step::Caller);
        assert_eq!((regs.ip(), regs.sp()), (0x3000, SP + 56));
        assert_eq!(regs.step_by_frame_pointer(copied), Step::End);
        assert_eq!(registers(SP - 8).step_by_frame_pointer(copied), Step::Wrong);
        assert_eq!(registers(SP + 17).step_by_frame_pointer(copied), Step::Wrong);
        assert_eq!(registers(SP + 4096).step_by_frame_pointer(copied), Step::Beyond);
    }

    fn any_saved() -> impl Strategy<Value = Saved> {
        let code = || prop::collection::vec(any::<u8>(), 0..12).prop_map(Into::into);
        prop_oneof![
            Just(Saved::Undefined),
            Just(Saved::Same),
            any::<i64>().prop_map(Saved::At),
            (-64i64..64).prop_map(Saved::At),
            any::<i64>().prop_map(Saved::Is),
            any::<u8>().prop_map(Saved::Register),
            code().prop_map(Saved::AtExpression),
            code().prop_map(Saved::IsExpression),
        ]
    }

    proptest! {
        /// Each step goes up the stack, so that every stack ends.
        #[test]
        fn any_rule_goes_up_or_ends(
            rbp in prop_oneof![any::<u64>(), SP - 16..SP + 256],
            cfa in prop_oneof![
                (any::<u8>(), any::<i64>()).prop_map(|(register, offset)| Cfa::Register(register, offset)),
                (6u8..8, -64i64..64).prop_map(|(register, offset)| Cfa::Register(register, offset)),
                prop::collection::vec(any::<u8>(), 0..12).prop_map(|code| Cfa::Expression(code.into())),
            ],
            saved in prop::collection::vec((0u8..17, any_saved()), 0..5),
            bytes in prop::collection::vec(any::<u8>(), 0..128),
        ) {
            let copied = Copied { start: SP, bytes: &bytes };
            let mut regs = registers(rbp);
            let before = regs;
            match regs.step(&rule(cfa, &saved), copied) {
                // A rule may say where rsp was saved, which no compiler does.
                Step::Caller if saved.iter().all(|(register, _)| *register != RSP) => {
                    prop_assert!(regs.sp() > before.sp());
                }
                Step::Caller => {}
                _ => prop_assert_eq!(regs, before),
            }
            let mut regs = before;
            if regs.step_by_frame_pointer(copied) == Step::Caller {
                prop_assert!(regs.sp() > before.sp());
            }
        }
    }
}
