//! Tests of the recovery on small pieces of code, and on damaged ones.

use std::ops::Range;

use proptest::prelude::*;

use super::*;
use scxprof_base::sample::Access;
use scxprof_base::sample::Method;

const BASE: u64 = 0x40_0000;
const RSP: u64 = 0x7ffe_0000_1000;
const HEAP: u64 = 0x7f00_0000_0000;

const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RBX: usize = 3;
const RSI: usize = 6;
const RDI: usize = 7;

/// Registers that all point to different places in the heap, ip at `at` of the code.
fn regs(at: usize) -> Regs {
    let mut gpr = [0; 16];
    for (number, register) in (0..).zip(&mut gpr) {
        *register = HEAP + number * 0x1000;
    }
    gpr[4] = RSP;
    Regs::x86_64(gpr, BASE + at as u64, 0x202)
}

fn window(bytes: &[u8]) -> CodeWindow<'_> {
    CodeWindow { key: 1, bias: 0, base: BASE, bytes, function: Some(BASE..BASE + bytes.len() as u64), jit: false }
}

const STACK: Range<u64> = RSP - 512..RSP + 4096;

fn all(bytes: &[u8], regs: &Regs, dump: &[u8]) -> (Vec<Candidate>, Option<Unrecovered>) {
    let mut recovery = Recovery::new(1 << 20);
    let outcome = recovery.recover(regs, dump, STACK, &mut window(bytes));
    (outcome.candidates.to_vec(), outcome.reason)
}

/// Method and address of each candidate.
fn found(bytes: &[u8], regs: &Regs, dump: &[u8]) -> Vec<(Method, u64)> {
    all(bytes, regs, dump).0.iter().map(|candidate| (candidate.method, candidate.addr)).collect()
}

fn dump(slots: &[u64]) -> Vec<u8> {
    slots.iter().flat_map(|slot| slot.to_le_bytes()).collect()
}

const NOP: u8 = 0x90;
/// RFLAGS after a register was set to 0 with xor.
const ZERO: u64 = 0x246;

#[test]
fn the_operand_at_ip_and_after_it() {
    // mov rax,[rbx]; mov [rcx],edx; ret
    let (candidates, _) = all(&[0x48, 0x8b, 0x03, 0x89, 0x11, 0xc3], &regs(0), &[]);
    let expected = Candidate {
        addr: HEAP + 0x3000,
        size: 8,
        access: Access::Load,
        method: Method::AtIp,
        insn_ip: BASE,
        global: false,
    };
    assert_eq!(candidates[0], expected);
    assert_eq!((candidates[1].method, candidates[1].access, candidates[1].size), (Method::After, Access::Store, 4));
    assert_eq!(candidates.len(), 2);
}

#[test]
fn the_operand_before_ip_where_its_registers_are_intact() {
    assert_eq!(found(&[0x48, 0x8b, 0x03, NOP, 0xc3], &regs(3), &[]), [(Method::Before, HEAP + 0x3000)]);
    // mov rbx,[rbx] has overwritten its own address.
    let (candidates, reason) = all(&[0x48, 0x8b, 0x1b, NOP, 0xc3], &regs(3), &[]);
    assert!(candidates.is_empty());
    assert_eq!(reason, Some(Unrecovered::Overwritten));
}

#[test]
fn registers_are_computed_back() {
    // mov rax,[rbx]; add rbx,8: the result has even parity
    let code = [0x48, 0x8b, 0x03, 0x48, 0x83, 0xc3, 8, NOP, 0xc3];
    let even = Regs { flags: 0x206, ..regs(7) };
    assert_eq!(found(&code, &even, &[]), [(Method::Inverted, HEAP + 0x3000 - 8)]);
    // Flags that the addition cannot have left: it did not run.
    assert_eq!(all(&code, &regs(7), &[]).1, Some(Unrecovered::Inconsistent));
    // mov rax,[rbx]; mov rcx,rbx; xor ebx,ebx
    let mut regs = regs(8);
    regs.gpr[RBX] = 0;
    regs.flags = ZERO;
    assert_eq!(
        found(&[0x48, 0x8b, 0x03, 0x48, 0x89, 0xd9, 0x31, 0xdb, NOP, 0xc3], &regs, &[]),
        [(Method::Inverted, HEAP + 0x1000)]
    );
    // mov eax,[rbx]; add ebx,8: the upper half is lost.
    let code = [0x8b, 0x03, 0x83, 0xc3, 8, NOP, 0xc3];
    regs = self::regs(5);
    (regs.gpr[RAX], regs.gpr[RBX]) = (5, 0x1234);
    assert_eq!(all(&code, &regs, &[]).1, Some(Unrecovered::Overwritten));
}

