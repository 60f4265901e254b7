//! Writes and reads the file of `scx_layered f:FILE`, within the limits of the scheduler.
//!
//! The facts are from scheds/rust/scx_layered of the sched-ext/scx repository: src/config.rs (what it parses), src/main.rs
//! (`verify_layer_specs`, `init_layers`), src/bpf/intf.h (the numbers) and src/layer_core_growth.rs.
//!
//! Each subcell is a layer, and the rest of a cell is one more. Their kinds:
//!
//! - Threads that share memory are `Confined`: only with this kind, threads never leave the layer's own CPUs. With
//!   `growth_algo` `StickyDynamic` these are whole last-level caches as long as the layer needs that many CPUs; the remainder
//!   comes from as few others as possible. (`Topo` without `llcs` spreads round-robin over all caches, and the default `Sticky`
//!   over the cores, which is the opposite of what is needed.)
//! - A class of threads without shared memory, and the rest of a cell, is `Grouped`: it has its own CPUs too, but its threads
//!   may use idle CPUs of others, because they lose little by it.
//! - The last layer, of all other threads, is `Grouped` too, and has at least one CPU of its own.
//!
//! A layer gets CPUs so that their utilization stays in `util_range`. scx_layered matches a thread again when it is renamed.
//!
//! A configuration of another author may have all that scx_layered 1.1.4 reads: [`parse`] reads it, [`loads`] says what the scheduler
//! would refuse, and [`Consumer`] says which layer takes a thread, as far as that can be known.

mod consumer;
mod layer;
mod parse;
mod write;

pub use consumer::{Consumer, Takers};
pub use layer::{Cpus, Growth, Layer, LayerKind, LayerMatch, LayeredError};
pub use layer::{MAX_ANDS, MAX_LAYERS, MAX_NAME, MAX_ORS, MAX_PATH, MAX_REGEXES};
pub use parse::{loads, parse, Known, ParseError};
pub use write::{check, to_json};

#[cfg(test)]
mod tests;
