//! What passes between a worker and the capture beside batches: events to be read, and counts of losses.

use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use super::CpuRing;
use crate::sampler::loss::Loss;
use crate::sampler::open::Event;

/// What a worker is to read from now on: the events of a CPU that came online.
#[derive(Debug)]
pub(in crate::sampler) struct Joining {
    pub(in crate::sampler) cpu: u32,
    /// None if they write into the rings that the worker has already.
    pub(in crate::sampler) rings: Vec<CpuRing>,
    /// The events that wake it.
    pub(in crate::sampler) wake: Vec<Arc<Event>>,
    /// The events with AUX areas; none if those that the worker has go on.
    pub(in crate::sampler) buffered: Vec<Arc<Event>>,
}

/// Brings a worker what is to be read. It is no channel: a real-time thread would spin while the sender, which is none, holds a
/// place in it and waits for the CPU.
#[derive(Debug, Default)]
pub(in crate::sampler) struct Inbox {
    joining: Mutex<Vec<Joining>>,
    /// What the worker has lost so far; it says this in each round.
    loss: Mutex<Loss>,
}

impl Inbox {
    /// What the worker had lost by one of its last rounds.
    pub(in crate::sampler) fn loss(&self) -> Loss {
        *self.loss.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says what the worker has lost, unless it would have to wait for a reader.
    pub(super) fn tell_loss(&self, loss: &Loss) {
        if let Ok(mut told) = self.loss.try_lock() {
            *told = *loss;
        }
    }

    /// The worker takes it in its next round.
    pub(in crate::sampler) fn put(&self, joining: Joining) {
        self.joining.lock().unwrap_or_else(PoisonError::into_inner).push(joining);
    }

    /// What came; `None` if something is coming at this moment.
    pub(super) fn take(&self) -> Option<Vec<Joining>> {
        match self.joining.try_lock() {
            Ok(mut joining) => Some(std::mem::take(&mut joining)),
            Err(TryLockError::Poisoned(poisoned)) => Some(std::mem::take(&mut poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
