//! Checks the instruction boundaries found without a function's start against decoding from the start.

use std::collections::HashSet;

use iced_x86::{Decoder, DecoderOptions};
use scxprof_recover::{CodeSource, Recovery, Regs};

use super::process::Code;

/// In the C library, every boundary found without knowing the function is one of the function's.
#[test]
fn boundaries_without_a_function_are_those_with_it() {
    let mut code = Code::of(std::process::id() as i32);
    let functions = code.functions();
    if functions.is_empty() {
        println!("SKIP: boundaries_without_a_function_are_those_with_it: no readelf");
        return;
    }
    let mut recovery = Recovery::new(1 << 24);
    let (mut used, mut wrong, mut ips) = (0, 0, 0);
    for function in functions.iter().filter(|function| function.end - function.start < 8192).step_by(3) {
        code.with_functions = true;
        let Some(window) = code.window(function.start) else { continue };
        let bytes = window.bytes.get((function.start - window.base) as usize..).unwrap_or_default();
        let mut decoder = Decoder::with_ip(64, bytes, function.start, DecoderOptions::NONE);
        let mut starts = Vec::new();
        while decoder.ip() < function.end && decoder.can_decode() {
            starts.push(decoder.ip());
            let _ = decoder.decode();
        }
        let known: HashSet<u64> = starts.iter().copied().collect();
        code.with_functions = false;
        for &ip in starts.iter().skip(3).step_by(5) {
            ips += 1;
            let regs = Regs::x86_64([0x7f00_1234_5000; 16], ip, 0x202);
            let outcome = recovery.recover(&regs, &[], 0..0, &mut code);
            for candidate in outcome.candidates.iter().filter(|candidate| candidate.method.is_backward()) {
                // What lies before the function belongs to another one.
                if candidate.insn_ip >= function.start {
                    used += 1;
                    wrong += usize::from(!known.contains(&candidate.insn_ip));
                }
            }
        }
    }
    println!("{ips} ips, {used} instructions used, {wrong} wrong");
    assert!(used > 1000, "{used}");
    assert!(wrong * 5000 <= used, "{wrong} of {used}");
}
