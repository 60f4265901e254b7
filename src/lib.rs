//! Finds the threads of a host that share memory, and says so in the form that a sched_ext scheduler loads.

pub mod bpf;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod doctor;
pub mod resolve;
pub mod sample;
pub mod sampler;
pub mod session;