#[test]
fn pointers_are_taken_from_the_stack() {
    // mov rbx,[rsp+8]; mov rbx,[rbx+16]
    let code = [0x48, 0x8b, 0x5c, 0x24, 8, 0x48, 0x8b, 0x5b, 16, NOP, 0xc3];
    assert_eq!(found(&code, &regs(9), &dump(&[1, HEAP + 0x77])), [(Method::Replayed, HEAP + 0x87)]);
    // A shorter dump gives nothing.
    assert_eq!(all(&code, &regs(9), &dump(&[1])).1, Some(Unrecovered::Overwritten));
}

#[test]
fn an_overwritten_slot_is_not_taken() {
    // mov rbx,[rsp+8]; mov rax,[rbx]; mov [rsp+8],rcx; xor ebx,ebx
    let code = [0x48, 0x8b, 0x5c, 0x24, 8, 0x48, 0x8b, 0x03, 0x48, 0x89, 0x4c, 0x24, 8, 0x31, 0xdb, NOP, 0xc3];
    let mut regs = regs(15);
    regs.gpr[RBX] = 0;
    regs.flags = ZERO;
    assert_eq!(all(&code, &regs, &dump(&[1, HEAP + 0x1000])).1, Some(Unrecovered::Overwritten));
}

#[test]
fn a_counter_on_the_stack_is_counted_back() {
    // mov rax,[rsp+8]; mov rcx,[rbx+rax*8]; inc qword [rsp+8]; xor eax,eax
    let code = [0x48, 0x8b, 0x44, 0x24, 8, 0x48, 0x8b, 0x0c, 0xc3, 0x48, 0xff, 0x44, 0x24, 8, 0x31, 0xc0, NOP, 0xc3];
    let mut regs = regs(16);
    regs.gpr[RAX] = 0;
    regs.flags = ZERO;
    assert_eq!(found(&code, &regs, &dump(&[1, 6])), [(Method::Replayed, HEAP + 0x3000 + 5 * 8)]);
}

#[test]
fn a_store_that_may_hit_the_slot_spoils_it() {
    // mov rbx,[rsp+8]; mov rax,[rbx]; mov [rdx],rcx; xor ebx,ebx; mov rdx,[rdi]
    let code = [0x48, 0x8b, 0x5c, 0x24, 8, 0x48, 0x8b, 0x03, 0x48, 0x89, 0x0a, 0x31, 0xdb, 0x48, 0x8b, 0x17, NOP, 0xc3];
    let mut regs = regs(16);
    regs.gpr[RBX] = 0;
    regs.flags = ZERO;
    assert_eq!(found(&code, &regs, &dump(&[1, HEAP + 0x77])), [(Method::Before, HEAP + 0x7000)]);
}

#[test]
fn nothing_before_a_branch_target_is_taken() {
    // mov rax,[rbx]; L: nop; dec ecx; jne L; ret
    let code = [0x48, 0x8b, 0x03, NOP, 0xff, 0xc9, 0x75, 0xfb, 0xc3];
    assert_eq!(all(&code, &regs(3), &[]).1, Some(Unrecovered::NoOperand));
    // In the loop, what comes before its head is no longer certain.
    assert_eq!(all(&code, &regs(4), &[]).1, Some(Unrecovered::NoOperand));
    // Without the branch it is.
    assert_eq!(found(&[0x48, 0x8b, 0x03, NOP, 0xff, 0xc9, NOP, NOP, 0xc3], &regs(4), &[]).len(), 1);
}

#[test]
fn nothing_before_a_call_is_taken() {
    // mov rax,[rbx]; call +0; nop
    let code = [0x48, 0x8b, 0x03, 0xe8, 0, 0, 0, 0, NOP, 0x0f, 0x0b];
    assert_eq!(all(&code, &regs(8), &[]).1, Some(Unrecovered::NoOperand));
}

