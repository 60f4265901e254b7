//! The data addresses of one timer sample, recovered from its registers, a piece of its stack and the code around its ip.
//!
//! A timer interrupts user code between two instructions. The registers of that moment say where the instructions
//! nearby read and write: the one about to run, those after it as far as their inputs are known, and those before it
//! as far as their inputs survive, can be computed back, or can be replayed. [`Recovery::recover`] gives only what
//! follows from the sample without a guess; the rest is counted by its reason ([`Unrecovered`]).
//!
//! Memory that the process maps from a file and cannot write to is known too ([`CodeSource::constant`]). A branch that depends on
//! anything else in memory is undecided: what both of its ways leave alone is known where they meet.
//!
//! What registers and stack alone cannot give: the red zone (the dump begins at rsp, so a leaf function at `-O0` hides its
//! variables), thread-local and gathered addresses, and registers that a call in between has overwritten.
//!
//! A sample may bring the memory around its registers along ([`Snapshot`]): then the red zone and thread-local addresses are
//! known, and the code is run on a second time with these values. Which lines that asked for is given back ([`Wanted`]), so that the
//! next sample there brings these, and no others. What only that gives is marked ([`Method::Racy`]): another
//! thread may have written there before the code came by, so it is the one method that can be wrong.
//!
//! [`Method::Racy`]: crate::sample::Method::Racy
//!
//! # Assumptions
//!
//! What is not certain, and what was taken for certain in its place:
//!
//! - The bytes are what ran: files are compared with their mapping, pages that the process changed are read from its memory, and
//!   memory that it can change only after it has stayed the same for a dozen readings.
//! - `.eh_frame` gives the range of a function, and direct branches out of it lead to code that is looked at too. Where more than 64 places
//!   are branched to, where one of them or a part of the function is not here, and if there is an indirect jump other than through
//!   `[rip+x]`, any instruction may have been branched to.
//! - Where no range is known, no branch from further than [`LEADER_SPAN`] leads between the instructions before ip, and decoding from
//!   enough places before ip finds its instructions. Nothing is taken from before ip in code that a JIT compiler wrote, nor across padding
//!   of zeros.
//! - A store through a pointer does not overwrite the stack slot which that very pointer was loaded from.
//! - No other thread, and no signal handler, writes to the stack slots of this one between the instructions that are looked at.
//! - Functions return to if they were called from, and nothing returns in their place (`longjmp`, exceptions) into the middle of the
//!   instructions before ip.
//! - Read-only private mappings of files stay what they are for a second.
//!
//! What contradicts itself on the way is dropped.
//!
//! The recovery is pure: registers, stack and code bytes come from its caller ([`CodeSource`]).

mod arith;
mod atomic;
mod decode;
mod decoded;
mod emulate;
mod flags;
mod forward;
#[cfg(test)]
mod forward_tests;
mod image;
mod invert;
mod lines;
mod memo;
mod recovery;
mod region;
mod regs;
mod replay;
mod stack;
mod step;
mod string;
mod sums;
#[cfg(test)]
mod tests;
mod value;
mod wanted;
mod window;

pub use lines::Snapshot;
pub use memo::CacheCounts;
pub use recovery::{Candidate, Outcome, Recovery, Unrecovered, MAX_CANDIDATES, MAX_STEPS};
pub use regs::{RegsError, UserRegs, REGS_MASK, STACK_DUMP_SIZE};
pub use stack::StackRange;
pub use wanted::{Wanted, WANTED_LINES};
pub use window::{CodeSource, CodeWindow, LEADER_SPAN};
