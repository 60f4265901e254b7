//! The recovery on any code, registers, stack and memory, with a function range or without.

#![no_main]

use libfuzzer_sys::fuzz_target;
use scxprof::testing::recover::{Arch, CodeWindow, Recovery, Snapshot, Regs, MAX_CANDIDATES};

fuzz_target!(|data: &[u8]| {
    let Some((choice, rest)) = data.split_first_chunk::<8>() else { return };
    let Some((registers, rest)) = rest.split_first_chunk::<32>() else { return };
    let [flags, at, from, to, dump, bias, rflags, high] = *choice;
    let base = 0x40_0000;
    let mut regs =
        Regs { ip: base + u64::from(at), flags: u64::from(rflags) | u64::from(high) << 8, ..Regs::default() };
    if flags & 8 != 0 {
        regs.arch = Arch::Arm64;
    }
    for (register, value) in regs.gpr.iter_mut().zip(registers.chunks_exact(2).cycle()) {
        // Small, near the code, in a heap, or at the end of the address space.
        let value = u64::from(u16::from_le_bytes([value[0], value[1]]));
        *register = match value >> 14 {
            0 => value,
            1 => base + (value & 0x3fff),
            2 => 0x7f00_0000_0000 + (value << 20),
            _ => u64::MAX - (value & 0x3fff),
        };
    }
    let (stack, bytes) = rest.split_at(rest.len().min(usize::from(dump)));
    let function = (flags & 1 != 0).then(|| base + u64::from(from)..base + u64::from(from) + u64::from(to));
    let mut code = CodeWindow { key: 1, bias: base - u64::from(bias), base, bytes, function, jit: false };
    let range = if flags & 2 == 0 { 0..0 } else { regs.sp()..regs.sp().saturating_add(4096) };
    // The code's bytes serve as memory too: lines around the registers, which may hold pointers to one another.
    let memory = if flags & 4 == 0 { Vec::new() } else { memory(&regs, bytes) };
    let memory = Snapshot::new(&memory);
    let mut recovery = Recovery::new(1 << 16);
    // Twice: decoded, and remembered.
    let first = recovery.recover_with(&regs, stack, memory, range.clone(), &mut code);
    assert_eq!(first.candidates.is_empty(), first.reason.is_some());
    assert!(first.candidates.len() <= MAX_CANDIDATES);
    assert!(first.candidates.iter().all(|candidate| !range.contains(&candidate.addr)));
    let first = first.candidates.to_vec();
    assert_eq!(first, recovery.recover_with(&regs, stack, memory, range, &mut code).candidates);
});

fn memory(regs: &Regs, bytes: &[u8]) -> Vec<u8> {
    let lines: Vec<_> = regs.gpr.iter().zip(bytes.chunks_exact(64)).collect();
    let fs_base = regs.gpr.first().map_or(0, |value| value & !7);
    let mut memory: Vec<u8> = [fs_base, regs.sp(), lines.len() as u64].into_iter().flat_map(u64::to_le_bytes).collect();
    for (register, line) in lines {
        memory.extend((register & !63).to_le_bytes());
        // Every other word is a pointer to what another register points to.
        for (word, pointer) in line.chunks_exact(8).zip(regs.gpr.iter().rev()) {
            let pointer = pointer.to_le_bytes();
            memory.extend(if word.first().is_some_and(|byte| byte % 2 == 0) { word } else { &pointer[..] });
        }
    }
    memory
}
