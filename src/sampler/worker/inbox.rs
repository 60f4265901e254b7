//! What a worker and the capture exchange beside batches: new events to read, and counts of losses.

use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use super::CpuRing;
use crate::sampler::loss::Loss;
use crate::sampler::open::Event;

/// Additional events for a worker to read: those of a CPU that came online.
#[derive(Debug)]
pub(in crate::sampler) struct Joining {
    pub(in crate::sampler) cpu: u32,
    /// Empty if the events write into rings that the worker already reads.
    pub(in crate::sampler) rings: Vec<CpuRing>,
    /// The events that wake the worker.
    pub(in crate::sampler) wake: Vec<Arc<Event>>,
    /// The events with AUX areas; empty if those that the worker has stay in use.
    pub(in crate::sampler) buffered: Vec<Arc<Event>>,
}

/// Passes new events to a worker. It is not a channel: a real-time worker would spin while a normal thread holds a slot
/// of the channel and waits for the CPU.
#[derive(Debug, Default)]
pub(in crate::sampler) struct Inbox {
    joining: Mutex<Vec<Joining>>,
    /// The worker's losses so far, which it updates in each round.
    loss: Mutex<Loss>,
}

impl Inbox {
    /// The worker's losses as of one of its last rounds.
    pub(in crate::sampler) fn loss(&self) -> Loss {
        *self.loss.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the worker's losses, unless that would mean to wait for a reader.
    pub(super) fn tell_loss(&self, loss: &Loss) {
        if let Ok(mut told) = self.loss.try_lock() {
            *told = *loss;
        }
    }

    /// The worker takes it in its next round.
    pub(in crate::sampler) fn put(&self, joining: Joining) {
        self.joining.lock().unwrap_or_else(PoisonError::into_inner).push(joining);
    }

    /// The new events; `None` if the lock is held.
    pub(super) fn take(&self) -> Option<Vec<Joining>> {
        match self.joining.try_lock() {
            Ok(mut joining) => Some(std::mem::take(&mut joining)),
            Err(TryLockError::Poisoned(poisoned)) => Some(std::mem::take(&mut poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
