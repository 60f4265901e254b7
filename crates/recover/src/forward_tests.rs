//! Tests of undecided branches, read-only memory, and calls through it.

use std::collections::HashMap;
use std::ops::Range;

use super::*;
use scxprof_base::sample::Method;

const BASE: u64 = 0x40_0000;
const RSP: u64 = 0x7ffe_0000_1000;
const HEAP: u64 = 0x7f00_0000_0000;
const STACK: Range<u64> = RSP - 512..RSP + 4096;

/// Code and read-only memory.
struct Program<'a> {
    code: &'a [u8],
    constants: HashMap<u64, u64>,
}

impl CodeSource for Program<'_> {
    fn window(&mut self, ip: u64) -> Option<CodeWindow<'_>> {
        let function = Some(BASE..BASE + self.code.len() as u64);
        let window = CodeWindow { key: 1, bias: 0, base: BASE, bytes: self.code, function, jit: false };
        window.contains(ip).then_some(window)
    }

    fn constant(&mut self, addr: u64, size: u32) -> Option<u64> {
        self.constants.get(&addr).map(|value| value & (u64::MAX >> (64 - 8 * size)))
    }
}

/// Method and address of each candidate from ip on; register n points to `HEAP + n * 0x1000`.
fn ahead(code: &[u8], at: usize, dump: &[u64], constants: &[(u64, u64)]) -> Vec<(Method, u64)> {
    ahead_with(code, at, dump, constants, &[])
}

/// The same with the memory around the registers.
fn ahead_with(code: &[u8], at: usize, dump: &[u64], constants: &[(u64, u64)], memory: &[u8]) -> Vec<(Method, u64)> {
    let mut gpr = [0; 16];
    for (number, register) in (0..).zip(&mut gpr) {
        *register = HEAP + number * 0x1000;
    }
    gpr[4] = RSP;
    let regs = Regs::x86_64(gpr, BASE + at as u64, 0x202);
    let dump: Vec<u8> = dump.iter().flat_map(|slot| slot.to_le_bytes()).collect();
    let mut program = Program { code, constants: constants.iter().copied().collect() };
    let mut recovery = Recovery::new(1 << 20);
    let outcome = recovery.recover_with(&regs, &dump, Snapshot::new(memory), STACK, &mut program);
    let found = outcome.candidates.iter().filter(|candidate| !candidate.method.is_backward());
    found.map(|candidate| (candidate.method, candidate.addr)).collect()
}

const RBX: (Method, u64) = (Method::AtIp, HEAP + 0x3000);

#[test]
fn what_both_ways_leave_alone_is_known_behind_them() {
    // cmp dword [rbx],1; je +2; inc eax; mov rdx,[rcx]; mov rdx,[rax]
    let code = [0x83, 0x3b, 1, 0x74, 2, 0xff, 0xc0, 0x48, 0x8b, 0x11, 0x48, 0x8b, 0x10, 0x0f, 0x0b];
    assert_eq!(ahead(&code, 0, &[], &[]), [RBX, (Method::Emulated, HEAP + 0x1000)], "rax depends on the way");
    // cmp dword [rbx],1; je +3; mov rax,[rcx]; ret: only one way makes the access.
    assert_eq!(ahead(&[0x83, 0x3b, 1, 0x74, 3, 0x48, 0x8b, 0x01, 0xc3], 0, &[], &[]), [RBX]);
}

#[test]
fn a_slot_that_one_way_writes_is_not_known_behind_it() {
    // cmp dword [rbx],1; je +4; mov [rsp+8],rcx; mov rdx,[rsp+8]; mov rdx,[rdx]; mov rsi,[rsp]; mov rsi,[rsi]
    let code = |offset| {
        let mut code = vec![0x83, 0x3b, 1, 0x74, 5, 0x48, 0x89, 0x4c, 0x24, offset, 0x48, 0x8b, 0x54, 0x24, 8];
        code.extend([0x48, 0x8b, 0x12, 0x48, 0x8b, 0x34, 0x24, 0x48, 0x8b, 0x36, 0x0f, 0x0b]);
        code
    };
    let dump = [HEAP + 0x66, HEAP + 0x77];
    assert_eq!(ahead(&code(8), 0, &dump, &[]), [RBX, (Method::Emulated, HEAP + 0x66)]);
    assert_eq!(
        ahead(&code(16), 0, &dump, &[]),
        [RBX, (Method::Emulated, HEAP + 0x77), (Method::Emulated, HEAP + 0x66)]
    );
}

