//! Traces of other tools: every event is read or counted, and times are those of other programs that read them.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on must fail.

mod analyze;
mod difference;
mod encode;
mod files;
mod golden;
mod mutations;
mod ndjson;
mod oracle;
mod others;
mod stacks;
mod wprof;

/// Traces, and what other programs say of them.
const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
