//! Tests of A64 on single instructions and on small pieces of code.

use std::ops::Range;

use proptest::prelude::*;
use scxprof_base::sample::{Access, Method};

use super::*;
use crate::{Arch, Candidate, CodeWindow, Recovery, Regs, Snapshot, Unrecovered};

#[path = "../../tests/operand/a64.rs"]
mod independent;

const BASE: u64 = 0x40_0000;
const STACK: u64 = 0x7ffe_0000_1000;
const HEAP: u64 = 0x7f00_0000_0000;

/// Registers that all point to different places in the heap, ip at the instruction `at`.
fn regs(at: u64) -> Regs {
    let mut regs = Regs { arch: Arch::Arm64, ip: BASE + 4 * at, ..Regs::default() };
    for (number, register) in (0..).zip(&mut regs.gpr) {
        *register = HEAP + number * 0x1000;
    }
    regs.gpr[31] = STACK;
    regs
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn window(bytes: &[u8]) -> CodeWindow<'_> {
    CodeWindow { key: 1, bias: 0, base: BASE, bytes, function: Some(BASE..BASE + bytes.len() as u64), jit: false }
}

const OWN: Range<u64> = STACK - 512..STACK + 4096;

fn all(words: &[u32], regs: &Regs, dump: &[u64]) -> (Vec<Candidate>, Option<Unrecovered>) {
    let (bytes, dump) = (bytes(words), dump.iter().flat_map(|slot| slot.to_le_bytes()).collect::<Vec<u8>>());
    let mut recovery = Recovery::new(1 << 20);
    let outcome = recovery.recover(regs, &dump, OWN, &mut window(&bytes));
    (outcome.candidates.to_vec(), outcome.reason)
}

/// Method and address of each candidate.
fn found(words: &[u32], regs: &Regs, dump: &[u64]) -> Vec<(Method, u64)> {
    all(words, regs, dump).0.iter().map(|candidate| (candidate.method, candidate.addr)).collect()
}

const NOP: u32 = 0xd503_201f;
const RET: u32 = 0xd65f_03c0;

fn insn(word: u32) -> Option<Insn<A64>> {
    A64::decode(&word.to_le_bytes(), BASE, 0, &mut A64::decoder())
}

/// A heap, so that every address that is computed from it is one of user code.
fn any_regs() -> impl Strategy<Value = [u64; 32]> {
    prop::array::uniform32(0x7000_0000_0000u64..0x7000_ffff_ffff)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn operands_are_those_that_the_encoding_gives(word in loads_and_stores(), gpr in any_regs()) {
        let Some(insn) = insn(word) else { return Ok(()) };
        let expected = independent::accesses(word, BASE, &gpr);
        let operand = insn.operands.first().copied().flatten();
        match operand.filter(|operand| operand.opaque.is_none()) {
            Some(operand) => {
                let addr = operand.address(0, None, |register| gpr.get(usize::from(register)).copied());
                prop_assert_eq!(addr.map(|addr| (addr, u64::from(operand.size))), expected, "{:?}", insn.code);
            }
            // Without an operand, the instruction is no plain load or store, or it may write anywhere.
            None => prop_assert!(expected.is_none() || insn.wild || operand.is_some(), "{:?}", insn.code),
        }
    }

    #[test]
    fn any_word_is_decoded_or_not(word: u32, base: u64) {
        let _ = A64::decode(&word.to_le_bytes(), base, 0, &mut A64::decoder());
        A64::sweep(&word.to_le_bytes(), base, 0..4, |_, _| ());
    }
}

/// Words of the group of loads and stores: op0 is x1x0.
fn loads_and_stores() -> impl Strategy<Value = u32> {
    any::<u32>().prop_map(|word| word & !(1 << 25) | 1 << 27)
}

/// Decodes all words, which takes some minutes with optimisation.
#[test]
#[ignore = "it takes minutes"]
fn no_word_makes_the_decoder_panic() {
    let gpr: [u64; 32] = std::array::from_fn(|number| HEAP + (number as u64) * 0x1_2345_6780);
    for word in 0..=u32::MAX {
        let Some(insn) = decode::decode(&word.to_le_bytes(), BASE, 0) else { continue };
        if let Some(operand) = insn.operands[0].filter(|operand| operand.opaque.is_none()) {
            let addr = operand.address(0, None, |register| gpr.get(usize::from(register)).copied());
            let found = addr.map(|addr| (addr, u64::from(operand.size)));
            assert_eq!(found, independent::accesses(word, BASE, &gpr), "{word:#x} {:?}", insn.code);
        }
    }
}

