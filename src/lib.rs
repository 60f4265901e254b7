//! Finds the threads of a host that share memory, and says so in the form that a sched_ext scheduler loads.
//!
//! [`Session::builder`] sets up a capture and gives its configuration and report as values; [`session::Feed`] and
//! [`session::Sink`] are for sources and sinks of one's own. The modules are the parts that it is made of.

pub mod bpf;
#[doc(hidden)]
pub mod cli;
pub mod cluster;
pub mod config;
pub mod doctor;
pub mod profile;
pub mod resolve;
pub mod sample;
pub mod sampler;
pub mod session;

pub use session::Session;
