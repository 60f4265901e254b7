//! What is installed, and the archive for hosts without anything.

#[cfg(feature = "bpf")]
mod bpf;
mod dist;
mod install;