#[test]
fn the_operand_at_ip_and_after_it() {
    // ldr x0, [x1, #8]; str w2, [x3, x4, lsl #2]; ret
    let mut regs = regs(0);
    regs.gpr[4] = 5;
    let (candidates, _) = all(&[0xf940_0420, 0xb824_7862, RET], &regs, &[]);
    let expected = Candidate {
        addr: HEAP + 0x1008,
        size: 8,
        access: Access::Load,
        method: Method::AtIp,
        insn_ip: BASE,
        global: false,
    };
    assert_eq!(candidates[0], expected);
    assert_eq!((candidates[1].addr, candidates[1].size), (HEAP + 0x3014, 4));
    assert_eq!((candidates[1].method, candidates[1].access), (Method::After, Access::Store));
    assert_eq!(candidates.len(), 2);
}

#[test]
fn the_operand_before_ip_where_its_registers_are_intact_or_can_be_inverted() {
    // ldr x0, [x1]; nop
    assert_eq!(found(&[0xf940_0020, NOP, RET], &regs(1), &[]), [(Method::Before, HEAP + 0x1000)]);
    // ldr x1, [x1]: it has overwritten its own address.
    let (candidates, reason) = all(&[0xf940_0021, NOP, RET], &regs(1), &[]);
    assert!(candidates.is_empty());
    assert_eq!(reason, Some(Unrecovered::Overwritten));
    // ldr x0, [x1], #8; ldr x0, [x2, #-16]!; ldp x3, x4, [x5], #32
    assert_eq!(found(&[0xf840_8420, NOP, RET], &regs(1), &[]), [(Method::Inverted, HEAP + 0x1000 - 8)]);
    assert_eq!(found(&[0xf85f_0c40, NOP, RET], &regs(1), &[]), [(Method::Inverted, HEAP + 0x2000)]);
    assert_eq!(found(&[0xa8c2_10a3, NOP, RET], &regs(1), &[]), [(Method::Inverted, HEAP + 0x5000 - 32)]);
    // ldr x0, [x1]; add x1, x1, #64; sub x1, x1, x2, lsl #3
    let mut regs = regs(3);
    regs.gpr[2] = 3;
    assert_eq!(
        found(&[0xf940_0020, 0x9101_0021, 0xcb02_0c21, RET], &regs, &[]),
        [(Method::Inverted, HEAP + 0x1000 + 24 - 64)]
    );
    // str x0, [x1]; mov x2, x1; mov x1, #0
    (regs.gpr[1], regs.gpr[2]) = (0, HEAP + 0x40);
    assert_eq!(found(&[0xf900_0020, 0xaa01_03e2, 0xd280_0001, RET], &regs, &[]), [(Method::Inverted, HEAP + 0x40)]);
    // The last instruction did not run if x1 is not 0.
    regs.gpr[1] = 1;
    assert_eq!(all(&[0xf900_0020, 0xaa01_03e2, 0xd280_0001, RET], &regs, &[]).1, Some(Unrecovered::Inconsistent));
}

#[test]
fn the_stack_holds_what_registers_lost() {
    // ldr x1, [sp, #16]; ldr x2, [x1, #24]
    let dump = [1, 2, HEAP + 0x500, 4];
    assert_eq!(found(&[0xf940_0be1, 0xf940_0c22, RET], &regs(0), &dump), [(Method::Emulated, HEAP + 0x518)]);
    // ldr x2, [x1]; mov x1, #0; and before it str x1, [sp, #8]
    let mut cleared = regs(3);
    cleared.gpr[1] = 0;
    assert_eq!(
        found(&[0xf900_07e1, 0xf940_0022, 0xd280_0001, RET], &cleared, &[0, HEAP + 0x700, 0]),
        [(Method::Replayed, HEAP + 0x700)]
    );
    // ldp x29, x30, [sp], #32; ret; and the caller goes on with ldr x0, [x29, #8]
    let code = [0xa8c2_7bfd, RET, NOP, NOP, 0xf940_07a0, RET];
    assert_eq!(found(&code, &regs(0), &[HEAP + 0x900, BASE + 16, 0, 0]), [(Method::Emulated, HEAP + 0x908)]);
    // The return address is signed: autiasp first.
    let code = [0xa8c2_7bfd, 0xd503_23bf, RET, NOP, 0xf940_07a0, RET];
    let signed = (BASE + 16) | 0x002a << 48;
    assert_eq!(found(&code, &regs(0), &[HEAP + 0x900, signed, 0, 0]), [(Method::Emulated, HEAP + 0x908)]);
}