#[test]
fn a_branch_that_would_have_been_taken_shows_another_way() {
    // mov rax,[rbx]; je +1; nop; ret
    let code = [0x48, 0x8b, 0x03, 0x74, 1, NOP, 0xc3];
    let mut regs = regs(5);
    assert_eq!(found(&code, &regs, &[]).len(), 1);
    regs.flags |= 0x40;
    assert_eq!(all(&code, &regs, &[]).1, Some(Unrecovered::Inconsistent));
}

#[test]
fn table_jumps_make_every_boundary_a_target() {
    // mov rax,[rbx]; cmp byte [rcx],1; je +2; jmp rax; ret
    let code = [0x48, 0x8b, 0x03, 0x80, 0x39, 1, 0x74, 2, 0xff, 0xe0, 0xc3];
    // No jump table leads between a comparison and its branch.
    assert_eq!(found(&code, &regs(6), &[])[0], (Method::Before, HEAP + 0x1000));
    assert!(found(&code, &regs(3), &[]).iter().all(|(method, _)| !method.is_backward()));
}

#[test]
fn a_function_that_is_not_all_there_may_branch_anywhere() {
    let code = [0x48, 0x8b, 0x03, NOP, 0x0f, 0x0b];
    let mut window = window(&code);
    window.function = Some(BASE..BASE + code.len() as u64 + 1);
    let mut recovery = Recovery::new(1 << 20);
    assert_eq!(recovery.recover(&regs(3), &[], STACK, &mut window).reason, Some(Unrecovered::NoOperand));
    assert_eq!(found(&code, &regs(3), &[]).len(), 1);
}

#[test]
fn a_cold_part_leads_back() {
    struct Parts<'a>(&'a [u8], &'a [u8]);
    impl CodeSource for Parts<'_> {
        fn window(&mut self, ip: u64) -> Option<CodeWindow<'_>> {
            let (base, bytes) = if ip < BASE + 0x1_0000 { (BASE, self.0) } else { (BASE + 0x1_0000, self.1) };
            let function = Some(base..base + bytes.len() as u64);
            Some(CodeWindow { key: 1, bias: 0, base, bytes, function, jit: false })
                .filter(|window| ip.wrapping_sub(base) < window.bytes.len() as u64)
        }
    }
    // test eax,eax; je cold; mov rax,[rbx]; L: nop; ret
    let mut hot = vec![0x85, 0xc0, 0x0f, 0x84, 0, 0, 0, 0, 0x48, 0x8b, 0x03, NOP, 0xc3];
    hot[4..8].copy_from_slice(&(0x1_0000i32 - 8).to_le_bytes());
    // cold: jmp L
    let mut cold = vec![0xe9, 0, 0, 0, 0];
    cold[1..].copy_from_slice(&(11 - 0x1_0005i32).to_le_bytes());
    let mut recovery = Recovery::new(1 << 20);
    let outcome = recovery.recover(&regs(11), &[], STACK, &mut Parts(&hot, &cold));
    assert_eq!(outcome.reason, Some(Unrecovered::StackOnly));
    let outcome = Recovery::new(1 << 20).recover(&regs(11), &[], STACK, &mut Parts(&hot, &[NOP])).reason;
    assert_eq!(outcome, None);
}

#[test]
fn code_is_run_forward_through_calls() {
    // call f; mov rcx,[rax]; ret; f: lea rax,[rbx+8]; ret
    let code = [0xe8, 4, 0, 0, 0, 0x48, 0x8b, 0x08, 0xc3, 0x48, 0x8d, 0x43, 8, 0xc3];
    assert_eq!(found(&code, &regs(0), &[]), [(Method::Emulated, HEAP + 0x3008)]);
    // f's return address is on the stack if the sample lies in f.
    assert_eq!(found(&code, &regs(9), &dump(&[BASE + 5])), [(Method::Emulated, HEAP + 0x3008)]);
}

#[test]
fn what_one_way_of_an_undecided_branch_accesses_is_not_taken() {
    // cmp dword [rbx],1; je +3; mov rax,[rcx]; ret
    let code = [0x83, 0x3b, 1, 0x74, 3, 0x48, 0x8b, 0x01, 0xc3];
    assert_eq!(found(&code, &regs(0), &[]), [(Method::AtIp, HEAP + 0x3000)]);
    // At the branch itself, the flags decide.
    assert_eq!(found(&code, &regs(3), &[]), [(Method::Before, HEAP + 0x3000), (Method::After, HEAP + 0x1000)]);
}

