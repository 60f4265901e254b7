//! Runs the scheduling of a recording again by mock threads.
//!
//! [`Planner`] makes a [`Plan`] of the events of a recording: the steps of each thread. [`select`] takes the part that is to
//! be replayed, and scales its times: the [`Script`]. Both are pure up to there. [`Director`] runs it: a process for each process and
//! a thread for each thread, which works, sleeps, wakes, forks and ends as the script says. [`Guard`] removes what was made, whatever
//! ends the replay.
//!
//! The crate needs unsafe code: a mock process may only make plain system calls after fork(2) (`mock`, `calls`, `director`, `guard`), and
//! all of them share memory (`board`).

mod board;
mod calls;
mod difference;
mod director;
mod error;
mod groups;
mod guard;
mod kernel;
mod layout;
mod memory;
mod mock;
mod plan;
mod report;
mod script;
mod worker;

pub use board::Results;
pub use difference::{difference, Difference};
pub use director::{Count, Director, Played};
pub use error::ReplayError;
pub use groups::Groups;
pub use guard::Guard;
pub use kernel::knows_all;
pub use layout::{GroupOf, Layout};
pub use memory::{Buffer, Memory, MockMemory, Touches};
pub use plan::{Plan, Planned, Planner, Recorded, Step, ThreadNumber, MAX_STEPS, MAX_THREADS};
pub use report::{compare, totals, Compared, Fidelity, Latency, Pair, ReplayTotals, ThreadLine};
pub use script::{select, Candidate, LeftOut, Mock, MockProcess, Op, Script, Selection};

#[cfg(test)]
mod tests;