#[test]
fn calls_and_branches_are_followed_as_far_as_they_are_decided() {
    // cbz x0, +8; ldr x1, [x2]; ldr x1, [x3]: x0 is not zero.
    let code = [0xb400_0040, 0xf940_0041, 0xf940_0061, RET];
    assert_eq!(found(&code, &regs(0), &[]).len(), 2);
    let mut regs = regs(0);
    regs.gpr[0] = 0;
    assert_eq!(found(&code, &regs, &[]), [(Method::Emulated, HEAP + 0x3000)]);
    // b.eq: a sample has no flags. At the point where both paths meet, x3 is known.
    let code = [0x5400_0040, 0xf940_0041, 0xf940_0061, RET];
    assert_eq!(found(&code, &regs, &[]), [(Method::Emulated, HEAP + 0x3000)]);
    // cmp x0, #0; b.eq
    let code = [0xf100_001f, 0x5400_0040, 0xf940_0041, 0xf940_0061, RET];
    assert_eq!(found(&code, &regs, &[]), [(Method::Emulated, HEAP + 0x3000)]);
    // bl +12; ldr x1, [x3]; ret; the function: ldr x1, [x2]; ret
    let code = [0x9400_0003, 0xf940_0061, RET, 0xf940_0041, RET];
    assert_eq!(found(&code, &regs, &[]), [(Method::Emulated, HEAP + 0x2000), (Method::Emulated, HEAP + 0x3000)]);
}

#[test]
fn a_comparison_before_ip_decides_the_branch_at_ip() {
    // cmp x0, #0; ip: b.eq +8; ldr x1, [x2]; ldr x1, [x3]
    let code = [0xf100_001f, 0x5400_0040, 0xf940_0041, 0xf940_0061, RET];
    let mut regs = regs(1);
    let both = [(Method::After, HEAP + 0x2000), (Method::After, HEAP + 0x3000)];
    assert_eq!(found(&code, &regs, &[]), both);
    regs.gpr[0] = 0;
    assert_eq!(found(&code, &regs, &[]), [(Method::Emulated, HEAP + 0x3000)]);
    // Nobody knows what was compared once `mov x0, #7` has overwritten it: only what both paths do is certain.
    let code = [0xf100_001f, 0xd280_00e0, 0x5400_0040, 0xf940_0041, 0xf940_0061, RET];
    (regs.ip, regs.gpr[0]) = (BASE + 8, 7);
    assert_eq!(found(&code, &regs, &[]), [(Method::Emulated, HEAP + 0x3000)]);
    // A branch that leads to ip: the comparison may not have run.
    let code = [0xf100_001f, 0x5400_0040, 0xf940_0041, 0xf940_0061, 0xb4ff_ffa5, RET];
    (regs.ip, regs.gpr[0]) = (BASE + 4, HEAP);
    assert_eq!(found(&code, &regs, &[])[0], (Method::Emulated, HEAP + 0x3000));
}

#[test]
fn a_branch_into_the_middle_ends_the_way_back() {
    // ldr x0, [x1]; nop; ip: b -4 leads to the nop.
    let before = |words: &[u32]| found(words, &regs(2), &[]).len();
    assert_eq!(before(&[0xf940_0020, NOP, NOP, RET]), 1);
    assert_eq!(before(&[0xf940_0020, NOP, NOP, 0x17ff_fffe]), 0);
    // So does a jump to anywhere, but not the return.
    assert_eq!(before(&[0xf940_0020, NOP, NOP, 0xd61f_0200]), 0);
    // bti j
    assert_eq!(before(&[0xf940_0020, 0xd503_249f, NOP, RET]), 0);
}

#[test]
fn literals_pages_and_tags() {
    // ldr x0, +8 is in the code itself.
    let (candidates, _) = all(&[0x5800_0040, RET, 1, 2], &regs(0), &[]);
    assert_eq!((candidates[0].addr, candidates[0].global), (BASE + 8, true));
    // adrp x0, +0x2000; add x0, x0, #0x10; ldr x1, [x0, #8]
    assert_eq!(
        found(&[0xd000_0000, 0x9100_4000, 0xf940_0401, RET], &regs(0), &[]),
        [(Method::Emulated, BASE + 0x2018)]
    );
    let mut regs = regs(0);
    regs.gpr[1] |= 0x5a << 56;
    assert_eq!(found(&[0xf940_0020, RET], &regs, &[]), [(Method::AtIp, HEAP + 0x1000)]);
    // An address of the kernel, a number, and a signed pointer are not what user code accesses.
    for addr in [0xffff_8000_0000_1000, 0xffff_ffff_ffff_ff00, 0x002a_7f00_0000_1000, 0x00ff_ffff_ffff_f000] {
        regs.gpr[1] = addr;
        assert_eq!(all(&[0xf940_0020, RET], &regs, &[]).1, Some(Unrecovered::Impossible), "{addr:#x}");
    }
}