#[test]
fn a_loop_of_unknown_length_is_not_left() {
    // L: mov rax,[rbx]; test eax,eax; jne L; mov rdx,[rcx]
    let code = [0x48, 0x8b, 0x03, 0x85, 0xc0, 0x75, 0xf9, 0x48, 0x8b, 0x11, 0x0f, 0x0b];
    assert_eq!(ahead(&code, 0, &[], &[]), [RBX]);
}

#[test]
fn two_returns_lead_to_the_same_caller() {
    // f: push rbx; mov rbx,[rdi]; test ebx,ebx; je +2; pop rbx; ret; xor eax,eax; pop rbx; ret; caller: mov rdx,[rbx]
    let code =
        [0x53, 0x48, 0x8b, 0x1f, 0x85, 0xdb, 0x74, 2, 0x5b, 0xc3, 0x31, 0xc0, 0x5b, 0xc3, 0x48, 0x8b, 0x13, 0xf4];
    let found = ahead(&code, 0, &[BASE + 14], &[]);
    assert_eq!(
        found,
        [(Method::After, HEAP + 0x7000), (Method::Emulated, HEAP + 0x3000)],
        "the caller's rbx comes back"
    );
    // The same without a saved register: nothing is left to run.
    let leaf = [0x83, 0x3b, 0, 0x74, 3, 0xff, 0xc0, 0xc3, 0x31, 0xc0, 0xc3, 0x48, 0x8b, 0x11, 0xf4];
    assert_eq!(ahead(&leaf, 0, &[BASE + 11], &[]), [RBX, (Method::Emulated, HEAP + 0x1000)]);
    assert_eq!(ahead(&leaf, 0, &[], &[]), [RBX], "nobody knows who called");
}

#[test]
fn a_call_on_one_way_is_run() {
    // cmp dword [rbx],1; je +5; call f; mov rdx,[rcx]; mov rdx,[rax]; ud2; f: xor eax,eax; ret
    let mut code = vec![0x83, 0x3b, 1, 0x74, 5, 0xe8, 8, 0, 0, 0, 0x48, 0x8b, 0x11, 0x48, 0x8b, 0x10, 0x0f, 0x0b];
    code.extend([0x31, 0xc0, 0xc3]);
    assert_eq!(ahead(&code, 0, &[], &[]), [RBX, (Method::Emulated, HEAP + 0x1000)]);
    // f: ud2 instead: it may never return.
    let at = code.len() - 3;
    code.splice(at.., [0x0f, 0x0b]);
    assert_eq!(ahead(&code, 0, &[], &[]), [RBX]);
}

