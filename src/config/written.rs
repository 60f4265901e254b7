//! A configuration as the scheduler reads it: the subcells of the sampled threads.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use super::cell::Subcell;
use super::consumer::{Assigned, Consumer};
use super::decide::Decision;
use super::members::{Member, Members, Verdict};
use super::mitosis::MitosisError;
use super::note::Note;
use super::shares::CellCpus;
use super::tally::{CellIndex, Tally};
use crate::sample::ThreadIndex;

/// The cell and subcell of each thread.
pub(crate) struct Places {
    /// By member; `None` if unknown.
    pub(crate) of: Vec<Option<(ThreadIndex, u32, Assigned)>>,
    /// Which of them are catch-alls, or undivided cells.
    is_rest: BTreeMap<Assigned, bool>,
    pub(crate) threads: usize,
    pub(crate) unlisted: usize,
}

impl Places {
    pub(crate) fn new(decision: &Decision, tally: &Tally, members: &Members) -> Result<Self, MitosisError> {
        let consumer = Consumer::of(&decision.cells, decision.scheduler)?;
        // Many threads are of one cgroup, and to find its cell takes a search with each expression.
        let mut cell_of: FxHashMap<CellIndex, Option<usize>> = FxHashMap::default();
        let place = |member: &Member| {
            let cgroup = tally.get(member.cell)?.cgroup.as_deref()?;
            let cell = *cell_of.entry(member.cell).or_insert_with(|| consumer.cell_for(cgroup));
            let comm = member.comm.unwrap_or_default();
            Some((member.thread, member.cell, consumer.assign_in(cell, comm.as_bytes(), None)))
        };
        let of: Vec<_> = members.threads.iter().map(place).collect();
        let subcell = |place: &Assigned| {
            let cell = place.cell.and_then(|cell| decision.cells.get(cell));
            cell.and_then(|cell| cell.subcells.get(place.subcell?))
        };
        let is_rest = of.iter().flatten().map(|it| (it.2, subcell(&it.2).is_none_or(Subcell::is_catch_all))).collect();
        let threads = of.iter().flatten().map(|it| it.0 as usize + 1).max().unwrap_or(0);
        let unlisted = of.iter().filter(|place| place.is_none()).count();
        Ok(Self { of, is_rest, threads, unlisted })
    }

    /// A label for each thread: threads in one subcell of one cgroup have the same label; only those of `only` if given. A
    /// thread in a catch-all has its own, but for the catch-alls that `is_near` names by their cell.
    fn labeled(&self, only: Option<&Assigned>, is_near: impl Fn(CellIndex, &Assigned) -> bool) -> Vec<u32> {
        let mut labels: Vec<u32> = (0..self.threads as u32).collect();
        let mut next: BTreeMap<(u32, Assigned), u32> = BTreeMap::new();
        for (thread, cell, place) in self.of.iter().flatten() {
            let is_rest = self.is_rest.get(place).copied().unwrap_or(true);
            if is_rest && !is_near(*cell, place) || only.is_some_and(|only| only != place) {
                continue;
            }
            let label = self.threads as u32 + next.len() as u32;
            if let Some(it) = labels.get_mut(*thread as usize) {
                *it = *next.entry((*cell, *place)).or_insert(label);
            }
        }
        labels
    }

    /// The same if no catch-all is near.
    pub(crate) fn labels(&self, only: Option<&Assigned>) -> Vec<u32> {
        self.labeled(only, |_, _| false)
    }
}

/// A label for each thread, as [`Places::labels`]; `None` for a configuration that the scheduler rejects.
pub(crate) fn labels(decision: &Decision, tally: &Tally, members: &Members) -> Option<Vec<u32>> {
    Places::new(decision, tally, members).ok().map(|places| places.labels(None))
}

/// A label for each thread on a host on which the CPUs of each cell are known: threads in a catch-all have one label if its CPUs are
/// all in one cache. `None` as for [`labels`].
pub(super) fn labels_on(cpus: &CellCpus, decision: &Decision, tally: &Tally, members: &Members) -> Option<Vec<u32>> {
    let places = Places::new(decision, tally, members).ok()?;
    let subcells = |place: &Assigned| decision.cells.get(place.cell?).map(|it| it.subcells.len());
    let is_near = |cell, place: &Assigned| subcells(place).is_some_and(|count| cpus.has_near_catch_all(cell, count));
    Some(places.labeled(None, is_near))
}

/// Reports threads without shared memory whose names the subcell of a community takes.
pub(crate) fn strays(decision: &Decision, tally: &Tally, members: &Members) -> Vec<Note> {
    let Ok(places) = Places::new(decision, tally, members) else { return Vec::new() };
    // A thread with several hints may share memory under one of them.
    let sharing: BTreeSet<u32> = members
        .threads
        .iter()
        .filter(|member| matches!(member.verdict, Verdict::Community(_)))
        .map(|member| member.tid)
        .collect();
    let mut of_subcell: BTreeMap<Assigned, BTreeSet<u32>> = BTreeMap::new();
    for (place, member) in places.of.iter().zip(&members.threads) {
        let Some((_, _, place)) = place.filter(|_| member.verdict == Verdict::Alone) else { continue };
        let (Some(cell), Some(at)) = (place.cell, place.subcell) else { continue };
        let basis = decision.bases.get(cell).and_then(|bases| bases.get(at));
        if basis.is_some_and(|basis| !basis.communities.is_empty()) && !sharing.contains(&member.tid) {
            of_subcell.entry(place).or_default().insert(member.tid);
        }
    }
    let note = |(place, threads): (Assigned, BTreeSet<u32>)| {
        let cell = decision.cells.get(place.cell?)?;
        let subcell = cell.subcells.get(place.subcell?)?.name.clone();
        Some(Note::Strays { cell: cell.name.clone(), subcell, threads: threads.into_iter().collect() })
    };
    of_subcell.into_iter().filter_map(note).collect()
}
