//! Replaces hints, snapshots and dispatch queues in builds without BPF.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crossbeam_channel::Receiver;

use super::hints::{HintOptions, HintsError};
use super::kernel_page::{FilePage, Owned, SlabPage};
use super::refusal::{Refusal, Step};
use super::watched::{Clockwork, SnapshotCounts, Watched};
use crate::hint::{Counts, HintProbe};
use crate::sample::batch::Batch;
use scxprof_recover::Wanted;

/// A watch that never starts.
#[derive(Debug)]
pub enum HintWatch {}

impl HintWatch {
    /// Returns an error: BPF is not built in.
    ///
    /// # Errors
    /// Always.
    pub fn start(_options: &HintOptions, _proc: &std::path::Path) -> Result<Self, HintsError> {
        Err(HintsError::NotBuilt)
    }

    /// There is no watch.
    #[must_use]
    pub fn probe(&self) -> HintProbe {
        match *self {}
    }

    /// There is no watch.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        match *self {}
    }

    /// There is no watch.
    #[must_use]
    pub fn batches(&self) -> &Receiver<Batch> {
        match *self {}
    }

    /// There is no watch.
    pub fn stop(&self) {
        match *self {}
    }

    /// There is no watch.
    #[must_use]
    pub fn join(self) -> (Counts, Vec<String>) {
        match self {}
    }
}

/// Snapshots that are never taken.
#[derive(Debug)]
pub(crate) enum Snapshots {}

impl Snapshots {
    /// Returns the error that it is not built in.
    pub(crate) fn load(_: Clockwork, _: &Watched<'_>, _: bool, _: u32, _: &std::path::Path) -> Result<Self, Refusal> {
        Err(refused("memory around the registers"))
    }

    pub(crate) fn outputs(&self) -> &Arc<SnapshotOutputs> {
        match *self {}
    }

    pub(crate) fn wanted(&self) -> Option<WantedMap> {
        match *self {}
    }

    pub(crate) fn counts(&self) -> SnapshotCounts {
        match *self {}
    }
}

/// The outputs of snapshots, which are never taken.
#[derive(Debug)]
pub(crate) enum SnapshotOutputs {}

impl SnapshotOutputs {
    pub(crate) fn write_to(&self, _: BorrowedFd<'_>, _: u32) -> Result<(), Refusal> {
        match *self {}
    }

    pub(crate) fn on_clock(&self) -> Option<BorrowedFd<'_>> {
        match *self {}
    }
}

/// The wanted memory of snapshots, which are never taken.
#[derive(Debug)]
pub(crate) enum WantedMap {}

impl WantedMap {
    pub(crate) fn allow(&self, _: &Range<u64>) {
        match *self {}
    }

    pub(crate) fn set(&self, _: u32, _: u64, _: &Wanted) {
        match *self {}
    }
}

/// The kernel's memory, which is never read.
#[derive(Debug)]
pub(crate) enum KernelMemory {}

impl KernelMemory {
    pub(crate) const PIECE: usize = 4096;

    /// Returns the error that it is not built in.
    pub(crate) fn load() -> Result<Self, Refusal> {
        Err(refused("the kernel's memory"))
    }

    pub(crate) fn piece(&mut self, _: u64) -> Option<Vec<u8>> {
        match *self {}
    }

    pub(crate) fn run_queue(&mut self, _: u32) -> Option<u64> {
        match *self {}
    }

    pub(crate) fn stack(&mut self) -> Option<(u64, u64)> {
        match *self {}
    }

    pub(crate) fn file(&mut self, _: u64) -> Option<FilePage> {
        match *self {}
    }

    pub(crate) fn path(&mut self, _: u64) -> Option<Vec<u8>> {
        match *self {}
    }

    pub(crate) fn slab(&mut self, _: u64) -> Option<SlabPage> {
        match *self {}
    }

    pub(crate) fn owner(&mut self, _: u64, _: Owned) -> Option<(u64, u64)> {
        match *self {}
    }

    pub(crate) fn page_table(&mut self) -> Option<u64> {
        match *self {}
    }
}

/// Dispatch queues, which are never observed.
#[derive(Debug)]
pub(crate) enum Dsqs {}

impl Dsqs {
    /// Returns the error that it is not built in.
    pub(crate) fn load(_: u16, _: u32) -> Result<Self, Refusal> {
        Err(refused("dispatch queues of sched_ext"))
    }

    pub(crate) fn outputs(&self) -> &Arc<DsqOutputs> {
        match *self {}
    }
}

/// The outputs of programs that are never loaded.
#[derive(Debug)]
pub(crate) enum DsqOutputs {}

impl DsqOutputs {
    pub(crate) fn write_to(&self, _: BorrowedFd<'_>, _: u32) -> Result<(), Refusal> {
        match *self {}
    }
}

fn refused(what: &'static str) -> Refusal {
    Refusal { what, step: Step::Built, errno: 0, reason: HintsError::NotBuilt.to_string() }
}

/// The trials of BPF, which is not built in.
#[must_use]
pub fn trials(_proc: &std::path::Path) -> Vec<(&'static str, Result<(), Refusal>)> {
    let names = HintProbe::ALL.into_iter().map(HintProbe::name).chain([
        "iter/task",
        "memory around the registers",
        "the kernel's memory",
    ]);
    names.map(|what| (what, Err(refused(what)))).collect()
}