#[test]
fn memory_that_cannot_be_written_is_known() {
    // mov rax,[rip+0x100]; mov rdx,[rax]
    let code = [0x48, 0x8b, 0x05, 0, 1, 0, 0, 0x48, 0x8b, 0x10, 0x0f, 0x0b];
    let slot = BASE + 0x107;
    assert_eq!(ahead(&code, 0, &[], &[(slot, HEAP + 0x55)]), [(Method::AtIp, slot), (Method::Emulated, HEAP + 0x55)]);
    assert_eq!(ahead(&code, 0, &[], &[]), [(Method::AtIp, slot)]);
    // call [rip+0x100]; mov rdx,[rax]; ud2; f: mov rax,rcx; ret
    let code = [0xff, 0x15, 0, 1, 0, 0, 0x48, 0x8b, 0x10, 0x0f, 0x0b, 0x48, 0x89, 0xc8, 0xc3];
    let slot = BASE + 0x106;
    assert_eq!(ahead(&code, 0, &[], &[(slot, BASE + 11)]), [(Method::AtIp, slot), (Method::Emulated, HEAP + 0x1000)]);
    // jmp [rcx]
    let code = [0xff, 0x21, 0x0f, 0x0b, 0x48, 0x8b, 0x13, 0x0f, 0x0b];
    let slot = HEAP + 0x1000;
    assert_eq!(ahead(&code, 0, &[], &[(slot, BASE + 4)]), [(Method::AtIp, slot), (Method::Emulated, HEAP + 0x3000)]);
    // A far jump is not followed.
    assert_eq!(ahead(&[0x48, 0xff, 0x29, 0x48, 0x8b, 0x13], 0, &[], &[(slot, BASE + 3)]), [(Method::AtIp, slot)]);
}

#[test]
fn late_accesses_to_known_lines_take_no_room() {
    // mov ecx,40; L: mov eax,[rbx]; add rbx,4; dec ecx; jne L; mov rdx,[rsi]
    let code = [0xb9, 40, 0, 0, 0, 0x8b, 0x03, 0x48, 0x83, 0xc3, 4, 0xff, 0xc9, 0x75, 0xf6, 0x48, 0x8b, 0x16];
    let mut lines: Vec<u64> = ahead(&code, 0, &[], &[]).iter().map(|(_, addr)| addr / 64).collect();
    assert!(lines.contains(&((HEAP + 0x6000) / 64)), "{lines:x?}");
    lines.dedup();
    assert!(lines.len() >= 4, "{lines:x?}");
}

