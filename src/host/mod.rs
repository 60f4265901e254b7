//! The host: what belongs to it and to its other users.

pub(crate) mod aside;
pub(crate) mod kallsyms;
pub(crate) mod open;

// For tests and benches.
#[doc(hidden)]
pub mod clock;
#[doc(hidden)]
pub mod limits;
#[doc(hidden)]
pub mod pagemap;
#[doc(hidden)]
pub mod tasks;
#[doc(hidden)]
pub mod tracefs;