#[test]
fn an_interrupted_copy_says_where_it_is() {
    // mov rax,[rdi]; rep movsb; ret
    let code = [0x48, 0x8b, 0x07, 0xf3, 0xa4, 0xc3];
    let mut regs = regs(3);
    regs.gpr[RCX] = 10;
    let (candidates, _) = all(&code, &regs, &[]);
    let mut places: Vec<_> = candidates.iter().map(|c| (c.method, c.addr, c.access, c.size)).collect();
    places.sort_by_key(|place| place.1);
    assert_eq!(
        places,
        [(Method::AtIp, regs.gpr[RSI], Access::Load, 1), (Method::AtIp, regs.gpr[RDI], Access::Store, 1)]
    );
    regs.gpr[RCX] = 0;
    assert!(found(&code, &regs, &[]).is_empty());
}

#[test]
fn what_cannot_be_told_has_its_reason() {
    let reason = |code: &[u8]| all(code, &regs(0), &[]).1;
    assert_eq!(reason(&[0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0, 0xc3]), Some(Unrecovered::Tls));
    assert_eq!(reason(&[0xc4, 0xe2, 0x75, 0x90, 0x04, 0x93, 0xc3]), Some(Unrecovered::Gather));
    assert_eq!(reason(&[0x62, 0xf1, 0x7c, 0x49, 0x10, 0x03, 0xc3]), Some(Unrecovered::Masked));
    assert_eq!(reason(&[0x48, 0x8b, 0x04, 0x24, 0x0f, 0x0b]), Some(Unrecovered::StackOnly));
    assert_eq!(reason(&[NOP, 0x0f, 0x0b]), Some(Unrecovered::NoOperand));
    assert_eq!(reason(&[0x06]), Some(Unrecovered::BadInstruction));
    assert_eq!(all(&[NOP], &regs(5), &[]).1, Some(Unrecovered::NoCode));
    let mut wild = regs(0);
    wild.gpr[RBX] = 0xdead_beef_dead_beef;
    assert_eq!(all(&[0x48, 0x8b, 0x03, 0x0f, 0x0b], &wild, &[]).1, Some(Unrecovered::Impossible));
}

#[test]
fn variables_of_the_program_are_marked_and_follow_the_bias() {
    // mov eax,[rip+0x10]
    let code = [0x8b, 0x05, 0x10, 0, 0, 0, 0x0f, 0x0b];
    let mut recovery = Recovery::new(1 << 20);
    for bias in [0, 0x5555_0000_0000] {
        let base = BASE + bias;
        let mut window = CodeWindow { key: 1, bias, base, bytes: &code, function: None, jit: false };
        let regs = Regs { ip: base, ..regs(0) };
        let outcome = recovery.recover(&regs, &[], STACK, &mut window);
        assert_eq!(outcome.candidates.len(), 1);
        assert!(outcome.candidates[0].global);
        assert_eq!(outcome.candidates[0].addr, base + 0x16);
        assert_eq!(outcome.candidates[0].insn_ip, base);
    }
    assert!(recovery.cache_counts().hits > 0);
}

/// Pieces of real code to combine and to damage.
const PIECES: &[&[u8]] = &[
    &[0x48, 0x8b, 0x03],
    &[0x48, 0x8b, 0x5c, 0x24, 8],
    &[0x48, 0x89, 0x4c, 0x24, 8],
    &[0x48, 0xff, 0x44, 0x24, 8],
    &[0x48, 0x83, 0xc3, 8],
    &[0x83, 0x3b, 1],
    &[0x74, 3],
    &[0x75, 0xfb],
    &[0xe8, 4, 0, 0, 0],
    &[0xf3, 0xa4],
    &[0xf2, 0xae],
    &[0xfd],
    &[0x50],
    &[0x5b],
    &[0xc9],
    &[0xc3],
    &[0xff, 0xe0],
    &[0x48, 0x8d, 0x04, 0xcb],
    &[0xd3, 0xe0],
    &[0x48, 0xc1, 0xe0, 0x3f],
    &[0x48, 0x0f, 0xaf, 0xc3],
    &[0x0f, 0x44, 0x03],
    &[0x0f, 0x94, 0xc4],
    &[0x86, 0xe0],
    &[0x48, 0x87, 0x03],
    &[0x48, 0x0f, 0xcb],
    &[0x48, 0x98],
    &[0x48, 0x99],
    &[0xc4, 0xe2, 0x75, 0x90, 0x04, 0x93],
    &[0xc8, 0x10, 0, 1],
    &[0xeb, 0xfe],
    &[0x67, 0x8b, 0x43, 8],
    &[0x0f, 0xae, 0x23],
    &[0xe2, 0xfe],
    &[0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0],
];

