//! A configuration as the scheduler reads it: where it sends the threads that were seen.

use std::collections::BTreeMap;

use super::cells::{Decision, Subcell};
use super::consumer::{Assigned, Consumer};
use super::members::{Member, Members, Verdict};
use super::note::Note;
use super::tally::Tally;

/// Where a decision sends each member, in their order; `None` where that cannot be said. `None` for a configuration that the
/// scheduler refuses.
fn assigned(decision: &Decision, tally: &Tally, members: &Members) -> Option<Vec<Option<Assigned>>> {
    let consumer = Consumer::new(&decision.cells).ok()?;
    let place = |member: &Member| {
        let cgroup = tally.get(member.cell)?.cgroup.as_deref()?;
        Some(consumer.assign(cgroup, member.comm.unwrap_or_default().as_bytes()))
    };
    Some(members.threads.iter().map(place).collect())
}

fn subcell<'a>(decision: &'a Decision, at: &Assigned) -> Option<&'a Subcell> {
    decision.cells.get(at.cell?)?.subcells.get(at.subcell?)
}

/// A label for each member: members have one in common that are in one subcell of one cgroup; those in a catch-all have their own.
pub(crate) fn labels(decision: &Decision, tally: &Tally, members: &Members) -> Option<Vec<u32>> {
    let assigned = assigned(decision, tally, members)?;
    let mut labels: Vec<u32> = (0..members.threads.len() as u32).collect();
    let mut next = BTreeMap::new();
    for ((label, place), member) in labels.iter_mut().zip(assigned).zip(&members.threads) {
        let Some(place) = place.filter(|at| subcell(decision, at).is_some_and(|it| !it.is_catch_all())) else {
            continue;
        };
        let new = (members.threads.len() + next.len()) as u32;
        *label = *next.entry((member.cell, place)).or_insert(new);
    }
    Some(labels)
}

/// Says which threads that share with nobody have names that the subcell of a community takes.
pub(crate) fn strays(decision: &Decision, tally: &Tally, members: &Members) -> Vec<Note> {
    let mut of_subcell: BTreeMap<Assigned, Vec<u32>> = BTreeMap::new();
    for (place, member) in assigned(decision, tally, members).unwrap_or_default().into_iter().zip(&members.threads) {
        let Some(place) = place.filter(|_| member.verdict == Verdict::Alone) else { continue };
        let (Some(cell), Some(at)) = (place.cell, place.subcell) else { continue };
        let basis = decision.bases.get(cell).and_then(|bases| bases.get(at));
        if basis.is_some_and(|basis| !basis.communities.is_empty()) {
            of_subcell.entry(place).or_default().push(member.tid);
        }
    }
    let note = |(place, mut threads): (Assigned, Vec<u32>)| {
        threads.sort_unstable();
        threads.dedup();
        let cell = decision.cells.get(place.cell?)?;
        Some(Note::Strays {
            cell: cell.name.clone(),
            subcell: cell.subcells.get(place.subcell?)?.name.clone(),
            threads,
        })
    };
    of_subcell.into_iter().filter_map(note).collect()
}
