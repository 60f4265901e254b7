//! The recovery on any code, registers and stack, with a function range or without.

#![no_main]

use libfuzzer_sys::fuzz_target;
use scxprof::sampler::operand::{CodeWindow, Recovery, UserRegs, MAX_CANDIDATES};

fuzz_target!(|data: &[u8]| {
    let Some((choice, rest)) = data.split_first_chunk::<8>() else { return };
    let Some((registers, rest)) = rest.split_first_chunk::<32>() else { return };
    let [flags, at, from, to, dump, bias, rflags, high] = *choice;
    let base = 0x40_0000;
    let mut regs =
        UserRegs { rip: base + u64::from(at), rflags: u64::from(rflags) | u64::from(high) << 8, ..UserRegs::default() };
    for (register, value) in regs.gpr.iter_mut().zip(registers.chunks_exact(2)) {
        // Small, near the code, in a heap, or at the end of what there is.
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
    let mut code = CodeWindow { key: 1, bias: base - u64::from(bias), base, bytes, function };
    let range = if flags & 2 == 0 { 0..0 } else { regs.rsp()..regs.rsp().saturating_add(4096) };
    let mut recovery = Recovery::new(1 << 16);
    // Twice: decoded, and remembered.
    let first = recovery.recover(&regs, stack, range.clone(), &mut code);
    assert_eq!(first.candidates.is_empty(), first.reason.is_some());
    assert!(first.candidates.len() <= MAX_CANDIDATES);
    assert!(first.candidates.iter().all(|candidate| !range.contains(&candidate.addr)));
    let first = first.candidates.to_vec();
    assert_eq!(first, recovery.recover(&regs, stack, range, &mut code).candidates);
});