#[test]
fn variables_whose_address_the_code_contains_are_always_asked_for() {
    // adrp x16, +0x2000; ldrb w17, [x16, #0x40]; add x16, x16, #0x100; ldr x0, [x16]; ldr x2, [x1]; ldr x3, [x2]
    let code = [0xd000_0010, 0x3941_0211, 0x9104_0210, 0xf940_0200, 0xf940_0022, 0xf940_0043, RET];
    // The line at x1, with the address of another one.
    let mut memory = vec![0, STACK, 1, HEAP + 0x1000, HEAP + 0x9_0010];
    memory.extend([0; 7]);
    let (code, memory) = (bytes(&code), memory.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
    let mut recovery = Recovery::new(1 << 20);
    let outcome = recovery.recover_with(&regs(0), &[], Snapshot::new(&memory), OWN, &mut window(&code));
    let wanted = outcome.wanted.unwrap();
    assert_eq!(wanted.fixed, [BASE + 0x2100, BASE + 0x2040, 0, 0]);
    assert_eq!((wanted.registers, wanted.lines), (1 << 1, [HEAP + 0x9_0000, 0, 0, 0]));
}

#[test]
fn a_sample_without_lines_asks_for_those_that_it_lacks() {
    // ldr x0, [x1]; ldr x2, [x0]
    let code = bytes(&[0xf940_0020, 0xf940_0002, RET]);
    let mut recovery = Recovery::new(1 << 20);
    let mut wanted = |memory: &[u64]| {
        let memory: Vec<u8> = memory.iter().flat_map(|word| word.to_le_bytes()).collect();
        let outcome = recovery.recover_with(&regs(0), &[], Snapshot::new(&memory), OWN, &mut window(&code));
        let found: Vec<_> = outcome.candidates.iter().map(|found| (found.method, found.addr)).collect();
        assert_eq!(found, [(Method::AtIp, HEAP + 0x1000)]);
        outcome.wanted.map(|wanted| wanted.registers)
    };
    assert_eq!(wanted(&[0, STACK, 0]), Some(1 << 1));
    // No memory was recorded.
    assert_eq!(wanted(&[]), None);
}

#[test]
fn written_registers_include_implicit_ones() {
    let writes = |word| insn(word).unwrap().writes;
    for (word, expected) in [
        (0xf900_0020, 0u32),                        // str x0, [x1]
        (0xf840_8420, 1 | 1 << 1),                  // ldr x0, [x1], #8
        (0xa9be_7bfd, 1 << 31),                     // stp x29, x30, [sp, #-32]!
        (0xc802_7c20, 1 << 2),                      // stxr w2, x0, [x1]
        (0xf8e0_8041, 1 << 1),                      // swpal x0, x1, [x2]
        (0xb820_005f, 0),                           // stadd w0, [x2]
        (0xc8e0_fc41, 1),                           // casal x0, x1, [x2]
        (0x4860_fc82, 3),                           // caspal x0, x1, x2, x3, [x4]
        (0x9400_0002, 1 << 30),                     // bl
        (0xf100_0c1f, 0),                           // cmp x0, #3
        (0x9101_03ff, 1 << 31),                     // add sp, sp, #64
        (0xd53b_d040, 1),                           // mrs x0, tpidr_el0
        (0x9e67_0020, 0),                           // fmov d0, x1
        (0x9e66_0020, 1),                           // fmov x0, d1
        (0x4cdf_a020, 1 << 1),                      // ld1 {v0.16b, v1.16b}, [x1], #32
        (0xd503_233f, 1 << 16 | 1 << 17 | 1 << 30), // paciasp
        (0x0420_e3e0 | 5, 1 << 5),                  // cntb x5
        (0x0460_5fff, 1 << 31),                     // addpl sp, x0, #31
    ] {
        assert_eq!(writes(word), expected, "{word:#x} {:?}", insn(word).unwrap().code);
    }
    assert_eq!(insn(0xa540_0020).unwrap().operand(0).unwrap().opaque, Some(crate::insn::Opaque::Masked)); // ld1w
    assert!(insn(0x0000_0000).is_none_or(|insn| insn.flow == crate::insn::Flow::Stop));
}

/// Words of data processing, with immediates or registers: op0 is 100x or x101.
fn data_processing() -> impl Strategy<Value = u32> {
    (any::<u32>(), 0..3).prop_map(|(word, kind)| match kind {
        0 => word & !(0b1110 << 25) | 0b1000 << 25,
        1 => word & !(0b0111 << 25) | 0b0101 << 25,
        // Instructions with one source (bit 30) or two, which are rare among random words.
        _ => (word & if word >> 30 & 1 == 1 { 0xc000_1fff } else { 0x801f_2fff }) | 0x1ac0_0000,
    })
}

/// Values that are typical of programs: small ones, limits, and arbitrary ones.
fn any_value() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..256u64, Just(u64::MAX), Just(1 << 63), any::<i32>().prop_map(|small| small as u64)]
}

