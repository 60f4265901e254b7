//! Recovers the data addresses that the code near a timer sample accesses, from the sample's registers, a piece of its
//! stack, and the code around its ip.
//!
//! A timer interrupts user code between two instructions. The registers at that moment give the addresses that nearby
//! instructions access: those of the next instruction, those of later ones while their inputs are known, and those of
//! earlier ones if their inputs are unchanged or can be computed by inverting or replaying instructions.
//! [`Recovery::recover`] returns only what follows from the sample without a guess. It counts the rest by reason
//! ([`Unrecovered`]), and names the operands whose address is unknown ([`Operand`]).
//!
//! Memory that the process maps from a file and cannot write is known too ([`CodeSource::constant`]). A branch that
//! depends on any other memory is undecided: at the point where its two paths meet, values that neither of them changes
//! are still known.
//!
//! Samples of kernel code are handled in the same way ([`KernelSnapshot`]). Only there, addresses of the kernel's half
//! are possible, and operands relative to gs are per-CPU memory.
//!
//! Registers and stack do not give: the red zone (the dump begins at rsp, so it lacks the variables of a leaf function
//! at `-O0`), thread-local and gathered addresses, and registers that a call in between has overwritten.
//!
//! A sample may contain the memory around its registers ([`Snapshot`]): then the red zone and thread-local addresses
//! are known where code uses them, and the code is run a second time with these values. The result names the lines
//! that this run needed ([`Wanted`]), so that the next sample at that place contains these lines and no others.
//! Accesses that only the second run finds are marked ([`Method::Racy`]), because another thread may have written the
//! memory before the code reached it: only this method can be wrong.
//!
//! [`Method::Racy`]: scxprof_base::sample::Method::Racy
//!
//! # Assumptions
//!
//! These are not certain, but assumed:
//!
//! - The code bytes are those that ran: files are compared with their mapping, pages that the process changed are read
//!   from its memory, and memory that it can change is used only after a dozen readings have found it unchanged.
//! - `.eh_frame` gives the range of a function, and code that its direct branches lead to is searched too. Any
//!   instruction may be a branch target if the function branches to more than 64 places, if one of them or a part of the
//!   function is missing, or if the function contains an indirect jump other than through `[rip+x]`.
//! - If no range is known, no branch from further away than [`LEADER_SPAN`] leads between the instructions before ip,
//!   and decoding from enough places before ip finds its instructions. In code of a JIT compiler, and across padding of
//!   zeros, nothing before ip is used.
//! - A store through a pointer does not overwrite the stack slot from which that pointer was loaded.
//! - No other thread, and no signal handler, writes to the stack slots of this thread between the instructions that are read.
//! - Functions return to their caller, and nothing returns in their place (`longjmp`, exceptions) into the middle of the
//!   instructions before ip.
//! - Read-only private mappings of files do not change for a second.
//!
//! A sample that leads to a contradiction is dropped.
//!
//! The recovery does no I/O: registers, stack and code bytes come from its caller ([`CodeSource`]).
//!
//! # Instruction sets
//!
//! One engine serves all instruction sets; a trait provides what depends on the instruction set, for x86-64 and A64. On
//! A64:
//!
//! - Instructions begin at multiples of four. If the range of the function is not known, data before a function is
//!   assumed to end in a word that is not an instruction.
//! - A sample has no flags, so a conditional branch is decided only after a comparison that was run.
//! - A function returns to the address in the link register. Authentication codes are removed from it, and tags from
//!   data addresses.
//! - Instructions of scalable vectors are not modelled: only the registers that they may write are known. They are
//!   counted as gathers or as masked.
//! - The memory around the registers ([`Snapshot`]) may be in samples of user code; samples of kernel code
//!   ([`KernelSnapshot`]) are not supported.

#![cfg_attr(not(test), forbid(unsafe_code))]

mod a64;
mod candidates;
mod decoded;
mod flags;
mod forward;
#[cfg(test)]
mod forward_tests;
mod image;
mod insn;
mod isa;
mod kernel;
mod lines;
mod machine;
mod memo;
mod reach;
mod recovery;
mod region;
mod regs;
mod replay;
mod semantics;
mod stack;
#[cfg(test)]
mod tests;
mod value;
mod wanted;
mod window;
mod x86;

pub use candidates::{Candidate, Operand, Unrecovered, MAX_CANDIDATES, MAX_STEPS};
pub use kernel::KernelSnapshot;
pub use lines::{is_of_kernel, Snapshot, KERNEL_HALF};
pub use memo::CacheCounts;
pub use recovery::{Recovery, RecoveryResult};
pub use regs::{regs_mask, Regs, RegsError, REGS_MASK, STACK_DUMP_SIZE};
pub use scxprof_base::arch::Arch;
pub use stack::StackRange;
pub use wanted::{Learned, Wanted, WANTED_LINES};
pub use window::{CodeSource, CodeWindow, LEADER_SPAN};
