//! Decides by a sample's kernel call chain whether a timer interrupt hit user code.

use std::ops::Range;

/// `PERF_CONTEXT_KERNEL` (linux/perf_event.h): the addresses after it are kernel code.
pub const CONTEXT_KERNEL: u64 = (-128_i64) as u64;
/// `PERF_CONTEXT_MAX`: values from here on are context markers, not addresses.
pub const CONTEXT_MAX: u64 = (-4095_i64) as u64;

/// True if the interrupt whose handler took this sample interrupted user code.
///
/// `callchain` is the sample's, innermost address first, as in `PERF_SAMPLE_CALLCHAIN`; `entries` are the address
/// ranges of the kernel's interrupt entries ([`crate::host::kallsyms::Kallsyms::entries`]). When an interrupt hits user
/// code, the kernel stack is empty, so the chain ends at the entry. When it hits kernel code, the interrupted function
/// is below the entry: a syscall, a page fault, a softirq at the end of another interrupt. So the innermost entry must
/// be the last address; it is not enough that the last address is an entry.
///
/// A chain that the kernel truncated (`sample_max_stack`) is too long for user code, so it counts as kernel code.
#[must_use]
pub fn is_user_interrupt(callchain: impl Iterator<Item = u64>, entries: &[Range<u64>]) -> bool {
    let mut kernel = false;
    let mut addresses = callchain.filter(|&value| {
        if value >= CONTEXT_MAX {
            kernel = value == CONTEXT_KERNEL;
            return false;
        }
        kernel
    });
    let at_entry = |address: u64| entries.iter().any(|entry| entry.contains(&address));
    addresses.any(at_entry) && addresses.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const USER: u64 = (-512_i64) as u64;
    const ENTRY: u64 = 0xffff_ffff_8100_0e00;
    const HANDLER: u64 = 0xffff_ffff_8141_0000;
    const SYSCALL: u64 = 0xffff_ffff_8100_00ac;

    /// The entry of the tick, and another one that does not occur in the chains.
    const ENTRIES: [Range<u64>; 2] =
        [0xffff_ffff_8100_0df0..0xffff_ffff_8100_0e10, 0xffff_ffff_8100_0f10..0xffff_ffff_8100_0f30];

    fn user(chain: &[u64]) -> bool {
        is_user_interrupt(chain.iter().copied(), &ENTRIES)
    }

    #[test]
    fn the_innermost_entry_is_the_last_kernel_address_of_user_code() {
        assert!(user(&[CONTEXT_KERNEL, HANDLER, ENTRY]));
        assert!(user(&[CONTEXT_KERNEL, HANDLER, ENTRY, USER, 0x40_1000, 0x40_2000]));
        assert!(!user(&[CONTEXT_KERNEL, HANDLER, ENTRY, HANDLER + 8, SYSCALL]));
        assert!(!user(&[CONTEXT_KERNEL, HANDLER, ENTRY, SYSCALL, USER, 0x40_1000]));
        assert!(!user(&[CONTEXT_KERNEL, HANDLER, SYSCALL]), "no entry at all");
        assert!(!user(&[HANDLER, ENTRY]), "no kernel part");
        assert!(!user(&[USER, ENTRY]), "an address of user space is no entry");
        assert!(!user(&[]));
        assert!(!is_user_interrupt([CONTEXT_KERNEL, HANDLER, ENTRY].into_iter(), &[]));
    }

    #[test]
    fn a_softirq_that_an_interrupt_of_user_code_ran_is_kernel_code() {
        let softirq = HANDLER + 0x1000;
        assert!(!user(&[CONTEXT_KERNEL, HANDLER, ENTRY, softirq, ENTRY]));
    }

    proptest! {
        #[test]
        fn any_chain_gives_an_answer(chain in prop::collection::vec(any::<u64>(), 0..64)) {
            let _ = user(&chain);
        }

        #[test]
        fn what_is_below_the_entry_makes_it_kernel(
            above in prop::collection::vec(HANDLER..HANDLER + 0x10000, 0..20),
            below in prop::collection::vec(HANDLER..HANDLER + 0x10000, 0..20),
        ) {
            let mut chain = vec![CONTEXT_KERNEL];
            chain.extend(&above);
            chain.push(ENTRY);
            chain.extend(&below);
            prop_assert_eq!(user(&chain), below.is_empty());
        }
    }
}
