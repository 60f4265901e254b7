//! Memory of samples that goes back to the workers when it is empty, so that a capture does not allocate for each sample.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use crate::sample::batch::{PendingSample, UserContext};
use scxprof_base::tables::Tables;

/// Bytes of contexts that wait to be filled again: a thousand of those that addresses are recovered from.
const CONTEXTS: usize = 3 << 20;
/// Lists of samples that wait likewise.
const LISTS: usize = 8;

/// What was emptied, shared by the workers and the session.
///
/// A worker may be real-time and never waits for the session, which may need its CPU: what cannot be had at once is allocated, and
/// what there is no room for is freed.
#[derive(Debug, Clone, Default)]
pub struct Pool(Arc<Mutex<Emptied>>);

#[derive(Debug, Default)]
struct Emptied {
    #[allow(clippy::vec_box)] // The boxes are what is used again.
    contexts: Vec<Box<UserContext>>,
    /// What they take.
    bytes: usize,
    lists: Vec<Vec<PendingSample>>,
}

impl Pool {
    /// `None` if another thread has it.
    fn lock(&self) -> Option<MutexGuard<'_, Emptied>> {
        match self.0.try_lock() {
            Ok(emptied) => Some(emptied),
            Err(TryLockError::Poisoned(emptied)) => Some(emptied.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// A context to be filled; it still has what it had.
    #[allow(clippy::unnecessary_box_returns)] // As above.
    pub(super) fn context(&self) -> Box<UserContext> {
        let taken = self.lock().and_then(|mut emptied| {
            let context = emptied.contexts.pop()?;
            emptied.bytes = emptied.bytes.saturating_sub(context.bytes());
            Some(context)
        });
        taken.unwrap_or_default()
    }

    /// An empty list of samples.
    pub(super) fn list(&self) -> Vec<PendingSample> {
        self.lock().and_then(|mut emptied| emptied.lists.pop()).unwrap_or_default()
    }

    /// Takes back a context.
    pub fn put_context(&self, context: Box<UserContext>) {
        let bytes = context.bytes();
        // What is not taken is freed after the lock, as it was there before.
        let Some(mut emptied) = self.lock() else { return };
        if emptied.bytes + bytes <= CONTEXTS {
            emptied.bytes += bytes;
            emptied.contexts.push(context);
        }
    }

    /// Takes back a list.
    pub fn put_list(&self, mut list: Vec<PendingSample>) {
        list.clear();
        let Some(mut emptied) = self.lock() else { return };
        if list.capacity() > 0 && emptied.lists.len() < LISTS {
            emptied.lists.push(list);
        }
    }

    /// Its size.
    pub(crate) fn measure(&self, tables: &mut Tables) {
        let Some(emptied) = self.lock() else { return };
        let lists: usize = emptied.lists.iter().map(|list| list.capacity() * size_of::<PendingSample>()).sum();
        tables.set("memory of samples to be used again", emptied.contexts.len(), emptied.bytes + lists);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_back_is_bounded_and_nobody_waits_for_it() {
        let pool = Pool::default();
        let large = || Box::new(UserContext { stack: vec![1; 64 << 10], ..UserContext::default() });
        for _ in 0..200 {
            pool.put_context(large());
            pool.put_list(Vec::with_capacity(10));
            pool.put_list(Vec::new());
        }
        let kept = pool.lock().unwrap().contexts.len();
        assert!((40..=48).contains(&kept), "{kept}");
        assert_eq!(pool.lock().unwrap().lists.len(), LISTS);
        let held = pool.0.lock().unwrap();
        assert_eq!((pool.context().stack.len(), pool.list().capacity()), (0, 0), "another thread has it");
        pool.put_context(large());
        drop(held);
        for _ in 0..kept {
            assert_eq!(pool.context().stack.len(), 64 << 10);
        }
        assert_eq!((pool.context().stack.len(), pool.lock().unwrap().bytes), (0, 0));
    }
}
