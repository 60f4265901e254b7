//! The tests that may run beside each other. Those that sample a load of their own take turns (`support::alone`), as one would
//! find the threads of the other too.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on must fail.

mod cli;
mod decision;
mod doctor;
mod fleet;
mod hardware;
mod html;
mod library;
#[cfg(feature = "mcp")]
mod mcp;
mod operand;
mod package;
mod placement;
mod profile;
mod replay;
mod score;
mod stacks;
mod symbols;
mod trace;

mod support {
    pub mod chromium;
    pub mod fixtures;
    pub mod made;
    pub mod perfdata;
    pub mod replay;
    pub mod sysfs;
    mod turn;

    pub use turn::alone;
}
