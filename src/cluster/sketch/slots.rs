//! What the tables hold: pages, a thread's touches of a page, and its repeats on a line.

use super::small::Small;
use crate::cluster::keys::{mix, touch_hash};
use crate::cluster::slot_table::Slot;

/// The accesses of one thread to one page: which lines it touched, and which of them it wrote.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(32))] // Of its size: none is in two cache lines, of which the second would not be prefetched.
pub(crate) struct Touch {
    pub page: u64,
    pub lines: u64,
    pub written: u64,
    pub thread: u32,
    /// A bit for each eight lines, set if some have a [`Repeat`]: most have none, and need not be looked up. Above these, a bit
    /// for each of the [`Spans`](crate::cluster::spans::Spans) in which the page was touched.
    pub marks: u32,
}

/// The bits of [`Touch::marks`] for lines.
pub(super) const REPEATED: u32 = 8;

impl Touch {
    /// True if the line may have a [`Repeat`].
    pub fn is_repeated(&self, line: u32) -> bool {
        self.marks >> (line / 8) & 1 == 1
    }

    pub fn repeats(&mut self, line: u32) {
        self.marks |= 1 << (line / 8);
    }

    /// The spans in which it was touched.
    pub fn when(&self) -> u32 {
        self.marks >> REPEATED
    }
}

/// A thread's accesses to a line beyond what the bits of its [`Touch`] record.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(32))] // As that of a touch.
pub(crate) struct Repeat {
    pub key: u64,
    /// Accesses after the first.
    pub accesses: u32,
    /// Writes after the first.
    pub writes: u32,
    /// The cycles that accesses took which missed the core's own caches.
    pub cycles: u32,
    /// Accesses with a cost measured by the source, including the first.
    pub priced: Small,
    /// Those of them that missed the core's own caches.
    pub misses: Small,
    /// Accesses that found the line modified in another cache.
    pub hitm: Small,
    /// A bit for each of the [`Spans`](crate::cluster::spans::Spans) in which it was touched again.
    pub when: Small,
}

/// What kind of memory a page is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum PageKind {
    #[default]
    Private,
    Frame,
    Shared,
}

/// The accesses of all threads to one page.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Page {
    pub key: u64,
    pub number: u64,
    pub object: u32,
    pub(super) kind: PageKind,
    pub accesses: u32,
    /// Threads that touched it.
    pub threads: u32,
    /// Kilocycles of latency.
    pub latency: u32,
    pub hitm: u32,
}

impl Slot for Touch {
    fn hash(&self) -> u64 {
        touch_hash(self.page, self.thread)
    }
    fn is_empty(&self) -> bool {
        self.lines == 0
    }
}

impl Slot for Page {
    fn hash(&self) -> u64 {
        mix(self.key)
    }
    fn is_empty(&self) -> bool {
        self.accesses == 0
    }
}

impl Slot for Repeat {
    fn hash(&self) -> u64 {
        self.key
    }
    fn is_empty(&self) -> bool {
        self.key == 0
    }
}