/// A machine in which all registers and flags are known.
fn machine(gpr: [u64; 32], nzcv: u32) -> Machine<A64> {
    let mut machine = Machine::<A64>::new(&Regs { arch: Arch::Arm64, gpr, ..Regs::default() }, &[]);
    machine.flags = super::flags::of(nzcv);
    machine
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5_000, ..ProptestConfig::default() })]

    /// Registers that are known after undoing an instruction have their true values.
    #[test]
    fn what_is_undone_is_what_was(
        word in prop_oneof![data_processing(), loads_and_stores()],
        gpr in prop::array::uniform32(any_value()),
        nzcv in 0u32..16,
    ) {
        let Some(insn) = insn(word).filter(|insn| insn.flow == crate::insn::Flow::Next) else { return Ok(()) };
        let mut machine = machine(gpr, nzcv);
        prop_assume!(machine.step(&insn) == Next::Fall);
        let undone = machine.unstep(&insn, Default::default());
        prop_assert!(!undone.conflict, "{:?}", insn.code);
        for (register, (val, before)) in machine.regs.iter().zip(gpr).enumerate() {
            prop_assert_eq!(val.bits(), before & val.known(), "x{} {:?}", register, insn.code);
        }
    }

    /// An instruction writes only the registers in its `writes`.
    #[test]
    fn what_is_not_written_stays(
        word in prop_oneof![data_processing(), loads_and_stores()],
        gpr in prop::array::uniform32(any_value()),
    ) {
        let Some(insn) = insn(word) else { return Ok(()) };
        let mut machine = machine(gpr, 0);
        let _ = machine.step(&insn);
        for (register, (val, before)) in (0u8..).zip(machine.regs.iter().zip(gpr)) {
            if insn.writes & crate::insn::bit(register) == 0 {
                prop_assert_eq!(val.get(), Some(before), "x{} {:?}", register, insn.code);
            }
        }
        prop_assert!(insn.flags != 0 || machine.flags == super::flags::of(0));
    }
}

