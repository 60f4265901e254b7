//! The tests that sample this host and compare with what ran: those that need the CPUs for themselves take turns
//! (`support::alone`), and no other test of the project runs meanwhile; only steps of `make test` that compute do, with the lowest
//! priority. The guests of tests/vm run some of them too.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on must fail.

#[cfg(feature = "bpf")]
mod hints;
mod sampler;
mod sched;
mod sharing;
mod timer;

mod support {
    pub mod capture;
    pub mod replay;
    mod turn;

    pub use turn::alone;
}
