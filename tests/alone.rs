//! The tests during which nothing else runs: each takes its turn (`support::alone`).

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on must fail.

#[path = "replay/programs.rs"]
mod replay;
mod soak;

mod support {
    mod turn;

    pub use turn::alone;
}