/// Words at addresses, as the BPF program writes their lines.
fn memory(fs_base: u64, words: &[(u64, u64)]) -> Vec<u8> {
    let bases: std::collections::BTreeSet<u64> = words.iter().map(|(addr, _)| addr & !63).collect();
    let mut all = vec![fs_base, RSP, bases.len() as u64];
    for base in bases {
        all.push(base);
        all.extend((0..8).map(|at| words.iter().find(|(addr, _)| *addr == base + at * 8).map_or(0, |(_, word)| *word)));
    }
    all.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn what_depends_on_memory_that_others_write_is_marked() {
    // mov rax,[rbx]; mov rdx,[rax]; mov rdx,[rcx]
    let code = [0x48, 0x8b, 0x03, 0x48, 0x8b, 0x10, 0x48, 0x8b, 0x11, 0x0f, 0x0b];
    let memory = memory(0, &[(HEAP + 0x3000, HEAP + 0x66)]);
    let found = ahead_with(&code, 0, &[], &[], &memory);
    assert_eq!(found, [RBX, (Method::Racy, HEAP + 0x66), (Method::After, HEAP + 0x1000)]);
}

#[test]
fn what_needs_no_memory_further_from_ip_does_not_take_all_the_room() {
    // mov rax,[rbx]; mov rdx,[rax]; then ten times mov rdx,[rcx+8*n]
    let mut code = vec![0x48, 0x8b, 0x03, 0x48, 0x8b, 0x10];
    (1..=10).for_each(|n| code.extend([0x48, 0x8b, 0x51, 8 * n]));
    code.extend([0x0f, 0x0b]);
    let later = (1..10).map(|n| (Method::After, HEAP + 0x1000 + 8 * n));
    let known = ahead(&code, 0, &[], &[]);
    assert_eq!(known, [RBX].into_iter().chain(later.clone()).take(MAX_CANDIDATES / 2).collect::<Vec<_>>());
    let memory = memory(0, &[(HEAP + 0x3000, HEAP + 0x66)]);
    let near = [RBX, (Method::Racy, HEAP + 0x66)].into_iter().chain(later).take(MAX_CANDIDATES / 2);
    assert_eq!(ahead_with(&code, 0, &[], &[], &memory), near.collect::<Vec<_>>());
}

#[test]
fn all_that_follows_a_branch_on_memory_depends_on_it() {
    // cmp qword [rbx],1; je +3; mov rax,[rcx]; ret
    let code = [0x48, 0x83, 0x3b, 1, 0x74, 3, 0x48, 0x8b, 0x01, 0xc3];
    let known = |word| ahead_with(&code, 0, &[], &[], &memory(0, &[(HEAP + 0x3000, word)]));
    assert_eq!(known(2), [RBX, (Method::Racy, HEAP + 0x1000)]);
    assert_eq!(known(1), [RBX]);
}

#[test]
fn a_store_to_anywhere_ends_what_is_known_of_memory() {
    // mov [rdx],rsi; mov rax,[rbx]; mov rdi,[rax]; rdx points to the heap, or was loaded from an unknown location
    let code = [0x48, 0x89, 0x32, 0x48, 0x8b, 0x03, 0x48, 0x8b, 0x38, 0x0f, 0x0b];
    let memory = memory(0, &[(HEAP + 0x3000, HEAP + 0x66)]);
    let known = ahead_with(&code, 0, &[], &[], &memory);
    assert_eq!(known, [(Method::AtIp, HEAP + 0x2000), (Method::After, HEAP + 0x3000), (Method::Racy, HEAP + 0x66)]);
    let code = [&[0x49, 0x8b, 0x10][..], &code].concat();
    let known = ahead_with(&code, 0, &[], &[], &memory);
    assert_eq!(known, [(Method::AtIp, HEAP + 0x8000), (Method::After, HEAP + 0x3000)]);
}

#[test]
fn the_threads_own_memory_is_exact() {
    const OWN: u64 = HEAP + 0x9_0000;
    // mov rax,fs:[0x28]; mov rdx,[rsp-8]; mov rsi,[rdx]
    let code =
        [0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0, 0x48, 0x8b, 0x54, 0x24, 0xf8, 0x48, 0x8b, 0x32, 0x0f, 0x0b];
    let memory = memory(OWN, &[(OWN, OWN), (RSP - 8, HEAP + 0x66)]);
    let found = ahead_with(&code, 0, &[], &[], &memory);
    assert_eq!(found, [(Method::AtIp, OWN + 0x28), (Method::Emulated, HEAP + 0x66)]);
}

#[test]
fn operands_that_stay_unknown_are_told_from_others() {
    // mov rax,[rbx]; mov rdx,[rax]; mov rsi,[rsp]; mov rcx,[rcx]; ud2
    let code = [0x48, 0x8b, 0x03, 0x48, 0x8b, 0x10, 0x48, 0x8b, 0x34, 0x24, 0x48, 0x8b, 0x09, 0x0f, 0x0b];
    let operands = |at: u64, memory: &[u8]| -> Vec<(u64, Option<Unrecovered>)> {
        let mut gpr = [HEAP; 16];
        (gpr[3], gpr[4]) = (HEAP + 0x3000, RSP);
        let regs = Regs::x86_64(gpr, BASE + at, 0x202);
        let mut program = Program { code: &code, constants: HashMap::new() };
        let mut recovery = Recovery::new(1 << 20);
        let outcome = recovery.recover_with(&regs, &[], Snapshot::new(memory), STACK, &mut program);
        outcome.operands.iter().map(|operand| (operand.insn_ip - BASE, operand.unresolved)).collect()
    };
    let overwritten = Some(Unrecovered::Overwritten);
    assert_eq!(operands(0, &[]), [(0, None), (3, overwritten), (10, None)], "the thread's own stack does not count");
    assert_eq!(operands(6, &[]), [(3, None), (0, None), (10, None)]);
    assert_eq!(operands(13, &[]), [(10, overwritten), (3, None), (0, None)]);
    // What memory shows counts once, although the code is run twice.
    let memory = memory(0, &[(HEAP + 0x3000, HEAP + 0x66)]);
    assert_eq!(operands(0, &memory), [(0, None), (3, None), (10, None)]);
    // No code.
    assert_eq!(operands(100, &memory), []);
}
