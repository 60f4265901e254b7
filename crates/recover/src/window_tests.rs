//! Tests that only certain instructions before an ip are returned.

use super::*;
use crate::x86::X86;

const BASE: u64 = 0x4000_0000;
/// mov rax,[rdi]; mov rcx,[rsi]; nop
const LOADS: [u8; 7] = [0x48, 0x8b, 0x07, 0x48, 0x8b, 0x0e, 0x90];

fn before(bytes: &[u8], function: Option<Range<u64>>, at: usize, jit: bool) -> Backward<X86> {
    let window = CodeWindow { key: 1, bias: 0, base: BASE, bytes, function, jit };
    let map = FunctionMap::new::<X86>(&window);
    backward(&window, map.as_ref(), BASE + at as u64, &mut X86::decoder())
}

/// The number of instructions that are found before the end of `LOADS`, if `first` precedes it in the same function.
fn behind(first: &[u8]) -> usize {
    let bytes = [first, &LOADS, &[0xc3]].concat();
    let end = BASE + bytes.len() as u64;
    before(&bytes, Some(BASE..end), first.len() + LOADS.len(), false).insns.len()
}

#[test]
fn an_indirect_jump_may_lead_anywhere_in_its_function() {
    assert_eq!(behind(&[0xeb, 0]), 3, "the jump leads behind itself, and nowhere else");
    // jmp [rip+0], as in the linker's tables
    assert_eq!(behind(&[0xff, 0x25, 0, 0, 0, 0]), 3);
    for (name, jump) in [
        ("jmp rax", &[0xff, 0xe0][..]),
        ("jmp [rax], as clang has it for goto **pc", &[0xff, 0x20]),
        ("jmp [rax+8]", &[0xff, 0x60, 8]),
        ("jmp [rax+rcx*8]", &[0xff, 0x24, 0xc8]),
        ("jmp [table+rax*8]", &[0xff, 0x24, 0xc5, 0, 0x10, 0x40, 0]),
        ("jmp [table]", &[0xff, 0x24, 0x25, 0, 0x10, 0x40, 0]),
        ("notrack jmp rax", &[0x3e, 0xff, 0xe0]),
    ] {
        assert_eq!(behind(jump), 0, "{name}");
    }
}

#[test]
fn an_indirect_jump_may_lead_anywhere_near_where_no_function_is_known() {
    let nops = vec![0x90; 200];
    for (jump, expected) in [(&[0xff, 0x25, 0, 0, 0, 0][..], 3), (&[0xff, 0x20], 0), (&[0xff, 0xe0], 0)] {
        let bytes = [&nops[..], &[0xc3], &nops, &LOADS, &nops, jump, &nops].concat();
        let found = before(&bytes, None, 401 + LOADS.len(), false);
        assert_eq!(found.insns.len().min(3), expected, "{jump:x?}");
    }
}

#[test]
fn nothing_is_taken_from_a_function_whose_beginning_is_not_here() {
    let bytes = [&[0x90; 200][..], &LOADS, &[0x90; 200]].concat();
    let at = 200 + LOADS.len();
    assert!(before(&bytes, Some(BASE - 0x20000..BASE + 0x20000), at, false).insns.is_empty());
    assert!(before(&bytes, Some(BASE - 8 * MAX_FUNCTION..BASE + 400), at, false).insns.is_empty());
    assert!(!before(&bytes, Some(BASE..BASE + 400), at, false).insns.is_empty());
    assert!(!before(&bytes, None, at, false).insns.is_empty());
    assert!(before(&bytes, None, at, true).insns.is_empty(), "what a JIT compiler wrote");
}

#[test]
fn zeros_are_no_instructions() {
    // Padding, then the first instruction of a function.
    let bytes = [&[0u8; 200][..], &LOADS, &[0x90; 200]].concat();
    assert!(before(&bytes, None, 200, false).insns.is_empty());
    assert!(before(&bytes, Some(BASE..BASE + 400), 200, false).insns.is_empty());
    assert_eq!(before(&bytes, Some(BASE..BASE + 400), 200 + LOADS.len(), false).insns.len(), 3);
}

#[test]
fn more_branches_out_of_a_function_than_are_followed_may_lead_back_anywhere() {
    let with = |branches: u32| {
        // jcc rel32, each to another place after the function.
        let mut bytes = Vec::new();
        for branch in 0..branches {
            bytes.extend([0x0f, 0x84]);
            bytes.extend((0x10_0000 + branch * 64).to_le_bytes());
        }
        let at = bytes.len() + LOADS.len();
        bytes.extend(LOADS);
        bytes.push(0xc3);
        let end = BASE + bytes.len() as u64;
        before(&bytes, Some(BASE..end), at, false).insns.len()
    };
    assert!(with(MAX_OUTSIDE as u32) >= 3);
    assert_eq!(with(MAX_OUTSIDE as u32 + 1), 0);
}

/// A piece of code: its address, its bytes, its function.
type Piece<'a> = (u64, &'a [u8], Option<Range<u64>>);

struct Pieces<'a>(Vec<Piece<'a>>);

impl CodeSource for Pieces<'_> {
    fn window(&mut self, ip: u64) -> Option<CodeWindow<'_>> {
        let holds = |&&(base, bytes, _): &&(u64, &[u8], _)| ip.wrapping_sub(base) < bytes.len() as u64;
        let (base, bytes, function) = self.0.iter().find(holds)?;
        Some(CodeWindow { key: *base, bias: 0, base: *base, bytes, function: function.clone(), jit: false })
    }
}

#[test]
fn code_that_a_function_branches_to_is_looked_at_or_may_branch_back_anywhere() {
    // je +0x1000; the loads; ret
    let mut bytes = vec![0x0f, 0x84];
    bytes.extend(0x1000u32.to_le_bytes());
    bytes.extend(LOADS);
    bytes.push(0xc3);
    let (end, at) = (BASE + bytes.len() as u64, BASE + 6 + LOADS.len() as u64);
    let target = BASE + 6 + 0x1000;
    let back = |to: u64| {
        let mut code = vec![0xe9];
        code.extend(u32::try_from(to.wrapping_sub(target + 5) & 0xffff_ffff).unwrap().to_le_bytes());
        code
    };
    let count = |pieces: Vec<Piece<'_>>| {
        let mut code = Pieces(pieces);
        let mut decoded = super::super::decoded::Decoded::<X86>::new(1 << 20);
        decoded.window(&mut code, at, &mut None).map_or(0, |found| found.insns.len())
    };
    let own = || (BASE, &*bytes, Some(BASE..end));
    let (into, elsewhere) = (back(BASE + 9), back(BASE + 0x9000));
    let range = Some(target..target + 5);
    assert_eq!(count(vec![own(), (target, &elsewhere, range.clone())]), 4, "with the branch itself");
    let long = |code: &[u8]| [code, &[0x90; 2 * LEADER_SPAN]].concat();
    assert_eq!(count(vec![own(), (target, &long(&elsewhere), None)]), 4);
    assert_eq!(count(vec![own(), (target, &elsewhere, None)]), 0, "it goes on");
    assert_eq!(count(vec![own(), (target, &long(&elsewhere), Some(BASE..end))]), 0, "read for another function");
    assert_eq!(count(vec![own(), (target, &into, range)]), 2, "back to the second load");
    assert_eq!(count(vec![own(), (target, &long(&into), None)]), 2);
    assert_eq!(count(vec![own()]), 0, "nobody knows what is there");
}
