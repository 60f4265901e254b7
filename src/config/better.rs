//! The better one of two decisions, cell spec by cell spec: by what threads share, or by their names alone.

use std::collections::{BTreeMap, BTreeSet};

use super::cell_specs::{CellSpecs, SpecIndex};
use super::decide::{decide, Decision, DecisionOptions, NoSamples};
use super::members::{Member, Members, Verdict};
use super::note::Note;
use super::tally::Tally;
use super::written::labels;

/// A smaller difference is ignored.
const CLEARLY: f64 = 0.01;

/// The decision, replaced by that by names alone for each cell spec for which that avoids more misses and puts no two
/// communities into one subcell; with the notes of either.
///
/// `locality` gives the part of the avoidable misses of a cell spec's threads that labels of all threads avoid; `None` if too few
/// are avoidable. Each cell spec is judged by its own threads: those of another one, which may be kept apart because they are
/// not trusted, do not count.
///
/// # Errors
/// [`NoSamples`].
pub(crate) fn better(
    specs: &CellSpecs,
    tally: &Tally,
    members: &Members,
    options: &DecisionOptions,
    locality: impl Fn(SpecIndex, &[u32]) -> Option<f64>,
) -> Result<Decision, NoSamples> {
    let decide = |members: &Members| decide(specs, tally, members, options);
    let (by_sharing, by_name) = (decide(members)?, decide(&Members::default())?);
    let labels = |decision: &Decision| labels(decision, tally, members);
    let (Some(ours), Some(theirs)) = (labels(&by_sharing), labels(&by_name)) else { return Ok(by_sharing) };
    let spec_of = |member: &Member| tally.get(member.cell).map(|cell| cell.spec);
    let (mut notes, mut named): (Vec<Note>, BTreeSet<SpecIndex>) = (Vec::new(), BTreeSet::new());
    for (at, spec) in specs.specs().iter().enumerate() {
        let (Some(by_sharing), Some(by_name)) = (locality(at, &ours), locality(at, &theirs)) else { continue };
        let mut community_of: BTreeMap<u32, u32> = BTreeMap::new();
        let mut is_mixed = |member: &Member| {
            let (Verdict::Community(community), Some(&label)) = (member.verdict, theirs.get(member.thread as usize))
            else {
                return false;
            };
            *community_of.entry(label).or_insert(community) != community
        };
        let mixed = members.threads.iter().filter(|member| spec_of(member) == Some(at)).any(&mut is_mixed);
        if by_name > by_sharing + CLEARLY && !mixed {
            named.insert(at);
            notes.push(Note::ByName { cell: spec.name.clone(), by_sharing, by_name });
        }
    }
    if named.is_empty() {
        return Ok(by_sharing);
    }
    let is_kept = |member: &&Member| !spec_of(member).is_some_and(|spec| named.contains(&spec));
    let threads = members.threads.iter().filter(is_kept).copied().collect();
    let mut decision = decide(&Members { threads, affinity: members.affinity.clone() })?;
    decision.notes.extend(notes);
    Ok(decision)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CellOptions;
    use crate::sample::Comm;

    /// The notes of the decision for threads with these names and communities, where names avoid more.
    fn notes(threads: &[(&str, u32)]) -> Vec<String> {
        let specs = CellSpecs::new(&CellOptions::default()).unwrap();
        let (mut tally, mut members) = (Tally::default(), Members::default());
        let cell = tally.cell(specs.assign(b"/"));
        for (&(name, community), thread) in threads.iter().zip(0..) {
            let (comm, verdict) = (Some(Comm::from(name)), Verdict::Community(community));
            tally.add(cell, comm, 100.0);
            let member = Member { thread, pid: 1, tid: thread, comm, hint: None, cell, samples: 100.0, verdict };
            members.threads.push(member);
        }
        let calls = std::cell::Cell::new(0);
        let locality = |spec: SpecIndex, labels: &[u32]| {
            assert_eq!(labels.len(), threads.len());
            calls.set(calls.get() + 1);
            // The first of each cell spec is by sharing; all threads are in the last one.
            (spec + 1 == specs.specs().len()).then_some(if calls.get() % 2 == 1 { 0.2 } else { 0.9 })
        };
        let decision = better(&specs, &tally, &members, &DecisionOptions::new(0.05, 64), locality).unwrap();
        decision.notes.iter().map(ToString::to_string).filter(|note| note.contains("grouped by name")).collect()
    }

    #[test]
    fn names_decide_where_they_avoid_more_and_mix_no_communities() {
        let found = notes(&[("web", 0), ("web", 0), ("db", 1), ("db", 1)]);
        assert!(found.iter().any(|note| note.starts_with("rest: ") && note.contains("90% of the")), "{found:?}");
        assert_eq!(notes(&[("web", 0), ("web", 1), ("db", 2), ("db", 2)]), Vec::<String>::new());
    }
}
