//! Which column the time of a thread belongs to, by its name and its hint.

use std::hash::BuildHasher;

use rustc_hash::{FxBuildHasher, FxHashMap};

use super::{Category, Columns};
use scxprof_base::sample::sched::TaskState;
use scxprof_base::sample::Comm;
use scxprof_base::tables::Tables;

/// Threads with a stored hint; further ones have none. A Linux host can have 4 million threads.
const MAX_HINTS: usize = 1 << 18;
/// Names and hints whose column is remembered, each at the place that its hash gives. A power of two.
const PLACES: usize = 1 << 11;

/// The categories, and the hints of threads.
#[derive(Debug)]
pub(super) struct Members {
    /// Each with its column.
    categories: Vec<(Category, usize)>,
    uncategorised: usize,
    /// Some category asks for a hint; otherwise none is kept.
    by_hint: bool,
    /// By thread id.
    hints: FxHashMap<u32, u64>,
    places: Vec<Option<Place>>,
}

/// The cached category of a name and a hint.
#[derive(Debug, Clone, Copy)]
struct Place {
    comm: Comm,
    hint: Option<u64>,
    column: usize,
}

impl Members {
    pub(super) fn new(categories: Vec<Category>, columns: &Columns) -> Self {
        let by_hint = categories.iter().any(|category| category.hint.is_some());
        let column = |category: &Category| columns.names.iter().position(|name| *name == category.name);
        let with_column = |category: Category| column(&category).map(|column| (category, column));
        let categories: Vec<_> = categories.into_iter().filter_map(with_column).collect();
        let places = if categories.is_empty() { Vec::new() } else { vec![None; PLACES] };
        Self { categories, uncategorised: columns.uncategorised, by_hint, hints: FxHashMap::default(), places }
    }

    /// Their sizes.
    pub(super) fn measure(&self, tables: &mut Tables) {
        tables.set_map::<(u32, u64)>("window hints", self.hints.len(), self.hints.capacity(), 0);
        let used = self.places.iter().flatten().count();
        tables.set("window names", used, self.places.capacity() * size_of::<Option<Place>>());
    }

    /// The column of a thread with its present hint.
    #[inline]
    pub(super) fn column(&mut self, tid: u32, comm: &Comm) -> usize {
        let hint = if self.hints.is_empty() { None } else { self.hints.get(&tid).copied() };
        let hash = FxBuildHasher.hash_one((comm, hint)) as usize;
        match self.places.get(hash % PLACES) {
            // Without any category.
            None => self.uncategorised,
            Some(Some(place)) if place.hint == hint && place.comm == *comm => place.column,
            Some(_) => self.look_up(comm, hint, hash % PLACES),
        }
    }

    fn look_up(&mut self, comm: &Comm, hint: Option<u64>, at: usize) -> usize {
        let found = self.categories.iter().find(|(category, _)| category.matches(comm, hint));
        let column = found.map_or(self.uncategorised, |(_, column)| *column);
        if let Some(place) = self.places.get_mut(at) {
            *place = Some(Place { comm: *comm, hint, column });
        }
        column
    }

    /// A hint was written, or deleted; true if the thread may belong to another category now.
    pub(super) fn hint(&mut self, tid: u32, hint: Option<u64>) -> bool {
        let Some(hint) = hint else { return self.hints.remove(&tid).is_some() };
        // The idle task belongs to no category.
        let is_kept = self.by_hint && tid != 0 && (self.hints.len() < MAX_HINTS || self.hints.contains_key(&tid));
        is_kept && self.hints.insert(tid, hint) != Some(hint)
    }

    /// A thread leaves its CPU.
    #[inline]
    pub(super) fn switched_out(&mut self, tid: u32, state: TaskState) {
        if state == TaskState::Dead {
            self.forget(tid);
        }
    }

    /// The thread exits, or its id is that of a new one.
    pub(super) fn forget(&mut self, tid: u32) {
        self.hints.remove(&tid);
    }

    /// A thread takes the id of another, which ends.
    pub(super) fn renumber(&mut self, old: u32, new: u32) {
        if old != new {
            let hint = self.hints.remove(&old);
            self.hints.remove(&new);
            self.hints.extend(hint.map(|hint| (new, hint)));
        }
    }
}