fn code() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop::collection::vec(prop::sample::select(PIECES), 1..60).prop_map(|pieces| pieces.concat());
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let damaged = (pieces, damage).prop_map(|(mut code, damage)| {
        for (at, byte) in damage {
            let at = at.index(code.len());
            code[at] = byte;
        }
        code
    });
    prop_oneof![damaged, prop::collection::vec(any::<u8>(), 1..600)]
}

fn value() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..200u64,
        (0..0x4000u64).prop_map(|offset| HEAP + offset),
        (0..0x400u64).prop_map(|offset| RSP - 0x200 + offset),
        Just(u64::MAX),
    ]
}

/// Lines around the values, as the BPF program writes them, possibly truncated.
fn memory() -> impl Strategy<Value = Vec<u8>> {
    let line = (value(), prop::collection::vec(value(), 8))
        .prop_map(|(base, words)| [base & !63].into_iter().chain(words).collect::<Vec<u64>>());
    let lines = (value(), prop::collection::vec(line, 0..12), 0usize..900);
    lines.prop_map(|(fs_base, lines, cut)| {
        let header = [fs_base & !7, RSP, lines.len() as u64];
        let words = header.into_iter().chain(lines.into_iter().flatten());
        let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        bytes.truncate(bytes.len().saturating_sub(cut / 10));
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// For any bytes and registers, the outcome is consistent and nothing panics.
    #[test]
    fn any_code_and_registers_are_survived(
        code in code(),
        gpr in prop::array::uniform16(value()),
        rflags: u64,
        dump in prop::collection::vec(any::<u8>(), 0..600),
        at in any::<prop::sample::Index>(),
        function in prop::option::of((0..300u64, 0..1000u64)),
        base in prop_oneof![Just(BASE), Just(0u64), Just(u64::MAX - 100), any::<u64>()],
        bias: u64,
        budget in prop_oneof![Just(0usize), Just(4096), Just(1 << 20)],
        memory in memory(),
    ) {
        let mut recovery = Recovery::new(budget);
        let mut window = CodeWindow {
            key: 7,
            bias,
            base,
            bytes: &code,
            function: function.map(|(start, len)| {
                let start = base.wrapping_add(start).wrapping_sub(20);
                start..start.saturating_add(len)
            }),
            jit: false,
        };
        let regs = Regs::x86_64(gpr, base.wrapping_add(at.index(code.len()) as u64), rflags);
        let stack = regs.sp().saturating_sub(512)..regs.sp().saturating_add(4096);
        // Twice: the cached code gives the same result.
        let memory = Snapshot::new(&memory);
        let first = recovery.recover_with(&regs, &dump, memory, stack.clone(), &mut window);
        let (candidates, reason) = (first.candidates.to_vec(), first.reason);
        // Run as far as the first time: the results at a place determine how far the next run goes.
        recovery.forget_reach();
        let second = recovery.recover_with(&regs, &dump, memory, stack.clone(), &mut window);
        prop_assert_eq!(&candidates, second.candidates);
        prop_assert_eq!(reason, second.reason);
        prop_assert_eq!(candidates.is_empty(), reason.is_some());
        prop_assert!(candidates.len() <= MAX_CANDIDATES);
        prop_assert!(second.operands.len() <= 2 * 2 * MAX_STEPS, "two of each instruction");
        for candidate in &candidates {
            prop_assert!(!stack.contains(&candidate.addr));
            let is_kernels = candidate.addr >= KERNEL_HALF && candidate.insn_ip >= KERNEL_HALF;
            prop_assert!(candidate.addr >= 4096 && (candidate.addr < 1 << 56 || is_kernels));
            prop_assert!(candidate.size > 0);
            prop_assert!(candidate.access != Access::Unknown);
        }
        prop_assert!(recovery.cache_counts().bytes <= budget);
    }
}

#[test]
fn registers_are_numbered_as_instructions_number_them() {
    // mov rax,[rdx]
    assert_eq!(found(&[0x48, 0x8b, 0x02, 0x0f, 0x0b], &regs(0), &[]), [(Method::AtIp, regs(0).gpr[RDX])]);
}
