//! One step of unwinding: from the registers of a function to those of its caller.

use gimli::{Encoding, EndianSlice, Evaluation, EvaluationResult, Format, LittleEndian, Location, Register, Value};

use scxprof_base::arch::Arch;
use scxprof_elf::{Cfa, Saved, UnwindRule};
use scxprof_recover::Regs;

/// Operations of an expression that are done; compilers and linkers write up to ten.
const MAX_OPERATIONS: u32 = 256;

/// What a step needs to know of an architecture: registers by their number in DWARF.
#[derive(Debug, PartialEq, Eq)]
struct Convention {
    fp: u8,
    sp: u8,
    ip: u8,
    /// Its value in the caller is where the caller goes on.
    link: u8,
    /// A bit for each that a function leaves as it was, if its rule says nothing of it.
    preserved: u64,
    /// The number of each register of [`Regs::gpr`].
    numbers: &'static [u8],
    /// The bits of an address of code. Those above it in a return address may be an authentication code.
    code: u64,
    /// The frame pointer always points to a frame record: the caller's frame pointer and link register.
    has_records: bool,
    /// Where the registers of the interrupted function are, from the stack pointer on that a signal handler returns with: one word
    /// each, in the order of their numbers. `None` if the rule of the function to which it returns names them.
    saved_by_signal: Option<u64>,
}

/// System V ABI for x86-64, figures 3.4 and 3.36.
const X86_64: Convention = Convention {
    fp: 6,
    sp: 7,
    ip: 16,
    link: 16,
    // rbx, rbp, r12 to r15.
    preserved: 1 << 3 | 1 << 6 | 0xf << 12,
    // ax cx dx bx sp bp si di r8 ..
    numbers: &[0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15],
    code: u64::MAX,
    has_records: false,
    saved_by_signal: None,
};

/// DWARF and Procedure Call Standard for the Arm 64-bit Architecture; user code is below 2^48 (Documentation/arch/arm64/memory.rst).
const ARM64: Convention = Convention {
    fp: 29,
    sp: 31,
    ip: 32,
    link: 30,
    // x19 to x30.
    preserved: 0xfff << 19,
    numbers: &[
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29,
        30, 31,
    ],
    code: (1 << 48) - 1,
    has_records: true,
    // `struct rt_sigframe` (arch/arm64/kernel/signal.c): 128 bytes of siginfo, 176 bytes of ucontext and its mask, and the fault's
    // address. The vdso's rule has only the frame pointer and the link register (arch/arm64/kernel/vdso/sigreturn.S).
    saved_by_signal: Some(128 + 176 + 8),
};

/// Bits of a user address on kernels of arm64 with fewer (`CONFIG_ARM64_VA_BITS`): an authentication code begins above them.
const FEWER_BITS: [u32; 4] = [47, 42, 39, 36];

/// Numbers of registers.
const REGISTERS: usize = 33;

/// The registers of one function of a stack, as far as they are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Registers {
    convention: &'static Convention,
    /// By their numbers in DWARF.
    values: [u64; REGISTERS],
    /// A bit for each of them.
    known: u64,
}

