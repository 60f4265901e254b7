//! Tries what BPF can do here.

use std::path::Path;

use super::map::pid_namespace;
use super::probe::{iterator, probe, Setting, ITERATOR};
use super::refusal::Refusal;
use super::{kernel_memory, operand};
use crate::hint::HintProbe;

/// Tries each hint probe and the iterator on a map of our own, and reading the memory around registers; nothing stays
/// attached.
///
/// `proc` is procfs, for our pid namespace.
#[must_use]
pub fn trials(proc: &Path) -> Vec<(&'static str, Result<(), Refusal>)> {
    let setting = Setting { pid_namespace: pid_namespace(proc).unwrap_or(0), ring_bytes: 1 << 16 };
    let probes = HintProbe::ALL.into_iter().map(|it| (it.name(), probe(it, None, setting).map(drop)));
    probes
        .chain([(ITERATOR, iterator(None, setting).map(drop)), operand::trial(proc), kernel_memory::trial(proc)])
        .collect()
}
