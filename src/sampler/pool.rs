//! A pool of emptied sample buffers for the workers, so that a capture does not allocate memory for each sample.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use crate::sample::batch::{PendingSample, UserContext};
use scxprof_base::tables::Tables;

/// The most bytes of contexts in the pool: a thousand contexts of the kind that addresses are recovered from.
const CONTEXTS: usize = 3 << 20;
/// The most lists of samples in the pool.
const LISTS: usize = 8;

/// The pool, shared by the workers and the session.
///
/// A worker may be real-time, so it never waits for the session, which may need its CPU. If the pool is locked or
/// empty, memory is allocated; if it is locked or full, memory is freed.
#[derive(Debug, Clone, Default)]
pub struct Pool(Arc<Mutex<Emptied>>);

#[derive(Debug, Default)]
struct Emptied {
    #[allow(clippy::vec_box)] // The boxes themselves are reused.
    contexts: Vec<Box<UserContext>>,
    /// The bytes of the contexts.
    bytes: usize,
    lists: Vec<Vec<PendingSample>>,
}

impl Pool {
    /// `None` if another thread holds the lock.
    fn lock(&self) -> Option<MutexGuard<'_, Emptied>> {
        match self.0.try_lock() {
            Ok(emptied) => Some(emptied),
            Err(TryLockError::Poisoned(emptied)) => Some(emptied.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// A context to be filled; it still has its old content.
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
        // A buffer that is not taken is freed after the lock is released, because it was declared before.
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

    /// Adds its size.
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