/// The part of a stack that was copied.
#[derive(Debug, Clone, Copy)]
pub(super) struct Copied<'a> {
    /// The address of its first byte: the stack pointer when it was copied.
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
        let convention = match regs.arch {
            Arch::X86_64 => &X86_64,
            Arch::Arm64 => &ARM64,
        };
        let mut registers = Self { convention, values: [0; REGISTERS], known: 0 };
        for (&value, &number) in regs.gpr.iter().zip(convention.numbers) {
            registers.set(number, value);
        }
        registers.set(convention.ip, regs.ip);
        registers
    }

    /// Where it goes on.
    pub(super) fn ip(&self) -> u64 {
        self.values.get(usize::from(self.convention.ip)).copied().unwrap_or_default()
    }

    /// Where it goes on if addresses of code have fewer bits; the first that `is_code` is taken.
    pub(super) fn narrow(&mut self, mut is_code: impl FnMut(u64) -> bool) -> bool {
        let &Convention { ip, link, has_records, .. } = self.convention;
        let mut fewer = FEWER_BITS.map(|bits| self.ip() & ((1 << bits) - 1)).into_iter();
        let Some(to) = fewer.find(|&to| has_records && is_code(to)) else { return false };
        self.set(link, to);
        self.set(ip, to);
        true
    }

    /// The stack pointer, or, where that is not known, what it is not below.
    fn sp(&self) -> u64 {
        self.values.get(usize::from(self.convention.sp)).copied().unwrap_or_default()
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
        if let (true, Some(offset), Some(base)) =
            (rule.is_signal, self.convention.saved_by_signal, self.get(self.convention.sp))
        {
            return self.step_from_signal(base.wrapping_add(offset), stack);
        }
        let cfa = match &rule.cfa {
            Cfa::Register(register, offset) => self.get(*register).map(|base| base.wrapping_add_signed(*offset)),
            Cfa::Expression(code) => match self.evaluate(code, None, stack) {
                Ok(value) => value,
                Err(step) => return step,
            },
        };
        let &Convention { sp, ip, link, preserved, code, has_records, .. } = self.convention;
        let Some(cfa) = cfa else {
            return if has_records { self.step_by_frame_pointer(stack) } else { Step::Wrong };
        };
        // The kernel may handle a signal on another stack, but else a caller's frame is above. A call takes no stack where there is a
        // link register, and a function without a frame has that still.
        let is_frameless = link != ip && cfa == self.sp() && self.get(link).is_some_and(|to| to & code != self.ip());
        if cfa <= self.sp() && !rule.is_signal && !is_frameless {
            return Step::Wrong;
        }
        let mut caller = Self { known: self.known & preserved, ..*self };
        caller.set(sp, cfa);
        for (register, saved) in &rule.saved {
            let value = match saved {
                Saved::Undefined => None,
                Saved::Same => self.get(*register),
                Saved::Is(offset) => Some(cfa.wrapping_add_signed(*offset)),
                Saved::Register(other) => self.get(*other),
                Saved::At(offset) => match stack.word(cfa.wrapping_add_signed(*offset)) {
                    Ok(value) => Some(value),
                    // Only what is needed later must be there.
                    Err(step) if *register == link => return step,
                    Err(_) => None,
                },
                Saved::IsExpression(code) => self.evaluate(code, Some(cfa), stack).unwrap_or(None),
                Saved::AtExpression(code) => match self.evaluate(code, Some(cfa), stack) {
                    Ok(Some(address)) => match stack.word(address) {
                        Ok(value) => Some(value),
                        Err(step) if *register == link => return step,
                        Err(_) => None,
                    },
                    _ => None,
                },
            };
            match value {
                Some(value) => caller.set(*register, value),
                None => caller.known &= !(1 << register),
            }
        }
        if has_records && rule.is_signal && rule.saved.iter().all(|(register, _)| *register != sp) {
            // The rule of a signal's frame leads to a frame record in it.
            caller.known &= !(1 << sp);
        }
        let Some(to) = caller.get(link).map(|to| to & code).filter(|&to| to != 0) else { return Step::End };
        caller.set(ip, to);
        *self = caller;
        Step::Caller
    }

    /// Goes from a signal handler's return to what it interrupted, whose registers are at `saved`.
    fn step_from_signal(&mut self, saved: u64, stack: Copied<'_>) -> Step {
        let &Convention { ip, code, .. } = self.convention;
        let mut interrupted = *self;
        for number in 0..=ip {
            match stack.word(saved.wrapping_add(8 * u64::from(number))) {
                Ok(value) => interrupted.set(number, value),
                Err(step) => return step,
            }
        }
        interrupted.set(ip, interrupted.ip() & code);
        if interrupted.ip() == 0 {
            return Step::End;
        }
        *self = interrupted;
        Step::Caller
    }

    /// Goes to the caller by the frame pointer, as the kernel does: for code without a rule.
    pub(super) fn step_by_frame_pointer(&mut self, stack: Copied<'_>) -> Step {
        let &Convention { fp, sp, ip, link, code, has_records, .. } = self.convention;
        let Some(frame) = self.get(fp) else { return Step::Wrong };
        if frame == 0 {
            return Step::End;
        }
        if frame < self.sp() || !frame.is_multiple_of(8) {
            return Step::Wrong;
        }
        let (next, to) = match (stack.word(frame), stack.word(frame.wrapping_add(8))) {
            (Ok(next), Ok(to)) => (next, to & code),
            (Err(step), _) | (_, Err(step)) => return step,
        };
        if to == 0 {
            return Step::End;
        }
        self.known = 0;
        self.set(fp, next);
        self.set(sp, frame.wrapping_add(16));
        self.set(link, to);
        self.set(ip, to);
        if has_records {
            // The rest of the frame may be above its record.
            self.known &= !(1 << sp);
        }
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
    const RBP: u8 = X86_64.fp;
    const RSP: u8 = X86_64.sp;
    const RIP: u8 = X86_64.ip;

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

    fn arm64(lr: u64, fp: u64) -> Registers {
        let mut gpr = [7; 32];
        (gpr[29], gpr[30], gpr[31]) = (fp, lr, SP);
        Registers::new(&Regs { arch: Arch::Arm64, gpr, ip: 0x1000, flags: 0 })
    }

    #[test]
    fn the_link_register_of_arm64_leads_to_the_caller() {
        let words = stack(&[SP + 32, 0x002a_0000_0000_3000, 19, 4, 0, 0]);
        let copied = Copied { start: SP, bytes: &words };
        // Without a frame, then with one and a signed return address.
        let mut regs = arm64(0x2000, 9);
        assert_eq!(regs.step(&rule(Cfa::Register(31, 0), &[]), copied), Step::Caller);
        assert_eq!((regs.ip(), regs.sp(), regs.get(0), regs.get(19)), (0x2000, SP, None, Some(7)));
        assert_eq!(regs.step(&rule(Cfa::Register(31, 0), &[]), copied), Step::Wrong, "it would not end");
        let saved = [(29, Saved::At(-32)), (30, Saved::At(-24)), (19, Saved::At(-16))];
        assert_eq!(regs.step(&rule(Cfa::Register(31, 32), &saved), copied), Step::Caller);
        assert_eq!((regs.ip(), regs.sp(), regs.get(19), regs.get(29)), (0x3000, SP + 32, Some(19), Some(SP + 32)));
        assert_eq!(regs.step(&rule(Cfa::Register(31, 16), &[(30, Saved::Undefined)]), copied), Step::End);
    }

    #[test]
    fn an_authentication_code_may_begin_lower() {
        let words = stack(&[0; 2]);
        let mut regs = arm64(0x5a5a_1234_5678_9abc, 0);
        assert_eq!(regs.step(&rule(Cfa::Register(31, 0), &[]), Copied { start: SP, bytes: &words }), Step::Caller);
        assert_eq!(regs.ip(), 0x1234_5678_9abc);
        assert!(!regs.narrow(|_| false) && regs.ip() == 0x1234_5678_9abc);
        assert!(regs.narrow(|ip| ip == 0x34_5678_9abc) && regs.ip() == 0x34_5678_9abc);
        assert!(!registers(0).narrow(|_| true), "x86-64 has none");
    }

    #[test]
    fn frame_records_of_arm64_do_not_tell_the_stack_pointer() {
        let words = stack(&[1, 2, SP + 32, 0x2000, 0, 0x3000, 5, 6]);
        let copied = Copied { start: SP, bytes: &words };
        let mut regs = arm64(9, SP + 16);
        assert_eq!(regs.step_by_frame_pointer(copied), Step::Caller);
        assert_eq!((regs.ip(), regs.get(31)), (0x2000, None));
        // A rule that needs it is of no use, but the record is.
        assert_eq!(regs.step(&rule(Cfa::Register(31, 32), &[(30, Saved::At(-8))]), copied), Step::Caller);
        assert_eq!((regs.ip(), regs.get(29)), (0x3000, Some(0)));
        assert_eq!(regs.step_by_frame_pointer(copied), Step::End);
    }

    #[test]
    fn a_signal_of_arm64_leads_to_what_it_interrupted() {
        // Signal information and context, then the registers by their numbers.
        let saved: Vec<u64> = (0..31).map(|number| 100 + number).chain([SP + 4096, 0x002a_0000_0000_3000]).collect();
        let words = stack(&[vec![0; 39], saved].concat());
        let copied = Copied { start: SP, bytes: &words };
        let trampoline =
            UnwindRule { is_signal: true, ..rule(Cfa::Register(29, 0), &[(29, Saved::At(0)), (30, Saved::At(8))]) };
        let mut regs = arm64(0x2000, SP + 64);
        assert_eq!(regs.step(&trampoline, copied), Step::Caller);
        assert_eq!((regs.ip(), regs.sp()), (0x3000, SP + 4096));
        assert_eq!((regs.get(0), regs.get(29), regs.get(30)), (Some(100), Some(129), Some(130)), "a leaf has its link");
        let cut = Copied { start: SP, bytes: &words[..words.len() - 8] };
        assert_eq!(arm64(0x2000, SP + 64).step(&trampoline, cut), Step::Beyond);
        // The stack pointer of a recording is any number.
        for at in [0, 8, 272].map(|before: u64| u64::MAX - 312 - before) {
            let mut regs = arm64(0x2000, SP + 64);
            regs.set(ARM64.sp, at);
            assert_ne!(regs.step(&trampoline, Copied { start: at, bytes: &words }), Step::End, "{at:#x}");
        }
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
            is_arm64 in any::<bool>(),
            cfa in prop_oneof![
                (any::<u8>(), any::<i64>()).prop_map(|(register, offset)| Cfa::Register(register, offset)),
                (prop_oneof![6u8..8, Just(29), Just(31)], -64i64..64).prop_map(|(register, offset)| Cfa::Register(register, offset)),
                prop::collection::vec(any::<u8>(), 0..12).prop_map(|code| Cfa::Expression(code.into())),
            ],
            saved in prop::collection::vec((0u8..32, any_saved()), 0..5),
            bytes in prop::collection::vec(any::<u8>(), 0..128),
        ) {
            let copied = Copied { start: SP, bytes: &bytes };
            let mut regs = if is_arm64 { arm64(0x2000, rbp) } else { registers(rbp) };
            let before = regs;
            match regs.step(&rule(cfa, &saved), copied) {
                // A rule may say where rsp was saved, which no compiler does.
                Step::Caller if saved.iter().all(|(register, _)| *register != before.convention.sp) => {
                    // Without a frame only once.
                    prop_assert!(regs.sp() > before.sp() || is_arm64 && regs.ip() != before.ip());
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
