//! Memory of samples that goes back to the workers when it is empty, so that a capture does not allocate for each sample.

use crossbeam_channel::{bounded, Receiver, Sender};

use crate::sample::batch::{PendingSample, UserContext};

/// Contexts that wait to be filled again; one has up to 3 KiB.
const CONTEXTS: usize = 1024;
/// Lists of samples that wait likewise.
const LISTS: usize = 8;

/// What was emptied, shared by the workers and the session. Nobody waits for it: what is not there is allocated, and what there is no
/// room for is freed.
#[derive(Debug, Clone)]
pub struct Pool {
    contexts: (Sender<Box<UserContext>>, Receiver<Box<UserContext>>),
    lists: (Sender<Vec<PendingSample>>, Receiver<Vec<PendingSample>>),
}

impl Default for Pool {
    fn default() -> Self {
        Self { contexts: bounded(CONTEXTS), lists: bounded(LISTS) }
    }
}

impl Pool {
    /// A context to be filled; it may still have what it had.
    #[allow(clippy::unnecessary_box_returns)] // It is the box that is used again.
    pub(super) fn context(&self) -> Box<UserContext> {
        self.contexts.1.try_recv().unwrap_or_default()
    }

    /// An empty list of samples.
    pub(super) fn list(&self) -> Vec<PendingSample> {
        self.lists.1.try_recv().unwrap_or_default()
    }

    /// Takes back a context.
    pub fn put_context(&self, context: Box<UserContext>) {
        let _ = self.contexts.0.try_send(context);
    }

    /// Takes back a list.
    pub fn put_list(&self, mut list: Vec<PendingSample>) {
        list.clear();
        if list.capacity() > 0 {
            let _ = self.lists.0.try_send(list);
        }
    }
}