/// Compares the results of data processing with those of the processor, of this host or an emulated one.
#[cfg(target_arch = "aarch64")]
mod native {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicBool, Ordering};

    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    use super::*;

    /// The index of the tested instruction in a stub.
    const FIRST: usize = 39;

    /// Loads x0 to x28 and the flags from x0's array, runs one instruction, and stores them there.
    fn stub(word: u32) -> Vec<u32> {
        let mut code = vec![
            0xa9b9_7bfd, // stp x29, x30, [sp, #-112]!
            0xa901_53f3, // stp x19, x20, [sp, #16]
            0xa902_5bf5, // stp x21, x22, [sp, #32]
            0xa903_63f7, // stp x23, x24, [sp, #48]
            0xa904_6bf9, // stp x25, x26, [sp, #64]
            0xa905_73fb, // stp x27, x28, [sp, #80]
            0xf900_33e0, // str x0, [sp, #96]
            0xaa00_03fe, // mov x30, x0
            0xf940_83c0, // ldr x0, [x30, #256]
            0xd51b_4200, // msr nzcv, x0
        ];
        // ldr xN, [x30, #8 * N]
        code.extend((0..29).map(|n| 0xf940_0000 | n << 10 | 30 << 5 | n));
        assert_eq!(code.len(), FIRST);
        code.push(word);
        code.push(0xf940_33fe); // ldr x30, [sp, #96]
                                // str xN, [x30, #8 * N]
        code.extend((0..29).map(|n| 0xf900_0000 | n << 10 | 30 << 5 | n));
        code.extend([
            0xd53b_4200, // mrs x0, nzcv
            0xf900_83c0, // str x0, [x30, #256]
            0xa945_73fb, // ldp x27, x28, [sp, #80]
            0xa944_6bf9, // ldp x25, x26, [sp, #64]
            0xa943_63f7, // ldp x23, x24, [sp, #48]
            0xa942_5bf5, // ldp x21, x22, [sp, #32]
            0xa941_53f3, // ldp x19, x20, [sp, #16]
            0xa8c7_7bfd, // ldp x29, x30, [sp], #112
            RET,
        ]);
        code
    }

    // SAFETY: as libgcc and compiler-rt define it.
    unsafe extern "C" {
        fn __clear_cache(start: *mut libc::c_void, end: *mut libc::c_void);
    }

    static ILLEGAL: AtomicBool = AtomicBool::new(false);

    /// Skips an instruction that this processor does not have.
    extern "C" fn skip(_signal: libc::c_int, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        ILLEGAL.store(true, Ordering::Relaxed);
        // SAFETY: the kernel gives the context of the interrupted code to a handler that asks for it (SA_SIGINFO).
        unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.pc += 4 };
    }

    #[test]
    fn the_processor_agrees() {
        // SAFETY: all-zero is a value of this struct; the handler has the type that SA_SIGINFO asks for.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = skip as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut());
        }
        const SIZE: usize = 1 << 20;
        // SAFETY: an anonymous mapping of its own.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SIZE,
                libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(page, libc::MAP_FAILED);
        let mut runner = TestRunner::deterministic();
        let any = (data_processing(), prop::array::uniform32(any_value()), 0u32..16);
        let (mut checked, mut by, mut illegal) = (0, BTreeMap::<String, u32>::new(), BTreeMap::<String, u32>::new());
        for _ in 0..6 {
            let mut stubs = Vec::new();
            let mut cases = Vec::new();
            while stubs.len() < SIZE / 4 - 128 {
                let (word, gpr, nzcv) = any.new_tree(&mut runner).unwrap().current();
                let Some(insn) = insn(word).filter(|insn| insn.flow == crate::insn::Flow::Next) else { continue };
                let mut machine = machine(gpr, nzcv);
                // The stub uses these registers itself.
                for register in 29..32 {
                    machine.set_reg(register, Val::UNKNOWN);
                }
                let at = page as u64 + 4 * (stubs.len() + FIRST) as u64;
                machine.bias = at.wrapping_sub(BASE);
                if insn.writes >> 29 != 0 || A64::step(&mut machine, &insn).is_none() {
                    continue;
                }
                cases.push((stubs.len() * 4, insn, gpr, nzcv, machine));
                stubs.extend(stub(word));
            }
            // SAFETY: the stubs fit, and no other code runs there.
            unsafe {
                std::ptr::copy_nonoverlapping(stubs.as_ptr(), page.cast::<u32>(), stubs.len());
                __clear_cache(page, page.cast::<u8>().add(SIZE).cast());
            }
            for (at, insn, gpr, nzcv, machine) in cases {
                let mut area = [0u64; 33];
                area[..32].copy_from_slice(&gpr);
                area[32] = u64::from(nzcv) << 28;
                ILLEGAL.store(false, Ordering::Relaxed);
                // SAFETY: the stub keeps the registers that a function has to keep, and writes to its argument only.
                unsafe {
                    let run: extern "C" fn(*mut u64) = std::mem::transmute(page.cast::<u8>().add(at));
                    run(area.as_mut_ptr());
                }
                if ILLEGAL.load(Ordering::Relaxed) {
                    *illegal.entry(format!("{:?}", insn.code.opcode)).or_default() += 1;
                    continue;
                }
                for (register, (val, native)) in machine.regs.iter().zip(area).take(29).enumerate() {
                    assert_eq!(val.bits(), native & val.known(), "x{register} {:?} of {gpr:x?}", insn.code);
                }
                let flags = machine.flags;
                assert_eq!(flags.bits, (area[32] >> 28) as u32 & flags.known, "{:?} of {gpr:x?}", insn.code);
                checked += 1;
                *by.entry(format!("{:?}", insn.code.opcode)).or_default() += 1;
            }
        }
        println!("{checked} instructions: {by:?}; not of this processor: {illegal:?}");
        assert!(checked > 10_000);
        assert!(by.len() > 50, "{by:?}");
    }
}
