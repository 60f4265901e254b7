// As inlined.c, in Rust.
use std::io::Read;

extern "C" {
    static here: u8;
}

mod place {
    #[inline(always)]
    #[allow(named_asm_labels)]
    pub fn inner() {
        unsafe { std::arch::asm!(".globl here", "here: nop", "nop", "nop", "nop") }; // SAFETY: a label and nops.
    }

    #[inline(always)]
    pub fn middle() {
        inner();
    }

    #[inline(never)]
    pub fn outer() {
        middle();
    }
}

fn main() {
    place::outer();
    println!("at outer {:x}\nready", &raw const here as usize);
    let _ = std::io::stdin().read(&mut [0]);
}
